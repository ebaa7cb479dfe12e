"""Toy decoders whose contexts have budgets of their own: Renyi divergences of all texts.

Every neighbour is tried. Contributions depend on the prefix, as a model's do, so that who takes
part depends on what came out so far.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.mechanisms import ContextChange, Mechanism, zcdp_of_draw
from dpaudit.runs import Assigned, allowances
from tests.nesting import mechanism_with

Doubles = NDArray[np.float64]
Prefix = tuple[int, ...]
#: Who takes part: sums before a draw and contributions [n, V] to sums after it.
Spend = Callable[[Mechanism, NDArray[np.float32], Doubles], Doubles]

CLIP = 1.0
ORDERS = (1.01, 1.1, 1.5, 2.0, 4.0, 10.0, 32.0, 100.0, 256.0)
#: Of float64, relative.
SLACK = 1e-9


@dataclass(frozen=True)
class Decoder:
    """A decoder of contexts, given by their seeds.

    A context that is a pair takes the side of a token, or of all others, as far as the clip.
    """

    mechanism: Mechanism
    contexts: tuple[int | tuple[int, int], ...]
    tokens: int = 3
    vocabulary: int = 2
    spend: Spend = Mechanism.spend

    def contributions(self, prefix: Prefix) -> NDArray[np.float32]:
        rows = [_contribution(context, prefix, self.vocabulary) for context in self.contexts]
        return np.array(rows, dtype=np.float32).reshape(-1, self.vocabulary)

    @cache  # noqa: B019
    def texts(self) -> Doubles:
        """Log-probabilities of all texts, in the order of their tokens."""
        return np.array([*self._from((), np.zeros(len(self.contexts)), 0.0)])

    def _from(self, prefix: Prefix, spent: Doubles, so_far: float) -> list[float]:
        if len(prefix) == self.tokens:
            return [so_far]
        values = self.contributions(prefix)
        after = self.spend(self.mechanism, values, spent) if len(values) else spent
        aggregate = self.mechanism.aggregator.step(values[after > spent], CLIP, 0)["aggregate"]
        scores = aggregate / self.mechanism.temperature
        scores = scores - np.logaddexp.reduce(scores)
        children = (
            self._from((*prefix, token), after, so_far + float(score))
            for token, score in enumerate(scores)
        )
        return [*itertools.chain.from_iterable(children)]


@cache
def _contribution(context: int | tuple[int, int], prefix: Prefix, vocabulary: int) -> Doubles:
    if isinstance(context, tuple):
        side, sign = context
        return np.where(np.arange(vocabulary) == side % vocabulary, sign, -sign) * CLIP
    random = np.random.default_rng([context, len(prefix), *prefix])
    return (
        random.choice([-1.0, -0.5, 0.0, 0.5, 1.0], vocabulary)
        * CLIP
        * random.choice([0.1, 0.5, 1.0])
    )


def mean(budget: float, divisor: float) -> Mechanism:
    flat = {
        "aggregator": "mean",
        "clip": CLIP,
        "temperature": 1.0,
        "divisor": divisor,
        "budget": budget,
    }
    return mechanism_with(flat)


def divergence(order: float, left: Doubles, right: Doubles) -> float:
    """Renyi's, of two distributions by their log-probabilities, in nats."""
    return float(np.logaddexp.reduce(order * left - (order - 1) * right)) / (order - 1)


def largest_share(one: Decoder, other: Decoder, rho: float) -> float:
    """The largest divergence between two decoders either way, over order times rho."""
    texts = one.texts(), other.texts()
    return max(
        divergence(order, *pair) / (order * rho)
        for order in ORDERS
        for pair in (texts, texts[::-1])
    )


def some_decoder(random: np.random.Generator, spend: Spend = Mechanism.spend) -> Decoder:
    divisor = float(random.choice([0.7, 2.0, 6.0]))
    tokens, vocabulary = int(random.integers(1, 5)), int(random.integers(2, 4))
    cost = float(zcdp_of_draw(2 * CLIP / divisor))
    # So much that a context of whole ranges takes part in some draws, and is left out of others;
    # some spend it all.
    draws = float(
        random.choice([random.uniform(0.3, tokens + 0.5), random.integers(1, tokens + 1)])
    )
    budget = cost * draws * (1 + 1e-6)
    crafted = [
        (int(random.integers(vocabulary)), int(random.choice([-1, 1])))
        for _ in range(random.integers(0, 3))
    ]
    plain = random.integers(2**32, size=random.integers(0, 4)).tolist()
    return Decoder(mean(budget, divisor), (*crafted, *plain), tokens, vocabulary, spend)


