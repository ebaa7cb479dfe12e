"""Recomputed figures bound actual neighbours, for the claim's relation and unit."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpaudit.accounting import (
    ApproximateAccountant,
    Cost,
    ExPostAccountant,
    exponential_mechanism_epsilon,
)
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import Question, audit_run
from dpaudit.mechanisms import BatchingRule, ContextChange, central_order_statistics, context_change
from dpaudit.results import Amplification, AuditResult
from dpaudit.runs import RunReader, SecretBatches
from tests.nesting import mechanism_with, read_run

CLIP = 6.0
#: Log-ratios and bounds are sums of some hundred float64 operations on numbers below 100.
SLACK = 1e-9


# --- Theorem 1 against actual neighbours ----------------------------------------------------------


def log_probabilities(values, tau):
    """log softmax of the component-wise median of [n, V]; the median of nothing is 0 everywhere."""
    median = (
        np.median(values.astype(np.float64), axis=0) if len(values) else np.zeros(values.shape[1])
    )
    scaled = median / tau
    largest = scaled.max()
    return scaled - largest - math.log(np.exp(scaled - largest).sum())


def losses(steps, tokens, tau, neighbour):
    """log p(x) - log p'(x) of the whole sequence; `neighbour` changes each step's contexts."""
    return math.fsum(
        log_probabilities(values, tau)[x] - log_probabilities(neighbour(values, x), tau)[x]
        for values, x in zip(steps, tokens, strict=True)
    )


def newcomers(values, x, random):
    """Contexts that may come: towards x, against x, indifferent, and at random within the clip."""
    size = values.shape[1]
    towards = np.where(np.arange(size) == x, CLIP, -CLIP)
    logits = random.normal(0, 4, size)
    clipped = np.maximum(-CLIP, logits - logits.max() + CLIP)
    return [row.astype(values.dtype) for row in (towards, -towards, np.full(size, CLIP), clipped)]


def add(kind, seed):
    return lambda values, x: np.vstack(
        [values, newcomers(values, x, np.random.default_rng(seed))[kind]]
    )


def remove(index):
    return lambda values, x: np.delete(values, index, axis=0)


def replace(index, kind, seed):
    def neighbour(values, x):
        changed = values.copy()
        changed[index] = newcomers(values, x, np.random.default_rng(seed))[kind]
        return changed

    return neighbour


def neighbours(relation, contexts, seed):
    if relation == "replace":
        return [replace(i, kind, seed) for i, kind in itertools.product(range(contexts), range(4))]
    return [remove(i) for i in range(contexts)] + [add(kind, seed) for kind in range(4)]


@st.composite
def sequences(draw):
    """A short sequence of honest contexts: [n, V] a step. Rounded logits make ties likely."""
    contexts, size, length = (
        draw(st.integers(0, 6)),
        draw(st.integers(2, 4)),
        draw(st.integers(1, 3)),
    )
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = random.normal(0, draw(st.sampled_from([0.3, 3.0, 30.0])), (length, contexts, size))
    if draw(st.booleans()):
        logits = np.round(logits)
    if contexts:
        logits = np.maximum(-CLIP, logits - logits.max(axis=2, keepdims=True) + CLIP)
    return list(logits), [int(x) for x in random.integers(0, size, length)]


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_exact_cost_bounds_every_neighbour_that_is_tried(relation):
    tried = []

    @given(sequences(), st.sampled_from([0.5, 1.25, 4.0]), st.integers(0, 2**32 - 1))
    @settings(max_examples=150)
    def check(sequence, tau, seed):
        steps, tokens = sequence
        mechanism = median(tau)
        accountant = ExPostAccountant(mechanism, ContextChange(relation))
        for values, x in zip(steps, tokens, strict=True):
            accountant.charge(0, mechanism.reduced(record_of(values), x))
        for neighbour in neighbours(relation, len(steps[0]), seed):
            loss = losses(steps, tokens, tau, neighbour)
            tried.append(loss)
            cost = accountant.cost
            assert -cost.rise - SLACK <= loss <= cost.fall + SLACK
            assert abs(loss) <= cost.exact + SLACK <= cost.theorem1 + 2 * SLACK

    check()
    assert len(tried) > 500  # the examples follow the constants of all modules
    assert max(map(abs, tried)) > 1.0


def median(tau):
    return mechanism_with({"aggregator": "median", "clip": CLIP, "temperature": tau})


def record_of(values):
    return {"central": central_order_statistics(values, CLIP)}


def bound(values, x, relation):
    mechanism = median(1.0)
    accountant = ExPostAccountant(mechanism, ContextChange(relation))
    (cost,) = accountant.charge(0, mechanism.reduced(record_of(values), x))
    return Cost(*cost).exact


def test_replacing_exceeds_the_add_remove_bound_for_even_n():
    """The trap in the paper's bound for even n: nobody should take one figure for the other."""
    values = np.array([[6.0, 6.0], [6.0, -6.0], [5.0, 6.0], [4.0, 6.0]])
    against = replace(2, 1, seed=0)
    loss = abs(losses([values], [1], 1.0, against))
    assert bound(values, 1, "add_remove") < 0.25
    assert 5 < loss <= bound(values, 1, "replace")


