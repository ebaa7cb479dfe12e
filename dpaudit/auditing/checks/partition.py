"""Is each record in one place only? Parallel composition over batches rests on that.

The file `assignment` has a line per record and can be long, so it is read once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

from typing_extensions import override

from dpaudit.auditing.checks.evidence import AuditedRun, Evidence, input_problem
from dpaudit.auditing.checks.grouping import counts_are_noised
from dpaudit.auditing.checks.registry import (
    Outcome,
    RunCheck,
    SettingsCheck,
    inapplicable,
    judge_origin,
    replay_remedy,
)
from dpaudit.results import Finding, Place, Value
from dpaudit.runs import (
    Assigned,
    Canary,
    ClusterPlaces,
    InputError,
    KeyedHash,
    Manifest,
    RunReader,
    data_digest,
)
from dpaudit.runs.layout import ASSIGNMENT


@dataclass
class Placement(Evidence):
    """The places of records.

    Attributes:
        unreadable: why the file cannot be read to its end; None if it can. The rest is then of the
            lines before.
        records: how many lines it has.
        digest: what `data.digest` of these records would be.
        problem: the first line that cannot be right, whatever the rule.
        misplaced: the first line that the declared rule does not give; None too where it lacks what
            it needs.
        contexts: how many contexts the lines make, by batch.
        by_batch: how many lines name each batch, or with several rounds send their records to it.
        watched: where the run's canaries went, by their digests: all of these that have a line.
    """

    unreadable: Finding | None = None
    records: int = 0
    digest: str = ""
    problem: Finding | None = None
    misplaced: Finding | None = None
    contexts: Counter[int] = field(default_factory=Counter)
    by_batch: Counter[int] = field(default_factory=Counter)
    watched: dict[str, int | None] = field(default_factory=dict)

    @override
    @classmethod
    def begin(cls, run: AuditedRun) -> Self:
        placement = cls()
        watched = set[str]()
        if run.canaries is not None and run.manifest.batching.key is not None:
            watched = {canary_digest(run.manifest, canary) for canary in run.canaries.canaries}
        _read(placement, run.reader, run.places, watched)
        return placement


def canary_digest(manifest: Manifest, canary: Canary) -> str:
    """Return a canary's digest, as the assignment would have it."""
    return KeyedHash(bytes.fromhex(manifest.batching.key or "")).digest(canary.label, canary.text)


@RunCheck(id="partition.disjoint", gathers=(Placement,))
def records_are_placed_once(run: AuditedRun) -> Outcome:
    """Compare the assignment with the manifest's number of records and the batches' contexts.

    With several rounds its lines say no batch: where a record is in each round follows from its
    digest and group.
    """
    placed, batching = run[Placement], run.manifest.batching
    if placed.unreadable is not None:
        return Outcome("fail", "unreadable", {"problem": placed.unreadable})
    if batching.rounds > 1 and run.manifest.clustering.method != "none" and run.places is None:
        return Outcome("skip", "clusters-unread", notes=(Finding(code="file.clusters-unread"),))
    problem = placed.problem or _contradiction(run)
    if problem:
        return Outcome("fail", "contradicted", {"problem": problem})
    if not placed.records and run.claim.unit == "context":
        return inapplicable("partition.claim-without-assignment")
    if not placed.records and run.manifest.data.records:
        return Outcome("skip", "unassigned")
    values: dict[str, Value] = {"records": placed.records} | _counted_rounds(run.manifest)
    if batching.rule == "hashed-cells":
        values["shown"] = run.manifest.prompt.examples_per_context * placed.contexts.total()
        values["generated"] = placed.by_batch.total()
    return Outcome("pass", "once", values)


@RunCheck(id="partition.stable", gathers=(Placement,))
def rule_gives_the_assignment(run: AuditedRun) -> Outcome:
    """Compare the assignment with places hashed anew from digests; with data, the whole rule."""
    batching, per_context, placed = (
        run.manifest.batching,
        run.claim.unit == "context",
        run[Placement],
    )
    if run.replay is not None and run.replay.assignment is not None:
        return Outcome("fail", "contradicted", {"problem": run.replay.assignment}, evidence=3)
    if batching.rule == "paper-slices":
        if per_context:
            return inapplicable("partition.claim-per-context")
        return Outcome("fail", "slices", {"unit": run.claim.unit} | _seen_to_move(run))
    moved = run.manifest.recorded.batches if run.manifest.recorded else None
    if moved is not None and moved.moved > 1 and not per_context:
        return Outcome("fail", "moved", {"rule": batching.rule} | _seen_to_move(run), evidence=0)
    missing = _missing_for_the_rule(run)
    if missing and per_context:
        return inapplicable("partition.claim-without-rule", {"missing": missing})
    if missing:
        return Outcome("skip", "lacking", {"missing": missing})
    if placed.unreadable is not None:
        return Outcome("fail", "unreadable", {"problem": placed.unreadable})
    if placed.misplaced is not None:
        return Outcome("fail", "misplaced", {"problem": placed.misplaced})
    values: dict[str, Value] = {"records": run.manifest.data.records} | _counted_rounds(
        run.manifest
    )
    if run.replay is not None:
        return Outcome("pass", "placed-from-data", values, evidence=3)
    if unseen := unseen_places(run.manifest):
        return Outcome("skip", "unseen", notes=unseen, evidence=3)
    return Outcome("pass", "placed-from-digests", values)


