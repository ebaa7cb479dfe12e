"""Commands' output on audits, as documents: summaries, failures, demo runs, catalogue of checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dpaudit.reports import attacks, findings, levels, worth
from dpaudit.reports.document import (
    Block,
    Commands,
    Definitions,
    Document,
    Entry,
    KeyFigure,
    KeyFigures,
    Outcome,
    Outcomes,
    Paragraph,
    Piece,
    Statement,
    Table,
    Text,
    Texts,
    Verdict,
)
from dpaudit.reports.text import LABEL_LENGTH, counted, fitting, one_line
from dpaudit.reports.wording import DETAIL_NAMES, STATUS_NAMES, VERDICT_NAMES
from dpaudit.results import AuditResult, CheckResult
from dpaudit.results.evidence import POLICY, level_meaning
from dpaudit.results.rounding import delta_bound, exponential, lower_bound
from dpaudit.results.shell import context_for, options_making

#: Failed checks, and as many warnings, that a summary describes; characters of its caveats: two
#: lines.
_MOST_CHECKS, _MOST_OF_CAVEATS = 3, 155


def summary(result: AuditResult) -> Document:
    """Return verdict and epsilons, what failed, the texts, the checks and what they left open.

    A passing run takes thirteen lines of 80 columns, with the command's own; the report has the
    rest. Of a run without a claim that can be read there is the verdict alone.
    """
    blocks = [] if result.verdict == "error" and result.claim is None else list(_summed_up(result))
    stop = "." if result.claim is not None else ""
    return Document("", [Verdict(result.verdict, f"{findings.headline(result)}{stop}", blocks)])


def _summed_up(result: AuditResult) -> Iterator[Block]:
    yield from _epsilons(result)
    yield from _failed(result)
    warned = findings.checks_with(result, "warn")[:_MOST_CHECKS]
    yield Outcomes([_outcome(check, *findings.compared(result, check)[:1]) for check in warned])
    if (attack := result.guarantees.empirical.attack) is not None:
        said = f"no ε above 0 is refuted at δ = {delta_bound(attack.delta)}"
        if attack.epsilon > 0:
            least, delta = lower_bound(attack.epsilon), delta_bound(attack.delta)
            said = f"ε ≥ {least} at δ = {delta}, a lower bound and no guarantee"
        yield Paragraph(f"Attack: {said}.")
    if (canaries := result.guarantees.empirical.canaries) is not None:
        yield Paragraph(f"Canaries: {findings.canaries_said(canaries)}.")
    if result.quality is not None and not findings.is_public(result):
        from dpaudit.reports import quality  # few results have any

        yield quality.brief(result.quality)
    if findings.is_public(result):
        yield Paragraph(
            "Public: no figure from the records, no text, no digest of a record and no path."
        )
    elif result.released is not None:
        yield Paragraph(f"Texts: {findings.texts(result.released)}.")
    if result.worth is not None:
        yield Paragraph(f"Worth: {next(worth.sentences(result))}")
    yield from _checks(result)
    elsewhere = "see the report" if findings.is_public(result) else "`dpaudit verify`"
    if said := fitting(result.caveats, elsewhere, lambda said: len(said) <= _MOST_OF_CAVEATS):
        yield Paragraph(said, "caution")


def _epsilons(result: AuditResult) -> Iterator[Block]:
    """Yield each level's promise and the recomputed figures; else the guarantee."""
    claim, held = result.claim, levels.holding(result)
    if claim is not None and held:
        yield KeyFigures(
            [KeyFigure(each.name, each.figure, each.promise or each.readers) for each in held]
        )
        yield Paragraph(f"Recomputed: {levels.recomputed_words(claim, result.guarantees)}.")
        if said := attacks.in_short(result):
            yield Paragraph(said)
        return
    if claim is not None:
        yield Paragraph(f"{epsilons(result)}.")
    yield Paragraph(one_line(result.guarantee))


def _failed(result: AuditResult) -> Iterator[Block]:
    """Yield the first failed checks with what to do, the others by their ids."""
    failed = findings.checks_with(result, "fail", "error")
    yield Outcomes(
        [_outcome(check, *findings.compared(result, check)) for check in failed[:_MOST_CHECKS]]
    )
    if rest := failed[_MOST_CHECKS:]:
        yield Paragraph(f"Failed too: {', '.join(map(_id, rest[: findings.MOST_NAMED]))}.")
    # What a policy asks is explained by the policy.
    if failed := [check for check in failed if not check.id.startswith(f"{POLICY}.")]:
        ids = _id(failed[0]) if len(failed) == 1 else "ID"
        yield Paragraph(f"Explained by `dpaudit checks {ids}`.", "quiet")


