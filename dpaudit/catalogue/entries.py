"""The entries of the catalogue, read from the data files beside this module and from those of plug-ins."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


#: What may be given to an audit to make a check that was not made.
Given: TypeAlias = Literal["model", "data", "seed", "tokenizer"]


class Wording(_Entry):
    """The words for one outcome of a check. Templates show values by name (`dpaudit.catalogue.rendering`).

    Attributes:
        found: what was found, in figures.
        expected: what would have been right; the check's own `expected` where this is None.
        detail: where, and what to do about it.
        public: names of the values that readers outside may see. None unless somebody argued for it.
        public_code: whether readers outside may see which outcome it is, beyond pass or fail.
    """

    found: str
    expected: str | None = None
    detail: str = ""
    public: tuple[str, ...] = ()
    public_code: bool = False


class Entry(_Entry):
    """What is fixed about a check.

    Attributes:
        title, fails: state the good outcome and the bad one.
        evidence: level from 0 to 4, see `dpaudit.results.evidence`.
        made_with: what makes the check where it was not made, in order of preference: any one of these.
        compares: what is held against what.
        why: what harm comes where it fails.
        remedy: how to mend it where it fails.
        reference: the paper's or the documentation's place.
        expected: what would have been right, where an outcome does not say it.
        outcome: the words for each outcome, by its code.
    """

    title: str
    fails: str
    evidence: int
    made_with: tuple[Given, ...] = ()
    compares: str
    why: str
    remedy: str
    reference: str
    expected: str = ""
    outcome: dict[str, Wording] = {}


class Sentence(_Entry):
    """The words for a finding that stands by itself or within another: a caveat, a verdict, a step's problem.

    Attributes:
        text: the template.
        public: names of the values that readers outside may see.
        public_code: whether readers outside may see the sentence. They never see one with a value that is not public.
    """

    text: str
    public: tuple[str, ...] = ()
    public_code: bool = False


class Catalogue(_Entry):
    """All entries: checks by their ids, sentences by their codes, and outcomes that any check may have."""

    outcome: dict[str, Wording] = {}
    check: dict[str, Entry] = {}
    sentence: dict[str, Sentence] = {}


_FROM_PLUG_INS: list[str] = []


@cache
def catalogue() -> Catalogue:
    """Return the whole catalogue: dpaudit's own files, then those of plug-ins.

    Raises:
        ValueError: an entry is there twice.
    """
    return _merged([*_own(), *_FROM_PLUG_INS])


def _own() -> list[str]:
    named = sorted(files(__package__).iterdir(), key=str)
    return [file.read_text("utf-8") for file in named if file.name.endswith(".toml")]


def register(text: str) -> None:
    """Add a plug-in's entries, in TOML. Raises ValueError where it is none, or repeats an entry."""
    _merged([*_own(), *_FROM_PLUG_INS, text])
    _FROM_PLUG_INS.append(text)
    catalogue.cache_clear()


def _merged(texts: Iterable[str]) -> Catalogue:
    parts: dict[str, dict[str, Any]] = {"check": {}, "sentence": {}, "outcome": {}}
    for text in texts:
        for part, held in tomllib.loads(text).items():
            if twice := parts.setdefault(part, {}).keys() & held.keys():
                raise ValueError(f"the catalogue has {min(twice)} twice")
            parts[part] |= held
    return Catalogue.model_validate(parts, strict=False)


def entry(check: str) -> Entry:
    """Return a check's entry. Raises KeyError where there is none."""
    return catalogue().check[check]


def wording(check: str, outcome: str) -> Wording:
    """Return the words for an outcome, the check's own or those that all checks share. Raises KeyError without any."""
    return entry(check).outcome.get(outcome) or catalogue().outcome[outcome]
