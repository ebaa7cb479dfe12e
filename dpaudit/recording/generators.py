"""The generators of others that are recorded as they are: a file each, and a line here."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, cast

from dpaudit.runs.manifest import Mend
from dpaudit.runs.storage import Location

#: By name: the module whose `recording(asked)` wraps the generator while a block runs.
GENERATORS = {"invink": "dpaudit.recording.invink"}


@dataclass(frozen=True)
class Asked:
    """What is asked of a recording.

    Attributes:
        out: the run directory to write.
        mend: what is replaced in the generator; nothing else is.
        texts, max_tokens: public numbers, which "lengths" puts in place of those that the generator takes from records.
        claim: the epsilon that the generator was asked for, or the largest that it says it spent on a text.
    """

    out: Location
    mend: tuple[Mend, ...] = ()
    texts: int | None = None
    max_tokens: int | None = None
    claim: Literal["asked", "spent"] = "asked"

    def __post_init__(self) -> None:
        given = self.texts is not None and self.max_tokens is not None
        if ("lengths" in self.mend) != given or (self.texts is None) != (self.max_tokens is None):
            raise ValueError("texts and max_tokens are for mend lengths, which needs both")


def recording(name: str, asked: Asked) -> AbstractContextManager[None]:
    """Record what a generator does while a block runs: one run, whole when the block ends.

    Raises:
        InputError: the generator is not installed, is of another version, or made no whole run; or the directory cannot
            be used.
        KeyError: there is no such generator.
    """
    module = importlib.import_module(GENERATORS[name])
    return cast(AbstractContextManager[None], module.recording(asked))
