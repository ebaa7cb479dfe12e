"""Array blocks on all cores: numpy lets go of the interpreter's lock while it computes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

from dpaudit.runs.engines import cores

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Numbers that fill whole cache lines, whatever their size.
_ALIGNED = 64
#: Whether this thread does work that is shared out.
_here = threading.local()


def share_out(size: int, block: int, work: Callable[[Iterator[slice]], object]) -> None:
    """Cut 0 .. size into blocks, and call `work` on every core with a shared iterator over them.

    Within work that is shared out already, it is called once, for all blocks.

    Args:
        size: how much there is to do.
        block: the most that one slice holds.
        work: thread-safe; called at least once. Its first exception is raised here.
    """
    cut = slices(size, block)
    blocks = iter(cut)  # a list's iterator gives each item once, whichever thread asks
    helpers = 0 if getattr(_here, "shared", False) else min(cores(), len(cut)) - 1
    if helpers <= 0:
        work(blocks)
        return
    others: list[Future[object]] = []
    try:
        others.extend(_threads().submit(work, blocks) for _ in range(helpers))
        _here.shared = True
        work(blocks)
    finally:
        _here.shared = False
        wait(others)
    for other in others:
        other.result()


def slices(size: int, block: int) -> list[slice]:
    """Return 0 .. size in blocks, of which the last may be smaller."""
    return [slice(start, min(start + block, size)) for start in range(0, size, block)]


def even_blocks(size: int, least: int, most: int) -> int:
    """Return a block size for `share_out` that leaves no core with one block more than the others.

    Args:
        size: how much there is to do.
        least, most: of a block. Within work that is shared out already, blocks are as large as they
            may be.
    """
    sharing = 1 if getattr(_here, "shared", False) else cores()
    blocks = sharing * max(1, -(-size // (most * sharing)))
    return min(most, max(least, _ALIGNED * -(-size // (_ALIGNED * blocks))))


def each(items: Sequence[Item], work: Callable[[Item], Result]) -> list[Result]:
    """Apply the thread-safe `work` to each item, several at a time.

    The first exception is raised here.
    """
    results: dict[int, Result] = {}

    def some(blocks: Iterator[slice]) -> None:
        for block in blocks:
            results[block.start] = work(items[block.start])

    if items:
        share_out(len(items), 1, some)
    return [results[index] for index in range(len(items))]


@cache
def _threads() -> ThreadPoolExecutor:
    # All that these threads ever do is shared out.
    return ThreadPoolExecutor(
        cores(), "dpaudit", initializer=setattr, initargs=(_here, "shared", True)
    )


# A child process inherits the pool but none of its threads.
os.register_at_fork(after_in_child=_threads.cache_clear)
