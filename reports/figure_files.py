"""The figures of one run or several as files for papers, with captions.

All of them are about ex-post costs: those of the texts that were drawn. A mean run has such costs too, where its record
bounds them, and they stand on one axis with a median run's, of one kind. What a mean run guarantees is of another kind,
the same for every batch: it is never drawn, and every figure of such a run says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from dpaudit.reports import outline, pairs
from dpaudit.reports.costs import BatchCosts, batch_costs, curve_described, ex_post_digits
from dpaudit.reports.figures import (
    Drawing,
    Format,
    Series,
    batch_histogram,
    batch_spreads,
    drawable,
    file_of,
    growth,
    token_curve,
    token_curves,
)
from dpaudit.reports.markdown import code, escaped
from dpaudit.reports.rounding import bound
from dpaudit.reports.text import PROSE_LENGTH, one_line
from dpaudit.reports.wording import KIND_MEANINGS, KIND_TITLES
from dpaudit.results import AuditResult, ExPost, Spread

CAPTIONS = "captions.md"
WARNING = (
    "Computed from private data: what a figure shows depends on the records, and no epsilon pays for publishing it. "
    "Publish it only where the records are public anyway, as in an experiment on an open data set."
)
_METADATA_WARNING = "Internal: computed from private data."
_LABEL_LENGTH = 40
_ALL = "all"
_MEAN_NOTE = "Mean run: ex-post costs of its texts, not its (ε, δ) guarantee."
_CAUTION_NOTE = "Its audit did not pass: nothing here is a bound until it does."
_MEAN_MARK, _CAUTION_MARK = "†", "‡"
_EXPLAINED = {
    "batch-histogram": (
        "Exact ex-post epsilon of each batch (nats), as bars; the outline is the same by Theorem 1. Dashed: the "
        "largest exact one. Dotted: the mean. Each tick below the axis is a batch, where there are at most 100."
    ),
    "token-curve": (
        "Exact ex-post cost of a token (nats) by its position, over the batches whose texts reached it. Solid: the "
        "mean. Dotted: the median. Area: from 10% to 90% of the tokens there, rounded outward. Below: how many batches "
        "did."
    ),
    "growth": (
        "Ex-post epsilon of generation (nats), had no text of the run gone beyond so many tokens. Solid: exact. "
        "Dashed: by Theorem 1."
    ),
    "directions": (
        "Rise and fall of each batch (nats): how much more, and how much less, probable a neighbour can have made its "
        f"text. Triangle: the largest exact cost. {pairs.POINTS}"
    ),
    "losses": (
        "Largest absolute loss of a context that was left out of a batch (nats), against the exact ex-post bound of "
        f"that batch (nats). Dashed: where both are equal. {pairs.POINTS}"
    ),
    "batch-spreads": (
        "Exact ex-post epsilon of each batch (nats), by run: whiskers from the least to the largest, box between "
        "the quartiles, with the median. Each tick is a batch. A run without a box has batches whose cost is not "
        "finite."
    ),
    "token-curves": (
        "Mean exact ex-post cost of a token (nats) by its position, over the batches whose texts reached it, by run. "
        "Below: how many did."
    ),
}


@dataclass(frozen=True)
class FigureRun:
    """One run to draw.

    Attributes:
        name: what to call it; anybody's text.
        path: where it is.
        result: its audit, for which `why_not_drawn` is empty.
        spread: of its batches' costs; None where its cost as a whole is not finite.
    """

    name: str
    path: str
    result: AuditResult
    spread: Spread | None


@dataclass(frozen=True)
class _Named:
    """A run with a label that no other run has, and what its figures cannot be read without."""

    run: FigureRun
    label: str
    costs: BatchCosts
    found: ExPost

    @property
    def is_mean(self) -> bool:
        claim = self.run.result.claim
        claimed = claim is not None and claim.kind == "approximate"
        return claimed or self.run.result.guarantees.approximate is not None

    @property
    def is_doubtful(self) -> bool:
        return bool(outline.caution(self.run.result))

    def series(self) -> Series:
        marks = (_MEAN_MARK * self.is_mean, _CAUTION_MARK * self.is_doubtful)
        label = "\u00a0".join(filter(None, (self.label, *marks)))  # no line breaks between
        return Series(label, self.costs, self.run.result.tokens, self.run.spread, self.found)


def why_not_drawn(result: AuditResult) -> str:
    """Why a run has no figure; empty where it has one."""
    costs = batch_costs(result)
    if costs is None or result.guarantees.ex_post is None:
        mean = result.guarantees.approximate is not None
        other = "; its (epsilon, delta) guarantee is the same for every batch, and nothing to plot" * mean
        return f"this run has no ex-post cost by batch or token{other}."
    if batch_histogram(result) is None and token_curve(result) is None:
        return "no batch or token position of this run has a finite ex-post cost."
    return ""


def figure_files(runs: Sequence[FigureRun], formats: Iterable[Format], command: str) -> dict[str, bytes]:
    """Every figure, by file name: those of each run, two of all together where there are several, and captions.

    Args:
        runs: one or more, at most `dpaudit.reports.figures.MOST_RUNS`.
        formats: what to write each figure as.
        command: what gives these files again.

    Returns:
        The files' contents; the same runs give the same bytes.
    """
    wanted, named = tuple(dict.fromkeys(formats)), _named(runs)
    stems = _distinct((_stem(run.label) for run in named), (_ALL,))
    files: dict[str, bytes] = {}
    captions: list[tuple[str, Drawing]] = []
    for stem, drawing, heading, notes in _drawings(named, stems):
        captions.append((f"{stem}-{drawing.name}", drawing))
        for each in wanted:
            files[f"{captions[-1][0]}.{each}"] = file_of(drawing, each, heading, notes, _METADATA_WARNING)
    lines = [*_about(command), *_figures_told(captions, wanted), *_runs_told(named)]
    return {**files, CAPTIONS: ("\n".join(lines) + "\n").encode("utf-8", errors="backslashreplace")}


def _named(runs: Sequence[FigureRun]) -> list[_Named]:
    labels = _distinct(drawable(run.name, _LABEL_LENGTH).strip() or "unnamed" for run in runs)
    named = []
    for run, label in zip(runs, labels, strict=True):
        costs, found = batch_costs(run.result), run.result.guarantees.ex_post
        if costs is None or found is None:
            raise ValueError(f"{run.path}: {why_not_drawn(run.result)}")
        named.append(_Named(run, label, costs, found))
    return named


def _drawings(named: Sequence[_Named], stems: Sequence[str]) -> Iterator[tuple[str, Drawing, str, list[str]]]:
    """Each figure with its file's first part, the run's name above it and the notes below."""
    for run, stem in zip(named, stems, strict=True):
        notes = [note for note, holds in ((_MEAN_NOTE, run.is_mean), (_CAUTION_NOTE, run.is_doubtful)) if holds]
        for drawing in _of_run(run.run.result):
            if drawing is not None:
                yield stem, drawing, run.label, notes
    if len(named) > 1:
        series = [run.series() for run in named]
        notes = [f"{_MEAN_MARK} {_MEAN_NOTE}"] * any(run.is_mean for run in named)
        notes += [f"{_CAUTION_MARK} {_CAUTION_NOTE}"] * any(run.is_doubtful for run in named)
        for drawing in (batch_spreads(series), token_curves(series)):
            if drawing is not None:
                yield _ALL, drawing, "", notes


def _of_run(result: AuditResult) -> Iterator[Drawing | None]:
    yield batch_histogram(result, alone=True)
    yield token_curve(result)
    yield growth(result)
    yield pairs.directions_drawing(result)
    yield pairs.losses_drawing(result)


def _stem(label: str) -> str:
    """A name for files on any system."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "run"


