"""Audited runs, and other tools' statements, -> JointCost: the cost of their releases together."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import get_args

from dpaudit.accounting import (
    ApproximateAccountant,
    Parts,
    ReleaseAccountant,
    RenyiTable,
    joint_attacks,
    joint_epsilon,
    of_one_key,
    rounded_sum,
)
from dpaudit.accounting.worth import composed_epsilon, composed_rho
from dpaudit.auditing.checks.grouping import GroupingCost, grouping_cost, unit_records
from dpaudit.auditing.checks.levels import Level, release_accountant
from dpaudit.mechanisms import Relation, Unit
from dpaudit.mechanisms.claims import ApproximateClaim, ExPostClaim
from dpaudit.results import AttackBound, AuditResult, ExPost, Finding, Message
from dpaudit.results.catalogue import message
from dpaudit.results.composition import (
    Continued,
    JointCost,
    Release,
    Shared,
    Spent,
    Total,
    TotalRho,
)
from dpaudit.results.rounding import stated
from dpaudit.runs import (
    Claim,
    InputError,
    Manifest,
    RunReader,
    SecretBatches,
    continuation_problem,
    most_spent,
    secret_batches,
    spent_by,
)
from dpaudit.runs.layout import CLUSTERS
from dpaudit.runs.statements import Statement
from dpaudit.runs.storage import Location

#: How rarely two runs that drew noise of their own may have the same counts, for counts to pass for
#: shared.
_RARELY = 1e-9


@dataclass(frozen=True)
class _Run:
    """An audited run that can be composed."""

    name: str
    reader: RunReader
    result: AuditResult
    manifest: Manifest
    claim: Claim
    grouping: GroupingCost
    found: ExPost

    @property
    def bounded(self) -> bool:
        """Whether public settings bound its cost."""
        return self.accountant(0.5, []) is not None

    def accountant(self, delta: float, known: Collection[str]) -> ReleaseAccountant | None:
        """Return the run's own accountant at both levels; None if only the data bounds it.

        Args:
            delta: in (0, 1); the least that matters.
            known: runs whose batches nothing may be made of here: they have their key in common
                with another.
        """
        claim, manifest = self.claim.model_copy(update={"delta": delta}), self.manifest
        change = manifest.privacy.change(manifest.batching.rule, claim.unit, claim.relation)
        if change is None or not math.isfinite(self.grouping.epsilon):
            return None
        hidden = None if self.name in known else self.secret
        return release_accountant(manifest, claim, self.grouping, change, hidden)

    @cached_property
    def of_rho(self) -> ApproximateAccountant | None:
        """Return what works out rho of zCDP, of all rounds; None if the run has none."""
        manifest = self.manifest
        change = manifest.privacy.change(
            manifest.batching.rule, self.claim.unit, self.claim.relation
        )
        accountant = self.grouping.rho_accountant(manifest, change)
        if accountant is None or not math.isfinite(
            accountant.rho_of_all(manifest.decoding.most_tokens)
        ):
            return None
        return accountant

    @cached_property
    def secret(self) -> SecretBatches | None:
        """Return readers' ignorance of a record's batch; None if both levels are equal."""
        found = secret_batches(self.manifest, self.claim.unit, self.reader.clusters())
        return found if isinstance(found, SecretBatches) else None

    def ex_post(self, level: Level) -> float:
        """Return what generation cost without its clusters, in nats, rounded up."""
        if level == "batch":
            return self.found.exact
        return min(
            self.found.exact, math.nextafter(self.found.epsilon - self.found.rebalancing, math.inf)
        )

    @property
    def paid(self) -> float:
        """Return what its paid worth figures cost beside its texts, in nats."""
        paid = self.result.paid
        return 0.0 if paid is None else paid.cost(self.claim.relation, self.claim.unit)

    @cached_property
    def spent(self) -> dict[str, float]:
        """Return what each payer had spent by its end. Raises InputError as `spent_by` does."""
        return spent_by(self.reader)

    @property
    def grouped_by(self) -> str | None:
        """A key shared by the runs whose noisy counts are one release, or None.

        It is None if there are no noisy counts, or nobody can tell. Noised centres tell nobody:
        where noise leaves no leaf, each draw of them gives the origin.
        """
        clustering, data = self.manifest.clustering, self.manifest.data.digest
        digest = self.result.run.digests.get(CLUSTERS)
        if clustering.method == "none" or None in (data, digest, clustering.digest):
            return None
        if clustering.origin != "public" or clustering.counts is None:
            return None
        # Rounded noise on one count takes no value more often than this.
        likeliest = -math.expm1(-0.5 / clustering.counts.scale)
        counts = (clustering.centers or 0) * len(self.manifest.data.groups)
        if counts * math.log(likeliest) > math.log(_RARELY):
            return None
        records = unit_records(self.manifest, self.claim.unit)
        stated = (
            clustering.model_dump(mode="json"),
            self.manifest.data.labels,
            data,
            digest,
            records,
        )
        return json.dumps(stated, sort_keys=True)


def compose_runs(
    results: Mapping[Location, AuditResult],
    statements: Sequence[Statement] = (),
    delta: float | None = None,
) -> JointCost:
    """Compose audited runs with each other and with other tools' releases.

    Args:
        results: audits that runs passed, of their own claims, by where they are; one at least.
        statements: of what else was released of the same records.
        delta: in (0, 1), of the approximate total. By default the largest that a run claims, and
            what the statements' deltas add up to.

    Raises:
        InputError: a release that cannot be composed with the others: a run that does not pass or
            is there twice, one that went on from less than another of them had spent, a release for
            other neighbours, or a delta that is spent before it is divided.
    """
    runs = [
        _checked(str(location), RunReader(location), result) for location, result in results.items()
    ]
    relation, unit = _neighbours(runs, statements)
    _require_different(runs)
    shared = _shared(runs)
    delta, chains = delta or _default_delta(runs, statements), _chains(runs)
    known = _of_one_key(runs)
    totals = {
        level: (
            _approximate(chains, statements, shared, delta, level, known),
            _ex_post(runs, statements, shared, level, known),
        )
        for level in get_args(Level)
    }
    return JointCost(
        relation=relation,
        unit=unit,
        releases=(*(_release(run, delta) for run in runs), *map(_stated, statements)),
        approximate=_of_readers(totals["release"][0], totals["batch"][0]),
        ex_post=totals["release"][1],
        batch_approximate=totals["batch"][0],
        batch_ex_post=totals["batch"][1],
        zcdp=_zcdp(runs, chains, statements, shared),
        shared=shared,
        continued=tuple(
            Continued(releases=tuple(run.name for run in chain))
            for chain in chains
            if len(chain) > 1
        ),
        no_attack=message(Finding(code="compose.no-attack-bound"))
        if totals["release"][0].attack is None
        else None,
        notes=tuple(_notes(runs, chains, known)),
    )


def _checked(name: str, reader: RunReader, result: AuditResult) -> _Run:
    """Refuse a run that does not pass, or whose unit is no other release's, with InputError."""
    if result.verdict != "pass" or result.claim is None or result.guarantees.ex_post is None:
        problem = "its own audit does not pass, so nothing is known of what it cost."
        raise InputError(
            name, problem, "Compose runs that pass: `dpaudit verify` says what to mend."
        )
    claim = Claim.model_validate(result.claim.model_dump(exclude={"records_per_user"}))
    if claim.unit == "context":
        problem = "its claim is per context, and a context of one run is none of another."
        raise InputError(
            f"{name}: claim.unit", problem, "Compose runs that claim per record, or per user."
        )
    manifest = reader.manifest
    run = _Run(
        name,
        reader,
        result,
        manifest,
        claim,
        grouping_cost(manifest, claim),
        result.guarantees.ex_post,
    )
    if math.isinf(run.paid):
        problem = f"its paid worth figure is for another unit than its claim's {claim.unit}."
        raise InputError(name, problem, "Compose runs whose claims are for privacy.unit.")
    return run


