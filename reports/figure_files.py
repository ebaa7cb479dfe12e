"""Figures of runs as files for papers, with captions.

All are about ex-post costs, of the texts that were drawn. A mean run has them too, where its record
bounds them. What it guarantees is the same for every batch and never drawn: its figures say so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import NamedTuple

from dpaudit.mechanisms.claims import ExPostClaim
from dpaudit.reports import figures
from dpaudit.reports.costs import batch_costs, ex_post_digits
from dpaudit.reports.document import (
    Banner,
    Block,
    Commands,
    Definitions,
    Document,
    Entry,
    Paragraph,
    Section,
)
from dpaudit.reports.drawing import drawable, file_of
from dpaudit.reports.engineers import several_contexts
from dpaudit.reports.figures import Drawing, Format, Series
from dpaudit.reports.findings import caution, evidence_asked, headline
from dpaudit.reports.levels import at_both_levels, neighbours_of
from dpaudit.reports.text import one_line
from dpaudit.reports.wording import say
from dpaudit.reports.writers import markdown
from dpaudit.results import AuditResult

CAPTIONS = "captions.md"
_LABEL_LENGTH = 40
_ALL = "all"
_MEAN_MARK, _CAUTION_MARK = "†", "‡"


class FigureRun(NamedTuple):
    """One run to draw: `why_not_drawn` of its audit is empty. Its name is anybody's text."""

    name: str
    path: str
    result: AuditResult

    @property
    def is_mean(self) -> bool:
        """Whether the run is a mean's, which its ex-post costs do not show."""
        claim = self.result.claim
        claimed = claim is not None and claim.terms.beforehand
        return claimed or self.result.guarantees.approximate is not None

    @property
    def is_doubtful(self) -> bool:
        """Whether its figures rest on a record that did not pass."""
        return bool(caution(self.result))

    def series(self, label: str) -> Series:
        """Return the run among others, labelled. Raises ValueError where it has no figure."""
        costs, found = batch_costs(self.result), self.result.guarantees.ex_post
        if costs is None or found is None:
            raise ValueError(f"{self.path}: {why_not_drawn(self.result)}")
        marks = (_MEAN_MARK * self.is_mean, _CAUTION_MARK * self.is_doubtful)
        marked = "\u00a0".join(filter(None, (label, *marks)))  # no line breaks between
        return Series(marked, costs, self.result.tokens, found)


def why_not_drawn(result: AuditResult) -> str:
    """Return why a run has no figure, or ""."""
    costs = batch_costs(result)
    if costs is None or result.guarantees.ex_post is None:
        mean = result.guarantees.approximate is not None
        other = (
            "; its (epsilon, delta) guarantee is the same for every batch, and nothing to plot"
            * mean
        )
        return f"this run has no ex-post cost by batch or token{other}."
    if figures.batch_spread(result) is None and figures.token_curve(result) is None:
        return "no batch or token position of this run has a finite ex-post cost."
    return ""


def figure_files(
    runs: Sequence[FigureRun], formats: Collection[Format], command: str
) -> dict[str, bytes]:
    """Return every figure by file name, and captions: the same runs give the same bytes.

    Figures are those of each run, and two of all together where there are several.

    Args:
        runs: at most `dpaudit.reports.figures.MOST_RUNS`.
        formats: of each figure.
        command: the command that gives these files again.
    """
    labels = _distinct(drawable(run.name, _LABEL_LENGTH).strip() or "unnamed" for run in runs)
    series = [run.series(label) for run, label in zip(runs, labels, strict=True)]
    files: dict[str, bytes] = {}
    captions: list[Block] = []
    for stem, drawing, heading, notes in _drawings(runs, labels, series):
        names = {each: f"{stem}-{drawing.name}.{each}" for each in formats}
        said = (", ".join(names.values()), say(f"figure-{drawing.name}"), drawing.description)
        captions.append(Section(f"{stem}-{drawing.name}", list(map(Paragraph, said))))
        for each, name in names.items():
            files[name] = file_of(drawing, each, heading, notes)
    shown = [
        Section(label, [Definitions(list(_captions(run, one)))])
        for run, label, one in zip(runs, labels, series, strict=True)
    ]
    blocks: list[Block] = [
        Banner("Internal.", say("figures-private")),
        Paragraph(f"{ExPostClaim.title}: {ExPostClaim.meaning}"),
        Paragraph(f"Made by matplotlib {version('matplotlib')} and:"),
        Commands([one_line(command)]),
        Section("Figures", captions),
        Section("Runs", shown),
    ]
    written = markdown.render(Document("Captions", blocks))
    return {**files, CAPTIONS: written.encode("utf-8", errors="backslashreplace")}


def _drawings(
    runs: Sequence[FigureRun], labels: Sequence[str], series: Sequence[Series]
) -> Iterator[tuple[str, Drawing, str, list[str]]]:
    """Yield each figure with its file's first part, the run's name above it and the notes below."""
    stems = _distinct(
        (re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "run" for label in labels), (_ALL,)
    )
    for run, label, stem in zip(runs, labels, stems, strict=True):
        notes = [say("figure-in-doubt")] * run.is_doubtful
        for drawing in figures.of_run(run.result):
            yield stem, drawing, label, [say("figure-of-mean")] * run.is_mean + notes
    if len(runs) > 1:
        notes = [f"{_MEAN_MARK} {say('figure-of-mean')}"] * any(run.is_mean for run in runs)
        notes += [f"{_CAUTION_MARK} {say('figure-in-doubt')}"] * any(
            run.is_doubtful for run in runs
        )
        for together in (figures.batch_spreads(series), figures.token_curves(series)):
            if together is not None:
                yield _ALL, together, "", notes


def _distinct(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return the names, repeated ones with a number behind; letters' case makes no difference."""
    seen, distinct = set(taken), []
    for name in names:
        found, number = name, 1
        while found.casefold() in seen:
            number += 1
            found = f"{name}-{number}"
        seen.add(found.casefold())
        distinct.append(found)
    return distinct


def _captions(run: FigureRun, series: Series) -> Iterator[Entry]:
    result, found, digits = run.result, series.found, ex_post_digits(run.result)
    total = f"{at_both_levels(found, digits)}, {neighbours_of(found)}"
    yield Entry("Run", run.path)
    yield Entry("Audit", f"{headline(result)}. {evidence_asked(result)}")
    yield Entry("Ex-post, recomputed", total)
    for remark in (say("figure-of-mean") * run.is_mean, caution(result), several_contexts(result)):
        if remark:
            yield Entry("Mind", remark)
