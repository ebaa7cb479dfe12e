"""Audits from Python: one call gives the verdict, the figures, and the report's files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from pydantic import ValidationError

from dpaudit.api import places
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.shown import Shown
from dpaudit.api.tables import Records, dataframe, records_file, require_there
from dpaudit.auditing.run import EVIDENCE, Question, audit_run
from dpaudit.errors import in_short
from dpaudit.mechanisms.claims import ApproximateClaim
from dpaudit.results import AuditResult
from dpaudit.results.shell import WITH_MODEL
from dpaudit.runs import Claim, InputError, KnownDigests, RunReader, read_seed
from dpaudit.runs.reader import read_tokenizer

if TYPE_CHECKING:
    from pandas import DataFrame

    from dpaudit.accounting.risk import AttackCurve
    from dpaudit.releasing.policy import PolicyFile
    from dpaudit.results import (
        Approximate,
        CheckResult,
        ClaimResult,
        ExPost,
    )
    from dpaudit.results.disclosed_texts import DisclosedTexts
    from dpaudit.results.publication import SignedOff
    from dpaudit.results.quality import Quality
    from dpaudit.results.replay import PublicReplay, Rerun
    from dpaudit.results.worth import Worth
    from dpaudit.runs.engines import Engine
    from dpaudit.runs.storage import Location

#: Of replays: steps, chosen, left_out and trials, as `dpaudit.generation.replay.replay_run` takes
#: them.
Amounts = Mapping[str, Any]


class AuditError(Exception):
    """A run did not pass its audit.

    Attributes:
        audits: the audits of which one or more did not pass.
    """

    def __init__(self, *audits: Audit) -> None:
        failed = (found for found in audits if found.verdict != "pass")
        super().__init__(
            "; ".join(f"{found.run}: {found.verdict}: {found.guarantee}" for found in failed)
        )
        self.audits = audits


class AuditOptions(TypedDict, total=False):
    """The keyword arguments of `audit`."""

    epsilon: float | None
    batch_epsilon: float | None
    rho: float | None
    delta: float | None
    relation: str | None
    unit: str | None
    model: str | None
    data: Records | None
    evidence: int
    policy: str | os.PathLike[str] | None
    commitment: str | None
    head: str | None
    tokenizers: Sequence[str | os.PathLike[str]]
    seed_files: Sequence[str | os.PathLike[str]]
    find_model: bool
    engine: Engine | None
    monitor: Monitor


class Audit(Shown[AuditResult]):
    """The audit of one run.

    Attributes:
        run: the run directory, as it was named.
        result: everything that was found, an immutable pydantic model. It is as private as the
            run's records.
    """

    def __init__(self, run: Location, result: AuditResult, monitor: Monitor = SILENT) -> None:
        super().__init__(result)
        self.run = run
        self._monitor = monitor

    @property
    def verdict(self) -> str:
        """The verdict: "pass", "not_verified" (a required check was not made), "fail", "error"."""
        return self.result.verdict

    @property
    def guarantee(self) -> str:
        """The guarantee, or its absence, as one sentence."""
        return str(self.result.guarantee)

    @property
    def claim(self) -> ClaimResult | None:
        """The claim that was tested, in nats; None if the run cannot be read."""
        return self.result.claim

    @property
    def epsilon(self) -> float | None:
        """The recomputed epsilon at the release level (for readers of the texts), in nats.

        It goes with the claim's kind, and is a guarantee only where the verdict is "pass". None if
        the record gives none, or a claim of zCDP states no delta for it.
        """
        return None if self._recomputed is None else self._recomputed.epsilon

    @property
    def batch_epsilon(self) -> float | None:
        """The recomputed epsilon at the batch level, in nats: for who knows a record's batch."""
        return None if self._recomputed is None else self._recomputed.batch_epsilon

    @property
    def rho(self) -> float | None:
        """The recomputed rho of zCDP at the batch level, in nats; None unless a rho is claimed."""
        found = self.result.guarantees.zcdp
        return None if found is None else found.rho

    @property
    def attack(self) -> AttackCurve | None:
        """The most that readers can do: `.advantage`, `.true_positives(0.01)` and more.

        It is recomputed from public settings, as an upper bound on every attack about one unit of
        the claim, and a guarantee only where the verdict is "pass". None where all that is known
        is the cost of these very texts (an ex-post claim), which bounds no attack in general.
        """
        found = self.result.guarantees.attacks
        return None if found is None or found.attack is None else found.attack.curve

    @property
    def batch_attack(self) -> AttackCurve | None:
        """The most that someone can do who knows a record's batch, as `attack`."""
        found = self.result.guarantees.attacks
        return None if found is None or found.batch_attack is None else found.batch_attack.curve

    @property
    def _recomputed(self) -> ExPost | Approximate | None:
        return None if self.claim is None else self.result.guarantees.epsilons(self.claim.kind)

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """The outcomes of all checks."""
        return self.result.checks

    def __bool__(self) -> bool:
        """Refuse to be taken for a verdict: every audit would be true. Raises TypeError."""
        raise TypeError(
            "an audit is neither true nor false: look at .verdict, or call .raise_for_failure()"
        )

    def check(self, check_id: str) -> CheckResult:
        """Return one check's outcome, such as "claim.epsilon". Raises InputError without one."""
        by_id = {check.id: check for check in self.checks}
        if check_id not in by_id:
            close = "".join(
                f" Did you mean {name}?" for name in difflib.get_close_matches(check_id, by_id, n=1)
            )
            raise InputError(
                "check",
                f"this audit has no check {check_id!r}.",
                f"`dpaudit checks` lists them.{close}",
            )
        return by_id[check_id]

    @cached_property
    def quality(self) -> tuple[Quality | None, str]:
        """The run's private evaluation, or None, and why it cannot be shown, or ""."""
        return quality_of(self.run)

    @cached_property
    def sign_offs(self) -> tuple[bytes, tuple[SignedOff, ...]]:
        """The reviewers' sign-offs: their file, empty without one, and who signed.

        Raises:
            InputError: they cannot be read, or one is not of this run.
        """
        return sign_offs_of(self.run)

    @cached_property
    def worth(self) -> Worth | None:
        """What the records added to the run's texts, as far as it was measured. Private."""
        worth, problem = worth_of(self.run)
        if problem:
            self._monitor.warn(problem)
        return worth

    @cached_property
    def report(self) -> AuditResult:
        """The result that `save` writes, with the run's evaluation unless it is public."""
        if self.result.verdict == "error" or self.result.audience == "public":
            return self.result
        quality = self.with_digests().quality
        measured = {"quality": quality and quality.without_digests(), "worth": self.worth}
        return self.result.model_copy(update=measured)

    def with_digests(self) -> AuditResult:
        """Return the result and the evaluation with private texts' digests, for comparisons."""
        if self.result.verdict == "error":
            return self.result
        quality, problem = self.quality
        if problem:
            self._monitor.warn(problem)
        return self.result.model_copy(update={"quality": quality})

    def public(self) -> Audit:
        """Return the form for readers outside, without all that private records gave."""
        from dpaudit.auditing.disclosure import public_form

        return Audit(self.run, public_form(self.result), self._monitor)

    def raise_for_failure(self) -> None:
        """Raise AuditError unless the verdict is "pass"."""
        if self.verdict != "pass":
            raise AuditError(self)

    def to_dataframe(self) -> DataFrame:
        """Return a pandas.DataFrame with a row per check, and the fields of `CheckResult`."""
        return dataframe(check.model_dump() for check in self.checks)

    def to_html(self) -> str:
        """Return report.html as text: one page that needs no other file."""
        from dpaudit.reports.audit_document import render_html

        return render_html(self.report)

    def to_json(self) -> str:
        """Return report.json as text."""
        return self.report.to_json()

    def save(self, folder: str | os.PathLike[str] | None = None) -> dict[str, Path]:
        """Write report.html, report.json, report.md and junit.xml, readable by their owner alone.

        Args:
            folder: where; None for the report folder in the run directory.

        Returns:
            The files, by "html", "json", "markdown" and "junit".

        Raises:
            InputError: the folder is part of a run's record or of a release, holds a public report
                that a private one would replace, or cannot be written.
        """
        from dpaudit.reports.write import write_reports

        place = report_place(self.run, folder, self.result.audience)
        with places.writing(place, "--out"):
            return write_reports(self.report, place)

    def _title(self) -> str:
        return f"Audit of {self.run}: {self.verdict}"

    def _rows(self) -> list[tuple[str, str]]:
        from dpaudit.reports import attacks, findings, levels

        claim = self.claim
        claimed = recomputed = self.guarantee
        if claim is not None:
            claimed, recomputed = (
                levels.claim_words(claim),
                levels.recomputed_words(claim, self.result.guarantees),
            )
        return [
            ("claimed", claimed),
            ("recomputed", recomputed),
            *(("attacks", said) for said in filter(None, [attacks.rates_in_short(self.result)])),
            ("checks", f"{findings.counts(self.result)} (evidence level {self.result.evidence})"),
            ("more", ".guarantee, .check(id), .to_dataframe(), .save(folder), .result"),
        ]


