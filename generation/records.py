"""Private records: text and label, from files or a Hugging Face data set.

Error messages never hold their text.
"""

from __future__ import annotations

import csv
import math
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpaudit.generation.config import Config, DataConfig
from dpaudit.generation.rows import FIELDS, SEPARATED, SEPARATOR_LINE, Row, delimiter_of, read_rows
from dpaudit.generation.sources import DATASET, require_file
from dpaudit.runs import InputError
from dpaudit.runs.manifest import MAX_PUBLIC_EXAMPLES, MAX_TEMPLATE, NO_LABELS

#: Each byte is a character of it; what means something in a CSV is the same in every encoding but
#: UTF-16.
_BYTES = "latin-1"
#: UTF-8's mark, so read.
_MARK = "\ufeff".encode().decode(_BYTES)


@dataclass(frozen=True, order=True)
class Record:
    """A private record; rows with equal label and text are one record.

    Without labels the label is empty.
    """

    label: str
    text: str

    def __repr__(self) -> str:
        """Keep private text out of logs and tracebacks."""
        return "Record(...)"


@dataclass(frozen=True)
class Records:
    """The content of a config's data.

    Attributes:
        records: the distinct ones, sorted.
        most_per_user: the most that one user has; None if no column names users.
        repeated: how many rows there are beyond the distinct records.
        users: each record's user, if that was asked for.
    """

    records: tuple[Record, ...]
    most_per_user: int | None
    repeated: int
    users: Mapping[Record, str] | None = None


def read_records(
    config: DataConfig, *, whose: bool = False, names: Mapping[str, str] = FIELDS
) -> Records:
    """Read the distinct records that a config names.

    Records are counted for each user; users are kept only with `whose`.

    Args:
        config: names the data, its columns and its labels.
        whose: whether to keep each record's user.
        names: the names of the config's fields in errors; without `encoding` and `other_labels`
            where none can be given.

    Raises:
        InputError: names the file, the row (from 1, the header not counted) and the column; there
            is no record; or users are asked for, and two have the same record.
    """
    records: set[Record] = set()
    owned: dict[str, set[Record]] = defaultdict(set)
    users: dict[Record, str] = {}
    shared: list[str] = []  # rows whose record is another user's already
    read = 0
    for row in read_rows(config, names):
        record = _record(row, config, names)
        if record is None:
            continue
        read += 1
        records.add(record)
        if config.user is None:
            continue
        user = one_user(given_text(row, config.user, names, "user"))
        owned[user].add(record)
        if whose and users.setdefault(record, user) != user:
            shared.append(row.where)
    if shared:
        others = f" So it is with {len(shared) - 1:,} more of the rows." if len(shared) > 1 else ""
        problem = (
            "an earlier row of another user has the same text: a record pays out of one "
            f"user's budget.{others}"
        )
        remedy = (
            "Leave data.user out and declare privacy.records_per_user, fixed without the data. "
            "Do not keep one of the "
            "rows: that would void the claim (docs/sharp-edges.md#cleaning-across-users)."
        )
        raise InputError(shared[0], problem, remedy, "records.of-two-users")
    if not records:
        raise _no_records(config, names)
    most = None if config.user is None else max(map(len, owned.values()))
    return Records(tuple(sorted(records)), most, read - len(records), users if whose else None)


def one_user(name: str) -> str:
    """Return the form in which users' equal names agree: NFC, with single spaces between words."""
    return " ".join(unicodedata.normalize("NFC", name).split())


def _no_records(config: DataConfig, names: Mapping[str, str]) -> InputError:
    problem = f"{config.path or config.dataset!r} holds no records"
    if config.other_labels == "skip":
        problem += f" with one of {names['labels']}"
    where = names["dataset" if config.path is None else "path"]
    return InputError(where, f"{problem}.", "Name data that has some.", "records.none")


def read_texts(name: str, column: str, setting: str, column_setting: str) -> tuple[str, ...]:
    """Read a file's, a folder's or a hub data set's distinct texts, sorted; labels do not matter.

    Args:
        name: as `DataConfig.path`, or dataset:NAME for the split `train` of a Hugging Face data
            set.
        column: of the texts.
        setting, column_setting: the settings that gave them, for errors.

    Raises:
        InputError: as `read_records` does, or there is no text.
    """
    source = {"dataset": name.removeprefix(DATASET)} if name.startswith(DATASET) else {"path": name}
    names = {**FIELDS, "path": setting, "dataset": setting, "text": column_setting}
    del names["encoding"]  # that of the private records alone can be named
    rows = read_rows(DataConfig.model_validate({**source, "text": column}), names)
    texts = {given_text(row, column, names, "text") for row in rows}
    if not texts:
        raise InputError(setting, f"{name!r} holds no texts.", "Name a file with at least one.")
    return tuple(sorted(texts))


def read_public_examples(config: Config) -> dict[str, tuple[str, ...]]:
    """Read the public examples of each label that has any, in their order, with repetitions.

    Raises:
        InputError: as `read_records` does, or they are more or longer than run.json holds.
    """
    given, field = config.prompt.public_examples, "prompt.public_examples"
    if isinstance(given, tuple):
        return dict.fromkeys(NO_LABELS, given)
    if not isinstance(given, str):
        return dict(given or {})
    found: dict[str, list[str]] = defaultdict(list)
    file = {"path": given, "dataset": None, "user": None}
    names = {**FIELDS, "path": field}
    for row in read_rows(config.data.model_copy(update=file), names):
        record = _record(row, config.data, names)
        if record is None:
            continue
        found[record.label].append(record.text)
        if len(record.text) > MAX_TEMPLATE or len(found[record.label]) > MAX_PUBLIC_EXAMPLES:
            problem = (
                f"there are more than {MAX_PUBLIC_EXAMPLES} examples of its label, or this "
                "one is too long."
            )
            raise InputError(
                f"{field}: {row.where}",
                problem,
                f"Give texts of up to {MAX_TEMPLATE:,} characters.",
            )
    if not found:
        raise InputError(field, f"{given!r} holds no texts.", "Name a file with at least one.")
    return {label: tuple(texts) for label, texts in found.items()}


