"""Do the coins of made-up records, which the texts let anybody guess, bear out the record and the claim?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dpaudit.accounting.one_run import ALARM_AT, chance_of, p_value, tail
from dpaudit.checks.claim import batch_claim
from dpaudit.checks.facts import Facts, FoundCanary
from dpaudit.checks.registry import UNREAD, RunCheck, Worded, not_applicable
from dpaudit.results.rounding import nearest, rounded_up
from dpaudit.runs import Canaries, Canary, KeyedHash, Manifest
from dpaudit.runs.layout import CANARIES

_NONE = "The run has no canaries: ask for some with privacy.canaries."
#: Coins that are as uneven as this are not fair.
_UNFAIR = 1e-6
#: Rounding of two logarithms of sums, in nats.
_SLACK = 1e-9


@RunCheck(id="canaries.coins")
def coins_are_kept(facts: Facts) -> Worded:
    """The coins against their digest in the manifest, and each against the assignment and its batch's record."""
    expected = "the digest that was committed to; the contributions of those that are in, and of no others, aggregated"
    committed, there = facts.manifest.canaries, facts.reader.has(CANARIES)
    if committed is None:
        if there:
            return Worded("fail", f"a file {CANARIES} is there, and run.json holds no digest of it", expected)
        return not_applicable(expected, _NONE)
    if facts.canaries is None:
        return Worded("fail", f"{CANARIES} cannot be read" if there else f"{CANARIES} is missing", expected)
    if facts.canaries.committed != committed:
        return Worded("fail", f"{CANARIES} is not what run.json holds the digest of", expected)
    problem = next(_problems(facts, facts.canaries), None)
    if problem:
        return Worded("fail", problem, expected)
    if len(facts.headers) < facts.manifest.batches:
        return Worded("skip", "not all batches", expected, UNREAD)
    number = sum(canary.included for canary in facts.canaries.canaries)
    held = "as the commitment that the audit was given has them" if facts.held.commitment else "none was given in time"
    return Worded("pass", f"{number} of {committed.count} canaries are in; of commitments, {held}", expected)


def _problems(facts: Facts, canaries: Canaries) -> Iterator[str]:
    """What contradicts the coins."""
    due: dict[int, int] = {}
    for number, canary in enumerate(canaries.canaries):
        for batch in _batches(facts, canary):
            if problem := _contradicted(facts, canary, batch):
                yield f"canary {number}: {problem}"
            if batch in due:
                yield f"canaries {due[batch]} and {number} share batch {batch}"
            due[batch] = number
        if (_digest(facts.manifest, canary) in facts.placement.watched) != canary.included:
            found = "in, and the assignment lacks it" if canary.included else "out, and the assignment has it"
            yield f"canary {number}: it is {found}"
    for batch, header in facts.headers.items():
        if header.canary != due.get(batch):
            yield f"batch {batch} has not the canary, or none, that {CANARIES} and the hash send there"
    count, included = len(canaries.canaries), sum(canary.included for canary in canaries.canaries)
    if 2 * tail([0.5] * count, max(included, count - included)) <= _UNFAIR:
        yield f"{included} of {count} coins say in, which no fair coins do"


def _contradicted(facts: Facts, canary: Canary, batch: int) -> str:
    """Why the contributions that a batch of a canary's recorded contradict its coin; empty where they do not."""
    found = facts.found_canaries.get(batch)
    if found is None or (canary.included and found.among):
        return ""
    if canary.included:
        return f"it is in, and no recorded context of batch {batch} contributes what it does"
    if found.among and found.telling:
        return f"it is out, and a recorded context of batch {batch} contributes what it does"
    return ""


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
def coins_are_hidden(facts: Facts) -> Worded:
    """Right guesses of the coins against the chances that the record's log-ratios leave them, and that the claim does.

    Whoever guesses knows the canary's batch, so that it is the batch level that is claimed. Either is refuted where
    so many are right with a probability of 0.00005 at most, and the record where so few are, for whoever sees the
    texts may guess the opposite; so that honest runs fail once in 10,000. Each log-ratio is held against its
    batch's ex-post bound, too.
    """
    expected = "guesses that are right as often as log-ratios on record leave them to be, and the claim does"
    if facts.manifest.canaries is None:
        return not_applicable(expected, _NONE)
    found = guesses(facts)
    if found is None:
        return Worded("skip", "nothing", expected, "canaries.coins objects, or the record lacks a log-ratio.")
    if beyond := next(_beyond(facts), ""):
        return Worded("fail", beyond, expected)
    shown = f"{found.right} of {found.coins} coins guessed right"
    tests = dict(_tests(facts, found))
    for name, (refuted, _) in tests.items():
        if refuted <= ALARM_AT:
            return Worded("fail", f"{shown}: a chance of {nearest(refuted)} by {name}", expected)
    able = [name for name, (_, least) in tests.items() if least <= ALARM_AT]
    if not able:
        luck = min(least for _, least in tests.values())
        lacking = f"Were all {found.coins} right, it could be luck, with a probability of {nearest(luck)}: too few."
        return not_applicable(expected, lacking)
    chance = min(tests[name][0] for name in able)
    said = f"{shown}: a chance of {nearest(chance)} or more by {' and '.join(able)}"
    weak = [name for name in tests if name not in able]
    return Worded("pass", said, expected, f"They are too few to refute {weak[0]}." if weak else "")


def _tests(facts: Facts, found: Guesses) -> Iterator[tuple[str, tuple[float, float]]]:
    """What is tested: the probability of a number of right guesses as far out at most, and that of all being right."""
    chances, claim, coins, right = found.chances, facts.claim, found.coins, found.right
    opposite = tail([1 - chance for chance in chances], coins - right)
    yield "the record's log-ratios", (min(1.0, 2 * min(tail(chances, right), opposite)), 2 * tail(chances, coins))
    if claim.kind == "approximate" and claim.relation == "add_remove":
        epsilon, delta = batch_claim(facts), claim.delta
        values = (p_value(epsilon, delta, coins, coins, number) for number in (right, coins))
        yield f"the claim of {rounded_up(epsilon)} at the batch level", (next(values), next(values))


def _beyond(facts: Facts) -> Iterator[str]:
    """Log-ratios beyond their batch's ex-post bound, where there is one for records that come or go."""
    if facts.ex_post is None or facts.canaries is None:
        return
    mechanism = facts.manifest.mechanism
    rounding = 8 * mechanism.clip / mechanism.temperature * float(np.finfo(facts.manifest.record.dtype).eps)
    losses = (_losses(facts, canary).items() for canary in facts.canaries.canaries)
    for batch, loss in chain.from_iterable(losses):
        bound = facts.batch_cost(batch).exact
        if not abs(loss) <= bound + _SLACK + rounding * facts.lengths[batch]:
            yield f"batch {batch}: a log-ratio of {loss:.6g} where at most {bound:.6g}"
