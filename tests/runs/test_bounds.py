"""Every value that a run's file declares has a bound: every number, text and list of a manifest."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from dpaudit.mechanisms import AGGREGATORS, CONTRIBUTIONS, Mean, Mechanism, TopClippedLogits
from dpaudit.runs import InputError
from dpaudit.runs.batches import BatchArrays, BatchHeader, Sample, _Ending
from dpaudit.runs.layout import most_bytes
from dpaudit.runs.manifest import (
    Batching,
    Clusters,
    Data,
    Decoding,
    Manifest,
    Model,
    Prompt,
    Record,
)
from dpaudit.runs.public import PublicTexts
from dpaudit.runs.storage import open_storage
from dpaudit.runs.strict_json import load
from dpaudit.runs.text import Vocabulary

KINDS: list[Any] = [
    Manifest,
    Clusters,
    PublicTexts,
    Sample,
    _Ending,
    *AGGREGATORS.values(),
    *CONTRIBUTIONS.values(),
]


def unbounded(schema: Any, place: str = "") -> Iterator[str]:
    """Places in a core schema of pydantic that hold a number, text, list or object of any size."""
    if isinstance(schema, (list, tuple)):
        for inner in schema:
            yield from unbounded(inner, place)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    least, most = (
        next((schema[key] for key in keys if key in schema), None)
        for keys in (("ge", "gt"), ("le", "lt"))
    )
    if kind in ("int", "float") and not all(
        end is not None and math.isfinite(end) for end in (least, most)
    ):
        yield f"{place}: {kind}"
    if kind == "str" and "max_length" not in schema and not _finite(schema.get("pattern")):
        yield f"{place}: {kind}"
    if kind in ("list", "dict", "set", "frozenset", "any") and "max_length" not in schema:
        yield f"{place}: {kind}"
    if kind == "tuple" and "variadic_item_index" in schema and "max_length" not in schema:
        yield f"{place}: {kind}"
    for key, inner in schema.items():
        if key not in ("metadata", "serialization"):
            named = (
                place
                if key in ("schema", "type", "items_schema", "definitions")
                else f"{place}.{key}"
            )
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
    assert [
        sum(word in each for each in found) for word in ("int", "float", "str", "tuple", "dict")
    ] == [1, 1, 2, 1, 1]


def test_json_is_counted_before_it_is_parsed() -> None:
    for text in ("[" + "[]," * 9 + "0]", '{"a":1,' * 9 + "1" + "}" * 9, b"[" + b"1," * 20 + b"1]"):
        with pytest.raises(ValueError, match="more than 9 values"):
            load(text, 9)
    assert load("[[1], {}]", 9) == [[1], {}]
    with pytest.raises(ValueError, match="digits"):
        load("1" * 1025)


def test_a_step_has_a_bound_for_writers_and_readers() -> None:
    mechanism = Mechanism(
        contribution=TopClippedLogits(clip=8.0), aggregator=Mean(divisor=4.0), temperature=1.0
    )
    manifest = manifest_of(mechanism)
    assert BatchArrays(manifest, 63).given["contexts"] == ("<f8", (63, 256_000))
    with pytest.raises(InputError, match="at most 134,217,728 are read") as refused:
        BatchArrays(manifest, 65)
    assert "public top-k" in refused.value.remedy


def manifest_of(mechanism: Mechanism) -> Manifest:
    return Manifest(
        created="2026-01-01T00:00:00Z",
        mechanism=mechanism,
        batching=Batching(rule="hashed-records", batches=1),
        decoding=Decoding(max_tokens=3),
        record=Record(dtype="float64", vocabulary=256_000, contexts=True),
        data=Data(records=9),
        model=Model(name="none"),
        prompt=Prompt(template="none"),
    )


def test_no_file_of_another_name_is_opened(tmp_path: Path) -> None:
    for name in ("extra.bin", "steps/extra.bin", "../run.json", "steps/../run.json"):
        assert most_bytes(name) is None
        with (
            pytest.raises(InputError, match="does not belong in a run directory"),
            open_storage(tmp_path).open(name),
        ):
            pass


ADDED = {"id": 2, "content": "<end>", "special": True}


def serialised(**change: Any) -> str:
    """A tokenizer of two tokens, and of one that was added."""
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", 'b"]'], "a b\\\\"]}
    return json.dumps(
        {"model": model, "added_tokens": [ADDED], "decoder": {"type": "Fuse"}} | change
    )


def test_a_vocabulary_is_read_without_merges() -> None:
    found = Vocabulary.of(serialised())
    assert found.decode([0, 1, 2], special=True) == "ab<end>"
    assert found.decode([0, 7, 1, 2], special=False) == "ab"
    assert found.decode([0, -1], special=False) is None
    many = {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"] * 10**6}
    assert Vocabulary.of(serialised(model=many)).tokens == {0: "a", 2: "<end>"}


@pytest.mark.parametrize(
    "change",
    [
        {"added_tokens": [ADDED | {"id": 1}]},
        {"added_tokens": [ADDED | {"content": "a"}]},
        {"added_tokens": [ADDED | {"id": -1}]},
        {"added_tokens": [{"id": 2}]},
        {"model": {"vocab": {"a": 0, "b": 0}}},
        {"model": {"vocab": {"a": 1 << 30}}},
        {"model": {"vocab": {"a": 0.0}}},
        {"model": {"vocab": [["a", 0.0], ["a", 0.0]]}},
        {"model": {"vocab": ["a"]}},
        {"model": 3},
    ],
)
def test_a_vocabulary_that_readers_could_read_differently_is_refused(
    change: dict[str, Any],
) -> None:
    with pytest.raises(ValueError, match=r"token|vocabulary"):
        Vocabulary.of(serialised(**change))
