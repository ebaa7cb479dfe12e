"""Settings found by what attacks may gain: at the limit's edge, by the curve that is reported."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dpaudit.accounting import (
    ApproximateAccountant,
    AttackLimit,
    Limit,
    ReleaseAccountant,
    SecretBatches,
)
from dpaudit.accounting.approximate import rounded_down
from dpaudit.accounting.release import amount_of
from dpaudit.accounting.renyi import ULP, most_variation
from dpaudit.accounting.risk import AttackCurve

DELTA, TOKENS = 1e-5, 48
#: The demo's draws.
ETA = 2 * 2 / (32 * 0.7)
TENTH, FIFTH = AttackLimit(0.1), AttackLimit(0.2)
TWO, FIVE = AttackLimit(0.02, at=0.01), AttackLimit(0.05, at=0.01)


@pytest.mark.parametrize(
    ("limit", "tokens", "largest"),
    [
        (TENTH, 48, 0.07194),
        (TENTH, 200, 0.03545),
        (FIFTH, 48, 0.14505),
        (FIFTH, 200, 0.07147),
        (TWO, 48, 0.07824),
        (TWO, 200, 0.03847),
        (FIVE, 48, 0.19556),
        (FIVE, 200, 0.09619),
    ],
)
def test_ranges_at_the_edge(limit: Limit, tokens: int, largest: float) -> None:
    """The largest range within the limit, rounded down."""
    assert isinstance(limit, AttackLimit)
    for eta, within in ((largest, True), (largest * 1.001, False)):
        curve = ApproximateAccountant(eta).attack_curve(tokens, DELTA)
        assert limit.allows(curve) == within
    found = ApproximateAccountant(largest).affordable_tokens(limit, DELTA)
    assert tokens <= found <= tokens + 1


@pytest.mark.parametrize("limit", [FIFTH, TWO, FIVE, AttackLimit(0.9), AttackLimit(0.5, at=1e-4)])
@pytest.mark.parametrize("laplace", [(), (0.01,)])
def test_tokens_are_the_most(limit: AttackLimit, laplace: tuple[float, ...]) -> None:
    for eta, rounds in ((ETA, 1), (0.5, 1), (ETA, 2)):
        accountant = ApproximateAccountant(eta, laplace, rounds=rounds)
        tokens = accountant.affordable_tokens(limit, DELTA)
        assert limit.allows(accountant.attack_curve(tokens, DELTA))
        assert not limit.allows(accountant.attack_curve(tokens + 1, DELTA))
    if (limit, laplace) == (FIFTH, ()):
        assert ApproximateAccountant(ETA).affordable_tokens(limit, DELTA) == 31


def test_noisy_counts_come_first_and_are_refused_with_their_own_figure() -> None:
    """Laplace noise of epsilon 1/2 alone has an advantage of 1 - exp(-1/4)."""
    alone = -math.expm1(-0.25)
    accountant = ApproximateAccountant(ETA, (0.5,), most_rho=1.0)
    for find in (accountant.affordable_tokens, accountant.most_rho_within):
        with pytest.raises(ValueError, match=r"0\.221[34]"):
            find(AttackLimit(alone * (1 - 1e-4)), DELTA)
        assert find(AttackLimit(0.25), DELTA) > 0
    release = ReleaseAccountant(accountant, ApproximateAccountant(ETA), SecretBatches(((14, 2),)))
    with pytest.raises(ValueError, match="alone"):
        release.most_rho_within(FIFTH, DELTA)


def test_no_token_is_within_a_limit_below_one_draws() -> None:
    assert ApproximateAccountant(ETA).affordable_tokens(AttackLimit(0.0446), DELTA) == 0
    assert ApproximateAccountant(ETA).affordable_tokens(AttackLimit(0.0447), DELTA) == 1
    for nothing in (AttackLimit(1e-300), AttackLimit(0.01 * (1 + 1e-15), at=0.01)):
        assert ApproximateAccountant(ETA).affordable_tokens(nothing, DELTA) == 0
        assert ApproximateAccountant(ETA).most_rho_within(nothing, DELTA) < 1e-15
    with pytest.raises(ValueError, match="more than"):
        ApproximateAccountant(0.0).affordable_tokens(FIFTH, DELTA)
    with pytest.raises(ValueError, match="more than"):
        ApproximateAccountant(ETA, most_rho=0.01).affordable_tokens(FIFTH, DELTA)


@pytest.mark.parametrize("advantage", [0.01, 0.1, 0.2, 0.5, 0.99])
def test_budgets_for_an_advantage_are_in_closed_form(advantage: float) -> None:
    """rho = 2 a atanh(a), rounded down to nine digits."""
    unbounded = ApproximateAccountant(math.inf, most_rho=1.0)
    for rounds in (1, 3):
        accountant = ApproximateAccountant(math.inf, most_rho=1.0, rounds=rounds)
        found = accountant.most_rho_within(AttackLimit(advantage), DELTA)
        assert found == rounded_down(2 * advantage * math.atanh(advantage) * (1 - 4 * ULP) / rounds)
        assert most_variation(found * rounds) <= advantage * (1 + 1e-12)
    rho = unbounded.most_rho_within(AttackLimit(advantage), DELTA)
    curve = ApproximateAccountant(math.inf, most_rho=rho).attack_curve(1, DELTA)
    assert curve.few().advantage <= advantage


@pytest.mark.parametrize("limit", [TWO, FIVE, AttackLimit(0.3, at=0.1)])
@pytest.mark.parametrize("laplace", [(), (0.05,)])
def test_budgets_for_true_positives_are_at_the_edge(
    limit: AttackLimit, laplace: tuple[float, ...]
) -> None:
    def curve(rho: float) -> AttackCurve:
        return ApproximateAccountant(math.inf, laplace, most_rho=rho).attack_curve(1, DELTA)

    rho = ApproximateAccountant(math.inf, laplace, most_rho=1.0).most_rho_within(limit, DELTA)
    assert limit.allows(curve(rho)) and not limit.allows(curve(rho * (1 + 1e-5)))


def one_label(records: int, size: int, tokens: int = 64) -> ReleaseAccountant:
    one = ApproximateAccountant(2 * 2 / size)
    batches = records // size
    return ReleaseAccountant(one, one, SecretBatches(((batches, batches),)))


def test_a_larger_batch_may_cost_readers_more() -> None:
    """One more record a batch may leave a batch fewer: no bisection over sizes finds the least."""
    found = {
        size: one_label(600, size).attack_curve(64, DELTA).advantage for size in (37, 38, 150, 151)
    }
    assert found[37] == pytest.approx(0.04531, abs=1e-5)
    assert found[37] < found[38] == pytest.approx(0.04545, abs=1e-5)
    assert found[150] == pytest.approx(0.02145, abs=1e-5)
    assert found[150] < found[151] == pytest.approx(0.0246, abs=1e-5)


@pytest.mark.parametrize("limit", [TENTH, AttackLimit(0.03, at=0.01), 1.0])
def test_rounds_are_the_most(limit: Limit) -> None:
    release = one_label(1230, 32)
    rounds = release.most_rounds_within(limit, 64, DELTA)
    assert rounds > 1
    for more, within in ((0, True), (1, False)):
        spent = release.of_rounds(rounds + more).spent(limit, 64, DELTA)
        assert (spent <= amount_of(limit)) == within
    # Where nothing is secret, they are the batch level's.
    alone = ReleaseAccountant(release.batch)
    rounds = alone.most_rounds_within(limit, 4, DELTA)
    assert alone.of_rounds(rounds).spent(limit, 4, DELTA) <= amount_of(limit)
    assert alone.of_rounds(rounds + 1).spent(limit, 4, DELTA) > amount_of(limit)


@pytest.mark.parametrize("limit", [TENTH, TWO, 1.0])
@pytest.mark.parametrize("records", [1, 2])
def test_budgets_at_the_release_level_come_close_from_below(limit: Limit, records: int) -> None:
    one = ApproximateAccountant(math.inf, most_rho=1.0)
    batch = ApproximateAccountant(math.inf, most_rho=float(records**2), rounds=2)
    release = ReleaseAccountant(batch, one, SecretBatches(((14, 2),), rounds=2), records)
    rho = release.most_rho_within(limit, DELTA)
    spent = release.of_budget(rho).spent(limit, 1, DELTA)
    assert amount_of(limit) * (1 - 1e-3) <= spent <= amount_of(limit)
    assert release.batch.most_rho_within(limit, DELTA) / records**2 < rho


@pytest.mark.parametrize(
    ("limit", "secret"),
    [
        (FIFTH, None),
        (AttackLimit(0.3, at=0.01), None),
        (FIFTH, SecretBatches(((14, 2),), rounds=3)),
    ],
)
def test_budgets_keep_the_limit_where_delta_is_split_over_rounds(
    limit: AttackLimit, secret: SecretBatches | None
) -> None:
    """Attacks are bounded over all rounds at the whole delta, and not at a round's share of it."""
    one = None if secret is None else ApproximateAccountant(math.inf, most_rho=1.0)
    batch = ApproximateAccountant(math.inf, (0.1,), most_rho=1.0, rounds=3)
    release = ReleaseAccountant(batch, one, secret, shares=3)
    rho = release.most_rho_within(limit, DELTA)
    spending = replace(release, batch=replace(batch, most_rho=rho))
    if one is not None:
        spending = replace(spending, one=replace(one, most_rho=rho))
    reached = limit.reached(spending.attack_curve(1, DELTA))
    assert limit.most * (1 - 1e-3) <= reached <= limit.most


@pytest.mark.parametrize(
    ("most", "at"), [(0.0, None), (1.0, None), (0.01, 0.01), (0.5, 0.0), (math.nan, None)]
)
def test_limits_that_nothing_keeps_are_refused(most: float, at: float | None) -> None:
    with pytest.raises(ValueError, match="limited"):
        AttackLimit(most, at)
