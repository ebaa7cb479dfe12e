"""Research from Python: clusterings, likelihoods, figures and tables of runs. Every figure here is private."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.api import places
from dpaudit.api.audits import Audit, audit
from dpaudit.api.evaluating import evaluate
from dpaudit.api.generating import generate, generate_public
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.shown import Shown
from dpaudit.auditing.comparison import batch_spread
from dpaudit.reports.figures import MOST_RUNS, Format
from dpaudit.results import AuditResult, ClusterComparison
from dpaudit.results.experiments import TableResult
from dpaudit.results.likelihood import Likelihoods
from dpaudit.results.rounding import bound
from dpaudit.results.shell import argument
from dpaudit.runs import InputError

if TYPE_CHECKING:
    from dpaudit.engines import Engine
    from dpaudit.generation.config import DataConfig
    from dpaudit.generation.experiments.table import EvaluationConfig, Row, Table
    from dpaudit.generation.obstacles import Obstacle
    from dpaudit.generation.records import Records
    from dpaudit.results.experiments import Estimates
    from dpaudit.results.quality import Quality

#: What `python -m benchmarks` measured, in a checkout of this repository.
MEASURED = Path("benchmarks/results/latest.json")
#: Called with a row's number from 1, how many there are, its name, and what is being done.
WatchRows = Callable[[int, int, str, str], None]


class Clusterings(Shown[ClusterComparison]):
    """Clustering methods side by side on private texts. Counted without noise: do not publish it."""

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write clusters.html, clusters.json and clusters.csv, readable by their owner alone."""
        from dpaudit.reports.write import write_clusters

        with places.writing(Path(folder), "--out"):
            return write_clusters(self.result, Path(folder))

    def _title(self) -> str:
        return f"Clusterings of {self.result.records:,} private texts (private)"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            (each.method, f"{each.clusters} clusters, epsilon {bound(each.epsilon)}, V-measure {each.v_measure:.3f}")
            for each in self.result.methods
        ]


def compare_clusterings(
    data: str,
    public: str,
    *,
    text: str = "text",
    public_text: str = "text",
    embedding: str | None = None,
    normalize: bool = True,
    private_cache: str | os.PathLike[str] | None = None,
    monitor: Monitor = SILENT,
    **settings: Any,
) -> Clusterings:
    """Compare clustering methods on private texts: clusters, cost, and agreement with k-means.

    Args:
        data: the private texts, as data.path in a config.
        public: public texts, whose clusters cost nothing.
        text: the column of the private texts.
        public_text: the column of the public texts.
        embedding: sentence-embedding model; None for the offline one.
        normalize: make vectors unit vectors.
        private_cache: keep embeddings of private texts in this folder. They are as sensitive as the texts.
        monitor: receives progress.
        settings: the options of `dpaudit clusters` by name, such as centers or dpm_epsilons. One that is None or empty
            has its default.

    Raises:
        InputError: the texts or a setting cannot be used.
    """
    from dpaudit.generation.caches import VectorCache
    from dpaudit.generation.clustering.comparison import ComparisonSettings, compare_texts
    from dpaudit.generation.clustering.embedding import OFFLINE, Embedder
    from dpaudit.generation.clustering.noise import Noise
    from dpaudit.generation.records import read_texts
    from dpaudit.generation.sampling import OsEntropy
    from dpaudit.generation.sources import overlap

    given = {name: value for name, value in settings.items() if value not in (None, ())}
    try:
        wanted = ComparisonSettings(**given)
    except ValueError as error:
        raise InputError("settings", f"{error}.", "Change one of the numbers.") from None
    if "keep" not in given:
        wanted = replace(wanted, keep=min(wanted.keep, wanted.centers))
    if wanted.keep > wanted.centers:
        raise InputError("--keep", f"{wanted.keep} is more than the {wanted.centers} of --centers.", "Give fewer.")
    if overlap(public, data):
        raise InputError("--public", "this leads to the private texts.", "Name public ones.")
    private = read_texts(data, text, "DATA", "--text")
    open_texts = read_texts(public, public_text, "--public", "--public-text")
    embedder = Embedder(embedding or OFFLINE, normalize=normalize, field="--embedding")
    if wanted.dimension > embedder.dimensions:
        problem = f"{wanted.dimension} is more than the {embedder.dimensions} of embeddings."
        raise InputError("--dimension", problem, "Give fewer.")
    cache = None if private_cache is None else VectorCache(folder=Path(private_cache))
    noise = Noise(OsEntropy())
    with monitor.steps() as watch:
        found = compare_texts(private, open_texts, embedder, wanted, private_cache=cache, noise=noise, watch=watch)
    return Clusterings(found)


