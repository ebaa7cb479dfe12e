"""The figures of an audit by their kind, as data, for reports and comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from dpaudit.mechanisms.claims import EMPIRICAL, ApproximateClaim, ExPostClaim, ZcdpClaim
from dpaudit.reports.attacks import found_by, percent_bound
from dpaudit.reports.costs import ex_post_digits
from dpaudit.reports.findings import is_public
from dpaudit.reports.levels import claim_words, digits_for, neighbours_of, secret_batches
from dpaudit.reports.text import one_line
from dpaudit.reports.wording import METHOD_NAMES, neighbours, signed
from dpaudit.results import (
    Approximate,
    Asked,
    AuditResult,
    BoundsAttacks,
    ClaimResult,
    ExPost,
    ForNeighbours,
    Kind,
)
from dpaudit.results.catalogue import sentence
from dpaudit.results.rounding import (
    bound,
    bound_against,
    delta_bound,
    lower_bound,
    nearest,
    saving,
    stated,
)

NEIGHBOURS = "Neighbours"


class KeyFigure(NamedTuple):
    """A figure with its name.

    Attributes:
        shown: how it is shown, rounded to the safe side.
        unit: of what is shown: "nats", or "share" of 1; empty for a count, or words.
        value: the figure itself; None if it is no number, or was not computed.
        of_batch: whether it is of the batch level alone.
    """

    name: str
    shown: str
    unit: str = ""
    value: float | None = None
    of_batch: bool = False

    @property
    def with_unit(self) -> str:
        """The text to show, with its unit if it has digits."""
        return in_nats(self.shown) if self.unit == "nats" else self.shown


def in_nats(figure: str) -> str:
    """Return a figure with its unit; words stay as they are."""
    return f"{figure} nats" if any(character.isdigit() for character in figure) else figure


def promises(result: AuditResult, kind: Kind) -> Iterator[KeyFigure]:
    """Yield what a run promises by one kind: as recomputed, as claimed or agreed, and for whom.

    What was given to the audit in place of the run's own claim is called agreed.
    """
    claim = result.claim if result.claim is not None and result.claim.kind == kind else None
    found: ForNeighbours | None = claim
    if kind == ZcdpClaim.id:
        if (rho := result.guarantees.zcdp) is not None and claim is not None:
            found, shown = rho, bound_against(rho.rho, claim.rho)
            yield KeyFigure("ρ, batch level", shown, "nats", rho.rho)
    elif kind != EMPIRICAL and (epsilons := result.guarantees.epsilons(kind)) is not None:
        found, digits = epsilons, digits_for(claim, epsilons)
        for level, value in (("release", epsilons.epsilon), ("batch", epsilons.batch_epsilon)):
            yield KeyFigure(f"ε, {level} level", bound(value, digits), "nats", value)
        if epsilons.delta:
            delta = delta_bound(epsilons.delta, claim.delta if claim else None)
            yield KeyFigure("δ", delta, value=epsilons.delta)
    if claim is not None:
        yield from _claimed(result, claim)
    if found is not None:
        said = neighbours_of(found)
        if claim is not None and neighbours_of(claim) != said:
            said = f"{said} (claimed: {neighbours_of(claim)})"
        yield KeyFigure(NEIGHBOURS, said)


def _claimed(result: AuditResult, claim: ClaimResult) -> Iterator[KeyFigure]:
    figures: dict[Asked, str] = {
        "epsilon": "ε, release level",
        "batch_epsilon": "ε, batch level",
        "rho": "ρ, batch level",
        "delta": "δ",
    }
    for field, name in figures.items():
        if (figure := getattr(claim, field)) is not None and (figure or field != "delta"):
            who = "Agreed" if field in result.asked else "Claimed"
            unit = "" if field == "delta" else "nats"
            yield KeyFigure(f"{who} {name}", stated(figure), unit, figure)
    if result.own_claim is not None:
        yield KeyFigure("Claimed by the run", claim_words(result.own_claim))
    elif result.asked and is_public(result):
        yield KeyFigure("Claimed by the run", "withheld")


def key_figures(result: AuditResult, kind: Kind) -> list[KeyFigure]:
    """Return what figures of one kind are made of; in public, none that depend on the data."""
    if is_public(result) and kind in (ExPostClaim.id, EMPIRICAL):
        return []
    made = {
        ExPostClaim.id: _ex_post,
        ApproximateClaim.id: _approximate,
        ZcdpClaim.id: _zcdp,
        EMPIRICAL: _empirical,
    }
    return list(made[kind](result))


def _ex_post(result: AuditResult) -> Iterator[KeyFigure]:
    found = result.guarantees.ex_post
    if found is None:
        return
    shown = partial(bound, digits=ex_post_digits(result))
    for name, value, of_batch in (
        ("Generation, exact", found.exact, True),
        ("Rise", found.rise, True),
        ("Fall", found.fall, True),
        ("Rebalancing", found.rebalancing, False),
        ("Generation, Theorem 1", found.theorem1, True),
    ):
        yield KeyFigure(name, shown(value), "nats", value, of_batch)
    saved = found.theorem1 - found.exact
    yield KeyFigure("Exact saves (nats)", saving(found.theorem1, found.exact), value=saved)
    yield from _between_levels(found)
    if (reason := result.guarantees.no_attack) is not None:
        yield KeyFigure("What an attacker can do", one_line(reason))


def _zcdp(result: AuditResult) -> Iterator[KeyFigure]:
    if (found := result.guarantees.zcdp) is not None:
        yield _tokens(found.tokens, any_length=found.any_length)
        yield KeyFigure("Rebalancing", f"{in_nats(bound(found.rebalancing))} of ρ")
        yield from _attacks(found)


def _attacks(found: BoundsAttacks) -> Iterator[KeyFigure]:
    """Yield what attacks can do at both levels, and how that was found."""
    if (release := found.attack) is None or (batch := found.batch_attack) is None:
        return
    levels = {"release": release, "batch": batch}
    for level, bounds in levels.items():
        most = bounds.advantage
        yield KeyFigure(f"Advantage, {level} level", bound(most), "share", most)
    alarms = (f"{percent_bound(each.tpr_at_1pct)} ({name} level)" for name, each in levels.items())
    yield KeyFigure("True alarms at 1% false ones", ", ".join(alarms))
    if said := found_by(release):
        yield KeyFigure("Bounds on attacks", said)


def _tokens(most: int, *, any_length: bool, rounds: int = 1) -> KeyFigure:
    name = f"Tokens accounted for{', in each round' if rounds > 1 else ''}"
    return KeyFigure(
        name, f"any number; a batch has at most {most:,}" if any_length else f"{most:,}", value=most
    )


def _approximate(result: AuditResult) -> Iterator[KeyFigure]:
    found = result.guarantees.approximate
    if found is None:
        return
    method = METHOD_NAMES.get(found.method, one_line(found.method))
    yield KeyFigure("Accounting method", method, of_batch=True)
    low = "not computed" if found.batch_lower is None else lower_bound(found.batch_lower)
    yield KeyFigure("No accountant can go below", low, "nats", found.batch_lower, of_batch=True)
    rdp = bound(found.batch_rdp, digits_for(result.claim, found))
    yield KeyFigure("By Rényi DP", rdp, "nats", found.batch_rdp, of_batch=True)
    any_length = found.method == ZcdpClaim.id
    yield _tokens(found.tokens, any_length=any_length, rounds=found.amplification.rounds)
    if found.rho is not None:
        yield KeyFigure("All tokens", f"rho {bound(found.rho)} (zCDP), whatever their number")
    inside = " inside ε, accounted for jointly" if found.rebalancing else ""
    yield KeyFigure("Rebalancing", f"{in_nats(bound(found.rebalancing))}{inside}")
    if found.centers:
        said = f"{in_nats(bound(found.centers))} of ε and {delta_bound(found.centers_delta)} of δ"
        yield KeyFigure("Cluster centres", said)
    yield KeyFigure("Sensitivity", one_line(found.sensitivity))
    yield from _between_levels(found)
    if result.guarantees.attacks is found:
        yield from _attacks(found)
    for other in found.others:
        said = f"{in_nats(bound(other.epsilon))}; by Rényi DP {bound(other.rdp)}"
        yield KeyFigure(f"To {neighbours(other.relation, other.unit, None)}", said, of_batch=True)


def _between_levels(found: ExPost | Approximate) -> Iterator[KeyFigure]:
    """Yield what lies between the levels, or why nothing does."""
    between = found.amplification
    if between.groups:
        yield KeyFigure("Secret batches", secret_batches(between))
    if between.assumption is not None:
        yield KeyFigure("The release level rests on", one_line(sentence(between.assumption)))
    if between.reason is not None:
        yield KeyFigure("Both levels are equal", one_line(sentence(between.reason)))


def _empirical(result: AuditResult) -> Iterator[KeyFigure]:
    found = result.guarantees.empirical
    if (most := found.leave_one_out_max) is not None:
        yield KeyFigure("Largest loss of a left-out context", nearest(most), "nats", most)
        yield KeyFigure(
            "Contexts left out, one at a time", f"{found.contexts:,}", value=found.contexts
        )
        if found.worst:
            worst = found.worst[0]
            where = f"{signed(worst.loss)} (batch {worst.batch}, slot {worst.slot})"
            yield KeyFigure("Where, with its sign", where)
    if (attack := found.attack) is not None:
        yield KeyFigure(
            "Attack: ε at least", f"{_least(attack.epsilon)} {_sure(attack.confidence)}"
        )
        yield KeyFigure("At δ", delta_bound(attack.delta))
        yield KeyFigure("Without allowing for chance", nearest(attack.estimate), "nats")
        yield KeyFigure("Texts on either side", f"{attack.trials:,}")
        yield KeyFigure("Texts beyond their ex-post bound", f"{attack.beyond:,}")
    if (canaries := found.canaries) is not None:
        yield KeyFigure(
            "Canaries: coins guessed right", f"{canaries.right:,} of {canaries.coins:,}"
        )
        least = f"{_least(canaries.epsilon)} {_sure(canaries.confidence)}"
        yield KeyFigure("ε at least, for all outputs", least)
        yield KeyFigure("And at most, were all right", _least(canaries.most))


def _least(epsilon: float) -> str:
    """Return a bound from below in a row of its own; 0 is none."""
    return in_nats(lower_bound(epsilon)) if epsilon > 0 else "none above 0"


def _sure(confidence: float) -> str:
    return f"({nearest(100 * confidence, 3).rstrip('0').rstrip('.')}% confidence)"
