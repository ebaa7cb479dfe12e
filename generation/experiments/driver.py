"""Runs a table's rows one after the other: generate, audit, evaluate. Goes on where it stopped, and past what fails.

A run that is whole is not generated again, but it is compared with the row's config and data, audited and evaluated
every time: nothing that stands in the folder is taken for a result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dpaudit
from dpaudit.generation.config import in_config
from dpaudit.generation.expected import clusters
from dpaudit.generation.experiments.estimates import unbounded
from dpaudit.generation.experiments.table import EvaluationConfig, Row, Table
from dpaudit.results import AuditResult
from dpaudit.results.experiments import Audited, Evaluated, Failure, Measured, RowResult, Stage, TableResult
from dpaudit.results.quality import Quality, Scores
from dpaudit.runs import InputError
from dpaudit.runs.extras import installing
from dpaudit.runs.layout import HASHES
from dpaudit.runs.storage import open_storage

RUN, BASELINE = "run", "public"
#: What to do where the table's folder cannot be written to.
ELSEWHERE = "Make the folder writable, or name another one with --out."
#: Called with a row's number from 1, how many there are, its name, and what is being done or was.
Watch = Callable[[int, int, str, str], None]
#: Measures the texts of a row's run against its private data, beside its public baseline where it has one.
Evaluate = Callable[[Row, Path, EvaluationConfig], Quality]


@dataclass(frozen=True)
class Stages:
    """What is done with a row, in this order.

    Attributes:
        generate: makes or goes on with a run that is not whole.
        compare: refuses a whole run that was not made with the row's config and data.
        audit: reads a run, and writes its reports.
        evaluate: None leaves MAUVE and accuracy out.
    """

    generate: Callable[[Row, Path], None]
    compare: Callable[[Row, Path], None]
    audit: Callable[[Path], AuditResult]
    evaluate: Evaluate | None


def run_table(table: Table, out: Path, stages: Stages, watch: Watch, only: tuple[str, ...] = ()) -> TableResult:
    """Run every row of a table, or what is left to do of it.

    A row that fails does not stop the others: its result says at what, and why. What cannot be mended here, such as a
    keyboard interrupt, does.

    Args:
        table: rows in order.
        out: rows' folders go here, under their names. It is locked, and private where it has to be made.
        stages: what is done with each.
        watch: called with every row and stage.
        only: names of the rows to run, all where there are none; the others are left out.

    Raises:
        InputError: there is no row of a name, or `out` cannot be used, or another process is using it.
    """
    chosen = table.only(only).rows
    release = open_storage(out).lock()
    try:
        rows = [
            _run_row(table, row, out / row.name / RUN, stages, partial(watch, number, len(chosen), row.name))
            for number, row in enumerate(chosen, start=1)
        ]
    finally:
        release()
    return TableResult(
        title=table.title,
        versions={"dpaudit": dpaudit.__version__},
        real=table.real,
        rows=tuple(rows),
    )


def _run_row(table: Table, row: Row, run: Path, stages: Stages, report: Callable[[str], None]) -> RowResult:
    stage: Stage = "generate"
    audited, evaluated, failure = None, None, None
    try:
        if (run / HASHES).exists():
            stage = "resume"
            report("comparing a whole run with its config and data")
            stages.compare(row, run)
        else:
            report("generating")
            stages.generate(row, run)
        stage = "audit"
        report("auditing")
        audited = Audited.of(stages.audit(run))
        if stages.evaluate is not None and audited.verdict != "error":
            stage = "evaluate"
            report("evaluating")
            quality = stages.evaluate(row, run, table.evaluation)
            if quality.own != quality.reference.texts:  # not all real texts are known to be the run's own records
                problem = "the run was not made from these records."
                raise InputError(f"{row.path}: data", problem, "Restore the data, or name another --out.")
            evaluated = _evaluated(quality)
    except Exception as error:
        failure = _failure(error, stage, row.path)
        report(f"failed to {stage}")
    return RowResult(
        config=row.name,
        dataset=row.dataset,
        method=row.method,
        kind=row.config.claim_kind.id,
        clusters=clusters(row.config),
        unbounded=unbounded(row.config),
        audited=audited,
        evaluated=evaluated,
        failure=failure,
        paper=row.paper,
    )


def _failure(error: Exception, stage: Stage, config: Path) -> Failure:
    """What went wrong, in words that hold no private text: of a defect, only its type."""
    if isinstance(error, InputError):
        told = in_config(config, error) if stage in ("generate", "resume") else error
        return Failure(kind="unusable", stage=stage, message=str(told))
    if isinstance(error, ModuleNotFoundError):
        remedy = installing("evaluate" if stage == "evaluate" else "generate")
        return Failure(kind="unusable", stage=stage, message=f"{error.name} is not installed. {remedy}.")
    if isinstance(error, OSError):
        said = f"{error.filename or 'the disk'}: {error.strerror}."
        if error.errno is None:  # a library's own, of a file that it does not understand
            said = f"a library cannot read or write a file ({type(error).__name__})."
        return Failure(kind="unusable", stage=stage, message=said)
    return Failure(kind="internal", stage=stage, message=f"internal error ({type(error).__name__}).")


def _evaluated(quality: Quality) -> Evaluated:
    mauve, downstream = quality.mauve, quality.downstream[-1] if quality.downstream else None
    synthetic = None if downstream is None else downstream.of("synthetic")
    real = None if downstream is None else downstream.of("real-same-size")
    public = None if downstream is None else downstream.of("public")
    return Evaluated(
        n=None if mauve is None else mauve.settings.n,
        mauve=None if mauve is None else _measured(mauve.score),
        real_mauve=None if mauve is None else _measured(mauve.ceiling),
        method=None if downstream is None else downstream.method,
        accuracy=None if synthetic is None else _measured(synthetic.accuracy),
        trained=None if synthetic is None else synthetic.texts,
        real_accuracy=None if real is None else _measured(real.accuracy),
        real_trained=None if real is None else real.texts,
        public_mauve=None if mauve is None or mauve.public is None else _measured(mauve.public),
        public_accuracy=None if public is None else _measured(public.accuracy),
        public_trained=None if public is None else public.texts,
        warnings=quality.warnings,
    )


def _measured(scores: Scores) -> Measured:
    return Measured(mean=scores.mean, std=scores.std)
