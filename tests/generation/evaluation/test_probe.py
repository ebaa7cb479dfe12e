"""The probe is scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from dpaudit.quality import ProbeSettings
from generation.evaluation.probe import probe_accuracy


def test_accuracy_is_that_of_scikit_learn() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(90, 5)).astype(np.float32)
    labels = (vectors[:, 0] + random.normal(size=90) > 0).astype(np.int64) + (vectors[:, 1] > 1)
    accuracies = set()
    for strength in (0.001, 1.0, 100.0):
        settings = ProbeSettings(strength=strength, iterations=1000, seeds=(0,))
        found = probe_accuracy(vectors[:40], labels[:40], vectors[40:], labels[40:], settings)
        direct = LogisticRegression(C=strength, max_iter=1000).fit(vectors[:40], labels[:40])
        assert found == direct.score(vectors[40:], labels[40:])
        accuracies.add(found)
    assert len(accuracies) > 1 and max(accuracies) > 0.5


def test_one_label_alone_is_always_found() -> None:
    vectors, truth = np.eye(4, dtype=np.float32), np.array([1, 1, 0, 1])
    settings = ProbeSettings(strength=1.0, iterations=10, seeds=(0,))
    assert probe_accuracy(vectors, np.ones(4, dtype=np.int64), vectors, truth, settings) == 0.75
