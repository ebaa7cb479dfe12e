"""A run's cost, by its record and by its settings, at both levels.

Claims are held against these figures.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit import accounting
from dpaudit.accounting import Cost
from dpaudit.accounting.ex_post_release import readers_cost
from dpaudit.auditing.checks.evidence import AuditedRun, BatchEvidence, Evidence
from dpaudit.auditing.checks.grouping import grouping_cost
from dpaudit.auditing.checks.levels import (
    Levels,
    amplification_of,
    approximate_levels,
    not_ex_post,
    release_accountant,
)
from dpaudit.auditing.checks.steps import BatchView, StepsView, accountant_for
from dpaudit.results import AttackBound, AttackSettings
from dpaudit.runs import SecretBatches

INFINITE = Cost(math.inf, math.inf, math.inf)
#: Where a claim without a delta has its curves end.
_SMALL_DELTA = 1e-6


class Attacks(NamedTuple):
    """What attacks can do, by the fields of results that bound them."""

    attack: AttackBound
    batch_attack: AttackBound
    attack_settings: AttackSettings


class _BatchCost(NamedTuple):
    """The cost of one batch.

    Attributes:
        spent: what `ExPostAccountant.attach` takes; None if there is nothing to account for.
        unbounded: whether a step has a cost that the record does not give.
    """

    spent: NDArray[np.float64] | None
    unbounded: bool


class _Charged(BatchEvidence):
    """Charges one batch's steps to it."""

    def __init__(self, batch: BatchView) -> None:
        self._batch, self._unbounded = batch, False

    @override
    def look(self, view: StepsView) -> None:
        unpaid = self._batch.accountant is not None and bool(np.isnan(view.costs).any())
        self._unbounded |= unpaid or not view.placed

    @override
    def result(self) -> _BatchCost:
        accountant = self._batch.accountant
        return _BatchCost(
            None if accountant is None else accountant.detach(self._batch.header.id),
            self._unbounded,
        )


class Costs(Evidence):
    """A run's cost: ex-post by its record, and beforehand by its settings.

    Attributes:
        grouping: what grouping records by clusters cost one unit of the claim.
        ex_post: what the record says of the ex-post cost; None if nothing bounds it.
        unbounded: batches with a step whose cost the record does not give.
    """

    def __init__(self, run: AuditedRun) -> None:
        self._run = run
        self.grouping = grouping_cost(run.manifest, run.claim)
        self.ex_post = accountant_for(run.manifest, run.change)
        self.unbounded: set[int] = set()

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        return cls(run)

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence:
        return _Charged(batch)

    @override
    def merge(self, batch: int, found: _BatchCost) -> None:
        if found.unbounded:
            self.unbounded.add(batch)
        if self.ex_post is not None and found.spent is not None:
            self.ex_post.attach(batch, found.spent)

    @property
    def whole(self) -> bool:
        """Whether all batches were read to their end, and each of their steps has a bound."""
        run = self._run
        return not self.unbounded and not run.cut_short and len(run.headers) == run.manifest.batches

    def batch_cost(self, batch: int) -> Cost:
        """Return a batch's ex-post cost in nats if the whole change falls on it, or infinity.

        It is infinite if a step has no bound.
        """
        if self.ex_post is None or batch in self.unbounded or batch in self._run.cut_short:
            return INFINITE
        return self.ex_post.batch_cost(batch)

    @property
    def ex_post_cost(self) -> Cost:
        """Ex-post cost of generation in nats.

        It is infinite if a step has no bound or a batch was not read.
        """
        return self.ex_post.cost if self.ex_post is not None and self.whole else INFINITE

    @cached_property
    def generation_levels(self) -> Levels:
        """Ex-post epsilon of generation at both levels.

        It is infinite if a step has no bound or a batch was not read.
        """
        run, manifest, exact = self._run, self._run.manifest, self.ex_post_cost.exact
        relation, reason = run.claim.relation, not_ex_post(run.claim, run.change)
        release = readers_cost(
            manifest, run.secrecy, relation, run.change, run.places, exact, self.batch_cost
        )
        return Levels(
            release, exact, amplification_of(manifest, run.secrecy, reason, manifest.rounds)
        )

    @property
    def ex_post_levels(self) -> Levels:
        """Epsilon, at both levels, that an ex-post claim must cover: generation's and clusters'."""
        return self.generation_levels.beside(self.grouping.epsilon)

    @cached_property
    def release(self) -> accounting.ReleaseAccountant | None:
        """Both levels by public settings: clusters, and a batch's most tokens, not realised ones.

        None for a mechanism whose cost only the data shows, and where the claim has no delta to
        work it out at.
        """
        secret = self._run.secrecy if isinstance(self._run.secrecy, SecretBatches) else None
        return release_accountant(
            self._run.manifest, self._run.claim, self.grouping, self._run.change, secret
        )

    @cached_property
    def approximate(self) -> accounting.Composition | None:
        """The batch level's approximate guarantee at the claim's delta, if there is one."""
        tokens = self._run.manifest.decoding.most_tokens
        return (
            None
            if self.release is None
            else self.release.batch_level(tokens, self._run.claim.delta)
        )

    @cached_property
    def rho(self) -> float | None:
        """rho of zCDP of everything at the batch level, rounded up; None if there is none."""
        accountant = self.of_rho
        return (
            None
            if accountant is None
            else accountant.rho_of_all(self._run.manifest.decoding.most_tokens)
        )

    @cached_property
    def of_rho(self) -> accounting.ApproximateAccountant | None:
        """The accountant of rho; None for a mechanism without one."""
        return self.grouping.rho_accountant(self._run.manifest, self._run.change)

    @cached_property
    def approximate_levels(self) -> Levels | None:
        """The approximate cost at both levels; None likewise."""
        if self.release is None:
            return None
        return approximate_levels(
            self.release, self._run.manifest, self._run.claim.delta, self._run.secrecy
        )

    @cached_property
    def attacks(self) -> Attacks | None:
        """Bounds on attacks, and what they follow from; None likewise, and for an ex-post claim.

        A claim of zCDP may state no delta: there a small one says how far the curves are worked
        out.
        """
        run, claim = self._run, self._run.claim
        if not run.kind.beforehand:
            return None
        accountant, delta = self.release, claim.delta
        if accountant is None and claim.rho is not None:
            delta = _SMALL_DELTA
            secret = run.secrecy if isinstance(run.secrecy, SecretBatches) else None
            accountant = release_accountant(
                run.manifest,
                claim.model_copy(update={"delta": delta}),
                self.grouping,
                run.change,
                secret,
            )
        if accountant is None:
            return None
        settings = AttackSettings.of(accountant, run.manifest.decoding.most_tokens, delta)
        return Attacks(*settings.bounds(), settings)
