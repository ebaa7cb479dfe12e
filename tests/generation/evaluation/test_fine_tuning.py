"""The paper's protocol for a classifier, on a toy set that a tiny encoder can part."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file

from dpaudit.generation.evaluation import fine_tuning
from dpaudit.generation.evaluation.fine_tuning import (
    Attempt,
    Examples,
    encoder_of,
    epochs_of,
    fine_tune,
)
from dpaudit.generation.evaluation.settings import LAPTOP, PAPER, settings_from_options
from dpaudit.generation.evaluation.texts import normalized_text
from dpaudit.results.quality import MOST_FITS, FineTuneSettings, ProbeSettings
from dpaudit.runs import InputError

GOOD, ADAM = Attempt(0, 3e-3, 0.0), torch.optim.Adam


def settings(**fields: Any) -> FineTuneSettings:
    values: dict[str, Any] = {
        "preset": "laptop",
        "batch_size": 8,
        "steps": 60,
        "learning_rates": (3e-3,),
    }
    values |= {
        "weight_decays": (0.0,),
        "patience": 4,
        "validation": 0.1,
        "max_tokens": 16,
        "seeds": (0,),
    }
    return FineTuneSettings(**{**values, **fields})


def toy(count: int, start: int = 0) -> Examples:
    """Texts whose letters say their label."""
    labels = np.arange(start, start + count) % 3
    words = ("aaa", "mmm", "zzz")
    texts = tuple(
        f"{words[label]} {number % 10}" for number, label in enumerate(labels, start=start)
    )
    return Examples(texts, labels.astype(np.int64))


def test_a_separable_set_is_learnt_and_one_without_training_is_not(encoder_folder: Path) -> None:
    protocol = settings(validation=0.3, patience=8)
    found = fine_tune(str(encoder_folder), toy(90), toy(30, 90), 3, GOOD, protocol)
    assert found.test > 0.9 and found.validation > 0.9 and found.loss < math.log(3)
    assert 1 <= found.best_epoch <= found.epochs <= epochs_of(63, protocol)
    idle = fine_tune(str(encoder_folder), toy(90), toy(30, 90), 3, Attempt(0, 1e-12, 0.0), protocol)
    assert idle.test < 0.7


def test_a_fit_stops_after_epochs_without_a_better_one(encoder_folder: Path) -> None:
    idle = fine_tune(
        str(encoder_folder),
        toy(30),
        toy(9),
        3,
        Attempt(0, 1e-12, 0.0),
        settings(steps=500, patience=2),
    )
    assert idle.epochs == 3  # a lower loss alone is no better accuracy


def test_seeds_decide_all_and_leave_the_callers_randomness_alone(encoder_folder: Path) -> None:
    few = settings(steps=6)
    before = torch.random.get_rng_state()
    one, again = (
        fine_tune(str(encoder_folder), toy(30), toy(30, 99), 3, GOOD, few) for _ in range(2)
    )
    assert one == again
    assert torch.equal(before, torch.random.get_rng_state())
    seeds = {
        fine_tune(str(encoder_folder), toy(30), toy(30, 99), 3, Attempt(s, 3e-3, 0.0), few).test
        for s in range(4)
    }
    assert len(seeds) > 1


def test_the_best_checkpoint_is_tested_and_not_the_last(
    encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test uses the weights of the best of the scripted epochs; ties go to the lowest loss."""
    seen: list[float] = []
    scripted = iter([(0.5, 0.1), (0.9, 0.6), (0.9, 0.4), (0.9, 0.4), (0.1, 0.1), (0.7, 9.0)])

    def test(classifier: Any, *_: Any) -> tuple[float, float]:
        seen.append(float(classifier.network.classifier.weight.detach().sum()))
        return next(scripted)

    monkeypatch.setattr(fine_tuning._Classifier, "test", test)
    found = fine_tune(
        str(encoder_folder), toy(30), toy(9), 3, GOOD, settings(steps=500, patience=3)
    )
    assert found == fine_tuning.Outcome(epochs=5, best_epoch=3, validation=0.9, loss=0.4, test=0.7)
    assert seen[-1] == seen[2] != seen[4]


