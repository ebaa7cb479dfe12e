"""A table of runs, read from YAML: which configs are its rows, and what a paper says of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from dpaudit.generation.config import (
    Config,
    DataConfig,
    ModelConfig,
    input_error,
    load_config,
    read_yaml,
)
from dpaudit.mechanisms import Fields, Positive, clash
from dpaudit.results import Number
from dpaudit.runs import InputError
from dpaudit.runs.layout import LOCK
from dpaudit.runs.manifest import Count, NotEmpty

#: More than any data set has: of `most_records`, no limit.
ALL_RECORDS = 1 << 40
#: What the table itself takes beside the rows' folders.
TABLE_FILES = ("table.md", "table.csv", "table.json")

Share = Annotated[float, Field(ge=0, le=1)]
#: A path below the table's folder; without its ending it is the row's name and its folder's.
ConfigFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*\.yaml$")]


class PublishedQuality(Fields):
    """MAUVE and downstream accuracy as published, each with its standard deviation over seeds."""

    mauve: Share
    mauve_std: Share
    accuracy: Share
    accuracy_std: Share


class PublishedRow(PublishedQuality):
    """A paper's figures for one row.

    Attributes:
        epsilon: of generation, in nats, of the kind that the row's aggregator has; infinite if
            none is aimed at.
        clustering_epsilon: of the noisy counts, which the paper adds.
        clusters: labels that share nothing count as clusters; None if the paper does not say.
    """

    epsilon: Annotated[Number, Field(gt=0)]
    clustering_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clusters: Count | None = None


class HeldOutConfig(Fields):
    """Real texts outside all runs, with the columns and labels of the row's private data."""

    path: NotEmpty | None = None
    dataset: NotEmpty | None = None
    split: NotEmpty | None = None


class DatasetConfig(Fields):
    """One private data set of the table.

    Attributes:
        records: how many it has, as published; for estimates and for the paper's delta, records **
            -1.1.
        held_out: what classifiers are tested on; null for a share of the private data.
        paper: of real texts, the most that synthetic ones could reach.
    """

    records: Annotated[int, Field(ge=2, le=ALL_RECORDS)]
    held_out: HeldOutConfig | None = None
    paper: PublishedQuality | None = None


class RowConfig(Fields):
    """One row: a config, relative to the table's folder, and the names of data set and method.

    Attributes:
        baseline: whether texts of the same prompts without any record are generated, too, and
            measured beside the run.
    """

    config: ConfigFile
    dataset: NotEmpty
    method: NotEmpty
    paper: PublishedRow | None = None
    baseline: bool = False

    @property
    def folder(self) -> str:
        """The folder of its run, below the table's: the row's name."""
        return self.config.removesuffix(".yaml")


class EvaluationConfig(Fields):
    """The settings of an evaluation that differ from the defaults of `dpaudit evaluate`.

    Attributes:
        embedding: the model whose embeddings are MAUVE's features; null for the one that needs no
            network.
        fine_tune: by which protocol a classifier is fine-tuned; null for a linear probe alone.
        classifier: the encoder that is fine-tuned; null for the one that needs no network.
        most_records: real records of a file that are used, private and held-out ones; null for all.
    """

    embedding: NotEmpty | None = None
    fine_tune: Literal["paper", "laptop"] | None = None
    classifier: NotEmpty | None = None
    most_records: Annotated[int, Field(ge=4, le=ALL_RECORDS)] | None = 4000

    @model_validator(mode="after")
    def _classifiers_are_tuned(self) -> Self:
        if self.classifier is not None and self.fine_tune is None:
            raise clash("classifier", self.classifier, "null without fine_tune")
        return self


