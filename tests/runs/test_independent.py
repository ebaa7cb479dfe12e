"""Ex-post costs and leave-one-out losses, recomputed from the files by a reader of its own.

The reader follows docs/run-directory.md and imports nothing of dpaudit; the formulas are written
out naively, a token of the vocabulary at a time.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile

import numcodecs
import numpy as np
import pytest

from dpaudit.runs import RunReader


def read_chunks(path):
    """Every array of a batch file as stored, {name: [T, ...]}, and its number of contexts."""
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
                np.frombuffer(numcodecs.Blosc().decode(rows[i]), dtype=about["data_type"]).reshape(
                    shape
                )
                for i in sorted(rows)
            ]
            arrays[name] = np.concatenate(parts)
    return arrays, contexts


def float_of(code, mechanism, dtype):
    """A value from its code, one at a time: a multiple of the grid, or the float of that rank."""
    if (grid := mechanism["contribution"]["grid"]) is not None:
        return code * grid
    size, letter = (4, "f") if dtype == "float32" else (8, "d")
    top = 1 << (8 * size - 1)
    bits = code - top if code >= top else 2 * top - 1 - code
    return struct.unpack(f"<{letter}", bits.to_bytes(size, "little"))[0]


def sum_of(above, more, dtype):
    """Modulo the integers' range."""
    limits = np.iinfo(dtype)
    return (above + more - limits.min) % (limits.max - limits.min + 1) + limits.min