def shares(decoder: Decoder, random: np.random.Generator) -> list[float]:
    """The shares of all neighbours by one context removed, by one replaced, and by two removed."""
    mechanism, contexts = decoder.mechanism, decoder.contexts
    found = []
    for change, others in (
        (
            ContextChange("add_remove"),
            [contexts[:i] + contexts[i + 1 :] for i in range(len(contexts))],
        ),
        (
            ContextChange("replace"),
            [(int(random.integers(2**32)), *contexts[1:])] if contexts else [],
        ),
        (ContextChange("add_remove", 2), [contexts[2:]] if len(contexts) > 1 else []),
    ):
        rho = mechanism.rho(change)
        assert rho is not None
        found += [largest_share(decoder, replace(decoder, contexts=other), rho) for other in others]
    return found


def test_no_text_of_any_neighbour_costs_more_than_the_budget() -> None:
    random = np.random.default_rng(22)
    found = [share for _ in range(300) for share in shares(some_decoder(random), random)]
    assert len(found) > 600
    assert max(found) <= 1 + SLACK
    assert max(found) > 0.99, "a bound that nobody comes near is not tried"


@pytest.mark.slow
def test_no_text_of_many_more_neighbours_costs_more_than_the_budget() -> None:
    random = np.random.default_rng(23)
    found = [share for _ in range(8000) for share in shares(some_decoder(random), random)]
    assert len(found) > 30_000
    assert 0.9999 < max(found) <= 1 + SLACK


#: A context of a user's, in a batch: the three by number, the context as `Decoder` has it.
Owned = tuple[int, int, int | tuple[int, int]]
#: What a run had of the sums that a user spent: whole budgets for each context are the fault.
Shares = Callable[[Sequence[Assigned], float], Mapping[int, tuple[float, ...]]]


def releases(
    owned: Sequence[Owned],
    mechanisms: Sequence[Mechanism],
    tokens: int,
    shared: Shares,
    spent: Mapping[int, float],
) -> list[float]:
    """Log-probabilities of all releases of runs, one after the other.

    Each run goes on from what those before spent. Every run has two batches, of the same users'
    contexts.
    """
    if not mechanisms:
        return [0.0]
    mechanism, found = mechanisms[0], []
    places = [
        Assigned("", batch, None, f"{user}", spent.get(user, 0.0)) for user, batch, _ in owned
    ]
    assert mechanism.budget is not None
    budgets = shared(places, mechanism.budget)
    ends = [
        _ends([own for own in owned if own[1] == batch], mechanism, tokens, budgets.get(batch))
        for batch in (0, 1)
    ]
    # many texts of a run leave its users the same
    rests: dict[tuple[float, ...], list[float]] = {}
    for (one, paid), (other, also) in itertools.product(*ends):
        total = {
            user: spent.get(user, 0.0) + paid.get(user, 0.0) + also.get(user, 0.0)
            for user, _, _ in owned
        }
        left = tuple(total.values())
        if left not in rests:
            rests[left] = releases(owned, mechanisms[1:], tokens, shared, total)
        found += [one + other + later for later in rests[left]]
    return found


def _ends(
    owned: Sequence[Owned], mechanism: Mechanism, tokens: int, budgets: Sequence[float] | None
) -> list[tuple[float, dict[int, float]]]:
    """A batch's texts: the log-probability of each, and users' spending by its end (`spent_by`)."""
    decoder = Decoder(mechanism, tuple(context for *_, context in owned), tokens)
    limits, found = np.array(budgets or ()), []

    def go_on(prefix: Prefix, spent: Doubles, so_far: float) -> None:
        if len(prefix) == tokens:
            parts = Counter(user for user, _, _ in owned)
            paid: dict[int, float] = defaultdict(float)
            for (user, _, _), own in zip(owned, spent.tolist(), strict=True):
                paid[user] += parts[user] * own
            found.append((so_far, dict(paid)))
            return
        values = decoder.contributions(prefix)
        after = mechanism.spend(values, spent, limits) if len(values) else spent
        aggregate = mechanism.aggregator.step(values[after > spent], CLIP, 0)["aggregate"]
        scores = aggregate - np.logaddexp.reduce(aggregate)
        for token, score in enumerate(scores):
            go_on((*prefix, token), after, so_far + float(score))

    go_on((), np.zeros(len(owned)), 0.0)
    return found


