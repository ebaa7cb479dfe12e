"""Run directories from Python: runs, batches, steps and texts, each read when it is asked for. Judges nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from dpaudit.api.places import location_of
from dpaudit.api.tables import dataframe
from dpaudit.auditing.batches import Progress
from dpaudit.auditing.guarantees import NOTHING, figures
from dpaudit.auditing.run import EVIDENCE, audit_run
from dpaudit.catalogue import sentence
from dpaudit.checks.neighbors import BatchLosses, ContextSums
from dpaudit.checks.registry import Objections
from dpaudit.checks.steps import MOST_CONTEXTS, BatchView, RunView, StepView
from dpaudit.claims import ExPostClaim
from dpaudit.engines import Engine
from dpaudit.mechanisms import ContextChange, shares_spent
from dpaudit.results import SAMPLE_LENGTH, BatchResult, CheckResult
from dpaudit.results.inspection import (
    InspectedBatch,
    InspectedRun,
    InspectedStep,
    InspectedText,
    Neighbours,
    Objection,
    StepBudgets,
    StepCost,
    TokenView,
)
from dpaudit.runs import BatchReader, InputError, Manifest, RunReader, Sample, without_stop
from dpaudit.runs.extras import installing
from dpaudit.runs.public import PublicReader
from dpaudit.runs.reader import FolderReader, read_tokenizer
from dpaudit.runs.text import Decode

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

#: How many tokens before a step are decoded, and how many characters of a token or of them are kept.
PREFIX, LONGEST = 60, 200
#: How many batches an error names.
_MOST_NAMED = 10


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run directory, finished or not. What it holds is read when it is asked for.

    Args:
        path: a path, or a URL that fsspec opens.

    Raises:
        InputError: there is no run that can be read.
    """
    return Run(RunReader(location_of(path)))


