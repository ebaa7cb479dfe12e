"""Run directory -> AuditResult: one streaming pass over the steps, then the checks of the whole."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dpaudit import accounting
from dpaudit.auditing.batches import Progress, gather, return_freed_memory
from dpaudit.auditing.budgets import BudgetSums
from dpaudit.auditing.caveats import caveats
from dpaudit.auditing.checks import registered
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun, input_problem
from dpaudit.auditing.checks.neighbors import Losses
from dpaudit.auditing.checks.registry import Outcome
from dpaudit.auditing.checks.release import Texts
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
    no_attack,
    zcdp,
)
from dpaudit.auditing.samples import ExpensiveTokens, released_texts
from dpaudit.auditing.verdict import guarantee, judge, options_for
from dpaudit.mechanisms.claims import ApproximateClaim, ZcdpClaim
from dpaudit.plugins import CHECKS, FAILURES, failure_of, plug_ins
from dpaudit.results import (
    Asked,
    AuditResult,
    BatchResult,
    ClaimResult,
    Empirical,
    Finding,
    Guarantees,
    TextCounts,
)
from dpaudit.results.catalogue import message, require_words
from dpaudit.results.rows import Rows
from dpaudit.results.shell import claim_options, context_of
from dpaudit.results.summary import RunSummary, Settings
from dpaudit.runs import (
    Claim,
    CommittedSeed,
    InputError,
    KnownDigests,
    Manifest,
    RunReader,
    UnfinishedError,
)
from dpaudit.runs.engines import Engine
from dpaudit.runs.reader import RESUME
from dpaudit.version import __version__

if TYPE_CHECKING:
    from dpaudit.results.disclosed_texts import DisclosedTexts
    from dpaudit.results.replay import PublicReplay, Rerun

#: The level up to which a record alone can be checked, together with the release: what an audit
#: asks for by default.
EVIDENCE = 2

_ALL_PARTS = "Give --seed-file FILE once for each part."


@dataclass(frozen=True)
class Question:
    """The claim to test in place of the run's own; None keeps the run's own value.

    With an epsilon and no `batch_epsilon` nothing is asked of the batch level. A rho asks for zCDP,
    and an epsilon of a run that claims zCDP for the kind whose epsilons go with that.
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
            InputError: an epsilon of the batch level alone is asked of a claim that states none of
                the release level.
        """
        asked = {name: value for name, value in vars(self).items() if value is not None}
        own, kind = claim.model_dump(), claim.kind
        if self.rho is not None:
            kind = ZcdpClaim.id
        elif claim.rho is not None and (self.epsilon is not None or self.batch_epsilon is not None):
            kind = ApproximateClaim.id
            if self.epsilon is None:
                problem = (
                    "the run claims a rho, beside which an epsilon of the batch level "
                    "alone is no claim."
                )
                raise InputError(
                    "batch_epsilon", problem, "Give the epsilon of the release level, too."
                )
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
    known_digests: KnownDigests | None = None,
    seed: CommittedSeed | None = None,
    disclosed: DisclosedTexts | InputError | None = None,
) -> AuditResult:
    """Audit a run directory, from its record alone unless a replay's findings are given.

    Args:
        path: the run directory.
        question: tests another claim than the run's own.
        progress: called with (batches read, batches declared).
        evidence: the level up to which every check that is about the run must have been made, for a
            pass.
        replay: what recomputing steps with the model found, and with the data where they were
            given.
        reruns: what running a recorded generator's script again with frozen outputs found.
        tokenizers: digests (`dpaudit.runs.Vocabulary`) of tokenizers that the caller knows to be
            the model's own, beside those that dpaudit knows.
        engine: where batches are read. None means all cores of this machine, or this process alone
            for a small run; the result is the same.
        held: the run's commitment and head, as somebody was given them when they were made.
        seed: the secret seed that the run commits to. It stays in this process, and in no result.
        disclosed: what a trial of the texts against the data found, or why there is none.

    Returns:
        A result whose verdict is "error" when the run cannot be read as a whole; never raises for
        bad content.

    Raises:
        ValueError: there is no such evidence level.
        InputError: a worker process was killed over the same batch twice; or the run commits to no
            seed and one is given, or to one of another number of parts.
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
            accounting.CLUSTERINGS[manifest.clustering.method]  # a plug-in may be unusable
    except InputError as error:
        return _unreadable(str(path), input_problem(error), evidence)
    if seed is not None:
        _require_seed_of(reader, seed)
    question = question or Question()
    claim = question.asked_of(claim)
    run = AuditedRun(
        reader, claim, replay, reruns, known_digests or KnownDigests(), tokenizers, seed, disclosed
    )
    try:
        gather(run, engine, progress)
        result = _result(run, evidence, question.asked)
    except FAILURES as error:
        failure = failure_of(manifest.plug_ins, error)
        if failure is None:
            raise
        return _unreadable(str(path), input_problem(failure), evidence)
    stated = manifest.claim if question.asked else None
    own = (
        None
        if stated is None
        else ClaimResult.model_validate(stated.model_dump() | _most_records(manifest, stated))
    )
    return result.model_copy(update={"asked": question.asked, "own_claim": own})


