"""Is each record in one place only? Parallel composition over batches rests on that.

The file `assignment` has a line per record and can be long, so it is read once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from dpaudit.catalogue import sentence
from dpaudit.checks.facts import Facts
from dpaudit.checks.rebalancing import counts_are_noised
from dpaudit.checks.registry import Outcome, RunCheck, Worded, judge_origin, not_applicable, replay_remedy, replayed_by
from dpaudit.results import Finding
from dpaudit.runs import Assigned, Batching, ClusterPlaces, InputError, KeyedHash, Manifest, RunReader, data_digest


@RunCheck(id="partition.disjoint")
def records_are_placed_once(facts: Facts) -> Worded:
    """The assignment against the manifest's number of records and the batches' numbers of contexts.

    With several rounds its lines say no batch: where a record is in each round follows from its digest and group.
    """
    expected = "digests ascending without repetition, as many as records; contexts as the batches have them"
    placed = facts.placement
    if placed.error is not None:
        return Worded("fail", "the assignment cannot be read", expected, str(placed.error))
    if facts.manifest.batching.rounds > 1 and facts.manifest.clustering.method != "none" and facts.places is None:
        return Worded("skip", "nothing", expected, "The file clusters cannot be read: restore it.")
    problem = placed.problem or _contradiction(facts)
    if problem:
        return Worded("fail", problem, expected)
    if not placed.records and facts.claim.unit == "context":
        return not_applicable(expected, "The claim is per context, and no assignment is recorded.")
    if not placed.records and facts.manifest.data.records:
        return Worded("skip", "nothing", expected, "The run records no assignment of its records to batches.")
    found, batching = f"{placed.records} records", facts.manifest.batching
    if batching.rounds > 1:
        found += f" in {counted_rounds(facts.manifest)}"
    if batching.rule == "hashed-cells":
        shown = batching.examples_per_context * placed.contexts.total()
        found += f"; {shown} of the {placed.by_batch.total()} in generated batches are shown"
    return Worded("pass", found, expected)


@RunCheck(id="partition.stable")
def rule_gives_the_assignment(facts: Facts) -> Outcome | Worded:
    """The assignment against batch and slot or cell hashed anew from each digest; with the data, the whole rule."""
    batching, per_context = facts.manifest.batching, facts.claim.unit == "context"
    expected = "batch and slot of every record as the keyed hash of that record gives them"
    if facts.replay is not None and facts.replay.assignment:
        return Worded("fail", sentence(facts.replay.assignment), expected, evidence=3)
    if batching.rule == "paper-slices":
        if per_context:
            return not_applicable(expected, "The claim is per context: it does not rest on where records go.")
        found = f"paper-slices, and a claim per {facts.claim.unit}{_seen_to_move(facts)}"
        mend = "One record more or less moves later ones to other batches. Claim per context, or use hashed batches."
        return Worded("fail", found, expected, mend)
    moved = facts.manifest.recorded.batches if facts.manifest.recorded else None
    if moved is not None and moved.moved > 1 and not per_context:
        found = f"{batching.rule}{_seen_to_move(facts)}"
        return Worded("fail", found, expected, "It is not the declared rule that places records.", evidence=0)
    missing = _missing_for_the_rule(facts)
    if missing and per_context:
        return not_applicable(expected, f"The claim is per context, and the run has no {missing}.")
    if missing:
        lacking = f"The run has no {missing}: without it the rule cannot be run again."
        return Worded("skip", "nothing", expected, lacking)
    if facts.placement.error is not None:
        return Worded("fail", "the assignment cannot be read", expected, str(facts.placement.error))
    if facts.placement.misplaced:
        return Worded("fail", facts.placement.misplaced, expected)
    found = f"{facts.manifest.data.records} records"
    if batching.rounds > 1:
        found += f" in {counted_rounds(facts.manifest)}"
    if facts.replay is not None:
        return Worded("pass", f"{found}, placed anew from the data", expected, evidence=3)
    if unseen := unseen_places(facts.manifest):
        return Outcome("skip", "unseen", notes=unseen, evidence=3)
    return Worded("pass", f"{found}, from their digests", expected)


@RunCheck(id="partition.public-parameters")
def batching_is_public(facts: Facts) -> Outcome | Worded:
    """The declared origin of the batching rule's numbers; with clusters, what their numbers of batches rest on."""
    clustering, batches = facts.manifest.clustering, facts.clusters.batches if facts.clusters else ()
    if clustering.records_per_batch is not None and not counts_are_noised(clustering):
        found = "numbers of batches rest on counts of private records without noise"
        return Worded("fail", found, "numbers that are public, or rest on noisy counts")
    if clustering.records_per_batch is None and len({count for row in batches for count in row}) > 1:
        found = "clusters have different numbers of batches, and no rule says why"
        return Worded("fail", found, "one number for all clusters, or numbers that rest on noisy counts")
    return judge_origin(facts.manifest.origins.batching, "batching")


