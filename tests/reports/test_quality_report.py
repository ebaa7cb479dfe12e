"""Quality in reports and comparisons, beside the budgets.

Values that cannot be compared never share a column.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dpaudit.auditing.comparison import compare_runs
from dpaudit.reports import compare
from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.document import Paragraph, Section, Table
from dpaudit.reports.quality import about, build, details, rows, shown
from dpaudit.reports.terminal import summary
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import AuditResult
from dpaudit.results.comparison import Comparison
from dpaudit.results.quality import (
    Added,
    Baseline,
    Downstream,
    Encoder,
    HeldOut,
    HeldOutLikelihood,
    Mauve,
    MauveSettings,
    PerToken,
    ProbeSettings,
    Quality,
    Texts,
    Trained,
    added_by,
    scores,
)
from tests.reports.conftest import MEDIAN, run_summary

pytestmark = pytest.mark.usefixtures("undrawn")
DIGEST = "ab" * 32
HOSTILE = "<b>x</b> | `y` \u202e"


def quality(
    n: int = 20,
    name: str = HOSTILE,
    digest: str = DIGEST,
    own: int | None = None,
    tested: Downstream | None = None,
    public: tuple[float, ...] | None = None,
) -> Quality:
    texts = Texts(texts=40, distinct=38, digest=digest)
    settings = MauveSettings(
        n=n,
        clusters=2,
        iterations=500,
        initialisations=5,
        explained_variance=0.9,
        scaling=5.0,
        points=32,
        seeds=(0, 1),
    )
    mauve = Mauve(
        settings=settings,
        wanted=n,
        real=40,
        score=scores((0.25, 0.5)),
        ceiling=scores((0.9, 0.96)),
        public=None if public is None else scores(public),
    )
    downstream = () if tested is None else (tested,)
    return Quality(
        created="2025-01-02T03:04:05+00:00",
        samples=DIGEST,
        synthetic=texts,
        reference=texts,
        label_lines=3,
        own=own,
        features=Encoder(
            name=name, digest=DIGEST, max_tokens=256, pooling="mean", dimensions=8, normalized=True
        ),
        held_out=None
        if tested is None
        else HeldOut(
            origin="split",
            share=0.5,
            seed=0,
            test=texts,
            own=own,
            dropped_real=0,
            dropped_synthetic=0,
        ),
        mauve=mauve,
        downstream=downstream,
        warnings=(f"Mind {HOSTILE}",),
        versions={"mauve-text": HOSTILE},
        baseline=None
        if public is None
        else Baseline(samples=DIGEST, texts=texts, added=added_by(mauve, downstream, texts.texts)),
    )


def with_quality(result: AuditResult, found: Quality | None) -> AuditResult:
    return result.model_copy(update={"quality": found})


@pytest.fixture
def median(samples: dict[str, Callable[[], AuditResult]]) -> AuditResult:
    return samples["median"]()


@pytest.fixture
def mean(samples: dict[str, Callable[[], AuditResult]]) -> AuditResult:
    return samples["mean"]()


@pytest.fixture
def evaluated(median: AuditResult) -> AuditResult:
    return with_quality(median, quality())


def test_figures_have_their_spread_where_there_is_one() -> None:
    assert shown(scores((0.25, 0.5))) == "0.375 ± 0.177"
    assert shown(scores((0.25,))) == "0.250"
    assert shown(None) == "–"


def test_every_report_has_it_and_says_that_it_is_internal(evaluated: AuditResult) -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    print_document(summary(evaluated), console)
    page, markdown, terminal = (
        render_html(evaluated),
        render_markdown(evaluated),
        console.file.getvalue(),
    )  # type: ignore[attr-defined]
    for text in (page, markdown, terminal):
        said = " ".join(text.split())
        assert (
            "Quality of the texts" in said
            and "0.375 ± 0.177" in said
            and "leak private information" in said
        )
    assert "<b>x" not in page and "\u202e" not in page + markdown + terminal
    assert page.index('id="not-checked"') < page.index('id="quality"') < page.index('id="settings"')


def test_a_report_without_it_says_nothing_of_it(median: AuditResult) -> None:
    assert "Quality of the texts" not in render_html(median) + render_markdown(median)


def test_a_result_for_readers_outside_never_shows_it(evaluated: AuditResult) -> None:
    public = evaluated.model_copy(update={"audience": "public"})
    assert "0.375" not in render_html(public) + render_markdown(public)


def test_what_is_printed_fits_and_is_escaped() -> None:
    console = Console(file=io.StringIO(), width=60, color_system=None)
    print_document(build(quality()), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Internal." in text and "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 60


def test_whose_texts_they_are_and_how_many_taught_a_classifier() -> None:
    for own, said in [
        (None, "it is not known whether the run was made from them"),
        (0, "none is a record of the run"),
        (7, "7 of them are records of the run"),
        (40, "all are records of the run"),
    ]:
        probe = Downstream(
            method="linear-probe",
            encoder=quality().features,
            settings=ProbeSettings(strength=1.0, iterations=10, seeds=(0,)),
            majority=0.75,
            trained=(
                Trained(source="synthetic", texts=30, accuracy=scores((0.5,))),
                Trained(source="real-same-size", texts=12, accuracy=scores((0.6, 0.8))),
                Trained(source="real-all", texts=1500, accuracy=scores((0.9,))),
            ),
        )
        found = quality(own=own, tested=probe)
        assert said in about(found) and ("own" in dict(details(found))["Test texts"]) == (
            own is not None
        )
        cells = ("0.500 (30 texts)", "0.700 ± 0.141 (12 texts)", "0.900 (1,500 texts)")
        assert rows(found)[1] == (
            "Accuracy, linear probe",
            *cells,
            "40 test texts, most frequent label 0.750",
        )


def compared(found: Comparison) -> tuple[dict[str, list[str]], list[str]]:
    """Rows of a comparison's table of quality, and what is said below it."""
    (section,) = (
        each
        for each in compare.build(found).blocks
        if isinstance(each, Section) and each.id == "quality"
    )
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    said = [str(block.words) for block in section.blocks if isinstance(block, Paragraph)]
    return {str(row.cells[0]): [*map(str, row.cells[1:])] for row in table.rows}, said


