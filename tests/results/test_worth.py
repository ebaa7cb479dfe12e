"""What the records added, as types: intervals, outcomes, and figures that cannot be true."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError
from scipy import stats

from dpaudit.accounting.worth import CLIP, STEPS, most_noise, noise_scale
from dpaudit.results.quality import FEWEST_TEXTS, PerToken
from dpaudit.results.worth import Gain, PaidGain, Worth

COUNTS = {"held_out": 40, "texts": 20, "tokens": 400, "supported": 300}


def gain(mean: float, error: float | None, **counts: int) -> Gain:
    return Gain(**{**COUNTS, **counts}, gain=PerToken(mean=mean, error=error))


@pytest.mark.parametrize(
    ("mean", "error", "texts", "outcome"),
    [
        (0.2, 0.05, 20, "more"),
        (0.2, 0.1, 20, "nothing"),
        (-0.2, 0.05, 20, "less"),
        (0.2, 0.05, FEWEST_TEXTS - 1, "unmeasured"),
        (0.2, None, 1, "unmeasured"),
    ],
)
def test_an_interval_over_texts_tells_a_gain_from_chance(
    mean: float, error: float | None, texts: int, outcome: str
) -> None:
    found = gain(mean, error, texts=texts)
    assert found.outcome == outcome
    if found.interval is not None:
        assert error is not None
        wanted = stats.t.interval(0.95, texts - 1, loc=mean, scale=error)
        assert found.interval == pytest.approx(wanted)


@pytest.mark.parametrize(
    "fields",
    [
        {"supported": 401},
        {"texts": 41},
        {"gain": None},
        {"supported": 0},
        {"texts": 1},
        {"gain": {"mean": 0.1, "error": None}},
        {"gain": {"mean": math.inf, "error": 0.1}},
    ],
)
def test_gains_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    stated = {**COUNTS, "gain": {"mean": 0.1, "error": 0.1}}
    assert Gain.model_validate(stated)
    with pytest.raises(ValidationError):
        Gain.model_validate({**stated, **fields})


ABOUT: dict[str, Any] = {"unit": "record", "relation": "add_remove", "records": 2, "batches": 40}


def test_a_paid_figure_and_its_bound_are_those_of_the_sum() -> None:
    first = PaidGain.of(70, 0.25, earlier=None, **ABOUT)
    found = PaidGain.of(5000, 0.5, earlier=first, **ABOUT)
    assert found.gain == 5000 / STEPS / 40
    assert found.at_least == (5000 - most_noise(noise_scale(0.5, 2), 2)) / STEPS / 40
    assert (found.epsilon, found.clip, found.figures) == (0.5, CLIP, 2)
    assert found.spent >= 0.75
    for paid in (first, found):
        assert PaidGain.model_validate_json(paid.model_dump_json()) == paid


@pytest.mark.parametrize(
    "fields",
    [
        {"at_least": 0.124},
        {"gain": 0.25},
        {"gain": 0.12501},
        {"gain": 1e308},
        {"epsilon": 0.75},
        {"epsilon": 5e-324},
        {"records": 1},
        {"batches": 4000},
        {"clip": 0.25},
        {"spent": 0.1},
        {"figures": 1},
        {"figures": 1 << 40},
    ],
    ids=str,
)
def test_a_figure_and_a_bound_that_do_not_follow_from_its_cost_are_refused(
    fields: dict[str, Any],
) -> None:
    first = PaidGain.of(70, 0.25, earlier=None, **ABOUT)
    found = PaidGain.of(5000, 0.5, earlier=first, **ABOUT)
    with pytest.raises(ValidationError):
        PaidGain.model_validate({**found.model_dump(), **fields})


def test_a_file_of_worth_is_read_as_it_was_written() -> None:
    worth = Worth(samples="ab" * 32, gain=gain(0.2, 0.05))
    assert Worth.model_validate_json(worth.to_json()) == worth
    with pytest.raises(ValidationError):
        Worth.model_validate_json(worth.to_json().replace("internal", "public"))
