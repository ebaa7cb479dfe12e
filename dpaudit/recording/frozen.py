"""A recorded generator that is run again with its outputs frozen: it goes on with the released tokens.

`dpaudit replay RUN --without ROW` sets the variable. What is written then is never finished: it cannot pass for a run.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpaudit.runs import RunReader
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.storage import Location

VARIABLE = "DPAUDIT_FROZEN"


@dataclass(frozen=True)
class Frozen:
    """What a generator is run again against.

    Attributes:
        released: the run that it made, which gives the key of its batches and every token.
        out: where to write instead.
    """

    released: Location
    out: Path

    @classmethod
    def asked(cls) -> Frozen | None:
        """What the environment asks for; None where a run is to be a run."""
        found = os.environ.get(VARIABLE)
        if found is None:
            return None
        fields = json.loads(found)
        return cls(fields["released"], Path(fields["out"]))

    def environment(self) -> dict[str, str]:
        """The variable that says so."""
        return {VARIABLE: json.dumps({"released": str(self.released), "out": str(self.out)})}

    def tokens(self) -> Mapping[int, tuple[int, ...]]:
        """Those of each batch, one text's after another's."""
        found: dict[int, tuple[int, ...]] = {}
        for sample in RunReader(self.released).samples():
            found[sample.id] = found.get(sample.id, ()) + sample.tokens
        return found


def batching_key() -> bytes:
    """A new secret key for batches; the released run's where outputs are frozen."""
    frozen = Frozen.asked()
    recorded = None if frozen is None else RunReader(frozen.released).manifest.batching.key
    return secrets.token_bytes(KEY_BYTES) if recorded is None else bytes.fromhex(recorded)
