"""Are tokens held to the numbers of a committed seed, and to nothing narrower?"""

from __future__ import annotations

import hashlib
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpaudit.auditing.checks.committed_seed import SeededDraws, rounding_allowance
from dpaudit.auditing.checks.draws import DrawnSteps
from dpaudit.auditing.run import audit_run
from dpaudit.generation.sampling import CommittedStream, sample
from dpaudit.results.catalogue import is_public
from dpaudit.runs import CommittedSeed, InputError, Manifest, RunReader

PARTS = [hashlib.sha256(f"part {number}".encode()).digest() for number in range(2)]
SEED = CommittedSeed.of(PARTS)  # of the runs of tests/conftest.py
KIND = {"committed": "seeded", "text": False, "sizes": (4, 4), "max_tokens": 12, "vocabulary": 200}
SEEDED = "sampling.committed-seed"


def found(result, check_id=SEEDED):
    return next(check for check in result.checks if check.id == check_id)


class Fixed:
    """A source whose next uniform is a given number."""

    def __init__(self, number: float) -> None:
        self._bits = min(int(number * 2**256), 2**256 - 1)

    def take(self, size: int) -> bytes:
        return self._bits.to_bytes(size, "big")


def interval(scores: np.ndarray, temperature: float, token: int) -> tuple[float, float]:
    step = DrawnSteps.alone(scores, temperature, token)
    assert step is not None
    return step.intervals[0]


@given(
    seed=st.integers(0, 10**9),
    size=st.integers(1, 300),
    spread=st.sampled_from([0.0, 0.1, 3.0, 40.0, 300.0]),
    levels=st.sampled_from([1, 2, 5, 10**6]),
    double=st.booleans(),
    temperature=st.sampled_from([0.2, 0.8, 1.0, 1.25, 3.0]),
    where=st.floats(0, 1, exclude_max=True) | st.floats(1e-60, 1e-3),
)
def test_the_sampler_draws_the_token_whose_interval_holds_the_number(
    seed, size, spread, levels, double, temperature, where
):
    """Ties, values at the floor, far tails and both precisions: audit and sampler draw one line."""
    random = np.random.default_rng(seed)
    scores = np.round(random.normal(size=size) * levels) / levels * spread
    scores = np.maximum(scores, np.quantile(scores, random.random())).astype(
        np.float64 if double else np.float32
    )
    index = sample(scores, temperature, Fixed(where)).index
    low, high = interval(scores, temperature, index)
    number = (2 * int(where * 2**256) + 1) / 2**257
    allowance = rounding_allowance(size)
    assert low * (1 - allowance) <= number <= high * (1 + allowance)


def test_intervals_of_all_tokens_share_out_the_line():
    scores = np.random.default_rng(0).normal(size=50).round(1)
    ends = sorted(interval(scores, 0.7, token) for token in range(50))
    assert ends[0][0] == 0 and ends[-1][1] == 1
    for (_, high), (low, _) in itertools.pairwise(ends):
        assert math.isclose(high, low, rel_tol=1e-14)
    likely = np.exp(scores / 0.7) / np.exp(scores / 0.7).sum()
    lengths = [high - low for low, high in (interval(scores, 0.7, token) for token in range(50))]
    assert np.allclose(lengths, likely, rtol=1e-9)


@pytest.mark.parametrize("beyond", [0.0, 0.5, 2.0, 1e6])
@pytest.mark.parametrize("upper", [False, True])
def test_a_number_at_an_end_passes_within_the_allowance_and_not_beyond(make_run, beyond, upper):
    """Near misses: another machine may place the end a few units in the last place elsewhere."""
    manifest = RunReader(make_run(**KIND).path).manifest
    number, allowance = SEED.uniform(manifest.commitment or "", 0, 0), rounding_allowance(200)
    moved = 1 + allowance * beyond * (-1 if upper else 1)
    ends = (number / 2, number * moved) if upper else (number * moved, 1.0)
    draws = SeededDraws(SEED, manifest)
    draws.merge(0, [ends])
    assert bool(draws.wrong) == (beyond > 1)


def test_the_allowance_leaves_a_chooser_next_to_nothing():
    """The most that all ends together can cover of the line, at the largest vocabulary in use."""
    vocabulary = 300_000
    assert 2 * vocabulary * rounding_allowance(vocabulary) < 2e-4
    assert 2 * 49_152 * rounding_allowance(49_152) < 4e-6


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"aggregator": "mean"},
        {"aggregator": "mean", "contribution": "differences", "sizes": (0, 1, 4)},
        {"top_k": 20, "sizes": (4, 4, 4)},
        {"grid": 0.0625},
        {"dtype": "float64"},
        {"tokens_per_batch": 30},
        {"sizes": (0, 0, 3)},
        {"rule": "hashed-cells", "sizes": (3, 4)},
        {"aggregator": "mean", "budget": 0.5, "sizes": (6, 6), "tokens_per_batch": 30},
        {"aggregator": "mean", "sizes": (4,) * 24, "canaries": 24, "max_tokens": 6},
        {"clusters": "public-centers", "sizes": (3, 4, 5, 2)},
        {"temperature": 0.3},
    ],
    ids=str,
)
def test_honest_runs_of_every_kind_pass(make_run, kind):
    run = make_run(**KIND | kind)
    result = run.audit_with_model()
    steps = sum(batch.steps for batch in result.batches)
    assert result.verdict == "pass", [
        (c.id, c.measured, c.detail) for c in result.checks if c.status == "fail"
    ]
    assert (found(result).status, found(result).values["tokens"]) == ("pass", steps)
    assert found(result).evidence == 1


