"""MAUVE is mauve-text's own figure, of texts that are drawn fairly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mauve
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.evaluation import mauve_score
from dpaudit.generation.evaluation.mauve_score import draw_indices, mauve_of
from dpaudit.results.quality import MOST_VARIANCE, MauveSettings
from dpaudit.runs import InputError


def settings(**fields: Any) -> MauveSettings:
    values: dict[str, Any] = {"n": 60, "clusters": 6, "iterations": 500, "initialisations": 5}
    values |= {"explained_variance": 0.9, "scaling": 5.0, "points": 32, "seeds": (0,)}
    return MauveSettings(**{**values, **fields})


def vectors(seed: int, shift: float = 0.0) -> Vectors:
    found: Vectors = np.random.default_rng(seed).normal(shift, 1, (60, 8)).astype(np.float32)
    return found


OTHERS: list[dict[str, Any]] = [
    {},
    {"clusters": 3},
    {"scaling": 2.0},
    {"points": 10},
    {"explained_variance": 0.5},
    {"initialisations": 1, "iterations": 2},
]


def test_the_figure_is_that_of_mauve_text_and_every_setting_has_a_say(
    capfd: pytest.CaptureFixture[str],
) -> None:
    figures = set[float]()
    for fields, seed in [*((fields, 0) for fields in OTHERS), ({}, 7)]:
        asked, texts, real = settings(**fields), vectors(1, 0.3), vectors(2)
        found = mauve_of(texts, real, asked, seed)
        assert capfd.readouterr() == ("", "")
        direct = mauve.compute_mauve(
            p_features=real,
            q_features=texts,
            num_buckets=asked.clusters,
            kmeans_explained_var=asked.explained_variance,
            kmeans_num_redo=asked.initialisations,
            kmeans_max_iter=asked.iterations,
            divergence_curve_discretization_size=asked.points,
            mauve_scaling_factor=asked.scaling,
            seed=seed,
        )
        capfd.readouterr()  # its warning of few points
        assert found == direct.mauve
        assert 0 < found < 1
        figures.add(found)
    assert len(figures) == len(OTHERS) + 1


def test_alike_and_unlike_texts() -> None:
    assert mauve_of(vectors(1), vectors(1), settings(), 0) > 0.99
    far = vectors(2)
    far[:, 0] += 50
    assert mauve_of(vectors(1), far, settings(), 0) < 0.05


def test_what_has_no_mauve() -> None:
    same = np.ones((60, 8), dtype=np.float32)
    with pytest.raises(InputError, match=r"^MAUVE: .*same embedding"):
        mauve_of(same, same, settings(), 0)
    with pytest.raises(InputError, match="too few for 121 clusters"):
        mauve_of(vectors(1), vectors(2), settings(clusters=121), 0)
    with pytest.raises(ValueError, match="equal numbers"):
        mauve_of(vectors(1)[:50], vectors(2), settings(), 0)


def test_what_is_no_mauve_is_refused() -> None:
    for figure in [float("nan"), -1e-3, 1 + 1e-6, float("inf")]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(
                mauve_score, "compute_mauve", lambda **_: SimpleNamespace(mauve=figure)
            )
            with pytest.raises(InputError, match="mauve-text"):
                mauve_of(vectors(1), vectors(2), settings(), 0)
            monkeypatch.setattr(
                mauve_score, "compute_mauve", lambda **_: SimpleNamespace(mauve=1 + 1e-12)
            )
            assert mauve_of(vectors(1), vectors(2), settings(), 0) == 1.0


def test_a_target_that_no_components_reach_is_refused() -> None:
    """Else mauve-text keeps the first component alone, and says nothing of it."""
    alike = np.tile(np.eye(1, 8, dtype=np.float32), (60, 1))
    alike[::2] *= 2  # the same at length 1
    with pytest.raises(InputError, match="--explained-variance"):
        mauve_of(alike, alike[::-1], settings(), 0)
    assert (
        0 < mauve_of(vectors(1, 0.3), vectors(2), settings(explained_variance=MOST_VARIANCE), 0) < 1
    )
    with pytest.raises(ValidationError):
        settings(explained_variance=0.9999)


@given(st.integers(0, 99), st.integers(1, 40), st.integers(0, 30), st.integers(0, 30))
def test_texts_are_drawn_once_each_and_the_ceilings_are_others(
    seed: int, n: int, more: int, reference: int
) -> None:
    ours, theirs, others = draw_indices(seed, n + more, 2 * n + reference, n)
    assert len(ours) == len(theirs) == len(others) == n
    assert len(set(ours.tolist())) == n and len({*theirs.tolist(), *others.tolist()}) == 2 * n
    assert ours.max() < n + more and max(theirs.max(), others.max()) < 2 * n + reference
    again = draw_indices(seed, n + more + 1, 2 * n + reference, n)
    assert (again[1] == theirs).all() and (again[2] == others).all()


def test_too_few_texts_are_not_drawn() -> None:
    for synthetic, reference in ((9, 20), (10, 19)):
        with pytest.raises(ValueError, match="too few"):
            draw_indices(0, synthetic, reference, 10)
