"""Tokens that a seed tells are found, wherever its stream begins, and honest draws are not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpaudit.auditing.checks.draws import Draw
from dpaudit.auditing.checks.seeds import (
    FALSE_ALARMS,
    KNOWN_SEEDS,
    MOST_DRAWS,
    STREAMS,
    SeedTest,
    seed_of_noise,
)
from dpaudit.auditing.run import audit_run
from dpaudit.results import Finding
from dpaudit.runs import Sampling

HONEST = Sampling()
#: No seed that anybody tries first: else the check is right to find it.
UNKNOWN = 20260904113


def drawn(numbers, noise, tokens=50):
    """Draws by id at these numbers, from distributions of some entropy."""
    found = []
    for u in numbers:
        chances = noise.dirichlet(np.full(tokens, 0.3))
        edges = np.cumsum(chances)
        token = min(int(np.searchsorted(edges, u, side="right")), tokens - 1)
        order = np.argsort(chances, kind="stable")
        ascending = chances[order].cumsum()[int(np.flatnonzero(order == token)[0])] - chances[token]
        found.append(
            Draw(
                token,
                edges[token] - chances[token],
                ascending,
                1 - ascending - chances[token],
                chances[token],
            )
        )
    return found


@pytest.mark.parametrize("name", STREAMS)
def test_a_seed_is_found_that_tells_late_draws_alone(name):
    noise, honest = np.random.default_rng(UNKNOWN), np.random.default_rng(UNKNOWN + 1)
    numbers, test = STREAMS[name]([42], 1100)[0], SeedTest(HONEST)
    for batch in range(10):
        told = numbers[100 * batch : 100 * (batch + 1)] if batch > 1 else honest.random(100)
        test.take(batch, drawn(told, noise))
    assert test.found().values["seed"] == 42
    assert test.found().values["told"] >= 800


@pytest.mark.parametrize("name", STREAMS)
def test_a_known_seed_is_found_within_a_text(name):
    noise = np.random.default_rng(UNKNOWN)
    for seed in (0, 42, 20 + 1, 1234):
        test, numbers = SeedTest(HONEST), STREAMS[name]([seed], 60)[0]
        test.take(0, drawn(numbers[:20], noise))
        test.take(2, drawn(numbers[20:60], noise))
        found = test.found()
        assert (found.status, found.code) == ("fail", "tokens-told")
        assert found.values == {
            "told": 60,
            "of": 60,
            "generator": name,
            "seed": seed,
            "where": Finding(code="seeds.one-batch-after-another"),
            "order": "id",
        }
        again = SeedTest(HONEST)
        for batch in range(3):
            again.take(batch, drawn(numbers[:15], noise))
        assert again.found().values["where"].code == "seeds.again-in-each-batch"


def test_seeds_that_count_up_are_found():
    noise, batches = np.random.default_rng(UNKNOWN), (0, 2, 5)
    for place, numbers in {
        "seeds.plus-batch": lambda batch: STREAMS["random.seed"]([1234 + batch], 12)[0],
        "seeds.with-batch": lambda batch: np.random.default_rng([1234, batch]).random(12),
        "seeds.child-of-batch": lambda batch: np.random.default_rng(
            np.random.SeedSequence(1234).spawn(6)[batch]
        ).random(12),
        "seeds.plus-draw": lambda batch: [
            STREAMS["numpy.random.seed"]([1234 + 12 * batches.index(batch) + draw], 1)[0][0]
            for draw in range(12)
        ],
    }.items():
        test = SeedTest(HONEST)
        for batch in batches:
            test.take(batch, drawn(numbers(batch), noise))
        values = test.found().values
        assert (values["told"], values["of"], values["seed"], values["where"].code) == (
            36,
            36,
            1234,
            place,
        )


def test_a_declared_seed_is_tried_whatever_it_is():
    noise, numbers = (
        np.random.default_rng(UNKNOWN),
        STREAMS["numpy.random.seed"]([987654321], 30)[0],
    )
    declared = SeedTest(Sampling(generator="mt19937", seed=987654321))
    undeclared, other = SeedTest(HONEST), SeedTest(Sampling(generator="mt19937", seed=11111))
    for test in (declared, undeclared, other):
        test.take(0, drawn(numbers, noise))
    values = declared.found().values
    assert (values["told"], values["of"]) == (30, 30)
    assert (values["generator"], values["seed"]) == ("numpy.random.seed", 987654321)
    assert not undeclared.found()
    assert not other.found()


def test_numbers_that_rounding_puts_beside_an_edge_hide_nothing():
    noise, numbers = np.random.default_rng(UNKNOWN), list(STREAMS["numpy.random.seed"]([42], 60)[0])
    for place in (3, 17, 40):
        numbers[place] = 0.999 - numbers[place] / 2
    test = SeedTest(HONEST)
    test.take(0, drawn(numbers, noise))
    assert test.found().values["told"] >= 50


def test_honest_draws_are_not_taken_for_a_seeds():
    """Markov bounds the alarms.

    Among some hundred runs the evidence of the best seed stays far below one.
    """
    noise = np.random.default_rng(UNKNOWN)
    for number in range(150):
        test = SeedTest(HONEST if number % 2 else Sampling(generator="mt19937", seed=number))
        for batch in range(number % 4 + 1):
            test.take(batch, drawn(noise.random(size=25), noise))
        assert not test.found()
        weighed = float((test._told()[0] + test._weights).max())
        assert weighed < -math.log(FALSE_ALARMS) / 2


def test_all_hypotheses_together_weigh_one():
    for sampling in (
        HONEST,
        Sampling(generator="mt19937", seed=42),
        Sampling(generator="mt19937", seed=-3),
    ):
        test = SeedTest(sampling)
        each = np.broadcast_to(np.exp(test._weights), test._told()[0].shape)
        assert math.isclose(each.sum(), 1.0)
        assert len(set(test.tried)) == len(test.tried)
    assert len(set(KNOWN_SEEDS)) == len(KNOWN_SEEDS)


def test_certain_draws_and_long_runs_are_no_evidence_and_no_burden():
    test = SeedTest(HONEST)
    test.take(0, [Draw(0, 0.0, 0.0, 0.0, 1.0)] * 100 + [Draw(0, 0.5, 0.5, 0.5, 0.0)] * 100)
    assert not test.found()
    noise = np.random.default_rng(UNKNOWN)
    for batch in range(1, 4):
        test.take(batch, drawn(noise.random(size=2000), noise, tokens=5))
    assert test.draws == MOST_DRAWS
    assert not test.found()


def test_what_a_recorder_did_not_try_is_no_pass(make_run):
    seen = {
        "generator": "other 1.0",
        "batches": {"tried": 9, "moved": 1},
        "rows": {"logit": 0.0, "support": 0},
    }
    for left_out, verdict in (({}, "pass"), ({"rows": None}, "not_verified")):
        run = make_run()
        run.edit_manifest({"recorded": seen | left_out})
        run.rehash()
        result = audit_run(run.path)
        assert result.verdict == verdict
        (rows,) = [check for check in result.checks if check.id == "neighbors.rows"]
        assert (rows.status, rows.applicable) == (
            ("pass", True) if verdict == "pass" else ("skip", True)
        )


def test_costs_between_other_neighbours_are_those_of_their_own_audits(make_run):
    run = make_run(aggregator="mean", sizes=(4, 5))
    run.edit_manifest({"recorded": {"generator": "other 1.0"}})
    run.rehash()
    from dpaudit.auditing.run import Question

    found = run.audit().guarantees.approximate
    assert found is not None
    assert {(other.unit, other.relation) for other in found.others} == {
        ("record", "replace"),
        ("context", "add_remove"),
        ("context", "replace"),
    }
    for other in found.others:
        asked = audit_run(
            run.path, Question(unit=other.unit, relation=other.relation)
        ).guarantees.approximate
        assert asked is not None
        assert (other.epsilon, other.rdp) == (asked.batch_epsilon, asked.batch_rdp)
    assert make_run(aggregator="mean", sizes=(4, 5)).audit().guarantees.approximate.others == ()


@pytest.mark.parametrize("apart", [-0.9e-7, 0.0, 0.9e-7])
def test_noise_is_told_however_single_precision_rounds_it(apart):
    seed = ("numpy.random.seed", 987654321)
    stream = np.sort(STREAMS["numpy.random.seed"]([seed[1]], MOST_DRAWS)[0])
    ends = np.concatenate([stream[:4], stream[-4:]])
    found = seed_of_noise(ends + apart, [seed])
    assert (found.status, found.code, found.values["told"]) == ("fail", "noise-told", 8)
    assert seed_of_noise(ends + 3e-7, [seed]) is None
    assert seed_of_noise(np.zeros(0), [seed]) is None
