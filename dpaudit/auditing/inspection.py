"""Looks into a run directory for debugging: the run, one of its batches, one of its steps. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit.accounting import ExPostAccountant
from dpaudit.auditing.guarantees import NOTHING, figures
from dpaudit.auditing.run import EVIDENCE, MOST_CONTEXTS, Progress, accountant_for, audit_run, charged, objections
from dpaudit.catalogue import sentence
from dpaudit.checks.facts import BatchLosses, ContextSums, StepView, StepViews
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
from dpaudit.runs import BatchReader, InputError, Manifest, RunReader, without_stop
from dpaudit.runs.text import Decode

#: How many tokens before a step are decoded, and how many characters of a token or of them are kept.
PREFIX, LONGEST = 60, 200
#: How many batches an error names.
_MOST_NAMED = 10


def inspect_run(
    location: Path | str,
    engine: Engine | None = None,
    progress: Progress | None = None,
    tokenizers: frozenset[str] = frozenset(),
) -> InspectedRun:
    """A run at a glance, with its audit's figures where it is finished; all else is for `audit_run`.

    Raises:
        InputError: there is no run that can be read.
    """
    reader = RunReader(location)
    manifest = reader.manifest
    audited = (
        None if manifest.claim is None else audit_run(location, progress=progress, engine=engine, tokenizers=tokenizers)
    )
    checks, guarantees = ((), NOTHING) if audited is None else (audited.checks, audited.guarantees)
    return InspectedRun(
        run=reader.name,
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
        batches=tuple(_headers(reader)) if audited is None else audited.batches,
        problems=tuple(check for check in checks if check.status in ("fail", "error", "warn") or _is_unmade(check)),
    )


def _is_unmade(check: CheckResult) -> bool:
    """Whether a check was not made that an audit's pass needs."""
    return check.status == "skip" and check.applicable and check.evidence <= EVIDENCE


def inspect_batch(location: Path | str, batch: int, progress: Progress | None = None) -> InspectedBatch:
    """One batch, by its id: what each of its tokens cost. `progress` is called with (steps read, steps in the batch).

    Raises:
        InputError: there is no run or no batch that can be read.
    """
    reader = RunReader(location)
    manifest, decode = reader.manifest, reader.decoder(special=True)
    neighbours, change = _neighbours(manifest)
    accountant = accountant_for(manifest, change)
    with _open(reader, batch) as opened, np.errstate(all="ignore"):  # a corrupt record's values are shown as they are
        losses, views = ContextSums(opened.header.contexts), StepViews(reader)
        costs: list[StepCost] = []
        objected: list[Objection] = []
        for position in range(len(opened.tokens)):
            view = views.of(opened, position)
            objected += _objections(view, position)
            costs.append(_step_cost(view, position, accountant, decode))
            losses.add(view)
            if progress:
                progress(position + 1, len(opened.tokens))
        total = accountant.batch_cost(batch) if accountant and all(cost.exact is not None for cost in costs) else None
        claim = manifest.claim
        return InspectedBatch(
            run=reader.name,
            batch=batch,
            label=opened.header.label,
            cluster=opened.header.cluster,
            contexts=opened.header.contexts,
            texts=tuple(_texts(opened, manifest)),
            neighbours=neighbours,
            claimed=claim.epsilon if claim is not None and claim.kind == "ex-post" else None,
            **figures(total),
            costs=tuple(costs),
            **_worst(losses.result(batch)),
            objections=tuple(objected),
        )


