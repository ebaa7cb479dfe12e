"""Generation of batches, several in a forward pass, into the run directory.

See Algorithm 1, lines 3 to 11.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dpaudit.accounting import ExPostAccountant
from dpaudit.generation.aggregation import NOTHING_PUBLIC, Floats, aggregated, contributions
from dpaudit.generation.events import BatchDone, BatchStarted, MemoryRanOut, Progress, StepDone
from dpaudit.generation.head import Head
from dpaudit.generation.model_probe import passes_for, public_passes
from dpaudit.generation.models import UNUSABLE_LOGITS, LanguageModel
from dpaudit.generation.partition import Batch
from dpaudit.generation.passes import CachedPrompts, Passes, logits_for, out_of_memory
from dpaudit.generation.prompts import Prompts
from dpaudit.generation.sampling import (
    CommittedStream,
    OsEntropy,
    RandomBytes,
    SeededStream,
    sample,
)
from dpaudit.generation.threads import each
from dpaudit.mechanisms import Arrays, PublicPart
from dpaudit.mechanisms.claims import CLAIM_KINDS
from dpaudit.runs import (
    BatchExistsError,
    BatchHeader,
    CommittedSeed,
    InputError,
    Manifest,
    RunReader,
    Step,
    aggregate_digest,
    without_stop,
)
from dpaudit.runs.engines import cores
from dpaudit.runs.manifest import StopReason

Doubles: TypeAlias = NDArray[np.float64]

#: Batches in the making at a time, where passes have more rows: each holds a file open.
MOST_OPEN = 256


class Record(Protocol):
    """The destination of a batch's steps and text: a `BatchWriter`, or one that keeps less."""

    def write(self, step: Step) -> None:
        """Append one step (`BatchWriter.write`)."""
        ...

    def end_text(self, *, text: str | None, stop: StopReason) -> None:
        """End a text at the last step (`BatchWriter.end_text`)."""
        ...

    def finish(self, *, text: str | None, stop: StopReason) -> None:
        """End the last text and close the batch (`BatchWriter.finish`)."""
        ...


class Store(Protocol):
    """The destination of batches: a `BatchStore`, or one that keeps less."""

    @property
    def location(self) -> str:
        """The place to read whole batches from, if there are any."""
        ...

    @property
    def manifest(self) -> Manifest:
        """The run's manifest."""
        ...

    @property
    def whole(self) -> tuple[int, ...]:
        """The ids of the whole batches, ascending."""
        ...

    def batch(self, header: BatchHeader) -> AbstractContextManager[Record]:
        """Write one batch (`BatchStore.batch`)."""
        ...


@dataclass(frozen=True)
class Finished:
    """A batch that is on disk.

    `spent` is as from `ExPostAccountant.detach`, or None without an accountant.
    """

    batch: int
    tokens: int
    spent: Doubles | None


@dataclass(eq=False)
class _Open:
    """A batch in the making.

    Attributes:
        tokens: of the text in the making.
        earlier: how many tokens its texts before that have.
        prompts: its contexts' prompts, from which every text begins; None while it waits for rows
            of a pass.
        private: the same with the tokens so far.
        public_prompt: the public prompt, likewise; None before it is needed.
        public: the same with the tokens so far.
        spent: what each context has spent of its budget, [n].
        budgets: what each may spend, [n]; None if each has the mechanism's.
    """

    batch: Batch
    record: Record
    closing: ExitStack
    source: RandomBytes
    tokens: list[int] = field(default_factory=list)
    earlier: int = 0
    prompts: CachedPrompts | None = None
    private: CachedPrompts | None = None
    public_prompt: CachedPrompts | None = None
    public: CachedPrompts | None = None
    spent: Doubles = field(init=False)
    budgets: Doubles | None = field(init=False)

    def __post_init__(self) -> None:
        self.spent = np.zeros(len(self.batch.contexts))
        self.budgets = None if self.batch.budgets is None else np.array(self.batch.budgets)

    @property
    def length(self) -> int:
        """The number of tokens of all its texts."""
        return self.earlier + len(self.tokens)

    def forget(self) -> None:
        """Let go of all caches, and wait for rows again."""
        self.prompts = self.private = self.public_prompt = self.public = None


class _Scored(NamedTuple):
    """A batch's step after the forward pass.

    Attributes:
        public: the step's part of the public prompt.
        logits: of the contexts, and of the batch's canary behind them.
        untaken: what is still to be taken of `public`: no support if the logits are over it.
    """

    batch: _Open
    public: PublicPart
    logits: torch.Tensor
    untaken: PublicPart


