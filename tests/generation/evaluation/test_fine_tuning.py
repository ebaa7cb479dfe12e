"""The paper's protocol for a classifier, on a toy set that a tiny encoder can part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpaudit.quality import FineTuneSettings
from dpaudit.runs import InputError
from generation.evaluation import fine_tuning
from generation.evaluation.fine_tuning import Attempt, Examples, encoder_of, epochs_of, fine_tune
from generation.evaluation.settings import LAPTOP, PAPER, asked

GOOD = Attempt(0, 3e-3, 0.0)


def settings(**fields: Any) -> FineTuneSettings:
    values: dict[str, Any] = {"preset": "laptop", "batch_size": 8, "steps": 60, "learning_rates": (3e-3,)}
    values |= {"weight_decays": (0.0,), "patience": 4, "validation": 0.1, "max_tokens": 16, "seeds": (0,)}
    return FineTuneSettings(**{**values, **fields})


def toy(count: int, start: int = 0) -> Examples:
    """Texts whose letters say their label."""
    labels = np.arange(start, start + count) % 3
    words = ("aaa", "mmm", "zzz")
    texts = tuple(f"{words[label]} {number % 10}" for number, label in enumerate(labels, start=start))
    return Examples(texts, labels.astype(np.int64))


def test_a_separable_set_is_learnt_and_one_without_training_is_not(encoder_folder: Path) -> None:
    protocol = settings(validation=0.3, patience=8)
    found = fine_tune(str(encoder_folder), toy(90), toy(30, 90), 3, GOOD, protocol)
    assert found.test > 0.9 and found.validation > 0.9
    assert 1 <= found.best_epoch <= found.epochs <= epochs_of(63, protocol)
    idle = fine_tune(str(encoder_folder), toy(90), toy(30, 90), 3, Attempt(0, 1e-12, 0.0), protocol)
    assert idle.test < 0.7


def test_a_fit_stops_after_epochs_without_a_better_one(encoder_folder: Path) -> None:
    idle = fine_tune(str(encoder_folder), toy(30), toy(9), 3, Attempt(0, 1e-12, 0.0), settings(steps=500, patience=2))
    assert (idle.best_epoch, idle.epochs) == (1, 3)


def test_seeds_decide_all_and_leave_the_callers_randomness_alone(encoder_folder: Path) -> None:
    few = settings(steps=6)
    before = torch.random.get_rng_state()
    one, again = (fine_tune(str(encoder_folder), toy(30), toy(30, 99), 3, GOOD, few) for _ in range(2))
    assert one == again
    assert torch.equal(before, torch.random.get_rng_state())
    seeds = {fine_tune(str(encoder_folder), toy(30), toy(30, 99), 3, Attempt(s, 3e-3, 0.0), few).test for s in range(4)}
    assert len(seeds) > 1


def test_the_best_checkpoint_is_tested_and_not_the_last(encoder_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracies are scripted: validation 0.5, 0.9, 0.1, 0.1, then the test's own with the weights of epoch 2."""
    seen: list[float] = []
    scripted = iter([0.5, 0.9, 0.1, 0.1, 0.7])

    def accuracy(network: Any, *_: Any) -> float:
        seen.append(float(network.classifier.weight.detach().sum()))
        return next(scripted)

    monkeypatch.setattr(fine_tuning, "_accuracy", accuracy)
    found = fine_tune(str(encoder_folder), toy(30), toy(9), 3, GOOD, settings(steps=500, patience=2))
    assert (found.best_epoch, found.epochs, found.validation, found.test) == (2, 4, 0.9, 0.7)
    assert seen[-1] == seen[1] != seen[3]


def test_the_papers_numbers() -> None:
    assert epochs_of(900, PAPER) == 112  # ceil(200 * 500 / 900)
    assert (PAPER.batch_size, PAPER.steps, PAPER.patience, PAPER.validation) == (200, 500, 4, 0.1)
    assert PAPER.learning_rates == (1e-6, 3e-6, 1e-5, 3e-5, 1e-4)
    assert PAPER.weight_decays == (0.0, 5e-4) and PAPER.seeds == (0, 1, 2)


def test_any_number_of_fine_tuning_asks_for_it() -> None:
    assert asked({}).fine_tune is None
    assert asked({"fine_tune": True}).fine_tune == PAPER
    assert asked({"preset": "laptop"}).fine_tune == LAPTOP
    assert asked({"classifier": "x"}).fine_tune == PAPER
    found = asked({"steps": 3, "learning_rates": (1.0,), "accuracy_seeds": 2, "probe_strength": 7.0, "n": 9})
    assert found.fine_tune == PAPER.model_copy(update={"steps": 3, "learning_rates": (1.0,), "seeds": (0, 1)})
    assert (found.probe.strength, found.probe.seeds, found.n) == (7.0, (0, 1), 9)


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
    with pytest.raises(ValueError, match="too few"):
        fine_tune(str(encoder_folder), toy(1), toy(9), 3, GOOD, settings())


def test_examples_do_not_show_their_texts() -> None:
    assert "zzz" not in repr(toy(3))
