"""Many small decoders at once, as arrays: exact laws of releases with a record and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from dpaudit.accounting.profiles import Profile, deltas_at
from dpaudit.accounting.renyi import Doubles

VOCABULARY = 3
LOSSES = np.array(
    [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.6, 2.2, 3.0, 4.5]
)
#: Float64 sums of up to 60,000 probabilities.
ROUNDING = 1e-12

#: Laws of all outputs, of many decoders [decoders, outputs]: with her, and without her.
Laws = tuple[Doubles, Doubles]


def at_losses(profile: Profile) -> Doubles:
    """Upper bounds at LOSSES [16]."""
    return deltas_at(profile, LOSSES)


def hockey_sticks(p: Doubles, q: Doubles) -> Doubles:
    """The larger of both directions' delta at LOSSES [..., 16], of laws [..., outputs]."""
    found = [
        np.maximum(np.maximum(p - ratio * q, 0).sum(-1), np.maximum(q - ratio * p, 0).sum(-1))
        for ratio in np.exp(LOSSES).tolist()
    ]
    return np.stack(found, axis=-1)


def closest(laws: Laws, bound: Doubles) -> float:
    """The largest exact delta beside its bound; fails where one is above."""
    exact = hockey_sticks(*laws)
    assert (exact <= bound + ROUNDING).all(), (exact.max(0), bound)
    shown = bound > 1e-6
    return float((exact[:, shown] / bound[shown]).max())


def beside(*laws: Doubles) -> Doubles:
    """Laws [n, a], [n, b], ... of independent outputs -> [n, a b ...]."""
    return reduce(
        lambda one, other: (one[..., :, None] * other[..., None, :]).reshape(*one.shape[:-1], -1),
        laws,
    )


@dataclass
class Toys:
    """Decoders of one shape with their own base logits.

    A record moves them by up to eta / 2 after each prefix.
    """

    rng: np.random.Generator
    decoders: int
    steps: int
    eta: float

    @property
    def prefixes(self) -> int:
        return (VOCABULARY**self.steps - 1) // (VOCABULARY - 1)

    def base(self, *shape: int) -> Doubles:
        """Logits without records [decoders, ..., prefixes, 3]."""
        return self.rng.normal(size=(self.decoders, *shape, self.prefixes, VOCABULARY))

    def records(self, *shape: int) -> Doubles:
        """The records' additions [decoders, ..., prefixes, 3], extreme in half of the decoders."""
        drawn = self.rng.uniform(-1, 1, (self.decoders, *shape, self.prefixes, VOCABULARY))
        extreme = np.arange(self.decoders) % 2 == 0
        drawn[extreme] = np.sign(drawn[extreme])
        return drawn * self.eta / 2

    def texts(self, logits: Doubles) -> Doubles:
        """The law of a batch's text [..., 3 ** steps], by logits per prefix [..., prefixes, 3]."""
        laws, first = np.ones((*logits.shape[:-2], 1)), 0
        for length in range(self.steps):
            here = logits[..., first : first + VOCABULARY**length, :]
            weights = np.exp(here - here.max(-1, keepdims=True))
            laws = laws[..., None] * weights / weights.sum(-1, keepdims=True)
            laws, first = laws.reshape(*logits.shape[:-2], -1), first + VOCABULARY**length
        return laws

    def placed(self, batches: int, records: int) -> Doubles:
        """Logits of all batches [decoders, batches, prefixes, 3], with records at random places."""
        places = self.rng.integers(0, batches, (self.decoders, records))
        mask = places[..., None] == np.arange(batches)
        return self.base(batches) + np.einsum("nrb,nrpv->nbpv", mask, self.records(records))


def release(laws: Doubles) -> Doubles:
    """The law of all batches' texts [n, all texts], from those of each [n, batches, texts]."""
    return beside(*np.moveaxis(laws, 1, 0))


def allocated_laws(with_her: Doubles, without: Doubles, batches: int) -> Laws:
    """Laws of a release with her in a uniform batch, from each generated batch's [n, g, texts]."""
    generated = without.shape[1]
    nobody = release(without)
    mixed = nobody * (1 - generated / batches)
    for j in range(generated):
        laws = without.copy()
        laws[:, j] = with_her[:, j]
        mixed = mixed + release(laws) / batches
    return mixed, nobody


def mean_rows(toys: Toys, batches: int, generated: int, others: int) -> Laws:
    """A mean of records, the others' places given."""
    rest = toys.placed(batches, others)[:, :generated]
    hers = toys.records()[:, None]
    return allocated_laws(toys.texts(rest + hers), toys.texts(rest), batches)


def mixed_rows(toys: Toys, batches: int, others: int) -> Laws:
    """A mean of records, the others' places drawn, too."""
    base, theirs, hers = toys.base(batches), toys.records(others), toys.records()[:, None]
    found = []
    for places in product(range(batches), repeat=others):
        mask = np.array(places)[:, None] == np.arange(batches)
        rest = base + np.einsum("rb,nrpv->nbpv", mask, theirs)
        found.append(allocated_laws(toys.texts(rest + hers), toys.texts(rest), batches))
    mixed, nobody = (np.mean(each, axis=0) for each in zip(*found, strict=True))
    return mixed, nobody


