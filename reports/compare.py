"""Two or more audited runs side by side, with each kind of epsilon in tables of its own.

Runs go by number, for their names are paths that no table has room for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from urllib.parse import quote

from dpaudit.claims import CLAIM_KINDS, EMPIRICAL, ApproximateClaim, ExPostClaim, ZcdpClaim
from dpaudit.reports import findings
from dpaudit.reports.document import (
    Banner,
    Block,
    Columns,
    Definitions,
    Document,
    Entry,
    Figure,
    Link,
    Paragraph,
    Piece,
    Section,
    Table,
    Text,
    Texts,
)
from dpaudit.reports.figures import ACCOUNTANTS, Drawing, budget_curves, spreads
from dpaudit.reports.levels import are_apart, claimed_and_recomputed_rho, digits_for, neighbours_of, promised, why_equal
from dpaudit.reports.quality import METHODS, difference, shown
from dpaudit.reports.text import LABEL_LENGTH, counted, fitting, grouped, one_line, printable
from dpaudit.reports.wording import (
    ABSENT,
    KIND_TITLES,
    VERDICT_NAMES,
    glossary,
    or_absent,
    say,
)
from dpaudit.reports.writers import html
from dpaudit.results import (
    Affordable,
    Approximate,
    BudgetPanel,
    ComparedRun,
    Comparison,
    ExPost,
    Kind,
    Message,
    QualityColumn,
    SameLength,
)
from dpaudit.results.rounding import (
    bound,
    bound_against,
    delta_bound,
    digits_against,
    lower_bound,
    nearest,
    saving,
    stated,
)

#: The most pairs of runs that the outcome has a sentence for.
_MOST_PAIRS = 10
_SETTINGS, _COUNTS = ("Verdict", "Mechanism", "Clip", "Temp."), ("Texts", "Empty", "Very short")
_BETWEEN = "Neighbours"
#: Columns of a run's epsilon of one kind: at either level, as recomputed and as claimed.
_LEVELS = ("ε, release level", "ε, batch level", "Claimed, release level", "Claimed, batch level")
#: Characters of caveats that a terminal shows of one run, and of all of them.
_OWN, _SHARED = 150, 430
#: Characters of a run's name in a table; the name that a page shows above is whole.
_SHORT_NAME = 20


@dataclass(frozen=True)
class Cell:
    """Text of one cell.

    Attributes:
        kind: set where the text is a figure of some kind of epsilon.
        words: set where it is no number.
    """

    text: str
    kind: Kind | None = None
    words: bool = False


@dataclass(frozen=True)
class ComparisonTable:
    """One table: a row of cells for each run, by the run's number, and figures of one kind at most.

    A page shows `figure` below it, with its `caption`. `starred` are the runs whose figures cannot be relied on, which
    a note explains. A terminal shows the columns of `brief` alone, and `brief_note`; nothing where both are empty.

    Raises:
        ValueError: a cell holds a figure of another kind than the table's.
    """

    title: str
    kind: Kind | None
    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[Cell, ...]], ...]
    notes: tuple[str, ...] = ()
    figure: Drawing | None = None
    caption: str = ""
    starred: frozenset[int] = frozenset()
    brief: tuple[str, ...] = ()
    brief_note: str = ""

    def block(self, runs: Mapping[int, str]) -> Table:
        """Return the rows as a table whose first column names the runs.

        It says what each number is to be followed by.
        """
        words = {0, *(at + 1 for at in range(len(self.header)) if any(cells[at].words for _, cells in self.rows))}
        rows = [
            (f"{number}{'*' * (number in self.starred)} {runs[number]}".strip(), *(cell.text for cell in cells))
            for number, cells in self.rows
        ]
        return Table.of(self.title, ("Run", *self.header), rows, words)

    def __post_init__(self) -> None:
        for _, cells in self.rows:
            if any(cell.kind not in (None, self.kind) for cell in cells):
                raise ValueError(f"{self.title}: figures of two kinds cannot share a table")


class _Runs:
    """Every run's number and digits by kind: one number never shows in two ways.

    The digits are those of its figures of a kind. `cautions`: of the runs whose epsilons cannot be
    relied on.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.number = {run.name: number for number, run in enumerate(comparison.runs, start=1)}
        self.cautions = {run.name: str(run.caution) for run in comparison.runs if run.caution}
        self.claims = {run.name: run.claim for run in comparison.runs}
        self.digits: dict[tuple[str, Kind], int] = {}
        for run in comparison.runs:
            for kind in CLAIM_KINDS:
                self.digits[run.name, kind] = digits_for(run.claim, run.guarantees.epsilons(kind))

    def label(self, run: str) -> str:
        """Return a run's number, with a star where its epsilons cannot be relied on."""
        return f"{self.number[run]}{'*' * (run in self.cautions)}"

    def warnings(self, numbers: Collection[int]) -> tuple[str, ...]:
        """Return what each star says, for the runs of these numbers."""
        starred = ((self.number[run], caution) for run, caution in self.cautions.items())
        return tuple(f"* run {number}: {one_line(caution)}." for number, caution in starred if number in numbers)

    def shown(self, run: str, kind: Kind, value: float, delta: float | None = None) -> str:
        """Return a run's figure, rounded up, with its delta; never past a claim of its kind.

        That is a claim that the figure keeps.
        """
        claim = self.claims[run]
        stated_for = () if claim is None or claim.kind != kind else (claim.epsilon, claim.batch_epsilon)
        claimed = min((each for each in stated_for if each is not None and value <= each), default=None)
        return bound(value, max(self.digits[run, kind], digits_against(value, claimed))) + _beside(delta)


