"""Optimal composition against Rényi accounting at the paper's settings: epsilon and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.rows import Row, Wanted
from benchmarks.timing import interleaved
from dpaudit.accounting import exponential_mechanism_epsilon

RECORDS = 108_000


class Setting(NamedTuple):
    """eta of one token, tokens, and the epsilon spent on rebalancing."""

    eta: float
    tokens: int
    rebalancing: float


SETTINGS = (
    Setting(0.1875, 367, 0.0),
    Setting(0.1875, 367, 0.1),
    Setting(0.046875, 689, 0.0),
    Setting(0.01, 10_000, 0.0),
)
SMALL = Setting(0.1875, 20, 0.0)


def rows(small: bool) -> Iterator[Row]:
    """Yield a row per setting: the optimal epsilon as a share of Rényi accounting's."""
    for setting in (SMALL,) if small else SETTINGS:
        yield _row(setting, rounds=1 if small else 3)


def _row(setting: Setting, rounds: int) -> Row:
    delta, laplace = RECORDS**-1.1, [setting.rebalancing]

    def renyi() -> object:
        return exponential_mechanism_epsilon(
            setting.eta, setting.tokens, delta, method="rdp", laplace=laplace
        )

    def optimal() -> object:
        return exponential_mechanism_epsilon(setting.eta, setting.tokens, delta, laplace=laplace)

    timings = interleaved({"renyi": renyi, "optimal": optimal}, rounds)
    known = exponential_mechanism_epsilon(
        setting.eta, setting.tokens, delta, method="rdp", laplace=laplace
    ).epsilon
    found = exponential_mechanism_epsilon(setting.eta, setting.tokens, delta, laplace=laplace)
    note = f", rebalancing {setting.rebalancing:g}" if setting.rebalancing else ""
    return Row(
        "composition",
        f"optimal epsilon over Rényi's: eta {setting.eta:g}, {setting.tokens:,} tokens{note}",
        found.epsilon / known,
        wanted=Wanted("at most", 1.0),
        figures={
            "Rényi": _up(known),
            "optimal": f"{'?' if found.epsilon_lower is None else _down(found.epsilon_lower)} to "
            f"{_up(found.epsilon)}",
            "seconds": timings.median("optimal"),
        },
    )


def _up(epsilon: float) -> str:
    """Return four decimals, rounded up."""
    return f"{math.ceil(epsilon * 1e4) / 1e4:.4f}"


def _down(epsilon: float) -> str:
    """Return four decimals, rounded down."""
    return f"{math.floor(epsilon * 1e4) / 1e4:.4f}"