def test_scores_under_the_same_conditions_share_a_row(
    median: AuditResult, mean: AuditResult
) -> None:
    bare = median.model_copy(
        update={
            "guarantees": median.guarantees.model_copy(
                update={"ex_post": None, "approximate": None}
            )
        }
    )
    results = {
        "one": with_quality(bare, quality()),
        "two": with_quality(median, quality(name="as a folder")),
        "three": bare,
        "four": with_quality(mean, quality()),
    }
    found = compare_runs(results)
    (column,) = found.quality
    assert [score.run for score in column.scores] == ["one", "two", "four"]
    table, said = compared(found)
    (row, real) = table.values()
    assert row[0] == row[1] == row[3] == "0.375 ± 0.177" and row[2] == real[2] == "–"
    assert "no epsilon covers" in " ".join(said)
    assert found.to_json().count("no epsilon pays") == 1


def test_scores_under_other_conditions_have_rows_of_their_own(median: AuditResult) -> None:
    for other in (quality(n=30), quality(digest="cd" * 32)):
        found = compare_runs(
            {
                "one": with_quality(median, quality()),
                "two": with_quality(median, other),
                "no": median,
            }
        )
        assert [len(column.scores) for column in found.quality] == [1, 1]
        table, _ = compared(found)
        assert [row.count("–") for row in table.values()] == [2, 2, 2, 2]
        page = compare.render_comparison_html(found)
        assert "no epsilon covers" in page and "<b>x" not in page


def test_nothing_evaluated_gives_no_table(median: AuditResult) -> None:
    assert compare_runs({"one": median, "two": median}).quality == ()


