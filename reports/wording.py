"""All reports' words: statuses, evidence levels, kinds of epsilon, warnings and the glossary."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeVar, get_args

from dpaudit.mechanisms.claims import KIND_MEANINGS as KIND_MEANINGS
from dpaudit.mechanisms.claims import KIND_TITLES as KIND_TITLES
from dpaudit.reports.text import counted, one_line
from dpaudit.results import Finding, Status, Verdict
from dpaudit.results.catalogue import catalogue, render, sentence
from dpaudit.results.evidence import level_meaning
from dpaudit.results.rounding import DIGITS, lower_bound, nearest

Value = TypeVar("Value")

STATUS_NAMES: Final[dict[Status | Verdict, str]] = {
    "not_verified": "Not verified",
    "fail": "Failed",
    "error": "Could not run",
    "warn": "Warning",
    "pass": "Passed",
    "skip": "Not made",
}

STATUS_MARKS: Final[dict[Status | Verdict, str]] = {
    "not_verified": "!",
    "fail": "✗",
    "error": "?",
    "warn": "!",
    "pass": "✓",
    "skip": "–",
}
#: Verdicts within a line.
VERDICT_NAMES: Final[dict[Verdict, str]] = {
    verdict: verdict.replace("_", " ") for verdict in get_args(Verdict)
}

#: Stands where there is no figure.
ABSENT: Final = "–"

#: What stands before a check's fixed words. A failed check's detail may know more of this run than
#: its remedy.
WHY, REMEDY, HERE = "Why it matters", "How to mend it", "In this run"

DETAIL_NAMES: Final[dict[Status, str]] = {
    "fail": "What to do",
    "error": "What to do",
    "warn": "Detail",
    "pass": "Detail",
    "skip": "Reason",
}

TRUSTED: Final = "Other assumptions"

METHOD_NAMES: Final[dict[str, str]] = {
    "rdp": "Rényi DP (rdp), the paper's method",
    "optimal": "optimal adaptive composition (optimal)",
    "zcdp": "what all tokens together may cost, by zero-concentrated DP",
}

#: How a node's children make it up.
RULES: Final[dict[str, str]] = {
    "leaf": "",
    "sum": "the sum of",
    "maximum": "the largest of",
    "joint": "composed jointly by one accountant from",
}

#: Under kind ex-post "joint" is no accountant's work.
SHARED: Final = "the worst way of sharing the changed contexts among"


_RELATIONS: Final[dict[str, str]] = {"add_remove": "add or remove one", "replace": "replace one"}


def say(name: str, **values: str | int) -> str:
    """Return fixed words for pages: the catalogue's sentence `page.NAME`, with its values."""
    return sentence(Finding(code=f"page.{name}", values={**values}))


def section_title(name: str) -> str:
    """Return the title of a report's section, by the id that links lead to."""
    return catalogue().section[name]


def glossary() -> dict[str, str]:
    """Return the meanings of the terms that reports use."""
    shown: dict[str, str | int] = {
        **{str(kind): meaning for kind, meaning in KIND_MEANINGS.items()},
        "rise-and-fall": say("rise-and-fall"),
        "digits": DIGITS,
    }
    return {term: render(meaning, {**shown}) for term, meaning in catalogue().glossary.items()}


def neighbours(relation: str, unit: str, records_per_user: int | None) -> str:
    """Return neighbours' difference: "add or remove one user with at most 10 records"."""
    of_user = ", all records of theirs"
    if records_per_user is not None:
        of_user = f" with at most {counted(records_per_user, 'record')}"
    return one_line(
        f"{_RELATIONS.get(relation, relation)} {unit}{of_user if unit == 'user' else ''}"
    )


def or_absent(value: Value | None, shown: Callable[[Value], str]) -> str:
    """Return how a figure is shown, where there is one."""
    return ABSENT if value is None else shown(value)


def signed(value: float, digits: int = DIGITS) -> str:
    """Return a measured figure with its sign, which gives the direction of a change."""
    shown = nearest(value, digits)
    return f"+{shown}" if value > 0 and math.isfinite(value) else shown


def least_epsilon(epsilon: float) -> str:
    """Return an epsilon that was shown from below. 0 is no bound, and is not said as one."""
    return f"epsilon at least {lower_bound(epsilon)}" if epsilon > 0 else "no epsilon above 0"


def evidence(level: int) -> str:
    """Return what a check of this evidence level rests on."""
    return f"Level {level}: {level_meaning(level)}"