@SettingsCheck(id="partition.public-parameters")
def batching_is_public(run: AuditedRun) -> Outcome:
    """Judge the declared origin of the batching rule's numbers.

    With clusters, judge what the numbers of batches rest on, too.
    """
    batches = run.clusters.batches if run.clusters else ()
    by_counts = run.manifest.batching.records_per_batch is not None
    if by_counts and not counts_are_noised(run.manifest.clustering):
        return Outcome("fail", "exact-counts")
    if not by_counts and len({count for row in batches for count in row}) > 1:
        return Outcome("fail", "uneven")
    return judge_origin(run.manifest.chosen_from.batching, "batching")


@RunCheck(id="partition.users")
def users_have_no_more_records(run: AuditedRun) -> Outcome:
    """Hold the most distinct records that one user has in the data against the declaration.

    A run that names no column of users is taken at its word.
    """
    if run.claim.unit != "user":
        return inapplicable("partition.claim-per-unit", {"unit": run.claim.unit})
    allowed, column = run.manifest.privacy.records_per_user, run.manifest.data.user
    values: dict[str, Value] = {} if allowed is None else {"allowed": allowed}
    if column is None:
        return Outcome("pass", "declared", values, evidence=0)
    if column == run.manifest.data.text:  # by which each text would be somebody's only one
        return Outcome("fail", "told-by-texts", values)
    most = None if run.replay is None else run.replay.most_per_user
    if most is None:
        return Outcome("skip", "uncounted", values, (replay_remedy(run.manifest),))
    values |= {"most": most, "column": column}
    # Written so that a run without a number fails.
    if allowed is not None and most <= allowed:
        return Outcome("pass", "within", values)
    return Outcome("fail", "exceeded", values)


def _counted_rounds(manifest: Manifest) -> dict[str, Value]:
    """Return how many rounds there are, and were to be; nothing of a run with one."""
    if manifest.batching.rounds == 1:
        return {}
    stopped: dict[str, Value] = (
        {} if manifest.stopped_after is None else {"planned": manifest.batching.rounds}
    )
    return {"rounds": manifest.rounds} | stopped


def _seen_to_move(run: AuditedRun) -> dict[str, Value]:
    """Return what a recorder saw when it emptied records; nothing if none did."""
    seen = None if run.manifest.recorded is None else run.manifest.recorded.batches
    return (
        {}
        if seen is None
        else {"moved": seen.moved, "batches": run.manifest.batches, "tried": seen.tried}
    )


def unseen_places(manifest: Manifest) -> tuple[Finding, ...]:
    """Return why only a replay shows that rounds sent records by the rule, or () if sizes do."""
    if manifest.batching.rounds == 1 or manifest.batching.slots is None:
        return ()
    unseen = Finding(code="partition.places-unseen", values={"contexts": manifest.batching.slots})
    return unseen, replay_remedy(manifest)


def _missing_for_the_rule(run: AuditedRun) -> str | Finding | None:
    """Return what the run lacks for its hashed rule to be run again; None if there is nothing."""
    placement, missing = run[Placement], lacking(run.manifest)
    if missing is not None:
        return missing
    if run.manifest.clustering.method != "none" and run.places is None:
        return Finding(code="partition.readable-clusters")
    if placement.records:
        return None
    if placement.unreadable is not None:
        return Finding(code="partition.readable-assignment")
    return ASSIGNMENT if run.manifest.data.records else None


