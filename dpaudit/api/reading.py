"""Run directories from Python: batches, steps and texts, read when asked for, not judged."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from dpaudit.api.missing import missing
from dpaudit.api.places import location_of
from dpaudit.api.steps import Costs, Objection, StepCost, Steps, neighbours
from dpaudit.api.tables import dataframe
from dpaudit.auditing.batches import Progress
from dpaudit.auditing.checks.neighbors import BatchLosses, ContextSums
from dpaudit.auditing.guarantees import figures
from dpaudit.runs import InputError, RunReader, Sample
from dpaudit.runs.public import PublicReader
from dpaudit.runs.reader import FolderReader

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

#: How many batches an error names.
_MOST_NAMED = 10


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run directory, finished or not. What it holds is read when it is asked for.

    Args:
        path: a path, or a URL that fsspec opens.

    Raises:
        InputError: there is no run that can be read.
    """
    return Run(RunReader(location_of(path)))


class Texts(Sequence[Sample]):
    """Synthetic texts of a run or a baseline, in order: samples.jsonl's lines, read at first use.

    Each has id (of its batch), number, label, cluster, tokens (ids), text and stop (why it ended).
    """

    def __init__(self, reader: FolderReader) -> None:
        self._reader = reader

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        return tuple(self._reader.samples())

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Sample, ...]: ...
    def __getitem__(self, index: int | slice) -> Sample | tuple[Sample, ...]:
        return self._samples[index]

    def __repr__(self) -> str:
        return f"<{len(self)} synthetic texts of {self._reader.name}>"

    def to_dataframe(self) -> DataFrame:
        """Return a pandas.DataFrame with a row per text, and a column per field."""
        return dataframe(
            self._rows(), ("batch", "number", "label", "cluster", "text", "stop", "tokens")
        )

    def to_dataset(self) -> Dataset:
        """Return a datasets.Dataset. Raises InputError where the library is not installed."""
        try:
            import datasets
        except ImportError:
            raise missing("to_dataset", "datasets", "generate") from None
        return datasets.Dataset.from_list(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        named = ("number", "label", "cluster", "text", "stop")
        return [
            {"batch": each.id, "tokens": list(each.tokens)}
            | {name: getattr(each, name) for name in named}
            for each in self
        ]


def open_public(path: str | os.PathLike[str]) -> Texts:
    """Open the texts that `generate_public` wrote. Raises InputError where there are none."""
    return Texts(PublicReader(location_of(path)))


class Run:
    """One run directory, as private as the records that it was made from.

    Attributes:
        name: the directory, as it was named.
        manifest: run.json, validated: mechanism, privacy, batching, model, prompt, claim and the
            rest.
        batches: the batches on disk, by their ids: `run.batches[3]`.
        texts: the synthetic texts. Reading them raises InputError while the run is not finished.
    """

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self.name, self.manifest = reader.name, reader.manifest
        self.batches, self.texts = Batches(reader), Texts(reader)

    @property
    def commitment(self) -> str | None:
        """The fingerprint that is settled before the first token: SHA-256 in hexadecimal."""
        return self.manifest.commitment

    @property
    def head(self) -> str | None:
        """The finished run's fingerprint: SHA-256 in hexadecimal; None while it is not finished."""
        return self._reader.head_or_none()

    @property
    def decoding_digest(self) -> str | None:
        """The fingerprint of the tokenizer that decodes the texts; None if the run has none."""
        return self._reader.decoding_digest()

    def __repr__(self) -> str:
        found = f"{len(self.batches)} of {self.manifest.batches} batches"
        return f"<run {self.name}: {self.manifest.mechanism.aggregator.title}, {found}>"


class Batches:
    """The whole batches on disk, by their ids. Iterating gives them in ascending order."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids, ascending; those of an unfinished run may have gaps."""
        return self._reader.batches

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Batch]:
        return (Batch(self._reader, batch) for batch in self.ids)

    def __getitem__(self, batch: int) -> Batch:
        """Return a batch by its id. Raises InputError where there is none."""
        if batch in self.ids:
            return Batch(self._reader, batch)
        known = self.ids
        on_disk = f"{len(known)} {'is' if len(known) == 1 else 'are'} on disk"
        raise InputError(self._reader.name, f"there is no batch {batch}; {on_disk}.", _which(known))

    def __repr__(self) -> str:
        return f"<{len(self)} batches of {self._reader.name}>"


