"""Honest coins' alarm rate, checks of coins that could not fail, and a report's words on them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dpaudit.accounting.guesses import ALARM_AT, LEAST_CANARIES, canary_guesses, chance_of
from dpaudit.accounting.laws import poisson_binomial_law, upper_tails
from dpaudit.auditing.disclosure import public_form
from dpaudit.reports.findings import canaries_said
from dpaudit.runs import RunReader

KIND = {
    "aggregator": "mean",
    "contribution": "differences",
    "divisor": 8.0,
    "sizes": (4,) * 24,
    "canaries": 24,
}
#: Texts that tell most of their coins.
TELLING = KIND | {"sizes": (4,) * 60, "canaries": 60, "divisor": 2.0, "max_tokens": 6}


def check(result, check_id="canaries.lower-bound"):
    return next(check for check in result.checks if check.id == check_id)


def test_a_check_that_could_not_fail_is_not_applicable(make_run):
    """Guesses that are all right are no surprise for 16 coins that their log-ratios nearly tell."""
    kind = {
        "aggregator": "mean",
        "sizes": (1,) * 16,
        "canaries": 16,
        "divisor": 1.0,
        "max_tokens": 6,
    }
    found = check(make_run(**kind).audit())
    assert (found.status, found.applicable) == ("skip", False)
    assert (found.values["why"].code, found.values["why"].values["coins"]) == (
        "canaries.too-few",
        16,
    )
    found = check(make_run(**KIND).audit())
    assert found.status == "pass" and found.applicable
    (note,) = found.notes  # which test could fail, and which could not, is said
    assert (note.code, note.values["what"].code) == ("canaries.too-few-for", "canaries.claim")
    assert [by.code for by in found.values["by"]] == ["canaries.record"]


def test_without_canaries_neither_check_is_about_the_run(make_run):
    result = make_run().audit()
    assert all(
        not check(result, f"canaries.{name}").applicable for name in ("coins", "lower-bound")
    )
    assert result.guarantees.empirical.canaries is None


def test_a_small_claim_is_refuted_by_guesses_alone(make_run):
    """The coins refute a claim even where the record is right.

    The claim is another than the run's.
    """
    run = make_run(**TELLING)
    assert check(run.audit()).status == "pass"
    run.edit_manifest({"claim.epsilon": 1e-3, "claim.delta": 1e-9})
    run.rehash()
    found = check(run.audit())
    assert (found.status, found.code, found.values["by"].code) == (
        "fail",
        "refuted",
        "canaries.claim",
    )
    assert found.values["by"].values["epsilon"].value == 0.001


@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_a_small_rho_is_refuted_by_guesses_with_and_without_a_delta(make_run, delta):
    run = make_run(**TELLING)
    claimed = {"kind": "zcdp", "epsilon": None, "batch_epsilon": None, "rho": 1e-8, "delta": delta}
    run.edit_manifest({f"claim.{name}": value for name, value in claimed.items()})
    run.rehash()
    found = check(run.audit())
    assert (found.status, found.code, found.values["by"].code) == (
        "fail",
        "refuted",
        "canaries.claim",
    )
    assert 0 < found.values["by"].values["epsilon"].value < 0.1


def test_nothing_of_them_is_in_a_public_report(make_run):
    run = make_run(**KIND)
    result = run.audit()
    found = result.guarantees.empirical.canaries
    assert found.coins == 24 and found.most == canary_guesses(24, found.delta).most_refutable()
    assert canaries_said(found).startswith(
        f"{found.right} of 24 coins guessed right: epsilon at least "
    )
    canaries = RunReader(run.path).canaries()
    shown = json.dumps(public_form(result).model_dump(mode="json"))
    assert public_form(result).guarantees.empirical.canaries is None
    for private in (
        canaries.salt,
        canaries.committed.digest,
        canaries.canaries[0].text,
        "coins guessed",
    ):
        assert private not in shown


@pytest.mark.parametrize(
    ("games", "draws"), [(20, 4_000), pytest.param(200, 50_000, marks=pytest.mark.slow)]
)
def test_honest_coins_raise_an_alarm_once_in_ten_thousand_runs_at_most(games, draws):
    """Log-ratios of any size, and coins drawn by them: both tests together share 2 * ALARM_AT."""
    generator, alarms = np.random.default_rng(5), 0
    for _ in range(games):
        coins = int(generator.integers(LEAST_CANARIES, 120))
        losses = np.abs(generator.normal(0, generator.choice([0.1, 0.5, 2.0]), coins))
        chances = [chance_of(loss) for loss in losses]
        right = (generator.random((draws, coins)) < np.array(chances)).sum(axis=1)
        refuted = upper_tails(poisson_binomial_law(chances)) <= ALARM_AT
        alarms += int(refuted[right].sum())
    # So many more than ALARM_AT * games * draws would be no chance.
    expected = ALARM_AT * games * draws
    assert alarms <= expected + 5 * max(1.0, expected**0.5)


@pytest.mark.slow
def test_honest_runs_raise_none(make_run, failed):
    for seed in range(30):
        assert failed(make_run(**KIND, seed=seed).audit()) == set()


def test_coins_are_held_against_the_batch_level(make_run):
    """Whoever guesses them knows the canary's batch: readers of the texts do not."""
    for secret in (False, True):
        kind = KIND | {"sizes": (4,) * 100, "canaries": 100, "divisor": 4.0, "max_tokens": 4}
        run = make_run(**kind, secret=secret)
        run.edit_manifest({"claim.epsilon": 1e-3, "claim.batch_epsilon": None, "claim.delta": 1e-9})
        run.rehash()
        result = run.audit()
        assert check(result, "claim.epsilon").status == "fail"
        assert check(result).status == ("pass" if secret else "fail")
