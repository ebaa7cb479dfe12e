"""Models that are kept as their values: the same models, in a fraction of their memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Annotated

import pytest
from pydantic import BaseModel, TypeAdapter

from dpaudit.results import BatchResult
from dpaudit.results.rows import KeptAsRows, Rows

NUMBER = 1000


def models(number: int = NUMBER) -> Iterator[BatchResult]:
    for place in range(number):
        yield BatchResult(
            id=place,
            label="sport" if place % 2 else None,
            contexts=3,
            steps=4,
            theorem1=place + 0.5,
            exact=float("inf"),
            rise=None,
            fall=place / 7,
            leave_one_out_max=None,
        )


def test_rows_are_the_models_that_were_given() -> None:
    rows, given = Rows(BatchResult, models(600)), tuple(models(600))
    assert rows == given and rows != given[:4] and len(rows) == 600
    assert rows[254:258] == given[254:258] and rows[-1] == given[-1] and tuple(rows) == given
    assert rows[1].model_dump() == given[1].model_dump()
    with pytest.raises(IndexError):
        rows[600]


def test_rows_of_a_field_are_those_of_its_kind_and_leave_out_what_is_asked_of_one() -> None:
    class Other(BaseModel):
        id: int

    field = TypeAdapter(Annotated[Sequence[BatchResult], KeptAsRows()])
    rows = field.validate_python(tuple(models(3)))
    assert isinstance(rows, Rows) and field.validate_python(rows) is rows
    with pytest.raises(ValueError, match="Other"):
        field.validate_python(Rows(Other, [Other(id=1)]))
    assert [set(row) for row in field.dump_python(rows, include={"__all__": {"id"}})] == [
        {"id"}
    ] * 3
    assert len(field.dump_python(rows, include={1})) == 1


def test_a_row_takes_a_fraction_of_its_model() -> None:
    taken = []
    for kept in (Rows, lambda _, rows: list(rows)):
        tracemalloc.start()
        held = kept(BatchResult, models())
        taken.append(tracemalloc.get_traced_memory()[0] / NUMBER)
        tracemalloc.stop()
        assert len(held) == NUMBER
    assert taken[0] < 120 < taken[1] / 8
