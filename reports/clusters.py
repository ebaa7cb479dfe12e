"""Clustering methods side by side: a table, the cluster sizes that each leaves, and a file for spreadsheets."""

from __future__ import annotations

import csv
import io
import math

from rich.console import Console

from dpaudit.reports.document import Banner, Block, Definitions, Document, Entry, Figure, Paragraph, Section, Table
from dpaudit.reports.figures import cluster_sizes
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.writers import html
from dpaudit.reports.writers.terminal import print_document
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
    """Print the comparison as a table that fits the console."""
    blocks: list[Block] = [_about(comparison), _table(comparison), _note(comparison), Banner("Internal.", WARNING)]
    print_document(Document("", blocks), console)


def render_clusters_html(comparison: ClusterComparison) -> str:
    """Return the comparison as one self-contained page."""
    return html.render(build(comparison))


def build(comparison: ClusterComparison) -> Document:
    """Return the comparison as a page: the table, each method's cluster sizes, and settings."""
    settings = [Section(title(each), [_settings(each)]) for each in comparison.methods]
    return Document(
        "Clustering methods compared",
        [
            _about(comparison),
            Banner("Internal.", WARNING),
            Section("What each method gives, and what it costs", [_table(comparison), _note(comparison)]),
            Section("Cluster sizes", [_sizes(comparison)]),
            Section("Settings", settings),
        ],
        masthead=("Clustering methods",),
        footer="Written by dpaudit. `dpaudit clusters --json` prints every figure in full.",
    )


def _settings(method: ClusteredBy) -> Definitions:
    return Definitions([Entry(one_line(name), one_line(value)) for name, value in method.settings.items()])


def _sizes(comparison: ClusterComparison) -> Figure:
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
    words = f"{'; '.join(described)}."
    marks = "A step for each cluster: its records, from the largest to the smallest; each panel on scales of its own."
    return Figure(cluster_sizes(panels, "; ".join(described)), words, marks)


def _table(comparison: ClusterComparison) -> Table:
    rows = [(title(method), *cells(method)) for method in comparison.methods]
    return Table.of("What each method gives, and what it costs", ("Method", *HEADER), rows, words=(1,))


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


def _note(comparison: ClusterComparison) -> Paragraph:
    reference = one_line(comparison.reference, LABEL_LENGTH)
    return Paragraph(NOTE.format(large=comparison.large, reference=reference), "quiet")


def _about(comparison: ClusterComparison) -> Paragraph:
    model, vectors = one_line(comparison.embedding, LABEL_LENGTH), f"{comparison.dimension} dimensions"
    unit = ", made unit vectors" if comparison.normalized else ""
    private, public = counted(comparison.records, "private record"), counted(comparison.public_records, "public text")
    return Paragraph(f"{private} and {public}, embedded by {model} ({vectors}{unit}).")
