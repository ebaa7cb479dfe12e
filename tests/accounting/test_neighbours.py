"""Release-level curves against exact laws of small decoders.

No neighbour is above the curve, and whatever voids it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from dpaudit.accounting import ApproximateAccountant, ReleaseAccountant, joint_epsilon, of_one_key
from dpaudit.accounting.allocation import allocated
from dpaudit.accounting.composition import privacy_profile
from dpaudit.accounting.profiles import Profile, profile_of_both, profile_of_rounds
from dpaudit.accounting.renyi import Doubles, zcdp_of_range
from dpaudit.accounting.risk import AttackCurve
from dpaudit.accounting.zcdp import zcdp_profile
from dpaudit.runs import KeyedHash, SecretBatches
from tests.accounting.toys import (
    LOSSES,
    ROUNDING,
    Laws,
    Toys,
    adaptive_rows,
    at_losses,
    beside,
    budget_pairs,
    cell_rows,
    chain_rows,
    closest,
    hockey_sticks,
    mean_rows,
    mixed_rows,
    release,
    two_point,
    two_rounds,
    worst_pairs,
)

LEAST = 1e-6
SHAPES = [(2, 2, 2), (2, 3, 3), (3, 2, 2), (2, 4, 2), (3, 3, 1), (2, 3, 2), (1, 4, 4)]
#: Decoders of a row: in every run of the tests, and at full size.
SIZES = [240, pytest.param(12_000, marks=pytest.mark.slow)]


@cache
def batch_profile(eta: float, steps: int) -> Profile:
    found = privacy_profile(eta, steps, LEAST)
    assert found is not None
    return found


@cache
def of_release(eta: float, steps: int, batches: int, generated: int) -> Profile:
    return allocated(batch_profile(eta, steps), batches, generated, LEAST)


def in_parts(
    rows: Callable[[Toys], Laws], steps: int, eta: float, decoders: int, bound: Doubles, seed: int
) -> float:
    """`closest` over so many decoders, a few hundred at a time."""
    rng = np.random.default_rng(seed)
    parts = [min(240, decoders - done) for done in range(0, decoders, 240)]
    return max(closest(rows(Toys(rng, part, steps, eta)), bound) for part in parts)


@pytest.mark.parametrize("decoders", SIZES)
@pytest.mark.parametrize(("steps", "batches", "generated"), SHAPES)
def test_no_neighbour_of_a_mean_is_above(
    steps: int, batches: int, generated: int, decoders: int
) -> None:
    found = {}
    for eta in (0.3, 1.0, 2.0):
        bound = at_losses(of_release(eta, steps, batches, generated))
        for others in (0, 3):
            found[eta, others] = in_parts(
                lambda toys, n=others: mean_rows(toys, batches, generated, n),
                steps,
                eta,
                decoders // 6,
                bound,
                1,
            )
    print(f"mean, T {steps}, B {batches}, g {generated}: {max(found.values()):.3f}")
    assert max(found.values()) > 0.6


@pytest.mark.parametrize("decoders", SIZES)
def test_no_neighbour_is_above_when_the_others_places_are_drawn_too(decoders: int) -> None:
    bound = at_losses(of_release(1.5, 2, 2, 2))
    found = in_parts(lambda toys: mixed_rows(toys, 2, 3), 2, 1.5, decoders, bound, 2)
    print(f"mean, places mixed: {found:.3f}")
    assert found > 0.6


@pytest.mark.parametrize("decoders", SIZES)
@pytest.mark.parametrize(("steps", "batches", "generated"), SHAPES)
def test_the_worst_pairs_come_close(
    steps: int, batches: int, generated: int, decoders: int
) -> None:
    """Climbing batches that play the recursion's own pairs come near the curve, nearest at g 1."""
    eta, rng = 1.0, np.random.default_rng(3)
    bound, best = at_losses(of_release(eta, steps, batches, generated)), 0.0
    for _ in range(max(1, decoders // 2400)):
        choices = [rng.uniform(0, 1, (240, 2**draw)) for draw in range(steps)]
        scores = np.zeros(240)
        for climb in range(12):
            moved = [
                np.clip(c + rng.normal(size=c.shape) * 0.2 * bool(climb), 0, 1) for c in choices
            ]
            exact = hockey_sticks(*worst_pairs(eta, moved, batches, generated))
            assert (exact <= bound + ROUNDING).all()
            score = (exact / bound)[:, bound > 1e-4].max(1)
            better = score > scores
            scores[better] = score[better]
            choices = [
                np.where(better[:, None], new, old) for new, old in zip(moved, choices, strict=True)
            ]
        best = max(best, float(scores.max()))
    print(f"two-point pairs, T {steps}, B {batches}, g {generated}: {best:.3f}")
    assert best > (0.97 if generated == 1 else 0.85)


@pytest.mark.parametrize("decoders", SIZES)
def test_later_batches_may_depend_on_earlier_texts(decoders: int) -> None:
    found = in_parts(adaptive_rows, 2, 1.5, decoders, at_losses(of_release(1.5, 2, 2, 2)), 4)
    print(f"second batch chosen by the first's text: {found:.3f}")
    assert found > 0.6


@pytest.mark.parametrize("decoders", SIZES)
def test_rounds_compose_though_later_ones_look_at_earlier_texts(decoders: int) -> None:
    for batches in (2, 3):
        bound = at_losses(profile_of_rounds(of_release(1.5, 1, batches, batches), 2, LEAST))
        found = in_parts(
            lambda toys, b=batches: two_rounds(toys, b), 1, 1.5, decoders // 2, bound, 5
        )
        print(f"two rounds, B {batches}: {found:.3f}")
        assert found > 0.6


@pytest.mark.parametrize("decoders", SIZES)
@pytest.mark.parametrize("rho", [0.05, 0.3])
def test_budgets_are_bounded_by_their_zcdp(rho: float, decoders: int) -> None:
    bound = at_losses(allocated(zcdp_profile(rho, LEAST), 2, 2, LEAST))
    found = closest(budget_pairs(np.random.default_rng(6), rho, decoders), bound)
    print(f"individual budgets, rho {rho}: {found:.3f}")
    assert found > 0.7


@pytest.mark.parametrize("decoders", SIZES)
def test_cells_of_exactly_two_are_bounded(decoders: int) -> None:
    for batches, cells in ((2, 2), (3, 1)):
        bound = at_losses(of_release(1.5, 1, batches, batches))
        found = in_parts(
            lambda toys, b=batches, c=cells: cell_rows(toys, b, c, 3),
            1,
            1.5,
            decoders // 2,
            bound,
            7,
        )
        print(f"exactly-2 cells, B {batches}, cells {cells}: {found:.3f}")
        assert found > 0.3


@pytest.mark.parametrize("decoders", SIZES)
def test_users_and_replaced_records_are_chains(decoders: int) -> None:
    for steps, batches in ((2, 2), (1, 3)):
        curve = AttackCurve.of_profile(of_release(0.8, steps, batches, batches)).group(2)
        bound = at_losses(curve.profile(0.001, 6000))
        for which, name in enumerate(("user of two", "replace")):
            found = in_parts(
                lambda toys, b=batches, w=which: chain_rows(toys, b)[w],
                steps,
                0.8,
                decoders // 4,
                bound,
                8,
            )
            print(f"{name}, T {steps}, B {batches}: {found:.3f}")
            assert found > 0.5


def above(p: Doubles, q: Doubles, profile: Profile) -> float:
    """How many times an exact delta is the bound's, at most."""
    bound = at_losses(profile)
    shown = bound > 1e-9
    return float((hockey_sticks(p, q)[..., shown] / bound[shown]).max())


def pairs_of(batches: int, eta: float = 2.0, t: float = 1.5) -> tuple[list[Doubles], Doubles]:
    """One draw a batch: laws of the release with her in each, and without."""
    p, q = (law[None] for law in two_point(np.array(eta), np.array(t)))
    places = [beside(*(p if b == j else q for b in range(batches)))[0] for j in range(batches)]
    return places, beside(*[q] * batches)[0]


def place_given_the_others(texts: list[str], hers: str, batches: int) -> Doubles:
    """Where the hash puts her text [batches], given that others are in batches 0, 1, 0, ..."""
    found = np.zeros(batches)
    for number in range(6000):
        hashing = KeyedHash(number.to_bytes(32, "big")).of_round(0)
        places = [hashing.batch(hashing.digest("", text), batches) for text in (*texts, hers)]
        if places[:-1] == [place % 2 for place in range(len(texts))]:
            found[places[-1]] += 1
    return found / found.sum()


def times_above(weights: Doubles, steps: int, eta: float) -> tuple[float, float]:
    """Ratios of a release to the release level's curve and to one batch's, others given.

    `weights` is the probability that she is in each batch.
    """
    batches = len(weights)
    toys = Toys(np.random.default_rng(12), 240, steps, eta)
    without = toys.placed(batches, 2)
    hers = toys.records()
    with_her = [
        without + hers[:, None] * (np.arange(batches) == j)[:, None, None] for j in range(batches)
    ]
    mixed = sum(
        weight * release(toys.texts(logits))
        for weight, logits in zip(weights, with_her, strict=True)
    )
    nobody = release(toys.texts(without))
    whole, one = (of_release(eta, steps, batches, batches), batch_profile(eta, steps))
    return above(np.asarray(mixed), nobody, whole), above(np.asarray(mixed), nobody, one)


def test_a_row_kept_beside_its_equal_is_above_and_one_of_its_own_is_not() -> None:
    """Equal rows are hashed alike, so one's place gives away the other's: records are a set."""
    alone = place_given_the_others(["a", "b"], "c", 4)
    assert alone == pytest.approx([0.25] * 4, abs=0.1)
    assert times_above(np.full(4, 0.25), 2, 1.5)[0] <= 1
    twin = place_given_the_others(["a", "b"], "b", 4)
    assert twin.tolist() == [0, 1, 0, 0]
    release_level, batch_level = times_above(twin, 2, 1.5)
    print(f"a row beside its equal: {release_level:.1f} times above")
    assert release_level > 20
    assert batch_level <= 1


def test_a_known_key_is_above() -> None:
    """Whoever has it knows her place, too."""
    places, nobody = pairs_of(4)
    known = above(places[0], nobody, of_release(2.0, 1, 4, 4))
    print(f"key known: {known:.1f} times above")
    assert known > 7
    assert above(places[0], nobody, batch_profile(2.0, 1)) <= 1


def test_a_key_used_twice_is_above_two_rounds_and_composing_first_covers_it() -> None:
    places, nobody = pairs_of(4)
    mixed, nobody_twice = np.mean(places, axis=0), np.outer(nobody, nobody).ravel()
    reused = np.mean([np.outer(place, place).ravel() for place in places], axis=0)
    two = profile_of_rounds(of_release(2.0, 1, 4, 4), 2, LEAST)
    assert above(np.outer(mixed, mixed).ravel(), nobody_twice, two) < 1
    assert above(reused, nobody_twice, two) > 1.02
    one = ApproximateAccountant(2.0)
    release = ReleaseAccountant(one, one, SecretBatches(((4, 4),)))
    ((first,),) = (parts.profiles for parts in of_one_key([(release, 1), (release, 1)], LEAST))
    assert 0.8 < above(reused, nobody_twice, first) <= 1


def test_other_batches_of_one_key_are_not_amplified() -> None:
    """A record's batches of two numbers hang together, and nothing here says how."""
    one = ApproximateAccountant(0.5)
    releases = [
        (ReleaseAccountant(one, one, SecretBatches(((batches, batches),))), 2) for batches in (4, 8)
    ]
    found = of_one_key(releases, LEAST)
    assert [parts.profiles for parts in found] == [(), ()]
    assert joint_epsilon(found, 1e-5) == joint_epsilon([one.parts(2), one.parts(2)], 1e-5)


def slices(records: int, size: int, hers: int) -> list[tuple[int, ...]]:
    """Batches of a fixed size, in order: with her each record after her is one place further on."""
    order = [*range(hers), records, *range(hers, records)] if hers >= 0 else [*range(records)]
    return [tuple(order[start : start + size]) for start in range(0, len(order), size)]


def test_slices_of_a_fixed_size_are_above() -> None:
    """She moves all later records to another batch.

    With places drawn by hashes nobody else moves.
    """
    toys = Toys(np.random.default_rng(9), 400, 2, 1.0)
    base, contributions = toys.base(2), toys.records(5)

    def law(hers: int) -> Doubles:
        logits = base.copy()
        for batch, members in enumerate(slices(4, 2, hers)[:2]):
            for member in members:
                logits[:, batch] += contributions[:, member]
        return release(toys.texts(logits))

    mixed = np.mean([law(hers) for hers in range(5)], axis=0)
    nobody = law(-1)
    times = above(mixed, nobody, of_release(1.0, 2, 2, 2))
    print(f"slices of a fixed size: {times:.0f} times above")
    assert times > 100


def test_the_direction_of_an_added_record_alone_is_below_that_of_a_removed_one() -> None:
    places, nobody = pairs_of(4, eta=2.0, t=1.9)
    mixed, ratios = np.mean(places, axis=0), np.exp(LOSSES)[:, None]
    added = np.maximum(nobody - ratios * mixed, 0).sum(1)
    removed = np.maximum(mixed - ratios * nobody, 0).sum(1)
    assert (removed > 1.5 * added + ROUNDING).any()


def test_noisy_counts_are_not_allocated() -> None:
    """A noised count shows a record in any batch.

    Allocated like the texts, its figure is too small.
    """
    laplace = privacy_profile(0.0, 0, LEAST, laplace=(1.0,))
    assert laplace is not None
    wrong = allocated(laplace, 4, 4, LEAST)
    assert laplace.deltas[0] > 1.5 * wrong.deltas[0]
    texts = of_release(1.0, 2, 4, 4)
    right = at_losses(profile_of_both(texts, laplace, LEAST))
    both = privacy_profile(1.0, 2, LEAST, laplace=(1.0,))
    assert both is not None
    assert (right >= at_losses(laplace) - ROUNDING).all()
    assert (at_losses(allocated(both, 4, 4, LEAST)) < at_losses(laplace))[:8].all()


def test_a_gaussian_of_the_same_rho_is_no_bound() -> None:
    """The tempting shortcut is below what a pair of draws reaches, even behind secret batches."""
    rho = zcdp_of_range(2.0, 1)
    mu, points = math.sqrt(2 * rho), np.arange(4000) * 0.002
    cdf = np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))
    normal = Profile(0.002, cdf(mu / 2 - points / mu) - np.exp(points) * cdf(-mu / 2 - points / mu))
    places, nobody = pairs_of(4, eta=2.0, t=1.0)
    assert above(np.mean(places, axis=0), nobody, allocated(normal, 4, 4, LEAST)) > 1
    assert (
        above(np.mean(places, axis=0), nobody, allocated(zcdp_profile(rho, LEAST), 4, 4, LEAST))
        <= 1
    )
