"""Every writer writes every block, and whatever words say is text in it."""

from __future__ import annotations

import io
import typing

from markdown_it import MarkdownIt
from rich.console import Console

from dpaudit.reports import document as d
from dpaudit.reports.writers import html, markdown
from dpaudit.reports.writers.terminal import print_document
from tests.reports.conftest import HOSTILE
from tests.reports.test_html_report import Page

ROW = d.Row([HOSTILE, d.Link(HOSTILE, "#there"), ("plain ", d.Link(HOSTILE, "#there"))])
TABLE = d.Table(HOSTILE, ["One", HOSTILE, "Three"], [ROW], frozenset({1}), sortable=True)
NODE = d.Node(HOSTILE, HOSTILE, "the sum of 2", HOSTILE, [d.Node(HOSTILE, "1", "", "", [], 3)], 1)
EVERY = [
    d.Verdict("fail", HOSTILE, [d.Paragraph(HOSTILE, "lead", HOSTILE)]),
    d.Banner(HOSTILE, HOSTILE),
    d.Section(
        HOSTILE,
        [d.Columns([d.Section(HOSTILE, [], note=HOSTILE, folded=True)])],
        id="there",
        status="warn",
    ),
    d.KeyFigures([d.KeyFigure(HOSTILE, HOSTILE, HOSTILE)]),
    TABLE,
    d.Figure(None, HOSTILE, HOSTILE),
    d.Texts(
        [
            d.Text(
                "a", HOSTILE, HOSTILE, [d.Piece(HOSTILE, 2, HOSTILE, "b")], HOSTILE, HOSTILE, TABLE
            )
        ],
        HOSTILE,
    ),
    d.Tree(NODE),
    d.Commands(["dpaudit report RUN"]),
    d.Items([HOSTILE]),
    d.Definitions([d.Entry(HOSTILE, HOSTILE, hint=HOSTILE), d.Entry(HOSTILE)]),
    d.Outcomes(
        [d.Outcome(HOSTILE, "c", "fail", HOSTILE, HOSTILE, [d.Statement(HOSTILE, HOSTILE, "cell")])]
    ),
]
PAGE = d.Document(HOSTILE, EVERY, ("kind", HOSTILE), HOSTILE, contents=True)


def test_every_type_of_block_is_tried() -> None:
    tried = {type(block) for block in EVERY} | {d.Paragraph, d.Columns}
    assert tried == set(typing.get_args(d.Block))


def test_words_are_text_on_a_page() -> None:
    text = html.render(PAGE)
    page = Page(text)
    assert (page.mistakes, page.open) == ([], [])
    assert text.count("<script") == 1 and "<img" not in text and "\u202e" not in text
    assert "{{ 7 * 7 }}" in text


def test_words_are_text_in_markdown() -> None:
    found = []
    for token in (
        MarkdownIt("commonmark", {"html": True}).enable("table").parse(markdown.render(PAGE))
    ):
        found += [token.type, *(child.type for child in token.children or ())]
    assert not {"html_inline", "html_block", "link_open", "image"} & set(found)
    assert found.count("heading_open") == 4


def test_words_are_text_on_a_terminal() -> None:
    file = io.StringIO()
    print_document(PAGE, Console(file=file, width=80, force_terminal=False))
    assert "[bold]markup[/bold]" in " ".join(file.getvalue().split())
    assert not {"\x1b", "\u202e", "\x00"} & set(file.getvalue())


def test_links_lead_to_places_files_and_mail() -> None:
    places = (
        d.Link("here", "#there"),
        d.Link("a file", "a b/report.html"),
        d.Link("a@b.org", "mailto:a@b.org"),
    )
    page = d.Document("Links", [d.Items(places)])
    assert Page(html.render(page)).values("href") == ["#main", *(place.target for place in places)]
    assert (
        markdown.render(page) == "# Links\n\n- here\n- [a file](<a b/report.html>)\n- <a@b.org>\n"
    )
