"""What several commands do with a run: audit it, replay it, and leave with its exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.commands.places import reports_of, spare_runs, writing
from dpaudit.commands.terminal import note_in_log, progress_bar, session, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dpaudit.auditing import Question
    from dpaudit.engines import Engine
    from dpaudit.releasing.policy import PolicyFile
    from dpaudit.results import AuditResult
    from dpaudit.results.quality import Quality
    from dpaudit.results.replay import PublicReplay, Rerun
    from dpaudit.runs import Held
    from dpaudit.runs.storage import Location

EXIT_CODES = {"pass": 0, "not_verified": 1, "fail": 1, "error": 2}


def require_runs(run_dirs: tuple[Location, ...]) -> None:
    """Refuse what is no run, such as a mistyped path or a public baseline, before anything is worked out."""
    from dpaudit.runs import InputError
    from dpaudit.runs.storage import open_storage

    problems = []
    for path in run_dirs:
        try:
            open_storage(path).require_run()
        except InputError as error:
            problems.append(error)
    for problem in problems[:-1]:
        tell(f"dpaudit: {problem}")
    if problems:
        raise problems[-1]


def audit_of(
    run_dir: Location,
    question: Question | None = None,
    *,
    evidence: int = 2,
    replay: PublicReplay | None = None,
    reruns: Sequence[Rerun] = (),
    engine: Engine | None = None,
    held: Held | None = None,
) -> AuditResult:
    """A run's audit, with a bar that shows how far it is."""
    from dpaudit.auditing import audit_run

    if replay is not None:
        note_in_log("Auditing the run with what its replay found")
    with progress_bar("Auditing", "batches") as advance:
        return audit_run(
            run_dir,
            question,
            progress=advance,
            evidence=evidence,
            replay=replay,
            reruns=reruns,
            tokenizers=session().tokenizers,
            engine=engine,
            held=held,
            seed=session().seed,
        )


def audit_with_model(
    run_dir: Location,
    question: Question | None,
    policy: PolicyFile | None,
    replay: PublicReplay | None,
    *,
    find_model: bool,
    gate: bool = False,
    public: bool = False,
    **options: Any,
) -> AuditResult:
    """Audit a run; where a required check needs its model, and that is installed here, audit it with the model.

    Args:
        run_dir: the run.
        question: the claim that is tested.
        policy: whose checks are required, too.
        replay: what a replay that was asked for found; None where none was.
        find_model: whether to look for the model.
        gate: see `replay_of`.
        public: whether what is printed is for readers outside, who are not told why a model cannot be used.
        options: of `audit_of`.
    """
    from dpaudit.runs import InputError, RunReader

    result = audit_of(run_dir, question, replay=replay, **options)
    if replay is not None or not find_model or not _wants_model(result, policy):
        return result
    from dpaudit.generation.sources import installed_model

    folder = run_dir if isinstance(run_dir, Path) else None
    model = installed_model(RunReader(run_dir).manifest.model.name, folder)
    if model is None:
        return result
    note_in_log("A required check needs the run's model, which is installed here (--no-model leaves it out)")
    try:
        replay = replay_of(run_dir, None, model, question, gate=gate)
    except InputError as error:
        tell("dpaudit: the installed model cannot be used." if public else f"dpaudit: the model is not used: {error}")
        return result
    return audit_of(run_dir, question, replay=replay, **options)


def _wants_model(result: AuditResult, policy: PolicyFile | None) -> bool:
    """Return whether nothing failed, and the model makes all required checks that were not made."""
    from dpaudit.results.shell import WITH_MODEL

    named = () if policy is None else policy.policy.checks or ()
    lacking = [
        check
        for check in result.checks
        if check.id in result.not_checked and (result.requires(check) or check.id in named)
    ]
    by_model = bool(lacking) and all(check.made_with.startswith(WITH_MODEL) for check in lacking)
    return by_model and result.verdict in ("pass", "not_verified")


