"""Run directory -> AuditResult: one streaming pass over the steps, then the checks of the run as a whole.

The pass is made a batch at a time (`BatchAuditor`), which is what may be spread over processes.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

import dpaudit
from dpaudit.accounting import CLUSTERINGS, Cost, ExPostAccountant
from dpaudit.auditing.budgets import BudgetSums
from dpaudit.auditing.caveats import caveats
from dpaudit.auditing.guarantees import (
    NOTHING,
    CurveSums,
    approximate,
    attack,
    canaries,
    ex_post,
    figures,
    ledger,
    neighbours,
    zcdp,
)
from dpaudit.auditing.samples import DearTokens, released_texts
from dpaudit.auditing.verdict import guarantee, judge, options_for
from dpaudit.catalogue import message, require_words
from dpaudit.checks import Facts, registered
from dpaudit.checks.alternatives import DrawnStep
from dpaudit.checks.canaries import canary_digests
from dpaudit.checks.committed_seed import SeededDraws
from dpaudit.checks.facts import (
    INFINITE,
    LONGEST_PREFIX,
    BatchBudgets,
    BatchFacts,
    CanarySums,
    ContextSums,
    EqualRows,
    SeenPublic,
    StepView,
    StepViews,
    TokenFacts,
    UniformRows,
    input_problem,
    known_places,
)
from dpaudit.checks.integrity import unreadable_indexes
from dpaudit.checks.noise import NoiseSums
from dpaudit.checks.partition import read_placement
from dpaudit.checks.randomness import Draw, IndependenceTest
from dpaudit.checks.rebalancing import grouping_cost
from dpaudit.checks.registry import Check, Gatherer, Outcome, RunCheck, StepCheck
from dpaudit.checks.release import stop_problems, text_place, text_problems
from dpaudit.checks.sampling import RunSampling, SamplingTest
from dpaudit.checks.seeds import SeedTest
from dpaudit.checks.subsets import SubsetSums
from dpaudit.claims import ApproximateClaim, ZcdpClaim
from dpaudit.engines import Engine, LocalEngine, cores
from dpaudit.mechanisms import ContextChange
from dpaudit.plugins import CHECKS, plug_ins
from dpaudit.results import (
    VERY_SHORT,
    Asked,
    AuditResult,
    BatchResult,
    ClaimResult,
    Empirical,
    Finding,
    Guarantees,
    TextCounts,
)
from dpaudit.results.replay import PublicReplay, Rerun
from dpaudit.results.shell import claim_options, context_of
from dpaudit.results.summary import RunSummary, Settings
from dpaudit.runs import (
    BatchHeader,
    BatchReader,
    Claim,
    CommittedSeed,
    Held,
    InputError,
    Manifest,
    RunReader,
    UnfinishedError,
    without_stop,
)
from dpaudit.runs.layout import STEPS, steps_file
from dpaudit.runs.manifest import MAX_WIDTH
from dpaudit.runs.reader import RESUME
from dpaudit.runs.storage import is_url

Progress = Callable[[int, int], None]

#: The level up to which a record alone can be checked, together with the release: what an audit asks for by default.
EVIDENCE = 2

#: The largest group whose ex-post cost is worked out: as many contexts as the widest record of a median run bounds.
MOST_CONTEXTS = 2 * MAX_WIDTH - 1

#: Logarithm of the probability below which two texts do not draw the same tokens by chance, many as they may be.
_NO_COINCIDENCE = -30.0

#: Steps on disk that are worth a process: half a second's work at least, where starting one takes a third of it.
PROCESS_BYTES = 1 << 24
_ALL_PARTS = "Give --seed-file FILE once for each part."


@dataclass(frozen=True)
class Question:
    """What to test instead of the run's own claim; None keeps the run's own value.

    With an epsilon and no `batch_epsilon` nothing is asked of the batch level. A rho asks for zCDP, and an epsilon of a
    run that claims zCDP for the kind whose epsilons go with that.
    """

    epsilon: float | None = None
    delta: float | None = None
    relation: str | None = None
    unit: str | None = None
    batch_epsilon: float | None = None
    rho: float | None = None

    @property
    def asked(self) -> tuple[Asked, ...]:
        """The fields of the claim that this question gives."""
        return tuple(name for name in get_args(Asked) if getattr(self, name) is not None)

    def asked_of(self, claim: Claim) -> Claim:
        """Return the claim with this question's values in place of its own.

        Raises:
            ValidationError: pydantic's, for a value that no claim can have.
            InputError: an epsilon of the batch level alone is asked of a claim that states none of the release level.
        """
        asked = {name: value for name, value in vars(self).items() if value is not None}
        own, kind = claim.model_dump(), claim.kind
        if self.rho is not None:
            kind = ZcdpClaim.id
        elif claim.rho is not None and (self.epsilon is not None or self.batch_epsilon is not None):
            kind = ApproximateClaim.id
            if self.epsilon is None:
                problem = "the run claims a rho, beside which an epsilon of the batch level alone is no claim."
                raise InputError("batch_epsilon", problem, "Give the epsilon of the release level, too.")
        if kind != claim.kind or self.epsilon is not None:
            # Of another level or kind the run's own word says nothing beside these figures.
            own |= dict.fromkeys(("epsilon", "batch_epsilon", "rho"))
        return Claim.model_validate(own | asked | {"kind": kind})


def audit_run(
    path: Path | str,
    question: Question | None = None,
    progress: Progress | None = None,
    *,
    evidence: int = EVIDENCE,
    replay: PublicReplay | None = None,
    reruns: Sequence[Rerun] = (),
    tokenizers: frozenset[str] = frozenset(),
    engine: Engine | None = None,
    held: Held | None = None,
    seed: CommittedSeed | None = None,
) -> AuditResult:
    """Audit a run directory, from its record alone unless a replay's findings are given.

    Args:
        path: the run directory.
        question: tests another claim than the run's own.
        progress: called with (batches read, batches declared).
        evidence: the level up to which every check that is about the run must have been made, for a pass.
        replay: what recomputing steps with the model found, and with the data where they were given.
        reruns: what running a recorded generator's script again with frozen outputs found.
        tokenizers: digests (`dpaudit.runs.Vocabulary`) of tokenizers that the caller knows to be the model's own,
            beside those that dpaudit knows.
        engine: where batches are read. None means all cores of this machine, or this process alone for a small run;
            the result is the same.
        held: the run's commitment and head, as somebody was given them when they were made.
        seed: the secret seed that the run commits to. It stays in this process, and in no result.

    Returns:
        A result whose verdict is "error" when the run cannot be read as a whole; never raises for bad content.

    Raises:
        ValueError: there is no such evidence level.
        InputError: a worker process was killed over the same batch twice; or the run commits to no seed and one is
            given, or to one of another number of parts.
    """
    if not 0 <= evidence <= 4:
        raise ValueError(f"evidence levels are 0 to 4, not {evidence}")
    try:
        reader = RunReader(path)
        manifest, claim = reader.manifest, reader.manifest.claim
        if claim is None:
            raise UnfinishedError(str(path), "the run states no claim: it is not finished.", RESUME)
        for plug_in in manifest.plug_ins:
            plug_in.load()
            require_words(plug_in)
        if manifest.clustering.method != "none":
            CLUSTERINGS[manifest.clustering.method]  # a plug-in may be unusable
    except InputError as error:
        return _unreadable(str(path), input_problem(error), evidence)
    seeded = None if seed is None else _seeded(reader, seed)
    question = question or Question()
    claim, clusters, made_up = question.asked_of(claim), None, None
    change = _bounded_change(manifest, claim)
    with suppress(InputError):  # integrity.complete or integrity.format says why
        clusters = reader.clusters()
    if manifest.canaries is not None:
        with suppress(InputError):  # likewise
            made_up = reader.canaries()
    places = known_places(manifest, clusters)
    facts = Facts(
        reader,
        manifest,
        claim,
        change,
        accountant_for(manifest, change),
        RunSampling(manifest.mechanism.temperature, manifest.batches),
        IndependenceTest(manifest.batches, manifest.stopping.max_tokens),
        SeedTest(manifest.sampling),
        SeedTest(manifest.sampling, "coins"),
        read_placement(reader, places, canary_digests(manifest, made_up)),
        grouping_cost(manifest, claim),
        replay,
        reruns,
        held or Held(),
        tokenizers,
        seeded,
        clusters,
        places,
        canaries=made_up,
    )
    sums = _Sums.of(manifest)
    _read(facts, sums, engine, progress)
    result = _result(facts, sums, evidence, question.asked)
    stated = manifest.claim if question.asked else None
    own = None if stated is None else ClaimResult.model_validate(stated.model_dump() | _most_records(manifest, stated))
    return result.model_copy(update={"asked": question.asked, "own_claim": own})


def _seeded(reader: RunReader, seed: CommittedSeed) -> SeededDraws:
    """Return what will hold the run's tokens to a seed. Raises InputError where the run has no such seed."""
    sampling, where = reader.manifest.sampling, f"{reader.name}: sampling"
    if not sampling.committed:
        problem = f"the run commits to no seed (its generator is {sampling.generator}), and one was given."
        raise InputError(where, problem, "Leave out --seed-file.")
    declared, given = len(sampling.seed_hashes), len(seed.hashes)
    if declared != given:
        problem = f"the run's seed is made of {declared} part{'s' * (declared > 1)}, and the audit was given {given}."
        raise InputError(where, problem, _ALL_PARTS)
    return SeededDraws(seed, reader.manifest)