def audit(
    run: str | os.PathLike[str],
    epsilon: float | None = None,
    batch_epsilon: float | None = None,
    delta: float | None = None,
    relation: str | None = None,
    unit: str | None = None,
    *,
    rho: float | None = None,
    model: str | None = None,
    data: Records | None = None,
    evidence: int = 2,
    policy: str | os.PathLike[str] | None = None,
    commitment: str | None = None,
    head: str | None = None,
    tokenizers: Sequence[str | os.PathLike[str]] = (),
    seed_files: Sequence[str | os.PathLike[str]] = (),
    find_model: bool = True,
    engine: Engine | None = None,
    replay: Amounts | None = None,
    reruns: Sequence[Rerun] = (),
    keep_partial: bool = False,
    signer: str | None = None,
    monitor: Monitor = SILENT,
) -> Audit:
    """Audit a run directory: recompute what its texts cost, and check that the claim holds.

    It reads the run directory alone, and imports no torch, unless `model` or `data` is given, or a
    required check needs the model.

    Args:
        run: the run directory: a path, or a URL that fsspec opens.
        epsilon: test this epsilon instead of the claimed one, in nats, at the release level: for
            readers of the texts. Without it a run is held to the number that it states itself.
        batch_epsilon: test this epsilon at the batch level, in nats: for someone who knows a
            record's batch.
        delta: test this delta, between 0 and 1, instead of the claimed one.
        relation: test these neighbours: "add_remove" or "replace" of one unit.
        unit: test this privacy unit: "record", "context" or "user".
        rho: test this rho of zCDP, in nats, in place of any epsilon.
        model: where the run's model is. Without `data`, what is public in the run is recomputed
            with it.
        data: the run's private records, to replay the run with its model: a path, a
            pandas.DataFrame or a datasets.Dataset with the columns that the run read.
        evidence: pass only where every check up to this level (0 to 4) was made; 3 and 4 need
            `data`.
        policy: a YAML file of rules that the run must meet, too; its evidence level counts where it
            is higher.
        commitment: the fingerprint that `generate` gave before the first token, in hexadecimal.
        head: the fingerprint that `generate` gave after the last one.
        tokenizers: tokenizer.json files (or their folders) that you know to be the model's own.
        seed_files: the parts of the secret seed that the run commits to.
        find_model: load the model that the run names, where it is installed here and makes every
            required check that the record does not. Nothing is downloaded.
        engine: where batches are read; None for the cores of this machine.
        replay: amounts of a replay: steps, chosen, left_out, trials. Needs `data`.
        reruns: what running a recorded generator's script again found.
        keep_partial: go on with what a replay had shown when it is interrupted, instead of raising
            KeyboardInterrupt.
        signer: id of the key that is to sign the release, for a policy's rule about signers.
        monitor: receives progress and warnings.

    Returns:
        The audit. A run that cannot be read as a whole has the verdict "error".

    Raises:
        InputError: an argument cannot be used, or the data or the model is not the run's.
    """
    where = places.location_of(run)
    if model is not None and not (isinstance(model, str) and model):
        raise InputError(
            "model",
            f"this is {in_short(model)}, and no name.",
            "Give a folder, a package or a hub's name.",
        )
    question = asked_claim(epsilon, batch_epsilon, rho, delta, relation, unit)
    if type(evidence) is not int or evidence not in range(5):
        raise InputError(
            "evidence", f"there is no evidence level {evidence!r}.", "Give one from 0 to 4."
        )
    rules = None
    if policy is not None:
        from dpaudit.releasing.policy import read_policy

        rules = read_policy(places.path_of(policy, "policy"))
        evidence = max(evidence, rules.policy.evidence or 0)
    known = frozenset(read_tokenizer(places.path_of(file, "tokenizers")) for file in tokenizers)
    seed = (
        read_seed(tuple(places.path_of(file, "seed_files") for file in seed_files))
        if seed_files
        else None
    )
    known_digests = KnownDigests(digest_of("commitment", commitment), digest_of("head", head))

    def audited(found: PublicReplay | None) -> AuditResult:
        if found is not None:
            monitor.note("Auditing the run with what its replay found")
        with monitor.progress("Auditing", "batches") as advance:
            return audit_run(
                where,
                question,
                progress=advance,
                evidence=evidence,
                replay=found,
                reruns=reruns,
                tokenizers=known,
                engine=engine,
                known_digests=known_digests,
                seed=seed,
                disclosed=disclosed,
            )

    found = _replay(where, data, model, question, replay or {}, keep_partial, monitor)
    disclosed = None if data is None else _tried(where, data, question, monitor)
    result = audited(found)
    if found is None and find_model and _model_verifies(result, rules):
        found = _installed_replay(where, question, monitor)
        result = result if found is None else audited(found)
    made = Audit(where, result, monitor)
    if made.verdict != "error" and made.worth is not None:
        made.result = result.model_copy(update={"paid": made.worth.paid})
    if rules is not None:
        if made.verdict != "error":
            require_worth(where)
        made.result = _held_to(made, rules, signer)
    return made