class LikelihoodComparison(Shown[Likelihoods]):
    """Mechanisms' held-out likelihood beside their epsilon. Computed from the records: do not publish it."""

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write likelihood.json, likelihood.svg and likelihood.png, readable by their owner alone."""
        from dpaudit.reports.likelihood import likelihood_files
        from dpaudit.reports.write import write_files

        with places.writing(Path(folder), "--out"):
            return write_files(likelihood_files(self.result), Path(folder))

    def _title(self) -> str:
        return f"Held-out likelihood of {len(self.result.rows)} configs (private)"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            (row.name, f"loss {row.nll.mean:.3f}, gain {row.gain.mean:.3f} nats a token") for row in self.result.rows
        ]


def compare_likelihoods(
    configs: Sequence[str | os.PathLike[str]],
    test: str,
    *,
    texts: int = 4,
    batches: int = 1,
    monitor: Monitor = SILENT,
) -> LikelihoodComparison:
    """Give held-out real texts to each config's batches, token by token, beside the public prompt alone.

    Every config and its held-out texts are read before the first is measured.

    Args:
        configs: paths of configs.
        test: held-out texts, in the columns of the configs' data and apart from it.
        texts: most texts of each label.
        batches: most batches of each label.
        monitor: receives progress.

    Raises:
        InputError: a config or the texts cannot be used, or there are too many configs for a figure.
    """
    from dpaudit.generation.config import in_config, load_config
    from dpaudit.generation.evaluation.likelihood import held_out_texts, measure
    from dpaudit.generation.starting import require_labels

    paths = tuple(map(Path, configs))
    if len(set(paths)) < len(paths):
        raise InputError("configs", "one is named twice.", "Name each once.")
    if len(paths) > MOST_RUNS:
        raise InputError("configs", f"a figure shows {MOST_RUNS} at most.", "Name fewer.")
    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else list(map(str, paths))
    rows, read = [], []
    for path in paths:
        config = load_config(path)
        try:
            require_labels(config.data)
            read.append((config, held_out_texts(config, test, texts)))
        except InputError as error:
            raise in_config(path, error) from None
    with monitor.steps() as watch:
        for path, name, (config, held_out) in zip(paths, names, read, strict=True):
            count = sum(map(len, held_out.texts.values()))
            monitor.note(f"{name}: {count} texts of up to {config.decoding.max_tokens} tokens")
            try:
                rows.append(measure(config, name, held_out, batches, partial(watch, name)))
            except InputError as error:
                raise in_config(path, error) from None
    return LikelihoodComparison(Likelihoods(rows=tuple(rows)))


def require_drawable(runs: Sequence[object], names: Sequence[str], folder: Path) -> None:
    """Raise InputError where names do not fit the runs, they are too many, or the folder must not be written to."""
    if names and len(names) != len(runs):
        raise InputError("--name", f"{len(runs)} runs have {len(names)} names.", "Give each run one.")
    if len(runs) > MOST_RUNS:
        raise InputError("runs", f"a figure shows {MOST_RUNS} at most.", "Name fewer.")
    named = [run.run if isinstance(run, Audit) else places.location_of(str(run)) for run in runs]
    places.spare_runs(folder, named, f"Name a folder elsewhere, or in {places.reports_of(named[0])}.")


def draw_figures(
    audits: Sequence[Audit],
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[Format] = ("svg", "png"),
    names: Sequence[str] = (),
) -> list[Path]:
    """Draw where ex-post epsilon was spent, for papers. All figures are drawn before the first is written.

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

    place, runs = Path(folder), []
    require_drawable(audits, names, place)
    for found, name in zip(audits, names or [places.folder_name(each.run) for each in audits], strict=True):
        path, result = str(found.run), found.result
        if problem := why_not_drawn(result):
            raise InputError(path, problem, "Leave it out.")
        runs.append(FigureRun(name, path, result, batch_spread(path, result)))
    asked = [("--name", name) for name in names] + [("--format", each) for each in formats]
    named = " ".join(argument(str(found.run), "RUN_DIR") for found in audits)
    options = shlex.join(word for option in asked for word in option)
    command = f"dpaudit figures {named} {options} --out {argument(str(folder), 'FOLDER')}"
    files = figure_files(runs, tuple(formats), command)
    with places.writing(place, "--out"):
        return write_files(files, place)


def estimate_table(
    table: str | os.PathLike[str], *, only: Sequence[str] = (), tokens_per_second: float | None = None
) -> Estimates:
    """Compute what every row of a table of runs costs, without model or data.

    Args:
        table: the table's file (docs/experiments.md).
        only: names of rows; empty for all.
        tokens_per_second: contexts that the model continues by a token in a second; None for what benchmarks measured.
    """
    from dpaudit.generation.experiments import estimates
    from dpaudit.generation.experiments.table import load_table

    rows, throughput = load_table(Path(table)).only(tuple(only)), None
    if tokens_per_second is not None:
        throughput = estimates.stated_throughput(tokens_per_second)
    elif MEASURED.exists():
        throughput = estimates.measured_throughput(MEASURED, rows.parameters)
    return estimates.estimates(rows, throughput)


