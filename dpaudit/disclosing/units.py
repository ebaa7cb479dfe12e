"""Records as units with coins: of a run, by its key, or of two files that one draw split.

A unit is a record, or a user with all of their records. Which of several records is the unit, and
every order in which something is tried, follows from a seeded hash of what they say: it is blind to
who was shown.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from dpaudit.accounting.coins import (
    HELD_OUT,
    BatchCoins,
    Coins,
    Flags,
    Integers,
    ShownCoins,
    SplitCoins,
)
from dpaudit.disclosing.files import Columns, read_lines
from dpaudit.disclosing.words import words
from dpaudit.generation.canaries import included
from dpaudit.generation.partition import Group, Layout, groups_of
from dpaudit.generation.records import Record, one_user
from dpaudit.generation.run_data import read_run_records, require_run_records
from dpaudit.results.disclosed_texts import Rule
from dpaudit.runs import Batching, InputError, KeyedHash, Manifest, RunReader
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.layout import MANIFEST, SAMPLES

#: Of runs, whose records differ in what they say: so that a report says the same twice.
SEED = 0
_SPLIT = "--split-is-random"


class GroupName(NamedTuple):
    """Whose texts and records are compared with each other alone: a label's, or a cluster's."""

    label: str | None
    cluster: int | None = None


@dataclass(frozen=True)
class Units:
    """Released texts, and the units that they may name.

    Arrays of coins have the units of the first round, then those of the second, and so on.

    Attributes:
        source: whether a run's key, or two files, tell who was shown.
        records: the texts of each unit, in the order of a seeded hash [n].
        rows: the row of each unit's first record, from 1 [n].
        groups: the number of each unit's group [n].
        names: of the groups.
        coins: their law, of all rounds [rounds * n].
        values: what they are [rounds * n].
        texts: the released texts, of all rounds [t].
        text_rows: the row of each, from 1 [t].
        text_groups: the number of each one's group [t].
        text_rounds: the round of each [t].
        text_batches: the number of each one's batch within its group; None without batches [t].
        public: texts that everybody has.
        twins: records that are no units, as another record has their text.
        rounds: how many there are.
        unit: what a unit is.
        seed: of the hash, and of what is drawn.
    """

    source: Literal["run", "files"]
    records: tuple[tuple[str, ...], ...]
    rows: Integers
    groups: Integers
    names: tuple[GroupName, ...]
    coins: Coins
    values: Integers
    texts: tuple[str, ...]
    text_rows: Integers
    text_groups: Integers
    text_rounds: Integers
    text_batches: Integers | None
    public: tuple[str, ...]
    twins: int
    rounds: int = 1
    unit: Literal["record", "user"] = "record"
    seed: int = SEED

    def __repr__(self) -> str:
        """Keep private text out of logs and tracebacks."""
        return f"Units({len(self.records)} units, {len(self.texts)} texts)"

    @property
    def rule(self) -> Rule:
        """What a guess says of a unit."""
        if isinstance(self.coins, BatchCoins):
            return "own-batch"
        return "fixed-size-split" if isinstance(self.coins, SplitCoins) else "shown"

    @property
    def shown(self) -> Flags:
        """Whether each unit was shown, in each round [rounds * n]."""
        return self.coins.is_shown(self.values)


@dataclass(frozen=True)
class _Candidate:
    """A record, before it is known whether it is a unit; it shows no text."""

    row: int
    text: str
    label: str
    user: str
    shown: bool
    digest: str = ""

    def __repr__(self) -> str:
        return "_Candidate(...)"


#: The records of each unit.
_OwnRecords: TypeAlias = list[tuple[_Candidate, ...]]


def text_key(text: str) -> str:
    """Return what texts have in common that say the same in the same words."""
    return " ".join(words(text))


def _rank(seed: int, *parts: str) -> bytes:
    """Return a place in an order that follows from what is said alone."""
    hashed = hashlib.blake2b(key=seed.to_bytes(8, "big"), person=b"dpaudit.order", digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.digest()


# A run


def units_of_run(
    reader: RunReader, data: str, *, public: Sequence[str] = (), seed: int = SEED
) -> Units:
    """Read a run's texts and its records, and recompute every record's batch from the key.

    That goes for records that no prompt showed, too: had the assignment told, those that lost
    their place to others would count as held out.

    Args:
        reader: the run.
        data: its private records, as its config named them.
        public: more texts that everybody has.
        seed: of the order of records that say the same, and of ties.

    Raises:
        InputError: the run has no coins, lacks its key or texts, or the data are not the run's.
    """
    manifest, where = reader.manifest, reader.where(MANIFEST)
    batching = _require_coins(manifest, where)
    found = read_run_records(manifest, data, where)
    canaries = reader.canaries().canaries if manifest.canaries is not None else ()
    made_up = included(reader.canaries()) if manifest.canaries is not None else ()
    records = tuple(sorted({*found.records, *made_up}))
    digests = dict(zip(records, require_run_records(manifest, records, data, where), strict=True))
    groups = _groups_of_run(reader, batching, where)
    centers = _centers_of(reader, records, where)
    number_of = {(group.label, group.cluster): at for at, group in enumerate(groups)}

    # Who is made up has a coin of its own.
    nobody = {(canary.label, canary.text) for canary in canaries}
    ranked = sorted(
        (record for record in records if (record.label, record.text) not in nobody),
        key=lambda record: _rank(seed, record.label, record.text),
    )
    kept, twins = _first_of_each(ranked)
    order = {record: row for row, record in enumerate(sorted(records, key=digests.__getitem__), 1)}
    unit_groups = np.array(
        [number_of[each.label, None if centers is None else centers[each]] for each in kept],
        dtype=np.int64,
    )
    batches = np.array([group.batches or 1 for group in groups], dtype=np.int64)[unit_groups]
    generated = np.array([len(group.ids) for group in groups], dtype=np.int64)[unit_groups]
    master, rounds = KeyedHash(bytes.fromhex(batching.key or "")), manifest.rounds
    values = [
        _coin(master, digests[record], round_of, int(count), batching.held_out_millionths)
        for round_of in (master.of_round(number) for number in range(rounds))
        for record, count in zip(kept, batches.tolist(), strict=True)
    ]
    share = batching.held_out_millionths / 1e6
    return _with_texts(
        reader,
        batching,
        groups,
        Units(
            source="run",
            records=tuple((record.text,) for record in kept),
            rows=np.array([order[record] for record in kept], dtype=np.int64),
            groups=unit_groups,
            names=tuple(GroupName(group.label or None, group.cluster) for group in groups),
            coins=BatchCoins(np.tile(batches, rounds), np.tile(generated, rounds), share, rounds),
            values=np.array(values, dtype=np.int64),
            texts=(),
            text_rows=np.zeros(0, dtype=np.int64),
            text_groups=np.zeros(0, dtype=np.int64),
            text_rounds=np.zeros(0, dtype=np.int64),
            text_batches=None,
            public=(*_public_texts(manifest), *(canary.text for canary in canaries), *public),
            twins=twins,
            rounds=rounds,
            seed=seed,
        ),
    )


def _coin(master: KeyedHash, digest: str, of_round: KeyedHash, batches: int, held_out: int) -> int:
    """Return the batch that a record's hash gives it in a round, by that record alone."""
    if held_out and master.holds_out(digest, held_out):
        return HELD_OUT
    return of_round.batch(digest, batches)


