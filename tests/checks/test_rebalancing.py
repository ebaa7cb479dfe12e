"""What clusters cost one unit of a claim, and where the audit shows it."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.accounting import ChangScales, exponential_mechanism_epsilon, rebalancing_events
from dpaudit.auditing.checks.grouping import GroupingCost, grouping_cost
from dpaudit.auditing.run import Question, audit_run
from dpaudit.runs import Claim, RunReader

REBALANCED = {"clusters": "public-centers-rebalanced", "sizes": (3, 4, 5, 2)}
NOISED = {"clusters": "chang", "sizes": (3, 4, 5, 2)}
EXACT = 1e-12
#: Of the noised centres that tests/conftest.py makes.
CENTERS_NOISE = ChangScales(depth=3, count_scale=40.0, sum_sd=60.0)


def cost(run, relation="add_remove", unit="record"):
    return grouping_cost(
        RunReader(run.path).manifest,
        Claim(epsilon=1.0, kind="ex-post", relation=relation, unit=unit),
    )


def test_no_clustering_costs_nothing(make_run):
    assert cost(make_run()) == GroupingCost()


def test_counts_cost_what_one_unit_moves_over_their_scale(make_run):
    for relation, unit, records in [
        ("add_remove", "record", 1),
        ("replace", "record", 2),
        ("add_remove", "user", 3),
        ("replace", "user", 6),
        ("add_remove", "context", 1),
        ("replace", "context", 2),
    ]:
        found = cost(make_run(**REBALANCED, records_per_user=3, width=5), relation, unit)
        assert found.counts == pytest.approx(records / 8, rel=EXACT)
        assert found.counts >= records / 8
        assert sum(found.events) == pytest.approx(records / 8, rel=EXACT)
        assert (found.centers, found.delta, found.unbounded) == (0, 0, ())


def test_a_context_of_several_records_moves_as_many_counts(make_run):
    run = make_run(clusters="public-centers-rebalanced", rule="hashed-slots", sizes=(4,) * 4)
    run.edit_manifest({"prompt.examples_per_context": 3})
    assert cost(run, unit="context").counts == pytest.approx(3 / 8, rel=EXACT)
    assert cost(run).counts == pytest.approx(1 / 8, rel=EXACT)


def test_counts_of_a_user_without_a_bound_cost_infinity(make_run):
    found = cost(make_run(**REBALANCED), unit="user")
    assert math.isinf(found.counts)
    assert [each.code for each in found.unbounded] == ["rebalancing.counts-unbounded"]
    assert found.events == ()


def test_an_epsilon_that_is_enough_is_not_passed_by_rounding(make_run):
    run = make_run(**REBALANCED)
    run.edit_manifest({"clustering.counts.epsilon": 0.125})
    assert cost(run).counts == 0.125


def test_centres_cost_what_their_noise_says_for_whoever_asks(make_run):
    for relation in ["add_remove", "replace"]:
        run = make_run(**NOISED)
        wanted = CENTERS_NOISE.epsilon(1e-6, relation)
        assert (
            cost(run, relation).centers,
            cost(run, relation).delta,
            cost(run, relation).counts,
        ) == (wanted, 1e-6, 0)
        run.edit_manifest({"clustering.epsilon": 1e-9})  # what is declared makes no difference
        assert cost(run, relation).centers == wanted


def test_centres_whose_noise_is_not_stated_cost_infinity(make_run):
    run = make_run(**NOISED)
    run.edit_manifest({"clustering.settings": {"depth": 3, "count_scale": 40.0}})
    assert math.isinf(cost(run).centers)
    (reason,) = cost(run).unbounded
    assert reason.code == "rebalancing.no-cost"
    assert "sum_sd" in reason.values["problem"]


def test_the_ex_post_total_and_its_ledger_hold_both(make_run):
    for kind in [REBALANCED, NOISED]:
        result = make_run(**kind).audit()
        found, (tree,) = (
            result.guarantees.ex_post,
            [tree for tree in result.ledger if tree.kind == "ex-post"],
        )
        spent = 0.125 if kind is REBALANCED else CENTERS_NOISE.epsilon(1e-6, "add_remove")
        assert found.rebalancing == pytest.approx(spent, rel=EXACT)
        assert (
            found.batch_epsilon
            == tree.value
            == math.nextafter(found.exact + found.rebalancing, math.inf)
        )
        parts = (spent, 0) if kind is REBALANCED else (0, spent)
        assert [child.value for child in tree.children][:2] == pytest.approx(parts, rel=EXACT)


def test_the_approximate_guarantee_composes_counts_jointly_and_adds_centres(make_run):
    for kind in [REBALANCED, NOISED]:
        run = make_run(**kind, aggregator="mean")
        result = run.audit()
        found, eta = result.guarantees.approximate, 2 * 6.0 / 4.0 / 1.25
        laplace = rebalancing_events(found.rebalancing, "add_remove")
        alone = exponential_mechanism_epsilon(
            eta, 3, found.delta - found.centers_delta, laplace=laplace
        ).epsilon
        assert found.epsilon == pytest.approx(alone + found.centers, rel=1e-6)
        assert (found.batch_lower is None) == (kind is NOISED)
        (tree,) = [tree for tree in result.ledger if tree.kind == "approximate"]
        counts, centers, generation = tree.children
        assert (counts.value, centers.value, centers.delta) == (
            found.rebalancing,
            found.centers,
            found.centers_delta,
        )
        assert (
            generation.value
            <= found.epsilon
            <= generation.value + counts.value + centers.value + 1e-3
        )
        assert tree.value == found.epsilon


def test_with_a_delta_of_the_centres_an_ex_post_claim_is_about_sets_of_outcomes(make_run):
    noised, rebalanced = make_run(**NOISED).audit(), make_run(**REBALANCED).audit()
    assert (noised.guarantee.code, noised.guarantee.values["delta"]) == (
        "verdict.ex-post-with-delta",
        1e-6,
    )
    assert rebalanced.guarantee.code == "verdict.ex-post"
    assert (noised.guarantees.ex_post.delta, rebalanced.guarantees.ex_post.delta) == (1e-6, 0)
    (tree,) = [tree for tree in noised.ledger if tree.kind == "ex-post"]
    assert [child.delta for child in tree.children] == [None, 1e-6, None]
    assert tree.delta == 1e-6


@given(data=st.data())
def test_sets_of_outcomes_are_covered_and_single_ones_are_not(data):
    """Two stages by brute force.

    (epsilon, delta)-DP centres, then texts with ratios of their own for each centre.
    """
    weights = st.lists(st.floats(0.01, 1), min_size=6, max_size=6)
    centers, centers_of_neighbour = (np.array(data.draw(weights)) for _ in range(2))
    texts, texts_of_neighbour = (np.array(data.draw(st.tuples(*[weights] * 6))) for _ in range(2))
    ours, theirs = centers / centers.sum(), centers_of_neighbour / centers_of_neighbour.sum()
    given_ours, given_theirs = (
        table / table.sum(axis=1, keepdims=True) for table in (texts, texts_of_neighbour)
    )
    epsilon = data.draw(st.floats(0, 2))
    delta = np.maximum(ours - math.exp(epsilon) * theirs, 0).sum()
    # what the ex-post total says of each outcome
    outcome = epsilon + np.log(given_ours / given_theirs)
    excess = ours[:, None] * given_ours - np.exp(outcome) * theirs[:, None] * given_theirs
    assert np.maximum(excess, 0).sum() <= delta + 1e-12  # the worst set is where there is an excess


def test_another_relation_is_worked_out_from_the_scale(make_run):
    """An honest run can be asked about an undeclared relation: a higher cost, no contradiction."""
    path = make_run(**REBALANCED).path
    result = audit_run(path, Question(epsilon=100.0, relation="replace"))
    assert result.guarantees.ex_post.rebalancing == pytest.approx(0.25, rel=EXACT)
    assert result.verdict == "pass"
    asked = audit_run(
        path, Question(epsilon=result.guarantees.ex_post.batch_epsilon * 0.99, relation="replace")
    )
    assert [check.id for check in asked.checks if check.status == "fail"] == ["claim.epsilon"]


def test_noise_that_hides_a_record_bounds_nothing_for_a_user(make_run):
    run = make_run(**NOISED, records_per_user=3)
    run.edit_manifest({"privacy.unit": "user", "claim.unit": "user", "claim.epsilon": 1e6})
    run.rehash()
    assert math.isinf(cost(run, unit="user").centers)
    assert [each.code for each in cost(run, unit="user").unbounded] == [
        "rebalancing.one-record-hidden"
    ]
    failed = {check.id for check in run.audit().checks if check.status == "fail"}
    assert {"rebalancing.noise", "claim.epsilon"} <= failed


def test_that_centres_are_public_rests_on_what_is_declared(make_run):
    levels = {}
    for method in ("public-centers", "chang", "public-centers-rebalanced"):
        result = make_run(clusters=method, sizes=(3, 4, 5, 2)).audit()
        levels[method] = {check.id: check.evidence for check in result.checks}["rebalancing.noise"]
    assert levels == {"public-centers": 0, "chang": 1, "public-centers-rebalanced": 1}


def test_lines_of_slots_that_are_full_for_one_cluster_may_be_left_out(make_run):
    """A line without a batch contradicts the rule only where no cluster's would leave it out."""
    run = make_run(clusters="public-centers", sizes=(3, 4, 5, 2))
    run.edit_manifest({"batching.generate_per_cluster": 5, "batching.batches": 20})
    found = {check.id: check for check in run.audit().checks}
    assert (
        found["partition.stable"].values["problem"].values["problem"].code == "partition.left-out"
    )
    assert json.loads((run / "clusters").read_text())["batches"] == [[5, 5], [5, 5]]