def _neighbours(runs: Sequence[_Run], statements: Sequence[Statement]) -> tuple[Relation, Unit]:
    """Return what all releases are for. Raises InputError where they are for different things."""
    stated = [(run.name, run.claim.relation, run.claim.unit) for run in runs]
    stated += [(statement.name, statement.relation, statement.unit) for statement in statements]
    first, relation, unit = stated[0]
    for name, *other in stated[1:]:
        if other != [relation, unit]:
            problem = (
                f"it is for {other[0]} of a {other[1]}, and {first} for {relation} of a {unit}."
            )
            raise InputError(
                name, problem, "Compose releases whose guarantees have the same relation and unit."
            )
    return relation, unit


def _chains(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Return the runs, those that went on from each other's spending together and in their order.

    Raises:
        InputError: a run says that somebody had spent less than an earlier one's record shows.
    """
    chains: list[list[_Run]] = []
    for run in sorted(runs, key=lambda run: len(run.manifest.privacy.earlier)):
        for chain in chains:
            own = all(each.claim.unit == each.manifest.privacy.unit for each in (run, *chain))
            if (
                own
                and continuation_problem(run.manifest, [each.manifest for each in chain]) is None
            ):
                if not _goes_on_from(run, chain):
                    continue
                chain.append(run)
                break
        else:
            chains.append([run])
    return chains


def _goes_on_from(run: _Run, chain: Sequence[_Run]) -> bool:
    """Return whether a run shares anybody's budget with the runs that it says it went on from.

    Raises InputError where it says of earlier spending less than their records do.
    """
    spent = most_spent(earlier.spent for earlier in chain)
    known = [
        spent[each.payer] > each.spent for each in run.reader.assignment() if each.payer in spent
    ]
    if less := sum(known):
        names = ", ".join(earlier.name for earlier in chain)
        problem = f"it begins with less than {names} had spent of the budgets of {less} records."
        raise InputError(run.name, problem, "Generate it again with --spent.")
    return bool(known)


def _require_different(runs: Sequence[_Run]) -> None:
    """Refuse a run that is there twice, or was finished twice from one beginning.

    Raises:
        InputError: there is such a run.
    """
    known: dict[str, str] = {}
    for run in runs:
        steps = [
            digest
            for name, digest in run.result.run.digests.items()
            if name not in ("run.json", "hashes")
        ]
        for mark in filter(None, (run.manifest.commitment, json.dumps(sorted(steps)))):
            first = known.setdefault(mark, run.name)
            if first != run.name:
                problem = f"it is the same run as {first}, or goes on from the same beginning."
                raise InputError(
                    run.name, problem, "Name each run once: a copy of a release costs nothing more."
                )


def _of_one_key(runs: Sequence[_Run]) -> frozenset[str]:
    """Return runs whose batches were secret, but whose key another run has.

    Each of them tells of the other's batches.
    """
    keys = Counter(run.manifest.batching.key for run in runs)
    of_others = {key for key, count in keys.items() if key is not None and count > 1}
    return frozenset(
        run.name
        for run in runs
        if run.manifest.batching.key in of_others and run.secret is not None
    )


def _shared(runs: Sequence[_Run]) -> tuple[Shared, ...]:
    groups: dict[str, list[_Run]] = {}
    for run in runs:
        if (grouped := run.grouped_by) is not None:
            groups.setdefault(grouped, []).append(run)
    return tuple(
        Shared(
            releases=tuple(run.name for run in group),
            counts=group[0].grouping.counts,
            centers=Spent(epsilon=group[0].grouping.centers, delta=group[0].grouping.delta),
        )
        for group in groups.values()
        if len(group) > 1
    )


def _default_delta(runs: Sequence[_Run], statements: Sequence[Statement]) -> float | None:
    """Return the delta of totals; None if nothing states one."""
    theirs = [each.approximate.delta for each in statements if each.approximate is not None]
    delta = max(run.claim.delta if run.bounded else 0.0 for run in runs)
    delta = reduce(rounded_sum, theirs, delta)
    return delta if 0 < delta < 1 else None


def _release(run: _Run, delta: float | None) -> Release:
    approximate, accountant = (
        run.result.guarantees.approximate,
        None if delta is None else run.accountant(delta, []),
    )
    figure = known = None
    if approximate is not None:
        figure, known = (
            Spent(epsilon=epsilon, delta=approximate.delta)
            for epsilon in (approximate.epsilon, approximate.batch_epsilon)
        )
    elif accountant is not None and delta is not None:
        tokens = run.manifest.decoding.most_tokens
        figure = Spent(epsilon=accountant.epsilon(tokens, delta), delta=delta)
        known = Spent(epsilon=accountant.batch_level(tokens, delta).epsilon, delta=delta)
    found, finite = run.found, math.isfinite(run.found.batch_epsilon)
    return Release(
        name=run.name,
        source="run",
        aggregator=run.manifest.mechanism.aggregator.name,
        records_per_user=run.result.claim.records_per_user if run.result.claim else None,
        approximate=figure,
        ex_post=Spent(epsilon=found.epsilon, delta=found.delta) if finite else None,
        rho=run.result.guarantees.zcdp.rho if run.result.guarantees.zcdp is not None else None,
        batch_approximate=known,
        batch_ex_post=Spent(epsilon=found.batch_epsilon, delta=found.delta) if finite else None,
    )


def _stated(statement: Statement) -> Release:
    given = statement.approximate
    figure = None if given is None else Spent(epsilon=given.epsilon, delta=given.delta)
    rho = None if statement.zcdp is None else statement.zcdp.rho
    return Release(
        name=statement.name,
        source=statement.kind,
        rho=rho,
        approximate=figure,
        ex_post=None,
        batch_approximate=figure,
    )


def parts_of(statement: Statement) -> Parts:
    """Return a statement as an accountant takes it."""
    if statement.approximate is not None:
        return Parts(pure=(statement.approximate.epsilon,), delta=statement.approximate.delta)
    if statement.zcdp is not None:
        return Parts(rho=statement.zcdp.rho)
    return Parts(renyi=(RenyiTable(tuple(sorted((statement.rdp or {}).items()))),))


def _approximate(
    chains: Sequence[Sequence[_Run]],
    statements: Sequence[Statement],
    shared: Sequence[Shared],
    delta: float | None,
    level: Level,
    known_batches: Collection[str],
) -> Total:
    """Return the joint guarantee of a level of all that have one."""
    later = _charged_with_others([run for chain in chains for run in chain if run.bounded], shared)
    # each part's own tail is told beside the others'
    least = (0.5 if delta is None else delta) / sum(map(len, chains))
    parts: list[Parts] = []
    named: list[str] = []
    without: list[str] = []
    together = () if level == "batch" else _together(chains, known_batches)
    for runs in together:
        whole = [(run.accountant(least, ()), run.manifest.decoding.most_tokens) for run in runs]
        parts += of_one_key([(one, tokens) for one, tokens in whole if one is not None], least)
        named += [run.name for run in runs]
    for chain in chains:
        if chain[0].name in named:
            continue
        accountants = {run.name: run.accountant(least, known_batches) for run in chain}
        known = {
            name: accountant for name, accountant in accountants.items() if accountant is not None
        }
        without += [name for name in accountants if name not in known]
        if len(chain) > 1:  # nobody pays more than the largest budget, in all of them together
            parts.append(Parts(rho=max(accountant.batch.most_rho for accountant in known.values())))
        else:
            tokens = chain[0].manifest.decoding.most_tokens
            for name, one in known.items():
                charged = replace(one, batch=one.batch.without_clusters()) if name in later else one
                parts.append(
                    charged.batch.parts(tokens)
                    if level == "batch"
                    else charged.parts(tokens, least)
                )
        named += known
    paid = (run.paid for chain in chains for run in chain if run.name in named)
    parts += [Parts(pure=(cost,)) for cost in paid if cost]
    parts += map(parts_of, statements)
    named += [statement.name for statement in statements]
    reason = _about("no-approximate", without) if without else None
    if len(named) < 2:
        return Total(kind=ApproximateClaim.id, reason=reason)
    if delta is None:
        raise InputError(
            "--delta",
            "no release states a delta for the total.",
            "Give --delta, below 1 / records.",
        )
    found = joint_epsilon(parts, delta)
    if math.isinf(found.epsilon):
        spent = math.fsum(each.delta for each in parts)
        problem = f"nothing bounds the total at delta {stated(delta)}"
        if spent >= delta:
            problem += f": the releases' own deltas take {stated(spent)} of it"
        raise InputError(
            "--delta",
            f"{problem}.",
            "Give a larger --delta, or orders of Renyi DP that reach further.",
        )
    figure = Spent(epsilon=found.epsilon, delta=delta)
    return Total(
        kind=ApproximateClaim.id,
        releases=tuple(named),
        figure=figure,
        method=found.method,
        reason=reason,
        attack=AttackBound.of(joint_attacks(parts, delta)),
    )


def _of_readers(release: Total, batch: Total) -> Total:
    """Return a release level's total: what someone can who knows the batches bounds readers too."""
    if release.attack is None or batch.attack is None or release.attack == batch.attack:
        return release
    curve = release.attack.curve.meet(batch.attack.curve)
    return release.model_copy(update={"attack": AttackBound.of(curve)})


def _zcdp(
    runs: Sequence[_Run],
    chains: Sequence[Sequence[_Run]],
    statements: Sequence[Statement],
    shared: Sequence[Shared],
) -> TotalRho | None:
    """Return the sum of the rhos of runs and releases, or None.

    A release must state a rho, and two or more must have one.
    """
    if not any(run.claim.rho is not None for run in runs) and not any(
        each.zcdp is not None for each in statements
    ):
        return None
    rhos: list[float] = []
    named: list[str] = []
    without = [each.name for each in statements if each.zcdp is None]
    known = [run for chain in chains for run in chain if run.of_rho is not None]
    later = _charged_with_others(known, shared)
    for chain in chains:
        accountants = {run.name: run.of_rho for run in chain if run.of_rho is not None}
        if len(accountants) < len(chain):
            without += [run.name for run in chain]
            continue
        rhos += [each.rho_of_clusters() for name, each in accountants.items() if name not in later]
        if len(chain) > 1:  # nobody pays more than the largest budget, in all of them together
            rhos.append(max(each.budgets_rho for each in accountants.values()))
        else:
            rhos += [
                each.rho(chain[0].manifest.decoding.most_tokens) for each in accountants.values()
            ]
        rhos += [composed_rho(0.0, run.paid) for run in chain]
        named += accountants
    rhos += [each.zcdp.rho for each in statements if each.zcdp is not None]
    named += [each.name for each in statements if each.zcdp is not None]
    if len(named) < 2:
        return None
    reason = _about("no-rho", without) if without else None
    return TotalRho(releases=tuple(named), rho=reduce(rounded_sum, rhos), reason=reason)


def _together(
    chains: Sequence[Sequence[_Run]], known: Collection[str]
) -> tuple[tuple[_Run, ...], ...]:
    """Return the runs of one key that give a record the same batch, in sets of two or more."""
    sets: dict[str, list[_Run]] = {}
    for run in (chain[0] for chain in chains if len(chain) == 1):
        manifest = run.manifest
        alone = manifest.clustering.method == "none" and not manifest.privacy.split_delta
        if run.name in known and alone and run.bounded:
            users = run.claim.unit == "user" and manifest.privacy.records_per_user
            sets.setdefault(f"{manifest.batching.model_dump_json()} {users}", []).append(run)
    return tuple(
        tuple(runs) for runs in sets.values() if len(runs) == len(_of_key(runs[0], chains)) > 1
    )


def _of_key(run: _Run, chains: Sequence[Sequence[_Run]]) -> list[_Run]:
    """Return all runs that have this one's key."""
    return [
        each
        for chain in chains
        for each in chain
        if each.manifest.batching.key == run.manifest.batching.key
    ]


def _charged_with_others(runs: Sequence[_Run], shared: Sequence[Shared]) -> set[str]:
    """Return the runs whose clusters are charged to another, the first that has them."""
    names = [run.name for run in runs]
    return {
        name for group in shared for name in [each for each in names if each in group.releases][1:]
    }


def _ex_post(
    runs: Sequence[_Run],
    statements: Sequence[Statement],
    shared: Sequence[Shared],
    level: Level,
    known_batches: Collection[str],
) -> Total:
    """Return a level's sum over the runs, each with its clusters unless charged to another."""
    known = [run for run in runs if math.isfinite(run.found.batch_epsilon)]
    later = _charged_with_others(known, shared)
    without = [run.name for run in runs if run not in known] + [
        statement.name for statement in statements
    ]
    reason = _about("no-ex-post", without) if without else None
    if len(known) < 2:
        return Total(kind=ExPostClaim.id, reason=reason)
    costs = []
    for run in known:
        cost = run.ex_post("batch" if run.name in known_batches else level)
        cost = cost if run.name in later else rounded_sum(cost, run.found.rebalancing)
        costs.append(composed_epsilon(cost, run.paid))
    deltas = [run.found.delta for run in known if run.name not in later]
    figure = Spent(
        epsilon=reduce(rounded_sum, costs), delta=min(1.0, reduce(rounded_sum, deltas, 0.0))
    )
    names = tuple(run.name for run in known)
    return Total(kind=ExPostClaim.id, releases=names, figure=figure, method="sum", reason=reason)


def _notes(
    runs: Sequence[_Run], chains: Sequence[Sequence[_Run]], known: Collection[str]
) -> Iterator[Message]:
    yield message(Finding(code="compose.beforehand"))
    together = {run.name for each in _together(chains, known) for run in each}
    for named, what in ((together, "batch-by-batch"), ({*known} - together, "key-in-common")):
        if named:
            yield _about(what, [run.name for run in runs if run.name in named])
    if apart := [first.name for first, *_ in chains if first.manifest.privacy.earlier]:
        yield _about("own-budgets", apart)
    if paid := [run.name for run in runs if run.paid]:
        yield _about("paid", paid)
    most = {run.name: run.manifest.privacy.records_per_user or 0 for run in runs}
    if runs[0].claim.unit == "user" and len({*most.values()}) > 1:
        limits = (
            Finding(code="compose.most-records", values={"most": each, "run": run})
            for run, each in most.items()
        )
        yield message(Finding(code="compose.users", values={"limits": tuple(limits)}))


def _about(what: str, runs: Sequence[str]) -> Message:
    """Return what is said of some releases."""
    return message(Finding(code=f"compose.{what}", values={"runs": tuple(runs)}))
