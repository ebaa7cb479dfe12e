"""Is every token the one that the run's committed seed draws?"""

from __future__ import annotations

from collections.abc import Sequence

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import UNREAD, RunCheck, Worded, not_applicable
from dpaudit.runs import CommittedSeed, Manifest

#: From this level on the seed has to be given, as the model and the data have to.
_WITH_SECRETS = 3


class SeededDraws:
    """Holds a run's tokens to the uniforms of its committed seed, a batch at a time.

    Attributes:
        steps: how many were held to theirs.
        wrong: how many tokens are not those of their uniforms.
        first: the first of these, in words.
        allowance: by how much, relatively, a uniform may lie beyond its token's interval (`rounding_allowance`).
    """

    def __init__(self, seed: CommittedSeed, manifest: Manifest) -> None:
        self.steps = self.wrong = 0
        self.first = ""
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
                self.first = self.first or f"batch {batch}, step {step}"


def rounding_allowance(vocabulary: int) -> float:
    """Return how far, relatively, two machines may place the ends of the same token's interval from each other.

    A sum of at most V ascending weights, each off by 4 units in the last place, is off by 2^-50 + V 2^-53; an end is a
    quotient of two such sums, on either machine (docs/mathematics.md#a-committed-seed).
    """
    return 5 * (2.0**-50 + vocabulary * 2.0**-53)


@RunCheck(id="sampling.committed-seed")
def tokens_are_those_of_the_seed(facts: Facts) -> Worded:
    """The uniform of every step, recomputed from the seed, against its token's interval under the recorded aggregate.

    The hash of each part of the seed is recomputed, too, and held against run.json.
    """
    sampling, draws = facts.manifest.sampling, facts.seeded
    expected = "each token's interval holds its step's number, and the seed's parts have the hashes of run.json"
    if not sampling.committed:
        return not_applicable(expected, "The run does not commit to a seed.")
    parts = len(sampling.seed_hashes)
    if draws is None:
        remedy = f"Give every part of the seed: `dpaudit verify RUN_DIR{' --seed-file FILE' * parts}`."
        return Worded("skip", "the seed was not given", expected, remedy, evidence=_WITH_SECRETS)
    if draws.foreign:
        remedy = (
            "Give the parts that were drawn for this run. If these are, its tokens are another seed's: do not release."
        )
        found = f"{draws.foreign} of {parts} parts have a hash that run.json does not have"
        return Worded("fail", found, expected, remedy)
    if facts.manifest.commitment is None:
        return Worded("fail", "the run has no commitment, to which its numbers are bound", expected)
    if draws.wrong:
        found = f"{draws.wrong} of {draws.steps} tokens are not the seed's; first {draws.first}"
        return Worded("fail", found, expected)
    if facts.unreadable or len(facts.headers) != facts.manifest.batches or not draws.steps:
        return Worded("skip", f"{draws.steps} tokens", expected, UNREAD)
    return Worded("pass", f"all {draws.steps} tokens are the seed's", expected, _limits(facts))


def _limits(facts: Facts) -> str:
    """What a pass leaves open, in words."""
    found = (
        "The run's maker had nothing to choose if a part of the seed was unknown to them until that commitment was "
        "handed over."
    )
    if facts.held.commitment is None:
        found = (
            "No commitment was given to the audit: whoever knew the whole seed could try one run after another, and "
            "keep the one that suits."
        )
    if facts.replay is None:
        found += " Tokens are held to the recorded aggregates; that these were not made up, a replay shows."
    return found
