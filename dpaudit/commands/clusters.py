"""`dpaudit clusters`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dpaudit.commands.options import POSITIVE, FiniteRange, NamedPath, output_options, private_cache_option
from dpaudit.commands.terminal import TERMINAL, note, show


@click.command()
@click.argument("data", metavar="DATA")
@click.option("--public", required=True, metavar="FILE", help="Public texts, whose clusters cost nothing.")
@click.option("--text", default="text", show_default=True, help="The column of the private texts.")
@click.option("--public-text", default="text", show_default=True, help="The column of the public texts.")
@click.option("--embedding", default=None, help="Sentence-embedding model [default: all-MiniLM-L6-v2, offline].")
@click.option("--normalize/--no-normalize", default=True, show_default=True, help="Make vectors unit vectors.")
@click.option("--centers", type=click.IntRange(min=2), help="Cluster centres, k [default: 500].")
@click.option("--keep", type=click.IntRange(min=1), help="Centres that rebalancing keeps, k' [default: 100].")
@click.option("--dimension", type=click.IntRange(min=1), help="Chang's vectors are projected onto this [default: 16].")
@click.option("--chang-epsilon", type=POSITIVE, help="Budget [default: 0.1].")
@click.option(
    "--dpm-epsilon",
    "dpm_epsilons",
    type=POSITIVE,
    multiple=True,
    help="Budget. Repeat it to compare budgets [default: 0.1 and 10].",
)
@click.option("--rebalancing-epsilon", type=FiniteRange(min=1e-9), help="Budget [default: 0.1].")
@click.option("--delta", type=FiniteRange(min=1e-10, max=0.1), help="Of Chang's method and DPM [default: 1e-06].")
@private_cache_option("of private texts")
@click.option("--out", type=NamedPath(path_type=Path), help="Write clusters.html, clusters.json and clusters.csv here.")
@output_options
def clusters(
    data: str,
    public: str,
    out: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Compare clustering methods on private texts.

    Clusters, cost, and agreement with k-means. Every figure looks at the private texts without noise: a method that
    is chosen by them is a choice by private records (chosen_from: private).

    \b
    Example:
      dpaudit clusters records.csv --public dbpedia.csv --out clusters
    """
    from dpaudit.api.research import compare_clusterings
    from dpaudit.reports.clusters import print_clusters

    found = compare_clusterings(data, public, monitor=TERMINAL, **settings)
    show(found.result, as_json, print_clusters)
    if out is not None:
        for path in found.save(out):
            note(f"Written: {path}")
