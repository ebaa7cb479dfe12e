"""The tasks of one evaluation, what they depend on, and how they are done."""

from __future__ import annotations

import importlib.metadata
import platform
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from dpaudit.generation.caches import Figures, key_of
from dpaudit.generation.clustering.interfaces import Vectors
from dpaudit.generation.config import ModelConfig
from dpaudit.generation.evaluation.fine_tuning import Attempt, Examples, Labels, Outcome, fine_tune
from dpaudit.generation.evaluation.mauve_score import draw_indices, mauve_of
from dpaudit.generation.evaluation.settings import EvaluationSettings
from dpaudit.generation.evaluation.texts import Corpus, distinct_texts, summary_of
from dpaudit.generation.models import device_of
from dpaudit.generation.records import Record
from dpaudit.results.quality import (
    Downstream,
    Encoder,
    FineTuneSettings,
    MauveSettings,
    ProbeSettings,
    Source,
)
from dpaudit.version import __version__

#: Of how this package measures. To be raised with every change of its code that changes a figure.
PROTOCOL = 2
_VERSIONS = (
    "mauve-text",
    "faiss-cpu",
    "scikit-learn",
    "scipy",
    "numpy",
    "torch",
    "transformers",
    "tokenizers",
)


Judged: TypeAlias = Literal["run", "baseline", "ceiling"]


@dataclass(frozen=True)
class MauveTask:
    """One MAUVE score: of the run's texts, of its baseline's, or of the reference, the ceiling."""

    seed: int
    of: Judged


@dataclass(frozen=True)
class ProbeTask:
    """One linear probe. `seed`: of the draw of training texts."""

    source: Source
    seed: int


@dataclass(frozen=True)
class FitTask:
    """One fine-tuning."""

    source: Source
    attempt: Attempt

    @property
    def seed(self) -> int:
        """The seed of the draw of training texts, and of all that the attempt draws."""
        return self.attempt.seed


class Probed(NamedTuple):
    """Share of test texts whose label a probe finds, and whether its training came to an end."""

    accuracy: float
    converged: bool


Task: TypeAlias = MauveTask | ProbeTask | FitTask
#: What each kind of task measures.
NAMES: dict[type, tuple[str, ...]] = {
    MauveTask: ("mauve",),
    ProbeTask: Probed._fields,
    FitTask: Outcome._fields,
}
#: What each kind is called while it is done.
TITLES: dict[type, str] = {MauveTask: "MAUVE", ProbeTask: "Linear probes", FitTask: "Fine-tuning"}