class Texts(Sequence[Sample]):
    """The synthetic texts of a run or of a baseline, in order: the lines of samples.jsonl, read at first use.

    Each has id (of its batch), number, label, cluster, tokens (ids), text and stop (why it ended).
    """

    def __init__(self, reader: FolderReader) -> None:
        self._reader = reader

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        return tuple(self._reader.samples())

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Sample, ...]: ...
    def __getitem__(self, index: int | slice) -> Sample | tuple[Sample, ...]:
        return self._samples[index]

    def __repr__(self) -> str:
        return f"<{len(self)} synthetic texts of {self._reader.name}>"

    def to_dataframe(self) -> DataFrame:
        """Return a pandas.DataFrame with a row per text: batch, number, label, cluster, text, stop, tokens (a list)."""
        return dataframe(self._rows(), ("batch", "number", "label", "cluster", "text", "stop", "tokens"))

    def to_dataset(self) -> Dataset:
        """Return a datasets.Dataset with the columns of `to_dataframe`. Raises InputError without that library."""
        try:
            import datasets
        except ImportError:
            raise InputError("to_dataset", "datasets is not installed.", f"{installing('generate')}.") from None
        return datasets.Dataset.from_list(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        named = ("number", "label", "cluster", "text", "stop")
        return [
            {"batch": each.id, "tokens": list(each.tokens)} | {name: getattr(each, name) for name in named}
            for each in self
        ]


def open_public(path: str | os.PathLike[str]) -> Texts:
    """Open the texts of a baseline that `generate_public` wrote. Raises InputError where there is none."""
    return Texts(PublicReader(location_of(path)))


class Run:
    """One run directory, as private as the records that it was made from.

    Attributes:
        name: the directory, as it was named.
        manifest: run.json, validated: mechanism, privacy, batching, model, prompt, claim and the rest.
        batches: the batches on disk, by their ids: `run.batches[3]`.
        texts: the synthetic texts. Reading them raises InputError while the run is not finished.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self.name, self.manifest = reader.name, reader.manifest
        self.batches, self.texts = Batches(reader), Texts(reader)

    @property
    def commitment(self) -> str | None:
        """The fingerprint that is settled before the first token: SHA-256 in hexadecimal."""
        return self.manifest.commitment

    @property
    def head(self) -> str | None:
        """The fingerprint of the finished run: SHA-256 in hexadecimal; None while it is not finished."""
        return self._reader.head_or_none()

    @property
    def decoding_digest(self) -> str | None:
        """The fingerprint of the tokenizer that texts are decoded with; None where the run has none."""
        return self._reader.decoding_digest()

    def __repr__(self) -> str:
        found = f"{len(self.batches)} of {self.manifest.batches} batches"
        return f"<run {self.name}: {self.manifest.mechanism.aggregator.title}, {found}>"

    def inspect(
        self,
        engine: Engine | None = None,
        progress: Progress | None = None,
        tokenizers: Sequence[str | os.PathLike[str]] = (),
    ) -> InspectedRun:
        """Return the run at a glance, with its audit's figures where it is finished.

        Args:
            engine: where batches are read; None for the cores of this machine.
            progress: called with (batches read, batches declared).
            tokenizers: tokenizer.json files that you know to be the model's own.
        """
        manifest, audited = self.manifest, None
        if manifest.claim is not None:
            known = frozenset(read_tokenizer(Path(file)) for file in tokenizers)
            audited = audit_run(self._reader.location, progress=progress, engine=engine, tokenizers=known)
        checks, guarantees = ((), NOTHING) if audited is None else (audited.checks, audited.guarantees)
        return InspectedRun(
            run=self.name,
            mechanism=tuple(_mechanism(manifest)),
            batching=tuple(_batching(manifest)),
            max_tokens=manifest.stopping.max_tokens,
            tokens_per_batch=manifest.stopping.tokens_per_batch,
            records=manifest.data.records,
            verdict=None if audited is None else audited.verdict,
            claim=None if audited is None else audited.claim,
            ex_post=guarantees.ex_post,
            approximate=guarantees.approximate,
            declared=manifest.batches,
            batches=tuple(_headers(self._reader)) if audited is None else audited.batches,
            problems=tuple(check for check in checks if check.status in ("fail", "error", "warn") or _is_unmade(check)),
        )


def _is_unmade(check: CheckResult) -> bool:
    """Whether a check was not made that an audit's pass needs."""
    return check.status == "skip" and check.applicable and check.evidence <= EVIDENCE


class Batches:
    """The whole batches on disk, by their ids. Iterating gives them in ascending order."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids, ascending; those of an unfinished run may have gaps."""
        return self._reader.batches

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Batch]:
        return (Batch(self._reader, batch) for batch in self.ids)

    def __getitem__(self, batch: int) -> Batch:
        """Return a batch by its id. Raises InputError where there is none."""
        if batch in self.ids:
            return Batch(self._reader, batch)
        known = self.ids
        on_disk = f"{len(known)} {'is' if len(known) == 1 else 'are'} on disk"
        raise InputError(self._reader.name, f"there is no batch {batch}; {on_disk}.", _which(known))

    def __repr__(self) -> str:
        return f"<{len(self)} batches of {self._reader.name}>"


class Batch:
    """One batch: the contexts that generated its texts together.

    Attributes:
        id: the batch.
        label, cluster: of its records; None where they have none.
        contexts: how many private contexts it has.
        tokens: [T] int32, the sampled token ids, in order.
        log_probabilities: [T] float64, natural logarithms of their probabilities, as the sampler recorded them.
        texts: its texts, in order.
        steps: one for each token: `batch.steps[7]`.

    Raises:
        InputError: the file is not a whole batch of the run.
    """

    def __init__(self, reader: RunReader, batch: int) -> None:
        self._reader, self.id = reader, batch
        with reader.batch(batch) as opened:
            self.label, self.cluster = opened.header.label, opened.header.cluster
            self.contexts = opened.header.contexts
            self.tokens, self.log_probabilities = opened.tokens, opened.log_probabilities
            self.texts = tuple(opened.samples())
        self.steps = Steps(reader, batch, len(self.tokens))

    @property
    def costs(self) -> tuple[StepCost, ...]:
        """What each token cost, in nats: exact, rise, fall and theorem1 of every step."""
        return tuple(step.cost for step in self.steps)

    def __repr__(self) -> str:
        label = "" if self.label is None else f" ({self.label!r})"
        return f"<batch {self.id}{label}: {self.contexts} contexts, {len(self.tokens)} tokens>"

    def inspect(self, progress: Progress | None = None) -> InspectedBatch:
        """Return what each token cost, and the sums. `progress` is called with (steps read, steps in the batch)."""
        reader, manifest = self._reader, self._reader.manifest
        neighbours, change = _neighbours(manifest)
        costs: list[StepCost] = []
        objected: list[Objection] = []
        with reader.batch(self.id) as opened, np.errstate(all="ignore"):  # a corrupt record's values are shown as is
            batch = BatchView(RunView(reader, change), opened)
            losses, checks, decode = ContextSums(batch.header), Objections.open(batch), reader.decoder(special=True)
            for position in range(len(self.tokens)):
                view = batch.step(position)
                objected += _objections(checks, view)
                costs.append(_step_cost(view, decode))
                losses.step(view)
                if progress:
                    progress(position + 1, len(self.tokens))
            texts = tuple(_texts(opened, manifest))
        accountant, whole = batch.accountant, all(cost.exact is not None for cost in costs)
        total = accountant.batch_cost(self.id) if accountant is not None and whole else None
        claim = manifest.claim
        return InspectedBatch(
            run=reader.name,
            batch=self.id,
            label=self.label,
            cluster=self.cluster,
            contexts=self.contexts,
            texts=texts,
            neighbours=neighbours,
            claimed=claim.epsilon if claim is not None and claim.kind == ExPostClaim.id else None,
            **figures(total),
            costs=tuple(costs),
            **_worst(losses.result()),
            objections=tuple(objected),
        )


