"""Did every context pay for what it moved, out of a budget of its own, and for nothing else?

Sums are recomputed from recorded contributions alone. A context must take part exactly as long as its own budget lasts:
longer, and it pays more than is promised; shorter, and something else decided, which nothing pays for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from dpaudit.checks.facts import Facts, StepView
from dpaudit.checks.registry import RunCheck, StepCheck, Worded, not_applicable
from dpaudit.mechanisms import charged
from dpaudit.runs import Assigned, InputError, Manifest, allowances, layout
from dpaudit.runs.storage import RESTORE

_NONE = "The run's contexts have no budgets of their own."


def _declared(manifest: Manifest) -> bool:
    return manifest.mechanism.budget is not None


@StepCheck(id="budget.sums", applies=_declared, otherwise=_NONE)
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


@RunCheck(id="budget.shares")
def shares_are_of_one_budget(facts: Facts) -> Worded:
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
        return Worded("fail", "the assignment cannot be read", expected, str(error))
    most, allowed = max(users.values(), default=0), facts.manifest.privacy.records_per_user
    if allowed is not None and most > allowed:
        return Worded("fail", f"a user has {most} records, more than privacy.records_per_user", expected)
    for batch, header in facts.headers.items():
        if header.budgets != shares.get(batch):
            return Worded("fail", f"the budgets of batch {batch} are not those shares", expected)
    contexts = sum(map(len, shares.values()))
    return Worded("pass", f"{contexts} contexts" + f", {len(users)} users" * bool(users), expected)


@StepCheck(id="budget.limit", applies=_declared, otherwise=_NONE)
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


@StepCheck(id="budget.activity", applies=_declared, otherwise=_NONE)
def activity_is_a_matter_of_the_own_budget(view: StepView) -> str | None:
    """Who is left out against who could not have paid, by the recorded sums and ranges."""
    step, budgets = view.step, view.budgets
    if step.spent is None or step.contexts is None or step.active is None or budgets is None:
        return None
    room = charged(step.spent[0], view.mechanism.costs(step.contexts)) <= budgets
    out = np.count_nonzero(~step.active & room)
    return f"{out} contexts are left out whose budgets leave room for the draw" if out else None