class RunTable(Shown[TableResult]):
    """A table of runs beside the paper's figures. Evaluations in it are computed from private records.

    Attributes:
        folder: where the rows' runs are.
    """

    def __init__(self, result: TableResult, folder: Path) -> None:
        super().__init__(result)
        self.folder = folder

    def save(self) -> list[Path]:
        """Write table.md, table.csv and table.json into the folder, for their owner alone."""
        from dpaudit.generation.experiments.driver import ELSEWHERE
        from dpaudit.generation.experiments.table import TABLE_FILES
        from dpaudit.reports.experiments import render_table_markdown, table_csv
        from dpaudit.results.quality_file import write_private

        contents = (render_table_markdown(self.result), table_csv(self.result), self.result.to_json())
        for name, content in zip(TABLE_FILES, contents, strict=True):
            write_private(self.folder / name, content.encode(), ELSEWHERE)
        return [self.folder / name for name in TABLE_FILES]

    def _title(self) -> str:
        return f"{self.result.title}: {len(self.result.rows)} rows"

    def _rows(self) -> list[tuple[str, str]]:
        return [(row.config, "failed" if row.audited is None else row.audited.verdict) for row in self.result.rows]


def run_table(
    table: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    only: Sequence[str] = (),
    evaluated: bool = True,
    unverified: bool = False,
    private_cache: str | os.PathLike[str] | None = None,
    tokenizers: Sequence[str | os.PathLike[str]] = (),
    engine: Engine | None = None,
    watch: WatchRows = lambda number, rows, name, what: None,
    monitor: Monitor = SILENT,
) -> RunTable:
    """Generate, audit and evaluate a table of runs; go on where it stopped. A row that fails does not stop the others.

    Args:
        table: the table's file (docs/experiments.md).
        out: folder for the rows' runs and the table.
        only: names of rows; empty for all.
        evaluated: measure MAUVE and accuracy, too.
        unverified: run rows that cannot pass their audit, too.
        private_cache: keep embeddings for evaluations in this folder. They are as sensitive as the texts.
        tokenizers: tokenizer.json files that you know to be the models' own.
        engine: where batches are generated and read; None for this process.
        watch: called with each row and what is done with it.
        monitor: receives progress and warnings.

    Raises:
        InputError: the table or the folder cannot be used, or a row could not pass its audit and is not `unverified`.
    """
    from dpaudit.generation.algorithm import require_made_with
    from dpaudit.generation.experiments import driver
    from dpaudit.generation.experiments.table import ALL_RECORDS, load_table

    rows, folder = load_table(Path(table)), Path(out)
    if not unverified:
        _require_possible(rows.only(tuple(only)))
    audits: dict[Path, Audit] = {}

    def make(row: Row, run: Path) -> None:
        generate(row.config, out=run, engine=engine, unverified=unverified, monitor=monitor.titled(row.name))

    def audited(run: Path) -> AuditResult:
        audits[run] = audit(run, tokenizers=tokenizers, engine=engine, monitor=monitor)
        write(run)
        return audits[run].result

    def write(run: Path) -> None:
        if audits[run].claim is not None:
            audits[run].save()

    def measured(row: Row, run: Path, settings: EvaluationConfig) -> Quality:
        baseline = run.parent / driver.BASELINE if row.baseline else None
        if baseline is not None and not baseline.exists():
            generate_public(row.config, baseline, monitor=monitor.titled(f"{row.name}, public only"))
        options: Mapping[str, Any] = {
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
            private_cache=private_cache,
            engine=engine,
            monitor=monitor,
            **options,
        )
        write(run)  # its report shows the evaluation
        return found.result

    places.spare_runs(folder, (), "Name another folder with --out.")
    stages = driver.Stages(
        make, lambda row, run: require_made_with(row.config, run), audited, measured if evaluated else None
    )
    return RunTable(driver.run_table(rows, folder, stages, watch, tuple(only)), folder)


def _named(data: DataConfig) -> str:
    """Real texts as `evaluate` names them."""
    return data.path or f"{data.dataset}:{data.split or 'train'}"


def _require_possible(table: Table) -> None:
    """Raise InputError where rows could not pass their audits. What else is wrong with a row it says at its turn."""
    from dpaudit.generation.config import in_config
    from dpaudit.generation.obstacles import obstacles, refuse
    from dpaudit.generation.records import read_records

    @cache
    def read(data: DataConfig) -> Records | None:
        with suppress(InputError):
            return None if data.path is None else read_records(data)
        return None

    refused: dict[Path, tuple[Obstacle, ...]] = {}
    for row in table.rows:
        with suppress(InputError):
            found = obstacles(row.config, read(row.config.data))
            refused |= {row.path: found} if any(not each.meant for each in found) else {}
    if refused:
        path, found = next(iter(refused.items()))
        rows = "This row" if len(refused) == 1 else f"{len(refused)} rows"
        try:
            refuse(found, f"{rows} could not pass; --unverified runs the table all the same.")
        except InputError as error:
            raise in_config(path, error) from None