class TableConfig(Fields):
    """A table's file.

    Attributes:
        title: over the table.
        parameters: of the rows' model, from its documentation: time is taken to grow in proportion.
        model: of every row, in place of its config's; null for the configs' own.
        evaluation: of every row.
        datasets: by the names that rows use.
    """

    title: NotEmpty
    parameters: Positive
    model: ModelConfig | None = None
    evaluation: EvaluationConfig = EvaluationConfig()
    datasets: Annotated[dict[NotEmpty, DatasetConfig], Field(min_length=1)]
    rows: Annotated[tuple[RowConfig, ...], Field(min_length=1, strict=False)]

    @model_validator(mode="after")
    def _rows_fit(self) -> Self:
        taken: set[str] = set()
        for number, row in enumerate(self.rows):
            if row.dataset not in self.datasets:
                raise clash(
                    f"rows.{number}.dataset", row.dataset, f"one of {', '.join(self.datasets)}"
                )
            if not _is_free(row.folder, taken):
                allowed = (
                    f"a folder of its own beside {', '.join(_RESERVED)}: in no other "
                    "row's, and around none"
                )
                raise clash(f"rows.{number}.config", row.config, allowed)
            taken.add(row.folder)
        return self


_RESERVED = (*TABLE_FILES, LOCK)


def _is_free(folder: str, taken: Iterable[str]) -> bool:
    """Return whether a row can have this folder, even if capitals make no difference to names."""
    parts = folder.casefold().split("/")
    if parts[0] in _RESERVED:
        return False
    others = (other.casefold().split("/") for other in taken)
    return all(parts[: len(other)] != other[: len(parts)] for other in others)


@dataclass(frozen=True)
class Row:
    """One row with its config.

    Attributes:
        name: the config's path below the table's folder, without its ending.
        path: of the config.
        held_out: what classifiers are tested on; None for a share of the private data.
        baseline: whether its public baseline is measured beside it.
    """

    name: str
    dataset: str
    method: str
    path: Path
    config: Config
    records: int
    held_out: DataConfig | None
    paper: PublishedRow | None
    baseline: bool = False


@dataclass(frozen=True)
class Table:
    """A table and all its configs. `real`: what the paper says of real texts, by data set."""

    title: str
    parameters: float
    evaluation: EvaluationConfig
    real: dict[str, PublishedQuality | None]
    rows: tuple[Row, ...]

    def only(self, names: tuple[str, ...]) -> Table:
        """Return the table with these rows alone, in its order, or with all if no name is given.

        Raises:
            InputError: there is no row of a name.
        """
        known = [row.name for row in self.rows]
        for name in names:
            if name not in known:
                raise InputError(
                    "--only", f"there is no row {name!r}.", f"Rows: {', '.join(known)}."
                )
        kept = tuple(row for row in self.rows if not names or row.name in names)
        return replace(self, rows=kept)


def load_table(path: Path) -> Table:
    """Read and check a table and the configs that it names.

    Raises:
        InputError: names the file and the field, and says what is allowed.
    """
    values = read_yaml(path, TableConfig.model_fields)
    try:
        settings = TableConfig.model_validate(values)
    except ValidationError as error:
        raise input_error(path, error) from None
    rows = []
    for row in settings.rows:
        file, dataset = path.parent / row.config, settings.datasets[row.dataset]
        config = load_config(file)
        if settings.model is not None:
            config = config.model_copy(update={"model": settings.model})
        held_out = _held_out(config.data, dataset.held_out, f"{file}: data")
        named = (
            row.folder,
            row.dataset,
            row.method,
            file,
            config,
            dataset.records,
            held_out,
            row.paper,
        )
        rows.append(Row(*named, row.baseline))
    real = {name: dataset.paper for name, dataset in settings.datasets.items()}
    return Table(settings.title, settings.parameters, settings.evaluation, real, tuple(rows))


def _held_out(private: DataConfig, held_out: HeldOutConfig | None, where: str) -> DataConfig | None:
    """Read held-out texts with the private data's columns, labels and ways of writing them."""
    if held_out is None:
        return None
    same = private.model_dump(include={"text", "label", "labels", "label_values"})
    if held_out.dataset is not None and held_out.dataset == private.dataset:
        same["config"] = private.config
    try:
        found = DataConfig.model_validate({**held_out.model_dump(), **same})
    except ValidationError:
        problem = "the table's held_out texts cannot be read like this."
        raise InputError(
            where, problem, "Give either path or dataset; split is for dataset."
        ) from None
    if (found.path, found.dataset, found.split) == (private.path, private.dataset, private.split):
        raise InputError(
            where,
            "the table's held_out texts are the private ones.",
            "Hold out texts that no run shows.",
        )
    return found
