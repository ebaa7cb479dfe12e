"""The release-level guarantee against exact hockey-sticks of small decoders, planted faults and other accountants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import pairwise, product
from statistics import NormalDist

import numpy as np
import pytest

from dpaudit.accounting import exact_cost
from dpaudit.accounting.allocation import allocated, allocated_cost
from dpaudit.accounting.composition import privacy_profile
from dpaudit.accounting.profiles import Profile, dominating, epsilon_of_profile, profile_of_all, renyi_profile
from dpaudit.accounting.renyi import Doubles, zcdp_of_range
from dpaudit.accounting.risk import AttackCurve

VOCABULARY, LEAST = 3, 1e-6
LOSSES = np.array([0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.6, 2.2, 3.0, 4.5])
#: Float64 sums of up to 20,000 probabilities.
ROUNDING = 1e-12

Record = Callable[[tuple[int, ...]], Doubles]


def outer(one: Doubles, other: Doubles) -> Doubles:
    """The law of two independent outputs."""
    return np.outer(one, other).ravel()


def epsilon_of_two(release: Profile, delta: float, end: float) -> float:
    """epsilon of two rounds, each of which has the profile."""
    return epsilon_of_profile(profile_of_all([dominating(release)] * 2, end), delta)


def at_losses(profile: Profile) -> Doubles:
    """Upper bounds at LOSSES [16]."""
    places = np.minimum((LOSSES / profile.step * (1 - 1e-12)).astype(int), len(profile.deltas) - 1)
    return np.asarray(profile.deltas[places])


def hockey_sticks(p: Doubles, q: Doubles) -> Doubles:
    """The larger of both directions' delta at LOSSES [16], of two laws of all outputs."""
    ratios = np.exp(LOSSES)[:, None]
    return np.asarray(np.maximum(np.maximum(p - ratios * q, 0).sum(1), np.maximum(q - ratios * p, 0).sum(1)))


@cache
def batch_profile(eta: float, steps: int) -> Profile:
    found = privacy_profile(eta, steps, LEAST)
    assert found is not None
    return found


@cache
def release_profile(eta: float, steps: int, batches: int, generated: int) -> Doubles:
    return at_losses(allocated(batch_profile(eta, steps), batches, generated, LEAST))


@dataclass
class Toy:
    """A decoder of batches whose every record moves logits by up to eta / 2, as it likes after each prefix."""

    rng: np.random.Generator
    eta: float
    steps: int
    base: dict[tuple[int, ...], Doubles] = field(default_factory=dict)

    def record(self) -> Record:
        """Extreme contributions half of the time; others anywhere within the clip."""
        extreme, told = self.rng.random() < 0.5, dict[tuple[int, ...], Doubles]()

        def contribution(prefix: tuple[int, ...]) -> Doubles:
            if prefix not in told:
                drawn = self.rng.uniform(-1, 1, VOCABULARY)
                told[prefix] = np.sign(drawn) if extreme else drawn
            return told[prefix]

        return contribution

    def texts(self, records: Sequence[Record], before: tuple[int, ...] = ()) -> Doubles:
        """The law of one batch's text [VOCABULARY ** steps]; `before` is what was released earlier."""
        laws = np.ones(1)
        for length in range(self.steps):
            rows = []
            for prefix in product(range(VOCABULARY), repeat=length):
                told = (*before, *prefix)
                base = self.base.setdefault(told, self.rng.normal(size=VOCABULARY))
                logits = base + self.eta / 2 * sum((record(told) for record in records), np.zeros(VOCABULARY))
                weights = np.exp(logits - logits.max())
                rows.append(weights / weights.sum())
            laws = (laws[:, None] * np.array(rows)).ravel()
        return laws

    def releases(self, batches: Sequence[Sequence[Record]]) -> Doubles:
        """The law of all batches' texts, side by side."""
        return reduce(outer, map(self.texts, batches), np.ones(1))


def with_and_without(toy: Toy, places: Sequence[int], batches: int, generated: int) -> tuple[Doubles, Doubles]:
    """Laws of a release with her record, in a uniform batch, and without it, the others' places given."""
    others, hers = [toy.record() for _ in places], toy.record()
    rest = [[r for r, place in zip(others, places, strict=True) if place == b] for b in range(generated)]
    without = toy.releases(rest)
    mixed = without * (1 - generated / batches)
    for j in range(generated):
        mixed += toy.releases([[*rest[b], hers] if b == j else rest[b] for b in range(generated)]) / batches
    return mixed, without


