"""A table of runs in the paper's layout, its figures beside the paper's.

The two kinds of epsilon have columns of their own: they are different statements, and neither is
the better for being smaller than the other. An epsilon is rounded up, whatever was measured to the
nearest. Titles, names and messages come from a table's file and from whatever failed, and are shown
as plain text.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from dpaudit.generation.experiments.table import TABLE_FILES, PublishedQuality, PublishedRow
from dpaudit.generation.experiments.table_results import (
    Estimate,
    Estimates,
    Evaluated,
    Measured,
    RowResult,
    TableResult,
)
from dpaudit.mechanisms.claims import CLAIM_KINDS, ApproximateClaim, ClaimKind, ExPostClaim
from dpaudit.reports.document import Block, Document, Items, Paragraph, Section, Table
from dpaudit.reports.text import grouped, one_line
from dpaudit.reports.wording import ABSENT, VERDICT_NAMES, Value, or_absent
from dpaudit.reports.writers import markdown
from dpaudit.results import ClaimResult, Finding
from dpaudit.results.catalogue import sentence
from dpaudit.results.rounding import decimals

INFINITE = "∞"


class Line(NamedTuple):
    """A method's figures as text: the paper's and ours under each of `HEADINGS`.

    Ours are of `size` texts.
    """

    dataset: str
    method: str
    size: str
    clusters: tuple[str, str]
    approximate: tuple[str, str]
    ex_post: tuple[str, str]
    mauve: tuple[str, str]
    accuracy: tuple[str, str]
    audit: str

    @property
    def paper(self) -> tuple[str, ...]:
        """Cells of the row that has the paper's figures."""
        return (one_line(self.method), "paper", *(figures[0] for figures in self._figures), "")

    @property
    def ours(self) -> tuple[str, ...]:
        """Cells of the row below it."""
        return (self.size, "ours", *(figures[1] for figures in self._figures), self.audit)

    @property
    def _figures(self) -> tuple[tuple[str, str], ...]:
        return (self.clusters, self.approximate, self.ex_post, self.mauve, self.accuracy)


HEADINGS = ("Clusters", "ε approx.", "ε ex-post", "MAUVE", "Accuracy")
EXPLAINED = (
    "ε approx.: of approximate DP, at its row's δ; or the ρ that a run claims, which is of the "
    "batch level. ε "
    "ex-post: the exact cost, with Theorem 1's in parentheses, which is of the batch level; "
    "itself private. Ours are "
    "claims at the release level, for readers of the texts (after a slash: at the batch level, "
    "where that is "
    "another), the paper's of one batch. The paper counts for one context that comes or goes; a "
    "run here for the unit "
    "of its claim, which is a record unless its config says otherwise. MAUVE and accuracy: mean "
    "± standard deviation "
    "over seeds."
)
SIZES = (
    "n: texts on each side of MAUVE, and after a slash those that the classifier was trained on "
    "where these are others."
    " Real data: what as many real texts reach, a line for each n; the paper's figures do not "
    "say of how many."
)
PUBLIC_ONLY = (
    "Public only: what the prompts of the row above give without any record, at epsilon 0. What "
    "a row has beyond that "
    "is what its records added."
)
_COLUMNS = (
    *("config", "dataset", "method", "kind", "clusters"),
    *(
        "epsilon_approximate",
        "epsilon_ex_post",
        "batch_epsilon",
        "theorem1_ex_post",
        "delta",
        "relation",
        "unit",
        "bounded",
    ),
    *("verdict", "texts", "tokens"),
    *("mauve", "mauve_std", "mauve_n", "real_mauve", "real_mauve_std"),
    *("accuracy", "accuracy_std", "accuracy_texts", "accuracy_method"),
    *("real_accuracy", "real_accuracy_std", "real_accuracy_texts"),
    *(
        "public_mauve",
        "public_mauve_std",
        "public_accuracy",
        "public_accuracy_std",
        "public_accuracy_texts",
    ),
    *("paper_epsilon_approximate", "paper_epsilon_ex_post", "paper_mauve", "paper_accuracy"),
)


def lines(result: TableResult) -> list[Line]:
    """Return real data first, then each data set's rows in order, each with its public baseline."""
    found: list[Line] = []
    for dataset, real in result.real.items():
        rows = [row for row in result.rows if row.dataset == dataset]
        if rows:
            found.extend(_real_lines(dataset, real, rows))
            for row in rows:
                found.append(_line(row))
                found.extend(_public_line(row))
    return found