class _Sums(NamedTuple):
    """What is gathered for reports alone, beside the facts that checks look at."""

    curve: CurveSums
    dear: DearTokens
    budgets: BudgetSums

    @classmethod
    def of(cls, manifest: Manifest) -> _Sums:
        """Of a run of which nothing was read."""
        tokens = manifest.stopping.most_tokens
        return cls(CurveSums(tokens), DearTokens(), BudgetSums(manifest.mechanism, tokens))

    def take(self, batch: BatchFacts) -> None:
        """Take in what one batch says. Batches come in ascending order."""
        self.curve.take(batch.costs)
        self.dear.take(batch)
        self.budgets.take(batch)


def _read(facts: Facts, sums: _Sums, engine: Engine | None, progress: Progress | None) -> None:
    """Take in what every batch on disk says, in order. What cannot be read is noted and judged later."""
    facts.unreadable |= unreadable_indexes(facts.reader, facts.placement)
    try:
        batches = facts.reader.batches
    except InputError as error:
        facts.unreadable[STEPS] = input_problem(error, STEPS)
        return
    make_auditor = partial(BatchAuditor, facts.reader.location, facts.change)
    with closing((engine or _engine_for(facts.reader)).map(make_auditor, batches)) as found:
        for done, batch in enumerate(found, start=1):
            facts.take(batch)
            sums.take(batch)
            if progress:
                progress(done, facts.manifest.batches)


