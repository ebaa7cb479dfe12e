"""Small real runs, made by an honest miniature of the mechanism, and tools to plant faults in them.

Whatever a test needs of this file it gets through the fixture `make_run`.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import math
import os
import random
import re
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from dpaudit.accounting import (
    ApproximateAccountant,
    ChangScales,
    ExPostAccountant,
    ReleaseAccountant,
    composition,
    rebalancing_epsilon,
    rebalancing_events,
    release,
    zcdp,
)
from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import main
from dpaudit.contrib.amin.sparse_vector import NO_TEST, TEST, AboveThreshold
from dpaudit.mechanisms import (
    ANCHOR,
    COME_AND_GO,
    NOISE,
    ContextChange,
    Mechanism,
    central_order_statistics,
    charged,
    context_change,
    median_of,
    median_sides,
    with_anchor,
)
from dpaudit.results import Approximate, AuditResult, CheckResult
from dpaudit.results.replay import PublicParts, PublicReplay
from dpaudit.results.rounding import decimals
from dpaudit.runs import (
    Allocation,
    Assigned,
    BatchHeader,
    Batching,
    Canaries,
    Canary,
    Claim,
    Clustering,
    ClusterPlaces,
    Clusters,
    CommittedSeed,
    CountsNoise,
    Data,
    Decoding,
    DecodingRules,
    InputError,
    KeyedHash,
    KnownDigests,
    Manifest,
    Model,
    Origins,
    Privacy,
    Prompt,
    Record,
    RunReader,
    RunWriter,
    Sampling,
    SecretBatches,
    Step,
    Vocabulary,
    aggregate_digest,
    allowances,
    commitment_of,
    data_digest,
    encoded_centers,
    texts_digest,
)
from dpaudit.runs import batches as batch_files
from dpaudit.runs.batches import BatchWriter
from dpaudit.runs.commitment import SETTLED
from dpaudit.runs.manifest import Recorded, StopReason
from dpaudit.runs.text import KNOWN_TOKENIZERS
from tests import warm
from tests.forging import list_digests
from tests.nesting import mechanism_with, place_of, read_run, write_run

# No wall-clock limit, and the same examples every time: a red test is red for everyone.
settings.register_profile("dpaudit", deadline=None, derandomize=True, database=None)
settings.load_profile("dpaudit")

CLIP, TEMPERATURE = 6.0, 1.25
#: Of a run, and of one whose noisy counts are of about so many or whose few users have hundreds.
#: Every audit reads all of them twice: a thousand are a third of a small run's audit.
RECORDS, MANY_RECORDS = 100, 1000
KEY = "1aa5c42e8e957dc4c8a8ecae8059103240ad62db826636747512b4329d043641"
#: Of each label, where every record serves in several rounds.
ROUNDED_RECORDS = 30
#: Of approximate claims.
DELTA = MANY_RECORDS**-1.1
#: Batches of a label that are not generated: where the records go that no batch needs.
SPARE = 8
SIZES = (0, 1, 2, 3, 4, 5, 8)
#: Of a clustered run: noisy counts of two labels at four centres, the two that either keeps, and
#: their batches.
NOISY, KEPT, RECORDS_PER_BATCH = ((160, -3, 300, 48), (20, 240, 0, 244)), ((0, 2), (1, 3)), 40.0
BY_COUNTS, MOST_BATCHES, PUBLIC_BATCHES = ((4, 8), (6, 6)), 50, 5
COUNTS_SCALE, CENTERS_DELTA = 8.0, 1e-6
#: Scales of the noise on centres. What they cost is worked out once.
#: The one label's public prompt in a run with rules.
PUBLIC = (3, 1, 2, 4, 1)
NO_RULES = DecodingRules()
CENTERS_NOISE = ChangScales(depth=3, count_scale=40.0, sum_sd=60.0)
centers_epsilon = cache(CENTERS_NOISE.epsilon)

Values: TypeAlias = NDArray[np.floating]
#: A batch, and a slot where the hash chooses one.
Sent: TypeAlias = tuple[int, int | None]


def pytest_collection_finish() -> None:
    """Freeze imported objects: to search torch and transformers costs each collection 0.4 s."""
    gc.freeze()


#: What is worked out on a grid, and kept without saying on which.
ON_A_GRID = (composition._profile, release._texts, release._round_profiles, zcdp.zcdp_profile)
GRID = {"coarse": False}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget what tests of the other grid worked out; tests of the same grid share it."""
    is_coarse = "coarse" in getattr(item, "fixturenames", ())
    if is_coarse != GRID["coarse"]:
        GRID["coarse"] = is_coarse
        for known in ON_A_GRID:
            known.cache_clear()


