"""Printed tables and pages, word for word, and with hostile words in them."""

from __future__ import annotations

import csv
import io
from typing import Any

from rich.console import Console

from dpaudit.generation.experiments.table import PublishedQuality, PublishedRow
from dpaudit.generation.experiments.table_page import files, lines, notes, page, screen, up
from dpaudit.generation.experiments.table_results import (
    Audited,
    Estimate,
    Estimates,
    Evaluated,
    Failure,
    Measured,
    RowResult,
    TableResult,
    Throughput,
)
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import ClaimResult, Finding

HOSTILE = (
    "<img src=x onerror=alert(1)> [/b] \\| `y` ![i](http://e/p.png) \x1b[31m\x9b2J\u202e @all\n# x"
)


def claim(kind: str, epsilon: float, delta: float) -> ClaimResult:
    return ClaimResult.model_validate(
        {
            "epsilon": epsilon,
            "delta": delta,
            "kind": kind,
            "relation": "add_remove",
            "unit": "record",
        }
    )


def row(method: str, kind: str, claimed: ClaimResult, **more: Any) -> RowResult:
    theorem1, verdict = more.pop("theorem1", None), more.pop("verdict", "pass")
    failed = () if verdict == "pass" else ("claim-holds",)
    audited = Audited(
        verdict=verdict,
        failed=failed,
        claim=claimed,
        theorem1=theorem1,
        texts=8,
        tokens=90,
        equal=None,
    )
    return RowResult.model_validate(
        {
            "config": method.lower(),
            "dataset": "AGNews",
            "method": method,
            "kind": kind,
            "clusters": 60,
            "unbounded": False,
            "audited": audited,
            **more,
        }
    )


def evaluated(n: int, **more: Any) -> Evaluated:
    values = {
        "n": n,
        "mauve": Measured(mean=0.61, std=0.02),
        "real_mauve": Measured(mean=0.9, std=0.01),
        "method": "linear-probe",
        "accuracy": Measured(mean=0.8, std=None),
        "trained": n,
        "real_accuracy": Measured(mean=0.9, std=None),
        "real_trained": n,
        "warnings": (),
    }
    return Evaluated.model_validate({**values, **more})


PAPER = PublishedRow(
    epsilon=9.9,
    clustering_epsilon=0.1,
    clusters=60,
    mauve=0.692,
    mauve_std=0.029,
    accuracy=0.855,
    accuracy_std=0.012,
)
REAL = PublishedQuality(mauve=0.872, mauve_std=0.032, accuracy=0.938, accuracy_std=0.001)


def result(*rows: RowResult, title: str = "Main results") -> TableResult:
    return TableResult(title=title, versions={}, real={"AGNews": REAL, "Yelp": None}, rows=rows)


MEAN = row(
    "Mean",
    "approximate",
    claim("approximate", 23.4279, 1e-5),
    paper=PAPER,
    evaluated=evaluated(844),
)
MEDIAN = row("Median", "ex-post", claim("ex-post", 2.3001, 0.0), theorem1=2.61)
SHOWN = """\
Main results
Internal. Ex-post epsilons, MAUVE and accuracy are computed from private
records, and no epsilon pays for publishing it.

AGNews
Method            Clusters  ε approx.    ε ex-post      MAUVE   Accuracy  Audit
Real data  paper         –          ∞            –  .872±.032  .938±.001
n = 844    ours          –          ∞            –  .900±.010       .900
Mean       paper        60    9.9+0.1            –  .692±.029  .855±.012
n = 844    ours         60      23.43            –  .610±.020       .800  pass
Median     paper         –          –            –          –          –
           ours         60          –  2.31 (2.61)          –          –  pass
"""
PAGE = """\
| Real data | paper | – | ∞ | – | .872±.032 | .938±.001 |  |
| n = 844 | ours | – | ∞ | – | .900±.010 | .900 |  |
| Mean | paper | 60 | 9.9+0.1 | – | .692±.029 | .855±.012 |  |
| n = 844 | ours | 60 | 23.43 | – | .610±.020 | .800 | pass |
| Median | paper | – | – | – | – | – |  |
|  | ours | 60 | – | 2.31 (2.61) | – | – | pass |
"""


def test_a_rho_is_no_ex_post_epsilon() -> None:
    given = {"rho": 0.875, "delta": 0.0, "kind": "zcdp", "relation": "add_remove", "unit": "record"}
    shown = row("Mean", "zcdp", ClaimResult.model_validate(given), theorem1=2.61, paper=PAPER)
    (ours,) = (line for line in lines(result(shown)) if line.method == "Mean")
    assert (ours.approximate, ours.ex_post) == (("9.9+0.1", "ρ 0.88"), ("–", "–"))


