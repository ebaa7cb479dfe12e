"""Run directory -> AuditResult: one streaming pass over the steps, then the checks of the run as a whole."""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dpaudit
from dpaudit.accounting import ContextChange, ExPostAccountant, context_changes
from dpaudit.checks import CATALOGUE, RUN_CHECKS, STEP_CHECKS, Facts
from dpaudit.checks.claim import approximate_epsilon
from dpaudit.checks.record import token_index
from dpaudit.checks.registry import Outcome, RunCheck, StepCheck, printable, result_of, step_result
from dpaudit.checks.release import label_problem, stop_problem, text_problem, without_stop
from dpaudit.results import (
    Approximate,
    AuditResult,
    BatchResult,
    CheckResult,
    ClaimResult,
    Empirical,
    ExPost,
    Guarantees,
    TokenCurve,
    Verdict,
)
from dpaudit.runs import BatchReader, Claim, InputError, Manifest, RunReader, Step
from dpaudit.runs.reader import RESUME, sample_of

Progress = Callable[[int, int], None]

#: Logarithm of the probability below which two batches do not draw the same tokens by chance.
_NO_COINCIDENCE = -20.0


@dataclass(frozen=True)
class Question:
    """What to test instead of the run's own claim; None keeps the run's own value."""

    epsilon: float | None = None
    delta: float | None = None
    relation: str | None = None
    unit: str | None = None

    def asked_of(self, claim: Claim) -> Claim:
        """The claim with this question's values in place of its own. Raises pydantic's ValidationError."""
        asked = {name: value for name, value in vars(self).items() if value is not None}
        return Claim.model_validate(claim.model_dump() | asked)


def audit_run(path: Path | str, question: Question | None = None, progress: Progress | None = None) -> AuditResult:
    """Audit a run directory from its record alone.

    Args:
        path: the run directory.
        question: tests another claim than the run's own.
        progress: called with (batches read, batches declared).

    Returns:
        A result whose verdict is "error" when the run cannot be read as a whole; never raises for bad content.
    """
    try:
        reader = RunReader(Path(path))
        claim = reader.manifest.claim
        if claim is None:
            raise InputError(str(path), "the run states no claim: it is not finished.", RESUME)
    except InputError as error:
        return _unreadable(error)
    if question is not None:
        claim = question.asked_of(claim)
    audit = _Pass(reader, claim)
    audit.read(progress)
    return audit.result()


class _Curve:
    """Sum, maximum and number of step costs at each token position, up to the public maximum length."""

    def __init__(self, positions: int) -> None:
        self.total = np.zeros(positions)
        self.maximum = np.zeros(positions)
        self.count = np.zeros(positions, dtype=np.int64)

    def add(self, position: int, cost: float) -> None:
        self.total[position] += cost
        self.maximum[position] = max(self.maximum[position], cost)
        self.count[position] += 1

    def result(self) -> TokenCurve | None:
        reached = np.flatnonzero(self.count)  # a position whose steps give no bound has no cost to show
        if not len(reached):
            return None
        return TokenCurve(
            position=tuple(int(position) + 1 for position in reached),
            batches=tuple(int(self.count[p]) for p in reached),
            mean=tuple(float(self.total[p] / self.count[p]) for p in reached),
            maximum=tuple(float(self.maximum[p]) for p in reached),
        )