@dataclass(frozen=True)
class Bench:
    """The data and settings of measurements. It goes to workers as a whole.

    Attributes:
        features: of MAUVE and the probe.
        classifier: the one that is fine-tuned; None if none is.
        vectors: embeddings float32 [d] of distinct texts, by text; None if no task needs them.
    """

    corpus: Corpus
    settings: EvaluationSettings
    features: Encoder
    classifier: Encoder | None
    vectors: Mapping[str, Vectors] | None = field(default=None, repr=False)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The measurements, in order."""
        probe, tuned = self.settings.probe, self.settings.fine_tune
        found: list[Task] = []
        if self.mauve is not None:
            judged: list[Judged] = ["run", "ceiling"]
            if self.corpus.public:
                judged.insert(1, "baseline")
            found += (MauveTask(seed, of) for seed, of in product(self.mauve.seeds, judged))
        for source in self.sources:
            # A probe is the same for every seed but where its texts are drawn.
            seeds = probe.seeds if source == "real-same-size" else probe.seeds[:1]
            found += (ProbeTask(source, seed) for seed in seeds if self.training(source, seed))
        if tuned is not None:
            sweep = list(product(tuned.learning_rates, tuned.weight_decays))
            for source, seed in product(self.sources, tuned.seeds):
                if len(distinct_texts(self.training(source, seed))) > 1:
                    found += (FitTask(source, Attempt(seed, rate, decay)) for rate, decay in sweep)
        return tuple(found)

    @cached_property
    def mauve(self) -> MauveSettings | None:
        """MAUVE's settings; None if there are too few texts."""
        asked = self.settings
        n = min(asked.n, len(self.corpus.synthetic), len(self.real) // 2)
        if self.corpus.public:  # figures of another n would be on another scale
            n = min(n, len(self.corpus.public))
        if n < 2:
            return None
        same = {
            name: value for name, value in vars(asked).items() if name in MauveSettings.model_fields
        }
        clusters = asked.clusters or max(2, round(n / 10))
        return MauveSettings(
            **{**same, "n": n, "clusters": clusters, "seeds": tuple(range(asked.seeds))}
        )

    @cached_property
    def real(self) -> tuple[Record, ...]:
        """The distinct texts of the reference, for MAUVE: none is on both sides of the ceiling."""
        return distinct_texts(self.corpus.reference)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources that classifiers are trained on; none without labels or enough texts."""
        enough = len(self.corpus.labels) > 1 and len(self.corpus.trainable) > 1
        if not enough:
            return ()
        public: tuple[Source, ...] = ("public",) if len(self.corpus.trainable_public) > 1 else ()
        return ("synthetic", *public, "real-same-size", "real-all")

    def training(self, source: Source, seed: int) -> tuple[Record, ...]:
        """Return the records to train one classifier on.

        Of the same size means as many of each label.
        """
        if source == "synthetic":
            return self.corpus.trainable
        if source == "public":
            return self.corpus.trainable_public
        if source == "real-all":
            return self.corpus.train
        random, chosen = np.random.default_rng(seed), list[int]()
        for label in self.corpus.labels:
            rows = [row for row, record in enumerate(self.corpus.train) if record.label == label]
            wanted = sum(record.label == label for record in self.corpus.trainable)
            chosen += random.permutation(rows)[:wanted].tolist() if rows else []
        return tuple(self.corpus.train[row] for row in sorted(chosen))

    def key(self, task: Task) -> str:
        """Return a digest of everything that a task's figures depend on."""
        parts: dict[str, Any] = {
            "task": [type(task).__name__, asdict(task)],
            "versions": versions(),
        }
        if isinstance(task, MauveTask):
            assert self.mauve is not None
            sides = [self._digest("real")]
            if task.of != "ceiling":
                sides.append(self._digest(task.of))
            settings = self.mauve.model_dump(mode="json", exclude={"seeds"})
            return key_of(**parts, sides=sides, settings=settings, encoder=self.features.identity)
        drawn_by = task.seed if task.source == "real-same-size" else 0
        parts["sides"] = [self._digest(task.source, drawn_by), self._digest("test")]
        parts["labels"] = list(self.corpus.labels)
        if isinstance(task, ProbeTask):
            settings = self.settings.probe.model_dump(mode="json", exclude={"seeds"})
            return key_of(**parts, settings=settings, encoder=self.features.identity)
        assert self.settings.fine_tune is not None and self.classifier is not None
        decided_by_task = {"seeds", "learning_rates", "weight_decays"}
        settings = self.settings.fine_tune.model_dump(mode="json", exclude=decided_by_task)
        # With names of preset and model: a sweep that is looked up again is shown under these
        # (`Bench.earlier`).
        return key_of(**parts, settings=settings, encoder=self.classifier.model_dump(mode="json"))

    @cached_property
    def _digests(self) -> dict[tuple[str, int], str | None]:
        return {}

    def _digest(
        self, of: Source | Literal["real", "run", "baseline", "test"], seed: int = 0
    ) -> str | None:
        """Return the digest of a set of texts.

        There are few sets, each with many tasks.
        """
        if (of, seed) not in self._digests:
            corpus = self.corpus
            fixed = {
                "real": self.real,
                "run": corpus.synthetic,
                "baseline": corpus.public,
                "test": corpus.test,
            }
            records = fixed[of] if of in fixed else self.training(cast(Source, of), seed)
            self._digests[of, seed] = summary_of(records).digest
        return self._digests[of, seed]

    def earlier(self, found: Downstream) -> Bench:
        """Return a bench for an earlier sweep, bound to the settings and the encoder in `found`.

        Its keys bind all that `found` says of these.
        """
        assert isinstance(found.settings, FineTuneSettings)
        return replace(
            self,
            settings=replace(self.settings, fine_tune=found.settings),
            classifier=found.encoder,
        )

    def measure(self, task: Task) -> Figures:
        """Return the task's figures, by the cache's names for them, in any process."""
        corpus, settings = self.corpus, self.settings
        if isinstance(task, MauveTask):
            assert self.mauve is not None
            texts = corpus.public if task.of == "baseline" else corpus.synthetic
            synthetic, real = self._vectors(texts), self._vectors(self.real)
            ours, theirs, others = draw_indices(task.seed, len(synthetic), len(real), self.mauve.n)
            judged = real[others] if task.of == "ceiling" else synthetic[ours]
            return {"mauve": mauve_of(judged, real[theirs], self.mauve, task.seed)}
        train, test = self.training(task.source, task.seed), corpus.test
        labels, truth = self._labels(train), self._labels(test)
        if isinstance(task, ProbeTask):
            probed = probe_accuracy(
                self._vectors(train), labels, self._vectors(test), truth, settings.probe
            )
            return {name: float(value) for name, value in probed._asdict().items()}
        assert settings.fine_tune is not None and self.classifier is not None
        examples = Examples(tuple(record.text for record in train), labels)
        tested = Examples(tuple(record.text for record in test), truth)
        name, number = self.classifier.name, len(corpus.labels)
        return fine_tune(name, examples, tested, number, task.attempt, settings.fine_tune)._asdict()

    def _vectors(self, records: Sequence[Record]) -> Vectors:
        """Return embeddings float32 [m, d] of m records."""
        assert self.vectors is not None
        return np.array([self.vectors[record.text] for record in records])

    def _labels(self, records: Sequence[Record]) -> Labels:
        numbers = {label: number for number, label in enumerate(self.corpus.labels)}
        found: NDArray[np.int64] = np.array(
            [numbers[record.label] for record in records], dtype=np.int64
        )
        return found


def probe_accuracy(
    train: Vectors, labels: Labels, test: Vectors, truth: Labels, settings: ProbeSettings
) -> Probed:
    """Train a linear probe, logistic regression on embeddings; return its accuracy on test texts.

    It is logistic regression on embeddings float32 [m, d] and [k, d], with labels int64 [m] and
    [k]; m, k >= 1. If all training texts have one label, that is the one found.
    """
    if (labels == labels[0]).all():
        return Probed(float((truth == labels[0]).mean()), True)
    probe = LogisticRegression(C=settings.strength, max_iter=settings.iterations)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ConvergenceWarning)
        probe.fit(train, labels)
    return Probed(float((probe.predict(test) == truth).mean()), not warned)


@cache
def versions() -> dict[str, str]:
    """Return the versions of all that influences a figure, packages under their usual names."""
    found = {
        "dpaudit": __version__,
        "protocol": str(PROTOCOL),
        "python": platform.python_version(),
    }
    found["device"] = device_of(ModelConfig(name="any")).type
    for name in _VERSIONS:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