@RunCheck(id="partition.users")
def users_have_no_more_records(facts: Facts) -> Worded:
    """The most distinct records that one user has in the data, by the run's column of users, against the declaration.

    A run that names no such column is taken at its word.
    """
    if facts.claim.unit != "user":
        return not_applicable("a claim per user", f"The claim is per {facts.claim.unit}.")
    allowed, column = facts.manifest.privacy.records_per_user, facts.manifest.data.user
    expected = f"at most {allowed} records a user, as privacy.records_per_user says"
    if column is None:
        found = f"{allowed}, as the run declares"
        return Worded("pass", found, expected, "The run names no column of users (data.user) to count by.", evidence=0)
    if column == facts.manifest.data.text:  # by which each text would be somebody's only one
        return Worded("fail", "users are told apart by the column of texts", expected)
    most = None if facts.replay is None else facts.replay.most_per_user
    if most is None:
        return Worded("skip", "not counted", expected, replayed_by(facts.manifest))
    # Written so that a run without a number fails.
    within = allowed is not None and most <= allowed
    named = f"Users are told apart by the column {column!r}, which the run names." if within else ""
    return Worded("pass" if within else "fail", f"a user has up to {most}", expected, named)


def counted_rounds(manifest: Manifest) -> str:
    """How many rounds there are, and were to be."""
    return f"{manifest.rounds} rounds" + f" of {manifest.batching.rounds}" * (manifest.stopped_after is not None)


def _seen_to_move(facts: Facts) -> str:
    """What a recorder saw when it emptied records, in words."""
    seen = None if facts.manifest.recorded is None else facts.manifest.recorded.batches
    if seen is None:
        return ""
    return f"; one record emptied changes {seen.moved} of {facts.manifest.batches} batches ({seen.tried} tried)"


def unseen_places(manifest: Manifest) -> tuple[Finding, ...]:
    """Return why nothing but a replay shows that rounds sent records where the rule does; nothing where sizes do."""
    if manifest.batching.rounds == 1 or manifest.batching.slots is None:
        return ()
    unseen = Finding(code="partition.places-unseen", values={"contexts": manifest.batching.slots})
    return unseen, replay_remedy(manifest)


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
    if not placed.records and facts.claim.unit == "context":
        return None
    slots = batching.rule == "hashed-slots"
    for batch, header in facts.headers.items():
        if not placed.records and not data.records and header.contexts:
            return f"batch {batch} has {header.contexts} contexts, and no record is assigned"
        if not slots and not placed.records:
            continue
        implied = batching.slots if slots else placed.contexts[batch]
        if header.contexts != implied:
            here = f"batch {batch}"
            if batching.rounds > 1:
                here += f", of round {batch // batching.per_round},"
            return f"{here} has {header.contexts} contexts, and {implied} by its rule and the assignment"
    if placed.records and placed.records != data.records:
        return f"{placed.records} records are assigned, and data.records is {data.records}"
    if placed.records and data.digest not in (None, placed.digest):
        return "data.digest is not that of the assigned records"
    return None


@dataclass
class Placement:
    """Where the records went.

    Attributes:
        error: why the file cannot be read to its end; None where it can. The rest is then of the lines before.
        records: how many lines it has.
        digest: what `data.digest` of these records would be.
        problem: the first line that cannot be right, whatever the rule.
        misplaced: the first line that the declared rule does not give; None too where it lacks what it needs.
        contexts: how many contexts the lines make, by batch.
        by_batch: how many lines name each batch, or with several rounds send their records to it.
        watched: where the records of some digests went: all of these that have a line.
    """

    error: InputError | None = None
    records: int = 0
    digest: str = ""
    problem: str | None = None
    misplaced: str | None = None
    contexts: Counter[int] = field(default_factory=Counter)
    by_batch: Counter[int] = field(default_factory=Counter)
    watched: dict[str, int | None] = field(default_factory=dict)

    def require(self) -> None:
        """Raise InputError where the file cannot be read."""
        if self.error is not None:
            raise self.error