def _distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """The names, with a number behind those that were there before; letters' case makes no difference."""
    seen, distinct = set(taken), []
    for name in names:
        found, number = name, 1
        while found.casefold() in seen:
            number += 1
            found = f"{name}-{number}"
        seen.add(found.casefold())
        distinct.append(found)
    return distinct


def _about(command: str) -> Iterator[str]:
    yield from ("# Captions", "", f"> **Internal.** {WARNING}", "")
    yield f"{KIND_TITLES['ex-post']}: {KIND_MEANINGS['ex-post']}"
    yield from ("", f"Made by {code(command, PROSE_LENGTH)}, matplotlib {version('matplotlib')}.", "")


def _figures_told(captions: Sequence[tuple[str, Drawing]], formats: Sequence[Format]) -> Iterator[str]:
    yield "## Figures"
    for stem, drawing in captions:
        yield from ("", f"### {escaped(stem)}", "")
        yield ", ".join(code(f"{stem}.{each}") for each in formats)
        yield from ("", _EXPLAINED[drawing.name], "", escaped(drawing.description))


def _runs_told(named: Sequence[_Named]) -> Iterator[str]:
    yield from ("", "## Runs")
    for run in named:
        result = run.run.result
        yield from ("", f"### {escaped(run.label)}", "")
        for what, said in _facts(run):
            yield f"- {what}: {said}"
        for remark in (_MEAN_NOTE * run.is_mean, outline.caution(result), outline.several_contexts(result)):
            if remark:
                yield f"- {remark}"


def _facts(run: _Named) -> Iterator[tuple[str, str]]:
    result, found = run.run.result, run.found
    digits = ex_post_digits(result)
    yield "Run", code(run.run.path)
    yield "Audit", f"{outline.headline(result)}. {outline.evidence_asked(result)}"
    yield "dpaudit", escaped(one_line(result.run.get("dpaudit") or "unknown", _LABEL_LENGTH))
    yield "Claim", escaped(outline.claim_sentence(result))
    parts = f"generation {bound(found.exact, digits)}, Theorem 1 {bound(found.theorem1, digits)}"
    parts += f", rebalancing {bound(found.rebalancing, digits)}" if found.rebalancing else ""
    delta = f", δ = {bound(found.delta)}" if found.delta else ""
    total = f"ε = {bound(found.total, digits)} nats{delta} ({parts}), {outline.neighbours_of(found)}"
    yield "Ex-post, recomputed", escaped(total)
    yield "Batches", escaped(run.costs.described())
    yield "Tokens", escaped(curve_described(result.tokens) or "no cost by position")
