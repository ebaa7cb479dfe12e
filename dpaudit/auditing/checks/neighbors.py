"""Do real neighbours stay within the bounds, and does the model, on the data, confirm the record?

Neighbours by removals from the recorded sides, and by additions of the worst contexts. What needs
the model is judged by what `dpaudit replay` found.
"""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.claim import batch_claim
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, ByBatch, Evidence
from dpaudit.auditing.checks.registry import (
    Outcome,
    RunCheck,
    StepCheck,
    inapplicable,
    not_replayed,
    replay_remedy,
)
from dpaudit.auditing.checks.steps import BatchView, StepsView, added
from dpaudit.results import ContextLoss, Finding, Place, Quantity, Value

if TYPE_CHECKING:
    from dpaudit.results.replay import LeftOut

#: Why a replay on another machine may show nothing.
HIDDEN_BY_ROUNDING = Finding(code="replay.rounding-hides")
#: Rounding of two logarithms of sums, in nats.
_SLACK = 1e-9
#: A difference shows nothing, even if it may be rounding, where it is a larger share of the claim,
#: or of the clip for logits.
FINE, _FINE_LOGITS = 0.1, 1e-3
#: The probability that stated coverage is for.
_POWER = 0.99
#: How many of the worst contexts are listed.
LISTED = 10


def _nats(value: float) -> Quantity:
    return Quantity(value=value, unit="nats")


class BatchLosses(NamedTuple):
    """The losses of one batch's contexts.

    Attributes:
        batch: which.
        contexts: how many contexts have a loss.
        largest: slots and losses of the largest in absolute value, and in order of slots where they
            are equal.
    """

    batch: int
    contexts: int
    largest: tuple[tuple[int, float], ...]

    @property
    def worst(self) -> tuple[ContextLoss, ...]:
        """The largest losses, as results have them."""
        return tuple(
            ContextLoss(batch=self.batch, slot=slot, loss=loss) for slot, loss in self.largest
        )


class ContextSums(BatchEvidence):
    """Sums of a batch's contexts' losses.

    A step without exact losses leaves it none.
    """

    def __init__(self, batch: int, contexts: int) -> None:
        """`contexts`: how many contexts the batch has."""
        self._batch = batch
        self._losses: NDArray[np.float64] | None = np.zeros(contexts)

    @override
    def look(self, view: StepsView) -> None:
        before, self._losses = self._losses, None
        if before is None:
            return
        losses = view.shared(_losses)
        if not np.isfinite(losses).all():
            losses = _losses(view)  # the reason may lie in another batch
        if np.isfinite(losses).all():
            self._losses = added(before, losses)

    @override
    def result(self) -> BatchLosses | None:
        """Return the losses of the finished batch; None if its record gives none."""
        if self._losses is None or not len(self._losses):
            return None
        order = np.argsort(-np.abs(self._losses), kind="stable")[:LISTED]
        largest = zip(order.tolist(), self._losses[order].tolist(), strict=True)
        return BatchLosses(self._batch, len(self._losses), tuple(largest))


def _losses(view: StepsView) -> NDArray[np.float64]:
    """Return [n, k] contexts' losses at each step; NaN where the record of any gives none."""
    shape = (view.header.contexts, len(view))
    if view.reduced is not None:
        losses = view.mechanism.losses(view.reduced, view.contributions, view.header.contexts)
        if losses is not None and np.shape(losses) == shape:
            return losses
    return np.full(shape, np.nan)


class Losses(Evidence):
    """Losses of contexts that are left out of their batches, by the record.

    Attributes:
        largest: the largest absolute loss of each batch that has one, in nats.
        worst: the largest of all contexts; equal ones in order of batch and slot.
        contexts: how many contexts have a loss.
    """

    def __init__(self) -> None:
        self.largest: ByBatch[float] = ByBatch(array("d"))
        self.worst: list[ContextLoss] = []
        self.contexts = 0

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return ContextSums(batch.header.id, batch.header.contexts)

    @override
    def merge(self, batch: int, found: BatchLosses | None) -> None:
        if found is not None:
            largest = abs(found.largest[0][1])
            self.largest.add(batch, largest)
            self.contexts += found.contexts
            if len(self.worst) < LISTED or largest > abs(self.worst[-1].loss):
                self.worst = heapq.nlargest(
                    LISTED, [*self.worst, *found.worst], key=lambda each: abs(each.loss)
                )


