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
from dpaudit.results.disclosed_texts import LEVEL, Level, NotCompared
from dpaudit.runs import Claim, Manifest, NotSecret, RunReader

#: Of the level at which a claim is refuted, what its delta may take up.
_SHARE_OF_DELTA = 0.1


@dataclass(frozen=True)
class TestedClaim:
    """The claim to compare, of neighbours that differ by one unit, which comes or goes.

    Attributes:
        epsilon: in nats; None if there is nothing to compare.
        delta: 0 for none.
        level: whose epsilon it is. Of a batch it is that of one round.
        of: whether it was given, or is the run's own.
        stated: the epsilon, and its delta, that the run states; None if these are compared.
        not_compared: why there is nothing; None if there is something.
    """

    epsilon: float | None
    delta: float = 0.0
    level: Level = "batch"
    of: Literal["run", "given"] | None = None
    stated: tuple[float, float] | None = None
    not_compared: NotCompared | None = None


def claim_of_run(reader: RunReader, claim: Claim | None, coins: int) -> TestedClaim:
    """Return what a run's claim promises about the coin of one record in one round.

    A delta adds to the chance of right guesses of every coin, so that of thousands a usual one
    leaves nothing to refute. The run's settings promise something at every delta: what they do at
    one that is small enough is compared, or the stated epsilon where that is larger.

    Args:
        reader: the run.
        claim: its own, or what an audit asks about; None if it states none.
        coins: how many there are: records times rounds.
    """
    if claim is None:
        return TestedClaim(None, not_compared="none-claimed")
    if not claim.terms.beforehand:
        # It is worked out at the actual coins, and the theorem needs a bound at every coin.
        return TestedClaim(None, not_compared="known-afterwards")
    manifest = reader.manifest
    by_record = claim.unit == "record" or (
        claim.unit == "context" and manifest.batching.rule == "hashed-records"
    )
    if claim.relation != "add_remove" or not by_record:
        return TestedClaim(None, not_compared="other-neighbours")
    small = min(_SHARE_OF_DELTA * LEVEL / coins, claim.delta or 1.0)
    run = AuditedRun(reader, claim.model_copy(update={"delta": small}))
    is_batch = claim.batch_epsilon is not None or isinstance(run.secrecy, NotSecret)
    level: Level = "batch" if is_batch or claim.rho is not None else "release"
    figures = (claim.batch_epsilon if level == "batch" else None, claim.epsilon)
    stated = next((figure for figure in figures if figure is not None), None)
    promised = _promised(run, level)
    if promised is None:
        if stated is None:
            assert claim.rho is not None  # as it states no epsilon
            return TestedClaim(zcdp_epsilon(claim.rho, small), small, level, "run")
        return TestedClaim(stated, claim.delta, level, "run")
    if stated is None:
        return TestedClaim(promised, small, level, "run")
    if level == "release" or not _is_of_a_round(manifest):
        promised = max(promised, stated)
    return TestedClaim(promised, small, level, "run", (stated, claim.delta))


def _is_of_a_round(manifest: Manifest) -> bool:
    """Return whether one round promises more than all together.

    What users have left goes from round to round.
    """
    return manifest.batching.rounds > 1 and not manifest.own_allowances


def _promised(run: AuditedRun, level: Level) -> float | None:
    """Return the epsilon of a level that the settings promise; None if they promise none."""
    release, tokens = Costs(run).release, run.manifest.decoding.most_tokens
    if release is None:
        return None
    if level == "release":
        return release.epsilon(tokens, run.claim.delta)
    if _is_of_a_round(run.manifest):
        release = release.of_rounds(1)
    return release.batch_level(tokens, run.claim.delta).epsilon