def read_placement(reader: RunReader, places: ClusterPlaces | None = None, watched: Collection[str] = ()) -> Placement:
    """Read a run's assignment once. Memory grows with contexts and cells in use, not with the records.

    With several rounds it grows with the records, and not with rounds but for the number of contexts of each batch.
    `places` is None where records are not clustered, or where the batches' places are not known. `watched`: digests.
    """
    placement, manifest = Placement(), reader.manifest
    known = places is not None or manifest.clustering.method == "none"
    can_be_run = known and manifest.batching.rule != "paper-slices" and lacking(manifest) is None
    several = manifest.batching.rounds > 1
    rule = _Rule(manifest.batching, places) if can_be_run and not several else None
    lines: _Lines = _Grouped(manifest, places) if several else _Places(manifest.batching, placement.contexts)
    try:
        placement.digest = data_digest(_digests(reader, placement, lines, rule, frozenset(watched)))
    except InputError as error:
        placement.error = error.alone()
    if isinstance(lines, _Grouped):
        lines.place(placement)
    return placement


def lacking(manifest: Manifest) -> str | None:
    """The first number of a hashed rule that the manifest leaves out; None where it has them all."""
    by_label = ("key", "batches_per_label", "generate_per_label")
    names = by_label if manifest.clustering.method == "none" else ("key", "generate_per_cluster")
    return next((f"batching.{name}" for name in names if getattr(manifest.batching, name) is None), None)


def _digests(
    reader: RunReader, placement: Placement, lines: _Lines, rule: _Rule | None, watched: frozenset[str]
) -> Iterator[str]:
    """Pass on the records' digests, and note what their lines say."""
    previous, one_round = "", reader.manifest.batching.rounds == 1
    for assigned in reader.assignment():
        placement.records += 1
        if assigned.batch is not None and one_round:
            placement.by_batch[assigned.batch] += 1
        if assigned.digest in watched:
            placement.watched[assigned.digest] = assigned.batch
        problem = lines.problem(assigned)
        if assigned.digest <= previous:
            problem = "its record's digest is repeated or out of order"
        previous = assigned.digest
        if problem and placement.problem is None:
            placement.problem = f"line {placement.records} of the assignment: {problem}"
        if rule is not None and placement.misplaced is None and (problem := rule.problem(assigned)):
            placement.misplaced = f"line {placement.records} of the assignment: {problem}"
        yield assigned.digest


class _Lines(Protocol):
    """What reads the lines of an assignment."""

    def problem(self, assigned: Assigned) -> str | None:
        """Take in a line, and say why it cannot be right."""
        ...


class _Grouped:
    """The lines of a run with several rounds: each has its record's group, and the places of all rounds follow."""

    def __init__(self, manifest: Manifest, places: ClusterPlaces | None) -> None:
        """`places` is None without clusters, and where these are not known: then no group is."""
        self._manifest, self._members = manifest, list[tuple[str, int]]()
        batching = manifest.batching
        if places is not None:
            self._groups = places.groups
        elif manifest.clustering.method == "none":
            each, count = batching.generate_per_label or 1, batching.batches_per_label or 1
            self._groups = [(range(n * each, (n + 1) * each), count) for n in range(len(batching.labels) or 1)]
        else:
            self._groups = []

    def problem(self, assigned: Assigned) -> str | None:
        """See `_Lines`."""
        if assigned.slot is not None:
            return "it has a slot, which each round gives it anew"
        if assigned.batch is None or (self._groups and assigned.batch >= len(self._groups)):
            return f"it names no group of {len(self._groups)}" if self._groups else "it names no group"
        if self._groups:
            self._members.append((assigned.digest, assigned.batch))
        return None

    def place(self, placement: Placement) -> None:
        """Hash all records in every round that was generated, and count contexts and records of its batches."""
        batching = self._manifest.batching
        master, slots = KeyedHash(bytes.fromhex(batching.key or "")), batching.slots or batching.cells
        for number in range(self._manifest.rounds):
            keyed, held = master.of_round(number), Counter[int | tuple[int, int]]()
            for digest, group in self._members:
                ids, count = self._groups[group]
                place = keyed.batch(digest, count)
                if place < len(ids):
                    batch = number * batching.per_round + ids[place]
                    held[batch if slots is None else (batch, keyed.slot(digest, slots))] += 1
            for where, records in held.items():
                batch = where[0] if isinstance(where, tuple) else where
                placement.by_batch[batch] += records
                if batching.rule == "hashed-cells":  # a cell is a context where it holds exactly so many
                    placement.contexts[batch] += records == batching.examples_per_context
                else:
                    placement.contexts[batch] += records if slots is None else 1


