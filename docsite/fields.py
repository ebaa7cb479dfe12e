"""Tables of the fields of a JSON Schema that pydantic made, with what docstrings say about them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from griffe import Docstring, DocstringSectionAttributes, DocstringSectionText, parse_google

from docsite.markdown import escaped, slug

Schema: TypeAlias = Mapping[str, Any]

_TYPES = {"boolean": "true or false", "integer": "whole number", "null": "null", "number": "number", "string": "text"}
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
#: How pydantic writes a float that may be infinite.
_INFINITE = ["inf", "-inf", "nan"]


def field_tables(schema: Schema, title: str) -> str:
    """Every object of a schema as a section of Markdown with a table, in the order of first use.

    Args:
        schema: of a whole file; objects that it refers to are in its `$defs`.
        title: heading of the file's own table. The others are headed by the field that holds them, or by their name
            where several do.
    """
    headings = _headings(schema)
    parts = {title: schema} | {heading: schema["$defs"][name] for name, heading in headings.items()}
    return "\n".join(_section(heading, part, headings) for heading, part in parts.items())


def field_anchor(heading: str, field: str) -> str:
    """The anchor of one field; `heading` is its section's."""
    return f"{slug(heading)}.{field}"


def _headings(schema: Schema) -> dict[str, str]:
    """A heading for each object that a schema refers to, directly or not, breadth first.

    It is the path of the field that holds the object, or the object's name where that is no path to it alone.
    """
    uses: dict[str, list[tuple[str, str]]] = {}
    shared: set[str] = set()
    waiting = [("", schema)]
    while waiting:
        holder, part = waiting.pop(0)
        for field, about in part.get("properties", {}).items():
            names = list(dict.fromkeys(_references(about)))
            waiting += [(name, schema["$defs"][name]) for name in names if name not in uses]
            shared |= {name for name in names if len(names) > 1 or name in uses}
            for name in names:
                uses.setdefault(name, []).append((holder, field))
    headings: dict[str, str] = {}
    for name, ((holder, field), *_) in uses.items():
        path = f"{headings[holder]}.{field}" if holder else field
        headings[name] = name if name in shared or holder in shared else path
    return headings


def _references(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if "$ref" in part:
            yield _named(part)
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _named(reference: Schema) -> str:
    return str(reference["$ref"]).rsplit("/", 1)[-1]


def _section(heading: str, part: Schema, headings: Mapping[str, str]) -> str:
    about, meanings = _explained(part.get("description", ""))
    rows = [
        f"| `{name}`{{: #{field_anchor(heading, name)} }} | {_kind(field, headings)} | {_default(part, name, field)} "
        f"| {_inline(meanings.get(name, ''))} |"
        for name, field in part["properties"].items()
    ]
    head = ["| field | type | default | meaning |", "|---|---|---|---|"]
    return "\n".join([f"## {heading} {{: #{slug(heading)} }}\n", f"{about}\n", *head, *rows, ""])


def _explained(description: str) -> tuple[str, dict[str, str]]:
    """A docstring's prose, and what it says about each field; one entry may name several."""
    prose: list[str] = []
    meanings: dict[str, str] = {}
    for section in parse_google(Docstring(description), warnings=False):
        if isinstance(section, DocstringSectionAttributes):
            for entry in section.value:
                # griffe takes the second of several names for a type.
                names = re.findall(r"\w+", f"{entry.name} {entry.annotation or ''}")
                meanings |= dict.fromkeys(names, entry.description)
        elif isinstance(section, DocstringSectionText):
            prose += [_inline(paragraph) for paragraph in section.value.split("\n\n")]
    return "\n\n".join(prose), meanings


def _kind(field: Schema, headings: Mapping[str, str]) -> str:
    """What values a field may have."""
    if "$ref" in field:
        heading = headings[_named(field)]
        return f"[{heading}](#{slug(heading)})"
    if "anyOf" in field:
        options = [option for option in field["anyOf"] if option.get("enum") != _INFINITE]
        return " or ".join(dict.fromkeys(_kind(option, headings) for option in options))
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return _list(field, headings)
    if field.get("type") == "object":
        values = field.get("additionalProperties")
        return f"fields by name: {_kind(values, headings)}" if isinstance(values, Mapping) else "fields by name"
    return _TYPES[field["type"]] + _limits(field)


def _list(field: Schema, headings: Mapping[str, str]) -> str:
    least = ", at least one" if field.get("minItems") == 1 else ""
    return f"list of {_kind(field['items'], headings)}{least}"


def _limits(field: Schema) -> str:
    limits = [f"{sign} {field[name]:,}" for name, sign in _LIMITS.items() if name in field]
    if "pattern" in field:
        limits.append(f"matching `{field['pattern']}`")
    if field.get("minLength") == 1:
        limits.append("not empty")
    return " " + ", ".join(limits) if limits else ""


def _default(part: Schema, name: str, field: Schema) -> str:
    if name in part.get("required", ()) and "default" not in field:
        return "required"
    default = field.get("default")
    if isinstance(default, Mapping) and default:
        return "that section's own"
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _inline(text: str) -> str:
    """A docstring's words. None is what JSON and YAML call null."""
    return re.sub(r"\bNone\b", "null", escaped(text))
