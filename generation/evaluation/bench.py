"""The tasks of one evaluation, what they depend on, and the worker that does them."""

from __future__ import annotations

import importlib.metadata
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

import dpaudit
from dpaudit.generation.caches import Figures, key_of
from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.config import ModelConfig
from dpaudit.generation.evaluation.fine_tuning import Attempt, Examples, Labels, fine_tune
from dpaudit.generation.evaluation.mauve_score import draw_indices, mauve_of
from dpaudit.generation.evaluation.settings import EvaluationSettings
from dpaudit.generation.evaluation.texts import Corpus, distinct_texts, summary_of
from dpaudit.generation.models import device_of
from dpaudit.generation.records import Record
from dpaudit.results.quality import Downstream, Encoder, FineTuneSettings, MauveSettings, ProbeSettings, Source

#: From how many texts a side on there is a MAUVE at all.
LEAST_N = 2
#: Of how this package measures. To be raised with every change of its code that changes a figure.
PROTOCOL = 2
_VERSIONS = ("mauve-text", "faiss-cpu", "scikit-learn", "scipy", "numpy", "torch", "transformers", "tokenizers")
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
    ProbeTask: ("accuracy", "converged"),
    FitTask: ("epochs", "best_epoch", "validation", "loss", "test"),
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
        asked, texts = self.settings, (len(self.corpus.synthetic), len(self.real) // 2)
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
    def real(self) -> tuple[Record, ...]:
        """The distinct texts of the reference, for MAUVE: none is on both sides of the ceiling."""
        return distinct_texts(self.corpus.reference)

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
            sides = [self._digests["real"], *([] if task.ceiling else [self._digests["synthetic"]])]
            settings = self.mauve.model_dump(mode="json", exclude={"seeds"})
            return key_of(**parts, sides=sides, settings=settings, encoder=self.features.identity)
        sides = [self._trained_on(task.source, self.seed(task)), self._digests["test"]]
        parts |= {"sides": sides, "labels": list(self.corpus.labels)}
        if isinstance(task, ProbeTask):
            settings = self.settings.probe.model_dump(mode="json", exclude={"seeds"})
            return key_of(**parts, settings=settings, encoder=self.features.identity)
        assert self.settings.fine_tune is not None and self.classifier is not None
        decided_by_task = {"seeds", "learning_rates", "weight_decays"}
        settings = self.settings.fine_tune.model_dump(mode="json", exclude=decided_by_task)
        # With names of preset and model: a sweep that is looked up again is shown under these (`Bench.earlier`).
        return key_of(**parts, settings=settings, encoder=self.classifier.model_dump(mode="json"))

    def earlier(self, found: Downstream) -> Bench:
        """A bench for a sweep that was done before: its keys bind all that `found` says of settings and encoder."""
        assert isinstance(found.settings, FineTuneSettings)
        return replace(self, settings=replace(self.settings, fine_tune=found.settings), classifier=found.encoder)

    @staticmethod
    def seed(task: ProbeTask | FitTask) -> int:
        """Of the draw of training texts."""
        return task.seed if isinstance(task, ProbeTask) else task.attempt.seed

    def probe_seeds(self, source: Source) -> tuple[int, ...]:
        """A probe is the same for every seed but where its texts are drawn."""
        seeds = self.settings.probe.seeds
        return seeds if source == "real-same-size" else seeds[:1]

    @cached_property
    def _digests(self) -> dict[str, str | None]:
        corpus = self.corpus
        sets = {"real": self.real, "synthetic": corpus.synthetic, "test": corpus.test}
        return {name: summary_of(records).digest for name, records in sets.items()}

    @cached_property
    def _training_digests(self) -> dict[tuple[Source, int], str | None]:
        return {}

    def _trained_on(self, source: Source, seed: int) -> str | None:
        """Digest of the texts that a classifier is trained on. Few sets, of which each has many tasks."""
        drawn_by = (source, seed if source == "real-same-size" else 0)
        if drawn_by not in self._training_digests:
            self._training_digests[drawn_by] = summary_of(self.training(source, seed)).digest
        return self._training_digests[drawn_by]

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
                if len(distinct_texts(self.training(source, seed))) > 1:
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
            return {name: float(value) for name, value in self._probe(train)._asdict().items()}
        return self._fit(train, task.attempt)

    def _mauve(self, task: MauveTask) -> float:
        settings, vectors, corpus = self._bench.mauve, self._bench.vectors, self._bench.corpus
        assert settings is not None and vectors is not None
        synthetic, real = vectors.of(corpus.synthetic), vectors.of(self._bench.real)
        ours, theirs, others = draw_indices(task.seed, len(synthetic), len(real), settings.n)
        return mauve_of(real[others] if task.ceiling else synthetic[ours], real[theirs], settings, task.seed)

    def _probe(self, train: Sequence[Record]) -> Probed:
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


class Probed(NamedTuple):
    """Share of test texts whose label a probe finds, and whether its training came to an end."""

    accuracy: float
    converged: bool


def probe_accuracy(train: Vectors, labels: Labels, test: Vectors, truth: Labels, settings: ProbeSettings) -> Probed:
    """Accuracy on test texts of a linear probe, logistic regression on embeddings, that was trained on others.

    Args:
        train: embeddings float32 [m, d], m >= 1.
        labels: int64 [m].
        test: embeddings float32 [k, d], k >= 1.
        truth: int64 [k].
        settings: inverse strength of the penalty, and iterations.

    Returns:
        The accuracy. Where all training texts have one label, that is the one found.
    """
    if (labels == labels[0]).all():
        return Probed(float((truth == labels[0]).mean()), True)
    probe = LogisticRegression(C=settings.strength, max_iter=settings.iterations)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ConvergenceWarning)
        probe.fit(train, labels)
    return Probed(float((probe.predict(test) == truth).mean()), not warned)


def _sweep(settings: FineTuneSettings, seed: int) -> Iterator[Attempt]:
    for rate in settings.learning_rates:
        for decay in settings.weight_decays:
            yield Attempt(seed, rate, decay)


@cache
def versions() -> dict[str, str]:
    """Of all that has a say in a figure, packages where they go by their usual names."""
    found = {"dpaudit": dpaudit.__version__, "protocol": str(PROTOCOL), "python": platform.python_version()}
    found["device"] = device_of(ModelConfig(name="any")).type
    for name in _VERSIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