def _checks(result: AuditResult) -> Iterator[Block]:
    """Yield the counts of outcomes, what a pass still needs, and the command for other checks."""
    groups = findings.still_to_make(result)
    by_command = [
        check for group in groups if not group.needed for check in group.checks if check.made_with
    ]
    options = options_making(by_command, result.evidence)
    make = f" To make {counted(len(by_command), 'more check')}:" if options else ""
    yield Paragraph(f"{findings.tally(result)}.{make}")
    if options:
        run, question = context_for(result).values()
        yield Commands([f"dpaudit report {run}{question} {options}"])
    for group in groups:
        if group.needed or not group.checks[0].made_with:
            yield Paragraph(
                f"{'Not verified' if group.needed else 'Not made'}: {group.named}. "
                f"{group.remedy}".rstrip()
            )


def epsilons(result: AuditResult) -> str:
    """Return the claim, and what was recomputed if it is reliable; "" without a claim."""
    if result.claim is None:
        return ""
    said = f"Claimed: {levels.claim_words(result.claim)}"
    if findings.caution(result):
        return said
    return f"{said}. Recomputed: {levels.recomputed_words(result.claim, result.guarantees)}"


def _outcome(check: CheckResult, *compared: tuple[str, str]) -> Outcome:
    """Return a check that did not pass, with what it `compared` and what to do."""
    named = (*compared, (DETAIL_NAMES[check.status], check.detail))
    said = [Statement(name, words) for name, words in named if words]
    return Outcome(check.id, "", check.status, STATUS_NAMES[check.status], check.title, said)


def _id(check: CheckResult) -> str:
    return one_line(check.id, LABEL_LENGTH)


def demo(runs: Mapping[str, tuple[AuditResult, Sequence[tuple[str, str]]]]) -> Document:
    """Return two texts of each run under its verdict, epsilon and contexts; then what it means."""
    blocks: list[Block] = []
    for name, (result, texts) in runs.items():
        contexts = counted(sum(batch.contexts for batch in result.batches), "context")
        said = ", ".join(filter(None, (epsilons(result), contexts)))
        released = "" if result.released is None else findings.texts(result.released)
        shown = [Text("", label, "", [Piece(text)]) for label, text in texts]
        title = f"{name}: {VERDICT_NAMES[result.verdict]}. {said}"
        blocks.append(
            Verdict(
                result.verdict, title, [Paragraph(f"Texts: {released}.", "quiet"), Texts(shown)]
            )
        )
    if meant := list(filter(None, (_meaning(name, result) for name, (result, _) in runs.items()))):
        lead = "What that means, for readers of the texts: adding or removing one record changes"
        blocks.append(Paragraph(f"{lead} {', and '.join(meant)}.", "strong"))
    return Document("", blocks)


def _meaning(name: str, result: AuditResult) -> str:
    """Return what a run's epsilon bounds; empty if it does not pass."""
    claim = result.claim
    if result.verdict != "pass" or claim is None or claim.epsilon is None:
        return ""
    times = f"by at most a factor of {exponential(claim.epsilon)}"
    if claim.terms.beforehand:
        least = delta_bound(claim.delta, claim.delta)
        return f"the probability of any result of the {name.lower()} {times} (plus {least})"
    private = "keep that figure as closely as the records"
    return f"that of these very texts of the {name.lower()} {times}; {private}"


def higher_levels(result: AuditResult) -> Definitions:
    """Return what the checks of the levels beyond the record measured, where they passed."""
    # Levels 3 and 4 are beyond record and release.
    passed = [check for check in findings.checks_with(result, "pass") if check.evidence >= 3]
    return Definitions(
        [
            Entry(f"level {check.evidence}", f"{_id(check)}: {one_line(check.measured)}")
            for check in passed
        ]
    )


def failures(result: AuditResult) -> Document:
    """Return the verdict, and a paragraph for each check that failed or that a pass lacks."""
    blocks: list[Block] = []
    for check in findings.checks_with(result, "fail", "error"):
        named = (("measured ", check.measured), ("expected ", check.expected), ("", check.detail))
        found = [prefix + said for prefix, said in named if said] or [check.title]
        blocks.append(
            Paragraph(f"{_id(check)}: {'; '.join(map(one_line, found))}", lead=check.status.upper())
        )
    for group in findings.unmade(result):
        for check_id in group.ids if group.needed else ():
            said = (
                f"{check_id}: not made, and evidence level {result.evidence} was asked for. "
                f"{group.remedy}".rstrip()
            )
            blocks.append(Paragraph(said, lead="SKIP"))
    return Document("", [Verdict(result.verdict, findings.headline(result), blocks)])


def checks_listed(rows: Iterable[Mapping[str, str | int]]) -> Document:
    """Return the catalogue of checks: id, level of evidence and title."""
    cells = [(str(row["id"]), str(row["evidence"]), str(row["title"])) for row in rows]
    return Document("", [Table.of("Checks", ("check", "level", "passes if"), cells, words=[2])])


def check_explained(row: Mapping[str, str | int]) -> Document:
    """Return one check of the catalogue."""
    said = {
        name: str(row[name])
        for name in ("id", "evidence", "compares", "fails", "why", "remedy", "reference")
    }
    said["evidence"] += f", {level_meaning(int(row['evidence']))}"
    return Document(
        str(row["title"]),
        [Definitions([Entry(name, words) for name, words in said.items() if words])],
    )
