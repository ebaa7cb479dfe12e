"""May the claim rest on secret batches, and on those that there are?

Where a rule that the theorem needs does not hold, both levels are equal by construction (`dpaudit.runs.secrecy`), and
claim.epsilon fails for a smaller claim. These checks recognise the mistake that explains it, like those of composition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from dpaudit.accounting import rounded_sum
from dpaudit.accounting.ex_post_release import ex_post_release
from dpaudit.checks.claim import TooSmall, recomputed_levels, too_small
from dpaudit.checks.facts import Facts
from dpaudit.checks.levels import Level, release_accountant
from dpaudit.checks.partition import lacking, unseen_places
from dpaudit.checks.registry import Outcome, RunCheck, not_applicable
from dpaudit.results.rounding import rounded_up
from dpaudit.runs import Allocation, Manifest, Sampling, SecretBatches, accounted_rounds, secret_batches
from dpaudit.runs.assignment import KEY_BYTES

_REFERENCE = "docs/mathematics.md#secret-batches"
#: Probability of an alarm on records that were drawn uniformly.
_RARELY = 1e-6
#: Of a key that could be secret.
_ANY_KEY = "a517" * (KEY_BYTES // 2)


@RunCheck(
    id="amplification.key",
    title="The batches were drawn in secret, or the claim does not rest on that",
    fails="The claim rests on batches that others may know",
    evidence=0,
    why=(
        "Whoever knows the key, or the draws, knows which batch each record was in. Against them one batch's figure "
        "holds, which is larger."
    ),
    remedy="Claim the figure of the batch level. For the next run leave batching.key out: it is drawn in secret then.",
    reference=_REFERENCE,
)
def batches_are_secret(facts: Facts) -> Outcome:
    """How the run says its batches were drawn, and what the claim would be, had they been secret.

    That nobody but the curator has the key is the run's word.
    """
    expected = "a key from the operating system of 32 bytes or more, or draws in secret; or a claim of the batch level"
    if not isinstance(facts.secrecy, str):
        return Outcome("pass", f"{_kind(facts.manifest)}, in secret, by the run's word", expected)
    found = _explained(facts, _with_secret(facts.manifest))
    if found is not None:
        return found.outcome("nobody but the curator could know the batches", expected, facts.secrecy)
    return not_applicable(expected, f"Both levels are equal: {facts.secrecy}.")


@RunCheck(
    id="amplification.records",
    title="Each record's batch hangs on no other record, or the claim does not rest on that",
    fails="The claim rests on batches of records that hang on each other",
    evidence=1,
    why=(
        "Where a record's place says something of the others', or what they may spend does, her batch is no secret for "
        "whoever knows the others'."
    ),
    remedy="Claim the figure of the batch level, or hash each record by itself under budgets of its own.",
    reference=_REFERENCE,
)
def batches_are_independent(facts: Facts) -> Outcome:
    """How the run says its batches were drawn, and what the claim would be, had each been drawn by itself.

    A claim that rests on a hash needs an assignment that follows from it, whatever its unit is. Draws without a hash
    are the run's word, and the numbers of records must be such as uniform draws give. None may rest on batches of which
    a recorder saw one record move several.
    """
    expected = "records hashed, or drawn, each by itself, one that comes or goes ex post; or a claim of the batch level"
    if not isinstance(facts.secrecy, str) and (problem := _unproved(facts, facts.secrecy, expected)) is not None:
        return problem
    levels = recomputed_levels(facts)
    if levels is None or levels.amplified:
        return Outcome("pass", f"{_kind(facts.manifest)}, each by itself", expected)
    known = isinstance(facts.secrecy, str) and _explained(facts, _with_secret(facts.manifest)) is not None
    found = None if known else _explained(facts, _with_independent(facts.manifest))  # else it is for amplification.key
    if found is not None:
        return found.outcome("her batch hung on nothing else", expected, levels.amplification.reason)
    return not_applicable(expected, f"Both levels are equal: {levels.amplification.reason}.")


def _unproved(facts: Facts, secret: SecretBatches, expected: str) -> Outcome | None:
    """What keeps the record from bearing out that each record was placed by itself; None where nothing does."""
    placed, manifest = facts.placement, facts.manifest
    if placed.error is not None or placed.misplaced or placed.problem:
        return Outcome("fail", str(placed.error or placed.misplaced or placed.problem), expected)
    seen = None if manifest.recorded is None else manifest.recorded.batches
    if seen is not None and seen.moved > 1:
        found = f"one record emptied changes {seen.moved} of {manifest.batches} batches ({seen.tried} tried)"
        return Outcome("fail", found, expected, evidence=0)
    if not placed.records and manifest.data.records:
        return Outcome("skip", "nothing", expected, "The run records no assignment of its records to batches.")
    filled = [batch for batch, header in facts.headers.items() if header.contexts]
    if not placed.records and filled and manifest.batching.slots is None:  # slots are contexts without records, too
        return Outcome("fail", f"batch {filled[0]} has contexts, and no record is assigned", expected)
    if (missing := lacking(manifest)) is not None:
        allocation = manifest.batching.allocation
        if allocation is not None and allocation.kind == "hashed":
            lost = f"The run has no {missing}: nobody can hash its records again."
            return Outcome("skip", "nothing", expected, lost)
        if (unlikely := _unlikely(facts, secret)) is not None:
            return Outcome("fail", unlikely, expected, "Uniform draws give that in one run of a million at most.")
    unseen = unseen_places(manifest) if placed.records and facts.replay is None else None
    return None if unseen is None else Outcome("skip", "nothing", expected, unseen, evidence=3)


@RunCheck(
    id="amplification.groups",
    title="The claim counts the batches of a record's own group, by public numbers",
    fails="The claim counts batches that a record could not have been in, or that no public number bounds",
    evidence=1,
    why=(
        "Her label is known, and her cluster follows from her record: batches of other groups hide nothing. A number "
        "that private counts decided is another beside another neighbour."
    ),
    remedy="Claim the figure that is worked out from batches_per_label, batches_per_cluster or least_batches.",
    reference=_REFERENCE,
)
def groups_are_her_own(facts: Facts) -> Outcome:
    """The claim against what the batches of all groups together, or numbers that are not public, would give."""
    expected = "batches of one label, or cluster, by numbers that are public"
    for short in _release(facts):
        for groups in _wrong_groups(facts):
            figure = _figure(facts, facts.manifest, SecretBatches(groups, accounted_rounds(facts.manifest)))
            if figure is not None and short.explained_by(figure):
                (batches, generated), *_ = groups
                found = f"{short} is what {generated} of {batches} batches would give ({rounded_up(figure)})"
                return Outcome("fail", found, expected, short.instead)
    if isinstance(facts.secrecy, str):
        return not_applicable(expected, f"Both levels are equal: {facts.secrecy}.")
    found = ", ".join(f"{generated} of {batches} batches" for batches, generated in facts.secrecy.groups)
    return Outcome("pass", f"{found} of a group in a round", expected)


@RunCheck(
    id="amplification.rounds",
    title="The claim pays for every round that was settled beforehand",
    fails="The claim pays for fewer rounds than there are",
    evidence=1,
    why=(
        "Every record serves once in each round. Whoever stops early, having seen texts, and states what the rounds "
        "until then cost, takes the best of several chances: delta is then many times as large."
    ),
    remedy="Claim what all rounds cost, or settle beforehand that delta is split (privacy.split_delta).",
    reference=_REFERENCE,
)
def rounds_are_paid_for(facts: Facts) -> Outcome:
    """The claim against what fewer rounds cost, one or those that were generated, and what an undivided delta does."""
    manifest = facts.manifest
    rounds = manifest.batching.rounds
    due = manifest.rounds if facts.claim.kind == "ex-post" else accounted_rounds(manifest)
    expected = f"{due} of {rounds} rounds"
    if rounds == 1:
        return not_applicable(expected, "The run has one round.")
    for short in too_small(facts):
        for rule, figure in _of_fewer_rounds(facts, short.level):
            if short.explained_by(figure):
                return Outcome(
                    "fail", f"{short} is covered by {rule} only ({rounded_up(figure)})", expected, short.instead
                )
    split = "; delta is split over all" if manifest.privacy.split_delta else ""
    stopped = "" if manifest.stopped_after is None else f"; stopped after {manifest.stopped_after}"
    return Outcome("pass", f"{due} rounds are accounted for{split}{stopped}", expected)


def _unlikely(facts: Facts, secret: SecretBatches) -> str | None:
    """How records lie in a way that uniform draws hardly give; None where they may well have been drawn, or clustered.

    Sizes of a group's batches that differ by one at most, each group's, are counted by how many draws give such; the
    share of records in generated batches is held against Chernoff's bound.
    """
    placed, manifest = facts.placement, facts.manifest
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
        return "batches of one size, where draws would give several"
    due, records, shown = generated / batches, placed.records, placed.by_batch.total()
    parts = (shown, due), (records - shown, 1 - due)
    far = sum(count * math.log(count / records / share) if share else math.inf for count, share in parts if count)
    if far > math.log(2 / _RARELY):
        return f"another share of the records in generated batches than {generated} of {batches} batches would have"
    return None


@dataclass(frozen=True)
class _Explained:
    """A claim that is too small, and the figure of secret batches that explains it, in nats."""

    short: TooSmall
    figure: float

    def outcome(self, condition: str, expected: str, reason: str) -> Outcome:
        found = f"{self.short} would hold if {condition} ({rounded_up(self.figure)})"
        return Outcome("fail", found, expected, f"But {reason}. {self.short.instead}")


def _explained(facts: Facts, as_if: Manifest) -> _Explained | None:
    """Whether a claim that is too small is what a run of that manifest would claim."""
    secret = secret_batches(as_if, facts.claim.unit, facts.clusters)
    if isinstance(secret, str):
        return None
    for short in _release(facts):
        figure = _figure(facts, as_if, secret)
        if figure is not None and short.explained_by(figure):
            return _Explained(short, figure)
    return None


def _kind(manifest: Manifest) -> str:
    allocation = manifest.batching.allocation
    return "records" if allocation is None else {"hashed": "hashed", "uniform": "drawn uniformly"}[allocation.kind]


def _release(facts: Facts) -> Iterator[TooSmall]:
    """The claim of the release level, where it is too small."""
    return (short for short in too_small(facts) if short.level == "release")


def _with_secret(manifest: Manifest) -> Manifest:
    """The manifest, had its batches been drawn in secret."""
    kind = "hashed" if manifest.batching.allocation is None else manifest.batching.allocation.kind
    said = {"allocation": Allocation(kind=kind, secret=True), "key": _ANY_KEY}
    batching = manifest.batching.model_copy(update=said)
    return manifest.model_copy(update={"batching": batching, "sampling": Sampling()})


def _with_independent(manifest: Manifest) -> Manifest:
    """The manifest, had its records been hashed one by one, in secret, and had they budgets of their own."""
    said: dict[str, Any] = {"allocation": Allocation(kind="hashed", secret=True), "key": _ANY_KEY}
    if manifest.batching.rule == "paper-slices":
        said |= {"rule": "hashed-records", "batches_per_label": manifest.batching.generate_per_label}
    batching = manifest.batching.model_copy(update=said)
    privacy = manifest.privacy.model_copy(update={"shared_budgets": False, "earlier": ()})
    return manifest.model_copy(update={"batching": batching, "privacy": privacy, "sampling": Sampling()})


def _figure(facts: Facts, manifest: Manifest, secret: SecretBatches) -> float | None:
    """Epsilon of the release level, were the batches these; None where nothing gives one."""
    if facts.claim.kind == "ex-post":
        cost = ex_post_release(manifest, secret, facts.places, facts.batch_cost)
        return rounded_sum(cost, facts.grouping.epsilon)
    change = manifest.privacy.change(manifest.batching.rule, facts.claim.unit, facts.claim.relation)
    accountant = release_accountant(manifest, facts.claim, facts.grouping, change, secret)
    return None if accountant is None else accountant.epsilon(manifest.stopping.most_tokens, facts.claim.delta)


_Groups = tuple[tuple[int, int], ...]


def _wrong_groups(facts: Facts) -> Iterator[_Groups]:
    """Numbers of batches and of generated ones that are not those of one record's group, or not public."""
    batching, clustering = facts.manifest.batching, facts.manifest.clustering
    if clustering.method == "none":
        labels, batches = len(batching.labels), batching.batches_per_label
        if labels > 1 and batches is not None:
            yield ((labels * batches, batching.per_round),)
        return
    counts = [count for row in facts.clusters.batches for count in row] if facts.clusters is not None else []
    generated = batching.generate_per_cluster
    if not counts or generated is None:
        return
    yield ((sum(counts), batching.per_round),)
    if clustering.least_batches is None:
        yield ((min(counts), min(min(counts), generated)),)


