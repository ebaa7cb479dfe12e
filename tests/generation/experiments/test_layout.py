"""The printed table and the page, word for word."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dpaudit.results import ClaimResult
from generation.experiments.layout import markdown, print_table, up
from generation.experiments.results import Audited, Evaluated, Measured, Published, RowResult, TableResult


def claim(kind: str, epsilon: float, delta: float) -> ClaimResult:
    return ClaimResult.model_validate(
        {"epsilon": epsilon, "delta": delta, "kind": kind, "relation": "add_remove", "unit": "record"}
    )


def row(method: str, kind: str, claimed: ClaimResult, **more: object) -> RowResult:
    audited = Audited(verdict="pass", failed=(), claim=claimed, theorem1=more.pop("theorem1", None), texts=8, tokens=90)
    return RowResult.model_validate(
        {
            "config": method.lower(),
            "dataset": "AGNews",
            "method": method,
            "kind": kind,
            "clusters": 60,
            "audited": audited,
            **more,
        }
    )


RESULT = TableResult(
    title="Main results",
    versions={},
    real={"AGNews": Published(mauve=0.872, mauve_std=0.032, accuracy=0.938, accuracy_std=0.001), "Yelp": None},
    rows=(
        row(
            "Mean",
            "approximate",
            claim("approximate", 23.4279, 1e-5),
            paper=Published(
                epsilon=9.9,
                clustering_epsilon=0.1,
                clusters=60,
                mauve=0.692,
                mauve_std=0.029,
                accuracy=0.855,
                accuracy_std=0.012,
            ),
            evaluated=Evaluated(
                n=844,
                mauve=Measured(mean=0.61, std=0.02),
                real_mauve=Measured(mean=0.9, std=0.01),
                method="linear-probe",
                accuracy=Measured(mean=0.8, std=None),
                real_accuracy=Measured(mean=0.9, std=None),
                warnings=(),
            ),
        ),
        row("Median", "ex-post", claim("ex-post", 2.3001, 0.0), theorem1=2.61, failure=None),
    ),
)
SNAPSHOT = """\
Main results
                Clusters ε approx.   ε ex-post     MAUVE  Accuracy Audit
AGNews
Real data paper        -         ∞           - .872±.032 .938±.001
          ours         -         ∞           - .900±.010      .900
Mean      paper       60   9.9+0.1           - .692±.029 .855±.012
          ours        60     23.43           - .610±.020      .800 pass
Median    paper        -         -           -         -         -
          ours        60         - 2.31 (2.61)         -         - pass
"""
PAGE = """\
| AGNews | Real data | - | - | ∞ | ∞ | - | - | .872±.032 | .900±.010 | .938±.001 | .900 |  |
| AGNews | Mean | 60 | 60 | 9.9+0.1 | 23.43 | - | - | .692±.029 | .610±.020 | .855±.012 | .800 | pass |
| AGNews | Median | - | 60 | - | - | - | 2.31 (2.61) | - | - | - | - | pass |
"""


def test_the_terminal_has_the_paper_over_ours_and_two_columns_for_epsilon() -> None:
    text = io.StringIO()
    print_table(RESULT, Console(file=text, width=80))
    shown = "\n".join(line.rstrip() for line in text.getvalue().splitlines())
    assert shown.startswith(SNAPSHOT)
    assert " ".join(shown.split()).endswith(RESULT.notice)


def test_the_page_has_them_side_by_side() -> None:
    page = markdown(RESULT)
    assert page.startswith(f"# Main results\n\n{RESULT.notice}\n")
    assert PAGE in page


@pytest.mark.parametrize(("epsilon", "shown"), [(2.301, "2.31"), (2.3, "2.30"), (9.0, "9.00"), (float("inf"), "∞")])
def test_an_epsilon_is_never_shown_smaller_than_it_is(epsilon: float, shown: str) -> None:
    assert up(epsilon) == shown
