"""Private records: text and label, from files or a Hugging Face dataset. Error messages never hold their text."""

from __future__ import annotations

import codecs
import csv
import json
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpaudit.generation.config import NO_LABELS, Config, DataConfig
from dpaudit.generation.sources import DATASET, locate, require_file
from dpaudit.runs import InputError
from dpaudit.runs.manifest import MAX_PUBLIC_EXAMPLES, MAX_TEMPLATE

#: What may separate the fields of a .csv, where nobody says.
DELIMITERS = (",", ";", "\t", "|")
#: What is said of a row without a column that a config names.
NO_COLUMN = "there is no such column."
#: Each byte is a character of it; what means something in a CSV is the same in every encoding but UTF-16.
_BYTES = "latin-1"
_MARK = codecs.BOM_UTF8.decode(_BYTES)


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
        users: whose each record is, where that was asked for.
    """

    records: tuple[Record, ...]
    most_per_user: int | None
    repeated: int
    users: Mapping[Record, str] | None = None


@dataclass(frozen=True)
class Row:
    """A row as it was read, with where it stands. A row of JSONL may lack a column that others have."""

    where: str
    values: Mapping[str, object]
    has_all_columns: bool = True


def read_records(config: DataConfig, *, whose: bool = False) -> Records:
    """The distinct records that a config names. Who a record belongs to is counted, and not kept unless `whose`.

    Raises:
        InputError: names the file, the row (from 1, the header not counted) and the column; there is no record; or it
            is asked whose one is that two users have.
    """
    rows = _rows(config)
    records: set[Record] = set()
    owned: dict[str, set[Record]] = defaultdict(set)
    users: dict[Record, str] = {}
    shared: list[str] = []  # rows whose record is another user's already
    read = 0
    for row in rows:
        record = _record(row, config)
        if record is None:
            continue
        read += 1
        records.add(record)
        if config.user is None:
            continue
        user = one_user(_value(row, config.user, "data.user"))
        owned[user].add(record)
        if whose and users.setdefault(record, user) != user:
            shared.append(row.where)
    if shared:
        others = f" So it is with {len(shared) - 1:,} more of the rows." if len(shared) > 1 else ""
        problem = f"an earlier row of another user has the same text: a record pays out of one user's budget.{others}"
        remedy = (
            "Leave data.user out and declare privacy.records_per_user, fixed without the data. Do not keep one of the "
            "rows: that would void the claim (docs/sharp-edges.md#cleaning-across-users)."
        )
        raise InputError(shared[0], problem, remedy)
    if not records:
        raise _no_records(config)
    most = None if config.user is None else max(map(len, owned.values()))
    return Records(tuple(sorted(records)), most, read - len(records), users if whose else None)


def one_user(name: str) -> str:
    """Return the form in which equal names of users are one user: NFC, with white space between words alone."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def require_records(config: DataConfig) -> int:
    """How many rows of records a config's data has, of which none is kept. Raises InputError as `read_records` does."""
    count = sum(_record(row, config) is not None for row in _rows(config))
    if not count:
        raise _no_records(config)
    return count


def _no_records(config: DataConfig) -> InputError:
    problem = f"{config.path or config.dataset!r} holds no records"
    if config.other_labels == "skip":
        problem += " with one of data.labels"
    return InputError("data.dataset" if config.path is None else "data.path", f"{problem}.", "Name data that has some.")


def read_texts(name: str, column: str, setting: str, column_setting: str) -> tuple[str, ...]:
    """The distinct texts of a file, a folder or a data set of the hub, sorted; their labels do not matter.

    Args:
        name: as `DataConfig.path`, or dataset:NAME for the split `train` of a Hugging Face data set.
        column: of the texts.
        setting, column_setting: what gave them, for errors.

    Raises:
        InputError: as `read_records` does, or there is no text.
    """
    config = DataConfig(path=name, text=column)
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
        if record is None:
            continue
        found[record.label].append(record.text)
        if len(record.text) > MAX_TEMPLATE or len(found[record.label]) > MAX_PUBLIC_EXAMPLES:
            problem = f"there are more than {MAX_PUBLIC_EXAMPLES} examples of its label, or this one is too long."
            raise InputError(f"{field}: {row.where}", problem, f"Give texts of up to {MAX_TEMPLATE:,} characters.")
    if not found:
        raise InputError(field, f"{given!r} holds no texts.", "Name a file with at least one.")
    return {label: tuple(texts) for label, texts in found.items()}


