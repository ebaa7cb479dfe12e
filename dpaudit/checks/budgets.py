"""Did every context pay for what it moved, out of a budget of its own, and for nothing else?

Sums are recomputed from recorded contributions alone. A context must take part exactly as long as its own budget lasts:
longer, and it pays more than is promised; shorter, and something else decided, which nothing pays for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import Outcome, RunCheck, StepCheck, not_applicable
from dpaudit.mechanisms import charged
from dpaudit.runs import Assigned, InputError, Manifest, allowances, layout
from dpaudit.runs.storage import RESTORE

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


@RunCheck(
    id="budget.shares",
    title="Every payer's contexts share one budget, less what it had spent before",
    fails="What contexts may spend is not their payer's share of one budget",
    evidence=1,
    why=(
        "Contexts of one user that have a budget each spend several where one is promised; and a share that another's "
        "records decide lets these move who takes part."
    ),
    remedy="Take shares from dpaudit.runs.allowances, over the whole assignment. Generate again.",
    reference=_DOCS,
)
def shares_are_of_one_budget(facts: Facts) -> Outcome:
    """Each batch's recorded budgets against those that the assignment gives."""
    expected = "budgets of contexts as the assignment of users, and what they had spent, gives them"
    budget = facts.manifest.mechanism.budget
    if budget is None or not facts.manifest.own_allowances:
        return not_applicable(expected, _NONE if budget is None else "Every context has the run's whole budget.")
    users: Counter[str] = Counter()
    spent: dict[str, float] = {}

    def placed() -> Iterator[Assigned]:
        for place in facts.reader.assignment():
            if place.user is not None:
                users[place.user] += 1
                if spent.setdefault(place.user, place.spent) != place.spent:
                    raise InputError(layout.ASSIGNMENT, "it contradicts itself on what a user had spent.", RESTORE)
            if place.batch is not None:
                yield place

    try:
        shares = allowances(placed(), budget)
    except InputError as error:
        return Outcome("fail", "the assignment cannot be read", expected, str(error))
    most, allowed = max(users.values(), default=0), facts.manifest.privacy.records_per_user
    if allowed is not None and most > allowed:
        return Outcome("fail", f"a user has {most} records, more than privacy.records_per_user", expected)
    for batch, header in facts.headers.items():
        if header.budgets != shares.get(batch):
            return Outcome("fail", f"the budgets of batch {batch} are not those shares", expected)
    contexts = sum(map(len, shares.values()))
    return Outcome("pass", f"{contexts} contexts" + f", {len(users)} users" * bool(users), expected)


@StepCheck(
    id="budget.limit",
    title="No context takes part beyond its budget",
    fails="A context takes part beyond its budget",
    evidence=1,
    expected="sums of at most each context's own budget",
    why="The promise is that nobody's records are charged more than the budget, whatever comes out.",
    remedy="Leave a context out before the draw that would take its sum above the budget. Generate again.",
    reference=_DOCS,
    applies=_declared,
    otherwise=_NONE,
)
def budgets_are_kept(view: StepView) -> str | None:
    """Each recorded sum against the budget that the run declares."""
    budgets, spent = view.budgets, view.step.spent
    if budgets is None or spent is None:
        return None
    over = ~(spent[1] <= budgets)
    if not over.any():
        return None
    worst = np.flatnonzero(over)[np.argmax((spent[1] - budgets)[over])]
    return f"{np.count_nonzero(over)} contexts, one of which has spent {spent[1][worst]:.6g} of {budgets[worst]:.6g}"


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
    step, budgets = view.step, view.budgets
    if step.spent is None or step.contexts is None or step.active is None or budgets is None:
        return None
    room = charged(step.spent[0], view.mechanism.costs(step.contexts)) <= budgets
    out = np.count_nonzero(~step.active & room)
    return f"{out} contexts are left out whose budgets leave room for the draw" if out else None