def notes(result: TableResult) -> Iterator[str]:
    """Yield the notes of the table: failures, warnings, meanings of the columns."""
    for row in result.rows:
        yield from _row_notes(row)
    yield from equal_levels(
        (row.audited.equal, row.config) for row in result.rows if row.audited is not None
    )
    evaluated = [row.evaluated for row in result.rows if row.evaluated is not None]
    sizes = sorted({found.n for found in evaluated if found.n is not None})
    if sizes:
        if len(sizes) > 1:
            yield (
                f"MAUVE is of {', '.join(map(str, sizes))} texts a side: rows of different n "
                "are not comparable."
            )
        yield (
            "The paper's MAUVE is of 1000 texts a side and other features than ours, of "
            f"{sizes[0]} or more."
        )
    warned = grouped(
        (warning, r.config) for r in result.rows if r.evaluated for warning in r.evaluated.warnings
    )
    for warning, configs in warned.items():
        yield f"{', '.join(configs)}: {warning}"
    methods = sorted({found.method for found in evaluated if found.method is not None})
    if methods:
        yield f"Accuracy is of: {', '.join(methods)}. The paper fine-tunes BERT."
    yield EXPLAINED
    yield SIZES if evaluated else "Nothing was evaluated: MAUVE and accuracy are left out."
    if any(line for row in result.rows for line in _public_line(row)):
        yield PUBLIC_ONLY


def page(result: TableResult) -> Document:
    """Return the table as a page and a screen, a row of the paper's figures above each of ours."""
    rows = [(line.dataset, cells) for line in lines(result) for cells in (line.paper, line.ours)]
    shown = _by_dataset(("Method", "", *HEADINGS, "Audit"), rows, (1, 7))
    return Document(
        result.title, [Paragraph(result.notice, "strong"), *shown, Items(list(notes(result)))]
    )


def files(result: TableResult) -> dict[str, str]:
    """Return table.md, table.csv and table.json, by their names."""
    contents = (markdown.render(page(result)), _csv(result), result.to_json())
    return dict(zip(TABLE_FILES, contents, strict=True))


def _by_dataset(
    header: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], words: Iterable[int]
) -> list[Section]:
    """Return a section with a table for each data set, in the order of the rows."""
    found = grouped((dataset, cells) for dataset, cells in rows)
    return [
        Section(dataset, [Table.of(dataset, header, cells, words)])
        for dataset, cells in found.items()
    ]


