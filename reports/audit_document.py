"""The report of an audit as a document, for readers inside, and for publication."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dpaudit.reports import (
    attacks,
    engineers,
    findings,
    labels,
    levels,
    questions,
    wording,
    worth,
)
from dpaudit.reports.costs import batch_costs
from dpaudit.reports.document import (
    Banner,
    Block,
    Definitions,
    Document,
    Entry,
    Items,
    KeyFigure,
    KeyFigures,
    Link,
    Outcome,
    Outcomes,
    Paragraph,
    Section,
    Verdict,
)
from dpaudit.reports.findings import is_public
from dpaudit.reports.released import ReleasedTexts
from dpaudit.reports.reproducing import model_name
from dpaudit.reports.text import LABEL_LENGTH, one_line
from dpaudit.reports.wording import glossary, say, section_title
from dpaudit.reports.writers import html, markdown
from dpaudit.results import AuditResult, CheckResult

#: What the person who accepts a run writes down, and what belongs there.
SIGNED_BY = {
    "Purpose of the release": "for whom, and what for",
    "Kept until": "this report and the run directory",
    "Reviewer": "who read all texts",
    "Role": "",
    "ε accepted (nats)": "with its kind and neighbours",
    "Date and signature": "",
}


def render_html(result: AuditResult) -> str:
    """Return report.html."""
    return html.render(build(result))


def render_markdown(result: AuditResult) -> str:
    """Return report.md."""
    return markdown.render(build(result))


def build(result: AuditResult) -> Document:
    """Return the report: first for an officer, then its background, and figures for engineers."""
    version = one_line(result.run.dpaudit, LABEL_LENGTH)
    audience = "public" if is_public(result) else "private"
    anchors = _anchors(result.checks)
    return Document(
        findings.headline(result),
        [
            _verdict(result, anchors),
            _audience(result),
            *_with_questions(result, list(_sections(result, anchors)), anchors),
        ],
        masthead=(
            f"Privacy audit report · {audience}",
            one_line(result.run.path or "", LABEL_LENGTH),
        ),
        footer=f"Written by dpaudit {version}. report.json beside this file holds the same "
        "result, with every "
        "figure in full.",
        contents=True,
    )


def _with_questions(
    result: AuditResult, sections: Sequence[Section], anchors: Mapping[int, str]
) -> Iterator[Section]:
    """Yield sections, and before the glossary the questions of standards that they answer."""
    ids = {*_ids(sections), "crosswalk"}
    checks = {check.id: anchors[id(check)] for check in reversed(result.checks)}
    *before, glossary_section = sections
    yield from before
    yield _section("crosswalk", list(questions.blocks(result, checks, ids)), folded=True)
    yield glossary_section


def _ids(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the ids of sections, at any depth."""
    for block in blocks:
        if isinstance(block, Section):
            yield block.id
            yield from _ids(block.blocks)


def _sections(result: AuditResult, anchors: Mapping[int, str]) -> Iterator[Section]:
    if bounds := list(attacks.details(result)):
        yield _section("attacks", bounds)
    texts = ReleasedTexts(result)
    if len(texts):
        lead = Paragraph(
            f"{say('samples-lead', sampled=_sampled(result))} {texts.left_out}".strip()
        )
        yield _section("samples", [lead, texts.block()])
    if said := list(labels.blocks(result)):
        yield _section("labels", said)
    yield _section("not-checked", list(_not_checked(result, anchors)))
    yield _section("scope", [Items(list(_scope(result)))])
    yield _section("checks", list(_checks(result, anchors)), filter="checks")
    if result.quality is not None and not is_public(result):
        from dpaudit.reports import quality  # few results have any, and few a trial

        yield _section("quality", list(quality.blocks(result.quality)), folded=True)
    if result.disclosed is not None and not is_public(result):
        from dpaudit.reports import disclosed

        lead = Paragraph(f"{disclosed.headline(result.disclosed)}.", "lead")
        yield _section("disclosed", [lead, *disclosed.blocks(result.disclosed)], folded=True)
    yield _section("sign-off", [Definitions(list(_signed_off(result)), "blanks")])
    yield _section("engineers", list(engineers.sections(result)), folded=True)
    terms = [Entry(term, meaning) for term, meaning in glossary().items()]
    yield _section("glossary", [Definitions(terms, "terms")], folded=True)


