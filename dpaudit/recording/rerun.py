"""Runs a recorded generator's script again without a record, its outputs frozen, and says what moved.

A record may change its own contribution to the aggregates of its own batch, which is what the accounting charges for.
Whatever else differs, with every token the released one, private data reached by another way: settings, batches,
supports, anchors, other rows (https://arxiv.org/abs/2602.17454).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.generation.records import write_without_row
from dpaudit.mechanisms import ANCHOR
from dpaudit.recording.frozen import Frozen
from dpaudit.recording.generators import called_again
from dpaudit.results.replay import Difference, Rerun
from dpaudit.runs import Assigned, BatchReader, InputError, Manifest, RunReader, Step
from dpaudit.runs.storage import Location

#: What differs between any two runs, or was measured on the records.
_FREE = {"created", "nonce", "commitment", "claim", "recorded", "data"}
_Rows = NDArray[np.floating]


@dataclass(frozen=True)
class Script:
    """A generator's script as it was called.

    Attributes:
        python: the interpreter's path.
        arguments: the script's file, and what it is given; one of them names the data.
    """

    python: str
    arguments: tuple[str, ...]

    def run(self, released: RunReader, out: Path, data: Path, instead: Path) -> int:
        """Run it with frozen outputs and `instead` in place of the data. Its exit code."""
        arguments = [str(instead) if argument == str(data) else argument for argument in self.arguments]
        frozen = Frozen(released.location, out)
        command = [self.python, *called_again(released.manifest, out), *arguments]
        # What it prints is not what this prints.
        done = subprocess.run(command, check=False, stdout=sys.stderr, env=os.environ | frozen.environment())  # noqa: S603
        return done.returncode


def rerun(
    run: Location, data: Path, rows: Sequence[int], script: Script, note: Callable[[str], None]
) -> tuple[Rerun, ...]:
    """Run a script again: on the same data, and without each of some records in turn.

    Args:
        run: a finished run that the script made under a recorder.
        data: the file of records that the script is given.
        rows: which records to leave out, by their number in the file, from 1.
        script: what made the run.
        note: is told what is being done.

    Raises:
        InputError: the script does not run or writes no run, the data are not the run's, or a row is no record of it.
    """
    released = RunReader(run)
    if str(data) not in script.arguments:
        problem = f"the script is not given {data}, so no record of it can be left out."
        raise InputError("--data", problem, "Name the file as the command does.")
    with TemporaryDirectory(prefix="dpaudit-") as temporary:
        folder = Path(temporary)
        note("Running the script again on the same data")
        same = _again(released, script, folder / "same", data, data)
        if same.manifest.batching.key != released.manifest.batching.key:
            remedy = "Take it from dpaudit.recording.hashed_records, or from batching_key there."
            raise InputError(script.arguments[0], "it hashes records under a key of its own.", remedy)
        if same.manifest.data != released.manifest.data:
            raise InputError("--data", "these are not the records of the run.", "Give those that the script was given.")
        unstable = _by_kind(differences(released, same, None))
        found = []
        for row in rows:
            note(f"Running the script again without record {row}")
            neighbour, out = folder / f"{row}-{data.name}", folder / str(row)
            write_without_row(data, row, neighbour)
            found.append(_without(released, script, row, out, data, neighbour, unstable))
            neighbour.unlink()
    return tuple(found)


def _again(released: RunReader, script: Script, out: Path, data: Path, instead: Path) -> RunReader:
    code = script.run(released, out, data, instead)
    if code:
        raise InputError(script.arguments[0], f"it ended with exit code {code}.", "Give the command that made the run.")
    return _written(script, out)


def _written(script: Script, out: Path) -> RunReader:
    try:
        return RunReader(out)
    except InputError:
        remedy = "It must record with dpaudit.recording.Recorder, or be one that `dpaudit record` knows."
        raise InputError(script.arguments[0], "it recorded nothing.", remedy) from None


def _without(
    released: RunReader,
    script: Script,
    row: int,
    out: Path,
    data: Path,
    neighbour: Path,
    unstable: Mapping[str, Difference],
) -> Rerun:
    code = script.run(released, out, data, neighbour)
    if code and not out.exists():
        return Rerun(row, unstable="", differences=(_ended(code),))
    left = _written(script, out)
    gone = {each.digest: each for each in released.assignment()}
    for each in left.assignment():
        gone.pop(each.digest, None)
    if not gone:
        remedy = "Choose a row whose text no other row has."
        raise InputError("--without", f"without row {row} the run's records are the same.", remedy)
    kinds = _by_kind(differences(released, left, next(iter(gone.values()))))
    moved = [found for kind, found in kinds.items() if kind not in unstable] + [_ended(code)] * bool(code)
    return Rerun(row, unstable=next((found.first for found in unstable.values()), ""), differences=tuple(moved))


def _ended(code: int) -> Difference:
    return Difference("ends", 1, f"the script ended with exit code {code}")


def _by_kind(differences: Iterable[Found]) -> dict[str, Difference]:
    kinds: dict[str, Difference] = {}
    for found in differences:
        before = kinds.get(found.kind, Difference(found.kind, 0, f"{found.place}: {found.said}"))
        kinds[found.kind] = Difference(found.kind, before.places + 1, before.first)
    return kinds


class Found(NamedTuple):
    """One place where two runs differ: what it is about, where, and how."""

    kind: str
    place: str
    said: str


def differences(released: RunReader, again: RunReader, own: Assigned | None) -> Iterator[Found]:
    """Where a run that was made again differs from the released one, other than by the contribution of a record.

    Args:
        released: the run.
        again: what its script made with frozen outputs.
        own: the record that was left out; None where nothing was.
    """
    yield from _settings(released.manifest, again.manifest)
    yield from _places(released, again, own)
    made = set(again.batches)
    for extra in sorted(made - set(released.batches)):
        yield Found("batches", f"batch {extra}", "made, and not released")
    for batch in released.batches:
        if batch not in made:
            yield Found("batches", f"batch {batch}", "not made")
            continue
        with released.batch(batch) as one, again.batch(batch) as other:
            mine = own is not None and own.batch == batch
            yield from _batch(one, other, own=mine, slots=released.manifest.batching.slots is not None)


def _settings(one: Manifest, other: Manifest) -> Iterator[Found]:
    before, after = (dict(_flat("", manifest.model_dump(mode="json", exclude=_FREE))) for manifest in (one, other))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield Found("settings", f"run.json: {name}", f"{before.get(name)}, then {after.get(name)}")


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flat(f"{name}.{key}" if name else str(key), inner)


def _places(released: RunReader, again: RunReader, own: Assigned | None) -> Iterator[Found]:
    """Records that are elsewhere. A slot of the record that is gone may show another one."""
    after = {each.digest: (each.batch, each.slot) for each in again.assignment()}
    shared = released.manifest.batching.slots is not None
    for number, each in enumerate(released.assignment(), start=1):
        place = after.pop(each.digest, None)
        if place == (each.batch, each.slot) or (own is not None and each.digest == own.digest):
            continue
        if place is None or not (shared and own is not None and place == (own.batch, own.slot)):
            yield Found("places", f"assignment, line {number}", "a record is gone" if place is None else "it moved")
    for _ in after:
        yield Found("places", "assignment", "a record that was not there")


def _batch(one: BatchReader, other: BatchReader, *, own: bool, slots: bool) -> Iterator[Found]:
    place = f"batch {one.header.id}"
    if (one.header.label, one.header.cluster) != (other.header.label, other.header.cluster):
        yield Found("batches", place, "of another label or cluster")
    before, after = one.header.contexts, other.header.contexts
    if abs(before - after) > own:
        yield Found("batches", place, f"{before} contexts, then {after}")
        return
    if len(one.tokens) != len(other.tokens):
        yield Found("lengths", place, f"{len(one.tokens)} tokens, then {len(other.tokens)}")
    gone: int | None = None
    for position, (step, again) in enumerate(zip(one.steps(), other.steps(), strict=False)):
        where = f"{place}, step {position}"
        if problem := _support_problem(step, again):
            yield Found("supports", where, problem)
            continue
        if anchors := _apart(step.arrays.get(ANCHOR), again.arrays.get(ANCHOR)):
            yield Found("anchors", where, f"up to {anchors:.3g} apart")
        if step.contexts is not None and again.contexts is not None:
            if gone is None and (before != after or (own and slots)):
                gone = _row_of_its_own(step.contexts, again.contexts)
            if moved := _apart(*_others(step.contexts, again.contexts, gone)):
                yield Found("rows", where, f"other contexts' rows up to {moved:.3g} apart")
        if not own and step.aggregate_digest != again.aggregate_digest:
            yield Found("aggregates", where, "another aggregate in a batch that the record is not in")


def _support_problem(one: Step, other: Step) -> str:
    if one.support is None or other.support is None or np.array_equal(one.support, other.support):
        return ""
    return f"{len(np.setxor1d(one.support, other.support))} tokens differ"


def _row_of_its_own(one: _Rows, other: _Rows) -> int:
    """The row without which the others are most alike: of the run that has more, or of both."""
    return min(range(max(len(one), len(other))), key=lambda row: _apart(*_others(one, other, row)))


def _others(one: _Rows, other: _Rows, gone: int | None) -> tuple[_Rows, _Rows]:
    if gone is None:
        return one, other
    most = max(len(one), len(other))
    left, right = (np.delete(rows, gone, axis=0) if len(rows) == most else rows for rows in (one, other))
    return left, right


def _apart(one: Any, other: Any) -> float:
    return 0.0 if one is None or other is None else float(np.abs(one - other).max(initial=0.0))
