"""Medians of several timings, taken in turns: the machine's drift then meets every case alike."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple
from unittest import mock


@dataclass(frozen=True)
class Timings:
    """Seconds of each case, round by round."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, case: str) -> float:
        """Return the median seconds of a case."""
        return median(self.seconds[case])

    def ratio(self, case: str, to: str) -> float:
        """Return the median over rounds of one case's seconds over another's of the same round."""
        return median(self.ratios(case, to))

    def spread(self, case: str, to: str) -> str:
        """Return the lowest and the highest of these ratios."""
        ratios = self.ratios(case, to)
        return f"{min(ratios):.3g} to {max(ratios):.3g}"

    def ratios(self, case: str, to: str) -> list[float]:
        """Return one case's seconds over another's, round by round."""
        return [
            one / other for one, other in zip(self.seconds[case], self.seconds[to], strict=True)
        ]


def interleaved(
    cases: Mapping[str, Callable[[], object]], rounds: int, *, warm: bool = True
) -> Timings:
    """Time every case once a round, each round beginning with another case.

    Args:
        cases: what to time. A case that returns a float has timed itself, and tells its seconds.
        rounds: timings of each case.
        warm: run every case once before, untimed.
    """
    names = list(cases)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for run in range(-int(warm), rounds):
        shift = run % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.perf_counter()
            own = cases[name]()
            elapsed = own if isinstance(own, float) else time.perf_counter() - start
            if run >= 0:
                seconds[name].append(elapsed)
    return Timings({name: tuple(found) for name, found in seconds.items()})


class Clock:
    """Seconds spent inside functions that it was put around."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def around(self, owner: Any, name: str) -> Iterator[None]:
        """Count the seconds that calls of a function or method take, as long as the block lasts."""
        original = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        with mock.patch.object(owner, name, timed):
            yield


class Used(NamedTuple):
    """What a command took: wall and CPU seconds, with its children's."""

    wall: float
    cpu: float


def command(*arguments: str) -> Used:
    """Run this Python with arguments.

    Bytecode is kept, as where dpaudit is installed: to compile it takes as long as to run it.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    start = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ends with {process.returncode}")
    return Used(wall, usage.ru_utime + usage.ru_stime)
