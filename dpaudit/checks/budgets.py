"""Did every context pay for what it moved, out of a budget of its own, and for nothing else?

Sums are recomputed from recorded contributions alone. A context must take part exactly as long as its own budget lasts:
longer, and it pays more than is promised; shorter, and something else decided, which nothing pays for.
"""

from __future__ import annotations

import numpy as np

from dpaudit.checks.facts import StepView
from dpaudit.checks.registry import StepCheck
from dpaudit.mechanisms import charged
from dpaudit.runs import Manifest

_DOCS = "docs/budgets.md#individual-budgets"
_NONE = "The run's contexts have no budgets of their own."


def _declared(manifest: Manifest) -> bool:
    return manifest.mechanism.budget is not None


@StepCheck(
    id="budget.sums",
    title="What every context has spent is what its draws cost it",
    fails="What a context has spent is not what its draws cost it",
    evidence=1,
    expected="sums that grow by the cost of each draw that a context takes part in, and never fall",
    why="A sum that starts anew, or grows by too little, lets a context pay several budgets where one is promised.",
    remedy=(
        "Keep every context's sum from a batch's first token to its last, through all its texts, and add the cost of "
        "its own range at each draw that it takes part in. Generate again."
    ),
    reference=_DOCS,
    applies=_declared,
    otherwise=_NONE,
)
def sums_are_of_the_draws(view: StepView) -> str | None:
    """Each recorded sum against the one before it, and the cost of the context's own recorded range."""
    step = view.step
    if step.spent is None or step.contexts is None:
        return None  # a batch without contexts
    before, after = step.spent
    if fallen := np.count_nonzero(~(after >= before)):
        return f"the sums of {fallen} contexts fall or are no numbers"
    # To the last bit: who takes part hangs on it, and whoever may choose it may choose by other contexts.
    wrong = np.count_nonzero((after > before) & (after != charged(before, view.mechanism.costs(step.contexts))))
    return f"the sums of {wrong} contexts grow by something else than the draw costs them" if wrong else None


@StepCheck(
    id="budget.limit",
    title="No context takes part beyond its budget",
    fails="A context takes part beyond its budget",
    evidence=1,
    expected="sums of at most mechanism.budget",
    why="The promise is that nobody's records are charged more than the budget, whatever comes out.",
    remedy="Leave a context out before the draw that would take its sum above the budget. Generate again.",
    reference=_DOCS,
    applies=_declared,
    otherwise=_NONE,
)
def budgets_are_kept(view: StepView) -> str | None:
    """Each recorded sum against the budget that the run declares."""
    budget, spent = view.mechanism.budget, view.step.spent
    if budget is None or spent is None:
        return None
    over = np.count_nonzero(~(spent[1] <= budget))
    return f"{over} contexts have spent up to {spent[1].max():.6g} of {budget:.6g}" if over else None


@StepCheck(
    id="budget.activity",
    title="A context is left out by its own budget alone",
    fails="A context is left out that could have paid",
    evidence=1,
    expected="every context takes part whose own sum leaves room for the draw",
    why=(
        "If something else decides who takes part, such as the other contexts, then one record moves more than its own "
        "contribution, and no sum pays for that."
    ),
    remedy="Decide for each context by its own sum and its own range, and by nothing else. Generate again.",
    reference=_DOCS,
    applies=_declared,
    otherwise=_NONE,
)
def activity_is_a_matter_of_the_own_budget(view: StepView) -> str | None:
    """Who is left out against who could not have paid, by the recorded sums and ranges."""
    step, budget = view.step, view.mechanism.budget
    if step.spent is None or step.contexts is None or step.active is None or budget is None:
        return None
    room = charged(step.spent[0], view.mechanism.costs(step.contexts)) <= budget
    out = np.count_nonzero(~step.active & room)
    return f"{out} contexts are left out whose budgets leave room for the draw" if out else None