def shares_of_users(random: np.random.Generator, shared: Shares = allowances) -> list[float]:
    """The shares of neighbours by one user, by one user's replaced contexts, and by one record.

    There are up to three runs.
    """
    divisor, tokens = float(random.choice([0.7, 2.0])), int(random.integers(1, 4))
    cost = float(zcdp_of_draw(2 * CLIP / divisor))
    budget = cost * float(random.choice([0.3, 1, 1.5, 2, 4, 8])) * (1 + 1e-6)
    runs = [mean(budget, divisor)] * int(random.integers(1, 3 if tokens > 2 else 4))

    def contexts(user: int, most: int) -> list[Owned]:
        batches = random.integers(2, size=random.integers(1, most + 1)).tolist()
        kinds = [(0, int(random.choice([-1, 1]))), int(random.integers(2**32))]
        return [(user, batch, kinds[int(random.integers(2))]) for batch in batches]

    others = contexts(1, 2)
    first, second = contexts(0, 3), contexts(2, 3)
    with_first, with_second, with_less, without = (
        np.array(releases([*some, *others], runs, tokens, shared, {}))
        for some in (first, second, first[1:], ())
    )
    found = []
    # One record less changes the shares of its user's other contexts.
    for pair, budgets in (
        ((with_first, without), 1),
        ((with_first, with_second), 4),
        ((with_first, with_less), 4),
    ):
        found += [
            divergence(a, *way) / (a * budgets * budget)
            for a in ORDERS
            for way in (pair, pair[::-1])
        ]
    return found


def whole_budgets(places: Sequence[Assigned], budget: float) -> Mapping[int, tuple[float, ...]]:
    """Every context has all that its user has left."""
    found = defaultdict(list)
    for place in places:
        found[place.batch].append(max(0.0, budget - place.spent))
    return {batch: tuple(own) for batch, own in found.items() if batch is not None}


def spent_is_forgotten(
    places: Sequence[Assigned], budget: float
) -> Mapping[int, tuple[float, ...]]:
    return allowances([place._replace(spent=0.0) for place in places], budget)


def test_no_releases_of_a_users_contexts_cost_more_than_one_budget() -> None:
    random = np.random.default_rng(26)
    found = [share for _ in range(60) for share in shares_of_users(random)]
    assert 0.95 < max(found) <= 1 + SLACK


@pytest.mark.slow
def test_no_releases_of_many_more_users_cost_more_than_one_budget() -> None:
    random = np.random.default_rng(27)
    found = [share for _ in range(2000) for share in shares_of_users(random)]
    assert 0.99 < max(found) <= 1 + SLACK


def rows_with_equal_texts(random: np.random.Generator) -> list[Owned]:
    """Rows of three users with many equal texts; a batch's texts take sides together."""
    plain = int(random.integers(2**32))
    texts: list[tuple[int, int | tuple[int, int]]] = [
        (0, (0, 1)),
        (0, (1, -1)),
        (1, (0, 1)),
        (0, plain),
    ]
    rows = [
        (int(random.integers(3)), *texts[int(random.integers(4))])
        for _ in range(random.integers(2, 6))
    ]
    return list(dict.fromkeys(rows))


def one_of_equal_rows(rows: Sequence[Owned], last: bool) -> list[Owned]:
    """Rows cleaned across users: of those with equal texts one is kept, the first or the last."""
    kept = {row[1:]: row for row in (rows if last else rows[::-1])}
    return [row for row in rows if kept[row[1:]] == row]


def shares_of_raw_users(
    rows: Sequence[Owned], divisor: float, draws: int, tokens: int, *, last: bool
) -> tuple[list[float], list[float]]:
    """The shares of each user removed from the raw rows, by shared and by declared budgets.

    Rows are either cleaned and share budgets, or a most is declared. Declared are the most records
    that any user may have; then a text that two users have stays while one of them does.
    """
    budget = float(zcdp_of_draw(2 * CLIP / divisor)) * draws * (1 + 1e-6)
    run = [mean(budget, divisor)]
    most = max(Counter(user for user, _, _ in rows).values())
    rho = run[0].rho(ContextChange("add_remove", most))
    assert rho is not None

    def cleaned(some: Sequence[Owned]) -> Doubles:
        return np.array(releases(one_of_equal_rows(some, last), run, tokens, allowances, {}))

    def grouped(some: Sequence[Owned]) -> Doubles:
        distinct = sorted({row[1:] for row in some}, key=str)
        return np.array(releases([(0, *each) for each in distinct], run, tokens, whole_budgets, {}))

    found: tuple[list[float], list[float]] = ([], [])
    for user in {user for user, _, _ in rows}:
        rest = [row for row in rows if row[0] != user]
        for release, cost, into in ((cleaned, budget, found[0]), (grouped, rho, found[1])):
            pair = release(rows), release(rest)
            into += [divergence(a, *way) / (a * cost) for a in ORDERS for way in (pair, pair[::-1])]
    return found


