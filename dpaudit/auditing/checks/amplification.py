"""May the claim rest on secret batches, and on those that there are?

Where a rule that the theorem needs does not hold, both levels are equal by construction
(`dpaudit.runs.secrecy`), and claim.epsilon fails for a smaller claim. These checks recognise the
mistake that explains it, like those of composition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from dpaudit.accounting import rounded_sum
from dpaudit.accounting.ex_post_release import ex_post_release
from dpaudit.auditing.checks.claim import TooSmall, recomputed_levels, too_small
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.levels import Level, release_accountant
from dpaudit.auditing.checks.partition import Placement, lacking, unseen_places
from dpaudit.auditing.checks.registry import Outcome, RunCheck, inapplicable
from dpaudit.results import Amplification, Finding, Place, Quantity, Value
from dpaudit.runs import (
    MILLION,
    Allocation,
    Manifest,
    NotSecret,
    Sampling,
    SecretBatches,
    accounted_rounds,
    secret_batches,
)

#: Probability of an alarm on records that were drawn uniformly.
_RARELY = 1e-6
#: A key that could be secret: one without a pattern (`dpaudit.runs.known_keys`).
_ANY_KEY = "092415f1269d1785dabfd3ae6333930b9e10b55cadcb7db1a567c76ccb625fb4"
_EQUAL = "claim.levels-equal"


@RunCheck(id="amplification.key", gathers=(Costs,))
def batches_are_secret(run: AuditedRun) -> Outcome:
    """Compare the claim with the cost of secretly drawn batches, unless the run says they are such.

    A claim that matches only this cost is too small. That nobody but the curator has the key is the
    run's word.
    """
    if isinstance(run.secrecy, SecretBatches):
        return Outcome("pass", "secret", {"drawn": _drawn(run.manifest)})
    found = _explained(run, _with_secret(run.manifest))
    reason = Amplification.why_equal(run.secrecy)
    return (
        inapplicable(_EQUAL, {"reason": reason})
        if found is None
        else found.outcome("known", reason)
    )


@RunCheck(id="amplification.records", gathers=(Costs, Placement))
def batches_are_independent(run: AuditedRun) -> Outcome:
    """Hold the claim against what it would be, had each record been given to its batch by itself.

    A claim that rests on a hash needs an assignment that follows from it, whatever its unit is.
    Draws without a hash are the run's word, and the numbers of records must be such as uniform
    draws give. None may rest on batches of which a recorder saw one record move several.
    """
    secret = run.secrecy if isinstance(run.secrecy, SecretBatches) else None
    if secret is not None and (problem := _unproved(run, secret)) is not None:
        return problem
    levels = recomputed_levels(run)
    reason = None if levels is None else levels.amplification.reason
    if reason is None:
        return Outcome("pass", "independent", {"drawn": _drawn(run.manifest)})
    known = secret is None and _explained(run, _with_secret(run.manifest)) is not None
    # else it is for amplification.key
    found = None if known else _explained(run, _with_independent(run.manifest))
    return (
        inapplicable(_EQUAL, {"reason": reason})
        if found is None
        else found.outcome("dependent", reason)
    )


def _unproved(run: AuditedRun, secret: SecretBatches) -> Outcome | None:
    """Return why the record does not prove that each record was placed by itself, or None."""
    placed, manifest = run[Placement], run.manifest
    if placed.unreadable is not None:
        return Outcome("fail", "unreadable", notes=(placed.unreadable,))
    if problem := placed.misplaced or placed.problem:
        return Outcome("fail", "misplaced", {"problem": problem})
    seen = None if manifest.recorded is None else manifest.recorded.batches
    if seen is not None and seen.moved > 1:
        moved: dict[str, Value] = {
            "moved": seen.moved,
            "batches": manifest.batches,
            "tried": seen.tried,
        }
        return Outcome("fail", "moved", moved, evidence=0)
    if not placed.records and manifest.data.records:
        return Outcome("skip", "unassigned")
    filled = [batch for batch, header in run.headers.items() if header.contexts]
    # slots are contexts without records, too
    if not placed.records and filled and manifest.batching.slots is None:
        return Outcome("fail", "contexts-unassigned", {"batch": Place(batch=filled[0])})
    if (missing := lacking(manifest)) is not None:
        allocation = manifest.batching.allocation
        if allocation is not None and allocation.kind == "hashed":
            return Outcome("skip", "unhashable", {"missing": missing})
        if (unlikely := _unlikely(run, secret)) is not None:
            return unlikely
    unseen = unseen_places(manifest) if placed.records and run.replay is None else ()
    if not unseen:
        return None
    # The record shows neither how many batches there are, nor that each round has its own places.
    if _rests_on_secrecy(run):
        return Outcome("skip", "unseen", notes=unseen)
    return Outcome("skip", "unseen", notes=unseen, evidence=3)


def _rests_on_secrecy(run: AuditedRun) -> bool:
    """Return whether the claim holds only for readers who do not know a record's batch."""
    levels, claimed = recomputed_levels(run), run.claim.epsilon
    return levels is not None and claimed is not None and claimed < levels.batch


