"""Audited runs side by side, each kind of epsilon in tables of its own. Runs go by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from pydantic import JsonValue

from dpaudit.mechanisms.claims import CLAIM_KINDS, EMPIRICAL, ExPostClaim
from dpaudit.reports import findings, terminal
from dpaudit.reports.costs import ex_post_digits
from dpaudit.reports.document import (
    Banner,
    Block,
    Columns,
    Document,
    Link,
    Paragraph,
    Piece,
    Section,
    Table,
    Text,
    Texts,
)
from dpaudit.reports.engineers import shown_setting
from dpaudit.reports.key_figures import NEIGHBOURS, KeyFigure, key_figures, promises
from dpaudit.reports.levels import UNIT_NAMES, neighbours_of
from dpaudit.reports.quality import METHODS, difference, shown
from dpaudit.reports.text import LABEL_LENGTH, counted, fitting, one_line, printable
from dpaudit.reports.wording import (
    ABSENT,
    KIND_MEANINGS,
    KIND_TITLES,
    VERDICT_NAMES,
    or_absent,
    say,
    signed,
)
from dpaudit.reports.writers import html
from dpaudit.results import AuditResult, Kind, SampleText
from dpaudit.results.comparison import Comparison, QualityColumn
from dpaudit.results.rounding import bound

#: Characters of caveats that a terminal shows.
_CAVEATS = 580
#: Characters of a run's name in a table; the name that a page shows above is whole.
_SHORT_NAME = 20
#: Settings that a terminal lists.
_MOST_SETTINGS = 8
_DIFFERENCE_DIGITS = 3


def summary(comparison: Comparison) -> Document:
    """Return the screen: two runs take some 40 lines of 80 columns."""
    own, caveats = _caveats(comparison)
    runs: list[Block] = []
    for number, (name, result) in enumerate(comparison.runs.items(), start=1):
        said = f"{VERDICT_NAMES[result.verdict].upper()}, {_name(name)}"
        runs.append(Paragraph(f"{said}. {_amounts(result)}".rstrip(), lead=f"{number}:"))
        caveats += [f"Run {number}: {one_line(caveat)}" for caveat in own[name]]
    if said := fitting(caveats, "`dpaudit verify` says them", lambda said: len(said) <= _CAVEATS):
        runs.append(Paragraph(said, "caution"))
    blocks: list[Block] = [Section("Verdicts", runs)]
    blocks += [Paragraph(said, "caution") for said in _cautions(comparison)]
    header = [_label(comparison, name) for name in comparison.runs]
    for kind in CLAIM_KINDS:
        if figures := _promises(comparison, kind):
            figures |= _parts(comparison, kind, costs_alone=True)
            tables = _figure_tables(kind, figures, header)
            blocks.append(Section(tables[0].title, tables))
    blocks += _quality(comparison, header)
    blocks += _differing(comparison, header, _MOST_SETTINGS)
    notes = f"{say('of-levels')} {say('kinds-not-compared')}"
    if any(result.guarantees.no_attack for result in comparison.runs.values()):
        notes += f" {say('ex-post-bounds-no-attack')}"
    blocks.append(Section("", [Paragraph(notes), Paragraph(say("comparison-more"), "quiet")]))
    return Document("", blocks)


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
    cards = [
        _card(number, name, result, own[name], links or {})
        for number, (name, result) in enumerate(comparison.runs.items(), start=1)
    ]
    header = [f"{_label(comparison, name)} {_short(name)}".strip() for name in comparison.runs]
    blocks: list[Block] = [
        Columns(cards),
        *(Paragraph(said, "caution") for said in _cautions(comparison)),
        Paragraph(f"{say('of-levels')} {say('not-comparable')}"),
        *(Paragraph(caveat, "quiet") for caveat in shared),
        Banner("Private.", say("private-figures")),
    ]
    kinds: tuple[Kind, ...] = (*CLAIM_KINDS, EMPIRICAL)
    for kind in kinds:
        if figures := {**_promises(comparison, kind), **_parts(comparison, kind)}:
            tables = _figure_tables(kind, figures, header)
            hindsight = kind == ExPostClaim.id and comparison.same_length
            meaning = f"{KIND_MEANINGS[kind]}{' ' + say('hindsight') if hindsight else ''}"
            shown_as: list[Block] = [Paragraph(meaning, "quiet"), *tables]
            blocks.append(Section(tables[0].title, shown_as, f"kind-{kind}"))
    blocks += _quality(comparison, header)
    blocks += _differing(comparison, header)
    blocks.append(Paragraph("A dash: not claimed, not computed, or no such setting.", "quiet"))
    return Document(
        f"{len(comparison.runs)} runs compared{_units(comparison)}",
        blocks,
        masthead=("Privacy audit comparison · private",),
        footer="Written by dpaudit. `dpaudit compare --json` prints every figure in full.",
    )


def _units(comparison: Comparison) -> str:
    """Return whom the runs' claims are about; "" if none has a claim."""
    claims = [result.claim for result in comparison.runs.values() if result.claim is not None]
    units = dict.fromkeys(UNIT_NAMES[claim.unit] for claim in claims)
    return f", for {' and for '.join(units)}" if units else ""


