"""An extension of griffe: a model's fields in a table, with types, limits, defaults and meanings.

mkdocstrings shows the "Attributes:" section of a docstring without defaults and without the fields
that need no words, and griffe-pydantic drops the limits of annotated types. So the section becomes
one of parameters, which has it all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pydoc import locate
from typing import Any

from griffe import (
    Alias,
    Attribute,
    Class,
    DocstringParameter,
    DocstringSection,
    DocstringSectionAttributes,
    DocstringSectionParameters,
    Expr,
    ExprCall,
    ExprKeyword,
    ExprName,
    ExprSubscript,
    ExprTuple,
    Extension,
    Module,
    Object,
    parse_google,
)

_LIMITS = {
    "ge": "≥",
    "gt": ">",
    "le": "≤",
    "lt": "<",
    "max_length": "length ≤",
    "min_length": "length ≥",
    "pattern": "matching",
}


class Fields(Extension):
    """mkdocs.yml loads it."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Describe fields once all modules are there, for the names of types lead to each other."""
        for module in _modules(pkg):
            if module.is_init_module and module.exports is None:
                # Such a package offers what it imports of ours.
                of_ours = (
                    (name, of) for name, of in module.members.items() if isinstance(of, Alias)
                )
                module.exports = [
                    name for name, of in of_ours if of.target_path.startswith(f"{pkg.path}.")
                ]
        for cls in _classes(pkg):
            if cls.docstring and _has_fields(cls):
                # What griffe would compute, and mkdocstrings reads.
                cls.docstring.__dict__["parsed"] = list(_sections(cls))


def _modules(module: Module) -> Iterator[Module]:
    yield module
    for inner in module.modules.values():
        if isinstance(inner, Module):
            yield from _modules(inner)


def _classes(module: Module) -> Iterator[Class]:
    for each in _modules(module):
        yield from (cls for cls in each.classes.values() if isinstance(cls, Class))


def _sections(cls: Class) -> Iterator[DocstringSection]:
    assert cls.docstring is not None
    meanings: dict[str, str] = {}
    for part in [*reversed(cls.mro()), cls]:
        for section in parse_google(part.docstring, warnings=False) if part.docstring else ():
            if isinstance(section, DocstringSectionAttributes):
                for entry in section.value:
                    # One entry may name several fields; griffe takes the second name for a type.
                    names = re.findall(r"\w+", f"{entry.name} {entry.annotation or ''}")
                    meanings |= dict.fromkeys(names, entry.description)
            elif part is cls:
                yield section
    shown = [
        DocstringParameter(
            name,
            annotation=_kind(field.annotation, cls),
            description=meanings.get(name, ""),
            value=field.value,
        )
        for name, member in cls.all_members.items()
        if isinstance(
            field := member.final_target if isinstance(member, Alias) else member, Attribute
        )
        if field.annotation and field.is_public and "property" not in field.labels
    ]
    if shown:
        yield DocstringSectionParameters(shown, title="Fields:")


def _has_fields(cls: Class) -> bool:
    models = {"BaseModel", "NamedTuple"}
    return "dataclass" in cls.labels or any(
        str(base) in models for part in [cls, *cls.mro()] for base in part.bases
    )


def _kind(annotation: Any, cls: Class) -> Any:
    """Return a type, with its aliases resolved, and its limits in signs."""
    if isinstance(annotation, ExprName) and annotation.canonical_path.startswith(
        f"{cls.package.name}."
    ):
        meant = cls.modules_collection[annotation.canonical_path]
        return _kind(meant.value, cls) if isinstance(meant, Attribute) else annotation
    if isinstance(annotation, ExprSubscript) and str(annotation.left) == "Annotated":
        assert isinstance(annotation.slice, ExprTuple)
        kind, *notes = annotation.slice.elements
        limits = [
            f"{_LIMITS[limit.name]} {_value(limit.value)}"
            for note in notes
            if isinstance(note, ExprCall)
            for limit in note.arguments
            if isinstance(limit, ExprKeyword) and limit.name in _LIMITS
        ]
        return f"{_kind(kind, cls)} {', '.join(limits)}".strip()
    if isinstance(annotation, Expr):
        parts = {
            part.name: getattr(annotation, part.name) for part in fields(annotation) if part.init
        }
        return replace(annotation, **{name: _kind(part, cls) for name, part in parts.items()})
    return [_kind(part, cls) for part in annotation] if isinstance(annotation, list) else annotation


def _value(limit: Any) -> str:
    """Return a number in place of its name in the code."""
    if not isinstance(limit, ExprName):
        return str(limit)
    assert isinstance(limit.parent, Object)
    found = locate(f"{limit.parent.module.path}.{limit.name}")
    return found if isinstance(found, str) else f"{found:,}"
