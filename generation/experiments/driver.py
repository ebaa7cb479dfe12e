"""A table's rows, run one after the other: generated, audited, evaluated.

The driver goes on where it stopped, and past what fails. A run that is whole is not generated
again, but it is compared with the row's config and data, audited and evaluated every time: nothing
that stands in the folder is taken for a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import dpaudit
from dpaudit.api import places
from dpaudit.api.audits import Audit, audit
from dpaudit.api.evaluating import evaluate
from dpaudit.api.generating import generate, generate_public
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.auditing.checks.preflight import Obstacle, obstacles, refuse
from dpaudit.generation.algorithm import made_with
from dpaudit.generation.config import DataConfig, in_config
from dpaudit.generation.expected import clusters
from dpaudit.generation.experiments.estimates import unbounded
from dpaudit.generation.experiments.table import ALL_RECORDS, EvaluationConfig, Row, Table
from dpaudit.generation.experiments.table_results import (
    Audited,
    Evaluated,
    Failure,
    Measured,
    RowResult,
    Stage,
    TableResult,
)
from dpaudit.generation.planned import planned_run
from dpaudit.generation.records import Records, read_records
from dpaudit.results import AuditResult
from dpaudit.results.quality import Quality, Scores
from dpaudit.runs import InputError
from dpaudit.runs.engines import Engine
from dpaudit.runs.extras import installing
from dpaudit.runs.layout import HASHES
from dpaudit.runs.storage import open_storage

RUN, BASELINE = "run", "public"
#: Called with a row's number from 1, how many there are, its name, and what is being done or was.
Watch = Callable[[int, int, str, str], None]


@dataclass
class Stages:
    """The work on a row: its run is generated, or compared if whole, then audited and evaluated.

    Attributes:
        evaluated: whether MAUVE and accuracy are measured.
        unverified: whether runs are generated that cannot pass their audit.
        private_cache: folder for embeddings, which are as sensitive as the texts; None keeps none.
        tokenizers: tokenizer.json files that are known to be the models' own.
        engine: where batches are generated and read; None for this process.
        monitor: receives progress and warnings.
    """

    evaluated: bool = True
    unverified: bool = False
    private_cache: Path | None = None
    tokenizers: Sequence[Path] = ()
    engine: Engine | None = None
    monitor: Monitor = SILENT
    _audits: dict[Path, Audit] = field(default_factory=dict)

    def generate(self, row: Row, run: Path) -> None:
        """Make a run, or go on with one that is not whole."""
        monitor = self.monitor.titled(row.name)
        generate(
            row.config,
            out=run,
            engine=self.engine,
            unverified=self.unverified,
            worth=False,  # a table has a baseline of its own
            monitor=monitor,
        )

    def compare(self, row: Row, run: Path) -> None:
        """Refuse a whole run that was not made with the row's config and data."""
        made_with(row.config, run)

    def audit(self, run: Path) -> AuditResult:
        """Audit a run, and write its reports."""
        found = audit(run, tokenizers=self.tokenizers, engine=self.engine, monitor=self.monitor)
        self._audits[run] = found
        self._save(run)
        return found.result

    def evaluate(self, row: Row, run: Path, settings: EvaluationConfig) -> Quality:
        """Measure a run's texts against its private data, beside the public baseline of its row."""
        baseline = run.parent / BASELINE if row.baseline else None
        if baseline is not None and not baseline.exists():
            generate_public(
                row.config, baseline, monitor=self.monitor.titled(f"{row.name}, public only")
            )
        options: dict[str, Any] = {
            "embedding": settings.embedding,
            "classifier": settings.classifier,
            "preset": settings.fine_tune,
            "most_records": settings.most_records or ALL_RECORDS,
        }
        found = evaluate(
            run,
            _named(row.config.data),
            test=None if row.held_out is None else _named(row.held_out),
            baseline=baseline,
            private_cache=self.private_cache,
            engine=self.engine,
            monitor=self.monitor,
            **options,
        )
        self._save(run)  # its report shows the evaluation
        return found.result

    def _save(self, run: Path) -> None:
        if self._audits[run].claim is not None:
            self._audits[run].save()


