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

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

from dpaudit.runs import layout
from dpaudit.runs.assignment import Assigned
from dpaudit.runs.batches import BatchHeader, BatchWriter
from dpaudit.runs.canaries import Canaries
from dpaudit.runs.clusters import clusters_problem
from dpaudit.runs.commitment import SETTLED, commitment_of, new_nonce
from dpaudit.runs.errors import InputError
from dpaudit.runs.layout import MAX_CLUSTERS_BYTES
from dpaudit.runs.manifest import MAX_CONTEXTS, Claim, Clusters, Manifest
from dpaudit.runs.reader import FolderReader, RunReader, whole_batches
from dpaudit.runs.storage import Location, Storage, open_storage


class BatchExistsError(ValueError):
    """A batch is whole already: this process or another wrote it, and what it wrote stays."""

    def __init__(self, batch: int) -> None:
        super().__init__(f"batch {batch} is already whole")
        self.batch = batch

    def __reduce__(self) -> tuple[type[BatchExistsError], tuple[int]]:
        return type(self), (self.batch,)


@dataclass(frozen=True)
class BatchStore:
    """Writes the batches of a run that `RunWriter` started, from any process that reaches its location.

    It can be pickled and sent there. It takes no lock: a batch that two processes write is the first one's.
    """

    location: str
    manifest: Manifest

    @property
    def whole(self) -> tuple[int, ...]:
        """Ids of the batches that are whole, whoever wrote them; ascending."""
        return whole_batches(open_storage(self.location))

    @contextmanager
    def batch(self, header: BatchHeader) -> Iterator[BatchWriter]:
        """Write one batch. It is published when the block ends, if `finish` was called, and dropped otherwise.

        Several may be open at a time.

        Raises:
            BatchExistsError: it is whole already, at the start or since then.
            InputError: the storage is full or refuses to be written.
            ValueError: the manifest has no such batch.
        """
        if not 0 <= header.id < self.manifest.batching.batches:
            raise ValueError(f"batch {header.id} is not among the manifest's {self.manifest.batching.batches} batches")
        if not 0 <= header.contexts <= MAX_CONTEXTS:
            raise ValueError(f"a batch has 0 to {MAX_CONTEXTS} contexts, not {header.contexts}")
        storage, name = open_storage(self.location), layout.steps_file(header.id)
        if storage.exists(name):
            raise BatchExistsError(header.id)
        with storage.building(name) as built:
            writer = BatchWriter(built, self.manifest, header)
            try:
                yield writer
            finally:
                writer.discard()
            if writer.finished:
                try:
                    storage.publish(built, name, replace=False)
                except FileExistsError:
                    raise BatchExistsError(header.id) from None