def _rows(config: DataConfig) -> Iterator[Row]:
    if config.dataset is not None:
        return _dataset_rows(config, config.dataset)
    return _path_rows(config, locate(config.path or "", "data.path"))


def _record(row: Row, config: DataConfig) -> Record | None:
    """The record of a row; None where its label says that it is to be skipped."""
    if config.labels is None:
        return Record("", _value(row, config.text, "data.text"))
    value = _value(row, config.label, "data.label")
    label = config.named.get(value)
    if label is None and config.other_labels == "skip":
        return None
    text = _value(row, config.text, "data.text")
    if label is None:
        fixed = "data.labels" if config.label_values is None else "data.label_values"
        problem = f"the label is not in {fixed}."
        fixed_beforehand = f"Labels are public and fixed beforehand: {', '.join(config.named)}."
        remedy = f"{fixed_beforehand} Mend such rows, each by what it says itself, or say data.other_labels: skip."
        raise InputError(f"{row.where}, column {config.label!r}", problem, remedy)
    return Record(label, text)


def _value(row: Row, column: str, setting: str) -> str:
    where = f"{row.where}, column {column!r}"
    if column not in row.values and row.has_all_columns:
        # The columns are not named here: where a header line is missing, they are a private record.
        remedy = f"Name one of its {len(row.values)} columns in {setting}; all of them must have names."
        raise InputError(where, NO_COLUMN, remedy)
    value = row.values.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        remedy = f"Fill in or leave out all such rows, each by itself, or name another column in {setting}."
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
        yield from readers[path.suffix.lower()](config, path)
    except UnicodeError:
        raise not_in_encoding(config, path) from None


def not_in_encoding(config: DataConfig, path: Path, option: str = "in data.encoding") -> InputError:
    """What to say of a file that is not in the encoding that its config names; `option` says where to name another."""
    remedy = f"Name its own {option} (a CSV that Excel wrote is often cp1252), or convert it to UTF-8."
    return InputError(str(path), f"this is not {(config.encoding or 'UTF-8').upper()} text.", remedy)


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
        require_file(file, "data.path")
        text = file.read_text(encoding="utf-8", errors="replace")
        yield Row(str(file), {config.text: text} | ({} if unlabelled else {config.label: file.parent.name}))


def columns_of(config: DataConfig, path: Path) -> Collection[object]:
    """What a .csv, .jsonl or .parquet file names its columns in its first line, or in its first object.

    Raises:
        UnicodeError, ValueError, csv.Error, StopIteration: the file has no such line.
    """
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        columns: list[str] = pyarrow.parquet.read_schema(path).names
        return columns
    with path.open(encoding=_encoding(config, path), newline="") as lines:
        if path.suffix.lower() == ".csv":
            return next(csv.reader(lines, delimiter=_delimiter(config, path), strict=True))
        first = json.loads(next(filter(str.strip, lines)))
    if not isinstance(first, dict):
        raise ValueError("the first line holds no object")
    return first


def write_without_row(path: Path, number: int, out: Path) -> None:
    """Copy a file of records without one of them; every other byte stays as it is.

    Args:
        path: a .csv whose first row names its columns, or a file with a record on every line that is not blank.
        number: of the row to leave out, from 1.
        out: the copy.

    Raises:
        InputError: the file cannot be read so, or has no such row.
    """
    require_file(path, "--data")
    rows = 0
    with path.open(encoding=_BYTES, newline="") as file, out.open("w", encoding=_BYTES, newline="") as copy:
        records: Iterator[list[str]] = ([line] for line in _lines_of_text(path, file))
        if path.suffix.lower() == ".csv":
            records = _csv_lines(path, file)
            copy.writelines(next(records, []))
        for lines in records:
            rows += any(map(str.strip, lines))
            if rows != number or not any(map(str.strip, lines)):
                copy.writelines(lines)
    if not 1 <= number <= rows:
        remedy = f"Name one of its {rows} rows; they count from 1."
        raise InputError("--without", f"{path} has no row {number}.", remedy)


