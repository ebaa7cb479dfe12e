"""Figures that were measured before, found again by all that decided them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpaudit.generation.models import CACHE_VARIABLE, cache_folder
from dpaudit.results.quality_file import require_place, write_private

_MAX_BYTES = 1 << 12
#: Of the files. What measures has a number of its own: `bench.PROTOCOL`.
_FORMAT = 2
_REMEDY = f"Set {CACHE_VARIABLE} to a folder that can be written to."

Figures = dict[str, float]


def key_of(**parts: Any) -> str:
    """A digest of everything that a figure depends on, by name; values are JSON's."""
    text = json.dumps({"format": _FORMAT, **parts}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class ScoreCache:
    """A folder of small files, one for each key, for their owner alone: the figures are private.

    What is in a file is taken at its word, so the folder is the user's own and no part of any run: one that comes from
    elsewhere must not bring its figures. A file that is another user's, or not what was written here, counts as absent.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """The folder is made when something is first kept.

        Args:
            folder: where it is; None for `models.cache_folder()` / "evaluation-scores".
        """
        self._folder = cache_folder() / "evaluation-scores" if folder is None else folder

    def require(self) -> None:
        """Find out whether figures can be kept. Raises InputError where they cannot."""
        require_place(self._folder / "figures.json", _REMEDY)

    def find(self, key: str, names: tuple[str, ...]) -> Figures | None:
        """The figures of these names, all finite; None where they are not known."""
        with suppress(OSError, ValueError, RecursionError):
            handle = os.open(self._folder / f"{key}.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with os.fdopen(handle, "rb") as file:
                if not _is_ours(os.fstat(handle)):
                    return None
                found = json.loads(file.read(_MAX_BYTES))
            if _is_sound(found, names):
                return {name: float(found[name]) for name in names}
        return None

    def keep(self, key: str, figures: Mapping[str, float]) -> None:
        """Keep figures. Raises InputError where they cannot be written."""
        write_private(self._folder / f"{key}.json", json.dumps(dict(figures), allow_nan=False).encode(), _REMEDY)


def _is_ours(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _is_sound(found: Any, names: tuple[str, ...]) -> bool:
    return (
        isinstance(found, dict)
        and set(found) == set(names)
        and all(type(value) in (int, float) and math.isfinite(value) for value in found.values())
    )
