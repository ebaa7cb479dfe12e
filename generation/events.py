"""Events of a running generation: never any text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

#: The phases before the first batch: reading the records, importing libraries, loading the model,
#: or converting it where that was not done yet, placing the records, computing the public prompts,
#: and, of a plan, timing a few steps.
Phase: TypeAlias = Literal[
    "reading", "starting", "loading", "converting", "prompts", "placing", "timing"
]


@dataclass(frozen=True)
class PhaseBegan:
    """A phase begins that may take seconds."""

    phase: Phase


@dataclass(frozen=True)
class ModelLoaded:
    """A new run has its model, by the name that the config gives it."""

    name: str
    parameters: int


@dataclass(frozen=True)
class RecordsPlaced:
    """Every record has its batches, and no text is generated yet. How large these are is not told.

    Attributes:
        repeated: rows of the data whose text and label another row has: they count once. A private
            figure.
        contexts: that show a record, of a batch on average: by settings and the number of records
            alone.
        remedy: which setting makes them more.
        of_none: what a batch without contexts writes.
        left: what share of its budget a context begins with on average; None if no run was before.
        large: bytes of a record that is to hold every context's contribution to every token, and
            seconds of one core that its audit takes, about; None if it is not, or not large.
    """

    repeated: int
    contexts: float
    remedy: str
    of_none: str
    left: float | None = None
    large: tuple[int, float] | None = None


@dataclass(frozen=True)
class RunCommitted:
    """All is settled that a run settles before its first token.

    This is its digest, which may be published.
    """

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
    """A token was sampled. What it cost is not told: a batch's cost tells of its size."""

    batch: int
    tokens: int


@dataclass(frozen=True)
class BatchDone:
    """A batch is on disk. `resumed`: it already was when this process started."""

    batch: int
    batches: int
    tokens: int
    resumed: bool = False


@dataclass(frozen=True)
class MemoryRanOut:
    """Passes have so many rows from here on."""

    rows: int


@dataclass(frozen=True)
class TextsEmbedded:
    """Texts have embeddings, before the first batch.

    The number of private texts is a private figure.
    """

    texts: Literal["public", "private"]
    done: int
    total: int


Event: TypeAlias = (
    PhaseBegan
    | ModelLoaded
    | RecordsPlaced
    | RunCommitted
    | RunResumed
    | BatchStarted
    | StepDone
    | BatchDone
    | MemoryRanOut
    | TextsEmbedded
)
Progress: TypeAlias = Callable[[Event], None]
