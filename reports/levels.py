"""The two levels of an epsilon: their names, whom they hold against, and why both can be equal.

The release level is for readers of the texts, who do not know which batch a record was in. The
batch level is for whoever does, because they have the key, the assignment or the run directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from dpaudit.mechanisms import Relation, Unit
from dpaudit.mechanisms.claims import (
    ApproximateClaim,
    ExPostClaim,
    KindOfClaim,
    ZcdpClaim,
)
from dpaudit.reports.text import counted, one_line
from dpaudit.reports.wording import neighbours, say
from dpaudit.results import Finding
from dpaudit.results.catalogue import sentence
from dpaudit.results.rounding import (
    bound,
    bound_against,
    decimals,
    delta_bound,
    digits_against,
    in_100,
    stated,
)
from dpaudit.results.values import Quantity, Value

if TYPE_CHECKING:
    from dpaudit.results import (
        Amplification,
        Approximate,
        AttackBound,
        AuditResult,
        ClaimResult,
        ExPost,
        ForNeighbours,
        Guarantees,
    )

RELEASE, BATCH = "Release level", "Batch level"
BOTH = "Both levels"
#: With fewer batches of a group, the release level gains less than half of the batch level.
FEWEST_BATCHES = 4
#: Groups of batches that a line names.
_MOST_GROUPS = 3
_READERS = "For readers of the texts, even if they know every other record and its batch"
_EVERYBODY = "For everybody, even people who know every other record and every batch"
_INSIDERS = (
    "For people who have the key, the assignment or the run directory, and so know each "
    "record's batch"
)
_CHANGES: dict[Relation, dict[str, Value]] = {
    "add_remove": {"change": "Adding or removing"},
    "replace": {"change": "Replacing", "instead": "by another"},
}
#: Whose difference a figure is about, in a word or two.
UNIT_NAMES: dict[Unit, str] = {
    "record": "one record",
    "user": "one person",
    "context": "one context",
}


class Level(NamedTuple):
    """One level of a claim that holds.

    Attributes:
        name: what it is called.
        figure: its epsilon.
        readers: whom it holds against, and what the figure is where it is not the claim's, as a
            sentence.
        promise: what it promises them, as a sentence; empty at the batch level.
        equal: why there is no other level, as a sentence; empty if there is one.
    """

    name: str
    figure: str
    readers: str
    promise: str = ""
    equal: str = ""

    @property
    def promised(self) -> str:
        """Whom it holds against, and what it promises them."""
        promise = f": {self.promise[0].lower()}{self.promise[1:]}" if self.promise else "."
        return f"{self.readers.removesuffix('.')}{promise}"

    @property
    def holds(self) -> str:
        """The same, after why it is the only level."""
        return f"{self.equal} {self.promised}".strip()


def found_of(result: AuditResult) -> ExPost | Approximate | None:
    """Return the recomputed figures of the claim's kind; None without any, or no claim."""
    return None if result.claim is None else result.guarantees.epsilons(result.claim.kind)


def are_apart(claim: ClaimResult | None, found: ExPost | Approximate | None) -> bool:
    """Return whether the levels have figures of their own, as claimed or as recomputed."""
    claimed = claim is not None and claim.batch_epsilon not in (None, claim.epsilon)
    return claimed or (found is not None and bool(found.amplification.groups))


def why_equal(found: ExPost | Approximate | None) -> str:
    """Return why the levels are equal, as a sentence, or "" if they differ or nothing is known."""
    if found is None or found.amplification.groups:
        return ""
    reason = found.amplification.reason
    return f"Both levels are equal{'' if reason is None else f': {one_line(sentence(reason))}'}."


