"""Is this a whole run directory, and the one that was written?"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Self

import numpy as np
from typing_extensions import override

from dpaudit.auditing.checks.evidence import (
    AuditedRun,
    BatchEvidence,
    ByBatch,
    Evidence,
    first_alike,
    input_problem,
)
from dpaudit.auditing.checks.partition import Placement
from dpaudit.auditing.checks.registry import Outcome, RunCheck
from dpaudit.auditing.checks.release import Texts
from dpaudit.auditing.checks.steps import BatchView, StepsView
from dpaudit.results import Finding, Place, Value
from dpaudit.runs import InputError, KnownDigests, RunReader, commitment_of
from dpaudit.runs.batches import DIGEST_BYTES
from dpaudit.runs.commitment import SETTLED
from dpaudit.runs.journal import Journal
from dpaudit.runs.layout import (
    ASSIGNMENT,
    CANARIES,
    CLUSTERS,
    HASHES,
    MANIFEST,
    SAMPLES,
    STEPS,
    TOKENIZER,
    batch_of,
    most_bytes,
    steps_file,
)

_RESTORE = Finding(code="file.restore")
_SWAPPED = Finding(code="integrity.swapped")
#: Logarithm of the probability below which two texts do not draw the same tokens by chance, many as
#: they may be.
_NO_COINCIDENCE = -30.0
_NAMES = {MANIFEST, SAMPLES, ASSIGNMENT, CLUSTERS, CANARIES, TOKENIZER}


class _FileDigest(BatchEvidence):
    """SHA-256 of a batch's file, in hexadecimal."""

    def __init__(self, batch: BatchView) -> None:
        self._digest = batch.record.digest()

    @override
    def look(self, view: StepsView) -> None:
        """Look at nothing: the digest is of the whole file."""

    @override
    def result(self) -> str:
        return self._digest


class Hashes(Evidence):
    """The file `hashes`, against which each batch's file is held as it is read.

    Attributes:
        left: digests, by name, of all files but those of batches that were found to be equal.
        equal: whether each batch that was read has the file that is recorded.
        empty: whether no file is recorded.
    """

    def __init__(self, journal: Journal | InputError) -> None:
        """`journal`: the content of the file, or why it cannot be read."""
        self._journal = journal
        self.left = {} if isinstance(journal, InputError) else journal.digests
        self.equal: ByBatch[bool] = ByBatch([])
        self.empty = not self.left

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        try:
            return cls(run.reader.hashes())
        except InputError as error:
            return cls(error)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return _FileDigest(batch)

    @override
    def merge(self, batch: int, found: str) -> None:
        name = steps_file(batch)
        self.equal.add(batch, self.left.get(name) == found)
        if self.equal[batch]:
            del self.left[name]

    @property
    def journal(self) -> Journal:
        """The content of the file, without the entries of batches that were found to be equal.

        Raises:
            InputError: it cannot be read.
        """
        if isinstance(self._journal, InputError):
            raise self._journal
        return self._journal

    def has(self, name: str) -> bool:
        """Return whether the file has an entry of this name."""
        batch = batch_of(name.removeprefix(f"{STEPS}/"))
        if batch is None or name != steps_file(batch):
            return name in self.left
        return name in self.left or self.equal.get(batch, False)

    def files(self, *, equal: bool) -> Iterator[str]:
        """Yield the names of batches' files that are those recorded, or that are not."""
        return (steps_file(batch) for batch, found in self.equal.items() if found == equal)


class Indexes(Evidence):
    """The reading of files beside run.json and the steps; unreadable ones are noted.

    It begins after `Placement` and `Hashes`, which read files of their own.
    """

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        run.unreadable |= _unreadable_indexes(run.reader, run[Placement], run[Hashes])
        return cls()


@RunCheck(id="integrity.format", gathers=(Placement, Hashes, Indexes))
def files_can_be_read(run: AuditedRun) -> Outcome:
    """Look for a file that has not the shapes and types that the format gives it."""
    if run.unreadable:
        first = next(iter(run.unreadable.values()))
        return Outcome("fail", "unreadable", {"files": len(run.unreadable), "first": first})
    return Outcome("pass", "readable", {"batches": len(run.headers)})


def _unreadable_indexes(
    reader: RunReader, placement: Placement, hashes: Hashes
) -> Iterator[tuple[str, Finding]]:
    """Yield the files beside run.json and the steps that cannot be read to the end, and why not."""
    contents: dict[str, Callable[[], object]] = {
        SAMPLES: reader.samples,
        HASHES: lambda: hashes.journal,
        CLUSTERS: reader.clusters,
        CANARIES: reader.canaries,
        TOKENIZER: reader.tokenizer,
    }
    for name, read in contents.items():
        if name == CLUSTERS and placement.unreadable is not None and reader.has(ASSIGNMENT):
            yield ASSIGNMENT, placement.unreadable
        try:
            if reader.has(name):
                content = read()
                if isinstance(content, Iterator):
                    deque(content, maxlen=0)  # all lines, keeping none
        except InputError as error:
            yield name, input_problem(error, name)


