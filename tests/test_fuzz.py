"""Random damage to run directories: the audit never crashes, and never passes a changed run.

As long as the digests are not forged, any change at all is noticed. Where they are, a pass must
mean that everything the record can vouch for is as it was: `vouched` says what that is, and leaves
out what it is not.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpaudit.commands.cli import main
from dpaudit.results import EXIT_CODES
from dpaudit.runs import RunReader, without_stop
from dpaudit.runs.text import Decode
from tests.nesting import place_of, read_run

SMALL = {"vocabulary": 8, "max_tokens": 3}
KINDS = {
    "median": SMALL | {"sizes": (2, 3)},
    "median, contexts": SMALL | {"sizes": (4, 5), "contexts": True},
    "median, top-k": SMALL | {"sizes": (3, 4, 2, 3), "top_k": 5},
    "mean": SMALL | {"sizes": (2, 3), "aggregator": "mean"},
    "mean, contexts": SMALL | {"sizes": (2, 3), "aggregator": "mean", "contexts": True},
    "budgets": SMALL | {"sizes": (4, 5), "aggregator": "mean", "budget": 0.5},
}
#: With digests as they were and with forged ones. `make test-slow` goes on where `make test` stops.
TRIALS = {False: range(6), True: range(16)}
MORE_TRIALS = {False: range(6, 40), True: range(16, 80)}

#: Fields of run.json that a record cannot contradict, and why not.
DECLARED = {
    "sensitivity": "prose",
    "created": "no clock is recorded",
    "software": "prose",
    "model": "what made the logits, which only a replay can look at",
    "prompt": "likewise",
    "data.text": "the column that a replay reads",
    "data.label": "likewise",
    "data.split": "likewise",
    "data.label_values": "likewise",
    "privacy": "what the run was meant for; the claim states its own relation and unit",
    "sampling": "nothing shows where random bits came from",
    "chosen_from": "nothing shows what was looked at",
    "claim.epsilon": "a larger claim than the record supports is true too; claim.epsilon sees a "
    "smaller one",
    "claim.delta": "epsilon is recomputed for whatever delta is claimed",
    "claim_stated": "when the claim was written",
    "nonce": "nothing follows from it but the commitment, which is forged with it",
    "commitment": "likewise",
    "decoding.sequences": "one that no text holds leaves no trace",
}
#: What a run without contexts cannot contradict on top of that.
WITHOUT_CONTEXTS = {
    "mechanism.clip": "values within a clip are within a larger one, and medians are bounded by "
    "their neighbours",
}
#: Likewise, of a mean run.
MEANS_WITHOUT_CONTEXTS = {
    "mechanism.divisor": "means over one divisor may be others over a larger one: "
    "mechanism.divisor says so",
}
#: What a mean run does not use.
OF_MEDIANS = {"record.width": "means keep no central values"}
#: What a truncated support hides on top of that.
TRUNCATED = {"record.vocabulary": "tokens outside the supports leave no trace"} | WITHOUT_CONTEXTS


# --- what a pass vouches for ----------------------------------------------------------------------


def vouched(path: Path, spec) -> dict:
    """Everything in a run that a pass rests on the record for."""
    reader = RunReader(path)
    manifest = reader.manifest.model_dump(mode="json")
    for name in not_vouched(spec):
        *parents, last = place_of(name)
        place = manifest
        for parent in parents:
            place = place[parent]
        place.pop(last)
    decode = reader.decoder(special=False)
    return {
        "manifest": manifest,
        "batches": {
            number: batch_content(reader, number, spec.keeps_contexts, decode)
            for number in reader.batches
        },
        "samples": list(reader.sample_lines()),
        "assignment": list(reader.assignment()),
        "clusters": reader.clusters(),
    }


def not_vouched(spec) -> dict:
    return (
        DECLARED
        | ({} if spec.keeps_contexts else WITHOUT_CONTEXTS)
        | (MEANS_WITHOUT_CONTEXTS if spec.aggregator == "mean" and not spec.keeps_contexts else {})
        | (OF_MEDIANS if spec.aggregator == "mean" else {})
        | ({} if spec.top_k is None else TRUNCATED)
    )


def batch_content(reader: RunReader, number: int, contexts: bool, decode: Decode) -> tuple:
    with reader.batch(number) as batch:
        tokens = batch.tokens.tolist()
        steps = [step_content(step, contexts) for step in batch.steps()]
        samples, sequences = list(batch.samples()), reader.manifest.decoding.sequences
        # The stop sequence is not released, so nothing vouches for how it would read.
        decoded = [decode(without_stop(sample.tokens, sequences)) for sample in samples]
        return batch.header, tokens, samples, decoded, steps


def step_content(step, contexts: bool) -> list:
    """The vector that was sampled from, by its digest; with contexts also what it was made of.

    Not vouched for: log_probability beyond the tolerance to which it is recomputed; ids in a
    support that were not sampled; without contexts the values beside the median, and which context
    is on which side of it; and of a context that took no part anything but that it could not have
    paid.
    """
    content = [step.token, step.aggregate_digest]
    if contexts:
        content.append(np.round(step.given, 9).tolist())  # sums are held to their rounding
        content.append(step.arrays["central"].tolist() if "central" in step.arrays else None)
    return content


def snapshot(path: Path) -> dict:
    """Names, kinds and bytes of all that lies in a folder, following nothing."""
    found = {}
    for place in sorted(path.rglob("*")):
        plain = place.is_file() and not place.is_symlink()
        found[place.relative_to(path).as_posix()] = (
            place.read_bytes() if plain else place.lstat().st_mode
        )
    return found


# --- damage ---------------------------------------------------------------------------------------
# Each takes a run and a source of chance, changes the run, and says what it did.


def files(run) -> list[Path]:
    return [place for place in sorted(run.path.rglob("*")) if place.is_file()]


def changed(data: bytes, rng) -> bytes:
    """Some bytes changed, or a single bit."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 3)) if damaged else 0):
        damaged[rng.randrange(len(damaged))] ^= rng.choice(
            (1 << rng.randrange(8), rng.randrange(1, 256))
        )
    return bytes(damaged)


