"""One pass over a run's batches, perhaps in several processes; their findings are merged in order.

Nothing here knows which evidence there is: checks say what they gather, and reports name their
sums.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.auditing.budgets import BudgetSums
from dpaudit.auditing.caveats import EqualContexts
from dpaudit.auditing.checks import steps
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence, input_problem
from dpaudit.auditing.checks.registry import (
    Gathered,
    absent_checks,
    gathered,
    held_apart,
    loaded_here,
)
from dpaudit.auditing.checks.steps import BatchView, RunView, StepsView, looked_at_together
from dpaudit.auditing.guarantees import CurveSums
from dpaudit.auditing.samples import ExpensiveTokens
from dpaudit.mechanisms import ContextChange
from dpaudit.plugins import FAILURES, PlugIn, failure_of
from dpaudit.results import Finding
from dpaudit.runs import BatchHeader, InputError, RunReader
from dpaudit.runs.engines import Engine, LocalEngine, cores
from dpaudit.runs.layout import STEPS, steps_file
from dpaudit.runs.storage import is_url

Progress = Callable[[int, int], None]

#: What is gathered for reports and caveats, beside what checks look at.
_REPORTED: tuple[type[Evidence], ...] = (CurveSums, ExpensiveTokens, BudgetSums, EqualContexts)
#: Steps on disk that are worth a process: half a second's work at least, where starting one takes a
#: third of it.
PROCESS_BYTES = 1 << 24
#: Batches that are read together, at most.
MOST_AT_A_TIME = 16


def all_gathered() -> tuple[Gathered, ...]:
    """Return the evidence that an audit gathers, each kind once."""
    others = (each for each in gathered() if each.kind not in _REPORTED)
    return (*(Gathered(kind, None) for kind in _REPORTED), *others)


@dataclass
class BatchFound:
    """The content of one batch's file. Its size does not grow with the vocabulary.

    Attributes:
        id: the batch.
        unreadable: why it could not be read to its end; None if it could.
        header: None if it could not be opened.
        length: how many tokens it has.
        steps: how many of its steps were read.
        evidence: the findings, by the evidence that takes them in.
        unmade: why some could not be gathered.
        looked: the plug-ins whose checks looked at it.
    """

    id: int
    unreadable: Finding | None = None
    header: BatchHeader | None = None
    length: int = 0
    steps: int = 0
    evidence: dict[type[Evidence], Any] = field(default_factory=dict)
    unmade: dict[type[Evidence], InputError] = field(default_factory=dict)
    looked: frozenset[PlugIn] = frozenset()


class BatchAuditor:
    """A reader of one run's batches.

    What it says of a batch depends on that batch's file and on run.json alone.
    """

    def __init__(self, location: str, change: ContextChange | None) -> None:
        """Open the run at a location for the `change` of the ex-post cost.

        Without a bound, `change` is None.
        """
        self._reader = RunReader(location)
        self._view = RunView(self._reader, change)
        self._gathered, self._loaded = all_gathered(), loaded_here()
        self._at_a_time = MOST_AT_A_TIME
        _keep_freed_memory()

    def __call__(self, numbers: Sequence[int]) -> list[BatchFound]:
        """Read some batches: together, as many at a time as there is memory for, where it helps.

        What is found of each is the same, to the last bit, as alone.
        """
        found = list[BatchFound]()
        while len(found) < len(numbers):
            with ExitStack() as opened:
                batches, size = self._opened(numbers[len(found) :], opened)
                views = dict[int, StepsView]()
                if size <= 2 * steps.BLOCK_BYTES:
                    views = self._looked_at_together(batches.values())
                found += [self._read(each, batches[each], views.get(each)) for each in batches]
            if not batches:
                found.append(self._read(numbers[len(found)], None, None))
        return found

    def _opened(
        self, numbers: Sequence[int], opened: ExitStack
    ) -> tuple[dict[int, BatchView], int]:
        """Open the first of these batches, up to one that must be read by itself.

        Return the bytes of their steps, too.
        """
        found, taken = dict[int, BatchView](), 0
        for number in numbers[: self._at_a_time] if self._at_a_time > 1 else ():
            try:
                record = opened.enter_context(self._reader.batch(number))
                batch = BatchView(self._view, record)
                taken += batch.bytes
            except FAILURES:  # it is told where the batch is read alone
                break
            found[number] = batch
            if taken > steps.BLOCK_BYTES:
                break
        return found, taken

    def _looked_at_together(self, batches: Iterable[BatchView]) -> dict[int, StepsView]:
        """Return the views of those batches that can be looked at with others."""
        alike = defaultdict[tuple[int, bool], list[BatchView]](list)
        for batch in batches:
            alike[batch.header.contexts, batch.header.canary is None].append(batch)
        found = dict[int, StepsView]()
        for several in alike.values():
            views = None
            with suppress(*FAILURES):  # each alone says which of them fails, and why
                views = looked_at_together(several) if len(several) > 1 else []
            if views is None:
                self._at_a_time = 1  # nor will others be
            for batch, view in zip(several, views or (), strict=False):
                found[batch.header.id] = view
        return found

    def _read(self, number: int, batch: BatchView | None, view: StepsView | None) -> BatchFound:
        """Read a batch to its end, or to where that fails.

        It may be open, and all of its steps may be in view.
        """
        found = BatchFound(number, looked=self._loaded)
        looking = _Looking(found)
        try:
            with ExitStack() as opened:
                if batch is None:
                    batch = BatchView(self._view, opened.enter_context(self._reader.batch(number)))
                record = batch.record
                found.header, found.length = record.header, len(record.tokens)
                looking.begin(batch, self._gathered)
                for each in batch.blocks() if view is None else [view]:
                    found.steps += len(each)
                    # Corrupt values overflow and compare oddly; the checks say so in words, numpy
                    # need not.
                    with np.errstate(all="ignore"):
                        looking.look(each)
        except InputError as error:
            found.unreadable = input_problem(error, steps_file(number))
        except FAILURES as error:
            failure = failure_of(self._reader.manifest.plug_ins, error)
            if failure is None:
                raise
            found.unreadable = input_problem(failure, steps_file(number))
        looking.end()
        return found


def _keep_freed_memory() -> None:
    """Let glibc give what one group of batches frees to the next one, and not to the system.

    It keeps twice as much as the largest block of up to 32 MiB that was freed (mallopt(3),
    M_MMAP_THRESHOLD). Else every page of a group is faulted in anew, a tenth of the time.
    """
    np.empty((1 << 25) - (1 << 16), dtype=np.uint8)


def return_freed_memory() -> None:
    """Let glibc return what it keeps, for what follows the groups, or the checks, to take its room.

    See malloc_trim(3). Another C library keeps nothing.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class _Looking:
    """One batch's evidence in the making: dpaudit's own, and plug-ins', each of it held apart."""

    def __init__(self, found: BatchFound) -> None:
        self._found = found
        self._own: list[tuple[Gathered, BatchEvidence]] = []
        self._others: list[tuple[Gathered, BatchEvidence]] = []

    def begin(self, batch: BatchView, kinds: Iterable[Gathered]) -> None:
        for each in kinds:
            with held_apart(each, self._found.unmade):
                looking = each.kind.open(batch)
                if looking is not None:
                    (self._own if each.plug_in is None else self._others).append((each, looking))

    def look(self, view: StepsView) -> None:
        for _, looking in self._own:
            looking.look(view)
        for each, looking in self._others:
            with held_apart(each, self._found.unmade):
                looking.look(view)

    def end(self) -> None:
        whole = self._found.unreadable is None
        for each, looking in (*self._own, *self._others):
            if whole or each.kind.partial:
                with held_apart(each, self._found.unmade):
                    result = looking.result()
                    if result is not None:
                        self._found.evidence[each.kind] = result


