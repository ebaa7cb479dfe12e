"""A table in the paper's layout, its own figures beside the paper's: for terminals, Markdown and spreadsheets.

The two kinds of epsilon have columns of their own: they are different statements, and neither is the better for being
smaller than the other. An epsilon is rounded up, whatever was measured to the nearest.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from decimal import ROUND_CEILING, Decimal
from typing import Literal, NamedTuple

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from dpaudit.results import finite_or_text
from generation.experiments.estimates import Estimate, Throughput
from generation.experiments.results import Measured, Published, RowResult, TableResult
from generation.experiments.table import PublishedRow

NOTHING = "-"
REAL = "Real data"


class Line(NamedTuple):
    """A line of the table, every cell as text: the paper's and ours."""

    dataset: str
    method: str
    clusters: tuple[str, str]
    approximate: tuple[str, str]
    ex_post: tuple[str, str]
    mauve: tuple[str, str]
    accuracy: tuple[str, str]
    audit: str


HEADINGS = ("Clusters", "ε approx.", "ε ex-post", "MAUVE", "Accuracy")
EXPLAINED = (
    "ε approx.: of approximate DP, at its row's δ. ε ex-post: the exact cost, with Theorem 1's in parentheses; itself "
    "private. The paper counts for one context that comes or goes; a run here for the unit of its claim, which is a "
    "record unless its config says otherwise. MAUVE and accuracy: mean ± standard deviation over seeds."
)
_COLUMNS = (
    *("config", "dataset", "method", "kind", "clusters"),
    *("epsilon", "delta", "relation", "unit"),
    *("theorem1", "verdict", "texts", "tokens"),
    *("mauve", "mauve_std", "mauve_n", "accuracy", "accuracy_std", "accuracy_method"),
    *("paper_epsilon", "paper_mauve", "paper_accuracy"),
)
UNEVALUATED = "Nothing was evaluated: MAUVE and accuracy are left out."


def lines(result: TableResult) -> list[Line]:
    """Real data first, then every row of each data set, in the table's order."""
    found = []
    for dataset, real in result.real.items():
        rows = [row for row in result.rows if row.dataset == dataset]
        if rows:
            found.append(_real_line(dataset, real, rows))
            found.extend(map(_line, rows))
    return found


def notes(result: TableResult) -> Iterator[str]:
    """What must be read with the table: failures, warnings, what the columns mean."""
    for row in result.rows:
        if row.failure is not None:
            yield f"{row.config}: could not {row.failure.stage}: {row.failure.message}"
        elif row.audited is not None and row.audited.verdict != "pass":
            yield f"{row.config}: the audit says {row.audited.verdict}: {', '.join(row.audited.failed)}."
    evaluated = [row.evaluated for row in result.rows if row.evaluated is not None]
    sizes = sorted({found.n for found in evaluated if found.n is not None})
    if sizes:
        if len(sizes) > 1:
            yield f"MAUVE is of {', '.join(map(str, sizes))} texts a side: rows of different n are not comparable."
        yield f"The paper's MAUVE is of 1000 texts a side and other features than ours, of {sizes[0]} or more."
    yield from dict.fromkeys(warning for found in evaluated for warning in found.warnings)
    methods = sorted({found.method for found in evaluated if found.method is not None})
    if methods:
        yield f"Accuracy is of: {', '.join(methods)}. The paper fine-tunes BERT."
    yield EXPLAINED
    if not evaluated:
        yield UNEVALUATED


def print_table(result: TableResult, console: Console) -> None:
    """The table; in each cell the paper's figure stands over ours."""
    grid = _grid(result.title, ("", "", *HEADINGS, "Audit"), HEADINGS)
    found = lines(result)
    for number, line in enumerate(found):
        if number == 0 or line.dataset != found[number - 1].dataset:
            grid.add_row(Text(line.dataset, style="bold"))
        pairs = ("\n".join(pair) for pair in _pairs(line))
        grid.add_row(*map(Text, (line.method, "paper\nours", *pairs, f"\n{line.audit}")))
    console.print(grid)
    for note in notes(result):
        console.print(Text(note))
    console.print(Text(result.notice, style="bold"))