class Steps:
    """The steps of a batch, one for each token, counted from 0."""

    def __init__(self, reader: RunReader, batch: int, number: int) -> None:
        self._reader, self._batch, self._number = reader, batch, number

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[RunStep]:
        with self._reader.batch(self._batch) as opened:
            batch = _opened(self._reader, opened)
            for position in range(self._number):
                yield RunStep(self._reader, batch, position)

    def __getitem__(self, position: int) -> RunStep:
        """Return a step. Raises InputError where the batch has no such step, or it cannot be decoded."""
        with self._reader.batch(self._batch) as opened:
            if not 0 <= position < self._number:
                remedy = f"Name one from 0 to {self._number - 1} with --step."
                raise InputError(opened.where, f"there is no step {position}.", remedy)
            return RunStep(self._reader, _opened(self._reader, opened), position)

    def __repr__(self) -> str:
        return f"<{len(self)} steps of batch {self._batch}>"


class RunStep:
    """One step: the sampled token, and what it was sampled from. S is the number of allowed tokens.

    Attributes:
        position: which token of its batch, from 0.
        token: the sampled token's id.
        log_probability: natural logarithm of its probability, as the sampler recorded it.
        support: int [S], ids of the allowed tokens, ascending; None for the whole vocabulary.
        arrays: the mechanism's arrays by name, [..., S]: for a median central, sides and holder; for a mean aggregate.
        contributions: real [n, S], what each context gave; None where the run does not record it.
    """

    def __init__(self, reader: RunReader, batch: BatchView, position: int) -> None:
        """Reads the step's record. Raises InputError when it cannot be decoded."""
        self._reader, self._view, self.position = reader, batch.step(position), position
        self._checks = Objections.open(batch)
        step = self._view.step
        self.token, self.log_probability, self.support = step.token, step.log_probability, step.support
        self.arrays = self._view.arrays
        self._before, self._steps = self._view.before.tolist(), len(batch.tokens)

    @property
    def contributions(self) -> NDArray[np.floating] | None:
        """Real [n, S]: what each context gave to the aggregate; None where the run does not record it."""
        return self._view.contributions

    @property
    def aggregate(self) -> NDArray[np.floating]:
        """Real [S]: the vector that the token was sampled from, in nats times temperature."""
        return self._view.aggregate

    @property
    def probabilities(self) -> NDArray[np.float64]:
        """[S]: the probability of each allowed token, recomputed from the aggregate; they add up to 1."""
        return self._tokens.probabilities

    @property
    def bounds(self) -> tuple[NDArray[np.floating], NDArray[np.floating]] | None:
        """Lower and upper bounds [S] of any neighbour's aggregate; None where nothing bounds it."""
        box = self._tokens.box
        return None if box is None else (box[0], box[2])

    @cached_property
    def cost(self) -> StepCost:
        """What the sampled token cost, in nats; its figures are None where the record bounds nothing."""
        with np.errstate(all="ignore"):  # a corrupt record's values are shown as they are
            return _step_cost(self._view, self._decode)

    @property
    def prefix(self) -> str | None:
        """The last tokens of its text before it, decoded; None where the run has no tokenizer that can be read."""
        if not self._before:
            return ""
        decoded = self._decode(self._before[-PREFIX:]) if self._decode else None
        return None if decoded is None else decoded[-LONGEST:]

    @cached_property
    def _decode(self) -> Decode | None:
        return self._reader.decoder(special=True)

    @property
    def _change(self) -> ContextChange | None:
        return _neighbours(self._reader.manifest)[1]

    @cached_property
    def _tokens(self) -> _Tokens:
        with np.errstate(all="ignore"):
            return _Tokens(self._view, self._change, self._decode)

    def __repr__(self) -> str:
        return f"<step {self.position} of batch {self._view.header.id}: token {self.token}>"

    def inspect(self, top: int = 10) -> InspectedStep:
        """Return the step with its `top` most probable tokens and what a neighbour can do to them."""
        header, manifest, view = self._view.header, self._reader.manifest, self._view
        losses = ContextSums(header)
        with np.errstate(all="ignore"):
            losses.step(view)
            return InspectedStep(
                run=self._reader.name,
                batch=header.id,
                label=header.label,
                contexts=header.contexts,
                steps=self._steps,
                temperature=manifest.mechanism.temperature,
                begins=not self._before,
                prefix=self.prefix,
                neighbours=_neighbours(manifest)[0],
                sampled=None if view.index is None else self._tokens.at(view.index),
                cost=self.cost,
                support=len(view.aggregate),
                movable=self._tokens.movable,
                top=tuple(self._tokens.top(top)),
                **_worst(losses.result()),
                objections=tuple(_objections(self._checks, view)),
                budgets=_budgets(view),
            )


