"""One batch's file -> BatchFacts: the part of an audit that is worth spreading over processes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np

from dpaudit.accounting import Cost, ExPostAccountant
from dpaudit.checks import CHECKS
from dpaudit.checks.facts import LONGEST_PREFIX, BatchFacts, ContextSums, SeenSupport, StepView
from dpaudit.checks.registry import StepCheck
from dpaudit.checks.release import stop_problem, text_problems
from dpaudit.checks.sampling import SamplingTest
from dpaudit.mechanisms import ContextChange
from dpaudit.runs import BatchReader, InputError, Manifest, RunReader, without_stop
from dpaudit.runs.manifest import MAX_WIDTH
from dpaudit.runs.reader import sample_of

#: The largest group whose ex-post cost is worked out: as many contexts as the widest record of a median run bounds.
MOST_CONTEXTS = 2 * MAX_WIDTH - 1

#: Logarithm of the probability below which two batches do not draw the same tokens by chance.
_NO_COINCIDENCE = -20.0


class BatchAuditor:
    """Reads batches of one run. What it says of a batch depends on that batch's file and on run.json alone."""

    def __init__(self, location: str, change: ContextChange | None) -> None:
        """Open a run.

        Args:
            location: of the run directory.
            change: what the ex-post cost is for; None where nothing bounds it.
        """
        self._reader = RunReader(location)
        self._change = change
        self._decode = self._reader.decoder(special=False)

    def __call__(self, batch_id: int) -> BatchFacts:
        """Read one batch to its end, or to where that fails."""
        facts = BatchFacts(batch_id, SamplingTest(self._reader.manifest.mechanism.temperature))
        try:
            batch, facts.digest = self._reader.batch_and_digest(batch_id)
            with batch:
                self._read_release(batch, facts)
                self._read_steps(batch, facts)
        except InputError as error:
            facts.error, facts.unbounded = error, True
        return facts

    def _read_release(self, batch: BatchReader, facts: BatchFacts) -> None:
        manifest = self._reader.manifest
        facts.header, facts.length = batch.header, len(batch.tokens)
        sample = sample_of(batch)
        facts.sample_digest = hashlib.sha256(sample.line().encode()).digest()
        tokens = without_stop(sample.tokens, manifest.stopping.sequences)
        decoded = self._decode(tokens) if self._decode and sample.text is not None else None
        facts.texts += text_problems(sample, decoded, manifest)
        facts.stops += [problem for problem in (stop_problem(sample, manifest.stopping),) if problem]

    def _read_steps(self, batch: BatchReader, facts: BatchFacts) -> None:
        manifest, header = self._reader.manifest, batch.header
        accountant = accountant_for(manifest, self._change)
        losses = ContextSums(header.contexts)
        drawn, log_probability = hashlib.sha256(), 0.0
        for position, step in enumerate(batch.steps()):
            facts.steps += 1
            drawn.update(step.aggregate_digest + step.token.to_bytes(8, "big", signed=True))
            log_probability += step.log_probability
            if step.support is not None and position <= LONGEST_PREFIX:
                facts.supports.append(SeenSupport.of(header, batch.tokens[:position], step.support))
            view = StepView(manifest, header, step)
            # Corrupt values overflow and compare oddly; the checks say so in words, numpy need not.
            with np.errstate(all="ignore"):
                _take(view, position, facts, losses, accountant)
        if accountant is not None:
            facts.spent = accountant.detach(header.id)
        facts.losses = losses.result(header.id)
        if header.contexts and log_probability < _NO_COINCIDENCE:
            facts.likeness = drawn.digest()


def accountant_for(manifest: Manifest, change: ContextChange | None) -> ExPostAccountant | None:
    """The accountant of a run's ex-post cost; None where nothing bounds the change, or it is too large to work out."""
    if change is None or change.contexts > MOST_CONTEXTS:
        return None
    return ExPostAccountant(manifest.mechanism, change)


def objections(view: StepView) -> Iterator[tuple[str, str]]:
    """The step checks that object to a step, by id, and why."""
    for check_id, check in CHECKS.items():
        if isinstance(check, StepCheck) and (problem := check.objection(view)):
            yield check_id, problem


def charged(view: StepView, accountant: ExPostAccountant | None) -> Cost | None:
    """What a step cost; None where nothing bounds it."""
    if accountant is None or view.reduced is None:
        return None
    try:
        return accountant.charge(view.header.id, view.reduced)
    except ValueError:  # no bound follows from such a record; the objections say what is wrong with it
        return None


def _take(
    view: StepView, position: int, facts: BatchFacts, losses: ContextSums, accountant: ExPostAccountant | None
) -> None:
    """Check the step, charge for it, and note what it cost each context. A step that bounds nothing is counted."""
    for check_id, problem in objections(view):
        facts.note(check_id, position, problem)
    losses.add(view)
    if view.index is not None:
        place = facts.id.to_bytes(8, "big") + position.to_bytes(8, "big")
        facts.sampling.add(view.aggregate, view.index, view.step.aggregate_digest + place)
        aggregator = view.mechanism.aggregator
        facts.divided[aggregator.divided_by(view.arrays, view.header.contexts, view.mechanism.clip)] += 1
    cost = charged(view, accountant)
    facts.unbounded |= view.index is None or (cost is None and accountant is not None)
    facts.costs.append(math.nan if cost is None else cost.exact)
