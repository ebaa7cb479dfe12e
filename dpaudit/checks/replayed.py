"""What a replay with the model and the data found, as the checks read it. `generation.replay` makes such findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dpaudit.accounting import LowerBound


class ReplayedStep(Protocol):
    """One step whose logits were computed anew."""

    @property
    def batch(self) -> int:
        """Id of its batch."""
        ...

    @property
    def position(self) -> int:
        """Its place in the sequence, from 0."""
        ...

    @property
    def difference(self) -> float:
        """The largest difference between a recorded and a recomputed aggregate or central value, in logit units."""
        ...

    @property
    def tolerance(self) -> float:
        """How large it may be, by the rounding of the model's dtype."""
        ...

    @property
    def problem(self) -> str:
        """What else contradicts the record (sides, support, contexts); empty where nothing does."""
        ...


class LeftOut(Protocol):
    """One context that was left out of its batch, and the batch's own tokens scored again without it."""

    @property
    def batch(self) -> int:
        """Id of its batch."""
        ...

    @property
    def slot(self) -> int:
        """Its place in the batch, from 0."""
        ...

    @property
    def recorded(self) -> float:
        """log p(text) - log p(text without it) in nats, worked out from the record."""
        ...

    @property
    def regenerated(self) -> float:
        """The same, from the model on the data without it."""
        ...

    @property
    def tolerance(self) -> float:
        """How far the two may lie apart, in nats."""
        ...


class Attacked(Protocol):
    """What generating again and again on two neighbours showed.

    The neighbours differ by a canary that is added or removed.
    """

    @property
    def bound(self) -> LowerBound:
        """The mechanism's epsilon from below, at the claim's delta, with confidence."""
        ...

    @property
    def trials(self) -> int:
        """Texts that were generated on either side."""
        ...

    @property
    def beyond(self) -> int:
        """Texts whose log-ratio exceeds the ex-post bound that the accounting gives for that very text."""
        ...

    @property
    def worst(self) -> str:
        """The text that exceeds it most, by its log-ratio and its bound; empty where none does."""
        ...


class Replay(Protocol):
    """All that a replay found."""

    @property
    def assignment(self) -> str:
        """Where the declared rule, run on the data, contradicts the recorded assignment; empty where it does not."""
        ...

    @property
    def noise(self) -> int | None:
        """Absolute differences of noisy counts and counts of the data, added up; None in a run without noisy counts.

        Together with the noisy counts it tells of exact ones: it is not for reports.
        """
        ...

    @property
    def texts(self) -> str:
        """Where a text is not its tokens decoded with the model's own tokenizer; empty where all are."""
        ...

    @property
    def steps(self) -> Sequence[ReplayedStep]:
        """The steps that were computed anew."""
        ...

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """The contexts that were left out, one at a time."""
        ...

    @property
    def attack(self) -> Attacked | None:
        """The attack; None where none was made."""
        ...