def _contradiction(run: AuditedRun) -> Finding | None:
    """Return the assignment's contradiction of the batches or the manifest, or None."""
    batching, data, placed = run.manifest.batching, run.manifest.data, run[Placement]
    if not placed.records and run.claim.unit == "context":
        return None
    slots = batching.rule == "hashed-slots"
    for batch, header in run.headers.items():
        values: dict[str, Value] = {"batch": Place(batch=batch), "contexts": header.contexts}
        if not placed.records and not data.records and header.contexts:
            return Finding(code="partition.contexts-without-records", values=values)
        if not slots and not placed.records:
            continue
        implied = batching.slots if slots else placed.contexts[batch]
        assert implied is not None
        if header.contexts != implied:
            values |= {"implied": implied}
            values |= {"round": batch // batching.per_round} if batching.rounds > 1 else {}
            return Finding(code="partition.other-contexts", values=values)
    if placed.records and placed.records != data.records:
        return Finding(
            code="partition.other-number",
            values={"assigned": placed.records, "declared": data.records},
        )
    if placed.records and data.digest not in (None, placed.digest):
        return Finding(code="partition.other-digest")
    return None


def _read(
    placement: Placement, reader: RunReader, places: ClusterPlaces | None, watched: Collection[str]
) -> None:
    """Read a run's assignment once.

    Memory grows with contexts and cells in use, not with the records. With several rounds it grows
    with the records, and not with rounds but for the number of contexts of each batch. `places` is
    None if records are not clustered, or where the batches' places are not known. `watched`:
    digests.
    """
    manifest = reader.manifest
    known = places is not None or manifest.clustering.method == "none"
    can_be_run = known and manifest.batching.rule != "paper-slices" and lacking(manifest) is None
    several = manifest.batching.rounds > 1
    rule = _Rule(manifest, places) if can_be_run and not several else None
    lines: _Lines = _Grouped(manifest, places) if several else _Places(manifest, placement.contexts)
    try:
        placement.digest = data_digest(_digests(reader, placement, lines, rule, frozenset(watched)))
    except InputError as error:
        placement.unreadable = input_problem(error, ASSIGNMENT)
    if isinstance(lines, _Grouped):
        lines.place(placement)


def lacking(manifest: Manifest) -> str | None:
    """Return the first number of a hashed rule that the manifest leaves out, or None."""
    by_label = ("key", "batches_per_label", "generate_per_label")
    names = by_label if manifest.clustering.method == "none" else ("key", "generate_per_cluster")
    return next(
        (f"batching.{name}" for name in names if getattr(manifest.batching, name) is None), None
    )


def _digests(
    reader: RunReader,
    placement: Placement,
    lines: _Lines,
    rule: _Rule | None,
    watched: frozenset[str],
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
            problem = Finding(code="partition.digest-order")
        previous = assigned.digest
        if problem and placement.problem is None:
            placement.problem = _line(placement.records, problem)
        if rule is not None and placement.misplaced is None and (problem := rule.problem(assigned)):
            placement.misplaced = _line(placement.records, problem)
        yield assigned.digest


def _line(number: int, problem: Finding) -> Finding:
    return Finding(
        code="partition.line", values={"file": ASSIGNMENT, "line": number, "problem": problem}
    )


def _holds_out(manifest: Manifest) -> Callable[[str], bool]:
    """Return what says whether the rule shows the record of a digest in no batch."""
    share, key = manifest.batching.held_out_millionths, manifest.batching.key or ""
    hashed = KeyedHash(bytes.fromhex(key))
    return lambda digest: share > 0 and hashed.holds_out(digest, share)


class _Lines(Protocol):
    """A reader of an assignment's lines."""

    def problem(self, assigned: Assigned) -> Finding | None:
        """Take in a line, and return why it cannot be right; None if it may be."""
        ...


class _Grouped:
    """The lines of a run of several rounds.

    Each has its record's group, and the places of all rounds follow.
    """

    def __init__(self, manifest: Manifest, places: ClusterPlaces | None) -> None:
        """`places` is None without clusters, and where these are not known: then no group is."""
        self._manifest, self._members = manifest, list[tuple[str, int]]()
        self._held_out, batching = _holds_out(manifest), manifest.batching
        if places is not None:
            self._groups = places.groups
        elif manifest.clustering.method == "none":
            each, count = batching.generate_per_label or 1, batching.batches_per_label or 1
            self._groups = [
                (range(n * each, (n + 1) * each), count) for n in range(len(manifest.data.groups))
            ]
        else:
            self._groups = []

    def problem(self, assigned: Assigned) -> Finding | None:
        """Return what is wrong with a line, or None."""
        if assigned.slot is not None:
            return Finding(code="partition.slot-in-rounds")
        if assigned.batch is None or (self._groups and assigned.batch >= len(self._groups)):
            known: dict[str, Value] = {"groups": len(self._groups)} if self._groups else {}
            return Finding(code="partition.no-group", values=known)
        if self._groups and not self._held_out(assigned.digest):
            self._members.append((assigned.digest, assigned.batch))
        return None

    def place(self, placement: Placement) -> None:
        """Hash all records in every generated round; count its batches' contexts and records."""
        batching = self._manifest.batching
        master, slots = (
            KeyedHash(bytes.fromhex(batching.key or "")),
            batching.slots or batching.cells,
        )
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
                # a cell is a context where it holds exactly so many
                if batching.rule == "hashed-cells":
                    due = self._manifest.prompt.examples_per_context
                    placement.contexts[batch] += records == due
                else:
                    placement.contexts[batch] += records if slots is None else 1


class _Places:
    """The contexts of batches, and the records in each, counted."""

    def __init__(self, manifest: Manifest, contexts: Counter[int]) -> None:
        self._batching, self._contexts = manifest.batching, contexts
        self._most = manifest.prompt.examples_per_context
        self._held: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def problem(self, assigned: Assigned) -> Finding | None:
        """Take in a line, and return why it cannot be right."""
        if assigned.batch is None:
            return None
        batching = self._batching
        if assigned.batch >= batching.batches:
            values: dict[str, Value] = {
                "batch": Place(batch=assigned.batch),
                "batches": batching.batches,
            }
            return Finding(code="partition.no-batch", values=values)
        slots = batching.slots or batching.cells
        if (assigned.slot is None) != (slots is None) or (assigned.slot or 0) >= (slots or 1):
            return Finding(code="partition.slot-unfit", values={"rule": batching.rule})
        if assigned.slot is None:  # every record is a context of its own
            self._contexts[assigned.batch] += 1
            return None
        held, most = self._held[assigned.batch], self._most
        held[assigned.slot] += 1
        # a cell is a context as long as it holds so many, and no more
        if batching.rule == "hashed-cells":
            self._contexts[assigned.batch] += (held[assigned.slot] == most) - (
                held[assigned.slot] == most + 1
            )
            return None
        self._contexts[assigned.batch] += held[assigned.slot] == 1
        if held[assigned.slot] > most:
            return Finding(code="partition.context-full", values={"most": most})
        return None


class _Rule:
    """A hashed rule, run again on digests.

    Labels are not known here: what follows from them is left to a replay. Nor is the cluster of a
    record that is in no batch. One that is in a batch is of its cluster.
    """

    def __init__(self, manifest: Manifest, places: ClusterPlaces | None) -> None:
        self._held_out, batching = _holds_out(manifest), manifest.batching
        self._hash = KeyedHash(bytes.fromhex(batching.key or "")).of_round(0)
        self._places, self._batches = places, batching.batches
        self._per_label, self._generated = (
            batching.batches_per_label or 1,
            batching.generate_per_label or 1,
        )
        if places is not None:
            self._generated = batching.generate_per_cluster or 1
        #: Into how many batches some cluster's records are hashed; the largest, whose records are
        #: left out most, first.
        self._counts = [self._per_label] if places is None else sorted(places.counts, reverse=True)
        self._slots = batching.slots or batching.cells
        self._most = manifest.prompt.examples_per_context
        #: A slot takes no more records once it shows enough of them; a cell takes all.
        self._kind, self._fills = ("cell", False) if batching.cells else ("slot", True)
        self._shown: Counter[tuple[int, int]] = Counter()
        #: Numbers of batches, a batch's number among them, and slots, that are full for some label
        #: or cluster.
        self._full: set[tuple[int, int, int]] = set()

    def problem(self, assigned: Assigned) -> Finding | None:
        """Return why the rule does not give this line, or None."""
        if self._held_out(assigned.digest):
            if assigned.batch is None:
                return None
            return Finding(code="partition.held-out", values={"batch": Place(batch=assigned.batch)})
        slot = None if self._slots is None else self._hash.slot(assigned.digest, self._slots)
        if assigned.batch is None:
            left_out = not any(
                self._leaves_out(assigned.digest, count, slot) for count in self._counts
            )
            return Finding(code="partition.left-out") if left_out else None
        if self._places is not None and assigned.batch >= min(self._batches, len(self._places)):
            return None  # partition.disjoint or release.selection objects
        # Into how many batches its cluster or label is hashed, and the batch's number among them.
        count, place = self._per_label, assigned.batch % self._generated
        if self._places is not None:
            count, place = self._places[assigned.batch].count, self._places[assigned.batch].number
        number = self._hash.batch(assigned.digest, count)
        if number >= self._generated:
            return Finding(
                code="partition.not-generated", values={"batch": Place(batch=assigned.batch)}
            )
        if number != place:
            return Finding(
                code="partition.other-batch", values={"batch": Place(batch=assigned.batch)}
            )
        if assigned.slot != slot:
            places = (("slot", assigned.slot), ("due", slot))
            known: dict[str, Value] = {name: place for name, place in places if place is not None}
            return Finding(code="partition.other-slot", values={"kind": self._kind} | known)
        if self._fills and slot is not None:
            self._shown[assigned.batch, slot] += 1
            if self._shown[assigned.batch, slot] == self._most:
                self._full.add((count, number, slot))
        return None

    def _leaves_out(self, digest: str, count: int, slot: int | None) -> bool:
        """Return whether a record of a group of `count` batches may be in no generated one.

        It is if its own is not, and may be if its slot shows as many of smaller digest as it can.
        """
        number = self._hash.batch(digest, count)
        return number >= self._generated or (
            slot is not None and (count, number, slot) in self._full
        )
