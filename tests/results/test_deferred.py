"""Parts whose types are imported with their first value are read as strictly as all others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError, create_model

from dpaudit.mechanisms import Fields
from dpaudit.results.deferred import deferred


class Part(Fields):
    names: tuple[str, ...]
    figure: float


Whole: Any = create_model("Whole", part=(deferred(__name__, "Part") | None, None))
GIVEN = {"names": ["one"], "figure": 1.0}


def test_a_deferred_part_is_read_and_written_as_its_type() -> None:
    read = Whole.model_validate_json(json.dumps({"part": GIVEN}))
    assert read.part == Part(names=("one",), figure=1.0)
    assert Whole(part=read.part) == read
    assert json.loads(read.model_dump_json()) == {"part": GIVEN}
    assert Whole.model_validate_json('{"part": null}') == Whole()


@pytest.mark.parametrize(
    ("wrong", "place"),
    [({"figure": "1"}, "figure"), ({"more": 1}, "more"), ({"names": "one"}, "names")],
)
def test_a_deferred_part_of_another_type_is_refused_at_its_place(
    wrong: dict[str, Any], place: str
) -> None:
    for read, given in (
        (Whole.model_validate_json, json.dumps({"part": GIVEN | wrong})),
        (Whole.model_validate, {"part": GIVEN | {"names": ("one",)} | wrong}),
    ):
        with pytest.raises(ValidationError) as refused:
            read(given)
        assert refused.value.errors()[0]["loc"][:2] == ("part", place)


def test_a_deferred_part_is_as_strict_for_python() -> None:
    with pytest.raises(ValidationError):
        Whole(part=GIVEN)  # a list is no tuple
