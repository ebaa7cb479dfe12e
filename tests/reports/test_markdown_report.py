"""report.md renders as written, whatever the run's own text holds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
from dpaudit.reports.families import families
from markdown_it import MarkdownIt

from dpaudit.reports import outline
from dpaudit.reports.markdown import code, escaped, render_markdown
from dpaudit.reports.wording import SECTIONS
from dpaudit.results import AuditResult

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


@pytest.mark.parametrize("name", ["hostile", "median"])
def test_no_html_no_links_no_extra_headings(samples: Samples, name: str) -> None:
    result = samples[name]()
    text = render_markdown(result)
    found = _tokens(text)
    for kind in ("html_inline", "html_block", "link_open", "image", "s_open"):
        assert kind not in found
    ours = [outline.kind_blocks(result), result.ledger, families(result), result.samples, outline.settings(result.run)]
    sections = {title for title in SECTIONS.values() if f"\n## {title}\n" in text}
    assert found.count("heading_open") == 1 + len(sections) + sum(map(len, ours))
    assert found.count("fence") == 1 + sum(bool(sample.text) for sample in result.samples)


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
    assert "- `release.text` (needed for a pass): The tokenizer is missing: pass --model DIR." in text


def test_what_was_not_made_stands_at_the_verdict_with_its_command(samples: Samples) -> None:
    verdict = render_markdown(samples["median"]()).partition("\n## ")[0]
    assert "Checked up to evidence level 2 (record and release). Not made:" in verdict
    command = "Run \\`dpaudit report RUN\\_DIR --data FILE --evidence 4\\`."
    assert f"- `replay.logits`, `replay.lower-bound`: {command}" in verdict


def test_an_attack_is_a_lower_bound_with_its_curve(samples: Samples) -> None:
    text = render_markdown(samples["attacked"]())
    assert "- Attack: ε at least: 0.4123 nats (95% confidence)\n- At δ: 0.0004400\n" in text
    assert "| ε (nats) | Smallest δ, estimated | δ at least |" in text
    assert "A lower bound is no guarantee itself" in text


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
    assert "Claim: Withheld from this report." in withheld


def test_a_column_with_nothing_in_it_is_left_away(samples: Samples) -> None:
    public = samples["public"]()
    checks = tuple(check.model_copy(update={"detail": ""}) for check in public.checks)
    text = render_markdown(public.model_copy(update={"checks": checks})).partition("## What was not checked")[2]
    assert "Missing" not in text
    assert text.count("| Check | Title |\n| --- | --- |\n") == 2
    assert "| Check | Title | Missing |" in render_markdown(public)


def test_a_thousand_batches_list_fifty(large_run: AuditResult) -> None:
    listed = render_markdown(large_run).partition("## What each batch cost")[2].partition("\n## ")[0]
    assert len([line for line in listed.splitlines() if re.match(r"\| \d+ \|", line)]) == 50


def test_the_ledger_is_a_nested_list(samples: Samples) -> None:
    text = render_markdown(samples["mean"]())
    approximate = text[text.index("### Composition: Approximate DP") : text.index("### Composition: Ex-post epsilon")]
    assert "\n- pipeline **2.320 nats, δ = 0.0004400** " in approximate
    assert "\n  - rebalancing **0.2500 nats**\n" in approximate
    assert "\n    - 47 more, not listed here" in approximate
    assert "1.892" not in approximate


def test_a_long_ledger_is_cut_and_says_so(large_run: AuditResult) -> None:
    text = render_markdown(large_run)
    ledger = text[text.index("### Composition: Ex-post epsilon") : text.index("### Composition: Empirical losses")]
    assert len(re.findall(r"^ +- batch ", ledger, re.MULTILINE)) == 10
    assert "990 more, not listed here" in ledger
    assert len(text) < 40_000


def test_exact_stands_beside_theorem_1(samples: Samples) -> None:
    text = render_markdown(samples["median"]())
    assert "- Generation, exact: 1.669 nats\n- Rise: 1.661 nats\n- Fall: 1.669 nats\n" in text
    assert "- Generation, Theorem 1: 1.924 nats\n- Exact saves (nats): 0.254 (13%)\n" in text
    assert "| Batch | Ex-post, exact (nats) | Rise | Fall | Ex-post, Theorem 1 (nats) | Saving (nats) |" in text


def test_no_heading_without_a_body(result: AuditResult) -> None:
    assert not re.search(r"^#+ .*\n+#+ (?!#)", render_markdown(result).replace("\n###", "\nsub"), re.MULTILINE)
