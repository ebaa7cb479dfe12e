"""Do the sampled tokens look drawn from softmax(aggregate / temperature)?

Every alternative is a likelihood ratio against the declared distribution, whose tail under it is bounded in every
run: for another temperature and for a truncation by Markov's inequality, for anything else by that of Dvoretzky, Kiefer
and Wolfowitz on a randomised probability integral transform. So the rate of false alarms is below FALSE_ALARMS, and
nothing is calibrated on data (docs/mathematics.md).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, RunCheck

Doubles = NDArray[np.float64]

#: Probability of an alarm on an honest run, all tests together.
FALSE_ALARMS = 1e-4
#: The power that is stated.
POWER = 0.99
_POWER_DEVIATES = 2.3263478740408408  # the 99% quantile of a standard normal

#: Temperatures that are tried, as multiples of the declared one.
TEMPERATURES = (0.1, 0.25, 0.5, 0.6, 2 / 3, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 4.0)
#: Truncations that are tried: to the most probable k tokens, and to the smallest set of this probability.
TOP_K = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)
TOP_P = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
_TOP_K, _TOP_P = np.array(TOP_K, dtype=np.float64), np.array(TOP_P)
_TRUNCATIONS = ["greedy decoding" if k == 1 else f"top-k {k}" for k in TOP_K] + [f"top-p {p:g}" for p in TOP_P]
BINS = 256

#: Every temperature, every truncation and the two directions of the transform share the rate of false alarms.
_TESTS = len(TEMPERATURES) + len(_TRUNCATIONS) + 2
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
        self._truncated = np.zeros(len(_TRUNCATIONS))
        self._left = np.zeros(len(_TRUNCATIONS), dtype=bool)
        self._counts = np.zeros(BINS, dtype=np.int64)

    def add(self, aggregate: NDArray[np.floating], token: int, salt: bytes) -> None:
        """Take in one step.

        Args:
            aggregate: [S] what was sampled from.
            token: index of the sampled token along S.
            salt: tells the step from all others of the run: with it the transform is randomised, and the audit the
                same every time.
        """
        lowest, highest = (float(end) / self._temperature for end in (aggregate.min(), aggregate.max()))
        if not (math.isfinite(lowest) and math.isfinite(highest)):  # as they are where any value is not
            return  # other checks object
        self.steps += 1
        values, counts = _levels(aggregate)
        level = len(values) - 1 - int(np.searchsorted(values[::-1], aggregate[token]))
        below = (values.astype(np.float64) - float(values[0])) / self._temperature
        weights = np.exp(below) * counts
        total = float(weights.sum())
        self._add_temperatures(below, counts, level, math.log(total))
        # Among equal scores tokens rank by index.
        rank = int(counts[:level].sum()) + int(np.count_nonzero(aggregate[:token] == aggregate[token]))
        self._add_truncations(weights / counts / total, counts, level, rank, salt)

    def merge(self, other: SamplingTest) -> None:
        """Take in all steps of another test of the same run."""
        self.steps += other.steps
        for mine, theirs in zip(self._sums(), other._sums(), strict=True):
            mine += theirs

    def _sums(self) -> tuple[NDArray[Any], ...]:
        return self._ratio, self._expected, self._variance, self._truncated, self._left, self._counts

    def alarms(self) -> list[Alarm]:
        """The alternatives for which an honest run would alarm once in 1 / FALSE_ALARMS runs, strongest first."""
        found = [
            Alarm(f"temperature {factor * self._temperature:.3g}", ratio)
            for factor, ratio in zip(TEMPERATURES, self._ratio.tolist(), strict=True)
        ]
        # -log of the probability of never leaving a truncation; none if it was left.
        shown = np.where(self._left, 0.0, self._truncated).tolist()
        found += map(Alarm, _TRUNCATIONS, shown)
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
        ks = [k for k, total in zip(TOP_K, self._truncated, strict=False) if total >= THRESHOLD]
        said.append(f"truncation to the top {max(ks)} tokens or fewer" if ks else "no truncation")
        return ", ".join(said)

    def _add_temperatures(self, below: Doubles, counts: Doubles, level: int, log_total: float) -> None:
        """Log-ratios, and their mean and variance under each other temperature.

        A level's log-ratio is linear in its score, so that its moments follow from those of the scores.

        Args:
            below: [L] scores of the levels less the highest one, which is first.
            counts: [L] how many tokens each level has.
            level: that of the sampled token.
            log_total: logarithm of the sum of counts * exp(below).
        """
        weights = np.empty_like(below)
        for place, factor in enumerate(TEMPERATURES):
            np.exp(np.multiply(below, 1 / factor, out=weights), out=weights)
            weights *= counts
            total = float(weights.sum())
            weights *= below
            mean = float(weights.sum()) / total
            weights *= below
            square = float(weights.sum()) / total
            slope, shift = 1 / factor - 1, math.log(total) - log_total
            self._ratio[place] += slope * float(below[level]) - shift
            self._expected[place] += slope * mean - shift
            self._variance[place] += slope**2 * max(square - mean**2, 0.0)

    def _add_truncations(self, each: Doubles, counts: Doubles, level: int, rank: int, salt: bytes) -> None:
        ends, mass = np.cumsum(counts), np.cumsum(each * counts)
        size = int(ends[-1])

        def mass_of(tokens: Doubles) -> Doubles:
            """Probability of the `tokens` most probable ones."""
            at = np.searchsorted(ends, tokens)
            return np.asarray(np.minimum(1.0, mass[at] - (ends[at] - tokens) * each[at]))

        at = np.searchsorted(mass, _TOP_P)
        at, rounded = np.minimum(at, len(mass) - 1), at == len(mass)  # rounding may leave the last sum below a share
        before = np.concatenate([[0.0], mass])[at]
        top_p = np.where(rounded, size, ends[at] - counts[at] + np.ceil((_TOP_P - before) / each[at]))
        kept = np.concatenate([_TOP_K, top_p])
        cut = np.flatnonzero(kept < size)
        self._truncated[cut] -= np.log(mass_of(kept[cut]))
        self._left[cut] |= rank >= kept[cut]
        above = float(mass_of(np.array([float(rank)]))[0]) if rank else 0.0
        digest = hashlib.sha256(b"dpaudit.transform" + salt).digest()
        uniform = int.from_bytes(digest[:7], "big") / 2**56
        place = above + uniform * float(each[level])
        self._counts[min(int(place * BINS), BINS - 1)] += 1

    def _transform_evidence(self) -> float:
        """-log of the one-sided DKW bound at the largest deviation of the transform's distribution function."""
        if not self.steps:
            return 0.0
        reached = np.cumsum(self._counts) / self.steps
        deviation = float(np.abs(reached - np.arange(1, BINS + 1) / BINS).max())
        return 2 * self.steps * deviation**2


