"""The command line: parse, call, print. Heavy packages are imported inside the command that needs them.

Exit codes: 0 the claim holds; 1 it does not, or a check failed; 2 the input or the command line is unusable;
3 internal error.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import traceback
from contextlib import contextmanager
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import dpaudit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import Console

    from dpaudit.accounting import DivisorKind, Method
    from dpaudit.accounting.medians import Relation
    from dpaudit.audit import Progress, Question
    from dpaudit.checks.replayed import Replay
    from dpaudit.engines import Engine
    from dpaudit.quality import Quality
    from dpaudit.results import AuditResult, ClusterComparison, Comparison
    from dpaudit.runs.storage import Location
    from generation.config import Config, DataConfig
    from generation.experiments.table import EvaluationConfig, Row, Table
    from reports.figures import Format

EXIT_CODES = {"pass": 0, "fail": 1, "error": 2}
UNUSABLE, INTERNAL, INTERRUPTED = 2, 3, 130
#: Epsilons from here on are shown in full.
MOST_ROUNDED = 1e9
DEBUG = "DPAUDIT_DEBUG"
PUBLIC = "public"
#: What `python -m benchmarks` measured, in a checkout of this repository.
MEASURED = Path("benchmarks/results/latest.json")


class FiniteRange(click.FloatRange):
    """A float within limits that is neither NaN nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse one number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class NamedPath(click.Path):
    """A path that is not empty: an unset variable of a script must not mean the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one path."""
        if not os.fspath(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class RunLocation(NamedPath):
    """A run directory: a path, or a URL that fsspec can open."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one location; a file's URL is its path."""
        text = os.fspath(value)
        scheme, separator, rest = text.partition("://")
        if not separator:
            if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
                self.fail(
                    f"{text!r} is neither a path nor a URL; a URL has two slashes, as in s3://BUCKET/RUN.", param, ctx
                )
            return super().convert(value, param, ctx)
        scheme, rest = scheme.lower(), rest.rstrip("/")
        if not rest.strip("/"):
            self.fail(f"{text!r} names no run directory; name one, as in s3://BUCKET/RUN.", param, ctx)
        if scheme not in ("file", "local"):
            return f"{scheme}://{rest}"
        rest = rest.removeprefix("localhost")
        if not rest.startswith("/"):
            self.fail(f"{text!r} is not the URL of a file, which has three slashes, as in file:///FOLDER.", param, ctx)
        return super().convert(rest, param, ctx)


def step_name(text: str) -> tuple[int, int]:
    """Parse one step's name, BATCH:POSITION."""
    batch, _, position = text.partition(":")
    if not all(part.isascii() and part.isdigit() for part in (batch, position)):
        raise click.BadParameter(f"{text!r} is not BATCH:POSITION, such as 0:7")
    return int(batch), int(position)


#: As in dpaudit.quality, which is not loaded for this; a test compares them.
MOST = 2**31 - 1
RUN_DIR = RunLocation(path_type=Path)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, and nothing else there.")
POSITIVE = FiniteRange(min=0, min_open=True)
RELATIONS = click.Choice(["add_remove", "replace"])
UNITS = click.Choice(["record", "context", "user"])
EVIDENCE = click.option(
    "--evidence",
    type=click.IntRange(0, 4),
    default=2,
    show_default=True,
    help="Pass only where every check up to this level was made; 3 and 4 need --data.",
)
DATA_HELP = "The run's private data, as data.path or data.dataset in its config."
DATA = click.option(
    "--data", type=NamedPath(path_type=str), metavar="FILE", help=f"{DATA_HELP} Replays the run with its model."
)
MODEL = click.option(
    "--model",
    type=NamedPath(path_type=str),
    metavar="NAME",
    help="Where the run's model is [default: where the run says].",
)

ENGINE_OPTIONS = (
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Work in this many processes [default: what fits the machine or the cluster, and the run].",
    ),
    click.option(
        "--engine",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where these processes run: on this machine, or on a Ray cluster.",
    ),
    click.option("--ray-address", metavar="ADDRESS", help="The cluster [default: $RAY_ADDRESS, or one started here]."),
)


def engine_options(command: Callable[..., None], *, models: bool = False) -> Callable[..., None]:
    """Give a command the options that say where it works. It gets them as one Engine or None, `engine`.

    Args:
        command: any command.
        models: whether its workers hold a language model.
    """

    @wraps(command)
    def spread(workers: int | None, engine: str, ray_address: str | None, **others: Any) -> None:
        from dpaudit.engines import LocalEngine, RayEngine, cores

        if engine == "ray":
            cluster = RayEngine(ray_address, workers, models=models)
            cluster.require_cluster()
            command(engine=cluster, **others)
            return
        if ray_address is not None:
            raise click.UsageError("--ray-address is for --engine ray.")
        command(engine=None if workers is None else LocalEngine(min(workers, 4 * cores())), **others)

    for option in reversed(ENGINE_OPTIONS):
        spread = option(spread)
    return spread


model_engine_options = partial(engine_options, models=True)


CLAIM_OPTIONS = (
    click.option("--epsilon", type=FiniteRange(min=0), help="Test this epsilon instead of the claimed one."),
    click.option("--delta", type=FiniteRange(min=0, max=1), help="Test this delta instead of the claimed one."),
    click.option("--relation", type=RELATIONS, help="Test this neighbouring relation instead of the claimed one."),
    click.option("--unit", type=UNITS, help="Test this privacy unit instead of the claimed one."),
)


