"""Clustering methods side by side: a table, each method's cluster sizes, and a spreadsheet file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpaudit.generation.experiments.cluster_results import ClusterComparison, ClusteredBy
from dpaudit.reports.document import (
    Banner,
    Block,
    Definitions,
    Document,
    Entry,
    Figure,
    Paragraph,
    Section,
    Table,
)
from dpaudit.reports.figures import BAR, Drawing, whole_numbers
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.writers import html
from dpaudit.results.rounding import bound, delta_bound

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

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
    "These figures were counted on the private records without noise: do not publish them. "
    "Choosing a method by them "
    "is a choice by private records: declare it (chosen_from: private)."
)
HEADER = ("Centres by", "Centres", "Clusters", "Large", "Epsilon", "Delta", "V-measure")
NOTE = (
    "Centres from the records themselves protect nobody: that method is for reference. Clusters "
    "hold two records or "
    "more, large ones at least {large}. Epsilon (nats) and delta: what centres and counts tell "
    "of one record that "
    "comes or goes. V-measure: agreement with {reference}, from 0 to 1."
)


def screen(comparison: ClusterComparison) -> Document:
    """Return the comparison as a screen: the table alone."""
    blocks: list[Block] = [
        _about(comparison),
        _table(comparison),
        _note(comparison),
        Banner("Internal.", WARNING),
    ]
    return Document("", blocks)


def page(comparison: ClusterComparison) -> Document:
    """Return the comparison as a page: the table, each method's cluster sizes, and settings."""
    settings = [Section(_title(each), [_settings(each)]) for each in comparison.methods]
    return Document(
        "Clustering methods compared",
        [
            _about(comparison),
            Banner("Internal.", WARNING),
            Section(
                "What each method gives, and what it costs", [_table(comparison), _note(comparison)]
            ),
            Section("Cluster sizes", [_sizes(comparison)]),
            Section("Settings", settings),
        ],
        masthead=("Clustering methods",),
        footer="Written by dpaudit. `dpaudit lab clusters --json` prints every figure in full.",
    )


def _settings(method: ClusteredBy) -> Definitions:
    return Definitions(
        [Entry(one_line(name), one_line(value)) for name, value in method.settings.items()]
    )


def _sizes(comparison: ClusterComparison) -> Figure:
    panels, described = [], []
    for method in comparison.methods:
        if method.method in DRAWN:
            sizes, count = method.sizes, counted(len(method.sizes), "cluster")
            panels.append((f"{_title(method)}\nn = {count}", sizes))
            said = "no records"
            if sizes:
                middle = sizes[len(sizes) // 2]
                said = f"{count}, largest {sizes[0]:,}, middle {middle:,}, least {sizes[-1]:,}"
            described.append(f"{_title(method)}: {said}")
    words = f"{'; '.join(described)}."
    marks = (
        "A step for each cluster: its records, from the largest to the smallest; each panel "
        "on scales of its own."
    )
    return Figure(_drawing(panels, "; ".join(described)), words, marks)


def _drawing(methods: Sequence[tuple[str, Sequence[int]]], description: str) -> Drawing | None:
    """Draw descending cluster sizes, in a panel for each method; None if there are no records."""
    drawn = [(title, sizes) for title, sizes in methods if sizes]
    if not drawn:
        return None
    rows = -(-len(drawn) // 2)

    def draw(figure: FigureBase) -> None:
        for place, (title, sizes) in enumerate(drawn, start=1):
            axes = figure.add_subplot(rows, 2, place)
            axes.stairs(sizes, fill=True, color=BAR)
            axes.set_title(title, fontsize=9, loc="left")
            axes.set_xlabel("Cluster, by size", fontsize=9)
            axes.set_ylabel("Records", fontsize=9)
            axes.tick_params(labelsize=8)
            whole_numbers(axes.xaxis, 4)
            whole_numbers(axes.yaxis, 4)
            axes.grid(axis="y")

    return Drawing(
        "cluster-sizes", "Records of each cluster by method", description, draw, 2.2 * rows
    )


def _table(comparison: ClusterComparison) -> Table:
    rows = [(_title(method), *_cells(method)) for method in comparison.methods]
    return Table.of(
        "What each method gives, and what it costs", ("Method", *HEADER), rows, words=(1,)
    )


def files(comparison: ClusterComparison) -> dict[str, str | bytes]:
    """Return clusters.html, clusters.json and clusters.csv, by their names."""
    return {
        "clusters.html": html.render(page(comparison)),
        "clusters.json": comparison.to_json(),
        "clusters.csv": _csv(comparison),
    }


def _csv(comparison: ClusterComparison) -> str:
    """Return the table for spreadsheets, every figure in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            "method",
            "origin",
            "centers",
            "clusters",
            "large",
            "epsilon",
            "delta",
            "v_measure",
            "sizes",
        ]
    )
    for m in comparison.methods:
        sizes = " ".join(map(str, m.sizes))
        writer.writerow(
            [
                m.method,
                m.origin,
                m.centers,
                m.clusters,
                m.large,
                m.epsilon,
                m.delta,
                m.v_measure,
                sizes,
            ]
        )
    return text.getvalue()


def _title(method: ClusteredBy) -> str:
    """Return the method in words."""
    return TITLES.get(method.method, one_line(method.method, LABEL_LENGTH))


def _cells(method: ClusteredBy) -> tuple[str, ...]:
    """Return a method's cells under `HEADER`; budgets are rounded up."""
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
    model, vectors = (
        one_line(comparison.embedding, LABEL_LENGTH),
        f"{comparison.dimension} dimensions",
    )
    unit = ", made unit vectors" if comparison.normalized else ""
    private, public = (
        counted(comparison.records, "private record"),
        counted(comparison.public_records, "public text"),
    )
    return Paragraph(f"{private} and {public}, embedded by {model} ({vectors}{unit}).")