def _levels(aggregate: NDArray[np.floating]) -> tuple[NDArray[np.floating], Doubles]:
    """The distinct values of an aggregate [S], highest first, and how many tokens have each: both [L].

    Most of a large vocabulary lies at the floor of the clip, so only the others are sorted.
    """
    floor = aggregate.min()
    above = np.sort(aggregate.take(np.flatnonzero(aggregate > floor)))
    firsts = np.flatnonzero(np.concatenate([[True], above[1:] != above[:-1]])) if len(above) else np.arange(0)
    counts = np.diff(firsts, append=len(above))
    values = np.concatenate([[floor], above[firsts]])
    return values[::-1], np.concatenate([[len(aggregate) - len(above)], counts])[::-1].astype(np.float64)


@RunCheck(
    id="sampling.distribution",
    title="Tokens look drawn from softmax(aggregate / temperature)",
    fails="Tokens were not drawn from softmax(aggregate / temperature)",
    evidence=1,
    why=(
        "Privacy comes from the randomness of the draw. A colder, greedy or truncated draw can cost more than "
        "is charged here."
    ),
    remedy=(
        "Sample from softmax(aggregate / temperature) over the whole support: no top-k, top-p, greedy step or other "
        "default after the aggregation. Then generate again; do not release this run."
    ),
    reference="docs/mathematics.md#the-sampling-test",
)
def tokens_look_sampled(facts: Facts) -> Outcome:
    """The likelihood of all tokens as declared against other temperatures, truncations and any other distribution."""
    test = facts.sampling
    expected = f"no alternative explains the tokens better (false alarms below {FALSE_ALARMS:g})"
    if not test.steps:
        return Outcome("skip", "nothing", expected, "No step could be evaluated.")
    alarms = test.alarms()
    if alarms:
        found = f"{alarms[0].alternative} explains {test.steps} tokens e^{alarms[0].evidence:.1f} times better"
        return Outcome("fail", found, expected)
    power = f"{test.steps} tokens; with probability {POWER:g} this would have shown {test.detectable()}"
    return Outcome("pass", power, expected)
