"""Two or more audited runs side by side, with each kind of epsilon in tables of its own.

Runs go by number, for their names are paths that no table has room for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Literal
from urllib.parse import quote

from markupsafe import Markup
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpaudit.reports import figures
from dpaudit.reports.costs import digits_for
from dpaudit.reports.figure_files import in_page
from dpaudit.reports.figures import ACCOUNTANTS
from dpaudit.reports.html import environment
from dpaudit.reports.outline import neighbours_of
from dpaudit.reports.quality import METHODS, shown
from dpaudit.reports.quality import WARNING as QUALITY_WARNING
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.wording import ABSENT, KIND_TITLES, NOT_COMPARABLE, PRIVATE_FIGURES, PRIVATE_REPORT
from dpaudit.results import (
    Affordable,
    Afforded,
    Approximate,
    BudgetCurve,
    BudgetPanel,
    ComparedRun,
    Comparison,
    ExPost,
    Kind,
    QualityColumn,
    RunEpsilon,
    SameLength,
    Spread,
)
from dpaudit.results.rounding import bound, lower_bound, nearest, saving, stated

_EX_POST: Kind = "ex-post"
_APPROXIMATE: Kind = "approximate"
_BESIDE: dict[Kind, str] = {"ex-post": "ex-post epsilon", "approximate": "approximate DP"}
_FIRST = len("Run")
_GAP = 2
_WIDEST_WORD = 24
#: The most pairs of runs that the outcome has a sentence for.
_MOST_PAIRS = 10
_HINDSIGHT = "Hindsight: cutting these texts there because of the cost is a choice that no epsilon pays for."
_SPREADS = "spreads"
_SPREADS_CAPTION = "Box: the middle half of the batches; coloured line: the median batch; whiskers: least and most."
#: What follows on the kind of epsilon that budget curves show.
_BUDGET_NOTES: dict[Kind, str] = {
    "ex-post": "Rebalancing included, had no batch gone beyond so many tokens. A dash: none did.",
    "approximate": "From public settings alone, each run at its own δ: beyond a run's own maximum, what the same "
    "settings would cost. Optimal is worked out by length on a coarse grid, and as far as that goes.",
}


@dataclass(frozen=True)
class Cell:
    """Text of one cell; `kind` where that text is a figure of some kind of epsilon, `words` where it is no number."""

    text: str
    kind: Kind | None = None
    words: bool = False


@dataclass(frozen=True)
class ComparisonTable:
    """One table: a row of cells for each run, by the run's number, and figures of one kind at most.

    `figure` names the figure that a page with figures shows below it; empty where there is none. `starred` are the
    runs whose figures cannot be relied on, which a note explains.

    Raises:
        ValueError: a cell holds a figure of another kind than the table's.
    """

    title: str
    kind: Kind | None
    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = ()
    figure: str = ""
    starred: frozenset[int] = frozenset()

    def run(self, number: int) -> str:
        """A run's number, with a star where its figures here cannot be relied on."""
        return f"{number}{'*' * (number in self.starred)}"

    def is_words(self, column: int) -> bool:
        """Whether a column holds words, which stand on the left; numbers stand on the right."""
        return any(cells[column].words for _, cells in self.rows)

    def __post_init__(self) -> None:
        for _, cells in self.rows:
            if any(cell.kind not in (None, self.kind) for cell in cells):
                raise ValueError(f"{self.title}: figures of two kinds cannot share a table")