class _Pass:
    """One audit: reads every step once, then evaluates."""

    def __init__(self, reader: RunReader, claim: Claim) -> None:
        manifest = reader.manifest
        changes = _bounded_changes(manifest, claim)
        accountant = None
        if changes and manifest.mechanism.aggregator == "median":
            accountant = ExPostAccountant(changes, manifest.mechanism.temperature)
        self.facts = Facts(reader, manifest, claim, changes, accountant)
        self.curve = _Curve(manifest.stopping.max_tokens)
        self.decode = _decoder(reader)
        self.drawn: dict[bytes, int] = {}

    def read(self, progress: Progress | None) -> None:
        """Go through all batches that are on disk. What cannot be read is noted and judged later."""
        declared = self.facts.manifest.batching.batches
        try:
            batches = self.facts.reader.batches
        except InputError as error:
            self.facts.unreadable.append(error)
            return
        for done, batch_id in enumerate(batches, start=1):
            try:
                with self.facts.reader.batch(batch_id) as batch:
                    self._read_batch(batch)
            except InputError as error:
                self.facts.unreadable.append(error)
            if progress:
                progress(done, declared)

    def _read_batch(self, batch: BatchReader) -> None:
        facts, header = self.facts, batch.header
        facts.headers[header.id] = header
        facts.lengths[header.id] = len(batch.tokens)
        sample = sample_of(batch)
        facts.sample_digests[header.id] = hashlib.sha256(sample.line().encode()).digest()
        tokens = without_stop(sample.tokens, facts.manifest.stopping.sequences)
        problem = text_problem(sample, self.decode(tokens) if self.decode and sample.text is not None else None)
        if problem:
            facts.texts.append(problem)
        ending = stop_problem(sample, facts.manifest.stopping)
        if ending:
            facts.stops.append(ending)
        label = label_problem(sample, facts.manifest)
        if label:
            facts.texts.append(label)
        drawn = hashlib.sha256()
        log_probability = 0.0
        for position, step in enumerate(batch.steps()):
            facts.steps += 1
            drawn.update(step.aggregate_digest + step.token.to_bytes(8, "big", signed=True))
            log_probability += step.log_probability
            self._check_step(batch, position, step)
            if facts.ex_post is not None:
                self._charge(facts.ex_post, header.id, position, step)
        if header.contexts and log_probability < _NO_COINCIDENCE:
            first = self.drawn.setdefault(drawn.digest(), header.id)
            if first != header.id:
                facts.copies.append(f"batch {header.id} repeats batch {first}, aggregates and tokens alike")

    def _check_step(self, batch: BatchReader, position: int, step: Step) -> None:
        for check_id, check in STEP_CHECKS.items():
            if not check.applies(self.facts.manifest):
                continue
            # Corrupt values overflow and compare oddly; the checks say so in words, numpy need not.
            with np.errstate(all="ignore"):
                problem = check.problem(self.facts.manifest, batch.header, step)
            if problem:
                self.facts.note(check_id, f"batch {batch.header.id}, step {position}", problem)

    def _charge(self, accountant: ExPostAccountant, batch_id: int, position: int, step: Step) -> None:
        index = token_index(self.facts.manifest, step)
        if index is None or step.central is None:
            self.facts.unbounded += 1
            return
        try:
            with np.errstate(all="ignore"):
                cost = accountant.charge(batch_id, step.central, index)
        except ValueError:
            self.facts.unbounded += 1
            return
        self.curve.add(position, cost)

    def result(self) -> AuditResult:
        """Evaluate all checks and put the result together."""
        facts = self.facts
        checks = [
            step_result(check, facts) if isinstance(check, StepCheck) else result_of(check.about, check.outcome(facts))
            for _, check in _registered()
        ]
        verdict = _verdict(checks)
        guarantees = _guarantees(facts)
        return AuditResult(
            verdict=verdict,
            guarantee=_sentence(verdict, facts, checks),
            caveats=_caveats(verdict, facts),
            claim=ClaimResult(**facts.claim.model_dump()),
            guarantees=guarantees,
            batches=tuple(self._batch_result(batch_id) for batch_id in sorted(facts.headers)),
            tokens=self.curve.result(),
            checks=tuple(checks),
            not_checked=_not_in_this_version(),
            run=_summary(facts),
        )

    def _batch_result(self, batch_id: int) -> BatchResult:
        header, accountant = self.facts.headers[batch_id], self.facts.ex_post
        return BatchResult(
            id=batch_id,
            label=header.label,
            contexts=header.contexts,
            steps=self.facts.lengths[batch_id],
            theorem1=accountant.batch_epsilon(batch_id) if accountant else None,
            exact=None,
            leave_one_out_max=None,
        )


def _bounded_changes(manifest: Manifest, claim: Claim) -> tuple[ContextChange, ...]:
    """The changes to account for; none when one of them is out of the record's reach."""
    changes = context_changes(claim.unit, claim.relation, manifest.batching.rule)
    reach = 2 * manifest.record.width - 1
    if manifest.mechanism.aggregator == "median" and any(change.half_steps > reach for change in changes):
        return ()
    return changes


def _decoder(reader: RunReader) -> Callable[[list[int]], str | None] | None:
    """Decodes tokens with the run's own tokenizer, or None when there is none that can be read."""
    try:
        serialised = reader.tokenizer_json()
    except InputError:
        return None
    if serialised is None:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(serialised)
    # The parser raises plain Exception for a file that it does not understand.
    except Exception:
        return None

    def decode(tokens: list[int]) -> str | None:
        try:
            return str(tokenizer.decode(tokens, skip_special_tokens=True))
        except OverflowError:  # a negative token id
            return None

    return decode


def _verdict(checks: list[CheckResult]) -> Verdict:
    """What cannot be read as a whole cannot be judged: that goes before any failed check."""
    failed = {check.id for check in checks if check.status in ("fail", "error")}
    if failed & {"integrity.format", "integrity.complete"}:
        return "error"
    return "fail" if failed else "pass"


