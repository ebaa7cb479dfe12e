"""Summaries for a terminal: read in five seconds, at 80 columns, with or without colour.

Everything is built as rich Text, never as markup, so that square brackets in a run's own text stay square brackets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpaudit.reports import findings, outline, quality
from dpaudit.reports.text import LABEL_LENGTH, one_line
from dpaudit.reports.wording import DETAIL_NAMES, KIND_MEANINGS, KIND_TITLES, STATUS_NAMES
from dpaudit.results import AuditResult, CheckResult, Status
from dpaudit.results.quality import Quality

_STYLES: dict[Status, str] = {
    "fail": "bold red",
    "error": "bold yellow",
    "warn": "yellow",
    "pass": "bold green",
    "skip": "dim",
}
_INDENT, _NAME_WIDTH, _NARROWEST = "  ", 14, 20


def print_summary(result: AuditResult, console: Console) -> None:
    """Verdict, guarantee, what failed and why, what was not checked, claimed against recomputed."""
    console.print(Text(outline.headline(result), style=_STYLES[result.verdict]))
    console.print(Text(one_line(result.guarantee)))
    for caveat in result.caveats:
        console.print(Text(one_line(caveat), style="yellow"))
    failed = findings.checks_with(result, "fail", "error")
    for check in failed:
        console.print()
        _print_check(check, result, console)
    if failed:
        console.print()
    console.print(Text(f"{findings.tally(result)}. {findings.evidence_asked(result)}"))
    for group in findings.unmade(result):
        print_pair("not made", group.described, console)
    if findings.is_public(result):
        console.print()
        console.print(Text(" ".join(outline.audience(result))))
    if caution := outline.caution(result):
        console.print()
        console.print(Text(caution, style="yellow"))
    trees = {tree.kind: tree for tree in outline.ledger(result, depth=2, breadth=3)}
    for block in outline.kind_blocks(result):
        if block.lines or block.parts:
            console.print()
            _print_block(block, trees.get(block.kind), console)
    if result.quality is not None and not findings.is_public(result):
        console.print()
        console.print(Text(quality.TITLE, style="bold"), Text(f"– {quality.WARNING}", style="dim"))
        for label, said in quality.brief(result.quality):
            print_pair(label, said, console)
    for check in findings.checks_with(result, "warn"):
        console.print()
        _print_check(check, result, console)


def print_texts(name: str, result: AuditResult, texts: Iterable[tuple[str | None, str]], console: Console) -> None:
    """A run's texts, each behind its label, under the verdict and the claim that they go out with."""
    console.print(Text(f"{name}: {result.verdict}", style=_STYLES[result.verdict]))
    console.print(Text(outline.claim_sentence(result), style="dim"))
    for label, text in texts:
        print_pair(one_line(label or "", LABEL_LENGTH), one_line(text) or "(empty)", console)


def print_quality(found: Quality, console: Console) -> None:
    """An evaluation of a run's texts."""
    console.print(Text(quality.TITLE, style="bold"))
    console.print(Text(quality.about(found)))
    if rows := quality.rows(found):
        console.print(plain_table(quality.header(found), rows))
    for number, said in enumerate(quality.added(found)):
        console.print(Text(said, style="" if number else "bold"))
    if quality.added(found):
        console.print(Text(quality.ADDED_NOTE, style="dim"))
    console.print(Text(quality.NOTE, style="dim"))
    console.print(Text(f"Internal. {quality.WARNING}", style="bold"))


def print_higher_levels(result: AuditResult, console: Console) -> None:
    """What the checks of the levels beyond the record measured, where they passed."""
    for check in findings.checks_with(result, "pass"):
        if check.evidence >= 3:  # beyond record and release
            said = f"{one_line(check.id, LABEL_LENGTH)}: {one_line(check.measured)}"
            print_pair(f"level {check.evidence}", said, console)


def print_failures(result: AuditResult, console: Console) -> None:
    """One line for each check that failed, could not run or was needed and not made; nothing where there is none."""
    for check in findings.checks_with(result, "fail", "error"):
        line = Text.assemble((check.status.upper(), _STYLES[check.status]), f" {one_line(check.id, LABEL_LENGTH)}: ")
        named = (("measured ", check.measured), ("expected ", check.expected), ("", check.detail))
        found = [prefix + said for prefix, said in named if said] or [check.title]
        line.append("; ".join(map(one_line, found)))
        console.print(line, soft_wrap=True)
    for group in findings.unmade(result):
        for check_id in group.ids if group.needed else ():
            said = f" {check_id}: not made, and evidence level {result.evidence} was asked for. {group.remedy}".rstrip()
            console.print(Text.assemble(("SKIP", _STYLES["warn"]), said), soft_wrap=True)


def _print_block(block: outline.KindBlock, tree: outline.Tree | None, console: Console) -> None:
    console.print(Text(KIND_TITLES[block.kind], style="bold"), Text(f"– {KIND_MEANINGS[block.kind]}", style="dim"))
    _, claimed, recomputed = zip(*block.lines, strict=True) if block.lines else ((), (), ())
    for side, figures in (("claimed", claimed), ("recomputed", recomputed)):
        if figures and figures[0] != outline.NOT_CLAIMED:
            epsilon, delta, neighbours = figures
            shown_delta = "" if delta in ("0", "none") else f", δ = {delta}"
            unknown = epsilon in (outline.NOT_COMPUTED, outline.WITHHELD)
            print_pair(side, epsilon if unknown else f"ε ≤ {epsilon}{shown_delta}, {neighbours}", console)
    for label, said in block.brief:
        print_pair(label, said, console)
    if tree is not None and tree.root.children:
        print_pair("made up of", outline.made_of(tree), console)


def _print_check(check: CheckResult, result: AuditResult, console: Console) -> None:
    name = Text.assemble((STATUS_NAMES[check.status], _STYLES[check.status]), f" {one_line(check.id, LABEL_LENGTH)}  ")
    console.print(name + Text(one_line(check.title), style="bold"))
    said = (*findings.compared(result, check), ("Why", check.why), (DETAIL_NAMES[check.status], check.detail))
    for label, words in said:
        if words:
            print_pair(label.lower(), one_line(words), console)
    print_pair("explained by", f"dpaudit checks {one_line(check.id, LABEL_LENGTH)}", console)


def print_pair(label: str, said: str, console: Console, style: str = "") -> None:
    """`said` behind its label, wrapped in a column of its own; no padding, so that copies hold no blanks."""
    wrapped = Text(said, style=style).wrap(console, max(_NARROWEST, console.width - len(_INDENT) - _NAME_WIDTH))
    for index, line in enumerate(wrapped):
        line.rstrip()
        name = label if index == 0 else ""
        console.print(Text.assemble(_INDENT, (f"{name:<{_NAME_WIDTH}}", "dim"), line), soft_wrap=True)


def plain_table(
    header: Sequence[str], rows: Iterable[Sequence[str]] = (), numbers: Collection[str] = (), gap: int = 2
) -> Table:
    """A table without lines, whose cells are plain text and wrap; the columns named in `numbers` align right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for name in header:
        table.add_column(Text(name), overflow="fold", justify="right" if name in numbers else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