def no_coins(manifest: Manifest) -> Literal["sliced", "unkeyed"] | None:
    """Return why no coin of its own decided where a record of a run goes, or None."""
    if manifest.batching.rule == "paper-slices":
        return "sliced"
    return "unkeyed" if len(manifest.batching.key or "") < 2 * KEY_BYTES else None


def _require_coins(manifest: Manifest, where: str) -> Batching:
    """Return the batching rule with the numbers of batches that it leaves to be inferred.

    Raises:
        InputError: records had no coins of their own.
    """
    batching, data = manifest.batching, manifest.data
    if (reason := no_coins(manifest)) == "sliced":
        problem = (
            "this is paper-slices, which cuts records into batches by their order: no record has "
            "a coin of its own, so nothing tells chance from disclosure."
        )
        remedy = "Generate a run with batching.rule: hashed."
        if manifest.recorded is not None:
            remedy = (
                "Record it again with --mend batches, or let it write from a part of the records "
                "that lots chose, and compare its texts with --shown and --held-out."
            )
        raise InputError(f"{where}: batching.rule", problem, remedy)
    if reason == "unkeyed":
        problem = f"the run gives no key of {KEY_BYTES} bytes, by which records went to batches."
        remedy = "Give the run directory itself, and not what was published of it."
        raise InputError(f"{where}: batching.key", problem, remedy)
    if manifest.clustering.method != "none":
        return batching
    if data.labels and not (batching.batches_per_label and batching.generate_per_label):
        lacking = "batches_per_label" if not batching.batches_per_label else "generate_per_label"
        problem = "the run does not say this, and its records have labels."
        remedy = "Restore the run, or generate it again."
        raise InputError(f"{where}: batching.{lacking}", problem, remedy)
    generated = batching.generate_per_label or batching.per_round
    each = {
        "generate_per_label": generated,
        "batches_per_label": batching.batches_per_label or generated,
    }
    return batching.model_copy(update=each)