def bytes_changed(run, rng) -> str:
    place = rng.choice(files(run))
    place.write_bytes(changed(place.read_bytes(), rng))
    return f"bytes changed in {place.name}"


def digit_changed(run, rng) -> str:
    """A digit for a digit, or a letter for a letter: text that still parses."""
    place = rng.choice(
        [run / name for name in ("run.json", "samples.jsonl", "assignment", "tokenizer.json")]
    )
    data = bytearray(place.read_bytes())
    where = rng.choice([i for i, byte in enumerate(data) if chr(byte).isalnum()])
    data[where] = ord(rng.choice("0123456789" if chr(data[where]).isdigit() else "abcdef"))
    place.write_bytes(data)
    return f"character {where} of {place.name} changed"


def cut(run, rng) -> str:
    place = rng.choice(files(run))
    data = place.read_bytes()
    place.write_bytes(data[: rng.randrange(len(data))])
    return f"{place.name} cut"


def extended(run, rng) -> str:
    place = rng.choice(files(run))
    data = place.read_bytes()
    more = rng.choice((b"\n", b" ", b"\0", rng.randbytes(9), data[-rng.randrange(1, 99) :], data))
    place.write_bytes(data + more)
    return f"{place.name} extended by {len(more)} bytes"


def removed(run, rng) -> str:
    place = rng.choice(files(run))
    place.unlink()
    return f"{place.name} removed"


