"""Runs a table's rows one after the other: generate, audit, evaluate. Goes on where it stopped, and past what fails.

A row's folder holds its run directory, the config that it was begun with, and its figures. Figures are looked up again
only where nothing that they follow from has changed since.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import ValidationError

import dpaudit
from dpaudit.quality import Quality, Scores
from dpaudit.results import AuditResult
from dpaudit.runs import InputError
from dpaudit.runs.layout import HASHES, partial_name, private_opener
from generation.config import DataConfig, load_config
from generation.experiments.estimates import clusters
from generation.experiments.results import (
    Audited,
    Evaluated,
    Failure,
    Measured,
    RowResult,
    TableResult,
    published,
)
from generation.experiments.table import EvaluationConfig, Row, Table

RUN, CONFIG, RESULT = "run", "config.yaml", "row.json"
Stage = Literal["generate", "audit", "evaluate"]
#: Told of each row: its number from 1, how many there are, its name, and what is being done or was.
Watch = Callable[[int, int, str, str], None]


class Evaluate(Protocol):
    """Measures a run's texts against real ones."""

    def __call__(
        self,
        run: Path,
        reference: DataConfig,
        held_out: DataConfig | None,
        settings: EvaluationConfig,
    ) -> Quality:
        """Evaluate a finished run.

        Args:
            run: its directory.
            reference: the run's private data.
            held_out: what classifiers are tested on; None for a share of the reference.
            settings: models and protocol.
        """
        ...


@dataclass(frozen=True)
class Stages:
    """What is done with a row, in this order.

    Attributes:
        generate: makes or goes on with a run. Not called for one that is whole.
        audit: reads a run, and writes its reports.
        evaluate: None leaves MAUVE and accuracy out.
    """

    generate: Callable[[Row, Path], None]
    audit: Callable[[Path], AuditResult]
    evaluate: Evaluate | None


def run_table(table: Table, out: Path, stages: Stages, watch: Watch) -> TableResult:
    """Run every row of a table, or what is left to do of it.

    A row that fails does not stop the others: its result says at what, and why. What cannot be mended here, such as a
    keyboard interrupt, does.

    Args:
        table: rows in order.
        out: rows' folders go here, under their names.
        stages: what is done with each.
        watch: told of every row and stage.
    """
    rows = []
    for number, row in enumerate(table.rows, start=1):
        rows.append(_run_row(table, row, out / row.name, stages, _of_row(watch, number, len(table.rows), row.name)))
    return TableResult(
        title=table.title,
        versions={"dpaudit": dpaudit.__version__},
        real={name: published(None if real is None else real.model_dump()) for name, real in table.real.items()},
        rows=tuple(rows),
    )


def write_privately(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(partial_name(path.name))
    try:
        with open(partial, "x", encoding="utf-8", opener=private_opener) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _of_row(watch: Watch, number: int, rows: int, name: str) -> Callable[[str], None]:
    return lambda what: watch(number, rows, name, what)


def _run_row(table: Table, row: Row, folder: Path, stages: Stages, tell: Callable[[str], None]) -> RowResult:
    result = RowResult(
        config=row.name,
        dataset=row.dataset,
        method=row.method,
        kind="approximate" if row.config.mechanism.aggregator == "mean" else "ex-post",
        clusters=clusters(row.config),
        paper=published(None if row.paper is None else row.paper.model_dump()),
    )
    stage: Stage = "generate"
    try:
        _begin(row, folder)
        run = folder / RUN
        if not (run / HASHES).exists():
            tell("generating")
            stages.generate(row, run)
        key = _key(table, row, run, stages)
        known = _known(folder / RESULT, key)
        if known is not None:
            tell("done before")
            return known.model_copy(update={"paper": result.paper, "method": row.method, "dataset": row.dataset})
        stage = "audit"
        tell("auditing")
        audited = Audited.of(stages.audit(run))
        result = result.model_copy(update={"audited": audited})
        if stages.evaluate is not None and audited.verdict != "error":
            stage = "evaluate"
            tell("evaluating")
            quality = stages.evaluate(run, row.config.data, row.held_out, table.evaluation)
            result = result.model_copy(update={"evaluated": _evaluated(quality)})
        result = result.model_copy(update={"key": key if audited.verdict != "error" else ""})
        write_privately(folder / RESULT, result.to_json())
    except Exception as error:
        result = result.model_copy(update={"failure": _failure(error, stage)})
        tell(f"failed to {stage}")
    return result


def _begin(row: Row, folder: Path) -> None:
    """Keep the config beside the run. A run that is whole would not notice that the config has changed since.

    Raises:
        InputError: the row was begun with another config.
    """
    kept = folder / CONFIG
    if not kept.exists():
        write_privately(kept, row.path.read_text(encoding="utf-8"))
    elif load_config(kept) != row.config:
        remedy = f"Restore {row.path}, or name another folder with --out."
        raise InputError(str(kept), "this row was begun with another config.", remedy)


def _key(table: Table, row: Row, run: Path, stages: Stages) -> str:
    """Of all that a row's figures follow from."""
    parts = {
        "version": dpaudit.__version__,
        "config": row.config.model_dump(mode="json"),
        "held_out": None if row.held_out is None else row.held_out.model_dump(mode="json"),
        "evaluation": None if stages.evaluate is None else table.evaluation.model_dump(mode="json"),
        "run": hashlib.sha256((run / HASHES).read_bytes()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _known(path: Path, key: str) -> RowResult | None:
    """Figures that were found before; None where they are not those of this key."""
    try:
        known = RowResult.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return known if known.key == key else None  # without a key it was not whole


def _failure(error: Exception, stage: Stage) -> Failure:
    """What went wrong, in words that hold no private text: of a defect, only its type."""
    if isinstance(error, InputError):
        return Failure(kind="unusable", stage=stage, message=str(error))
    if isinstance(error, ModuleNotFoundError):
        return Failure(kind="unusable", stage=stage, message=f"{error.name} is not installed.")
    if isinstance(error, OSError):
        return Failure(kind="unusable", stage=stage, message=f"{error.filename or 'the disk'}: {error.strerror}.")
    return Failure(kind="internal", stage=stage, message=f"internal error ({type(error).__name__}).")


def _evaluated(quality: Quality) -> Evaluated:
    mauve, downstream = quality.mauve, quality.downstream[-1] if quality.downstream else None
    synthetic = None if downstream is None else downstream.of("synthetic")
    real = None if downstream is None else downstream.of("real-same-size")
    return Evaluated(
        n=None if mauve is None else mauve.settings.n,
        mauve=None if mauve is None else _measured(mauve.score),
        real_mauve=None if mauve is None else _measured(mauve.ceiling),
        method=None if downstream is None else downstream.method,
        accuracy=None if synthetic is None else _measured(synthetic.accuracy),
        real_accuracy=None if real is None else _measured(real.accuracy),
        warnings=quality.warnings,
    )


def _measured(scores: Scores) -> Measured:
    return Measured(mean=scores.mean, std=scores.std)