def summary(comparison: Comparison) -> Document:
    """Return the screen: two runs take some 40 lines of 80 columns."""
    own, shared = _caveats(comparison)
    blocks: list[Block] = [Paragraph(said, "strong") for said in outcomes(comparison)]
    runs: list[Block] = []
    for number, run in enumerate(comparison.runs, start=1):
        runs.append(Paragraph(f"{VERDICT_NAMES[run.verdict].upper()}, {_name(run)}", lead=f"{number}:"))
        runs += _fitting(own[run.name], _OWN)
    blocks.append(Section("Verdicts", [*runs, *_fitting(shared, _SHARED)]))
    numbers = dict.fromkeys(range(1, len(comparison.runs) + 1), "")
    for table in filter(None, map(_brief, tables(comparison))):
        note = [Paragraph(table.brief_note, "quiet")] if table.brief_note else []
        blocks.append(Section(table.title, [table.block(numbers), *note]))
    blocks.append(
        Section(
            "",
            [Paragraph(f"{say('of-levels')} {say('kinds-not-compared')}"), Paragraph(say("comparison-more"), "quiet")],
        )
    )
    return Document("", blocks)


def _fitting(caveats: Sequence[str], most: int) -> Iterator[Paragraph]:
    """Yield as many of the caveats as these characters hold, at least one, and count the others."""
    if said := fitting(caveats, "`dpaudit verify` says them", lambda said: len(said) <= most):
        yield Paragraph(said, "caution")


def _brief(table: ComparisonTable) -> ComparisonTable | None:
    """Return a table for a terminal: some columns, of the runs with anything in them, or None.

    What all figures hold for stands in the title.
    """
    places = [place for place, name in enumerate(table.header) if name in table.brief]
    rows = [(number, cells) for number, cells in table.rows if any(cells[at].text != ABSENT for at in places)]
    if not rows:
        return None
    title, between = table.title, {cells[at].text for _, cells in rows for at in places if table.header[at] == _BETWEEN}
    if len(between) == 1:
        places = [at for at in places if table.header[at] != _BETWEEN]
        title = f"{title}, {between.pop()}"
    header = tuple(table.header[at] for at in places)
    kept = tuple((number, tuple(cells[at] for at in places)) for number, cells in rows)
    return replace(table, title=title, header=header, rows=kept)


def render_comparison_html(comparison: Comparison, links: Mapping[str, str] | None = None) -> str:
    """Return the comparison as one self-contained page; see `build`."""
    return html.render(build(comparison, links))


def build(comparison: Comparison, links: Mapping[str, str] | None = None) -> Document:
    """Return the comparison as a page.

    Args:
        comparison: two or more runs.
        links: path of each run's report.html, relative to the folder that the page will lie in.
    """
    own, shared = _caveats(comparison)
    runs = _Runs(comparison)
    cards = [_card(number, run, runs, own[run.name], links or {}) for number, run in enumerate(comparison.runs, 1)]
    private = comparison.spreads or any(
        run.guarantees.ex_post is not None or run.guarantees.empirical.leave_one_out_max is not None
        for run in comparison.runs
    )
    names = {runs.number[run.name]: _short(run) for run in comparison.runs}
    listed = tables(comparison)
    blocks: list[Block] = [
        Columns(cards),
        *(Paragraph(said, "lead") for said in outcomes(comparison)),
        Paragraph(f"{say('of-levels')} {say('not-comparable')}"),
        *(Paragraph(caveat, "quiet") for caveat in shared),
        Banner("Private.", say("private-figures") if private else say("private-report")),
        *(_section(f"table-{place}", table, names) for place, table in enumerate(listed, start=1)),
        Paragraph("A dash: not claimed, not computed or not to be compared.", "quiet"),
        Section("Glossary", [Definitions([Entry(*each) for each in glossary().items()], "terms")], "glossary"),
    ]
    return Document(
        f"{len(comparison.runs)} runs compared",
        blocks,
        masthead=("Privacy audit comparison · private",),
        footer="Written by dpaudit. `dpaudit compare --json` prints every figure in full.",
    )