def probe(run: tuple[float, ...], public: tuple[float, ...], real: tuple[float, ...]) -> Downstream:
    found = {"synthetic": run, "public": public, "real-same-size": real}
    return Downstream(
        method="linear-probe",
        encoder=quality().features,
        settings=ProbeSettings(strength=1.0, iterations=10, seeds=(0, 1)),
        majority=0.5,
        trained=tuple(
            Trained(source=source, texts=40, accuracy=scores(values))  # type: ignore[arg-type]
            for source, values in found.items()
        ),
    )


def test_a_difference_has_the_spread_of_seeds_of_draws_and_of_test_texts() -> None:
    found = quality(tested=probe((0.9,), (0.5,), (0.8, 0.9)), public=(0.2, 0.4))
    assert found.baseline is not None
    mauve, accuracy = found.baseline.added
    stds = [scores(values).std for values in ((0.25, 0.5), (0.2, 0.4), (0.8, 0.9))]
    assert mauve.difference == pytest.approx(0.075)
    # draws of real texts vary less
    assert mauve.spread == pytest.approx(math.hypot(stds[0] or 0, stds[1] or 0))
    assert accuracy.difference == pytest.approx(0.4)
    test_texts = 0.9 * 0.1 / 40 + 0.5 * 0.5 / 40
    assert accuracy.spread == pytest.approx(math.sqrt(2 * (stds[2] or 0) ** 2 + test_texts))


@pytest.mark.parametrize(
    ("difference", "spread", "outcome"),
    [
        (0.3, 0.1, "more"),
        (0.2, 0.1, "nothing"),
        (-0.2, 0.1, "nothing"),
        (-0.3, 0.1, "less"),
        (0.3, None, "unknown"),
    ],
)
def test_within_twice_its_spread_a_difference_is_chance(
    difference: float, spread: float | None, outcome: str
) -> None:
    assert Added(measure="mauve", difference=difference, spread=spread).outcome == outcome


def test_a_single_seed_tells_nothing() -> None:
    mauve = quality(public=(0.2, 0.4)).mauve
    assert mauve is not None
    single = {name: scores((0.5,)) for name in ("score", "public", "ceiling")}
    settings = mauve.settings.model_copy(update={"seeds": (0,)})
    (found,) = added_by(mauve.model_copy(update={"settings": settings, **single}), (), 0)
    assert (found.spread, found.outcome) == (None, "unknown")


@pytest.mark.parametrize(
    ("public", "tested", "first", "line"),
    [
        (
            (0.2, 0.4),
            None,
            "The records added nothing: the same",
            "MAUVE: +0.075 ± 0.226, nothing that can be told",
        ),
        (
            (0.2, 0.4),
            probe((0.9,), (0.1,), (0.8, 0.9)),
            "The records added something:",
            "linear probe: +0.800 ± ",
        ),
        (
            (0.99, 0.99),
            probe((0.1,), (0.9,), (0.8, 0.8)),
            "The records added nothing: the same prompts without any record, at epsilon 0, do "
            "better.",
            "less with the records",
        ),
    ],
)
def test_every_report_says_what_the_records_added(
    median: AuditResult, public: tuple[float, ...], tested: Downstream | None, first: str, line: str
) -> None:
    found = quality(public=public, tested=tested)
    console = Console(file=io.StringIO(), width=160, color_system=None)
    print_document(build(found), console)
    result = with_quality(median, found)
    for text in (render_html(result), render_markdown(result), console.file.getvalue()):  # type: ignore[attr-defined]
        said = " ".join(text.split())
        assert (
            first in said
            and line in said
            and "Public only" in said
            and "without any record, epsilon 0" in said
        )
    print_document(summary(result), console)
    assert "Public only" in console.file.getvalue() and first[:25] in console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_baseline_nothing_is_said_of_what_was_added(evaluated: AuditResult) -> None:
    assert "Public only" not in render_html(evaluated)
    markdown = render_markdown(evaluated).partition("## Standards")[0]
    assert "What the records added" in markdown and markdown.count("records added") == 1


