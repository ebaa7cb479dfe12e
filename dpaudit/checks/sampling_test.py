"""Do the sampled tokens look drawn from softmax(aggregate / temperature)?

Every alternative is a likelihood ratio against the declared distribution, whose tail under it is bounded in every
run: for another temperature and for a truncation by Markov's inequality, for anything else by that of Dvoretzky, Kiefer
and Wolfowitz on a randomised probability integral transform. So the rate of false alarms is below FALSE_ALARMS, and
nothing is calibrated on data (docs/sampling-test.md).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

#: Probability of an alarm on an honest run, all tests together.
FALSE_ALARMS = 1e-4
#: The power that is stated.
POWER = 0.99
_POWER_DEVIATES = 2.3263478740408408  # the 99% quantile of a standard normal

#: Temperatures that are tried, as multiples of the declared one.
TEMPERATURES = (0.1, 0.25, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 4.0)
_FACTORS = np.array(TEMPERATURES)[:, None]
#: Truncations that are tried: to the most probable k tokens, and to the smallest set of this probability.
TOP_K = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
TOP_P = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
BINS = 256

#: Every temperature, every truncation and the two directions of the transform share the rate of false alarms.
_TESTS = len(TEMPERATURES) + len(TOP_K) + len(TOP_P) + 2
THRESHOLD = math.log(_TESTS / FALSE_ALARMS)


@dataclass(frozen=True)
class Alarm:
    """One alternative that explains the tokens far better than the declared distribution does."""

    alternative: str
    evidence: float


class SamplingTest:
    """Gathers the evidence a step at a time; memory does not grow with the run."""

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature
        self.steps = 0
        self._ratio = np.zeros(len(TEMPERATURES))
        self._expected = np.zeros(len(TEMPERATURES))
        self._variance = np.zeros(len(TEMPERATURES))
        self._top_k = np.zeros(len(TOP_K))
        self._top_p = np.zeros(len(TOP_P))
        self._left_k = np.zeros(len(TOP_K), dtype=bool)
        self._left_p = np.zeros(len(TOP_P), dtype=bool)
        self._counts = np.zeros(BINS, dtype=np.int64)

    def add(self, aggregate: NDArray[np.floating], token: int, salt: bytes) -> None:
        """Take in one step.

        Args:
            aggregate: [S] what was sampled from.
            token: index of the sampled token along S.
            salt: the step's digest: with it the transform is randomised, and the audit the same every time.
        """
        if not np.isfinite(aggregate.astype(np.float64) / self._temperature).all():
            return  # other checks object
        self.steps += 1
        # Most of a large vocabulary lies at the floor of the clip: equal scores are handled together, highest first.
        values, inverse, counts = np.unique(-aggregate, return_inverse=True, return_counts=True)
        scores, level = -values.astype(np.float64) / self._temperature, int(inverse[token])
        here = _log_softmax(scores, counts)
        self._add_temperatures(scores, here, counts, level)
        # Among equal scores tokens rank by index.
        rank = int(counts[:level].sum() + np.count_nonzero(inverse[:token] == level))
        self._add_truncations(np.exp(here), counts, level, rank, salt)

    def alarms(self) -> list[Alarm]:
        """The alternatives for which an honest run would alarm once in 1 / FALSE_ALARMS runs, strongest first."""
        found = [
            Alarm(f"temperature {factor * self._temperature:.3g}", ratio)
            for factor, ratio in zip(TEMPERATURES, self._ratio.tolist(), strict=True)
        ]
        found += [Alarm("greedy decoding" if k == 1 else f"top-k {k}", e) for k, e in self._truncated(TOP_K)]
        found += [Alarm(f"top-p {p:g}", e) for p, e in self._truncated(TOP_P)]
        found.append(Alarm("another distribution", self._transform_evidence()))
        return sorted((a for a in found if a.evidence >= THRESHOLD), key=lambda alarm: -alarm.evidence)

    def detectable(self) -> str:
        """What a run of this length and these aggregates would betray with probability POWER."""
        margin = self._expected - _POWER_DEVIATES * np.sqrt(self._variance)
        seen = [factor for factor, m in zip(TEMPERATURES, margin, strict=True) if m >= THRESHOLD]
        low = max((f for f in seen if f < 1), default=None)
        high = min((f for f in seen if f > 1), default=None)
        said = [
            f"a temperature of {low * self._temperature:.3g} or less" if low else "no lower temperature",
            f"one of {high * self._temperature:.3g} or more" if high else "no higher one",
        ]
        ks = [k for k, total in zip(TOP_K, self._top_k, strict=True) if total >= THRESHOLD]
        said.append(f"truncation to the top {max(ks)} tokens or fewer" if ks else "no truncation")
        return ", ".join(said)

    def _add_temperatures(self, scores: Doubles, here: Doubles, counts: NDArray[np.integer], level: int) -> None:
        other = _log_softmax(scores[None, :] / _FACTORS, counts)
        ratio, weights = other - here, np.exp(other) * counts
        mean = (weights * ratio).sum(axis=1)
        self._ratio += ratio[:, level]
        self._expected += mean
        self._variance += (weights * (ratio - mean[:, None]) ** 2).sum(axis=1)

    def _add_truncations(self, each: Doubles, counts: NDArray[np.integer], level: int, rank: int, salt: bytes) -> None:
        ends, mass = np.cumsum(counts), np.cumsum(each * counts)
        size = int(ends[-1])

        def mass_of(tokens: int) -> float:
            """Probability of the `tokens` most probable ones."""
            at = int(np.searchsorted(ends, tokens))
            return min(1.0, float(mass[at] - (ends[at] - tokens) * each[at]))

        for i, k in enumerate(TOP_K):
            if k < size:
                self._top_k[i] -= math.log(mass_of(k))
                self._left_k[i] |= rank >= k
        for i, p in enumerate(TOP_P):
            at = int(np.searchsorted(mass, p))
            if at == len(mass):
                continue
            before = float(mass[at - 1]) if at else 0.0
            kept = int(ends[at] - counts[at]) + math.ceil((p - before) / each[at])
            if kept < size:
                self._top_p[i] -= math.log(mass_of(kept))
                self._left_p[i] |= rank >= kept
        place = (mass_of(rank) if rank else 0.0) + _uniform(salt, self.steps) * float(each[level])
        self._counts[min(int(place * BINS), BINS - 1)] += 1

    def _truncated(self, alternatives: tuple[float, ...]) -> list[tuple[float, float]]:
        """Evidence for each truncation: -log of the probability of never leaving it; none if it was left."""
        totals, left = (self._top_k, self._left_k) if alternatives is TOP_K else (self._top_p, self._left_p)
        return [(a, 0.0 if gone else float(t)) for a, t, gone in zip(alternatives, totals, left, strict=True)]

    def _transform_evidence(self) -> float:
        """-log of the one-sided DKW bound at the largest deviation of the transform's distribution function."""
        if not self.steps:
            return 0.0
        reached = np.cumsum(self._counts) / self.steps
        deviation = float(np.abs(reached - np.arange(1, BINS + 1) / BINS).max())
        return 2 * self.steps * deviation**2


def _log_softmax(scores: Doubles, counts: NDArray[np.integer]) -> Doubles:
    """Log-probability of one token of each level; `counts` says how many tokens a level has."""
    largest = scores.max(axis=-1, keepdims=True)
    total = (np.exp(scores - largest) * counts).sum(axis=-1, keepdims=True)
    return np.asarray(scores - largest - np.log(total))


def _uniform(salt: bytes, step: int) -> float:
    digest = hashlib.sha256(b"dpaudit.transform" + salt + step.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
