"""Is this a whole run directory, and the one that was written?"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from dpaudit.checks.facts import Facts
from dpaudit.checks.partition import Placement
from dpaudit.checks.registry import RunCheck, Worded
from dpaudit.runs import Held, InputError, RunReader, commitment_of
from dpaudit.runs.commitment import SETTLED
from dpaudit.runs.layout import (
    ASSIGNMENT,
    CANARIES,
    CLUSTERS,
    HASHES,
    MANIFEST,
    SAMPLES,
    STEPS,
    TOKENIZER,
    batch_of,
    most_bytes,
)
from dpaudit.runs.reader import RESUME
from dpaudit.runs.storage import RESTORE

_SWAPPED = "Commitment and head were mistaken for each other."
_NAMES = {MANIFEST, SAMPLES, ASSIGNMENT, CLUSTERS, CANARIES, TOKENIZER}


@RunCheck(id="integrity.format")
def files_can_be_read(facts: Facts) -> Worded:
    """Every file has the shapes and types that the format gives it."""
    expected = "all files readable, with the shapes and types of format 1"
    if facts.unreadable:
        count = len(facts.unreadable)
        found = f"{count} unreadable file{'s' * (count > 1)}"
        return Worded("fail", found, expected, str(next(iter(facts.unreadable.values()))))
    return Worded("pass", f"{len(facts.headers)} batches and their indexes read", expected)


def unreadable_indexes(reader: RunReader, placement: Placement) -> Iterator[tuple[str, InputError]]:
    """The files beside run.json and the steps that are there and cannot be read to their ends, each with the reason."""
    contents: dict[str, Callable[[], object]] = {
        SAMPLES: reader.samples,
        HASHES: reader.hashes,
        ASSIGNMENT: placement.require,
        CLUSTERS: reader.clusters,
        CANARIES: reader.canaries,
        TOKENIZER: reader.tokenizer,
    }
    for name, read in contents.items():
        try:
            if reader.has(name):
                content = read()
                if isinstance(content, Iterator):
                    deque(content, maxlen=0)  # all lines, keeping none
        except InputError as error:
            yield name, error


@RunCheck(id="integrity.hashes")
def digests_match(facts: Facts) -> Worded:
    """SHA-256 of every file on disk against the file `hashes`, in both directions."""
    expected = "recorded and recomputed SHA-256 equal, for exactly the files on disk"
    try:
        journal = facts.reader.hashes()
        recorded = journal.digests
        present = facts.reader.files()
        # Neither what integrity.format refused nor what no format has is hashed: it may be of any size.
        fit = [name for name in present if most_bytes(name) is not None and name not in facts.unreadable]
        compared = [name for name in fit if name in recorded]
        found = {name: facts.digest(name) for name in compared}
        altered = [name for name in compared if found[name] != recorded[name]]
        replayed = None if facts.replayed is None else facts.replayed.head
        since = replayed is not None and replayed != journal.head
    except InputError as error:
        return Worded("fail", "digests cannot be compared", expected, str(error))
    missing = sorted(recorded.keys() - set(present))
    foreign = sorted(set(present) - recorded.keys())
    odd = [f"{name} was altered" for name in altered] + ["it is not the run that was replayed"] * since
    odd += [f"{name} is missing" for name in missing] + [f"{name} was added" for name in foreign]
    unknown = [name for name in present if name not in _NAMES and not name.startswith(f"{STEPS}/")]
    odd += [f"{name} is no file of format 1" for name in unknown if name in recorded]
    if odd:
        remedy = RESTORE if altered or missing or not recorded else "Remove what was added from the run directory."
        count = f"{len(odd)} difference{'s' * (len(odd) > 1)}"
        return Worded("fail", f"{count}; first: {odd[0]}", expected, remedy)
    return Worded("pass", f"{len(compared)} digests equal", expected)


@RunCheck(id="integrity.commitment")
def run_is_what_was_committed_to(facts: Facts) -> Worded:
    """The digest of all that was settled before the first token, recomputed, against the one that the run states.

    Where the audit was given a commitment, it is held against that. Where it was given a head, that is the SHA-256 of
    `hashes` or, of a head from before the run's end, of its first entries.
    """
    stated, held = facts.manifest.commitment, facts.held
    expected = "the commitment that the run states" + ", and the digests that the audit was given" * (held != Held())
    unread = [name for name in (*SETTLED, HASHES) if name in facts.unreadable]
    if unread:
        return Worded("skip", "not recomputed", expected, f"{unread[0]} cannot be read: restore it.")
    try:
        present = [name for name in SETTLED if facts.reader.has(name)]
        recomputed = commitment_of(facts.manifest, {name: facts.digest(name) for name in present})
        journal = facts.reader.hashes()
    except InputError as error:
        return Worded("skip", "not recomputed", expected, str(error))
    if facts.manifest.nonce is None:
        guessed = "Whoever has the commitment could test guesses of the records against it."
        return Worded("fail", "the run has no nonce", expected, guessed)
    if recomputed != stated:
        return Worded("fail", "what was settled before the run has another commitment than the run states", expected)
    if held.commitment not in (None, recomputed):
        swapped = _SWAPPED if held.commitment in journal.heads else ""
        return Worded("fail", "the run has another commitment than the audit was given", expected, swapped)
    if held.head is not None and held.head not in journal.heads:
        swapped = _SWAPPED if held.head == recomputed else ""
        return Worded("fail", "the run has another head than the audit was given", expected, swapped)
    given = ["commitment"] * (held.commitment is not None)
    if held.head is not None:
        part = f" of the first {journal.heads[held.head]} of {len(facts.headers)} batches"
        given.append(f"head{'' if held.head == journal.head else part}")
    shown = f"{' and '.join(given)} as given to the audit" if given else "none was given to the audit"
    return Worded("pass", f"the run's own commitment holds; {shown}", expected)


@RunCheck(id="integrity.redrawn")
def finished_batches_stay(facts: Facts) -> Worded:
    """How many entries each batch has in `hashes`, and the batches that the run says were drawn again, if any."""
    expected = "an entry in hashes for each batch, and none in redrawn of run.json"
    try:
        journal = facts.reader.hashes()
    except InputError as error:
        return Worded("skip", "not looked at", expected, str(error))
    redrawn = sorted({*journal.redrawn, *facts.manifest.redrawn})
    if redrawn:
        found = f"{len(redrawn)} batch{'es' * (len(redrawn) > 1)} drawn again; first: batch {redrawn[0]}"
        return Worded("fail", found, expected)
    return Worded("pass", "each batch has one entry", expected)


@RunCheck(id="integrity.complete")
def batches_are_complete(facts: Facts) -> Worded:
    """The manifest's number of batches against those on disk, and each batch's texts against those in samples.jsonl."""
    declared = facts.manifest.batches
    expected = f"{declared} batches, each once in steps/ and each of its texts once in {SAMPLES}"
    mend = RESTORE if facts.reader.has(HASHES) else RESUME
    missing = [f"{name} is missing" for name in (SAMPLES, HASHES) if not facts.reader.has(name)]
    if missing:
        return Worded("fail", f"the run is not finished: {missing[0]}", expected, mend)
    lost = [f"{name} is missing" for name in (ASSIGNMENT, CLUSTERS) if not facts.reader.has(name)]
    if lost:
        return Worded("fail", lost[0], expected, RESTORE)
    try:
        on_disk = facts.reader.batches
    except InputError as error:
        return Worded("fail", f"{STEPS} cannot be read", expected, str(error))
    gap = next((expected_id for expected_id, found in enumerate(on_disk) if expected_id != found), len(on_disk))
    if gap != declared or len(on_disk) != declared:
        which = f"batch {gap} is missing" if gap < declared else f"batch {on_disk[-1]} is not declared in {MANIFEST}"
        return Worded("fail", f"{len(on_disk)} batches in steps/; {which}", expected, mend)
    if facts.copies:
        return Worded(
            "fail",
            f"{len(facts.copies)} copied text{'s' * (len(facts.copies) > 1)}; first: {facts.copies[0]}",
            expected,
            RESTORE,
        )
    stray = [name for name in facts.reader.files() if name.startswith("steps/") and batch_of(name[6:]) is None]
    if stray:
        found = f"{len(stray)} half-written or foreign files in steps/"
        return Worded("fail", found, expected, f"Remove them. {mend}")
    seen: set[tuple[int, int]] = set()
    try:
        for sample in facts.reader.samples():
            text = sample.id, sample.number
            known = facts.sample_digests.get(sample.id)
            beyond = known is not None and sample.number >= len(known)
            if text in seen or beyond or sample.id not in range(declared):
                return Worded("fail", f"{sample.place} is doubled or unknown in {SAMPLES}", expected, RESTORE)
            seen.add(text)
    except InputError as error:
        return Worded("fail", f"{SAMPLES} cannot be read", expected, str(error))
    lines = Counter(batch for batch, _ in seen)
    for batch in on_disk:
        # How many texts a batch has that could not be read, nobody knows: one at least.
        due = len(facts.sample_digests[batch]) if batch in facts.sample_digests else max(1, lines[batch])
        if lines[batch] != due:
            return Worded("fail", f"{lines[batch]} of {due} texts of batch {batch} in {SAMPLES}", expected, RESTORE)
    return Worded("pass", f"{declared} batches, {len(seen)} texts", expected)
