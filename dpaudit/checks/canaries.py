"""Do the coins of made-up records, which the texts let anybody guess, bear out the record and the claim?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from dpaudit.accounting.one_run import ALARM_AT, chance_of, p_value, tail
from dpaudit.checks.claim import batch_claim
from dpaudit.checks.facts import Facts, FoundCanary
from dpaudit.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.results import Finding, Place, Quantity, Value
from dpaudit.runs import Canaries, Canary, KeyedHash, Manifest
from dpaudit.runs.layout import CANARIES

_NONE = "canaries.none"
#: Coins that are as uneven as this are not fair.
_UNFAIR = 1e-6
#: Rounding of two logarithms of sums, in nats.
_SLACK = 1e-9


@RunCheck(id="canaries.coins")
def coins_are_kept(facts: Facts) -> Outcome:
    """Hold the coins against their digest in the manifest, and each against the assignment and its batch's record."""
    committed, there = facts.manifest.canaries, facts.reader.has(CANARIES)
    if committed is None:
        return Outcome("fail", "undeclared") if there else inapplicable(_NONE)
    if facts.canaries is None:
        return Outcome("fail", "unreadable" if there else "missing")
    if facts.canaries.committed != committed:
        return Outcome("fail", "other-digest")
    problem = next(_problems(facts, facts.canaries), None)
    if problem is not None:
        return problem
    if len(facts.headers) < facts.manifest.batches:
        return Outcome("skip", "unread")
    number = sum(canary.included for canary in facts.canaries.canaries)
    code = "kept-as-committed" if facts.held.commitment else "kept"
    return Outcome("pass", code, {"included": number, "canaries": committed.count})


def _problems(facts: Facts, canaries: Canaries) -> Iterator[Outcome]:
    """Yield what contradicts the coins, as failures."""
    due: dict[int, int] = {}
    for number, canary in enumerate(canaries.canaries):
        for batch in _batches(facts, canary):
            place: dict[str, Value] = {"canary": number, "batch": Place(batch=batch)}
            if code := _contradicted(facts, canary, batch):
                yield Outcome("fail", code, place)
            if batch in due:
                yield Outcome("fail", "shared-batch", place | {"first": due[batch]})
            due[batch] = number
        if (_digest(facts.manifest, canary) in facts.placement.watched) != canary.included:
            code = "not-assigned" if canary.included else "assigned"
            yield Outcome("fail", code, {"canary": number})
    for batch, header in facts.headers.items():
        if header.canary != due.get(batch):
            yield Outcome("fail", "other-batch", {"batch": Place(batch=batch)})
    count, included = len(canaries.canaries), sum(canary.included for canary in canaries.canaries)
    if 2 * tail([0.5] * count, max(included, count - included)) <= _UNFAIR:
        yield Outcome("fail", "unfair", {"included": included, "canaries": count})


def _contradicted(facts: Facts, canary: Canary, batch: int) -> str:
    """Return the code of how what a canary's batch recorded contradicts its coin; empty where it does not."""
    found = facts.found_canaries.get(batch)
    if found is None or (canary.included and found.among):
        return ""
    if canary.included:
        return "not-contributing"
    return "contributing" if found.among and found.telling else ""


def canary_digests(manifest: Manifest, canaries: Canaries | None) -> frozenset[str]:
    """Of all canaries of a run, as its assignment would have them; empty without a key."""
    if canaries is None or manifest.batching.key is None:
        return frozenset()
    return frozenset(_digest(manifest, canary) for canary in canaries.canaries)


def _digest(manifest: Manifest, canary: Canary) -> str:
    return KeyedHash(bytes.fromhex(manifest.batching.key or "")).digest(canary.label, canary.text)


@dataclass(frozen=True)
class Guesses:
    """The coins, guessed by the sign of each log-ratio: in where the texts are likelier with the canary.

    Attributes:
        losses: log-ratios with the canary and without it, in nats, by the canary's number: of all its batches.
        right: how many of the guesses are right.
    """

    losses: dict[int, float]
    right: int

    @property
    def coins(self) -> int:
        """How many coins there are; all are guessed."""
        return len(self.losses)

    @property
    def chances(self) -> list[float]:
        """With which probability each guess is right, if tokens were drawn as the record says."""
        return [chance_of(abs(loss)) for loss in self.losses.values()]


