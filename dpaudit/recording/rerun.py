"""Reruns of a recorded generator's script without a record, its outputs frozen, to see what moves.

A record may change its own contribution to the aggregates of its own batch, which is what the
accounting charges for. If anything else differs, with every token the released one, private data
was reached by another way: settings, batches, supports, anchors, other rows
(https://arxiv.org/abs/2602.17454).
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.generation.records import write_without_row
from dpaudit.mechanisms import ANCHOR, FLOAT64_ROUNDING, Fields
from dpaudit.recording.frozen import Frozen
from dpaudit.recording.generators import called_again
from dpaudit.results import Finding, Place, Value
from dpaudit.results.replay import Difference, Rerun
from dpaudit.runs import (
    Assigned,
    BatchReader,
    InputError,
    Manifest,
    RunReader,
    Step,
    aggregate_digest,
)
from dpaudit.runs.storage import Location

#: What differs between any two runs, or was measured on the records; a claim that was stated
#: afterwards, too.
_FREE = {"created", "nonce", "commitment", "recorded", "data"}


@dataclass(frozen=True)
class Script:
    """A generator's script and its arguments.

    Attributes:
        python: the interpreter's path.
        arguments: the script's file, and its arguments; one of them names the data.
    """

    python: str
    arguments: tuple[str, ...]

    def run(self, released: RunReader, out: Path, data: Path, instead: Path) -> int:
        """Run it with frozen outputs and `instead` in place of the data; return its exit code."""
        arguments = [
            str(instead) if argument == str(data) else argument for argument in self.arguments
        ]
        frozen = Frozen(released.location, out)
        command = [self.python, *called_again(released.manifest, out), *arguments]
        # What it prints is not what this prints.
        done = subprocess.run(  # noqa: S603
            command, check=False, stdout=sys.stderr, env=os.environ | frozen.environment()
        )
        return done.returncode


def rerun(
    run: Location, data: Path, rows: Sequence[int], script: Script, note: Callable[[str], None]
) -> tuple[Rerun, ...]:
    """Run a script again: on the same data, and without each of some records in turn.

    Args:
        run: a finished run that the script made under a recorder.
        data: the file of records that the script is given.
        rows: which records to leave out, by their number in the file, from 1.
        script: the script that made the run.
        note: receives progress messages.

    Raises:
        InputError: the script does not run or writes no run, the data are not the run's, or a row
            is no record of it; or the run itself cannot be read.
    """
    released = RunReader(run)
    for _ in chain(released.samples(), released.assignment()):
        pass  # what cannot be read would end the script, which is not at fault
    if str(data) not in script.arguments:
        problem = f"the script is not given {data}, so no record of it can be left out."
        raise InputError("--data", problem, "Name the file as the command does.")
    with TemporaryDirectory(prefix="dpaudit-") as temporary:
        folder = Path(temporary)
        # a script may look at the name
        neighbours = {row: folder / f"data-{row}" / data.name for row in rows}
        for row, neighbour in neighbours.items():
            neighbour.parent.mkdir()
            write_without_row(data, row, neighbour)
        note("Running the script again on the same data")
        same = _rerun_unchanged(released, script, folder / "same", data)
        if same.manifest.batching.key != released.manifest.batching.key:
            remedy = "Take it from dpaudit.recording.hashed_records, or from batching_key there."
            raise InputError(
                script.arguments[0], "it hashes records under a key of its own.", remedy
            )
        if same.manifest.data != released.manifest.data:
            raise InputError(
                "--data",
                "these are not the records of the run.",
                "Give those that the script was given.",
            )
        unstable = _by_kind(differences(released, same, None))
        found = []
        for row, neighbour in neighbours.items():
            note(f"Running the script again without record {row}")
            found.append(
                _rerun_without(released, script, row, folder / str(row), data, neighbour, unstable)
            )
    return tuple(found)


def _rerun_unchanged(released: RunReader, script: Script, out: Path, data: Path) -> RunReader:
    code = script.run(released, out, data, data)
    if code:
        raise InputError(
            script.arguments[0],
            f"it ended with exit code {code}.",
            "Give the command that made the run.",
        )
    try:
        return RunReader(out)
    except InputError:
        remedy = (
            "It must record with dpaudit.recording.Recorder, or be one that `dpaudit record` knows."
        )
        raise InputError(script.arguments[0], "it recorded nothing.", remedy) from None


def _rerun_without(
    released: RunReader,
    script: Script,
    row: int,
    out: Path,
    data: Path,
    neighbour: Path,
    unstable: Mapping[str, Difference],
) -> Rerun:
    code = script.run(released, out, data, neighbour)
    try:
        left = RunReader(out)
    except InputError:
        return Rerun(row, unstable=None, differences=(_exit_difference(code),))
    gone = {each.digest: each for each in released.assignment()}
    for each in left.assignment():
        gone.pop(each.digest, None)
    if not gone:
        remedy = "Choose a row whose text no other row has."
        raise InputError("--without", f"without row {row} the run's records are the same.", remedy)
    kinds = _by_kind(differences(released, left, next(iter(gone.values()))))
    moved = [found for kind, found in kinds.items() if kind not in unstable] + [
        _exit_difference(code)
    ] * bool(code)
    return Rerun(
        row,
        unstable=next((found.first for found in unstable.values()), None),
        differences=tuple(moved),
    )


def _exit_difference(code: int) -> Difference:
    ended = Finding(code="rerun.no-record")
    if code:
        ended = Finding(code="rerun.exit-code", values={"exit_code": code})
    return Difference("ends", 1, ended)


def _by_kind(differences: Iterable[Found]) -> dict[str, Difference]:
    kinds: dict[str, Difference] = {}
    for found in differences:
        before = kinds.get(found.kind, Difference(found.kind, 0, found.finding))
        kinds[found.kind] = Difference(found.kind, before.places + 1, before.first)
    return kinds


class Found(NamedTuple):
    """One place where two runs differ: its kind, and the difference."""

    kind: str
    finding: Finding


def _difference_at(kind: str, code: str, **values: Value) -> Found:
    return Found(kind, Finding(code=f"rerun.{code}", values=values))


def differences(released: RunReader, again: RunReader, own: Assigned | None) -> Iterator[Found]:
    """Yield where a run made again differs from the released one, but for a record's contribution.

    Args:
        released: the run.
        again: the script's run with frozen outputs.
        own: the record that was left out; None if none was.
    """
    yield from _settings(released.manifest, again.manifest)
    yield from _places(released, again, own)
    made = set(again.batches)
    for extra in sorted(made - set(released.batches)):
        yield _difference_at("batches", "batch-made", place=Place(batch=extra))
    for batch in released.batches:
        if batch not in made:
            yield _difference_at("batches", "batch-not-made", place=Place(batch=batch))
            continue
        with released.batch(batch) as one, again.batch(batch) as other:
            mine = own is not None and own.batch == batch
            yield from _batch(
                _MadeBatch(released.manifest, one), _MadeBatch(again.manifest, other), own=mine
            )


def _settings(one: Manifest, other: Manifest) -> Iterator[Found]:
    before, after = (dict(_flatten_settings("", manifest)) for manifest in (one, other))
    free = _FREE | ({"claim"} if one.claim_stated == "afterwards" else set())
    for name in sorted(before.keys() | after.keys()):
        values = before.get(name), after.get(name)
        if values[0] != values[1] and name.partition(".")[0] not in free:
            # A text that a record moved may be the record's own.
            numbers = all(isinstance(value, int | float | None) for value in values)
            known = {
                key: value
                for key, value in zip(("before", "after"), values, strict=True)
                if value is not None
            }
            yield _difference_at("settings", "setting", name=name, **known if numbers else {})


def _flatten_settings(name: str, fields: Fields) -> Iterator[tuple[str, Any]]:
    """Yield settings by their names.

    Those of a mapping are left together: its keys may be of records, too.
    """
    for key, value in fields.model_dump(mode="json").items():
        inner = getattr(fields, key, None)
        if isinstance(value, dict) and isinstance(inner, Fields):
            yield from _flatten_settings(f"{name}{key}.", inner)
        else:
            yield f"{name}{key}", value


def _places(released: RunReader, again: RunReader, own: Assigned | None) -> Iterator[Found]:
    """Yield records that are in another place.

    A slot of the record that is gone may show another one.
    """
    after = {each.digest: (each.batch, each.slot) for each in again.assignment()}
    shared = released.manifest.batching.slots is not None
    for number, each in enumerate(released.assignment(), start=1):
        place = after.pop(each.digest, None)
        if place == (each.batch, each.slot) or (own is not None and each.digest == own.digest):
            continue
        if place is None or not (shared and own is not None and place == (own.batch, own.slot)):
            found = "record-gone" if place is None else "record-moved"
            yield _difference_at("places", found, line=number)
    for _ in after:
        yield _difference_at("places", "record-new")


@dataclass(frozen=True)
class _MadeBatch:
    """One batch of a run."""

    manifest: Manifest
    batch: BatchReader

    def tokens(self, step: Step) -> NDArray[np.integer]:
        """Return the ids of the tokens that a step could draw."""
        if step.support is None:
            return np.arange(self.manifest.record.vocabulary)
        return step.support

    def is_drawn_as_declared(self, step: Step) -> bool:
        """Return whether a step's token came from its contributions by the mechanism."""
        mechanism, tokens, arrays = self.manifest.mechanism, self.tokens(step), dict(step.arrays)
        aggregate = mechanism.aggregate(arrays)
        contributions = np.zeros((0, len(tokens))) if step.contexts is None else step.contexts
        if aggregate_digest(aggregate) != step.aggregate_digest:
            return False
        if mechanism.draw.test_problem(arrays, contributions, mechanism.aggregator):
            return False
        index = np.flatnonzero(tokens == step.token)
        right = -math.inf
        if len(index):
            right = mechanism.log_probability(aggregate, int(index[0]))
        return math.isclose(
            right, step.log_probability, rel_tol=FLOAT64_ROUNDING, abs_tol=FLOAT64_ROUNDING
        )