def markdown(result: TableResult) -> str:
    """The table as a page."""
    heads = ["Dataset", "Method", *(f"{name}, {whose}" for name in HEADINGS for whose in ("paper", "ours")), "Audit"]
    parts = [f"# {_plain(result.title)}", "", result.notice, "", _markdown_row(heads), "|---" * len(heads) + "|"]
    for line in lines(result):
        cells = (cell for pair in _pairs(line) for cell in pair)
        parts.append(_markdown_row((line.dataset, line.method, *cells, line.audit)))
    parts += ["", *(f"- {_plain(note)}" for note in notes(result))]
    return "\n".join(parts) + "\n"


def spreadsheet(result: TableResult) -> str:
    """Every row's figures in full, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in result.rows:
        writer.writerow(_figures(row))
    return text.getvalue()


def _grid(title: str, names: Iterable[str], figures: Sequence[str]) -> Grid:
    """An empty table that fits 80 columns where its cells do."""
    grid = Grid(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        grid.add_column(Text(name), justify="right" if name in figures else "left", overflow="fold")
    return grid


# --- estimates -------------------------------------------------------------------------------------------------------

ESTIMATED = ("ε paper", "ε context", "ε record", "Batches", "Size", "M tokens", "Hours")
ESTIMATE_NOTES = (
    "ε context: by the paper's accounting, of a context that comes or goes, at δ = records ** -1.1, with the noisy "
    "counts' own after it. ε record: what the run claims, counts included, for the unit in its config. A median's ε is "
    "ex-post: known afterwards. Size: contexts × tokens of a batch at most; texts that end early take less. M tokens: "
    "millions of contexts × tokens in all. Where noisy counts decide on batches, their number is approximate (~)."
)


def print_estimates(found: Sequence[Estimate], throughput: Throughput | None, title: str, console: Console) -> None:
    """What every row and all of them take."""
    grid = _grid(title, ("", *ESTIMATED), ESTIMATED)
    for number, each in enumerate(found):
        if number == 0 or each.row.dataset != found[number - 1].row.dataset:
            grid.add_row(Text(each.row.dataset, style="bold"))
        grid.add_row(*map(Text, _estimated(each)))
    console.print(grid)
    work = sum(each.context_tokens for each in found)
    rate = "no throughput is known: give --tokens-per-second"
    if throughput is not None:
        rate = f"{sum(each.hours or 0 for each in found):,.1f} hours at {throughput.source}"
    console.print(Text(f"All rows: {work:,} context tokens; {rate}."))
    console.print(Text(ESTIMATE_NOTES))


def estimates_as_values(found: Sequence[Estimate], throughput: Throughput | None, title: str) -> dict[str, object]:
    """The same for `--json`; infinities are text."""
    return {
        "title": title,
        "throughput": None if throughput is None else asdict(throughput),
        "rows": [
            {
                "config": each.row.name,
                "dataset": each.row.dataset,
                "method": each.row.method,
                "paper_epsilon": None if each.row.paper is None else _finite(each.row.paper.epsilon),
                "epsilon_as_paper": each.epsilon_as_paper,
                "affordable_tokens": each.affordable_tokens,
                "epsilon": _finite(each.epsilon),
                "delta": each.delta,
                "unit": each.row.config.privacy.unit,
                "relation": each.row.config.privacy.relation,
                "clusters": each.clusters,
                "batches": each.batches,
                "contexts": each.contexts,
                "tokens": each.tokens,
                "context_tokens": each.context_tokens,
                "hours": each.hours,
            }
            for each in found
        ],
    }


def _estimated(each: Estimate) -> tuple[str, ...]:
    about = "~" if each.row.config.batching.records_per_batch is not None else ""
    paper = each.row.paper
    counts = f"+{paper.clustering_epsilon:g}" if paper is not None and paper.clustering_epsilon else ""
    return (
        each.row.method,
        _published_epsilon(paper),
        "ex-post" if each.epsilon_as_paper is None else up(each.epsilon_as_paper) + counts,
        "ex-post" if each.epsilon is None else up(each.epsilon),
        f"{about}{each.batches:,}",
        f"{each.contexts:.0f}×{each.tokens}",
        f"{each.context_tokens / 1e6:,.2f}",
        NOTHING if each.hours is None else f"{each.hours:,.2f}",
    )


# --- cells -----------------------------------------------------------------------------------------------------------


def up(epsilon: float) -> str:
    """An epsilon with two decimals, rounded up: never smaller than what was computed."""
    if not math.isfinite(epsilon):
        return "∞"
    return str(Decimal(epsilon).quantize(Decimal("0.01"), ROUND_CEILING))


def _line(row: RowResult) -> Line:
    paper, empty = row.paper, (NOTHING, NOTHING)
    epsilons = (_published_epsilon(paper), _claimed(row))
    return Line(
        row.dataset,
        row.method,
        (NOTHING if paper is None or paper.clusters is None else str(paper.clusters), str(row.clusters)),
        epsilons if row.kind == "approximate" else empty,
        epsilons if row.kind == "ex-post" else empty,
        (_published(paper, "mauve"), _measured(None if row.evaluated is None else row.evaluated.mauve)),
        (_published(paper, "accuracy"), _measured(None if row.evaluated is None else row.evaluated.accuracy)),
        _verdict(row),
    )


def _real_line(dataset: str, real: Published | None, rows: Iterable[RowResult]) -> Line:
    """Of equal settings, every row of a data set finds the same ceiling: the first that has one is shown."""
    evaluated = [row.evaluated for row in rows if row.evaluated is not None]
    mauve = next((found.real_mauve for found in evaluated if found.real_mauve is not None), None)
    accuracy = next((found.real_accuracy for found in evaluated if found.real_accuracy is not None), None)
    empty = (NOTHING, NOTHING)
    return Line(
        dataset,
        REAL,
        empty,
        ("∞", "∞"),
        empty,
        (_published(real, "mauve"), _measured(mauve)),
        (_published(real, "accuracy"), _measured(accuracy)),
        "",
    )


def _published_epsilon(paper: Published | PublishedRow | None) -> str:
    """As the paper writes it: what the noisy counts cost is added to what the tokens do."""
    if paper is None or paper.epsilon is None:
        return NOTHING
    if math.isinf(paper.epsilon):
        return "∞"
    return f"{paper.epsilon:g}" + (f"+{paper.clustering_epsilon:g}" if paper.clustering_epsilon else "")


def _claimed(row: RowResult) -> str:
    if row.audited is None or row.audited.claim is None:
        return NOTHING
    claimed, theorem1 = up(row.audited.claim.epsilon), row.audited.theorem1
    return f"{claimed} ({up(theorem1)})" if row.kind == "ex-post" and theorem1 is not None else claimed


def _published(paper: Published | None, figure: Literal["mauve", "accuracy"]) -> str:
    return NOTHING if paper is None else _spread(getattr(paper, figure), getattr(paper, f"{figure}_std"))


def _measured(figure: Measured | None) -> str:
    return NOTHING if figure is None else _spread(figure.mean, figure.std)


def _spread(mean: float, std: float | None) -> str:
    """As the paper writes shares of 1: without the zero before the point."""
    shown = (f"{value:.3f}".removeprefix("0") for value in (mean, std) if value is not None)
    return "±".join(shown)


def _verdict(row: RowResult) -> str:
    if row.failure is not None:
        return f"could not {row.failure.stage}"
    return NOTHING if row.audited is None else row.audited.verdict


def _pairs(line: Line) -> tuple[tuple[str, str], ...]:
    """The paper's cell and ours, under each of `HEADINGS`."""
    return (line.clusters, line.approximate, line.ex_post, line.mauve, line.accuracy)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    """Text of a table's file or of an error, which must not end a cell."""
    return " ".join(text.replace("|", "\\|").split())


def _figures(row: RowResult) -> tuple[object, ...]:
    """A row's cells under `_COLUMNS`."""
    paper, audited, evaluated = row.paper, row.audited, row.evaluated
    claim = None if audited is None else audited.claim
    mauve = None if evaluated is None else evaluated.mauve
    accuracy = None if evaluated is None else evaluated.accuracy
    return (
        *(row.config, row.dataset, row.method, row.kind, row.clusters),
        *((None,) * 4 if claim is None else (claim.epsilon, claim.delta, claim.relation, claim.unit)),
        *((None,) * 4 if audited is None else (audited.theorem1, audited.verdict, audited.texts, audited.tokens)),
        *((None,) * 2 if mauve is None else (mauve.mean, mauve.std)),
        None if evaluated is None else evaluated.n,
        *((None,) * 2 if accuracy is None else (accuracy.mean, accuracy.std)),
        None if evaluated is None else evaluated.method,
        *((None,) * 3 if paper is None else (paper.epsilon, paper.mauve, paper.accuracy)),
    )


def _finite(value: float | None) -> float | str | None:
    return None if value is None else finite_or_text(value)
