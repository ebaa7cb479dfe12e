"""The texts of an evaluation: the run's, the reference, and the classifiers' test texts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pydantic import ValidationError

from dpaudit.generation.config import DataConfig
from dpaudit.generation.records import Record, read_records
from dpaudit.generation.rows import FIELDS, NO_COLUMN
from dpaudit.generation.sources import PACKAGE
from dpaudit.results.quality import HeldOut, Texts
from dpaudit.runs import InputError, KeyedHash, Manifest, RunReader, data_digest
from dpaudit.runs.layout import ASSIGNMENT, SAMPLES
from dpaudit.runs.reader import FolderReader

#: How many of some records a run was made from.
CountOwn: TypeAlias = Callable[[Iterable[Record]], int]

#: NAME or OWNER/NAME, as data sets of the hub are called.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
#: How names of files end. None of them may reach the hub, which keeps what it is asked for.
_FILE_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt", ".gz", ".zip")


@dataclass(frozen=True)
class RealData:
    """The place of real records.

    Attributes:
        reference: the records that texts are compared with.
        test: a file to test on, or None.
        text, label: columns of both; None for the run's own.
    """

    reference: str
    test: str | None = None
    text: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Corpus:
    """All texts of an evaluation. A record's label is empty if the run has none.

    Attributes:
        synthetic: the run's texts, in its order, doubles included: they are part of what would be
            released.
        reference: distinct real records.
        train: those of them that classifiers may be trained on.
        trainable: the synthetic texts that they may be trained on.
        test: real records that none is trained on.
        labels: the run's public list.
        held_out: what the test texts are; None if there are no labels.
        public: the baseline's texts; empty without one.
        trainable_public: those of them that classifiers may be trained on.
    """

    synthetic: tuple[Record, ...]
    reference: tuple[Record, ...]
    train: tuple[Record, ...]
    trainable: tuple[Record, ...]
    test: tuple[Record, ...]
    labels: tuple[str, ...]
    held_out: HeldOut | None
    public: tuple[Record, ...] = ()
    trainable_public: tuple[Record, ...] = ()


def read_synthetic(reader: FolderReader) -> tuple[tuple[Record, ...], int]:
    """Read a run's texts as it would release them, or its baseline's.

    First lines that are nothing but a text's label are left out. Prompts of fenced examples show
    each under its label's line, and models go on so: a classifier would read the answer off the
    text, and real texts have no such line.

    Returns:
        The texts in the run's order, and how many of them had such lines.

    Raises:
        InputError: it has none, or releases token ids alone.
    """
    found, lines = [], 0
    for sample in reader.samples():
        if sample.text is None:
            problem = f"batch {sample.id} is released as token ids, without text."
            raise InputError(
                reader.where(SAMPLES),
                problem,
                "Only texts can be evaluated: decode the run's first.",
            )
        label = sample.label or ""
        text = _after_label(sample.text, label)
        lines += text != sample.text
        found.append(Record(label, text))
    if not found:
        raise InputError(reader.where(SAMPLES), "there are no texts.", "Name a run that has some.")
    return tuple(found), lines


def as_many(records: tuple[Record, ...], others: tuple[Record, ...]) -> tuple[Record, ...]:
    """Return the first of the records, at most as many of each label as the others have."""
    left, kept = Counter(record.label for record in others), []
    for record in records:
        left[record.label] -= 1
        if left[record.label] >= 0:
            kept.append(record)
    return tuple(kept)


def read_real(manifest: Manifest, name: str, setting: str, data: RealData) -> tuple[Record, ...]:
    """Read distinct real records, sorted: with labels if the run has them.

    Args:
        manifest: of the run, which says where its own data came from and under which columns.
        name: as data.path in a config, or, for a run whose data was on the Hugging Face hub, NAME
            or NAME:SPLIT.
        setting: the setting that gave the name, for errors.
        data: names the columns to read, where they are not the run's.

    Raises:
        InputError: names the file, the row and the column.
    """
    labels = manifest.data.labels
    # A folder that the run's data set was loaded from is loaded again.
    on_hub = manifest.data.source == "dataset" and (_is_hubs(name) or Path(name).is_dir())
    if not labels and data.label is not None:
        problem = f"the value is {data.label!r}, but the run has no labels."
        raise InputError("--label", problem, "Leave it out: no column of labels is read.")
    dataset, _, split = name.partition(":")
    place = {
        "dataset": dataset,
        "config": manifest.data.config,
        "split": split or manifest.data.split,
    }
    place = place if on_hub else {"path": name}
    # The run's own file is written as the run read it; others are in UTF-8.
    written = {"delimiter", "encoding"} if setting == "--reference" else set[str]()
    try:
        columns: dict[str, object] = manifest.data.model_dump(include=written)
        columns["text"] = data.text or manifest.data.text
        if labels:
            label = data.label or manifest.data.label or "label"
            columns |= {
                "label": label,
                "labels": labels,
                "label_values": manifest.data.label_values,
            }
        config = DataConfig.model_validate({**place, **columns})
    except ValidationError:
        problem = "the name, the columns or the run's labels cannot be used to read records."
        what = "a text and a label" if labels else "a text"
        raise InputError(setting, problem, f"Give a file with {what} in each row.") from None
    try:
        found = read_records(config, names=_names(setting)).records
    except InputError as error:
        if setting != "--test" or error.code != NO_COLUMN:
            raise
        remedy = (
            "Rename its columns: --reference and --test are read by the same ones, --text "
            "and --label name them."
        )
        raise InputError(error.where, error.problem, remedy, error.code) from None
    if not labels and not found:
        raise InputError(setting, f"{name!r} holds no texts.", "Name a file with at least one.")
    return found


def corpus_of(
    labels: tuple[str, ...],
    synthetic: tuple[Record, ...],
    reference: tuple[Record, ...],
    test: tuple[Record, ...] | None,
    *,
    share: float,
    seed: int,
    count_own: CountOwn | None = None,
    public: tuple[Record, ...] = (),
) -> Corpus:
    """Separate training texts from test texts.

    Args:
        labels: the run's public list.
        synthetic: its texts.
        reference: real records.
        test: real records of a file of their own; None splits the reference.
        share: of the reference that is tested on then.
        seed: of the hash that splits: a text's side depends on that text and the seed alone.
        count_own: see `own_records`.
        public: the baseline's texts, or none.

    Raises:
        InputError: nothing is left to train or to test on.
    """
    if not labels:
        return Corpus(synthetic, reference, (), (), (), labels, None, public)
    if not reference:
        raise InputError(
            "--reference",
            "there is no record in it.",
            "Give real records with a text and a label each.",
        )
    if test is not None and not test:
        raise InputError(
            "--test", "there is no record in it.", "Give records, or leave --test away for a split."
        )
    chosen = test
    if chosen is None:
        chosen = tuple(r for r in reference if hash_fraction(r.text, seed, b"test") < share)
    tested = {normalized_text(record.text) for record in chosen}
    train = tuple(record for record in reference if normalized_text(record.text) not in tested)
    trainable, trainable_public = (
        tuple(record for record in texts if normalized_text(record.text) not in tested)
        for texts in (synthetic, public)
    )
    if test is not None and not train:
        problem = "all texts of --reference are in it, so no real record is left to train on."
        raise InputError("--test", problem, "Give other records than those of --reference.")
    for left, what in ((chosen, "test"), (train, "train")):
        if not left:
            problem = f"no real record is left to {what} on."
            raise InputError(
                "--reference",
                problem,
                "Give more records, another --test-share, or a file with --test.",
            )
    held_out = HeldOut(
        origin="split" if test is None else "file",
        share=share if test is None else None,
        seed=seed,
        test=summary_of(chosen),
        own=None if count_own is None else count_own(chosen),
        dropped_real=len(reference) - len(train) - (len(chosen) if test is None else 0),
        dropped_synthetic=len(synthetic) - len(trainable),
    )
    return Corpus(
        synthetic, reference, train, trainable, chosen, labels, held_out, public, trainable_public
    )


def subsample(records: tuple[Record, ...], most: int, seed: int) -> tuple[Record, ...]:
    """Return up to `most` of the records, in their order.

    They are those whose texts a hash under the seed puts first.
    """
    if len(records) <= most:
        return records
    ranked = sorted(
        range(len(records)), key=lambda row: (hash_fraction(records[row].text, seed, b"kept"), row)
    )
    return tuple(records[row] for row in sorted(ranked[:most]))


def own_records(reader: RunReader) -> CountOwn | None:
    """Return a count of records whose text a run was made from, under any label, letter by letter.

    It is by the run's assignment, whose digests tell nothing of other texts; None if that does not
    say, or not in one voice.
    """
    manifest = reader.manifest
    if manifest.batching.key is None or manifest.data.digest is None or not reader.has(ASSIGNMENT):
        return None
    with suppress(InputError):
        digests = [assigned.digest for assigned in reader.assignment()]
        if data_digest(digests) == manifest.data.digest:
            known, hashing = frozenset(digests), KeyedHash(bytes.fromhex(manifest.batching.key))

            def count(records: Iterable[Record]) -> int:
                return sum(
                    any(
                        hashing.digest(label, record.text) in known
                        for label in {record.label, *manifest.data.groups}
                    )
                    for record in records
                )

            return count
    return None


def distinct_texts(records: Sequence[Record]) -> tuple[Record, ...]:
    """Return the first record with each text, up to case and white space, in their order."""
    first: dict[str, Record] = {}
    for record in records:
        first.setdefault(normalized_text(record.text), record)
    return tuple(first.values())


def summary_of(records: Sequence[Record]) -> Texts:
    """Return the numbers and digest of a set of texts."""
    total = hashlib.sha256()
    for record in records:
        for part in (record.label.encode(), record.text.encode("utf-8", "surrogatepass")):
            total.update(len(part).to_bytes(8, "big") + part)
    return Texts(
        texts=len(records),
        distinct=len({record.text for record in records}),
        digest=total.hexdigest(),
    )


def normalized_text(text: str) -> str:
    """Return the text without its case and white space: equal ones count as one."""
    return " ".join(text.split()).casefold()


def hash_fraction(text: str, seed: int, purpose: bytes) -> float:
    """Return a text's place in [0, 1), which looks random.

    It depends on the text, the seed and the purpose alone.
    """
    message = normalized_text(text).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(
        message, digest_size=8, key=seed.to_bytes(8, "big"), person=b"eval." + purpose
    )
    return int.from_bytes(digest.digest(), "big") / 2**64


def _after_label(text: str, label: str) -> str:
    while label:
        first, _, rest = text.lstrip().partition("\n")
        if first.strip() != label:
            break
        text = rest
    return text


def _is_hubs(name: str) -> bool:
    """Return whether a name can only be a hub's data set.

    A name that may be a mistyped path is not asked for there.
    """
    dataset = name.partition(":")[0]
    owner, slash, _ = dataset.partition("/")
    return not (
        name.startswith(PACKAGE)
        or Path(name).exists()
        or not _HUB_NAME.fullmatch(dataset)
        or dataset.lower().endswith(_FILE_ENDINGS)
        or (slash and Path(owner).exists())
    )


def _names(setting: str) -> dict[str, str]:
    """Return the options that errors name for a config's fields.

    Encoding and other labels have none.
    """
    labels = {"labels": "the run's labels", "label_values": "the run's labels"}
    names = {
        **FIELDS,
        "path": setting,
        "dataset": setting,
        "text": "--text",
        "label": "--label",
        **labels,
    }
    return {name: said for name, said in names.items() if name not in ("encoding", "other_labels")}
