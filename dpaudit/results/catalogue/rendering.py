"""Sentences from findings: templates of the catalogue filled with values, rounded to the safe side.

A template is a format string. `{epsilon}` shows a value unchanged; a format stands after a colon:

- `up`: an epsilon as checks state it, six decimals, rounded up. `beside NAME`: rounded up with as
  many digits as it takes to stay within the value NAME. `least`: rounded down. `near`, `near3`: to
  so many digits, four by default. `exact`: as claimed, in few characters. `stated`: as it was
  stated. `repr`: as Python writes it. `delta`: a delta, rounded up. `share`: a share as percent, to
  the nearest. `points`: a share as percentage points, rounded up. `in_100`: a share as times in
  100, rounded up to a whole number. `factor`: what an epsilon multiplies a probability by.
- `small_delta`: of a number of records, a delta that is small enough for them.
- `n`: with thousands separators. `plural record records`: the number with its noun. `word is are`:
  the word alone.
- Several values stand in a row, with commas; `and`, `or`: with that word before the last.

A finding within a finding is shown by its own sentence. A part in `[[` and `]]` is left out if a
value that it shows is missing.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from dpaudit.results.catalogue.entries import catalogue, entry, plain, wording
from dpaudit.results.rounding import (
    bound,
    bound_against,
    delta_bound,
    exactly,
    factor,
    in_100,
    lower_bound,
    nearest,
    rounded_up,
    small_delta,
    stated,
)
from dpaudit.results.values import Finding, Message, Place, Quantity, Value, printable

_OPTIONAL: Final = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


def render(
    template: str, values: Mapping[str, Value], context: Mapping[str, str] | None = None
) -> str:
    """Return a template filled with values.

    Args:
        template: of the catalogue.
        values: by name.
        context: what every sentence may show: `run`, the run directory as a shell takes it, and
            `question`, the options that ask for the same claim again, each after a space.

    Raises:
        KeyError: the template shows a value that is not there.
    """
    filling = _Filling(values, context or {})
    kept = _OPTIONAL.sub(lambda part: part[1] if filling.has_all(part[1]) else "", template)
    return filling.vformat(kept, (), {})


def sentence(finding: Finding, context: Mapping[str, str] | None = None) -> str:
    """Return a finding in words.

    For a check's `check.id:outcome` these are the figures, for `check.id:outcome:expected` the
    right value.

    Raises:
        InputError: no plug-in has brought words for it.
        KeyError: the catalogue does not have it, and there are no plug-ins.
    """
    check, _, outcome = finding.code.partition(":")
    if not outcome:
        return render(plain(finding.code).text, finding.values, context)
    code, _, part = outcome.partition(":")
    words = wording(check, code)
    due = entry(check).expected if words.expected is None else words.expected
    return render(due if part else words.found, finding.values, context)


def message(finding: Finding, context: Mapping[str, str] | None = None) -> Message:
    """Return a finding with its words.

    Raises:
        KeyError: the catalogue does not have it.
    """
    return Message(code=finding.code, values=finding.values, words=sentence(finding, context))


def is_public(finding: Finding) -> bool:
    """Return whether readers outside may see a finding.

    That is its code, all its values, and the findings among these.
    """
    held = catalogue().sentence.get(finding.code)
    inner = [
        each
        for value in finding.values.values()
        for each in (value if isinstance(value, tuple) else (value,))
    ]
    return (
        held is not None
        and held.public_code
        and finding.values.keys() <= set(held.public)
        and all(is_public(each) for each in inner if isinstance(each, Finding))
    )


class _Filling(string.Formatter):
    def __init__(self, values: Mapping[str, Value], context: Mapping[str, str]) -> None:
        self._values, self._context = values, context

    def has_all(self, template: str) -> bool:
        """Return whether all values are there that a part of a template shows."""
        names = [name for _, name, _, _ in self.parse(template) if name]
        return all(name in self._values or name in self._context for name in names)

    def get_value(self, key: int | str, args: object, kwargs: object) -> Any:
        """Return a value or a part of the context by its name."""
        if key in self._values:
            return self._values[str(key)]
        return self._context[str(key)]

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value in words."""
        how, *named = format_spec.split() or [""]
        return self._shown(value, how, named)

    def _shown(self, value: Any, how: str, named: list[str]) -> str:
        if isinstance(value, Finding):
            return sentence(value, self._context)
        if isinstance(value, Place):
            return _place(value)
        if isinstance(value, tuple):
            shown = [self._shown(item, "", []) for item in value]
            if how and len(shown) > 1:
                return f"{', '.join(shown[:-1])} {how} {shown[-1]}"
            return ", ".join(shown)
        if isinstance(value, Quantity):
            value = value.value
        if how == "beside":
            return bound_against(value, self._number(named[0]))
        if how == "plural":
            return f"{value:,} {named[int(value != 1)]}"
        if how == "word":
            return named[int(value != 1)]
        if how:
            return str(_FORMS[how](value))
        if isinstance(value, str):
            return printable(str(value))
        return _plain(value)

    def _number(self, name: str) -> float:
        value = self._values[name]
        return float(value.value if isinstance(value, Quantity) else cast(float, value))


_FORMS: Final[Mapping[str, Callable[[Any], str]]] = {
    "up": rounded_up,
    "least": lower_bound,
    "near": nearest,
    "near2": lambda value: nearest(value, 2),
    "near3": lambda value: nearest(value, 3),
    "near6": lambda value: nearest(value, 6),
    "exact": exactly,
    "stated": stated,
    "repr": repr,
    "delta": delta_bound,
    "small_delta": lambda records: stated(small_delta(records)),
    "factor": factor,
    "share": lambda value: f"{nearest(100 * value, 3)}%",
    "points": lambda value: f"{bound(100 * value, 3)} percentage points",
    "in_100": in_100,
    "n": lambda value: f"{value:,}",
}


def _plain(value: bool | int | float) -> str:
    return str(value) if isinstance(value, bool | int) else stated(value)


def _place(place: Place) -> str:
    parts = [f"batch {place.batch}"]
    parts += [f"slot {place.slot}"] * (place.slot is not None)
    parts += [f"step {place.step}"] * (place.step is not None)
    parts += [f"text {place.text}"] * (place.text is not None)
    return ", ".join(parts)
