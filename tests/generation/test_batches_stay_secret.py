"""Nothing in a release folder tells a record's batch, by an attacker's search over many runs.

The same records are generated from again and again under fresh keys, each run is audited and
released, and every field of every file is held against one record's batch by a test of
independence. What the texts say is the mechanism's own channel, which the release level bounds:
they have equally many tokens here, from a model that says next to nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config
from dpaudit.releasing.folder import write_release
from dpaudit.runs import RunReader

#: How rarely a search of all fields may object to a folder that tells nothing.
RARELY = 1e-4
BATCHES, BINS = 3, 3
_WORD = re.compile(r"[^\s<>\"',:;()\[\]{}]+")


def fields_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Every field of a release folder by place: JSON by path, text by line and word, and sizes."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        yield f"{name} size", str(len(data))
        text = data.decode("utf-8", "replace")
        if path.suffix == ".json":
            yield from ((f"{name} {place}", value) for place, value in leaves(json.loads(text)))
            continue
        for number, line in enumerate(text.splitlines()):
            yield f"{name}:{number} length", str(len(line))
            for place, word in enumerate(_WORD.findall(line)[:40]):
                yield f"{name}:{number} {place}", word


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """The scalars of a JSON value by their paths."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{place}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from leaves(item, f"{place}[{number}]")
    else:
        yield place, str(value)


def telling(runs: list[tuple[int, dict[str, str]]]) -> dict[str, float]:
    """The p-value of each varying field's independence of the batch, the smallest first."""
    by_field: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for batch, fields in runs:
        for name in fields:
            by_field[name].append((batch, fields[name]))
    absent = {
        name: [(batch, "") for batch, fields in runs if name not in fields] for name in by_field
    }
    found = {name: independence([*seen, *absent[name]]) for name, seen in by_field.items()}
    return dict(
        sorted(((name, p) for name, p in found.items() if p is not None), key=lambda each: each[1])
    )


def independence(seen: list[tuple[int, str]]) -> float | None:
    """The G-test's p-value, or None.

    Many values are put into BINS groups by their order: as numbers, or else as letters.
    """
    values = [value for _, value in seen]
    if len(set(values)) == 1:
        return None
    if len(set(values)) > BINS:
        try:
            keys = np.array([float(value or "nan") for value in values])
        except ValueError:
            keys = np.unique(values, return_inverse=True)[1].astype(float)
        edges = np.nanquantile(keys, np.linspace(0, 1, BINS + 1)[1:-1])
        values = [str(place) for place in np.searchsorted(edges, keys, side="right")]
    table = Counter(zip((batch for batch, _ in seen), values, strict=True))
    kinds = sorted(set(values))
    counts = np.array([[table[batch, kind] for kind in kinds] for batch in range(BATCHES)])
    counts = counts[counts.sum(axis=1) > 0][:, counts.sum(axis=0) > 0]
    if min(counts.shape) < 2:
        return None
    return float(chi2_contingency(counts, lambda_="log-likelihood").pvalue)


@pytest.mark.slow
def test_no_field_of_a_release_tells_a_records_batch(
    tmp_path: Path, make_config: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, planted = [], []
    config = make_config(
        batching={"batches_per_label": BATCHES, "generate_per_label": BATCHES, "key": None},
        mechanism={"aggregator": "mean", "clip": 0.01, "divisor": 3.0},
        decoding={"max_tokens": 4, "least_tokens": 4, "test_seed": None},
        privacy={"delta": 1e-3},
        record={"contexts": True},
    )
    record = None
    for number in range(200):
        run, folder = tmp_path / f"run{number}", tmp_path / f"folder{number}"
        generate(config, run)
        reader = RunReader(run)
        record = record or "canary-7f3a-Zanzibar 0 lorem"
        batch = batch_of(reader, record)
        result = audit_run(run)
        write_release(result, reader, folder)
        fields = dict(fields_of(folder))
        runs.append((batch, fields))
        planted.append((batch, {"contexts": str(result.batches[0].contexts)}))
    found = telling(runs)
    with capsys.disabled():
        sys.stdout.write(
            f"{len(runs[0][1])} fields, {len(found)} vary; closest: {list(found.items())[:5]}\n"
        )
    assert next(iter(telling(planted).values())) < RARELY, (
        "the search is too weak to see what it must see"
    )
    assert next(iter(found.values())) * len(found) > RARELY, list(found.items())[:5]


def batch_of(reader: RunReader, text: str) -> int:
    """Which of its label's batches a record was in."""
    from dpaudit.runs import KeyedHash

    key = KeyedHash(bytes.fromhex(reader.manifest.batching.key or ""))
    digest = key.digest("north", text)
    (place,) = (each.batch for each in reader.assignment() if each.digest == digest)
    assert place is not None
    return place
