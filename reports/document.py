"""A document model for all pages and screens: a title and blocks, for HTML, Markdown and text.

Writers turn blocks into these. Words in blocks are plain text: what stands between backticks is
code. They may hold anything, also text that somebody chose to do harm; every writer escapes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from dpaudit.reports.figures import Drawing

Status = Literal["pass", "fail", "warn", "skip", "error", "not_verified"]
Tone = Literal["plain", "lead", "quiet", "strong", "caution"]


class Link(NamedTuple):
    """Words that lead to a place: `#id` on the same page, or a file by its relative path."""

    words: str
    target: str


#: Plain words, or several parts in a row, of which some are links.
Words: TypeAlias = str | Link | Sequence[str | Link]


def parts_of(words: Words) -> Sequence[str | Link]:
    """Return words as their parts in a row."""
    return (words,) if isinstance(words, str | Link) else words


class Section(NamedTuple):
    """A part of a document, under a heading of the level below the section that it stands in.

    Attributes:
        id: what links lead to; top-level sections with one are listed in the contents.
        note: quiet words beside the title.
        folded: whether a page shows the heading alone until a reader opens it.
        filter: what a reader can filter, in the plural ("checks"): rows and outcomes inside; empty
            for nothing.
        status: shown as a badge before the title; None for none.
    """

    title: Words
    blocks: Sequence[Block]
    id: str = ""
    note: str = ""
    folded: bool = False
    filter: str = ""
    status: Status | None = None


class Columns(NamedTuple):
    """Blocks side by side where there is room; sections stand on cards of their own."""

    blocks: Sequence[Block]


class Verdict(NamedTuple):
    """The verdict, in a box of its status's colour; its title is the document's heading."""

    status: Status
    title: str
    blocks: Sequence[Block]


class Banner(NamedTuple):
    """A notice about the document itself: who may see it."""

    lead: str
    words: str
    public: bool = False


class Paragraph(NamedTuple):
    """Words, after `lead` in bold."""

    words: Words
    tone: Tone = "plain"
    lead: str = ""


class KeyFigure(NamedTuple):
    """A figure that a reader is to take away, with its name and what it means."""

    name: str
    figure: str
    meaning: str


class KeyFigures(NamedTuple):
    """The few figures that matter, large."""

    figures: Sequence[KeyFigure]


class Row(NamedTuple):
    """Cells of a table's row; `id` is what links lead to."""

    cells: Sequence[Words]
    id: str = ""


class Table(NamedTuple):
    """A table, whose rows' first cells are headings.

    Other cells align right unless their column is of words.

    Attributes:
        title: what the table is, for readers who do not see it.
        rows: each with as many cells as the header.
        words: indexes of the columns of words, which wrap.
        sortable: whether a reader can sort the rows.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Row]
    words: frozenset[int] = frozenset()
    sortable: bool = False

    @staticmethod
    def of(
        title: str,
        header: Sequence[str],
        rows: Iterable[Sequence[Words]],
        words: Iterable[int] = (),
        *,
        sortable: bool = False,
    ) -> Table:
        """Return a table of rows that are cells alone."""
        return Table(title, header, [Row(cells) for cells in rows], frozenset(words), sortable)


class Figure(NamedTuple):
    """A drawing.

    Attributes:
        marks: what its marks mean, for readers who see it.
        words: what it shows, in words, which stand for it where nothing can be drawn.
    """

    drawing: Drawing | None
    words: str
    marks: str = ""


class Piece(NamedTuple):
    """A part of a text: a token, or several in a row that nothing is to be said of.

    Attributes:
        mark: 0 for none, to 4 for the most expensive.
        said: what it cost, in a sentence; empty if that is not known in full.
        target: the id of its row; empty if it has none.
        stands_in: whether the words stand for a token that shows none of its own.
    """

    words: str
    mark: int = 0
    said: str = ""
    target: str = ""
    stands_in: bool = False


class Text(NamedTuple):
    """One text of several: what it is, its pieces, its gaps, and a table under its own heading."""

    id: str
    title: str
    about: str
    pieces: Sequence[Piece]
    remark: str = ""
    table_title: str = ""
    table: Table | None = None


class Texts(NamedTuple):
    """Texts, on pages of `page` texts.

    Attributes:
        marks: what marks and pieces mean, for readers who see them.
        legend: from which figure on a piece has mark 1, 2, 3 and 4; empty if nothing is marked.
    """

    texts: Sequence[Text]
    marks: str = ""
    legend: Sequence[str] = ()
    page: int = 50


class Node(NamedTuple):
    """A node of a tree: a figure by name, its composition of children, and the number left out."""

    name: str
    figure: str
    rule: str
    reference: str
    children: Sequence[Node]
    omitted: int = 0

    @property
    def unlisted(self) -> str:
        """The number of children that are not listed beside others, in words; "" if all are."""
        return f"{self.omitted:,} more, not listed here" if self.children and self.omitted else ""


class Tree(NamedTuple):
    """The composition of a figure."""

    root: Node


class Commands(NamedTuple):
    """Commands to paste into a shell, each a line."""

    lines: Sequence[str]


class Items(NamedTuple):
    """A list."""

    items: Sequence[Words]
    tone: Tone = "plain"


class Entry(NamedTuple):
    """A name with a value; `hint` explains the name."""

    name: str
    value: Words = ""
    hint: str = ""


class Definitions(NamedTuple):
    """Names with their values.

    Attributes:
        style: "facts" are short and stand in a few columns; "figures" align right; "settings" have
            long names; "terms" are explained at length; "blanks" are to be filled in on paper where
            they have no value.
    """

    entries: Sequence[Entry]
    style: Literal["facts", "figures", "settings", "terms", "blanks"] = "settings"


class Statement(NamedTuple):
    """A statement on an outcome: a "cell" stands in tables, what is "minor" may be skipped."""

    name: str
    words: str
    role: Literal["cell", "detail", "why", "remedy", "minor"] = "detail"


class Outcome(NamedTuple):
    """A check's outcome.

    Attributes:
        status_name: says it in a word or a few.
        anchor: what links lead to.
    """

    id: str
    anchor: str
    status: Status
    status_name: str
    title: str
    statements: Sequence[Statement]


class Outcomes(NamedTuple):
    """Outcomes of checks, as cards or in a table; folded ones show their titles."""

    outcomes: Sequence[Outcome]
    folded: bool = False


Block: TypeAlias = (
    Section
    | Columns
    | Verdict
    | Banner
    | Paragraph
    | KeyFigures
    | Table
    | Figure
    | Texts
    | Tree
    | Commands
    | Items
    | Definitions
    | Outcomes
)


class Document(NamedTuple):
    """A page or a screen.

    Attributes:
        title: the heading, unless the first block is a verdict.
        masthead: small words above: what kind of document it is, and of what.
        footer: small words below.
        contents: whether a page lists its sections, before the first of them.
    """

    title: str
    blocks: Sequence[Block]
    masthead: Sequence[str] = ()
    footer: str = ""
    contents: bool = False