class _Tokens:
    """The tokens of one step's support, by their index along it."""

    def __init__(self, view: StepView, change: ContextChange | None, decode: Decode | None) -> None:
        self._support, self._center, self._decode = view.step.support, view.aggregate, decode
        # Where a neighbour's aggregate can lie, [S] each; None where nothing bounds it.
        self.box = None if change is None else view.mechanism.box(view.arrays, change)
        scaled = self._center.astype(np.float64) / view.manifest.mechanism.temperature
        largest = np.fmax.reduce(scaled, initial=-np.inf)  # NaN, where nothing else is there, has no maximum
        weights = np.exp(scaled - largest) if view.mechanism.draw.likely else (scaled == largest).astype(np.float64)
        self.probabilities: NDArray[np.float64] = weights / np.nansum(weights)

    @property
    def movable(self) -> int | None:
        """In how many of them a neighbour's aggregate can differ; None where nothing bounds it."""
        if self.box is None:
            return None
        lower, _, upper = self.box
        return int((lower != upper).sum())

    def at(self, index: int) -> TokenView:
        """The token at an index."""
        token = index if self._support is None else int(self._support[index])
        return TokenView(
            token=token,
            text=_text(self._decode, token),
            rank=1 + int((self._center > self._center[index]).sum()),
            probability=float(self.probabilities[index]),
            lower=None if self.box is None else float(self.box[0][index]),
            center=float(self._center[index]),
            upper=None if self.box is None else float(self.box[2][index]),
        )

    def top(self, number: int) -> Iterator[TokenView]:
        """The most probable tokens, in order."""
        for index in np.argsort(-self._center, kind="stable")[:number]:
            yield self.at(int(index))


def _neighbours(manifest: Manifest) -> tuple[Neighbours, ContextChange | None]:
    """What costs are for; the change is None where there can be none."""
    stated = manifest.claim or manifest.privacy
    most = manifest.privacy.records_per_user if stated.unit == "user" else None
    change = manifest.privacy.change(manifest.batching.rule, stated.unit, stated.relation)
    problem = ""
    if change is None:
        problem = f"nothing bounds how many contexts one {stated.unit} changes under the rule {manifest.batching.rule}"
    elif not manifest.mechanism.draw.ex_post:
        problem = "noise, over which costs are averaged, decides about tokens: no text has one of its own"
    elif not manifest.mechanism.bounds(change, manifest.record.width):
        problem = f"record.width {manifest.record.width} is too small for {change.contexts} changed contexts"
    elif change.contexts > MOST_CONTEXTS:
        problem = f"{change.contexts} changed contexts are more than the {MOST_CONTEXTS} that costs are worked out for"
    found = Neighbours(
        relation=stated.relation,
        unit=stated.unit,
        records_per_user=most,
        contexts=None if change is None else change.contexts,
        change=None if change is None else change.relation,
        problem=problem,
    )
    return found, None if problem else change