@dataclass(frozen=True)
class _Runs:
    """Every run's number, and how many digits its figures of a kind have: one number never shows in two ways.

    `cautions`: of the runs whose epsilons cannot be relied on.
    """

    number: Mapping[str, int]
    digits: Mapping[tuple[str, Kind], int]
    cautions: Mapping[str, str]

    @classmethod
    def of(cls, comparison: Comparison) -> _Runs:
        """The runs of a comparison."""
        numbers = {run.name: number for number, run in enumerate(comparison.runs, start=1)}
        kinds = (_EX_POST, _APPROXIMATE)
        digits = {(run.name, kind): _digits(run, kind) for run in comparison.runs for kind in kinds}
        return cls(numbers, digits, {run.name: run.caution for run in comparison.runs if run.caution})

    def label(self, run: str) -> str:
        """A run's number, with a star where its epsilons cannot be relied on."""
        return f"{self.number[run]}{'*' * (run in self.cautions)}"

    def warnings(self, numbers: Collection[int]) -> tuple[str, ...]:
        """What each star says, for the runs of these numbers."""
        starred = ((self.number[run], caution) for run, caution in self.cautions.items())
        return tuple(f"* run {number}: {one_line(caution)}." for number, caution in starred if number in numbers)

    def shown(self, run: str, kind: Kind, value: float) -> str:
        """One of a run's figures, rounded up."""
        return bound(value, self.digits[run, kind])


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The comparison as tables that fit the console; one that is too wide goes on in a second."""
    for said in outcomes(comparison):
        console.print(Text(said, style="bold"))
    console.print()
    own, shared = _caveats(comparison)
    for number, run in enumerate(comparison.runs, start=1):
        console.print(Text(f"run {number}  {run.verdict.upper()}  {_name(run)}"), soft_wrap=True)
        for said in (run.guarantee, *own[run.name]):
            console.print(Text(one_line(said)))
    for said in shared:
        console.print(Text(said))
    console.print()
    for table in tables(comparison):
        console.print(Text(table.title, style="bold"))
        for part in _parts(table, console.width):
            console.print(_printed(part, console.width))
        for note in table.notes:
            console.print(Text(note, style="dim"))
        console.print()
    console.print(Text(NOT_COMPARABLE))


def render_comparison_html(comparison: Comparison, links: Mapping[str, str] | None = None) -> str:
    """The comparison as one self-contained page.

    Args:
        comparison: what dpaudit.audit.comparison computed.
        links: path of each run's report.html, relative to the folder that the comparison will lie in.
    """
    # Quoting the colon keeps a path from being read as a scheme such as javascript:.
    targets = {name: quote(path) for name, path in (links or {}).items()}
    runs = _Runs.of(comparison)
    own, shared = _caveats(comparison)
    template = environment().get_template("comparison.html.j2")
    return template.render(
        outcomes=outcomes(comparison),
        runs=[(_name(run), targets.get(run.name), run, own[run.name]) for run in comparison.runs],
        caveats=shared,
        tables=tables(comparison),
        figures=dict(_figures(comparison, runs)),
        warning=_warning(comparison),
    )


def outcomes(comparison: Comparison) -> tuple[str, ...]:
    """What came of it, in plain sentences: a run's tokens within another's epsilon, and whose figures do not count."""
    runs = _Runs.of(comparison)
    said: list[str] = []
    for found in comparison.affordable:
        pairs = list(_within(found, comparison, runs))
        said += pairs[:_MOST_PAIRS]
        if len(pairs) > _MOST_PAIRS:
            said.append(f"The tables below have {counted(len(pairs) - _MOST_PAIRS, 'more pair')}.")
        shorter = any(cell.tokens is not None and not cell.all_generated for row in found.cells for cell in row)
        if pairs and shorter and found.kind == _EX_POST:
            said.append(_HINDSIGHT)
    if not said:
        said = ["No two runs have figures that hold and can be set side by side."]
    said += [f"Run {runs.number[run]} {one_line(caution)}." for run, caution in runs.cautions.items()]
    unread = [runs.number[run.name] for run in comparison.runs if run.verdict == "error"]
    return (*said, *(f"Run {number} cannot be read as a whole, so it has no figures." for number in unread))


def _within(found: Affordable, comparison: Comparison, runs: _Runs) -> Iterator[str]:
    """A sentence for each pair of runs whose figures hold: the costlier one's tokens within the other's epsilon."""
    by_name = {run.name: run for run in comparison.runs}
    held = [place for place, figure in enumerate(found.figures) if figure.run not in runs.cautions]
    for pair in combinations(held, 2):
        budget, run = sorted(pair, key=lambda place: found.figures[place].epsilon)
        # The other way round where a larger delta forbids this one.
        for within, spent in ((budget, run), (run, budget)):
            tokens = found.cells[spent][within].tokens
            if tokens is not None:
                lender, spender = found.figures[within].run, found.figures[spent].run
                amount = _amount(tokens, _length(by_name[spender], found.kind))
                lent = f"run {runs.number[lender]}'s {found.kind} epsilon"
                yield f"Within {lent}, run {runs.number[spender]} affords {amount}."
                break


def _length(run: ComparedRun, kind: Kind) -> int:
    """How many tokens a batch of the run had at most, or may have where the epsilon is about that."""
    approximate = run.guarantees.approximate
    return approximate.tokens if kind == _APPROXIMATE and approximate is not None else run.longest_batch


def _amount(tokens: int, length: int) -> str:
    if tokens > length:
        return f"{counted(tokens, 'token')}, beyond its maximum of {length:,}"
    return f"all {counted(length, 'token')}" if tokens == length else f"{tokens:,} of {counted(length, 'token')}"


def _caveats(comparison: Comparison) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Caveats of single runs, by the run's name, and those that several runs share, with their numbers."""
    numbers: dict[str, list[int]] = {}
    for number, run in enumerate(comparison.runs, start=1):
        for caveat in dict.fromkeys(run.caveats):
            numbers.setdefault(caveat, []).append(number)
    own = {run.name: tuple(caveat for caveat in run.caveats if len(numbers[caveat]) == 1) for run in comparison.runs}
    shared = []
    for caveat, found in numbers.items():
        if len(found) > 1:
            whose = "All runs" if len(found) == len(comparison.runs) else f"Runs {', '.join(map(str, found))}"
            shared.append(f"{whose}: {one_line(caveat)}")
    return own, tuple(shared)


