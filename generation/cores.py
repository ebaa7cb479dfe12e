"""Work on blocks of an array on all cores: numpy lets go of the interpreter's lock while it computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache

from dpaudit.engines import cores


def share_out(size: int, block: int, work: Callable[[Iterator[slice]], object]) -> None:
    """Cut 0 .. size into blocks and call `work` on every core, with an iterator that they all draw blocks from.

    Args:
        size: how much there is to do.
        block: the most that one slice holds.
        work: thread-safe; called at least once. Its first exception is raised here.
    """
    slices = [slice(start, min(start + block, size)) for start in range(0, size, block)]
    blocks = iter(slices)  # a list's iterator gives each item once, whichever thread asks
    helpers = min(cores(), len(slices)) - 1
    others = [_threads().submit(work, blocks) for _ in range(helpers)]
    try:
        work(blocks)
    finally:
        wait(others)
    for other in others:
        other.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), thread_name_prefix="dpaudit")


# A child process inherits the pool but none of its threads.
os.register_at_fork(after_in_child=_threads.cache_clear)
