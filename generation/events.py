"""What a generation tells of itself while it runs: never any text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class RecordsPlaced:
    """Every record has its batch, and no text is generated yet. All of these are private figures.

    Attributes:
        repeated: rows of the data whose text and label another row has: they count once.
        unused: records of the batches to be generated whose cells hold fewer or more than a context shows.
        fewest, most: how many contexts that hold a record the batches to be generated have.
        remedy: which setting makes them larger.
        of_none: what a batch without contexts writes.
        left: what share of its budget a context begins with on average; None where no run was before.
    """

    repeated: int
    unused: int
    fewest: int
    most: int
    remedy: str
    of_none: str
    left: float | None = None


@dataclass(frozen=True)
class RunCommitted:
    """All is settled that a run settles before its first token; this is its digest, which may be published."""

    commitment: str


@dataclass(frozen=True)
class RunResumed:
    """A run goes on that has so many batches already.

    Attributes:
        head: the journal's running head, which may be published.
        redrawn: ids of the finished batches that were drawn again, or now are.
    """

    done: int
    batches: int
    head: str
    redrawn: tuple[int, ...]


@dataclass(frozen=True)
class BatchStarted:
    """A batch is about to be generated."""

    batch: int
    batches: int


@dataclass(frozen=True)
class StepDone:
    """A token was sampled. `epsilon`: the run's ex-post sum so far, its clusters included, in nats; None for mean.

    It is a private figure.
    """

    batch: int
    tokens: int
    epsilon: float | None


@dataclass(frozen=True)
class BatchDone:
    """A batch is on disk. `resumed`: it already was when this process started."""

    batch: int
    batches: int
    tokens: int
    epsilon: float | None
    resumed: bool = False


@dataclass(frozen=True)
class MemoryRanOut:
    """Passes have so many rows from here on."""

    rows: int


@dataclass(frozen=True)
class TextsEmbedded:
    """So many texts have embeddings, before the first batch. How many private ones there are is a private figure."""

    texts: Literal["public", "private"]
    done: int
    total: int


Event: TypeAlias = (
    RecordsPlaced | RunCommitted | RunResumed | BatchStarted | StepDone | BatchDone | MemoryRanOut | TextsEmbedded
)
Progress: TypeAlias = Callable[[Event], None]