def inspect_step(location: Path | str, batch: int, step: int, top: int = 10) -> InspectedStep:
    """One step, counted from 0: what its token was sampled from. Reads this step of the batch alone.

    Args:
        location: the run directory.
        batch: its id.
        step: which of its tokens.
        top: how many of the most probable tokens to show.

    Raises:
        InputError: there is no run, no batch or no step that can be read.
    """
    reader = RunReader(location)
    manifest, decode = reader.manifest, reader.decoder(special=True)
    neighbours, change = _neighbours(manifest)
    with _open(reader, batch) as opened, np.errstate(all="ignore"):  # a corrupt record's values are shown as they are
        steps = len(opened.tokens)
        if step >= steps:
            raise InputError(opened.where, f"there is no step {step}.", f"Name one from 0 to {steps - 1} with --step.")
        view = StepViews(reader).of(opened, step)
        cost = _step_cost(view, step, accountant_for(manifest, change), decode)
        losses = ContextSums(opened.header.contexts)
        losses.add(view)
        tokens = _Tokens(view, change, decode)
        before = opened.before(step).tolist()
        prefix = "" if not before else decode(before[-PREFIX:]) if decode else None
        return InspectedStep(
            run=reader.name,
            batch=batch,
            label=opened.header.label,
            contexts=opened.header.contexts,
            steps=steps,
            temperature=manifest.mechanism.temperature,
            begins=not before,
            prefix=None if prefix is None else prefix[-LONGEST:],
            neighbours=neighbours,
            sampled=None if view.index is None else tokens.at(view.index),
            cost=cost,
            support=len(view.aggregate),
            movable=tokens.movable,
            top=tuple(tokens.top(top)),
            **_worst(losses.result(batch)),
            objections=tuple(_objections(view, step)),
            budgets=_budgets(view),
        )


class _Tokens:
    """The tokens of one step's support, by their index along it."""

    def __init__(self, view: StepView, change: ContextChange | None, decode: Decode | None) -> None:
        self._support, self._center, self._decode = view.step.support, view.aggregate, decode
        # Where a neighbour's aggregate can lie, [S] each; None where nothing bounds it.
        self._box = None if change is None else view.mechanism.box(view.arrays, change)
        scaled = self._center.astype(np.float64) / view.manifest.mechanism.temperature
        largest = np.fmax.reduce(scaled, initial=-np.inf)  # NaN, where nothing else is there, has no maximum
        weights = np.exp(scaled - largest) if view.mechanism.draw.likely else (scaled == largest).astype(np.float64)
        self._probabilities = weights / np.nansum(weights)

    @property
    def movable(self) -> int | None:
        """In how many of them a neighbour's aggregate can differ; None where nothing bounds it."""
        if self._box is None:
            return None
        lower, _, upper = self._box
        return int((lower != upper).sum())

    def at(self, index: int) -> TokenView:
        """The token at an index."""
        token = index if self._support is None else int(self._support[index])
        return TokenView(
            token=token,
            text=_text(self._decode, token),
            rank=1 + int((self._center > self._center[index]).sum()),
            probability=float(self._probabilities[index]),
            lower=None if self._box is None else float(self._box[0][index]),
            center=float(self._center[index]),
            upper=None if self._box is None else float(self._box[2][index]),
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


def _open(reader: RunReader, batch: int) -> BatchReader:
    if batch in reader.batches:
        return reader.batch(batch)
    known = reader.batches
    on_disk = f"{len(known)} {'is' if len(known) == 1 else 'are'} on disk"
    raise InputError(reader.name, f"there is no batch {batch}; {on_disk}.", _which(known))


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


def _step_cost(view: StepView, position: int, accountant: ExPostAccountant | None, decode: Decode | None) -> StepCost:
    return StepCost(
        step=position,
        token=view.step.token,
        text=_text(decode, view.step.token),
        log_probability=view.step.log_probability,
        **figures(charged(view, accountant)),
    )


def _budgets(view: StepView) -> StepBudgets | None:
    budget, step = view.mechanism.budget, view.step
    if budget is None or view.budgets is None or step.spent is None or step.active is None:
        return None
    least, median, most = np.quantile(shares_spent(step.spent[1], view.budgets), (0, 0.5, 1), method="higher").tolist()
    return StepBudgets(budget=budget, active=int(step.active.sum()), spent=(least, median, most))


def _worst(found: BatchLosses | None) -> dict[str, Any]:
    return {"worst": () if found is None else found.worst, "losses": 0 if found is None else found.contexts}


def _objections(view: StepView, position: int) -> list[Objection]:
    return [
        Objection(check=check, step=position, problem=problem, message=sentence(problem))
        for check, problem in objections(view)
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
