"""report.md renders as written, whatever the run's own text holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from markdown_it import MarkdownIt

from dpaudit.reports.audit_document import build, render_markdown
from dpaudit.reports.document import Block, Columns, Section, Texts
from dpaudit.reports.released import PAGE
from dpaudit.reports.writers.markdown import code, escaped
from dpaudit.results import AuditResult

Samples = Mapping[str, Callable[[], AuditResult]]


def _tokens(text: str) -> list[str]:
    flat = []
    for token in (
        MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    ):
        flat += [token.type, *(child.type for child in token.children or ())]
    return flat


def test_tables_have_as_many_cells_in_every_row(results: dict[str, AuditResult]) -> None:
    for result in results.values():
        rows: list[int] = []
        for line in render_markdown(result).splitlines():
            if not line.startswith("|"):
                rows = []
                continue
            rows.append(len(re.findall(r"(?<!\\)\|", line)))
            assert rows[-1] == rows[0], line


def test_every_table_row_reaches_the_reader(samples: Samples) -> None:
    for made in samples.values():
        text = render_markdown(made())
        rows = [
            line
            for line in text.splitlines()
            if line.startswith("|") and not re.match(r"\| ---:? ", line)
        ]
        assert _tokens(text).count("tr_open") == len(rows)


def test_no_html_no_links_no_extra_headings(samples: Samples) -> None:
    for name in ["hostile", "median"]:
        result = samples[name]()
        text = render_markdown(result)
        found = _tokens(text)
        for kind in ("html_inline", "html_block", "link_open", "image", "s_open"):
            assert kind not in found
        assert found.count("heading_open") == 1 + headings(build(result).blocks)
        assert found.count("fence") == 1 + sum(
            bool(sample.text) for sample in result.samples[:PAGE]
        )


def headings(blocks: Sequence[Block]) -> int:
    """How many headings stand in blocks, but for the document's own."""
    of_sections = sum(1 + headings(each.blocks) for each in blocks if isinstance(each, Section))
    inside = sum(headings(each.blocks) for each in blocks if isinstance(each, Columns))
    return (
        of_sections
        + inside
        + sum(len(each.texts[: each.page]) for each in blocks if isinstance(each, Texts))
    )


def test_escaped_text_reads_back_as_itself() -> None:
    for text in [
        "a|b",
        "`a`",
        "``",
        "<b>x</b>",
        "<div a",
        "<!-- a",
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
    ]:
        reader = MarkdownIt("commonmark").enable(["strikethrough", "table"])
        for written in (escaped(text), code(text)):
            inline = reader.parse(written)[1]
            assert "".join(child.content for child in inline.children or ()) == text
            cell = [
                token
                for token in reader.parse(f"| h |\n| --- |\n| {written} |")
                if token.type == "inline"
            ][1]
            assert "".join(child.content for child in cell.children or ()) == text


def test_a_public_report_has_no_place_for_what_was_measured(samples: Samples) -> None:
    text = render_markdown(samples["public"]())
    assert "> **Public.** This report holds settings that the run declares public" in text
    assert "Measured" not in text
    assert "Expected" not in text
    assert "| Compares |" in text
    assert "## Batches" not in text
    assert "--audience public" in text
    withheld = render_markdown(samples["public"]().model_copy(update={"claim": None}))
    assert withheld.startswith("# ✓ Pass: a claim that is withheld here holds\n")


def test_what_was_not_made_is_told_apart_from_what_is_not_about_the_run(samples: Samples) -> None:
    text = (
        render_markdown(samples["median"]())
        .partition("## What was not checked")[2]
        .partition("\n## Sign-off")[0]
    )
    not_made, _, others = text.partition("\n## ")
    not_about = others.partition("does not apply")[2]
    command = "Run `dpaudit report 'runs/bbc median' --data FILE --evidence 4`."
    assert f"`replay.logits`, `replay.lower-bound`. {command}" in not_made
    assert "rebalancing.noise" in not_about and "rebalancing.noise" not in not_made


def test_a_thousand_batches_list_fifty(large_run: AuditResult) -> None:
    listed = (
        render_markdown(large_run).partition("## What each batch cost")[2].partition("\n## ")[0]
    )
    assert len([line for line in listed.splitlines() if re.match(r"\| \d+ \|", line)]) == 50


def test_a_long_ledger_is_cut_and_says_so(large_run: AuditResult) -> None:
    text = render_markdown(large_run)
    ledger = text[
        text.index("### Composition: Ex-post epsilon") : text.index(
            "### Composition: Empirical losses"
        )
    ]
    assert len(re.findall(r"^ +- batch ", ledger, re.MULTILINE)) == 10
    assert "990 more, not listed here" in ledger
    assert len(text) < 40_000


def test_no_heading_without_a_body(results: dict[str, AuditResult]) -> None:
    for result in results.values():
        assert not re.search(
            r"^#+ .*\n+#+ (?!#)", render_markdown(result).replace("\n###", "\nsub"), re.MULTILINE
        )
