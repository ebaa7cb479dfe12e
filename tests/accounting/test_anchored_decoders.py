"""Texts of toy decoders with anchored contributions, against claimed (epsilon, delta) and costs.

Logits depend on the prefix, as a model's do, and the adversary's contexts take another side at
every prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.accounting import ApproximateAccountant, ExPostAccountant
from dpaudit.mechanisms import ANCHOR, Arrays, ContextChange, Mechanism, Relation, log_probability
from tests.nesting import mechanism_with

#: Of a text.
TOKENS = 2
CLIP, WIDTH = 0.5, 3
#: Two of three tokens' probability is such that a context of log-probabilities can lie at either
#: clip in all of them.
HALF = np.log([0.5, 0.25, 0.25])
RELATIONS: tuple[Relation, ...] = ("add_remove", "replace")
DELTAS = (1e-4, 1e-2, 0.1)
#: Of float64, in a product of probabilities; of a delta.
SLACK = 1e-12

#: Raw logits of one prompt after a prefix.
Logits = NDArray[np.float32]
Prefix = tuple[int, ...]


@dataclass(frozen=True)
class Context:
    """A private prompt of made-up logits, or an adversary's, for or against a token per prefix."""

    seed: int
    crafted: bool = False
    against: bool = False

    def logits(self, public: Logits, prefix: Prefix) -> Logits:
        random = np.random.default_rng([7, self.seed, len(prefix), *prefix])
        if not self.crafted:
            return (public + random.normal(0, 1, len(public))).astype(np.float32)
        row = np.full(len(public), -50.0, dtype=np.float32)
        if self.against:  # of all others, in the public prompt's proportions
            row = public.copy()
        row[self.seed if self.seed < len(public) else int(random.integers(len(public)))] = (
            -50.0 if self.against else 0
        )
        return row


@dataclass(frozen=True)
class Decoder:
    """A mechanism, a public prompt and a batch of private ones."""

    mechanism: Mechanism
    contexts: tuple[Context, ...]
    balanced: bool = False

    def public(self, prefix: Prefix) -> Logits:
        """Of three tokens after every prefix alike, or of four that depend on it."""
        random = np.random.default_rng([3, len(prefix), *prefix])
        return (HALF if self.balanced else random.normal(0, 1.5, 4)).astype(np.float32)

    @cache  # noqa: B019
    def step(self, prefix: Prefix) -> tuple[list[int], Arrays]:
        """The tokens to sample from after a prefix, and the step's arrays."""
        mechanism, public = self.mechanism, self.public(prefix)
        part = mechanism.public_part(public)
        assert part.anchor is not None
        support = np.arange(len(public)) if part.support is None else part.support
        raw = np.array(
            [context.logits(public, prefix)[support] for context in self.contexts], dtype=np.float32
        )
        values = raw.reshape(-1, len(support)).copy()
        constants = mechanism.contribution.row_constants(values)
        mechanism.contribution.write(values, constants, part.anchor, values)
        return support.tolist(), mechanism.aggregator.step(values, mechanism.clip, WIDTH) | {
            ANCHOR: part.anchor
        }

    def texts(self, prefix: Prefix = (), so_far: float = 0.0) -> Iterator[tuple[Prefix, float]]:
        """Every text, and its log-probability in nats."""
        if len(prefix) == TOKENS:
            yield prefix, so_far
            return
        support, arrays = self.step(prefix)
        aggregate = self.mechanism.aggregate(arrays)
        for index, token in enumerate(support):
            more = log_probability(aggregate, index, self.mechanism.temperature)
            yield from self.texts((*prefix, token), so_far + more)

    def ex_post(self, text: Prefix, change: ContextChange) -> float:
        """What the accountant charges for a text."""
        accountant = ExPostAccountant(self.mechanism, change)
        for position, token in enumerate(text):
            support, arrays = self.step(text[:position])
            accountant.charge(0, self.mechanism.reduced(arrays, support.index(token)))
        return accountant.epsilon

    def neighbours(self, relation: Relation) -> Iterator[tuple[Decoder, Decoder]]:
        """Pairs that differ by one context: any of its own, and adversaries' of either kind."""
        crafted = [Context(seed, True, against) for seed in (0, 1, 99) for against in (False, True)]
        if relation == "add_remove":
            others = [(*self.contexts, one) for one in (*crafted, Context(1000))]
            others += [
                self.contexts[:place] + self.contexts[place + 1 :]
                for place in range(len(self.contexts))
            ]
            yield from ((self, replace(self, contexts=other)) for other in others)
            return
        for one in (*crafted, Context(1000)):
            yield self, replace(self, contexts=(one, *self.contexts[1:]))
        for seed in (0, 99):  # from one end of the clip to the other
            ends = [(Context(seed, True, against), *self.contexts[1:]) for against in (False, True)]
            yield replace(self, contexts=ends[0]), replace(self, contexts=ends[1])


