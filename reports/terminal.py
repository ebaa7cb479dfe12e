"""What commands print of audits: a summary, what failed, and the catalogue of checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from dpaudit.claims import CLAIM_KINDS
from dpaudit.reports import findings, levels, quality
from dpaudit.reports.document import (
    Block,
    Document,
    KeyFigure,
    KeyFigures,
    Outcome,
    Outcomes,
    Paragraph,
    Statement,
    Verdict,
)
from dpaudit.reports.text import LABEL_LENGTH, counted, fitting, one_line
from dpaudit.reports.wording import DETAIL_NAMES, STATUS_NAMES, VERDICT_NAMES, section_title
from dpaudit.reports.writers.terminal import STYLES, print_document, print_pair, print_paragraph
from dpaudit.results import AuditResult, CheckResult
from dpaudit.results.evidence import EVIDENCE_LEVELS
from dpaudit.results.policy import FAMILY
from dpaudit.results.quality import Quality
from dpaudit.results.rounding import bound, delta_bound, exponential, lower_bound, stated

#: Failed checks, and as many warnings, that a summary describes; lines that its caveats may take.
_MOST_CHECKS, _MOST_CAVEAT_LINES = 3, 3


def print_summary(result: AuditResult, console: Console) -> None:
    """Print what a reader needs before anything else; of a run without a claim that can be read the verdict alone.

    A passing run takes 13 lines of 80 columns, for a report has the rest.
    """
    print_document(summary(result), console)
    if result.verdict != "error" or result.claim is not None:
        elsewhere = "the report has them" if findings.is_public(result) else "`dpaudit verify` lists them"

        def fits(said: str) -> bool:
            return len(Text(said).wrap(console, console.width)) <= _MOST_CAVEAT_LINES

        if said := fitting(result.caveats, elsewhere, fits):
            console.print(Text(said, style="yellow"))


def summary(result: AuditResult) -> Document:
    """Return verdict and epsilon, whom it holds for, what failed, the texts, the checks and what they left open."""
    blocks = [] if result.verdict == "error" and result.claim is None else list(_summed_up(result))
    title = " ".join(filter(None, (_sentence(result), epsilons(result))))
    return Document("", [Verdict(result.verdict, title, blocks)])


def _summed_up(result: AuditResult) -> Iterator[Block]:
    if held := levels.holding(result):
        yield KeyFigures([KeyFigure(each.name, each.figure, each.promised) for each in held])
    else:
        yield Paragraph(one_line(result.guarantee))
    yield from _failed(result)
    yield Outcomes(
        [
            _outcome(check, *findings.compared(result, check)[:1])
            for check in findings.checks_with(result, "warn")[:_MOST_CHECKS]
        ]
    )
    if findings.is_public(result):
        yield Paragraph("Public: no figure from the records, no text, no digest of a record and no path.")
    elif result.released is not None:
        yield Paragraph(f"Texts: {findings.texts(result.released)}.")
    if (attack := result.guarantees.empirical.attack) is not None:
        said = f"no ε above 0 is refuted at δ = {delta_bound(attack.delta)}"
        if attack.epsilon > 0:
            least, delta = lower_bound(attack.epsilon), delta_bound(attack.delta)
            said = f"ε ≥ {least} at δ = {delta}, a lower bound and no guarantee"
        yield Paragraph(f"Attack: {said}.")
    if (canaries := result.guarantees.empirical.canaries) is not None:
        yield Paragraph(f"Canaries: {findings.canaries_said(canaries)}.")
    if result.quality is not None and not findings.is_public(result):
        yield quality.brief(result.quality)
    yield Paragraph(f"{findings.tally(result)}. Level {result.evidence} was asked for.")
    for group in findings.unmade(result):
        yield Paragraph(f"{'Not verified' if group.needed else 'Not made'}: {group.named}. {group.remedy}".rstrip())


def _failed(result: AuditResult) -> Iterator[Block]:
    """Yield the first failed checks with what to do, the others by their ids."""
    failed = findings.checks_with(result, "fail", "error")
    yield Outcomes([_outcome(check, *findings.compared(result, check)) for check in failed[:_MOST_CHECKS]])
    if rest := failed[_MOST_CHECKS:]:
        yield Paragraph(f"Failed too: {', '.join(map(_id, rest[: findings.MOST_NAMED]))}.")
    # What a policy asks is explained by the policy.
    if failed := [check for check in failed if not check.id.startswith(f"{FAMILY}.")]:
        ids = _id(failed[0]) if len(failed) == 1 else "ID"
        yield Paragraph(f"Explained by `dpaudit checks {ids}`.", "quiet")


def epsilons(result: AuditResult) -> str:
    """What is claimed at either level, what was recomputed where it can be relied on, and delta; empty without a claim.

    One figure stands for both levels where they are equal.
    """
    claim, found = result.claim, levels.found_of(result)
    if claim is None:
        return ""
    apart = levels.are_apart(claim, found)
    digits, shown = levels.digits_for(claim, found), found if not findings.caution(result) else None
    if claim.rho is not None:
        return levels.claimed_and_recomputed_rho(claim, result.guarantees)
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
    return f"{findings.headline(result)}{'.' if result.claim is not None else ''}"


def _outcome(check: CheckResult, *compared: tuple[str, str]) -> Outcome:
    """Return a check that did not pass, with what it `compared` and what to do."""
    named = (*compared, (DETAIL_NAMES[check.status], check.detail))
    said = [Statement(name, words) for name, words in named if words]
    return Outcome(check.id, "", check.status, STATUS_NAMES[check.status], check.title, said)


def _id(check: CheckResult) -> str:
    return one_line(check.id, LABEL_LENGTH)


def print_demo(runs: Mapping[str, tuple[AuditResult, Sequence[tuple[str, str]]]], console: Console) -> None:
    """Two texts of each run under its verdict, epsilon and contexts, and what the epsilons mean where all pass."""
    meant: list[str] = []
    for name, (result, texts) in runs.items():
        contexts = counted(sum(batch.contexts for batch in result.batches), "context")
        said = ", ".join(filter(None, (epsilons(result), contexts)))
        released = "" if result.released is None else findings.texts(result.released)
        console.print(Text.assemble((f"{name}: {VERDICT_NAMES[result.verdict]}", STYLES[result.verdict]), f". {said}"))
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
    """Print an evaluation of a run's texts."""
    print_document(Document(section_title("quality"), list(quality.blocks(found))), console)


