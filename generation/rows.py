"""Rows of files and of Hugging Face data sets, of which the columns that a config names are read.

What cannot be read is told with its file and row, and never with what stands there: that is
private.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit.generation.config import DataConfig
from dpaudit.generation.sources import locate, require_file
from dpaudit.runs import InputError
from dpaudit.runs.extras import installing

#: How files end whose fields are separated.
SEPARATED = (".csv", ".tsv")
#: What may separate the fields of a .csv, where nobody says.
DELIMITERS = (",", ";", "\t", "|")
#: The code of a column that is not there.
NO_COLUMN = "rows.no-column"
#: Codes of errors that other settings, of columns, labels or the encoding, may mend.
OF_SETTINGS = frozenset(
    f"rows.{what}"
    for what in ("no-column", "same-columns", "encoding", "mark", "utf-16", "zero-bytes")
) | {
    f"records.{what}"
    for what in ("no-text", "no-label", "no-user", "label", "blanks", "none", "of-two-users")
}
#: What errors call the fields of a source of rows: a config's `data`.
FIELDS: Mapping[str, str] = {field: f"data.{field}" for field in DataConfig.model_fields}
#: And what names a file's encoding where its columns are asked for: there is no config then.
_ASKED: Mapping[str, str] = {**FIELDS, "encoding": "--encoding"}
#: The first line with which Excel is told what separates the fields of a .csv.
SEPARATOR_LINE = re.compile(r'(?:\ufeff|ï»¿)?"?sep=([^\r\n"])"?\r?\n?', re.IGNORECASE)

#: The encoding of a file that begins so. Marks of UTF-32 begin like one of UTF-16, and come first.
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
#: What a file is that begins so, whatever its name, and what to do with it.
_PACKED = {
    b"\x1f\x8b": ("a gzip file", "Unpack it first."),
    b"\x28\xb5\x2f\xfd": ("a zstd file", "Unpack it first."),
    b"PK\x03\x04": (
        "a zip file or an Excel workbook",
        "Unpack it first, or save it as CSV in UTF-8.",
    ),
    b"\xd0\xcf\x11\xe0": ("an Excel workbook", "Save it as CSV in UTF-8."),
}
_PARQUET = b"PAR1"
#: A longer name of a column is taken for a record's text, and one without a letter for its value.
_LONGEST_NAME = 40
_COUNTED = "not shown: without a header line they would be a record"
#: The library's number for a row without a class.
_UNLABELLED = -1


@dataclass(frozen=True)
class Row:
    """A row as it was read: where it stands, and its values by the columns that were asked for.

    A row of JSONL may lack a column that others have.
    """

    where: str
    values: Mapping[str, object]


class _Object(dict[str, Any]):
    """A JSON object, and the names that it gives twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: frozenset[str] = frozenset()
        if len(self) < len(pairs):
            names = [name for name, _ in pairs]
            self.repeated = frozenset(name for name in self if names.count(name) > 1)


def read_rows(config: DataConfig, names: Mapping[str, str] = FIELDS) -> Iterator[Row]:
    """Read the columns that a config names from the file, the folder or the data set that it names.

    Args:
        config: `text`, and with labels `label`, and `user`, name the columns.
        names: what errors call the config's fields; without `encoding` where no encoding can be
            named.

    Raises:
        InputError: names the file and, of a row that cannot be read, its number (from 1, the header
            not counted).
    """
    if config.dataset is not None:
        yield from _dataset_rows(config, names)
        return
    path = locate(config.path or "", names["path"])
    yield from (_folder_rows if path.is_dir() else _file_rows)(config, names, path)


def read_columns(path: str, encoding: str | None = None) -> tuple[str, ...]:
    """Read the names of a file's columns off its first line, and nothing else.

    Those at either end that have no name are left out. A folder of text files has none.

    Raises:
        InputError: there is no such file, it cannot be read, its encoding is none, or its first
            line looks like a record rather than names; that is not shown.
    """
    require_encoding(encoding)
    file = locate(path, path)
    if file.is_dir():
        parts = (part for part in sorted(file.iterdir()) if part.suffix.lower() in _READERS)
        file = next((part for part in parts if part.name[0] not in "._"), file)
        if file.is_dir():
            return ()
    config = DataConfig(path=str(file), encoding=encoding)
    with _reading(config, _ASKED, file):
        columns = _first_columns(config, file)
    while columns and not columns[-1]:  # Excel's spare columns
        columns = columns[:-1]
    if columns and not columns[0]:  # pandas' numbers of rows
        columns = columns[1:]
    if not columns or not all(
        len(name) <= _LONGEST_NAME and any(map(str.isalpha, name)) for name in columns
    ):
        problem = f"its first line does not look like names of columns ({_COUNTED})."
        remedy = "Put a line with a short name for each column first."
        raise InputError(str(file), problem, remedy, NO_COLUMN)
    return columns