def _lines_of_text(path: Path, file: Iterable[str]) -> Iterator[str]:
    """The lines of a file that is text, and neither UTF-16 nor of a binary format."""
    for line in file:
        if "\0" in line:
            remedy = "Have the script read records from a .csv, or from a file with one on every line, in UTF-8."
            raise InputError(str(path), "no row of it can be left out: it holds zero bytes.", remedy)
        yield line


def _csv_lines(path: Path, file: Iterable[str]) -> Iterator[list[str]]:
    """The lines of each row, that of the columns' names first."""
    taken: list[str] = []
    csv.field_size_limit(sys.maxsize)
    delimiter = _delimiter(DataConfig(path="any.csv", encoding=_BYTES), path)
    try:
        for _ in csv.reader(map(_kept_in(taken), _lines_of_text(path, file)), delimiter=delimiter, strict=True):
            yield taken
            taken.clear()
    except csv.Error as error:
        raise InputError(str(path), f"this is not valid CSV: {error}.", "Mend its quotes.") from None


def _kept_in(taken: list[str]) -> Callable[[str], str]:
    def keep(line: str) -> str:
        taken.append(line)
        return line.removeprefix(_MARK)

    return keep


def _encoding(config: DataConfig, path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    marked = "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    return config.encoding or marked


def _delimiter(config: DataConfig, path: Path) -> str:
    """The delimiter of a .csv file: the config's, or the first that gives the columns; else the one of most columns."""
    if config.delimiter is not None:
        return config.delimiter
    counts = dict.fromkeys(DELIMITERS, 0)
    with path.open(encoding=_encoding(config, path), newline="") as lines:
        for delimiter in DELIMITERS:
            lines.seek(0)
            with suppress(csv.Error):
                columns = next(csv.reader(lines, delimiter=delimiter, strict=True), [])
                if set(config.columns) <= set(columns):
                    return delimiter
                counts[delimiter] = len(columns)
    return max(counts, key=lambda delimiter: counts[delimiter])


def _csv_rows(config: DataConfig, path: Path) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    where = str(path)
    try:
        with path.open(encoding=_encoding(config, path), newline="") as file:
            reader = csv.DictReader(file, delimiter=_delimiter(config, path), strict=True)
            names = reader.fieldnames or ()
            if not names or len(set(names)) < len(names):
                problem = "two columns have the same name." if names else "the file is empty."
                raise InputError(str(path), problem, "Give each column a name of its own in the first line.")
            where = f"{path}: row 1"
            for number, values in enumerate(reader, start=1):
                # DictReader puts what is too much under None, and None where a field is lacking.
                if None in values or None in values.values():
                    problem = f"the row has {'more' if None in values else 'fewer'} fields than the first line."
                    delimiter = reader.reader.dialect.delimiter
                    remedy = f"Mend it: a text that holds {delimiter!r} or a line break needs quotes around it."
                    raise InputError(where, problem, remedy)
                yield Row(where, values)
                where = f"{path}: row {number + 1}"
    except csv.Error as error:
        unclosed = "unexpected end of data" in str(error)
        problem = "a quote is opened here and never closed." if unclosed else f"this is not valid CSV: {error}."
        raise InputError(where, problem, 'Mend its quotes; within a quoted text each is written twice ("").') from None


def _jsonl_rows(config: DataConfig, path: Path) -> Iterator[Row]:
    remedy = "Write one JSON object a line."
    with path.open(encoding=_encoding(config, path)) as file:
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


def _parquet_rows(_: DataConfig, path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

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