def decoders(**mechanism: Any) -> Iterator[Decoder]:
    """Decoders of few and no contexts, with the whole vocabulary or another support per prefix."""
    flat = {"contribution": "differences", "clip": CLIP, **mechanism}
    top = mechanism_with({**flat, "support": {"kind": "public-top-k", "size": 2, "margin": 0.5}})
    yield Decoder(mechanism_with(flat), (Context(1), Context(2)), balanced=True)
    yield Decoder(mechanism_with(flat), (Context(1), Context(2), Context(3)))
    yield Decoder(top, (Context(1), Context(2), Context(3), Context(4)))
    yield Decoder(top, (Context(1),))


def delta(epsilon: float, one: dict[Prefix, float], other: dict[Prefix, float]) -> float:
    """The hockey-stick divergence of two laws of all texts, the larger of both directions."""
    first, second = (np.exp([found[text] for text in one]) for found in (one, other))
    factor = np.exp(epsilon)
    ways = (np.maximum(first - factor * second, 0), np.maximum(second - factor * first, 0))
    return max(float(way.sum()) for way in ways)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_anchored_mean_keeps_its_claim_over_all_texts(relation: Relation) -> None:
    """And its neighbours come near it: a claim that is a quarter lower fails."""
    change, nearest, cases = ContextChange(relation), 0.0, 0
    for temperature, divisor in ((1.0, 2.0), (0.7, 5.0)):
        claims: list[tuple[float, float]] = []
        for decoder in decoders(aggregator="mean", divisor=divisor, temperature=temperature):
            accountant = ApproximateAccountant.of(decoder.mechanism, change)
            assert accountant is not None
            claims = claims or [
                (accountant.epsilon(TOKENS, each, "optimal").epsilon, each) for each in DELTAS
            ]
            for one, other in decoder.neighbours(relation):
                found = dict(one.texts()), dict(other.texts())
                assert found[0].keys() == found[1].keys()  # supports are public
                for claimed, allowed in claims:
                    assert delta(claimed, *found) <= allowed + SLACK
                    nearest = max(nearest, delta(0.75 * claimed, *found) / allowed)
                    cases += 1
    assert nearest > 1
    assert cases > 100


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "aggregator", [{"aggregator": "median"}, {"aggregator": "central", "central": 2}]
)
def test_every_text_of_anchored_medians_is_within_its_ex_post_cost(
    aggregator: dict[str, Any], relation: Relation
) -> None:
    """And added contexts attain it."""
    change, nearest, texts = ContextChange(relation), 0.0, 0
    for decoder in decoders(temperature=0.7, **aggregator):
        cost = cache(lambda text, one: one.ex_post(text, change))
        for one, other in decoder.neighbours(relation):
            here, there = dict(one.texts()), dict(other.texts())
            for text, log_ratio in ((text, here[text] - there[text]) for text in here):
                assert abs(log_ratio) <= cost(text, one) + SLACK
                assert abs(log_ratio) <= cost(text, other) + SLACK
                nearest = max(nearest, abs(log_ratio) / cost(text, one))
                texts += 1
    assert nearest > (0.999 if relation == "add_remove" else 0.75)
    assert texts > 250
