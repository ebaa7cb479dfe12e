"""`dpaudit clusters`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from dpaudit.commands.options import POSITIVE, FiniteRange, NamedPath, output_options, private_cache_option
from dpaudit.commands.terminal import note, progress_steps, show


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
    text: str,
    public_text: str,
    embedding: str | None,
    normalize: bool,
    private_cache: Path | None,
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
    from dpaudit.api.places import writing
    from dpaudit.generation.caches import VectorCache
    from dpaudit.generation.clustering.comparison import ComparisonSettings, compare_texts
    from dpaudit.generation.clustering.embedding import OFFLINE, Embedder
    from dpaudit.generation.clustering.noise import Noise
    from dpaudit.generation.records import read_texts
    from dpaudit.generation.sampling import OsEntropy
    from dpaudit.generation.sources import overlap
    from dpaudit.reports.clusters import print_clusters
    from dpaudit.reports.write import write_clusters

    given = {name: value for name, value in settings.items() if value not in (None, ())}
    try:
        wanted = ComparisonSettings(**given)
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    if "keep" not in given:
        wanted = replace(wanted, keep=min(wanted.keep, wanted.centers))
    if wanted.keep > wanted.centers:
        raise click.UsageError(f"--keep {wanted.keep} is more than the {wanted.centers} of --centers.")
    if overlap(public, data):
        raise click.UsageError("--public leads to the private texts: name public ones.")
    private = read_texts(data, text, "DATA", "--text")
    open_texts = read_texts(public, public_text, "--public", "--public-text")
    embedder = Embedder(embedding or OFFLINE, normalize=normalize, field="--embedding")
    if wanted.dimension > embedder.dimensions:
        raise click.UsageError(f"--dimension {wanted.dimension} is more than the {embedder.dimensions} of embeddings.")
    cache = None if private_cache is None else VectorCache(folder=private_cache)
    noise = Noise(OsEntropy())
    with progress_steps() as watch:
        found = compare_texts(private, open_texts, embedder, wanted, private_cache=cache, noise=noise, watch=watch)
    show(found, as_json, print_clusters)
    if out is not None:
        with writing(out, "--out"):
            for path in write_clusters(found, out):
                note(f"Written: {path}")