def replay_of(
    run_dir: Location,
    data: str | None,
    model: str | None = None,
    question: Question | None = None,
    *,
    gate: bool = False,
    **amounts: Any,
) -> PublicReplay | None:
    """What a replay finds, with its own default where an amount is None.

    Without data, a replay of what is public with the model; None without either. Who stops the replay stops a `gate`.
    """
    if data is None and model is None:
        return None
    from dpaudit.runs import RunReader

    reader = RunReader(run_dir)  # a mistyped path is told before torch is loaded
    reader.require_loadable()
    stated = reader.manifest.claim
    asked = question.asked_of(stated) if question is not None and stated is not None else stated
    from dpaudit.generation.public_parts import replay_public
    from dpaudit.generation.replay import replay_run

    given = {name: amount for name, amount in amounts.items() if amount is not None}
    note_in_log("Loading the model" if data is None else "Reading the data and loading the model")
    with progress_bar("Replaying", "steps") as advance:

        def show(done: int, total: int) -> None:
            if done <= 1:
                kept = "; Ctrl-C keeps those that are done" if data and not gate else ""
                note_in_log(f"Replaying {total} steps{kept}")
            advance(done, total)

        if data is None:
            return replay_public(run_dir, model=model, progress=show)
        found = replay_run(run_dir, data, model=model, claim=asked, progress=show, **given)
    if not found.whole and gate:
        raise KeyboardInterrupt
    if not found.whole:
        tell("dpaudit: the replay was stopped: the audit says what it had shown by then.")
    return found


def quality_of(run_dir: Location) -> tuple[Quality | None, str]:
    """The evaluation in a run's report folder, and why it cannot be shown; both empty where there is none."""
    from dpaudit.results.quality_file import read_quality
    from dpaudit.runs import InputError, RunReader
    from dpaudit.runs.layout import SAMPLES

    try:
        return read_quality(reports_of(run_dir), lambda: RunReader(run_dir).digest(SAMPLES)), ""
    except InputError as error:
        return None, str(error)


def with_quality(result: AuditResult, run_dir: Location, *, digests: bool = False) -> AuditResult:
    """The audit's result with the run's evaluation beside it: a broken one is told, and changes no verdict.

    `digests` are those of private texts, by which evaluations are compared; reports do without.
    """
    if result.verdict == "error":
        return result
    quality, problem = quality_of(run_dir)
    if problem:
        tell(f"dpaudit: warning: {problem}")
    return result.model_copy(update={"quality": quality if digests or quality is None else quality.without_digests()})


def held_to_policy(result: AuditResult, run_dir: Location, policy: PolicyFile | None) -> AuditResult:
    """The audit's result with the policy's rules; as it is where there is no policy."""
    if policy is None:
        return result
    from dpaudit.releasing.policy import held_to

    wanted = policy.policy.quality is not None and result.verdict != "error"
    quality, problem = quality_of(run_dir) if wanted else (None, "")
    return held_to(result, policy, quality, problem)


def spare_findings(run_dir: Location, *files: Path | None) -> None:
    """Refuse files of findings that would lie in a run's record, before an audit is spent."""
    for file in filter(None, files):
        remedy = f"Name a file elsewhere, or in {reports_of(run_dir)}."
        spare_runs(file, [run_dir], remedy, keep_folder=True)


def write_findings(result: AuditResult, *, junit: Path | None = None, sarif: Path | None = None) -> None:
    """What programs show of a gate, as private as the result is."""
    from dpaudit.reports.write import write_junit, write_sarif

    for option, file, write in (("--junit", junit, write_junit), ("--sarif", sarif, write_sarif)):
        if file is not None:
            with writing(file, option):
                write(result, file)


def leave(*results: AuditResult) -> None:
    """Leave with the worst verdict's exit code; say on stderr why a run could not be judged."""
    from dpaudit.reports.findings import causes

    for result in results:
        for check in causes(result):
            # What is for readers outside holds neither what was measured nor where.
            said = (check.id, check.measured or check.title, check.detail)
            tell(f"dpaudit: {' '.join(': '.join(filter(None, said)).splitlines())}")
    sys.exit(max(EXIT_CODES[result.verdict] for result in results))
