"""Instructions to install an optional part: dpaudit is on no package index."""

from __future__ import annotations

import json
import shlex
import sysconfig
from contextlib import suppress
from importlib.metadata import Distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: In a copy of the repository, which is where the documents install it from.
IN_CHECKOUT = "In a checkout of dpaudit, run `pip install '.[{extra}]'`"


def installing(extra: str) -> str:
    """Return the beginning of a sentence that says how to install an extra, such as `generate`.

    The command names the checkout or the wheel that dpaudit was installed from, where that is still
    there.
    """
    # Not from the current folder, which may be somebody else's.
    for found in Distribution.discover(name="dpaudit", path=[sysconfig.get_path("purelib")]):
        # whatever an installer wrote there
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            origin = json.loads(found.read_text("direct_url.json") or "null")
            url = urlsplit(origin["url"])
            path = Path(unquote(url.path))
            if url.scheme == "file" and str(path).isprintable() and path.exists():
                editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
                return f"Run `pip install {editable}{shlex.quote(f'{path}[{extra}]')}`"
    return IN_CHECKOUT.format(extra=extra)