def _csv(result: TableResult) -> str:
    """Return every row's figures in full, for spreadsheets."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for row in result.rows:
        writer.writerow(map(_value, _figures(row)))
    return text.getvalue()


ESTIMATED = (
    "ε paper\napprox.",
    "ε context",
    "ε record\n/ batch",
    "ε paper\nex-post",
    "Batches",
    "Size",
    "M tokens",
    "Hours",
)
ESTIMATE_NOTES = (
    "ε context: by the paper's accounting, of a context that comes or goes, at δ = records ** "
    "-1.1, so it is of the "
    "batch level; what noisy counts cost stands after the +, and what noised centres cost is in "
    "it. ε record: of all "
    "that together, for the unit in the row's config: what its run can claim at the release "
    "level, for readers of the "
    "texts, and below it after a slash at the batch level, where that is another "
    "(docs/secret-batches.md). Where "
    "centres come from records without noise nothing bounds either (∞): such a run claims what "
    "its tokens cost, and "
    "fails its audit. A median's ε is ex-post: known afterwards, and no figure to hold against "
    "the other columns. "
    "Size: contexts × tokens of a batch. Contexts are its slots, or as many as it has on average "
    "where every record is "
    "one; tokens are the most of a batch, in one text or several. M tokens: millions of contexts "
    "× tokens in all. "
    "Where noisy counts decide on batches, their number is approximate (~)."
)


def screen(found: Estimates) -> Document:
    """Return what every row and all of them take."""
    rows = [(each.dataset, _estimated(each)) for each in found.rows]
    work = sum(each.context_tokens for each in found.rows)
    rate = "no throughput is known: give --tokens-per-second"
    if found.throughput is not None:
        rate = (
            f"{sum(each.hours or 0 for each in found.rows):,.1f} hours at "
            f"{found.throughput.source}, on a machine "
        )
        rate += "that does nothing else; audits and evaluations come on top"
    remarks = [f"All rows: {work:,} context tokens; {rate}."]
    remarks += equal_levels((each.equal, each.config) for each in found.rows)
    blocks: list[Block] = [
        *_by_dataset(("", *ESTIMATED), rows, ()),
        *map(Paragraph, [*remarks, ESTIMATE_NOTES]),
    ]
    return Document(found.title, blocks)


def _estimated(each: Estimate) -> tuple[str, ...]:
    finite = each.epsilon_as_paper is not None and math.isfinite(each.epsilon_as_paper)
    counts = f"+{each.counts_epsilon:g}" if finite and each.counts_epsilon else ""
    kind = ExPostClaim.id if each.epsilon_as_paper is None else ApproximateClaim.id
    approximate, ex_post = _by_kind(kind, _published_epsilon(each.paper), ABSENT)
    return (
        one_line(each.method),
        approximate,
        ABSENT if each.epsilon_as_paper is None else up(each.epsilon_as_paper) + counts,
        or_absent(each.epsilon, up) + _below(each.epsilon, each.batch_epsilon),
        ex_post,
        f"{'~' if each.counted else ''}{each.batches:,}",
        f"{f'{each.contexts:.0f}' if each.contexts >= 1 else '<1'}×{each.tokens}",
        _two_decimals(each.context_tokens / 1e6),
        or_absent(each.hours, _two_decimals),
    )


def _below(epsilon: float | None, batch_epsilon: float | None) -> str:
    if batch_epsilon in (None, epsilon):
        return ""
    return f"\n/{up(batch_epsilon or 0.0)}"


def equal_levels(reasons: Iterable[tuple[Finding | None, str]]) -> Iterator[str]:
    """Say why both levels of rows are equal, once for all rows for which a reason holds.

    Args:
        reasons: of each row, and the row's name; rows with none are left out.
    """
    for reason, names in grouped(
        (sentence(reason), name) for reason, name in reasons if reason is not None
    ).items():
        yield f"{', '.join(names)}: both levels are equal: {reason}."


def _two_decimals(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 0.005 or not amount else "<0.01"


def up(epsilon: float) -> str:
    """Return an epsilon with two decimals, rounded up."""
    if math.isfinite(epsilon):
        return decimals(epsilon, 2, most=math.inf)
    return INFINITE


def _row_notes(row: RowResult) -> Iterator[str]:
    if row.failure is not None:
        yield f"{row.config}: could not {row.failure.stage}: {row.failure.message}"
    elif row.audited is not None and row.audited.verdict != "pass":
        yield (
            f"{row.config}: the audit says {VERDICT_NAMES[row.audited.verdict]}: "
            f"{', '.join(row.audited.failed)}."
        )
    claim = None if row.audited is None else row.audited.claim
    if row.unbounded and claim is not None:
        yield (
            f"{row.config}: its centres come from the records without noise, so nothing bounds "
            "its epsilon; it claims "
            f"{_promised(claim)}, which is what its tokens cost."
        )


def _line(row: RowResult) -> Line:
    paper, found = row.paper, row.evaluated
    published = _by_kind(row.kind, _published_epsilon(paper), ABSENT)
    claimed = _by_kind(_kind(row), _claimed(row), ABSENT)
    verdict = ABSENT if row.audited is None else VERDICT_NAMES[row.audited.verdict]
    return Line(
        row.dataset,
        row.method,
        "" if found is None else _size(found.n, found.trained),
        (ABSENT if paper is None else or_absent(paper.clusters, str), str(row.clusters)),
        (published[0], claimed[0]),
        (published[1], claimed[1]),
        (_published(paper, "mauve"), _measured(None if found is None else found.mauve)),
        (_published(paper, "accuracy"), _measured(None if found is None else found.accuracy)),
        verdict if row.failure is None else f"could not {row.failure.stage}",
    )


def _kind(row: RowResult) -> ClaimKind:
    """Return the audited epsilon's kind.

    Without an audit it is the kind that the row's config asks for.
    """
    claim = None if row.audited is None else row.audited.claim
    return row.kind if claim is None else claim.kind


def _by_kind(kind: ClaimKind, figure: Value, absent: Value) -> tuple[Value, Value]:
    """Return a figure in the column of what is fixed beforehand, or of what is ex-post."""
    if CLAIM_KINDS[kind].beforehand:
        return (figure, absent)
    return (absent, figure)


def _real_lines(
    dataset: str, real: PublishedQuality | None, rows: Iterable[RowResult]
) -> Iterator[Line]:
    """Yield real texts' results for each number of texts that rows have.

    The paper's figures stand in the first line.
    """
    evaluated = [row.evaluated for row in rows if row.evaluated is not None]
    found = dict.fromkeys(
        (
            _size(each.n, each.real_trained),
            _measured(each.real_mauve),
            _measured(each.real_accuracy),
        )
        for each in evaluated
    )
    none, infinite = (ABSENT, ABSENT), (INFINITE, INFINITE)
    for size, mauve, accuracy in found or [("", ABSENT, ABSENT)]:
        ours = ((_published(real, "mauve"), mauve), (_published(real, "accuracy"), accuracy))
        yield Line(dataset, "Real data", size, none, infinite, none, *ours, "")
        real = None


def _public_line(row: RowResult) -> Iterator[Line]:
    """Yield the figures of the row's prompts without any record, if they were measured."""
    found = row.evaluated
    if found is None or (found.public_mauve is None and found.public_accuracy is None):
        return
    size = _size(None if found.public_mauve is None else found.n, found.public_trained)
    mauve, accuracy = (
        (ABSENT, _measured(found.public_mauve)),
        (ABSENT, _measured(found.public_accuracy)),
    )
    none, free = (ABSENT, ABSENT), (ABSENT, "0")
    yield Line(row.dataset, "- public only", size, none, free, free, mauve, accuracy, "")


