"""YAML files of a release that people write, read strictly: errors say what is allowed."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dpaudit.errors import in_short
from dpaudit.results.publication import PATTERNS
from dpaudit.runs import InputError
from dpaudit.runs.strict_yaml import parse, read

MAX_BYTES = 1 << 16
#: What a field takes, by the error of what it does not take.
_ALLOWED = {
    "float_type": "a number, without quotes",
    "int_type": "a whole number, without quotes",
    "bool_type": "true or false",
    "string_type": 'text; quotes make it that: "no", "2026"',
    "tuple_type": "a list, such as [one, another]",
    "too_short": "a list of one thing at least",
    "dict_type": "a mapping, a line each: `name: value`",
    "model_type": "a mapping, a line each: `field: value`",
}
_Kind = TypeVar("_Kind", bound=BaseModel)


def read_fields(path: Path, kind: type[_Kind], what: str, remedy: str) -> tuple[_Kind, bytes]:
    """Read what a YAML file says, and its bytes.

    Args:
        path: the file.
        kind: what it holds.
        what: it should be, as in "a YAML policy".
        remedy: what to give, as a sentence.

    Raises:
        InputError: names the file and the field, and says what is allowed.
    """
    data = read(path, what, remedy, MAX_BYTES)
    values = parse(data, path, what, remedy)
    if not isinstance(values, dict):
        raise InputError(str(path), "the file holds no mapping of fields.", remedy)
    for name in kind.model_fields:
        # what lost its value is not what was never asked
        if name in values and values[name] is None:
            raise InputError(
                f"{path}: {name}", "this field has no value.", "Give it one, or leave it out."
            )
    try:
        return kind.model_validate(values), data
    except ValidationError as error:
        raise input_error(str(path), error, kind, remedy) from None


def input_error(
    path: str, error: ValidationError, kind: type[BaseModel], remedy: str
) -> InputError:
    """Return the error that names a field of what people write, and what is allowed there.

    Args:
        path: of the file; empty where the fields are arguments.
        error: of the fields.
        kind: that holds them.
        remedy: as a sentence.
    """
    first: Any = error.errors(include_url=False)[0]
    field = ".".join(str(part)[:60] for part in first["loc"])
    where = ": ".join(filter(None, (path, field)))
    if first["type"] == "extra_forbidden":
        close = difflib.get_close_matches(field, _fields_of(kind), n=1)
        return InputError(
            where, "there is no such field.", remedy + "".join(f" Did you mean {n}?" for n in close)
        )
    if first["type"] == "missing":
        return InputError(where, "this field is missing.", remedy)
    if first["type"] == "value_error":
        return InputError(where, f"{first['msg'].removeprefix('Value error, ')}.", remedy)
    allowed = _ALLOWED.get(first["type"]) or first["msg"].removeprefix("Input should be ")
    if first["type"] == "string_too_long":
        allowed = f"at most {first['ctx']['max_length']:,} characters"
    if first["type"] == "string_pattern_mismatch":
        allowed = PATTERNS.get(first["ctx"]["pattern"], allowed)
    return InputError(where, f"the value is {in_short(first['input'])}.", f"Allowed: {allowed}.")


def _fields_of(kind: type[BaseModel]) -> list[str]:
    """Return the names of all fields, those of a part after the part's own and a dot."""
    found = []
    for name, field in kind.model_fields.items():
        found.append(name)
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found += [f"{name}.{inner}" for inner in _fields_of(part)]
    return found
