"""report.md: the same report for pull requests and chat, with nothing in it that the run could use as markup."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from dpaudit.results import AuditResult, CheckResult
from reports import outline, quality
from reports.costs import batch_costs, curve_described, growth_described
from reports.text import LABEL_LENGTH, one_line
from reports.wording import (
    DETAIL_NAMES,
    GLOSSARY,
    KINDS_APART,
    LEDGER_LEAD,
    LOSS_SIGN,
    NO_BATCH_COSTS,
    REPRODUCE,
    STATUS_MARKS,
    STATUS_NAMES,
    STATUS_ORDER,
    evidence,
)

_MARKUP = re.compile(r"[\\`*_\[\]#|~$]|:(?=//)")
_START_OF_BLOCK = re.compile(r"^(\d*)([-+=.)])(?=\s|[-=]|$)")


def render_markdown(result: AuditResult) -> str:
    """The whole report as GitHub Markdown."""
    sections = (
        _verdict(result),
        _claimed(result),
        _quality(result),
        _worst_contexts(result),
        _ledger(result),
        _costs(result),
        _batches(result),
        _checks(result),
        _not_checked(result),
        _settings(result),
        _reproduce(result),
        _glossary(),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def escaped(text: object) -> str:
    """One line of Markdown that renders as `text`, whatever it holds: no tags, links, mentions, markup or cells."""
    line = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda found: "\\" + found.group(), line)
    # GitHub links www. and @names after parsing, where no backslash reaches: a zero-width space keeps them apart.
    line = line.replace("@", "@&#8203;").replace("www.", "www&#8203;.").replace("WWW.", "WWW&#8203;.")
    return _START_OF_BLOCK.sub(r"\1\\\2", line)


def code(text: object, limit: int = LABEL_LENGTH) -> str:
    """A code span that renders as `text`; plain text where it holds a bar, which tables split even in code."""
    line = one_line(text, limit) or " "
    if "|" in line:
        return escaped(line)
    fence = "`" * (_longest_run(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], figures: Collection[str] = ()) -> list[str]:
    """A table of cells that are Markdown already; the columns named in `figures` align right."""
    rule = ["---:" if name in figures else "---" for name in header]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def _verdict(result: AuditResult) -> list[str]:
    mark = STATUS_MARKS[result.verdict]
    lines = [f"# {mark} {outline.headline(result)}", "", f"**{escaped(result.guarantee)}**", ""]
    for caveat in result.caveats:
        lines += [escaped(caveat), ""]
    lines += [f"Claim: {escaped(outline.claim_sentence(result))}", "", f"{outline.tally(result)}.", ""]
    lines += [*_unmade(result), ""]
    audience, holds = outline.audience(result)
    return [*lines, f"> **{audience}** {holds}"]


def _unmade(result: AuditResult) -> list[str]:
    groups = outline.unmade(result)
    if not groups:
        return [outline.evidence_asked(result)]
    lines = [f"{outline.evidence_asked(result)} Not made:", ""]
    for group in groups:
        needed = " (needed for a pass)" if group.needed else ""
        named = ", ".join(map(code, group.ids)) if len(group.ids) <= outline.MOST_NAMED else group.named
        lines.append(f"- {named}{needed}: {escaped(group.remedy)}" if group.remedy else f"- {named}{needed}")
    return lines


def _claimed(result: AuditResult) -> list[str]:
    lines = ["## Claimed and recomputed", ""]
    lines += [KINDS_APART]
    caution = outline.caution(result)
    if caution:
        lines += ["", f"**{caution}**"]
    for block in outline.kind_blocks(result):
        lines += ["", f"### {block.title}", "", block.meaning, ""]
        if block.lines:
            rows = [(line.name, escaped(line.claimed), escaped(line.recomputed)) for line in block.lines]
            lines += [*table(("Quantity", "Claimed", "Recomputed"), rows), ""]
        if block.parts:
            lines += [*(f"- {name}: {escaped(value)}" for name, value in block.parts), ""]
        if block.kind == "empirical" and outline.attack_curve(result):
            lines += [*table(outline.CURVE_COLUMNS, outline.attack_curve(result), outline.CURVE_COLUMNS), ""]
        lines.append(block.remark)
    return lines


def _quality(result: AuditResult) -> list[str]:
    found = result.quality
    if found is None or outline.is_public(result):
        return []
    lines = [f"## {quality.TITLE}", "", f"> **Internal.** {quality.WARNING}", "", escaped(quality.about(found)), ""]
    rows = quality.rows(found)
    lines += [*table(quality.HEADER, [tuple(map(escaped, row)) for row in rows]), ""] if rows else []
    lines += [quality.NOTE, "", *(f"- {escaped(warning)}" for warning in found.warnings)]
    return [*lines, *(f"- {name}: {escaped(said)}" for name, said in quality.details(found))]


def _worst_contexts(result: AuditResult) -> list[str]:
    rows = outline.worst_contexts(result)
    if not rows:
        return []
    said = f"{outline.worst_sentence(result)} {LOSS_SIGN} {outline.several_contexts(result)}".rstrip()
    lines = ["## Contexts whose absence would have mattered most", "", said]
    return [*lines, "", *table(outline.WORST_COLUMNS, rows, outline.WORST_COLUMNS)]


def _ledger(result: AuditResult) -> list[str]:
    if not result.ledger:
        return []
    lines = ["## How the figures come about", "", LEDGER_LEAD]
    for tree in outline.ledger(result, depth=3, breadth=10):
        lines += ["", f"### Composition: {tree.title}, {escaped(tree.neighbours)}", "", *_nodes([tree.root], 0)]
    return lines


def _nodes(nodes: Iterable[outline.Node], depth: int) -> list[str]:
    lines = []
    for node in nodes:
        rule = f", {node.rule}" + (":" if node.children else "") if node.rule else ""
        reference = f" ({escaped(node.reference)})" if node.reference else ""
        indent = "  " * depth
        lines.append(f"{indent}- {escaped(node.name)} **{escaped(node.figure)}**{reference}{rule}")
        lines += _nodes(node.children, depth + 1)
        lines += [f"{indent}  - {node.left_out}"] * bool(node.left_out)
    return lines


def _costs(result: AuditResult) -> list[str]:
    costs = batch_costs(result)
    if costs is None:
        return []
    described = [costs.described(), growth_described(result), curve_described(result.tokens)]
    lines = ["## Where the epsilon was spent", ""]
    return [*lines, *(f"- {said}" for said in described if said), "", "The figures are in report.html."]


def _batches(result: AuditResult) -> list[str]:
    if outline.is_public(result):
        return []
    lines = ["## Batches", "", outline.listed_sentence(result)]
    columns = outline.batch_columns(result)
    if not columns:
        return lines
    note = NO_BATCH_COSTS if batch_costs(result) is None else outline.several_contexts(result)
    lines[-1] += f" {note}" if note else ""
    rows = [
        [code(column.cell(batch)) if column.words else escaped(column.cell(batch)) for column in columns]
        for batch in outline.listed_batches(result)
    ]
    figures = [column.name for column in columns if not column.words]
    return [*lines, "", *table([column.name for column in columns], rows, figures)]


def _checks(result: AuditResult) -> list[str]:
    lines = ["## Checks", ""]
    ran = outline.checks_with(result, *(status for status in STATUS_ORDER if status != "skip"))
    if not ran:
        return [*lines, "No check ran."]
    said = (*["Measured"] * (not outline.is_public(result)), outline.expected_name(result))
    lines += table(("Status", "Check", "Outcome", *said, "Evidence"), [_check_row(check, len(said)) for check in ran])
    details = [check for check in ran if check.status != "pass" and check.detail]
    for check in details:
        lines += ["", f"**{code(check.id)}** {DETAIL_NAMES[check.status]}: {escaped(check.detail)}"]
        if check.reference:
            lines[-1] += f" Reference: {escaped(check.reference)}"
    return lines


def _check_row(check: CheckResult, said: int) -> tuple[str, ...]:
    """A row whose texts between outcome and evidence are the last `said` of measured and expected."""
    status = f"{STATUS_MARKS[check.status]} {STATUS_NAMES[check.status]}"
    texts = (check.title, *(check.measured, check.expected)[-said:], evidence(check.evidence))
    return (status, code(check.id), *map(escaped, texts))


def _not_checked(result: AuditResult) -> list[str]:
    lines = ["## What was not checked"]
    for said, skipped in (
        ("Not made; nothing here speaks for or against these:", outline.checks_not_made(result)),
        ("Not about this run:", outline.checks_not_about(result)),
    ):
        if skipped:
            shown = 3 if any(check.detail for check in skipped) else 2  # a column with nothing in it is left away
            rows = [(code(check.id), escaped(check.title), escaped(check.detail))[:shown] for check in skipped]
            lines += ["", said, "", *table(("Check", "Title", "Missing")[:shown], rows)]
    return lines if len(lines) > 1 else [*lines, "", "Every check was made."]


def _settings(result: AuditResult) -> list[str]:
    lines = ["## Settings of the run", ""]
    return [*lines, *(_branch(outline.settings(result.run), 0) or ["The run states nothing that could be read."])]


def _branch(entries: Iterable[outline.Setting], depth: int) -> list[str]:
    lines = []
    for entry in entries:
        value = f": {escaped(entry.value)}" if entry.value else ""
        lines.append(f"{'  ' * depth}- {code(entry.name)}{value}")
        lines += _branch(entry.entries, depth + 1)
    return lines


def _reproduce(result: AuditResult) -> list[str]:
    commands = outline.commands(result)
    fence = "`" * max(3, _longest_run("\n".join(commands)) + 1)
    return ["## How to reproduce this report", "", REPRODUCE, "", fence + "sh", *commands, fence]


def _glossary() -> list[str]:
    return ["## Glossary", "", *(f"- **{term}**: {meaning}" for term, meaning in GLOSSARY)]


def _longest_run(text: str) -> int:
    """Length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