def _card(number: int, run: ComparedRun, runs: _Runs, caveats: Sequence[str], links: Mapping[str, str]) -> Section:
    about, epsilons = _about(run, runs)
    texts = [
        Text(f"run-{number}-text-{place}", heading, "", [Piece(text)])
        for place, (heading, text) in enumerate(_texts(run), start=1)
    ]
    # Quoting the colon keeps a path from being read as a scheme such as javascript:.
    name = Link(_name(run), quote(links[run.name])) if run.name in links else _name(run)
    blocks: list[Block] = [Paragraph(about), Paragraph(epsilons, "strong")]
    blocks += [Texts(texts)] if texts else []
    blocks += [Paragraph(one_line(said), "quiet") for said in (run.guarantee, *caveats)]
    return Section((f"{number} ", name), blocks, f"run-{number}", status=run.verdict)


def _section(anchor: str, table: ComparisonTable, names: Mapping[int, str]) -> Section:
    blocks: list[Block] = [*map(Paragraph, table.notes), table.block(names)]
    if table.caption:
        blocks.append(Figure(table.figure, table.caption))
    return Section(table.title, blocks, anchor)


def outcomes(comparison: Comparison) -> tuple[str, ...]:
    """Say what came of it: tokens within another run's epsilon, and figures that do not count."""
    runs = _Runs(comparison)
    said: list[str] = []
    for found in comparison.affordable:
        pairs = list(_within(found, comparison, runs))
        said += pairs[:_MOST_PAIRS]
        if len(pairs) > _MOST_PAIRS:
            said.append(f"The tables below have {counted(len(pairs) - _MOST_PAIRS, 'more pair')}.")
        if _is_hindsight(found) and pairs:
            said.append(say("hindsight"))
    if not said:
        said = ["No two runs have figures that hold and can be set side by side."]
    said += _budgets_said(comparison, runs)
    said += [f"Run {runs.label(run)} {one_line(caution)}." for run, caution in runs.cautions.items()]
    unread = [runs.number[run.name] for run in comparison.runs if run.verdict == "error"]
    return (*said, *(f"Run {number} cannot be read as a whole, so it has no figures." for number in unread))


def _is_hindsight(found: Affordable) -> bool:
    """Return whether texts seem to fit another's epsilon if cut, by figures known afterwards."""
    shorter = any(cell.tokens is not None and not cell.all_generated for row in found.cells for cell in row)
    return shorter and found.kind == ExPostClaim.id


def _budgets_said(comparison: Comparison, runs: _Runs) -> Iterator[str]:
    """Yield a sentence for each run with budgets: its promise beside worst-case accounting.

    The accounting is at the run's own length. Below which clip that would promise as much is how
    far contexts really moved the draws.
    """
    curves = {(c.run, c.accountant): c for panel in comparison.budgets for c in panel.curves}
    for run in comparison.runs:
        promised, found = curves.get((run.name, "budgets")), run.guarantees.approximate
        if run.budgets is None or promised is None or found is None or run.name in runs.cautions:
            continue
        worst = curves.get((run.name, "optimal")) or curves.get((run.name, "rdp"))
        if worst is None or found.tokens not in worst.tokens:
            continue
        of = dict(zip(worst.tokens, worst.epsilon, strict=True))[found.tokens]
        number, tokens = runs.number[run.name], counted(found.tokens, "token")
        epsilon, other = (runs.shown(run.name, ApproximateClaim.id, value) for value in (promised.epsilon[0], of))
        yield (
            f"Run {number}'s budgets promise ε {epsilon} (batch level) for any length; worst-case accounting, {other} "
            f"at {tokens}."
        )
        if run.clip is not None and run.budgets.moved:
            moved = run.budgets.moved
            yield (
                f"Its contexts moved draws {100 * moved:.0f}% as far as clip {nearest(run.clip)} lets any: with a clip "
                f"of about {nearest(moved * run.clip, 2)} or less, worst-case accounting would cost no more."
            )


def _within(found: Affordable, comparison: Comparison, runs: _Runs) -> Iterator[str]:
    """Yield a sentence for each pair of runs whose figures hold, on tokens within an epsilon.

    The tokens are one run's, the epsilon is the other's.
    """
    by_name = {run.name: run for run in comparison.runs}
    # Budgets pay for any length: tokens are nothing that such a run affords.
    endless = {run.name for run in comparison.runs if run.budgets is not None and found.kind == ApproximateClaim.id}
    held = [place for place, figure in enumerate(found.figures) if figure.run not in runs.cautions]
    for pair in combinations(held, 2):
        budget, run = sorted(pair, key=lambda place: found.figures[place].epsilon)
        # The other way round where a larger delta forbids this one.
        for within, spent in ((budget, run), (run, budget)):
            tokens = found.cells[spent][within].tokens
            lender, spender = found.figures[within].run, found.figures[spent].run
            if tokens is not None and spender not in endless:
                amount = _amount(tokens, by_name[spender], found.kind)
                lent = f"run {runs.number[lender]}'s {found.kind} epsilon (batch level)"
                yield f"Within {lent}, run {runs.number[spender]} affords {amount}."
                break


