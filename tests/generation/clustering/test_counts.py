"""Private counts come out with noise that was paid for, or not at all."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.clustering.rebalancing import PrivateCounts
from dpaudit.generation.sampling import SeededStream

ROOT = Path(__file__).parents[3]


def noise(seed: int = 1) -> Noise:
    return Noise(SeededStream(seed, 0))


def seventeen() -> PrivateCounts:
    """Counts 0, 0, 17 and 0, 17, 0."""
    return PrivateCounts(np.repeat([0, 1], 17), np.repeat([2, 1], 17), (2, 3))


# --- noise ----------------------------------------------------------------------------------------


def test_every_count_has_the_noise_of_its_sensitivity() -> None:
    for relation, records, sensitivity in [
        ("add_remove", 1, 1),
        ("replace", 1, 2),
        ("add_remove", 3, 3),
        ("replace", 3, 6),
    ]:
        labels, centers = np.zeros(90, dtype=np.int64), np.zeros(90, dtype=np.int64)
        noisy = PrivateCounts(labels, centers, (2, 1000)).noised(0.5, relation, noise(), records)
        assert noisy.scale == pytest.approx(sensitivity / 0.5)
        assert noisy.scale >= sensitivity / 0.5
        assert noisy.values.shape == (2, 1000)
        assert noisy.values.dtype == np.int64
        drawn = noisy.values.ravel().copy()
        drawn[0] -= 90
        law = stats.laplace(scale=sensitivity / 0.5)
        most = 3 * sensitivity
        inner = {
            value: float(law.cdf(value + 0.5) - law.cdf(value - 0.5))
            for value in range(1 - most, most)
        }
        tail = float(law.sf(most - 0.5))
        expected = {-most: tail, **inner, most: tail}
        found = Counter(np.clip(drawn, -most, most).tolist())
        shares = np.array(list(expected.values()))
        assert (
            stats.chisquare(
                [found[value] for value in expected], shares / shares.sum() * drawn.size
            ).pvalue
            > 1e-4
        )


def test_noise_is_about_the_counts() -> None:
    values = seventeen().noised(1e6, "add_remove", noise()).values
    assert values.tolist() == [[0, 0, 17], [0, 17, 0]]


def test_no_records_have_noisy_counts_too() -> None:
    nobody = np.empty(0, dtype=np.int32)
    assert PrivateCounts(nobody, nobody, (1, 4)).noised(0.1, "replace", noise()).values.any()


def test_counts_are_noised_once() -> None:
    counts = seventeen()
    with pytest.raises(ValueError, match="epsilon"):
        counts.noised(0.0, "add_remove", noise())
    counts.noised(1.0, "add_remove", noise())
    with pytest.raises(RuntimeError, match="have been noised"):
        counts.noised(1.0, "add_remove", noise())


def test_noisy_counts_cannot_be_changed() -> None:
    noisy = seventeen().noised(1.0, "add_remove", noise())
    with pytest.raises(ValueError, match="read-only"):
        noisy.values[0, 0] = 5


def test_what_cannot_be_counted_is_refused() -> None:
    for labels, centers, shape in [
        ([0, 0], [0], (1, 1)),
        ([0], [0, 1], (1, 2)),
        ([1], [0], (1, 1)),
        ([0], [-1], (1, 1)),
        ([0], [0], (1, 0)),
    ]:
        with pytest.raises(ValueError):
            PrivateCounts(np.array(labels), np.array(centers), shape)


# --- nothing else comes out -----------------------------------------------------------------------


def test_looking_at_them_shows_nothing() -> None:
    counts = seventeen()
    none = np.empty(0, dtype=np.int64)
    empty = PrivateCounts(none, none, (2, 3))
    for shown in (
        repr,
        str,
        format,
        ascii,
        lambda value: f"{value!r:>40}",
        lambda value: [*map(str, dir(value))],
    ):
        assert "17" not in str(shown(counts))
        assert shown(counts) == shown(empty)
    assert bool(counts) is bool(empty) is True
    assert counts != seventeen()  # by identity
    assert not np.any(counts == np.arange(100))  # type: ignore[comparison-overlap]
    assert sys.getsizeof(counts) == sys.getsizeof(empty)


def test_getting_at_them_fails() -> None:
    for look in [
        len,
        iter,
        list,
        vars,
        int,
        float,
        sorted,
        sum,
        memoryview,
        lambda counts: counts[0],
        lambda counts: 17 in counts,
        lambda counts: counts > 3,
        lambda counts: counts + 1,
        lambda counts: np.asarray(counts, dtype=np.int64),
        lambda counts: counts.values,
        lambda counts: counts.__values,
        lambda counts: counts.__dict__,
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda counts: counts.__getstate__(),
        lambda counts: counts.__reduce__(),
        lambda counts: counts.__reduce_ex__(4),
    ]:
        with pytest.raises((TypeError, AttributeError)) as caught:
            look(seventeen())
        assert "17" not in str(caught.value)


def test_numpy_sees_an_object_and_no_numbers() -> None:
    assert np.asarray(seventeen()).dtype == object
    assert np.asarray(seventeen()).shape == ()


# --- types ----------------------------------------------------------------------------------------


def test_private_counts_do_not_type_check_where_noisy_ones_are_wanted(tmp_path: Path) -> None:
    file = tmp_path / "swap.py"
    file.write_text(
        textwrap.dedent(
            """
            import numpy as np
            from dpaudit.generation.clustering.noise import Noise
            from dpaudit.generation.clustering.rebalancing import NoisyCounts, PrivateCounts

            def right(counts: PrivateCounts, noise: Noise) -> None:
                counts.noised(0.1, "add_remove", noise).kept(5)

            def wrong(counts: PrivateCounts, noisy: NoisyCounts) -> None:
                counts.kept(5)
                print(counts.values)
                print(counts[0])
                len(counts)
                list(counts)
                noisy.values = noisy.values
            """
        )
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--no-error-summary",
    ]
    command += [
        "--cache-dir",
        str(tmp_path / "cache"),
        "--no-site-packages",
        "--ignore-missing-imports",
        str(file),
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = {int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line}
    assert lines == set(range(10, 16)), found.stdout + found.stderr