def printed(shown: TableResult | Estimates, width: int = 80) -> str:
    text = io.StringIO()
    document = page(shown) if isinstance(shown, TableResult) else screen(shown)
    print_document(document, Console(file=text, width=width, force_terminal=False))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def sheet(shown: TableResult) -> list[dict[str, str]]:
    return list(csv.DictReader(files(shown)["table.csv"].splitlines()))


def test_the_terminal_has_the_paper_over_ours_and_two_columns_for_epsilon() -> None:
    assert printed(result(MEAN, MEDIAN)).startswith(SHOWN)


def test_the_page_has_the_same_rows() -> None:
    shown = files(result(MEAN, MEDIAN))["table.md"]
    assert shown.startswith("# Main results\n\n**Internal. ") and PAGE in shown


def test_the_spreadsheet_has_every_figure_in_full() -> None:
    mean, median = sheet(result(MEAN, MEDIAN))
    assert (mean["kind"], mean["epsilon_approximate"], mean["delta"]) == (
        "approximate",
        "23.4279",
        "1e-05",
    )
    assert (
        mean["epsilon_ex_post"],
        mean["paper_epsilon_approximate"],
        mean["paper_epsilon_ex_post"],
    ) == (
        "",
        "9.9",
        "",
    )
    assert (mean["mauve"], mean["mauve_n"], mean["real_mauve"]) == ("0.61", "844", "0.9")
    assert (mean["accuracy"], mean["accuracy_texts"], mean["real_accuracy_texts"]) == (
        "0.8",
        "844",
        "844",
    )
    assert (median["kind"], median["theorem1_ex_post"], median["mauve"]) == ("ex-post", "2.61", "")
    assert (median["epsilon_approximate"], median["epsilon_ex_post"]) == ("", "2.3001")


def test_a_figure_stands_under_the_kind_that_was_audited() -> None:
    """Whatever the row's config says by now."""
    changed = MEAN.model_copy(update={"kind": "ex-post", "paper": None})
    line, [cells] = lines(result(changed))[1], sheet(result(changed))
    assert (line.approximate[1], line.ex_post[1]) == ("23.43", "–")
    assert (cells["kind"], cells["epsilon_approximate"], cells["epsilon_ex_post"]) == (
        "approximate",
        "23.4279",
        "",
    )


def test_every_number_of_texts_has_its_own_ceiling() -> None:
    same, few = (
        MEAN.model_copy(update={"method": "Same"}),
        evaluated(98, real_mauve=Measured(mean=0.7, std=None)),
    )
    fewer = MEAN.model_copy(
        update={"method": "Fewer", "evaluated": few.model_copy(update={"real_trained": 90})}
    )
    shown = result(MEAN, same, fewer)
    first, second, *rows = lines(shown)
    assert (first.size, first.mauve, first.accuracy[0]) == (
        "n = 844",
        (".872±.032", ".900±.010"),
        ".938±.001",
    )
    assert (second.size, second.mauve, second.accuracy) == (
        "n = 98/90",
        ("–", ".700"),
        ("–", ".900"),
    )
    assert [line.size for line in rows] == ["n = 844", "n = 844", "n = 98"]
    said = list(notes(shown))
    assert "MAUVE is of 98, 844 texts a side: rows of different n are not comparable." in said
    assert any(
        "1000 texts a side and other features than ours, of 98 or more" in note for note in said
    )
    assert not any("not comparable" in note for note in notes(result(MEAN, same)))


def test_what_must_be_known_is_said_beside_the_table() -> None:
    failed = row("Failed", "approximate", claim("approximate", 1.0, 1e-5), verdict="fail")
    broken = MEDIAN.model_copy(
        update={
            "config": "broken",
            "audited": None,
            "failure": Failure(kind="unusable", stage="generate", message="there is no such file."),
        }
    )
    warned = MEAN.model_copy(update={"evaluated": evaluated(844, warnings=("few texts",))})
    said = list(notes(result(failed, broken, warned, warned)))
    assert said[:2] == [
        "failed: the audit says fail: claim-holds.",
        "broken: could not generate: there is no such file.",
    ]
    assert [note for note in said if "few texts" in note] == [
        f"{MEAN.config}, {MEAN.config}: few texts"
    ]
    assert [line.audit for line in lines(result(failed, broken))] == [
        "",
        "fail",
        "could not generate",
    ]
    assert any("linear-probe" in note for note in said)
    assert "Nothing was evaluated: MAUVE and accuracy are left out." in list(notes(result(MEDIAN)))


