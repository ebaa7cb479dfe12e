# ruff: noqa: S603
"""python .ci/install.py ENVIRONMENT ARGUMENTS: `pip install ARGUMENTS` in an environment, by uv.

uv takes a tenth of pip's time, and keeps what it fetched for the next environment. It reads none of
pip's configuration, so it is told here where pip is configured to look. Where uv cannot be had or
fails, pip installs. Without arguments uv alone is fetched, for installations side by side.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import venv
from pathlib import Path

#: An environment that holds pip and uv; what is installed with them has neither.
TOOLS = Path(__file__).parents[1] / ".venv-uv"
PYTHON, UV = str(TOOLS / "bin/python"), str(TOOLS / "bin/uv")
#: What pip calls a setting, and uv's variable for it.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
}
#: Where pip finds a setting, the weakest place first.
PLACES = ("global", "install", ":env:")


def pip_settings(listed: str) -> dict[str, str]:
    """Return uv's variables from `pip config list`: lines such as `global.find-links='/wheels'`."""
    lines = [line.partition("=") for line in listed.splitlines() if "=" in line]
    values = {name: str(ast.literal_eval(value)) for name, _, value in lines}
    # pip, too, takes the newest version wherever it is
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for place in PLACES:
        for setting, variable in SETTINGS.items():
            if value := values.get(f"{place}.{setting}", "").split():
                found[variable] = ("," if setting == "find-links" else " ").join(value)
    return found


def fetch_uv() -> bool:
    """Install uv where it is not, and return whether it is there now."""
    if not Path(UV).exists():
        venv.create(TOOLS, clear=True, with_pip=True)
        subprocess.run(
            [PYTHON, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", "uv"],
            check=False,
        )
    return Path(UV).exists()


def main(environment: str, *arguments: str) -> None:
    """Install, and leave with pip's exit code where it had to."""
    if fetch_uv():
        listed = subprocess.run(
            [PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        )
        command = [UV, "pip", "install", "--quiet", "--python", environment, *arguments]
        if not subprocess.run(
            command, env=pip_settings(listed.stdout) | os.environ, check=False
        ).returncode:
            return
        print("uv could not install this; pip tries.", file=sys.stderr)  # noqa: T201
    command = [PYTHON, "-m", "pip", "--python", environment, "install", "--quiet", *arguments]
    sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        fetch_uv()
