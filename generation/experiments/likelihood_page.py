"""Held-out texts under mechanisms, beside these mechanisms' costs: a table, and files.

Kinds of epsilon stay apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from dpaudit.generation.experiments.likelihood_results import Likelihoods, MechanismLikelihood
from dpaudit.generation.experiments.table_page import equal_levels
from dpaudit.mechanisms.claims import ApproximateClaim, ExPostClaim
from dpaudit.reports.document import Banner, Block, Document, Paragraph, Table
from dpaudit.reports.drawing import drawable, file_of
from dpaudit.reports.figures import LEGEND_WIDTH, LINE_HEIGHT, Drawing, Format, line_marks
from dpaudit.reports.text import LABEL_LENGTH, counted, grouped, one_line
from dpaudit.reports.wording import neighbours, or_absent
from dpaudit.results import Kind
from dpaudit.results.composition import Spent
from dpaudit.results.quality import PerToken
from dpaudit.results.rounding import bound, exactly, stated

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

WARNING = (
    "These figures look at the configs' records without noise: do not publish them. Choosing a "
    "mechanism or a setting "
    "by them is a choice by those records: measure on public texts like yours, or declare it "
    "(chosen_from: private)."
)
HEADER = ("", "Clip", "τ", "Contexts", "Tokens", "Loss", "Public", "Gain", "ε approx.", "ε ex-post")
NOTE = (
    "Loss: negative log-probability of a real token, in nats, ± its standard error over texts. "
    "Public: the same by the "
    "public prompt alone, at ε = 0. Gain: how much less the loss is than that. All three are "
    "over the tokens that the "
    "supports have: under Tokens stands how many, of how many. Losses of different supports "
    "cannot be compared. "
    "ε approx.: of texts as long as the config allows, at the release level, and below it after "
    "a slash at the batch "
    "level, where that is another. ε ex-post: of the most expensive of these "
    "held-out texts, and not of sampled ones, at the batch level."
)
#: What a config claims, and what its most expensive held-out text would cost.
_AXES: dict[Kind, str] = {
    ExPostClaim.id: "Ex-post ε, batch level (nats)",
    ApproximateClaim.id: "Approx. ε, release level (nats)",
}
_NAMES = {
    "logits": "clipped logits",
    "differences": "anchored differences",
    "central": "central mean",
}
_SETTINGS = {"central": "m"}


def screen(found: Likelihoods) -> Document:
    """Return what each config's mechanism is, then a row for each, and what it was measured on."""
    names = [one_line(row.name, LABEL_LENGTH) for row in found.rows]
    blocks: list[Block] = [
        Paragraph(in_words(row), lead=f"{name}:")
        for name, row in zip(names, found.rows, strict=True)
    ]
    rows = [(name, *_figures(row)) for name, row in zip(names, found.rows, strict=True)]
    blocks.append(Table.of("Held-out likelihood", HEADER, rows))
    for said, measured in grouped((_measured_on(row), row.name) for row in found.rows).items():
        of = f"{one_line(', '.join(measured))}: " if len(measured) < len(found.rows) else ""
        blocks.append(Paragraph(f"{of}{said}"))
    blocks += map(Paragraph, equal_levels((row.equal, one_line(row.name)) for row in found.rows))
    return Document("", [*blocks, Paragraph(NOTE, "quiet"), Banner("Internal.", WARNING)])


def files(found: Likelihoods) -> dict[str, str | bytes]:
    """Return likelihood.json, and its drawing as .svg and .png if an epsilon is finite, by name."""
    written: dict[str, str | bytes] = {"likelihood.json": found.to_json()}
    of = [f"{row.supported:,} of {row.tokens:,} tokens" for row in found.rows]
    labels = [
        f"{drawable(row.name)} ({tokens})" for row, tokens in zip(found.rows, of, strict=True)
    ]
    figure = drawing(found.rows, labels)
    if figure is not None:
        notes = ["Hollow: the public prompt alone, at ε = 0, over the same tokens."]
        notes += ["Supports differ: configs of other tokens are at no comparable height."] * (
            len(set(of)) > 1
        )
        formats: tuple[Format, ...] = ("svg", "png")
        written |= {f"likelihood.{each}": file_of(figure, each, "", notes) for each in formats}
    return written