def _figures(comparison: Comparison, runs: _Runs) -> Iterator[tuple[str, tuple[Markup | None, str]]]:
    """Each figure with its caption, by name."""
    described = "; ".join(_spread_described(spread, runs) for spread in comparison.spreads)
    drawing = figures.spreads([(runs.label(spread.run), spread) for spread in comparison.spreads], described)
    warned = runs.warnings({runs.number[spread.run] for spread in comparison.spreads})
    yield _SPREADS, (in_page(drawing), " ".join((_SPREADS_CAPTION, *warned)))
    for place, panel in enumerate(comparison.budgets):
        name = _budget_figure(place)
        drawing = figures.budget_curves(panel, runs.number, runs.digits, name, runs.cautions)
        warned = runs.warnings({runs.number[curve.run] for curve in panel.curves})
        yield name, (in_page(drawing), " ".join((figures.BUDGETS_CAPTION, *warned)))


def _budget_figure(place: int) -> str:
    return f"budgets-{place + 1}"


def tables(comparison: Comparison) -> tuple[ComparisonTable, ...]:
    """Every table of the comparison, in order."""
    runs = _Runs.of(comparison)
    found = [_runs_table(comparison)]
    for kind, overview in ((_EX_POST, _ex_post_table), (_APPROXIMATE, _approximate_table)):
        overall = overview(comparison)
        found.append(replace(overall, notes=(*overall.notes, *_left_out(comparison, kind, runs.number))))
        found += [_same_length_table(same, runs) for same in comparison.same_length if same.kind == kind]
        found += [
            _budget_table(panel, runs, _budget_figure(place))
            for place, panel in enumerate(comparison.budgets)
            if panel.kind == kind
        ]
        found += [_affordable_table(tokens, runs) for tokens in comparison.affordable if tokens.kind == kind]
        if kind == _EX_POST and comparison.spreads:
            found.append(_spread_table(comparison, runs))
        found += _quality_tables(comparison, kind, runs)
    found = [_starred(table, comparison, runs) for table in found]
    return (*found, *_quality_tables(comparison, None, runs), _empirical_table(comparison))


def _starred(table: ComparisonTable, comparison: Comparison, runs: _Runs) -> ComparisonTable:
    """The table with a star, and a note, for each of its runs whose figures of its kind cannot be relied on."""
    listed = {number for number, _ in table.rows}
    starred = frozenset(
        runs.number[run.name]
        for run in comparison.runs
        if run.caution and table.kind is not None and _total(run, table.kind) is not None
    )
    return replace(table, starred=starred & listed, notes=(*table.notes, *runs.warnings(starred & listed)))


def _left_out(comparison: Comparison, kind: Kind, numbers: Mapping[str, int]) -> Iterator[str]:
    by_reason: dict[str, list[int]] = {}
    for left in comparison.left_out:
        if left.kind == kind:
            by_reason.setdefault(left.reason, []).append(numbers[left.run])
    for reason, runs in by_reason.items():
        named = f"run{'s' * (len(runs) > 1)} {', '.join(map(str, runs))}"
        yield f"Not set beside others: {named} ({one_line(reason)})."