class Batch:
    """One batch: the contexts that generated its texts together.

    Attributes:
        id: the batch.
        label, cluster: of its records; None if they have none.
        contexts: how many private contexts it has.
        tokens: [T] int32, the sampled token ids, in order.
        log_probabilities: [T] float64, natural logarithms of their probabilities, as the sampler
            recorded them.
        texts, starts: its texts, in order, and the first step of each.
        steps: one for each token: `batch.steps[7]`.
        neighbours: what its costs are for.

    Raises:
        InputError: the file is not a whole batch of the run.
    """

    def __init__(self, reader: RunReader, batch: int) -> None:
        self._reader, self.id = reader, batch
        with reader.batch(batch) as opened:
            self.label, self.cluster = opened.header.label, opened.header.cluster
            self.contexts = opened.header.contexts
            self.tokens, self.log_probabilities = opened.tokens, opened.log_probabilities
            self.texts, self.starts = (
                tuple(opened.samples()),
                tuple(span.start for span in opened.spans),
            )
        self.steps, self.neighbours = (
            Steps(reader, batch, len(self.tokens)),
            neighbours(reader.manifest),
        )

    def read(self, progress: Progress | None = None) -> Batch:
        """Read all steps now; `progress` is called with (steps read, steps in the batch)."""
        self._whole = self._read(progress)
        return self

    @cached_property
    def _whole(self) -> _Whole:
        return self._read(None)

    def _read(self, progress: Progress | None) -> _Whole:
        sums, accountant = ContextSums(self.id, self.contexts), None
        costs: list[StepCost] = []
        objections: list[Objection] = []
        for step in self.steps:
            accountant = step.source.accountant
            costs.append(step.cost)
            objections += step.objections
            step.add_losses(sums)
            if progress:
                progress(step.position + 1, len(self.tokens))
        total = None
        if accountant is not None and all(cost.exact is not None for cost in costs):
            total = accountant.batch_cost(self.id)
        return _Whole(tuple(costs), Costs(**figures(total)), sums.result(), tuple(objections))

    @property
    def costs(self) -> tuple[StepCost, ...]:
        """The cost of each token, in nats: exact, rise, fall and theorem1 of every step."""
        return self._whole.costs

    @property
    def cost(self) -> Costs:
        """The tokens' summed costs in nats, rounded up; None if a token has no cost."""
        return self._whole.cost

    @property
    def losses(self) -> BatchLosses | None:
        """The largest changes, in nats, by leaving out a context; None if none is recorded."""
        return self._whole.losses

    @property
    def objections(self) -> tuple[Objection, ...]:
        """The objections of step checks, in order of steps."""
        return self._whole.objections

    def __repr__(self) -> str:
        label = "" if self.label is None else f" ({self.label!r})"
        return f"<batch {self.id}{label}: {self.contexts} contexts, {len(self.tokens)} tokens>"


class _Whole(NamedTuple):
    """The common parts of a batch's steps."""

    costs: tuple[StepCost, ...]
    cost: Costs
    losses: BatchLosses | None
    objections: tuple[Objection, ...]


def _which(known: Sequence[int]) -> str:
    """Say what --batch may name; an unfinished run has gaps."""
    if not known:
        return "Generate the run first."
    if len(known) == 1:
        return f"Name {known[0]} with --batch."
    if known[-1] - known[0] == len(known) - 1:
        return f"Name one from {known[0]} to {known[-1]} with --batch."
    more = f" or one of {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return f"Name one of {', '.join(map(str, known[:_MOST_NAMED]))}{more} with --batch."
