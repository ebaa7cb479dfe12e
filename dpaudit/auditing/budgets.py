"""How the contexts of a run used their budgets: private figures, gathered a batch at a time."""

from __future__ import annotations

import math

import numpy as np

from dpaudit.checks.facts import BatchFacts
from dpaudit.mechanisms import ContextChange, Mechanism, range_of_draw, shares_spent, zcdp_of_draw
from dpaudit.results import BudgetUse

#: What is spent is told in hundredths of the budget, rounded up.
_SHARES = 100
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


class BudgetSums:
    """Adds up who took part and what was spent, in memory that grows with the most tokens of a batch alone."""

    def __init__(self, mechanism: Mechanism, positions: int) -> None:
        """Start with nothing; `positions` is the most tokens of a batch."""
        self._mechanism, self._positions = mechanism, positions
        self._active = np.zeros(positions, dtype=np.int64)
        self._contexts = np.zeros(positions, dtype=np.int64)
        self._least = np.ones(positions)
        self._spent = np.zeros(_SHARES + 1, dtype=np.int64)
        self._left_out, self._paid, self._smallest = 0, 0.0, math.inf

    def take(self, batch: BatchFacts) -> None:
        """Take in what one batch says, if it has contexts with budgets."""
        use, budget = batch.budgets, self._mechanism.budget
        if use is None or budget is None:
            return
        contexts, tokens = len(use.spent), len(use.active)
        active = np.array(use.active, dtype=np.int64)
        self._active[:tokens] += active
        self._contexts[:tokens] += contexts
        self._least[:tokens] = np.minimum(self._least[:tokens], active / contexts)
        shares = np.clip(np.nan_to_num(shares_spent(use.spent, use.budgets), nan=1.0), 0, 1)
        self._spent += np.bincount(np.ceil(shares * _SHARES).astype(np.int64), minlength=_SHARES + 1)
        self._paid += float(np.nan_to_num(np.clip(use.spent, 0, budget), nan=budget).sum())
        self._smallest = min(self._smallest, float(use.budgets.min()))
        self._left_out += int(np.count_nonzero(use.left_out))

    def result(self) -> BudgetUse | None:
        """None where no context has a budget."""
        contexts = int(self._spent.sum())
        if not contexts or self._mechanism.budget is None:
            return None
        reached = np.flatnonzero(self._contexts)
        below = np.cumsum(self._spent)
        at = [int(np.searchsorted(below, max(1, math.ceil(share * contexts)))) for share in _QUANTILES]
        eta = self._mechanism.eta(ContextChange("add_remove")) or 0.0
        draws = int(self._active.sum())
        return BudgetUse(
            budget=self._mechanism.budget,
            smallest=min(self._smallest, self._mechanism.budget),
            worst_case=float(zcdp_of_draw(eta)) * self._positions,
            contexts=contexts,
            left_out=self._left_out,
            spent=tuple(share / _SHARES for share in at),
            position=tuple(int(place) + 1 for place in reached),
            active=tuple(float(self._active[place] / self._contexts[place]) for place in reached),
            fewest=tuple(float(self._least[place]) for place in reached),
            moved=min(1.0, range_of_draw(self._paid / draws) / eta) if draws and eta else 0.0,
        )
