"""Private records: text and label, from files or a Hugging Face dataset. Error messages never hold their text."""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpaudit.generation.config import NO_LABELS, Config, DataConfig
from dpaudit.generation.sources import DATASET, locate
from dpaudit.runs import InputError
from dpaudit.runs.manifest import MAX_PUBLIC_EXAMPLES, MAX_TEMPLATE


@dataclass(frozen=True, order=True)
class Record:
    """One private record. Two rows with equal label and text are one record. Without labels the label is empty."""

    label: str
    text: str

    def __repr__(self) -> str:
        """Keep private text out of logs and tracebacks."""
        return "Record(...)"


@dataclass(frozen=True)
class Records:
    """What a config's data holds.

    Attributes:
        records: the distinct ones, sorted.
        most_per_user: the most that one user has; None where no column names users.
        repeated: how many rows there are beyond the distinct records.
    """

    records: tuple[Record, ...]
    most_per_user: int | None
    repeated: int


@dataclass(frozen=True)
class Row:
    """A row as it was read, with where it stands. A row of JSONL may lack a column that others have."""

    where: str
    values: Mapping[str, object]
    has_all_columns: bool = True


def read_records(config: DataConfig) -> Records:
    """The distinct records that a config names. Who a record belongs to is counted and not kept.

    Raises:
        InputError: names the file, the row (from 1, the header not counted) and the column.
    """
    if config.dataset is not None:
        rows = _dataset_rows(config, config.dataset)
    else:
        rows = _path_rows(config, locate(config.path or "", "data.path"))
    records: set[Record] = set()
    owned: dict[str, set[Record]] = defaultdict(set)
    read = 0
    for row in rows:
        read += 1
        record = _record(row, config)
        records.add(record)
        if config.user is not None:
            owned[_value(row, config.user, "data.user")].add(record)
    most = None if config.user is None else max(map(len, owned.values()), default=1)
    return Records(tuple(sorted(records)), most, read - len(records))


def read_texts(name: str, column: str, setting: str, column_setting: str) -> tuple[str, ...]:
    """The distinct texts of a file, a folder or a data set of the hub, sorted; their labels do not matter.

    Args:
        name: as `DataConfig.path`, or dataset:NAME for the split `train` of a Hugging Face data set.
        column: of the texts.
        setting, column_setting: what gave them, for errors.

    Raises:
        InputError: as `read_records` does, or there is no text.
    """
    config = DataConfig(path=name, text=column, labels=("any",))
    if name.startswith(DATASET):
        rows = _dataset_rows(config, name.removeprefix(DATASET), setting)
    else:
        rows = _path_rows(config, locate(name, setting))
    texts = {_value(row, column, column_setting) for row in rows}
    if not texts:
        raise InputError(setting, f"{name!r} holds no texts.", "Name a file with at least one.")
    return tuple(sorted(texts))


def read_public_examples(config: Config) -> dict[str, tuple[str, ...]]:
    """The public examples of each label that has any, as often and in the order as they are given.

    Raises:
        InputError: as `read_records` does, or they are more or longer than run.json holds.
    """
    given, field = config.prompt.public_examples, "prompt.public_examples"
    if isinstance(given, tuple):
        return dict.fromkeys(NO_LABELS, given)
    if not isinstance(given, str):
        return dict(given or {})
    found: dict[str, list[str]] = defaultdict(list)
    for row in _path_rows(config.data.model_copy(update={"user": None}), locate(given, field)):
        record = _record(row, config.data)
        found[record.label].append(record.text)
        if len(record.text) > MAX_TEMPLATE or len(found[record.label]) > MAX_PUBLIC_EXAMPLES:
            problem = f"there are more than {MAX_PUBLIC_EXAMPLES} examples of its label, or this one is too long."
            raise InputError(f"{field}: {row.where}", problem, f"Give texts of up to {MAX_TEMPLATE:,} characters.")
    if not found:
        raise InputError(field, f"{given!r} holds no texts.", "Name a file with at least one.")
    return {label: tuple(texts) for label, texts in found.items()}


def _record(row: Row, config: DataConfig) -> Record:
    text = _value(row, config.text, "data.text")
    if config.labels is None:
        return Record("", text)
    value = _value(row, config.label, "data.label")
    label = config.named.get(value)
    if label is None:
        fixed = "data.labels" if config.label_values is None else "data.label_values"
        problem = f"the label is not in {fixed}."
        remedy = f"Labels are public and fixed beforehand: {', '.join(config.named)}. Mend the row or the list."
        raise InputError(f"{row.where}, column {config.label!r}", problem, remedy)
    return Record(label, text)