def _card(
    number: int, name: str, result: AuditResult, caveats: Sequence[str], links: Mapping[str, str]
) -> Section:
    texts = [
        Text(f"run-{number}-text-{place}", heading, "", [Piece(text)])
        for place, (heading, text) in enumerate(map(_text, result.samples), start=1)
    ]
    # Quoting the colon keeps a path from being read as a scheme such as javascript:.
    words = Link(_name(name), quote(links[name])) if name in links else _name(name)
    blocks: list[Block] = [
        Paragraph(_amounts(result)),
        Paragraph(terminal.epsilons(result), "strong"),
    ]
    blocks += [Texts(texts)] if texts else []
    blocks += [Paragraph(one_line(said), "quiet") for said in (result.guarantee, *caveats)]
    return Section((f"{number} ", words), blocks, f"run-{number}", status=result.verdict)


def _amounts(result: AuditResult) -> str:
    """Return how much came out of a run; nothing if it was not read to its end."""
    run = result.run
    if result.verdict == "error" or run.contexts is None or run.batches is None:
        return ""
    texts = findings.texts(result.released) if result.released else or_absent(run.texts, str)
    said = f"{counted(run.contexts, 'context')} in {counted(run.batches, 'batch', 'batches')}"
    return f"{said}. Texts: {texts}. Tokens: {run.steps or 0:,}."


def _text(sample: SampleText) -> tuple[str, str]:
    """Return what a text is, and the text."""
    label = "" if sample.label is None else f", {one_line(sample.label, LABEL_LENGTH)}"
    missing = "(token ids alone)" if sample.text is None else "(empty)"
    text = printable(sample.text or "").strip() or missing
    more = "…" if sample.characters > len(sample.text or "") else ""
    return f"Batch {sample.batch}{label}", text + more


def _cautions(comparison: Comparison) -> Iterator[str]:
    """Say which runs' figures cannot be relied on."""
    for number, result in enumerate(comparison.runs.values(), start=1):
        if caution := findings.caution(result):
            yield f"* Run {number}: {caution}"
        if result.verdict == "error":
            yield f"Run {number} cannot be read as a whole, so it has no figures."


def _label(comparison: Comparison, name: str) -> str:
    """Return a run's number, with a star where its epsilons cannot be relied on."""
    number = list(comparison.runs).index(name) + 1
    return f"{number}{'*' if findings.caution(comparison.runs[name]) else ''}"


def _caveats(comparison: Comparison) -> tuple[dict[str, list[str]], list[str]]:
    """Return caveats of single runs, by name, and those that several share, with their numbers."""
    numbers: dict[str, list[int]] = {}
    for number, result in enumerate(comparison.runs.values(), start=1):
        for caveat in map(str, result.caveats):
            numbers.setdefault(caveat, []).append(number)
    own = {
        name: [said for said in map(str, result.caveats) if len(numbers[said]) == 1]
        for name, result in comparison.runs.items()
    }
    shared = []
    for caveat, found in numbers.items():
        if len(found) > 1:
            everybody = len(found) == len(comparison.runs)
            whose = "All runs" if everybody else f"Runs {', '.join(map(str, found))}"
            shared.append(f"{whose}: {one_line(caveat)}")
    return own, shared


#: The figures of each run by their names; None where a run has no such figure.
_Figures = dict[str, list[KeyFigure | None]]


def _promises(comparison: Comparison, kind: Kind) -> _Figures:
    """Return the promises of runs by one kind, as recomputed and as claimed; empty without any."""
    figures = _side_by_side([list(promises(result, kind)) for result in comparison.runs.values()])
    for same in comparison.same_length if kind == ExPostClaim.id else ():
        title = f"ε, batch level, up to {counted(same.tokens, 'token')}"
        if len(comparison.same_length) > 1:
            title = f"{title} ({neighbours_of(same)})"
        figures[title] = [None] * len(comparison.runs)
        for name, epsilon in zip(same.runs, same.epsilons, strict=True):
            shown_as = bound(epsilon, ex_post_digits(comparison.runs[name]))
            place = list(comparison.runs).index(name)
            figures[title][place] = KeyFigure(title, shown_as, value=epsilon)
    return figures


def _parts(comparison: Comparison, kind: Kind, *, costs_alone: bool = False) -> _Figures:
    """Return what figures of a kind are made of; `costs_alone`: without counts and words."""
    runs = (key_figures(result, kind) for result in comparison.runs.values())
    return _side_by_side([[each for each in run if each.unit or not costs_alone] for run in runs])


def _side_by_side(runs: Sequence[Sequence[KeyFigure]]) -> _Figures:
    by_name = [{figure.name: figure for figure in run} for run in runs]
    names = dict.fromkeys(figure.name for run in runs for figure in run)
    return {name: [run.get(name) for run in by_name] for name in names}


