"""The claim that guesses of coins are held against, and the level that it is of.

Who guesses a record's batch, or that it was in one of the generated ones, looks at what one batch
tells. An epsilon that counts on the batches' secrecy promises nothing about that: it has a formula
of its own (docs/mathematics.md, "Secret coins").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpaudit.accounting import zcdp_epsilon
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.results.disclosed_texts import Level, NotCompared
from dpaudit.runs import Claim, NotSecret, RunReader


@dataclass(frozen=True)
class TestedClaim:
    """The claim to compare, of neighbours that differ by one unit, which comes or goes.

    Attributes:
        epsilon: in nats; None if there is nothing to compare.
        delta: 0 for none.
        level: whose epsilon it is. Of a batch it is that of one round.
        of: whether it was given, or is the run's own.
        not_compared: why there is nothing; None if there is something.
    """

    epsilon: float | None
    delta: float = 0.0
    level: Level = "batch"
    of: Literal["run", "given"] | None = None
    not_compared: NotCompared | None = None


def claim_of_run(reader: RunReader, claim: Claim | None) -> TestedClaim:
    """Return what a run's claim promises about the coin of one record in one round.

    Args:
        reader: the run.
        claim: its own, or what an audit asks about; None if it states none.
    """
    if claim is None:
        return TestedClaim(None, not_compared="none-claimed")
    if not claim.terms.beforehand:
        # It is worked out at the actual coins, and the theorem needs a bound at every coin.
        return TestedClaim(None, not_compared="ex-post")
    by_record = claim.unit == "record" or (
        claim.unit == "context" and reader.manifest.batching.rule == "hashed-records"
    )
    if claim.relation != "add_remove" or not by_record:
        return TestedClaim(None, delta=claim.delta, not_compared="other-neighbours")
    run = AuditedRun(reader, claim)
    delta = claim.terms.tested_delta(claim.delta)
    if claim.rho is not None:
        stated: float | None = zcdp_epsilon(claim.rho, delta)
    elif claim.batch_epsilon is None and isinstance(run.secrecy, NotSecret):
        stated = claim.epsilon  # both levels are equal
    else:
        stated = claim.batch_epsilon
    if stated is None:
        return TestedClaim(claim.epsilon, delta, "release", "run")
    return TestedClaim(min(stated, _of_one_round(run, delta, stated)), delta, "batch", "run")


def _of_one_round(run: AuditedRun, delta: float, otherwise: float) -> float:
    """Return the batch-level epsilon of one round, by the settings; budgets may be for all."""
    manifest = run.manifest
    if manifest.batching.rounds == 1 or manifest.own_allowances:
        return otherwise
    release = Costs(run).release
    if release is None:
        return otherwise
    return release.of_rounds(1).batch_level(manifest.decoding.most_tokens, delta).epsilon
