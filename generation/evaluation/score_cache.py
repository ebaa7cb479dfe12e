"""Figures that were measured before, found again by all that decided them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpaudit.quality_file import write_private

_MAX_BYTES = 1 << 12
_VERSION = 1

Figures = dict[str, float]


def key_of(**parts: Any) -> str:
    """A digest of everything that a figure depends on, by name; values are JSON's."""
    text = json.dumps({"version": _VERSION, **parts}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class ScoreCache:
    """A folder of small files, one for each key, for their owner alone: the figures are private.

    What is in a file is taken at its word, as the folder is as private as the run. A file that is not what was written
    here counts as absent.
    """

    def __init__(self, folder: Path) -> None:
        """The folder is made when something is first kept."""
        self._folder = folder

    def find(self, key: str, names: tuple[str, ...]) -> Figures | None:
        """The figures of these names, all finite; None where they are not known."""
        with suppress(OSError, ValueError, RecursionError):
            handle = os.open(self._folder / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle, "rb") as file:
                found = json.loads(file.read(_MAX_BYTES))
            if _is_sound(found, names):
                return {name: float(found[name]) for name in names}
        return None

    def keep(self, key: str, figures: Mapping[str, float]) -> None:
        """Keep figures. Raises InputError where they cannot be written."""
        write_private(self._folder / f"{key}.json", json.dumps(dict(figures), allow_nan=False).encode())


def _is_sound(found: Any, names: tuple[str, ...]) -> bool:
    return (
        isinstance(found, dict)
        and set(found) == set(names)
        and all(type(value) in (int, float) and math.isfinite(value) for value in found.values())
    )