@RunCheck(id="amplification.groups", gathers=(Costs,))
def groups_are_her_own(run: AuditedRun) -> Outcome:
    """Compare the claim with the cost over all groups' batches, or over numbers that are private.

    A claim that matches such a cost is too small.
    """
    for short in _release(run):
        for groups in _wrong_groups(run):
            figure = _figure(
                run, run.manifest, SecretBatches(groups, accounted_rounds(run.manifest))
            )
            if figure is not None and short.explained_by(figure):
                (batches, generated), *_ = groups
                wrong: dict[str, Value] = {
                    "batches": batches,
                    "generated": generated,
                    "figure": _nats(figure),
                }
                return Outcome("fail", "wrong-groups", short.values | wrong)
    if not isinstance(run.secrecy, SecretBatches):
        return inapplicable(_EQUAL, {"reason": Amplification.why_equal(run.secrecy)})
    shown = tuple(
        Finding(code="amplification.group", values={"batches": batches, "generated": generated})
        for batches, generated in run.secrecy.groups
    )
    return Outcome("pass", "own-groups", {"groups": shown})


@RunCheck(id="amplification.rounds", gathers=(Costs,))
def rounds_are_paid_for(run: AuditedRun) -> Outcome:
    """Compare the claim with the cost of one round, of those generated, and of an unsplit delta."""
    manifest = run.manifest
    rounds = manifest.batching.rounds
    due = accounted_rounds(manifest) if run.kind.beforehand else manifest.rounds
    due = rounds if run.claim.rho is not None else due
    if rounds == 1:
        return inapplicable("amplification.one-round")
    values: dict[str, Value] = {"due_rounds": due, "rounds": rounds}
    for short in too_small(run):
        for rule, figure in _of_fewer_rounds(run, short.level):
            if short.explained_by(figure):
                return Outcome(
                    "fail",
                    "partial",
                    values | short.values | {"rule": rule, "partial": _nats(figure)},
                )
    if manifest.privacy.split_delta:
        values["split"] = Finding(code="amplification.delta-split")
    if manifest.stopped_after is not None:
        values["stopped_after"] = manifest.stopped_after
    return Outcome("pass", "accounted", values)


def _unlikely(run: AuditedRun, secret: SecretBatches) -> Outcome | None:
    """Return why records lie as uniform draws hardly place them, or None.

    They may have been drawn, or clustered, where there is no reason. Sizes of a group's batches
    that differ by one at most, each group's, are counted by how many draws give such; the share of
    records in generated batches is held against Chernoff's bound.
    """
    placed, manifest = run[Placement], run.manifest
    if manifest.clustering.method != "none":
        return None
    (batches, generated), *_ = secret.groups
    even = 0.0
    for first in range(0, manifest.batching.per_round, generated):
        sizes = [placed.by_batch[batch] for batch in range(first, first + generated)]
        if max(sizes) - min(sizes) > 1:
            even = math.inf
            break
        records, larger = sum(sizes), sum(sizes) % generated
        ways = math.lgamma(records + 1) - sum(math.lgamma(size + 1) for size in sizes)
        even += records * math.log(generated) - ways - math.log(math.comb(generated, larger))
    if math.log(1 / _RARELY) < even < math.inf:
        return Outcome("fail", "equal-sizes")
    due = (1 - manifest.batching.held_out_millionths / MILLION) * generated / batches
    records, shown = placed.records, placed.by_batch.total()
    parts = (shown, due), (records - shown, 1 - due)
    far = sum(
        count * math.log(count / records / share) if share else math.inf
        for count, share in parts
        if count
    )
    if far > math.log(2 / _RARELY):
        return Outcome("fail", "other-share", {"generated": generated, "batches": batches})
    return None


class _Explained(NamedTuple):
    """A claim that is too small, and the figure of secret batches that explains it, in nats."""

    short: TooSmall
    figure: float

    def outcome(self, code: str, reason: Finding) -> Outcome:
        """Return the failure of a check, with why both levels are equal."""
        return Outcome(
            "fail", code, self.short.values | {"figure": _nats(self.figure), "reason": reason}
        )


def _explained(run: AuditedRun, as_if: Manifest) -> _Explained | None:
    """Return a claim that is too small, and equals that of a run of manifest `as_if`, or None."""
    secret = secret_batches(as_if, run.claim.unit, run.clusters)
    if isinstance(secret, NotSecret):
        return None
    for short in _release(run):
        figure = _figure(run, as_if, secret)
        if figure is not None and short.explained_by(figure):
            return _Explained(short, figure)
    return None