def _runs_table(comparison: Comparison) -> ComparisonTable:
    header = ("Verdict", "Aggregator", "Clip", "Temp.", "Batches", "Contexts", "Tokens", "Longest batch")
    note = "Tokens and contexts are summed over the batches; the longest batch is in tokens."
    rows = tuple(enumerate(map(_run_cells, comparison.runs), start=1))
    return ComparisonTable("Runs", None, header, rows, (note,))


def _run_cells(run: ComparedRun) -> tuple[Cell, ...]:
    counts = (run.batches, run.contexts, run.tokens, run.longest_batch)
    # Counts of what was read before it broke off are counts of nothing.
    amounts = [ABSENT if run.verdict == "error" else f"{count:,}" for count in counts]
    words = (Cell(run.verdict.upper(), words=True), Cell(_setting(run.aggregator), words=True))
    return (*words, *map(Cell, (_setting(run.clip), _setting(run.temperature), *amounts)))


def _ex_post_table(comparison: Comparison) -> ComparisonTable:
    return ComparisonTable(
        "Ex-post epsilon (nats)",
        _EX_POST,
        ("Claimed", "Exact", "Theorem 1", "Saving", "Rise", "Fall", "Total", "Neighbours"),
        tuple(enumerate(map(_ex_post_cells, comparison.runs), start=1)),
        (
            "Known only after the run, for the text that came out. Private: depends on the data. "
            "Exact is the larger of rise and fall; the total adds rebalancing. A δ is that of noised centres.",
        ),
    )


def _ex_post_cells(run: ComparedRun) -> tuple[Cell, ...]:
    found = run.guarantees.ex_post
    cells = [Cell(ABSENT)] * 6
    if found is not None:
        shown = partial(bound, digits=_digits(run, _EX_POST))
        generation = (shown(found.exact), shown(found.theorem1), saving(found.theorem1, found.exact))
        total = shown(found.total) + _beside(found.delta)
        cells = [Cell(text, _EX_POST) for text in (*generation, shown(found.rise), shown(found.fall), total)]
    return (_claimed(run, _EX_POST), *cells, _neighbours(found, run, _EX_POST))


def _approximate_table(comparison: Comparison) -> ComparisonTable:
    return ComparisonTable(
        "Approximate DP (epsilon in nats)",
        _APPROXIMATE,
        ("Claimed", "Epsilon", "Lower end", "By Rényi DP", "Delta", "Method", "Tokens", "Neighbours"),
        tuple(enumerate(map(_approximate_cells, comparison.runs), start=1)),
        ("Fixed by public settings and δ in advance, for every text that could come out.",),
    )


def _approximate_cells(run: ComparedRun) -> tuple[Cell, ...]:
    found = run.guarantees.approximate
    cells = [Cell(ABSENT)] * 6
    if found is not None:
        shown = partial(bound, digits=_digits(run, _APPROXIMATE))
        low = ABSENT if found.epsilon_lower is None else lower_bound(found.epsilon_lower)
        texts = (shown(found.epsilon), low, shown(found.rdp), bound(found.delta))
        settings = (Cell(one_line(found.method, LABEL_LENGTH), words=True), Cell(f"{found.tokens:,}"))
        cells = [*(Cell(text, _APPROXIMATE) for text in texts), *settings]
    return (_claimed(run, _APPROXIMATE), *cells, _neighbours(found, run, _APPROXIMATE))


def _same_length_table(same: SameLength, runs: _Runs) -> ComparisonTable:
    between = neighbours_of(same.figures[0])
    length = counted(same.tokens, "token")
    if same.kind == "ex-post":
        header: tuple[str, ...] = ("Exact", "Theorem 1", "Saving")
        note = f"Rebalancing included, had no batch gone beyond {length}: the shortest of the runs' longest batches."
    else:
        header = ("Epsilon", "Delta")
        note = f"For a public maximum of {length}, the smallest of the runs', each at its own δ."
    return ComparisonTable(
        f"{KIND_TITLES[same.kind]} at {length} (nats; {between})",
        same.kind,
        header,
        tuple((runs.number[figure.run], _same_length_cells(figure, runs)) for figure in same.figures),
        (note,),
    )