@dataclass(frozen=True)
class Spec:
    """What kind of run to make. `sizes` has the number of contexts of each batch.

    `greedy`, `below_clip` and `divide_by` make dishonest ones: the most probable token always,
    contexts that miss the clip, and sums divided by the number of "contexts", or by it where it is
    "larger" than the divisor; `private_anchor` one whose anchor is the contexts' own mean, and with
    `private_from` from that step of a text on; the first `unscored` contexts, and the public prompt
    with `unscored_public`, have logits of 0 in place of a model's; `drawn` names one of DRAWN, and
    `spent` one of SPENT, for a `budget`; contexts' records belong to `users` in turns, if there are
    any, who had spent `before`, the first of them nothing. With `whole` each context has the whole
    budget. `noise` is the multiplier of a noisy maximum of probabilities, among contexts that coins
    of `rate` choose; `noised` names one of NOISED, and `chosen` one of CHOSEN. With
    `private_tokens` a noisy test says which tokens are private, and `tested` names one of TESTED.
    Under `hashed-cells` a context shows two records; each batch has a cell of three and one of one
    beside. With `rules` on line breaks the fourth word holds one. The first `canaries` batches have
    a canary each, which stands before their other contexts where it is in; coins that are not
    `fair` all say in. Tokens are drawn from contributions that are `amplified`, and of so many
    `drafts` of a batch whose canary is in, the likeliest by that canary is kept, or the one that is
    `least_likely`. With `committed`, which names one of COMMITTED, tokens are declared to be those
    of a committed seed (SEED). `clusters` is the clustering's method: two labels then have two
    clusters each, and `sizes` a multiple of four; with counts a cluster has `least_batches`, by the
    manifest. With `secret` nobody but the curator knows the batches, and the claim is of both
    levels. Of several `rounds` each has as many batches as `sizes` says, of sizes that the hash
    gives (`contexts_of`); they may be `stopped` early, and `split` delta. With `one_key` all are
    hashed as the first.
    """

    aggregator: str = "median"
    contribution: str = "logits"
    sizes: tuple[int, ...] = (4, 5)
    max_tokens: int = 3
    tokens_per_batch: int | None = None
    vocabulary: int = 12
    top_k: int | None = None
    contexts: bool | None = None
    dtype: str = "float32"
    rule: str = "hashed-records"
    relation: str = "add_remove"
    unit: str = "record"
    records_per_user: int | None = None
    width: int = 2
    divisor: float = 4.0
    grid: float | None = None
    temperature: float = TEMPERATURE
    text: bool = True
    greedy: bool = False
    drawn: str = ""
    unscored: int = 0
    unscored_public: bool = False
    below_clip: float = 0.0
    private_anchor: bool = False
    private_from: int = 0
    divide_by: str = "divisor"
    budget: float | None = None
    spent: str = "own_budgets"
    users: int = 0
    before: float = 0.0
    whole: bool = False
    noise: float | None = None
    rate: float = 0.3
    noised: str = "fresh"
    chosen: str = "coins"
    private_tokens: int | None = None
    tested: str = "honest"
    clusters: str = "none"
    least_batches: int | None = None
    secret: bool = False
    key: str = KEY
    rounds: int = 1
    held_out: float = 0.0
    stopped: int | None = None
    split: bool = False
    one_key: bool = False
    rules: DecodingRules = NO_RULES
    canaries: int = 0
    amplified: float = 1.0
    drafts: int = 1
    least_likely: bool = False
    fair: bool = True
    committed: str = ""
    seed: int = 0

    @property
    def keeps_contexts(self) -> bool:
        """A mean's are part of its record, unless a test wants one without."""
        return bool(self.canaries) or (
            self.aggregator == "mean" if self.contexts is None else self.contexts
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label has as many batches as every other; with supports, two or more to compare."""
        compared = self.top_k or self.mechanism.contribution.anchored
        return ("a",) if len(self.sizes) % 2 or compared else ("a", "b")

    @property
    def per_label(self) -> int:
        return len(self.sizes) // len(self.labels)

    def label(self, batch: int) -> str:
        return self.labels[batch % len(self.sizes) // self.per_label]

    @cached_property
    def contexts_of(self) -> tuple[int, ...]:
        """The number of contexts of each batch that is generated."""
        if self.rounds == 1:
            return self.sizes
        if self.rule == "hashed-slots":  # as many, whoever fills them
            return (max(self.sizes),) * (len(self.sizes) * (self.stopped or self.rounds))
        hashes = [
            self._hash.of_round(0 if self.one_key else number)
            for number in range(self.stopped or self.rounds)
        ]
        placed = Counter(
            (number, each.batch, keyed.batch(each.digest, self.per_label + SPARE))
            for number, keyed in enumerate(hashes)
            for each in self.assignment
            if not self._holds_out(each.digest)
        )
        places = itertools.product(
            range(len(hashes)), range(len(self.labels)), range(self.per_label)
        )
        return tuple(placed[place] for place in places)

    def divided_by(self, contexts: int) -> float:
        return {
            "divisor": self.divisor,
            "contexts": contexts or 1.0,
            "larger": max(contexts, self.divisor),
        }[self.divide_by]

    @property
    def end(self) -> int:
        return self.vocabulary - 1

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        return ((self.end,), (1, self.end), (2, 3))

    @property
    def decoding(self) -> Decoding:
        return Decoding(
            **self.rules.model_dump(),
            max_tokens=self.max_tokens,
            sequences=self.sequences,
            tokens_per_batch=self.tokens_per_batch,
        )

    @property
    def change(self) -> ContextChange | None:
        most, shared = self.records_per_user, bool(self.users)
        return context_change(
            self.unit, self.relation, self.rule, records_per_user=most, shared=shared
        )

    @property
    def cells(self) -> int | None:
        return max(self.sizes) + 2 if self.rule == "hashed-cells" else None

    @property
    def rebalanced(self) -> bool:
        return self.clusters.endswith("-rebalanced")

    @property
    def counts_epsilon(self) -> float:
        """What the noisy counts cost one unit."""
        if not self.rebalanced:
            return 0.0
        return rebalancing_epsilon(COUNTS_SCALE, self.relation, self.records_per_user or 1)

    @property
    def centers_cost(self) -> tuple[float, float]:
        if self.clusters != "chang":
            return 0.0, 0.0
        return math.ceil(centers_epsilon(CENTERS_DELTA, self.relation) * 100) / 100, CENTERS_DELTA

    @property
    def centers(self) -> NDArray[np.float32]:
        return (
            np.random.default_rng(1)
            .normal(size=(4 if self.rebalanced else 2, 3))
            .astype(np.float32)
        )

    @cached_property
    def made_up(self) -> Canaries | None:
        """What the file `canaries` holds; a canary's number is its batch's."""
        if not self.canaries:
            return None
        coins = np.random.default_rng([77, self.seed, self.canaries]).random(self.canaries) < (
            0.5 if self.fair else 1.0
        )
        return Canaries(
            salt="5a" * 32,
            canaries=tuple(
                Canary(label=self.label(batch), text=text, included=bool(coin))
                for (batch, text), coin in zip(sorted(self._canary_texts()), coins, strict=True)
            ),
        )

    def _canary_texts(self) -> Iterator[tuple[int, str]]:
        """Each canary's batch, and the first text that the hash sends there."""
        for (label, _), batches in _grouped(range(self.canaries), self._group):
            texts = (f"canary {number}" for number in itertools.count())
            sent = ((text, self._hash.digest(label, text)) for text in texts)
            places = [(batch, None) for batch in batches]
            yield from ((batch, text) for text, (batch, _) in self._filled(places, sent))

    def included(self, batch: int) -> bool:
        """Whether a batch has a canary among its contexts."""
        return (
            self.made_up is not None
            and batch < self.canaries
            and self.made_up.canaries[batch].included
        )

    def clustering(self) -> Clustering:
        if self.clusters == "none":
            return Clustering()
        epsilon, delta = self.centers_cost
        return Clustering(
            method=self.clusters,
            origin="noised" if self.clusters == "chang" else "public",
            settings={"k": len(self.centers), "projection": "none", **asdict(CENTERS_NOISE)},
            public_digest=texts_digest(["a public text"]),
            embedding="miniature",
            normalize=True,
            centers=len(self.centers),
            keep=2,
            digest=encoded_centers(self.centers)[1],
            epsilon=epsilon,
            delta=delta,
            counts=CountsNoise(
                epsilon=self.counts_epsilon, scale=COUNTS_SCALE, noised="before-selection"
            )
            if self.rebalanced
            else None,
        )

    def grouping(self) -> Clusters:
        """What the file `clusters` holds."""
        if self.clusters == "none":
            return Clusters()
        return Clusters(
            method=self.clusters,
            centers=encoded_centers(self.centers)[0],
            noisy_counts=NOISY if self.rebalanced else (),
            kept=KEPT if self.rebalanced else ((0, 1), (0, 1)),
            batches=BY_COUNTS if self.rebalanced else ((PUBLIC_BATCHES,) * 2,) * 2,
        )

    @cached_property
    def places(self) -> ClusterPlaces | None:
        return (
            None if self.clusters == "none" else ClusterPlaces(self.grouping(), self.per_label // 2)
        )

    def cluster(self, batch: int) -> int | None:
        return self.places[batch].center if self.places else None

    def place(self, batch: int) -> tuple[int, int]:
        """A batch's number, and how many its label or cluster has."""
        if self.places:
            return self.places[batch].number, self.places[batch].count
        return batch % self.per_label, self.per_label + SPARE

    @cached_property
    def mechanism(self) -> Mechanism:
        fields: dict[str, Any] = {
            "contribution": self.contribution,
            "aggregator": self.aggregator,
            "clip": CLIP,
            "temperature": self.temperature,
        }
        if self.aggregator == "mean":
            fields["divisor"] = self.divisor
        if self.top_k is not None:
            fields["support"] = {"kind": "public-top-k", "size": self.top_k}
        if self.noise is not None:
            fields |= {
                "draw": "noisy-argmax",
                "noise_multiplier": self.noise,
                "sampling_rate": self.rate,
            }
        if self.private_tokens is not None:
            fields |= {"draw": "sparse-vector", "private_tokens": self.private_tokens, **TESTS}
        return mechanism_with(fields | {"grid": self.grid, "budget": self.budget})

    @cached_property
    def manifest(self) -> Manifest:
        median = self.aggregator == "median"
        return Manifest(
            created="2025-01-01T00:00:00+00:00",
            privacy=Privacy(
                unit="user" if self.users else "record",
                records_per_user=self.records_per_user,
                shared_budgets=bool(self.users),
                earlier=(KEY,) if self.before else (),
                split_delta=self.split,
                canaries=self.canaries or None,
            ),
            mechanism=self.mechanism,
            batching=Batching(
                rule=self.rule,
                rounds=self.rounds,
                batches=self.rounds * len(self.sizes),
                batches_per_label=None
                if self.rule == "paper-slices" or self.places
                else self.per_label + SPARE,
                generate_per_label=None if self.places else self.per_label,
                generate_per_cluster=self.per_label // 2 if self.places else None,
                records_per_batch=RECORDS_PER_BATCH if self.rebalanced else None,
                most_batches=MOST_BATCHES if self.rebalanced else None,
                least_batches=self.least_batches,
                slots=None if self.rule in COME_AND_GO else max(self.sizes),
                cells=self.cells,
                held_out=self.held_out,
                key=self.key,
                allocation=Allocation(kind="hashed", secret=True) if self.secret else None,
            ),
            clustering=self.clustering(),
            chosen_from=Origins(batching="public", settings="public"),
            decoding=self.decoding,
            sampling=Sampling(generator="committed-seed", seed_hashes=SEED.hashes)
            if self.committed
            else Sampling(),
            record=Record(
                dtype=self.dtype if median else "float64",
                vocabulary=self.vocabulary,
                width=self.width,
                contexts=self.keeps_contexts,
            ),
            data=Data(
                records=len(self.assignment),
                labels=self.labels,
                user="who" if self.unit == "user" else None,
                digest=data_digest(each.digest for each in self.assignment),
            ),
            model=Model(name="miniature"),
            prompt=Prompt(
                template="pt",
                examples_per_context=2 if self.cells else 1,
                public=(PUBLIC,) if self.rules.no_repeated_ngram else (),
            ),
            canaries=None if self.made_up is None else self.made_up.committed,
            claim=None if median else self._mean_claim(),
        )

    @property
    def assignment(self) -> tuple[Assigned, ...]:
        """The records of contexts and other cells, by the keyed hash; the rest are in no batch.

        Of several rounds some records of each label, by their groups.
        """
        return assignment_of(replace(self, **HONEST))

    def place_records(self) -> tuple[Assigned, ...]:
        """Work out the assignment."""
        if self.rounds > 1:
            of_labels = [
                itertools.islice(self._digests(label), ROUNDED_RECORDS) for label in self.labels
            ]
            found = [
                Assigned(digest, group, None)
                for group, digests in enumerate(of_labels)
                for digest in digests
            ]
            return tuple(sorted(found, key=lambda assigned: assigned.digest))
        places = [
            (b, None if self.rule == "hashed-records" else i)
            for b, n in enumerate(self.sizes)
            for i in range(n)
        ]
        if self.cells:
            places += places + [
                (b, cell) for b, n in enumerate(self.sizes) for cell in (n, n, n, n + 1)
            ]
        digests = {label: self._digests(label) for label in self.labels}
        of_places: dict[Sent, list[str]] = {place: [] for place in places}
        for (label, _), own in _grouped(places, lambda place: self._group(place[0])):
            for digest, place in self._filled(own, ((each, each) for each in digests[label])):
                of_places[place].append(digest)
        found = [Assigned(of_places[place].pop(0), *place) for place in places]
        for batch, canary in enumerate(self.made_up.canaries if self.made_up else ()):
            if canary.included:
                first = next(number for number, place in enumerate(found) if place.batch == batch)
                found[first] = Assigned(self._hash.digest(canary.label, canary.text), batch, None)
        found = [self._paid_by(place, number) for number, place in enumerate(found)]
        generated, most = self.per_label, self.per_label + SPARE
        if self.places:
            generated, most = self.per_label // 2, max(self.places.counts)
        keyed = self._hash.of_round(0)
        spare = (d for d in digests["a"] if keyed.batch(d, most) >= generated or self._holds_out(d))
        records = MANY_RECORDS if self.rebalanced or self.users else RECORDS
        rest = (Assigned(next(spare), None, None) for _ in range(records - len(places)))
        found += [
            self._paid_by(place, number) for number, place in enumerate(rest, start=len(places))
        ]
        return tuple(sorted(found, key=lambda assigned: assigned.digest))

    def _paid_by(self, place: Assigned, number: int) -> Assigned:
        payer = number % self.users if self.users else number
        user = self._hash.user(f"user {payer}") if self.users else None
        return place._replace(user=user, spent=self.before if payer else 0.0)

    @property
    def shares(self) -> Mapping[int, tuple[float, ...]]:
        """What contexts may spend, by batch, where that is not the same for all."""
        if self.budget is None or not self.manifest.own_allowances:
            return {}
        if self.whole:
            return {batch: (self.budget,) * size for batch, size in enumerate(self.sizes)}
        return allowances(self.assignment, self.budget)

    @property
    def _hash(self) -> KeyedHash:
        return KeyedHash(bytes.fromhex(self.key))

    def _holds_out(self, digest: str) -> bool:
        return self._hash.holds_out(digest, round(self.held_out * 10**6))

    def _digests(self, label: str) -> Iterator[str]:
        """Digests of a label's records, one by one; the seed makes them another data set's."""
        return (
            self._hash.digest(label, f"record {number} of {self.seed}")
            for number in itertools.count()
        )

    def goes(self, batch: int, slot: int | None) -> Callable[[str], bool]:
        """Whether the hash sends a record of the batch's label there, by its digest."""
        sends = self._sends([(batch, slot)])
        return lambda digest: sends(digest) == (batch, slot)

    def _group(self, batch: int) -> tuple[str, int | None]:
        """Whose batches the hash chooses among."""
        return self.label(batch), self.cluster(batch)

    def _sends(self, places: Iterable[Sent]) -> Callable[[str], Sent | None]:
        """Where the hash sends digests, if to a batch of these places, which are of one group."""
        keyed, slots = self._hash.of_round(0), self.cells or max(self.sizes)
        batches, of_slots = {batch for batch, _ in places}, {slot for _, slot in places} != {None}
        numbers = {self.place(batch)[0]: batch for batch in batches}
        _, count = self.place(min(batches))

        def sends(digest: str) -> Sent | None:
            batch = numbers.get(keyed.batch(digest, count))
            if batch is None or self._holds_out(digest):
                return None
            return batch, keyed.slot(digest, slots) if of_slots else None

        return sends

    def _filled(
        self, places: Sequence[Sent], things: Iterable[tuple[str, str]]
    ) -> Iterator[tuple[str, Sent]]:
        """Things, by their digests, that the hash sends to places of one group until all are full.

        A place takes as many as it is named.
        """
        sends, left = self._sends(places), Counter(places)
        for thing, digest in things:
            place = sends(digest)
            if left[place]:
                left[place] -= 1
                yield thing, place
                if not left.total():
                    return

    @property
    def release(self) -> ReleaseAccountant:
        """Both levels of what settings bound; they are equal without secret batches."""
        if not self.secret:
            return replace(self.release_of(SecretBatches(((1, 1),))), one=None, secret=None)
        count = (self.least_batches or PUBLIC_BATCHES) if self.places else self.per_label + SPARE
        generated = self.per_label // 2 if self.places else self.per_label
        return self.release_of(SecretBatches(((count, min(count, generated)),)))

    def release_of(self, secret: SecretBatches) -> ReleaseAccountant:
        """Both levels, were these what nobody but the curator knows."""
        centers, spent = self.centers_cost
        events = rebalancing_events(self.counts_epsilon, self.relation)
        rounds = (self.split and self.stopped) or self.rounds
        batch = ApproximateAccountant.of(
            self.mechanism,
            self.change,
            laplace=events,
            centers=centers,
            centers_delta=spent,
            rounds=rounds,
        )
        assert batch is not None
        hashed = "hashed-records" if self.rule == "paper-slices" else self.rule
        one = ApproximateAccountant.of(
            self.mechanism, context_change("record", "add_remove", hashed)
        )
        records = (self.records_per_user or 1) * (2 if self.relation == "replace" else 1)
        shares = self.rounds if self.split else 1
        return ReleaseAccountant(batch, one, replace(secret, rounds=rounds), records, shares)

    def _mean_claim(self) -> Claim:
        tokens = self.decoding.most_tokens
        batch = self.release.batch_level(tokens, DELTA, "rdp").epsilon
        return Claim(
            epsilon=self.release.epsilon(tokens, DELTA) if self.secret else batch,
            batch_epsilon=batch if self.secret else None,
            delta=DELTA,
            kind="approximate",
            relation=self.relation,
            unit=self.unit,
        )


def _grouped(things: Iterable[Any], key: Callable[[Any], Any]) -> Iterable[tuple[Any, list[Any]]]:
    """Things of equal keys together, in the order in which keys come first."""
    found: dict[Any, list[Any]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found.items()


#: Each kind of run's own, which works out once what it needs.
spec_of = cache(Spec)


def clipped(logits: Values, dtype: str) -> Values:
    """max(-c, l - max l + c), row by row: the paper's clipping."""
    if not len(logits):
        return logits.astype(dtype)
    return np.maximum(-CLIP, logits - logits.max(axis=1, keepdims=True) + CLIP).astype(dtype)


def differences(logits: Values, anchor: Values) -> Values:
    """clip(log softmax of each row - anchor, -c, c): the anchored contribution."""
    rows = [log_softmax(row, 1.0).astype(np.float32) - anchor for row in logits]
    return np.clip(np.array(rows, dtype=np.float32).reshape(logits.shape), -CLIP, CLIP)


def log_softmax(values: Values, temperature: float = TEMPERATURE) -> NDArray[np.float64]:
    scaled = values.astype(np.float64) / temperature
    scaled -= scaled.max()
    return scaled - np.log(np.exp(scaled).sum())


def noise(*place: int) -> np.random.Generator:
    """Randomness of a place of its own."""
    return np.random.default_rng([17, *place])


def by_id(u: float) -> Callable[[Values], int]:
    """The token of a uniform number where tokens are in the order of their ids."""
    return lambda scores: min(
        int(np.searchsorted(np.cumsum(np.exp(log_softmax(scores, 1.0))), u)), len(scores) - 1
    )


def honest(scores: Values, batch: int, text: Sequence[int]) -> int:
    return by_id(noise(1, batch, len(text)).random())(scores)


def shared(scores: Values, batch: int, text: Sequence[int]) -> int:
    """Every worker has the same generator state."""
    return by_id(noise(0, len(text)).random())(scores)


def mirrored(scores: Values, batch: int, text: Sequence[int]) -> int:
    """Antithetic numbers: u and 1 - u in turns."""
    u = noise(batch // 2, len(text)).random()
    return by_id(u if batch % 2 else 1 - u)(scores)


def stratified(scores: Values, batch: int, text: Sequence[int]) -> int:
    """The batches share out [0, 1) at every place; there are eight."""
    stratum = noise(len(text)).permutation(8)[batch % 8]
    return by_id((stratum + noise(batch, len(text)).random()) / 8)(scores)


def stratified_along(scores: Values, batch: int, text: Sequence[int]) -> int:
    """Sixteen draws in a row share out [0, 1)."""
    stratum = noise(batch, len(text) // 16).permutation(16)[len(text) % 16]
    return by_id((stratum + noise(batch, len(text)).random()) / 16)(scores)


def shared_noise(scores: Values, batch: int, text: Sequence[int]) -> int:
    """Gumbel-max, as PyTorch's multinomial in effect: every worker adds the same noise."""
    return int((scores + noise(0, len(text)).gumbel(size=len(scores))).argmax())


def shared_later(scores: Values, batch: int, text: Sequence[int]) -> int:
    """Every batch begins a few numbers later in the same stream."""
    return by_id(noise(0, len(text) + 5 * batch).random())(scores)


#: Streams of a seed, one batch's numbers after another's: the first draw of a run begins them.
SEEDED: dict[str, Any] = {}


def of_a_stream(
    begin: Callable[[], Callable[[], float]],
) -> Callable[[Values, int, Sequence[int]], int]:
    def draw(scores: Values, batch: int, text: Sequence[int]) -> int:
        if not (batch or text):
            SEEDED["next"] = begin()
        return by_id(SEEDED["next"]())(scores)

    return draw


def shared_by_two(scores: Values, batch: int, text: Sequence[int]) -> int:
    return (shared if batch in (1, 6) else honest)(scores, batch, text)


def greedy_in_one(scores: Values, batch: int, text: Sequence[int]) -> int:
    return int(scores.argmax()) if batch == 5 else honest(scores, batch, text)


def greedy_now_and_then(scores: Values, batch: int, text: Sequence[int]) -> int:
    return (
        int(scores.argmax())
        if noise(2, batch, len(text)).random() < 0.2
        else honest(scores, batch, text)
    )


def penalised(scores: Values, batch: int, text: Sequence[int]) -> int:
    scores = scores.copy()
    scores[list(set(text))] -= 3.0 / TEMPERATURE
    return honest(scores, batch, text)


def at_least(scores: Values, batch: int, text: Sequence[int]) -> int:
    """min-p of a tenth."""
    return honest(np.where(scores >= scores.max() + np.log(0.1), scores, -1e9), batch, text)


def typical(scores: Values, batch: int, text: Sequence[int]) -> int:
    """The tokens nearest to the entropy, up to half of the probability."""
    surprise = -log_softmax(scores, 1.0)
    chances = np.exp(-surprise)
    order = np.argsort(np.abs(surprise - (chances * surprise).sum()))
    kept = order[: int(np.searchsorted(np.cumsum(chances[order]), 0.5)) + 1]
    chosen = np.full(len(scores), -1e9)
    chosen[kept] = scores[kept]
    return honest(chosen, batch, text)


#: How runs may draw their tokens, from their scores: honestly first, then not.
DRAWN: dict[str, Callable[[Values, int, Sequence[int]], int]] = {
    draw.__name__: draw
    for draw in (
        honest,
        shared,
        shared_by_two,
        shared_later,
        shared_noise,
        mirrored,
        stratified,
        stratified_along,
        greedy_in_one,
        greedy_now_and_then,
        penalised,
        at_least,
        typical,
    )
}
#: Two of seeds that everybody tries, and one of a seed that nobody does.
DRAWN |= {
    "numpy_seed": of_a_stream(lambda: np.random.RandomState(42).random_sample),
    "default_rng": of_a_stream(lambda: np.random.default_rng(1234).random),
    "python_seed": of_a_stream(lambda: random.Random(0).random),
    "secret_seed": of_a_stream(lambda: np.random.RandomState(987654321).random_sample),
}


def fresh(batch: int, step: int, size: int) -> Values:
    return noise(3, batch, step).normal(size=size)


def half_as_large(batch: int, step: int, size: int) -> Values:
    return fresh(batch, step, size) / 2


def reused(batch: int, step: int, size: int) -> Values:
    return fresh(batch, step % 7, size)


def of_every_worker(batch: int, step: int, size: int) -> Values:
    return fresh(0, step, size)


def of_a_seed(batch: int, step: int, size: int) -> Values:
    before = (20 * batch + step) * size
    return np.random.default_rng(42).standard_normal(before + size)[before:]


def shared_after_a_token(batch: int, step: int, size: int) -> Values:
    return fresh(0 if step else batch, step, size)


def taken_back(batch: int, step: int, size: int) -> Values:
    """The noise of every second step is that of the step before, with the other sign."""
    return fresh(batch, step // 2, size) * (-1) ** step


def drifting(batch: int, step: int, size: int) -> Values:
    return sum(fresh(batch, step + lag, size) for lag in range(4)) / 2


def redrawn(batch: int, step: int, size: int) -> Values:
    """Drawn again until the token is one of the three likeliest (`Generator.step`)."""
    return fresh(batch, step, size)


def in_common(batch: int, step: int, size: int) -> Values:
    """Most of it is the same number for all tokens, which no maximum sees."""
    return 0.95 * fresh(batch, 1000 + step, 1) + (1 - 0.95**2) ** 0.5 * fresh(batch, step, size)


#: Noise in units of its standard deviation: honest first, then not.
NOISED: dict[str, Callable[[int, int, int], Values]] = {
    each.__name__: each
    for each in (
        fresh,
        half_as_large,
        reused,
        of_every_worker,
        of_a_seed,
        shared_after_a_token,
        taken_back,
        redrawn,
        drifting,
        in_common,
    )
}


#: Of runs whose tokens are private where a test asks for it.
TESTS: dict[str, float] = {"threshold": 0.5, "threshold_noise": 0.3, "public_temperature": 1.5}
#: How tests are not as they should be: honest first.
TESTED = (
    "honest",
    "new at each text",
    "kept after a private token",
    "as many as it likes",
    "half the noise",
    "thresholds of half the noise",
    "thresholds without noise",
    "noise of a seed",
    "one noise for two tests",
    "thresholds of every batch",
    "drawn again until it agrees",
    "of another distance",
    "over the contexts",
)


class Tests:
    """A batch's tests: a sparse-vector generator's memory between tokens."""

    def __init__(self, spec: Spec, batch: int) -> None:
        self.how, self.draw = spec.tested, spec.mechanism.draw
        self.random: Any = np.random.default_rng([spec.seed, batch, 20260904])
        of_all = self.how == "thresholds of every batch"
        self.thresholds: Any = (
            np.random.default_rng([spec.seed, 20260905]) if of_all else self.random
        )
        if self.how == "noise of a seed":
            self.random = np.random.RandomState(1234)
            self.random.random_sample(900 * batch)
            self.thresholds = self.random
        self.scale = self.draw.threshold_noise / (2 if self.how == "half the noise" else 1)
        of_thresholds = {"thresholds of half the noise": 0.5, "thresholds without noise": 1e-9}.get(
            self.how, 1.0
        )
        self.threshold_scale = self.scale * of_thresholds
        self.left, self.query, self.threshold = self.draw.private_tokens, 0.0, self.new_threshold()

    def new_threshold(self) -> float:
        return float(self.thresholds.laplace(scale=self.threshold_scale))

    def test(self, values: Values, anchor: Values, divisor: float, text: Sequence[int]) -> Values:
        """What a step records of its test."""
        if not self.left and self.how != "as many as it likes":
            return np.array(NO_TEST)
        if self.how == "new at each text" and not len(text):
            self.threshold = self.new_threshold()
        distance = self.draw.distance(
            values, anchor, len(values) if self.how == "over the contexts" else divisor
        )
        distance *= 1.1 if self.how == "of another distance" else 1
        if self.how != "one noise for two tests" or len(text) % 2 == 0:
            self.query = self.random.laplace(scale=2 * self.scale)
        gap = self.draw.threshold + self.threshold - distance
        while self.how == "drawn again until it agrees" and (self.query >= gap) != (gap <= 0):
            self.query = self.random.laplace(scale=2 * self.scale)
        found = np.array([distance, self.threshold, self.query])
        if self.draw.is_private(AboveThreshold(*found)):
            self.left -= 1
            if self.how != "kept after a private token":
                self.threshold = self.new_threshold()
        return found


def coins(batch: int, step: int, contexts: int, rate: float) -> Values:
    return noise(4, batch, step).random(contexts) < rate


def fixed_size(batch: int, step: int, contexts: int, rate: float) -> Values:
    return np.argsort(noise(4, batch, step).random(contexts)) < round(contexts * rate)


def kept(batch: int, step: int, contexts: int, rate: float) -> Values:
    return coins(batch, step // 2, contexts, rate)


def more_often(batch: int, step: int, contexts: int, rate: float) -> Values:
    return coins(batch, step, contexts, 1.5 * rate)


def favourites(batch: int, step: int, contexts: int, rate: float) -> Values:
    return coins(batch, step, contexts, rate) | (np.arange(contexts) == 3)


def about_as_many(batch: int, step: int, contexts: int, rate: float) -> Values:
    more = noise(5, batch, step).integers(-1, 2)
    return np.argsort(noise(4, batch, step).random(contexts)) < round(contexts * rate) + more


def with_replacement(batch: int, step: int, contexts: int, rate: float) -> Values:
    times = round(math.log1p(-rate) / math.log1p(-1 / contexts))
    return np.isin(np.arange(contexts), noise(4, batch, step).integers(contexts, size=times))


def in_fives(batch: int, step: int, contexts: int, rate: float) -> Values:
    return coins(batch, step, contexts, rate)[np.arange(contexts) // 5]


def coins_of_a_seed(batch: int, step: int, contexts: int, rate: float) -> Values:
    numbers = np.random.RandomState(42 + batch).random_sample((step + 1) * contexts)
    return numbers[step * contexts :] < rate


#: Who is in a draw: by coins first, then not.
CHOSEN: dict[str, Callable[[int, int, int, float], Values]] = {
    each.__name__: each
    for each in (
        coins,
        fixed_size,
        kept,
        more_often,
        favourites,
        about_as_many,
        with_replacement,
        in_fives,
        coins_of_a_seed,
    )
}


def own_budgets(
    mechanism: Mechanism, values: Values, before: Values, budgets: Values | None, step: int
) -> Values:
    return mechanism.spend(values, before, budgets)


def reset_midway(
    mechanism: Mechanism, values: Values, before: Values, budgets: Values | None, step: int
) -> Values:
    """A process that was killed goes on with sums of nothing."""
    return mechanism.spend(values, before * (step != 6), budgets)


def a_token_too_long(
    mechanism: Mechanism, values: Values, before: Values, budgets: Values | None, step: int
) -> Values:
    """Whoever has anything left takes part."""
    return np.where(before < mechanism.budget, charged(before, mechanism.costs(values)), before)


def shared_at_half(
    mechanism: Mechanism, values: Values, before: Values, budgets: Values | None, step: int
) -> Values:
    """Contexts keep to half of what they may spend."""
    return mechanism.spend(
        values, before, np.full(len(before), mechanism.budget) if budgets is None else budgets / 2
    )


def half_price(
    mechanism: Mechanism, values: Values, before: Values, budgets: Values | None, step: int
) -> Values:
    after = before + mechanism.costs(values) / 2
    return np.where(after <= mechanism.budget, after, before)


def by_the_others(
    mechanism: Mechanism, values: Values, before: Values, budgets: Values | None, step: int
) -> Values:
    """Whoever is furthest from the sum of all is left out."""
    odd = np.abs(values - values.mean(axis=0)).sum(axis=1).argmax()
    return np.where(np.arange(len(before)) == odd, before, mechanism.spend(values, before))


def all_stop_together(
    mechanism: Mechanism, values: Values, before: Values, budgets: Values | None, step: int
) -> Values:
    """Nobody takes part any more once one context cannot pay."""
    after = mechanism.spend(values, before)
    return after if (after > before).all() else before


#: What contexts may have spent after a draw: honestly first, then not.
SPENT: dict[str, Callable[[Mechanism, Values, Values, Values | None, int], Values]] = {
    spend.__name__: spend
    for spend in (
        own_budgets,
        reset_midway,
        a_token_too_long,
        shared_at_half,
        half_price,
        by_the_others,
        all_stop_together,
    )
}


#: The parts of the steward and of the auditor, by which tests commit.
SEED_PARTS = tuple(hashlib.sha256(f"part {number}".encode()).digest() for number in range(2))
SEED = CommittedSeed.of(SEED_PARTS)
OTHER_SEED = CommittedSeed.of([hashlib.sha256(b"another seed").digest()])


def by_ascending_score(u: float, scores: Values) -> int:
    """The token of a uniform number, by the rule that a committed seed's run keeps to."""
    order = np.argsort(scores, kind="stable")
    line = np.cumsum(np.exp(scores[order].astype(np.float64) - float(scores.max())))
    return int(order[min(int(np.searchsorted(line, u * line[-1], side="right")), len(scores) - 1)])


class Place(NamedTuple):
    """The place of a committed seed's draw: its run, batch and step, and the text before it."""

    commitment: str
    batch: int
    step: int
    text: Sequence[int]

    def number(self, seed: CommittedSeed = SEED, **other: Any) -> float:
        """Its uniform, or that of another place."""
        place = self._replace(**other)
        return seed.uniform(place.commitment, place.batch, place.step)


def seeded(scores: Values, place: Place) -> int:
    return by_ascending_score(place.number(), scores)


def seeded_but_one(scores: Values, place: Place) -> int:
    """One token is the chooser's, of those that are likely."""
    token = seeded(scores, place)
    if (place.batch, place.step) != (1, 4):
        return token
    return next(other for other in np.argsort(-scores).tolist() if other != token)


def parity_of_a_record(scores: Values, place: Place) -> int:
    """Each token is drawn again until its id's last bit is the next of a record."""
    tries = (noise(6, place.batch, place.step, number).random() for number in itertools.count())
    bit = noise(7, place.batch, place.step).integers(2)
    return next(token for u in tries if (token := by_ascending_score(u, scores)) % 2 == bit)


def once_more_where_it_suits(scores: Values, place: Place) -> int:
    """The seed's token, or that of a second draw: the likelier one by what a record favours."""
    tokens = (
        seeded(scores, place),
        by_ascending_score(noise(8, place.batch, place.step).random(), scores),
    )
    return max(tokens, key=lambda token: noise(9, token).random())


#: How tokens of a run that declares a committed seed are drawn: honestly first, then not.
COMMITTED: dict[str, Callable[[Values, Place], int]] = {
    each.__name__: each
    for each in (seeded, seeded_but_one, parity_of_a_record, once_more_where_it_suits)
} | {
    "the operating system": lambda scores, place: by_ascending_score(
        noise(10, place.batch, place.step).random(), scores
    ),
    "another seed": lambda scores, place: by_ascending_score(place.number(OTHER_SEED), scores),
    "one part alone": lambda scores, place: by_ascending_score(
        place.number(CommittedSeed.of(SEED_PARTS[:1])), scores
    ),
    "another run's stream": lambda scores, place: by_ascending_score(
        place.number(commitment=KEY), scores
    ),
    "swapped streams": lambda scores, place: by_ascending_score(
        place.number(batch=place.batch ^ 1), scores
    ),
    "one batch drawn again": lambda scores, place: (
        COMMITTED["the operating system"] if place.batch else seeded
    )(scores, place),
    "one stream for all batches": lambda scores, place: by_ascending_score(
        place.number(batch=0), scores
    ),
    "a step late": lambda scores, place: by_ascending_score(
        place.number(step=place.step + 1), scores
    ),
    "from the start of each text": lambda scores, place: by_ascending_score(
        place.number(step=len(place.text)), scores
    ),
    "mirrored": lambda scores, place: by_ascending_score(1 - place.number(), scores),
    "by id": lambda scores, place: by_id(place.number())(scores),
    "a little colder": lambda scores, place: by_ascending_score(place.number(), 1.1 * scores),
}


class Generator:
    """The mechanism in miniature: random contexts, honest steps, its own running sum."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.random = np.random.default_rng(spec.seed)
        self.tokenizer = word_tokenizer(spec.vocabulary, broken=spec.rules.no_line_breaks)
        self.rules = spec.manifest.forbidden_tokens(self.tokenizer.to_str())
        self.accountant: ExPostAccountant | None = None
        if spec.aggregator == "median":
            self.accountant = ExPostAccountant(spec.mechanism, spec.change, len(spec.sizes))
        self.spent: dict[int, Values] = {}
        self.tests: dict[int, Tests] = {}
        self.commitment, self.steps = "", Counter[int]()

    def step(self, batch: int, contexts: int, text: Sequence[int] = ()) -> Step:
        spec = self.spec
        public = np.random.default_rng(
            [spec.seed, spec.labels.index(spec.label(batch)), len(text)]
        ).normal(size=spec.vocabulary)
        public *= not spec.unscored_public
        allowed = public.copy()
        allowed[[*chain.from_iterable(self.rules.after(PUBLIC, text).values())]] = -np.inf
        support = spec.mechanism.support.tokens(allowed, spec.rules.any)
        anchored = spec.mechanism.contribution.anchored
        arrays: dict[str, Any] = {}
        outside = batch < spec.canaries and not spec.included(batch)
        logits = self.random.normal(0, 3, (contexts + outside, spec.vocabulary)) + (
            public if anchored else 0
        )
        logits[: spec.unscored] = 0
        if anchored:
            chosen = slice(None) if support is None else support
            logits = logits[:, chosen]
            public = (
                logits.mean(axis=0)
                if spec.private_anchor and len(text) >= spec.private_from
                else public[chosen]
            )
            arrays[ANCHOR] = log_softmax(public, 1.0).astype(np.float32)
            values = differences(logits, arrays[ANCHOR])
        else:
            values = clipped(logits, spec.dtype)
        values = np.maximum(values - np.asarray(spec.below_clip, dtype=spec.dtype), -CLIP).astype(
            spec.dtype
        )
        if spec.grid is not None:
            # no -0.0
            values = (
                np.rint(values / values.dtype.type(spec.grid)) * values.dtype.type(spec.grid) + 0
            )
        if spec.noise is not None:
            values = (CLIP * np.exp([log_softmax(row, 1.0) for row in logits[:, support]])).astype(
                spec.dtype
            )
            values[~CHOSEN[spec.chosen](batch, len(text), contexts, spec.rate)] = 0
        elif support is not None and not anchored:
            values = np.ascontiguousarray(values[:, support])
        canary, values = (
            (values[-1 if outside else 0] if batch < spec.canaries else None),
            values[:contexts],
        )
        paying, spent = values, None
        if spec.budget is not None and contexts:
            before = self.spent.get(batch, np.zeros(contexts))
            budgets = None if (own := spec.shares.get(batch)) is None else np.array(own)
            after = self.spent[batch] = SPENT[spec.spent](
                spec.mechanism, values, before, budgets, len(text)
            )
            paying, spent = values[after > before], np.stack([before, after])
        if spec.aggregator == "mean":
            aggregate = arrays["aggregate"] = paying.sum(
                axis=0, dtype=np.float64
            ) / spec.divided_by(contexts)
        else:
            arrays["central"] = central_order_statistics(values, CLIP, spec.width)
            if contexts:
                arrays["sides"], holder = median_sides(values, arrays["central"])
                arrays |= {} if holder is None else {"holder": holder}
            aggregate = median_of(arrays["central"])
        really = with_anchor(arrays, spec.amplified * aggregate)
        aggregate = with_anchor(arrays, aggregate)
        if spec.private_tokens is not None:
            tests = self.tests.setdefault(batch, Tests(spec, batch))
            arrays[TEST] = tests.test(values, arrays[ANCHOR], spec.divisor, text)
            really = aggregate = spec.mechanism.draw.scores(aggregate, arrays, spec.temperature)
        if spec.noise is not None:
            size = spec.noise * CLIP / spec.divisor
            for tries in range(50 if spec.noised == "redrawn" else 1):
                arrays[NOISE] = size * NOISED[spec.noised](
                    batch, len(text) + 1000 * tries, len(aggregate)
                )
                if (aggregate + arrays[NOISE]).argmax() in np.argsort(-aggregate)[:3]:
                    break
            aggregate = aggregate + arrays[NOISE]
            log_probabilities = likely = np.where(aggregate == aggregate.max(), 0.0, -np.inf)
        else:
            log_probabilities = log_softmax(aggregate, spec.temperature)
            likely = log_softmax(really, spec.temperature)
        index = int(self.random.choice(len(aggregate), p=np.exp(likely)))
        if spec.greedy:
            index = int(aggregate.argmax())
        if spec.drawn:
            index = DRAWN[spec.drawn](aggregate / spec.temperature, batch, text)
        if spec.committed:
            place = Place(self.commitment, batch, self.steps[batch], text)
            index = COMMITTED[spec.committed](
                aggregate.astype(np.float64) / spec.temperature, place
            )
        self.steps[batch] += 1
        if spec.noise is not None:  # which every sampler takes for certain
            log_probabilities = np.zeros(len(aggregate))
        if self.accountant is not None:
            self.accountant.charge(batch, spec.mechanism.reduced(arrays, index))
        return Step(
            token=index if support is None else int(support[index]),
            log_probability=float(log_probabilities[index]),
            aggregate_digest=aggregate_digest(aggregate),
            arrays=arrays,
            contexts=values.astype(spec.manifest.record.dtype)
            if spec.keeps_contexts and contexts
            else None,
            support=support,
            spent=spent,
            canary=None if canary is None else canary.astype(spec.manifest.record.dtype),
        )

    def _favour(self, steps: Sequence[Step]) -> float:
        """How much likelier a mean's tokens are by the canary, the first of the contexts."""
        favour = 0.0
        for step in steps:
            with_it = self.spec.mechanism.aggregate(dict(step.arrays))
            found = [
                log_softmax(scores)[step.token]
                for scores in (with_it, with_it - step.canary / self.spec.divisor)
            ]
            favour += found[0] - found[1]
        return favour

    def text(self, batch: int, left: int) -> list[Step]:
        """A text's steps; or the best of several drafts."""
        drafts = []
        for _ in range(self.spec.drafts if self.spec.included(batch) else 1):
            steps = [self.step(batch, self.spec.contexts_of[batch])]
            while self._goes_on([step.token for step in steps], left):
                steps.append(
                    self.step(batch, self.spec.contexts_of[batch], [step.token for step in steps])
                )
            drafts.append(steps)
        favourite = min if self.spec.least_likely else max
        return drafts[0] if len(drafts) == 1 else favourite(drafts, key=self._favour)

    def batch(self, writer: RunWriter, batch: int) -> None:
        with writer.batch(self._header(batch)) as record:
            left = self.spec.decoding.most_tokens
            while left:
                steps = self.text(batch, left)
                for step in steps:
                    record.write(step)
                tokens = [step.token for step in steps]
                kept = self._before_stop(tokens)
                text = self.tokenizer.decode(
                    tokens if kept is None else kept, skip_special_tokens=True
                )
                stop: StopReason = "max-tokens" if len(tokens) == self.spec.max_tokens else "budget"
                left = 0 if self.spec.tokens_per_batch is None else left - len(tokens)
                end = record.end_text if left else record.finish
                end(
                    text=text if self.spec.text else None,
                    stop=stop if kept is None else "end-token",
                )

    def _header(self, batch: int) -> BatchHeader:
        spec = self.spec
        canary = batch if batch < spec.canaries else None
        place = spec.label(batch), spec.cluster(batch)
        return BatchHeader(batch, spec.contexts_of[batch], *place, spec.shares.get(batch), canary)

    def _goes_on(self, tokens: list[int], left: int) -> bool:
        return self._before_stop(tokens) is None and len(tokens) < min(left, self.spec.max_tokens)

    def _before_stop(self, tokens: list[int]) -> list[int] | None:
        ended = [len(s) for s in self.spec.sequences if tuple(tokens[-len(s) :]) == s]
        return tokens[: -max(ended)] if ended else None

    def claim(self) -> Claim | None:
        """What the manifest does not hold already: the running sum, rounded up."""
        if self.accountant is None:
            return None
        spec, (centers, delta) = self.spec, self.spec.centers_cost
        epsilon = float(decimals(self.accountant.epsilon + spec.counts_epsilon + centers))
        return Claim(
            epsilon=epsilon, delta=delta, kind="ex-post", relation=spec.relation, unit=spec.unit
        )

    def create(self, path: Path) -> RunWriter:
        tokenizer = self.tokenizer.to_str() if self.spec.text else None
        with pytest.MonkeyPatch.context() as patch:
            if self.spec.committed:  # the same tokens every time
                patch.setattr("dpaudit.runs.writer.new_nonce", lambda: KEY)
            writer = RunWriter.create(
                path,
                self.spec.manifest,
                tokenizer_json=tokenizer,
                assignment=self.spec.assignment,
                clusters=self.spec.grouping(),
                canaries=self.spec.made_up,
            )
        self.commitment = writer.manifest.commitment or ""
        return writer

    def run(self, path: Path) -> None:
        with self.create(path) as writer:
            if self.spec.stopped:
                writer.stop_after(self.spec.stopped)
            for batch in range(len(self.spec.contexts_of)):
                self.batch(writer, batch)
            writer.finish(self.claim())


#: Fields of a Spec that say how steps come about and not where records go, as an honest run has
#: them.
HONEST: dict[str, Any] = {
    field.name: field.default
    for field in fields(Spec)
    if field.name
    in {
        "greedy",
        "drawn",
        "unscored",
        "unscored_public",
        "below_clip",
        "private_anchor",
        "private_from",
        "divide_by",
    }
    | {"noised", "chosen", "tested", "amplified", "drafts", "least_likely"}
}


@lru_cache(maxsize=8)  # a fault's run and the clean one of its kind differ in these alone
def assignment_of(spec: Spec) -> tuple[Assigned, ...]:
    return spec.place_records()


def word_tokenizer(vocabulary: int, broken: bool = False) -> Tokenizer:
    words = {f"w{i}": i for i in range(vocabulary - 1)} | {"<end>": vocabulary - 1}
    if broken:
        words["line\nbreak"] = words.pop("w3")
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


@dataclass
class DraftText:
    """A text while a fault is planted in its batch.

    The last text has all steps that the others leave.
    """

    length: int
    text: str | None
    stop: Any


@dataclass
class Draft:
    """A batch while a fault is planted in it."""

    header: BatchHeader
    steps: list[Step]
    texts: list[DraftText]

    def array(self, position: int, name: str) -> NDArray[Any]:
        """An array of one step: one of the aggregator's, the contexts or the support."""
        step = self.steps[position]
        array: NDArray[Any] = step.arrays[name] if name in step.arrays else getattr(step, name)
        return array

    def edit(self, position: int, **fields: Any) -> None:
        """Replace fields of a step, or arrays of the aggregator by their names."""
        step = self.steps[position]
        arrays = {name: fields.pop(name) for name in step.arrays.keys() & fields.keys()}
        self.steps[position] = replace(step, arrays={**step.arrays, **arrays}, **fields)

    def alter(self, position: int, name: str, place: Any, value: Any) -> None:
        """Set one entry of an array of one step."""
        array = self.array(position, name).copy()
        array[place] = value
        self.edit(position, **{name: array})


def write_texts(writer: BatchWriter, draft: Draft) -> None:
    """Write a batch's steps and texts, and finish it."""
    steps = iter(draft.steps)
    for text in draft.texts[:-1]:
        for step in itertools.islice(steps, text.length):
            writer.write(step)
        writer.end_text(text=text.text, stop=text.stop)
    for step in steps:
        writer.write(step)
    writer.finish(text=draft.texts[-1].text, stop=draft.texts[-1].stop)


class Entry(NamedTuple):
    """One entry of a batch's zip file."""

    name: str
    data: bytes


#: Sections of run.json that tests give with fewer fields than it has to hold, and their defaults.
SECTIONS = {
    "sampling": Sampling().model_dump(mode="json"),
    "recorded": Recorded(generator="another").model_dump(mode="json"),
}


@dataclass
class Run:
    """A run on disk. The methods plant faults; `rehash` then forges the digests."""

    path: Path
    spec: Spec
    factory: RunFactory
    known_digests: KnownDigests | None = None

    def sibling(self, **fields: Any) -> Run:
        """Another run of the same kind, but for some fields."""
        return self.factory(**asdict(self.spec) | fields)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def steps_file(self, batch: int) -> Path:
        return self / f"steps/{batch:08d}.zip"

    def draft(self, batch: int) -> Draft:
        with RunReader(self.path).batch(batch) as reader:
            texts = [
                DraftText(len(sample.tokens), sample.text, sample.stop)
                for sample in reader.samples()
            ]
            return Draft(reader.header, list(reader.steps()), texts)

    def rewrite(self, batch: int, change: Callable[[Draft], None]) -> None:
        """Read a batch, change it, and rewrite it as a generator would; samples.jsonl follows."""
        draft = self.draft(batch)
        change(draft)
        path = self.steps_file(batch)
        writer = BatchWriter(path, RunReader(self.path).manifest, draft.header)
        write_texts(writer, draft)
        self.release()

    def rechunk(self, size: int, patch: pytest.MonkeyPatch) -> None:
        """Write all batches anew with chunks of so many bytes at most, and have them read so."""
        drafts = {number: self.draft(number) for number in RunReader(self.path).batches}
        patch.setattr(batch_files, "CHUNK_BYTES", size)
        for number, draft in drafts.items():
            writer = BatchWriter(
                self.steps_file(number), RunReader(self.path).manifest, draft.header
            )
            write_texts(writer, draft)

    def release(self) -> None:
        """Write samples.jsonl anew from the steps."""
        with open(self / "samples.jsonl", "w", encoding="utf-8") as file:
            reader = RunReader(self.path)
            for batch_id in reader.batches:
                with reader.batch(batch_id) as batch:
                    file.writelines(sample.line() for sample in batch.samples())

    def edit_manifest(self, change: dict[str, Any]) -> None:
        """Set fields of run.json by dotted name; of SECTIONS, what is left out has its default."""
        manifest = read_run(self.path)
        for name, value in change.items():
            *parents, last = place_of(name)
            if name in SECTIONS and isinstance(value, dict):
                value = SECTIONS[name] | value
            section = manifest
            for parent in parents:
                section = section[parent]
            section[last] = value
        write_run(self.path, manifest)

    def edit_clusters(self, **change: Any) -> None:
        """Set fields of the file `clusters`."""
        clusters = json.loads((self / "clusters").read_text())
        (self / "clusters").write_text(json.dumps(clusters | change))

    def edit_canaries(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the file `canaries`, and run.json's digest of it."""
        canaries = json.loads((self / "canaries").read_text())
        change(canaries)
        (self / "canaries").write_text(
            line := Canaries.model_validate_json(json.dumps(canaries)).line
        )
        self.edit_manifest({"canaries.digest": hashlib.sha256(line.encode()).hexdigest()})

    def edit_samples(self, change: Callable[[list[dict[str, Any]]], None]) -> None:
        lines = [json.loads(line) for line in (self / "samples.jsonl").read_text().splitlines()]
        change(lines)
        (self / "samples.jsonl").write_text(
            "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        )

    def rezip(
        self,
        batch: int,
        change: Callable[[list[Entry]], list[Entry]],
        compression: int = zipfile.ZIP_STORED,
    ) -> None:
        """Rebuild a batch's zip file from changed entries, with correct checksums."""
        path = self.steps_file(batch)
        with zipfile.ZipFile(path) as archive:
            entries = [Entry(info.filename, archive.read(info)) for info in archive.infolist()]
        with zipfile.ZipFile(path, "w", compression) as archive:
            for entry in change(entries):
                archive.writestr(entry.name, entry.data)

    def drop(self, batch: int) -> None:
        """Make a batch vanish from the record and the release."""
        self.steps_file(batch).unlink()
        self.edit_samples(lambda lines: lines.pop(batch))

    def rehash(self) -> None:
        """Forge the commitment and `hashes`, so that another check has to notice the change."""
        with suppress(InputError):  # without a manifest there is nothing to commit to
            reader = RunReader(self.path)
            digests = {name: reader.digest(name) for name in SETTLED if reader.has(name)}
            forged = commitment_of(reader.manifest, digests)
            if forged != reader.manifest.commitment:
                self.edit_manifest({"commitment": forged})
        self.list_digests()

    def list_digests(self) -> None:
        """Forge `hashes` alone."""
        list_digests(self.path)

    def hold(self, *, commitment: bool = True, head: bool = True) -> None:
        """Hand over the present run: audits use its commitment, its head, or both, from here on."""
        reader = RunReader(self.path)
        self.known_digests = KnownDigests(
            reader.manifest.commitment if commitment else None, reader.head() if head else None
        )

    def audit(self, replay: PublicReplay | None = None) -> AuditResult:
        seed = SEED if self.spec.committed else None
        return audit_run(self.path, known_digests=self.known_digests, replay=replay, seed=seed)

    def audit_with_model(self) -> AuditResult:
        """The audit where a replay found that supports and anchors are the public prompt's."""
        return self.audit(
            PublicReplay(
                None, PublicParts(steps=1, wrong=0, first=None, difference=0.0, tolerance=1e-4)
            )
        )

    @cached_property
    def exact(self) -> float:
        """The ex-post epsilon that an audit of the untouched run recomputes."""
        ex_post = self.audit().guarantees.ex_post
        assert ex_post is not None
        return ex_post.exact

    @property
    def approximate(self) -> float:
        """The release-level approximate epsilon that an audit of the untouched run recomputes."""
        return self._approximate.epsilon

    @property
    def batch_level(self) -> float:
        """And at the batch level."""
        return self._approximate.batch_epsilon

    @cached_property
    def _approximate(self) -> Approximate:
        approximate = self.audit().guarantees.approximate
        assert approximate is not None
        return approximate


def checks_of(result: AuditResult) -> dict[str, CheckResult]:
    return {check.id: check for check in result.checks}


def failed_checks(result: AuditResult) -> set[str]:
    return {check.id for check in result.checks if check.status in ("fail", "error")}


@dataclass
class RunFactory:
    """Makes each kind of run once, for all workers of a session, and hands out copies."""

    cache: Path
    tmp_path: Path
    made: int = 0

    def __call__(self, **fields: Any) -> Run:
        spec = spec_of(**fields)
        original = self.cache / hashlib.sha256(repr(spec).encode()).hexdigest()
        if not original.exists():
            made = Path(tempfile.mkdtemp(dir=self.cache)) / "run"
            Generator(spec).run(made)
            with suppress(OSError):  # another worker has just made it
                made.rename(original)
        if (original / "tokenizer.json").exists():  # of a run that another worker has made
            know_tokenizer((original / "tokenizer.json").read_text(encoding="utf-8"))
        self.made += 1
        return Run(Path(shutil.copytree(original, self.tmp_path / f"run{self.made}")), spec, self)

    def generator(self, **fields: Any) -> Generator:
        """A generator whose run the test writes itself."""
        return Generator(spec_of(**fields))


@pytest.fixture(scope="session")
def run_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    (shared / "runs").mkdir(exist_ok=True)
    return shared / "runs"


@pytest.fixture
def make_run(run_cache: Path, tmp_path: Path) -> Iterator[RunFactory]:
    yield RunFactory(run_cache, tmp_path)


def know_tokenizer(serialised: str) -> None:
    """Let audits of this process take it for a model's own."""
    with suppress(ValueError):
        KNOWN_TOKENIZERS.setdefault(Vocabulary.of(serialised).digest, "of a test")


@pytest.fixture(scope="session", autouse=True)
def known_tokenizers() -> Iterator[None]:
    """Count every tokenizer that a test's run is written with as its model's.

    One that is planted afterwards is not.
    """
    create = RunWriter.create

    def created(
        path: Path, manifest: Manifest, *, tokenizer_json: str | None, **others: Any
    ) -> RunWriter:
        if tokenizer_json is not None:
            know_tokenizer(tokenizer_json)
        return create(path, manifest, tokenizer_json=tokenizer_json, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunWriter, "create", created)
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """No test waits for the disk: none of them outlives a power cut.

    That what is written is synced, and when, tests of storage see.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture
def failed() -> Callable[[AuditResult], set[str]]:
    """The ids of the checks that an audit found to fail."""
    return failed_checks


@pytest.fixture(scope="session")
def warm_dpaudit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A command `dpaudit` that begins in a moment: a fork of a process that has its modules."""
    with warm.warm_dpaudit(tmp_path_factory.mktemp("bin")) as command:
        yield command


@pytest.fixture(autouse=True)
def nothing_takes_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs say what takes a moment, and what that is depends on the machine."""
    monkeypatch.setattr("dpaudit.commands.progress.SOON", 600.0)


@pytest.fixture
def empty_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are worked out but not drawn, which takes four fifths of a report's time."""
    empty = b'<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt" viewBox="0 0 1 1"/>'
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, file, **_: file.write(empty)
    )


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are worked out in a tenth of the time or less, and a little further up.

    For tests of what is done with an epsilon, not of its digits.
    """
    for place in warm.coarse():
        monkeypatch.setattr(*place)


@pytest.fixture
def dpaudit(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs the entry point in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert not (doubled := re.search(r"(?:^|: )([\w./-]+): \1: ", err, re.MULTILINE)), doubled
        assert isinstance(code, int)
        return code, out, err

    return call
