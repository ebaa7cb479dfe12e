"""What a run costs at both levels: against whoever does not know which batch a record was in, and whoever does."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from dpaudit.accounting import ApproximateAccountant, Cost, ReleaseAccountant, rounded_sum
from dpaudit.accounting.allocation import allocated_cost
from dpaudit.mechanisms import ContextChange, context_change
from dpaudit.results import Amplification
from dpaudit.runs import Claim, ClusterPlaces, Manifest, SecretBatches, accounted_rounds

if TYPE_CHECKING:
    from dpaudit.checks.rebalancing import GroupingCost

_PSEUDORANDOM = "keyed BLAKE2b is a pseudorandom function, and nobody but the curator has its key"
_DRAWN = "each record's batch was drawn uniformly, by itself and in secret, as the run says"
#: All that a release level may rest on.
ASSUMPTIONS = (_PSEUDORANDOM, _DRAWN)
_NO_GAIN = "the bound on the release level does not come below that on the batch level"
#: Against whoever does not know which batch a record was in, and against whoever does.
Level: TypeAlias = Literal["release", "batch"]
NOT_EX_POST = "an ex-post figure is worked out for one context that comes or goes, by this rule and this claim"


@dataclass(frozen=True)
class Levels:
    """A run's epsilon of one kind at both levels, in nats.

    Attributes:
        release: never above `batch`.
        amplification: what lies between them, or why nothing does.
    """

    release: float
    batch: float
    amplification: Amplification

    def at(self, level: Level) -> float:
        """The figure of a level."""
        return self.release if level == "release" else self.batch

    def beside(self, spent: float) -> Levels:
        """With what was spent beside, which nothing amplifies."""
        return replace(self, release=rounded_sum(self.release, spent), batch=rounded_sum(self.batch, spent))

    @property
    def amplified(self) -> bool:
        """Whether readers of the texts learn less than whoever knows the batches, by what is accounted for."""
        return not self.amplification.reason


def release_accountant(
    manifest: Manifest,
    claim: Claim,
    grouping: GroupingCost,
    change: ContextChange | None,
    secret: SecretBatches | None,
) -> ReleaseAccountant | None:
    """Of a run's draws and its clusters, by public settings: the most tokens of a batch, and clusters.

    Args:
        manifest: the run's.
        claim: what unit and relation it is for, and the delta.
        grouping: what its clusters cost such a unit.
        change: of contexts, which that unit's difference makes; None where nothing bounds it.
        secret: what readers cannot know of a record's batch; None where both levels are equal.

    Returns:
        None for a mechanism whose cost only the data shows, and where the claim has no delta to work it out at.
    """
    batch = grouping.accountant(manifest.mechanism, change)
    if batch is None or not 0 < claim.delta < 1:
        return None
    batch = replace(batch, rounds=accounted_rounds(manifest) if secret is None else secret.rounds)
    shares = manifest.batching.rounds if manifest.privacy.split_delta else 1
    own = context_change("record", "add_remove", manifest.batching.rule)
    one = ApproximateAccountant.of(manifest.mechanism, own)
    records = manifest.privacy.records_per_user if claim.unit == "user" else 1
    if secret is None or change is None or own is None or one is None or not records or math.isinf(grouping.epsilon):
        return ReleaseAccountant(batch, shares=shares)
    return ReleaseAccountant(batch, one, secret, records * (2 if claim.relation == "replace" else 1), shares)


def approximate_levels(
    accountant: ReleaseAccountant, manifest: Manifest, delta: float, secrecy: SecretBatches | str
) -> Levels:
    """(epsilon, delta) at both levels, as settings alone give it."""
    tokens = manifest.stopping.most_tokens
    batch = accountant.batch_level(tokens, delta).epsilon
    release = batch if accountant.secret is None else min(batch, accountant.epsilon(tokens, delta))
    reason = secrecy if isinstance(secrecy, str) else "" if release < batch else _NO_GAIN
    return Levels(release, batch, amplification_of(manifest, secrecy, reason))


def amplification_of(manifest: Manifest, secrecy: SecretBatches | str, reason: str) -> Amplification:
    """What results say of what lies between the levels; `reason`: why nothing does, or empty."""
    if reason or isinstance(secrecy, str):
        return Amplification(rounds=accounted_rounds(manifest), reason=reason)
    allocation = manifest.batching.allocation
    assumption = _PSEUDORANDOM if allocation is not None and allocation.kind == "hashed" else _DRAWN
    return Amplification(groups=secrecy.groups, rounds=secrecy.rounds, assumption=assumption)


def not_ex_post(claim: Claim, change: ContextChange | None) -> str:
    """Why an ex-post figure is of the batch level, whatever is secret; empty where it is not."""
    # A second record's bounds would have to be those around the data without the first (docs/mathematics.md).
    known = claim.relation == "add_remove" and change is not None and change.contexts == 1
    return "" if known else NOT_EX_POST


def ex_post_release(
    manifest: Manifest,
    secret: SecretBatches,
    places: ClusterPlaces | None,
    cost: Callable[[int], Cost],
    rounds: Iterable[int] | None = None,
) -> float:
    """What generation cost for someone who knows all other records and their batches, but not hers, in nats.

    In each round the log-mean-exp over the batches of her group, added up over rounds; of the costliest group.

    Args:
        manifest: the run's, all of whose batches were read.
        secret: of this run.
        places: where batches stand among clusters; None without a clustering.
        cost: of one batch, for one context that comes or goes.
        rounds: of these alone; by default of all that were generated.
    """
    total: defaultdict[int | tuple[int, int], float] = defaultdict(float)
    per_round = manifest.batching.per_round
    if places is not None and len(places) != per_round:
        return math.inf  # release.selection objects
    for round_ in range(manifest.rounds) if rounds is None else rounds:
        found: defaultdict[int | tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        counts: dict[int | tuple[int, int], int] = {}
        for number in range(per_round):
            group: int | tuple[int, int]
            if places is None:
                (count, generated), *_ = secret.groups
                group = number // generated
            else:
                place = places[number]
                group, count = (place.label, place.position), place.count
            here = cost(round_ * per_round + number)
            found[group].append((here.rise, here.fall))
            counts[group] = count
        for group, costs in found.items():
            total[group] = rounded_sum(total[group], allocated_cost(np.array(costs), counts[group]))
    return max(total.values(), default=0.0)
