"""Run a script under a recorder: python -m dpaudit.recording GENERATOR SETTINGS SCRIPT [ARGUMENTS].

`dpaudit record` starts it, with the Python that the script is for. SETTINGS are the fields of
`RecordingOptions`, as JSON.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

from dpaudit.recording.generators import RecordingOptions, recording
from dpaudit.runs import InputError

UNUSABLE = 2


def main(name: str, settings: str, script: str, *arguments: str) -> None:
    """Run the script as `python SCRIPT ARGUMENTS` would."""
    fields = json.loads(settings)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    try:
        with recording(name, RecordingOptions(**fields | {"mend": tuple(fields["mend"])})):
            runpy.run_path(script, run_name="__main__")
    except InputError as error:
        print(f"dpaudit: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(UNUSABLE)


if __name__ == "__main__":
    main(*sys.argv[1:])