def closest(pairs: Sequence[tuple[Doubles, Doubles]], bound: Doubles) -> float:
    """The largest exact delta beside its bound; fails where one is above."""
    best = 0.0
    for p, q in pairs:
        exact = hockey_sticks(p, q)
        assert (exact <= bound + ROUNDING).all(), (exact, bound)
        shown = bound > 1e-9
        best = max(best, float((exact[shown] / bound[shown]).max()))
    return best


SHAPES = [(2, 2, 2), (2, 3, 3), (3, 2, 2), (2, 4, 2), (3, 3, 1), (2, 3, 2), (1, 4, 4)]


def test_no_neighbour_is_above_the_release_level(trials: int = 30) -> None:
    rng = np.random.default_rng(1)
    for steps, batches, generated in SHAPES:
        for eta in (0.3, 1.0, 2.0):
            toy = Toy(rng, eta, steps)
            pairs = [
                with_and_without(toy, rng.integers(0, batches, rng.integers(0, 4)).tolist(), batches, generated)
                for _ in range(trials // 3)
            ]
            assert closest(pairs, release_profile(eta, steps, batches, generated)) > 0.3


def adaptive_pair(rng: np.random.Generator) -> tuple[Doubles, Doubles]:
    """Two batches, the second of which holds records that are chosen by the first's text."""
    toy = Toy(rng, 1.5, 2)
    hers, first, second = toy.record(), [toy.record()], dict[tuple[int, ...], list[Record]]()

    def law(j: int | None) -> Doubles:
        rows = []
        own = toy.texts([*first, hers] if j == 0 else first)
        for text, chance in zip(product(range(VOCABULARY), repeat=2), own.tolist(), strict=True):
            others = second.setdefault(text, [toy.record() for _ in range(rng.integers(0, 3))])
            rows.append(chance * toy.texts([*others, hers] if j == 1 else others, before=text))
        return np.concatenate(rows)

    return (law(0) + law(1)) / 2, law(None)


def test_later_batches_may_depend_on_earlier_texts() -> None:
    rng = np.random.default_rng(2)
    closest([adaptive_pair(rng) for _ in range(60)], release_profile(1.5, 2, 2, 2))


def mean_over_places(toy: Toy, rest: Sequence[Sequence[Record]], placed: Sequence[Record]) -> Doubles:
    """The law of a release with further records, each in a uniform batch of its own."""
    batches = range(len(rest))
    total = np.zeros(1)
    for at in product(batches, repeat=len(placed)):
        more = [[r for r, j in zip(placed, at, strict=True) if j == b] for b in batches]
        total = total + toy.releases([[*rest[b], *more[b]] for b in batches])
    return np.asarray(total / len(rest) ** len(placed))


def test_users_and_replaced_records_are_chains() -> None:
    rng, eta = np.random.default_rng(3), 0.8
    for steps, batches in ((2, 2), (2, 3)):
        curve = AttackCurve.of_profile(allocated(batch_profile(eta, steps), batches, batches, LEAST)).group(2)
        bound, pairs = at_losses(curve.profile(0.001, 6000)), []
        for _ in range(40):
            toy = Toy(rng, eta, steps)
            rest = [[toy.record() for _ in range(rng.integers(0, 2))] for _ in range(batches)]
            one, two = toy.record(), toy.record()
            both, first, second, none = (
                mean_over_places(toy, rest, placed) for placed in ([one, two], [one], [two], [])
            )
            pairs += [(both, none), (first, second)]
        assert closest(pairs, bound) > 0.5


def two_point(eta: float, t: float) -> tuple[Doubles, Doubles]:
    """The worst pair of one draw: losses t and t - eta."""
    high = math.expm1(eta - t) * math.exp(t) / math.expm1(eta)
    p = np.array([high, 1 - high])
    return p, p * np.exp([-t, eta - t])


def test_the_worst_pairs_come_close() -> None:
    """Batches that play the recursion's own pairs: next to nothing is given away where one batch is generated."""
    rng, best = np.random.default_rng(4), {}
    for steps, batches, generated in SHAPES:
        eta = 1.0
        bound = release_profile(eta, steps, batches, generated)
        pairs = []
        for _ in range(300):
            p = q = np.ones(1)
            for _ in range(steps):
                draws = [two_point(eta, rng.uniform(0, eta)) for _ in p]
                p = np.concatenate([mass * pair[0] for mass, pair in zip(p, draws, strict=True)])
                q = np.concatenate([mass * pair[1] for mass, pair in zip(q, draws, strict=True)])
            without = reduce(outer, [q] * generated)
            mixed = without * (1 - generated / batches)
            for j in range(generated):
                laws = [p if b == j else q for b in range(generated)]
                mixed = mixed + reduce(outer, laws) / batches
            pairs.append((mixed, without))
        best[steps, batches, generated] = closest(pairs, bound)
    assert best[3, 3, 1] > 0.97
    assert min(best.values()) > 0.85


def test_two_rounds_compose() -> None:
    rng, eta = np.random.default_rng(5), 1.0
    one = allocated(batch_profile(eta, 2), 3, 2, LEAST)
    for delta in (0.2, 0.1, 0.05, 0.02, 0.01):
        epsilon = epsilon_of_two(one, delta, 6.0)
        for _ in range(30):
            toy = Toy(rng, eta, 2)
            rounds = [with_and_without(toy, rng.integers(0, 3, 2).tolist(), 3, 2) for _ in range(2)]
            p, q = (outer(rounds[0][side], rounds[1][side]) for side in (0, 1))
            exact = max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum())
            assert exact <= delta + ROUNDING