def asked_claim(
    epsilon: float | None,
    batch_epsilon: float | None,
    rho: float | None,
    delta: float | None,
    relation: str | None,
    unit: str | None,
) -> Question:
    """Return what to test. Raises InputError for a value that no claim can have."""
    if rho is not None and not (epsilon is None and batch_epsilon is None):
        raise InputError(
            "rho",
            "an epsilon is given, too.",
            "Give one of them: a claim promises a rho or an epsilon.",
        )
    question = Question(epsilon, delta, relation, unit, batch_epsilon, rho)
    try:
        asked = question.asked_of(Claim(epsilon=0.0, kind=ApproximateClaim.id))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise InputError(
            name, f"the value is {in_short(first['input'])}.", f"{first['msg']}."
        ) from None
    if batch_epsilon is not None and asked.epsilon is not None and batch_epsilon < asked.epsilon:
        problem = (
            f"{batch_epsilon:g} at the batch level is less than {epsilon:g} at the release level."
        )
        remedy = (
            "Give a larger one: people who know a record's batch learn at least as much as readers."
        )
        raise InputError("batch_epsilon", problem, remedy)
    return question


def digest_of(name: str, value: str | None) -> str | None:
    """Return a SHA-256 in lower case. Raises InputError where the value is none."""
    if value is None:
        return None
    digest = str(value).strip().lower()
    if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        raise InputError(
            name, f"{in_short(value)} is no digest.", "Give 64 digits from 0 to 9 and a to f."
        )
    return digest


