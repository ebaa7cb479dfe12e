"""What a shell takes for a path, in the commands that reports and the program show."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from dpaudit.results.audit import ClaimResult
from dpaudit.results.rounding import stated


def argument(name: str, otherwise: str) -> str:
    """A path as an argument of a command: quoted where need be, and for the command none of its options.

    A name that cannot be printed as it is, or would reorder what stands around it, is nothing to paste: `otherwise`.
    """
    if not name.isprintable():
        return otherwise
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def claim_options(claim: ClaimResult | None, names: Iterable[str]) -> str:
    """The options that give these fields of a claim, each after a space; empty where it is withheld."""
    if claim is None:
        return ""
    values = {name: getattr(claim, name) for name in names}
    return "".join(
        f" --{name.replace('_', '-')} {value if isinstance(value, str) else stated(value)}"
        for name, value in values.items()
        if value is not None
    )
