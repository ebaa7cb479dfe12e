"""What may be said of a run beforehand: the most that it costs, or that an attack gains."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from dpaudit.mechanisms.interfaces import Fields, clash

#: Strictly between nothing and all.
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class MostTruePositives(Fields):
    """The most that a test may recognise whose rate of false alarms is given.

    Attributes:
        at: the rate of false positives.
        most: the largest rate of true positives; above `at`, which tests reach without any text.
    """

    at: Share
    most: Share

    @model_validator(mode="after")
    def _more_than_a_guess(self) -> Self:
        if not self.most > self.at:
            raise clash("most", self.most, f"a number above at, which is {self.at:g}, and below 1")
        return self


#: Fields that say what a run may cost; one of them at most is given.
LIMITS = ("epsilon", "advantage", "true_positives")


def given_limits(settings: object) -> list[str]:
    """Return the names of the `LIMITS` that settings give."""
    return [name for name in LIMITS if getattr(settings, name) is not None]