def _groups_of_run(reader: RunReader, batching: Batching, where: str) -> tuple[Group, ...]:
    layout = replace(Layout.of(reader.manifest), batching=batching)
    groups = tuple(groups_of(layout, reader.clusters()))
    due = sum(len(group.ids) for group in groups)
    if due != batching.per_round:
        problem = (
            f"a round has {batching.per_round} batches, and by the numbers for each label or "
            f"cluster it would have {due}."
        )
        remedy = "Restore the run, or generate it again."
        raise InputError(f"{where}: batching.batches", problem, remedy)
    return groups


def _centers_of(
    reader: RunReader, records: Sequence[Record], where: str
) -> dict[Record, int] | None:
    """Return the centre of each record's cluster; None in a run without clusters."""
    if reader.manifest.clustering.method == "none":
        return None
    # Slow to load, and for such runs alone.
    from dpaudit.generation.grouping import recompute_grouping

    centers, _ = recompute_grouping(reader.manifest, reader.clusters(), records, where)
    return centers


def _first_of_each(ranked: Sequence[Record]) -> tuple[list[Record], int]:
    """Return the first record of each normalised text, and how many are left out."""
    first: dict[str, Record] = {}
    for record in ranked:
        first.setdefault(text_key(record.text), record)
    return list(first.values()), len(ranked) - len(first)


def _public_texts(manifest: Manifest) -> Iterator[str]:
    """Yield what the run's prompts show whoever's records they show."""
    prompt = manifest.prompt
    yield from filter(None, (prompt.text, prompt.end))
    for examples in prompt.public_examples.values():
        yield from examples
    yield from manifest.decoding.banned_words


def _with_texts(
    reader: RunReader, batching: Batching, groups: Sequence[Group], units: Units
) -> Units:
    """Return the units with the run's released texts."""
    place = {
        batch: (at, batch - group.ids.start)
        for at, group in enumerate(groups)
        for batch in (group.ids)
    }
    texts, rows, of_group, rounds, batches = [], list[int](), list[int](), list[int](), list[int]()
    for row, sample in enumerate(reader.samples(), start=1):
        where = f"{reader.where(SAMPLES)}: line {row}"
        if sample.text is None:
            problem = "it is released as token ids, without text."
            raise InputError(where, problem, "Only texts can be tried: decode the run's first.")
        number, batch = divmod(sample.id, batching.per_round)
        if number >= units.rounds:
            problem = f"the run has no batch {sample.id}."
            raise InputError(where, problem, "Restore the run, or generate it again.")
        group, within = place[batch]
        texts.append(sample.text)
        rows.append(row)
        of_group.append(group)
        rounds.append(number)
        batches.append(within)
    if not texts:
        raise InputError(reader.where(SAMPLES), "there are no texts.", "Finish the run first.")
    return replace(
        units,
        texts=tuple(texts),
        text_rows=np.array(rows, dtype=np.int64),
        text_groups=np.array(of_group, dtype=np.int64),
        text_rounds=np.array(rounds, dtype=np.int64),
        text_batches=np.array(batches, dtype=np.int64),
    )


# Two files


