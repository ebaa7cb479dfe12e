"""Models that are kept as their values: the same models, in a fraction of their memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from dpaudit.results import BatchResult
from dpaudit.results.rows import Rows

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


def test_a_row_takes_a_fraction_of_its_model() -> None:
    taken = []
    for kept in (Rows, lambda _, rows: list(rows)):
        tracemalloc.start()
        held = kept(BatchResult, models())
        taken.append(tracemalloc.get_traced_memory()[0] / NUMBER)
        tracemalloc.stop()
        assert len(held) == NUMBER
    assert taken[0] < 120 < taken[1] / 8