def guesses(facts: Facts) -> Guesses | None:
    """The guesses of a run's coins; None where it has none, or its record lacks a log-ratio or contradicts them."""
    if facts.canaries is None or coins_are_kept(facts).status != "pass":
        return None
    losses: dict[int, float] = {}
    right = 0
    for number, canary in enumerate(facts.canaries.canaries):
        loss = math.fsum(_losses(facts, canary).values())
        if not math.isfinite(loss):
            return None
        losses[number] = loss
        right += (loss > 0) == canary.included
    return Guesses(losses, right)


def _losses(facts: Facts, canary: Canary) -> dict[int, float]:
    """A canary's log-ratios by its batches; NaN where there is none."""
    found = {batch: facts.found_canaries.get(batch) for batch in _batches(facts, canary)}
    return {batch: math.nan if each is None else _loss(each, canary) for batch, each in found.items()}


def _batches(facts: Facts, canary: Canary) -> tuple[int, ...]:
    return canary.batches(facts.manifest.batching, facts.manifest.rounds)


def _loss(found: FoundCanary, canary: Canary) -> float:
    return found.removed if canary.included else found.added


@RunCheck(id="canaries.lower-bound")
def coins_are_hidden(facts: Facts) -> Outcome:
    """Hold right guesses of the coins against the chances that the record's log-ratios, and the claim, leave them.

    Whoever guesses knows the canary's batch, so that it is the batch level that is claimed. Either is refuted where
    so many are right with a probability of 0.00005 at most, and the record where so few are, for whoever sees the
    texts may guess the opposite; so that honest runs fail once in 10,000. Each log-ratio is held against its
    batch's ex-post bound, too.
    """
    if facts.manifest.canaries is None:
        return inapplicable(_NONE)
    found = guesses(facts)
    if found is None:
        return Outcome("skip", "no-guesses")
    for beyond in _beyond(facts):
        return beyond
    values: dict[str, Value] = {"right": found.right, "coins": found.coins}
    tests = list(_tests(facts, found))
    for test in tests:
        if test.chance <= ALARM_AT:
            return Outcome("fail", "refuted", values | {"chance": test.chance, "by": test.name})
    able = [test for test in tests if test.least <= ALARM_AT]
    if not able:
        luck = min(test.least for test in tests)
        return inapplicable("canaries.too-few", {"coins": found.coins, "luck": luck})
    values |= {"chance": min(test.chance for test in able), "by": tuple(test.name for test in able)}
    weak = [test.name for test in tests if test not in able]
    notes = tuple(Finding(code="canaries.too-few-for", values={"what": name}) for name in weak[:1])
    return Outcome("pass", "hidden", values, notes)


class _Test(NamedTuple):
    """What right guesses are held against, and how unlikely they are by it.

    Attributes:
        name: what is tested.
        chance: the probability of a number of right guesses as far out at most.
        least: that of all being right.
    """

    name: Finding
    chance: float
    least: float


def _tests(facts: Facts, found: Guesses) -> Iterator[_Test]:
    """Yield the tests of the record, and of the claim where guesses can refute it."""
    chances, claim, coins, right = found.chances, facts.claim, found.coins, found.right
    opposite = tail([1 - chance for chance in chances], coins - right)
    chance = min(1.0, 2 * min(tail(chances, right), opposite))
    yield _Test(Finding(code="canaries.record"), chance, 2 * tail(chances, coins))
    if facts.kind.beforehand and claim.relation == "add_remove":
        delta, epsilon = facts.kind.tested_delta(claim.delta), batch_claim(facts)
        values = [p_value(epsilon, delta, coins, coins, number) for number in (right, coins)]
        claimed = Finding(code="canaries.claim", values={"epsilon": Quantity(value=epsilon, unit="nats")})
        yield _Test(claimed, *values)


def _beyond(facts: Facts) -> Iterator[Outcome]:
    """Yield log-ratios beyond their batch's ex-post bound, where there is one for records that come or go."""
    if facts.ex_post is None or facts.canaries is None:
        return
    mechanism = facts.manifest.mechanism
    rounding = 8 * mechanism.clip / mechanism.temperature * float(np.finfo(facts.manifest.record.dtype).eps)
    losses = (_losses(facts, canary).items() for canary in facts.canaries.canaries)
    for batch, loss in chain.from_iterable(losses):
        bound = facts.batch_cost(batch).exact
        if not abs(loss) <= bound + _SLACK + rounding * facts.lengths[batch]:
            loss_and_bound = {
                name: Quantity(value=value, unit="nats") for name, value in (("loss", loss), ("bound", bound))
            }
            yield Outcome("fail", "beyond-bound", {"batch": Place(batch=batch), **loss_and_bound})