@pytest.mark.parametrize("rho", [0.05, 0.3])
def test_budgets_are_bounded_by_their_zcdp(rho: float) -> None:
    """A record whose draws are as wide as its budget allows, split as it likes, in either of two batches."""
    rng = np.random.default_rng(6)
    bound = at_losses(allocated(renyi_profile(rho, (), 8.0), 2, 2, LEAST))
    pairs = []
    for _ in range(200):
        share = rng.uniform(0, 1)
        draws = [two_point(eta, rng.uniform(0, eta)) for eta in np.sqrt(8 * rho * np.array([share, 1 - share]))]
        p, q = (outer(draws[0][side], draws[1][side]) for side in (0, 1))
        pairs.append(((outer(p, q) + outer(q, p)) / 2, outer(q, q)))
    assert closest(pairs, bound) > 0.5


def test_more_batches_never_cost_more_and_fewer_texts_neither() -> None:
    for eta in (0.3, 1.0):
        by_batches = [release_profile(eta, 3, batches, 2) for batches in (2, 3, 5, 9)]
        by_texts = [release_profile(eta, 3, 9, generated) for generated in (9, 5, 2, 1, 0)]
        for more, fewer in [*pairwise(by_batches), *pairwise(by_texts)]:
            assert (fewer <= more * (1 + 1e-4) + 1e-9).all()


def test_one_batch_is_its_own_profile() -> None:
    profile = batch_profile(1.0, 3)
    assert allocated(profile, 1, 1, LEAST) is profile


def test_a_profile_that_never_becomes_small_ends_within_reach_of_exponentials() -> None:
    found = allocated(Profile(0.5, np.full(3000, 0.3)), 4, 4, LEAST)
    assert len(found.deltas) * found.step < 50
    assert (found.deltas <= 0.3).all()


def test_known_places_and_reused_keys_are_above() -> None:
    """What voids the amplification does void it: each is above the curve that does not know of it."""
    p, q = two_point(2.0, 1.5)
    without = reduce(outer, [q] * 4)
    places = [reduce(outer, [p if b == j else q for b in range(4)]) for j in range(4)]
    assert (hockey_sticks(places[0], without) > 1.5 * release_profile(2.0, 1, 4, 4) + ROUNDING).any()
    one, delta = allocated(batch_profile(2.0, 1), 4, 4, LEAST), 0.1
    ratio = math.exp(epsilon_of_two(one, delta, 12.0))
    mixed, nobody = np.mean(places, axis=0), outer(without, without)
    reused, fresh = np.mean([outer(place, place) for place in places], axis=0), outer(mixed, mixed)
    assert np.maximum(reused - ratio * nobody, 0).sum() > 1.05 * delta
    assert np.maximum(fresh - ratio * nobody, 0).sum() < delta