def require_encoding(encoding: str | None) -> None:
    """Refuse an option's text encoding that Python does not know. Raises InputError."""
    try:
        "".encode(encoding or "utf-8")
    except (LookupError, ValueError):
        problem = f"Python knows no text encoding {encoding!r}."
        raise InputError(_ASKED["encoding"], problem, "Try cp1252 or utf-16.") from None


def _first_columns(config: DataConfig, file: Path) -> tuple[str, ...]:
    if file.suffix.lower() == ".parquet":
        import pyarrow
        import pyarrow.parquet

        try:
            return tuple(pyarrow.parquet.read_schema(file).names)
        except pyarrow.ArrowException:
            problem, remedy = "this is not a Parquet file.", "Copy or write it again."
            raise InputError(str(file), problem, remedy, "rows.no-parquet") from None
    if file.suffix.lower() == ".jsonl":
        _, values = next(_objects(config, _ASKED, file), ("", _Object([])))
        return tuple(values)
    encoding = _encoding(config, _ASKED, file)
    delimiter = delimiter_of((), file, encoding)
    with file.open(encoding=encoding, newline="") as lines:
        if not SEPARATOR_LINE.fullmatch(lines.readline()):
            lines.seek(0)
        names: list[str] = []
        with suppress(csv.Error):
            names = next(filter(None, csv.reader(lines, delimiter=delimiter)), [])
    return tuple(name.strip() for name in names)


def delimiter_of(columns: Collection[str], path: Path, encoding: str) -> str:
    """Return what separates a .csv file's fields.

    Its first line may say so. Else it is the first that gives the columns, or the one that gives
    most columns.
    """
    counts = dict.fromkeys(DELIMITERS, 0)
    with path.open(encoding=encoding, newline="") as lines:
        if stated := SEPARATOR_LINE.fullmatch(lines.readline()):
            return stated[1]
        for delimiter in DELIMITERS:
            lines.seek(0)
            with suppress(csv.Error):
                header = next(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)), [])
                if columns and set(columns) <= {*header, *map(str.strip, header)}:
                    return delimiter
                counts[delimiter] = len(header)
    return max(counts, key=lambda delimiter: counts[delimiter])


def _requested_columns(config: DataConfig, names: Mapping[str, str]) -> dict[str, str]:
    """Return the columns to read, and the field that names each."""
    asked = {config.text: names["text"]}
    if config.labels is not None:
        asked.setdefault(config.label, names["label"])
    if config.user is not None:
        asked.setdefault(config.user, names["user"])
    return asked


def _column_places(header: Sequence[str], asked: Mapping[str, str], where: str) -> dict[str, int]:
    """Return each column's place in a header, ignoring blanks around names and other columns.

    Raises:
        InputError: a column is not there, or is there twice.
    """
    found = {}
    for column, setting in asked.items():
        places = [number for number, name in enumerate(header) if name == column] or [
            number for number, name in enumerate(header) if name.strip() == column
        ]
        if not places:
            problem, code = "there is no such column.", NO_COLUMN
            remedy = (
                f"Name its only column ({_COUNTED}) in {setting}."
                if len(header) == 1
                else f"Name one of its {len(header)} columns ({_COUNTED}) in {setting}; all of "
                "them must have names."
            )
            if f"'{column}'" in map(str.strip, header):
                code = "rows.single-quotes"
                remedy = (
                    "Its fields are in single quotes, which are part of the text in CSV: "
                    "put double quotes there."
                )
            raise InputError(f"{where}: column {column!r}", problem, remedy, code)
        if len(places) > 1:
            problem, remedy = (
                f"{len(places)} columns have this name.",
                f"Rename them, or name another in {setting}.",
            )
            raise InputError(f"{where}: column {column!r}", problem, remedy, "rows.same-columns")
        found[column] = places[0]
    return found


def _file_rows(config: DataConfig, names: Mapping[str, str], path: Path) -> Iterator[Row]:
    with _reading(config, names, path) as read:
        yield from read(config, names, path)


