"""`dpaudit lab`: the paper's experiments, which are loaded when one of them is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.options import (
    COUNT,
    POSITIVE,
    FiniteRange,
    NamedPath,
    TitledCommand,
    WholeRange,
    model_engine_options,
    output_options,
    private_cache_option,
    tokenizer_option,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, show_document

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.group()
def lab() -> None:
    """Repeat the paper's experiments.

    \b
    Example:
      dpaudit lab table examples/paper/results.yaml --dry-run
    """


@lab.command(cls=TitledCommand)
@click.argument("table", type=NamedPath(path_type=Path), metavar="TABLE.yaml")
@click.option(
    "--out",
    type=NamedPath(path_type=Path, file_okay=False),
    help="Folder for the runs and the table.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="ROW",
    help="Run this row alone: its config without .yaml. Repeat it.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what every row costs, without model or data. Run nothing."
)
@click.option(
    "--tokens-per-second",
    type=POSITIVE,
    help="Of a dry run: contexts that the model continues by a token in a second "
    "[default: from benchmarks/results/latest.json].",
)
@click.option("--no-evaluation", is_flag=True, help="Generate and audit only.")
@click.option(
    "--unverified",
    is_flag=True,
    help="Also run rows that cannot pass their audit. The table says so.",
)
@private_cache_option("for evaluations")
@tokenizer_option
@model_engine_options
@output_options
def table(
    table: Path,
    out: Path | None,
    only: tuple[str, ...],
    dry_run: bool,
    tokens_per_second: float | None,
    no_evaluation: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Generate, audit and evaluate a table of runs.

    The table stands beside the paper's figures, and is written to table.md, table.csv and
    table.json, unless --only chose some of its rows. Give the same command again to go on where it
    stopped. A row that fails does not stop the others. Rows that cannot pass their audit are
    refused before the first one runs.

    \b
    Exit codes: 0 all claims hold, 1 an audit did not pass, 2 a row could not be run,
    3 internal error.

    \b
    Example:
      dpaudit lab table examples/paper/results.yaml --dry-run
    """
    from dpaudit.generation.experiments import table_page
    from dpaudit.generation.experiments.table import load_table

    rows = load_table(table).only(only)
    if dry_run:
        from dpaudit.generation.experiments.estimates import estimates

        show_document(estimates(rows, tokens_per_second), as_json, table_page.screen)
        return
    if out is None:
        raise click.UsageError("Name a folder with --out, or ask for a --dry-run.")
    from dpaudit.generation.experiments.driver import Stages, run_table

    def watch(number: int, count: int, name: str, what: str) -> None:
        note(f"[{number}/{count}] {name}: {what}")

    stages = Stages(evaluated=not no_evaluation, monitor=TERMINAL, **asked)
    found = run_table(rows, out, stages, watch)
    show_document(found, as_json, table_page.page)
    if not only:  # part of a table does not replace the whole one
        _write(table_page.files(found), out)
    sys.exit(found.exit_code)


@lab.command
@click.argument("data", metavar="DATA")
@click.option(
    "--public", required=True, metavar="FILE", help="Public texts, whose clusters cost nothing."
)
@click.option("--text", default="text", show_default=True, help="Column of the private texts.")
@click.option(
    "--public-text", default="text", show_default=True, help="Column of the public texts."
)
@click.option(
    "--embedding",
    default=None,
    help="Sentence-embedding model [default: all-MiniLM-L6-v2, offline].",
)
@click.option(
    "--normalize/--no-normalize", default=True, show_default=True, help="Make vectors unit vectors."
)
@click.option("--centers", type=WholeRange(min=2), help="Cluster centres, k [default: 500].")
@click.option(
    "--keep", type=WholeRange(min=1), help="Centres that rebalancing keeps, k' [default: 100]."
)
@click.option(
    "--dimension",
    type=WholeRange(min=1),
    help="Dimension that Chang's method projects to [default: 16].",
)
@click.option("--chang-epsilon", type=POSITIVE, help="Budget of Chang's method [default: 0.1].")
@click.option(
    "--dpm-epsilon",
    "dpm_epsilons",
    type=POSITIVE,
    multiple=True,
    help="Budget of DPM. Repeat it to compare budgets [default: 0.1 and 10].",
)
@click.option(
    "--rebalancing-epsilon",
    type=FiniteRange(min=1e-9),
    help="Budget of rebalancing [default: 0.1].",
)
@click.option(
    "--delta",
    type=FiniteRange(min=1e-10, max=0.1),
    help="Of Chang's method and DPM [default: 1e-06].",
)
@private_cache_option("of private texts")
@click.option(
    "--out",
    type=NamedPath(path_type=Path),
    help="Write clusters.html, clusters.json and clusters.csv here.",
)
@output_options
def clusters(data: str, public: str, out: Path | None, as_json: bool, **settings: Any) -> None:
    """Compare clustering methods on private texts.

    The table shows each method's clusters, its cost, and how far it agrees with k-means. The
    figures are computed from the private texts without noise. If you choose a method by them,
    declare it (chosen_from: private).

    \b
    Example:
      dpaudit lab clusters records.csv --public dbpedia.csv --out clusters
    """
    from dpaudit.generation.experiments import cluster_page
    from dpaudit.generation.experiments.clusterings import compare_clusterings

    found = compare_clusterings(data, public, monitor=TERMINAL, **settings)
    show_document(found, as_json, cluster_page.screen)
    if out is not None:
        _write(cluster_page.files(found), out)


@lab.command
@click.argument(
    "configs",
    type=NamedPath(path_type=Path),
    nargs=-1,
    required=True,
    metavar="CONFIG.yaml [CONFIG.yaml ...]",
)
@click.option(
    "--test",
    required=True,
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Held-out real texts, in the columns of the configs' data and apart from it.",
)
@click.option("--texts", type=COUNT, default=4, show_default=True, help="Most texts of each label.")
@click.option(
    "--batches", type=COUNT, default=1, show_default=True, help="Most batches of each label."
)
@click.option("--model", metavar="NAME", help="Model of all configs [default: each config's own].")
@click.option(
    "--out",
    type=NamedPath(path_type=Path, file_okay=False),
    help="Write likelihood.json, likelihood.svg and likelihood.png here.",
)
@output_options
def likelihood(
    configs: tuple[Path, ...],
    test: str,
    texts: int,
    batches: int,
    model: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compare mechanisms' held-out likelihood with their epsilon.

    Each config's batches are given real texts that they have not seen, token by token, beside the
    public prompt alone. The model runs texts x batches x labels x decoding.max_tokens times for
    each config. The figures are computed from the configs' records without noise: to choose
    settings, let the records be public texts like yours.

    \b
    Example:
      dpaudit lab likelihood median.yaml anchored.yaml --test held-out.csv --out likelihood
    """
    from dpaudit.api.places import require_writable
    from dpaudit.generation.experiments import likelihood_page
    from dpaudit.generation.experiments.likelihoods import compare_likelihoods

    if out is not None:
        require_writable(out, "--out")
    found = compare_likelihoods(
        configs, test, texts=texts, batches=batches, model=model, monitor=TERMINAL
    )
    show_document(found, as_json, likelihood_page.screen)
    if out is not None:
        _write(likelihood_page.files(found), out)


def _write(files: Mapping[str, str | bytes], folder: Path) -> None:
    """Write files for their owner alone, and say where."""
    from dpaudit.api import places
    from dpaudit.reports.write import write_files

    with places.writing(folder, "--out"):
        paths = write_files(files, folder)
    note(f"Written: {', '.join(map(str, paths))}")
