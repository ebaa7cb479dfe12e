"""Where a path in a config leads. `package:NAME/FOLDER` is a folder inside an installed package.

`dataset:NAME` is a Hugging Face data set, where public texts may come from one.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from dpaudit.runs import InputError

PACKAGE = "package:"
DATASET = "dataset:"


def locate(path: str, field: str) -> Path:
    """The file or folder that a config's path names. A package is found without being imported.

    Raises:
        InputError: the package is not installed, or the path does not exist.
    """
    found = _inside_package(path, field) if path.startswith(PACKAGE) else Path(path).expanduser()
    if not found.exists():
        raise InputError(field, f"the value is {path!r}, and nothing is there.", "Give a path that exists.")
    return found


def _inside_package(path: str, field: str) -> Path:
    name, *parts = path.removeprefix(PACKAGE).split("/")
    # A dotted name would make find_spec import the parent package.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        problem = f"the value is {path!r}, but no package {name!r} is installed."
        raise InputError(field, problem, "Install it, or give a path or a Hugging Face name.")
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


def overlap(one: str, other: str) -> bool:
    """Whether two names of data lead to the same place, however they are spelled, or to one inside the other."""
    first, second = _place(one), _place(other)
    return any(_same(first, place) for place in (second, *second.parents)) or any(
        _same(second, place) for place in first.parents
    )


def _place(path: str) -> Path:
    """Where a path leads, links followed; by its spelling alone where nothing is there."""
    try:
        return Path(os.path.realpath(locate(path, "")))
    except (InputError, OSError, RuntimeError):  # what cannot be found is told when it is read
        return Path(os.path.realpath(path))


def _same(left: Path, right: Path) -> bool:
    try:
        return left.samefile(right)  # hard links too, and names that differ in case where case is nothing
    except OSError:
        return left == right
