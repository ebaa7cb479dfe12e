"""Guarantees of other tools' releases, as items of a YAML file.

`dpaudit compose --with` reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from dpaudit.errors import InputError, in_short
from dpaudit.mechanisms import Fields, Relation, Unit
from dpaudit.runs.manifest import NotNegative
from dpaudit.runs.strict_yaml import load

#: Of such a file, and of its items.
MAX_BYTES, MAX_STATEMENTS = 1 << 16, 100
#: Of a table of orders; and the largest of these.
MAX_ORDERS, MAX_ORDER = 1_000, 1e6
_ITEM = "an item has name, relation, unit, and one of zcdp, rdp and approximate"
#: Printable, and more than blanks.
_NAME = r"^[^\x00-\x1f\x7f-\x9f]*[^\x00-\x20\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$"
_KINDS = ("zcdp", "rdp", "approximate")
#: In words, by the kind of pydantic's error, where its own are about Python.
_ALLOWED = {
    "model_type": "a mapping of fields to values",
    "dict_type": "a mapping of orders to epsilons",
    "string_pattern_mismatch": "printable characters, and not blanks alone",
    "too_short": "one order at least",
}


class Zcdp(Fields):
    """Zero-concentrated DP: a Renyi divergence of at most rho times its order."""

    rho: NotNegative


class EpsilonDelta(Fields):
    """(epsilon, delta)-DP, epsilon in nats; pure where delta is 0."""

    epsilon: NotNegative
    delta: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Statement(Fields):
    """A guarantee that another tool gives for something released of the same records.

    Attributes:
        name: to show.
        relation, unit: what its neighbouring data sets differ by.
        zcdp, rdp, approximate: the guarantee, in one of these forms. `rdp` has an epsilon, in nats,
            by order: an upper bound on the Renyi divergence of that order in both directions.
    """

    name: Annotated[str, Field(pattern=_NAME, max_length=100)]
    relation: Relation
    unit: Unit
    zcdp: Zcdp | None = None
    rdp: (
        Annotated[
            dict[Annotated[float, Field(gt=1, le=MAX_ORDER, allow_inf_nan=False)], NotNegative],
            Field(min_length=1, max_length=MAX_ORDERS),
        ]
        | None
    ) = None
    approximate: EpsilonDelta | None = None

    @model_validator(mode="after")
    def _require_one_guarantee(self) -> Statement:
        if sum(getattr(self, kind) is not None for kind in _KINDS) != 1:
            raise ValueError(f"exactly one of {', '.join(_KINDS)}")
        return self

    @property
    def kind(self) -> Literal["zcdp", "rdp", "approximate"]:
        """The form of its guarantee."""
        if self.zcdp is not None:
            return "zcdp"
        return "rdp" if self.rdp is not None else "approximate"


_STATEMENTS = TypeAdapter(list[Statement])


def read_statements(path: Path) -> tuple[Statement, ...]:
    """Read and check such a file.

    Raises:
        InputError: names the file, the item by its number from 1, and the field, and says what is
            allowed.
    """
    values = load(path, "a YAML list of guarantees", f"Give a list: {_ITEM}.", MAX_BYTES)
    if not isinstance(values, list) or not 0 < len(values) <= MAX_STATEMENTS:
        held = f"list of {len(values):,}" if isinstance(values, list) else type(values).__name__
        problem = f"the file holds a {held} instead of a list of 1 to {MAX_STATEMENTS} guarantees."
        raise InputError(str(path), problem, f"Begin each with a dash: {_ITEM}.")
    try:
        found = _STATEMENTS.validate_python(values)
    except ValidationError as error:
        raise _input_error(path, error) from None
    names = [statement.name for statement in found]
    for place, name in enumerate(names):
        if name in names[:place]:
            where = f"{path}: item {place + 1}, name"
            raise InputError(
                where,
                f"{in_short(name)} is there already.",
                "What is released once is paid for once.",
            )
    return tuple(found)


def _input_error(path: Path, error: ValidationError) -> InputError:
    first = error.errors(include_url=False)[0]
    item, *parts = (part for part in first["loc"] if part != "[key]")
    where, kind = (
        ", ".join(filter(None, [f"{path}: item {int(item) + 1}", ".".join(map(str, parts))])),
        first["type"],
    )
    if kind == "missing":
        return InputError(where, "this field is missing.", f"Give it: {_ITEM}.")
    if kind == "extra_forbidden":
        return InputError(where, "there is no such field.", f"Remove it: {_ITEM}.")
    allowed = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    allowed = _ALLOWED.get(kind, allowed)
    if kind == "value_error":  # of the item as a whole
        return InputError(where, "it has none of the guarantees, or several.", f"Give {allowed}.")
    return InputError(where, f"the value is {in_short(first['input'])}.", f"Allowed: {allowed}.")
