"""Do tokens look drawn from the declared distribution, such as softmax(aggregate / temperature)?

Every alternative is a likelihood ratio against the declared distribution, whose tail under it is
bounded in every run: for those of `dpaudit.auditing.checks.alternatives` by Markov's inequality,
for anything else by that of Dvoretzky, Kiefer and Wolfowitz on a randomised probability integral
transform. Each is tried on all tokens of the run, on a tenth of them, and on some batches alone. So
the rate of false alarms is below FALSE_ALARMS, and nothing is calibrated on data
(docs/mathematics.md).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.alternatives import FAMILIES, TEMPERATURES, TOP_K
from dpaudit.auditing.checks.draws import Doubles, DrawnSteps
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.registry import Outcome, RunCheck
from dpaudit.auditing.checks.steps import BatchView, StepsView, added
from dpaudit.results import Finding, Place, Quantity, Value

#: Probability of an alarm on an honest run, all tests of its tokens together.
FALSE_ALARMS = 1e-4
#: sampling.distribution and sampling.independence have a half each.
SHARE = FALSE_ALARMS / 2
#: The power that is stated.
POWER = 0.99
_POWER_DEVIATES = 2.3263478740408408  # the 99% quantile of a standard normal

#: Share of the steps that the mixtures take to be decoded otherwise.
MIXED = 0.1
BINS = 256

_ALTERNATIVES = sum(len(family.settings) for family in FAMILIES)
_COLDER = len(TEMPERATURES.settings)
_TRUNCATED = slice(_COLDER, _COLDER + len(TOP_K.settings))
#: Every alternative, for all steps and for a tenth, and the two directions of the transform share
#: the rate of false alarms; so do the run as a whole and its batches.
_TESTS = 2 * (2 * _ALTERNATIVES + 2)
THRESHOLD = math.log(_TESTS / SHARE)


class Alarm(NamedTuple):
    """One alternative that explains tokens far better than the declared distribution does.

    Attributes:
        evidence: in nats; an honest run has it with probability e^-evidence at most.
        batch: the one that it explains best, where not all batches were drawn so.
    """

    alternative: Finding
    evidence: float
    steps: int
    batch: int | None = None

    @property
    def outcome(self) -> Outcome:
        """The check's failure."""
        values: dict[str, Value] = {
            "alternative": self.alternative,
            "evidence": Quantity(value=self.evidence, unit="nats"),
            "tokens": self.steps,
        }
        if self.batch is None:
            return Outcome("fail", "other-distribution", values)
        return Outcome(
            "fail", "other-distribution-in-batches", values | {"batch": Place(batch=self.batch)}
        )