def _result(facts: Facts, sums: _Sums, evidence: int, asked: tuple[Asked, ...]) -> AuditResult:
    """Evaluate all checks and put the result together."""
    claim = _claim_result(facts)
    context = context_of(facts.reader.name, claim_options(claim, asked))
    # Our own first: whatever a plug-in's check does to the facts, they have judged them by then.
    by_origin = sorted(registered().values(), key=lambda check: check.plug_in is not None)
    made = {check.id: check.result(facts, context) for check in by_origin}
    checks = tuple(
        check.model_copy(update={"made_with": options_for(facts, check)})
        for check in map(made.__getitem__, registered())
    )
    verdict = judge(checks, evidence)
    batches = tuple(_batch_result(facts, batch) for batch in sorted(facts.headers))
    by_tokens = facts.ex_post.by_tokens() if facts.ex_post else []
    if not math.isfinite(facts.ex_post_cost.exact):  # the sums may leave out a step or a batch
        by_tokens = [facts.ex_post_cost] * (sums.curve.positions + 1)
    return AuditResult(
        verdict=verdict,
        evidence=evidence,
        guarantee=message(guarantee(verdict, facts, claim, checks, evidence), context),
        caveats=tuple(message(each, context) for each in caveats(facts, checks)) if verdict == "pass" else (),
        claim=claim,
        guarantees=Guarantees(
            ex_post=ex_post(facts),
            approximate=approximate(facts),
            zcdp=zcdp(facts),
            empirical=Empirical(
                leave_one_out_max=max(facts.losses.values(), default=None),
                contexts=facts.left_out,
                worst=tuple(facts.worst),
                attack=attack(facts),
                canaries=canaries(facts),
            ),
        ),
        ledger=ledger(facts),
        batches=batches,
        tokens=sums.curve.result(by_tokens),
        checks=checks,
        not_checked=tuple(check.id for check in checks if check.status == "skip" and check.applicable),
        run=_summary(facts),
        samples=released_texts(facts.reader, sums.dear),
        released=TextCounts(
            texts=sum(map(len, facts.sample_digests.values())), empty=facts.empty, very_short=facts.very_short
        ),
        budgets=sums.budgets.result(),
    )