def units_of_files(
    texts: str,
    shown: str,
    held_out: str,
    columns: Columns,
    *,
    split_is_random: bool,
    p: float | None = None,
    public: Sequence[str] = (),
    seed: int = SEED,
) -> Units:
    """Read any generator's texts, and the two lists that one random draw split.

    Args:
        texts: the released ones.
        shown: the records that the generator was given.
        held_out: those of the same draw that it was not.
        columns: of the files; those of users are of the two lists alone.
        split_is_random: whether the caller says that lots decided which list a unit is in.
        p: the chance of each unit to be shown, where each had a coin of its own; None where a
            number was fixed.
        public: texts that everybody has.
        seed: of the order of records that say the same.

    Raises:
        InputError: nobody says that the split is random, a file cannot be read, both lists hold the
            same records, or a user or a label is not where it has to be.
    """
    if not split_is_random:
        problem = (
            "nobody says that lots decided which records were shown. A split by date, source or "
            "name makes the lists differ by themselves, and no test tells that from disclosure."
        )
        raise InputError(_SPLIT, problem, f"Add {_SPLIT} if every record had the same lot.")
    label, user = columns.label, columns.user
    released = read_lines(texts, "TEXTS", columns._replace(user=None))
    given, kept = read_lines(shown, "--shown", columns), read_lines(held_out, "--held-out", columns)
    if {line.text for line in given} == {line.text for line in kept}:
        problem = "both files hold the same records, so nothing was held out."
        raise InputError("--held-out", problem, "Give the records that the generator did not get.")
    candidates = [
        _Candidate(line.row, line.text, line.label, one_user(line.user), is_shown)
        for lines, is_shown in ((given, True), (kept, False))
        for line in lines
    ]
    labels = sorted({each.label for each in candidates})
    number = {name: at for at, name in enumerate(labels)}
    unknown = [line for line in released if line.label not in number]
    if unknown:
        where = f"TEXTS: {texts}: row {unknown[0].row}, column {label!r}"
        problem = "no record has the label of this text."
        raise InputError(where, problem, "Leave out such texts, or --label.")
    units, twins = (_of_users(candidates, seed), 0) if user else _distinct(candidates, seed)
    groups = np.array([number[own[0].label] for own in units], dtype=np.int64)
    values = np.array([own[0].shown for own in units], dtype=np.int64)
    coins: Coins
    if p is None:
        sizes = np.bincount(groups[values == 1], minlength=len(labels)).astype(np.int64)
        coins = SplitCoins(groups, sizes)
    else:
        coins = ShownCoins(np.full(len(units), p))
    return Units(
        source="files",
        records=tuple(tuple(each.text for each in own) for own in units),
        rows=np.array([own[0].row for own in units], dtype=np.int64),
        groups=groups,
        names=tuple(GroupName(name if label is not None else None) for name in labels),
        coins=coins,
        values=values,
        texts=tuple(line.text for line in released),
        text_rows=np.array([line.row for line in released], dtype=np.int64),
        text_groups=np.array([number[line.label] for line in released], dtype=np.int64),
        text_rounds=np.zeros(len(released), dtype=np.int64),
        text_batches=None,
        public=tuple(public),
        twins=twins,
        unit="record" if user is None else "user",
        seed=seed,
    )


def _distinct(candidates: Sequence[_Candidate], seed: int) -> tuple[_OwnRecords, int]:
    """Return one record for each normalised text, and how many are left out.

    Copies that differ in nothing stand for each other: which of them is the unit is drawn.
    """
    alike: dict[str, list[_Candidate]] = defaultdict(list)
    for each in candidates:
        alike[text_key(each.text)].append(each)
    random = np.random.default_rng(seed)
    kept: _OwnRecords = [
        (alike[key][int(random.integers(len(alike[key])))],)
        for key in sorted(alike, key=lambda key: _rank(seed, key))
    ]
    return kept, len(candidates) - len(kept)


def _of_users(candidates: Sequence[_Candidate], seed: int) -> _OwnRecords:
    """Return each user's records, users in a seeded order.

    Raises:
        InputError: a user is in both files, or has records of two labels.
    """
    owned: dict[str, list[_Candidate]] = defaultdict(list)
    for each in candidates:
        owned[each.user].append(each)
    both = [own for own in owned.values() if len({each.shown for each in own}) > 1]
    if both:
        row = next(each.row for each in both[0] if not each.shown)
        problem = (
            f"{len(both):,} {'user is' if len(both) == 1 else 'users are'} in both files, so "
            "nobody can say whether they were shown."
        )
        remedy = "Draw the split by users, so that all records of one are in one file."
        raise InputError(f"--held-out: row {row}", problem, remedy)
    for own in owned.values():
        if len({each.label for each in own}) > 1:
            problem = "its user has records of another label, too."
            remedy = "Leave out --label: a user is one unit, and needs one label."
            raise InputError(f"row {own[-1].row}", problem, remedy)
    return [tuple(owned[name]) for name in sorted(owned, key=lambda name: _rank(seed, name))]
