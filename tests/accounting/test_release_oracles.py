"""Release-level curves against sampled likelihood ratios and another accountant's bounds."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from dpaudit.accounting.allocation import allocated
from dpaudit.accounting.composition import privacy_profile
from dpaudit.accounting.profiles import Profile, deltas_at, epsilon_of_profile
from dpaudit.accounting.renyi import Doubles

NEWS = 108_000**-1.1


@dataclass(frozen=True)
class Pair:
    """A pair with its profile at grid points, chords in exp(e) between; alike in both directions.

    Attributes:
        step: of its losses, in nats.
        losses: -r .. r times the step [2 r + 1].
        masses: of the losses under P [2 r + 1].
        infinite: of an infinite loss under P.
        none: of a loss of minus infinity under Q.
    """

    step: float
    losses: Doubles
    masses: Doubles
    infinite: float
    none: float

    @classmethod
    def of(cls, profile: Profile) -> Pair:
        """By second differences of the profile in exp(e), in the widest floats that there are."""
        n = len(profile.deltas)
        deltas = np.minimum.accumulate(profile.deltas).astype(np.longdouble)
        losses = np.arange(1 - n, n) * np.longdouble(profile.step)
        ratios = np.exp(losses)
        below = 1 - ratios[: n - 1] * (1 - deltas[:0:-1])
        both = np.concatenate([below, deltas])
        slopes = np.diff(both) / np.diff(ratios)
        first = (both[0] - 1) / ratios[0]
        under_q = np.maximum(np.diff(slopes, prepend=first, append=0), 0)
        under_p = np.asarray(ratios * under_q, dtype=np.float64)
        losses = np.asarray(losses, dtype=np.float64)
        # A rounding more than 1, of what loses least.
        under_p *= min(
            1.0, (1 - 2.0**-50) / max(math.fsum(under_p), math.fsum(under_p * np.exp(-losses)))
        )
        return cls(profile.step, losses, under_p, 1 - math.fsum(under_p), 1 + float(first))


def batch_profile(eta: float, tokens: int, delta: float) -> Profile:
    found = privacy_profile(eta, tokens, delta)
    assert found is not None
    return found


#: e, and what the specification's sampler saw with its standard error: delta of a record that
#: comes, and that goes.
SAMPLED = [
    (0.09, (6.979e-3, 1.0e-5), (7.132e-3, 6e-6)),
    (0.178, (6.737e-4, 2.8e-6), (7.420e-4, 2.2e-6)),
    (0.25, (5.18e-5, 5e-7), (6.61e-5, 6e-7)),
]


@pytest.mark.slow
def test_samples_of_the_likelihood_ratio_have_the_curve_that_is_claimed() -> None:
    """38 batches, eta 0.125, 64 tokens.

    The larger direction is within 4 standard errors; the other one is not above.
    """
    batches, draws = 38, 2_000_000
    profile = batch_profile(0.125, 64, 1e-5)
    claimed = deltas_at(
        allocated(profile, batches, batches, 1e-5), np.array([e for e, *_ in SAMPLED])
    )
    pair, rng = Pair.of(profile), np.random.default_rng(17)
    ratios = np.exp(pair.losses)
    under_q = np.concatenate([[pair.none], pair.masses / ratios])
    cumulated, values = np.cumsum(under_q / under_q.sum()), np.concatenate([[0.0], ratios])
    with_her = np.cumsum(pair.masses / pair.masses.sum())
    come, gone = [], []
    for _ in range(draws // 20_000):
        nobody = values[np.searchsorted(cumulated, rng.random((batches, 20_000)))]
        rest = nobody[1:].sum(0)
        come.append((rest + nobody[0]) / batches)
        gone.append((rest + ratios[np.searchsorted(with_her, rng.random(20_000))]) / batches)
    added, removed = np.concatenate(come), np.concatenate(gone)
    for place, (e, theirs_added, theirs_removed) in enumerate(SAMPLED):
        found = []
        samples = np.maximum(1 - math.exp(e) * added, 0), np.maximum(1 - math.exp(e) / removed, 0)
        for sample, (theirs, their_error) in zip(
            samples, (theirs_added, theirs_removed), strict=True
        ):
            mean, error = float(sample.mean()), float(sample.std()) / math.sqrt(draws)
            found.append((mean, error))
            assert abs(mean - theirs) <= 4 * math.hypot(error, their_error)
        (add, add_error), (remove, remove_error) = found
        sys.stdout.write(
            f"e {e}: {add:.4e} ({add_error:.0e}), {remove:.4e} ({remove_error:.0e}): "
            f"{claimed[place]:.4e}" + "\n"
        )
        assert add <= claimed[place] + 4 * add_error
        assert abs(remove - claimed[place]) <= 4 * remove_error


#: eta, tokens, delta, batches, a grid of losses, and what PLD_accounting 2.0 bounds epsilon by on
#: it.
THEIRS = [
    pytest.param(0.125, 64, 1e-5, 4, 2e-3, 1.0302, id="4 batches"),
    pytest.param(0.125, 64, 1e-5, 38, 2e-3, 0.2989, id="38 batches"),
    pytest.param(0.046875, 689, NEWS, 421, 1e-2, 0.1182, id="row 2.9"),
    pytest.param(0.1875, 367, NEWS, 1687, 1e-2, 1.9738, id="row 9.9"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "tokens", "delta", "batches", "grid", "theirs"), THEIRS)
def test_another_accountants_bounds_enclose_ours(
    eta: float, tokens: int, delta: float, batches: int, grid: float, theirs: float
) -> None:
    """PLD_accounting's random allocation, by its own geometric convolutions, from both sides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImportWarning)  # that numba is not there
        them = pytest.importorskip("PLD_accounting", reason="pip install PLD-accounting")
    profile = batch_profile(eta, tokens, delta)
    pair = Pair.of(profile)
    radius = len(pair.losses) // 2
    one = them.PLDRealization(
        grid=them.GridSpec(step=pair.step, n=len(pair.losses), index_0=-radius),
        prob_arr=pair.masses,
        p_max=pair.infinite,
    )
    upper, lower = (
        float(
            # Its warnings of mass that it repaired are errors here, as all are.
            them.general_allocation_pld(
                num_steps=batches,
                num_selected=1,
                num_epochs=1,
                remove_realization=one,
                add_realization=one,
                config=them.AllocationSchemeConfig(
                    loss_discretization=grid, tail_truncation=delta * 1e-6
                ),
                bound_type=bound,
            ).get_epsilon_for_delta(delta)
        )
        for bound in (them.BoundType.DOMINATES, them.BoundType.IS_DOMINATED)
    )
    ours = epsilon_of_profile(allocated(profile, batches, batches, delta), delta)
    sys.stdout.write(f"B {batches}: {lower:.4f} <= {ours:.4f} <= {upper:.4f}" + "\n")
    assert lower <= ours <= upper
    assert upper == pytest.approx(theirs, abs=1e-3)