class _Places:
    """Counts contexts, and the records in each."""

    def __init__(self, batching: Batching, contexts: Counter[int]) -> None:
        self._batching, self._contexts = batching, contexts
        self._held: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def problem(self, assigned: Assigned) -> str | None:
        """Take in a line, and say why it cannot be right."""
        if assigned.batch is None:
            return None
        batching = self._batching
        if assigned.batch >= batching.batches:
            return f"it names batch {assigned.batch} of {batching.batches}"
        slots = batching.slots or batching.cells
        if (assigned.slot is None) != (slots is None) or (assigned.slot or 0) >= (slots or 1):
            return f"its slot does not fit the rule {batching.rule}"
        if assigned.slot is None:  # every record is a context of its own
            self._contexts[assigned.batch] += 1
            return None
        held, most = self._held[assigned.batch], batching.examples_per_context
        held[assigned.slot] += 1
        if batching.rule == "hashed-cells":  # a cell is a context as long as it holds so many, and no more
            self._contexts[assigned.batch] += (held[assigned.slot] == most) - (held[assigned.slot] == most + 1)
            return None
        self._contexts[assigned.batch] += held[assigned.slot] == 1
        if held[assigned.slot] > most:
            return f"its context shows more than {most} records"
        return None


class _Rule:
    """A hashed rule, run again on digests. Labels are not known here: what follows from them is left to a replay.

    Nor is the cluster of a record that is in no batch. One that is in a batch is of its cluster.
    """

    def __init__(self, batching: Batching, places: ClusterPlaces | None) -> None:
        self._hash = KeyedHash(bytes.fromhex(batching.key or "")).of_round(0)
        self._places, self._batches = places, batching.batches
        self._per_label, self._generated = batching.batches_per_label or 1, batching.generate_per_label or 1
        if places is not None:
            self._generated = batching.generate_per_cluster or 1
        #: Into how many batches some cluster's records are hashed; the largest, whose records are left out most, first.
        self._counts = [self._per_label] if places is None else sorted(places.counts, reverse=True)
        self._slots, self._most = batching.slots or batching.cells, batching.examples_per_context
        #: A slot takes no more records once it shows enough of them; a cell takes all.
        self._named, self._fills = ("cell", False) if batching.cells else ("slot", True)
        self._shown: Counter[tuple[int, int]] = Counter()
        #: Numbers of batches, a batch's number among them, and slots, that are full for some label or cluster.
        self._full: set[tuple[int, int, int]] = set()

    def problem(self, assigned: Assigned) -> str | None:
        """Why the rule does not give this line."""
        slot = None if self._slots is None else self._hash.slot(assigned.digest, self._slots)
        if assigned.batch is None:
            left_out = not any(self._leaves_out(assigned.digest, count, slot) for count in self._counts)
            return "its record belongs to a generated batch, and is left out" if left_out else None
        if self._places is not None and assigned.batch >= min(self._batches, len(self._places)):
            return None  # partition.disjoint or release.selection objects
        # Into how many batches its cluster or label is hashed, and the batch's number among them.
        count, place = self._per_label, assigned.batch % self._generated
        if self._places is not None:
            count, place = self._places[assigned.batch].count, self._places[assigned.batch].number
        number = self._hash.batch(assigned.digest, count)
        if number >= self._generated:
            return f"its record belongs to none of the generated batches, and is in batch {assigned.batch}"
        if number != place:
            return f"its record is in batch {assigned.batch}, and the rule sends it to another"
        if assigned.slot != slot:
            return f"its record is in {self._named} {assigned.slot}, and the rule sends it to {slot}"
        if self._fills and slot is not None:
            self._shown[assigned.batch, slot] += 1
            if self._shown[assigned.batch, slot] == self._most:
                self._full.add((count, number, slot))
        return None

    def _leaves_out(self, digest: str, count: int, slot: int | None) -> bool:
        """Whether a record in a label or cluster of so many batches may be in none that is generated.

        It is where its own is not, and may be where its slot shows as many of smaller digest as it can.
        """
        number = self._hash.batch(digest, count)
        return number >= self._generated or (slot is not None and (count, number, slot) in self._full)
