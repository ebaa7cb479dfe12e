"""Run directory -> AuditResult: one streaming pass over the steps, then the checks of the run as a whole."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import dpaudit
from dpaudit.audit.batch import BatchAuditor, accountant_for
from dpaudit.audit.factors import NEXT_TO_NOTHING, change, factor, next_to_nothing
from dpaudit.audit.guarantees import approximate, attack, ex_post, ledger, users_records
from dpaudit.audit.samples import shown_samples
from dpaudit.audit.token_curve import CurveSums
from dpaudit.checks import Facts
from dpaudit.checks.claim import recomputed_epsilon
from dpaudit.checks.facts import known_places
from dpaudit.checks.integrity import unreadable_indexes
from dpaudit.checks.partition import read_placement
from dpaudit.checks.rebalancing import grouping_cost
from dpaudit.checks.registry import Outcome, printable, registered
from dpaudit.checks.sampling import SamplingTest
from dpaudit.engines import Engine, LocalEngine, cores
from dpaudit.mechanisms import ContextChange, context_change
from dpaudit.results import (
    Asked,
    AuditResult,
    BatchResult,
    CheckResult,
    ClaimResult,
    Empirical,
    Guarantees,
    TokenCurve,
    Verdict,
)
from dpaudit.results.replay import Replay
from dpaudit.results.rounding import exactly, rounded_up
from dpaudit.runs import Claim, Clusters, InputError, Manifest, Privacy, RunReader
from dpaudit.runs.layout import STEPS, steps_file
from dpaudit.runs.reader import RESUME
from dpaudit.runs.storage import is_url

Progress = Callable[[int, int], None]

#: The level up to which a record alone can be checked, together with the release: what an audit asks for by default.
EVIDENCE = 2
#: The highest level: actual neighbours.
MOST_EVIDENCE = 4

#: Steps on disk that are worth a process: half a second's work at least, where starting one takes a third of it.
PROCESS_BYTES = 1 << 24


@dataclass(frozen=True)
class Question:
    """What to test instead of the run's own claim; None keeps the run's own value."""

    epsilon: float | None = None
    delta: float | None = None
    relation: str | None = None
    unit: str | None = None

    @property
    def asked(self) -> tuple[Asked, ...]:
        """The fields of the claim that this question gives."""
        return tuple(name for name in get_args(Asked) if getattr(self, name) is not None)

    def asked_of(self, claim: Claim) -> Claim:
        """The claim with this question's values in place of its own. Raises pydantic's ValidationError."""
        asked = {name: value for name, value in vars(self).items() if value is not None}
        return Claim.model_validate(claim.model_dump() | asked)


def audit_run(
    path: Path | str,
    question: Question | None = None,
    progress: Progress | None = None,
    *,
    evidence: int = EVIDENCE,
    replay: Replay | None = None,
    engine: Engine | None = None,
) -> AuditResult:
    """Audit a run directory, from its record alone unless a replay's findings are given.

    Args:
        path: the run directory.
        question: tests another claim than the run's own.
        progress: called with (batches read, batches declared).
        evidence: the level up to which every check that is about the run must have been made, for a pass.
        replay: what recomputing steps with the model and the data found.
        engine: where batches are read. None means all cores of this machine, or this process alone for a small run;
            the result is the same.

    Returns:
        A result whose verdict is "error" when the run cannot be read as a whole; never raises for bad content.

    Raises:
        ValueError: there is no such evidence level.
        InputError: a worker process was killed over the same batch twice.
    """
    if not 0 <= evidence <= MOST_EVIDENCE:
        raise ValueError(f"evidence levels are 0 to {MOST_EVIDENCE}, not {evidence}")
    try:
        reader = RunReader(path)
        claim = reader.manifest.claim
        if claim is None:
            raise InputError(str(path), "the run states no claim: it is not finished.", RESUME)
    except InputError as error:
        return _unreadable(error, evidence)
    if question is not None:
        claim = question.asked_of(claim)
    audit = _Pass(reader, claim, replay)
    audit.read(engine, progress)
    asked = question.asked if question is not None else ()
    return audit.result(evidence).model_copy(update={"asked": asked})


class _Pass:
    """One audit: takes in what every batch says, in order, then evaluates."""

    def __init__(self, reader: RunReader, claim: Claim, replay: Replay | None) -> None:
        manifest, change = reader.manifest, _bounded_change(reader.manifest, claim)
        clusters = _clusters(reader)
        places = known_places(manifest, clusters)
        self.facts = Facts(
            reader,
            manifest,
            claim,
            change,
            accountant_for(manifest, change),
            SamplingTest(manifest.mechanism.temperature),
            read_placement(reader, places),
            grouping_cost(manifest, claim),
            replay,
            clusters,
            places,
        )
        self.curve = CurveSums(manifest.stopping.max_tokens)

    def read(self, engine: Engine | None, progress: Progress | None) -> None:
        """Go through all batches that are on disk. What cannot be read is noted and judged later."""
        facts = self.facts
        for name, error in unreadable_indexes(facts.reader, facts.placement):
            facts.unreadable[name] = error
        try:
            batches = facts.reader.batches
        except InputError as error:
            facts.unreadable[STEPS] = error
            return
        make_auditor = partial(BatchAuditor, facts.reader.location, facts.change)
        engine = engine or _engine_for(facts.reader)
        with closing(engine.map(make_auditor, batches)) as found:
            for done, batch in enumerate(found, start=1):
                facts.take(batch)
                self.curve.take(batch.costs)
                if progress:
                    progress(done, facts.manifest.batching.batches)

    def result(self, evidence: int) -> AuditResult:
        """Evaluate all checks and put the result together."""
        facts = self.facts
        checks = [check.result(facts) for check in registered()]
        verdict = _verdict(checks, evidence)
        empirical = Empirical(
            leave_one_out_max=max(facts.losses.values(), default=None),
            contexts=facts.left_out,
            worst=tuple(facts.worst),
            attack=attack(facts),
        )
        guarantees = Guarantees(ex_post=ex_post(facts), approximate=approximate(facts), empirical=empirical)
        batches = tuple(self._batch_result(batch_id) for batch_id in sorted(facts.headers))
        return AuditResult(
            verdict=verdict,
            evidence=evidence,
            guarantee=_sentence(verdict, facts, _unseen(checks, evidence), checks),
            caveats=_caveats(verdict, facts),
            claim=_claim_result(facts),
            guarantees=guarantees,
            ledger=ledger(facts),
            batches=batches,
            tokens=self._token_curve(),
            checks=tuple(checks),
            not_checked=_not_made(checks),
            run=_summary(facts),
            samples=shown_samples(facts.reader, batches),
        )

    def _batch_result(self, batch_id: int) -> BatchResult:
        header, accountant = self.facts.headers[batch_id], self.facts.ex_post
        cost = self.facts.batch_cost(batch_id) if accountant else None
        return BatchResult(
            id=batch_id,
            label=header.label,
            contexts=header.contexts,
            steps=self.facts.lengths[batch_id],
            theorem1=cost.theorem1 if cost else None,
            exact=cost.exact if cost else None,
            rise=cost.rise if cost else None,
            fall=cost.fall if cost else None,
            leave_one_out_max=self.facts.losses.get(batch_id),
        )

    def _token_curve(self) -> TokenCurve | None:
        by_tokens = self.facts.ex_post.by_tokens() if self.facts.ex_post else []
        if not math.isfinite(self.facts.ex_post_cost.exact):  # the sums may leave out a step or a batch
            by_tokens = [self.facts.ex_post_cost] * (self.curve.positions + 1)
        return self.curve.result(by_tokens)


def _clusters(reader: RunReader) -> Clusters | None:
    """The file `clusters`; None where it cannot be read: integrity.complete or integrity.format says why."""
    try:
        return reader.clusters()
    except InputError:
        return None


def _engine_for(reader: RunReader) -> Engine:
    """All cores, but no more of them than there is work for."""
    if is_url(reader.location):  # sizes would have to be asked for over the network
        return LocalEngine(max(1, min(cores(), len(reader.batches))))
    enough = cores() * PROCESS_BYTES
    size = 0
    for batch in reader.batches:
        with suppress(OSError):  # what is wrong with the file is told when it is read
            size += (Path(reader.location) / steps_file(batch)).lstat().st_size
        if size >= enough:
            break
    return LocalEngine(max(1, min(cores(), len(reader.batches), size // PROCESS_BYTES)))


def _bounded_change(manifest: Manifest, claim: Claim) -> ContextChange | None:
    """The change to account for; None when nothing bounds it or it is out of the record's reach."""
    change = context_change(
        claim.unit, claim.relation, manifest.batching.rule, records_per_user=manifest.privacy.records_per_user
    )
    return change if change is None or manifest.mechanism.bounds(change, manifest.record.width) else None


