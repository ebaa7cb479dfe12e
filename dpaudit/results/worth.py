"""What the records added to a run's texts, as types: a private figure, and one that is paid for.

The file worth.json lies in the run's report folder, and comes from anywhere: nothing is coerced,
and figures that cannot be true are refused.
"""

import json
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from dpaudit.accounting.worth import (
    CLIP,
    CONFIDENCE,
    STEPS,
    composed_epsilon,
    composed_rho,
    cost_for,
    most_noise,
    noise_scale,
)
from dpaudit.mechanisms import Fields, Relation, Unit
from dpaudit.results.quality import (
    FEWEST_TEXTS,
    PRIVATE,
    Count,
    Digest,
    Finite,
    PerToken,
    Positive,
    Some,
)
from dpaudit.runs import Manifest, Privacy


class Gain(Fields):
    """The gain in likelihood of records that no prompt showed, in the batches that hold them out.

    Attributes:
        held_out: how many records were held out of the first round's generated batches.
        texts: how many of them were measured, each by its own batch.
        tokens, supported: of these; the supports of steps have the supported ones.
        gain: of a supported token, in nats: the log-probability under the aggregate less that by
            the public prompt alone, with its standard error over texts. None without such a token.
    """

    held_out: Count
    texts: Count
    tokens: Count
    supported: Count
    gain: PerToken | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the mean gain over texts, by Student's t; None of too few texts."""
        if self.gain is None or self.gain.error is None or self.texts < FEWEST_TEXTS:
            return None
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # slow to load

        reach = float(stdtrit(self.texts - 1, (1 + CONFIDENCE) / 2)) * self.gain.error
        return self.gain.mean - reach, self.gain.mean + reach

    @property
    def outcome(self) -> Literal["more", "nothing", "less", "unmeasured"]:
        """The conclusion: within the interval around nothing, no gain can be told from chance."""
        if (interval := self.interval) is None:
            return "unmeasured"
        low, high = interval
        return "more" if low > 0 else "less" if high < 0 else "nothing"

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if not self.supported <= self.tokens or self.texts > self.held_out:
            raise ValueError("there are more texts or tokens measured than there are")
        if (self.gain is None) != (self.supported == 0):
            raise ValueError("there is a gain of supported tokens, and of no others")
        if self.gain is not None and (self.gain.error is None) != (self.texts < 2):
            raise ValueError("there is a standard error of two texts and more, and of no fewer")
        return self


class PaidGain(Fields):
    """The gain with noise, which epsilon pays for: it may be shown to anyone.

    It is the mean over batches of each batch's gain, cut off at `clip`. docs/mathematics.md has the
    proof.

    Attributes:
        epsilon: the cost of this figure, in nats, for the run's neighbouring data sets.
        figures: how many such figures of the run were paid for, this one included.
        spent: the cost of all of them.
        unit, relation: what neighbouring data sets differ by.
        records: the batches whose gain one unit's difference can change.
        clip: the cut-off of a batch's gain, in nats a token.
        batches: a public number.
        gain: the figure, in nats a token.
        at_least: the mean without noise is at least this, with a confidence of 95%, whichever of
            the figures is shown. The confidence is about the noise alone.
    """

    epsilon: Positive
    figures: Some
    spent: Positive
    unit: Unit
    relation: Relation
    records: Some
    clip: Positive
    batches: Some
    gain: Finite
    at_least: Finite

    @classmethod
    def of(
        cls,
        steps: int,
        epsilon: float,
        *,
        records: int,
        batches: int,
        earlier: Self | None,
        **about: Any,
    ) -> Self:
        """Return the figure of a noisy sum of batches' gains, in steps.

        Args:
            steps: the sum with its noise, whose scale is `noise_scale`.
            epsilon: in nats.
            records, batches: as the attributes.
            earlier: the figure that was paid for before; None for the first.
            about: the unit and the relation.
        """
        figures = 1 if earlier is None else earlier.figures + 1
        return cls(
            epsilon=epsilon,
            figures=figures,
            spent=epsilon if earlier is None else composed_epsilon(earlier.spent, epsilon),
            records=records,
            clip=CLIP,
            batches=batches,
            gain=steps / STEPS / batches,
            at_least=_least_gain(steps, epsilon, records, batches, figures),
            **about,
        )

    def fits(self, manifest: Manifest) -> bool:
        """Return whether a run with these settings can have such a figure."""
        privacy = manifest.privacy
        mine = (self.unit, self.relation, self.records, self.batches)
        due = (privacy.unit, privacy.relation, moved_batches(privacy), manifest.batching.per_round)
        return mine == due and manifest.batching.held_out_millionths > 0

    def cost(self, relation: Relation, unit: Unit) -> float:
        """Return the cost of all such figures for a claim's neighbouring data sets, in nats."""
        return cost_for(self.spent, self.relation, self.unit, relation, unit)

    def total_epsilon(self, stated: float, relation: Relation, unit: Unit) -> float:
        """Return a claim's epsilon with the cost of all such figures, in nats."""
        return composed_epsilon(stated, self.cost(relation, unit))

    def total_rho(self, stated: float, relation: Relation, unit: Unit) -> float:
        """Return a claim's rho of zCDP with the cost of all such figures, in nats."""
        return composed_rho(stated, self.cost(relation, unit))

    @model_validator(mode="after")
    def _figures_fit(self) -> Self:
        if not (self.epsilon <= self.spent and (self.figures > 1 or self.spent == self.epsilon)):
            raise ValueError("what was spent has the figure's cost, and that of earlier ones")
        steps = float(np.rint(self.gain * STEPS * self.batches))
        least = _least_gain(steps, self.epsilon, self.records, self.batches, self.figures)
        found = steps / STEPS / self.batches, least, CLIP
        if (self.gain, self.at_least, self.clip) != found:
            raise ValueError("the figure is a number of steps, and the bound follows from its cost")
        return self


def moved_batches(privacy: Privacy) -> int:
    """Return how many batches one unit's difference can change in a round."""
    users = (privacy.records_per_user or 1) if privacy.unit == "user" else 1
    return users * (2 if privacy.relation == "replace" else 1)


def _least_gain(steps: float, epsilon: float, records: int, batches: int, figures: int) -> float:
    """Return the bound below the mean without noise; arguments as `PaidGain.of` has them."""
    return (steps - most_noise(noise_scale(epsilon, records), figures)) / STEPS / batches


class Nothing(Fields):
    """How many of some texts say nothing, by the rules of `dpaudit.runs.vacuity`."""

    texts: Count
    nothing: Count


class Worth(Fields):
    """What the records added to a run's texts.

    Attributes:
        samples: SHA-256 of the samples.jsonl that this is about.
        gain: measured without noise, private; None if it was not measured.
        baseline: the texts of the same prompts without any record; None if they were not made.
        paid: the figure that may be shown to anyone; None if there is none.
    """

    schema_version: Literal["1"] = "1"
    audience: Literal["internal"] = "internal"
    private: Literal["computed from private records, and no epsilon pays for publishing it"] = (
        PRIVATE
    )
    samples: Digest
    gain: Gain | None = None
    baseline: Nothing | None = None
    paid: PaidGain | None = None

    def to_json(self) -> str:
        """Return this as strict JSON text."""
        return (
            json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)
            + "\n"
        )