def _section(
    name: str,
    blocks: Sequence[Block],
    *,
    folded: bool = False,
    filter: str = "",  # noqa: A002
) -> Section:
    return Section(section_title(name), blocks, id=name, folded=folded, filter=filter)


def _verdict(result: AuditResult, anchors: Mapping[int, str]) -> Verdict:
    """Return the first screen: verdict, number, readers, the records' addition, run and checks."""
    blocks: list[Block] = [*_promise(result), *attacks.box(result)]
    blocks += [
        Paragraph(one_line(caveat), "quiet") for caveat in findings.caveats(result, "of-claim")
    ]
    for place, caveat in enumerate(findings.caveats(result, "empty-bound")):
        blocks.append(Paragraph(one_line(caveat), "plain" if place else "caution"))
    if failed := findings.checks_with(result, "fail", "error"):
        blocks.append(
            Items([(*_named(check, anchors), f" {one_line(check.title)}") for check in failed])
        )
    if result.verdict != "error" and not is_public(result):
        added = " ".join(worth.sentences(result))
        blocks.append(Paragraph(added, lead=f"{section_title('worth')}."))
    if result.verdict != "error" and result.paid is not None:
        blocks.append(Paragraph(worth.paid_words(result.paid), "quiet"))
    blocks.append(Definitions(list(_facts(result)), "facts"))
    blocks += [
        Paragraph(one_line(caveat), "quiet") for caveat in findings.caveats(result, "of-model")
    ]
    asked = f"{findings.tally(result)}. {findings.evidence_asked(result)} "
    blocks.append(
        Paragraph((asked, "See ", Link("what was not checked", "#not-checked"), "."), "quiet")
    )
    return Verdict(result.verdict, findings.headline(result), blocks)


def _sampled(result: AuditResult) -> str:
    """Return whether the texts on the page are those that were sampled, as far as was checked."""
    status = next((check.status for check in result.checks if check.id == "release.text"), "skip")
    return say(
        {"pass": "samples-confirmed", "skip": "samples-unconfirmed"}.get(status, "samples-refuted")
    )


def _promise(result: AuditResult) -> Iterator[Block]:
    """Yield the one number that the run promises, and for whom; where nothing holds, why."""
    held = levels.holding(result)
    if not held:
        yield Paragraph(one_line(result.guarantee), "lead")
        if result.claim is not None:
            standing = "Claimed" if result.verdict == "pass" else "Claimed, and not confirmed"
            yield Paragraph(f"{standing}: {levels.claim_words(result.claim)}.", "quiet")
        return
    yield Paragraph(held[0].promise, "lead")
    yield KeyFigures(
        [KeyFigure(each.name, each.figure, f"{each.readers} {each.equal}".strip()) for each in held]
    )
    yield Paragraph(levels.not_covered(result.claim), "quiet")


def _facts(result: AuditResult) -> Iterator[Entry]:
    """Yield which run it is, as far as this reader may know."""
    settings = result.run.settings
    named = {
        "Audited": result.run.audited,
        "Generated": "" if settings is None else settings.created[:10],
        "Made by": "" if settings is None else settings.made_by,
        "Model": model_name(result),
        "Private records": None
        if settings is None or settings.data is None
        else settings.data.records,
        "Texts": findings.texts(result.released)
        if result.released and not is_public(result)
        else "",
        "Checked with dpaudit": result.run.dpaudit,
    }
    for name, value in named.items():
        if value:
            yield Entry(
                name, f"{value:,}" if isinstance(value, int) else one_line(value, LABEL_LENGTH)
            )


def _audience(result: AuditResult) -> Banner:
    """Return who the report is for, and which kinds of statement it therefore holds."""
    if is_public(result):
        return Banner("Public.", say("public-report"), public=True)
    empirical = result.guarantees.empirical
    losses = (empirical.leave_one_out_max, empirical.attack, empirical.canaries) != (
        None,
        None,
        None,
    )
    ex_post = result.guarantees.ex_post is not None or batch_costs(result) is not None
    return Banner(
        "Private.", say("private-figures") if ex_post or losses else say("private-report")
    )


