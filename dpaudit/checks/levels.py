"""What a run costs at both levels: against whoever does not know which batch a record was in, and whoever does."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from dpaudit.accounting import ReleaseAccountant, rounded_sum
from dpaudit.accounting.ex_post_release import amplifies
from dpaudit.mechanisms import ContextChange
from dpaudit.results import Amplification
from dpaudit.runs import Claim, Manifest, SecretBatches, accounted_rounds

if TYPE_CHECKING:
    from dpaudit.checks.rebalancing import GroupingCost

_PSEUDORANDOM = "keyed BLAKE2b is a pseudorandom function, and nobody but the curator has its key"
_DRAWN = "each record's batch was drawn uniformly, by itself and in secret, as the run says"
#: All that a release level may rest on.
ASSUMPTIONS = (_PSEUDORANDOM, _DRAWN)
#: Against whoever does not know which batch a record was in, and against whoever does.
Level: TypeAlias = Literal["release", "batch"]
_NOT_EX_POST = "ex post the release level is worked out for a single record that comes or goes, and for nothing else"


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
    shares = manifest.privacy.shares(manifest.batching.rounds)
    if change is None or math.isinf(grouping.epsilon):  # as for the batch, whatever the manifest would give
        secret = None
    privacy = manifest.privacy.model_copy(update={"unit": claim.unit, "relation": claim.relation})
    return ReleaseAccountant.of(batch, manifest.mechanism, privacy, manifest.batching.rule, secret, shares)


def approximate_levels(
    accountant: ReleaseAccountant, manifest: Manifest, delta: float, secrecy: SecretBatches | str
) -> Levels:
    """(epsilon, delta) at both levels, as settings alone give it."""
    tokens = manifest.stopping.most_tokens
    batch = accountant.batch_level(tokens, delta).epsilon
    release = batch if accountant.secret is None else min(batch, accountant.epsilon(tokens, delta))
    reason = secrecy if isinstance(secrecy, str) else "" if release < batch else accountant.note(tokens, delta)
    return Levels(release, batch, amplification_of(manifest, secrecy, reason, accounted_rounds(manifest)))


def amplification_of(manifest: Manifest, secrecy: SecretBatches | str, reason: str, rounds: int) -> Amplification:
    """What results say of what lies between the levels; `reason`: why nothing does, or empty."""
    if reason or isinstance(secrecy, str):
        return Amplification(rounds=rounds, reason=reason)
    allocation = manifest.batching.allocation
    assumption = _PSEUDORANDOM if allocation is not None and allocation.kind == "hashed" else _DRAWN
    return Amplification(groups=secrecy.groups, rounds=rounds, assumption=assumption)


def not_ex_post(claim: Claim, change: ContextChange | None) -> str:
    """Why an ex-post figure is of the batch level, whatever is secret; empty where it is not."""
    return "" if amplifies(claim.relation, change) else _NOT_EX_POST