class Detectable(NamedTuple):
    """The other samplers that would have been shown with probability POWER.

    Attributes:
        lower, higher: the temperatures nearest to the declared one that would have been; None if
            none.
        top_k: the most tokens that a truncation keeps that would have been; None if there is none.
        tenth_greedy: whether a tenth of the steps greedy would have been.
    """

    lower: float | None
    higher: float | None
    top_k: int | None
    tenth_greedy: bool

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The samplers that would have been shown, one after another."""
        settings = {
            "lower-temperature": self.lower,
            "higher-temperature": self.higher,
            "truncation": self.top_k,
        }
        found = [
            Finding(code=f"sampling.no-{name}")
            if setting is None
            else Finding(code=f"sampling.shows-{name}", values={"setting": setting})
            for name, setting in settings.items()
        ]
        return (
            *found,
            Finding(code=f"sampling.{'shows' if self.tenth_greedy else 'no'}-tenth-greedy"),
        )


class SamplingTest(BatchEvidence):
    """Gathers the evidence of some steps; memory does not grow with their number."""

    def __init__(self) -> None:
        self.steps = 0
        # All rows of `_evidence_of` but the last two.
        self._sums = np.zeros(4 * _ALTERNATIVES + 2)
        self._counts = np.zeros(BINS, dtype=np.int64)

    @override
    def look(self, view: StepsView) -> None:
        if view.regular or view.drawn is not None:
            batch = view.header.id.to_bytes(8, "big")
            places = (batch + position.to_bytes(8, "big") for position in view.positions)
            digests = view.recorded.digests
            salts = [
                digest.tobytes() + place for digest, place in zip(digests, places, strict=True)
            ]
            self._take(view.shared(_evidence_of_view), salts)

    def add(self, steps: DrawnSteps, salts: Sequence[bytes]) -> None:
        """Take in some steps.

        Salts tell each from all others of the run: they randomise the transform, repeatably.
        """
        self._take(_evidence_of(steps), salts)

    def _take(self, evidence: Doubles, salts: Sequence[bytes]) -> None:
        """Take in what `_evidence_of` gives."""
        self.steps += len(salts)
        self._sums = added(self._sums, evidence[:-2])
        digests = (hashlib.sha256(b"dpaudit.transform" + salt).digest() for salt in salts)
        uniforms = np.array([int.from_bytes(digest[:7], "big") / 2**56 for digest in digests])
        before, own = evidence[-2:]
        places = before + uniforms * own
        bins = np.minimum((places * BINS).astype(np.int64), BINS - 1)
        self._counts += np.bincount(bins, minlength=BINS)

    def merge(self, other: SamplingTest) -> None:
        """Take in all steps of another test of the same run."""
        self.steps += other.steps
        self._sums += other._sums
        self._counts += other._counts

    def evidence(self) -> Doubles:
        """Return evidence [2 * alternatives + 1] in nats.

        It is of each alternative for all steps, of each for a tenth, and of the transform.
        """
        return np.append(self._sums[: 2 * _ALTERNATIVES], self._transform_evidence())

    def shows(self, threshold: float) -> NDArray[np.bool_]:
        """Return which alternatives [alternatives + 1] reach the threshold with probability POWER.

        The last is a tenth of greedy steps.
        """
        mean, variance = np.split(self._sums[2 * _ALTERNATIVES :], 2)
        return np.asarray(mean - _POWER_DEVIATES * np.sqrt(variance) >= threshold)

    def _transform_evidence(self) -> float:
        """Return -log of the one-sided DKW bound at the transform's largest deviation.

        The deviation is that of its distribution function.
        """
        if not self.steps:
            return 0.0
        reached = np.cumsum(self._counts) / self.steps
        deviation = float(np.abs(reached - np.arange(1, BINS + 1) / BINS).max())
        return 2 * self.steps * deviation**2


def _evidence_of(steps: DrawnSteps) -> Doubles:
    """Return what is known of each of k steps by itself, [4 * alternatives + 4, k].

    Rows are each alternative's log-ratio for all steps, and that for a tenth of them; what every
    alternative, and then a tenth of greedy steps, would give; the variances of these; and the
    probabilities of the tokens before the sampled one, and of its own.
    """
    parts = [family.ratios(steps) for family in FAMILIES]
    found = np.concatenate([part.found for part in parts])
    # Evidence of inf is no evidence: beyond 700 nats it is cut, which lowers it.
    mixed = np.log1p(MIXED * np.expm1(np.minimum(found, 700.0)))
    # A tenth of the steps greedy: what that would give, and its variance.
    mean, variance = _tenth(parts[1].mean[0])
    return np.concatenate(
        [
            found,
            mixed,
            *(part.mean for part in parts),
            mean[None],
            *(part.variance for part in parts),
            variance[None],
            steps.masses_before[None],
            steps.each[steps.level][None],
        ]
    )


def _evidence_of_view(view: StepsView) -> Doubles:
    assert view.drawn is not None, "its caller has looked"
    return _evidence_of(view.drawn)


def _tenth(gain: Doubles) -> tuple[Doubles, Doubles]:
    """Return mean and variance [k] of a mixture's log-ratio at each step.

    The mixture is with a truncation that gains `gain` nats, [k].
    """
    mass = np.exp(-gain)
    inside = (1 - MIXED) * mass + MIXED
    high, low = np.log1p(MIXED * np.expm1(np.minimum(gain, 700.0))), math.log1p(-MIXED)
    return inside * high + (1 - inside) * low, inside * (1 - inside) * (high - low) ** 2


class RunSampling(Evidence):
    """The evidence of a run: of all its steps, and of its batches one by one.

    Memory grows with neither.
    """

    partial = True

    def __init__(self, temperature: float, batches: int) -> None:
        """`batches`: how many the run declares."""
        names = [name for family in FAMILIES for name in family.names(temperature)]
        tenths = [Finding(code="sampling.tenth", values={"by": name}) for name in names]
        self._names = [*names, *tenths, Finding(code="sampling.another")]
        self._temperature, self._batches = temperature, max(1, batches)
        self._pooled = SamplingTest()
        # Log of the product over batches of 1 - 1/B + ratio/B: any number of batches may have been
        # drawn otherwise.
        self._some = np.zeros(2 * _ALTERNATIVES + 1)
        self._largest = np.full(2 * _ALTERNATIVES + 1, -np.inf)
        self._where = np.zeros((2 * _ALTERNATIVES + 1, 2), dtype=np.int64)  # batch, steps
        self._shown = np.ones(_ALTERNATIVES + 1, dtype=bool)

    @property
    def steps(self) -> int:
        """The number of steps that could be evaluated."""
        return self._pooled.steps

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        return cls(run.manifest.mechanism.temperature, run.manifest.batches)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return SamplingTest()

    @override
    def merge(self, batch: int, found: SamplingTest) -> None:
        if not found.steps:
            return
        self._pooled.merge(found)
        self._merge_alone(batch, found)

    def _merge_alone(self, batch: int, test: SamplingTest) -> None:
        """Take in a batch as one that may have been drawn otherwise than the others."""
        found, share = test.evidence(), 1 / self._batches
        with np.errstate(divide="ignore"):  # log of 0 where there is one batch
            self._some[:-1] += np.logaddexp(np.log1p(-share), found[:-1] + math.log(share))
        # The transform's bound is no likelihood ratio: of B batches one may reach it by chance.
        self._some[-1] = max(self._some[-1], found[-1] + math.log(share))
        better = found > self._largest
        self._largest[better] = found[better]
        self._where[better] = batch, test.steps
        self._shown &= test.shows(THRESHOLD + math.log(self._batches))

    def alarms(self) -> list[Alarm]:
        """List alternatives, strongest first, that alarm once in 1 / SHARE honest runs."""
        found = [
            Alarm(name, evidence, self.steps)
            for name, evidence in zip(self._names, self._pooled.evidence().tolist(), strict=True)
        ]
        found += [
            Alarm(name, evidence, int(steps), int(batch))
            for name, evidence, (batch, steps) in zip(
                self._names, self._some.tolist(), self._where, strict=True
            )
        ]
        return sorted(
            (a for a in found if a.evidence >= THRESHOLD), key=lambda alarm: -alarm.evidence
        )

    @property
    def detectable(self) -> Detectable:
        """The samplers that a run of this length would betray with probability POWER."""
        return self._detectable(self._pooled.shows(THRESHOLD))

    @property
    def detectable_in_each(self) -> Detectable | None:
        """The same of every single batch; None if there is one batch."""
        return self._detectable(self._shown) if self._batches > 1 else None

    def _detectable(self, shown: NDArray[np.bool_]) -> Detectable:
        factors = TEMPERATURES.settings[shown[:_COLDER]]
        low, high = max(factors[factors < 1], default=None), min(factors[factors > 1], default=None)
        ks = TOP_K.settings[shown[_TRUNCATED]]
        return Detectable(
            lower=None if low is None else float(low) * self._temperature,
            higher=None if high is None else float(high) * self._temperature,
            top_k=int(max(ks)) if len(ks) else None,
            tenth_greedy=bool(shown[-1]),
        )


@RunCheck(id="sampling.distribution", gathers=(RunSampling,))
def tokens_look_sampled(run: AuditedRun) -> Outcome:
    """Compare the tokens' likelihood, all and by batch, as declared with other ways to draw."""
    test = run[RunSampling]
    values: dict[str, Value] = {"rate": SHARE}
    if not test.steps:
        return Outcome("skip", "unread", values)
    alarms = test.alarms()
    if alarms:
        outcome = alarms[0].outcome
        return replace(outcome, values={**outcome.values, **values})
    values |= {"tokens": test.steps, "power": POWER, "shows": test.detectable.findings}
    if (each := test.detectable_in_each) is not None:
        values["in_each"] = each.findings
    return Outcome("pass", "as-declared", values)
