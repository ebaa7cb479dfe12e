"""What the records added, on the first screen of readers inside."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from dpaudit.reports.audit_document import render_html
from dpaudit.reports.wording import say
from dpaudit.reports.worth import FEWEST, paid_words, sentences
from dpaudit.results import AuditResult, TextCounts
from dpaudit.results.quality import PerToken
from dpaudit.results.worth import Gain, Nothing, Worth

Run = Any


def measured(
    result: AuditResult, *, texts: int = 20, released: int = 8, mean: float = 0.25
) -> AuditResult:
    """An audit with a gain of so many held-out records, and so many texts, of which 3 are empty."""
    gain = Gain(
        held_out=40,
        texts=texts,
        tokens=400,
        supported=300,
        gain=PerToken(mean=mean, error=0.03125),
    )
    worth = Worth(samples="ab" * 32, gain=gain, baseline=Nothing(texts=77, nothing=66))
    counts = TextCounts(texts=released, empty=1, very_short=2)
    return result.model_copy(update={"worth": worth, "released": counts})


@pytest.fixture
def audited(make_run: Callable[..., Run]) -> AuditResult:
    result: AuditResult = make_run(sizes=(4, 5)).audit()
    return result


def test_the_first_sentence_has_gain_interval_and_records(audited: AuditResult) -> None:
    for mean in (0.25, 0.0625, -0.25):
        first, *_ = sentences(measured(audited, mean=mean))
        numbers = re.findall(r"-?\d+(?:\.\d+)?", first)
        assert float(numbers[0]) == pytest.approx(mean, abs=1e-3)
        assert numbers[1] == "20"
        assert numbers[2] == "95"
        assert float(numbers[3]) < mean < float(numbers[4])
    said = {next(sentences(measured(audited, mean=mean))).split(":")[0] for mean in (0.2, 0, -0.2)}
    assert len(said) == 3


def test_too_few_records_have_no_figure(audited: AuditResult) -> None:
    first, *_ = sentences(measured(audited, texts=7))
    assert re.findall(r"\d+", first) == ["7"]


def test_a_gain_that_was_not_measured_is_no_lack_of_records(make_run: Callable[..., Run]) -> None:
    """A model that failed, or a run gone on with, leaves no gain though records are held out."""
    said = set()
    for share in (0.0, 1e-6):
        audited = make_run(aggregator="mean", sizes=(4, 5), held_out=share).audit()
        found = measured(audited)
        assert found.worth is not None
        worth = found.worth.model_copy(update={"gain": None})
        said.add(next(sentences(found.model_copy(update={"worth": worth}))))
    assert said == {say("worth-no-held-out"), say("worth-gain-not-measured")}


def test_texts_that_say_nothing_stand_beside_the_baselines(audited: AuditResult) -> None:
    _, second, *_ = sentences(measured(audited))
    assert re.findall(r"\d+", second) == ["3", "8", "66", "77"]


def test_few_texts_have_no_mauve_and_many_have_a_command(audited: AuditResult) -> None:
    *_, few = sentences(measured(audited, released=FEWEST - 1))
    assert re.findall(r"\d+", few) == [str(FEWEST - 1)]
    *_, many = sentences(measured(audited, released=FEWEST))
    assert many == say("not-evaluated")


def test_the_first_screen_has_it_for_readers_inside_alone(audited: AuditResult) -> None:
    from dpaudit.auditing.disclosure import public_form

    found = measured(audited)
    first_screen = render_html(found).partition('id="samples"')[0]
    assert "66 of 77" in first_screen
    assert "66 of 77" not in render_html(public_form(found))


def test_without_any_figure_pages_say_so(audited: AuditResult) -> None:
    assert [*sentences(audited)] == [say("worth-not-measured")]
    assert paid_words(None) == say("worth-not-paid")
