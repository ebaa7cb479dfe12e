"""A linear probe: logistic regression on embeddings, by scikit-learn. A quick look, where fine-tuning takes hours."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.results.quality import ProbeSettings

Labels = NDArray[np.int64]


class Probed(NamedTuple):
    """Share of test texts whose label a probe finds, and whether its training came to an end."""

    accuracy: float
    converged: bool


def probe_accuracy(train: Vectors, labels: Labels, test: Vectors, truth: Labels, settings: ProbeSettings) -> Probed:
    """Accuracy on test texts of a probe that was trained on others.

    Args:
        train: embeddings float32 [m, d], m >= 1.
        labels: int64 [m].
        test: embeddings float32 [k, d], k >= 1.
        truth: int64 [k].
        settings: inverse strength of the penalty, and iterations.

    Returns:
        The accuracy. Where all training texts have one label, that is the one found.
    """
    if (labels == labels[0]).all():
        return Probed(float((truth == labels[0]).mean()), True)
    probe = LogisticRegression(C=settings.strength, max_iter=settings.iterations)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ConvergenceWarning)
        probe.fit(train, labels)
    return Probed(float((probe.predict(test) == truth).mean()), not told)