def _batch_result(facts: Facts, batch: int) -> BatchResult:
    header = facts.headers[batch]
    return BatchResult(
        id=batch,
        label=header.label,
        contexts=header.contexts,
        steps=facts.lengths[batch],
        **figures(facts.batch_cost(batch) if facts.ex_post else None),
        leave_one_out_max=facts.losses.get(batch),
        texts=len(facts.sample_digests[batch]),
    )


def _engine_for(reader: RunReader) -> Engine:
    """All cores, but no more of them than there is work for."""
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


def _bounded_change(manifest: Manifest, claim: Claim) -> ContextChange | None:
    """The change to account for; None when nothing bounds it or it is out of the record's reach."""
    change = manifest.privacy.change(manifest.batching.rule, claim.unit, claim.relation)
    return change if change is None or manifest.mechanism.bounds(change, manifest.record.width) else None


def _most_records(manifest: Manifest, claim: Claim) -> dict[str, Any]:
    return {"records_per_user": manifest.privacy.records_per_user if claim.unit == "user" else None}


def _claim_result(facts: Facts) -> ClaimResult:
    return ClaimResult.model_validate(facts.claim.model_dump() | neighbours(facts))


def _summary(facts: Facts) -> RunSummary:
    return RunSummary(
        path=facts.reader.name,
        audited=datetime.now(UTC).date().isoformat(),
        dpaudit=dpaudit.__version__,
        dp_accounting=importlib.metadata.version("dp-accounting"),
        plugins=_plug_ins(facts.manifest),
        settings=Settings.of(facts.manifest),
        batches=len(facts.headers),
        contexts=sum(header.contexts for header in facts.headers.values()),
        texts=sum(map(len, facts.sample_digests.values())),
        steps=facts.steps,
        digests={name: digest for name, digest in facts.digests.items() if not name.startswith("steps/")},
    )


def _plug_ins(manifest: Manifest) -> dict[str, str]:
    """Return versions of the other packages that took part: those of the run's own parts, and all that bring checks."""
    took_part = [*manifest.plug_ins, *plug_ins(CHECKS)]
    return dict(sorted((each.package, each.version) for each in took_part if not each.is_own))


def _unreadable(path: str, problem: Finding, evidence: int) -> AuditResult:
    unread, failed = Outcome("skip", "run-unreadable"), Outcome("fail", "no-run", {"problem": problem})
    context = context_of(path)
    checks = tuple(
        check.in_words(failed if check.id == "integrity.format" else unread, context) for check in registered().values()
    )
    return AuditResult(
        verdict="error",
        evidence=evidence,
        guarantee=message(Finding(code="verdict.no-run")),
        caveats=(),
        claim=None,
        guarantees=NOTHING,
        ledger=(),
        batches=(),
        tokens=None,
        checks=checks,
        not_checked=tuple(check.id for check in checks if check.status == "skip"),
        run=RunSummary(dpaudit=dpaudit.__version__),
    )