@contextmanager
def _reading(
    config: DataConfig, names: Mapping[str, str], path: Path
) -> Iterator[Callable[[DataConfig, Mapping[str, str], Path], Iterator[Row]]]:
    """Give the reader of a file's kind, and refuse a file that it cannot read."""
    if path.suffix.lower() not in _READERS:
        remedy = f"Allowed: {', '.join(_READERS)}, a folder of these, or a folder of LABEL/*.txt."
        raise InputError(str(path), "this kind of file cannot be read.", remedy, "rows.kind")
    require_file(path, names["path"])
    if not path.stat().st_size:
        raise _empty(path)
    try:
        yield _READERS[path.suffix.lower()]
    except UnicodeError:
        remedy = "Convert it to UTF-8."
        if field := names.get("encoding"):
            remedy = (
                f"Name its own in {field} (a CSV that Excel wrote is often cp1252), or "
                "convert it to UTF-8."
            )
        problem = f"this is not {(config.encoding or 'UTF-8').upper()} text."
        raise InputError(str(path), problem, remedy, "rows.encoding") from None


def _empty(path: Path) -> InputError:
    return InputError(str(path), "the file is empty.", "Give a file with records.", "rows.empty")


def _folder_rows(config: DataConfig, names: Mapping[str, str], folder: Path) -> Iterator[Row]:
    """Yield the rows of a folder of text files, or of files of one other kind, none hidden."""
    unlabelled = config.labels is None
    found = sorted([*folder.glob("*/*.txt"), *(folder.glob("*.txt") if unlabelled else ())])
    texts = [
        file for file in found if not any(part[0] == "." for part in file.relative_to(folder).parts)
    ]
    parts = sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in _READERS and file.name[0] not in "._"
    )
    kinds = sorted({*(".txt" for _ in texts), *(file.suffix.lower() for file in parts)})
    if len(kinds) > 1:
        remedy = "Name one of the files, or put those of one kind into a folder of their own."
        problem = f"there are files of several kinds inside: {', '.join(kinds)}."
        raise InputError(str(folder), problem, remedy, "rows.several-kinds")
    if parts:
        for part in parts:
            yield from _file_rows(config, names, part)
        return
    if config.user is not None:
        problem = "a folder of text files has no column that names users."
        raise InputError(
            names["user"],
            problem,
            "Leave it out, or give a file with such a column.",
            "rows.no-users",
        )
    if not texts:
        what = "text files" if unlabelled else "one folder of text files per label"
        remedy = f"Give a folder with {what}, or with {', '.join(_READERS)} files of one kind."
        problem = f"there is no {'' if unlabelled else 'LABEL/*'}.txt inside."
        raise InputError(str(folder), problem, remedy, "rows.no-files")
    for file in texts:
        require_file(file, names["path"])
        text = file.read_text(encoding=_encoding(config, names, file), errors="replace")
        if "\0" in text:
            raise _zero_bytes(str(file), names)
        columns = {config.text: text}
        if not unlabelled:
            columns[config.label] = file.parent.name
        yield Row(str(file), columns)


def _encoding(config: DataConfig, names: Mapping[str, str], path: Path) -> str:
    """Return the encoding that a text file or its config names, or UTF-8 if neither does.

    Raises:
        InputError: they name different ones, or the file is no text.
    """
    with path.open("rb") as file:
        start = file.read(4)
        file.seek(max(0, path.stat().st_size - len(_PARQUET)))
        end = file.read()
    kinds = dict(_PACKED)
    if end == _PARQUET:
        kinds[_PARQUET] = ("a Parquet file", "Name it .parquet.")
    for beginning, (kind, remedy) in kinds.items():
        if start.startswith(beginning):
            raise InputError(
                str(path), f"this is {kind}, whatever its name says.", remedy, "rows.packed"
            )
    marked = next((encoding for mark, encoding in _MARKS.items() if start.startswith(mark)), None)
    named = config.encoding and codecs.lookup(config.encoding).name
    if marked and named and not named.startswith(marked.removesuffix("-sig")):
        mark, field = (
            marked.removesuffix("-sig").upper(),
            names.get("encoding", "the run's encoding"),
        )
        problem = f"the file begins with the mark of {mark}, and {field} is another."
        remedy = f"Leave {field} out." if "encoding" in names else "Convert it to UTF-8."
        raise InputError(str(path), problem, remedy, "rows.mark")
    zeros = [byte == 0 for byte in start]
    # Of any other binary file, zero bytes are told where they stand.
    if not (marked or named) and zeros in ([False, True] * 2, [True, False] * 2):
        kind = "utf-16-be" if zeros[0] else "utf-16-le"
        problem = "this looks like UTF-16 that does not begin with its mark."
        remedy = (
            f"Name it in {names['encoding']}: {kind}."
            if "encoding" in names
            else "Convert it to UTF-8."
        )
        raise InputError(str(path), problem, remedy, "rows.utf-16")
    return marked or named or "utf-8"