def _which(known: Sequence[int]) -> str:
    """What --batch may name, in a sentence; an unfinished run has gaps."""
    if not known:
        return "Generate the run first."
    if len(known) == 1:
        return f"Name {known[0]} with --batch."
    if known[-1] - known[0] == len(known) - 1:
        return f"Name one from {known[0]} to {known[-1]} with --batch."
    more = f" or one of {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"Name one of {', '.join(map(str, known[:_MOST_NAMED]))}{more} with --batch."


def _opened(reader: RunReader, opened: BatchReader) -> BatchView:
    return BatchView(RunView(reader, _neighbours(reader.manifest)[1]), opened)


def _step_cost(view: StepView, decode: Decode | None) -> StepCost:
    return StepCost(
        step=view.position,
        token=view.step.token,
        text=_text(decode, view.step.token),
        log_probability=view.step.log_probability,
        **figures(view.cost),
    )


def _budgets(view: StepView) -> StepBudgets | None:
    budget, step = view.mechanism.budget, view.step
    if budget is None or view.budgets is None or step.spent is None or step.active is None:
        return None
    least, median, most = np.quantile(shares_spent(step.spent[1], view.budgets), (0, 0.5, 1), method="higher").tolist()
    return StepBudgets(budget=budget, active=int(step.active.sum()), spent=(least, median, most))


def _worst(found: BatchLosses | None) -> dict[str, Any]:
    return {"worst": () if found is None else found.worst, "losses": 0 if found is None else found.contexts}


def _objections(checks: Objections, view: StepView) -> list[Objection]:
    return [
        Objection(check=check, step=view.position, problem=problem, message=sentence(problem))
        for check, problem in checks.at(view)
    ]


def _texts(opened: BatchReader, manifest: Manifest) -> Iterator[InspectedText]:
    """What each text of a batch is, and why it ends."""
    for sample, span in zip(opened.samples(), opened.spans, strict=True):
        # The stop sequence is what a released text is decoded without.
        kept = len(without_stop(sample.tokens, manifest.stopping.sequences))
        yield InspectedText(
            first=span.start,
            tokens=len(span),
            stop=sample.stop,
            end=sample.tokens[kept:] if sample.stop == "end-token" else (),
            text=None if sample.text is None else sample.text[:SAMPLE_LENGTH],
            characters=len(sample.text or ""),
        )


def _headers(reader: RunReader) -> Iterator[BatchResult]:
    """The batches of an unfinished run."""
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            yield BatchResult(
                id=batch,
                label=opened.header.label,
                contexts=opened.header.contexts,
                steps=len(opened.tokens),
                **figures(None),
                leave_one_out_max=None,
                texts=len(opened.spans),
            )


def _mechanism(manifest: Manifest) -> Iterator[str]:
    mechanism, vocabulary = manifest.mechanism, manifest.record.vocabulary
    yield mechanism.aggregator.title + (" of differences" if mechanism.contribution.anchored else "")
    yield f"clip {mechanism.clip:g}"
    yield f"temperature {mechanism.temperature:g}"
    for name, value in mechanism.aggregator:
        yield f"{name} {value:g}"
    if mechanism.draw.arrays():
        yield ", ".join([mechanism.draw.name, *(f"{name} {value:g}" for name, value in mechanism.draw)])
    if mechanism.contribution.grid is not None:
        yield f"grid {mechanism.contribution.grid:g}"
    if mechanism.budget is not None:
        yield f"a budget of rho {mechanism.budget:g} for every context"
    size, margin = mechanism.support.size, mechanism.support.margin
    chosen = "all" if size is None else f"public top {size:,}"
    chosen += "" if margin is None else f" and within {margin:g} below"
    yield f"{chosen} of {vocabulary:,} tokens" + (" that rules allow" if manifest.decoding.any else "")


def _batching(manifest: Manifest) -> Iterator[str]:
    batching = manifest.batching
    yield batching.rule
    if batching.labels:
        yield f"{len(batching.labels):,} labels"
    if manifest.clustering.method != "none":
        yield f"clusters by {manifest.clustering.method}"
    if batching.slots is not None:
        yield f"{batching.slots:,} contexts in a batch"
    if batching.cells is not None:
        yield f"{batching.cells:,} cells in a batch"
    if batching.examples_per_context != 1:
        yield f"{batching.examples_per_context:,} records in a context"


def _text(decode: Decode | None, token: int) -> str | None:
    text = decode([token]) if decode else None
    return None if text is None else text[:LONGEST]
