"""Rows of any table of texts, for a trial of texts that no run of dpaudit made.

Errors name file, row and column, and never what stands there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from dpaudit.generation.config import DataConfig
from dpaudit.generation.records import given_text
from dpaudit.generation.rows import FIELDS, read_rows
from dpaudit.generation.sources import locate, require_file
from dpaudit.runs import InputError

#: A longer file of lines would not fit into memory beside its words.
_MOST_BYTES = 1 << 32


class Columns(NamedTuple):
    """The columns to read; None for those that there are not."""

    text: str = "text"
    label: str | None = None
    user: str | None = None


class Line(NamedTuple):
    """A text, with its label and its user, "" without any, and its row, from 1."""

    row: int
    text: str
    label: str = ""
    user: str = ""

    def __repr__(self) -> str:
        """Keep private text out of logs and tracebacks."""
        return "Line(...)"


def read_lines(path: str, argument: str, columns: Columns) -> tuple[Line, ...]:
    """Read the texts of a .csv, .jsonl, .parquet or .txt file, or of a folder of these.

    A .txt file has a text on every line that is not blank.

    Args:
        path: the file.
        argument: the option that gave it, for errors.
        columns: to read; a .txt file has none.

    Raises:
        InputError: the file cannot be read, a row lacks a value, or there is no row.
    """
    given = [column for column in columns if column is not None]
    if len(set(given)) < len(given):
        raise _column_clash(argument)
    file = locate(path, argument)
    if file.suffix.lower() == ".txt" and not file.is_dir():
        found = tuple(_text_lines(file, argument, columns))
    else:
        found = tuple(_rows(path, argument, columns))
    if not found:
        raise InputError(argument, f"{path!r} holds no texts.", "Name a file with at least one.")
    return found


def _column_clash(argument: str) -> InputError:
    problem = "two options name the same column, or one names none."
    return InputError(argument, problem, "Give --text, --label and --user a column each.")


def _text_lines(file: Path, argument: str, columns: Columns) -> Iterator[Line]:
    for option, column in (("--label", columns.label), ("--user", columns.user)):
        if column is not None:
            problem = f"{option} names a column, and a .txt file has none."
            raise InputError(str(file), problem, "Give a .csv, .jsonl or .parquet file.")
    require_file(file, argument)
    if file.stat().st_size > _MOST_BYTES:
        raise InputError(str(file), "the file is larger than 4 GiB.", "Give a part of it.")
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeError:
        raise InputError(str(file), "this is not UTF-8 text.", "Convert it to UTF-8.") from None
    if any("\0" in line for line in lines):
        problem = "there are zero bytes in it, which no text has."
        raise InputError(str(file), problem, "Convert it to UTF-8.")
    for number, line in enumerate(lines, start=1):
        if text := line.strip():
            yield Line(number, text)


def _rows(path: str, argument: str, columns: Columns) -> Iterator[Line]:
    names = {
        **FIELDS,
        "path": argument,
        "text": "--text",
        "label": "--label",
        "user": "--user",
    }
    del names["encoding"]
    try:
        # Labels are read as they are: that one is named says that there is such a column.
        labelled = {} if columns.label is None else {"label": columns.label, "labels": ["any"]}
        config = DataConfig.model_validate(
            {"path": path, "text": columns.text, "user": columns.user, **labelled}
        )
    except ValidationError:
        raise _column_clash(argument) from None
    for number, row in enumerate(read_rows(config, names), start=1):
        values = {
            field: given_text(row, column, names, field)
            for field, column in zip(columns._fields, columns, strict=True)
            if column is not None
        }
        yield Line(number, values["text"], values.get("label", ""), values.get("user", ""))
