"""Summaries for a terminal: read in five seconds, at 80 columns, with or without colour.

Everything is built as rich Text, never as markup, so that square brackets in a run's own text stay square brackets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpaudit.claims import CLAIM_KINDS
from dpaudit.reports import findings, levels, outline, quality
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line, wrapped
from dpaudit.reports.wording import DETAIL_NAMES, STATUS_NAMES, VERDICT_NAMES
from dpaudit.results import AuditResult, CheckResult, Message, Status, Verdict
from dpaudit.results.policy import FAMILY
from dpaudit.results.quality import Quality
from dpaudit.results.rounding import bound, delta_bound, exponential, lower_bound, stated

_STYLES: dict[Status | Verdict, str] = {
    "fail": "bold red",
    "not_verified": "bold yellow",
    "error": "bold yellow",
    "warn": "yellow",
    "pass": "bold green",
    "skip": "dim",
}
_INDENT, _NAME_WIDTH, _NARROWEST = "  ", 14, 20
#: Failed checks, and as many warnings, that a summary describes; lines that its caveats may take.
_MOST_CHECKS, _MOST_CAVEAT_LINES = 3, 4


def print_summary(result: AuditResult, console: Console) -> None:
    """What a reader needs before anything else; of a run without a claim that can be read the verdict alone.

    Verdict and epsilon, the guarantee, what failed, the texts, the checks and what they left open, and caveats. A
    passing run takes 13 lines of 80 columns, for a report has the rest.
    """
    console.print(Text(" ".join(filter(None, (_sentence(result), epsilons(result)))), style=_STYLES[result.verdict]))
    if result.verdict == "error" and result.claim is None:
        return
    console.print(Text(one_line(result.guarantee)))
    _print_failed(result, console)
    for check in findings.checks_with(result, "warn")[:_MOST_CHECKS]:
        said = f"{one_line(check.id, LABEL_LENGTH)}: {one_line(check.title)} ({one_line(check.measured)})"
        console.print(Text.assemble((STATUS_NAMES["warn"], _STYLES["warn"]), f" {said}"))
    if findings.is_public(result):
        console.print(Text("Public: no figure from the records, no text, no digest of a record and no path."))
    elif result.released is not None:
        console.print(Text(f"Texts: {findings.texts(result.released)}."))
    if (attack := result.guarantees.empirical.attack) is not None:
        said = f"no ε above 0 is refuted at δ = {delta_bound(attack.delta)}"
        if attack.epsilon > 0:
            least, delta = lower_bound(attack.epsilon), delta_bound(attack.delta)
            said = f"ε ≥ {least} at δ = {delta}, a lower bound and no guarantee"
        console.print(Text(f"Attack: {said}."))
    if (canaries := result.guarantees.empirical.canaries) is not None:
        console.print(Text(f"Canaries: {findings.canaries_said(canaries)}."))
    if result.quality is not None and not findings.is_public(result):
        console.print(Text(quality.TITLE, style="bold"), Text("– private: no epsilon pays for these.", style="dim"))
        for label, said in quality.brief(result.quality):
            print_pair(label, said, console)
    console.print(Text(f"{findings.tally(result)}. Level {result.evidence} was asked for."))
    for said in _left_open(result):
        console.print(Text(wrapped(said, console.width)), soft_wrap=True)
    elsewhere = "the report has them" if findings.is_public(result) else "`dpaudit verify` says them"
    print_caveats(result.caveats, _MOST_CAVEAT_LINES, elsewhere, console)


def epsilons(result: AuditResult) -> str:
    """What is claimed at either level, what was recomputed where it can be relied on, and delta; empty without a claim.

    One figure stands for both levels where they are equal.
    """
    claim, found = result.claim, levels.found_of(result)
    if claim is None:
        return ""
    apart = levels.are_apart(claim, found)
    digits, shown = levels.digits_for(claim, found), found if not outline.caution(result) else None
    if claim.rho is not None:
        return levels.claimed_and_recomputed_rho(result)
    said = f"{levels.RELEASE + ': claimed' if apart else 'Claimed'} {levels.promised(claim)}"
    if shown is not None:
        said += f", recomputed ε ≤ {bound(shown.epsilon, digits)}"
    if apart:
        claimed = [] if claim.batch_epsilon is None else [f"claimed ε ≤ {stated(claim.batch_epsilon)}"]
        found_there = [] if shown is None else [f"recomputed ε ≤ {bound(shown.batch_epsilon, digits)}"]
        said += f". {levels.BATCH}: {', '.join([*claimed, *found_there]) or 'none stated'}"
    return said + (f", δ = {delta_bound(claim.delta, claim.delta)}" if claim.delta else "")


def _sentence(result: AuditResult) -> str:
    """The verdict in a few words; a sentence where the epsilons follow it."""
    return f"{outline.headline(result)}{'.' if result.claim is not None else ''}"


def _print_failed(result: AuditResult, console: Console) -> None:
    """The first failed checks with what to do, the others by their ids."""
    failed = findings.checks_with(result, "fail", "error")
    for check in failed[:_MOST_CHECKS]:
        name = Text.assemble((STATUS_NAMES[check.status], _STYLES[check.status]), f" {_id(check)}  ")
        console.print(name + Text(one_line(check.title), style="bold"))
        for label, said in (*findings.compared(result, check), (DETAIL_NAMES[check.status], check.detail)):
            if said:
                print_pair(label.lower(), one_line(said), console)
    if rest := failed[_MOST_CHECKS:]:
        console.print(Text(f"Failed too: {', '.join(map(_id, rest[: findings.MOST_NAMED]))}."))
    # What a policy asks is explained by the policy.
    if failed := [check for check in failed if not check.id.startswith(f"{FAMILY}.")]:
        ids = _id(failed[0]) if len(failed) == 1 else "ID"
        console.print(Text(f"Explained by `dpaudit checks {ids}`.", style="dim"))


def _id(check: CheckResult) -> str:
    return one_line(check.id, LABEL_LENGTH)


def _left_open(result: AuditResult) -> Iterator[str]:
    """Yield the checks that were not made, by the command that makes them."""
    for group in findings.unmade(result):
        yield f"Not made: {group.described}"


def print_caveats(caveats: Sequence[Message | str], most: int, elsewhere: str, console: Console) -> None:
    """As many of the caveats, in a paragraph, as `most` lines hold, and how many more there are."""
    for count in range(len(caveats), 0, -1):
        more = f"{len(caveats) - count:,} more: {elsewhere}." if count < len(caveats) else ""
        said = Text(" ".join(filter(None, (*map(one_line, caveats[:count]), more))), style="yellow")
        if count == 1 or len(said.wrap(console, console.width)) <= most:
            console.print(said)
            return


def print_demo(runs: Mapping[str, tuple[AuditResult, Sequence[tuple[str, str]]]], console: Console) -> None:
    """Two texts of each run under its verdict, epsilon and contexts, and what the epsilons mean where all pass."""
    meant: list[str] = []
    for name, (result, texts) in runs.items():
        contexts = counted(sum(batch.contexts for batch in result.batches), "context")
        said = ", ".join(filter(None, (epsilons(result), contexts)))
        released = "" if result.released is None else findings.texts(result.released)
        console.print(Text.assemble((f"{name}: {VERDICT_NAMES[result.verdict]}", _STYLES[result.verdict]), f". {said}"))
        console.print(Text(f"Texts: {released}.", style="dim"))
        for label, text in texts:
            print_pair(one_line(label, LABEL_LENGTH), one_line(text) or "(empty)", console, most=2)
        if result.verdict == "pass" and result.claim is not None and result.claim.epsilon is not None:
            times = f"by at most a factor of {exponential(result.claim.epsilon)}"
            if CLAIM_KINDS[result.claim.kind].beforehand:
                least = delta_bound(result.claim.delta, result.claim.delta)
                meant.append(f"the probability of any result of the {name.lower()} {times} (plus {least})")
            else:
                private = "keep that figure as closely as the records"
                meant.append(f"that of these very texts of the {name.lower()} {times}; {private}")
    if meant:
        what = "What that means, for readers of the texts: one record more or less changes"
        console.print(Text(f"{what} {', and '.join(meant)}.", style="bold"))


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
    """Print the verdict, and a paragraph for each check that failed, could not run or was needed and not made."""
    console.print(Text(outline.headline(result), style=_STYLES[result.verdict]))
    for check in findings.checks_with(result, "fail", "error"):
        line = Text.assemble((check.status.upper(), _STYLES[check.status]), f" {one_line(check.id, LABEL_LENGTH)}: ")
        named = (("measured ", check.measured), ("expected ", check.expected), ("", check.detail))
        found = [prefix + said for prefix, said in named if said] or [check.title]
        line.append("; ".join(map(one_line, found)))
        print_paragraph(line, console)
    for group in findings.unmade(result):
        for check_id in group.ids if group.needed else ():
            said = f" {check_id}: not made, and evidence level {result.evidence} was asked for. {group.remedy}".rstrip()
            print_paragraph(Text.assemble(("SKIP", _STYLES["warn"]), said), console)


def print_checks(rows: Iterable[Mapping[str, str | int]], console: Console) -> None:
    """The catalogue of checks: id, level of evidence and title."""
    for row in rows:
        print_pair(f"{row['id']:<26} {row['evidence']}", str(row["title"]), console, width=30)


def print_check(title: str, said: Iterable[tuple[str, str]], console: Console) -> None:
    """One check of the catalogue."""
    console.print(Text(title, style="bold"))
    for name, words in said:
        print_pair(name, words, console, width=10)


def print_paragraph(said: Text, console: Console) -> None:
    """Wrapped, with all lines but the first indented."""
    for index, line in enumerate(said.wrap(console, max(_NARROWEST, console.width - len(_INDENT)))):
        line.rstrip()
        console.print(Text.assemble(_INDENT if index else "", line), soft_wrap=True)


def print_pair(
    label: str, said: str, console: Console, style: str = "", width: int = _NAME_WIDTH, most: int | None = None
) -> None:
    """`said` behind its label, wrapped in a column of its own; no padding, so that copies hold no blanks.

    The label's column has this `width`; what does not fit into `most` lines is left out, where that is given.
    """
    wrapped = Text(said, style=style).wrap(console, max(_NARROWEST, console.width - len(_INDENT) - width))
    if most is not None and len(wrapped) > most:
        wrapped[most - 1].truncate(max(_NARROWEST, console.width - len(_INDENT) - width) - 2)
        wrapped[most - 1].append(" …")
    for index, line in enumerate(wrapped[:most]):
        line.rstrip()
        name = label if index == 0 else ""
        console.print(Text.assemble(_INDENT, (f"{name:<{width}}", "dim"), line), soft_wrap=True)


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