def _record(row: Row, config: DataConfig, names: Mapping[str, str]) -> Record | None:
    """Return a row's record, or None if it is to be skipped: for its label, or what it lacks.

    Each row is looked at by itself, so that a neighbouring data set has the same other records.
    """
    if config.labels is None:
        return Record("", given_text(row, config.text, names, "text"))
    skip = config.other_labels == "skip"
    value = _given(row, config.label) if skip else given_text(row, config.label, names, "label")
    label = config.named.get(value or "") or config.named.get((value or "").strip())
    if label is None and skip:
        return None
    text = _given(row, config.text) if skip else given_text(row, config.text, names, "text")
    if text is None:
        return None
    if label is None:
        fixed = names["labels" if config.label_values is None else "label_values"]
        problem = f"the label is not in {fixed}."
        remedy = "Mend or leave out all such rows, each by itself."
        if "other_labels" in names:
            fixed_beforehand = f"Labels are public and fixed beforehand: {', '.join(config.named)}."
            mend = (
                "Mend such rows, each by what it says itself, or say "
                f"{names['other_labels']}: skip."
            )
            remedy = f"{fixed_beforehand} {mend}"
        raise InputError(f"{row.where}, column {config.label!r}", problem, remedy, "records.label")
    return Record(label, text)


def given_text(row: Row, column: str, names: Mapping[str, str], field: str) -> str:
    """Return a row's text in the column that a field names.

    Raises:
        InputError: there is none.
    """
    value = _given(row, column)
    if value is None:
        remedy = (
            "Fill in or leave out all such rows, each by itself, or name another column in "
            f"{names[field]}."
        )
        raise InputError(
            f"{row.where}, column {column!r}",
            "the value is missing.",
            remedy,
            f"records.no-{field}",
        )
    return value


def _given(row: Row, column: str) -> str | None:
    """Return a row's text in a column, or None if there is none.

    Raises:
        InputError: the value is no text.
    """
    value = row.values.get(column)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, float) and math.isnan(value):  # what pandas writes where there is nothing
        return None
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if not isinstance(value, str):
        where = f"{row.where}, column {column!r}"
        problem = f"the value is a {type(value).__name__}, not text."
        raise InputError(where, problem, "Convert the column to text.", "records.kind")
    # A lone surrogate (JSON can hold one) cannot be encoded, and the encoder's message would show
    # the text.
    return value.encode("utf-8", "replace").decode("utf-8")


def write_without_row(path: Path, number: int, out: Path) -> None:
    """Copy a file of records without one of them; every other byte stays as it is.

    Args:
        path: a .csv or .tsv whose first row names its columns, or a file with a record on every
            line that is not blank.
        number: of the row to leave out, from 1.
        out: the copy.

    Raises:
        InputError: the file cannot be read so, or has no such row.
    """
    require_file(path, "--data")
    rows = 0
    with (
        path.open(encoding=_BYTES, newline="") as file,
        out.open("w", encoding=_BYTES, newline="") as copy,
    ):
        records: Iterator[list[str]] = ([line] for line in _lines_of_text(path, file))
        if path.suffix.lower() in SEPARATED:
            first = file.readline()
            stated = SEPARATOR_LINE.fullmatch(first) is not None
            if not stated:
                file.seek(0)
            copy.write(first * stated)
            records = _csv_lines(path, file)
            for lines in records:
                copy.writelines(lines)
                if any(map(str.strip, lines)):  # the columns' names
                    break
        for lines in records:
            rows += any(map(str.strip, lines))
            if rows != number or not any(map(str.strip, lines)):
                copy.writelines(lines)
    if not 1 <= number <= rows:
        remedy = f"Name one of its {rows} rows; they count from 1."
        raise InputError("--without", f"{path} has no row {number}.", remedy)


def _lines_of_text(path: Path, file: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file that is text, and neither UTF-16 nor of a binary format."""
    for line in file:
        if "\0" in line:
            remedy = (
                "Have the script read records from a .csv, or from a file with one on every "
                "line, in UTF-8."
            )
            raise InputError(
                str(path), "no row of it can be left out: it holds zero bytes.", remedy
            )
        yield line


def _csv_lines(path: Path, file: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines of each row, the header's first."""
    taken: list[str] = []
    csv.field_size_limit(sys.maxsize)
    delimiter = delimiter_of((), path, _BYTES)
    try:
        for _ in csv.reader(
            map(_kept_in(taken), _lines_of_text(path, file)), delimiter=delimiter, strict=True
        ):
            yield taken
            taken.clear()
    except csv.Error as error:
        raise InputError(
            str(path), f"this is not valid CSV: {error}.", "Mend its quotes."
        ) from None


def _kept_in(taken: list[str]) -> Callable[[str], str]:
    def keep(line: str) -> str:
        taken.append(line)
        return line.removeprefix(_MARK)

    return keep