def _batch(released: _MadeBatch, made: _MadeBatch, *, own: bool) -> Iterator[Found]:
    """Yield the differences of one batch.

    `own` says whether the record that is gone was in this batch.
    """
    one, other = released.batch, made.batch

    def where(position: int) -> Place:
        return Place(batch=one.header.id, step=position)

    place = Place(batch=one.header.id)
    if (one.header.label, one.header.cluster) != (other.header.label, other.header.cluster):
        yield _difference_at("batches", "other-group", place=place)
    before, after = one.header.contexts, other.header.contexts
    if abs(before - after) > own:
        yield _difference_at("batches", "contexts", place=place, before=before, after=after)
        return
    if len(one.tokens) != len(other.tokens):
        yield _difference_at(
            "lengths", "tokens", place=place, before=len(one.tokens), after=len(other.tokens)
        )
    shared = max(before, after) - (
        before != after or (own and released.manifest.batching.slots is not None)
    )
    rows: dict[int, _Rows] = {}
    for position, (step, again) in enumerate(zip(one.steps(), other.steps(), strict=False)):
        if released.is_drawn_as_declared(step) and not made.is_drawn_as_declared(again):
            yield _difference_at("draws", "draw", place=where(position))
        if swapped := _count_swapped(released.tokens(step), made.tokens(again)):
            yield _difference_at("supports", "support", place=where(position), tokens=swapped)
            continue
        if anchors := _largest_gap(step.arrays.get(ANCHOR), again.arrays.get(ANCHOR)):
            yield _difference_at("anchors", "anchor", place=where(position), difference=anchors)
        if step.contexts is not None and again.contexts is not None:
            rows[position] = _Rows.of(step.contexts, again.contexts, shared)
        if not own and step.aggregate_digest != again.aggregate_digest:
            yield _difference_at("aggregates", "aggregate", place=where(position))
    for position, moved in _moved_rows(rows, shared):
        yield _difference_at("rows", "rows", place=where(position), difference=moved)