def _replay(
    run: Location,
    data: Records | None,
    model: str | None,
    question: Question,
    amounts: Amounts,
    keep_partial: bool,
    monitor: Monitor,
) -> PublicReplay | None:
    """Return what a replay finds: of what is public without data, and None without a model, too."""
    if data is None and model is None:
        return None
    reader = RunReader(run)  # a mistyped path is told before torch is loaded
    reader.require_loadable()
    claim = reader.manifest.claim
    require_there(data, "data", reader.manifest)
    monitor.note("Loading the model" if data is None else "Reading the data and loading the model")
    with monitor.progress("Replaying", "steps") as advance:
        from dpaudit.generation.public_parts import replay_public
        from dpaudit.generation.replay import replay_run

        def show(done: int, total: int) -> None:
            if done <= 1:
                kept = (
                    "; Ctrl-C keeps those that are done"
                    if data is not None and keep_partial
                    else ""
                )
                monitor.note(f"Replaying {total} steps{kept}")
            advance(done, total)

        if data is None:
            return replay_public(run, model=model, progress=show)
        given = {name: amount for name, amount in amounts.items() if amount is not None}
        asked = None if claim is None else question.asked_of(claim)
        with records_file(data, "data") as file:
            found = replay_run(run, file, model=model, claim=asked, progress=show, **given)
    if not found.whole:
        if not keep_partial:
            raise KeyboardInterrupt
        monitor.warn("the replay was stopped: the audit says what it had shown by then.")
    return found