@RunCheck(id="integrity.hashes", gathers=(Hashes,))
def digests_match(run: AuditedRun) -> Outcome:
    """Hold SHA-256 of every file on disk against the file `hashes`, in both directions."""
    hashes, read = run[Hashes], HASHES
    try:
        journal = hashes.journal
        present = run.reader.files()
        # Neither what integrity.format refused nor what no format has is hashed: it may be of any
        # size.
        fit = [
            name for name in present if most_bytes(name) is not None and name not in run.unreadable
        ]
        compared = [name for name in fit if hashes.has(name)]
        others, altered = set(hashes.files(equal=False)), list[str]()
        for read in compared:
            recorded = hashes.left.get(read)
            if recorded is not None and (read in others or run.digest(read) != recorded):
                altered.append(read)
        replayed = None if run.replayed is None else run.replayed.head
        since = replayed is not None and replayed != journal.head
    except InputError as error:
        return Outcome("fail", "unreadable", {"problem": input_problem(error, read)})
    there = set(present)
    missing = sorted(hashes.left.keys() - there)
    missing += [name for name in hashes.files(equal=True) if name not in there]
    added = [name for name in present if not hashes.has(name)]
    unknown = [name for name in present if name not in _NAMES and not name.startswith(f"{STEPS}/")]
    found = [("integrity.altered", name) for name in altered]
    found += [("integrity.other-run", "")] * since
    found += [("integrity.missing", name) for name in missing]
    found += [("integrity.added", name) for name in added]
    found += [("integrity.foreign", name) for name in unknown if hashes.has(name)]
    if found:
        code, name = found[0]
        first = _about(code, name) if name else Finding(code=code)
        mend = _RESTORE if altered or missing or hashes.empty else Finding(code="integrity.remove")
        return Outcome("fail", "different", {"differences": len(found), "first": first}, (mend,))
    return Outcome("pass", "equal", {"files": len(compared)})


@RunCheck(id="integrity.commitment", gathers=(Hashes,))
def run_is_what_was_committed_to(run: AuditedRun) -> Outcome:
    """Compare the digest of all that was settled before the first token with the one stated.

    A commitment and a head that the audit was given are held against the run's, too.
    """
    stated, held = run.manifest.commitment, run.known_digests
    values: dict[str, Value] = (
        {} if held == KnownDigests() else {"beside": Finding(code="integrity.digests-given")}
    )
    unread = [name for name in (*SETTLED, HASHES) if name in run.unreadable]
    if unread:
        return Outcome("skip", "unread", values | {"file": unread[0]})
    try:
        present = [name for name in SETTLED if run.reader.has(name)]
        recomputed = commitment_of(run.manifest, {name: run.digest(name) for name in present})
        journal = run[Hashes].journal
    except InputError as error:
        return Outcome("skip", "unreadable", values | {"problem": input_problem(error)})
    if run.manifest.nonce is None:
        return Outcome("fail", "no-nonce", values)
    if recomputed != stated:
        return Outcome("fail", "changed", values)
    if held.commitment not in (None, recomputed):
        swapped = journal.batches_by(held.commitment) is not None
        return Outcome("fail", "other-commitment", values, (_SWAPPED,) * swapped)
    entries = None if held.head is None else journal.batches_by(held.head)
    if held.head is not None and entries is None:
        return Outcome("fail", "other-head", values, (_SWAPPED,) * (held.head == recomputed))
    if held == KnownDigests():
        return Outcome("pass", "holds", values)
    values["given"] = ("commitment",) * (held.commitment is not None) + ("head",) * (
        held.head is not None
    )
    if entries is not None and held.head != journal.head:
        values |= {"entries": entries, "batches": len(run.headers)}
    return Outcome("pass", "given-holds", values)


@RunCheck(id="integrity.redrawn", gathers=(Hashes,))
def finished_batches_stay(run: AuditedRun) -> Outcome:
    """Count each batch's entries in `hashes`, and the batches declared as drawn again."""
    try:
        journal = run[Hashes].journal
    except InputError as error:
        return Outcome("skip", "unreadable", {"problem": input_problem(error, HASHES)})
    redrawn = sorted({*journal.redrawn, *run.manifest.redrawn})
    if redrawn:
        return Outcome(
            "fail", "redrawn", {"redrawn": len(redrawn), "first": Place(batch=redrawn[0])}
        )
    return Outcome("pass", "once")


