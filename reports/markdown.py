"""report.md: the same report for pull requests and chat, with nothing in it that the run could use as markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice

from dpaudit.reports import budgets, findings, levels, outline, quality, wording
from dpaudit.reports.costs import batch_costs, curve_described, directions_described, growth_described, losses_described
from dpaudit.reports.released import NO_TEXT, PAGE, Texts
from dpaudit.reports.text import LABEL_LENGTH, one_line
from dpaudit.results import AuditResult

_MARKUP = re.compile(r"[\\`*_\[\]#|~$]|:(?=//)")
_START_OF_BLOCK = re.compile(r"^(\d*)([-+=.)])(?=\s|[-=]|$)")


def render_markdown(result: AuditResult) -> str:
    """The whole report as GitHub Markdown: blocks with a blank line between."""
    blocks = list(_verdict(result))
    for name, title in outline.contents(result).items():
        blocks += [f"## {title}", *_SECTIONS[name](result)]
    return "\n\n".join(blocks) + "\n"


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


def table(header: Sequence[str], rows: Iterable[Sequence[str]], figures: Collection[str] = ()) -> str:
    """A table of cells that are Markdown already; the columns named in `figures` align right."""
    rule = ["---:" if name in figures else "---" for name in header]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def _items(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _verdict(result: AuditResult) -> Iterator[str]:
    yield f"# {wording.STATUS_MARKS[result.verdict]} {outline.headline(result)}"
    yield f"**{escaped(result.guarantee)}**"
    if held := levels.holding(result, result.guarantee):
        yield _items(f"**{level.name}, {escaped(level.figure)}.** {escaped(level.holds)}" for level in held)
        yield levels.not_covered(result.claim)
    yield from map(escaped, (*outline.empty_bounds(result), *outline.model_caveats(result)))
    yield f"Claim: {escaped(outline.claim_sentence(result))}"
    if result.released is not None and not findings.is_public(result):
        yield f"Texts: {findings.texts(result.released)}."
    yield f"{findings.tally(result)}. {findings.evidence_asked(result)}"
    audience, holds = outline.audience(result)
    yield f"> **{audience}** {holds}"


def _claimed(result: AuditResult) -> Iterator[str]:
    yield wording.KINDS_APART
    if caution := outline.caution(result):
        yield f"**{caution}**"
    for block in outline.kind_blocks(result):
        yield f"### {wording.KIND_TITLES[block.kind]}"
        yield wording.KIND_MEANINGS[block.kind]
        if block.lines:
            header, rows = block.table(result.asked)
            yield table(header, [tuple(map(escaped, row)) for row in rows])
        if block.parts:
            yield _items(f"{name}: {escaped(value)}" for name, value in block.parts)
        if block.kind == "empirical" and outline.attack_curve(result):
            yield table(outline.CURVE_COLUMNS, outline.attack_curve(result), outline.CURVE_COLUMNS)
        yield block.remark


def _ledger(result: AuditResult) -> Iterator[str]:
    yield wording.LEDGER_LEAD
    for tree in outline.ledger(result, depth=3, breadth=10):
        yield f"### Composition: {wording.KIND_TITLES[tree.kind]}, {escaped(tree.neighbours)}"
        yield "\n".join(_node(tree.root, ""))


def _node(node: outline.Node, indent: str) -> Iterator[str]:
    rule = f", {node.rule}" + (":" if node.children else "") if node.rule else ""
    reference = f" ({escaped(node.reference)})" if node.reference else ""
    yield f"{indent}- {escaped(node.name)} **{escaped(node.figure)}**{reference}{rule}"
    for child in node.children:
        yield from _node(child, indent + "  ")
    if node.left_out:
        yield f"{indent}  - {node.left_out}"


def _batches(result: AuditResult) -> Iterator[str]:
    costs, columns = batch_costs(result), outline.batch_columns(result)
    yield wording.OF_THE_BATCH_LEVEL
    if costs is not None:
        yield costs.described()
    note = wording.NO_BATCH_COSTS if costs is None and columns else outline.several_contexts(result) if columns else ""
    yield f"{outline.listed_sentence(result)} {note}".rstrip()
    if columns:
        rows = [
            [code(column.cell(batch)) if column.words else escaped(column.cell(batch)) for column in columns]
            for batch in outline.listed_batches(result)
        ]
        figures = [column.name for column in columns if not column.words]
        yield table([column.name for column in columns], rows, figures)


def _tokens(result: AuditResult) -> Iterator[str]:
    yield _items(filter(None, (curve_described(result.tokens), growth_described(result))))
    yield "The figures are in report.html."


def _budgets(result: AuditResult) -> Iterator[str]:
    if (use := result.budgets) is None:
        return
    yield budgets.described(use)
    if rows := budgets.rows(use):
        yield budgets.took_part(use)
        yield table(budgets.COLUMNS, rows, budgets.COLUMNS)


def _directions(result: AuditResult) -> Iterator[str]:
    yield wording.RISE_AND_FALL
    yield directions_described(result)


def _losses(result: AuditResult) -> Iterator[str]:
    yield wording.LOSS_SIGN
    if described := losses_described(result):
        yield described
    if rows := outline.worst_contexts(result):
        yield f"{outline.worst_sentence(result)} {outline.several_contexts(result)}".rstrip()
        yield table(outline.WORST_COLUMNS, rows, outline.WORST_COLUMNS)


def _checks(result: AuditResult) -> Iterator[str]:
    yield findings.standing(result)
    yield table(findings.LADDER_COLUMNS, [tuple(map(escaped, rung.cells)) for rung in findings.rungs(result)])
    families = findings.families(result)
    if not families:
        yield "No check ran."
    compared = (*["Measured"] * (not findings.is_public(result)), findings.expected_name(result))
    for family in families:
        yield f"### {escaped(family.name)}: {family.tally}"
        rows = []
        for check in family.checks:
            status = f"{wording.STATUS_MARKS[check.status]} {wording.STATUS_NAMES[check.status]}"
            texts = (*(check.measured, check.expected)[-len(compared) :], wording.evidence(check.evidence))
            rows.append((status, code(check.id), *map(escaped, (check.title, *texts))))
        yield table(("Status", "Check", "Outcome", *compared, "Evidence"), rows)
        for check in family.checks:
            if check.status != "pass":  # the table has no room for the rest of what is said
                shown = {name for name, _ in findings.compared(result, check)} | {"Evidence"}
                rest = [each for each in findings.statements(result, check) if each.name not in shown]
                yield code(check.id)
                yield _items(f"{each.name}: {escaped(each.words)}" for each in rest)


def _not_checked(result: AuditResult) -> Iterator[str]:
    lines = []
    for group in findings.unmade(result):
        named = ", ".join(map(code, group.ids)) if len(group.ids) <= findings.MOST_NAMED else group.named
        remedy = f": {_with_commands(group.remedy)}" if group.remedy else ""
        lines.append(f"{named}{' (needed for a pass)' if group.needed else ''}{remedy}")
    if lines:
        yield "Not made; nothing here speaks for or against these:"
        yield _items(lines)
    else:
        yield "Every check that is about this run was made."
    if not_about := findings.checks_not_about(result):
        yield "Not about this run, which has no part that they look at:"
        yield _items(
            f"{code(check.id)}: {escaped(check.detail)}" if check.detail else code(check.id) for check in not_about
        )
    if caveats := outline.other_caveats(result):
        yield f"### {wording.TRUSTED}"
        yield _items(map(escaped, caveats))


def _with_commands(text: str) -> str:
    """Escaped, with what stands between backticks as code, to be pasted."""
    parts = re.split("`([^`]+)`", one_line(text))
    return "".join(code(part, len(part)) if at % 2 else _within(part) for at, part in enumerate(parts))


def _within(text: str) -> str:
    """Escaped, where it stands within a line, with the blanks at its ends."""
    return escaped(f"x{text}x")[1:-1]


def _quality(result: AuditResult) -> Iterator[str]:
    found = result.quality
    if found is None:
        return
    yield f"> **Internal.** {quality.WARNING}"
    yield escaped(quality.about(found))
    if rows := quality.rows(found):
        yield table(quality.header(found), [tuple(map(escaped, row)) for row in rows])
    if added := quality.added(found):
        yield f"**{added[0]}** {quality.ADDED_NOTE}"
        yield _items(added[1:])
    yield quality.NOTE
    details = [f"{name}: {escaped(setting)}" for name, setting in quality.details(found)]
    yield _items([*map(escaped, found.warnings), *details])


def _samples(result: AuditResult) -> Iterator[str]:
    texts = Texts(result)
    yield f"{wording.SAMPLES_LEAD} {escaped(texts.left_out)}".rstrip()
    for shown in islice(texts, PAGE):
        yield f"### {shown.title}"
        yield escaped(shown.about)
        if shown.pieces:
            yield _fenced("".join(piece.words for piece in shown.pieces if piece.words != NO_TEXT), "text")
        if shown.remark:
            yield shown.remark
    if len(texts) > PAGE:
        yield f"The other {len(texts) - PAGE:,} texts are in report.html."


def _sign_off(result: AuditResult) -> Iterator[str]:
    yield _items(
        [
            *(f"{name}{f' ({hint})' if hint else ''}:" for name, hint in outline.SIGNED_BY.items()),
            *(f"{name}: {code(known)}" for name, known in outline.signed_off(result)),
        ]
    )


def _settings(result: AuditResult) -> Iterator[str]:
    parts = outline.settings(result.run)
    if not parts:
        yield "The run states nothing that could be read."
    for title, entries in parts:
        yield f"### {title}"
        yield "\n".join(_branch(entries, ""))


def _branch(entries: Iterable[outline.Setting], indent: str) -> Iterator[str]:
    for entry in entries:
        yield f"{indent}- {code(entry.name)}" + (f": {escaped(entry.value)}" if entry.value else "")
        yield from _branch(entry.entries, indent + "  ")


def _reproduce(result: AuditResult) -> Iterator[str]:
    yield f"{outline.claim_origin(result)} {wording.REPRODUCE}".strip()
    yield _fenced("\n".join(outline.commands(result)), "sh")


def _glossary(_: AuditResult) -> Iterator[str]:
    yield _items(f"**{term}**: {meaning}" for term, meaning in wording.GLOSSARY.items())


#: What makes the blocks of each part of a report.
_SECTIONS: dict[str, Callable[[AuditResult], Iterator[str]]] = {
    "claimed": _claimed,
    "ledger": _ledger,
    "batches": _batches,
    "tokens": _tokens,
    "budgets": _budgets,
    "directions": _directions,
    "losses": _losses,
    "checks": _checks,
    "not-checked": _not_checked,
    "quality": _quality,
    "samples": _samples,
    "settings": _settings,
    "reproduce": _reproduce,
    "glossary": _glossary,
    "sign-off": _sign_off,
}


def _longest_run(text: str) -> int:
    """Length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
