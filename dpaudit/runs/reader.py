"""Reads run directories, in folders and in stores that fsspec knows, and trusts nothing in them.

Nothing is executed or unpickled, no link is followed, and sizes are checked before anything is allocated. Whatever
cannot be read raises InputError with file, problem and remedy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from dpaudit.mechanisms import Fields
from dpaudit.runs import layout
from dpaudit.runs.assignment import Assigned, parse_assigned
from dpaudit.runs.batches import BatchReader, Sample
from dpaudit.runs.clusters import clusters_problem
from dpaudit.runs.errors import InputError
from dpaudit.runs.manifest import FORMAT_VERSION, Clusters, Manifest
from dpaudit.runs.rules import ForbiddenTokens
from dpaudit.runs.storage import RESTORE, Location, Storage, open_storage
from dpaudit.runs.text import Decode, decoder_of, decoding_digest, each_once, require_bounded

MAX_MANIFEST_BYTES = 1 << 24
MAX_CLUSTERS_BYTES = 1 << 24
MAX_LINE_BYTES = 1 << 26
#: A tokenizer of a million tokens has some 100 MB.
MAX_TOKENIZER_BYTES = 1 << 28
_HASH_LINE = re.compile(r"^([0-9a-f]{64})  ([^\n]+)$")
_Fields = TypeVar("_Fields", bound=Fields)
_NAME_TOKENIZER = "Name the tokenizer.json of the run's model, in the form of the `tokenizers` library."
RESUME = "Resume it with `dpaudit generate CONFIG.yaml --out RUN_DIR`, or restore it from a copy."


class FolderReader:
    """The files of one directory: a run's, or public texts'.

    Attributes:
        name: the directory as the caller named it, for messages.
        location: opens the same directory from any process that can reach it.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.name, self.location = storage.where(), storage.location

    def samples(self) -> Iterator[Sample]:
        """The lines of samples.jsonl, in the file's order."""
        for where, line in self._lines(layout.SAMPLES):
            with _validating(where):
                sample = Sample.model_validate_json(line)
            yield sample

    def sample_lines(self) -> Iterator[str]:
        """The lines of samples.jsonl as they stand, without their ends."""
        return (line for _, line in self._lines(layout.SAMPLES))

    def digest(self, name: str) -> str:
        """SHA-256 of a file of the record, in hexadecimal."""
        with self._storage.open(name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def has(self, name: str) -> bool:
        """Whether the record has something under this name."""
        return self._storage.exists(name)

    def where(self, name: str) -> str:
        """A file's name for messages."""
        return self._storage.where(name)

    def _fields(self, name: str, limit: int, kind: type[_Fields]) -> _Fields:
        """What a JSON file of at most so many bytes holds, validated."""
        text, where = self._read(name, limit), self.where(name)
        _json(text, where)
        with _validating(where):
            return kind.model_validate_json(text)

    def _read(self, name: str, limit: int) -> str:
        with self._storage.open(name, limit) as file:
            return self._decoded(file.read(limit), name)

    def _lines(self, name: str) -> Iterator[tuple[str, str]]:
        """Where each line of a text file is, for messages, and the line without its end."""
        where = self.where(name)
        with self._storage.open(name) as file:
            for number in itertools.count(1):
                line = file.readline(MAX_LINE_BYTES)
                if not line:
                    return
                if not line.endswith(b"\n"):
                    raise InputError(where, "the file ends inside a line, or a line is too long.", RESTORE)
                yield f"{where}, line {number}", self._decoded(line[:-1], name)

    def _decoded(self, data: bytes, name: str) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(self.where(name), "the file is not UTF-8 text.", RESTORE) from None


class RunReader(FolderReader):
    """One run directory.

    Attributes:
        manifest: run.json, validated.
    """

    def __init__(self, location: Location) -> None:
        """Raises InputError when a path or URL is no run directory that this version reads."""
        storage = open_storage(location)
        storage.require_run()
        super().__init__(storage)
        text, where = self._read(layout.MANIFEST, MAX_MANIFEST_BYTES), self.where(layout.MANIFEST)
        fields = _json(text, where)
        version = fields.get("format_version") if isinstance(fields, dict) else None
        if type(version) is not int or version != FORMAT_VERSION:
            raise InputError(
                f"{where}: format_version",
                f"this is {str(version)[:20]!r}; this dpaudit reads version {FORMAT_VERSION}.",
                "Use the dpaudit that wrote the run, or one that reads its version.",
            )
        with _validating(where):
            self.manifest = Manifest.model_validate_json(text)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """Ids of the whole batches on disk, ascending."""
        return whole_batches(self._storage)

    def batch(self, batch: int) -> BatchReader:
        """Open one batch. Raises InputError when its file is not a whole batch of this run."""
        name = layout.steps_file(batch)
        with self._storage.local(name) as path:
            return BatchReader(path, self.where(name), self.manifest, batch)

    def assignment(self) -> Iterator[Assigned]:
        """The lines of `assignment`, in the file's order."""
        for where, line in self._lines(layout.ASSIGNMENT):
            try:
                yield parse_assigned(line)
            except ValueError as error:
                raise InputError(where, f"{error}.", RESTORE) from None

    def clusters(self) -> Clusters:
        """What `clusters` says of how records were grouped: its shapes are those that run.json gives it."""
        clusters = self._fields(layout.CLUSTERS, MAX_CLUSTERS_BYTES, Clusters)
        if problem := clusters_problem(clusters, self.manifest):
            raise InputError(self.where(layout.CLUSTERS), f"{problem}.", RESTORE)
        return clusters

    def hashes(self) -> dict[str, str]:
        """File name -> SHA-256, as recorded in `hashes` (the format of sha256sum)."""
        recorded: dict[str, str] = {}
        for where, line in self._lines(layout.HASHES):
            match = _HASH_LINE.match(line)
            if not match or match.group(2) in recorded:
                raise InputError(where, "this is not one file's digest and name.", RESTORE)
            recorded[match.group(2)] = match.group(1)
        return recorded

    def head(self) -> str:
        """SHA-256 of `hashes`, in hexadecimal: whoever has it can tell this finished run from any other."""
        return self.digest(layout.HASHES)

    def tokenizer_json(self) -> str | None:
        """The recorded tokenizer, fit to decode with, or None when the run has none."""
        if not self.has(layout.TOKENIZER):
            return None
        text = self._read(layout.TOKENIZER, MAX_TOKENIZER_BYTES)
        try:
            require_bounded(text)
        except ValueError as error:
            reason = f"this is no tokenizer that can be decoded with ({str(error)[:200]})."
            raise InputError(self.where(layout.TOKENIZER), reason, RESTORE) from None
        return text

    def decoding_digest(self) -> str | None:
        """By what the run's tokens become text (`text.decoding_digest`); None where no tokenizer can be read."""
        try:
            serialised = self.tokenizer_json()
        except InputError:  # integrity.format says why
            return None
        return None if serialised is None else decoding_digest(serialised)

    def decoder(self, *, special: bool) -> Decode | None:
        """What decodes the run's tokens (`decoder_of`); None where it has no tokenizer that can be read."""
        try:
            serialised = self.tokenizer_json()
        except InputError:  # integrity.format says why
            return None
        return None if serialised is None else decoder_of(serialised, special=special)

    def forbidden_tokens(self) -> ForbiddenTokens:
        """What the run's decoding rules forbid. Raises InputError where that cannot be told."""
        return self.manifest.forbidden_tokens(self.tokenizer_json() if self.manifest.decoding.any else None)

    def files(self) -> list[str]:
        """Names of all files of the record, relative to the directory and sorted; without `hashes` and reports."""
        names = []
        for name, folder in self._storage.entries():
            if name == layout.STEPS and folder:
                names += [f"{layout.STEPS}/{entry.name}" for entry in self._storage.entries(layout.STEPS)]
            elif not (name in (layout.HASHES, layout.LOCK) or (name == layout.REPORT and folder)):
                names.append(name)
        return sorted(names)


def read_tokenizer(path: Path) -> str:
    """The `decoding_digest` of a tokenizer.json, or of that in a folder. Raises InputError where it cannot be read."""
    file = path / layout.TOKENIZER if path.is_dir() else path
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_TOKENIZER_BYTES + 1)
        if len(data) > MAX_TOKENIZER_BYTES:
            raise ValueError("it is too large")
        text = data.decode("utf-8")
        require_bounded(text)
        digest = decoding_digest(text)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        problem = f"this is no tokenizer that can be decoded with ({str(said)[:200]})."
        raise InputError(str(file), problem, _NAME_TOKENIZER) from None
    if digest is None:
        raise InputError(str(file), "this is no tokenizer that can be decoded with.", _NAME_TOKENIZER)
    return digest


def whole_batches(storage: Storage) -> tuple[int, ...]:
    """Ids of the batches under whose names there is something, ascending."""
    names = (entry.name for entry in storage.entries(layout.STEPS))
    return tuple(sorted(b for b in map(layout.batch_of, names) if b is not None))


def _json(text: str, where: str) -> Any:
    """What JSON holds. Raises InputError where readers could differ over it: keys come once, and numbers are finite."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=each_once)
    except (ValueError, RecursionError) as error:
        raise InputError(where, f"this is not JSON that can be read ({str(error)[:200]}).", RESTORE) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


@contextmanager
def _validating(where: str) -> Generator[None, None, None]:
    """Turn a validation error into one that names the first field, without repeating its value."""
    try:
        yield
    except ValidationError as error:
        first: Any = error.errors(include_input=False, include_url=False)[0]
        clashing = (first["ctx"]["field"],) if first["type"] == "clash" else ()
        field = ".".join(str(part)[:60] for part in (*first["loc"], *clashing)[:8])
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise InputError(f"{where}: {field}" if field else where, f"{first['msg']}{more}.", RESTORE) from None