@RunCheck(id="neighbors.removal", gathers=(Losses, Costs))
def removals_stay_within_bounds(run: AuditedRun) -> Outcome:
    """Compare each context's realised loss, left out of its batch, with the batch's exact cost."""
    costs = run[Costs]
    if costs.ex_post is None:
        return Outcome("skip", "no-cost")
    tried, largest, unbounded = set[int](), 0.0, False
    beyond = list[tuple[int, float, float]]()
    for batch, loss, slack in _realised(run):
        bound = costs.batch_cost(batch).exact
        if bound == math.inf:  # any loss is within it
            unbounded = True
            continue
        tried.add(batch)
        largest = max(largest, loss)
        if not loss <= bound + slack:
            beyond.append((batch, loss, bound))
    if not tried:
        if unbounded:
            return Outcome("skip", "no-cost")
        if run.no_contexts:
            return inapplicable("neighbors.no-contexts")
        return Outcome("skip", "no-losses", notes=(replay_remedy(run.manifest),))
    if beyond:
        batch, loss, bound = beyond[0]
        first: dict[str, Value] = {
            "place": Place(batch=batch),
            "loss": _nats(loss),
            "bound": _nats(bound),
        }
        return Outcome("fail", "exceeded", {"losses": len(beyond), **first})
    values: dict[str, Value] = {"tried": len(tried), "largest": _nats(largest)}
    filled = [batch for batch, header in run.headers.items() if header.contexts]
    if not tried.issuperset(filled):
        values["batches"] = len(filled)
        # A replay draws the contexts that it leaves out from all batches.
        if run.replay is None or not run.replay.left_out:
            return Outcome("skip", "partial", values, (replay_remedy(run.manifest),))
    return Outcome("pass", "within", values)


def _realised(run: AuditedRun) -> Iterator[tuple[int, float, float]]:
    """Yield batches with a loss of one of their contexts, and what rounding may add to it."""
    for batch, loss in run[Losses].largest.items():
        yield batch, loss, _SLACK
    if run.replay is not None:
        for left in run.replay.left_out:
            if _tells(run, left):
                yield left.batch, abs(left.regenerated), left.tolerance


def _tells(run: AuditedRun, left: LeftOut) -> bool:
    """Return whether a regenerated loss tells anything: one excused by coarse rounding does not."""
    bound, loss = run[Costs].batch_cost(left.batch).exact, abs(left.regenerated)
    return left.tolerance <= FINE * bound or not bound < loss <= bound + left.tolerance


def _is_bounded(view: StepsView) -> bool:
    # Without a place or a range, sampling.support or record.range objects.
    return view.reduced is None or bool(view.range_problem) or view.additions is not None


def _without_additions(_: AuditedRun, shown: int) -> Outcome:
    return Outcome("skip", "no-addition", {"steps": shown})


@StepCheck(id="neighbors.addition", shown=_is_bounded, unshown=_without_additions, together=True)
def additions_reach_the_bound(view: StepsView) -> Finding | None:
    """Compare aggregates with an added context, for and against the token, with rise and fall."""
    if view.reduced is None or view.range_problem or view.additions is None:
        return None
    # Aggregates are rounded in the record's precision.
    slack = _SLACK + 8 * view.mechanism.clip / view.mechanism.temperature * view.additions.eps
    for side, bound, found in zip(
        ("rise", "fall"), view.additions.bounds, view.additions.reached, strict=True
    ):
        for step in np.flatnonzero(~(np.abs(bound - found) <= slack)):
            worst = {"reached": _nats(float(found[step])), "bound": _nats(float(bound[step]))}
            figures: dict[str, Value] = {"side": side, **worst}
            return Finding(code="neighbors.beside-bound", values=figures)
    return None


@RunCheck(id="neighbors.regenerated", gathers=(Costs,))
def regeneration_agrees(run: AuditedRun) -> Outcome:
    """Compare log-ratios regenerated without a record with those that the record itself gives."""
    if run.replay is None:
        return not_replayed(run.manifest)
    left_out = run.replay.left_out
    if not left_out:
        return (
            inapplicable("neighbors.no-contexts")
            if run.no_contexts
            else Outcome("skip", "nothing-left-out")
        )
    values: dict[str, Value] = {"contexts": len(left_out)}
    apart = [
        found
        for found in left_out
        if not abs(found.recorded - found.regenerated) <= found.tolerance
    ]
    if apart:
        worst = max(apart, key=lambda found: abs(found.recorded - found.regenerated))
        place = Place(batch=worst.batch, slot=worst.slot)
        ratios: dict[str, Value] = {
            "regenerated": _nats(worst.regenerated),
            "recorded": _nats(worst.recorded),
        }
        return Outcome("fail", "apart", values | ratios | {"apart": len(apart), "place": place})
    largest = max(abs(found.recorded - found.regenerated) for found in left_out)
    values["difference"] = _nats(largest)
    if largest > FINE * batch_claim(run):
        return Outcome("skip", "rounding-hides", values)
    return Outcome("pass", "agree", values)


