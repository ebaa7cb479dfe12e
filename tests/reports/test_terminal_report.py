"""The terminal summary is short, fits 80 columns, and hostile text reaches neither rich nor the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial

import pytest
from rich.cells import cell_len
from rich.console import Console

from dpaudit.audit.comparison import compare_runs
from dpaudit.reports.compare import print_comparison
from dpaudit.reports.terminal import print_failures, print_summary
from dpaudit.results import AuditResult

Samples = Mapping[str, Callable[[], AuditResult]]


def _printed(show: Callable[[Console], None], colour: bool = False, width: int = 80) -> str:
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=colour))
    return file.getvalue()


def test_summary_fits_eighty_columns(samples: Samples) -> None:
    for name in set(samples) - {"hostile"}:
        text = _printed(partial(print_summary, samples[name]()))
        assert max(cell_len(line) for line in text.splitlines()) <= 80, name


def test_clean_summary_is_read_in_five_seconds(samples: Samples) -> None:
    text = _printed(lambda console: print_summary(samples["median"](), console))
    assert text.startswith("Pass: the claim holds\n")
    assert len(text.splitlines()) <= 20
    for said in (
        "claimed       ε ≤ 2.5 nats",
        "4 passed, 2 not made, 1 not about this run. Checked up to evidence",
        "Run `dpaudit report RUN_DIR",
        "A caveat that stands beside",
    ):
        assert said in text


@pytest.mark.parametrize("name", ["median", "failed", "public"])
def test_what_was_not_made_comes_before_any_figure(samples: Samples, name: str) -> None:
    result = samples[name]()
    text = " ".join(_printed(partial(print_summary, result)).split())
    verdict = text.partition("Ex-post epsilon")[0]
    for check_id in result.not_checked:
        (skipped,) = [check for check in result.checks if check.id == check_id]
        assert check_id in verdict
        assert skipped.detail in verdict
    assert ("(needed for a pass)" in verdict) == (name == "failed")


def test_an_attack_is_a_lower_bound(samples: Samples) -> None:
    text = " ".join(_printed(partial(print_summary, samples["attacked"]())).split())
    assert "attack epsilon at least 0.4123 (95% confidence) at delta 0.0004400, 1,200 texts a side" in text
    assert "A lower bound is no guarantee itself" in text
    assert "largest loss" not in text


def test_failed_summary_names_the_check_and_the_remedy(samples: Samples) -> None:
    text = _printed(lambda console: print_summary(samples["failed"](), console))
    assert "Failed claim.epsilon" in text
    assert "what to do    Claim at least 2.5" in text
    assert "explained by  dpaudit checks claim.epsilon" in text
    assert text.index("Failed claim.epsilon") < text.index("not made") < text.index("claimed  ")


def test_colour_only_where_there_is_a_terminal(result: AuditResult) -> None:
    assert "\x1b" not in _printed(lambda console: print_summary(result, console))
    assert "\x1b" in _printed(lambda console: print_summary(result, console), colour=True)


def test_hostile_text_is_printed_as_text(samples: Samples) -> None:
    text = _printed(lambda console: print_summary(samples["hostile"](), console))
    assert "\\x1b[31mred" in text
    assert "[bold]markup[/bold]" in " ".join(text.split())
    assert "\u202e" not in text


def test_failures_are_a_line_each(samples: Samples) -> None:
    text = _printed(lambda console: print_failures(samples["failed"](), console))
    assert [line.split(":")[0] for line in text.splitlines()] == [
        "FAIL claim.epsilon",
        "ERROR record.aggregate",
        "SKIP release.text",
    ]
    assert "measured 2.413 nats; expected at most 2.5 nats; Claim at least 2.5" in text
    assert len(_printed(lambda console: print_failures(samples["hostile"](), console)).splitlines()) == 2
    assert "evidence level 2 was asked for. The tokenizer is missing" in text
    assert _printed(lambda console: print_failures(samples["median"](), console)) == ""


def test_a_public_summary_says_what_is_compared(samples: Samples) -> None:
    public = samples["failed"]().model_copy(update={"audience": "public"})
    checks = tuple(check.model_copy(update={"measured": ""}) for check in public.checks)
    text = _printed(partial(print_summary, public.model_copy(update={"checks": checks})))
    assert "compares      at most 2.5 nats" in text
    assert "expected" not in text


def test_summary_has_exact_beside_theorem_1_and_the_top_of_the_ledger(samples: Samples) -> None:
    text = " ".join(_printed(partial(print_summary, samples["mean"]())).split())
    assert "exact 1.642, Theorem 1 1.789, saving 0.146 (8.2%)" in text
    assert "optimal; lower end 2.309; by Rényi DP 2.500; 48 tokens" in text
    assert "the sum of 2: rebalancing 0.2500 nats; generation 1.642 nats" in text
    assert "largest loss +0.2852 (batch 4, slot 3); 359 contexts left out" in text
    assert "batch 8" not in text  # two levels


@pytest.mark.parametrize("width", [60, 80])
def test_comparison_keeps_kinds_in_tables_of_their_own(samples: Samples, width: int) -> None:
    results = {"median run": samples["median"](), "mean run": samples["mean"](), "[red]": samples["infinite"]()}
    text = _printed(lambda console: print_comparison(compare_runs(results), console), width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    ex_post = text[text.index("Ex-post epsilon (nats)") : text.index("Approximate DP")]
    approximate = text[text.index("Approximate DP") : text.index("Empirical losses")]
    for figure in ("1.669", "1.924", "1.892", "0.146"):
        assert figure in ex_post
        assert figure not in approximate
    for figure in ("2.320", "2.309"):
        assert figure in approximate
        assert figure not in ex_post
    assert "cannot be compared" in text
    assert "A caveat that stands beside the guarantee." in " ".join(text.split())
    assert "[red]" in text
    for heading in ("Verdict", "Aggregator", "Temp.", "Contexts", "Tokens", "Claimed", "Neighbours", "quarter"):
        assert heading in text
