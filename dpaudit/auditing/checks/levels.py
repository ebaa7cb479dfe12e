"""A run's costs at both levels: for readers who do not know a record's batch, and those who do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from dpaudit import accounting
from dpaudit.accounting import rounded_sum
from dpaudit.accounting.ex_post_release import amplifies
from dpaudit.auditing.checks.grouping import GroupingCost
from dpaudit.mechanisms import ContextChange
from dpaudit.results import Amplification, Finding
from dpaudit.runs import Claim, Manifest, NotSecret, SecretBatches, accounted_rounds

#: All that a release level may rest on: a keyed hash, or draws that the run declares.
PSEUDORANDOM, DRAWN = Finding(code="levels.pseudorandom"), Finding(code="levels.drawn")
#: Against whoever does not know which batch a record was in, and against whoever does.
Level: TypeAlias = Literal["release", "batch"]


class Levels(NamedTuple):
    """A run's epsilon of one kind at both levels, in nats.

    Attributes:
        release: never above `batch`.
        amplification: what lies between them, or why nothing does.
    """

    release: float
    batch: float
    amplification: Amplification

    def at(self, level: Level) -> float:
        """Return the figure of a level."""
        return self.release if level == "release" else self.batch

    def beside(self, spent: float) -> Levels:
        """Return the levels plus another cost, which nothing amplifies."""
        return self._replace(
            release=rounded_sum(self.release, spent), batch=rounded_sum(self.batch, spent)
        )

    @property
    def amplified(self) -> bool:
        """True if readers of the texts learn less than someone who knows the batches.

        It goes by what is accounted for.
        """
        return self.amplification.reason is None


def release_accountant(
    manifest: Manifest,
    claim: Claim,
    grouping: GroupingCost,
    change: ContextChange | None,
    secret: SecretBatches | None,
) -> accounting.ReleaseAccountant | None:
    """Return the accountant of a run's draws and clusters, by public settings.

    Of a batch the most tokens count.

    Args:
        manifest: the run's.
        claim: gives unit, relation and delta.
        grouping: the cost of its clusters for such a unit.
        change: of contexts, which that unit's difference makes; None if nothing bounds it.
        secret: what readers cannot know of a record's batch; None if both levels are equal.

    Returns:
        None for a mechanism whose cost only the data shows, and where the claim has no delta to
            work it out at.
    """
    if not 0 < claim.delta < 1:
        return None
    batch = grouping.accountant(manifest.mechanism, change)
    if batch is None:
        return None
    batch = replace(batch, rounds=accounted_rounds(manifest) if secret is None else secret.rounds)
    shares = manifest.privacy.shares(manifest.batching.rounds)
    # as for the batch, whatever the manifest would give
    if change is None or math.isinf(grouping.epsilon):
        secret = None
    privacy = manifest.privacy.model_copy(update={"unit": claim.unit, "relation": claim.relation})
    return accounting.ReleaseAccountant.of(
        batch, manifest.mechanism, privacy, manifest.batching.rule, secret, shares
    )


def approximate_levels(
    accountant: accounting.ReleaseAccountant,
    manifest: Manifest,
    delta: float,
    secrecy: SecretBatches | NotSecret,
) -> Levels:
    """Return (epsilon, delta) at both levels, as settings alone give it."""
    tokens = manifest.decoding.most_tokens
    batch = accountant.batch_level(tokens, delta).epsilon
    release = batch if accountant.secret is None else min(batch, accountant.epsilon(tokens, delta))
    gains_nothing = None if release < batch else accountant.gains_nothing(tokens, delta)
    reason = None if gains_nothing is None else Amplification.why_equal(gains_nothing)
    return Levels(
        release, batch, amplification_of(manifest, secrecy, reason, accounted_rounds(manifest))
    )


def amplification_of(
    manifest: Manifest, secrecy: SecretBatches | NotSecret, reason: Finding | None, rounds: int
) -> Amplification:
    """Return what lies between the levels.

    `reason` is why secret batches make no difference, or None if they do.
    """
    if isinstance(secrecy, NotSecret):
        return Amplification(rounds=rounds, reason=Amplification.why_equal(secrecy))
    if reason is not None:
        return Amplification(rounds=rounds, reason=reason)
    allocation = manifest.batching.allocation
    assumption = PSEUDORANDOM if allocation is not None and allocation.kind == "hashed" else DRAWN
    return Amplification(groups=secrecy.groups, rounds=rounds, assumption=assumption)


def not_ex_post(claim: Claim, change: ContextChange | None) -> Finding | None:
    """Return why an ex-post figure is of the batch level, whatever is secret, or None."""
    return None if amplifies(claim.relation, change) else Finding(code="levels.not-ex-post")