def test_removals_from_a_recorded_run_stay_within_its_batches_bounds(make_run):
    for sizes, seed in [((2, 3, 4), 0), ((5, 6, 8), 1), ((1, 7, 9), 2)]:
        run = make_run(sizes=sizes, contexts=True, dtype="float64", max_tokens=5, seed=seed)
        result = run.audit()
        for batch in result.batches:
            draft = run.draft(batch.id)
            steps, tokens = (
                [step.contexts for step in draft.steps],
                [step.token for step in draft.steps],
            )
            for neighbour in neighbours("add_remove", batch.contexts, seed):
                assert abs(losses(steps, tokens, 1.25, neighbour)) <= batch.exact + SLACK


# --- the claim's relation and unit ----------------------------------------------------------------


def epsilon_under(run, change):
    """Exact cost of the run under a given change of contexts."""
    reader = RunReader(run.path)
    mechanism = reader.manifest.mechanism
    accountant = ExPostAccountant(mechanism, change)
    for batch_id in reader.batches:
        with reader.batch(batch_id) as batch:
            for step in batch.steps():
                accountant.charge(batch_id, mechanism.reduced(dict(step.arrays), step.token))
    return accountant.epsilon


def test_fixed_slots_claimed_per_record_are_judged_with_replace_bounds(make_run, failed):
    run = make_run(rule="hashed-slots", sizes=(4, 4), unit="record", relation="add_remove")
    too_small = epsilon_under(run, ContextChange("add_remove"))
    right = epsilon_under(run, ContextChange("replace"))
    assert too_small < right
    assert run.exact == pytest.approx(right, rel=1e-12)
    run.edit_manifest({"claim.epsilon": (too_small + right) / 2})
    run.rehash()
    assert failed(run.audit()) == {"claim.epsilon", "mechanism.unit"}


def test_replace_never_costs_less_than_add_remove(make_run):
    for aggregator, rule in itertools.product(
        ["median", "mean"], ["hashed-records", "hashed-slots", "hashed-cells"]
    ):
        run = make_run(aggregator=aggregator, rule=rule, sizes=(4, 4), width=3)
        figures = []
        for relation in ("add_remove", "replace"):
            guarantees = audit_run(run.path, Question(relation=relation)).guarantees
            figures.append(
                guarantees.ex_post.batch_epsilon
                if aggregator == "median"
                else guarantees.approximate.epsilon
            )
        assert figures[0] < figures[1] < math.inf


def test_question_replaces_the_claim_and_nothing_else(make_run, failed):
    run = make_run()
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    low = audit_run(run.path, Question(epsilon=run.exact * (1 - 1e-9)))
    assert failed(low) == {"claim.epsilon"}
    assert low.claim.epsilon < run.exact
    exact = audit_run(run.path, Question(epsilon=run.exact))
    assert exact.verdict == "pass"
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before


def test_every_change_that_a_claim_covers_is_bounded_or_refused():
    for unit, relation, rule in itertools.product(
        ("record", "context", "user"), ("add_remove", "replace"), get_args(BatchingRule)
    ):
        change = context_change(unit, relation, rule, records_per_user=3)
        assert (change is not None) == (rule != "paper-slices" or unit == "context")
    assert context_change("user", "add_remove", "hashed-records") is None


def test_epsilon_is_the_worst_batch_not_the_mean(make_run):
    result = make_run(sizes=(1, 8, 8)).audit()
    ex_post = result.guarantees.ex_post
    for measure in ("theorem1", "exact", "rise", "fall"):
        assert getattr(ex_post, measure) == max(getattr(batch, measure) for batch in result.batches)