class _Prepared(NamedTuple):
    """A batch's step before its draw.

    Attributes:
        support: ids of the tokens to sample from, [S]; None for the whole vocabulary.
        arrays: the mechanism's.
        contributions: [n, S]; None unless contexts are recorded.
        spent_after: what contexts will have spent, [n]; None without budgets.
        canary: the contribution of the batch's canary, [S], if any.
    """

    batch: _Open
    support: NDArray[np.integer] | None
    arrays: Arrays
    contributions: Floats | None
    spent_after: Doubles | None
    canary: Floats | None


class Worker:
    """A generator of one run's batches, on one device.

    Attributes:
        accountant: adds up what tokens cost; None for a run that states its cost beforehand.
        rows: contexts in a forward pass; fewer once memory ran out.
    """

    def __init__(
        self,
        store: Store,
        batches: Sequence[Batch],
        model: LanguageModel,
        prompts: Prompts,
        seed: CommittedSeed | None = None,
    ) -> None:
        """Start with nothing generated.

        Args:
            batches: all of the run, by id.
            seed: of a run that commits to one.
        """
        self._seed = seed
        self._store, self._manifest, self._batches = store, store.manifest, batches
        self._model, self._prompts = model, prompts
        change = self._manifest.privacy.change(self._manifest.batching.rule)
        beforehand = CLAIM_KINDS[self._manifest.mechanism.claim_kind].beforehand
        self.accountant = (
            None
            if beforehand
            else ExPostAccountant(
                self._manifest.mechanism, change, self._manifest.batching.per_round
            )
        )
        self.rows = store.manifest.model.rows or 1
        self._head = Head.of(model.network) if self._manifest.mechanism.over_support else None
        self._passes: Passes | None = None
        self._public_passes: Passes | None = None
        self._open: list[_Open] = []

    def _recorded(self, batch: int, progress: Progress, *, resumed: bool = False) -> Finished:
        """Charge for a batch that is on disk already."""
        with RunReader(self._store.location).batch(batch) as reader:
            for step in reader.steps() if self.accountant else ():
                support = step.support
                index = step.token if support is None else int(np.searchsorted(support, step.token))
                self._charge(batch, dict(step.arrays), index)
            return self._finished(batch, len(reader.tokens), progress, resumed)

    def run(self, ids: Sequence[int], progress: Progress) -> Iterator[Finished]:
        """Generate the batches that are not on disk.

        Each is yielded when it is there, whichever ends first.

        Raises:
            InputError: the model's logits cannot be used, memory is too small for one batch, or the
                disk is full.
        """
        there = set(self._store.whole)
        for batch in (batch for batch in ids if batch in there):
            yield self._recorded(batch, progress, resumed=True)
        pending = deque(batch for batch in ids if batch not in there)
        try:
            while pending or self._open:
                while self._has_room(pending, progress):
                    if not self._waiting:
                        try:
                            self._begin(self._batches[pending.popleft()], progress)
                        except BatchExistsError as error:  # another worker has written it since
                            yield self._recorded(error.batch, progress)
                            continue
                    self._feed_prompts(self._waiting[0], progress)
                for current, stop in self._extend_batches(progress):
                    if (
                        stop is not None
                        and (done := self._end_text(current, stop, progress)) is not None
                    ):
                        yield done
                self._advance(progress)
        finally:
            for current in self._open:
                current.closing.close()
            self._open.clear()
            self._passes = self._public_passes = None

    @property
    def _waiting(self) -> list[_Open]:
        """Open batches without rows of a pass."""
        return [batch for batch in self._open if batch.private is None]

    def _has_room(self, pending: Sequence[int], progress: Progress) -> bool:
        """Return whether a batch needs rows, and there are enough for the first that does."""
        waiting = self._waiting
        if not waiting and (not pending or len(self._open) >= min(MOST_OPEN, self.rows)):
            return False
        first = waiting[0].batch if waiting else self._batches[pending[0]]
        while self._passes is None:
            try:
                prompts, longest = self._prompts, self._manifest.decoding.max_tokens
                self._passes = passes_for(
                    self._model, self.rows, prompts.places, longest, self._head
                )
                if self._manifest.needs_public:
                    self._public_passes = public_passes(self._model, prompts.public_places, longest)
            except Exception as error:
                self._halve_rows(error, progress)
        return self._passes.fits(len(first.shown))

    def _begin(self, batch: Batch, progress: Progress) -> None:
        """Open a batch's record."""
        contexts = len(batch.contexts)
        progress(BatchStarted(batch.id, self._manifest.batches))
        closing = ExitStack()
        canary = None if batch.canary is None else batch.canary.number
        header = BatchHeader(
            batch.id, contexts, batch.public_label, batch.cluster, batch.budgets, canary
        )
        record = closing.enter_context(self._store.batch(header))
        self._open.append(_Open(batch, record, closing, self._source(batch.id)))

    def _source(self, batch: int) -> RandomBytes:
        """Return what a batch's tokens are drawn with, from its first step on."""
        sampling, commitment = self._manifest.sampling, self._manifest.commitment
        if sampling.committed:
            assert self._seed is not None and commitment is not None, (
                "a run with a committed seed draws by no other"
            )
            return CommittedStream(self._seed, commitment, batch)
        if sampling.seed is None:
            return OsEntropy()
        return SeededStream(sampling.seed, batch)

    def _feed_prompts(self, batch: _Open, progress: Progress) -> None:
        """Give a batch rows of a pass, with its prompts and the tokens that it has."""
        assert self._passes is not None
        label = batch.batch.label
        try:
            prompts = self._prompts.start(self._passes, label, batch.batch.shown)
            private = prompts.fork() if self._several else prompts
            for token in batch.tokens:
                private.append(token)
            batch.prompts, batch.private = prompts, private
        except Exception as error:
            self._halve_rows(error, progress)

    def _advance(self, progress: Progress) -> None:
        """Continue running batches by their last tokens, or from the prompts after a text's end."""
        running: list[tuple[_Open, CachedPrompts, int]] = []
        try:
            for batch in self._open:
                if batch.prompts is not None and not batch.tokens:
                    batch.private, batch.public = batch.prompts.fork(), None
                elif batch.private is not None:
                    running.append((batch, batch.private, batch.tokens[-1]))
            public = [
                (batch.public, token) for batch, _, token in running if batch.public is not None
            ]
            if self._passes is not None and running:
                self._passes.advance([(private, token) for _, private, token in running])
            if self._public_passes is not None and public:
                self._public_passes.advance(public)
        except Exception as error:
            self._halve_rows(error, progress)

    def _halve_rows(self, error: Exception, progress: Progress) -> None:
        """If memory ran out, go on with half as many rows, and feed all prompts anew.

        Raise any other error.
        """
        if not out_of_memory(error):
            raise error
        if self.rows == 1:
            remedy = (
                "Use bfloat16, a smaller model or shorter prompts. Smaller batches would be a "
                "choice by the records: "
                "how many a batch has is private."
            )
            raise InputError(
                "model.rows", "memory is too small for one batch's contexts.", remedy
            ) from None
        self.rows //= 2
        self._passes = self._public_passes = None
        for batch in self._open:
            batch.forget()
        gc.collect()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()
        progress(MemoryRanOut(self.rows))

    def _extend_batches(self, progress: Progress) -> Iterator[tuple[_Open, StopReason | None]]:
        """Give each batch with rows a token, and say why it is its text's last one, if it is.

        As many batches as there are cores are at it together, a core each.
        """
        running = [batch for batch in self._open if batch.private is not None]
        for start in range(0, len(running), cores()):
            together = running[start : start + cores()]
            try:  # where memory runs out before anything is drawn, these steps are taken again
                scored = [self._score(batch) for batch in together]
                prepared = each(scored, self._prepare)
            except Exception as error:
                self._halve_rows(error, progress)
                return
            try:  # a second draw would be an answer more than is paid for: nothing is done again
                each(prepared, self._draw)
            except Exception as error:
                if not out_of_memory(error):
                    raise
                remedy = (
                    "Lower model.rows, and give the same command again: batches that are "
                    "whole are kept."
                )
                raise InputError(
                    "model.rows", "memory ran out while a token was recorded.", remedy
                ) from None
            for batch in together:
                progress(StepDone(batch.batch.id, batch.length))
                yield batch, self._manifest.decoding.reason(batch.tokens, batch.length)

    def _public(self, batch: _Open) -> PublicPart:
        """Return the public part of a batch's step."""
        manifest, label = self._manifest, batch.batch.label
        if not manifest.needs_public:
            return NOTHING_PUBLIC
        if batch.public_prompt is None:
            assert self._public_passes is not None
            prompt = self._prompts.public_tokens(label)
            batch.public_prompt = self._public_passes.start([prompt], prompt[:-1])
        if batch.public is None:
            public = batch.public_prompt.fork()
            for token in batch.tokens:
                public.append(token)
            batch.public = public
        logits = self._prompts.allowed(label, batch.tokens, batch.public.logits)
        with self._logits_of(batch):
            return manifest.mechanism.public_part(
                logits[0].cpu().numpy(), ruled=manifest.decoding.any
            )

    def _score(self, batch: _Open) -> _Scored:
        """Return the public part of a batch's step, and its contexts' logits.

        It runs on one thread: a second one that PyTorch computes on would be given threads of its
        own, and all of them, more than there are cores, would sleep and be woken between any two
        sums of a forward pass.
        """
        assert batch.private is not None
        public = self._public(batch)
        logits, untaken = logits_for(batch.private, public, self._manifest.mechanism)
        return _Scored(batch, public, logits, untaken)

    def _prepare(self, scored: _Scored) -> _Prepared:
        """Return what a batch samples its next token from (Algorithm 1, lines 6 and 7)."""
        batch, public, logits, untaken = scored
        mechanism, record = self._manifest.mechanism, self._manifest.record
        n, row = len(batch.batch.contexts), batch.batch.canary_row
        with self._logits_of(batch):
            given = None
            if record.contexts and len(logits):
                given = contributions(logits, untaken, mechanism.contribution)
            canary = None if given is None or row is None else given[row]
            # A canary that is out goes no further: neither to the aggregate nor to what is recorded
            # of contexts.
            logits = logits[:n]
            given = given[:n] if given is not None and n else None
            spent_after = None
            if mechanism.budget is not None and given is not None:
                spent_after = mechanism.spend(given, batch.spent, batch.budgets)
                logits = logits[torch.from_numpy(spent_after > batch.spent)]
            arrays = aggregated(logits, untaken, mechanism, record.width)
        return _Prepared(batch, public.support, arrays, given, spent_after, canary)

    @contextmanager
    def _logits_of(self, batch: _Open) -> Iterator[None]:
        """Let an error about a step's logits say whose they are."""
        try:
            yield
        except ValueError as error:
            where = f"batch {batch.batch.id}, step {batch.length}"
            raise InputError(where, f"{error}.", UNUSABLE_LOGITS) from None

    def _draw(self, prepared: _Prepared) -> None:
        """Draw a token (Algorithm 1, line 8), record it and charge for it."""
        batch, support, arrays, given, spent_after, canary = prepared
        aggregate = self._manifest.mechanism.aggregate(arrays)
        draw = sample(aggregate, self._manifest.mechanism.temperature, batch.source)
        step = Step(
            token=draw.index if support is None else int(support[draw.index]),
            log_probability=draw.log_probability,
            aggregate_digest=aggregate_digest(aggregate),
            arrays=arrays,
            contexts=None if given is None else given.astype(self._manifest.record.dtype),
            support=support,
            spent=None if spent_after is None else np.stack([batch.spent, spent_after]),
            canary=None if canary is None else canary.astype(self._manifest.record.dtype),
        )
        batch.spent = batch.spent if spent_after is None else spent_after
        self._charge(batch.batch.id, arrays, draw.index)
        batch.record.write(step)
        batch.tokens.append(step.token)

    def _charge(self, batch: int, arrays: Arrays, index: int) -> None:
        if self.accountant:
            self.accountant.charge(batch, self._manifest.mechanism.reduced(arrays, index))

    def _finished(
        self, batch: int, tokens: int, progress: Progress, resumed: bool = False
    ) -> Finished:
        """Close the account of a batch that gets no more tokens, and report it."""
        spent = self.accountant.close(batch) if self.accountant else None
        progress(BatchDone(batch, self._manifest.batches, tokens, resumed))
        return Finished(batch, tokens, spent)

    @property
    def _several(self) -> bool:
        """Whether a batch may write more than one text."""
        return self._manifest.decoding.tokens_per_batch is not None

    def _end_text(self, batch: _Open, stop: StopReason, progress: Progress) -> Finished | None:
        """End a batch's text.

        The batch begins another one, or is finished where its tokens are spent.
        """
        decoding = self._manifest.decoding
        text = self._model.decode(without_stop(batch.tokens, decoding.sequences))
        if self._several and batch.length < decoding.most_tokens:
            batch.record.end_text(text=text, stop=stop)
            batch.earlier, batch.tokens = batch.length, []
            return None
        batch.record.finish(text=text, stop=stop)
        return self._finish(batch, progress)

    def _finish(self, batch: _Open, progress: Progress) -> Finished:
        """Let a batch appear on disk, and free its rows."""
        self._open.remove(batch)
        for passes, prompts in (
            (self._passes, batch.prompts),
            (self._public_passes, batch.public_prompt),
        ):
            if passes is not None and prompts is not None:
                passes.finish(prompts)
        try:
            batch.closing.close()
        except BatchExistsError:
            # another worker was first: its batch stays and counts, and this one is dropped
            if self.accountant:
                self.accountant.detach(batch.batch.id)
            return self._recorded(batch.batch.id, progress)
        return self._finished(batch.batch.id, batch.length, progress)
