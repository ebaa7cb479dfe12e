"""Writes run directories. A generator of any kind can use it to have its runs audited.

    with RunWriter.create(path, manifest, tokenizer_json=None, assignment=[]) as run:
        with run.batch(BatchHeader(id=0, contexts=n)) as batch:
            batch.write(Step(...))
            batch.finish(text=None, stop="max-tokens")
        run.finish(claim)

Each batch appears under its name in one step once all of it is on disk, and the file `hashes` appears last: a writer
that is killed leaves a directory that `resume` goes on with, at the first batch that is not whole.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpaudit.runs import layout
from dpaudit.runs.assignment import Assigned
from dpaudit.runs.batches import BatchHeader, BatchWriter
from dpaudit.runs.errors import InputError
from dpaudit.runs.manifest import MAX_CONTEXTS, Claim, Manifest
from dpaudit.runs.reader import RunReader, sample_of


class RunWriter:
    """One run directory being written. Holds a lock on it until it is closed.

    Attributes:
        path: the run directory.
        manifest: what run.json holds.
    """

    def __init__(self, path: Path, manifest: Manifest, lock: int) -> None:
        """Not for callers: use `create` or `resume`."""
        self.path, self.manifest, self._lock = path, manifest, lock
        names = os.listdir(path / layout.STEPS)
        self._finished = {batch for batch in map(layout.batch_of, names) if batch is not None}

    @classmethod
    def create(
        cls, path: Path | str, manifest: Manifest, *, tokenizer_json: str | None, assignment: Iterable[Assigned]
    ) -> RunWriter:
        """Start a run in a new or empty directory, readable by its owner only.

        Args:
            path: the directory.
            manifest: all that is known beforehand; `claim` only if it is fixed beforehand.
            tokenizer_json: the tokenizer in the form of the `tokenizers` library, with which an auditor decodes
                the released tokens. None for a run that releases token ids without text.
            assignment: where each record went, in ascending order of digests.

        Raises:
            InputError: the directory holds something else, or another writer has it.
            ValueError: the assignment repeats a record or is out of order.
        """
        folder = Path(path)
        _make_directory(folder)
        lock = _lock(folder)
        try:
            if (folder / layout.MANIFEST).exists() or not _only_leftovers(folder):
                raise InputError(str(folder), "the directory is not empty.", "Name a new one, or resume the run in it.")
            folder.chmod(0o700)  # only now: a directory that is refused keeps its permissions
            shutil.rmtree(folder / layout.STEPS, ignore_errors=True)
            _make_directory(folder / layout.STEPS)
            if tokenizer_json is not None:
                _write(folder / layout.TOKENIZER, [tokenizer_json])
            _write(folder / layout.ASSIGNMENT, _assignment_lines(assignment))
            _write(folder / layout.CLUSTERS, [manifest.clustering.model_dump_json(indent=2), "\n"])
            fixed = "afterwards" if manifest.claim is None else "beforehand"
            started = manifest.model_copy(update={"claim_stated": fixed})
            # Last: a directory without run.json is one that was never started.
            _write(folder / layout.MANIFEST, [started.model_dump_json(indent=2), "\n"])
            return cls(folder, started, lock)
        except BaseException:
            os.close(lock)
            raise

    @classmethod
    def resume(cls, path: Path | str) -> RunWriter:
        """Go on with a run that was not finished. Half-written batches are dropped.

        Raises:
            InputError: this is no run directory, its run is finished, or another writer has it.
        """
        folder = Path(path)
        reader = RunReader(folder)
        _ = reader.batches  # refuses a directory without steps
        lock = _lock(folder)
        if (folder / layout.HASHES).exists():
            os.close(lock)
            raise InputError(str(folder), "this run is finished.", "Audit it, or name a new directory.")
        for name in os.listdir(folder / layout.STEPS):
            if name.endswith(layout.PARTIAL):
                os.unlink(folder / layout.STEPS / name)
        return cls(folder, reader.manifest, lock)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def finished(self) -> frozenset[int]:
        """Ids of the batches that are whole on disk."""
        return frozenset(self._finished)

    @contextmanager
    def batch(self, header: BatchHeader) -> Iterator[BatchWriter]:
        """Write one batch. It is published when the block ends, if `finish` was called, and dropped otherwise.

        Raises:
            ValueError: the manifest has no such batch, or it is already whole.
        """
        if not 0 <= header.id < self.manifest.batching.batches:
            raise ValueError(f"batch {header.id} is not among the manifest's {self.manifest.batching.batches} batches")
        if header.id in self._finished:
            raise ValueError(f"batch {header.id} is already whole")
        if not 0 <= header.contexts <= MAX_CONTEXTS:
            raise ValueError(f"a batch has 0 to {MAX_CONTEXTS} contexts, not {header.contexts}")
        path = self.path / layout.steps_file(header.id)
        partial = path.with_name(path.name + layout.PARTIAL)
        writer = BatchWriter(partial, self.manifest, header)
        try:
            yield writer
        finally:
            if not writer.finished:
                writer.discard()
                partial.unlink()
        if writer.finished:
            with open(partial, "rb") as file:
                os.fsync(file.fileno())
            layout.publish(partial, path)
            self._finished.add(header.id)

    def finish(self, claim: Claim | None = None) -> None:
        """Write samples.jsonl, the claim and the hashes, and close.

        Args:
            claim: the privacy statement to be audited; None keeps the one the manifest was created with.

        Raises:
            ValueError: a batch is missing, there is no claim, or a second one.
        """
        missing = set(range(self.manifest.batching.batches)) - self._finished
        if missing:
            raise ValueError(f"{len(missing)} batches are missing, the first is {min(missing)}")
        if (claim is None) == (self.manifest.claim is None):
            raise ValueError("a run has exactly one claim: fixed beforehand in the manifest, or stated at the end")
        if claim is not None:
            self.manifest = self.manifest.model_copy(update={"claim": claim})
        reader = RunReader(self.path)
        _write(self.path / layout.SAMPLES, _sample_lines(reader))
        _write(self.path / layout.MANIFEST, [self.manifest.model_dump_json(indent=2), "\n"])
        _write(self.path / layout.HASHES, (f"{reader.digest(name)}  {name}\n" for name in reader.files()))
        self.close()


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(str(path), f"cannot be used as a directory ({error.strerror}).", "Name another one.") from None


def _lock(path: Path) -> int:
    """Lock the directory itself, so that no lock file is left in the record."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(str(path), "another process is writing here.", "Wait for it, or name another one.") from None
    return handle


def _only_leftovers(path: Path) -> bool:
    """Whether the directory holds nothing but what `create` leaves when it is killed before run.json is there."""
    own = {layout.STEPS, layout.ASSIGNMENT, layout.CLUSTERS, layout.TOKENIZER}
    if any(name.removesuffix(layout.PARTIAL) not in own | {layout.MANIFEST} for name in os.listdir(path)):
        return False
    steps = path / layout.STEPS
    return not steps.exists() or not os.listdir(steps)


def _write(path: Path, parts: Iterable[str]) -> None:
    with layout.whole_file(path) as file:
        file.writelines(parts)


def _assignment_lines(assignment: Iterable[Assigned]) -> Iterator[str]:
    previous = ""
    for assigned in assignment:
        if assigned.digest <= previous:
            raise ValueError("the assignment lists each record once, in ascending order of digests")
        previous = assigned.digest
        yield assigned.line()


def _sample_lines(reader: RunReader) -> Iterator[str]:
    for batch_id in reader.batches:
        with reader.batch(batch_id) as batch:
            yield sample_of(batch).line()