def print_higher_levels(result: AuditResult, console: Console) -> None:
    """What the checks of the levels beyond the record measured, where they passed."""
    for check in findings.checks_with(result, "pass"):
        if check.evidence >= 3:  # beyond record and release
            said = f"{one_line(check.id, LABEL_LENGTH)}: {one_line(check.measured)}"
            print_pair(f"level {check.evidence}", said, console)


def print_failures(result: AuditResult, console: Console) -> None:
    """Print the verdict, and a paragraph for each check that failed, could not run or was needed and not made."""
    console.print(Text(findings.headline(result), style=STYLES[result.verdict]))
    for check in findings.checks_with(result, "fail", "error"):
        line = Text.assemble((check.status.upper(), STYLES[check.status]), f" {one_line(check.id, LABEL_LENGTH)}: ")
        named = (("measured ", check.measured), ("expected ", check.expected), ("", check.detail))
        found = [prefix + said for prefix, said in named if said] or [check.title]
        line.append("; ".join(map(one_line, found)))
        print_paragraph(line, console)
    for group in findings.unmade(result):
        for check_id in group.ids if group.needed else ():
            said = f" {check_id}: not made, and evidence level {result.evidence} was asked for. {group.remedy}".rstrip()
            print_paragraph(Text.assemble(("SKIP", STYLES["warn"]), said), console)


def print_checks(rows: Iterable[Mapping[str, str | int]], console: Console) -> None:
    """The catalogue of checks: id, level of evidence and title."""
    for row in rows:
        print_pair(f"{row['id']:<26} {row['evidence']}", str(row["title"]), console, width=30)


def print_check(row: Mapping[str, str | int], console: Console) -> None:
    """One check of the catalogue."""
    console.print(Text(str(row["title"]), style="bold"))
    for name in ("id", "evidence", "compares", "fails", "why", "remedy", "reference"):
        said = str(row[name])
        if name == "evidence":
            said += f", {EVIDENCE_LEVELS[int(row[name])].compares}"
        if said:
            print_pair(name, said, console, width=10)
