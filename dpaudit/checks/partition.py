"""Is each record in one place only? Parallel composition over batches rests on that."""

from __future__ import annotations

from dpaudit.checks.facts import Facts
from dpaudit.checks.grouping import counts_are_noised
from dpaudit.checks.placement import lacking
from dpaudit.checks.registry import Outcome, judge_origin, not_applicable, run_check


@run_check(
    check_id="partition.disjoint",
    title="Every record is in one batch and one context at most",
    failed="A record is counted twice, or the assignment contradicts the batches",
    evidence=1,
    why="A batch costs what it costs because no other batch has its records. A record counted twice pays only once.",
    remedy="The record contradicts itself. Generate the run again; do not release this one.",
    reference="docs/run-directory.md",
)
def records_are_placed_once(facts: Facts) -> Outcome:
    """The assignment against the manifest's number of records and the batches' numbers of contexts."""
    expected = "digests ascending without repetition, as many as records; contexts as the batches have them"
    placed = facts.placement
    if placed.error is not None:
        return Outcome("fail", "the assignment cannot be read", expected, str(placed.error))
    problem = placed.problem or _contradiction(facts)
    if problem:
        return Outcome("fail", problem, expected)
    if not placed.records and facts.claim.unit == "context":
        return not_applicable(expected, "The claim is per context, and no assignment is recorded.")
    if not placed.records and facts.manifest.data.records:
        return Outcome("skip", "nothing", expected, "The run records no assignment of its records to batches.")
    return Outcome("pass", f"{placed.records} records", expected)


@run_check(
    check_id="partition.stable",
    title="Every record is where the declared rule sends it, whatever the others are",
    failed="The rule looks at other records, or a record is not where it sends it",
    evidence=1,
    why="If one record more moves others to new batches, the change is larger than the one that the bounds allow for.",
    remedy="Place each record by the keyed hash of that record alone (dpaudit.runs.KeyedHash). Generate again.",
    reference="docs/run-directory.md",
)
def rule_gives_the_assignment(facts: Facts) -> Outcome:
    """The assignment against batch and slot hashed anew from each digest; with the data, against the whole rule."""
    batching, per_context = facts.manifest.batching, facts.claim.unit == "context"
    expected = "batch and slot of every record as the keyed hash of that record gives them"
    if facts.replay is not None and facts.replay.assignment:
        return Outcome("fail", facts.replay.assignment, expected, evidence=3)
    if batching.rule == "paper-slices":
        if per_context:
            return not_applicable(expected, "The claim is per context: it does not rest on where records go.")
        found = f"paper-slices, and a claim per {facts.claim.unit}"
        mend = "One record more or less moves later ones to other batches. Claim per context, or use hashed batches."
        return Outcome("fail", found, expected, mend)
    missing = _missing_for_the_rule(facts)
    if missing and per_context:
        return not_applicable(expected, f"The claim is per context, and the run has no {missing}.")
    if missing:
        return Outcome(
            "skip", "nothing", expected, f"The run has no {missing}: without it the rule cannot be run again."
        )
    if facts.placement.error is not None:
        return Outcome("fail", "the assignment cannot be read", expected, str(facts.placement.error))
    if facts.placement.misplaced:
        return Outcome("fail", facts.placement.misplaced, expected)
    if facts.replay is not None:
        return Outcome(
            "pass", f"{facts.manifest.data.records} records, placed anew from the data", expected, evidence=3
        )
    return Outcome("pass", f"{facts.manifest.data.records} records, from their digests", expected)


@run_check(
    check_id="partition.public-parameters",
    title="Numbers of batches, slots and examples are public",
    failed="Numbers of batches, slots or examples were read off private records",
    evidence=0,
    why="Numbers read off private data can tell two neighbouring data sets apart before any token is drawn.",
    remedy="Fix the numbers of batches and slots without the data, or from noisy counts that are paid for.",
    reference="docs/sharp-edges.md",
)
def batching_is_public(facts: Facts) -> Outcome:
    """The declared origin of the batching rule's numbers; with clusters, what their numbers of batches rest on."""
    clustering, batches = facts.manifest.clustering, facts.clusters.batches if facts.clusters else ()
    if clustering.records_per_batch is not None and not counts_are_noised(clustering):
        found = "numbers of batches rest on counts of private records without noise"
        return Outcome("fail", found, "numbers that are public, or rest on noisy counts")
    if clustering.records_per_batch is None and len({count for row in batches for count in row}) > 1:
        found = "clusters have different numbers of batches, and no rule says why"
        return Outcome("fail", found, "one number for all clusters, or numbers that rest on noisy counts")
    return judge_origin(facts.manifest.origins.batching, "batching")


def _missing_for_the_rule(facts: Facts) -> str | None:
    """What the run lacks for its hashed rule to be run again; None where nothing."""
    placement, missing = facts.placement, lacking(facts.manifest)
    if missing is None and facts.manifest.clustering.method != "none" and facts.places is None:
        missing = "file clusters that can be read"
    if missing or placement.records:
        return missing
    if placement.error is not None:
        return "assignment that can be read"
    return "assignment" if facts.manifest.data.records else None


def _contradiction(facts: Facts) -> str | None:
    batching, data, placed = facts.manifest.batching, facts.manifest.data, facts.placement
    for batch, header in facts.headers.items():
        if not placed.records and facts.claim.unit == "context":
            continue
        if not placed.records and not data.records and header.contexts:
            return f"batch {batch} has {header.contexts} contexts, and no record is assigned"
        if batching.rule == "hashed-slots":
            implied = batching.slots
        elif not placed.records:
            continue
        else:
            implied = placed.contexts[batch]
        if header.contexts != implied:
            return f"batch {batch} has {header.contexts} contexts, and {implied} by its rule and the assignment"
    if placed.records and placed.records != data.records:
        return f"{placed.records} records are assigned, and data.records is {data.records}"
    if placed.records and data.digest not in (None, placed.digest):
        return "data.digest is not that of the assigned records"
    return None
