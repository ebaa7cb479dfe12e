"""Do the coins of made-up records, guessed from the texts, support the record and the claim?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit import accounting
from dpaudit.accounting.laws import tail
from dpaudit.auditing.checks.claim import batch_claim
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.partition import Placement, canary_digest
from dpaudit.auditing.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.auditing.checks.steps import (
    TELLING_VALUES,
    BatchView,
    StepView,
    values_between_extremes,
)
from dpaudit.mechanisms import ANCHOR
from dpaudit.results import Finding, Place, Quantity, Value
from dpaudit.runs import BatchHeader, Canaries, Canary
from dpaudit.runs.layout import CANARIES

_NONE = "canaries.none"
#: Coins that are as uneven as this are not fair.
_UNFAIR = 1e-6
#: Rounding of two logarithms of sums, in nats.
_SLACK = 1e-9


class FoundCanary(NamedTuple):
    """The record of a batch's canary.

    Attributes:
        number: in the file `canaries`.
        among: whether a recorded context contributed what the canary does, at every step.
        telling: whether that is no chance: rows have at least TELLING_VALUES values between their
            extremes.
        removed: log p(tokens) - log p(tokens without it), in nats, where it is among the contexts.
        added: log p(tokens with it as one more context) - log p(tokens).
    """

    number: int
    among: bool
    telling: bool
    removed: float
    added: float


class CanarySums(BatchEvidence):
    """The exact log-ratios of one batch's tokens with its canary and without it, summed."""

    def __init__(self, header: BatchHeader) -> None:
        """`header`: of a batch that has a canary."""
        self._header = header
        self._among = np.ones(header.contexts, dtype=np.bool_)
        self._spent, self._values = np.zeros(1), 0
        self._removed = self._added = 0.0

    @override
    def step(self, view: StepView) -> None:  # a step without what it needs leaves no number
        row, contexts, given = view.step.canary, view.step.contexts, view.contributions
        if row is None or given is None or view.index is None or view.range_problem:
            self._removed = self._added = math.nan
            return
        if contexts is not None:
            self._among &= (contexts == row).all(axis=1)
        self._values += values_between_extremes(row)
        own, here = self._paid(view, row), _log_probability_of(view, given)
        self._added += _log_probability_of(view, np.concatenate((given, own[None]))) - here
        if self._among.any():
            self._removed += here - _log_probability_of(
                view, np.delete(given, int(self._among.argmax()), axis=0)
            )

    def _paid(self, view: StepView, row: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return the canary's contribution [S], or zeros once its budget pays for no more."""
        if view.mechanism.budget is None:
            return row
        after = view.mechanism.spend(row[None], self._spent)
        paying, self._spent = bool(after[0] > self._spent[0]), after
        return row if paying else np.zeros_like(row)

    @override
    def result(self) -> FoundCanary:
        number, among = self._header.canary, bool(self._among.any())
        assert number is not None
        telling = self._values >= TELLING_VALUES
        return FoundCanary(
            number, among, telling, self._removed if among else math.nan, self._added
        )


def _log_probability_of(view: StepView, contributions: NDArray[np.floating]) -> float:
    """Return the sampled token's log-probability, had these contexts [n, S] been aggregated."""
    mechanism, index = view.mechanism, view.index
    assert index is not None
    arrays = mechanism.aggregator.step(contributions, mechanism.clip, view.manifest.record.width)
    arrays |= {
        name: view.arrays[name]
        for name in (ANCHOR, *mechanism.draw.arrays())
        if name in view.arrays
    }
    return mechanism.log_probability(mechanism.aggregate(arrays), index)


class FoundCanaries(Evidence):
    """The record of canaries, by batch (`FoundCanary`)."""

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        return None if batch.header.canary is None else CanarySums(batch.header)


@RunCheck(id="canaries.coins", gathers=(FoundCanaries, Placement))
def coins_are_kept(run: AuditedRun) -> Outcome:
    """Compare the coins with their digest, and each with the assignment and its batch's record.

    The manifest has the digest.
    """
    committed, there = run.manifest.canaries, run.reader.has(CANARIES)
    if committed is None:
        return Outcome("fail", "undeclared") if there else inapplicable(_NONE)
    if run.canaries is None:
        return Outcome("fail", "unreadable" if there else "missing")
    if run.canaries.committed != committed:
        return Outcome("fail", "other-digest")
    problem = next(_problems(run, run.canaries), None)
    if problem is not None:
        return problem
    if len(run.headers) < run.manifest.batches:
        return Outcome("skip", "unread")
    number = sum(canary.included for canary in run.canaries.canaries)
    code = "kept-as-committed" if run.known_digests.commitment else "kept"
    return Outcome("pass", code, {"included": number, "canaries": committed.count})


def _problems(run: AuditedRun, canaries: Canaries) -> Iterator[Outcome]:
    """Yield what contradicts the coins, as failures."""
    due: dict[int, int] = {}
    for number, canary in enumerate(canaries.canaries):
        for batch in _batches(run, canary):
            place: dict[str, Value] = {"canary": number, "batch": Place(batch=batch)}
            if code := _contradicted(run, canary, batch):
                yield Outcome("fail", code, place)
            if batch in due:
                yield Outcome("fail", "shared-batch", place | {"first": due[batch]})
            due[batch] = number
        if (canary_digest(run.manifest, canary) in run[Placement].watched) != canary.included:
            code = "not-assigned" if canary.included else "assigned"
            yield Outcome("fail", code, {"canary": number})
    for batch, header in run.headers.items():
        if header.canary != due.get(batch):
            yield Outcome("fail", "other-batch", {"batch": Place(batch=batch)})
    count, included = len(canaries.canaries), sum(canary.included for canary in canaries.canaries)
    if 2 * tail([0.5] * count, max(included, count - included)) <= _UNFAIR:
        yield Outcome("fail", "unfair", {"included": included, "canaries": count})


def _contradicted(run: AuditedRun, canary: Canary, batch: int) -> str:
    """Return the code of a contradiction between a canary's coin and its batch, or ""."""
    found = run[FoundCanaries].by_batch.get(batch)
    if found is None or (canary.included and found.among):
        return ""
    if canary.included:
        return "not-contributing"
    return "contributing" if found.among and found.telling else ""


class Guesses(NamedTuple):
    """The coins, guessed by each log-ratio's sign: in, if texts are likelier with the canary.

    Attributes:
        losses: log-ratios with the canary and without it, in nats, by the canary's number: of all
            its batches.
        right: how many of the guesses are right.
    """

    losses: dict[int, float]
    right: int

    @property
    def coins(self) -> int:
        """The number of coins; all are guessed."""
        return len(self.losses)

    @property
    def chances(self) -> list[float]:
        """With which probability each guess is right, if tokens were drawn as the record says."""
        return [accounting.chance_of(abs(loss)) for loss in self.losses.values()]


def guesses(run: AuditedRun) -> Guesses | None:
    """Return the guesses of a run's coins; None without coins, or if its record does not fit them.

    A record that lacks a log-ratio, or contradicts the coins, does not fit.
    """
    if run.canaries is None or coins_are_kept(run).status != "pass":
        return None
    losses: dict[int, float] = {}
    right = 0
    for number, canary in enumerate(run.canaries.canaries):
        loss = math.fsum(_losses(run, canary).values())
        if not math.isfinite(loss):
            return None
        losses[number] = loss
        right += (loss > 0) == canary.included
    return Guesses(losses, right)


def _losses(run: AuditedRun, canary: Canary) -> dict[int, float]:
    """Return a canary's log-ratios by its batches; NaN if there is none."""
    found = {batch: run[FoundCanaries].by_batch.get(batch) for batch in _batches(run, canary)}
    return {
        batch: math.nan if each is None else _loss(each, canary) for batch, each in found.items()
    }


def _batches(run: AuditedRun, canary: Canary) -> tuple[int, ...]:
    return canary.batches(run.manifest.batching, run.manifest.data.groups, run.manifest.rounds)


def _loss(found: FoundCanary, canary: Canary) -> float:
    return found.removed if canary.included else found.added


@RunCheck(id="canaries.lower-bound", gathers=(FoundCanaries, Costs))
def coins_are_hidden(run: AuditedRun) -> Outcome:
    """Compare right guesses of the coins with their chances by log-ratios and by the claim.

    Whoever guesses knows the canary's batch, so that it is the batch level that is claimed. Either
    is refuted where so many are right with a probability of 0.00005 at most, and the record where
    so few are, for whoever sees the texts may guess the opposite; so that honest runs fail once in
    10,000. Each log-ratio is held against its batch's ex-post bound, too.
    """
    if run.manifest.canaries is None:
        return inapplicable(_NONE)
    found = guesses(run)
    if found is None:
        return Outcome("skip", "no-guesses")
    for beyond in _beyond(run):
        return beyond
    values: dict[str, Value] = {"right": found.right, "coins": found.coins}
    tests = list(_tests(run, found))
    for test in tests:
        if test.chance <= accounting.ALARM_AT:
            return Outcome("fail", "refuted", values | {"chance": test.chance, "by": test.name})
    able = [test for test in tests if test.least <= accounting.ALARM_AT]
    if not able:
        luck = min(test.least for test in tests)
        return inapplicable("canaries.too-few", {"coins": found.coins, "luck": luck})
    values |= {"chance": min(test.chance for test in able), "by": tuple(test.name for test in able)}
    weak = [test.name for test in tests if test not in able]
    notes = tuple(Finding(code="canaries.too-few-for", values={"what": name}) for name in weak[:1])
    return Outcome("pass", "hidden", values, notes)


class _Test(NamedTuple):
    """A guarantee to test right guesses with, and their chances under it.

    Attributes:
        name: the guarantee's.
        chance: the probability of a number of right guesses as far out at most.
        least: that of all being right.
    """

    name: Finding
    chance: float
    least: float


def _tests(run: AuditedRun, found: Guesses) -> Iterator[_Test]:
    """Yield the tests of the record, and of the claim where guesses can refute it."""
    chances, claim, coins, right = found.chances, run.claim, found.coins, found.right
    opposite = tail([1 - chance for chance in chances], coins - right)
    chance = min(1.0, 2 * min(tail(chances, right), opposite))
    yield _Test(Finding(code="canaries.record"), chance, 2 * tail(chances, coins))
    if run.kind.beforehand and claim.relation == "add_remove":
        delta, epsilon = run.kind.tested_delta(claim.delta), batch_claim(run)
        tossed = accounting.canary_guesses(coins, delta)
        values = [tossed.p_value(number, epsilon) for number in (right, coins)]
        claimed = Finding(
            code="canaries.claim", values={"epsilon": Quantity(value=epsilon, unit="nats")}
        )
        yield _Test(claimed, *values)


def _beyond(run: AuditedRun) -> Iterator[Outcome]:
    """Yield log-ratios beyond their batch's ex-post bound, if records that come or go have one."""
    costs = run[Costs]
    if costs.ex_post is None or run.canaries is None:
        return
    mechanism = run.manifest.mechanism
    rounding = (
        8 * mechanism.clip / mechanism.temperature * float(np.finfo(run.manifest.record.dtype).eps)
    )
    losses = (_losses(run, canary).items() for canary in run.canaries.canaries)
    for batch, loss in chain.from_iterable(losses):
        bound = costs.batch_cost(batch).exact
        if not abs(loss) <= bound + _SLACK + rounding * run.lengths[batch]:
            loss_and_bound = {
                name: Quantity(value=value, unit="nats")
                for name, value in (("loss", loss), ("bound", bound))
            }
            yield Outcome("fail", "beyond-bound", {"batch": Place(batch=batch), **loss_and_bound})