def drawing(rows: Sequence[MechanismLikelihood], labels: Sequence[str]) -> Drawing | None:
    """Draw epsilon against held-out likelihood, a panel per kind; None without a finite epsilon.

    Beside each config's point stands what the public prompt alone reaches, at an epsilon of 0.
    """
    panels: list[tuple[Kind, list[tuple[int, float]]]] = []
    spent_by_kind: dict[Kind, list[Spent | None]] = {
        ApproximateClaim.id: [row.approximate for row in rows],
        ExPostClaim.id: [row.ex_post for row in rows],
    }
    for kind, spent in spent_by_kind.items():
        points = [
            (place, each.epsilon)
            for place, each in enumerate(spent)
            if each is not None and math.isfinite(each.epsilon)
        ]
        if points:
            panels.append((kind, points))
    if not panels:
        return None
    described = "; ".join(
        f"{labels[place]}: {rows[place].nll.mean:.3f} at {_AXES[kind].lower()} {bound(epsilon)}, "
        f"public prompt alone {rows[place].public_nll.mean:.3f}"
        for kind, points in panels
        for place, epsilon in points
    )
    wrapped = ["\n".join(wrap(label, LEGEND_WIDTH)) for label in labels]

    def draw(figure: FigureBase) -> None:
        lines: dict[int, Any] = {}
        first = None
        for number, (kind, points) in enumerate(panels, start=1):
            axes = figure.add_subplot(1, len(panels), number, sharey=first)
            axes.set_xlabel(_AXES[kind].replace(" (", "\n("))
            axes.grid(axis="both")
            if first is None:
                axes.set_ylabel("Held-out loss (nats a token)")
                first = axes
            for place, epsilon in points:
                row, look = rows[place], line_marks(place)
                axes.plot(
                    [0, epsilon],
                    [row.public_nll.mean, row.nll.mean],
                    color=look["color"],
                    linewidth=0.6,
                )
                axes.plot([0], [row.public_nll.mean], **look, markerfacecolor="none", clip_on=False)
                lines[place] = axes.errorbar(
                    epsilon, row.nll.mean, row.nll.error, capsize=2, linewidth=1.0, **look
                )
            axes.set_xlim(left=0)
        legend = figure.legend(lines.values(), map(str, lines), loc="outside lower left")
        for shown, place in zip(legend.get_texts(), lines, strict=True):
            # afterwards: a legend leaves out what is called like _this
            shown.set_text(wrapped[place])

    height = 3.4 + LINE_HEIGHT * sum(1 + label.count("\n") for label in wrapped)
    return Drawing(
        "likelihood", "Epsilon against held-out likelihood", f"{described}.", draw, height
    )


def in_words(row: MechanismLikelihood) -> str:
    """Describe a mechanism, but for clip and temperature."""
    mechanism = row.mechanism
    parts = (mechanism.aggregator, mechanism.contribution)
    said = [" of ".join(_NAMES.get(part.name, part.name) for part in parts)]
    own = {name: value for part in parts for name, value in part if name != "clip"}
    said += [
        f"{_SETTINGS.get(name, name)} {stated(value)}"
        for name, value in own.items()
        if value is not None
    ]
    if mechanism.support.size is not None:
        margin = ""
        if mechanism.support.margin is not None:
            margin = f" and up to {stated(mechanism.support.margin)} below"
        said.append(f"top {mechanism.support.size}{margin}")
    return ", ".join(said)


def _figures(row: MechanismLikelihood) -> tuple[str, ...]:
    """Return a config's cells under `HEADER`, after its name.

    Measured figures are rounded to the nearest.
    """
    return (
        stated(row.mechanism.clip),
        stated(row.mechanism.temperature),
        f"{row.fewest:,}" if row.fewest == row.most else f"{row.fewest:,}-{row.most:,}",
        f"{row.supported:,}\nof {row.tokens:,}",
        _per_token(row.nll),
        f"{row.public_nll.mean:.3f}",
        _per_token(row.gain),
        or_absent(row.approximate, lambda found: _spent(found, row.batch_epsilon)),
        or_absent(row.ex_post, _spent),
    )


def _per_token(found: PerToken) -> str:
    return f"{found.mean:.3f}" + ("" if found.error is None else f"\n± {found.error:.3f}")


def _spent(found: Spent, batch_epsilon: float | None = None) -> str:
    batch = "" if batch_epsilon in (None, found.epsilon) else f"\n/{bound(batch_epsilon or 0.0)}"
    return bound(found.epsilon) + batch + (f"\nδ {exactly(found.delta)}" if found.delta else "")


def _measured_on(row: MechanismLikelihood) -> str:
    """Describe texts, batches and neighbours in a sentence or two."""
    left_out = (
        f" ({row.left_out:,} left out, which are records or public examples)"
        if row.left_out
        else ""
    )
    return (
        f"{counted(row.texts, 'held-out text')}{left_out}, cut to "
        f"{counted(row.max_tokens, 'token')}, in "
        f"{counted(row.batches, 'batch', 'batches')}; ε to "
        f"{neighbours(row.relation, row.unit, row.records_per_user)}."
    )