def run_table(table: Table, out: Path, stages: Stages, watch: Watch) -> TableResult:
    """Run every row of a table, or what is left to do of it.

    A row that fails does not stop the others: its result says at what, and why. What cannot be
    mended here, such as a keyboard interrupt, does.

    Args:
        table: rows in order.
        out: rows' folders go here, under their names. It is locked, and private where it has to be
            made.
        stages: what is done with each.
        watch: called with every row and stage.

    Raises:
        InputError: `out` cannot be used, or another process is using it; or a row could not pass
            its audit, and `stages` is for no such rows.
    """
    if not stages.unverified:
        _require_possible(table)
    places.spare_runs(out, (), "Name another folder with --out.")
    release = open_storage(out).lock()
    try:
        rows = [
            _run_row(
                table,
                row,
                out / row.name / RUN,
                stages,
                partial(watch, number, len(table.rows), row.name),
            )
            for number, row in enumerate(table.rows, start=1)
        ]
    finally:
        release()
    return TableResult(
        title=table.title,
        versions={"dpaudit": dpaudit.__version__},
        real=table.real,
        rows=tuple(rows),
    )


def _named(data: DataConfig) -> str:
    """Return the name of real texts, as `dpaudit evaluate` takes it."""
    return data.path or f"{data.dataset}:{data.split or 'train'}"


def _require_possible(table: Table) -> None:
    """Refuse rows that could not pass their audits.

    Other errors of a row are raised at its turn.

    Raises:
        InputError: a row could not pass.
    """

    @cache
    def read(data: DataConfig) -> Records | None:
        with suppress(InputError):
            return None if data.path is None else read_records(data)
        return None

    refused: dict[Path, tuple[Obstacle, ...]] = {}
    for row in table.rows:
        with suppress(InputError):
            found = obstacles(planned_run(row.config, read(row.config.data)))
            refused |= {row.path: found} if any(not each.meant for each in found) else {}
    if refused:
        path, found = next(iter(refused.items()))
        rows = "This row" if len(refused) == 1 else f"{len(refused)} rows"
        try:
            refuse(found, f"{rows} could not pass; --unverified runs the table all the same.")
        except InputError as error:
            raise in_config(path, error) from None


def _run_row(
    table: Table, row: Row, run: Path, stages: Stages, report: Callable[[str], None]
) -> RowResult:
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
        if stages.evaluated and audited.verdict != "error":
            stage = "evaluate"
            report("evaluating")
            quality = stages.evaluate(row, run, table.evaluation)
            # not all real texts are known to be the run's own records
            if quality.own != quality.reference.texts:
                problem = "the run was not made from these records."
                raise InputError(
                    f"{row.path}: data", problem, "Restore the data, or name another --out."
                )
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
    """Return what went wrong, in words that hold no private text: of a defect, only its type."""
    if isinstance(error, InputError):
        told = in_config(config, error) if stage in ("generate", "resume") else error
        return Failure(kind="unusable", stage=stage, message=str(told))
    if isinstance(error, ModuleNotFoundError):
        remedy = installing("evaluate" if stage == "evaluate" else "generate")
        return Failure(
            kind="unusable", stage=stage, message=f"{error.name} is not installed. {remedy}."
        )
    if isinstance(error, OSError):
        said = f"{error.filename or 'the disk'}: {error.strerror}."
        if error.errno is None:  # a library's own, of a file that it does not understand
            said = f"a library cannot read or write a file ({type(error).__name__})."
        return Failure(kind="unusable", stage=stage, message=said)
    return Failure(
        kind="internal", stage=stage, message=f"internal error ({type(error).__name__})."
    )


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
