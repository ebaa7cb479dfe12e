"""A linear probe: logistic regression on embeddings, by scikit-learn. A quick look, where fine-tuning takes hours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from dpaudit.quality import ProbeSettings
from generation.clustering.interfaces import Vectors

Labels = NDArray[np.int64]


def probe_accuracy(train: Vectors, labels: Labels, test: Vectors, truth: Labels, settings: ProbeSettings) -> float:
    """Accuracy on test texts of a probe that was trained on others.

    Args:
        train: embeddings float32 [m, d], m >= 1.
        labels: int64 [m].
        test: embeddings float32 [k, d], k >= 1.
        truth: int64 [k].
        settings: inverse strength of the penalty, and iterations.

    Returns:
        Share of test texts whose label is found. Where all training texts have one label, that is the one found.
    """
    if (labels == labels[0]).all():
        return float((truth == labels[0]).mean())
    probe = LogisticRegression(C=settings.strength, max_iter=settings.iterations)
    probe.fit(train, labels)
    return float((probe.predict(test) == truth).mean())