def swapped(run, rng) -> str:
    one, other = rng.sample(files(run), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"{one.name} and {other.name} swapped"


def copied(run, rng) -> str:
    """Mostly a batch under another batch's name."""
    place = rng.choice([run.steps_file(number) for number in range(len(run.spec.sizes))])
    other = rng.choice(
        (*map(run.steps_file, range(len(run.spec.sizes) + 2)), *files(run), run / "steps/notes.txt")
    )
    if other != place:
        shutil.copyfile(place, other)
    return f"{place.name} copied to {other.name}"


def replaced(run, rng) -> str:
    """By a link to itself elsewhere, a pipe or a folder."""
    place = rng.choice([*files(run), run / "steps"])
    kind = rng.choice(("link", "pipe", "folder"))
    moved = shutil.move(place, run.path.parent / f"{run.path.name}-{place.name}")
    if kind == "link":
        place.symlink_to(moved)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    return f"{place.name} replaced by a {kind}"


def some_batch(run, rng) -> int:
    return rng.randrange(len(run.spec.sizes))


def entry_changed(run, rng) -> str:
    """Bytes inside a zip file, with a checksum that fits them."""
    number, said = some_batch(run, rng), []

    def change(entries):
        at = rng.randrange(len(entries))
        said.append(entries[at].name)
        entries[at] = entries[at]._replace(data=changed(entries[at].data, rng))
        return entries

    run.rezip(number, change)
    return f"batch {number}: {said[0]} changed"


def entries_exchanged(run, rng) -> str:
    """Two entries of a zip file under each other's name, or one of them gone or doubled."""
    number, said = some_batch(run, rng), []

    def change(entries):
        one, other = rng.sample(range(len(entries)), 2)
        kind = rng.choice(("swapped", "gone", "renamed"))
        said.append(f"{entries[one].name} and {entries[other].name} {kind}")
        first, second = entries[one], entries[other]
        if kind == "swapped":
            entries[one], entries[other] = (
                first._replace(data=second.data),
                second._replace(data=first.data),
            )
        elif kind == "gone":
            del entries[one]
        else:
            entries[one] = first._replace(name=f"../{first.name}")
        return entries

    run.rezip(number, change)
    return f"batch {number}: {said[0]}"


def value_altered(run, rng) -> str:
    """One number of one array, in a batch that is otherwise written as a generator would."""
    number, said = some_batch(run, rng), []

    def change(draft):
        position = rng.randrange(len(draft.steps))
        step = draft.steps[position]
        given = {**step.arrays, "contexts": step.contexts, "support": step.support}
        name = rng.choice(
            [name for name, array in given.items() if array is not None and array.size]
        )
        array = draft.array(position, name)
        place = tuple(rng.randrange(length) for length in array.shape)
        if array.dtype.kind == "f":
            value = rng.choice(
                (
                    np.nextafter(array[place], 0),
                    array.flat[rng.randrange(array.size)],
                    6.0,
                    -6.0,
                    0,
                    np.nan,
                )
            )
        else:
            value = ~array[place] if array.dtype.kind == "b" else rng.randrange(run.spec.vocabulary)
        said.append(f"step {position}, {name}[{place}] from {array[place]} to {value}")
        draft.alter(position, name, place, value)

    run.rewrite(number, change)
    return f"batch {number}, {said[0]}"


DAMAGE = [
    bytes_changed,
    bytes_changed,
    digit_changed,
    digit_changed,
    cut,
    extended,
    removed,
    swapped,
    copied,
    replaced,
    entry_changed,
    entry_changed,
    entries_exchanged,
    value_altered,
    value_altered,
]


# --- the tests ------------------------------------------------------------------------------------


def command_line(capfd, *arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    return left.value.code


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize(
    "trials", [TRIALS, pytest.param(MORE_TRIALS, marks=pytest.mark.slow)], ids=["some", "more"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_run_never_passes_for_the_one_it_was(make_run, capfd, empty_figures, kind, trials):
    clean = make_run(**KINDS[kind])
    assert clean.audit().verdict == "pass"
    before, whole = vouched(clean.path, clean.spec), snapshot(clean.path)
    for forged, trial in [
        (forged, trial) for forged, numbers in trials.items() for trial in numbers
    ]:
        rng = random.Random(f"{kind}, {forged}, {trial}")
        run = make_run(**KINDS[kind])
        said = f"{forged}, {trial}: {rng.choice(DAMAGE)(run, rng)}"
        if forged and (run / "hashes").exists() <= (run / "hashes").is_file():
            run.rehash()
        result = run.audit()
        json.loads(result.to_json())
        if result.verdict == "pass":
            assert snapshot(run.path) == whole or (
                forged and vouched(run.path, run.spec) == before
            ), said
        if trial % 10 == 0:
            assert command_line(capfd, "verify", str(run.path)) == EXIT_CODES[result.verdict], said
        if trial % 40 == 0:
            out = str(run.path.with_name("reports"))
            assert (
                command_line(capfd, "report", str(run.path), "--out", out)
                == EXIT_CODES[result.verdict]
            ), said
        shutil.rmtree(run.path)


def test_what_is_left_out_of_a_comparison_is_in_the_manifest(make_run):
    """Else a field that was renamed would be compared no more, and nobody would know."""
    manifest = read_run(make_run(aggregator="mean"))
    for name in DECLARED | OF_MEDIANS | TRUNCATED | MEANS_WITHOUT_CONTEXTS:
        place = manifest
        for part in place_of(name):
            assert part in place
            place = place[part]


def test_damage_inside_a_zip_file_has_fitting_checksums(make_run):
    """Else the zip's own checksums would refuse it, and the reader never see it."""
    run, rng = make_run(**KINDS["median"]), random.Random(0)
    entry_changed(run, rng)
    for number in range(2):
        with zipfile.ZipFile(run.steps_file(number)) as archive:
            assert archive.testzip() is None
