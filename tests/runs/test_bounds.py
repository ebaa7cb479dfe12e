"""Whatever a file of a run declares has a bound: no number, text or list of a manifest goes without one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from dpaudit.mechanisms import AGGREGATORS, CONTRIBUTIONS
from dpaudit.runs.batches import BatchHeader, Sample, _Ending
from dpaudit.runs.manifest import Clusters, Manifest
from dpaudit.runs.public import PublicTexts

BOUNDED = {"int": "number", "float": "number", "str": "text", "tuple": "list", "list": "list", "dict": "object"}
KINDS: list[Any] = [Manifest, Clusters, PublicTexts, Sample, _Ending, *AGGREGATORS.values(), *CONTRIBUTIONS.values()]


def unbounded(schema: Any, place: str = "") -> Iterator[str]:
    """Places in a core schema of pydantic that hold a number, text, list or object of any size."""
    if isinstance(schema, (list, tuple)):
        for inner in schema:
            yield from unbounded(inner, place)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    least, most = (next((schema[key] for key in keys if key in schema), None) for keys in (("ge", "gt"), ("le", "lt")))
    if kind in ("int", "float") and not all(end is not None and math.isfinite(end) for end in (least, most)):
        yield f"{place}: {kind}"
    if kind == "str" and "max_length" not in schema and not _finite(schema.get("pattern")):
        yield f"{place}: {kind}"
    if kind in ("list", "dict", "set", "frozenset", "any") and "max_length" not in schema:
        yield f"{place}: {kind}"
    if kind == "tuple" and "variadic_item_index" in schema and "max_length" not in schema:
        yield f"{place}: {kind}"
    for key, inner in schema.items():
        if key not in ("metadata", "serialization"):
            named = place if key in ("schema", "type", "items_schema", "definitions") else f"{place}.{key}"
            yield from unbounded(inner, named)


def _finite(pattern: str | None) -> bool:
    """Whether a pattern is anchored at both ends and repeats nothing without a bound."""
    return (
        pattern is not None
        and pattern[0] == "^"
        and pattern[-1] == "$"
        and not {"*", "+"} & set(pattern.replace("[+-]", ""))
    )


@pytest.mark.parametrize("kind", [*KINDS, BatchHeader], ids=lambda kind: kind.__name__)
def test_every_number_text_and_list_has_a_bound(kind: Any) -> None:
    assert sorted(unbounded(TypeAdapter(kind).core_schema)) == []


def test_a_field_without_a_bound_is_found() -> None:
    class Inner(BaseModel):
        number: int = 0

    class Outer(BaseModel):
        inner: tuple[Inner, ...] = ()
        ratio: float | None = None
        names: dict[str, str] = {}

    found = list(unbounded(TypeAdapter(Outer).core_schema))
    assert [sum(word in each for each in found) for word in ("int", "float", "str", "tuple", "dict")] == [1, 1, 2, 1, 1]