class _Likenesses(BatchEvidence):
    """SHA-256 of a batch's aggregates and tokens, by text.

    Texts that another could equal by chance are left out.
    """

    def __init__(self, batch: BatchView) -> None:
        record = batch.record
        self.found: list[tuple[int, bytes]] = []
        for number, span in enumerate(record.spans if batch.header.contexts else ()):
            if sum(record.log_probabilities[span].tolist()) < _NO_COINCIDENCE:
                self.found.append((number, record.likeness(span)))

    @override
    def look(self, view: StepsView) -> None:
        """Look at nothing: tokens and digests are known when the batch is opened."""


class Copies(Evidence):
    """Texts that repeat another one, aggregates and tokens.

    Attributes:
        copies: once all batches are merged, these texts, each with the first one that it repeats.
    """

    partial = True

    def __init__(self) -> None:
        self.copies: list[Finding] = []
        # Of each text that is held against others, its batch, its number, and its likeness.
        self._texts, self._likenesses = array("q"), bytearray()

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return _Likenesses(batch)

    @override
    def merge(self, batch: int, found: _Likenesses) -> None:
        for number, likeness in found.found:
            self._texts.extend((batch, number))
            self._likenesses += likeness

    @override
    def end(self) -> None:
        original = first_alike(np.frombuffer(self._likenesses, dtype=f"V{DIGEST_BYTES}"))
        self.copies = [
            Finding(
                code="integrity.copied",
                values={"text": self._place(text), "original": self._place(int(original[text]))},
            )
            for text in np.flatnonzero(original != np.arange(len(original))).tolist()
        ]
        del self._texts, self._likenesses

    def _place(self, text: int) -> Place:
        batch, number = self._texts[2 * text : 2 * text + 2]
        return Place(batch=batch, text=number)


@RunCheck(id="integrity.complete", gathers=(Copies, Texts))
def batches_are_complete(run: AuditedRun) -> Outcome:
    """Compare declared batches with those on disk, and batches' texts with samples.jsonl."""
    declared = run.manifest.batches
    values: dict[str, Value] = {"declared": declared}
    mend = _RESTORE if run.reader.has(HASHES) else Finding(code="file.resume")
    missing = [name for name in (SAMPLES, HASHES) if not run.reader.has(name)]
    if missing:
        return Outcome("fail", "unfinished", values | {"file": missing[0]}, (mend,))
    lost = [name for name in (ASSIGNMENT, CLUSTERS) if not run.reader.has(name)]
    if lost:
        return Outcome("fail", "missing", values | {"file": lost[0]}, (_RESTORE,))
    try:
        on_disk = run.reader.batches
    except InputError as error:
        return Outcome(
            "fail", "unreadable", values | {"file": STEPS, "problem": input_problem(error)}
        )
    gap = next(
        (expected_id for expected_id, found in enumerate(on_disk) if expected_id != found),
        len(on_disk),
    )
    values["found"] = len(on_disk)
    if gap < declared:
        return Outcome("fail", "batch-missing", values | {"first": Place(batch=gap)}, (mend,))
    if len(on_disk) != declared:
        return Outcome(
            "fail", "batch-undeclared", values | {"first": Place(batch=on_disk[-1])}, (mend,)
        )
    if copies := run[Copies].copies:
        return Outcome(
            "fail", "copied", values | {"copies": len(copies), "first": copies[0]}, (_RESTORE,)
        )
    stray = [
        name
        for name in run.reader.files()
        if name.startswith("steps/") and batch_of(name[6:]) is None
    ]
    if stray:
        return Outcome("fail", "half-written", values | {"files": len(stray)}, (mend,))
    return _texts_are_complete(run, values)


def _texts_are_complete(run: AuditedRun, values: dict[str, Value]) -> Outcome:
    """Compare the texts in samples.jsonl with those of the batches on disk, the declared ones."""
    seen: set[tuple[int, int]] = set()
    try:
        for sample in run.reader.samples():
            text = sample.id, sample.number
            known = sample.id in run[Texts].numbers
            beyond = known and sample.number >= run[Texts].number_in(sample.id)
            if text in seen or beyond or sample.id not in range(run.manifest.batches):
                place = Place(batch=sample.id, text=sample.number)
                return Outcome(
                    "fail", "text-unknown", values | {"file": SAMPLES, "text": place}, (_RESTORE,)
                )
            seen.add(text)
    except InputError as error:
        return Outcome(
            "fail", "unreadable", values | {"file": SAMPLES, "problem": input_problem(error)}
        )
    lines = Counter(batch for batch, _ in seen)
    for batch in run.reader.batches:
        # How many texts a batch has that could not be read, nobody knows: one at least.
        due = run[Texts].number_in(batch) or max(1, lines[batch])
        if lines[batch] != due:
            found: dict[str, Value] = {
                "found": lines[batch],
                "due": due,
                "batch": Place(batch=batch),
                "file": SAMPLES,
            }
            return Outcome("fail", "texts-missing", values | found, (_RESTORE,))
    return Outcome("pass", "complete", values | {"texts": len(seen)})


def _about(code: str, file: str) -> Finding:
    return Finding(code=code, values={"file": file})