def _same_length_cells(figure: RunEpsilon, runs: _Runs) -> tuple[Cell, ...]:
    epsilon = runs.shown(figure.run, figure.kind, figure.epsilon)
    if figure.kind == _APPROXIMATE:
        shown: tuple[str, ...] = (epsilon, ABSENT if figure.delta is None else bound(figure.delta))
    elif figure.theorem1 is None:
        shown = (epsilon + _beside(figure.delta), ABSENT, ABSENT)
    else:
        theorem1 = runs.shown(figure.run, figure.kind, figure.theorem1)
        shown = (epsilon + _beside(figure.delta), theorem1, saving(figure.theorem1, figure.epsilon))
    return tuple(Cell(text, figure.kind) for text in shown)


def _budget_table(panel: BudgetPanel, runs: _Runs, figure: str) -> ComparisonTable:
    lengths = _shown_lengths(panel)
    rows = []
    for curve in panel.curves:
        named = Cell(ACCOUNTANTS[curve.accountant] + _beside(curve.delta), words=True)
        rows.append((runs.number[curve.run], (named, *(_at_length(curve, length, runs) for length in lengths))))
    return ComparisonTable(
        f"{KIND_TITLES[panel.kind]} by length (nats; {neighbours_of(panel)})",
        panel.kind,
        ("By", *(counted(length, "token") for length in lengths)),
        tuple(rows),
        (_BUDGET_NOTES[panel.kind],),
        figure=figure,
    )


