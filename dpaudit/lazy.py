"""Packages whose public names are imported when they are first used.

A command starts in a fraction of a second where it loads only what it needs.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_NAME = re.compile(r"^from (\S+) import \(?\s*(\w+) as ", re.MULTILINE)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return a package's `__getattr__`, and the names that it imports.

    The names and their modules are those of the imports in `__init__.pyi` beside the package's
    `__init__.py`, which type checkers read in its place.

    Args:
        package: its `__name__`.
        file: its `__file__`.
    """
    loader: Any = sys.modules[package].__loader__  # of a zip, too
    stub = loader.get_data(str(Path(file).with_suffix(".pyi")))
    modules = {name: module for module, name in _NAME.findall(stub.decode("utf-8"))}

    def imported(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return imported, [*modules]