def _amount(tokens: int, run: ComparedRun, kind: Kind) -> str:
    """Return so many tokens in words, beside the most that a batch had.

    Where epsilon is about what a batch may have, they stand beside that.
    """
    approximate = run.guarantees.approximate
    length = approximate.tokens if kind == ApproximateClaim.id and approximate is not None else run.longest_batch
    if tokens > length:
        return f"{counted(tokens, 'token')}, beyond its maximum of {length:,}"
    return f"all {counted(length, 'token')}" if tokens == length else f"{tokens:,} of {counted(length, 'token')}"


def _caveats(comparison: Comparison) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    """Return single runs' caveats by name, and shared ones, with the numbers of their runs."""
    words, numbers = dict[str, str](), dict[str, list[int]]()
    for number, run in enumerate(comparison.runs, 1):
        for caveat in run.caveats:
            words[_key(caveat)] = str(caveat)
            numbers.setdefault(_key(caveat), []).append(number)
    own = {
        run.name: tuple(str(caveat) for caveat in run.caveats if len(numbers[_key(caveat)]) == 1)
        for run in comparison.runs
    }
    shared = []
    for key, found in numbers.items():
        if len(found) > 1:
            whose = "All runs" if len(found) == len(comparison.runs) else f"Runs {', '.join(map(str, found))}"
            shared.append(f"{whose}: {one_line(words[key])}")
    return own, tuple(shared)


def _key(caveat: Message) -> str:
    """Return code and values, which caveats that say the same have in common."""
    return caveat.model_dump_json(exclude={"words"})


def tables(comparison: Comparison) -> tuple[ComparisonTable, ...]:
    """Return every table of the comparison, in order."""
    runs = _Runs(comparison)

    def rows(cells: Callable[[ComparedRun], tuple[Cell, ...]]) -> tuple[tuple[int, tuple[Cell, ...]], ...]:
        return tuple(enumerate(map(cells, comparison.runs), start=1))

    general = ComparisonTable(
        "Runs",
        None,
        (*_SETTINGS, "Batches", "Contexts", *_COUNTS, "Tokens", "Longest"),
        rows(_run_cells),
        (f"{say('runs-summed')} {say('very-short')}",),
        brief=(*_SETTINGS[1:], "Contexts", *_COUNTS, "Tokens"),
        brief_note=say("very-short"),
    )
    ex_post = ComparisonTable(
        "Ex-post epsilon (nats)",
        ExPostClaim.id,
        (*_LEVELS, "Exact", "Theorem 1", "Saving", "Rise", "Fall", _BETWEEN),
        rows(lambda run: _ex_post_cells(run, runs)),
        (
            f"{say('known-afterwards')} Exact, Theorem 1, rise and fall are of the batch level. Exact is the larger "
            "of rise and fall; the level's total adds rebalancing. A δ is that of noised centres.",
            *_equal_levels(comparison, ExPostClaim.id, runs),
        ),
        brief=(*_LEVELS[:-1], "Exact", "Theorem 1", "Saving", _BETWEEN),
        brief_note=say("known-afterwards"),
    )
    approximate = ComparisonTable(
        "Approximate DP (epsilon in nats)",
        ApproximateClaim.id,
        (*_LEVELS, "Lower end", "By Rényi DP", "Delta", "Method", "Tokens", _BETWEEN),
        rows(lambda run: _approximate_cells(run, runs)),
        (
            f"{say('fixed-beforehand')} Lower end, Rényi DP and method are of the batch level.",
            *_equal_levels(comparison, ApproximateClaim.id, runs),
        ),
        brief=(*_LEVELS[:-1], "By Rényi DP", "Delta", _BETWEEN),
        brief_note=say("fixed-beforehand"),
    )
    empirical = ComparisonTable(
        "Empirical losses (nats)",
        EMPIRICAL,
        ("Largest loss", "Contexts left out"),
        rows(_empirical_cells),
        ("Seen on actual left-out contexts; no guarantee.",),
    )
    found = [general, *_rho_table(comparison, runs)]
    told = any(_is_hindsight(each) and any(_within(each, comparison, runs)) for each in comparison.affordable)
    overviews: dict[Kind, ComparisonTable] = {ExPostClaim.id: ex_post, ApproximateClaim.id: approximate}
    for kind, overview in overviews.items():
        found.append(replace(overview, notes=(*overview.notes, *_left_out(comparison, kind, runs.number))))
        found += [_same_length_table(same, runs) for same in comparison.same_length if same.kind == kind]
        budgets = enumerate(comparison.budgets, start=1)
        found += [_budget_table(panel, runs, f"budgets-{place}") for place, panel in budgets if panel.kind == kind]
        found += [_affordable_table(tokens, runs, told) for tokens in comparison.affordable if tokens.kind == kind]
        if kind == ExPostClaim.id and comparison.spreads:
            found.append(_spread_table(comparison, runs))
        found += _quality_tables(comparison, kind, runs)
    found = [_starred(table, comparison, runs) for table in found]
    return (*found, *_quality_tables(comparison, None, runs), empirical)