@RunCheck(id="replay.logits")
def logits_agree(run: AuditedRun) -> Outcome:
    """Compare replayed central values, sides, aggregates and supports with the recorded ones."""
    if run.replay is None:
        return not_replayed(run.manifest)
    steps = run.replay.steps
    if not steps:
        return Outcome("skip", "no-steps")
    wrong = [step for step in steps if step.problems or not step.difference <= step.tolerance]
    if wrong:
        first = wrong[0]
        apart: dict[str, Value] = {"difference": first.difference, "tolerance": first.tolerance}
        problems = first.problems or (Finding(code="replay.values-apart", values=apart),)
        place = Place(batch=first.batch, step=first.position)
        return Outcome(
            "fail",
            "differ",
            {"wrong": len(wrong), "steps": len(steps), "place": place, "problem": problems},
        )
    largest, coarsest = (
        max(step.difference for step in steps),
        max(step.tolerance for step in steps),
    )
    values: dict[str, Value] = {
        "recomputed": len(steps),
        "steps": run.steps,
        "difference": largest,
        "tolerance": coarsest,
    }
    if rounding_hides(largest, run):
        return Outcome("skip", "rounding-hides", values, (HIDDEN_BY_ROUNDING,))
    share = 1 - (1 - _POWER) ** (1 / len(steps))
    return Outcome(
        "pass",
        "agree",
        values,
        (Finding(code="replay.power", values={"power": _POWER, "share": share}),),
    )


def rounding_hides(difference: float, run: AuditedRun) -> bool:
    """Return whether rounding may move values so many logit units apart that they show nothing."""
    return difference > _FINE_LOGITS * run.manifest.mechanism.clip


@RunCheck(id="replay.lower-bound", gathers=(Costs,))
def attack_stays_below(run: AuditedRun) -> Outcome:
    """Compare log-ratios of texts from dpaudit's mechanism, under the run's settings, with bounds.

    An approximate claim, at the batch level, is also held against the confidence bound on epsilon
    that follows from all of them: an attack on one batch says nothing of the release level.
    """
    due: dict[str, Value] = {}
    if run.kind.beforehand:
        due["claimed"] = _nats(batch_claim(run))
    if run.replay is None:
        return not_replayed(run.manifest, due)
    found = run.replay.attack
    if found is None:
        return Outcome("skip", "no-attack", due)
    values = due | {"texts": 2 * found.trials}
    if found.beyond:
        worst: dict[str, Value] = {} if found.worst is None else {"worst": found.worst}
        return Outcome("fail", "text-exceeds", values | {"beyond": found.beyond} | worst)
    values |= {"epsilon": _nats(found.bound.epsilon), "delta": found.bound.delta}
    if found.bound.delta:
        values["sure"] = Finding(
            code="replay.with-confidence", values={"confidence": found.bound.confidence}
        )
    else:
        values["sure"] = Finding(code="replay.with-certainty")
    if run.kind.beforehand and not found.bound.epsilon <= batch_claim(run):
        return Outcome("fail", "refuted", values)
    return Outcome("pass", "within", values)


@RunCheck(id="neighbors.rows")
def other_rows_stay(run: AuditedRun) -> Outcome:
    """Judge how far a recorder saw other rows' logits move once a private text was lengthened."""
    recorded = run.manifest.recorded
    if recorded is None:
        return inapplicable("neighbors.no-recorder")
    if recorded.rows is None:
        return Outcome("skip", "untried")
    logit, support = recorded.rows.logit, recorded.rows.support
    if not logit and not support:
        return Outcome("pass", "unmoved")
    return Outcome("fail", "moved", {"logit": logit, "tokens": support})


@RunCheck(id="replay.frozen")
def frozen_reruns_agree(run: AuditedRun) -> Outcome:
    """Judge what differs without a record: settings, batches, supports, anchors, rows and draws.

    The rows are those of others.
    """
    if not run.reruns:
        return (
            inapplicable("neighbors.no-rerun")
            if run.manifest.recorded is None
            else Outcome("skip", "not-rerun")
        )
    moved = tuple(
        Finding(
            code="neighbors.moved-without",
            values={
                "row": rerun.row,
                "kind": found.kind,
                "places": found.places,
                "first": found.first,
            },
        )
        for rerun in run.reruns
        for found in rerun.differences
    )
    unstable = next((rerun.unstable for rerun in run.reruns if rerun.unstable), None)
    values: dict[str, Value] = {} if unstable is None else {"unstable": unstable}
    if moved:
        return Outcome("fail", "moved", values | {"moved": moved})
    if unstable is not None:
        # Who runs the script again asks for this, whatever the level of evidence.
        return Outcome("skip", "unstable", values, evidence=0)
    return Outcome(
        "pass", "agree", {"steps": run.steps, "rows": tuple(rerun.row for rerun in run.reruns)}
    )
