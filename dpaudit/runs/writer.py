"""Run directories being written. Any generator can use this to have its runs audited.

    with RunWriter.create(path, manifest, tokenizer_json=None, assignment=[]) as run:
        with run.batch(BatchHeader(id=0, contexts=n)) as batch:
            batch.write(Step(...))
            batch.finish(text=None, stop="max-tokens")
        run.finish(claim)

Each batch appears under its name in one step once all of it is on disk, and the file `hashes`
appears last: a writer that is killed leaves a directory that `resume` continues, at the first batch
that is not whole. From then on a whole batch's digest stands in `journal`: `resume` draws it again
only if it is told to, and the run says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from dpaudit.errors import InputError
from dpaudit.runs import layout
from dpaudit.runs.assignment import Assigned
from dpaudit.runs.batches import BatchHeader, BatchWriter
from dpaudit.runs.canaries import Canaries
from dpaudit.runs.clusters import clusters_problem
from dpaudit.runs.commitment import SETTLED, commitment_of, new_nonce
from dpaudit.runs.journal import Journal
from dpaudit.runs.layout import MAX_CLUSTERS_BYTES
from dpaudit.runs.manifest import MAX_CONTEXTS, Claim, Clusters, Manifest
from dpaudit.runs.reader import FolderReader, RunReader, whole_batches
from dpaudit.runs.storage import RESTORE, Location, Storage, open_storage

#: The files whose digests the journal begins with.
_FIRST = (*SETTLED, layout.CANARIES)


class BatchExistsError(ValueError):
    """A batch is whole already: this process or another wrote it, and what it wrote stays."""

    def __init__(self, batch: int) -> None:
        super().__init__(f"batch {batch} is already whole")
        self.batch = batch

    def __reduce__(self) -> tuple[type[BatchExistsError], tuple[int]]:
        return type(self), (self.batch,)


@dataclass(frozen=True)
class BatchStore:
    """The batches of a run that `RunWriter` started, writable from other processes.

    Any process that reaches the run's location can write them.

    It can be pickled and sent there. It takes no lock: a batch that two processes write is the
    first one's.
    """

    location: str
    manifest: Manifest

    @property
    def whole(self) -> tuple[int, ...]:
        """The ids of the whole batches, by all writers; ascending."""
        return whole_batches(open_storage(self.location))

    @contextmanager
    def batch(self, header: BatchHeader) -> Iterator[BatchWriter]:
        """Write one batch: the block's end publishes it after `finish`, and drops it otherwise.

        Several may be open at a time.

        Raises:
            BatchExistsError: it is whole already, at the start or since then.
            InputError: the storage is full or refuses to be written.
            ValueError: the manifest has no such batch.
        """
        if not 0 <= header.id < self.manifest.batches:
            raise ValueError(
                f"batch {header.id} is not among the manifest's {self.manifest.batches} batches"
            )
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
    """One run directory being written. It holds a lock on it until it is closed.

    Attributes:
        location: the run directory, as other processes can open it.
        manifest: what run.json holds.
        store: writes batches; other processes may be given it. Their batches are in the journal
            after `note` or `close`.
    """

    def __init__(
        self, storage: Storage, manifest: Manifest, journal: Journal, lock: ExitStack
    ) -> None:
        """Use `create` or `resume` instead."""
        self._storage, self._journal, self._lock = storage, journal, lock
        self._lost: set[int] = set()
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
            manifest: all that is known beforehand; `claim` only if it is fixed beforehand. Nonce
                and commitment are made here: `self.manifest.commitment` is there before the first
                batch.
            tokenizer_json: the tokenizer in the form of the `tokenizers` library, with which an
                auditor decodes the released tokens. None for a run that releases token ids without
                text.
            assignment: where each record went, in ascending order of digests.
            clusters: what the file of that name holds; None for a run without a clustering.
            canaries: likewise, whose coins `manifest.canaries` commits to; None for a run without
                any.

        Raises:
            InputError: the directory holds something else, cannot be written, or another writer has
                it.
            ValueError: the assignment repeats a record or is out of order; or `clusters` or
                `canaries` is not what the manifest makes of it.
        """
        clusters = clusters or Clusters()
        if problem := clusters_problem(clusters, manifest):
            raise ValueError(f"clusters: {problem}")
        if (None if canaries is None else canaries.committed) != manifest.canaries:
            raise ValueError("canaries are not those that the manifest commits to")
        grouping = f"{clusters.model_dump_json()}\n"
        if len(grouping) > MAX_CLUSTERS_BYTES:
            raise ValueError(
                f"clusters takes {len(grouping)} bytes, and readers take {MAX_CLUSTERS_BYTES} at "
                "most"
            )
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
            digests = FolderReader(storage).digests(_FIRST)
            started = started.model_copy(update={"commitment": commitment_of(started, digests)})
            journal, lines = Journal(started), list[str]()
            for name, digest in digests.items():
                lines.append(journal.entry(digest, name))
                journal.add(digest, name)
            storage.write_text(layout.JOURNAL, lines)
            # Last: a directory without run.json is one that was never started.
            storage.write_text(layout.MANIFEST, [started.to_json()])
            return cls(storage, started, journal, lock.pop_all())

    @classmethod
    def resume(cls, location: Location, *, redraw: bool = False) -> RunWriter:
        """Continue a run that was not finished. Half-written files are dropped.

        Args:
            location: path or URL of the directory.
            redraw: whether batches that were finished, and whose files are gone or changed, may be
                drawn again. The run says so in its journal and in `redrawn` of run.json, and does
                not pass its audit.

        Raises:
            InputError: this is no run directory, its run is finished, what it began with was
                changed, a finished batch is gone or changed and not to be drawn again, or another
                writer has it.
        """
        storage, reader = open_storage(location), RunReader(location)
        _ = reader.batches  # refuses a directory without steps
        with ExitStack() as lock:
            lock.callback(storage.lock())
            if storage.exists(layout.HASHES):
                raise InputError(
                    storage.where(), "this run is finished.", "Audit it, or name a new directory."
                )
            # Before a token is spent on a run that could not pass.
            if (
                commitment_of(reader.manifest, reader.digests(SETTLED))
                != reader.manifest.commitment
            ):
                problem = (
                    f"{layout.MANIFEST} or one of {', '.join(SETTLED)} was changed after "
                    "the run began."
                )
                raise InputError(
                    storage.where(), problem, "Restore it from a copy, or name a new directory."
                )
            journal = reader.journal()
            lost = _lost_batches(reader, journal)
            if lost and not redraw:
                raise _redraw_error(reader, lost)
            _drop_partial(storage)
            # a crash has cut its last entry short
            if reader.digest(layout.JOURNAL) != journal.head:
                storage.write_text(
                    layout.JOURNAL, (f"{line}\n" for _, line in reader.journal_lines())
                )
            writer = cls(storage, reader.manifest, journal, lock.pop_all())
            writer._lost = set(lost)
            writer._note_whole()
            return writer

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Add whole batches to the journal, and release the directory."""
        with suppress(InputError):  # `resume` adds it then
            self._note_whole()
        self._lock.close()

    def keep_config(self, text: str) -> None:
        """Put the config that was made for the run beside its record, unless one is there."""
        if not self._storage.exists(layout.CONFIG):
            self._storage.write_text(layout.CONFIG, [text])

    @property
    def whole(self) -> tuple[int, ...]:
        """The ids of the whole batches, by all writers; ascending."""
        return self.store.whole

    @property
    def head(self) -> str:
        """The journal's running head, which later shows whether a batch until here was changed."""
        return self._journal.head

    @property
    def redrawn(self) -> tuple[int, ...]:
        """The ids of the finished batches that were drawn again, or are to be; ascending."""
        return tuple(sorted({*self._journal.redrawn, *self._lost}))

    @contextmanager
    def batch(self, header: BatchHeader) -> Iterator[BatchWriter]:
        """Write one batch, as `BatchStore.batch` does, and add it to the journal."""
        with self.store.batch(header) as batch:
            yield batch
        if batch.finished:
            self._note(header.id)

    def note(self, batch: int) -> None:
        """Add a whole batch of another process to the journal, and all others that are whole.

        Raises:
            InputError: the storage is full or refuses to be written.
        """
        if self._is_new(batch):
            self._note_whole()

    def _is_new(self, batch: int) -> bool:
        return batch in self._lost or layout.steps_file(batch) not in self._journal.digests

    def _note_whole(self) -> None:
        for batch in filter(self._is_new, self.whole):
            self._note(batch)

    def _note(self, batch: int) -> None:
        """Add a whole batch to the journal.

        Any earlier, a crash would make it look like one that is gone.
        """
        name = layout.steps_file(batch)
        digest = FolderReader(self._storage).digest(name)
        # under a committed seed the very same file may come back
        if self._journal.digests.get(name) != digest:
            self._storage.append(layout.JOURNAL, self._journal.entry(digest, name))
            self._journal.add(digest, name)
        self._lost.discard(batch)

    def stop_after(self, rounds: int) -> None:
        """End the run after `rounds` of its rounds.

        `finish` then asks for their batches, and says so in run.json.

        Raises:
            InputError: it is to end after others already, or a batch of a later round is there.
            ValueError: there are no later rounds.
        """
        batching, stopped = self.manifest.batching, self.manifest.stopped_after
        if not 1 <= rounds < batching.rounds:
            raise ValueError(f"a run of {batching.rounds} rounds cannot be stopped after {rounds}")
        where = self._storage.where(layout.STEPS)
        if stopped not in (None, rounds):
            problem = f"the run was already stopped after {stopped} rounds, not after {rounds}."
            raise InputError(where, problem, f"Continue with --stop-after {stopped}.")
        begun = max((*self.whole, *self._lost), default=-1) // batching.per_round + 1
        if begun > rounds:
            # What was drawn stays: texts may have been looked at, and each cost what it did.
            problem = (
                f"batches of round {begun} are already finished, so the run cannot stop "
                f"after {rounds} rounds."
            )
            last = begun == batching.rounds
            remedy = f"Continue with --stop-after {begun}."
            if last:
                remedy = "Leave out --stop-after: this is the last round."
            raise InputError(where, problem, remedy)
        self.manifest = self.manifest.model_copy(update={"stopped_after": rounds})
        self.store = BatchStore(self.location, self.manifest)

    def finish(self, claim: Claim | None = None) -> None:
        """Write samples.jsonl, the claim and `hashes`, the journal plus two entries, and close.

        Args:
            claim: the privacy statement to be audited; None keeps the one the manifest was created
                with.

        Raises:
            ValueError: a batch is missing, there is no claim, or a second one.
            InputError: a batch was deleted or changed since it was finished, or the storage refuses
                to be written.
        """
        missing = sorted(set(range(self.manifest.batches)).difference(self.whole))
        if lost := [batch for batch in missing if not self._is_new(batch)]:
            raise _redraw_error(RunReader(self.location), lost)
        if missing:
            raise ValueError(
                f"{len(missing)} batches are missing, the first is {missing[0]}: finish each of "
                "them first"
            )
        if (claim is None) == (self.manifest.claim is None):
            raise ValueError(
                "a run has exactly one claim: fixed beforehand in the manifest, or stated at the "
                "end"
            )
        self._note_whole()
        update: dict[str, object] = {"redrawn": self.redrawn}
        if claim is not None:
            update["claim"] = claim
        self.manifest = self.manifest.model_copy(update=update)
        _drop_partial(self._storage)
        reader = RunReader(self.location)
        entries = [f"{line}\n" for _, line in reader.journal_lines()]
        if hashlib.sha256("".join(entries).encode()).hexdigest() != self._journal.head:
            raise InputError(
                reader.where(layout.JOURNAL),
                "another process changed this file during the run.",
                RESTORE,
            )
        self._storage.write_text(layout.SAMPLES, _sample_lines(reader, self._journal))
        self._storage.write_text(layout.MANIFEST, [self.manifest.to_json()])
        for name in (layout.MANIFEST, layout.SAMPLES):
            digest = reader.digest(name)
            entries.append(self._journal.entry(digest, name))
            self._journal.add(digest, name)
        self._storage.write_text(layout.HASHES, entries)
        self._storage.remove(layout.JOURNAL)
        self._lock.close()


