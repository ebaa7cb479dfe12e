"""Reads run directories, and trusts nothing in them.

Nothing is executed or unpickled, no link is followed, and sizes are checked before anything is allocated. Whatever
cannot be read raises InputError with file, problem and remedy.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from dpaudit.runs import layout
from dpaudit.runs.assignment import Assigned, parse_assigned
from dpaudit.runs.batches import BatchReader, Sample
from dpaudit.runs.decoder import require_bounded
from dpaudit.runs.errors import InputError
from dpaudit.runs.manifest import FORMAT_VERSION, Clustering, Manifest

MAX_MANIFEST_BYTES = 1 << 24
MAX_LINE_BYTES = 1 << 26
#: A tokenizer of a million tokens has some 100 MB.
MAX_TOKENIZER_BYTES = 1 << 28
_HASH_LINE = re.compile(r"^([0-9a-f]{64})  ([^\n]+)$")
_SAMPLE = TypeAdapter(Sample)
RESTORE = "Restore the run directory from a copy, or generate the run again."
RESUME = "Resume it with `dpaudit generate CONFIG.yaml --out RUN_DIR`, or restore it from a copy."


class RunReader:
    """One run directory.

    Attributes:
        path: the directory.
        manifest: run.json, validated.
    """

    def __init__(self, path: Path | str) -> None:
        """Raises InputError when `path` is no run directory that this version reads."""
        self.path = Path(path)
        try:
            self.path.stat()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(str(path), f"there is no such directory ({reason}).", "Check the path.") from None
        if not self.path.is_dir():
            raise InputError(
                str(path), "this is a file, not a run directory.", "Name the directory that holds run.json."
            )
        if not os.path.lexists(self.path / layout.MANIFEST):
            raise InputError(
                str(path), "this is no run directory: it has no run.json.", "Name the directory that holds run.json."
            )
        self.manifest = _parse_manifest(self._read(layout.MANIFEST, MAX_MANIFEST_BYTES), self._where(layout.MANIFEST))

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Ids of the whole batches on disk, ascending."""
        folder = self.path / layout.STEPS
        if folder.is_symlink() or not folder.is_dir():
            raise InputError(str(folder), "the folder is missing or is a link.", RESTORE)
        with _reading(folder):
            return tuple(sorted(b for b in map(layout.batch_of, os.listdir(folder)) if b is not None))

    def batch(self, batch: int) -> BatchReader:
        """Open one batch. Raises InputError when its file is not a whole batch of this run."""
        name = layout.steps_file(batch)
        self._require_plain(name)
        return BatchReader(self.path / name, self._where(name), self.manifest, batch)

    def samples(self) -> Iterator[Sample]:
        """The lines of samples.jsonl, in the file's order."""
        for number, line in enumerate(self.sample_lines(), start=1):
            where = f"{self._where(layout.SAMPLES)}, line {number}"
            try:
                yield _SAMPLE.validate_json(line)
            except ValidationError as error:
                _refuse_fields(where, error)

    def sample_lines(self) -> Iterator[str]:
        """The lines of samples.jsonl as they stand, without their ends."""
        return self._lines(layout.SAMPLES)

    def assignment(self) -> Iterator[Assigned]:
        """The lines of `assignment`, in the file's order."""
        for number, line in enumerate(self._lines(layout.ASSIGNMENT), start=1):
            try:
                yield parse_assigned(line)
            except ValueError as error:
                raise InputError(f"{self._where(layout.ASSIGNMENT)}, line {number}", f"{error}.", RESTORE) from None

    def clusters(self) -> Clustering:
        """What `clusters` says of how records were grouped."""
        text = self._read(layout.CLUSTERS, MAX_MANIFEST_BYTES)
        try:
            return Clustering.model_validate_json(text)
        except ValidationError as error:
            _refuse_fields(self._where(layout.CLUSTERS), error)

    def hashes(self) -> dict[str, str]:
        """File name -> SHA-256, as recorded in `hashes` (the format of sha256sum)."""
        recorded: dict[str, str] = {}
        for number, line in enumerate(self._lines(layout.HASHES), start=1):
            match = _HASH_LINE.match(line)
            if not match or match.group(2) in recorded:
                raise InputError(
                    f"{self._where(layout.HASHES)}, line {number}", "this is not one file's digest and name.", RESTORE
                )
            recorded[match.group(2)] = match.group(1)
        return recorded

    def tokenizer_json(self) -> str | None:
        """The recorded tokenizer, fit to decode with, or None when the run has none."""
        if not os.path.lexists(self.path / layout.TOKENIZER):
            return None
        text = self._read(layout.TOKENIZER, MAX_TOKENIZER_BYTES)
        try:
            require_bounded(text)
        except ValueError as error:
            reason = f"this is no tokenizer that can be decoded with ({str(error)[:200]})."
            raise InputError(self._where(layout.TOKENIZER), reason, RESTORE) from None
        return text

    def files(self) -> list[str]:
        """Names of all files of the record, relative to the directory and sorted; without `hashes` and reports."""
        names = []
        with _reading(self.path), os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name == layout.STEPS and entry.is_dir(follow_symlinks=False):
                    names += [f"{layout.STEPS}/{name}" for name in os.listdir(entry)]
                elif entry.name == layout.REPORT and entry.is_dir(follow_symlinks=False):
                    continue
                elif entry.name != layout.HASHES:
                    names.append(entry.name)
        return sorted(names)

    def digest(self, name: str) -> str:
        """SHA-256 of a file of the record, in hexadecimal."""
        self._require_plain(name)
        with _reading(self.path / name), open(self.path / name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def has(self, name: str) -> bool:
        """Whether the record has something under this name."""
        return os.path.lexists(self.path / name)

    def _where(self, name: str) -> str:
        return str(self.path / name)

    def _require_plain(self, name: str) -> None:
        """Refuse links, folders and devices under a file's name."""
        path = self.path / name
        try:
            plain = stat.S_ISREG(path.lstat().st_mode)
        except OSError as error:
            reason = "the file is missing" if isinstance(error, FileNotFoundError) else str(error.strerror)
            raise InputError(str(path), f"{reason}.", RESTORE) from None
        if not plain:
            raise InputError(str(path), "this is not a plain file.", RESTORE)

    def _read(self, name: str, limit: int) -> str:
        self._require_plain(name)
        path = self.path / name
        if path.stat().st_size > limit:
            raise InputError(str(path), f"the file is larger than {limit} bytes.", RESTORE)
        with _reading(path):
            return path.read_text(encoding="utf-8")

    def _lines(self, name: str) -> Iterator[str]:
        self._require_plain(name)
        with _reading(self.path / name), open(self.path / name, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                if not line.endswith(b"\n"):
                    raise InputError(self._where(name), "the file ends inside a line, or a line is too long.", RESTORE)
                yield line[:-1].decode("utf-8")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file when the system refuses to read it or its bytes are no text."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(str(path), "the file is not UTF-8 text.", RESTORE) from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", "Check its permissions.") from None


def sample_of(batch: BatchReader) -> Sample:
    """The line of samples.jsonl that releases this batch."""
    header = batch.header
    return Sample(
        id=header.id,
        label=header.label,
        cluster=header.cluster,
        tokens=tuple(int(token) for token in batch.tokens),
        text=batch.text,
        stop=batch.stop,
    )


def _parse_manifest(text: str, where: str) -> Manifest:
    try:
        fields = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(where, f"this is not JSON that can be read ({str(error)[:200]}).", RESTORE) from None
    version = fields.get("format_version") if isinstance(fields, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise InputError(
            f"{where}: format_version",
            f"this is {str(version)[:20]!r}; this dpaudit reads version {FORMAT_VERSION}.",
            "Use the dpaudit that wrote the run, or one that reads its version.",
        )
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        _refuse_fields(where, error)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_fields(where: str, error: ValidationError) -> NoReturn:
    """Turn a validation error into one that names the first field, without repeating its value."""
    first: Any = error.errors(include_input=False, include_url=False, include_context=False)[0]
    field = ".".join(str(part)[:60] for part in first["loc"][:8])
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    raise InputError(f"{where}: {field}" if field else where, f"{first['msg']}{more}.", RESTORE) from None