def test_curve_covers_the_steps(make_run):
    run = make_run(sizes=(2, 3, 4), max_tokens=6, seed=3)
    result = run.audit()
    curve, lengths = result.tokens, [batch.steps for batch in result.batches]
    assert curve.position == tuple(range(1, max(lengths) + 1))
    assert curve.batches == tuple(sum(length >= p for length in lengths) for p in curve.position)
    total = math.fsum(mean * count for mean, count in zip(curve.mean, curve.batches, strict=True))
    # rises and falls add up apart
    assert total >= math.fsum(batch.exact for batch in result.batches) - SLACK
    ex_post = result.guarantees.ex_post
    assert (curve.theorem1[-1], curve.exact[-1]) == (ex_post.theorem1, ex_post.exact)
    assert list(curve.exact) == sorted(curve.exact)
    assert all(mean <= most for mean, most in zip(curve.mean, curve.maximum, strict=True))


def test_position_without_a_bound_is_not_in_the_curve(make_run):
    run = make_run(sizes=(4,), seed=2)
    run.rewrite(0, lambda draft: draft.alter(0, "central", (1, 0), np.nan))
    result = run.audit()
    assert result.tokens.position[0] == 2
    assert result.guarantees.ex_post.theorem1 == math.inf
    assert '"theorem1": "inf"' in result.to_json()


def test_costs_of_what_was_not_read_are_infinite_everywhere(make_run):
    run = make_run(sizes=(1, 5, 9), seed=2)
    run.steps_file(0).unlink()
    result = run.audit()
    assert result.guarantees.ex_post.exact == math.inf
    assert set(result.tokens.exact) == set(result.tokens.theorem1) == {math.inf}
    nan = make_run(sizes=(4, 5), seed=2)
    nan.rewrite(0, lambda draft: draft.alter(1, "central", (1, 0), np.nan))
    first, second = nan.audit().batches
    assert first.exact == first.theorem1 == math.inf > second.exact


def test_the_approximate_figure_is_the_upper_end(make_run, failed):
    run = make_run(aggregator="mean", divisor=64.0, max_tokens=40)
    found = run.audit().guarantees.approximate
    eta = 2 * CLIP / (64.0 * 1.25) * (1 + 2.0**-26)
    assert found.epsilon == pytest.approx(
        exponential_mechanism_epsilon(eta, 40, found.delta).epsilon, rel=1e-12
    )
    assert found.batch_lower < found.batch_epsilon < found.batch_rdp
    between = (found.batch_lower + found.epsilon) / 2
    assert failed(audit_run(run.path, Question(epsilon=between))) == {"claim.epsilon"}
    assert audit_run(run.path, Question(epsilon=found.epsilon)).verdict == "pass"


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_attacks_are_bounded_by_the_claims_own_relation(make_run, relation):
    """At every rate and from public settings; a record in another's place moves twice as far."""
    run = make_run(aggregator="mean", divisor=64.0, max_tokens=40, relation=relation)
    result = run.audit()
    found, times = result.guarantees.approximate, 1 + (relation == "replace")
    accountant = ApproximateAccountant(times * 2 * CLIP / (64.0 * 1.25) * (1 + 2.0**-26))
    exact = accountant.attack_curve(40, found.delta)
    assert found.batch_attack.advantage == pytest.approx(exact.advantage, rel=1e-6)
    assert found.attack.advantage <= found.batch_attack.advantage
    curve = found.batch_attack.curve
    for rate in (1e-5, 0.001, 0.01, 0.03, 0.1, 0.5, 0.99):
        assert exact.true_positives(rate) * (1 - 1e-6) <= curve.true_positives(rate)
        assert curve.true_positives(rate) <= exact.true_positives(rate) * 1.01
    assert curve.advantage == found.batch_attack.advantage
    assert curve.accuracy() == found.batch_attack.accuracy
    assert curve.true_positives(0.01) == found.batch_attack.tpr_at_1pct
    assert curve.true_positives(0.001) == found.batch_attack.tpr_at_01pct
    assert curve.guess(0.1) == found.batch_attack.guess_at_10pct
    assert result.guarantees.no_attack is None
    # They are as public as the epsilon beside them, and survive as JSON.
    again = AuditResult.model_validate_json(result.to_json())
    assert again.guarantees.approximate.attack == found.attack
    assert public_form(result).guarantees.approximate == found