def test_centres_without_noise_leave_no_finite_epsilon() -> None:
    for kind in ["approximate", "ex-post"]:
        shown = result(
            row("K-means", kind, claim(kind, 45.93, 0.0), unbounded=True, verdict="fail")
        )
        line = lines(shown)[1]
        assert (line.approximate if kind == "approximate" else line.ex_post)[1] == "∞"
        assert any("nothing bounds its epsilon; it claims 45.93" in note for note in notes(shown))
        assert sheet(shown)[0]["bounded"] == "no" and sheet(result(MEAN))[0]["bounded"] == "yes"


def test_hostile_names_are_shown_as_they_are_written() -> None:
    failure = Failure(kind="unusable", stage="generate", message=HOSTILE)
    hostile = RowResult(
        config="a",
        dataset=HOSTILE,
        method=HOSTILE,
        kind="ex-post",
        clusters=1,
        unbounded=False,
        failure=failure,
    )
    shown = TableResult(title=HOSTILE, versions={}, real={HOSTILE: None}, rows=(hostile,))
    terminal, markdown = printed(shown, width=400), files(shown)["table.md"]
    for text in (terminal, markdown, files(shown)["table.csv"]):
        assert not any(mark in text for mark in "\x1b\x9b\u202e")
    assert "[/b]" in terminal  # no markup of rich's
    assert not any(mark in markdown for mark in ("<img", "![i]", "\n# x", "@all"))
    table = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(table) == 6  # heads, rule, two rows of real data and two of the row
    estimated = Estimates(
        title=HOSTILE, throughput=Throughput(context_tokens_per_second=1, source=HOSTILE), rows=()
    )
    assert "\x1b" not in printed(estimated) and "[/b]" in printed(estimated, width=400)


def test_no_name_is_a_formula_of_a_spreadsheet() -> None:
    for start in ["=", "+", "-", "@", "\t=", " ="]:
        name = f'{start}cmd|"/c calc"!A1'
        [cells] = sheet(result(MEAN.model_copy(update={"method": name})))
        assert cells["method"] == f"'{name.strip()}"
        assert cells["epsilon_approximate"] == "23.4279"


ESTIMATE: dict[str, Any] = {
    "config": "agnews/mean",
    "dataset": "AGNews",
    "method": "Mean",
    "clusters": 60,
    "batches": 844,
    "counted": True,
    "contexts": 63.98,
    "tokens": 367,
    "context_tokens": 19_823_872,
    "epsilon_as_paper": 9.8901,
    "counts_epsilon": 0.1,
    "affordable_tokens": 367,
    "epsilon": 3.3325,
    "batch_epsilon": 23.4279,
    "equal": None,
    "delta": 2.9e-6,
    "unit": "record",
    "relation": "add_remove",
    "hours": 1.1013,
    "paper": PAPER,
}
ESTIMATED = """\
Main results

AGNews
         ε paper             ε record  ε paper
         approx.  ε context   / batch  ex-post  Batches    Size  M tokens  Hours
Mean     9.9+0.1   9.90+0.1      3.34        –     ~844  64×367     19.82   1.10
                               /23.43
Median         –          –         –  9.9+0.1      844  64×367     19.82      –
K-means        –          ∞         ∞        –     ~844  64×367     19.82   1.10
All rows: 59,471,616 context tokens; 2.2 hours at a guess, on a machine that
"""


def test_an_estimate_word_for_word() -> None:
    nothing = {"epsilon_as_paper": None, "epsilon": None, "batch_epsilon": None}
    median = {**ESTIMATE, **nothing, "method": "Median", "hours": None, "counted": False}
    bare = {
        **ESTIMATE,
        "method": "K-means",
        "paper": None,
        "equal": Finding(code="levels.unbounded"),
    }
    bare |= dict.fromkeys(("epsilon_as_paper", "epsilon", "batch_epsilon"), float("inf"))
    rows = tuple(map(Estimate.model_validate, (ESTIMATE, median, bare)))
    throughput = Throughput(context_tokens_per_second=5000.0, source="a guess")
    shown = printed(Estimates(title="Main results", throughput=throughput, rows=rows))
    assert shown.startswith(ESTIMATED.rstrip("\n"))
    assert "give --tokens-per-second" in printed(
        Estimates(title="Main results", throughput=None, rows=rows), width=200
    )


def test_an_epsilon_is_never_shown_smaller_than_it_is() -> None:
    for epsilon, shown in [
        (2.301, "2.31"),
        (2.3, "2.30"),
        (9.0, "9.00"),
        (float("inf"), "∞"),
        (1e30, f"{int(1e30)}.00"),
    ]:
        assert up(epsilon) == shown