def _tried(
    run: Location, data: Records, question: Question, monitor: Monitor
) -> DisclosedTexts | InputError | None:
    """Return what a trial of the texts against the data finds, or why there is none."""
    from dpaudit.api.disclosing import disclosed_of_run

    claim = RunReader(run).manifest.claim
    if claim is None:
        return None
    monitor.note("Comparing the texts with the data")
    return disclosed_of_run(run, data, question.asked_of(claim), monitor)


def _model_verifies(result: AuditResult, policy: PolicyFile | None) -> bool:
    """Return whether nothing failed, and the model makes all required checks that were not made."""
    named = () if policy is None else policy.policy.checks or ()
    unmade = (check for check in result.checks if check.id in result.not_checked)
    lacking = [check for check in unmade if check.required(result.evidence) or check.id in named]
    by_model = bool(lacking) and all(check.made_with.startswith(WITH_MODEL) for check in lacking)
    return by_model and result.verdict in ("pass", "not_verified")


def _installed_replay(run: Location, question: Question, monitor: Monitor) -> PublicReplay | None:
    """Return what a replay with the installed model finds, or None if there is none that works."""
    from dpaudit.generation.sources import installed_model

    model = installed_model(RunReader(run).manifest.model.name)
    if model is None:
        return None
    monitor.note(
        "A required check needs the run's model, which is installed here (--no-model leaves it out)"
    )
    try:
        return _replay(run, None, str(model), question, {}, False, monitor)
    except Exception:
        # whatever stops it may quote the run, and readers outside may see what is said here
        monitor.warn("the installed model cannot be used; with --model the reason is said.")
        return None


def _held_to(audited: Audit, policy: PolicyFile, signer: str | None) -> AuditResult:
    """Return the result with the policy's rules."""
    from dpaudit.releasing.policy import apply_policy

    wanted = policy.policy.quality is not None and audited.verdict != "error"
    quality, problem = audited.quality if wanted else (None, "")
    reviewers: tuple[SignedOff, ...] | str = ()
    if policy.policy.sign_off is not None and audited.verdict != "error":
        try:
            reviewers = audited.sign_offs[1]
        except InputError as error:
            reviewers = str(error)
    return apply_policy(audited.result, policy, quality, problem, signer, reviewers)


def sign_offs_of(run: Location) -> tuple[bytes, tuple[SignedOff, ...]]:
    """Return the sign-offs in a run's report folder, as `Audit.sign_offs` does."""
    from dpaudit.releasing.sign_off import require_sign_offs

    reader = RunReader(run)
    # A head is public together with its commitment alone.
    head = None if reader.manifest.commitment is None else reader.head_or_none()
    return require_sign_offs(places.reports_of(run), head)


