"""The use of contexts' budgets in a run: private figures, gathered a batch at a time."""

from __future__ import annotations

import math
from typing import Self

import numpy as np
from typing_extensions import override

from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.steps import BatchView, StepView
from dpaudit.mechanisms import ContextChange, Mechanism, range_of_draw, shares_spent, zcdp_of_draw
from dpaudit.results import BudgetUse

#: What is spent is told in hundredths of the budget, rounded up.
_SHARES = 100
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


class BatchBudgets(BatchEvidence):
    """The contexts of one batch that took part in its draws, and their spending by the last.

    Attributes:
        active: how many contexts took part in each draw.
        left_out: whether a context was left out of any, [n].
        budgets: what each may spend, [n], in nats of rho.
        spent: by each context after the last draw, likewise.
    """

    def __init__(self, contexts: int) -> None:
        self.active: list[int] = []
        self.left_out = np.zeros(contexts, dtype=np.bool_)
        self.budgets = self.spent = np.zeros(contexts)

    @override
    def step(self, view: StepView) -> None:
        step = view.step
        if step.spent is not None and step.active is not None and view.budgets is not None:
            self.budgets = view.budgets
            self.active.append(int(np.count_nonzero(step.active)))
            self.left_out |= ~step.active
            self.spent = step.spent[1]


class BudgetSums(Evidence):
    """The sums of contexts and spending, in memory that grows only with a batch's most tokens."""

    partial = True

    def __init__(self, mechanism: Mechanism, positions: int) -> None:
        """Start with nothing; `positions` is the most tokens of a batch."""
        self._mechanism, self._positions = mechanism, positions
        self._active = np.zeros(positions, dtype=np.int64)
        self._contexts = np.zeros(positions, dtype=np.int64)
        self._least = np.ones(positions)
        self._spent = np.zeros(_SHARES + 1, dtype=np.int64)
        self._left_out, self._paid, self._smallest = 0, 0.0, math.inf

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        return cls(run.manifest.mechanism, run.manifest.decoding.most_tokens)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        contexts = batch.header.contexts
        return (
            BatchBudgets(contexts)
            if contexts and batch.manifest.mechanism.budget is not None
            else None
        )

    @override
    def merge(self, batch: int, found: BatchBudgets) -> None:
        use, budget = found, self._mechanism.budget
        assert budget is not None
        contexts, tokens = len(use.spent), len(use.active)
        active = np.array(use.active, dtype=np.int64)
        self._active[:tokens] += active
        self._contexts[:tokens] += contexts
        self._least[:tokens] = np.minimum(self._least[:tokens], active / contexts)
        shares = np.clip(np.nan_to_num(shares_spent(use.spent, use.budgets), nan=1.0), 0, 1)
        self._spent += np.bincount(
            np.ceil(shares * _SHARES).astype(np.int64), minlength=_SHARES + 1
        )
        self._paid += float(np.nan_to_num(np.clip(use.spent, 0, budget), nan=budget).sum())
        self._smallest = min(self._smallest, float(use.budgets.min()))
        self._left_out += int(np.count_nonzero(use.left_out))

    def result(self) -> BudgetUse | None:
        """Return the use of budgets; None if no context has one."""
        contexts = int(self._spent.sum())
        if not contexts or self._mechanism.budget is None:
            return None
        reached = np.flatnonzero(self._contexts)
        below = np.cumsum(self._spent)
        at = [
            int(np.searchsorted(below, max(1, math.ceil(share * contexts)))) for share in _QUANTILES
        ]
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