def require_unused(storage: Storage) -> None:
    """Refuse a directory that holds something, a run included, as `RunWriter.create` would.

    Raises:
        InputError: it does.
    """
    if storage.exists(layout.MANIFEST) or not _has_only_leftovers(storage):
        raise InputError(storage.where(), "the directory is not empty.", "Name a new one.")


def _has_only_leftovers(storage: Storage) -> bool:
    """Return whether the directory holds only what a killed `create` leaves before run.json."""
    own = {layout.STEPS, layout.ASSIGNMENT, layout.CLUSTERS, layout.CANARIES}
    own |= {layout.TOKENIZER, layout.JOURNAL, layout.MANIFEST, layout.LOCK}
    names = {entry.name for entry in storage.entries()}
    if any((layout.whole_name(name) or name) not in own for name in names):
        return False
    return layout.STEPS not in names or not storage.entries(layout.STEPS)


def _drop_partial(storage: Storage) -> None:
    """Delete half-written files.

    A process that is still at a batch, though it was taken for dead, fails.
    """
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


def _lost_batches(reader: RunReader, journal: Journal) -> list[int]:
    """Return the ids of finished batches whose files are gone or changed, ascending."""
    there, lost = set(reader.batches), list[int]()
    for name, digest in journal.digests.items():
        batch = layout.batch_of(name.removeprefix(f"{layout.STEPS}/"))
        if batch is not None and (batch not in there or reader.digest(name) != digest):
            lost.append(batch)
    return sorted(lost)


def _redraw_error(reader: RunReader, lost: list[int]) -> InputError:
    first = layout.steps_file(lost[0])
    found = "is another now" if reader.has(first) else "is gone"
    more = f" So with {len(lost) - 1} more." if len(lost) > 1 else ""
    problem = f"batch {lost[0]} was finished, and its file {found}.{more}"
    remedy = (
        "Restore it from a copy. Others cannot tell whether you draw it again because you saw "
        "the text: "
        "`dpaudit generate CONFIG.yaml --out RUN_DIR --unverified` does so, and the run says so "
        "and fails its audit."
    )
    return InputError(reader.where(first), problem, remedy)


def _sample_lines(reader: RunReader, journal: Journal) -> Iterator[str]:
    """Yield the lines of samples.jsonl, one per text.

    The step files are compared with their digests on the way.
    """
    for batch_id in reader.batches:
        with reader.batch(batch_id) as batch:
            if batch.digest() != journal.digests[layout.steps_file(batch_id)]:
                raise InputError(
                    batch.where,
                    "this file was changed after the batch was finished.",
                    "Restore it from a copy.",
                )
            yield from (sample.line() for sample in batch.samples())