def _zero_bytes(where: str, names: Mapping[str, str]) -> InputError:
    mend = (
        f"name it in {names['encoding']}: utf-16-le or utf-16-be"
        if "encoding" in names
        else "convert it to UTF-8"
    )
    remedy = f"Restore the file. If it is UTF-16 without a mark, {mend}."
    return InputError(
        where, "there are zero bytes in it, which no text has.", remedy, "rows.zero-bytes"
    )


def _whole_lines(path: Path, names: Mapping[str, str], lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a file.

    Raises:
        InputError: one has zero bytes, as in a damaged file.
    """
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise _zero_bytes(f"{path}: line {number}", names)
        yield line


def _csv_rows(config: DataConfig, names: Mapping[str, str], path: Path) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    encoding, where = _encoding(config, names, path), f"{path}: the first line"
    try:
        delimiter = config.delimiter or delimiter_of(config.columns, path, encoding)
        with path.open(encoding=encoding, newline="") as file:
            if not SEPARATOR_LINE.fullmatch(file.readline()):
                file.seek(0)
            rows = filter(
                None, csv.reader(_whole_lines(path, names, file), delimiter=delimiter, strict=True)
            )
            header = next(rows, None)
            if header is None:
                raise _empty(path)
            places = _column_places(header, _requested_columns(config, names), str(path))
            where = f"{path}: row 1"
            for number, row in enumerate(rows, start=1):
                if len(row) != len(header):
                    amount = "more" if len(row) > len(header) else "fewer"
                    problem = f"the row has {amount} fields than the first line."
                    remedy = (
                        f"Mend it: a text that holds {delimiter!r} or a line break needs "
                        "quotes around it."
                    )
                    raise InputError(where, problem, remedy, "rows.fields")
                yield Row(where, {column: row[place] for column, place in places.items()})
                where = f"{path}: row {number + 1}"
    except csv.Error as error:
        problem, code = f"this is not valid CSV: {error}.", "rows.csv"
        if "unexpected end of data" in str(error):
            problem, code = "a quote is opened here and never closed.", "rows.open-quote"
        remedy = 'Mend its quotes; within a quoted text each is written twice ("").'
        raise InputError(where, problem, remedy, code) from None


def _jsonl_rows(config: DataConfig, names: Mapping[str, str], path: Path) -> Iterator[Row]:
    asked, seen = _requested_columns(config, names), set[str]()
    for where, values in _objects(config, names, path):
        for column, setting in asked.items():
            if column in seen:
                continue
            if column not in values and not any(
                column in others for _, others in _objects(config, names, path)
            ):
                where, remedy = f"{path}: column {column!r}", f"Name another in {setting}."
                raise InputError(where, "no row has it.", remedy, NO_COLUMN)
            seen.add(column)
        if repeated := next((column for column in asked if column in values.repeated), None):
            problem = "the row has it twice."
            raise InputError(
                f"{where}, column {repeated!r}",
                problem,
                "Keep one of the two values.",
                "rows.twice",
            )
        yield Row(where, {column: values[column] for column in asked if column in values})


def _objects(
    config: DataConfig, names: Mapping[str, str], path: Path
) -> Iterator[tuple[str, _Object]]:
    """Yield each JSON object of a file after its place."""
    remedy = "Write one JSON object a line."
    with path.open(encoding=_encoding(config, names, path)) as file:
        for number, line in enumerate(_whole_lines(path, names, file), start=1):
            if not line.strip():
                continue
            where = f"{path}: row {number}"
            try:
                values = json.loads(line, object_pairs_hook=_Object)
            except (ValueError, RecursionError):
                problem, code = "this is not valid JSON.", "rows.json"
                if line.strip() in ("[", "{"):
                    problem, code = (
                        "a JSON value begins here that goes over several lines.",
                        "rows.several-lines",
                    )
                raise InputError(where, problem, remedy, code) from None
            if isinstance(values, list) and values and isinstance(values[0], _Object):
                raise InputError(
                    where, "this is one JSON array, and not JSON lines.", remedy, "rows.array"
                )
            if not isinstance(values, _Object):
                raise InputError(where, "this is not a JSON object.", remedy, "rows.no-object")
            yield where, values


def _parquet_rows(config: DataConfig, names: Mapping[str, str], path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            header, number = file.schema_arrow.names, 0
            places = _column_places(header, _requested_columns(config, names), str(path))
            for batch in file.iter_batches(columns=[header[place] for place in places.values()]):
                batch.validate(full=True)  # indexes into dictionaries, offsets, UTF-8
                columns = {
                    column: batch.column(batch.schema.get_field_index(header[place])).to_pylist()
                    for column, place in places.items()
                }
                for values in zip(*columns.values(), strict=True):
                    number += 1
                    yield Row(f"{path}: row {number}", dict(zip(columns, values, strict=True)))
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, and not Arrow's
        with path.open("rb") as raw:
            whole = raw.read(len(_PARQUET)) == _PARQUET
        problem, code = "this is not a Parquet file.", "rows.no-parquet"
        if whole:
            problem, code = "the file is damaged.", "rows.damaged"
        if isinstance(error, MemoryError):
            problem = "the file is too large for this machine's memory, or damaged."
        raise InputError(str(path), problem, "Copy or write it again.", code) from None


def _dataset_rows(config: DataConfig, names: Mapping[str, str]) -> Iterator[Row]:
    try:
        import datasets
    except ImportError:
        problem, remedy = (
            "the datasets library is not installed.",
            f"{installing('generate')}, or give a path.",
        )
        raise InputError(names["dataset"], problem, remedy) from None
    name, split = config.dataset or "", config.split or "train"
    try:
        data = datasets.load_dataset(name, config.config, split=split)
    except (
        Exception
    ) as error:  # the library raises many kinds: no network, no such name, no such split
        raise _not_loaded(config, names, error) from None
    where, header = f"{name} ({split})", data.column_names
    places = _column_places(header, _requested_columns(config, names), where)
    chosen = {column: header[place] for column, place in places.items()}
    classes = (
        None
        if config.labels is None
        else getattr(data.features[chosen[config.label]], "names", None)
    )
    for number, read in enumerate(data.select_columns(list(chosen.values())), start=1):
        values = {column: read[own] for column, own in chosen.items()}
        if classes is not None:
            values[config.label] = _class_name(
                classes, values[config.label], f"{where}: row {number}"
            )
        yield Row(f"{where}: row {number}", values)


def _class_name(classes: Sequence[str], number: object, where: str) -> str | None:
    """Return a class's name by its number, or None without one.

    Raises:
        InputError: no class has the number.
    """
    if number is None or number == _UNLABELLED:
        return None
    if not isinstance(number, int) or not 0 <= number < len(classes):
        problem = f"its class is none of the {len(classes)} that the data set names."
        remedy = "Name a data set whose rows have one of its classes each, or none."
        raise InputError(where, problem, remedy, "rows.class")
    return classes[number]


def _not_loaded(config: DataConfig, names: Mapping[str, str], error: Exception) -> InputError:
    """Return the error about a data set that the library does not load."""
    import datasets

    name, split, where = config.dataset or "", config.split or "train", names["dataset"]
    if any((Path(name) / file).is_file() for file in ("state.json", "dataset_dict.json")):
        problem = f"{name!r} is what save_to_disk wrote, which is no data set to load."
        remedy = "Write it with to_parquet, and give that file as a path."
        return InputError(where, problem, remedy, "rows.saved-to-disk")
    elsewhere = "" if where == FIELDS["dataset"] else "Write it to a file, and give that."
    if isinstance(error, ValueError):  # a name that is not there
        with suppress(Exception):  # what cannot be had is not told
            configs, field = datasets.get_dataset_config_names(name), names["config"]
            if config.config not in (configs if len(configs) > 1 else (None, *configs)):
                given = config.config or "none"
                problem = (
                    f"{name!r} has the configurations {', '.join(configs)}, and this is {given}."
                )
                return InputError(
                    where,
                    problem,
                    elsewhere or f"Name one of them in {field}.",
                    "rows.configuration",
                )
            splits, field = datasets.get_dataset_split_names(name, config.config), names["split"]
            if not {part.partition("[")[0] for part in split.split("+")} <= set(splits):
                problem = f"{name!r} has the splits {', '.join(splits)}, and this is {split!r}."
                return InputError(
                    where, problem, elsewhere or f"Name one of them in {field}.", "rows.split"
                )
    problem = f"{name!r}, split {split!r}, cannot be loaded ({type(error).__name__})."
    return InputError(
        where, problem, "Check the name, the split and the network.", "rows.not-loaded"
    )


_READERS = {**dict.fromkeys(SEPARATED, _csv_rows), ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}
