"""What the file `assignment` says, gathered in one reading: it has a line per record and can be long."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from dpaudit.runs import Assigned, Batching, InputError, KeyedHash, RunReader, data_digest


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
    """

    error: InputError | None = None
    records: int = 0
    digest: str = ""
    problem: str | None = None
    misplaced: str | None = None
    contexts: Counter[int] = field(default_factory=Counter)

    def require(self) -> None:
        """Raise InputError where the file cannot be read."""
        if self.error is not None:
            raise self.error


def read_placement(reader: RunReader) -> Placement:
    """Read a run's assignment once. Memory grows with the contexts, not with the records."""
    placement, batching = Placement(), reader.manifest.batching
    try:
        placement.digest = data_digest(_digests(reader, placement, _Rule(batching) if can_be_run(batching) else None))
    except InputError as error:
        placement.error = error
    return placement


def can_be_run(batching: Batching) -> bool:
    """Whether the manifest says all that running its batching rule again takes."""
    return batching.rule != "paper-slices" and lacking(batching) is None


def lacking(batching: Batching) -> str | None:
    """The first number of a hashed rule that the manifest leaves out; None where it has them all."""
    names = ("key", "batches_per_label", "generate_per_label")
    return next((f"batching.{name}" for name in names if getattr(batching, name) is None), None)


def _digests(reader: RunReader, placement: Placement, rule: _Rule | None) -> Iterator[str]:
    """Pass on the records' digests, and note what their lines say."""
    places, previous = _Places(reader.manifest.batching, placement.contexts), ""
    for assigned in reader.assignment():
        placement.records += 1
        problem = places.problem(assigned)
        if assigned.digest <= previous:
            problem = "its record's digest is repeated or out of order"
        previous = assigned.digest
        if problem and placement.problem is None:
            placement.problem = f"line {placement.records} of the assignment: {problem}"
        if rule is not None and placement.misplaced is None and (problem := rule.problem(assigned)):
            placement.misplaced = f"line {placement.records} of the assignment: {problem}"
        yield assigned.digest


class _Places:
    """Counts contexts, and the records in each."""

    def __init__(self, batching: Batching, contexts: Counter[int]) -> None:
        self._batching, self._contexts = batching, contexts
        self._shown: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def problem(self, assigned: Assigned) -> str | None:
        """Take in a line, and say why it cannot be right."""
        if assigned.batch is None:
            return None
        batching = self._batching
        if assigned.batch >= batching.batches:
            return f"it names batch {assigned.batch} of {batching.batches}"
        if (assigned.slot is None) != (batching.slots is None) or (assigned.slot or 0) >= (batching.slots or 1):
            return f"its slot does not fit the rule {batching.rule}"
        if assigned.slot is None:  # every record is a context of its own
            self._contexts[assigned.batch] += 1
            return None
        shown = self._shown[assigned.batch]
        self._contexts[assigned.batch] += assigned.slot not in shown
        shown[assigned.slot] += 1
        if shown[assigned.slot] > batching.examples_per_context:
            return f"its context shows more than {batching.examples_per_context} records"
        return None


class _Rule:
    """A hashed rule, run again on digests. Labels are not known here: what follows from them is left to a replay."""

    def __init__(self, batching: Batching) -> None:
        self._hash = KeyedHash(bytes.fromhex(batching.key or ""))
        self._count, self._generated = batching.batches_per_label or 1, batching.generate_per_label or 1
        self._slots, self._most = batching.slots, batching.examples_per_context
        self._shown: Counter[tuple[int, int]] = Counter()
        self._full: set[tuple[int, int]] = set()  # numbers within a label, and slots, that are full for some label

    def problem(self, assigned: Assigned) -> str | None:
        """Why the rule does not give this line."""
        number = self._hash.batch(assigned.digest, self._count)
        slot = None if self._slots is None else self._hash.slot(assigned.digest, self._slots)
        if assigned.batch is None:
            # A record may be left out where its slot shows as many of smaller digest as it can.
            left_out = number < self._generated and (number, slot) not in self._full
            return "its record belongs to a generated batch, and is left out" if left_out else None
        if number >= self._generated:
            return f"its record belongs to none of the generated batches, and is in batch {assigned.batch}"
        if assigned.batch % self._generated != number:
            return f"its record is in batch {assigned.batch}, and the rule sends it to another"
        if assigned.slot != slot:
            return f"its record is in slot {assigned.slot}, and the rule sends it to {slot}"
        if slot is not None:
            self._shown[assigned.batch, slot] += 1
            if self._shown[assigned.batch, slot] == self._most:
                self._full.add((number, slot))
        return None