def _rho_table(comparison: Comparison, runs: _Runs) -> Iterator[ComparisonTable]:
    """Yield the rhos of the runs that claim one, to compare as they are, or nothing without any."""
    rows = []
    for found in comparison.rhos:
        claim = runs.claims[found.run]
        claimed = None if claim is None else claim.rho
        figures = (or_absent(claimed, stated), bound_against(found.rho, claimed))
        rows.append((runs.number[found.run], (*_cells(figures, ZcdpClaim.id), Cell(neighbours_of(found), words=True))))
    if rows:
        header = ("Claimed", "Recomputed", _BETWEEN)
        title, notes = "zCDP (rho in nats, batch level)", (ZcdpClaim.meaning,)
        yield ComparisonTable(title, ZcdpClaim.id, header, tuple(rows), notes, brief=header)


def _starred(table: ComparisonTable, comparison: Comparison, runs: _Runs) -> ComparisonTable:
    """Return the table with stars and notes for runs whose figures cannot be relied on.

    Figures are of the table's kind.
    """
    kind, listed = table.kind, {number for number, _ in table.rows}
    doubtful = (run for run in comparison.runs if run.caution and kind is not None and _total(run, kind, runs))
    starred = listed.intersection(runs.number[run.name] for run in doubtful)
    # The caption of a figure has it already.
    notes = () if table.figure else runs.warnings(starred)
    return replace(table, starred=frozenset(starred), notes=(*table.notes, *notes))


def _left_out(comparison: Comparison, kind: Kind, numbers: Mapping[str, int]) -> Iterator[str]:
    by_reason = grouped((str(left.reason), numbers[left.run]) for left in comparison.left_out if left.kind == kind)
    for reason, runs in by_reason.items():
        named = f"run{'s' * (len(runs) > 1)} {', '.join(map(str, runs))}"
        yield f"Not set beside others: {named} ({one_line(reason)})."


def _cells(texts: Iterable[str], kind: Kind | None = None) -> tuple[Cell, ...]:
    return tuple(Cell(text, kind) for text in texts)


def _run_cells(run: ComparedRun) -> tuple[Cell, ...]:
    found = run.released
    short = (None, None) if found is None else (found.empty, found.very_short)
    counts = (run.batches, run.contexts, run.texts, *short, run.tokens, run.longest_batch)
    # Counts of what was read before it broke off are counts of nothing.
    amounts = [ABSENT if run.verdict == "error" or count is None else f"{count:,}" for count in counts]
    mechanism = _mechanism(run) or ABSENT
    settings = (or_absent(run.clip, stated), or_absent(run.temperature, stated))
    return (
        Cell(VERDICT_NAMES[run.verdict].upper(), words=True),
        Cell(mechanism, words=True),
        *_cells((*settings, *amounts)),
    )


def _mechanism(run: ComparedRun) -> str:
    named = " of ".join(name for name in (run.aggregator, run.contribution) if name is not None)
    return one_line(named, LABEL_LENGTH)


def _about(run: ComparedRun, runs: _Runs) -> tuple[str, str]:
    """Return what a run is, how much came out of it, and its epsilons; empty if unknown."""
    settings = (("clip", run.clip), ("temperature", run.temperature))
    what = [_mechanism(run).capitalize(), *(f"{name} {stated(value)}" for name, value in settings if value is not None)]
    about = [", ".join(filter(None, what))]
    if run.verdict != "error":
        about.append(f"{counted(run.contexts, 'context')} in {counted(run.batches, 'batch', 'batches')}")
        about.append(f"Texts: {findings.texts(run.released) if run.released else f'{run.texts:,}'}")
    claim, spent = run.claim, []
    if claim is not None and claim.rho is not None:
        spent.append(f"{KIND_TITLES[claim.kind]}, {claimed_and_recomputed_rho(claim, run.guarantees)}")
    elif claim is not None:
        found, title = _found(run, claim.kind), KIND_TITLES[claim.kind]
        apart = are_apart(claim, found)
        level = ", release level" if apart else ", both levels" * bool(why_equal(found))
        spent.append(f"{title}{level}: {promised(claim)} claimed")
        if found is not None:
            spent[-1] += f", {runs.shown(run.name, claim.kind, found.epsilon)} recomputed"
        if apart:
            there = [] if claim.batch_epsilon is None else [f"{stated(claim.batch_epsilon)} claimed"]
            there += [] if found is None else [f"{runs.shown(run.name, claim.kind, found.batch_epsilon)} recomputed"]
            spent.append(f"batch level: ε ≤ {', '.join(there)}")
        spent += [f"δ = {delta_bound(claim.delta, claim.delta)}"] * bool(claim.delta)
    return "".join(f"{said}. " for said in filter(None, about)).strip(), "; ".join(spent)