def test_without_the_seed_nothing_is_passed_and_readers_are_told(make_run):
    run = make_run(**KIND)
    for evidence, verdict in ((1, "pass"), (2, "pass"), (3, "not_verified"), (4, "not_verified")):
        result = audit_run(run.path, evidence=evidence)
        assert (
            found(result).status == "skip"
            and found(result).applicable
            and SEEDED in result.not_checked
        )
        assert (
            f"dpaudit verify {run.path} --seed-file FILE --seed-file FILE" in found(result).detail
        )
        assert result.verdict == verdict or evidence > 2
        assert (SEEDED in result.guarantee.values.get("checks", ())) == (evidence > 2)
    result = audit_run(run.path)
    (told,) = [caveat for caveat in result.caveats if caveat.code == "caveat.no-seed"]
    assert told in list(filter(is_public, result.caveats))


def test_a_run_of_the_operating_systems_randomness_has_nothing_to_hold(make_run):
    run = make_run()
    assert not found(run.audit()).applicable
    with pytest.raises(InputError, match=r": sampling: .* to no seed"):
        audit_run(run.path, seed=SEED)


def test_every_part_has_to_be_given_and_be_the_runs(make_run):
    run = make_run(**KIND)
    with pytest.raises(InputError, match=r": sampling: .* 2 parts, .* given 1"):
        audit_run(run.path, seed=CommittedSeed.of(PARTS[:1]))
    assert found(audit_run(run.path, seed=CommittedSeed.of(PARTS[::-1]))).status == "pass"
    other = CommittedSeed.of([PARTS[0], hashlib.sha256(b"another").digest()])
    check = found(audit_run(run.path, seed=other))
    assert (check.status, check.code) == ("fail", "other-parts")
    assert (check.values["foreign"], check.values["parts"]) == (1, 2)


def test_a_pass_says_whether_a_commitment_was_given(make_run):
    run = make_run(**KIND)

    def notes():
        return [note.code.removeprefix("committed-seed.") for note in found(run.audit()).notes]

    assert notes() == ["commitment-not-given", "not-replayed"]
    run.hold(head=False)
    assert notes() == ["commitment-given", "not-replayed"]


def test_batches_that_cannot_be_read_leave_it_open(make_run):
    run = make_run(**KIND)
    path = run.steps_file(1)
    path.write_bytes(path.read_bytes()[:-1])
    assert found(run.audit()).status == "skip"


def test_draws_by_noise_cannot_declare_a_seed(make_run):
    noisy = make_run(
        contribution="probabilities",
        aggregator="mean",
        noise=5.0,
        top_k=8,
        sizes=(9, 9, 9),
        temperature=1.0,
    )
    fields = RunReader(noisy.path).manifest.model_dump(mode="json")
    fields["sampling"] = {"generator": "committed-seed", "seed_hashes": list(SEED.hashes)}
    with pytest.raises(ValueError, match="draws by softmax"):
        Manifest.model_validate_json(json.dumps(fields))


@pytest.mark.parametrize(
    "sampling",
    [
        {"generator": "committed-seed"},
        {"generator": "committed-seed", "seed_hashes": []},
        {"generator": "os-entropy", "seed_hashes": ["ab" * 32]},
        {"generator": "committed-seed", "seed_hashes": ["ab" * 32], "seed": 7},
        {"generator": "committed-seed", "seed_hashes": ["ab" * 32] * 2},
        {"generator": "committed-seed", "seed_hashes": ["AB" * 32]},
        {"generator": "committed-seed", "seed_hashes": [f"{n:064x}" for n in range(17)]},
    ],
)
def test_rejects_seeds_and_hashes_that_do_not_go_together(make_run, sampling):
    run = make_run()
    run.edit_manifest({"sampling": sampling})
    with pytest.raises(InputError, match="sampling"):
        RunReader(run.path)


def test_tokens_of_a_seed_have_their_distribution():
    """Across steps of a batch, across batches, and across runs, under one seed."""
    scores = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03])).astype(np.float32)
    expected = np.exp(scores.astype(np.float64) / 1.3)
    expected *= 20_000 / expected.sum()
    runs = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(20_000)]
    streams = {
        "steps": [CommittedStream(SEED, runs[0], 0)] * 20_000,
        "batches": [CommittedStream(SEED, runs[0], batch) for batch in range(20_000)],
        "runs": [CommittedStream(SEED, run, 0) for run in runs],
    }
    for name, sources in streams.items():
        counts = np.bincount([sample(scores, 1.3, source).index for source in sources], minlength=5)
        assert stats.chisquare(counts, expected).pvalue > 1e-4, name
