"""Honest runs of every kind pass, and whatever is skipped says why."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dpaudit.auditing.checks import registered
from dpaudit.auditing.checks.steps import StepView
from dpaudit.results.rounding import exactly
from dpaudit.runs import DecodingRules, RunReader

ALL_SIZES = (0, 1, 2, 3, 4, 5, 8)
RULES = DecodingRules(
    least_tokens=2, no_line_breaks=True, no_repeated_ngram=2, banned_words=("w5", "w0 w4")
)
RUNS = {
    "median": {"sizes": ALL_SIZES},
    "median, contexts": {"sizes": ALL_SIZES, "contexts": True},
    "median, float64": {"sizes": ALL_SIZES, "dtype": "float64", "contexts": True},
    "median, top-k": {"sizes": ALL_SIZES, "top_k": 5, "contexts": True},
    "median, replace": {"sizes": ALL_SIZES, "relation": "replace"},
    "median, wide": {"sizes": ALL_SIZES, "width": 5},
    "median, tokens only": {"sizes": ALL_SIZES, "text": False},
    "median, rules": {"sizes": ALL_SIZES, "top_k": 5, "rules": RULES, "max_tokens": 12},
    "mean, rules": {
        "sizes": ALL_SIZES,
        "top_k": 5,
        "rules": RULES,
        "max_tokens": 12,
        "aggregator": "mean",
    },
    "median, one empty batch": {"sizes": (0,)},
    "median, long": {"sizes": (6, 7), "max_tokens": 20},
    "median, canaries": {"sizes": (1, 4, 5) * 8, "canaries": 24},
    "median, canaries, top-k, replace": {
        "sizes": (4,) * 17,
        "canaries": 16,
        "top_k": 5,
        "relation": "replace",
    },
    "median, grid": {"sizes": ALL_SIZES, "grid": 0.125},
    "median, fine grid, contexts": {"sizes": ALL_SIZES, "grid": 2.0**-18, "contexts": True},
    "records held out": {"sizes": (4, 6), "held_out": 0.2},
    "records held out of cells": {"sizes": (4, 4), "rule": "hashed-cells", "held_out": 0.2},
    "slots": {"sizes": (4, 4), "rule": "hashed-slots"},
    "odd slots, replaced": {
        "sizes": (3, 3),
        "rule": "hashed-slots",
        "relation": "replace",
        "width": 3,
    },
    "slots per context": {"sizes": (4, 4), "rule": "hashed-slots", "unit": "context"},
    "cells": {"sizes": ALL_SIZES, "rule": "hashed-cells"},
    "cells, replaced": {"sizes": (3, 4), "rule": "hashed-cells", "relation": "replace"},
    "cells per context": {"sizes": (3, 4), "rule": "hashed-cells", "unit": "context"},
    "cells per user": {
        "sizes": (3, 4),
        "rule": "hashed-cells",
        "unit": "user",
        "records_per_user": 2,
        "width": 3,
    },
    "slices per context": {"sizes": (5, 5), "rule": "paper-slices", "unit": "context"},
    "mean": {"sizes": ALL_SIZES, "aggregator": "mean"},
    "mean, contexts": {"sizes": ALL_SIZES, "aggregator": "mean", "contexts": True},
    "mean, float64": {
        "sizes": ALL_SIZES,
        "aggregator": "mean",
        "dtype": "float64",
        "contexts": True,
    },
    "mean, top-k": {"sizes": ALL_SIZES, "aggregator": "mean", "top_k": 5},
    "mean, replace": {"sizes": ALL_SIZES, "aggregator": "mean", "relation": "replace"},
    "mean, grid": {"sizes": ALL_SIZES, "aggregator": "mean", "grid": 0.125},
    "mean, fine grid, contexts": {
        "sizes": ALL_SIZES,
        "aggregator": "mean",
        "grid": 2.0**-18,
        "contexts": True,
    },
    "mean, grid, odd divisor": {
        "sizes": ALL_SIZES,
        "aggregator": "mean",
        "grid": 2.0**-6,
        "divisor": 3.7,
    },
    "differences": {"sizes": ALL_SIZES, "contribution": "differences", "contexts": True},
    "differences, top-k, grid": {
        "sizes": ALL_SIZES,
        "contribution": "differences",
        "contexts": True,
        "top_k": 5,
        "grid": 0.125,
        "relation": "replace",
    },
    "mean of differences": {
        "sizes": ALL_SIZES,
        "contribution": "differences",
        "aggregator": "mean",
        "contexts": True,
        "top_k": 5,
    },
    "mean of differences, fine grid": {
        "sizes": ALL_SIZES,
        "contribution": "differences",
        "aggregator": "mean",
        "contexts": True,
        "grid": 2.0**-18,
    },
    "sparse vector": {
        "sizes": (5, 4, 6, 5) * 2,
        "contribution": "differences",
        "private_tokens": 24,
        "temperature": 1.0,
        "top_k": 8,
        "max_tokens": 12,
        "tokens_per_batch": 32,
        "aggregator": "mean",
        "divisor": 5.0,
    },
    "noisy maximum": {
        "sizes": (30,) * 8,
        "aggregator": "mean",
        "contribution": "probabilities",
        "noise": 2.5,
        "temperature": 1.0,
        "divisor": 12.0,
        "top_k": 8,
        "max_tokens": 20,
    },
    "rebalanced": {"sizes": (3, 4, 0, 5, 4, 2, 1, 8), "clusters": "public-centers-rebalanced"},
    "rebalanced, replace": {
        "sizes": (3, 4, 5, 2),
        "clusters": "public-centers-rebalanced",
        "relation": "replace",
    },
    "rebalanced, slots": {
        "sizes": (4,) * 4,
        "clusters": "public-centers-rebalanced",
        "rule": "hashed-slots",
    },
    "rebalanced, cells": {
        "sizes": (4, 0, 3, 1),
        "clusters": "public-centers-rebalanced",
        "rule": "hashed-cells",
    },
    "rebalanced, per user": {
        "sizes": (3, 4, 5, 2),
        "clusters": "public-centers-rebalanced",
        "unit": "user",
        "records_per_user": 2,
        "width": 3,
    },
    "public centers": {"sizes": (3, 4, 5, 2), "clusters": "public-centers"},
    "noised centers": {"sizes": (3, 4, 5, 2), "clusters": "chang"},
    "mean, rebalanced": {
        "sizes": (3, 4, 5, 2),
        "clusters": "public-centers-rebalanced",
        "aggregator": "mean",
    },
    "mean, rebalanced, replace": {
        "sizes": (3, 4, 5, 2),
        "clusters": "public-centers-rebalanced",
        "aggregator": "mean",
        "relation": "replace",
    },
    "mean, noised centers": {"sizes": (3, 4, 5, 2), "clusters": "chang", "aggregator": "mean"},
    "mean, cells": {"sizes": ALL_SIZES, "aggregator": "mean", "rule": "hashed-cells"},
    "mean, slots": {"sizes": (4, 4), "aggregator": "mean", "rule": "hashed-slots"},
    "mean, canaries": {"sizes": (4,) * 24, "aggregator": "mean", "canaries": 20},
    "mean of differences, canaries, grid, several texts": {
        "sizes": (2, 3) * 9,
        "contribution": "differences",
        "aggregator": "mean",
        "top_k": 5,
        "grid": 0.125,
        "canaries": 18,
        "max_tokens": 6,
        "tokens_per_batch": 12,
    },
    "budgets, canaries": {
        "sizes": (4,) * 16,
        "aggregator": "mean",
        "budget": 0.4,
        "canaries": 16,
        "max_tokens": 9,
    },
    "budgets": {"sizes": ALL_SIZES, "aggregator": "mean", "budget": 0.9, "max_tokens": 12},
    "budgets that are never spent": {"sizes": (4, 5), "aggregator": "mean", "budget": 50.0},
    "budgets that pay for no token": {"sizes": (4, 5), "aggregator": "mean", "budget": 2e-3},
    "budgets, several texts, differences": {
        "sizes": (4, 0, 5),
        "contribution": "differences",
        "aggregator": "mean",
        "top_k": 5,
        "grid": 0.125,
        "budget": 0.7,
        "max_tokens": 9,
        "tokens_per_batch": 20,
    },
    "budgets, replace": {
        "sizes": (3, 4),
        "aggregator": "mean",
        "relation": "replace",
        "budget": 0.5,
    },
    "budgets, slots": {
        "sizes": (4, 4),
        "aggregator": "mean",
        "rule": "hashed-slots",
        "budget": 0.5,
        "max_tokens": 9,
    },
    "budgets, cells per user": {
        "sizes": (3, 4),
        "aggregator": "mean",
        "rule": "hashed-cells",
        "unit": "user",
        "records_per_user": 2,
        "width": 3,
        "budget": 0.5,
        "max_tokens": 9,
    },
    "budgets that users share": {
        "sizes": (6, 0, 7),
        "aggregator": "mean",
        "unit": "user",
        "records_per_user": 256,
        "users": 4,
        "budget": 2.0,
        "max_tokens": 9,
    },
    "budgets that users share, replace, spent before": {
        "sizes": (6, 0, 7),
        "aggregator": "mean",
        "contribution": "differences",
        "relation": "replace",
        "unit": "user",
        "records_per_user": 256,
        "users": 9,
        "budget": 2.0,
        "before": 0.5,
        "top_k": 5,
        "max_tokens": 9,
        "tokens_per_batch": 20,
    },
    "budgets that are spent before": {
        "sizes": (4, 5),
        "aggregator": "mean",
        "budget": 0.5,
        "before": 0.75,
    },
    "budgets, rebalanced": {
        "sizes": (3, 4, 5, 2),
        "clusters": "public-centers-rebalanced",
        "aggregator": "mean",
        "budget": 0.6,
        "max_tokens": 9,
    },
    "secret": {"sizes": (4, 5, 4, 5), "secret": True},
    "secret, one label, cells": {"sizes": (4, 5, 3), "secret": True, "rule": "hashed-cells"},
    "secret, slots": {"sizes": (4, 4), "secret": True, "rule": "hashed-slots"},
    "secret, replace": {"sizes": (4, 5), "secret": True, "relation": "replace"},
    "mean, secret": {"sizes": (4, 5, 4, 5), "secret": True, "aggregator": "mean"},
    "mean, secret, replace": {
        "sizes": (4, 5),
        "secret": True,
        "aggregator": "mean",
        "relation": "replace",
    },
    "mean, secret, slots": {
        "sizes": (4, 4),
        "secret": True,
        "aggregator": "mean",
        "rule": "hashed-slots",
    },
    "mean, secret, per context": {
        "sizes": (4, 5),
        "secret": True,
        "aggregator": "mean",
        "unit": "context",
    },
    "mean, secret, per user": {
        "sizes": (4, 5),
        "secret": True,
        "aggregator": "mean",
        "unit": "user",
        "records_per_user": 3,
    },
    "mean, secret, public centers": {
        "sizes": (3, 4, 5, 2),
        "secret": True,
        "clusters": "public-centers",
        "aggregator": "mean",
    },
    "secret, noised centers": {"sizes": (3, 4, 5, 2), "secret": True, "clusters": "chang"},
    "mean, secret, rebalanced": {
        "sizes": (3, 4, 5, 2),
        "secret": True,
        "clusters": "public-centers-rebalanced",
        "least_batches": 3,
        "aggregator": "mean",
    },
    "budgets, secret": {
        "sizes": (4, 5),
        "secret": True,
        "aggregator": "mean",
        "budget": 0.4,
        "max_tokens": 9,
    },
    "rounds": {"sizes": (4, 4), "secret": True, "rounds": 4},
    "rounds, records held out": {"sizes": (4, 4), "secret": True, "rounds": 4, "held_out": 0.3},
    "rounds of known batches": {"sizes": (4, 4), "rounds": 3, "aggregator": "mean"},
    "rounds, replace": {"sizes": (4, 4), "secret": True, "rounds": 3, "relation": "replace"},
    "rounds, stopped": {
        "sizes": (4, 4, 4),
        "secret": True,
        "rounds": 4,
        "stopped": 1,
        "aggregator": "mean",
    },
    "rounds, split": {
        "sizes": (4, 4),
        "secret": True,
        "rounds": 4,
        "stopped": 3,
        "split": True,
        "aggregator": "mean",
    },
    "rounds, budgets, several texts": {
        "sizes": (4, 4),
        "secret": True,
        "rounds": 3,
        "aggregator": "mean",
        "budget": 0.3,
        "max_tokens": 6,
        "tokens_per_batch": 12,
    },
    "rounds, per user": {
        "sizes": (4, 4),
        "secret": True,
        "rounds": 3,
        "aggregator": "mean",
        "unit": "user",
        "records_per_user": 2,
    },
    "budgets, noised centers": {
        "sizes": (3, 4, 5, 2),
        "clusters": "chang",
        "aggregator": "mean",
        "budget": 0.6,
        "max_tokens": 9,
    },
}


@pytest.mark.parametrize("name", RUNS)
def test_honest_run_passes(make_run, failed, name):
    kind = RUNS[name]
    result = make_run(**kind, seed=[*RUNS].index(name) % 2).audit()
    assert failed(result) == set()
    assert result.verdict == "pass"
    skipped = [check for check in result.checks if check.status == "skip"]
    assert all(check.detail for check in skipped)
    # What a record alone can show is shown, unless the run has no such part.
    assert all(check.evidence > 2 or not check.applicable for check in skipped)
    assert ("record.sides" in {check.id for check in skipped}) == ("aggregator" in kind)
    assert exactly(result.claim.epsilon) in str(result.guarantee)


def test_result_lists_every_check_of_the_catalogue_once(make_run):
    result = make_run().audit()
    listed = [check.id for check in result.checks]
    assert listed == list(registered())
    assert result.not_checked == ("neighbors.regenerated", "replay.logits", "replay.lower-bound")


def test_all_ways_to_stop_are_covered(make_run):
    """The runs above hold sequences of every ending, so that release.text is tested on each."""
    run = make_run(sizes=ALL_SIZES, seed=0)
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert {line["stop"] for line in lines} == {"end-token", "max-tokens"}


def test_evidence_is_on_the_scale(make_run):
    for check in make_run().audit().checks:
        assert 0 <= check.evidence <= 4
        assert check.title
        assert check.reference


def test_rules_that_a_run_happens_to_keep_pass(make_run, failed):
    """Rules declared afterwards, nearly broken by a token less, a longer word or another order."""
    for seed, rules in (
        (1, {"decoding.least_tokens": 0, "decoding.banned_words": ["w55"]}),
        (5, {"decoding.least_tokens": 1}),
        (0, {"decoding.banned_words": ["w4 w0"]}),
        (0, {"decoding.no_repeated_ngram": 2, "prompt.public": [[7, 1, 7, 8]]}),
        (0, {"decoding.no_repeated_ngram": 3, "prompt.public": [[1, 7, 8, 1]]}),
    ):
        run = make_run(top_k=5, seed=seed)
        run.edit_manifest(rules)
        run.rehash()
        result = run.audit_with_model()
        assert failed(result) == set() and result.verdict == "pass"
        (check,) = (check for check in result.checks if check.id == "mechanism.support-rules")
        assert (check.status, check.code) == ("pass", "steps-hold")


def test_rules_over_the_whole_vocabulary_are_all_that_a_support_follows_from(make_run):
    """Any number of batches shows that: nothing of the model decides."""
    for kind in ({"sizes": (4,)}, {"sizes": (4, 5, 3)}):
        result = make_run(**kind, rules=RULES).audit()
        checks = {check.id: check for check in result.checks}
        assert checks["mechanism.support-public"].code == "whole-vocabulary"
        assert checks["mechanism.support-rules"].status == result.verdict == "pass"


def test_rules_that_nobody_can_recompute_are_not_passed(make_run, failed):
    run = make_run(top_k=5, text=False)
    run.edit_manifest({"decoding.banned_words": ["w55"]})
    run.rehash()
    result = run.audit()
    assert failed(result) == set() and result.verdict == "not_verified"
    (check,) = (check for check in result.checks if check.id == "mechanism.support-rules")
    assert (check.status, check.applicable) == ("skip", True)
    assert (
        check.code == "unusable"
        and "decoding.banned_words" in check.values["problem"].values["where"]
    )


def test_a_support_has_as_many_tokens_as_the_rules_leave(make_run):
    check = registered()["mechanism.support-rules"]
    for support, forbidden, problem in (
        (range(5), {"least_tokens": np.array([11])}, None),
        (range(4), {"least_tokens": np.array([11])}, {"tokens": 4, "due": 5}),
        (range(4), {"banned_words": np.arange(4, 12)}, None),
        (
            range(3),
            {"banned_words": np.arange(4, 12), "least_tokens": np.array([11])},
            {"tokens": 3, "due": 4},
        ),
        ([-9, 1, 2, 3, 99], {"least_tokens": np.array([11])}, None),  # record.range objects
        (range(5), None, None),
        (range(3, 8), {"least_tokens": np.array([7])}, {"token": 7, "rule": "least_tokens"}),
        (
            range(5),
            {"least_tokens": np.array([9])},
            {"token": 9, "rule": "least_tokens"},
        ),  # and was drawn
    ):
        run = RunReader(make_run(top_k=5, rules=RULES).path)
        with run.batch(0) as batch:
            token = 9 if problem == {"token": 9, "rule": "least_tokens"} else 1
            step = replace(batch.step(0), support=np.array(support), token=token)
            found = check.function(StepView(run.manifest, batch.header, step, forbidden))
        assert (None if found is None else found.values) == problem


def test_texts_of_one_batch_do_not_show_that_what_they_share_is_public(make_run):
    """They have the same records: an anchor that saw them agrees with itself."""
    kind = {"contribution": "differences", "contexts": True, "top_k": 5, "tokens_per_batch": 12}
    for sizes, level in (((6,), 1), ((6, 6), 3)):
        result = make_run(**kind, sizes=sizes).audit()
        (check,) = (check for check in result.checks if check.id == "mechanism.support-public")
        assert (check.status, check.evidence, result.verdict) == (
            "skip",
            level,
            "not_verified" if level == 1 else "pass",
        )
    result = make_run(**kind, sizes=(6,), private_anchor=True).audit()
    (check,) = (check for check in result.checks if check.id == "mechanism.support-public")
    assert check.status != "pass"