def _figure_tables(kind: Kind, figures: _Figures, header: Sequence[str]) -> list[Table]:
    """Return the tables of one kind: first figures, with differences, then what is in words."""
    title = f"{KIND_TITLES[kind]} (nats)"
    alike = {figure.shown for figure in figures.get(NEIGHBOURS, []) if figure is not None}
    if len(alike) == 1:
        title = f"{KIND_TITLES[kind]} (nats), {alike.pop()}"
        figures = {name: found for name, found in figures.items() if name != NEIGHBOURS}
    differences = _differences(figures)
    rows, in_words = [], []
    for name, found in figures.items():
        cells = [ABSENT if figure is None else figure.shown for figure in found]
        if any(figure is not None and figure.value is not None for figure in found):
            rows.append((name, *cells, *([differences.get(name, ABSENT)] if differences else [])))
        else:
            in_words.append((name, *cells))
    columns = ("", *header, *(["2 less 1"] if differences else []))
    tables = [Table.of(title, columns, rows, words=(0,))]
    if in_words:
        tables.append(
            Table.of(f"{title}: in words", ("", *header), in_words, words=range(len(header) + 1))
        )
    return tables


def _differences(figures: _Figures) -> dict[str, str]:
    """Return the second of two runs less the first, if neighbours and δ agree; else nothing."""
    deltas = [
        [figure and figure.value for figure in figures.get(name, [])] for name in ("δ", "Claimed δ")
    ]
    if NEIGHBOURS in figures or any(len(set(found)) > 1 for found in deltas):
        return {}
    found = {}
    for name, both in figures.items():
        if len(both) != 2 or both[0] is None or both[1] is None:
            continue
        first, second = both[0].value, both[1].value
        if first is not None and second is not None and first != second:
            found[name] = signed(second - first, _DIFFERENCE_DIGITS)
    return found


def _differing(
    comparison: Comparison, header: Sequence[str], most: int | None = None
) -> Iterator[Section]:
    """Yield at most so many settings that differ, and all checks that do, a column for each run."""
    runs = comparison.runs.values()
    settings = [(each.name, *map(_setting, each.values)) for each in comparison.settings[:most]]
    checks = [(each.name, *(_status(run, each.name) for run in runs)) for each in comparison.checks]
    for title, anchor, rows in (
        ("Settings that differ", "settings", settings),
        ("Checks that differ", "checks", checks),
    ):
        if rows:
            cells = [[one_line(cell, LABEL_LENGTH) for cell in row] for row in rows]
            table = Table.of(title, ("", *header), cells, words=range(len(header) + 1))
            yield Section(title, [table], anchor)


def _setting(value: JsonValue) -> str:
    return ABSENT if value is None else shown_setting(value)


def _status(result: AuditResult, check_id: str) -> str:
    """Return a check's outcome as the run's report names it; a dash where it does not apply."""
    found = (check for check in result.checks if check.id == check_id and check.applicable)
    return or_absent(next(found, None), lambda check: findings.status_name(result, check))


def _quality(comparison: Comparison, header: Sequence[str]) -> Iterator[Section]:
    """Yield the quality of evaluated runs' texts: rows of those figures that can be compared."""
    if not comparison.quality:
        return
    names, rows, notes = list(comparison.runs), [], []
    for place, column in enumerate(comparison.quality, start=1):
        title = _measure(column)
        scores = {score.run: score for score in column.scores}
        for beside, figures in (
            ("", {name: score.score for name, score in scores.items()}),
            (", public only", {name: score.public for name, score in scores.items()}),
            (", real texts", {name: score.ceiling for name, score in scores.items()}),
        ):
            if any(figures.values()):
                cells = [shown(figures.get(name)) for name in names]
                rows.append((f"{place}: {title}{beside}", *cells))
        added = [
            f"run {names.index(each.run) + 1} {difference(each.added)}"
            for each in column.scores
            if each.added is not None
        ]
        if added:
            notes.append(f"Added by records, {place}: {'; '.join(added)}.")
    blocks: list[Block] = [
        Paragraph(say("quality-private"), "caution", "Internal."),
        Table.of("Quality", ("", *header), rows, words=(0,)),
        *(Paragraph(note) for note in notes),
        Paragraph(f"{say('columns-differ')} {say('quality-added')}", "quiet"),
    ]
    yield Section("Quality", blocks, "quality")


def _measure(column: QualityColumn) -> str:
    features = one_line(column.features, LABEL_LENGTH)
    if column.measure == "mauve":
        return f"MAUVE, n = {column.n:,}, {features}"
    return f"{METHODS[column.measure]}, {counted(column.n, 'test text')}, {features}"


def _short(name: str) -> str:
    """Return the end of a run's name, for a table."""
    short = one_line(name.rstrip("/").rpartition("/")[2])
    return short if len(short) <= _SHORT_NAME else f"{short[: _SHORT_NAME - 1]}…"


def _name(name: str) -> str:
    return one_line(name, LABEL_LENGTH) or "unnamed"