def _value(row: Row, column: str, setting: str) -> str:
    where = f"{row.where}, column {column!r}"
    if column not in row.values and row.has_all_columns:
        # The columns are not named here: where a header line is missing, they are a private record.
        remedy = f"Name one of its {len(row.values)} columns in {setting}; all of them must have names."
        raise InputError(where, "there is no such column.", remedy)
    value = row.values.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        remedy = f"Fill it in, take the row out, or name another column in {setting}."
        raise InputError(where, "the value is missing.", remedy)
    if not isinstance(value, str):
        raise InputError(where, f"the value is a {type(value).__name__}, not text.", "Convert the column to text.")
    # A lone surrogate (JSON can hold one) cannot be encoded, and the encoder's message would show the text.
    return value.encode("utf-8", "replace").decode("utf-8")


def _path_rows(config: DataConfig, path: Path) -> Iterator[Row]:
    if path.is_dir():
        yield from _folder_rows(config, path)
        return
    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
    if path.suffix.lower() not in readers:
        remedy = f"Allowed: {', '.join(readers)}, or a folder of LABEL/*.txt."
        raise InputError(str(path), "this kind of file cannot be read.", remedy)
    try:
        yield from readers[path.suffix.lower()](path)
    except UnicodeDecodeError:
        raise InputError(str(path), "this is not UTF-8 text.", "Convert it to UTF-8.") from None


def _folder_rows(config: DataConfig, folder: Path) -> Iterator[Row]:
    if config.user is not None:
        problem = "a folder of text files has no column that names users."
        raise InputError("data.user", problem, "Leave it out, or give a file with such a column.")
    unlabelled = config.labels is None
    files = sorted([*folder.glob("*/*.txt"), *(folder.glob("*.txt") if unlabelled else ())])
    if not files:
        if unlabelled:
            raise InputError(str(folder), "there is no .txt inside.", "Give a folder with text files.")
        raise InputError(str(folder), "there is no LABEL/*.txt inside.", "Give a folder with one folder per label.")
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        yield Row(str(file), {config.text: text} | ({} if unlabelled else {config.label: file.parent.name}))


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = reader.fieldnames or ()
            if not names or len(set(names)) < len(names):
                problem = "two columns have the same name." if names else "the file is empty."
                raise InputError(str(path), problem, "Give each column a name of its own in the first line.")
            for number, values in enumerate(reader, start=1):
                where = f"{path}: row {number}"
                # DictReader puts what is too much under None, and None where a field is lacking.
                if None in values or None in values.values():
                    problem = f"the row has {'more' if None in values else 'fewer'} fields than the first line."
                    remedy = "Mend it: a text that holds a comma or a line break needs quotes around it."
                    raise InputError(where, problem, remedy)
                yield Row(where, values)
    except csv.Error as error:
        raise InputError(str(path), f"this is not valid CSV: {error}.", "Mend its quotes.") from None


def _jsonl_rows(path: Path) -> Iterator[Row]:
    remedy = "Write one JSON object a line."
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}: row {number}"
                try:
                    values = json.loads(line)
                except (ValueError, RecursionError):
                    raise InputError(where, "this is not valid JSON.", remedy) from None
                if not isinstance(values, dict):
                    raise InputError(where, "this is not a JSON object.", remedy)
                yield Row(where, values, has_all_columns=False)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid:
        raise InputError(str(path), "this is not a Parquet file.", "Write it again.") from None
    for number, values in enumerate(table.to_pylist(), start=1):
        yield Row(f"{path}: row {number}", values)


def _dataset_rows(config: DataConfig, name: str, setting: str = "data.dataset") -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        problem = "the datasets library is not installed."
        raise InputError(setting, problem, "Install it, or give a path.") from None
    split = config.split or "train"
    try:
        data = datasets.load_dataset(name, split=split)
    except Exception as error:  # the library raises many kinds: no network, no such name, no such split
        problem = f"{name!r}, split {split!r}, cannot be loaded ({type(error).__name__})."
        raise InputError(setting, problem, "Check the name, the split and the network.") from None
    names = None if config.labels is None else getattr(data.features.get(config.label), "names", None)
    for number, values in enumerate(data, start=1):
        if names is not None and values[config.label] is not None:
            values = {**values, config.label: names[values[config.label]]}
        yield Row(f"{name} ({split}): row {number}", values)