class BatchAuditor:
    """Reads batches of one run. What it says of a batch depends on that batch's file and on run.json alone."""

    def __init__(self, location: str, change: ContextChange | None) -> None:
        """Open the run at a location; `change` is what the ex-post cost is for, None where nothing bounds it."""
        self._reader = RunReader(location)
        self._change = change
        self._decode = self._reader.decoder(special=False)
        self._views = StepViews(self._reader)

    def __call__(self, batch_id: int) -> BatchFacts:
        """Read one batch to its end, or to where that fails."""
        facts = BatchFacts(batch_id, SamplingTest())
        try:
            with self._reader.batch(batch_id) as batch:
                facts.digest = batch.digest()
                self._read_release(batch, facts)
                self._read_steps(batch, facts)
        except InputError as error:
            facts.unreadable, facts.unbounded = input_problem(error, steps_file(batch_id)), True
        return facts

    def _read_release(self, batch: BatchReader, facts: BatchFacts) -> None:
        manifest = self._reader.manifest
        facts.header, facts.length = batch.header, len(batch.tokens)
        facts.text_lengths = list(map(len, batch.spans))
        stopping, samples = manifest.stopping, list(batch.samples())
        for sample in samples:
            facts.sample_digests.append(hashlib.sha256(sample.line().encode()).digest())
            tokens = without_stop(sample.tokens, stopping.sequences)
            short = shortness(sample.text, tokens)
            facts.empty += short == "empty"
            facts.very_short += short == "very short"
            decoded = self._decode(tokens) if self._decode and sample.text is not None else None
            facts.texts += text_problems(sample, decoded, manifest)
            facts.said.add(sample.text is not None)
        facts.stops += stop_problems(samples, stopping)
        for sample, span in zip(samples, batch.spans, strict=True):
            if batch.header.contexts and sum(batch.log_probabilities[span].tolist()) < _NO_COINCIDENCE:
                facts.likenesses.append((text_place(sample), batch.likeness(span)))

    def _read_steps(self, batch: BatchReader, facts: BatchFacts) -> None:
        manifest, header = self._reader.manifest, batch.header
        accountant = accountant_for(manifest, self._change)
        losses, equal = ContextSums(header.contexts), EqualRows(header.contexts)
        uniform, canary = UniformRows(header.contexts), CanarySums(header)
        draw = manifest.mechanism.draw
        noise = NoiseSums(manifest.mechanism) if draw.arrays() else None
        subsets = SubsetSums(draw.rate, header.contexts) if draw.gaussian is not None else None
        gatherers = gatherers_of(manifest, header, facts.unmade)
        facts.tokens = None if accountant is None else TokenFacts(batch.tokens)
        if manifest.mechanism.budget is not None and header.contexts:
            facts.budgets = BatchBudgets(header.contexts)
        if self._views.unruled is not None:
            facts.unmade["mechanism.support-rules"] = self._views.unruled
        for position in range(len(batch.tokens)):
            view = self._views.of(batch, position)
            step, before = view.step, batch.before(position)
            facts.steps += 1
            if manifest.needs_public and len(before) <= LONGEST_PREFIX:
                facts.public.append(SeenPublic.of(header, position, before, step))
            # Corrupt values overflow and compare oddly; the checks say so in words, numpy need not.
            with np.errstate(all="ignore"):
                for check_id, problem in objections(view, facts.unmade):
                    facts.note(check_id, position, problem)
                facts.unshown.update(unshown(view, facts.unmade))
                losses.add(view)
                _take_draw(facts, view, position, before)
                equal.add(step.contexts)
                uniform.add(view)
                canary.add(view)
                if noise is not None:
                    noise.add(view)
                if subsets is not None:
                    subsets.add(view)
                for check, gatherer in gatherers:
                    with _held_apart(check, facts.unmade):
                        gatherer.add(position, view)
                if facts.budgets is not None:
                    facts.budgets.add(view)
                cost = charged(view, accountant)
                if facts.tokens is not None:
                    facts.tokens.add(position, view, cost or INFINITE)
            # A step that bounds nothing is counted.
            facts.unbounded |= view.index is None or (cost is None and accountant is not None)
            facts.costs.append(math.nan if cost is None else cost.exact)
        if accountant is not None:
            facts.spent = accountant.detach(header.id)
        facts.noise = None if noise is None else noise.facts
        facts.subsets = None if subsets is None else subsets.result()
        for check, gatherer in gatherers:
            with _held_apart(check, facts.unmade):
                if (gathered := gatherer.result()) is not None:
                    facts.gathered[check.id] = gathered
        facts.losses, facts.equal = losses.result(header.id), equal.result()
        facts.canary = canary.result()
        facts.unscored = uniform.problem(header.id) if manifest.record.contexts else None