def _texts(run: ComparedRun) -> Iterator[tuple[str, str]]:
    """Yield each of a run's texts that are shown, below what it is."""
    for sample in run.samples:
        about = f"Batch {sample.batch}" + ("" if sample.label is None else f", {one_line(sample.label, LABEL_LENGTH)}")
        text = printable(sample.text or "").strip() or ("(token ids alone)" if sample.text is None else "(empty)")
        yield about, text + ("…" if sample.characters > len(sample.text or "") else "")


def _ex_post_cells(run: ComparedRun, runs: _Runs) -> tuple[Cell, ...]:
    found = run.guarantees.ex_post
    cells = _cells([ABSENT] * 5)
    if found is not None:
        exact, theorem1, rise, fall = (
            runs.shown(run.name, ExPostClaim.id, value)
            for value in (found.exact, found.theorem1, found.rise, found.fall)
        )
        cells = _cells((exact, theorem1, saving(found.theorem1, found.exact), rise, fall), ExPostClaim.id)
    return (*_at_levels(found, run, ExPostClaim.id, runs), *cells, _neighbours(found, run, ExPostClaim.id))


def _approximate_cells(run: ComparedRun, runs: _Runs) -> tuple[Cell, ...]:
    found = run.guarantees.approximate
    cells = _cells([ABSENT] * 5)
    if found is not None:
        rdp = runs.shown(run.name, ApproximateClaim.id, found.batch_rdp)
        figures = _cells(
            (or_absent(found.batch_lower, lower_bound), rdp, delta_bound(found.delta)), ApproximateClaim.id
        )
        cells = (*figures, Cell(one_line(found.method, LABEL_LENGTH), words=True), Cell(f"{found.tokens:,}"))
    return (*_at_levels(found, run, ApproximateClaim.id, runs), *cells, _neighbours(found, run, ApproximateClaim.id))


def _at_levels(found: ExPost | Approximate | None, run: ComparedRun, kind: Kind, runs: _Runs) -> tuple[Cell, ...]:
    """Return cells under _LEVELS."""
    values = (None, None) if found is None else (found.epsilon, found.batch_epsilon)
    delta = found.delta if isinstance(found, ExPost) else None
    claim = run.claim if run.claim is not None and run.claim.kind == kind else None
    claimed = (None, None) if claim is None else (claim.epsilon, claim.batch_epsilon)
    beside = f", δ {delta_bound(claim.delta, claim.delta)}" if claim is not None and claim.delta else ""
    return tuple(
        Cell(ABSENT) if value is None else Cell(text, kind)
        for value, text in (
            *((value, "" if value is None else runs.shown(run.name, kind, value, delta)) for value in values),
            *((value, "" if value is None else stated(value) + beside) for value in claimed),
        )
    )


def _equal_levels(comparison: Comparison, kind: Kind, runs: _Runs) -> Iterator[str]:
    """Yield why levels are equal, once for all runs that it is true of."""
    figures = ((run, _found(run, kind)) for run in comparison.runs)
    reasons = grouped((why_equal(found), runs.number[run.name]) for run, found in figures if why_equal(found))
    for reason, numbers in reasons.items():
        yield f"Run{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {reason}"


def _empirical_cells(run: ComparedRun) -> tuple[Cell, ...]:
    found = run.guarantees.empirical
    return (Cell(or_absent(found.leave_one_out_max, nearest), EMPIRICAL), Cell(f"{found.contexts:,}"))


def _same_length_table(same: SameLength, runs: _Runs) -> ComparisonTable:
    length = counted(same.tokens, "token")
    header: tuple[str, ...] = ("Epsilon", "Delta")
    note = f"For a public maximum of {length}, the smallest of the runs', each at its own δ."
    if same.kind == ExPostClaim.id:
        header = ("Exact", "Theorem 1", "Saving")
        note = f"Rebalancing included, had no batch gone beyond {length}: the shortest of the runs' longest batches."
    rows = []
    for figure in same.figures:
        epsilon = runs.shown(figure.run, same.kind, figure.epsilon)
        texts: tuple[str, ...] = (epsilon, or_absent(figure.delta, delta_bound))
        if same.kind == ExPostClaim.id:
            theorem1, saved = ABSENT, ABSENT
            if figure.theorem1 is not None:
                theorem1 = runs.shown(figure.run, same.kind, figure.theorem1)
                saved = saving(figure.theorem1, figure.epsilon)
            texts = (epsilon + _beside(figure.delta), theorem1, saved)
        rows.append((runs.number[figure.run], _cells(texts, same.kind)))
    title = f"{KIND_TITLES[same.kind]} at {length}, batch level (nats; {neighbours_of(same.figures[0])})"
    return ComparisonTable(title, same.kind, header, tuple(rows), (note,))


