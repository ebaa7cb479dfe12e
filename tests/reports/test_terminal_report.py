"""The terminal summary is short and fits 80 columns.

Hostile text reaches neither rich nor the terminal.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping

import pytest
from rich.cells import cell_len
from rich.console import Console

from dpaudit.auditing.comparison import compare_runs
from dpaudit.reports import compare
from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.document import Document
from dpaudit.reports.terminal import summary
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import AuditResult, Message, TextCounts

Samples = Mapping[str, Callable[[], AuditResult]]


def _printed(document: Document, colour: bool = False, width: int = 80) -> str:
    file = io.StringIO()
    print_document(document, Console(file=file, width=width, force_terminal=colour))
    return file.getvalue()


def test_summary_fits_eighty_columns(samples: Samples) -> None:
    for name in set(samples) - {"hostile"}:
        text = _printed(summary(samples[name]()))
        assert max(cell_len(line) for line in text.splitlines()) <= 80, name


def test_clean_summary_is_read_in_five_seconds(samples: Samples) -> None:
    text = _printed(summary(samples["median"]()))
    assert text.startswith("Pass: the claim holds for one record.\nBoth levels, ε ≤ 2.5: ")
    assert len(text.splitlines()) <= 11
    for said in (
        "4 passed, 2 not made, 1 does not apply. To make 2 more checks:",
        "  dpaudit report 'runs/bbc",
        "A caveat that stands beside",
    ):
        assert said in text


def test_colour_only_where_there_is_a_terminal(results: dict[str, AuditResult]) -> None:
    for result in results.values():
        assert "\x1b" not in _printed(summary(result))
        assert "\x1b" in _printed(summary(result), colour=True)


def test_hostile_text_is_printed_as_text(samples: Samples) -> None:
    text = _printed(summary(samples["hostile"]()))
    assert "\\x1b[31mred" in text
    assert "[bold]markup[/bold]" in " ".join(text.split())
    assert "\u202e" not in text


def test_a_public_summary_says_what_is_compared(samples: Samples) -> None:
    public = samples["failed"]().model_copy(update={"audience": "public"})
    checks = tuple(check.model_copy(update={"measured": ""}) for check in public.checks)
    text = _printed(summary(public.model_copy(update={"checks": checks})))
    assert "compares      at most 2.5 nats" in text
    assert "expected" not in text


def test_comparison_keeps_kinds_in_tables_of_their_own(samples: Samples) -> None:
    for width in [60, 80]:
        results = {
            "median run": samples["median"](),
            "mean run": samples["mean"](),
            "[red]": samples["infinite"](),
        }
        text = _printed(compare.summary(compare_runs(results)), width=width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        ex_post = text[text.index("Ex-post epsilon (nats)") : text.index("Approximate DP")]
        approximate = text[text.index("Approximate DP") :]
        for figure in ("1.669", "1.924", "1.892"):
            assert figure in ex_post
            assert figure not in approximate
        for figure in ("2.320", "2.500"):
            assert figure in approximate
            assert figure not in ex_post
        assert "cannot be compared" in " ".join(text.split())
        assert "A caveat that stands beside the guarantee." in " ".join(text.split())
        assert "[red]" in text
        for heading in ("Claimed ε", "Neighbours", "Settings that differ"):
            assert heading in text


@pytest.mark.usefixtures("undrawn")
def test_empty_and_very_short_texts_are_counted_beside_the_verdict(samples: Samples) -> None:
    for empty, short, said in [
        (0, 0, "40; by rule, each of them says something"),
        (2, 0, "40, of which 2 say nothing: 2 empty"),
        (2, 1, "40, of which 3 say nothing: 2 empty, 1 very short (fewer than 5 tokens)"),
    ]:
        released = TextCounts(texts=40, empty=empty, very_short=short)
        result = samples["median"]().model_copy(update={"released": released})
        assert f"Texts: {said}.\n" in _printed(summary(result))
        assert (
            compare_runs({"one": result, "two": samples["mean"]()}).runs["one"].released == released
        )
        public = result.model_copy(update={"audience": "public"})
        assert said not in _printed(summary(public))
        assert said in render_markdown(result) and said not in render_markdown(public)
        assert said in render_html(result) and said not in render_html(public)


def test_commands_and_caveats_are_not_cut(samples: Samples) -> None:
    caveats = tuple(
        f"Caveat {number} takes up the better part of a line of eighty columns."
        for number in range(9)
    )
    said = tuple(Message(code="caveat.declared", words=each) for each in caveats)
    result = samples["median"]().model_copy(update={"caveats": said})
    text = _printed(summary(result))
    assert "  dpaudit report 'runs/bbc median' --data FILE --evidence 4\n" in text
    shown = sum(caveat in " ".join(text.split()) for caveat in caveats)
    assert 1 < shown < 9
    assert f"{9 - shown} more: `dpaudit verify`." in " ".join(text.split())


def test_a_mistyped_path_takes_one_line(samples: Samples) -> None:
    text = _printed(summary(samples["unreadable"]()))
    assert text == "Error: this run could not be audited\n"
