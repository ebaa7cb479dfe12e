"""Work on all cores of this process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import dpaudit.generation.threads
from dpaudit.generation.threads import each, even_blocks, share_out


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    def doubled() -> NDArray[np.int64]:
        result = np.zeros(100, dtype=np.int64)

        def work(blocks: Iterator[slice]) -> None:
            for block in blocks:
                result[block] = np.arange(block.start, block.stop) * 2

        share_out(100, 7, work)
        return result

    assert doubled().tolist() == list(range(0, 200, 2))
    child = os.fork()
    if not child:
        os._exit(0 if doubled().tolist() == list(range(0, 200, 2)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_fails_on_another_core_is_raised() -> None:
    def work(blocks: Iterator[slice]) -> None:
        for block in blocks:
            if block.start == 50:
                raise ValueError("the sixth block")

    with pytest.raises(ValueError, match="the sixth block"):
        share_out(100, 10, work)


def test_each_keeps_the_order_whichever_ends_first() -> None:
    def slow(item: int) -> int:
        time.sleep(0.02 if item % 2 else 0)
        return item * item

    assert each([], slow) == []
    assert each(list(range(9)), slow) == [item * item for item in range(9)]


def test_each_raises_what_one_of_them_raises() -> None:
    def work(item: int) -> None:
        if item == 3:
            raise ValueError("the fourth item")

    with pytest.raises(ValueError, match="the fourth item"):
        each(list(range(7)), work)


def test_work_within_work_stays_on_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them are busy already."""
    monkeypatch.setattr(dpaudit.generation.threads, "cores", lambda: 3)

    def row(item: int) -> int:
        threads, result = set(), np.zeros(100, dtype=np.int64)

        def work(blocks: Iterator[slice]) -> None:
            threads.add(threading.get_ident())
            for block in blocks:
                result[block] = item

        share_out(100, 7, work)
        assert threads == {threading.get_ident()}
        return int(result.sum())

    assert each(list(range(50)), row) == [100 * item for item in range(50)]


@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(1, 300), st.integers(1, 64))
def test_even_blocks_leave_no_core_with_two_more(
    size: int, first: int, second: int, count: int
) -> None:
    least, most = sorted((first, second))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpaudit.generation.threads, "cores", lambda: count)
        block = even_blocks(size, least, most)
        assert least <= block <= most
        [alone] = each([0], lambda _: even_blocks(size, least, most))
        within = each([0, 1], lambda _: even_blocks(size, least, most))
    assert alone == block
    assert all(inner >= block for inner in within), (
        "a core that is alone with its work cuts it into no more blocks"
    )
