"""Documents for a terminal: read in five seconds, at 80 columns, with or without colour.

Everything is built as rich Text, never as markup, so that square brackets in a run's own text stay
square brackets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from dpaudit.reports import document as d
from dpaudit.reports.text import LABEL_LENGTH, one_line, printable, wrapped

STYLES: dict[str, str] = {
    "fail": "bold red",
    "not_verified": "bold yellow",
    "error": "bold yellow",
    "warn": "yellow",
    "pass": "bold green",
    "skip": "dim",
}
_TONES: dict[d.Tone, str] = {
    "plain": "",
    "lead": "bold",
    "quiet": "dim",
    "strong": "bold",
    "caution": "yellow",
}
_INDENT, _NAME_WIDTH, _NARROWEST = "  ", 14, 20
#: Columns between those of a table, and of a word that is not cut.
_GAP, _WIDEST_WORD = 2, 24
#: Columns that a row's name has at least, where it is longer.
_NARROWEST_NAME = 10


def print_document(document: d.Document, console: Console) -> None:
    """Print the blocks of a document; its title first, unless a verdict stands there."""
    if document.title and not any(isinstance(block, d.Verdict) for block in document.blocks):
        console.print(Text(one_line(document.title), style="bold"))
    print_blocks(document.blocks, console)


def print_blocks(blocks: Iterable[d.Block], console: Console) -> None:
    """Print blocks one below the other."""
    for block in blocks:
        _PRINTERS[type(block)](block, console)


def print_paragraph(said: Text, console: Console) -> None:
    """Print wrapped text, with all lines but the first indented."""
    for index, line in enumerate(said.wrap(console, max(_NARROWEST, console.width - len(_INDENT)))):
        line.rstrip()
        console.print(Text.assemble(_INDENT if index else "", line), soft_wrap=True)


def print_pair(
    label: str,
    said: str,
    console: Console,
    style: str = "",
    width: int = _NAME_WIDTH,
    most: int | None = None,
) -> None:
    """Print `said` behind its label, wrapped in a column of its own.

    There is no padding, so that copies hold no blanks. The label's column has this `width`; what
    does not fit into `most` lines is left out, where that is given.
    """
    wrapped = Text(said, style=style).wrap(
        console, max(_NARROWEST, console.width - len(_INDENT) - width)
    )
    if most is not None and len(wrapped) > most:
        wrapped[most - 1].truncate(max(_NARROWEST, console.width - len(_INDENT) - width) - 2)
        wrapped[most - 1].append(" …")
    for index, line in enumerate(wrapped[:most]):
        line.rstrip()
        name = label if index == 0 else ""
        console.print(
            Text.assemble(_INDENT, (f"{name:<{width - 1}} ", "dim"), line), soft_wrap=True
        )


def _plain(words: d.Words) -> str:
    """Return words in a line; commands keep their backticks."""
    return one_line(
        "".join(part.words if isinstance(part, d.Link) else part for part in d.parts_of(words))
    )


def _section(section: d.Section, console: Console) -> None:
    console.print()
    if section.title:
        title = Text(_plain(section.title), style="bold")
        console.print(
            Text.assemble(title, (f" – {one_line(section.note)}" if section.note else "", "dim"))
        )
    print_blocks(section.blocks, console)


def _verdict(verdict: d.Verdict, console: Console) -> None:
    console.print(Text(one_line(verdict.title), style=STYLES[verdict.status]))
    print_blocks(verdict.blocks, console)


def _banner(banner: d.Banner, console: Console) -> None:
    console.print(Text(one_line(f"{banner.lead} {banner.words}"), style="bold"))


def _paragraph(paragraph: d.Paragraph, console: Console) -> None:
    lead = one_line(paragraph.lead)
    said = f"{lead} {_plain(paragraph.words)}".lstrip()
    # Commands are not broken, so that they can be copied.
    words = Text(wrapped(said, console.width), style=_TONES[paragraph.tone])
    words.stylize("bold", 0, len(lead))
    console.print(words, soft_wrap=True)


def _key_figures(found: d.KeyFigures, console: Console) -> None:
    for each in found.figures:
        said = wrapped(
            one_line(f"{each.name}, {each.figure}: {each.meaning}"), console.width, _INDENT
        )
        console.print(Text(said), soft_wrap=True)


def _table(table: d.Table, console: Console) -> None:
    """Print a table in pieces, one below the other, so that no column cuts a word."""
    header = list(map(printable, table.header))
    rows = [[printable(_cell(cell)) for cell in row.cells] for row in table.rows]
    texts = list(zip(header, *rows, strict=True))
    needed, gap = _layout(table, texts, console.width)
    for columns in _pieces(needed, gap, console.width):
        shown = RichTable(box=None, pad_edge=False, padding=(0, 0, 0, gap))
        spare = console.width + gap - sum(needed[column] + gap for column in columns)
        for column in columns:
            lines = [line for cell in texts[column] for line in cell.splitlines()]
            more = max(0, min(spare, _widest(lines) - needed[column]))
            spare -= more
            words = not column or column in table.words
            justify: Literal["left", "right"] = "left" if words else "right"
            name = Text(header[column])
            shown.add_column(name, overflow="fold", width=needed[column] + more, justify=justify)
        for row in rows:
            shown.add_row(*(Text(row[column]) for column in columns))
        console.print(shown)


def _layout(table: d.Table, texts: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """Return how wide each column is at least, and how far apart: figures keep their lines."""
    words = [min(_WIDEST_WORD, _widest(" ".join(column).split())) for column in texts]
    lines = [
        least
        if not at or at in table.words
        else max(least, _widest(line for cell in cells for line in cell.splitlines()))
        for at, (least, (_, *cells)) in enumerate(zip(words, texts, strict=True))
    ]
    for gap in (_GAP, 1):
        first = width - sum(each + gap for each in lines[1:])
        if first >= min(_NARROWEST_NAME, lines[0]):
            return [min(first, lines[0]), *lines[1:]], gap
    gap = next((gap for gap in (_GAP, 1) if len(_pieces(words, gap, width)) == 1), _GAP)
    return words, gap


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _pieces(needed: Sequence[int], gap: int, width: int) -> list[list[int]]:
    """Return each piece's columns: the table's first, and as many more as the width holds."""
    pieces: list[list[int]] = [[0]]
    for column in range(1, len(needed)):
        if (
            len(pieces[-1]) > 1
            and sum(needed[other] + gap for other in (*pieces[-1], column)) > width + gap
        ):
            pieces.append([0])
        pieces[-1].append(column)
    return pieces


def _cell(words: d.Words) -> str:
    """Return a cell, whose line breaks are kept."""
    return "".join(part.words if isinstance(part, d.Link) else part for part in d.parts_of(words))


def _figure(figure: d.Figure, console: Console) -> None:
    console.print(Text(one_line(figure.words)))


def _texts(texts: d.Texts, console: Console) -> None:
    for shown in texts.texts[: texts.page]:
        words = "".join(piece.words for piece in shown.pieces if not piece.stands_in)
        print_pair(
            one_line(shown.title, LABEL_LENGTH), one_line(words) or "(empty)", console, most=2
        )


def _tree(tree: d.Tree, console: Console) -> None:
    _print_node(tree.root, _INDENT, console)


def _print_node(node: d.Node, indent: str, console: Console) -> None:
    rule = f", {node.rule}" if node.rule else ""
    console.print(Text(f"{indent}{one_line(node.name)} {one_line(node.figure)}{rule}"))
    for child in node.children:
        _print_node(child, indent + _INDENT, console)


def _commands(commands: d.Commands, console: Console) -> None:
    for line in commands.lines:
        console.print(Text(f"{_INDENT}{printable(line)}"), soft_wrap=True)


def _items(items: d.Items, console: Console) -> None:
    for item in items.items:
        print_paragraph(Text(f"- {_plain(item)}", _TONES[items.tone]), console)


def _definitions(found: d.Definitions, console: Console) -> None:
    for entry in found.entries:
        print_pair(one_line(entry.name, LABEL_LENGTH), _plain(entry.value), console)


def _outcomes(found: d.Outcomes, console: Console) -> None:
    for one in found.outcomes:
        name = Text.assemble(
            (one_line(one.status_name), STYLES[one.status]), f" {one_line(one.id, LABEL_LENGTH)}  "
        )
        console.print(name + Text(one_line(one.title), style="bold"))
        for each in one.statements:
            print_pair(one_line(each.name).lower(), one_line(each.words), console)


def _columns(columns: d.Columns, console: Console) -> None:
    print_blocks(columns.blocks, console)


_PRINTERS: dict[type[d.Block], Callable[[Any, Console], None]] = {
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
