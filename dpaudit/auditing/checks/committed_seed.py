"""Is every token the one that the run's committed seed draws?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from typing_extensions import override

from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.auditing.checks.steps import BatchView, StepsView
from dpaudit.results import Finding, Place, Value
from dpaudit.runs import CommittedSeed, Manifest

#: From this level on the seed has to be given, as the model and the data have to.
_WITH_SECRETS = 3


class _BatchIntervals(BatchEvidence):
    """Intervals of a batch's tokens (`DrawnSteps.intervals`), or NaN if the record gives none."""

    def __init__(self) -> None:
        self.intervals: list[tuple[float, float]] = []

    @override
    def look(self, view: StepsView) -> None:
        nothing = [(math.nan, math.nan)] * len(view)
        self.intervals += nothing if view.drawn is None else view.drawn.intervals

    @override
    def result(self) -> list[tuple[float, float]]:
        return self.intervals


class SeededDraws(Evidence):
    """The comparison of a run's tokens with the uniforms of its committed seed, a batch at a time.

    Without a seed nothing is compared.

    Attributes:
        steps: how many were compared.
        wrong: how many tokens are not those of their uniforms.
        first: where the first of these is; None if all are.
        allowance: by how much, relatively, a uniform may lie beyond its token's interval
            (`rounding_allowance`).
        foreign: how many parts of the given seed are none of the run's.
    """

    partial = True

    def __init__(self, seed: CommittedSeed | None, manifest: Manifest) -> None:
        self.steps = self.wrong = 0
        self.first: Place | None = None
        self.allowance = rounding_allowance(manifest.record.vocabulary)
        self._seed, self._commitment = seed, manifest.commitment
        self.foreign = (
            0 if seed is None else len(set(seed.hashes) - set(manifest.sampling.seed_hashes))
        )

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        return cls(run.seed, run.manifest)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        return _BatchIntervals() if batch.manifest.sampling.committed else None

    @override
    def merge(self, batch: int, found: Sequence[tuple[float, float]]) -> None:
        if self._seed is None or self._commitment is None or self.foreign:
            return
        for step, (low, high) in enumerate(found):
            number = self._seed.uniform(self._commitment, batch, step)
            self.steps += 1
            # NaN, where the record gives the token no interval, is beyond it.
            if not low * (1 - self.allowance) <= number <= high * (1 + self.allowance):
                self.wrong += 1
                self.first = self.first or Place(batch=batch, step=step)


def rounding_allowance(vocabulary: int) -> float:
    """Return the largest relative distance between two machines' ends of the same token's interval.

    A sum of at most V ascending weights, each off by 4 units in the last place, is off by 2^-50 + V
    2^-53; an end is a quotient of two such sums, on either machine
    (docs/mathematics.md#a-committed-seed).
    """
    return 5 * (2.0**-50 + vocabulary * 2.0**-53)


@RunCheck(id="sampling.committed-seed", gathers=(SeededDraws,))
def tokens_are_those_of_the_seed(run: AuditedRun) -> Outcome:
    """Compare each step's uniform, recomputed from the seed, with its token's interval.

    The hash of each part of the seed is recomputed, too, and held against run.json.
    """
    sampling, draws = run.manifest.sampling, run[SeededDraws]
    if not sampling.committed:
        return inapplicable("committed-seed.none")
    parts = len(sampling.seed_hashes)
    values: dict[str, Value] = {"parts": parts}
    if run.seed is None:
        options = " --seed-file FILE" * parts
        return Outcome("skip", "not-given", values | {"options": options}, evidence=_WITH_SECRETS)
    if draws.foreign:
        return Outcome("fail", "other-parts", values | {"foreign": draws.foreign})
    if run.manifest.commitment is None:
        return Outcome("fail", "no-commitment", values)
    values["tokens"] = draws.steps
    if draws.first is not None:
        return Outcome(
            "fail", "other-tokens", values | {"wrong": draws.wrong, "first": draws.first}
        )
    if run.unreadable or len(run.headers) != run.manifest.batches or not draws.steps:
        return Outcome("skip", "unread", values)
    return Outcome("pass", "of-the-seed", values, _left_open(run))


def _left_open(run: AuditedRun) -> tuple[Finding, ...]:
    """Return what a pass leaves open."""
    early = run.known_digests.commitment is not None
    found = Finding(
        code=f"committed-seed.{'commitment-given' if early else 'commitment-not-given'}"
    )
    return (
        (found,) if run.replay is not None else (found, Finding(code="committed-seed.not-replayed"))
    )
