"""Documents as GitHub Markdown, for pull requests and chat: no content works as markup."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from dpaudit.reports import document as d
from dpaudit.reports.text import LABEL_LENGTH, one_line, printable
from dpaudit.reports.wording import STATUS_MARKS

_MARKUP = re.compile(r"[\\`*_\[\]#|~$]|:(?=//)")
_START_OF_BLOCK = re.compile(r"^(\d*)([-+=.)])(?=\s|[-=]|$)")
_HEADINGS = 6
#: What is said of outcomes below their table, where that is not all.
_SAID: dict[d.Status, tuple[str, ...]] = {"pass": (), "skip": ("detail",)}


def render(document: d.Document) -> str:
    """Return the document: blocks with a blank line between."""
    blocks = list(_blocks(document.blocks, 2))
    if not any(isinstance(block, d.Verdict) for block in document.blocks):
        blocks.insert(0, f"# {escaped(document.title)}")
    return "\n\n".join(filter(None, blocks)) + "\n"


def escaped(text: object) -> str:
    """Return a line that renders as `text`, without tags, links, mentions, markup or cells."""
    line = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(lambda found: "\\" + found.group(), line)
    # GitHub links www. and @names after parsing, where no backslash reaches: a zero-width space
    # keeps them apart.
    line = (
        line.replace("@", "@&#8203;").replace("www.", "www&#8203;.").replace("WWW.", "WWW&#8203;.")
    )
    return _START_OF_BLOCK.sub(r"\1\\\2", line)


def code(text: object, limit: int = LABEL_LENGTH) -> str:
    """Return a code span, or plain text if it holds a bar: tables split there even in code."""
    line = one_line(text, limit) or " "
    if "|" in line:
        return escaped(line)
    fence = "`" * (_longest_run(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{space}{line}{space}{fence}"


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], figures: Collection[str] = ()
) -> str:
    """Return a table of Markdown cells; columns named in `figures` align right."""
    rule = ["---:" if name in figures else "---" for name in header]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def items(lines: Iterable[str]) -> str:
    """Return a list of lines that are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)


def inline(words: d.Words) -> str:
    """Return words in a line, code between backticks; links within a page are words alone."""
    return _START_OF_BLOCK.sub(r"\1\\\2", "".join(map(_part, d.parts_of(words))).strip())


def _part(part: str | d.Link) -> str:
    if isinstance(part, d.Link) and part.target == f"mailto:{part.words}":
        return f"<{part.words}>"
    if isinstance(part, d.Link) and not part.target.startswith("#"):
        return f"[{_spans(part.words)}](<{part.target.replace('<', '%3C').replace('>', '%3E')}>)"
    return _spans(part.words if isinstance(part, d.Link) else part)


def _spans(text: str) -> str:
    # Runs of white space become one, at the ends too: parts stand side by side.
    parts = re.split("`([^`]+)`", text)
    return "".join(
        code(part, len(part)) if at % 2 else _within(part) for at, part in enumerate(parts)
    )