def _verdict(checks: list[CheckResult], evidence: int) -> Verdict:
    """What cannot be read as a whole cannot be judged: that goes before any failed check."""
    failed = {check.id for check in checks if check.status in ("fail", "error")}
    if failed & {"integrity.format", "integrity.complete"}:
        return "error"
    return "fail" if failed or _unseen(checks, evidence) else "pass"


def _unseen(checks: list[CheckResult], evidence: int) -> list[CheckResult]:
    """Checks up to a level that are about this run and were not made."""
    return [check for check in checks if check.status == "skip" and check.applicable and check.evidence <= evidence]


def _not_made(checks: list[CheckResult]) -> tuple[str, ...]:
    return tuple(check.id for check in _unseen(checks, MOST_EVIDENCE))


def _claim_result(facts: Facts) -> ClaimResult:
    return ClaimResult(**facts.claim.model_dump(), records_per_user=users_records(facts.manifest, facts.claim))


def _sentence(verdict: Verdict, facts: Facts, unseen: list[CheckResult], checks: list[CheckResult]) -> str:
    claim, aggregator = facts.claim, facts.manifest.mechanism.aggregator.name
    if verdict == "error":
        return "No guarantee can be stated: the run cannot be read as a whole."
    if verdict == "fail":
        failed = [check for check in checks if check.status in ("fail", "error")]
        if not failed:
            named = ", ".join(check.id for check in unseen)
            return f"The claim is not shown to hold: {named} would have to pass and could not be made."
        if [check.id for check in failed] == ["disclosure.sensitive"]:
            return f"The record bears the claim out, but its settings are not fit to publish: {failed[0].measured}."
        if any(not check.id.startswith("claim.") for check in failed):
            return "The record cannot be relied on, so nothing supports the claim. Do not release these texts under it."
        reasons = "; ".join(f"{check.measured} where {check.expected} was due" for check in failed)
        return f"The claim does not hold: {reasons}. Do not release these texts under it."
    changed = change(_claim_result(facts))
    epsilon, delta = exactly(claim.epsilon), exactly(claim.delta)
    if claim.kind == "ex-post":
        recomputed = recomputed_epsilon(facts)
        found = rounded_up(math.inf if recomputed is None else recomputed)
        if claim.delta:
            return (
                f"{aggregator.capitalize()} aggregation on noised clusters: {changed}, no set of outcomes would be "
                f"more probable than with a factor e^epsilon on each outcome, plus {delta}. For this outcome epsilon "
                f"is at most {epsilon} (data-dependent ex-post epsilon, recomputed from the record as {found}; other "
                f"outcomes have other ones, and delta is about sets of outcomes, not about this one)."
            )
        return (
            f"{aggregator.capitalize()} aggregation would have produced these very texts with a probability that "
            f"differs by at most a factor {factor(claim.epsilon)} {changed} (data-dependent ex-post epsilon, "
            f"recomputed from the record as {found}; it holds for this data and these texts only)."
        )
    return (
        f"{aggregator.capitalize()} aggregation is ({epsilon}, {delta})-differentially private: {changed}, no set "
        f"of outputs would be more than {factor(claim.epsilon)} times as probable, plus {delta} (approximate DP, "
        "whatever the data)."
    )