def claim_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which claim is tested. It gets them as one Question, `question`."""

    @wraps(command)
    def asked(
        epsilon: float | None, delta: float | None, relation: str | None, unit: str | None, **others: Any
    ) -> None:
        from dpaudit.audit import Question

        command(question=Question(epsilon, delta, relation, unit), **others)

    for option in reversed(CLAIM_OPTIONS):
        asked = option(asked)
    return asked


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(dpaudit.__version__, prog_name="dpaudit")
def cli() -> None:
    """Generate text with differentially private LLM inference, and audit the epsilon it claims.

    \b
    Exit codes: 0 the claim holds, 1 it does not or a check failed,
    2 the input or the command line is unusable, 3 internal error.
    """


@cli.command()
@click.argument("config", type=NamedPath(path_type=Path))
@click.option("--out", required=True, type=RUN_DIR, help="Run directory to write, or to go on with: a path or a URL.")
@model_engine_options
@JSON
def generate(config: Path, out: Location, engine: Engine | None, as_json: bool) -> None:
    """Run Algorithm 1 on private records and write a run directory.

    A run that was interrupted goes on at its first unfinished batch. On a Ray cluster every worker reads the data and
    loads the model itself, and writes to the run directory: all nodes must reach them.

    \b
    Example:
      dpaudit generate examples/bbc-median.yaml --out run
    """
    from dpaudit.runs import InputError

    if str(out).startswith("memory:"):
        raise InputError(str(out), "this lives no longer than this command.", "Name a folder, or a URL of a store.")
    from generation.config import in_config, load_config

    settings = load_config(config)
    try:
        _generate(settings, out, _last_part(out), engine)
    except InputError as error:
        raise in_config(config, error) from None
    with _output():
        if as_json:
            click.echo(json.dumps({"run": str(out)}))
        else:
            _stderr().print(f"Run written to {out}. Next: dpaudit report {out}", markup=False, soft_wrap=True)


@cli.command()
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--out",
    type=NamedPath(path_type=Path),
    help="Folder for the reports [default: RUN_DIR/report; ./NAME-report for a URL that ends in NAME].",
)
@click.option(
    "--audience",
    type=click.Choice(["internal", PUBLIC]),
    default="internal",
    show_default=True,
    help="For readers outside, leave out all that was worked out from the records.",
)
@click.option("--sarif", type=NamedPath(path_type=Path, dir_okay=False), help="Write the findings as SARIF here too.")
@click.option("--open", "open_it", is_flag=True, help="Open report.html in the browser.")
@claim_options
@EVIDENCE
@DATA
@MODEL
@engine_options
@JSON
def report(
    run_dir: Location,
    out: Path | None,
    audience: str,
    sarif: Path | None,
    open_it: bool,
    question: Question,
    evidence: int,
    data: str | None,
    model: str | None,
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Audit a run: print the verdict and write the reports.

    The reports are report.html, report.json, report.md and junit.xml. A public report goes into a folder of its own,
    RUN_DIR/report/public, unless --out names another.

    \b
    Example:
      dpaudit report examples/runs/bbc-median --out /tmp/report
    """
    if out is not None:
        _spare_runs(out, [run_dir], f"Leave --out away to write into {_reports(run_dir)}, or name a folder elsewhere.")
    if sarif is not None:
        _spare_runs(sarif, [run_dir], f"Name a file elsewhere, or in {_reports(run_dir)}.", keep_folder=True)
    with _hushed(audience):
        found = _replayed(run_dir, data, model, question)
    audited = _audit(run_dir, question, evidence=evidence, replay=found, engine=engine)
    result = _for_readers(audited, audience, question)
    if audience != PUBLIC:
        result = _with_quality(result, run_dir)
    # Printed first: where nothing can be written, the audit is not lost.
    with _output():
        if as_json:
            click.echo(result.to_json(), nl=False)
        else:
            _print_summary(result)
    if sarif is not None:
        _write_sarif(result, sarif)
    folder = out or _report_folder(run_dir, audience)
    if audited.claim is not None or out is not None or _holds_reports(folder):
        paths = _write_reports(result, folder)
        if not as_json:
            with _output():
                click.echo("\n".join(f"  {path}" for path in paths.values()))
        if open_it:
            click.launch(str(paths["html"]))
    _exit(result)


