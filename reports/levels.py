"""The two levels of an epsilon: what each is called, whom it holds against, and why both can be equal.

The release level is for readers of the texts, who do not know which batch a record was in. The batch level is for
whoever does, because they have the key, the assignment or the run directory.
"""

from __future__ import annotations

from typing import NamedTuple

from dpaudit.catalogue import sentence
from dpaudit.claims import CLAIM_KINDS, ApproximateClaim, ExPostClaim
from dpaudit.mechanisms import Relation
from dpaudit.reports.text import counted, one_line
from dpaudit.reports.wording import neighbours
from dpaudit.results import (
    Amplification,
    Approximate,
    AuditResult,
    BudgetPanel,
    ClaimResult,
    ExPost,
    Finding,
    RunEpsilon,
    Spread,
)
from dpaudit.results.inspection import Neighbours
from dpaudit.results.rounding import bound, digits_against, stated
from dpaudit.results.values import Quantity, Value

RELEASE, BATCH = "Release level", "Batch level"
BOTH = "Both levels"
#: With fewer batches of a group, the release level gains less than half of the batch level.
FEWEST_BATCHES = 4
#: Groups of batches that a line names.
_MOST_GROUPS = 3
_READERS = "For readers of the texts, even if they know every other record and its batch"
_EVERYBODY = "For everybody, even people who know every other record and every batch"
_INSIDERS = "For people who have the key, the assignment or the run directory, and so know each record's batch"
_CHANGES: dict[Relation, dict[str, Value]] = {
    "add_remove": {"change": "Adding or removing"},
    "replace": {"change": "Replacing", "instead": "by another"},
}
_TO_BE_COUNTED = "Other releases from the same records add to this."
_PERSONS = f"Several records of one person are not covered. {_TO_BE_COUNTED}"


class Level(NamedTuple):
    """One level of a claim that holds.

    Attributes:
        name: what it is called.
        figure: its epsilon.
        readers: whom it holds against, and what the figure is where it is not the claim's, as a sentence.
        promise: what it promises them, as a sentence; empty at the batch level.
        equal: why there is no other level, as a sentence; empty where there is one.
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
    """The recomputed figures of the claim's kind; None where there are none, or no claim."""
    return None if result.claim is None else result.guarantees.epsilons(result.claim.kind)


def are_apart(claim: ClaimResult | None, found: ExPost | Approximate | None) -> bool:
    """Whether the levels have figures of their own, as claimed or as recomputed."""
    claimed = claim is not None and claim.batch_epsilon not in (None, claim.epsilon)
    return claimed or (found is not None and bool(found.amplification.groups))


def why_equal(found: ExPost | Approximate | None) -> str:
    """Why both levels have one figure, as a sentence; empty where they have not, or nothing is known."""
    if found is None or found.amplification.groups:
        return ""
    reason = found.amplification.reason
    return f"Both levels are equal{'' if reason is None else f': {one_line(sentence(reason))}'}."


def digits_for(claim: ClaimResult | None, found: ExPost | Approximate | None) -> int:
    """Significant digits for every figure of one kind that a run has, so that one number never shows in two ways.

    They are enough for rounding up not to push an epsilon of either level past a claim of that kind.
    """
    kind = ExPostClaim.id if isinstance(found, ExPost) else ApproximateClaim.id
    if claim is None or found is None or claim.kind != kind:
        return digits_against(None, None)
    pairs = [(found.epsilon, claim.epsilon)]
    pairs += [] if claim.batch_epsilon is None else [(found.batch_epsilon, claim.batch_epsilon)]
    return max(digits_against(value, claimed) for value, claimed in pairs)


def holding(result: AuditResult) -> tuple[Level, ...]:
    """Return the levels of a claim that passed, each with whom it holds against; empty where none is known to hold."""
    claim, found = result.claim, found_of(result)
    if claim is None or result.verdict != "pass":
        return ()
    figure = f"ε ≤ {stated(claim.epsilon)}"
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


def not_covered(claim: ClaimResult | None) -> str:
    """What neither level is about."""
    return _TO_BE_COUNTED if claim is not None and claim.unit == "user" else _PERSONS


def _promise(claim: ClaimResult) -> str:
    """Say what an epsilon of a claim promises, for a reader of no formula."""
    values: dict[str, Value] = {
        **_CHANGES[claim.relation],
        "unit": claim.unit,
        "epsilon": Quantity(value=claim.epsilon, unit="nats"),
    }
    if claim.records_per_user:
        values["most"] = claim.records_per_user
    if claim.delta:
        values["delta"] = claim.delta
    return sentence(Finding(code=CLAIM_KINDS[claim.kind].risk, values=values))


def secret_batches(amplification: Amplification) -> str:
    """What the release level gains from: how many batches of each group of records are generated, and how often."""
    groups = [
        f"all {batches:,}" if generated == batches else f"{generated:,} of {batches:,}"
        for batches, generated in amplification.groups[:_MOST_GROUPS]
    ]
    more = len(amplification.groups) - len(groups)
    listed = " or ".join(groups) + f" (and {more:,} other sizes)" * (more > 0)
    rounds = f", in each of {counted(amplification.rounds, 'round')}" if amplification.rounds > 1 else ""
    return f"{listed} batches of a label or cluster generated{rounds}"


def claimed_words(claim: ClaimResult) -> str:
    """The epsilons of a claim as they were stated, each with its level."""
    if claim.batch_epsilon is None:
        return f"ε ≤ {stated(claim.epsilon)} nats (release level)"
    if claim.batch_epsilon == claim.epsilon:
        return f"ε ≤ {stated(claim.epsilon)} nats (both levels)"
    return f"ε ≤ {stated(claim.epsilon)} nats (release level), ε ≤ {stated(claim.batch_epsilon)} nats (batch level)"


def few_batches(batches: int, labels: int) -> str:
    """What so few batches mean."""
    whose = "a label's records" if labels > 1 else "the records"
    return (
        f"{whose} go into {batches} batch{'es' * (batches != 1)}: with fewer than {FEWEST_BATCHES}, the release level "
        "gains less than half. Fewer labels, fewer contexts a batch or more records make more batches."
    )


def claim_sentence(result: AuditResult) -> str:
    """The claim in words."""
    claim = result.claim
    if claim is None:
        return "Withheld from this report." if result.audience == "public" else "The run claims no guarantee."
    return claim_words(claim)


def claim_words(claim: ClaimResult) -> str:
    """A claim as it was stated: `approximate, ε ≤ 2.5 nats, δ = 1e-5, add or remove one record`."""
    delta = f", δ = {stated(claim.delta)}" if claim.kind == "approximate" or claim.delta else ""
    return f"{claim.kind}, {claimed_words(claim)}{delta}, {neighbours_of(claim)}"


def neighbours_of(
    stated_for: ClaimResult | ExPost | Approximate | RunEpsilon | BudgetPanel | Spread | Neighbours,
) -> str:
    """Return what the neighbours differ by that a claim or a figure holds for."""
    return neighbours(stated_for.relation, stated_for.unit, stated_for.records_per_user)
