"""Is every token the one that the run's committed seed draws?"""

from __future__ import annotations

from collections.abc import Sequence

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.results import Finding, Place, Value
from dpaudit.runs import CommittedSeed, Manifest

#: From this level on the seed has to be given, as the model and the data have to.
_WITH_SECRETS = 3


class SeededDraws:
    """Holds a run's tokens to the uniforms of its committed seed, a batch at a time.

    Attributes:
        steps: how many were held to theirs.
        wrong: how many tokens are not those of their uniforms.
        first: where the first of these is; None where all are.
        allowance: by how much, relatively, a uniform may lie beyond its token's interval (`rounding_allowance`).
    """

    def __init__(self, seed: CommittedSeed, manifest: Manifest) -> None:
        self.steps = self.wrong = 0
        self.first: Place | None = None
        self.allowance = rounding_allowance(manifest.record.vocabulary)
        self._seed, self._commitment = seed, manifest.commitment
        hashes = manifest.sampling.seed_hashes
        self.foreign = len(set(seed.hashes) - set(hashes))

    def take(self, batch: int, intervals: Sequence[tuple[float, float]]) -> None:
        """Take in one batch: its tokens' intervals (`DrawnStep.interval`), from its first step on."""
        if self._commitment is None or self.foreign:
            return
        for step, (low, high) in enumerate(intervals):
            number = self._seed.uniform(self._commitment, batch, step)
            self.steps += 1
            # NaN, where the record gives the token no interval, is beyond it.
            if not low * (1 - self.allowance) <= number <= high * (1 + self.allowance):
                self.wrong += 1
                self.first = self.first or Place(batch=batch, step=step)


def rounding_allowance(vocabulary: int) -> float:
    """Return how far, relatively, two machines may place the ends of the same token's interval from each other.

    A sum of at most V ascending weights, each off by 4 units in the last place, is off by 2^-50 + V 2^-53; an end is a
    quotient of two such sums, on either machine (docs/mathematics.md#a-committed-seed).
    """
    return 5 * (2.0**-50 + vocabulary * 2.0**-53)


@RunCheck(id="sampling.committed-seed")
def tokens_are_those_of_the_seed(facts: Facts) -> Outcome:
    """Hold the uniform of every step, recomputed from the seed, against its token's interval under the aggregate.

    The hash of each part of the seed is recomputed, too, and held against run.json.
    """
    sampling, draws = facts.manifest.sampling, facts.seeded
    if not sampling.committed:
        return inapplicable("committed-seed.none")
    parts = len(sampling.seed_hashes)
    values: dict[str, Value] = {"parts": parts}
    if draws is None:
        options = " --seed-file FILE" * parts
        return Outcome("skip", "not-given", values | {"options": options}, evidence=_WITH_SECRETS)
    if draws.foreign:
        return Outcome("fail", "other-parts", values | {"foreign": draws.foreign})
    if facts.manifest.commitment is None:
        return Outcome("fail", "no-commitment", values)
    values["tokens"] = draws.steps
    if draws.first is not None:
        return Outcome("fail", "other-tokens", values | {"wrong": draws.wrong, "first": draws.first})
    if facts.unreadable or len(facts.headers) != facts.manifest.batches or not draws.steps:
        return Outcome("skip", "unread", values)
    return Outcome("pass", "of-the-seed", values, _left_open(facts))


def _left_open(facts: Facts) -> tuple[Finding, ...]:
    """Return what a pass leaves open."""
    early = facts.held.commitment is not None
    found = Finding(code=f"committed-seed.{'commitment-given' if early else 'commitment-not-given'}")
    return (found,) if facts.replay is not None else (found, Finding(code="committed-seed.not-replayed"))
