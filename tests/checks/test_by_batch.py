"""What an audit keeps of each batch, in little memory: headers, and the largest losses."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from dpaudit.auditing.checks.evidence import ByBatch, Headers
from dpaudit.auditing.checks.neighbors import LISTED, BatchLosses, Losses
from dpaudit.runs import BatchHeader


def test_headers_are_those_of_their_batches() -> None:
    given = [BatchHeader(id=batch, contexts=batch % 2) for batch in (0, 1, 3, 4)]
    headers = Headers()
    for header in given:
        headers.add(header.id, header)
    assert list(headers.values()) == given and headers.get(2) is None
    assert len({id(header) for header in headers._values}) == 2


def test_batches_out_of_order_are_refused() -> None:
    kept = ByBatch(array("q"))
    kept.add(3, 1)
    for batch in (2, 3):
        with pytest.raises(ValueError, match="comes after"):
            kept.add(batch, 1)


def test_the_worst_losses_of_a_run_are_those_of_all_its_contexts() -> None:
    generator = np.random.default_rng(5)
    for _ in range(200):
        losses, every = Losses(), list[tuple[float, int, int]]()
        for batch in range(int(generator.integers(1, 8))):
            own = generator.integers(-6, 7, int(generator.integers(1, 16))) / 4  # ties
            every += [(-abs(loss), batch, slot) for slot, loss in enumerate(own.tolist())]
            order = np.argsort(-np.abs(own), kind="stable")[:LISTED]
            largest = tuple(zip(order.tolist(), own[order].tolist(), strict=True))
            losses.merge(batch, BatchLosses(batch, len(own), largest))
        found = [(-abs(each.loss), each.batch, each.slot) for each in losses.worst]
        assert found == sorted(every)[:LISTED]
        assert losses.contexts == len(every)
