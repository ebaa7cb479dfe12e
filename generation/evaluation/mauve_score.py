"""MAUVE of embeddings by mauve-text: the texts compared, and its arguments.

The figure is all theirs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import numpy as np
from mauve import compute_mauve
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize

from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.results.quality import MauveSettings
from dpaudit.runs import InputError

#: Streams of randomness: what is drawn from one set must not depend on the size of the other.
_SYNTHETIC, _REFERENCE = 1, 2
#: mauve-text's area under its curve may exceed 1 by rounding, and by no more.
_ROUNDING = 1e-9


def draw_indices(
    seed: int, synthetic: int, reference: int, n: int
) -> tuple[NDArray[np.int64], ...]:
    """Draw the texts that one seed compares, uniformly and without replacement.

    Args:
        seed: of the draw.
        synthetic, reference: how many texts there are; n and 2n at least. Those of the reference
            are distinct.
        n: texts on every side.

    Returns:
        Three index arrays int64 [n]: of synthetic texts, of the reference texts that both
            comparisons share, and of other reference texts, for the ceiling.

    Raises:
        ValueError: there are too few texts.
    """
    if not 1 <= n <= min(synthetic, reference // 2):
        raise ValueError(f"{synthetic} and {reference} texts are too few for n = {n}")
    ours = np.random.default_rng([_SYNTHETIC, seed]).permutation(synthetic)
    theirs = np.random.default_rng([_REFERENCE, seed]).permutation(reference)
    return ours[:n], theirs[:n], theirs[n : 2 * n]


def mauve_of(texts: Vectors, reference: Vectors, settings: MauveSettings, seed: int) -> float:
    """Return MAUVE of two sets of equal size.

    Args:
        texts, reference: embeddings float32 [n, d] of the judged texts, and of real ones.
        settings: as `mauve.compute_mauve` takes them, under names that say what they are.
        seed: of PCA and k-means.

    Returns:
        Between 0 and 1; larger is closer.

    Raises:
        ValueError: the sets differ in size.
        InputError: the vectors are all the same, or too few for so many clusters or for so much
            variance; or mauve-text gives what is no MAUVE.
    """
    if len(texts) != len(reference):
        raise ValueError(f"{len(texts)} and {len(reference)} texts: MAUVE here is of equal numbers")
    if settings.clusters > 2 * len(texts):
        problem = (
            f"{2 * len(texts)} texts on both sides are too few for {settings.clusters} clusters."
        )
        raise InputError("--clusters", problem, "Ask for fewer, or leave it away for n / 10.")
    both = np.concatenate([texts, reference])
    if (both == both[0]).all():
        raise InputError(
            "MAUVE",
            "all texts have one and the same embedding.",
            "Check the run's texts, and the model.",
        )
    _require_variance(both, settings.explained_variance, seed)
    with _quiet():
        found = compute_mauve(
            p_features=reference,
            q_features=texts,
            num_buckets=settings.clusters,
            kmeans_explained_var=settings.explained_variance,
            kmeans_num_redo=settings.initialisations,
            kmeans_max_iter=settings.iterations,
            divergence_curve_discretization_size=settings.points,
            mauve_scaling_factor=settings.scaling,
            seed=seed,
        )
    score = float(found.mauve)
    if not 0 <= score <= 1 + _ROUNDING:  # NaN too
        remedy = "Other --points, --scaling or --clusters may be within its precision."
        raise InputError("mauve-text", f"its figure is {score}, which is no MAUVE.", remedy)
    return min(1.0, score)


def _require_variance(both: Vectors, wanted: float, seed: int) -> None:
    """Refuse vectors whose components never explain the share asked for.

    The components are those that it takes: of vectors of length 1, by the same estimator and seed.
    """
    with np.errstate(invalid="ignore"):  # without any variance, shares of it are 0 / 0
        ratios = PCA(random_state=seed + 1).fit(normalize(both)).explained_variance_ratio_
    if not np.cumsum(ratios)[-1] >= wanted:  # NaN too
        problem = f"the embeddings' components never explain {wanted} of their variance."
        raise InputError(
            "--explained-variance",
            problem,
            "Ask for less; and check that texts and embeddings differ.",
        )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence faiss's warning of few points a cluster, which n / 10 clusters always raise.

    It is written by C++.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
