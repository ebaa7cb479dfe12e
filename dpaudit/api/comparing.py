"""Several runs from Python: side by side, on figures, and what they cost together."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.api import places
from dpaudit.api.audits import Audit, AuditError, audits_of, require_worth
from dpaudit.api.budgeting import warn_of_delta
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.shown import Shown
from dpaudit.api.tables import dataframe
from dpaudit.mechanisms.claims import ApproximateClaim, ExPostClaim, ZcdpClaim
from dpaudit.reports.figures import MOST_RUNS, Format
from dpaudit.reports.levels import recomputed_words
from dpaudit.results.comparison import Comparison
from dpaudit.results.composition import JointCost
from dpaudit.results.rounding import bound
from dpaudit.results.shell import argument
from dpaudit.runs import InputError, RunReader

if TYPE_CHECKING:
    from pandas import DataFrame

    from dpaudit.runs.engines import Engine


class RunComparison(Shown[Comparison]):
    """Two or more audited runs side by side.

    Attributes:
        audits: the audit of each run, by the name that it was given.
    """

    def __init__(self, result: Comparison, audits: dict[str, Audit]) -> None:
        super().__init__(result)
        self.audits = audits

    def to_dataframe(self) -> DataFrame:
        """Return a pandas.DataFrame with a row per run: verdict, claim, nats and settings."""
        settings = [(each.name, each.values) for each in self.result.settings]
        return dataframe(
            {
                "run": name,
                "verdict": found.verdict,
                "kind": None if found.claim is None else found.claim.kind,
                "epsilon": found.epsilon,
                "batch_epsilon": found.batch_epsilon,
                "rho": found.rho,
                "delta": None if found.claim is None else found.claim.delta,
                "advantage": found.attack and found.attack.advantage,
                "batch_advantage": found.batch_attack and found.batch_attack.advantage,
                "batches": found.result.run.batches,
                "texts": found.result.run.texts,
                "tokens": found.result.run.steps,
                **{setting: values[place] for setting, values in settings},
            }
            for place, (name, found) in enumerate(self.audits.items())
        )

    def to_html(self) -> str:
        """Return the comparison as one HTML page."""
        from dpaudit.reports.compare import render_comparison_html

        return render_comparison_html(self.result)

    def save(self, file: str | os.PathLike[str], links: Mapping[str, str] | None = None) -> Path:
        """Write the comparison as one HTML page, readable by its owner alone.

        Args:
            file: the page.
            links: to each run's report, relative to the page; None for no links.

        Raises:
            InputError: the file would be part of a run's record or of a release, or cannot be
                written.
        """
        from dpaudit.reports.compare import render_comparison_html
        from dpaudit.reports.write import write_files

        page, runs = places.path_of(file, "file"), [found.run for found in self.audits.values()]
        require_page(page, runs)
        with places.writing(page, "--out"):
            write_files({page.name: render_comparison_html(self.result, links)}, page.parent)
        return page

    def _title(self) -> str:
        return f"Comparison of {len(self.audits)} runs"

    def _rows(self) -> list[tuple[str, str]]:
        return [(name, _in_short(found)) for name, found in self.audits.items()]


def _in_short(found: Audit) -> str:
    if found.claim is None:
        return found.verdict
    return (
        f"{found.verdict}, {found.claim.kind}: "
        f"{recomputed_words(found.claim, found.result.guarantees)}"
    )


def require_page(page: Path, runs: Sequence[str | os.PathLike[str]]) -> None:
    """Raise InputError where a comparison's page would lie in a run's record, or in a release."""
    named = [places.location_of(run) for run in runs]
    remedy = f"Name a file elsewhere, or in {places.reports_of(named[0])}."
    places.spare_runs(page, named, remedy, keep_folder=True)


def compare(
    *runs: str | os.PathLike[str] | Audit,
    names: Sequence[str] = (),
    model: str | None = None,
    tokenizers: Sequence[str | os.PathLike[str]] = (),
    engine: Engine | None = None,
    monitor: Monitor = SILENT,
) -> RunComparison:
    """Put the budgets of two or more runs side by side. Each kind of epsilon has tables of its own.

    Args:
        runs: run directories, or audits of them.
        names: what to call the runs, each its own; empty for their paths.
        model: recompute what is public in the runs, all with this model.
        tokenizers: tokenizer.json files that you know to be the models' own.
        engine: where batches are read; None for the cores of this machine.
        monitor: receives progress and warnings.

    Raises:
        InputError: there are fewer than two runs, names do not fit them, one is named twice, or
            something is no run.
    """
    from dpaudit.auditing.comparison import compare_runs

    if len(runs) < 2:
        raise InputError(
            "runs", f"there is {'one' if runs else 'none'}.", "Name two or more run directories."
        )
    if names and len(set(names)) != len(runs):
        raise InputError(
            "names", f"there are {len(set(names))} for {len(runs)} runs.", "Give each run its own."
        )
    found = audits_of(runs, model=model, tokenizers=tokenizers, engine=engine, monitor=monitor)
    by_name = dict(zip(names or map(str, found), found.values(), strict=True))
    return RunComparison(
        compare_runs({name: each.with_digests() for name, each in by_name.items()}), by_name
    )


def require_drawable(runs: Sequence[object], names: Sequence[str], folder: Path) -> None:
    """Raise InputError for names that do not fit, too many runs, or a folder to be spared."""
    if names and len(names) != len(runs):
        raise InputError(
            "--name", f"{len(runs)} runs have {len(names)} names.", "Give each run one."
        )
    if len(runs) > MOST_RUNS:
        raise InputError("runs", f"a figure shows {MOST_RUNS} at most.", "Name fewer.")
    named = [run.run if isinstance(run, Audit) else places.location_of(str(run)) for run in runs]
    places.spare_runs(
        folder, named, f"Name a folder elsewhere, or in {places.reports_of(named[0])}."
    )


def draw_figures(
    audits: Sequence[Audit],
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[Format] = ("svg", "png"),
    names: Sequence[str] = (),
) -> list[Path]:
    """Draw where ex-post epsilon was spent, for papers.

    All figures are drawn before the first is written.

    Args:
        audits: of ex-post runs.
        folder: for the figures and captions.md.
        formats: svg, png or pdf.
        names: what to call the runs on figures; empty for their folders' names.

    Raises:
        InputError: a run has no ex-post figures, or the folder cannot be written.
    """
    from dpaudit.reports.figure_files import FigureRun, figure_files, why_not_drawn
    from dpaudit.reports.write import write_files

    place, runs = places.path_of(folder, "folder"), []
    require_drawable(audits, names, place)
    for found, name in zip(
        audits, names or [places.folder_name(each.run) for each in audits], strict=True
    ):
        path, result = str(found.run), found.result
        if problem := why_not_drawn(result):
            raise InputError(path, problem, "Leave it out.")
        runs.append(FigureRun(name, path, result))
    asked = [("--name", name) for name in names] + [("--format", each) for each in formats]
    named = " ".join(argument(str(found.run), "RUN_DIR") for found in audits)
    options = shlex.join(word for option in asked for word in option)
    command = f"dpaudit compare {named} {options} --figures {argument(str(folder), 'FOLDER')}"
    files = figure_files(runs, tuple(formats), command)
    with places.writing(place, "--figures"):
        return write_files(files, place)


class RunComposition(Shown[JointCost]):
    """The joint cost of several releases of the same records.

    Attributes:
        audits: the audit of each run, by the name that it was given.
    """

    def __init__(self, result: JointCost, audits: dict[str, Audit]) -> None:
        super().__init__(result)
        self.audits = audits

    def _title(self) -> str:
        return (
            f"Joint cost of {len(self.result.releases)} releases ({self.result.relation}, per "
            f"{self.result.unit})"
        )

    def _rows(self) -> list[tuple[str, str]]:
        totals = {
            ApproximateClaim.id: (self.result.approximate, self.result.batch_approximate),
            ExPostClaim.id: (self.result.ex_post, self.result.batch_ex_post),
        }
        rows: list[tuple[str, str]] = []
        for kind, both in totals.items():
            levels = zip(("release", "batch"), both, strict=True)
            said = [
                f"{bound(total.figure.epsilon)} ({level} level)"
                for level, total in levels
                if total.figure
            ]
            rows.append((kind, f"epsilon {', '.join(said)}" if said else "no total of this kind"))
        curves = {
            "release": self.result.approximate.attack,
            "batch": self.result.batch_approximate.attack,
        }
        found = [
            f"advantage {bound(each.advantage)} ({level} level)"
            for level, each in curves.items()
            if each is not None
        ]
        rows.append(("attacks", ", ".join(found) or "nothing bounds them"))
        if (rho := self.result.zcdp) is not None:
            rows.append((ZcdpClaim.id, f"rho {bound(rho.rho)} (batch level)"))
        return rows


def compose(
    *runs: str | os.PathLike[str] | Audit,
    guarantees: str | os.PathLike[str] | None = None,
    delta: float | None = None,
    model: str | None = None,
    tokenizers: Sequence[str | os.PathLike[str]] = (),
    engine: Engine | None = None,
    monitor: Monitor = SILENT,
) -> RunComposition:
    """Compute what several releases of the same records cost together.

    Each kind of epsilon has its own total.

    Args:
        runs: run directories, or audits of them.
        guarantees: a YAML file with guarantees of other tools for the same records
            (docs/composition.md).
        delta: of the total, between 0 and 1; None for the largest of the releases.
        model: recompute what is public in the runs, all with this model.
        tokenizers: tokenizer.json files that you know to be the models' own.
        engine: where batches are read; None for the cores of this machine.
        monitor: receives progress and warnings.

    Raises:
        AuditError: a run does not pass its audit, so nothing is known of what it cost.
        InputError: there are fewer than two releases, one is named twice, or they cannot be
            composed.
    """
    from dpaudit.auditing.composition import compose_runs
    from dpaudit.runs.statements import read_statements

    if delta is not None and not 0 < delta < 1:
        raise InputError("delta", f"the value is {delta!r}.", "Give a number between 0 and 1.")
    statements = (
        () if guarantees is None else read_statements(places.path_of(guarantees, "guarantees"))
    )
    if len(runs) + len(statements) < 2:
        remedy = (
            "Name two or more run directories, or guarantees of others in a file, --with FILE.yaml."
        )
        raise InputError("runs", "there are fewer than two releases.", remedy)
    if not runs:
        raise InputError("runs", "there is none.", "Name one run directory or more.")
    found = audits_of(runs, model=model, tokenizers=tokenizers, engine=engine, monitor=monitor)
    if any(each.verdict != "pass" for each in found.values()):
        raise AuditError(*found.values())
    for run in found:
        require_worth(run)
    joint = compose_runs({run: each.result for run, each in found.items()}, statements, delta)
    if joint.approximate.figure is not None:
        most = max(RunReader(run).manifest.data.records for run in found)
        warn_of_delta(joint.approximate.figure.delta, most, monitor)
    return RunComposition(joint, {str(run): each for run, each in found.items()})