def test_a_gaussian_of_the_same_rho_is_no_bound() -> None:
    """The tempting shortcut is below what a pair of draws reaches."""
    rho = zcdp_of_range(2.0, 1)
    mu = math.sqrt(2 * rho)
    p, q = two_point(2.0, 1.0)
    assert hockey_sticks(p, q)[0] > 2 * NormalDist().cdf(mu / 2) - 1


#: eta, tokens, delta, B, g, an epsilon just below what finer grids tend to, and PLD_accounting 2.0's upper bound.
KNOWN = [
    (0.125, 64, 1e-5, 38, 38, 0.2970, 0.2989),
    (0.125, 64, 1e-5, 4, 4, 1.0290, 1.0302),
    (0.1875, 367, 108000**-1.1, 1687, 1687, 1.9690, 1.9738),
    (0.046875, 689, 108000**-1.1, 421, 421, 0.1138, 0.1182),
]


def test_known_releases_cost_what_other_accountants_say() -> None:
    for eta, tokens, delta, batches, generated, least, most in KNOWN:
        found = privacy_profile(eta, tokens, delta)
        assert found is not None
        epsilon = epsilon_of_profile(allocated(found, batches, generated, delta), delta)
        assert least <= epsilon <= most


def step_logits(toy: Toy, records: Sequence[Record], prefix: tuple[int, ...]) -> Doubles:
    base = toy.base.setdefault(prefix, toy.rng.normal(size=VOCABULARY))
    return base + toy.eta / 2 * sum((record(prefix) for record in records), np.zeros(VOCABULARY))


def text_and_costs(toy: Toy, records: Sequence[Record]) -> tuple[tuple[int, ...], Doubles]:
    """A text that a batch draws, and its exact rise and fall [2]."""
    text, costs = tuple[int, ...](), np.zeros(2)
    for _ in range(toy.steps):
        center = step_logits(toy, records, text)
        weights = np.exp(center - center.max())
        token = int(toy.rng.choice(VOCABULARY, p=weights / weights.sum()))
        costs += exact_cost(center - toy.eta / 2, center, center + toy.eta / 2, token, 1.0)
        text = (*text, token)
    return text, costs


def log_probability(toy: Toy, records: Sequence[Record], text: tuple[int, ...]) -> float:
    total = 0.0
    for position, token in enumerate(text):
        logits = step_logits(toy, records, text[:position])
        total += logits[token] - float(np.logaddexp.reduce(logits))
    return total


def test_no_record_tells_more_than_the_allocated_ex_post_cost() -> None:
    """Who knows all other records and their batches: with her in the data, and with her to come."""
    rng, best = np.random.default_rng(8), 0.0
    for trial in range(3000):
        batches = int(rng.integers(1, 5))
        generated = int(rng.integers(1, batches + 1))
        toy = Toy(rng, float(rng.choice([0.5, 2.0])), int(rng.integers(1, 4)))
        hers = toy.record()
        rest = [[toy.record() for _ in range(rng.integers(0, 3))] for _ in range(generated)]
        own = int(rng.integers(0, batches)) if trial % 2 else None  # where she is; None while she is not in the data
        found = [text_and_costs(toy, [*rest[b], *[hers] * (b == own)]) for b in range(generated)]
        cost = allocated_cost(np.array([costs for _, costs in found]), batches)
        with_her = [log_probability(toy, [*rest[b], hers], text) for b, (text, _) in enumerate(found)]
        without = [log_probability(toy, rest[b], text) for b, (text, _) in enumerate(found)]
        ratios = np.exp(np.array(with_her) - without)
        told = abs(math.log((ratios.sum() + batches - generated) / batches))
        assert told <= cost + 1e-9
        best = max(best, told / cost)
    assert best > 0.9


def test_allocated_ex_post_cost_is_that_of_one_batch_where_there_is_one() -> None:
    costs = np.array([[0.7, 0.4]])
    assert allocated_cost(costs, 1) == pytest.approx(0.7)
    assert allocated_cost(costs, 14) < 0.1
    assert math.isinf(allocated_cost(np.array([[0.7, math.inf]]), 3))
    for wrong in (np.array([[-0.1, 0.2]]), np.array([[math.nan, 0.2]]), np.ones((4, 2))):
        with pytest.raises(ValueError, match="costs are at least 0"):
            allocated_cost(wrong, 3)