def shortness(text: str | None, tokens: Sequence[int]) -> Literal["empty", "very short", ""]:
    """What a text is called that says nothing or next to it: its tokens without their end, and None for no text."""
    if not tokens if text is None else not text.strip():
        return "empty"
    return "very short" if len(tokens) < VERY_SHORT else ""


def _take_draw(facts: BatchFacts, view: StepView, position: int, before: NDArray[np.integer]) -> None:
    """Note how a step's token was drawn, where its aggregate is of numbers."""
    drawn = None
    if view.index is not None:
        odds = view.aggregate if view.mechanism.draw.likely else view.mechanism.odds(view.arrays)
        drawn = DrawnStep.of(odds, view.mechanism.temperature, view.index, view.places(before))
    if view.manifest.sampling.committed:
        facts.intervals.append((math.nan, math.nan) if drawn is None else drawn.interval)
    if drawn is not None:
        salt = view.step.aggregate_digest + facts.id.to_bytes(8, "big") + position.to_bytes(8, "big")
        facts.sampling.add(drawn, salt)
        facts.draws.append(Draw.of(drawn, view.step.token))


def accountant_for(manifest: Manifest, change: ContextChange | None) -> ExPostAccountant | None:
    """The accountant of a run's ex-post cost; None where nothing bounds the change, or it is too large to work out."""
    if change is None or change.contexts > MOST_CONTEXTS or not manifest.mechanism.draw.ex_post:
        return None
    return ExPostAccountant(manifest.mechanism, change, manifest.batching.per_round)


def objections(view: StepView, unmade: dict[str, InputError]) -> Iterator[tuple[str, Finding]]:
    """The step checks that object to a step, by id, and why. What plug-ins' checks fail by goes into `unmade`."""
    for check in _step_checks():
        with _held_apart(check, unmade):
            if problem := check.objection(view):
                yield check.id, problem


def unshown(view: StepView, unmade: dict[str, InputError]) -> Iterator[str]:
    """The step checks about which a step's record says nothing, by id. `unmade`: as for `objections`."""
    for check in _step_checks():
        with _held_apart(check, unmade):
            if check.unshown is not None and not check.shown(view):
                yield check.id


def gatherers_of(
    manifest: Manifest, header: BatchHeader, unmade: dict[str, InputError]
) -> list[tuple[RunCheck, Gatherer]]:
    """What checks of the run have look at a batch's steps. `unmade`: as for `objections`."""
    found = []
    for check in registered().values():
        if isinstance(check, RunCheck):
            with _held_apart(check, unmade):
                if (gatherer := check.gather(manifest, header)) is not None:
                    found.append((check, gatherer))
    return found


@cache
def _step_checks() -> tuple[StepCheck, ...]:
    return tuple(check for check in registered().values() if isinstance(check, StepCheck))


@contextmanager
def _held_apart(check: Check[Any], unmade: dict[str, InputError]) -> Iterator[None]:
    """Note what goes wrong in a plug-in's check, and go on."""
    try:
        yield
    except Exception as error:
        unmade.setdefault(check.id, check.failure(error))


def charged(view: StepView, accountant: ExPostAccountant | None) -> Cost | None:
    """What a step cost; None where nothing bounds it."""
    if accountant is None or view.reduced is None:
        return None
    try:
        return accountant.charge(view.header.id, view.reduced)
    except ValueError:  # no bound follows from such a record; the objections say what is wrong with it
        return None
