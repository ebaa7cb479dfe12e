"""Is each record in one place only? Parallel composition over batches rests on that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from dpaudit.checks.facts import Facts
from dpaudit.checks.origins import judge_origin
from dpaudit.checks.registry import Outcome, not_applicable, run_check
from dpaudit.runs import Assigned, Batching, InputError, KeyedHash, Manifest, data_digest


@run_check(
    check_id="partition.disjoint",
    title="Every record is in one batch and one context at most",
    failed="A record is counted twice, or the assignment contradicts the batches",
    evidence=1,
    remedy="The record contradicts itself. Generate the run again; do not release this one.",
    reference="docs/run-directory.md",
)
def records_are_placed_once(facts: Facts) -> Outcome:
    """The assignment against the manifest's number of records and the batches' numbers of contexts."""
    expected = "digests ascending without repetition, as many as records; contexts as the batches have them"
    placed = _Placed(facts.manifest)
    try:
        digest = data_digest(placed.read(facts.reader.assignment()))
    except InputError as error:
        return Outcome("fail", "the assignment cannot be read", expected, str(error))
    problem = placed.problem or _contradiction(facts, placed, digest)
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
    try:
        problem = _Rule(batching).contradiction(facts.reader.assignment())
    except InputError as error:
        return Outcome("fail", "the assignment cannot be read", expected, str(error))
    if problem:
        return Outcome("fail", problem, expected)
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
    remedy="Fix the numbers of batches and slots without the data, or from noisy counts that are paid for.",
    reference="docs/sharp-edges.md",
)
def batching_is_public(facts: Facts) -> Outcome:
    """The declared origin of the batching rule's numbers."""
    return judge_origin(facts.manifest.origins.batching, "batching")


def _missing_for_the_rule(facts: Facts) -> str | None:
    """What the run lacks for its hashed rule to be run again; None where nothing."""
    batching = facts.manifest.batching
    for name in ("key", "batches_per_label", "generate_per_label"):
        if getattr(batching, name) is None:
            return f"batching.{name}"
    try:
        unassigned = facts.manifest.data.records and next(facts.reader.assignment(), None) is None
    except InputError:
        return "assignment that can be read"
    return "assignment" if unassigned else None


class _Rule:
    """A hashed rule, run again on digests. Labels are not known here: what follows from them is left to a replay."""

    def __init__(self, batching: Batching) -> None:
        self._hash = KeyedHash(bytes.fromhex(batching.key or ""))
        self._count, self._generated = batching.batches_per_label or 1, batching.generate_per_label or 1
        self._slots, self._most = batching.slots, batching.examples_per_context
        self._labels = max(1, len(batching.labels))
        self._shown: Counter[tuple[int, int]] = Counter()

    def contradiction(self, assignment: Iterator[Assigned]) -> str | None:
        """The first line that the rule does not give."""
        for number, assigned in enumerate(assignment, start=1):
            problem = self._problem(assigned)
            if problem:
                return f"line {number} of the assignment: {problem}"
        return None

    def _problem(self, assigned: Assigned) -> str | None:
        number = self._hash.batch(assigned.digest, self._count)
        slot = None if self._slots is None else self._hash.slot(assigned.digest, self._slots)
        if assigned.batch is None:
            left_out = number < self._generated and not self._full(number, slot)
            return "its record belongs to a generated batch, and is left out" if left_out else None
        if number >= self._generated:
            return f"its record belongs to none of the generated batches, and is in batch {assigned.batch}"
        if assigned.batch % self._generated != number:
            return f"its record is in batch {assigned.batch}, and the rule sends it to another"
        if assigned.slot != slot:
            return f"its record is in slot {assigned.slot}, and the rule sends it to {slot}"
        if slot is not None:
            self._shown[assigned.batch, slot] += 1
        return None

    def _full(self, number: int, slot: int | None) -> bool:
        """Whether a record may be left out since its slot already shows as many of smaller digest as it can."""
        if slot is None:
            return False
        batches = (label * self._generated + number for label in range(self._labels))
        return any(self._shown[batch, slot] == self._most for batch in batches)


class _Placed:
    """Counts of records by batch and context, gathered while the assignment goes by."""

    def __init__(self, manifest: Manifest) -> None:
        self._batching = manifest.batching
        self.records = 0
        self.problem: str | None = None
        self.contexts: defaultdict[int, Counter[int]] = defaultdict(Counter)

    def read(self, assignment: Iterator[Assigned]) -> Iterator[str]:
        """Pass on the digests; note the first line that cannot be right."""
        previous = ""
        for assigned in assignment:
            self.records += 1
            if assigned.digest <= previous:
                self._note("its record's digest is repeated or out of order")
            previous = assigned.digest
            self._place(assigned)
            yield assigned.digest

    def _place(self, assigned: Assigned) -> None:
        if assigned.batch is None:
            return
        slots = self._batching.slots
        if assigned.batch >= self._batching.batches:
            self._note(f"it names batch {assigned.batch} of {self._batching.batches}")
        elif (assigned.slot is None) != (slots is None) or (assigned.slot or 0) >= (slots or 1):
            self._note(f"its slot does not fit the rule {self._batching.rule}")
        else:
            # Without slots every record is a context of its own.
            context = self.records if assigned.slot is None else assigned.slot
            self.contexts[assigned.batch][context] += 1
            if self.contexts[assigned.batch][context] > self._batching.examples_per_context:
                self._note(f"its context shows more than {self._batching.examples_per_context} records")

    def _note(self, problem: str) -> None:
        self.problem = self.problem or f"line {self.records} of the assignment: {problem}"


def _contradiction(facts: Facts, placed: _Placed, digest: str) -> str | None:
    batching, data = facts.manifest.batching, facts.manifest.data
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
            implied = len(placed.contexts[batch])
        if header.contexts != implied:
            return f"batch {batch} has {header.contexts} contexts, and {implied} by its rule and the assignment"
    if placed.records and placed.records != data.records:
        return f"{placed.records} records are assigned, and data.records is {data.records}"
    if placed.records and data.digest not in (None, digest):
        return "data.digest is not that of the assigned records"
    return None