def _size(n: int | None, trained: int | None) -> str:
    if n is None and trained is None:
        return ""
    sides = ABSENT if n is None else str(n)
    if trained in (None, n):
        return f"n = {sides}"
    return f"n = {sides}/{trained}"


def _published_epsilon(paper: PublishedRow | None) -> str:
    """Return epsilon as the paper writes it: noisy counts plus tokens."""
    if paper is None:
        return ABSENT
    if math.isinf(paper.epsilon):
        return INFINITE
    if paper.clustering_epsilon:
        return f"{paper.epsilon:g}+{paper.clustering_epsilon:g}"
    return f"{paper.epsilon:g}"


def _claimed(row: RowResult) -> str:
    if row.audited is None or row.audited.claim is None:
        return ABSENT
    if row.unbounded:
        return INFINITE
    claim, theorem1 = row.audited.claim, row.audited.theorem1
    claimed = _promised(claim)
    if claim.batch_epsilon not in (None, claim.epsilon):
        claimed += f"/{up(claim.batch_epsilon or 0.0)}"
    if _kind(row) == ExPostClaim.id and theorem1 is not None:
        return f"{claimed} ({up(theorem1)})"
    return claimed


def _promised(claim: ClaimResult) -> str:
    """Return the figure that a claim promises, with its symbol where that is no epsilon."""
    if claim.epsilon is not None:
        return up(claim.stated)
    return f"{claim.terms.symbol} {up(claim.stated)}"


def _published(paper: PublishedQuality | None, figure: Literal["mauve", "accuracy"]) -> str:
    if paper is None:
        return ABSENT
    return _spread(getattr(paper, figure), getattr(paper, f"{figure}_std"))


def _measured(figure: Measured | None) -> str:
    return ABSENT if figure is None else _spread(figure.mean, figure.std)


def _spread(mean: float, std: float | None) -> str:
    """Return shares of 1 as the paper writes them: without the zero before the point."""
    shown = (f"{value:.3f}".removeprefix("0") for value in (mean, std) if value is not None)
    return "±".join(shown)


def _figures(row: RowResult) -> tuple[object, ...]:
    """Return a row's cells under `_COLUMNS`."""
    paper, audited, found = row.paper, row.audited, row.evaluated
    claim = None if audited is None else audited.claim
    return (
        *(row.config, row.dataset, row.method, _kind(row), row.clusters),
        *_by_kind(_kind(row), None if claim is None else claim.epsilon, None),
        None if claim is None else claim.batch_epsilon,
        None if audited is None else audited.theorem1,
        *((None,) * 3 if claim is None else (claim.delta, claim.relation, claim.unit)),
        "no" if row.unbounded else "yes",
        *((None,) * 3 if audited is None else (audited.verdict, audited.texts, audited.tokens)),
        *((None,) * 17 if found is None else _evaluated(found)),
        *_by_kind(row.kind, None if paper is None else paper.epsilon, None),
        *((None,) * 2 if paper is None else (paper.mauve, paper.accuracy)),
    )


def _evaluated(found: Evaluated) -> tuple[object, ...]:
    return (
        *(*_mean_and_std(found.mauve), found.n, *_mean_and_std(found.real_mauve)),
        *(*_mean_and_std(found.accuracy), found.trained, found.method),
        *(*_mean_and_std(found.real_accuracy), found.real_trained),
        *(
            *_mean_and_std(found.public_mauve),
            *_mean_and_std(found.public_accuracy),
            found.public_trained,
        ),
    )


def _mean_and_std(figure: Measured | None) -> tuple[float | None, float | None]:
    return (None, None) if figure is None else (figure.mean, figure.std)


def _value(value: object) -> object:
    """Return a cell of a spreadsheet: a number unchanged, or text that is no formula."""
    if not isinstance(value, str):
        return value
    line = one_line(value)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line