def digits_for(claim: ClaimResult | None, found: ExPost | Approximate | None) -> int:
    """Return digits enough for rounding up not to push an epsilon of a kind past its claim."""
    from dpaudit.results import ExPost

    kind = ExPostClaim.id if isinstance(found, ExPost) else ApproximateClaim.id
    if claim is None or found is None or claim.kind != kind:
        return digits_against(None, None)
    pairs = [(found.epsilon, claim.stated)]
    pairs += [] if claim.batch_epsilon is None else [(found.batch_epsilon, claim.batch_epsilon)]
    return max(digits_against(value, claimed) for value, claimed in pairs)


def holding(result: AuditResult) -> tuple[Level, ...]:
    """Return the levels of a claim that passed, and whom each holds against; else nothing."""
    claim, found = result.claim, found_of(result)
    if claim is None or result.verdict != "pass":
        return ()
    if claim.rho is not None:
        return tuple(_holding_of_rho(result, claim))
    figure = promised(claim)
    if not are_apart(claim, found):
        equal = why_equal(found)
        return (Level(BOTH, figure, f"{_EVERYBODY}.", _promise(claim), equal),) if equal else ()
    release = Level(RELEASE, figure, f"{_READERS}.", _promise(claim))
    if claim.batch_epsilon is not None:
        figure, rest = f"ε ≤ {stated(claim.batch_epsilon)}", "."
    elif found is not None:
        figure = f"ε ≤ {bound(found.batch_epsilon, digits_for(claim, found))}"
        rest = ", as recomputed: none is claimed."
    else:
        figure, rest = "none stated", ": no figure is stated for them."
    return (release, Level(BATCH, figure, f"{_INSIDERS}{rest}"))


def _holding_of_rho(result: AuditResult, claim: ClaimResult) -> Iterator[Level]:
    """Yield what a zCDP claim means at its delta, as recomputed; then the claim, of a batch."""
    found, rho = result.guarantees.approximate, result.guarantees.zcdp
    if found is not None:
        apart = are_apart(None, found)
        rounded = Quantity(value=float(decimals(found.epsilon)), unit="nats")
        epsilon: dict[str, Value] = {"epsilon": rounded, "delta": found.delta}
        readers = f"{_READERS if apart else _EVERYBODY}, as recomputed."
        figure = f"ε ≤ {bound(found.epsilon)} at δ = {stated(found.delta)}"
        yield Level(
            RELEASE if apart else BOTH, figure, readers, _risk(ApproximateClaim, claim, epsilon)
        )
    if rho is not None:
        advantage: dict[str, Value] = {"advantage": rho.advantage}
        yield Level(BATCH, promised(claim), f"{_EVERYBODY}.", _risk(ZcdpClaim, claim, advantage))


def not_covered(claim: ClaimResult | None) -> str:
    """Return whom the figures are about, what another unit's would be, and what adds to them."""
    return f"{_unit(claim)} {say('unit-releases')}".lstrip()


def _unit(claim: ClaimResult | None) -> str:
    """Return whether a claim is about a record or a person, and what the other's figure would be.

    k records cost k times an epsilon at most, by the definition of (epsilon, delta)-DP, and k
    squared times a rho (Bun and Steinke, Proposition 1.9). Of an ex-post cost nothing follows.
    """
    if claim is None:
        return ""
    if claim.unit == "user":
        most = claim.records_per_user
        return say("unit-user") if most is None else say("unit-user-most", most=most)
    if claim.unit == "context":
        return say("unit-context")
    if not claim.terms.beforehand:
        return say("unit-record-ex-post")
    return say("unit-record-zcdp" if claim.rho is not None else "unit-record")


def promised(claim: ClaimResult) -> str:
    """Return what a claim promises, with its symbol, exactly as stated."""
    return f"{claim.terms.symbol} ≤ {stated(claim.stated)}"


def _promise(claim: ClaimResult) -> str:
    """Say what a claim of epsilons promises, for a reader of no formula."""
    values: dict[str, Value] = {"epsilon": Quantity(value=claim.stated, unit="nats")}
    if claim.delta:
        values["delta"] = claim.delta
    return _risk(claim.terms, claim, values)