def _require_seed_of(reader: RunReader, seed: CommittedSeed) -> None:
    """Raise InputError where the run commits to no seed of as many parts."""
    sampling, where = reader.manifest.sampling, f"{reader.name}: sampling"
    if not sampling.committed:
        problem = (
            f"the run commits to no seed (its generator is {sampling.generator}), and one "
            "was given."
        )
        raise InputError(where, problem, "Leave out --seed-file.")
    declared, given = len(sampling.seed_hashes), len(seed.hashes)
    if declared != given:
        problem = (
            f"the run's seed is made of {declared} part{'s' * (declared > 1)}, and the "
            f"audit was given {given}."
        )
        raise InputError(where, problem, _ALL_PARTS)


def _result(run: AuditedRun, evidence: int, asked: tuple[Asked, ...]) -> AuditResult:
    """Evaluate all checks and put the result together."""
    claim = _claim_result(run)
    context = context_of(run.reader.name, claim_options(claim, asked))
    # Our own first: whatever a plug-in's check does to the run, they have judged them by then.
    by_origin = sorted(registered().values(), key=lambda check: check.plug_in is not None)
    made = {check.id: check.result(run, context) for check in by_origin}
    checks = tuple(
        check.model_copy(update={"made_with": options_for(run, check)})
        for check in map(made.__getitem__, registered())
    )
    return_freed_memory()
    verdict = judge(checks, evidence)
    costs, losses, texts, unbounded = run[Costs], run[Losses], run[Texts], None
    if (reason := no_attack(run)) is not None:
        unbounded = message(reason, context)
    by_tokens = costs.ex_post.by_tokens() if costs.ex_post else []
    if not math.isfinite(costs.ex_post_cost.exact):  # the sums may leave out a step or a batch
        by_tokens = [costs.ex_post_cost] * (run.manifest.decoding.most_tokens + 1)
    return AuditResult(
        verdict=verdict,
        evidence=evidence,
        guarantee=message(guarantee(verdict, run, claim, checks, evidence), context),
        caveats=tuple(message(each, context) for each in caveats(run, checks))
        if verdict == "pass"
        else (),
        claim=claim,
        guarantees=Guarantees(
            ex_post=ex_post(run),
            approximate=approximate(run),
            zcdp=zcdp(run),
            no_attack=unbounded,
            empirical=Empirical(
                leave_one_out_max=max(losses.largest.values(), default=None),
                contexts=losses.contexts,
                worst=tuple(losses.worst),
                attack=attack(run),
                canaries=canaries(run),
            ),
        ),
        ledger=ledger(run),
        batches=Rows(BatchResult, (_batch_result(run, batch) for batch in sorted(run.headers))),
        tokens=run[CurveSums].result(by_tokens),
        checks=checks,
        not_checked=tuple(
            check.id for check in checks if check.status == "skip" and check.applicable
        ),
        run=_summary(run),
        samples=released_texts(run.reader, run[ExpensiveTokens]),
        released=TextCounts.of(texts.number, texts.vacuous),
        budgets=run[BudgetSums].result(),
        disclosed=None if isinstance(run.disclosed, InputError) else run.disclosed,
    )


def _batch_result(run: AuditedRun, batch: int) -> BatchResult:
    costs = run[Costs]
    header = run.headers[batch]
    return BatchResult(
        id=batch,
        label=header.label,
        contexts=header.contexts,
        steps=run.lengths[batch],
        **figures(costs.batch_cost(batch) if costs.ex_post else None),
        leave_one_out_max=run[Losses].largest.get(batch),
        texts=run[Texts].number_in(batch),
    )


def _most_records(manifest: Manifest, claim: Claim) -> dict[str, Any]:
    return {"records_per_user": manifest.privacy.records_per_user if claim.unit == "user" else None}


def _claim_result(run: AuditedRun) -> ClaimResult:
    return ClaimResult.model_validate(run.claim.model_dump() | neighbours(run))


def _summary(run: AuditedRun) -> RunSummary:
    return RunSummary(
        path=run.reader.name,
        audited=datetime.now(UTC).date().isoformat(),
        dpaudit=__version__,
        dp_accounting=importlib.metadata.version("dp-accounting"),
        plugins=_plug_ins(run.manifest),
        settings=Settings.of(run.manifest),
        batches=len(run.headers),
        contexts=sum(header.contexts for header in run.headers.values()),
        texts=run[Texts].number,
        steps=run.steps,
        digests={
            name: digest for name, digest in run.digests.items() if not name.startswith("steps/")
        },
    )


def _plug_ins(manifest: Manifest) -> dict[str, str]:
    """Return versions of other packages in the audit: those of the run's parts, and of checks."""
    took_part = [*manifest.plug_ins, *plug_ins(CHECKS)]
    return dict(sorted((each.package, each.version) for each in took_part if not each.is_own))


def _unreadable(path: str, problem: Finding, evidence: int) -> AuditResult:
    unread, failed = (
        Outcome("skip", "run-unreadable"),
        Outcome("fail", "no-run", {"problem": problem}),
    )
    context = context_of(path)
    checks = tuple(
        check.in_words(failed if check.id == "integrity.format" else unread, context)
        for check in registered().values()
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
        run=RunSummary(dpaudit=__version__),
    )
