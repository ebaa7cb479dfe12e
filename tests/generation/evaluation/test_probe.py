"""The probe is scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dpaudit.generation.evaluation.bench import probe_accuracy
from dpaudit.results.quality import ProbeSettings


def test_accuracy_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(90, 5)).astype(np.float32)
    labels = (vectors[:, 0] + random.normal(size=90) > 0).astype(np.int64) + (vectors[:, 1] > 1)
    accuracies, many = set(), 1000
    for strength in (0.001, 1.0, 100.0):
        settings = ProbeSettings(strength=strength, iterations=many, seeds=(0,))
        found = probe_accuracy(vectors[:40], labels[:40], vectors[40:], labels[40:], settings)
        direct = LogisticRegression(C=strength, max_iter=many).fit(vectors[:40], labels[:40])
        assert tuple(found) == (direct.score(vectors[40:], labels[40:]), True)
        accuracies.add(found.accuracy)
    assert len(accuracies) > 1 and max(accuracies) > 0.5


def test_a_probe_that_does_not_converge_says_so_and_prints_nothing(
    recwarn: pytest.WarningsRecorder,
) -> None:
    random = np.random.default_rng(0)
    vectors, labels = random.normal(size=(90, 5)).astype(np.float32), random.integers(0, 3, 90)
    settings = ProbeSettings(strength=100.0, iterations=1, seeds=(0,))
    assert not probe_accuracy(vectors, labels, vectors, labels, settings).converged
    assert not recwarn.list


def test_one_label_alone_is_always_found() -> None:
    vectors, truth = np.eye(4, dtype=np.float32), np.array([1, 1, 0, 1])
    settings = ProbeSettings(strength=1.0, iterations=10, seeds=(0,))
    assert probe_accuracy(vectors, np.ones(4, dtype=np.int64), vectors, truth, settings) == (
        0.75,
        True,
    )