def test_the_cost_of_these_texts_alone_bounds_no_attack(make_run):
    guarantees = make_run().audit().guarantees
    assert guarantees.approximate is None and guarantees.zcdp is None
    assert guarantees.no_attack.code == "risk.no-attack-bound"


def codes(result):
    return {caveat.code for caveat in result.caveats}


def test_a_claim_per_user_says_how_many_records_that_is(make_run):
    result = make_run(unit="user", records_per_user=2, width=3).audit()
    assert result.verdict == "pass"
    assert result.guarantee.values["change"].values == {"unit": "user", "most": 2}
    assert "caveat.users-declared" in codes(result)
    assert result.guarantees.ex_post.records_per_user == result.claim.records_per_user == 2


def test_progress_is_told_of_every_batch(make_run):
    seen = []
    audit_run(
        make_run(sizes=(1, 2, 3)).path, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_result_holds_no_key(make_run):
    """With the hash's key, records could be guessed from the digests in `assignment`."""
    run = make_run()
    assert read_run(run)["batching"]["key"] not in run.audit().to_json()


def test_a_claim_is_never_rounded_in_words(make_run):
    for epsilon in [9.000004, 516.0504, 0.1 + 0.2]:
        run = make_run()
        run.edit_manifest({"claim.epsilon": epsilon + 100})
        run.rehash()
        assert repr(epsilon + 100) in str(run.audit().guarantee)


def test_a_claim_that_the_run_stated_itself_is_said_to_be(make_run):
    assert "of-claim.stated-afterwards" in codes(make_run().audit())
    assert "of-claim.stated-afterwards" not in codes(make_run(aggregator="mean").audit())


def test_a_claim_that_bounds_next_to_nothing_is_said_to(make_run):
    for aggregator in ["median", "mean"]:
        for epsilon, said in ((120.0, True), (9.9, False)):
            result = audit_run(make_run(aggregator=aggregator).path, Question(epsilon=epsilon))
            found = [
                each.values["digits"]
                for each in result.caveats
                if each.code == "empty-bound.factor"
            ]
            assert found == [53] * said


def test_a_batch_without_contexts_is_said_where_the_claim_is_about_this_data(make_run):
    for aggregator, said in [("median", True), ("mean", False)]:
        run = make_run(aggregator=aggregator, sizes=(0, 5))
        result = run.audit()
        assert result.verdict == "pass"
        caveats = [each for each in result.caveats if each.code == "empty-bound.empty-batch"]
        assert len(caveats) == said
        asked = audit_run(run.path, Question(epsilon=999.0))
        public = public_form(asked.model_copy(update={"caveats": (*asked.caveats, *caveats)}))
        assert "empty-bound.empty-batch" not in codes(public)  # an empty batch tells of the data


def test_a_failed_claim_gives_both_numbers(make_run):
    run = make_run()
    run.edit_manifest({"claim.epsilon": 0.01})
    run.rehash()
    said = str(run.audit().guarantee)
    assert "0.01" in said
    assert f"{run.audit().guarantees.ex_post.batch_epsilon:.3f}"[:4] in said


# --- both levels ----------------------------------------------------------------------------------


def test_says_why_secret_batches_gain_nothing(make_run):
    """Beyond the bound's precision both levels have one figure, with the accountant's reason."""
    run = make_run(secret=True, sizes=(4, 5, 4, 5), aggregator="mean")
    run.edit_manifest({"claim.delta": 1e-40})
    found = audit_run(run.path).guarantees.approximate
    accountant = run.spec.release_of(SecretBatches(((10, 2),)))
    assert found.epsilon == found.batch_epsilon
    reason = accountant.gains_nothing(run.spec.decoding.most_tokens, 1e-40)
    assert reason is not None and found.amplification.reason == Amplification.why_equal(reason)
    assert found.amplification.groups == ()


@pytest.mark.parametrize("name", ["00000000.zip\n", "\N{ARABIC-INDIC DIGIT ZERO}" * 8 + ".zip"])
def test_a_name_that_is_nearly_a_batchs_is_none(make_run, name):
    """It has no batch's digest, and is no second file of a batch."""
    run = make_run()
    (run.path / "steps" / name).write_bytes(b"anything")
    result = run.audit()
    checks = {check.id: check for check in result.checks}
    assert result.verdict == "error"
    assert checks["integrity.complete"].code == "half-written"
    assert checks["integrity.hashes"].status == "fail"
