"""Find what a reader of a pass must know beside it, and choose what readers outside may be told of that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from dpaudit.checks import Facts
from dpaudit.checks.claim import recomputed_levels
from dpaudit.checks.disclosure import in_common
from dpaudit.results import CheckResult, ClaimResult, Finding, Place, Quantity, Value
from dpaudit.runs import Claim

#: Beyond this epsilon, in nats, a factor has five digits and more, and rules out next to nothing.
_MOST_TELLING = 10


def caveats(facts: Facts, checks: Iterable[CheckResult]) -> Iterator[Finding]:
    """Yield all caveats, for readers inside."""
    claim, manifest = facts.claim, facts.manifest
    privacy, model = manifest.privacy, manifest.model
    levels = recomputed_levels(facts)
    yield from empty_bound(promised_epsilon(claim, None if levels is None else levels.release))
    empty = [batch for batch, header in sorted(facts.headers.items()) if not header.contexts]
    if empty and not facts.kind.beforehand and len(empty) == 1:
        yield Finding(code="empty-bound.empty-batch", values={"batch": Place(batch=empty[0])})
    elif empty and not facts.kind.beforehand:
        yield Finding(code="empty-bound.empty-batches", values={"batches": len(empty)})
    if levels is not None and levels.amplified:
        assert levels.amplification.assumption is not None
        yield Finding(code="caveat.assumption", values={"assumption": levels.amplification.assumption})
        yield Finding(code="caveat.counted-together")
        yield Finding(code="caveat.weak-channels")
    # With "yes" there is no pass.
    yield Finding(code=f"of-model.{'not-trained' if model.trained_on_records == 'no' else 'trained-unknown'}")
    if manifest.recorded is not None and (cells := manifest.batching.cells) is not None:
        yield rows_held(sum(header.contexts for header in facts.headers.values()), cells * len(facts.headers))
    if facts.equal:
        contexts, batch = facts.equal[0]
        values: dict[str, Value] = {"contexts": contexts, "batch": Place(batch=batch)}
        more: dict[str, Value] = {"more": len(facts.equal) - 1} if len(facts.equal) > 1 else {}
        yield Finding(code="caveat.equal-contexts", values=values | more)
    for shared in (facts.replay.shared or ()) if facts.replay is not None else ():
        yield Finding(code="caveat.text-in-common", values={"found": in_common(shared)})
    public = next((check for check in checks if check.id == "mechanism.support-public"), None)
    if public is not None and (public.status == "skip" or not public.evidence):
        yield Finding(code="caveat.public-parts")
    yield Finding(code="caveat.declared")
    if others := sorted({f"{each.package} {each.version}" for each in manifest.plug_ins if not each.is_own}):
        yield Finding(code="caveat.others-parts", values={"packages": tuple(others)})
    if model.isolation == "batch":
        yield Finding(code="of-model.coupled")
    if privacy.earlier:
        yield Finding(code="caveat.earlier-spending")
    if facts.held.commitment is None:
        yield Finding(code="caveat.no-commitment")
    elif facts.held.head is None:
        yield Finding(code="caveat.no-head")
    if facts.held.head not in (None, facts.reader.head()):
        yield Finding(code="caveat.early-head")
    if manifest.sampling.committed and facts.seeded is None:
        yield Finding(code="caveat.no-seed")
    if manifest.claim_stated == "afterwards" and claim == manifest.claim:
        yield Finding(code="of-claim.stated-afterwards")
    if claim.unit == "user":
        yield _about_users(facts)
    yield Finding(code="caveat.number-alone")


def promised_epsilon(claim: Claim | ClaimResult, recomputed: float | None) -> float:
    """Return the epsilon that a claim promises readers, in nats; of zCDP the recomputed one, or rho, which is less."""
    return claim.stated if claim.rho is None or recomputed is None else recomputed


def empty_bound(epsilon: float) -> Iterator[Finding]:
    """Yield a caveat where an epsilon, in nats, is too large to rule anything out."""
    if epsilon > _MOST_TELLING:
        values: dict[str, Value] = {"epsilon": Quantity(value=epsilon, unit="nats")}
        if math.isinf(epsilon):
            values["endless"] = Finding(code="empty-bound.endless")
        else:
            values["digits"] = math.floor(epsilon / math.log(10)) + 1
        yield Finding(code="empty-bound.factor", values=values)


def rows_held(held: int, rows: int) -> Finding:
    """Return how many of a recorded generator's rows show a record; each is a cell of one record or empty."""
    if not held:
        return Finding(code="caveat.rows-empty", values={"rows": rows})
    return Finding(code="caveat.rows-held", values={"held": held, "rows": rows})


def _about_users(facts: Facts) -> Finding:
    privacy = facts.manifest.privacy
    most: dict[str, Value] = {} if privacy.records_per_user is None else {"most": privacy.records_per_user}
    if privacy.records_per_user_from != "declared":
        return Finding(code="caveat.users-counted", values=most)
    counted = facts.replay is not None and facts.replay.most_per_user is not None
    return Finding(code="caveat.users-by-column") if counted else Finding(code="caveat.users-declared", values=most)
