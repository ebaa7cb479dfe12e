"""The tasks of one evaluation, what they depend on, and the worker that does them."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import dpaudit
from dpaudit.quality import Encoder, FineTuneSettings, MauveSettings, Source
from generation.clustering.interfaces import Vectors
from generation.evaluation.fine_tuning import Attempt, Examples, fine_tune
from generation.evaluation.mauve_score import drawn, mauve_of
from generation.evaluation.probe import Labels, probe_accuracy
from generation.evaluation.score_cache import Figures, key_of
from generation.evaluation.settings import EvaluationSettings
from generation.evaluation.texts import Corpus, described
from generation.records import Record

#: From how many texts a side on there is a MAUVE at all.
LEAST_N = 2
_VERSIONS = ("mauve-text", "faiss-cpu", "scikit-learn", "numpy", "torch", "transformers")
SOURCES: tuple[Source, ...] = ("synthetic", "real-same-size", "real-all")


@dataclass(frozen=True)
class MauveTask:
    """One MAUVE: of the run's texts, or of the reference's own as the ceiling."""

    seed: int
    ceiling: bool


@dataclass(frozen=True)
class ProbeTask:
    """One linear probe."""

    source: Source
    seed: int


@dataclass(frozen=True)
class FitTask:
    """One fine-tuning."""

    source: Source
    attempt: Attempt


Task: TypeAlias = MauveTask | ProbeTask | FitTask
#: What each kind of task measures.
NAMES: dict[type, tuple[str, ...]] = {
    MauveTask: ("mauve",),
    ProbeTask: ("accuracy",),
    FitTask: ("epochs", "best_epoch", "validation", "test"),
}
#: What each kind is called while it is done.
TITLES: dict[type, str] = {MauveTask: "MAUVE", ProbeTask: "Linear probes", FitTask: "Fine-tuning"}


@dataclass(frozen=True)
class Bench:
    """What is measured on. Goes to workers as a whole.

    Attributes:
        features: of MAUVE and the probe.
        classifier: that is fine-tuned; None where nothing is.
        vectors: of distinct texts, by text; None where no task needs them.
    """

    corpus: Corpus
    settings: EvaluationSettings
    features: Encoder
    classifier: Encoder | None
    vectors: TextVectors | None = field(default=None, repr=False)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """All that is to be measured, in order."""
        return (*self._mauve_tasks(), *self._probe_tasks(), *self._fit_tasks())

    @cached_property
    def mauve(self) -> MauveSettings | None:
        """MAUVE's settings; None where there are too few texts."""
        asked, texts = self.settings, (len(self.corpus.synthetic), len(self.corpus.reference) // 2)
        n = min(asked.n, *texts)
        if n < LEAST_N:
            return None
        return MauveSettings(
            n=n,
            clusters=asked.clusters or max(2, round(n / 10)),
            iterations=asked.iterations,
            initialisations=asked.initialisations,
            explained_variance=asked.explained_variance,
            scaling=asked.scaling,
            points=asked.points,
            seeds=tuple(range(asked.seeds)),
        )

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """What classifiers are trained on: nothing, where there are no labels or too few texts."""
        return SOURCES if len(self.corpus.labels) > 1 and len(self.corpus.trainable) > 1 else ()

    def training(self, source: Source, seed: int) -> tuple[Record, ...]:
        """The records that one classifier is trained on: of the same size means as many of each label."""
        if source == "synthetic":
            return self.corpus.trainable
        if source == "real-all":
            return self.corpus.train
        random, chosen = np.random.default_rng(seed), list[int]()
        for label in self.corpus.labels:
            rows = [row for row, record in enumerate(self.corpus.train) if record.label == label]
            wanted = sum(record.label == label for record in self.corpus.trainable)
            chosen += random.permutation(rows)[:wanted].tolist() if rows else []
        return tuple(self.corpus.train[row] for row in sorted(chosen))

    def key(self, task: Task) -> str:
        """A digest of all that decides a task's figures."""
        parts: dict[str, Any] = {"task": [type(task).__name__, asdict(task)], "versions": versions()}
        if isinstance(task, MauveTask):
            assert self.mauve is not None
            sides = [described(self.corpus.reference).digest]
            sides += [] if task.ceiling else [described(self.corpus.synthetic).digest]
            settings = self.mauve.model_dump(mode="json", exclude={"seeds"})
            return key_of(**parts, sides=sides, settings=settings, encoder=identity_of(self.features))
        sides = [described(self.training(task.source, self.seed(task))).digest, described(self.corpus.test).digest]
        parts |= {"sides": sides, "labels": list(self.corpus.labels)}
        if isinstance(task, ProbeTask):
            settings = self.settings.probe.model_dump(mode="json", exclude={"seeds"})
            return key_of(**parts, settings=settings, encoder=identity_of(self.features))
        assert self.settings.fine_tune is not None and self.classifier is not None
        decided_by_task = {"seeds", "learning_rates", "weight_decays", "preset"}
        settings = self.settings.fine_tune.model_dump(mode="json", exclude=decided_by_task)
        return key_of(**parts, settings=settings, encoder=identity_of(self.classifier))

    @staticmethod
    def seed(task: ProbeTask | FitTask) -> int:
        """Of the draw of training texts."""
        return task.seed if isinstance(task, ProbeTask) else task.attempt.seed

    def probe_seeds(self, source: Source) -> tuple[int, ...]:
        """A probe is the same for every seed but where its texts are drawn."""
        seeds = self.settings.probe.seeds
        return seeds if source == "real-same-size" else seeds[:1]

    def _mauve_tasks(self) -> Iterator[Task]:
        for seed in () if self.mauve is None else self.mauve.seeds:
            yield MauveTask(seed, ceiling=False)
            yield MauveTask(seed, ceiling=True)

    def _probe_tasks(self) -> Iterator[Task]:
        for source in self.sources:
            yield from (ProbeTask(source, seed) for seed in self.probe_seeds(source) if self.training(source, seed))

    def _fit_tasks(self) -> Iterator[Task]:
        settings = self.settings.fine_tune
        if settings is None:
            return
        for source in self.sources:
            for seed in settings.seeds:
                if len(self.training(source, seed)) > 1:
                    yield from (FitTask(source, attempt) for attempt in _sweep(settings, seed))


@dataclass(frozen=True)
class TextVectors:
    """Embeddings float32 [n, d] of distinct texts, and each text's row."""

    rows: Mapping[str, int] = field(repr=False)
    values: Vectors = field(repr=False)

    def of(self, records: Sequence[Record]) -> Vectors:
        """Embeddings float32 [m, d] of m records."""
        return self.values[[self.rows[record.text] for record in records]]


class Worker:
    """Does one task after the other, in whatever process."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._numbers = {label: number for number, label in enumerate(bench.corpus.labels)}

    def __call__(self, task: Task) -> Figures:
        """The task's figures, by the names that the cache has for them."""
        if isinstance(task, MauveTask):
            return {"mauve": self._mauve(task)}
        train = self._bench.training(task.source, self._bench.seed(task))
        if isinstance(task, ProbeTask):
            return {"accuracy": self._probe(train)}
        return self._fit(train, task.attempt)

    def _mauve(self, task: MauveTask) -> float:
        settings, vectors, corpus = self._bench.mauve, self._bench.vectors, self._bench.corpus
        assert settings is not None and vectors is not None
        synthetic, real = vectors.of(corpus.synthetic), vectors.of(corpus.reference)
        ours, theirs, others = drawn(task.seed, len(synthetic), len(real), settings.n)
        return mauve_of(real[others] if task.ceiling else synthetic[ours], real[theirs], settings, task.seed)

    def _probe(self, train: Sequence[Record]) -> float:
        vectors, test = self._bench.vectors, self._bench.corpus.test
        assert vectors is not None
        sides = (vectors.of(train), self._labels(train), vectors.of(test), self._labels(test))
        return probe_accuracy(*sides, self._bench.settings.probe)

    def _fit(self, train: Sequence[Record], attempt: Attempt) -> Figures:
        settings, classifier = self._bench.settings.fine_tune, self._bench.classifier
        assert settings is not None and classifier is not None
        examples, test = (
            Examples(tuple(record.text for record in records), self._labels(records))
            for records in (train, self._bench.corpus.test)
        )
        outcome = fine_tune(classifier.name, examples, test, len(self._numbers), attempt, settings)
        return asdict(outcome)

    def _labels(self, records: Sequence[Record]) -> Labels:
        found: NDArray[np.int64] = np.array([self._numbers[record.label] for record in records], dtype=np.int64)
        return found


def _sweep(settings: FineTuneSettings, seed: int) -> Iterator[Attempt]:
    for rate in settings.learning_rates:
        for decay in settings.weight_decays:
            yield Attempt(seed, rate, decay)


def identity_of(encoder: Encoder) -> dict[str, Any]:
    """What decides a model's numbers: not its name."""
    return encoder.model_dump(mode="json", exclude={"name"})


@cache
def versions() -> dict[str, str]:
    """Of all that has a say in a figure, where it goes by its usual name."""
    found = {"dpaudit": dpaudit.__version__, "python": platform.python_version()}
    for name in _VERSIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