def adaptive_rows(toys: Toys) -> Laws:
    """Two batches: the second's other records, and her part in it, depend on the first's text."""
    texts = VOCABULARY**toys.steps
    first, second = (
        toys.placed(1, 1)[:, 0],
        toys.base(texts) + toys.records(texts) * toys.rng.integers(0, 2),
    )
    one, hers_one = (toys.texts(first + hers) for hers in (0, toys.records()))
    two, hers_two = (toys.texts(second + hers) for hers in (0, toys.records(texts)))
    nobody, early, late = (
        (law[..., None] * then).reshape(len(law), -1)
        for law, then in ((one, two), (hers_one, two), (one, hers_two))
    )
    return (early + late) / 2, nobody


def two_rounds(toys: Toys, batches: int) -> Laws:
    """Two rounds, all batches generated.

    The second round's contexts depend on the first one's texts.
    """
    one, nobody_one = mean_rows(toys, batches, batches, 1)
    outputs = one.shape[1]
    rest, hers = toys.base(outputs, batches), toys.records(outputs)[:, :, None]
    flat = [
        np.reshape(toys.texts(each), (-1, batches, VOCABULARY**toys.steps))
        for each in (rest + hers, rest)
    ]
    two, nobody_two = (
        each.reshape(toys.decoders, outputs, -1) for each in allocated_laws(*flat, batches)
    )
    return tuple(
        (law[..., None] * then).reshape(len(law), -1)
        for law, then in ((one, two), (nobody_one, nobody_two))
    )  # type: ignore[return-value]


def cell_rows(toys: Toys, batches: int, cells: int, others: int) -> Laws:
    """Contexts of exactly two records.

    A cell that holds fewer or more has none. All places of hers are mixed.
    """
    pairs = [(i, j) for i in range(others + 1) for j in range(i)]
    base, contexts = toys.base(batches), toys.records(len(pairs))
    places = toys.rng.integers(0, batches * cells, (toys.decoders, others + 1))

    def law(hers: int | None) -> Doubles:
        at = places.copy()
        at[:, others] = -1 if hers is None else hers
        counts = (at[:, :, None] == np.arange(batches * cells)).sum(1)
        logits = base.copy()
        for context, (i, j) in enumerate(pairs):
            together = (at[:, i] == at[:, j]) & (at[:, j] >= 0)
            full = np.take_along_axis(counts, np.maximum(at[:, [i]], 0), 1)[:, 0] == 2
            shown = np.flatnonzero(together & full)
            logits[shown, at[shown, i] // cells] += contexts[shown, context]
        return release(toys.texts(logits))

    return np.mean([law(place) for place in range(batches * cells)], axis=0), law(None)


def chain_rows(toys: Toys, batches: int) -> tuple[Laws, Laws]:
    """A user of two records against nobody; and one record against another in its place."""
    base, one, two = toys.placed(batches, 1), toys.records(), toys.records()

    def law(*records: Doubles) -> Doubles:
        found = []
        for places in product(range(batches), repeat=len(records)):
            logits = base.copy()
            for place, record in zip(places, records, strict=True):
                logits[:, place] += record
            found.append(release(toys.texts(logits)))
        return np.mean(found, axis=0)

    return (law(one, two), law()), (law(one), law(two))


def two_point(eta: Doubles, t: Doubles) -> Laws:
    """Pairs of one draw of range eta [...] -> laws [..., 2]: losses t and t - eta."""
    high = np.expm1(eta - t) * np.exp(t) / np.expm1(eta)
    p = np.stack([high, 1 - high], axis=-1)
    return p, p * np.exp(np.stack([-t, eta - t], axis=-1))


def worst_pairs(eta: float, choices: Sequence[Doubles], batches: int, generated: int) -> Laws:
    """Batches that play pairs of range eta by earlier draws: choices [n, 2 ** draw] in 0 to 1."""
    p = q = np.ones((len(choices[0]), 1))
    for choice in choices:
        draws = two_point(np.full_like(choice, eta), eta * choice)
        p, q = (
            (law[..., None] * draw).reshape(len(law), -1)
            for law, draw in zip((p, q), draws, strict=True)
        )
    return allocated_laws(*(np.repeat(law[:, None], generated, 1) for law in (p, q)), batches)


def budget_pairs(rng: np.random.Generator, rho: float, n: int) -> Laws:
    """Two batches that spend rho on two draws.

    The second draw's range is what the first one's left.
    """
    first = np.sqrt(8 * rho * rng.uniform(0, 1, n))
    second = np.sqrt(np.maximum(8 * rho - first[:, None] ** 2, 0) * rng.uniform(0.5, 1, (n, 2)))
    one = two_point(first, first * rng.uniform(0, 1, n))
    two = two_point(second, second * rng.uniform(0, 1, (n, 2)))
    laws = [(law[..., None] * then).reshape(n, -1) for law, then in zip(one, two, strict=True)]
    return allocated_laws(*(np.repeat(law[:, None], 2, 1) for law in laws), 2)
