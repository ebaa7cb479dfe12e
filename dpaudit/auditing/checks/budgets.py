"""Did every context pay for what it moved, out of a budget of its own, and for nothing else?

Sums are recomputed from recorded contributions alone. A context must take part exactly as long as
its own budget lasts: longer, and it pays more than is promised; shorter, and something else
decided, which nothing pays for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from dpaudit.auditing.checks.evidence import AuditedRun, input_problem
from dpaudit.auditing.checks.registry import Outcome, RunCheck, StepCheck, inapplicable
from dpaudit.auditing.checks.steps import StepView
from dpaudit.mechanisms import charged
from dpaudit.results import Finding, Place, Quantity, Value
from dpaudit.runs import Assigned, InputError, Manifest, allowances, layout
from dpaudit.runs.storage import RESTORE

_NONE = "budgets.none"


def _declared(manifest: Manifest) -> bool:
    return manifest.mechanism.budget is not None


@StepCheck(id="budget.sums", applies=_declared, otherwise=_NONE)
def sums_are_of_the_draws(view: StepView) -> Finding | None:
    """Compare each recorded sum with the one before it plus the cost of the context's range."""
    step = view.step
    if step.spent is None or step.contexts is None:
        return None  # a batch without contexts
    before, after = step.spent
    if fallen := np.count_nonzero(~(after >= before)):
        return Finding(code="budgets.sums-fall", values={"contexts": int(fallen)})
    # To the last bit: who takes part hangs on it, and whoever may choose it may choose by other
    # contexts.
    wrong = np.count_nonzero(
        (after > before) & (after != charged(before, view.mechanism.costs(step.contexts)))
    )
    return Finding(code="budgets.sums-differ", values={"contexts": int(wrong)}) if wrong else None


@RunCheck(id="budget.shares")
def shares_are_of_one_budget(run: AuditedRun) -> Outcome:
    """Hold each batch's recorded budgets against those that the assignment gives."""
    budget = run.manifest.mechanism.budget
    if budget is None or not run.manifest.own_allowances:
        return inapplicable(_NONE if budget is None else "budgets.whole")
    users: Counter[str] = Counter()
    spent: dict[str, float] = {}

    def placed() -> Iterator[Assigned]:
        for place in run.reader.assignment():
            if place.user is not None:
                users[place.user] += 1
                if spent.setdefault(place.user, place.spent) != place.spent:
                    raise InputError(
                        layout.ASSIGNMENT,
                        "it contradicts itself on what a user had spent.",
                        RESTORE,
                    )
            if place.batch is not None:
                yield place

    try:
        shares = allowances(placed(), budget)
    except InputError as error:
        return Outcome("fail", "unreadable", notes=(input_problem(error),))
    most, allowed = max(users.values(), default=0), run.manifest.privacy.records_per_user
    if allowed is not None and most > allowed:
        return Outcome("fail", "too-many-records", {"most": most, "allowed": allowed})
    for batch, header in run.headers.items():
        if header.budgets != shares.get(batch):
            return Outcome("fail", "other-shares", {"place": Place(batch=batch)})
    values: dict[str, Value] = {"contexts": sum(map(len, shares.values()))}
    return Outcome("pass", "shared", values | ({"users": len(users)} if users else {}))


@StepCheck(id="budget.limit", applies=_declared, otherwise=_NONE)
def budgets_are_kept(view: StepView) -> Finding | None:
    """Hold each recorded sum against the budget that the run declares."""
    budgets, spent = view.budgets, view.step.spent
    if budgets is None or spent is None:
        return None
    over = ~(spent[1] <= budgets)
    if not over.any():
        return None
    worst = np.flatnonzero(over)[np.argmax((spent[1] - budgets)[over])]
    values: dict[str, Value] = {
        "contexts": int(np.count_nonzero(over)),
        "spent": Quantity(value=float(spent[1][worst]), unit="nats"),
        "budget": Quantity(value=float(budgets[worst]), unit="nats"),
    }
    return Finding(code="budgets.overspent", values=values)


@StepCheck(id="budget.activity", applies=_declared, otherwise=_NONE)
def activity_is_a_matter_of_the_own_budget(view: StepView) -> Finding | None:
    """Hold who is left out against who could not have paid, by the recorded sums and ranges."""
    step, budgets = view.step, view.budgets
    if step.spent is None or step.contexts is None or step.active is None or budgets is None:
        return None
    room = charged(step.spent[0], view.mechanism.costs(step.contexts)) <= budgets
    out = np.count_nonzero(~step.active & room)
    return Finding(code="budgets.left-out", values={"contexts": int(out)}) if out else None