def quality_of(run: Location) -> tuple[Quality | None, str]:
    """Return the evaluation in a run's report folder, or None, and why it cannot be shown."""
    from dpaudit.results.quality_file import read_quality
    from dpaudit.runs.layout import SAMPLES

    try:
        return read_quality(places.reports_of(run), lambda: RunReader(run).digest(SAMPLES)), ""
    except InputError as error:
        return None, str(error)


def require_worth(run: Location) -> Worth | None:
    """Return what the records added to a run's texts, or None without any.

    Raises:
        InputError: it cannot be read, so nobody knows what figures of it have cost.
    """
    from dpaudit.results.quality_file import read_worth

    return read_worth(places.reports_of(run), lambda: RunReader(run))


def worth_of(run: Location) -> tuple[Worth | None, str]:
    """Return what the records added to a run's texts, or None, and why it cannot be shown."""
    try:
        return require_worth(run), ""
    except InputError as error:
        return None, str(error)


def report_place(
    run: Location, folder: str | os.PathLike[str] | None, audience: Literal["internal", "public"]
) -> Path:
    """Return the folder for a report. Raises InputError where none may be written."""
    place = (
        places.report_folder(run, audience) if folder is None else places.path_of(folder, "folder")
    )
    places.spare_releases(place, "Name another folder with --out.")
    places.spare_public_reports(place, audience)
    if folder is not None:
        remedy = (
            f"Leave --out away to write into {places.reports_of(run)}, or name a folder elsewhere."
        )
        places.spare_runs(place, [run], remedy)
        places.require_writable(place, "--out")
    return place


def spare_findings(run: Location, *files: str | os.PathLike[str] | None) -> None:
    """Refuse files of findings that would lie in a run's record, before an audit is spent."""
    remedy = f"Name a file elsewhere, or in {places.reports_of(run)}."
    for file in files:
        if file is not None:
            places.spare_runs(Path(file), [run], remedy, keep_folder=True)


def write_findings(
    result: AuditResult,
    *,
    junit: str | os.PathLike[str] | None = None,
    sarif: str | os.PathLike[str] | None = None,
) -> None:
    """Write the checks as JUnit XML and as SARIF. The files are as private as the result is."""
    if junit is None and sarif is None:
        return
    from dpaudit.reports.machine import render_junit, render_sarif
    from dpaudit.reports.write import write_files

    for option, file, render in (
        ("--junit", junit, render_junit),
        ("--sarif", sarif, render_sarif),
    ):
        if file is not None:
            with places.writing(Path(file), option):
                write_files({Path(file).name: render(result)}, Path(file).parent)


def audits_of(
    runs: Iterable[str | os.PathLike[str] | Audit],
    *,
    model: str | None = None,
    tokenizers: Sequence[str | os.PathLike[str]] = (),
    engine: Engine | None = None,
    monitor: Monitor = SILENT,
) -> dict[Location, Audit]:
    """Audit several runs, or take audits as they are. Raises InputError for a run named twice."""
    given: dict[Location, str | os.PathLike[str] | Audit] = {}
    for run in runs:
        where = run.run if isinstance(run, Audit) else places.location_of(run)
        if isinstance(run, Audit) and run.result.evidence < EVIDENCE and run.verdict != "error":
            problem = f"its audit asked only for evidence level {run.result.evidence}."
            raise InputError(
                str(where),
                problem,
                f"Give an audit of level {EVIDENCE} or more, or the run itself.",
            )
        if where in given:
            raise InputError(str(where), "the run is named twice.", "Name each run once.")
        given[where] = run
    places.require_runs(given)
    return {
        where: run
        if isinstance(run, Audit)
        else audit(run, model=model, tokenizers=tokenizers, engine=engine, monitor=monitor)
        for where, run in given.items()
    }


def list_checks() -> list[dict[str, str | int]]:
    """Return all checks in catalogue order: id, title, evidence level, and what they compare.

    Each says why, too.
    """
    from dpaudit.auditing.checks.registry import listed

    return listed()


def require_checks() -> None:
    """Raise InputError where the check of a plug-in cannot be loaded."""
    from dpaudit.auditing.checks.registry import require_loaded

    require_loaded()