class _Rows(NamedTuple):
    """The distances between contexts' rows in two runs, at most one row being the record's own.

    Rows before that one are in the same place counted from the first row, and those behind it
    counted from the last.

    Attributes:
        first, last: [n], counted so; n is the number of other rows.
    """

    first: NDArray[np.floating]
    last: NDArray[np.floating]

    @classmethod
    def of(cls, one: NDArray[np.floating], other: NDArray[np.floating], shared: int) -> _Rows:
        """Return the distances between two steps' rows, [n, S] or one more."""
        first = np.abs(one[:shared] - other[:shared])
        last = np.abs(one[len(one) - shared :] - other[len(other) - shared :])
        return cls(first.max(axis=1), last.max(axis=1))

    def others(self, own: int) -> float:
        """Return the largest distance between rows other than the record's."""
        return float(max(self.first[:own].max(initial=0.0), self.last[own:].max(initial=0.0)))


def _moved_rows(steps: Mapping[int, _Rows], shared: int) -> Iterator[tuple[int, float]]:
    """Yield where rows moved that are not the record's own, and how far.

    Rows may be alike at some steps: the record's own is the one without which all steps together
    are most alike.
    """
    if not steps:
        return
    all_steps = _Rows(*(np.max(rows, axis=0) for rows in zip(*steps.values(), strict=True)))
    own = min(range(shared + 1), key=all_steps.others)
    for position, rows in steps.items():
        if moved := rows.others(own):
            yield position, moved


def _count_swapped(one: NDArray[np.integer], other: NDArray[np.integer]) -> int:
    """Return how many tokens only one of two supports has."""
    if np.array_equal(one, other):
        return 0
    return len(np.setxor1d(one, other))


def _largest_gap(one: Any, other: Any) -> float:
    if one is None or other is None:
        return 0.0
    return float(np.abs(one - other).max(initial=0.0))
