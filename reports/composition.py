"""The joint cost of releases, for a terminal. Private: it has data-dependent figures."""

from __future__ import annotations

from collections.abc import Iterator

from dpaudit.mechanisms.claims import ApproximateClaim, ZcdpClaim
from dpaudit.reports import attacks
from dpaudit.reports.document import Definitions, Document, Entry, Section, Table
from dpaudit.reports.levels import UNIT_NAMES
from dpaudit.reports.text import one_line
from dpaudit.reports.wording import ABSENT
from dpaudit.results import ForNeighbours
from dpaudit.results.composition import JointCost, Release, Spent, Total
from dpaudit.results.rounding import bound, delta_bound

COLUMNS = ("Release", "Kind", "ε approx.", "of a batch", "δ", "ε ex-post", "of a batch")
_SOURCES = {
    ZcdpClaim.id: "stated, zCDP",
    "rdp": "stated, Rényi DP",
    ApproximateClaim.id: "stated, (ε, δ)",
}
_METHODS = {
    "sum": "added up",
    "rdp": "composed by Rényi DP",
    "optimal": "composed optimally",
}
_CHANGES = {"add_remove": "more or less", "replace": "exchanged for another"}


def build(cost: JointCost) -> Document:
    """Return each release alone, what they cost together by either kind, and what that rests on."""
    entries = [Entry(title, said) for title, said in _lines(cost)]
    return Document(
        f"{len(cost.releases)} releases, {UNIT_NAMES[cost.unit]} {_CHANGES[cost.relation]}",
        [
            Table.of("Releases", COLUMNS, map(_row, cost.releases), words=(1,)),
            Section(
                "Together",
                [Definitions(entries)],
                note="each kind of epsilon apart: they are never added",
            ),
        ],
    )


def _row(release: Release) -> tuple[str, ...]:
    kind = release.aggregator or "run" if release.source == "run" else _SOURCES[release.source]
    if release.rho is not None:
        kind += f", ρ {bound(release.rho)}"
    approximate = release.approximate
    return (
        one_line(release.name),
        kind,
        _epsilon(approximate),
        _epsilon(release.batch_approximate),
        ABSENT if approximate is None else delta_bound(approximate.delta),
        _epsilon(release.ex_post),
        _epsilon(release.batch_ex_post),
    )


def _epsilon(figure: Spent | None) -> str:
    return ABSENT if figure is None else bound(figure.epsilon)


def _lines(cost: JointCost) -> Iterator[tuple[str, str]]:
    for total, known in (
        (cost.approximate, cost.batch_approximate),
        (cost.ex_post, cost.batch_ex_post),
    ):
        yield total.kind, _total(total, len(cost.releases))
        if known.figure is not None:
            yield (
                "batch level",
                f"for someone who knows which batches a record was in: {_figure(known.figure)}",
            )
    yield "attackers", _attackers(cost)
    if (rho := cost.zcdp) is not None:
        of = "" if len(rho.releases) == len(cost.releases) else f", of {_names(rho.releases)}"
        yield (
            ZcdpClaim.name,
            f"ρ ≤ {bound(rho.rho)} at the batch level, added up{of}. {rho.reason or ''}".strip(),
        )
    for shared in cost.shared:
        yield "paid once", f"the same noisy counts and centres: {_names(shared.releases)}"
    for continued in cost.continued:
        yield (
            "one budget",
            f"each went on from what those before had spent: {_names(continued.releases)}",
        )
    for said in cost.notes:
        yield "note", str(said)
    if cost.ex_post.figure is not None:
        yield "private", "ex-post figures depend on the records: do not publish them"


def _attackers(cost: JointCost) -> str:
    """Say what someone can tell who has all releases, or why nothing bounds it."""
    release, batch = cost.approximate.attack, cost.batch_approximate.attack
    if release is None or batch is None:
        return str(cost.no_attack or "")
    most = {each.records_per_user for each in cost.releases if each.source == "run"}
    about = ForNeighbours(
        relation=cost.relation,
        unit=cost.unit,
        records_per_user=most.pop() if len(most) == 1 else None,
    )
    return attacks.in_a_sentence(attacks.Told(about, release, batch))


def _total(total: Total, releases: int) -> str:
    reason = total.reason or ""
    if total.figure is None or total.method is None:
        return f"none. {reason}".strip()
    of = "" if len(total.releases) == releases else f", of {_names(total.releases)}"
    return f"{_figure(total.figure)}, {_METHODS[total.method]}{of}. {reason}".strip()


def _figure(figure: Spent) -> str:
    return f"ε ≤ {bound(figure.epsilon)}" + (
        f" at δ = {delta_bound(figure.delta)}" if figure.delta else ""
    )


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(one_line, names))
