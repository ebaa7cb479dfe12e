"""Is each record in one place only? Parallel composition over batches rests on that."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, not_applicable, run_check
from dpaudit.runs import Assigned, InputError, Manifest, data_digest


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