def _budget_table(panel: BudgetPanel, runs: _Runs, name: str) -> ComparisonTable:
    # Quarters of the longest curve, and where the shortest ends.
    longest = max((curve.tokens for curve in panel.curves), key=lambda tokens: tokens[-1])
    quarters = {longest[-(-quarter * len(longest) // 4) - 1] for quarter in range(1, 5)}
    lengths = sorted(quarters | {min(curve.tokens[-1] for curve in panel.curves)})
    rows = []
    for curve in panel.curves:
        cells = [Cell(ACCOUNTANTS[curve.accountant] + _beside(curve.delta), words=True)]
        for length in lengths:
            place = bisect_left(curve.tokens, length)  # of the first figure that covers the length
            if place == len(curve.tokens):
                cells.append(Cell(ABSENT))
            else:
                cells.append(Cell(runs.shown(curve.run, curve.kind, curve.epsilon[place]), curve.kind))
        rows.append((runs.number[curve.run], tuple(cells)))
    warned = runs.warnings({runs.number[curve.run] for curve in panel.curves})
    return ComparisonTable(
        f"{KIND_TITLES[panel.kind]} by length, batch level (nats; {neighbours_of(panel)})",
        panel.kind,
        ("By", *(counted(length, "token") for length in lengths)),
        tuple(rows),
        (say(f"budgets-{panel.kind}"),),
        budget_curves(panel, runs.number, runs.digits, name, runs.cautions),
        " ".join((say("budgets-caption"), *warned)),
    )


def _affordable_table(found: Affordable, runs: _Runs, told: bool) -> ComparisonTable:
    """Return the tokens within each other's epsilons.

    `told` is whether `outcomes` warns of hindsight already.
    """
    numbers = [runs.number[figure.run] for figure in found.figures]
    notes = ["A row's run, at the epsilon of the column's run."]
    if found.kind == ExPostClaim.id and not told:
        notes.append(say("hindsight"))
    if any(cell.all_generated for row in found.cells for cell in row):
        notes.append("At least (≥): all that its longest batch generated; what more would cost is unknown.")
    rows, refused = [], []
    for number, figure, row in zip(numbers, found.figures, found.cells, strict=True):
        tokens = (ABSENT if c.tokens is None else f"{'≥ ' * c.all_generated}{c.tokens:,}" for c in row)
        rows.append((number, (*_cells(tokens), Cell(neighbours_of(figure), words=True))))
        refused += [(str(c.reason), f"{number} at {other}") for other, c in zip(numbers, row, strict=True) if c.reason]
    notes += [f"No figure for {', '.join(at)}: {one_line(reason)}." for reason, at in grouped(refused).items()]
    budgets = (
        f"run {runs.label(figure.run)}: {runs.shown(figure.run, figure.kind, figure.epsilon, figure.delta)}"
        for figure in found.figures
    )
    title = f"Tokens per batch within another run's {found.kind} epsilon, batch level"
    return ComparisonTable(title, found.kind, (*budgets, "Neighbours"), tuple(rows), tuple(notes))


def _beside(delta: float | None) -> str:
    return f", δ {delta_bound(delta)}" if delta else ""


def _spread_table(comparison: Comparison, runs: _Runs) -> ComparisonTable:
    rows, described = [], []
    for spread in comparison.spreads:
        five = (spread.minimum, spread.lower_quartile, spread.median, spread.upper_quartile, spread.maximum)
        texts = [runs.shown(spread.run, ExPostClaim.id, value) for value in five]
        words = (Cell(f"{spread.batches:,}"), Cell(neighbours_of(spread), words=True))
        rows.append((runs.number[spread.run], (*_cells(texts, ExPostClaim.id), *words)))
        least, lower, median, upper, most = texts
        costs = f"least {least}, quartiles {lower}, {median} and {upper}, most {most} nats"
        described.append(f"run {runs.label(spread.run)}, {counted(spread.batches, 'batch', 'batches')}: {costs}")
    return ComparisonTable(
        "Exact ex-post cost per batch, batch level (nats)",
        ExPostClaim.id,
        ("Least", "Lower quarter", "Median", "Upper quarter", "Most", "Batches", "Neighbours"),
        tuple(rows),
        ("How uneven the cost is. Quartiles are costs of actual batches: of two middle costs, the higher.",),
        spreads([(runs.label(spread.run), spread) for spread in comparison.spreads], "; ".join(described)),
        " ".join((say("spreads-caption"), *runs.warnings({number for number, _ in rows}))),
    )


def _quality_tables(comparison: Comparison, kind: Kind | None, runs: _Runs) -> Iterator[ComparisonTable]:
    """Yield quality beside one kind of epsilon, for the evaluated runs that have it, or nothing.

    `kind` None is for runs that have no epsilon of either kind.
    """
    kinds: dict[Kind, str] = {ExPostClaim.id: "ex-post epsilon", ApproximateClaim.id: "approximate DP"}
    chosen = [
        run
        for run in comparison.runs
        if (_total(run, kind, runs) if kind else not any(_total(run, each, runs) for each in kinds))
    ]
    names = {run.name for run in chosen}
    columns = [c for c in comparison.quality if any(figure.run in names for figure in c.figures)]
    if not columns:
        return
    titles = _quality_titles(columns)
    beside = any(figure.public for column in columns for figure in column.figures)
    rows = []
    for run in chosen:
        totals = None if kind is None else _total(run, kind, runs)
        cells = [] if totals is None else list(_cells(totals, kind))
        for column in columns:
            found = next((figure for figure in column.figures if figure.run == run.name), None)
            figures = [found.score, found.public, found.ceiling] if found else [None] * 3
            cells += _cells(shown(each) for each in (figures if beside else figures[::2]))
        rows.append((runs.number[run.name], tuple(cells)))
    notes = [
        f"Internal. {say('quality-private')}",
        "Real texts: as many of them in place of the synthetic ones, or as many as there are.",
    ]
    if len({column.measure for column in columns}) < len(columns):
        notes.append(say("columns-differ"))
    numbers = {run.name: runs.number[run.name] for run in chosen}
    if beside:
        notes += [say("quality-added"), *_added(columns, titles, numbers)]
    notes += [
        f"{title}: {one_line(column.features, LABEL_LENGTH)}." for title, column in zip(titles, columns, strict=True)
    ]
    others = ("Public only", "Real texts") if beside else ("Real texts",)
    header = [*_LEVELS[: 2 * (kind is not None)], *(name for title in titles for name in (title, *others))]
    title = "Quality of runs without an epsilon" if kind is None else f"Quality beside {kinds[kind]}"
    brief = (
        "Internal: publishing these would leak private information that no epsilon covers.",
        *_added(columns, titles, numbers),
    )
    yield ComparisonTable(
        title, kind, tuple(header), tuple(rows), tuple(notes), brief=tuple(header), brief_note=" ".join(brief)
    )


def _added(columns: list[QualityColumn], titles: list[str], numbers: Mapping[str, int]) -> Iterator[str]:
    """Yield what the records of each run that has a number added, measure by measure."""
    for column, title in zip(columns, titles, strict=True):
        said = [
            f"run {numbers[each.run]} {difference(each.added)}"
            for each in column.figures
            if each.added is not None and each.run in numbers
        ]
        if said:
            yield f"Added by records, {title}: {'; '.join(said)}."


def _quality_titles(columns: list[QualityColumn]) -> list[str]:
    """Return a name for each column; those of one measure and n are numbered."""
    names = [
        f"MAUVE, n = {column.n:,}"
        if column.measure == "mauve"
        else f"{METHODS[column.measure]}, {counted(column.n, 'test text')}"
        for column in columns
    ]
    return [
        f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name for at, name in enumerate(names)
    ]


def _total(run: ComparedRun, kind: Kind, runs: _Runs) -> tuple[str, str] | None:
    """Return a run's epsilon of one kind with its delta, at release and batch level, or None."""
    found = _found(run, kind)
    if found is None:
        return None
    return (
        runs.shown(run.name, kind, found.epsilon, found.delta),
        runs.shown(run.name, kind, found.batch_epsilon, found.delta),
    )


def _found(run: ComparedRun, kind: Kind) -> ExPost | Approximate | None:
    """Return a run's recomputed figures of one kind; None where it has none."""
    return None if kind == EMPIRICAL else run.guarantees.epsilons(kind)


def _neighbours(found: ExPost | Approximate | None, run: ComparedRun, kind: Kind) -> Cell:
    """Return what the recomputed figure holds for, and what the claim does where that differs."""
    claimed = neighbours_of(run.claim) if run.claim is not None and run.claim.kind == kind else ABSENT
    computed = claimed if found is None else neighbours_of(found)
    same = claimed in (ABSENT, computed)
    return Cell(computed if same else f"{computed} (claimed: {claimed})", words=True)


def _short(run: ComparedRun) -> str:
    """Return the end of a run's name, for a table."""
    name = one_line(run.name.rstrip("/").rpartition("/")[2])
    return name if len(name) <= _SHORT_NAME else f"{name[: _SHORT_NAME - 1]}…"


def _name(run: ComparedRun) -> str:
    return one_line(run.name, LABEL_LENGTH) or "unnamed"