def _anchors(checks: Sequence[CheckResult]) -> dict[int, str]:
    """Return each check's place in the page, by its id: links hold from one audit to the next."""
    taken: set[str] = set()
    anchors = {}
    for index, check in enumerate(checks):
        anchor = "check-" + re.sub(r"[^A-Za-z0-9.-]", "-", check.id[:LABEL_LENGTH])
        anchor = f"{anchor}-{index}" if anchor in taken else anchor
        taken.add(anchor)
        anchors[id(check)] = anchor
    return anchors


def _named(check: CheckResult, anchors: Mapping[int, str]) -> tuple[Link]:
    return (Link(f"`{one_line(check.id, LABEL_LENGTH)}`", f"#{anchors[id(check)]}"),)


def _not_checked(result: AuditResult, anchors: Mapping[int, str]) -> Iterator[Block]:
    groups = findings.unmade(result)
    if groups:
        yield Paragraph("These were not tested.")
        yield Definitions([_unmade(group, anchors) for group in groups], "settings")
    else:
        yield Paragraph("Every check that applies to this run was made.")
    if caveats := findings.caveats(result, "caveat"):
        yield Section(wording.TRUSTED, [Items(list(map(one_line, caveats)))])


def _unmade(group: findings.Unmade, anchors: Mapping[int, str]) -> Entry:
    """Return checks that were not made, by name unless they are many, with what makes them."""
    words: list[str | Link] = [group.named]
    if len(group.checks) <= findings.MOST_NAMED:
        words = [part for check in group.checks for part in (*_named(check, anchors), ", ")][:-1]
    return Entry(
        "Needed for a pass" if group.needed else "Not made", (*words, f". {group.remedy}".rstrip())
    )


def _scope(result: AuditResult) -> Iterator[str]:
    """Yield against whom the figures are, whom they trust, and what no figure is about."""
    bounded = levels.holding(result) and result.guarantees.attacks is not None
    yield say("scope-attackers" if bounded else "scope-attackers-unbounded")
    yield from (
        findings.cited(say(f"scope-{about}")) for about in ("trusted", "channels", "arithmetic")
    )
    yield say("scope-persons" if bounded else "scope-persons-unbounded")
    yield from (say(f"scope-{about}") for about in ("groups", "releases"))


def _checks(result: AuditResult, anchors: Mapping[int, str]) -> Iterator[Block]:
    def outcomes(checks: Sequence[CheckResult], *, folded: bool = False) -> Outcomes:
        return Outcomes([_outcome(result, check, anchors) for check in checks], folded)

    open_ones = findings.checks_with(result, "fail", "error", "warn") + findings.checks_not_made(
        result
    )
    if open_ones:
        yield outcomes(open_ones)
    if passed := findings.checks_with(result, "pass"):
        parts = [
            Section(title, [outcomes(checks, folded=True)], note=f"{len(checks)} passed")
            for title, checks in findings.families(passed).items()
        ]
        yield Section(f"{len(passed)} passed", parts, folded=True)
    if others := findings.checks_not_about(result):
        title = "1 does not apply" if len(others) == 1 else f"{len(others)} do not apply"
        lead = Paragraph("This run has no part that they check.", "quiet")
        yield Section(title, [lead, outcomes(others, folded=True)], folded=True)


def _outcome(result: AuditResult, check: CheckResult, anchors: Mapping[int, str]) -> Outcome:
    return Outcome(
        one_line(check.id, LABEL_LENGTH),
        anchors[id(check)],
        check.status,
        findings.status_name(result, check),
        one_line(check.title),
        list(findings.statements(result, check)),
    )


def _signed_off(result: AuditResult) -> Iterator[Entry]:
    yield from (Entry(name, hint=hint) for name, hint in SIGNED_BY.items())
    for name, known in signed_off(result):
        yield Entry(name, f"`{known}`")


def signed_off(result: AuditResult) -> tuple[tuple[str, str], ...]:
    """Return the files that the person who accepts the run signs for, with their digests."""
    digests = result.run.digests
    files = () if is_public(result) else ("run.json", "samples.jsonl")
    return tuple(
        (f"SHA-256 of {name}", one_line(digests[name], LABEL_LENGTH))
        for name in files
        if name in digests
    )