def _of_fewer_rounds(facts: Facts, level: Level) -> Iterator[tuple[str, float]]:
    """What fewer rounds cost than are due, and what a delta costs that is not split, in nats."""
    manifest, secret = facts.manifest, None if isinstance(facts.secrecy, str) else facts.secrecy
    due = accounted_rounds(manifest)
    fewer = {"a single round": 1, f"the {manifest.rounds} rounds that were generated": manifest.rounds}
    if facts.claim.kind == "ex-post":
        if level == "release" and secret is not None and facts.generation_levels.amplified:
            one = max(
                ex_post_release(manifest, secret, facts.places, facts.batch_cost, [number])
                for number in range(manifest.rounds)
            )
        else:
            one = max(facts.batch_cost(batch).exact for batch in facts.headers)
        yield "a single round", rounded_sum(one, facts.grouping.epsilon)
        return
    if facts.release is None:
        return
    tokens, delta = manifest.stopping.most_tokens, facts.claim.delta
    candidates = [(rule, facts.release.of_rounds(rounds)) for rule, rounds in fewer.items() if rounds < due]
    if facts.release.shares > 1:
        candidates.append(("a delta that is not split", replace(facts.release, shares=1)))
    for rule, accountant in candidates:
        yield (
            rule,
            accountant.batch_level(tokens, delta).epsilon if level == "batch" else accountant.epsilon(tokens, delta),
        )
