"""The terminal summary is short, fits 80 columns, and hostile text reaches neither rich nor the terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial

from rich.cells import cell_len
from rich.console import Console

from dpaudit.audit.comparison import compare_runs
from dpaudit.reports.compare import print_comparison
from dpaudit.reports.terminal import print_summary
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
        "Run `dpaudit report 'runs/bbc",
        "A caveat that stands beside",
    ):
        assert said in text


def test_colour_only_where_there_is_a_terminal(results: dict[str, AuditResult]) -> None:
    for result in results.values():
        assert "\x1b" not in _printed(partial(print_summary, result))
        assert "\x1b" in _printed(partial(print_summary, result), colour=True)


def test_hostile_text_is_printed_as_text(samples: Samples) -> None:
    text = _printed(lambda console: print_summary(samples["hostile"](), console))
    assert "\\x1b[31mred" in text
    assert "[bold]markup[/bold]" in " ".join(text.split())
    assert "\u202e" not in text


def test_a_public_summary_says_what_is_compared(samples: Samples) -> None:
    public = samples["failed"]().model_copy(update={"audience": "public"})
    checks = tuple(check.model_copy(update={"measured": ""}) for check in public.checks)
    text = _printed(partial(print_summary, public.model_copy(update={"checks": checks})))
    assert "compares      at most 2.5 nats" in text
    assert "expected" not in text


def test_comparison_keeps_kinds_in_tables_of_their_own(samples: Samples) -> None:
    for width in [60, 80]:
        results = {"median run": samples["median"](), "mean run": samples["mean"](), "[red]": samples["infinite"]()}
        text = _printed(partial(print_comparison, compare_runs(results)), width=width)
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
        for heading in ("Verdict", "Mechanism", "Temp.", "Contexts", "Tokens", "Claimed", "Neighbours", "quarter"):
            assert heading in text