def _within(text: str) -> str:
    """Escape text that stands within a line, with the blanks at its ends."""
    return escaped(f"x{text}x")[1:-1]


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    """Return the length of the longest run of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _blocks(blocks: Iterable[d.Block], level: int) -> Iterator[str]:
    for block in blocks:
        yield from _WRITERS[type(block)](block, level)


def _section(section: d.Section, level: int) -> Iterator[str]:
    mark = f"{STATUS_MARKS[section.status]} " if section.status else ""
    note = f": {escaped(section.note)}" if section.note else ""
    yield f"{'#' * min(level, _HEADINGS)} {mark}{inline(section.title)}{note}"
    yield from _blocks(section.blocks, level + 1)


def _verdict(verdict: d.Verdict, level: int) -> Iterator[str]:
    yield f"# {STATUS_MARKS[verdict.status]} {escaped(verdict.title)}"
    yield from _blocks(verdict.blocks, level)


def _paragraph(paragraph: d.Paragraph, level: int) -> Iterator[str]:
    lead = f"**{escaped(paragraph.lead)}** " if paragraph.lead else ""
    words = inline(paragraph.words)
    yield lead + (f"**{words}**" if paragraph.tone in ("lead", "strong", "caution") else words)


def _key_figures(found: d.KeyFigures, level: int) -> Iterator[str]:
    yield items(
        f"**{escaped(each.name)}, {escaped(each.figure)}.** {inline(each.meaning)}"
        for each in found.figures
    )


def _table(found: d.Table, level: int) -> Iterator[str]:
    header = [escaped(name) for name in found.header]
    figures = [name for place, name in enumerate(header) if place and place not in found.words]
    yield table(header, [tuple(map(inline, row.cells)) for row in found.rows], figures)


def _figure(figure: d.Figure, level: int) -> Iterator[str]:
    yield escaped(figure.words)


def _texts(texts: d.Texts, level: int) -> Iterator[str]:
    for shown in texts.texts[: texts.page]:
        yield f"{'#' * level} {escaped(shown.title)}"
        yield escaped(shown.about)
        if shown.pieces:
            words = "".join(piece.words for piece in shown.pieces if not piece.stands_in)
            yield _fenced(printable(words, max(len(words), 1)), "text")
        yield inline(shown.remark)
    if (others := len(texts.texts) - texts.page) > 0:
        yield f"The other {others:,} texts are in report.html."


def _tree(tree: d.Tree, level: int) -> Iterator[str]:
    yield "\n".join(_branch(tree.root, ""))


def _branch(node: d.Node, indent: str) -> Iterator[str]:
    rule = f", {escaped(node.rule)}" + (":" if node.children else "") if node.rule else ""
    reference = f" ({escaped(node.reference)})" if node.reference else ""
    yield f"{indent}- {escaped(node.name)} **{escaped(node.figure)}**{reference}{rule}"
    for child in node.children:
        yield from _branch(child, indent + "  ")
    if node.unlisted:
        yield f"{indent}  - {node.unlisted}"


def _commands(commands: d.Commands, level: int) -> Iterator[str]:
    yield _fenced("\n".join(commands.lines), "sh")


def _items(found: d.Items, level: int) -> Iterator[str]:
    yield items(map(inline, found.items))


def _definitions(found: d.Definitions, level: int) -> Iterator[str]:
    lines = []
    for entry in found.entries:
        name = escaped(entry.name) + (f" ({escaped(entry.hint)})" if entry.hint else "")
        lines.append(f"{name}:" + (f" {inline(entry.value)}" if entry.value else ""))
    yield items(lines)


def _outcomes(found: d.Outcomes, level: int) -> Iterator[str]:
    """Yield a table of the outcomes, then what it has no room for, of those that did not pass."""
    names = list(
        dict.fromkeys(
            each.name for one in found.outcomes for each in one.statements if each.role == "cell"
        )
    )
    rows = []
    for one in found.outcomes:
        cells = {each.name: inline(each.words) for each in one.statements if each.role == "cell"}
        status = f"{STATUS_MARKS[one.status]} {escaped(one.status_name)}"
        rows.append(
            (status, code(one.id), escaped(one.title), *(cells.get(name, "") for name in names))
        )
    yield table(("Status", "Check", "Outcome", *map(escaped, names)), rows)
    for one in found.outcomes:
        # Of what was not made the reason is enough.
        roles = _SAID.get(one.status, ("detail", "why", "remedy", "minor"))
        rest = [
            f"{escaped(each.name)}: {inline(each.words)}"
            for each in one.statements
            if each.role in roles
        ]
        if rest:
            yield code(one.id)
            yield items(rest)


def _banner(banner: d.Banner, level: int) -> Iterator[str]:
    yield f"> **{escaped(banner.lead)}** {inline(banner.words)}"


def _columns(columns: d.Columns, level: int) -> Iterator[str]:
    yield from _blocks(columns.blocks, level)


_WRITERS: dict[type[d.Block], Callable[[Any, int], Iterator[str]]] = {
    d.Section: _section,
    d.Columns: _columns,
    d.Verdict: _verdict,
    d.Banner: _banner,
    d.Paragraph: _paragraph,
    d.KeyFigures: _key_figures,
    d.Table: _table,
    d.Figure: _figure,
    d.Texts: _texts,
    d.Tree: _tree,
    d.Commands: _commands,
    d.Items: _items,
    d.Definitions: _definitions,
    d.Outcomes: _outcomes,
}
