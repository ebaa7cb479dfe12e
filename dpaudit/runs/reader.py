"""Run directories, read without trust, in folders and in stores that fsspec knows.

Nothing is executed or unpickled, no link is followed, and sizes are checked before anything is
allocated. A file that cannot be read raises InputError with file, problem and remedy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from dpaudit.errors import InputError, UnfinishedError
from dpaudit.mechanisms import Fields
from dpaudit.plugins import FAILURES, failure_within, loaded
from dpaudit.runs import layout
from dpaudit.runs.assignment import Assigned, parse_assigned
from dpaudit.runs.batches import BatchArrays, BatchReader, Sample
from dpaudit.runs.canaries import Canaries
from dpaudit.runs.clusters import clusters_problem
from dpaudit.runs.journal import Journal, whole_entries
from dpaudit.runs.manifest import FORMAT_VERSION, Clusters, Manifest
from dpaudit.runs.rules import ForbiddenTokens
from dpaudit.runs.storage import RESTORE, Location, Storage, open_storage
from dpaudit.runs.strict_json import load
from dpaudit.runs.text import Decode, Vocabulary

#: The longest texts have 32,768 tokens.
MAX_LINE_BYTES, MAX_LINE_VALUES = 1 << 22, 1 << 16
_ENTRY = re.compile(r"^([0-9a-f]{64})  ([^\n]+)$")
_Fields = TypeVar("_Fields", bound=Fields)
_NAME_TOKENIZER = (
    "Give the tokenizer.json of the run's model, as the `tokenizers` library writes it."
)
RESUME = (
    "Resume it by the command that began it, such as `dpaudit generate CONFIG.yaml --out RUN_DIR`, "
    "or restore it from a copy."
)


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
        """Yield the lines of samples.jsonl, in the file's order."""
        for where, line in self._lines(layout.SAMPLES):
            with _validating(where):
                sample = Sample.model_validate_json(line)
            yield sample

    def sample_lines(self) -> Iterator[str]:
        """Return the lines of samples.jsonl unparsed, without their ends."""
        return (line for _, line in self._lines(layout.SAMPLES))

    def digest(self, name: str) -> str:
        """Return the SHA-256 of a file of the record, in hexadecimal."""
        with self._storage.open(name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def digests(self, names: Iterable[str]) -> dict[str, str]:
        """Return the `digest` of each of these files that the record has, by name."""
        return {name: self.digest(name) for name in names if self.has(name)}

    def has(self, name: str) -> bool:
        """Return whether the record has something under this name."""
        return self._storage.exists(name)

    def where(self, name: str) -> str:
        """Return a file's name for messages."""
        return self._storage.where(name)

    def _fields(self, name: str, kind: type[_Fields]) -> _Fields:
        """Return the content of a JSON file, validated."""
        text, where = self._read(name), self.where(name)
        _load_json(text, where)
        with _validating(where):
            return kind.model_validate_json(text)

    def _read(self, name: str) -> str:
        return self._decode(self._bytes(name), name)

    def _bytes(self, name: str) -> bytes:
        """Return all of a file whose size is limited.

        No more is read, even if the file grows meanwhile.
        """
        most = layout.most_bytes(name)
        assert most is not None
        with self._storage.open(name) as file:
            return file.read(most)

    def _lines(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield each line of a text file without its end, after its place for messages."""
        where = self.where(name)
        with self._storage.open(name) as file:
            for number in itertools.count(1):
                line = file.readline(MAX_LINE_BYTES)
                if not line:
                    return
                if not line.endswith(b"\n"):
                    raise InputError(
                        where, "the file ends inside a line, or a line is too long.", RESTORE
                    )
                if len(line) > MAX_LINE_VALUES < sum(map(line.count, (b"[", b"{", b","))):
                    raise InputError(
                        f"{where}, line {number}",
                        f"it has more than {MAX_LINE_VALUES} values.",
                        RESTORE,
                    )
                yield f"{where}, line {number}", self._decode(line[:-1], name)

    def _decode(self, data: bytes, name: str) -> str:
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
        """Open a run directory.

        Raises:
            InputError: the path or URL is no run directory that this version reads.
        """
        storage = open_storage(location)
        storage.require_run()
        super().__init__(storage)
        text, where = self._read(layout.MANIFEST), self.where(layout.MANIFEST)
        fields = _load_json(text, where)
        version = fields.get("format") if isinstance(fields, dict) else None
        if type(version) is not int or version != FORMAT_VERSION:
            raise InputError(
                f"{where}: format",
                f"this is {json.dumps(version)[:20]}; this dpaudit reads the number "
                f"{FORMAT_VERSION}.",
                "Use the dpaudit that wrote the run.",
            )
        with _validating(where):
            try:
                self.manifest = Manifest.of_json(text)
            except FAILURES as error:
                if failure := failure_within(loaded(), error):
                    raise failure from None
                raise

    def _lines(self, name: str) -> Iterator[tuple[str, str]]:
        # What a run has at its end alone is not to be restored before.
        if name in (layout.HASHES, layout.SAMPLES) and not (
            self.has(name) or self.has(layout.HASHES)
        ):
            raise UnfinishedError(
                self.where(name), "the file is missing: the run is not finished.", RESUME
            )
        return super()._lines(name)

    def require_loadable(self) -> None:
        """Refuse a run whose generator dpaudit cannot load, to compare it with its data or model.

        Raises:
            InputError: it cannot.
        """
        if self.manifest.foreign:
            field = "prompt.template" if self.manifest.recorded is None else "recorded"
            problem = (
                "dpaudit cannot load this generator, so it cannot recompute the run with "
                "data or a model."
            )
            again = "dpaudit replay RUN --data FILE --without ROW -- PYTHON SCRIPT"
            remedy = f"Run the recorded script again: {again}"
            raise InputError(f"{self.where(layout.MANIFEST)}: {field}", problem, remedy)

    @cached_property
    def batches(self) -> tuple[int, ...]:
        """The ids of the whole batches on disk, ascending."""
        return whole_batches(self._storage)

    def batch(self, batch: int) -> BatchReader:
        """Open one batch.

        Raises:
            InputError: its file is not a whole batch of this run.
        """
        name = layout.steps_file(batch)
        file, where = self._storage.local(name), self.where(name)
        return BatchReader(file, where, self.manifest, batch, self._arrays_of)

    @cached_property
    def _arrays_of(self) -> Callable[[int, bool], BatchArrays]:
        """The arrays of batches of so many contexts; most batches of a run have as many."""
        return lru_cache(maxsize=16)(partial(BatchArrays, self.manifest))

    def contexts(self) -> int:
        """Return the number of contexts of all whole batches on disk."""
        found = 0
        for batch in self.batches:
            with self.batch(batch) as opened:
                found += opened.header.contexts
        return found

    def assignment(self) -> Iterator[Assigned]:
        """Yield the lines of `assignment`, in the file's order.

        They have users and sums where run.json says so.
        """
        privacy = self.manifest.privacy
        shared, earlier = privacy.shared_budgets, privacy.earlier
        for where, line in self._lines(layout.ASSIGNMENT):
            try:
                assigned = parse_assigned(line)
                if (assigned.user is None) == shared:
                    raise ValueError(
                        "users are named where none share budgets, or none where they do"
                    )
                if assigned.spent and not earlier:
                    raise ValueError(
                        "it says what was spent before, and the run names no earlier one"
                    )
            except ValueError as error:
                raise InputError(where, f"{error}.", RESTORE) from None
            yield assigned

    def assignment_lines(self) -> Iterator[str]:
        """Return the lines of `assignment` unparsed, without their ends."""
        return (line for _, line in self._lines(layout.ASSIGNMENT))

    def clusters(self) -> Clusters:
        """Return the content of `clusters`, with the shapes that run.json gives it."""
        clusters = self._fields(layout.CLUSTERS, Clusters)
        if problem := clusters_problem(clusters, self.manifest):
            raise InputError(self.where(layout.CLUSTERS), f"{problem}.", RESTORE)
        return clusters

    def canaries(self) -> Canaries:
        """Return the canaries of a run that has any.

        Whether they are those of run.json is not checked.
        """
        return self._fields(layout.CANARIES, Canaries)

    def hashes(self) -> Journal:
        """Return the digests of a finished run's files, from `hashes`."""
        return self._journal(self._lines(layout.HASHES))

    def journal(self) -> Journal:
        """Return the digests of an unfinished run's whole files."""
        return self._journal(self.journal_lines())

    def journal_lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the journal's whole entries, each with its place."""
        return whole_entries(self._read(layout.JOURNAL), self.where(layout.JOURNAL))

    def _journal(self, lines: Iterable[tuple[str, str]]) -> Journal:
        journal, left = Journal(self.manifest), iter(lines)
        for where, link in left:
            _, file = next(left, ("", ""))
            match = _ENTRY.match(file)
            if match is None or journal.entry(match[1], match[2]) != f"{link}\n{file}\n":
                before = "nonce and commitment of run.json"
                if journal.digests:
                    before = "all entries before it"
                problem = f"this is not a file's digest and name, chained to {before}."
                raise InputError(where, problem, RESTORE)
            try:
                journal.add(match[1], match[2])
            except ValueError as error:
                raise InputError(where, f"{error}.", RESTORE) from None
        return journal

    def head(self) -> str:
        """Return the SHA-256 of `hashes`, in hexadecimal.

        It tells this finished run from any other.
        """
        return self.digest(layout.HASHES)

    def head_or_none(self) -> str | None:
        """Return `head`; None if the run has no `hashes`, which its audit reports."""
        return self.head() if self.has(layout.HASHES) else None

    def tokenizer_json(self) -> str | None:
        """Return the recorded tokenizer, fit to decode with, or None if the run has none."""
        if self.tokenizer() is None:
            return None
        return self._read(layout.TOKENIZER)

    def tokenizer(self) -> Vocabulary | None:
        """Return the decoder of the run's tokens, or None if it has no tokenizer.

        Raises:
            InputError: the file is no tokenizer.
        """
        if not self.has(layout.TOKENIZER):
            return None
        try:
            return Vocabulary.of(self._bytes(layout.TOKENIZER))
        except ValueError as error:
            reason = f"this tokenizer cannot be used for decoding ({str(error)[:200]})."
            raise InputError(self.where(layout.TOKENIZER), reason, RESTORE) from None

    def decoding_digest(self) -> str | None:
        """Return the `Vocabulary.digest` of the run's tokenizer; None if none can be read."""
        try:
            vocabulary = self.tokenizer()
        except InputError:  # integrity.format says why
            return None
        return None if vocabulary is None else vocabulary.digest

    def decoder(self, *, special: bool) -> Decode | None:
        """Return the decoder of the run's tokens (`Vocabulary.decode`).

        It is None without a usable tokenizer.
        """
        try:
            vocabulary = self.tokenizer()
        except InputError:  # integrity.format says why
            return None
        if vocabulary is None:
            return None
        return partial(vocabulary.decode, special=special)

    def forbidden_tokens(self) -> ForbiddenTokens:
        """Return the tokens that the run's decoding rules forbid.

        Raises:
            InputError: they cannot be worked out.
        """
        tokenizer = None
        if self.manifest.decoding.any and self.tokenizer() is not None:
            tokenizer = self._bytes(layout.TOKENIZER)
        return self.manifest.forbidden_tokens(tokenizer)

    def files(self) -> list[str]:
        """Return the names of all files of the record, relative to the directory and sorted.

        Their digests, reports and the config that was made are left out.
        """
        names = []
        for name, folder in self._storage.entries():
            if name == layout.STEPS and folder:
                names += [
                    f"{layout.STEPS}/{entry.name}" for entry in self._storage.entries(layout.STEPS)
                ]
            elif not (
                name in (layout.HASHES, layout.JOURNAL, layout.LOCK, layout.CONFIG)
                or (name in (layout.REPORT, layout.BASELINE) and folder)
            ):
                names.append(name)
        return sorted(names)


def read_tokenizer(path: Path) -> str:
    """Return the `Vocabulary.digest` of a tokenizer.json, or of that in a folder.

    Raises:
        InputError: there is none.
    """
    file = path / layout.TOKENIZER if path.is_dir() else path
    most = layout.most_bytes(layout.TOKENIZER) or 0
    try:
        if not file.is_file():  # a pipe would be waited for
            raise ValueError("there is no such plain file")
        with open(file, "rb") as opened:
            data = opened.read(most + 1)
        if len(data) > most:
            raise ValueError("it is too large")
        return Vocabulary.of(data).digest
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        problem = f"this tokenizer cannot be used for decoding ({str(said)[:200]})."
        raise InputError(str(file), problem, _NAME_TOKENIZER) from None


def whole_batches(storage: Storage) -> tuple[int, ...]:
    """Return the ids of the batches under whose names there is something, ascending."""
    names = (entry.name for entry in storage.entries(layout.STEPS))
    return tuple(sorted(b for b in map(layout.batch_of, names) if b is not None))


def _load_json(text: str, where: str) -> Any:
    """Return the content of JSON that all readers read alike: keys come once, numbers are finite.

    Raises:
        InputError: it is none.
    """
    try:
        return load(text)
    except ValueError as error:
        raise InputError(
            where, f"this is not JSON that can be read ({str(error)[:200]}).", RESTORE
        ) from None


@contextmanager
def _validating(where: str) -> Generator[None, None, None]:
    """Turn a validation error into one that names the first field, without repeating its value."""
    try:
        yield
    except ValidationError as error:
        first: Any = error.errors(include_input=False, include_url=False)[0]
        if isinstance(unusable := first.get("ctx", {}).get("error"), InputError):
            raise unusable from None  # a plug-in that run.json names
        clashing = (first["ctx"]["field"],) if first["type"] == "clash" else ()
        field = ".".join(str(part)[:60] for part in (*first["loc"], *clashing)[:8])
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        place = f"{where}: {field}" if field else where
        raise InputError(place, f"{first['msg']}{more}.", RESTORE) from None