def _guarantees(facts: Facts) -> Guarantees:
    claim, manifest = facts.claim, facts.manifest
    ex_post = approximate = None
    epsilon = facts.ex_post_epsilon
    if epsilon is not None:
        ex_post = ExPost(
            relation=claim.relation, unit=claim.unit, theorem1=epsilon, exact=None, rebalancing=0.0, total=epsilon
        )
    elif claim.kind == "approximate":
        approximate = Approximate(
            epsilon=approximate_epsilon(manifest, claim),
            delta=claim.delta,
            method="rdp",
            relation=claim.relation,
            unit=claim.unit,
            tokens=manifest.stopping.max_tokens,
            rebalancing=0.0,
        )
    return Guarantees(ex_post=ex_post, approximate=approximate, empirical=Empirical(leave_one_out_max=None))


_CHANGE = {"add_remove": "added or removed", "replace": "replaced by another"}


def _sentence(verdict: Verdict, facts: Facts, checks: list[CheckResult]) -> str:
    claim, aggregator = facts.claim, facts.manifest.mechanism.aggregator
    if verdict == "error":
        return "No guarantee can be stated: the run cannot be read as a whole."
    if verdict == "fail":
        failed = [check for check in checks if check.status in ("fail", "error")]
        if any(not check.id.startswith("claim.") for check in failed):
            return "The record cannot be relied on, so nothing supports the claim. Do not release these texts under it."
        found = "; ".join(f"{check.measured} where {check.expected} was claimed or due" for check in failed)
        return f"The claim does not hold: {found}. Do not release these texts under it."
    change = f"had one {claim.unit} been {_CHANGE[claim.relation]}"
    epsilon, delta = _exactly(claim.epsilon), _exactly(claim.delta)
    if claim.kind == "ex-post":
        return (
            f"{aggregator.capitalize()} aggregation would have produced these very texts with a probability that "
            f"differs by at most a factor e^{epsilon} {change} (data-dependent ex-post epsilon {epsilon}, which holds "
            "for this data and these texts only)."
        )
    return (
        f"{aggregator.capitalize()} aggregation is ({epsilon}, {delta})-differentially private: {change}, no set "
        f"of outputs would be more than e^{epsilon} times as probable, plus {delta} (approximate DP, whatever the "
        "data)."
    )


def _caveats(verdict: Verdict, facts: Facts) -> tuple[str, ...]:
    if verdict != "pass":
        return ()
    missing = f"{len(_not_in_this_version())} of the catalogue's {len(CATALOGUE)} checks do not exist in this version"
    caveats = [f"The settings that the run declares of itself are taken as true, and {missing}."]
    if facts.manifest.claim_stated == "afterwards":
        caveats.append("The run stated this claim itself, after it was generated.")
    return (*caveats, "A pass means that the number is right, not that it is small enough.")


def _exactly(number: float) -> str:
    """A claimed number, never rounded."""
    return short if float(short := f"{number:g}") == number else repr(number)


def _registered() -> list[tuple[str, StepCheck | RunCheck]]:
    """All checks, in the catalogue's order."""
    known: dict[str, StepCheck | RunCheck] = {**STEP_CHECKS, **RUN_CHECKS}
    return [(name, known[name]) for name in CATALOGUE if name in known]


def _not_in_this_version() -> tuple[str, ...]:
    return tuple(name for name in CATALOGUE if name not in STEP_CHECKS and name not in RUN_CHECKS)


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
        "path": printable(str(facts.reader.path)),
        "dpaudit": dpaudit.__version__,
        "dp_accounting": importlib.metadata.version("dp-accounting"),
        "manifest": manifest,
        "batches": len(facts.headers),
        "contexts": sum(header.contexts for header in facts.headers.values()),
        "steps": facts.steps,
        "digests": {printable(name): digest for name, digest in digests.items() if not name.startswith("steps/")},
    }


def _unreadable(error: InputError) -> AuditResult:
    unread = Outcome("skip", "not run", "a run that can be read", "The run cannot be read.")
    failed = Outcome("fail", "unreadable", "a run directory of format 1", str(error))
    return AuditResult(
        verdict="error",
        guarantee="No guarantee can be stated: this is no run directory that can be read.",
        caveats=(),
        claim=None,
        guarantees=Guarantees(ex_post=None, approximate=None, empirical=Empirical(leave_one_out_max=None)),
        batches=(),
        tokens=None,
        checks=tuple(result_of(c.about, failed if name == "integrity.format" else unread) for name, c in _registered()),
        not_checked=_not_in_this_version(),
        run={"dpaudit": dpaudit.__version__},
    )
