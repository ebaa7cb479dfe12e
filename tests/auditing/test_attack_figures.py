"""Figures of attacks as audits, budgets and plans state them, against what attackers reach.

Each door is held between the recursion rounded down, which an attacker reaches, and half a per cent
above it: for one record, a user of several, records that are replaced, and beside noisy counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import dpaudit
from dpaudit.accounting.recursion import Problem, Recursion
from dpaudit.accounting.zcdp import renyi_attacks
from dpaudit.results import AttackBound
from dpaudit.results.rounding import bound, in_100
from tests.conftest import CLIP, COUNTS_SCALE, TEMPERATURE

DELTA, TOKENS, DIVISOR = 1e-5, 48, 32.0
#: The demo's draws.
ETA = 2 * 2 / (DIVISOR * 0.7)
#: Above what an attacker reaches, relatively, a bound lies no further.
CLOSE = 5e-3


@cache
def reached(eta: float, tokens: int, laplace: float = 0.0) -> tuple[float, float]:
    """The advantage, and the true positives at 1% of false ones, of some attacker."""
    problem = Problem(((eta, tokens),), (laplace,) * bool(laplace), (), DELTA)
    recursion = Recursion(problem, 128, upper=False)
    losses = [place * recursion.step for place in range(len(recursion.deltas))]
    lines = zip(losses, recursion.deltas, strict=True)
    # The region's edge lies on some of these lines, each of which is reached.
    rate = min(
        bound
        for loss, delta in lines
        for bound in (delta + math.exp(loss) * 0.01, 1 - math.exp(-loss) * (0.99 - delta))
    )
    return float(recursion.deltas[0]), float(rate)


def require_close(found: AttackBound, eta: float, tokens: int, laplace: float = 0.0) -> None:
    advantage, rate = reached(eta, tokens, laplace)
    assert advantage <= found.advantage <= advantage * (1 + CLOSE)
    assert rate * (1 - CLOSE) <= found.tpr_at_1pct <= rate * (1 + 3 * CLOSE)


def budget(**asked: Any) -> Any:
    numbers = {"clip": 2.0, "temperature": 0.7, "records": 2127, "delta": DELTA}
    return dpaudit.plan_budget(**numbers, **({"batch_size": DIVISOR} | asked)).result


@pytest.mark.parametrize(
    ("asked", "times", "laplace"),
    [
        ({}, 1, 0.0),
        ({"group_size": 2}, 2, 0.0),
        ({"relation": "replace"}, 2, 0.0),
        ({"rebalancing_epsilon": 0.5}, 1, 0.5),
    ],
    ids=["record", "two records", "replaced", "noisy counts"],
)
def test_budgets_state_what_attackers_reach(
    asked: dict[str, Any], times: int, laplace: float
) -> None:
    found = budget(tokens=TOKENS, **asked)
    require_close(found.batch_attack, times * ETA, TOKENS, laplace)
    rounds = budget(tokens=TOKENS, rounds=1, batches=14, generated=2, **asked)
    require_close(rounds.batch_attack, times * ETA, TOKENS, laplace)
    # Counts are told to all readers, and their noise alone has this advantage.
    alone = -math.expm1(-laplace / 2)
    assert alone < rounds.attack.advantage < rounds.batch_attack.advantage


def test_budgets_state_the_demos_figures() -> None:
    rounds = budget(tokens=TOKENS, rounds=1, batches=14, generated=2)
    assert bound(rounds.batch_attack.advantage) == "0.2449"
    assert bound(rounds.batch_attack.tpr_at_1pct, 3) == "0.0442"
    assert in_100(rounds.batch_attack.accuracy) == "63"
    assert bound(rounds.attack.advantage, 3) == "0.0259"
    assert in_100(rounds.attack.accuracy) == "52"
    assert bound(budget(tokens=TOKENS, group_size=2).batch_attack.advantage) == "0.4670"


@pytest.mark.parametrize(
    ("kind", "times", "laplace"),
    [
        ({}, 1, 0.0),
        ({"unit": "user", "records_per_user": 3}, 3, 0.0),
        ({"relation": "replace"}, 2, 0.0),
        (
            {"clusters": "public-centers-rebalanced", "sizes": (3, 4, 5, 2)},
            1,
            1 / COUNTS_SCALE,
        ),
    ],
    ids=["record", "user", "replaced", "noisy counts"],
)
def test_audits_state_what_attackers_reach(
    make_run: Callable[..., Any], kind: dict[str, Any], times: int, laplace: float
) -> None:
    run = make_run(**{"aggregator": "mean", "divisor": 64.0, "max_tokens": 40} | kind)
    found = run.audit().guarantees.approximate.batch_attack
    require_close(found, times * 2 * CLIP / (64.0 * TEMPERATURE), 40, laplace)


@pytest.mark.parametrize("times", [1, 3])
def test_audits_of_budgets_state_the_whole_region_of_zcdp(
    make_run: Callable[..., Any], times: int
) -> None:
    person = {"unit": "user", "records_per_user": times} if times > 1 else {}
    run = make_run(aggregator="mean", sizes=(6, 7), budget=0.05, max_tokens=12, **person)
    found = run.audit().guarantees.approximate.batch_attack
    exact = renyi_attacks(0.05 * times**2, (), DELTA)
    advantage = math.sqrt(0.05 * times**2 / 2)  # Pinsker's, which is above it
    assert exact.advantage * (1 - 1e-6) <= found.advantage < advantage
    assert found.tpr_at_1pct >= exact.true_positives(0.01) * (1 - 1e-3)
