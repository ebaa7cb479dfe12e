"""Released texts as tables: Parquet, JSON lines, and a split by batches."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dpaudit.releasing.marks import in_footer, side_car
from dpaudit.results.publication import Mark, Split
from dpaudit.results.release_layout import JSONL, PARQUET, SIDE_CAR
from dpaudit.runs import InputError
from dpaudit.runs.batches import Sample


class Row(NamedTuple):
    """One text, its label, and the batch that it is of, which is not released."""

    text: str
    label: str | None
    batch: int


def rows_of(samples: Iterable[Sample], where: str) -> list[Row]:
    """Return the texts in the run's order.

    Raises:
        InputError: the run releases token ids alone, or a text cannot be written as UTF-8.
    """
    rows = []
    for sample in samples:
        if sample.text is None:
            remedy = "Generate with a tokenizer that decodes them."
            raise InputError(where, "the run releases token ids alone, and no texts.", remedy)
        try:
            f"{sample.text}{sample.label}".encode()
        except UnicodeEncodeError:
            problem = (
                f"a text or label of {sample.place} holds half a character, which no table takes."
            )
            raise InputError(where, problem, "It cannot be released as it is.") from None
        rows.append(Row(sample.text, sample.label, sample.id))
    return rows


def split_rows(rows: Sequence[Row], test_share: float | None) -> dict[Split, list[Row]]:
    """Return the texts by split, in order.

    Whole batches are put aside: their texts have records in common. Of each label, batches go to
    the test split by a hash of their number, which looks at no text, until it has the share; one
    batch of the label stays at least.

    Args:
        rows: all of them.
        test_share: above 0 and below 1; None for a single split.

    Raises:
        InputError: no label has two batches.
    """
    if test_share is None:
        return {"train": list(rows)}
    aside: set[int] = set()
    for label in dict.fromkeys(row.label for row in rows):
        batches = [row.batch for row in rows if row.label == label]
        order = sorted(
            set(batches),
            key=lambda batch: hashlib.sha256(f"test split, batch {batch}".encode()).digest(),
        )
        taken = 0
        for batch in order[:-1]:
            if taken >= test_share * len(batches):
                break
            aside.add(batch)
            taken += batches.count(batch)
    if not aside:
        problem = "no label has two batches, and a batch is not split."
        raise InputError("--test-share", problem, "Leave it away.")
    return {
        "train": [row for row in rows if row.batch not in aside],
        "test": [row for row in rows if row.batch in aside],
    }


def tables(splits: dict[Split, list[Row]], mark: Mark) -> dict[str, bytes]:
    """Return files by their paths: each split as Parquet and as JSON lines, marked.

    They have labels if any text has one.
    """
    labelled = has_labels(splits)
    files = {}
    for split, rows in splits.items():
        records: list[dict[str, str | None]] = [
            {"text": row.text, "label": row.label} if labelled else {"text": row.text}
            for row in rows
        ]
        files[f"{PARQUET}/{split}.parquet"] = _parquet(records, labelled, mark)
        name = f"{JSONL}/{split}.jsonl"
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        files[name] = lines.encode()
        files[f"{name}{SIDE_CAR}"] = side_car(name, files[name], mark)
    return files


def has_labels(splits: dict[Split, list[Row]]) -> bool:
    """Return whether any text has one."""
    return any(row.label is not None for rows in splits.values() for row in rows)


def _parquet(records: list[dict[str, str | None]], labelled: bool, mark: Mark) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [pa.field("text", pa.string()), *[pa.field("label", pa.string())] * labelled]
    schema = pa.schema(columns, metadata=in_footer(mark))
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records, schema=schema), written)
    return written.getvalue()
