"""What a shell takes for a path, in the commands that reports and the program show."""

from __future__ import annotations

import shlex


def argument(name: str, otherwise: str) -> str:
    """A path as an argument of a command: quoted where need be, and for the command none of its options.

    A name that cannot be printed as it is, or would reorder what stands around it, is nothing to paste: `otherwise`.
    """
    if not name.isprintable():
        return otherwise
    return shlex.quote(f"./{name}" if name.startswith("-") else name)