def _caveats(verdict: Verdict, facts: Facts) -> tuple[str, ...]:
    if verdict != "pass":
        return ()
    caveats = [
        *_next_to_nothing(facts),
        "What the run declares of itself is taken as true where no check of a higher level looks behind it.",
    ]
    if facts.manifest.claim_stated == "afterwards" and facts.claim == facts.manifest.claim:
        caveats.append("The run stated this claim itself, after it was generated.")
    if facts.claim.unit == "user":
        caveats.append(_user_caveat(facts.manifest.privacy))
    return (*caveats, "A pass means that the number is right, not that it is small enough.")


def _next_to_nothing(facts: Facts) -> list[str]:
    """What makes the guarantee an empty one. `disclosure` knows these by NEXT_TO_NOTHING: they tell of data."""
    said = next_to_nothing(facts.claim.epsilon)
    empty = [batch for batch, header in sorted(facts.headers.items()) if not header.contexts]
    if not empty or facts.claim.kind != "ex-post":
        return [said] if said else []
    which = f"batch {empty[0]} has" if len(empty) == 1 else f"{len(empty):,} batches have"
    alone = f"{NEXT_TO_NOTHING} {which} no context, so that one more would decide the text alone."
    return [said, alone] if said else [alone]


def _user_caveat(privacy: Privacy) -> str:
    most = privacy.records_per_user
    if privacy.records_per_user_from == "declared":
        return f"That no user has more than {most} records is declared by the run; the record cannot show it."
    return f"No user of this data has more than {most} records; the claim holds for users with no more than that."


def _summary(facts: Facts) -> dict[str, Any]:
    manifest = facts.manifest.model_dump(mode="json")
    # With the key, a reader of the report could test guesses of a record's text against its digest.
    manifest["batching"].pop("key")
    manifest.pop("claim")
    try:
        digests = facts.reader.hashes() if facts.reader.has("hashes") else {}
    except InputError:
        digests = {}
    return {
        "path": printable(facts.reader.name),
        "dpaudit": dpaudit.__version__,
        "dp_accounting": importlib.metadata.version("dp-accounting"),
        "manifest": manifest,
        "batches": len(facts.headers),
        "contexts": sum(header.contexts for header in facts.headers.values()),
        "steps": facts.steps,
        "digests": {printable(name): digest for name, digest in digests.items() if not name.startswith("steps/")},
    }


def _unreadable(error: InputError, evidence: int) -> AuditResult:
    unread = Outcome("skip", "not run", "a run that can be read", "The run cannot be read.")
    failed = Outcome("fail", "unreadable", "a run directory of format 1", str(error))
    return AuditResult(
        verdict="error",
        evidence=evidence,
        guarantee="No guarantee can be stated: this is no run directory that can be read.",
        caveats=(),
        claim=None,
        guarantees=Guarantees(
            ex_post=None, approximate=None, empirical=Empirical(leave_one_out_max=None, contexts=0, worst=())
        ),
        ledger=(),
        batches=(),
        tokens=None,
        checks=tuple(check.entry(failed if check.id == "integrity.format" else unread) for check in registered()),
        not_checked=tuple(check.id for check in registered() if check.id != "integrity.format"),
        run={"dpaudit": dpaudit.__version__},
    )