class RunWriter:
    """One run directory being written. Holds a lock on it until it is closed.

    Attributes:
        location: the run directory, as other processes can open it.
        manifest: what run.json holds.
        store: writes batches; other processes may be given it.
    """

    def __init__(self, storage: Storage, manifest: Manifest, lock: ExitStack) -> None:
        """Not for callers: use `create` or `resume`."""
        self._storage, self._lock = storage, lock
        self.location, self.manifest = storage.location, manifest
        self.store = BatchStore(storage.location, manifest)

    @classmethod
    def create(
        cls,
        location: Location,
        manifest: Manifest,
        *,
        tokenizer_json: str | None,
        assignment: Iterable[Assigned],
        clusters: Clusters | None = None,
        canaries: Canaries | None = None,
    ) -> RunWriter:
        """Start a run in a new or empty directory, readable by its owner only.

        Args:
            location: path or URL of the directory.
            manifest: all that is known beforehand; `claim` only if it is fixed beforehand. Nonce and commitment are
                made here: `self.manifest.commitment` is there before the first batch.
            tokenizer_json: the tokenizer in the form of the `tokenizers` library, with which an auditor decodes
                the released tokens. None for a run that releases token ids without text.
            assignment: where each record went, in ascending order of digests.
            clusters: what the file of that name holds; None for a run without a clustering.
            canaries: likewise, whose coins `manifest.canaries` commits to; None for a run without any.

        Raises:
            InputError: the directory holds something else, cannot be written, or another writer has it.
            ValueError: the assignment repeats a record or is out of order; or `clusters` or `canaries` is not
                what the manifest makes of it.
        """
        clusters = clusters or Clusters()
        if problem := clusters_problem(clusters, manifest):
            raise ValueError(f"clusters: {problem}")
        if (None if canaries is None else canaries.committed) != manifest.canaries:
            raise ValueError("canaries are not those that the manifest commits to")
        grouping = f"{clusters.model_dump_json()}\n"
        if len(grouping) > MAX_CLUSTERS_BYTES:
            raise ValueError(f"clusters takes {len(grouping)} bytes, and readers take {MAX_CLUSTERS_BYTES} at most")
        storage = open_storage(location)
        with ExitStack() as lock:
            lock.callback(storage.lock())
            require_unused(storage)
            storage.claim()  # only now: a directory that is refused keeps its permissions
            _drop_partial(storage)
            if tokenizer_json is not None:
                storage.write_text(layout.TOKENIZER, [tokenizer_json])
            storage.write_text(layout.ASSIGNMENT, _assignment_lines(assignment))
            storage.write_text(layout.CLUSTERS, [grouping])
            if canaries is not None:
                storage.write_text(layout.CANARIES, [canaries.line])
            fixed = "afterwards" if manifest.claim is None else "beforehand"
            started = manifest.model_copy(update={"claim_stated": fixed, "nonce": new_nonce()})
            digests = FolderReader(storage).digests(SETTLED)
            started = started.model_copy(update={"commitment": commitment_of(started, digests)})
            # Last: a directory without run.json is one that was never started.
            storage.write_text(layout.MANIFEST, [started.model_dump_json(indent=2), "\n"])
            return cls(storage, started, lock.pop_all())

    @classmethod
    def resume(cls, location: Location) -> RunWriter:
        """Go on with a run that was not finished. Half-written files are dropped.

        Raises:
            InputError: this is no run directory, its run is finished, what it began with was changed, or another
                writer has it.
        """
        storage, reader = open_storage(location), RunReader(location)
        _ = reader.batches  # refuses a directory without steps
        with ExitStack() as lock:
            lock.callback(storage.lock())
            if storage.exists(layout.HASHES):
                raise InputError(storage.where(), "this run is finished.", "Audit it, or name a new directory.")
            # Before a token is spent on a run that could not pass.
            if commitment_of(reader.manifest, reader.digests(SETTLED)) != reader.manifest.commitment:
                problem = f"{layout.MANIFEST} or one of {', '.join(SETTLED)} is not as it was when the run began."
                raise InputError(storage.where(), problem, "Restore it from a copy, or name a new directory.")
            _drop_partial(storage)
            return cls(storage, reader.manifest, lock.pop_all())

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        self._lock.close()

    @property
    def finished(self) -> frozenset[int]:
        """Ids of the batches that are whole, whoever wrote them."""
        return frozenset(self.store.whole)

    def batch(self, header: BatchHeader) -> AbstractContextManager[BatchWriter]:
        """Write one batch, as `BatchStore.batch` does."""
        return self.store.batch(header)

    def finish(self, claim: Claim | None = None) -> None:
        """Write samples.jsonl, the claim and the hashes, and close.

        Args:
            claim: the privacy statement to be audited; None keeps the one the manifest was created with.

        Raises:
            ValueError: a batch is missing, there is no claim, or a second one.
        """
        missing = set(range(self.manifest.batching.batches)) - self.finished
        if missing:
            raise ValueError(
                f"{len(missing)} batches are missing, the first is {min(missing)}: finish each of them first"
            )
        if (claim is None) == (self.manifest.claim is None):
            raise ValueError("a run has exactly one claim: fixed beforehand in the manifest, or stated at the end")
        if claim is not None:
            self.manifest = self.manifest.model_copy(update={"claim": claim})
        _drop_partial(self._storage)
        reader, digests = RunReader(self.location), dict[str, str]()
        self._storage.write_text(layout.SAMPLES, _sample_lines(reader, digests))
        self._storage.write_text(layout.MANIFEST, [self.manifest.model_dump_json(indent=2), "\n"])
        lines = (f"{digests.get(name) or reader.digest(name)}  {name}\n" for name in reader.files())
        self._storage.write_text(layout.HASHES, lines)
        self.close()


def require_unused(storage: Storage) -> None:
    """Raises InputError where a directory holds something, a run included: `RunWriter.create` would refuse it."""
    if storage.exists(layout.MANIFEST) or not _only_leftovers(storage):
        raise InputError(storage.where(), "the directory is not empty.", "Name a new one.")


def _only_leftovers(storage: Storage) -> bool:
    """Whether the directory holds nothing but what `create` leaves when it is killed before run.json is there."""
    own = {layout.STEPS, layout.ASSIGNMENT, layout.CLUSTERS, layout.CANARIES}
    own |= {layout.TOKENIZER, layout.MANIFEST, layout.LOCK}
    names = {entry.name for entry in storage.entries()}
    if any((layout.whole_name(name) or name) not in own for name in names):
        return False
    return layout.STEPS not in names or not storage.entries(layout.STEPS)


def _drop_partial(storage: Storage) -> None:
    """Delete half-written files; a process that is still at a batch, though it was taken for dead, fails."""
    for folder, prefix in (("", ""), (layout.STEPS, f"{layout.STEPS}/")):
        for entry in storage.entries(folder):
            if not entry.folder and layout.whole_name(entry.name):
                storage.remove(prefix + entry.name)


def _assignment_lines(assignment: Iterable[Assigned]) -> Iterator[str]:
    previous = ""
    for assigned in assignment:
        if assigned.digest <= previous:
            raise ValueError("the assignment lists each record once, in ascending order of digests")
        previous = assigned.digest
        yield assigned.line()


def _sample_lines(reader: RunReader, digests: dict[str, str]) -> Iterator[str]:
    """The lines of samples.jsonl: a text each. Takes the digests of the step files on the way."""
    for batch_id in reader.batches:
        with reader.batch(batch_id) as batch:
            digests[layout.steps_file(batch_id)] = batch.digest()
            yield from (sample.line() for sample in batch.samples())