@limits(max_examples=50)
@given(
    st.lists(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=2, max_size=120).filter(
        lambda t: len(set(t)) > 1
    ),
    st.sampled_from([0.01, 0.1, 0.5, 0.99]),
    st.integers(0, 9),
)
def test_validation_texts_are_a_share_of_the_distinct_ones_and_no_others(
    letters: list[str], share: float, seed: int
) -> None:
    texts = [
        f" {letter.upper()}\n" if place % 2 else letter for place, letter in enumerate(letters)
    ]
    kept, held = fine_tuning._split(texts, share, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == list(range(len(texts)))
    trained, watched = ({normalized_text(texts[row]) for row in rows} for rows in (kept, held))
    distinct = len(set(letters))
    assert not trained & watched
    assert len(watched) == min(max(1, round(share * distinct)), distinct - 1)


def test_the_optimizer_is_adam_with_the_attempts_rate_and_decay(
    encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[torch.optim.Optimizer] = []

    def adam(*args: Any, **options: Any) -> torch.optim.Optimizer:
        made.append(ADAM(*args, **options))
        return made[-1]

    monkeypatch.setattr(torch.optim, "Adam", adam)
    found = fine_tune(
        str(encoder_folder), toy(12), toy(9), 3, Attempt(0, 2e-3, 5e-4), settings(steps=1)
    )
    assert found.best_epoch == 1
    (optimizer,) = made
    assert type(optimizer) is ADAM
    (group,) = optimizer.param_groups
    wanted = {
        "lr": 2e-3,
        "weight_decay": 5e-4,
        "betas": (0.9, 0.999),
        "decoupled_weight_decay": False,
    }
    assert {name: group[name] for name in wanted} == wanted


def test_a_rate_at_which_training_diverges_has_lost(encoder_folder: Path) -> None:
    found = fine_tune(str(encoder_folder), toy(30), toy(9), 3, Attempt(0, 1e30, 0.0), settings())
    assert (found.best_epoch, found.validation, found.test) == (0, 0.0, 0.0)


def test_the_papers_numbers() -> None:
    assert epochs_of(900, PAPER) == 112  # ceil(200 * 500 / 900)
    assert (PAPER.batch_size, PAPER.steps, PAPER.patience, PAPER.validation) == (200, 500, 4, 0.1)
    assert PAPER.learning_rates == (1e-6, 3e-6, 1e-5, 3e-5, 1e-4)
    assert PAPER.weight_decays == (0.0, 5e-4) and PAPER.seeds == (0, 1, 2)


def test_numbers_of_fine_tuning_are_for_what_asks_for_it() -> None:
    assert settings_from_options({}).fine_tune is None
    assert settings_from_options({"fine_tune": True}).fine_tune == PAPER
    assert settings_from_options({"preset": "laptop"}).fine_tune == LAPTOP
    assert settings_from_options({"classifier": "x"}).fine_tune == PAPER
    for options, named in (
        ({"steps": 3}, "--steps: .* for which nothing asks"),
        ({"learning_rates": (1.0,)}, "--learning-rate: "),
    ):
        with pytest.raises(InputError, match=named):
            settings_from_options(options)
    tuned = {"fine_tune": True, "steps": 3, "learning_rates": (1.0,)}
    found = settings_from_options({**tuned, "accuracy_seeds": 2, "probe_strength": 7.0, "n": 9})
    assert found.fine_tune == PAPER.model_copy(
        update={"steps": 3, "learning_rates": (1.0,), "seeds": (0, 1)}
    )
    assert (found.probe.strength, found.probe.seeds, found.n) == (7.0, (0, 1), 9)


def test_what_no_result_can_hold_is_refused_before_anything_is_measured() -> None:
    rates = tuple(1e-6 * number for number in range(1, 101))
    for options, named in (
        ({"fine_tune": True, "learning_rates": (*rates, 1.0)}, "--learning-rate"),
        (
            {"fine_tune": True, "learning_rates": rates, "accuracy_seeds": MOST_FITS // 200 + 1},
            "--learning-rate",
        ),
        ({"fine_tune": True, "max_tokens": 3 * 10**12}, "--max-tokens"),
        ({"fine_tune": True, "learning_rates": (1.0, 1.0)}, "--learning-rate.*listed twice"),
        ({"accuracy_seeds": 1001}, "--accuracy-seeds"),
        ({"probe_iterations": 10**13}, "--probe-iterations"),
        ({"embedding": "x" * 1001}, "--embedding"),
    ):
        with pytest.raises(InputError, match=named):
            settings_from_options(options)
    with pytest.raises(ValidationError):
        ProbeSettings(strength=math.inf, iterations=1, seeds=(0,))


def test_weights_that_are_pickled_are_not_loaded(encoder_folder: Path, tmp_path: Path) -> None:
    for file in encoder_folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(load_file(encoder_folder / "model.safetensors"), tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="--classifier"):
        encoder_of(str(tmp_path), PAPER)


def test_a_model_of_another_kind_is_refused(tmp_path: Path, encoder_folder: Path) -> None:
    with pytest.raises(InputError, match="--classifier"):
        encoder_of(str(tmp_path), PAPER)
    encoder = encoder_of(str(encoder_folder), PAPER)
    assert encoder.max_tokens == 48  # its positions
    assert encoder_of(str(encoder_folder), settings()).max_tokens == 16


def test_too_few_texts(encoder_folder: Path) -> None:
    doubles = Examples(("a text", "A  text"), np.array([0, 1]))
    for few in (toy(1), doubles):
        with pytest.raises(ValueError, match="1 distinct texts"):
            fine_tune(str(encoder_folder), few, toy(9), 3, GOOD, settings())


def test_examples_do_not_show_their_texts() -> None:
    assert "zzz" not in repr(toy(3))
