"""Theorem 1 recomputed from the files by other means: json, zipfile, numcodecs, numpy. Nothing of dpaudit is imported.

The formulas are written out naively, a token of the vocabulary at a time.
"""

from __future__ import annotations

import json
import math
import zipfile

import numcodecs
import numpy as np
import pytest


def read_batch(path):
    """Every array of a batch file, as {name: [T, ...]}, and its number of contexts."""
    with zipfile.ZipFile(path) as archive:
        contexts = json.loads(archive.read("zarr.json"))["attributes"]["header"]["contexts"]
        chunks = {}
        for entry in archive.namelist():
            if "/c/" in entry:
                name, place = entry.split("/c/")
                chunks.setdefault(name, {})[int(place.split("/")[0])] = archive.read(entry)
        arrays = {}
        for name, rows in chunks.items():
            about = json.loads(archive.read(f"{name}/zarr.json"))
            shape = about["chunk_grid"]["configuration"]["chunk_shape"]
            parts = [
                np.frombuffer(numcodecs.Blosc().decode(rows[i]), dtype=about["data_type"]).reshape(shape)
                for i in sorted(rows)
            ]
            arrays[name] = np.concatenate(parts)
    return arrays, contexts


def bounds(central, contexts, relation):
    """lower, center and upper by the table of cases, from [2w + n % 2, S] central values."""
    rows = [[float(v) for v in row] for row in central.astype(np.float64)]
    w = (len(rows) - contexts % 2) // 2

    def middle(one, other):
        # As the mechanism computes it: in the record's dtype.
        pair = central[one] + central[other]
        return [float(v) for v in pair / central.dtype.type(2)]

    if contexts % 2 == 0:
        h, above = w - 1, w
        if relation == "add_remove":
            return rows[h], middle(h, above), rows[above]
        return middle(h - 1, h), middle(h, above), middle(above, above + 1)
    m = w
    if relation == "add_remove":
        return middle(m - 1, m), rows[m], middle(m, m + 1)
    return rows[m - 1], rows[m], rows[m + 1]


def log_sum_exp(values, tau):
    largest = max(values)
    return largest / tau + math.log(math.fsum(math.exp((v - largest) / tau) for v in values))


def gamma(lower, center, upper, x, tau):
    inverse_alpha = (upper[x] - center[x]) / tau + log_sum_exp(center, tau) - log_sum_exp(lower, tau)
    beta = (center[x] - lower[x]) / tau + log_sum_exp(upper, tau) - log_sum_exp(center, tau)
    return max(inverse_alpha, beta)


def batch_costs(folder, relation):
    tau = json.loads((folder / "run.json").read_text())["mechanism"]["temperature"]
    costs = []
    for path in sorted((folder / "steps").iterdir()):
        arrays, contexts = read_batch(path)
        step_costs = []
        for t, token in enumerate(arrays["token"]):
            x = int(token)
            if "support" in arrays:
                x = list(arrays["support"][t]).index(token)
            step_costs.append(gamma(*bounds(arrays["central"][t], contexts, relation), x, tau))
        costs.append(math.fsum(step_costs))
    return costs


def epsilon(folder):
    """The run's ex-post epsilon for the claim that it makes."""
    manifest = json.loads((folder / "run.json").read_text())
    claim, rule = manifest["claim"], manifest["batching"]["rule"]
    if claim["unit"] == "context":
        return max(batch_costs(folder, claim["relation"]))
    if (rule, claim["relation"]) == ("hashed-records", "replace"):
        # The other record enters the same batch, or one batch loses a context and another gains one.
        two_worst = sorted(batch_costs(folder, "add_remove"))[-2:]
        return max(*batch_costs(folder, "replace"), math.fsum(two_worst))
    return max(batch_costs(folder, "replace" if rule == "hashed-slots" else claim["relation"]))


ALL_SIZES = (0, 1, 2, 3, 4, 5, 8, 9)
RUNS = {
    "even": {"sizes": (0, 2, 4, 8)},
    "odd": {"sizes": (1, 3, 5, 9)},
    "odd, wide": {"sizes": (1, 3, 5, 9), "width": 5},
    "float64": {"sizes": ALL_SIZES, "dtype": "float64"},
    "top-k": {"sizes": ALL_SIZES, "top_k": 5},
    "replace": {"sizes": ALL_SIZES, "relation": "replace"},
    "replace, top-k": {"sizes": ALL_SIZES, "relation": "replace", "top_k": 5},
    "context, replace": {"sizes": ALL_SIZES, "relation": "replace", "unit": "context"},
    "slots": {"sizes": (4, 4), "rule": "hashed-slots"},
    "slices": {"sizes": (5, 5), "rule": "paper-slices", "unit": "context"},
    "long": {"sizes": (6, 7), "max_tokens": 30, "vocabulary": 60},
}


@pytest.mark.parametrize("kind", RUNS.values(), ids=RUNS.keys())
def test_audit_agrees_with_independent_arithmetic_on_the_files(make_run, kind):
    run = make_run(**kind)
    result = run.audit()
    assert result.guarantees.ex_post.theorem1 == pytest.approx(epsilon(run.path), rel=1e-9, abs=0)
    if run.spec.rule == "hashed-records" and run.spec.relation == "add_remove":
        found = [batch.theorem1 for batch in result.batches]
        assert found == pytest.approx(batch_costs(run.path, "add_remove"), rel=1e-9, abs=0)


def test_hand_made_even_and_odd_bounds():
    """The reader of this file is itself checked: n = 4 and n = 3 with round numbers."""
    even = np.array([[-3.0], [-1.0], [1.0], [5.0]])
    assert bounds(even, 4, "add_remove") == ([-1.0], [0.0], [1.0])
    assert bounds(even, 4, "replace") == ([-2.0], [0.0], [3.0])
    odd = np.array([[-6.0], [-2.0], [0.0], [4.0], [6.0]])
    assert bounds(odd, 3, "add_remove") == ([-1.0], [0.0], [2.0])
    assert bounds(odd, 3, "replace") == ([-2.0], [0.0], [4.0])