def token_order(packed, size):
    """The tokens in the order of the stored columns."""
    constant = [packed[token // 8] >> (7 - token % 8) & 1 for token in range(size)]
    return sorted(range(size), key=lambda token: constant[token])


def step_values(arrays, t, manifest):
    """One step's arrays with a column per token, and floats for codes."""
    mechanism, dtype = manifest["mechanism"], manifest["record"]["dtype"]
    step = {name: rows[t] for name, rows in arrays.items()}
    if "central" in step:
        increments = step["central"]
        codes = [[int(code) for code in increments[0]]]
        for row in increments[1:]:
            codes.append(
                [sum_of(a, int(b), increments.dtype) for a, b in zip(codes[-1], row, strict=True)]
            )
        step["central"] = np.array(codes, dtype=object)
    for name in {"central", "contexts"} & step.keys():
        values = [[float_of(int(code), mechanism, dtype) for code in row] for row in step[name]]
        step[name] = np.array(values, dtype=dtype)
    grid = mechanism["contribution"]["grid"]
    if "aggregate" in step and grid is not None:
        divisor = mechanism["aggregator"]["divisor"]
        step["aggregate"] = np.array([int(k) * grid / divisor for k in step["aggregate"]])
    if "central" in step:
        order = token_order(step.pop("constant"), step["central"].shape[1])
        for name in {"central", "sides", "holder", "contexts"} & step.keys():
            stored = step[name]
            step[name] = np.empty_like(stored)
            for column, token in enumerate(order):
                step[name][..., token] = stored[..., column]
    return step


def manifest_of(folder):
    """The sections of run.json, each with its settings and what was made of them."""
    fields = json.loads((folder / "run.json").read_text())
    names = fields["settings"].keys() | fields["made"].keys()
    parts = {
        name: [fields[half][name] for half in ("settings", "made") if name in fields[half]]
        for name in names
    }
    return {
        name: {**each[0], **each[1]} if len(each) == 2 else each[0] for name, each in parts.items()
    }


def read_batch(path):
    """Every array of a batch file, as {name: [T, ...]}, and its number of contexts."""
    manifest = manifest_of(path.parents[1])
    arrays, contexts = read_chunks(path)
    steps = [step_values(arrays, t, manifest) for t in range(len(arrays["token"]))]
    return {name: np.array([step[name] for step in steps]) for name in steps[0]}, contexts


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
    inverse_alpha = (
        (upper[x] - center[x]) / tau + log_sum_exp(center, tau) - log_sum_exp(lower, tau)
    )
    beta = (center[x] - lower[x]) / tau + log_sum_exp(upper, tau) - log_sum_exp(center, tau)
    return max(inverse_alpha, beta)


def log_probability(values, x, tau):
    return values[x] / tau - log_sum_exp(values, tau)


def step_costs(lower, center, upper, x, tau):
    """Theorem 1, rise and fall, the last two from the box's corners as they are defined."""
    up, down = list(lower), list(upper)
    up[x], down[x] = upper[x], lower[x]
    here = log_probability(center, x, tau)
    return (
        gamma(lower, center, upper, x, tau),
        log_probability(up, x, tau) - here,
        here - log_probability(down, x, tau),
    )


def boxes(arrays, t, contexts, relation, mechanism):
    if "central" in arrays:
        return bounds(arrays["central"][t], contexts, relation)
    moved = mechanism["contribution"]["clip"] / mechanism["aggregator"]["divisor"]
    reach = (1 if relation == "add_remove" else 2) * moved
    center = [float(v) for v in arrays["aggregate"][t]]
    return [v - reach for v in center], center, [v + reach for v in center]


def batch_costs(folder, relation):
    """(Theorem 1, rise, fall) of every batch."""
    mechanism = manifest_of(folder)["mechanism"]
    costs = []
    for path in sorted((folder / "steps").iterdir()):
        arrays, contexts = read_batch(path)
        steps = []
        for t, token in enumerate(arrays["token"]):
            x = int(token)
            if "support" in arrays:
                x = list(arrays["support"][t]).index(token)
            box = boxes(arrays, t, contexts, relation, mechanism)
            steps.append(step_costs(*box, x, mechanism["temperature"]))
        costs.append(tuple(map(math.fsum, zip(*steps, strict=True))))
    return costs


def run_costs(folder):
    """The run's Theorem 1, rise and fall for the claim that it makes."""
    manifest = manifest_of(folder)
    claim, rule = manifest["claim"], manifest["batching"]["rule"]
    replaced = (
        rule == "hashed-slots" if claim["unit"] == "record" else claim["relation"] == "replace"
    )
    # Two contexts may change: an exchanged record's, or those of a user with two records.
    whole = ("hashed-records", "hashed-cells")
    exchanged = (claim["unit"], claim["relation"]) == ("record", "replace") and rule in whole
    exchanged |= claim["unit"] == "user" and manifest["privacy"]["records_per_user"] == 2
    costs = batch_costs(folder, "replace" if replaced else "add_remove")
    worst = [max(column) for column in zip(*costs, strict=True)]
    if not exchanged:
        return worst
    # Both in one batch, or one in each of two.
    same = [max(column) for column in zip(*batch_costs(folder, "replace"), strict=True)]
    two = [math.fsum(sorted(column)[-2:]) for column in zip(*costs, strict=True)]
    return [max(pair) for pair in zip(same, two, strict=True)]


def largest_loss(folder):
    """A median run's largest absolute leave-one-out loss, from central values, sides, holders."""
    mechanism = manifest_of(folder)["mechanism"]
    largest = 0.0
    for path in sorted((folder / "steps").iterdir()):
        arrays, n = read_batch(path)
        for i in range(n):
            losses = []
            for t, token in enumerate(arrays["token"]):
                central = arrays["central"][t]
                x = (
                    int(token)
                    if "support" not in arrays
                    else list(arrays["support"][t]).index(token)
                )
                half, two = len(central) // 2, central.dtype.type(2)
                without = []
                for y in range(central.shape[1]):
                    below = arrays["sides"][t][i // 8][y] >> (7 - i % 8) & 1
                    if n % 2 == 0:
                        value = central[half][y] if below else central[half - 1][y]
                    elif arrays["holder"][t][y] == i:
                        value = (central[half - 1][y] + central[half + 1][y]) / two
                    elif below:
                        value = (central[half][y] + central[half + 1][y]) / two
                    else:
                        value = (central[half - 1][y] + central[half][y]) / two
                    without.append(float(value))
                _, center, _ = bounds(central, n, "add_remove")
                tau = mechanism["temperature"]
                losses.append(log_probability(center, x, tau) - log_probability(without, x, tau))
            largest = max(largest, abs(math.fsum(losses)))
    return largest


#: Means are charged for a rounding of 2^-26 of their sensitivity.
TOLERANCE = 3e-8
ALL_SIZES = (0, 1, 2, 3, 4, 5, 8, 9)
RUNS = {
    "even": {"sizes": (0, 2, 4, 8)},
    "odd": {"sizes": (1, 3, 5, 9)},
    "odd, wide": {"sizes": (1, 3, 5, 9), "width": 5},
    "float64": {"sizes": ALL_SIZES, "dtype": "float64"},
    "contexts": {"sizes": ALL_SIZES, "contexts": True},
    "grid": {"sizes": ALL_SIZES, "grid": 0.125, "contexts": True},
    "fine grid": {"sizes": ALL_SIZES, "grid": 2.0**-18},
    "float64 on a grid": {"sizes": ALL_SIZES, "dtype": "float64", "grid": 2.0**-6},
    "top-k": {"sizes": ALL_SIZES, "top_k": 5},
    "replace": {"sizes": ALL_SIZES, "relation": "replace"},
    "replace, top-k": {"sizes": ALL_SIZES, "relation": "replace", "top_k": 5},
    "context, replace": {"sizes": ALL_SIZES, "relation": "replace", "unit": "context"},
    "slots": {"sizes": (4, 4), "rule": "hashed-slots"},
    "cells": {"sizes": ALL_SIZES, "rule": "hashed-cells"},
    "cells, replace": {"sizes": ALL_SIZES, "rule": "hashed-cells", "relation": "replace"},
    "slices": {"sizes": (5, 5), "rule": "paper-slices", "unit": "context"},
    "long": {"sizes": (6, 7), "max_tokens": 30, "vocabulary": 60},
    "mean": {"sizes": ALL_SIZES, "aggregator": "mean"},
    "mean, slots, top-k": {
        "sizes": (4, 4),
        "rule": "hashed-slots",
        "aggregator": "mean",
        "top_k": 5,
    },
    "user of two": {"sizes": ALL_SIZES, "unit": "user", "records_per_user": 2, "width": 3},
    "mean, user of two": {
        "sizes": (3, 5, 6),
        "unit": "user",
        "records_per_user": 2,
        "aggregator": "mean",
    },
    "mean, replace": {"sizes": (3, 5), "relation": "replace", "aggregator": "mean"},
    "mean on a grid": {"sizes": ALL_SIZES, "aggregator": "mean", "grid": 0.125, "divisor": 3.7},
}


def test_audit_agrees_with_independent_arithmetic_on_the_files(make_run):
    for kind in RUNS.values():
        run = make_run(**kind)
        result = run.audit()
        ex_post = result.guarantees.ex_post
        found = [ex_post.theorem1, ex_post.rise, ex_post.fall]
        assert found == pytest.approx(run_costs(run.path), rel=TOLERANCE, abs=1e-10)
        assert (
            ex_post.batch_epsilon
            == ex_post.exact
            == max(ex_post.rise, ex_post.fall)
            <= ex_post.theorem1
        )
        if (run.spec.rule, run.spec.relation, run.spec.unit) == (
            "hashed-records",
            "add_remove",
            "record",
        ):
            batches = [(batch.theorem1, batch.rise, batch.fall) for batch in result.batches]
            naive = batch_costs(run.path, "add_remove")
            assert np.array(batches) == pytest.approx(np.array(naive), rel=TOLERANCE, abs=1e-10)
        if run.spec.aggregator == "median":
            assert result.guarantees.empirical.leave_one_out_max == pytest.approx(
                largest_loss(run.path), abs=1e-12
            )


def test_reader_gives_what_the_documented_layout_holds(make_run):
    for kind in RUNS.values():
        run = make_run(**kind)
        reader = RunReader(run.path)
        for batch_id in reader.batches:
            arrays, contexts = read_batch(run.steps_file(batch_id))
            with reader.batch(batch_id) as batch:
                assert batch.header.contexts == contexts
                for t, step in enumerate(batch.steps()):
                    for name, rows in arrays.items():
                        found = step.arrays[name] if name in step.arrays else getattr(step, name)
                        assert np.array_equal(
                            np.frombuffer(found, np.uint8) if name == "aggregate_digest" else found,
                            rows[t],
                        )


def test_hand_made_even_and_odd_bounds():
    """The reader of this file is itself checked: n = 4 and n = 3 with round numbers."""
    even = np.array([[-3.0], [-1.0], [1.0], [5.0]])
    assert bounds(even, 4, "add_remove") == ([-1.0], [0.0], [1.0])
    assert bounds(even, 4, "replace") == ([-2.0], [0.0], [3.0])
    odd = np.array([[-6.0], [-2.0], [0.0], [4.0], [6.0]])
    assert bounds(odd, 3, "add_remove") == ([-1.0], [0.0], [2.0])
    assert bounds(odd, 3, "replace") == ([-2.0], [0.0], [4.0])
