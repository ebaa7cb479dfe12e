"""Tables in and out: pandas.DataFrame and datasets.Dataset for a file of records, and back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from dpaudit.api.missing import missing
from dpaudit.api.places import path_of
from dpaudit.runs import InputError, Manifest

if TYPE_CHECKING:
    from pandas import DataFrame

#: A path or a name as `data.path` in a config; or a pandas.DataFrame or a datasets.Dataset with the
#: same columns.
Records: TypeAlias = Any
_PLACE = "Give a pandas.DataFrame, a datasets.Dataset, or the path of a file."


def is_table(records: Records) -> bool:
    """Return whether records are a table in memory, and not the name of a file."""
    return records is not None and not isinstance(records, str | os.PathLike)


def require_there(records: Records | None, argument: str, manifest: Manifest) -> None:
    """Refuse a path with nothing there, before libraries are loaded that take seconds.

    A run of a hub's data set may have its name there.

    Raises:
        InputError: names the argument.
    """
    if records is None or is_table(records) or manifest.data.source == "dataset":
        return
    from dpaudit.generation.sources import locate

    locate(str(path_of(records, argument)), argument)


@contextmanager
def records_file(records: Records, argument: str) -> Iterator[str]:
    """Give the path of a file that holds these records.

    A table is written to a temporary folder that its owner alone can read, and deleted afterwards.
    Errors name the argument in place of that file.

    Args:
        records: see `Records`.
        argument: what the caller's argument is called.

    Raises:
        InputError: the records are no table and no path, or what is done inside raises it.
    """
    if not is_table(records):
        yield os.fspath(path_of(records, argument))
        return
    frame = _frame(records, argument)
    with tempfile.TemporaryDirectory(prefix="dpaudit-", ignore_cleanup_errors=True) as folder:
        path = str(Path(folder) / f"{argument}.parquet")
        try:
            frame.to_parquet(path, index=False)
        except ImportError:
            raise missing(argument, "pyarrow", "generate") from None
        except Exception as error:  # Arrow's errors may quote values, which are private
            problem = f"the table cannot be written as Parquet ({type(error).__name__})."
            raise InputError(
                argument, problem, "Give columns of text alone, each with a name of its own."
            ) from None
        try:
            yield path
        except InputError as error:
            said = (
                part.replace(path, argument) for part in (error.where, error.problem, error.remedy)
            )
            raise InputError(*said) from None


def _frame(records: Any, argument: str) -> DataFrame:
    """Return records as a DataFrame without categories, and with names for numbers of classes."""
    if hasattr(records, "to_pandas"):
        frame = records.to_pandas()
        for column, feature in (getattr(records, "features", None) or {}).items():
            if names := getattr(feature, "names", None):
                known = dict(enumerate(names))  # a row without a class has the number -1, or none
                frame[column] = [known.get(number) for number in frame[column]]
        return frame
    if not (hasattr(records, "to_parquet") and hasattr(records, "columns")):
        raise InputError(argument, f"this is a {type(records).__name__}.", _PLACE)
    categories = [name for name, kind in records.dtypes.items() if str(kind) == "category"]
    return records.astype(dict.fromkeys(categories, object)) if categories else records


def dataframe(rows: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None) -> DataFrame:
    """Return rows as a pandas.DataFrame. Raises InputError where pandas is not installed."""
    try:
        import pandas
    except ImportError:
        raise missing("to_dataframe", "pandas", "generate") from None
    return pandas.DataFrame(list(rows), columns=None if columns is None else list(columns))
