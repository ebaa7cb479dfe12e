"""report.md: the same report for pull requests and chat, with nothing in it that the run could use as markup."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from dpaudit.reports import ladder, outline, pairs, quality
from dpaudit.reports.costs import batch_costs, curve_described, growth_described
from dpaudit.reports.families import families, said_of
from dpaudit.reports.samples import samples
from dpaudit.reports.text import LABEL_LENGTH, one_line
from dpaudit.reports.wording import (
    GLOSSARY,
    KINDS_APART,
    LEDGER_LEAD,
    LOSS_SIGN,
    NO_BATCH_COSTS,
    REPRODUCE,
    RISE_AND_FALL,
    SAMPLES_LEAD,
    SECTIONS,
    STATUS_MARKS,
    STATUS_NAMES,
    evidence,
)
from dpaudit.results import AuditResult, CheckResult

_MARKUP = re.compile(r"[\\`*_\[\]#|~$]|:(?=//)")
_FIGURES = "The figures are in report.html."
_START_OF_BLOCK = re.compile(r"^(\d*)([-+=.)])(?=\s|[-=]|$)")


def render_markdown(result: AuditResult) -> str:
    """The whole report as GitHub Markdown."""
    sections = (
        _verdict(result),
        _claimed(result),
        _audience(result),
        _ledger(result),
        _batches(result),
        _tokens(result),
        _directions(result),
        _losses(result),
        _checks(result),
        _not_checked(result),
        _quality(result),
        _samples(result),
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
    return [*lines, *_unmade(result)]


def _audience(result: AuditResult) -> list[str]:
    audience, holds = outline.audience(result)
    return [f"> **{audience}** {holds}"]


def _heading(section: str) -> str:
    return f"## {SECTIONS[section]}"


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
    lines = [_heading("claimed"), "", KINDS_APART]
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
    lines = [_heading("quality"), "", f"> **Internal.** {quality.WARNING}", "", escaped(quality.about(found)), ""]
    rows = quality.rows(found)
    lines += [*table(quality.HEADER, [tuple(map(escaped, row)) for row in rows]), ""] if rows else []
    lines += [quality.NOTE, "", *(f"- {escaped(warning)}" for warning in found.warnings)]
    return [*lines, *(f"- {name}: {escaped(said)}" for name, said in quality.details(found))]


def _ledger(result: AuditResult) -> list[str]:
    if not result.ledger:
        return []
    lines = [_heading("ledger"), "", LEDGER_LEAD]
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


def _batches(result: AuditResult) -> list[str]:
    if outline.is_public(result):
        return []
    costs = batch_costs(result)
    lines = [_heading("batches"), ""]
    lines += [costs.described(), ""] if costs is not None else []
    columns = outline.batch_columns(result)
    note = NO_BATCH_COSTS if costs is None and columns else outline.several_contexts(result) if columns else ""
    lines.append(f"{outline.listed_sentence(result)} {note}".rstrip())
    if not columns:
        return lines
    rows = [
        [code(column.cell(batch)) if column.words else escaped(column.cell(batch)) for column in columns]
        for batch in outline.listed_batches(result)
    ]
    figures = [column.name for column in columns if not column.words]
    return [*lines, "", *table([column.name for column in columns], rows, figures)]


def _tokens(result: AuditResult) -> list[str]:
    described = [said for said in (curve_described(result.tokens), growth_described(result)) if said]
    if not described or outline.is_public(result):
        return []
    return [_heading("tokens"), "", *(f"- {said}" for said in described), "", _FIGURES]


def _directions(result: AuditResult) -> list[str]:
    described = pairs.directions_described(result)
    if not described or outline.is_public(result):
        return []
    return [_heading("directions"), "", RISE_AND_FALL, "", described]


def _losses(result: AuditResult) -> list[str]:
    described, rows = pairs.losses_described(result), outline.worst_contexts(result)
    if not (described or rows) or outline.is_public(result):
        return []
    lines = [_heading("losses"), "", LOSS_SIGN]
    lines += ["", described] if described else []
    if rows:
        said = f"{outline.worst_sentence(result)} {outline.several_contexts(result)}".rstrip()
        lines += ["", said, "", *table(outline.WORST_COLUMNS, rows, outline.WORST_COLUMNS)]
    return lines


def _checks(result: AuditResult) -> list[str]:
    rows = [tuple(map(escaped, rung.cells)) for rung in ladder.rungs(result)]
    lines = [_heading("checks"), "", ladder.standing(result), "", *table(ladder.COLUMNS, rows)]
    found = families(result)
    if not found:
        return [*lines, "", "No check ran."]
    said = (*["Measured"] * (not outline.is_public(result)), outline.expected_name(result))
    for family in found:
        lines += ["", f"### {escaped(family.name)}: {family.tally}", ""]
        header = ("Status", "Check", "Outcome", *said, "Evidence")
        lines += table(header, [_check_row(check, len(said)) for check in family.checks])
        for check in family.checks:
            lines += _explained(result, check)
    return lines


def _explained(result: AuditResult, check: CheckResult) -> list[str]:
    """What a table has no room for, of a check that did not pass."""
    if check.status == "pass":
        return []
    told = {name for name, _ in outline.findings(result, check)} | {"Evidence"}
    said = [each for each in said_of(result, check) if each.name not in told]
    return ["", code(check.id), "", *(f"- {each.name}: {escaped(each.words)}" for each in said)]


def _check_row(check: CheckResult, said: int) -> tuple[str, ...]:
    """A row whose texts between outcome and evidence are the last `said` of measured and expected."""
    status = f"{STATUS_MARKS[check.status]} {STATUS_NAMES[check.status]}"
    texts = (check.title, *(check.measured, check.expected)[-said:], evidence(check.evidence))
    return (status, code(check.id), *map(escaped, texts))


def _not_checked(result: AuditResult) -> list[str]:
    lines = [_heading("not-checked")]
    for said, skipped in (
        ("Not made; nothing here speaks for or against these:", outline.checks_not_made(result)),
        ("Not about this run:", outline.checks_not_about(result)),
    ):
        if skipped:
            shown = 3 if any(check.detail for check in skipped) else 2  # a column with nothing in it is left away
            rows = [(code(check.id), escaped(check.title), escaped(check.detail))[:shown] for check in skipped]
            lines += ["", said, "", *table(("Check", "Title", "Missing")[:shown], rows)]
    return lines if len(lines) > 1 else [*lines, "", "Every check was made."]


def _samples(result: AuditResult) -> list[str]:
    found = samples(result)
    lines = [_heading("samples"), "", SAMPLES_LEAD] if found else []
    for sample in found:
        lines += ["", f"### {sample.title}", "", escaped(sample.about), ""]
        fence = "`" * max(3, _longest_run(sample.text) + 1)
        lines += [fence + "text", sample.text, fence] if sample.text else []
        lines += [*[""] * bool(sample.text), sample.remark] if sample.remark else []
    return lines


def _settings(result: AuditResult) -> list[str]:
    lines = [_heading("settings")]
    for title, entries in outline.settings(result.run):
        lines += ["", f"### {title}", "", *_branch(entries, 0)]
    return lines if len(lines) > 1 else [*lines, "", "The run states nothing that could be read."]


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
    said = f"{outline.claim_origin(result)} {REPRODUCE}".strip()
    return [_heading("reproduce"), "", said, "", fence + "sh", *commands, fence]


def _glossary() -> list[str]:
    return [_heading("glossary"), "", *(f"- **{term}**: {meaning}" for term, meaning in GLOSSARY)]


def _longest_run(text: str) -> int:
    """Length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