def test_a_comparison_has_the_baseline_beside_each_run(
    median: AuditResult, mean: AuditResult
) -> None:
    beside = quality(public=(0.2, 0.4), tested=probe((0.9,), (0.1,), (0.8, 0.9)))
    results = {
        "one": with_quality(median, beside),
        "two": with_quality(median, quality()),
        "mean": mean,
    }
    table, said = compared(compare_runs(results))
    (public,) = (
        row
        for name, row in table.items()
        if name.startswith("1: ") and name.endswith(", public only")
    )
    assert public == ["0.300 ± 0.141", "–", "–"]
    assert [note for note in said if note.startswith("Added by records")] == [
        "Added by records, 1: run 1 +0.075 ± 0.226, nothing that can be told from chance.",
        "Added by records, 2: run 1 +0.800 ± 0.120 with the records.",
    ]


def given(gain: float, error: float | None = 0.1, digest: str = DIGEST) -> HeldOutLikelihood:
    """Of a loss of 4 nats a token by the public prompt."""
    return HeldOutLikelihood(
        model=Encoder(name=HOSTILE, digest=DIGEST, max_tokens=64),
        texts=Texts(texts=1 if error is None else 8, distinct=1, digest=digest),
        left_out=2,
        tokens=100,
        supported=90,
        nll=PerToken(mean=4.0 - gain, error=error),
        public_nll=PerToken(mean=4.0, error=error),
        gain=PerToken(mean=gain, error=error),
    )


@pytest.mark.parametrize(
    ("likelihood", "first", "line"),
    [
        (given(1.5), "The records added something:", "+1.500 ± 0.100 with the records."),
        (
            given(0.125),
            "at epsilon 0, do as well.",
            "+0.125 ± 0.100, nothing that can be told from chance.",
        ),
        (
            given(-0.5),
            "at epsilon 0, do better.",
            "-0.500 ± 0.100, less with the records than without any.",
        ),
        (
            given(0.5, None),
            "Whether the records added anything is not known:",
            "+0.500, of which one text cannot tell",
        ),
    ],
)
def test_every_report_says_what_was_added_to_held_out_texts(
    median: AuditResult, likelihood: HeldOutLikelihood, first: str, line: str
) -> None:
    """Without a baseline, too: the public prompt alone stands beside it."""
    found = quality().model_copy(update={"likelihood": likelihood})
    console = Console(file=io.StringIO(), width=240, color_system=None)
    print_document(build(found), console)
    result = with_quality(median, found)
    for text in (render_html(result), render_markdown(result), console.file.getvalue()):  # type: ignore[attr-defined]
        said = " ".join(text.split())
        assert first in said and f"Held-out likelihood, nats a token: {line}" in said
        assert "leak private information" in said
    assert rows(found)[-1][1:3] == (shown(likelihood.score), shown(likelihood.public))
    assert rows(found)[0][2] == "–"  # no texts without records were measured


def test_likelihoods_of_other_texts_or_supports_have_rows_of_their_own(median: AuditResult) -> None:
    def columns(other: HeldOutLikelihood, **changed: Any) -> int:
        second = with_quality(median, quality().model_copy(update={"likelihood": other}))
        second = second.model_copy(update={"run": run_summary(changed)})
        first = with_quality(median, quality().model_copy(update={"likelihood": given(1.5)}))
        found = compare_runs({"one": first, "two": second})
        notes = " ".join(compared(found)[1])
        assert "run 1 +1.500 ± 0.100 with the records" in notes and "run 2 +0.125" in notes
        return sum(column.measure == "likelihood" for column in found.quality)

    assert columns(given(0.125), mechanism=MEDIAN) == 1
    assert (
        columns(given(0.125), mechanism={**MEDIAN, "contribution": {"kind": "logits", "clip": 0.5}})
        == 1
    )
    assert columns(given(0.125, digest="cd" * 32)) == 2
    assert (
        columns(given(0.125), mechanism={**MEDIAN, "support": {"kind": "public-top-k", "size": 5}})
        == 2
    )
    assert columns(given(0.125), prompt={"template": "own", "one_line": False}) == 2
