"""report.md renders as written, whatever the run's own text holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from markdown_it import MarkdownIt

from dpaudit.results import AuditResult
from reports.markdown import code, escaped, render_markdown

Samples = Mapping[str, Callable[[], AuditResult]]


def _tokens(text: str) -> list[str]:
    flat = []
    for token in MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text):
        flat += [token.type, *(child.type for child in token.children or ())]
    return flat


def test_tables_have_as_many_cells_in_every_row(result: AuditResult) -> None:
    rows: list[int] = []
    for line in render_markdown(result).splitlines():
        if not line.startswith("|"):
            rows = []
            continue
        rows.append(len(re.findall(r"(?<!\\)\|", line)))
        assert rows[-1] == rows[0], line


def test_every_table_row_reaches_the_reader(samples: Samples) -> None:
    for build in samples.values():
        text = render_markdown(build())
        rows = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"\| ---:? ", line)]
        assert _tokens(text).count("tr_open") == len(rows)


def test_no_html_no_links_no_extra_headings(samples: Samples) -> None:
    hostile, median = (_tokens(render_markdown(samples[name]())) for name in ("hostile", "median"))
    for kind in ("html_inline", "html_block", "link_open", "image", "s_open"):
        assert kind not in hostile
    assert hostile.count("heading_open") == median.count("heading_open")
    assert hostile.count("fence") == median.count("fence") == 1


@pytest.mark.parametrize(
    "text",
    [
        "a|b",
        "`a`",
        "``",
        "<b>x</b>",
        "*a* _b_",
        "\\|",
        "[a](http://b)",
        "1. a",
        "- a",
        "# a",
        "&lt;",
        "~~a~~",
        "- - -",
        "===",
        "1) a",
        "+ a",
        "$a$",
    ],
)
def test_escaped_text_reads_back_as_itself(text: str) -> None:
    reader = MarkdownIt("commonmark").enable(["strikethrough", "table"])
    for written in (escaped(text), code(text)):
        inline = reader.parse(written)[1]
        assert "".join(child.content for child in inline.children or ()) == text
        cell = [token for token in reader.parse(f"| h |\n| --- |\n| {written} |") if token.type == "inline"][1]
        assert "".join(child.content for child in cell.children or ()) == text


def test_it_says_what_the_page_says(samples: Samples) -> None:
    text = render_markdown(samples["failed"]())
    assert text.startswith("# ✗ Fail: the run cost more than it claims\n")
    for said in ("> **Private.**", "### Ex-post epsilon", "### Approximate DP", "dpaudit report 'runs/bbc median'"):
        assert said in text
    assert "`partition.disjoint`, `partition.stable`" in text


def test_a_thousand_batches_list_fifty(large_run: AuditResult) -> None:
    assert len([line for line in render_markdown(large_run).splitlines() if re.match(r"\| \d+ \|", line)]) == 50
