"""Clustering methods side by side: a table, the cluster sizes that each leaves, and a file for spreadsheets."""

from __future__ import annotations

import csv
import io
import math

from rich.console import Console
from rich.text import Text

from dpaudit.reports.drawing import in_page
from dpaudit.reports.figures import cluster_sizes
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.writers.html import environment
from dpaudit.reports.writers.terminal import plain_table
from dpaudit.results import ClusterComparison, ClusteredBy
from dpaudit.results.rounding import bound, delta_bound

#: The methods by their names in configs, in words.
TITLES = {
    "k-means": "k-means, reference only",
    "chang": "DP clustering (Chang)",
    "dpm": "DPM (Liebenow)",
    "public-centers": "Public centres",
    "public-centers-rebalanced": "Public, rebalanced",
}
#: Those whose cluster sizes are drawn, as in the paper's figure 2.
DRAWN = ("k-means", "chang", "public-centers", "public-centers-rebalanced")
ORIGINS = {"public": "public texts", "noised": "noised records", "private": "the records"}
WARNING = (
    "These figures were counted on the private records without noise: do not publish them. Choosing a method by them "
    "is a choice by private records: declare it (chosen_from: private)."
)
HEADER = ("Centres by", "Centres", "Clusters", "Large", "Epsilon", "Delta", "V-measure")
NOTE = (
    "Centres from the records themselves protect nobody: that method is for reference. Clusters hold two records or "
    "more, large ones at least {large}. Epsilon (nats) and delta: what centres and counts tell of one record that "
    "comes or goes. V-measure: agreement with {reference}, from 0 to 1."
)


def print_clusters(comparison: ClusterComparison, console: Console) -> None:
    """The comparison as a table that fits the console."""
    console.print(Text(_about(comparison)))
    rows = [(title(method), *cells(method)) for method in comparison.methods]
    console.print(plain_table(("Method", *HEADER), rows, HEADER[1:]))
    console.print(Text(_note(comparison), style="dim"))
    console.print(Text(f"Internal. {WARNING}", style="bold"))


def render_clusters_html(comparison: ClusterComparison) -> str:
    """The comparison as one self-contained page."""
    panels, described = [], []
    for method in comparison.methods:
        if method.method in DRAWN:
            sizes, count = method.sizes, counted(len(method.sizes), "cluster")
            panels.append((f"{title(method)}\nn = {count}", sizes))
            said = "no records"
            if sizes:
                middle = sizes[len(sizes) // 2]
                said = f"{count}, largest {sizes[0]:,}, middle {middle:,}, least {sizes[-1]:,}"
            described.append(f"{title(method)}: {said}")
    template = environment().get_template("clusters.html.j2")
    return template.render(
        about=_about(comparison),
        header=HEADER,
        rows=[(method, title(method), cells(method)) for method in comparison.methods],
        figure=in_page(cluster_sizes(panels, "; ".join(described))),
        note=_note(comparison),
        warning=WARNING,
    )


def clusters_csv(comparison: ClusterComparison) -> str:
    """The table for spreadsheets, every figure in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "origin", "centers", "clusters", "large", "epsilon", "delta", "v_measure", "sizes"])
    for m in comparison.methods:
        sizes = " ".join(map(str, m.sizes))
        writer.writerow([m.method, m.origin, m.centers, m.clusters, m.large, m.epsilon, m.delta, m.v_measure, sizes])
    return text.getvalue()


def title(method: ClusteredBy) -> str:
    """The method in words."""
    return TITLES.get(method.method, one_line(method.method, LABEL_LENGTH))


def cells(method: ClusteredBy) -> tuple[str, ...]:
    """A method's cells under `HEADER`; budgets are rounded up."""
    epsilon = "∞" if math.isinf(method.epsilon) else bound(method.epsilon)
    counts = (f"{count:,}" for count in (method.centers, method.clusters, method.large))
    # Such methods keep others' centres, by noised counts of records.
    chosen = method.origin == "noised" and method.method.endswith("-rebalanced")
    origin = "noised counts" if chosen else ORIGINS[method.origin]
    return (origin, *counts, epsilon, delta_bound(method.delta), f"{method.v_measure:.3f}")


def _note(comparison: ClusterComparison) -> str:
    return NOTE.format(large=comparison.large, reference=one_line(comparison.reference, LABEL_LENGTH))


def _about(comparison: ClusterComparison) -> str:
    model, vectors = one_line(comparison.embedding, LABEL_LENGTH), f"{comparison.dimension} dimensions"
    unit = ", made unit vectors" if comparison.normalized else ""
    private, public = counted(comparison.records, "private record"), counted(comparison.public_records, "public text")
    return f"{private} and {public}, embedded by {model} ({vectors}{unit})."