@pytest.mark.parametrize("last", [True, False])
def test_cleaning_across_users_voids_a_budget_of_users_and_a_declared_number_does_not(
    last: bool,
) -> None:
    """Over raw neighbours, the rows kept of equal ones, and others' shares, depend on all users."""
    random = np.random.default_rng(29)
    settings = [(2.0, 1, 1), (10.0, 1, 1), (2.0, 2, 2), (10.0, 1, 2)]
    some = [(rows_with_equal_texts(random), *settings[int(random.integers(4))]) for _ in range(120)]
    # Where the other user's row is kept, each of the first user's contexts has a whole budget, and
    # else a quarter.
    shared: list[Owned] = [(0, 0, (0, 1)), (0, 0, (1, -1)), (1, 0, (0, 1))]
    found = [
        shares_of_raw_users(*each, last=last)
        for each in [*some, (shared if last else shared[::-1], 10.0, 1, 1)]
    ]
    assert max(share for shares, _ in found for share in shares) > 3.9
    assert 0.9 < max(share for _, shares in found for share in shares) <= 1 + SLACK


@pytest.mark.parametrize("shared", [whole_budgets, spent_is_forgotten])
def test_shares_that_are_none_are_seen_to(shared: Shares) -> None:
    random = np.random.default_rng(28)
    assert any(share > 1.2 for _ in range(60) for share in shares_of_users(random, shared))


def by_the_aggregate(mechanism: Mechanism, values: NDArray[np.float32], spent: Doubles) -> Doubles:
    """Nobody takes part where all of them together favour the first token."""
    return spent if values[:, 0].sum() > 0 else mechanism.spend(values, spent)


def a_token_too_long(mechanism: Mechanism, values: NDArray[np.float32], spent: Doubles) -> Doubles:
    assert mechanism.budget is not None
    return np.where(spent < mechanism.budget, spent + mechanism.costs(values), spent)


def half_price(mechanism: Mechanism, values: NDArray[np.float32], spent: Doubles) -> Doubles:
    assert mechanism.budget is not None
    after = spent + mechanism.costs(values) / 2
    return np.where(after <= mechanism.budget, after, spent)


@pytest.mark.parametrize("spend", [by_the_aggregate, a_token_too_long, half_price])
def test_decoders_that_break_the_rule_are_seen_to(spend: Spend) -> None:
    random = np.random.default_rng(24)
    decoders = (some_decoder(random, spend) for _ in range(150))
    assert any(share > 1.05 for decoder in decoders for share in shares(decoder, random))


def test_a_draw_costs_what_the_worst_of_its_range_does() -> None:
    """Outcomes at both ends of an interval of losses are the worst of all, at all orders."""
    for eta in (0.01, 0.1, 0.5, 0.999, 1.001, 2.0, 6.0, 30.0):
        upper = np.linspace(0, eta, 4001)
        with np.errstate(divide="ignore"):
            logs = np.log(
                np.array([-np.expm1(upper - eta), np.exp(upper - eta) - np.exp(-eta)])
                / -np.expm1(-eta)
            )
        rho = float(zcdp_of_draw(eta))
        largest = 0.0
        for order in ORDERS:
            exponents = logs + (order - 1) * np.array([upper, upper - eta])
            largest = max(largest, float(np.logaddexp(*exponents).max()) / (order - 1) / order)
        assert largest <= rho * (1 + 1e-7)
        assert largest > rho * 0.97
        assert rho <= eta**2 / 8 * (1 + 1e-12)


def test_what_several_contexts_pay_adds_up_by_its_roots() -> None:
    """`Mechanism.rho` rests on this: the root of a draw's cost grows no faster than its range."""
    ranges = np.logspace(-5, 3, 5000)
    assert (np.diff(zcdp_of_draw(ranges) / ranges**2) < 0).all()
    assert float(zcdp_of_draw(np.inf)) == np.inf and float(zcdp_of_draw(0.0)) == 0.0
    assert (np.diff(zcdp_of_draw(np.linspace(0.9, 5, 200_001))) > 0).all(), (
        "a smaller range costs no more"
    )


def test_a_context_moves_log_probabilities_by_its_own_range() -> None:
    random, mechanism = np.random.default_rng(25), mean(1.0, 2.0)
    for _ in range(300):
        values = random.uniform(-CLIP, CLIP, (random.integers(1, 6), random.integers(1, 9))).astype(
            np.float32
        )
        ranges = mechanism.aggregator.ranges(values, CLIP, 1.0)

        def scores(rows: NDArray[np.float32]) -> Doubles:
            found: Doubles = mechanism.aggregator.step(rows, CLIP, 0)["aggregate"]
            return found - np.logaddexp.reduce(found)

        for context, allowed in enumerate(ranges):
            moved = scores(values) - scores(np.delete(values, context, axis=0))
            assert np.ptp(moved) <= allowed
            assert np.ptp(moved) >= allowed - 1e-6
