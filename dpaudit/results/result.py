"""What several kinds of results have in common: their base, verdicts, and what attacks can do."""

import json
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict

from dpaudit.accounting.risk import AttackCurve, Way
from dpaudit.mechanisms import Relation, Unit
from dpaudit.results.values import Number

Status = Literal["pass", "fail", "warn", "skip", "error"]
Verdict = Literal["pass", "not_verified", "fail", "error"]
#: What a command leaves with.
EXIT_CODES: Final[dict[Verdict, int]] = {"pass": 0, "not_verified": 1, "fail": 1, "error": 2}


class Result(BaseModel):
    """Base of every part of a result: immutable, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def to_json(self) -> str:
        """Return this as strict JSON text: no bare NaN or Infinity."""
        return json_text(self.model_dump(mode="json"), indent=2) + "\n"


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as strict JSON text."""
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)


class ForNeighbours(Result):
    """Base of what holds for neighbouring data sets alone.

    Attributes:
        records_per_user: the most that the unit "user" stands for; None if nothing bounds it.
    """

    relation: Relation
    unit: Unit
    records_per_user: int | None = None

    @property
    def neighbours(self) -> tuple[Relation, Unit, int | None]:
        """What neighbours differ by. Users with other numbers of records are other units."""
        return (self.relation, self.unit, self.records_per_user)


class AttackLine(Result):
    """No test has more true positives than the intercept and the slope times its false ones."""

    slope: Number
    intercept: Number


class AttackBound(Result):
    """The most that an attack can do by the texts, whoever makes it. Upper bounds, rounded up.

    An attack is a test of whether one unit of the claim was used, by someone who may know all
    others: at the release level not its batch, at the batch level that, too. From public settings
    alone.

    Attributes:
        advantage: the most by which true positives exceed false ones.
        accuracy: how often a decision is right, in or out, where either is as likely beforehand.
        tpr_at_1pct, tpr_at_01pct: the rate of true positives where that of false ones is 1%, 0.1%.
        guess_at_10pct: how often a secret is guessed that the same attack guesses once in ten times
            from texts written without the record.
        method: how the bound was found, in one way or as the least of several (`Way`).
        lines: what all of these follow from, and a bound at every rate (`AttackCurve`).
    """

    advantage: Number
    accuracy: Number
    tpr_at_1pct: Number
    tpr_at_01pct: Number
    guess_at_10pct: Number
    method: tuple[Way, ...] = ()
    lines: tuple[AttackLine, ...]

    @classmethod
    def of(cls, curve: AttackCurve) -> Self:
        """Return what a curve says, with as many of its lines as its figures need and more."""
        few = curve.few()
        lines = zip(few.slopes.tolist(), few.intercepts.tolist(), strict=True)
        return cls(
            advantage=few.advantage,
            accuracy=few.accuracy(),
            tpr_at_1pct=few.true_positives(0.01),
            tpr_at_01pct=few.true_positives(0.001),
            guess_at_10pct=few.guess(0.1),
            method=few.ways,
            lines=tuple(AttackLine(slope=each, intercept=start) for each, start in lines),
        )

    @property
    def curve(self) -> AttackCurve:
        """The bound at every false-positive rate."""
        return AttackCurve(
            np.array([line.slope for line in self.lines]),
            np.array([line.intercept for line in self.lines]),
            self.method,
        )