def _drawn(manifest: Manifest) -> Finding:
    """Return how the run says that its records were given to batches."""
    allocation = manifest.batching.allocation
    return Finding(
        code="amplification.unsaid" if allocation is None else f"amplification.{allocation.kind}"
    )


def _nats(value: float) -> Quantity:
    return Quantity(value=value, unit="nats")


def _release(run: AuditedRun) -> Iterator[TooSmall]:
    """Yield the claim of the release level, if it is too small."""
    return (short for short in too_small(run) if short.level == "release")


def _with_secret(manifest: Manifest) -> Manifest:
    """Return the manifest, had its batches been drawn in secret."""
    kind = "hashed" if manifest.batching.allocation is None else manifest.batching.allocation.kind
    said = {"allocation": Allocation(kind=kind, secret=True), "key": _ANY_KEY}
    batching = manifest.batching.model_copy(update=said)
    return manifest.model_copy(update={"batching": batching, "sampling": Sampling()})


def _with_independent(manifest: Manifest) -> Manifest:
    """Return the manifest as if records were hashed singly, in secret, with their own budgets."""
    said: dict[str, Any] = {"allocation": Allocation(kind="hashed", secret=True), "key": _ANY_KEY}
    if manifest.batching.rule == "paper-slices":
        said |= {
            "rule": "hashed-records",
            "batches_per_label": manifest.batching.generate_per_label,
        }
    batching = manifest.batching.model_copy(update=said)
    privacy = manifest.privacy.model_copy(update={"shared_budgets": False, "earlier": ()})
    return manifest.model_copy(
        update={"batching": batching, "privacy": privacy, "sampling": Sampling()}
    )


def _figure(run: AuditedRun, manifest: Manifest, secret: SecretBatches) -> float | None:
    """Return epsilon of the release level, were the batches these; None if nothing gives one."""
    costs = run[Costs]
    if not run.kind.beforehand:
        cost = ex_post_release(manifest, secret, run.places, costs.batch_cost)
        return rounded_sum(cost, costs.grouping.epsilon)
    change = manifest.privacy.change(manifest.batching.rule, run.claim.unit, run.claim.relation)
    accountant = release_accountant(manifest, run.claim, costs.grouping, change, secret)
    return (
        None
        if accountant is None
        else accountant.epsilon(manifest.decoding.most_tokens, run.claim.delta)
    )


_Groups = tuple[tuple[int, int], ...]


def _wrong_groups(run: AuditedRun) -> Iterator[_Groups]:
    """Yield batches and generated batches that are wrong for a record's group.

    They are of other groups than its own, or not public.
    """
    batching, clustering = run.manifest.batching, run.manifest.clustering
    if clustering.method == "none":
        labels, batches = len(run.manifest.data.groups), batching.batches_per_label
        if labels > 1 and batches is not None:
            yield ((labels * batches, batching.per_round),)
        return
    counts = (
        [count for row in run.clusters.batches for count in row] if run.clusters is not None else []
    )
    generated = batching.generate_per_cluster
    if not counts or generated is None:
        return
    yield ((sum(counts), batching.per_round),)
    if batching.least_batches is None:
        yield ((min(counts), min(min(counts), generated)),)


def _of_fewer_rounds(run: AuditedRun, level: Level) -> Iterator[tuple[Finding, float]]:
    """Yield, by wrong rule, the cost in nats of fewer rounds than due, or of an unsplit delta."""
    costs = run[Costs]
    manifest, secret = run.manifest, run.secrecy if isinstance(run.secrecy, SecretBatches) else None
    due = accounted_rounds(manifest)
    single = Finding(code="amplification.single-round")
    generated = Finding(code="amplification.generated-rounds", values={"rounds": manifest.rounds})
    fewer = ((single, 1), (generated, manifest.rounds))
    if not run.kind.beforehand:
        if level == "release" and secret is not None and costs.generation_levels.amplified:
            one = max(
                ex_post_release(manifest, secret, run.places, costs.batch_cost, [number])
                for number in range(manifest.rounds)
            )
        else:
            one = max(costs.batch_cost(batch).exact for batch in run.headers)
        yield single, rounded_sum(one, costs.grouping.epsilon)
        return
    tokens, delta = manifest.decoding.most_tokens, run.claim.delta
    if run.claim.rho is not None:
        if costs.of_rho is not None:
            yield from (
                (rule, replace(costs.of_rho, rounds=number).rho_of_all(tokens))
                for rule, number in fewer
            )
        return
    if costs.release is None:
        return
    candidates = [(rule, costs.release.of_rounds(rounds)) for rule, rounds in fewer if rounds < due]
    if costs.release.shares > 1:
        candidates.append(
            (Finding(code="amplification.undivided-delta"), replace(costs.release, shares=1))
        )
    for rule, accountant in candidates:
        yield (
            rule,
            accountant.batch_level(tokens, delta).epsilon
            if level == "batch"
            else accountant.epsilon(tokens, delta),
        )
