"""Values of findings: numbers with their units, places in a run, names, and inner findings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, TypeAlias, Union, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    JsonValue,
    PlainSerializer,
)

from dpaudit.mechanisms import Problem


def finite_or_text(value: float) -> float | Literal["inf", "-inf", "nan"]:
    """Return a number as JSON holds it: JSON has no infinities, so they travel as strings."""
    return value if math.isfinite(value) else cast(Literal["inf", "-inf", "nan"], str(float(value)))


def printable(text: str) -> str:
    """Return text that every encoding of Unicode can hold: names of files need not be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


Number = Annotated[float, PlainSerializer(finite_or_text, when_used="json")]
Name = Annotated[str, AfterValidator(printable)]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Quantity(_Data):
    """A number with its unit.

    Attributes:
        unit: "nats", or what is counted, in the plural: "records", "steps". Empty for a pure
            number.
    """

    value: Number
    unit: str = ""


class Place(_Data):
    """A place in a run: a batch, and its step, slot or text from 0; None for a whole batch."""

    batch: int
    step: int | None = None
    slot: int | None = None
    text: int | None = None


class Finding(_Data):
    """A finding: the code of an entry in the catalogue, and the values that its sentence shows.

    Attributes:
        code: `family.name`, or `check.id:outcome` for a check's finding.
        values: by the names that the entry's templates have.
    """

    code: str
    values: dict[str, Value] = {}

    @property
    def family(self) -> str:
        """The code up to its dot: findings of one family are shown in one place."""
        return self.code.partition(".")[0]


class Message(Finding):
    """A finding with its sentence.

    Attributes:
        words: code and values in words, for people. A program needs none of them.
    """

    words: str

    def __str__(self) -> str:
        """Return the sentence."""
        return self.words


def _typed(value: object) -> object:
    """Return infinities and NaN as quantities: JSON has them as text, which would be a name."""
    return Quantity(value=value) if isinstance(value, float) and not math.isfinite(value) else value


_Scalar: TypeAlias = Annotated[
    Union[bool, int, float, Name, Quantity, Place, "Finding"], BeforeValidator(_typed)
]
#: What a finding's sentence may show.
Value: TypeAlias = _Scalar | tuple[_Scalar, ...]
Finding.model_rebuild()
Message.model_rebuild()


def finding_of(problem: Problem | None) -> Finding | None:
    """Return what a mechanism objects to, as a finding; None if it does not object."""
    return None if problem is None else Finding(code=problem.code, values=dict(problem.values))


def leaves(settings: Mapping[str, JsonValue], path: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield each value of nested settings that is not None, with its path: `support.size`, say."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")
        elif value is not None:
            yield f"{path}{name}", value
