"""A run's private records, read again as the run read them, and held against its digest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from dpaudit.generation.config import DataConfig
from dpaudit.generation.records import Record, Records, read_records
from dpaudit.generation.rows import FIELDS, OF_SETTINGS
from dpaudit.generation.sources import PACKAGE
from dpaudit.runs import InputError, KeyedHash, Manifest, data_digest

THE_DATA = "Give the very data that the run was made from."


def read_run_records(manifest: Manifest, data: str, where: str, *, whose: bool = False) -> Records:
    """Read a run's records from a path, or from a data set if the run did.

    No mistyped path goes to the hub.

    Args:
        manifest: says which columns and labels to read.
        data: what the config had as data.path or data.dataset.
        where: names run.json.
        whose: whether to keep each record's user.

    Raises:
        InputError: names the file, the row and the column; or the run's columns are of no use.
    """
    named = manifest.data
    # A folder is one that the library loaded then, and does again.
    loaded = named.source == "dataset" and not data.startswith(PACKAGE) and not Path(data).is_file()
    place = (
        {"dataset": data, "config": named.config, "split": named.split}
        if loaded
        else {"path": data}
    )
    labels = named.labels
    read = {
        "text",
        "delimiter",
        "encoding",
        "user",
        *["label", "label_values", "other_labels"] * (labels is not None),
    }
    columns = named.model_dump(include=read)
    try:
        config = DataConfig.model_validate({**place, **columns, "labels": labels})
    except ValidationError:
        problem = "its column names or labels cannot be used."
        remedy = "Only runs of `dpaudit generate` can be replayed."
        raise InputError(f"{where}: data", problem, remedy) from None
    labels_from = {"labels": "the run's labels", "label_values": "the run's labels"}
    names = {**FIELDS, "path": "--data", "dataset": "--data", **labels_from}
    del names["encoding"]
    try:
        return read_records(config, whose=whose, names=names)
    except InputError as error:
        remedy = THE_DATA if error.code in OF_SETTINGS else error.remedy
        raise InputError(error.where, error.problem, remedy, error.code) from None


def require_run_records(
    manifest: Manifest, records: Iterable[Record], data: str, where: str
) -> tuple[str, ...]:
    """Refuse records that are not the run's; return their digests, in the order of the records.

    Args:
        manifest: with a key, and the digest of the data.
        records: distinct, with the canaries that were in.
        data: what gave them, for errors.
        where: names run.json.

    Raises:
        InputError: they are not, or the run does not say which are.
    """
    named, hashing = manifest.data, KeyedHash(bytes.fromhex(manifest.batching.key or ""))
    if named.digest is None:
        problem = "the run does not say which data it used."
        remedy = "Only runs of `dpaudit generate` can be replayed."
        raise InputError(f"{where}: data.digest", problem, remedy)
    digests = tuple(hashing.digest(record.label, record.text) for record in records)
    digest = data_digest(sorted(digests))
    if digest != named.digest:
        problem = (
            f"this is not the data of the run: {len(digests)} records with the digest "
            f"{digest[:12]}..., where the run had {named.records} with {named.digest[:12]}..."
        )
        raise InputError(data, problem, THE_DATA)
    return digests