def gather(run: AuditedRun, engine: Engine | None, progress: Progress | None) -> None:
    """Take in what every batch on disk says, in order.

    What cannot be read is noted and judged later.
    """
    kinds = all_gathered()
    for each in kinds:
        with held_apart(each, run.unmade):
            run.begin(each.kind)
    try:
        batches = run.reader.batches
    except InputError as error:
        run.unreadable[STEPS] = input_problem(error, STEPS)
        return
    make_auditor = partial(BatchAuditor, run.reader.location, run.change)
    engine = engine or _engine_for(run.reader)
    groups = _in_groups(batches, engine.workers if isinstance(engine, LocalEngine) else cores())
    with closing(engine.map(make_auditor, groups)) as found:
        for done, batch in enumerate(chain.from_iterable(found), start=1):
            _merge(run, batch, kinds)
            if progress:
                progress(done, run.manifest.batches)
    for each in kinds:
        if each.kind not in run.unmade:
            with held_apart(each, run.unmade):
                run[each.kind].end()
    return_freed_memory()


def _in_groups(batches: Sequence[int], workers: int) -> list[Sequence[int]]:
    """Return batches in tasks of several; if there are several workers, each has some tasks."""
    each = MOST_AT_A_TIME
    if workers > 1:
        each = max(1, min(each, len(batches) // (2 * workers)))
    return [batches[first : first + each] for first in range(0, len(batches), each)]


def _merge(run: AuditedRun, batch: BatchFound, kinds: Iterable[Gathered]) -> None:
    """Take in what one batch says."""
    if batch.unreadable is not None:
        run.unreadable[steps_file(batch.id)] = batch.unreadable
        run.cut_short.add(batch.id)
    if batch.header is None:
        return
    run.headers.add(batch.id, batch.header)
    run.lengths.add(batch.id, batch.length)
    run.steps += batch.steps
    run.unmade |= batch.unmade
    run.absent.update(absent_checks(batch.looked))
    for each in kinds:
        if each.kind in batch.evidence and each.kind not in run.unmade:
            with held_apart(each, run.unmade):
                run[each.kind].merge(batch.id, batch.evidence[each.kind])


def _engine_for(reader: RunReader) -> Engine:
    """Return an engine of all cores, but no more of them than there is work for."""
    workers = min(cores(), len(reader.batches))
    if not is_url(reader.location):  # else sizes would have to be asked for over the network
        size = 0
        for batch in reader.batches:
            with suppress(OSError):  # what is wrong with the file is told when it is read
                size += (Path(reader.location) / steps_file(batch)).lstat().st_size
            if size >= workers * PROCESS_BYTES:
                break
        workers = min(workers, size // PROCESS_BYTES)
    return LocalEngine(max(1, workers))