@cli.command()
@click.argument("run_dir", type=RUN_DIR)
@claim_options
@EVIDENCE
@DATA
@MODEL
@engine_options
@JSON
def verify(
    run_dir: Location,
    question: Question,
    evidence: int,
    data: str | None,
    model: str | None,
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Gate a release by the checks of `report`.

    Prints a line per failure and writes no files.

    \b
    Example:
      dpaudit verify run --epsilon 3 && publish run/samples.jsonl
    """
    found = _replayed(run_dir, data, model, question)
    result = _audit(run_dir, question, evidence=evidence, replay=found, engine=engine)
    if as_json:
        with _output():
            click.echo(result.to_json(), nl=False)
    elif result.claim is not None:  # else there is nothing to say but why it cannot be read
        from reports.outline import unmade_lines
        from reports.terminal import print_failures

        with _output():
            print_failures(result, _stdout())
        said = (f"{result.verdict}: {result.guarantee}", *result.caveats, *unmade_lines(result))
        for line in said:
            _tell(f"dpaudit: {line}")
    _exit(result)


@cli.command()
@click.argument("run_dir", type=RUN_DIR)
@click.option("--data", type=NamedPath(path_type=str), metavar="FILE", required=True, help=DATA_HELP)
@click.option("--steps", type=click.IntRange(min=0), help="Recompute this many random steps [default: 10].")
@click.option(
    "--step",
    "chosen",
    type=step_name,
    metavar="BATCH:POSITION",
    multiple=True,
    help="Recompute this step instead; both count from 0. Repeat it.",
)
@click.option("--left-out", type=click.IntRange(min=0), help="Leave out this many random contexts [default: 2].")
@click.option("--trials", type=click.IntRange(min=0), help="The attack's texts a side and canary [default: 6].")
@MODEL
@engine_options
@JSON
def replay(
    run_dir: Location,
    data: str,
    chosen: tuple[tuple[int, int], ...],
    engine: Engine | None,
    as_json: bool,
    **amounts: Any,
) -> None:
    """Recompute a run with its model and its data.

    Audits the run with all that this shows: recorded values, sides and supports of random steps, every record's place,
    the loss of random contexts that are left out, and an attack on neighbouring data.

    \b
    Example:
      dpaudit replay run --data records.csv --steps 20
    """
    if chosen and amounts["steps"] is not None:
        raise click.UsageError("Give either --steps or --step.")
    found = _replayed(run_dir, data, chosen=chosen, **amounts)
    result = _audit(run_dir, evidence=4, replay=found, engine=engine)
    with _output():
        if as_json:
            click.echo(result.to_json(), nl=False)
        else:
            from reports.terminal import print_higher_levels

            _print_summary(result)
            print_higher_levels(result, _stdout())
    _exit(result)


@cli.command()
@click.argument("run_dirs", type=RUN_DIR, nargs=-1, required=True, metavar="RUN_DIR RUN_DIR [...]")
@click.option("--out", type=NamedPath(path_type=Path, dir_okay=False), help="Write the comparison as HTML here.")
@engine_options
@JSON
def compare(run_dirs: tuple[Location, ...], out: Path | None, engine: Engine | None, as_json: bool) -> None:
    """Put the budgets of two or more runs side by side.

    Each kind of epsilon has tables of its own. Also: every run's epsilon at one length, and the tokens it can have
    within each other's epsilon.

    \b
    Example:
      dpaudit compare median-run mean-run --out comparison.html
    """
    from dpaudit.comparison import compare_runs
    from reports.compare import print_comparison

    if len(run_dirs) < 2:
        raise click.UsageError("Name two or more run directories.")
    if out is not None:
        _spare_runs(out, run_dirs, f"Name a file elsewhere, or in {_reports(run_dirs[0])}.", keep_folder=True)
    results = {str(path): _with_quality(_audit(path, engine=engine), path, digests=True) for path in run_dirs}
    if len(results) < len(run_dirs):
        raise click.UsageError("A run directory is named twice.")
    comparison = compare_runs(results)
    if out is not None:
        _write_comparison(comparison, out)
    with _output():
        if as_json:
            click.echo(comparison.to_json(), nl=False)
        else:
            print_comparison(comparison, _stdout())
    _exit(*results.values())


@cli.command()
@click.argument("run_dirs", type=RUN_DIR, nargs=-1, required=True, metavar="RUN_DIR [...]")
@click.option("--out", required=True, type=NamedPath(path_type=Path), help="Folder for the figures.")
@click.option(
    "--format",
    "formats",
    type=click.Choice(["svg", "png", "pdf"]),
    multiple=True,
    default=("svg", "png"),
    show_default=True,
    help="Repeat it for several.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    help="What to call a run on figures. Repeat it, in the runs' order [default: their folders' names].",
)
@engine_options
@JSON
def figures(
    run_dirs: tuple[Location, ...],
    out: Path,
    formats: tuple[Format, ...],
    names: tuple[str, ...],
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Draw where ex-post epsilon was spent, for papers.

    For each run a histogram of its batches' costs and the mean cost of a token by position; for several runs also both
    with all of them on one axis. captions.md says what each figure shows.

    \b
    Example:
      dpaudit figures median-run clustered-run --out figures --format pdf
    """
    from reports.figures import MOST_RUNS

    if names and len(names) != len(run_dirs):
        raise click.UsageError(f"{len(run_dirs)} runs are named with {len(names)} of --name: give each run one.")
    if len(set(map(str, run_dirs))) < len(run_dirs):
        raise click.UsageError("A run directory is named twice.")
    if len(run_dirs) > MOST_RUNS:
        raise click.UsageError(f"Nobody can tell more than {MOST_RUNS} runs apart on a figure: name fewer.")
    _spare_runs(out, run_dirs, f"Name a folder elsewhere, or in {_reports(run_dirs[0])}.")
    results = [_audit(path, engine=engine) for path in run_dirs]
    if any(result.verdict == "error" for result in results):
        _exit(*results)
    paths = _write_figures(run_dirs, names, results, formats, out)
    with _output():
        if as_json:
            verdicts = {str(path): result.verdict for path, result in zip(run_dirs, results, strict=True)}
            files = [str(path) for path in paths]
            click.echo(json.dumps({"audience": "internal", "verdicts": verdicts, "files": files}))
        else:
            from reports.figure_files import WARNING

            click.echo("\n".join(f"  {path}" for path in paths))
            _stderr().print(f"Internal. {WARNING}", markup=False, soft_wrap=True)
    _exit(*results)


@cli.command()
@click.argument("data", metavar="DATA")
@click.option("--public", required=True, metavar="FILE", help="Public texts, whose clusters cost nothing.")
@click.option("--text", default="text", show_default=True, help="The column of the private texts.")
@click.option("--public-text", default="text", show_default=True, help="The column of the public texts.")
@click.option("--embedding", default=None, help="Sentence-embedding model [default: all-MiniLM-L6-v2, offline].")
@click.option("--normalize/--no-normalize", default=True, show_default=True, help="Make vectors unit vectors.")
@click.option("--centers", type=click.IntRange(min=2), help="Cluster centres, k [default: 500].")
@click.option("--keep", type=click.IntRange(min=1), help="Centres that rebalancing keeps, k' [default: 100].")
@click.option("--dimension", type=click.IntRange(min=1), help="Chang's vectors are projected onto this [default: 16].")
@click.option("--chang-epsilon", type=FiniteRange(min=0, min_open=True), help="Budget [default: 0.1].")
@click.option(
    "--dpm-epsilon",
    "dpm_epsilons",
    type=FiniteRange(min=0, min_open=True),
    multiple=True,
    help="Budget. Repeat it to compare budgets [default: 0.1 and 10].",
)
@click.option("--rebalancing-epsilon", type=FiniteRange(min=1e-9), help="Budget [default: 0.1].")
@click.option("--delta", type=FiniteRange(min=1e-10, max=0.1), help="Of Chang's method and DPM [default: 1e-06].")
@click.option(
    "--private-cache",
    type=NamedPath(path_type=Path, file_okay=False),
    help="Keep embeddings of private texts in this folder. They are as sensitive as the texts.",
)
@click.option("--out", type=NamedPath(path_type=Path), help="Write clusters.html, clusters.json and clusters.csv here.")
@JSON
def clusters(
    data: str,
    public: str,
    text: str,
    public_text: str,
    embedding: str | None,
    normalize: bool,
    private_cache: Path | None,
    out: Path | None,
    as_json: bool,
    **settings: float | tuple[float, ...] | None,
) -> None:
    """Compare clustering methods on private texts.

    Clusters, cost, and agreement with k-means. Every figure looks at the private texts without noise: they are for
    choosing a method, by whoever may see the texts.

    \b
    Example:
      dpaudit clusters records.csv --public dbpedia.csv --out clusters
    """
    from reports.clusters import print_clusters

    chosen = {name: value for name, value in settings.items() if value not in (None, ())}
    comparison = _clustered((data, text), (public, public_text), embedding, normalize, private_cache, chosen)
    with _output():
        if as_json:
            click.echo(comparison.to_json(), nl=False)
        else:
            print_clusters(comparison, _stdout())
    if out is not None:
        _write_clusters(comparison, out)


@cli.command()
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--reference",
    required=True,
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Real texts: the run's private data, as data.path in its config, or others. NAME:SPLIT for a hub's data set.",
)
@click.option(
    "--test",
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Held-out real texts for accuracy [default: a share of the reference].",
)
@click.option("--text", help="Their column of texts [default: the run's].")
@click.option("--label", help="Their column of labels [default: the run's].")
@click.option("--embedding", help="Model whose embeddings are compared [default: all-MiniLM-L6-v2, offline].")
@click.option("--n", type=click.IntRange(2, MOST), help="Most texts on every side of MAUVE [default: 1000].")
@click.option("--clusters", type=click.IntRange(2, MOST), help="Of MAUVE's k-means [default: n / 10].")
@click.option("--iterations", type=click.IntRange(1, MOST), help="Of MAUVE's k-means [default: 500].")
@click.option("--initialisations", type=click.IntRange(1, MOST), help="Of MAUVE's k-means [default: 5].")
@click.option(
    "--explained-variance",
    type=FiniteRange(min=0, max=0.999, min_open=True),
    help="That MAUVE's PCA keeps [default: 0.9].",
)
@click.option("--scaling", type=POSITIVE, help="MAUVE's scaling factor [default: 5].")
@click.option("--points", type=click.IntRange(2, 100_000), help="Of MAUVE's divergence curve [default: 32].")
@click.option("--seeds", type=click.IntRange(min=1, max=1000), help="Of MAUVE [default: 5].")
@click.option(
    "--most-records", type=click.IntRange(4, 2**40), help="Real records of a file that are used [default: 4000]."
)
@click.option(
    "--test-share",
    type=FiniteRange(min=0, max=1, min_open=True, max_open=True),
    help="Of the reference that is held out without --test [default: 0.2].",
)
@click.option("--split-seed", type=click.IntRange(min=0, max=2**31 - 1), help="Of the share's choice [default: 0].")
@click.option("--probe-strength", type=POSITIVE, help="The linear probe's C [default: 1].")
@click.option("--probe-iterations", type=click.IntRange(1, MOST), help="Of the linear probe [default: 1000].")
@click.option("--fine-tune", is_flag=True, help="Also fine-tune a classifier by the paper's protocol. Takes hours.")
@click.option("--preset", type=click.Choice(["paper", "laptop"]), help="Of fine-tuning; implies it [default: paper].")
@click.option("--classifier", metavar="NAME", help="Encoder to fine-tune; implies it [default: MiniLM, offline].")
@click.option("--batch-size", type=click.IntRange(1, MOST), help="Of fine-tuning [paper: 200; laptop: 32].")
@click.option("--steps", type=click.IntRange(1, MOST), help="Of fine-tuning, about [paper: 500; laptop: 60].")
@click.option(
    "--learning-rate",
    "learning_rates",
    type=POSITIVE,
    multiple=True,
    help="Of fine-tuning. Repeat it [paper: 1e-6 3e-6 1e-5 3e-5 1e-4; laptop: 1e-4].",
)
@click.option(
    "--weight-decay",
    "weight_decays",
    type=FiniteRange(min=0),
    multiple=True,
    help="Of fine-tuning. Repeat it [paper: 0 5e-4; laptop: 0].",
)
@click.option("--patience", type=click.IntRange(1, MOST), help="Epochs that fine-tuning bears in vain [default: 4].")
@click.option(
    "--validation",
    type=FiniteRange(min=0, max=1, min_open=True, max_open=True),
    help="Share of the training texts [default: 0.1].",
)
@click.option("--max-tokens", type=click.IntRange(1, MOST), help="Of a text for fine-tuning [laptop: 64].")
@click.option("--accuracy-seeds", type=click.IntRange(min=1, max=1000), help="Of probes and fine-tuning [default: 3].")
@click.option(
    "--private-cache",
    type=NamedPath(path_type=Path, file_okay=False),
    help="Keep embeddings of all texts in this folder. They are as sensitive as the texts.",
)
@model_engine_options
@JSON
def evaluate(
    run_dir: Location,
    reference: str,
    test: str | None,
    text: str | None,
    label: str | None,
    private_cache: Path | None,
    engine: Engine | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure a run's texts: MAUVE and downstream accuracy.

    Each beside what real texts reach. Every figure looks at private records without noise: they are for whoever may
    see the records. They go into RUN_DIR/report/evaluation.json, and from there into reports and comparisons.

    \b
    Example:
      dpaudit evaluate run --reference records.csv --test held-out.csv
    """
    from reports.quality import print_quality

    quality, path = _evaluated(run_dir, (reference, test, text, label), private_cache, engine, settings)
    with _output():
        if as_json:
            click.echo(quality.to_json(), nl=False)
        else:
            print_quality(quality, _stdout())
            _stderr().print(
                f"Written: {path}. `dpaudit report` and `dpaudit compare` show it.", markup=False, soft_wrap=True
            )


@cli.command()
@click.argument("check_id", metavar="[ID]", required=False)
@JSON
def checks(check_id: str | None, as_json: bool) -> None:
    """List the audit's checks, or explain one.

    \b
    Example:
      dpaudit checks sampling.distribution
    """
    from dpaudit.checks import explain

    rows = explain.listed()
    if check_id is not None:
        rows = [row for row in rows if row["id"] == check_id]
        if not rows:
            raise click.UsageError(f"There is no check {check_id!r}. `dpaudit checks` lists all of them.")
    if as_json:
        click.echo(json.dumps(rows if check_id is None else rows[0]))
    elif check_id is None:
        click.echo("\n".join(f"{row['id']:<28}{row['evidence']:<3}{row['title']}" for row in rows))
    else:
        click.echo("\n".join(explain.lines(rows[0])))


@cli.command()
@click.option("--aggregator", type=click.Choice(["mean"]), required=True, help="Median has no budget known beforehand.")
@click.option("--clip", type=POSITIVE, required=True, help="Clip c: logits lie in [-c, c].")
@click.option("--temperature", type=POSITIVE, required=True)
@click.option(
    "--batch-size",
    "sizes",
    type=POSITIVE,
    required=True,
    multiple=True,
    help="What the sum of contexts is divided by. Repeat it for a table.",
)
@click.option("--records", type=click.IntRange(min=1, max=10**12), required=True, help="Number of private records.")
@click.option("--delta", type=FiniteRange(min=0, max=1, min_open=True, max_open=True), help="[default: N ** -1.1]")
@click.option("--epsilon", type=POSITIVE, help="Find the most tokens within this epsilon.")
@click.option("--tokens", type=click.IntRange(min=0), help="Find the epsilon of this many tokens per batch.")
@click.option(
    "--method", type=click.Choice(["rdp", "optimal"]), default="rdp", show_default=True, help="Of composition."
)
@click.option("--relation", type=RELATIONS, default="add_remove", show_default=True, help="Of contexts.")
@click.option(
    "--group-size",
    type=click.IntRange(min=1, max=10**6),
    default=1,
    show_default=True,
    help="How many contexts one unit can change.",
)
@click.option(
    "--divisor",
    type=click.Choice(["fixed", "actual"]),
    default="fixed",
    show_default=True,
    help="Divide by the batch size, or by the number of contexts, with the batch size as a public floor.",
)
@click.option(
    "--rebalancing-epsilon",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    help="What noisy cluster counts cost one unit; it is part of epsilon.",
)
@JSON
def budget(
    aggregator: str,
    sizes: tuple[float, ...],
    records: int,
    delta: float | None,
    epsilon: float | None,
    tokens: int | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Mean aggregation's epsilon from tokens, or tokens from epsilon.

    \b
    Example:
      dpaudit budget --aggregator mean --clip 9 --temperature 1.5 --batch-size 64 \\
        --records 108000 --epsilon 10
    """
    if (epsilon is None) == (tokens is None):
        raise click.UsageError("Give either --epsilon or --tokens.")
    if len(set(sizes)) < len(sizes):
        raise click.UsageError("A batch size is named twice.")
    if delta is None and records == 1:
        raise click.UsageError("One record leaves no default for delta: give --delta.")
    delta = records**-1.1 if delta is None else delta
    if delta * records >= 1:
        _tell(
            f"dpaudit: warning: delta {delta!r} is not below 1 / records = 1 / {records}: publishing a random record "
            "whole would pass for private. Give a smaller --delta."
        )
    try:
        found = [_budget_of(size, epsilon, tokens, delta=delta, **settings) for size in sizes]
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    with _output():
        if as_json:
            click.echo(json.dumps(found if len(found) > 1 else found[0]))
        elif len(found) > 1:
            _print_budgets(found)
        else:
            click.echo(_budget_in_words(found[0]))


@cli.command()
@click.option("--out", type=NamedPath(path_type=Path), default=Path("dpaudit-demo"), show_default=True)
@JSON
def demo(out: Path, as_json: bool) -> None:
    """Generate, audit and compare two small runs.

    A median run and a mean run, on bundled parts.

    \b
    Example:
      dpaudit demo --out /tmp/demo
    """
    from dpaudit.comparison import compare_runs
    from generation.demo import demo_configs

    results: dict[str, AuditResult] = {}
    for name, config in demo_configs().items():
        run = out / name
        if not (run / "hashes").exists():
            _generate(config, run, name)
        results[name] = _audit(run)
        _write_reports(results[name], run / "report")
    comparison, page = compare_runs(results), out / "comparison.html"
    links = {name: f"{name}/report/report.html" for name in results}
    _write_comparison(comparison, page, links)
    files = {name: str(out / link) for name, link in links.items()}
    with _output():
        if as_json:
            verdicts = {name: result.verdict for name, result in results.items()}
            click.echo(json.dumps({"verdicts": verdicts, "reports": files, "comparison": str(page)}))
        else:
            _print_demo(results, comparison)
            click.echo("Texts:      " + "  ".join(str(out / name / "samples.jsonl") for name in results))
            click.echo("Reports:    " + "  ".join(files.values()))
            click.echo(f"Comparison: {page}")
    _exit(*results.values())


@cli.command()
@click.argument("table", type=NamedPath(path_type=Path), metavar="TABLE.yaml")
@click.option("--out", type=NamedPath(path_type=Path, file_okay=False), help="Folder for the rows' runs and the table.")
@click.option("--only", multiple=True, metavar="ROW", help="Run this row, a config without .yaml, alone. Repeat it.")
@click.option("--dry-run", is_flag=True, help="Say what every row costs, without model or data, and do nothing.")
@click.option(
    "--tokens-per-second",
    type=POSITIVE,
    help="Contexts that the model continues by a token in a second [default: from benchmarks/results/latest.json].",
)
@click.option("--no-evaluation", is_flag=True, help="Generate and audit alone.")
@click.option(
    "--private-cache",
    type=NamedPath(path_type=Path, file_okay=False),
    help="Keep embeddings for evaluations in this folder. They are as sensitive as the texts.",
)
@model_engine_options
@JSON
def table(
    table: Path,
    out: Path | None,
    only: tuple[str, ...],
    dry_run: bool,
    tokens_per_second: float | None,
    no_evaluation: bool,
    private_cache: Path | None,
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Generate, audit and evaluate a table of runs.

    Prints the table beside the paper's figures, and writes table.md, table.csv and table.json. The same command goes on
    where it stopped; a row that fails does not stop the others.

    \b
    Exit codes: 0 all claims hold, 1 an audit did not pass, 2 a row could not be run, 3 internal error.

    \b
    Example:
      dpaudit table examples/paper/results.yaml --dry-run
    """
    from generation.experiments.table import load_table

    rows = load_table(table)
    if dry_run:
        _estimate_table(rows.only(only), tokens_per_second, as_json)
        return
    if tokens_per_second is not None:
        raise click.UsageError("--tokens-per-second is for --dry-run.")
    if out is None:
        raise click.UsageError("Name a folder with --out, or ask for a --dry-run.")
    _run_table(rows, out, only, not no_evaluation, private_cache, engine, as_json)


def _estimate_table(table: Table, tokens_per_second: float | None, as_json: bool) -> None:
    from generation.experiments import estimates
    from reports.experiments import print_estimates

    throughput = None
    if tokens_per_second is not None:
        throughput = estimates.stated_throughput(tokens_per_second)
    elif MEASURED.exists():
        throughput = estimates.measured_throughput(MEASURED, table.parameters)
    found = estimates.estimates(table, throughput)
    with _output():
        if as_json:
            click.echo(found.to_json(), nl=False)
        else:
            print_estimates(found, _stdout())


def _run_table(
    table: Table,
    out: Path,
    only: tuple[str, ...],
    evaluated: bool,
    private_cache: Path | None,
    engine: Engine | None,
    as_json: bool,
) -> None:
    from dpaudit.quality_file import write_private
    from dpaudit.runs import InputError
    from generation.config import in_config
    from generation.experiments import driver
    from generation.experiments.table import ALL_RECORDS, TABLE_FILES
    from reports.experiments import print_table, render_table_markdown, table_csv

    @contextmanager
    def of_row(row: Row) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            raise in_config(row.path, error) from None

    def make(row: Row, run: Path) -> None:
        with of_row(row):
            _generate(row.config, run, row.name, engine)

    def compare(row: Row, run: Path) -> None:
        from generation.algorithm import require_made_with

        with of_row(row):
            require_made_with(row.config, run)

    results: dict[Path, AuditResult] = {}

    def write(run: Path) -> None:
        if results[run].claim is not None:
            _write_reports(_with_quality(results[run], run), _report_folder(run, "internal"))

    def audit(run: Path) -> AuditResult:
        results[run] = _audit(run, engine=engine)
        write(run)
        return results[run]

    def evaluate(run: Path, reference: DataConfig, held_out: DataConfig | None, settings: EvaluationConfig) -> Quality:
        test = None if held_out is None else _named(held_out)
        options = {
            "embedding": settings.embedding,
            "classifier": settings.classifier,
            "preset": settings.fine_tune,
            "most_records": settings.most_records or ALL_RECORDS,
        }
        quality, _ = _evaluated(run, (_named(reference), test, None, None), private_cache, engine, options)
        write(run)  # its report shows the evaluation
        return quality

    def watch(number: int, rows: int, name: str, what: str) -> None:
        _tell(f"[{number}/{rows}] {name}: {what}")

    _spare_runs(out, (), "Name another folder with --out.")
    stages = driver.Stages(make, compare, audit, evaluate if evaluated else None)
    result = driver.run_table(table, out, stages, watch, only)
    with _output():
        if as_json:
            click.echo(result.to_json(), nl=False)
        else:
            print_table(result, _stdout())
    contents = {"md": render_table_markdown(result), "csv": table_csv(result), "json": result.to_json()}
    for ending, name in TABLE_FILES.items():
        write_private(out / name, contents[ending].encode(), driver.ELSEWHERE)
    _tell("Written: " + ", ".join(str(out / name) for name in TABLE_FILES.values()))
    sys.exit(result.exit_code)


def _named(data: DataConfig) -> str:
    """Real texts as --reference and --test name them."""
    return data.path or f"{data.dataset}:{data.split or 'train'}"


def _print_demo(results: dict[str, AuditResult], comparison: Comparison) -> None:
    from reports.compare import print_comparison

    for result in results.values():
        _print_summary(result)
    print_comparison(comparison, _stdout())


def _budget_of(
    size: float,
    epsilon: float | None,
    tokens: int | None,
    *,
    clip: float,
    temperature: float,
    delta: float,
    method: Method,
    relation: Relation,
    divisor: DivisorKind,
    group_size: int,
    rebalancing_epsilon: float,
) -> dict[str, Any]:
    """What `dpaudit budget --json` prints for one batch size."""
    from dpaudit import accounting
    from dpaudit.results import finite_or_text

    change = accounting.ContextChange(relation, group_size)
    eta = accounting.bounded_range(clip, temperature, size, change, divisor)
    laplace = (rebalancing_epsilon,)  # all of it on one count: the worst case, however records make up contexts
    if tokens is None:
        assert epsilon is not None
        tokens = accounting.affordable_tokens(
            epsilon, clip, temperature, size, delta, change, divisor_kind=divisor, laplace=laplace, method=method
        )
    spent = accounting.exponential_mechanism_epsilon(eta, tokens, delta, method=method, laplace=laplace)
    rho = accounting.zcdp_rho(clip, temperature, size, tokens, change, divisor)
    return {
        "tokens": tokens,
        "epsilon": finite_or_text(spent.epsilon),
        "delta": delta,
        "method": method,
        "rho": finite_or_text(rho),
        "relation": relation,
        "epsilon_lower": spent.epsilon_lower,
        "batch_size": size,
        "divisor": divisor,
        "group_size": group_size,
        "sensitivity": accounting.mean_sensitivity(change, divisor).text,
        "rebalancing_epsilon": rebalancing_epsilon,
    }


def _budget_in_words(found: dict[str, Any]) -> str:
    tokens, delta, method, relation = (found[name] for name in ("tokens", "delta", "method", "relation"))
    cost = "1 token per batch costs" if tokens == 1 else f"{tokens} tokens per batch cost"
    how = ", ".join((method, relation, *_unusual(found)))
    line = f"{cost} epsilon {_rounded(found['epsilon'])} at delta {delta:.17g} ({how})."
    return f"{line} {_lower_end(found)}".rstrip()


def _unusual(found: dict[str, Any]) -> Iterator[str]:
    """The settings of a budget that are not the default."""
    if found["divisor"] != "fixed":
        yield "divisor: the number of contexts, at least the batch size"
    if found["group_size"] != 1:
        yield f"{found['group_size']} contexts per unit"
    if found["rebalancing_epsilon"]:
        yield f"rebalancing epsilon {found['rebalancing_epsilon']!r} inside"


def _lower_end(found: dict[str, Any]) -> str:
    """What the optimal method says beside its epsilon; empty for another."""
    low, epsilon = found["epsilon_lower"], found["epsilon"]
    if low is None:
        return ""
    if low == 0 and epsilon != 0:
        return "Optimal composition could not do better here: Renyi accounting or the pure sum gave the figure."
    return f"No accountant can go below {_rounded(low, rounding=ROUND_FLOOR)}."


def _print_budgets(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    first = found[0]
    rebalancing = [f"rebalancing epsilon {first['rebalancing_epsilon']!r} inside"] * bool(first["rebalancing_epsilon"])
    click.echo("; ".join((f"delta {first['delta']:.17g}", first["method"], first["sensitivity"], *rebalancing)))
    table = Table()
    for heading in ("batch size", "tokens per batch", "epsilon"):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(f"{each['batch_size']:g}", str(each["tokens"]), _rounded(each["epsilon"]))
    _stdout().print(table)


def _rounded(epsilon: float | str, places: int = 4, rounding: str = ROUND_CEILING) -> str:
    """Decimals of an epsilon, rounded up: what is shown must not be smaller than what was computed."""
    if isinstance(epsilon, str) or not epsilon < MOST_ROUNDED:
        return str(epsilon)
    return str(Decimal(epsilon).quantize(Decimal(1).scaleb(-places), rounding))


def _audit(
    run_dir: Location,
    question: Question | None = None,
    *,
    evidence: int = 2,
    replay: Replay | None = None,
    engine: Engine | None = None,
) -> AuditResult:
    from dpaudit.audit import audit_run

    with _bar("Auditing") as advance:
        return audit_run(run_dir, question, progress=advance, evidence=evidence, replay=replay, engine=engine)


def _replayed(
    run_dir: Location, data: str | None, model: str | None = None, question: Question | None = None, **amounts: Any
) -> Replay | None:
    """What a replay finds, with its own default where an amount is None; None without data."""
    if data is None:
        if model is not None:
            raise click.UsageError("--model is for a replay, which needs --data.")
        return None
    from dpaudit.runs import RunReader

    stated = RunReader(run_dir).manifest.claim  # a mistyped path is told before torch is loaded
    asked = question.asked_of(stated) if question is not None and stated is not None else stated
    from generation.replay import replay

    given = {name: amount for name, amount in amounts.items() if amount is not None}
    with _bar("Replaying") as advance:
        return replay(run_dir, data, model=model, claim=asked, progress=advance, **given)


def _generate(config: Config, out: Location, title: str, engine: Engine | None = None) -> None:
    from generation.algorithm import generate as run_algorithm
    from generation.events import BatchDone, BatchStarted, Event, MemoryRanOut, StepDone, TextsEmbedded

    steps, done = config.decoding.max_tokens, 0
    under_way: dict[int, int] = {}
    with _progress() as progress:
        task = progress.add_task(f"{title}: loading", total=None, epsilon="")

        def show(event: Event) -> None:
            nonlocal done
            if isinstance(event, MemoryRanOut):
                _tell(f"{title}: out of memory; going on with {event.rows} contexts in a pass")
                return
            if isinstance(event, TextsEmbedded):
                progress.update(
                    task, description=f"{title}: embedding {event.texts} texts", total=event.total, completed=event.done
                )
                return
            if isinstance(event, StepDone):
                under_way[event.batch] = event.tokens
            else:
                done += isinstance(event, BatchDone)
                under_way.pop(event.batch, None)
                where = f"{title}: {done}/{event.batches} batches"
                progress.update(task, description=where, total=event.batches * steps)
                if progress.disable and isinstance(event, BatchDone):
                    _tell(f"{where} are on disk")
            # A text that ended early takes no more steps.
            progress.update(task, completed=done * steps + sum(under_way.values()))
            if not isinstance(event, BatchStarted) and event.epsilon is not None:
                progress.update(task, epsilon=f"epsilon so far {_rounded(event.epsilon, 3)}")

        run_algorithm(config, out, show, engine)


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    with _progress() as progress:
        task = progress.add_task(title, total=None, epsilon="")
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _progress() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[epsilon]}", markup=False),
        console=_stderr(),
        disable=not sys.stderr.isatty(),
    )


@contextmanager
def _hushed(audience: str) -> Iterator[None]:
    """What stops a replay may quote the run or its data: readers outside are told no more than that it stopped."""
    from dpaudit.runs import InputError

    try:
        yield
    except InputError:
        if audience != PUBLIC:
            raise
        raise InputError("--data", "the run cannot be replayed.", "Leave --audience away to see why.") from None


def _for_readers(result: AuditResult, audience: str, question: Question) -> AuditResult:
    """The result as these readers may have it."""
    from dpaudit.disclosure import public_form

    return public_form(result, question) if audience == PUBLIC else result


def _last_part(location: Location) -> str:
    """What to call a run."""
    return location.name if isinstance(location, Path) else location.rpartition("/")[2]


def _reports(run_dir: Location) -> Path:
    """The default folder for reports: in the run directory, or here where that is elsewhere."""
    from dpaudit.runs.layout import REPORT

    return run_dir / REPORT if isinstance(run_dir, Path) else Path(f"{_last_part(run_dir)}-{REPORT}")


def _report_folder(run_dir: Location, audience: str) -> Path:
    """The default folder for reports; a run from elsewhere must not steer where they are written."""
    from dpaudit.runs import InputError

    folder = _reports(run_dir)
    # A folder of its own: what lies beside a public report would be shared with it.
    for place in (folder, folder / PUBLIC):
        if place.is_symlink():
            raise InputError(str(place), "this is a link, which is not followed.", "Name a folder with --out.")
    return folder / PUBLIC if audience == PUBLIC else folder


def _holds_reports(folder: Path) -> bool:
    """Whether reports of an earlier audit are there, which must not outlive it when the run cannot be read any more."""
    return all((folder / name).is_file() for name in ("report.html", "report.json"))


def _spare_runs(out: Path, runs: Iterable[Location], remedy: str, *, keep_folder: bool = False) -> None:
    """Refuse to write into a run directory, but for its report folder: the record must stay as it was written.

    Args:
        out: where to write, links followed.
        runs: run directories, whatever is in them; others are known by what they hold.
        remedy: what to do instead.
        keep_folder: `out` is a file, which must not take the report folder's name.
    """
    from dpaudit.runs import InputError
    from dpaudit.runs.layout import MANIFEST, REPORT, STEPS

    # realpath, for resolve() raises on links in a circle.
    place, named = Path(os.path.realpath(out)), {Path(os.path.realpath(run)) for run in runs if isinstance(run, Path)}
    for folder in (place, *place.parents):
        if folder in named or ((folder / MANIFEST).is_file() and (folder / STEPS).is_dir()):
            inside = place.relative_to(folder).parts
            if inside[:1] != (REPORT,) or (keep_folder and len(inside) == 1):
                raise InputError(str(out), "this is inside a run directory, whose files are the record.", remedy)


def _write_reports(result: AuditResult, folder: Path) -> dict[str, Path]:
    from reports.write import write_reports

    with _writing(folder, "--out"):
        return write_reports(result, folder)


def _write_sarif(result: AuditResult, path: Path) -> None:
    from reports.write import write_sarif

    with _writing(path, "--sarif"):
        write_sarif(result, path)


def _clustered(
    private: tuple[str, str],
    public: tuple[str, str],
    embedding: str | None,
    normalize: bool,
    private_cache: Path | None,
    settings: dict[str, Any],
) -> ClusterComparison:
    from generation.clustering.comparison import ComparisonSettings, compare_texts
    from generation.clustering.embedding import OFFLINE, Embedder
    from generation.clustering.noise import Noise
    from generation.clustering.vector_cache import VectorCache
    from generation.records import read_texts
    from generation.sampling import OsEntropy
    from generation.sources import overlap

    try:
        wanted = ComparisonSettings(**settings)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    if "keep" not in settings:
        wanted = replace(wanted, keep=min(wanted.keep, wanted.centers))
    if wanted.keep > wanted.centers:
        raise click.UsageError(f"--keep {wanted.keep} is more than the {wanted.centers} of --centers.")
    if overlap(public[0], private[0]):
        raise click.UsageError("--public leads to the private texts: name public ones.")
    texts, open_texts = read_texts(*private, "DATA", "--text"), read_texts(*public, "--public", "--public-text")
    embedder = Embedder(embedding or OFFLINE, normalize=normalize, field="--embedding")
    if wanted.dimension > embedder.dimensions:
        raise click.UsageError(f"--dimension {wanted.dimension} is more than the {embedder.dimensions} of embeddings.")
    cache = None if private_cache is None else VectorCache(folder=private_cache)
    with _progress() as progress:
        task = progress.add_task("", total=None, epsilon="")
        return compare_texts(
            texts,
            open_texts,
            embedder,
            wanted,
            private_cache=cache,
            noise=Noise(OsEntropy()),
            watch=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )


def _evaluated(
    run_dir: Location,
    data: tuple[str, str | None, str | None, str | None],
    private_cache: Path | None,
    engine: Engine | None,
    options: dict[str, Any],
) -> tuple[Quality, Path]:
    """The evaluation, and where it was written. What is None or empty in `options` has its default."""
    from dpaudit.quality_file import EVALUATION, require_place, write_quality
    from dpaudit.runs import InputError, RunReader

    reader = RunReader(run_dir)  # a mistyped path is told before torch is loaded
    folder = _report_folder(run_dir, "internal")
    require_place(folder / EVALUATION)
    try:
        from generation.evaluation.protocol import evaluate as run_evaluation
    except ModuleNotFoundError as error:
        raise InputError(
            "dpaudit evaluate", f"{error.name} is not installed.", "Run `pip install 'dpaudit[evaluate]'`."
        ) from None
    from generation.clustering.vector_cache import VectorCache
    from generation.evaluation.score_cache import ScoreCache
    from generation.evaluation.settings import RealData, asked
    from generation.evaluation.texts import Columns

    reference, test, text, label = data
    previous, _ = _quality(run_dir)
    cache = ScoreCache()
    cache.require()
    with _progress() as progress:
        task = progress.add_task("", total=None, epsilon="")
        quality = run_evaluation(
            reader,
            RealData(reference, test, Columns(text, label)),
            asked({name: value for name, value in options.items() if value not in (None, (), False)}),
            cache=cache,
            private_cache=None if private_cache is None else VectorCache(folder=private_cache),
            previous=previous,
            engine=engine,
            watch=lambda what, done, total: progress.update(task, description=what, completed=done, total=total),
        )
    for warning in quality.warnings:
        _tell(f"dpaudit: warning: {warning}")
    return quality, write_quality(quality, folder)


def _quality(run_dir: Location) -> tuple[Quality | None, str]:
    """The evaluation in a run's report folder, and why it cannot be shown; both empty where there is none."""
    from dpaudit.quality_file import read_quality
    from dpaudit.runs import InputError, RunReader
    from dpaudit.runs.layout import SAMPLES

    try:
        return read_quality(_reports(run_dir), lambda: RunReader(run_dir).digest(SAMPLES)), ""
    except InputError as error:
        return None, str(error)


def _with_quality(result: AuditResult, run_dir: Location, *, digests: bool = False) -> AuditResult:
    """The audit's result with the run's evaluation beside it: a broken one is told, and changes no verdict.

    Args:
        result: of the audit.
        run_dir: the run.
        digests: keep those of private texts, by which evaluations are compared; reports do without.
    """
    if result.verdict == "error":
        return result
    quality, problem = _quality(run_dir)
    if problem:
        _tell(f"dpaudit: warning: {problem}")
    return result.model_copy(update={"quality": quality if digests or quality is None else quality.without_digests()})


def _write_clusters(comparison: ClusterComparison, folder: Path) -> None:
    from reports.write import write_clusters

    with _writing(folder, "--out"):
        for path in write_clusters(comparison, folder):
            _stderr().print(f"Written: {path}", markup=False, soft_wrap=True)


def _write_figures(
    run_dirs: tuple[Location, ...],
    names: tuple[str, ...],
    results: list[AuditResult],
    formats: tuple[Format, ...],
    folder: Path,
) -> list[Path]:
    """All of them are drawn before the first is written."""
    from dpaudit.comparison import batch_spread
    from dpaudit.runs import InputError
    from reports.figure_files import FigureRun, figure_files, why_not_drawn
    from reports.write import write_figures

    runs = []
    for path, name, result in zip(run_dirs, names or map(_folder_name, run_dirs), results, strict=True):
        if problem := why_not_drawn(result):
            raise InputError(str(path), problem, "Leave it out.")
        runs.append(FigureRun(name, str(path), result, batch_spread(str(path), result)))
    asked = [("--name", name) for name in names] + [("--format", each) for each in formats] + [("--out", str(folder))]
    options = [word for option in asked for word in option]
    files = figure_files(runs, formats, shlex.join(["dpaudit", "figures", *map(str, run_dirs), *options]))
    with _writing(folder, "--out"):
        return write_figures(files, folder)


def _folder_name(location: Location) -> str:
    """What to call a run: a path such as . has a name only once it is resolved."""
    return os.path.basename(os.path.realpath(location)) if isinstance(location, Path) else _last_part(location)


def _write_comparison(comparison: Comparison, path: Path, links: dict[str, str] | None = None) -> None:
    from reports.write import write_comparison

    with _writing(path, "--out"):
        write_comparison(comparison, path, links)


@contextmanager
def _writing(path: Path, option: str) -> Iterator[None]:
    from dpaudit.runs import InputError
    from reports.write import NoPlainFileError

    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error, NoPlainFileError) else path
        raise InputError(
            str(named), f"cannot be written ({error.strerror}).", f"Name another place with {option}."
        ) from None


def _print_summary(result: AuditResult) -> None:
    from reports.terminal import print_summary

    print_summary(result, _stdout())


@contextmanager
def _output() -> Iterator[None]:
    """What is printed inside may have lost its reader (`| head`): that ends the output and not the command."""
    try:
        yield
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:  # what is left in its buffer has nowhere to go
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tell(message: str) -> None:
    """Say something on stderr; what a run says in it must not drive the terminal."""
    from reports.text import printable

    with _output():
        click.echo(printable(message), err=True)


def _stdout() -> Console:
    return _console(stderr=False)


def _stderr() -> Console:
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        """A console that leaves a closed pipe to `_output`; rich's own exits with 1, which is a verdict here."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole(stderr=stderr)


def _exit(*results: AuditResult) -> None:
    """Leave with the worst verdict's exit code; say on stderr why a run could not be judged."""
    from reports.outline import causes

    for result in results:
        for check in causes(result):
            # What is for readers outside holds neither what was measured nor where.
            said = (check.id, check.measured or check.title, check.detail)
            _tell(f"dpaudit: {': '.join(filter(None, said))}")
    sys.exit(max(EXIT_CODES[result.verdict] for result in results))


def main(arguments: list[str] | None = None) -> None:
    """Entry point: turns every error into one message on stderr and its exit code."""
    from dpaudit.runs.errors import InputError

    try:
        cli.main(arguments, prog_name="dpaudit", standalone_mode=False)
    except click.ClickException as error:
        with _output():
            error.show()
        sys.exit(UNUSABLE)
    except InputError as error:
        _tell(f"dpaudit: {error}")
        sys.exit(UNUSABLE)
    except ModuleNotFoundError as error:
        _tell(f"dpaudit: {error.name} is not installed. Install dpaudit[generate] to generate runs.")
        sys.exit(UNUSABLE)
    except (click.Abort, KeyboardInterrupt):
        _tell("dpaudit: interrupted. An unfinished run goes on when the same command is given again.")
        sys.exit(INTERRUPTED)
    except OSError as error:
        _tell(f"dpaudit: {error.filename or 'the disk'}: {error.strerror}. Mend that and try again.")
        sys.exit(UNUSABLE)
    except Exception as error:
        if os.environ.get(DEBUG):
            traceback.print_exc()
        _tell(
            f"dpaudit: internal error ({type(error).__name__}). This is a defect in dpaudit; set {DEBUG}=1 for the "
            "traceback, which may quote private data."
        )
        sys.exit(INTERNAL)


if __name__ == "__main__":
    main()