def _shown_lengths(panel: BudgetPanel) -> list[int]:
    """Quarters of the longest curve, and where the shortest ends."""
    longest = max((curve.tokens for curve in panel.curves), key=lambda tokens: tokens[-1])
    quarters = {longest[-(-quarter * len(longest) // 4) - 1] for quarter in range(1, 5)}
    return sorted(quarters | {min(curve.tokens[-1] for curve in panel.curves)})


def _at_length(curve: BudgetCurve, length: int, runs: _Runs) -> Cell:
    """The first figure that covers the length."""
    place = bisect_left(curve.tokens, length)
    if place == len(curve.tokens):
        return Cell(ABSENT)
    return Cell(runs.shown(curve.run, curve.kind, curve.epsilon[place]), curve.kind)


def _affordable_table(found: Affordable, runs: _Runs) -> ComparisonTable:
    numbers = [runs.number[figure.run] for figure in found.figures]
    rows = tuple(
        (number, (*(Cell(_afforded(cell)) for cell in row), Cell(neighbours_of(figure), words=True)))
        for number, figure, row in zip(numbers, found.figures, found.cells, strict=True)
    )
    notes = ["A row's run, at the epsilon of the column's run."]
    if found.kind == _EX_POST:
        notes.append(_HINDSIGHT)
    if any(cell.all_generated for row in found.cells for cell in row):
        notes.append("At least (≥): all that its longest batch generated; what more would cost is unknown.")
    budgets = [f"run {runs.label(figure.run)}: {_budget(figure, runs)}" for figure in found.figures]
    return ComparisonTable(
        f"Tokens per batch within another run's {found.kind} epsilon",
        found.kind,
        (*budgets, "Neighbours"),
        rows,
        (*notes, *_refusals(found, numbers)),
    )


def _budget(figure: RunEpsilon, runs: _Runs) -> str:
    epsilon = runs.shown(figure.run, figure.kind, figure.epsilon)
    return epsilon + _beside(figure.delta)


def _beside(delta: float | None) -> str:
    return f", δ {bound(delta)}" if delta else ""


def _afforded(cell: Afforded) -> str:
    if cell.tokens is None:
        return ABSENT
    return f"{'≥ ' if cell.all_generated else ''}{cell.tokens:,}"


def _refusals(found: Affordable, runs: Sequence[int]) -> Iterator[str]:
    """Why cells have no figure, a line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for number, row in zip(runs, found.cells, strict=True):
        for other, cell in zip(runs, row, strict=True):
            if cell.reason:
                by_reason.setdefault(cell.reason, []).append(f"{number} at {other}")
    for reason, places in by_reason.items():
        yield f"No figure for {', '.join(places)}: {one_line(reason)}."


def _spread_table(comparison: Comparison, runs: _Runs) -> ComparisonTable:
    rows = []
    for spread in comparison.spreads:
        figures = [Cell(runs.shown(spread.run, _EX_POST, value), _EX_POST) for value in _five(spread)]
        words = (Cell(f"{spread.batches:,}"), Cell(neighbours_of(spread), words=True))
        rows.append((runs.number[spread.run], (*figures, *words)))
    return ComparisonTable(
        "Exact ex-post cost per batch (nats)",
        "ex-post",
        ("Least", "Lower quarter", "Median", "Upper quarter", "Most", "Batches", "Neighbours"),
        tuple(rows),
        ("How uneven the cost is. Quartiles are costs of actual batches: of two middle costs, the higher.",),
        figure=_SPREADS,
    )


def _five(spread: Spread) -> tuple[float, ...]:
    return (spread.minimum, spread.lower_quartile, spread.median, spread.upper_quartile, spread.maximum)


def _spread_described(spread: Spread, runs: _Runs) -> str:
    least, lower, median, upper, most = (runs.shown(spread.run, _EX_POST, value) for value in _five(spread))
    batches = counted(spread.batches, "batch", "batches")
    costs = f"least {least}, quartiles {lower}, {median} and {upper}, most {most} nats"
    return f"run {runs.label(spread.run)}, {batches}: {costs}"


def _empirical_table(comparison: Comparison) -> ComparisonTable:
    found = [run.guarantees.empirical for run in comparison.runs]
    losses = [ABSENT if each.leave_one_out_max is None else nearest(each.leave_one_out_max) for each in found]
    rows = [(Cell(loss, "empirical"), Cell(f"{each.contexts:,}")) for loss, each in zip(losses, found, strict=True)]
    return ComparisonTable(
        "Empirical losses (nats)",
        "empirical",
        ("Largest loss", "Contexts left out"),
        tuple(enumerate(rows, start=1)),
        ("Seen on actual left-out contexts; no guarantee.",),
    )


def _quality_tables(comparison: Comparison, kind: Kind | None, runs: _Runs) -> Iterator[ComparisonTable]:
    """What the texts are worth beside one kind of epsilon, for the evaluated runs that have it; else nothing.

    `kind` None is for runs that have no epsilon of either kind.
    """
    if kind is None:
        chosen = [run for run in comparison.runs if _total(run, _EX_POST) is None and _total(run, _APPROXIMATE) is None]
    else:
        chosen = [run for run in comparison.runs if _total(run, kind) is not None]
    names = {run.name for run in chosen}
    columns = [c for c in comparison.quality if any(figure.run in names for figure in c.figures)]
    if not columns:
        return
    titles = _quality_titles(columns)
    header = [] if kind is None else ["Epsilon (nats)"]
    for title in titles:
        header += [title, "Real texts"]
    rows = tuple((runs.number[run.name], _quality_cells(run, kind, columns)) for run in chosen)
    notes = [
        f"Internal. {QUALITY_WARNING}",
        "Real texts: as many of them in place of the synthetic ones, or as many as there are.",
    ]
    if len({column.measure for column in columns}) < len(columns):
        notes.append(
            "Figures of different n, features, settings, versions or real texts cannot be compared: each has a column "
            "of its own."
        )
    notes += [
        f"{title}: {one_line(column.features, LABEL_LENGTH)}." for title, column in zip(titles, columns, strict=True)
    ]
    title = "Quality of runs without an epsilon" if kind is None else f"Quality beside {_BESIDE[kind]}"
    yield ComparisonTable(title, kind, tuple(header), rows, tuple(notes))


def _quality_titles(columns: Sequence[QualityColumn]) -> list[str]:
    """A name for each column; those of one measure and n are numbered."""
    names = []
    for column in columns:
        if column.measure == "mauve":
            names.append(f"MAUVE, n = {column.n:,}")
        else:
            names.append(f"{METHODS[column.measure]}, {counted(column.n, 'test text')}")
    return [
        f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name for at, name in enumerate(names)
    ]


def _quality_cells(run: ComparedRun, kind: Kind | None, columns: Sequence[QualityColumn]) -> tuple[Cell, ...]:
    cells = [] if kind is None else [Cell(_total(run, kind) or ABSENT, kind)]
    for column in columns:
        found = next((figure for figure in column.figures if figure.run == run.name), None)
        cells += [Cell(shown(found.score if found else None)), Cell(shown(found.ceiling if found else None))]
    return tuple(cells)


def _total(run: ComparedRun, kind: Kind) -> str | None:
    """A run's epsilon of one kind with its delta; None where it has none."""
    ex_post, approximate = run.guarantees.ex_post, run.guarantees.approximate
    if kind == _EX_POST:
        return None if ex_post is None else bound(ex_post.total, _digits(run, kind)) + _beside(ex_post.delta)
    if approximate is None:
        return None
    return bound(approximate.epsilon, _digits(run, kind)) + _beside(approximate.delta)


def _digits(run: ComparedRun, kind: Kind) -> int:
    """Significant digits for every figure of this kind that a run has: enough not to round one past its claim."""
    found = run.guarantees
    if kind == _EX_POST:
        return digits_for(kind, run.claim, None if found.ex_post is None else found.ex_post.total)
    return digits_for(kind, run.claim, None if found.approximate is None else found.approximate.epsilon)


def _claimed(run: ComparedRun, kind: Kind) -> Cell:
    claim = run.claim
    if claim is None or claim.kind != kind:
        return Cell(ABSENT)
    return Cell(stated(claim.epsilon) + (f", δ {stated(claim.delta)}" if claim.delta else ""), kind)


def _neighbours(found: ExPost | Approximate | None, run: ComparedRun, kind: Kind) -> Cell:
    """What the recomputed figure holds for, and what the claim does where that differs."""
    claimed = neighbours_of(run.claim) if run.claim is not None and run.claim.kind == kind else ABSENT
    computed = claimed if found is None else neighbours_of(found)
    same = claimed in (ABSENT, computed)
    return Cell(computed if same else f"{computed} (claimed: {claimed})", words=True)


def _setting(value: str | float | None) -> str:
    if value is None:
        return ABSENT
    return one_line(value, LABEL_LENGTH) if isinstance(value, str) else stated(value)


def _name(run: ComparedRun) -> str:
    return one_line(run.name, LABEL_LENGTH) or "unnamed"


def _warning(comparison: Comparison) -> str:
    private = any(
        run.guarantees.ex_post is not None or run.guarantees.empirical.leave_one_out_max is not None
        for run in comparison.runs
    )
    return PRIVATE_FIGURES if private or comparison.spreads else PRIVATE_REPORT


def _parts(table: ComparisonTable, width: int) -> Iterator[ComparisonTable]:
    """The table in as many pieces, one below the other, as it takes for no word of a column to be cut."""
    needed = [_longest_word(texts) for texts in _columns(table)]
    taken: list[int] = []
    for column in range(len(table.header)):
        if taken and _FIRST + sum(needed[other] + _GAP for other in (*taken, column)) > width:
            yield _piece(table, taken)
            taken = []
        taken.append(column)
    yield _piece(table, taken)


def _piece(table: ComparisonTable, columns: Sequence[int]) -> ComparisonTable:
    rows = tuple((number, tuple(cells[column] for column in columns)) for number, cells in table.rows)
    return replace(table, header=tuple(table.header[column] for column in columns), rows=rows)


def _printed(table: ComparisonTable, width: int) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 0, 0, _GAP))
    shown.add_column("Run", width=_FIRST)
    for place, (name, column) in enumerate(zip(table.header, _widths(table, width), strict=True)):
        justify: Literal["left", "right"] = "left" if table.is_words(place) else "right"
        shown.add_column(Text(name), overflow="fold", width=column, justify=justify)
    for number, cells in table.rows:
        shown.add_row(table.run(number), *(Text(cell.text) for cell in cells))
    return shown


def _widths(table: ComparisonTable, width: int) -> list[int]:
    """Each column's width: its longest word, and what room is left to the columns that would else be wrapped."""
    columns = _columns(table)
    widths = [_longest_word(texts) for texts in columns]
    spare = width - _FIRST - sum(found + _GAP for found in widths)
    for column, texts in enumerate(columns):
        more = max(0, min(spare, max(cell_len(text) for text in texts) - widths[column]))
        widths[column] += more
        spare -= more
    return widths


def _columns(table: ComparisonTable) -> list[list[str]]:
    return [[name, *(cells[column].text for _, cells in table.rows)] for column, name in enumerate(table.header)]


def _longest_word(texts: Sequence[str]) -> int:
    """Width of the longest word, which is not broken unless it is very long."""
    return min(_WIDEST_WORD, max(cell_len(word) for text in texts for word in text.split() or [""]))