def _risk(kind: type[KindOfClaim], claim: ClaimResult, figures: Mapping[str, Value]) -> str:
    """Say what figures of a kind promise for the claim's neighbours, for a reader of no formula."""
    values: dict[str, Value] = {**_CHANGES[claim.relation], "unit": claim.unit, **figures}
    if claim.records_per_user:
        values["most"] = claim.records_per_user
    return sentence(Finding(code=kind.risk, values=values))


def secret_batches(amplification: Amplification) -> str:
    """Say what the release level gains from: a group's generated batches, and the rounds."""
    groups = [
        f"all {batches:,}" if generated == batches else f"{generated:,} of {batches:,}"
        for batches, generated in amplification.groups[:_MOST_GROUPS]
    ]
    more = len(amplification.groups) - len(groups)
    listed = " or ".join(groups) + f" (and {more:,} other sizes)" * (more > 0)
    rounds = (
        f", in each of {counted(amplification.rounds, 'round')}" if amplification.rounds > 1 else ""
    )
    return f"{listed} batches of a label or cluster generated{rounds}"


def claimed_words(claim: ClaimResult) -> str:
    """Return the epsilons of a claim as they were stated, each with its level."""
    if claim.rho is not None:
        return f"{promised(claim)} nats (batch level)"
    if claim.batch_epsilon is None:
        return f"{promised(claim)} nats (release level)"
    if claim.batch_epsilon == claim.epsilon:
        return f"{promised(claim)} nats (both levels)"
    return (
        f"{promised(claim)} nats (release level), ε ≤ {stated(claim.batch_epsilon)} nats "
        "(batch level)"
    )


def at_both_levels(found: ExPost | Approximate, digits: int) -> str:
    """Return the recomputed epsilons, each with its level, and their δ."""
    release = f"ε ≤ {bound(found.epsilon, digits)} nats"
    delta = f", δ = {delta_bound(found.delta)}" if found.delta else ""
    if not found.amplification.groups:
        return f"{release} (both levels){delta}"
    return (
        f"{release} (release level), ε ≤ {bound(found.batch_epsilon, digits)} nats (batch "
        f"level){delta}"
    )


def recomputed_words(claim: ClaimResult, guarantees: Guarantees) -> str:
    """Return what was recomputed for a claim; or that nothing was."""
    found, rho = guarantees.epsilons(claim.kind), guarantees.zcdp
    said = []
    if rho is not None:
        said.append(f"ρ ≤ {bound_against(rho.rho, claim.rho)} nats (batch level)")
    if found is not None:
        said.append(at_both_levels(found, digits_for(claim, found)))
    return "; ".join(said) or "no figure of this kind: nothing in the record bounds it"


def few_batches(batches: int, labels: int) -> str:
    """Return what so few batches mean."""
    whose = "a label's records" if labels > 1 else "the records"
    return say("few-batches", whose=whose, batches=batches, fewest=FEWEST_BATCHES)


def claim_words(claim: ClaimResult) -> str:
    """Return a claim as stated: `approximate, ε ≤ 2.5 nats, δ = 1e-5, add or remove one record`."""
    delta = f", δ = {stated(claim.delta)}" if claim.terms.delta == "needed" or claim.delta else ""
    return f"{claim.kind}, {claimed_words(claim)}{delta}, {neighbours_of(claim)}"


def attack_words(bound_on: AttackBound) -> str:
    """Return what attacks can gain, in a line: a coin's share, and a test's."""
    right, recognised = in_100(bound_on.accuracy), in_100(bound_on.tpr_at_1pct)
    return (
        f"advantage {bound(bound_on.advantage)}: a guess is right at most {right} times in 100 (a "
        f"coin: 50); with 1 false alarm in 100, at most {recognised} true ones"
    )


def neighbours_of(stated_for: ForNeighbours) -> str:
    """Return what the neighbours differ by that a claim or a figure holds for."""
    return neighbours(stated_for.relation, stated_for.unit, stated_for.records_per_user)
