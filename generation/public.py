"""Public-only texts, the baseline of a run: the same prompts without any record, so epsilon 0.

They come from the very worker that makes runs, whose batches are all empty. Contributions are then
differences from the public prompt, whatever the run's are: of none of them, nothing is left but the
anchor. So each token is drawn from softmax(l0 / temperature), l0 the public prompt's
log-probabilities over the run's support.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count

from dpaudit.generation.algorithm import Prompting, prompting, silent
from dpaudit.generation.config import (
    BatchingConfig,
    ClaimConfig,
    Config,
    PrivacyConfig,
    SamplingConfig,
)
from dpaudit.generation.events import Event, PhaseBegan, Progress, StepDone
from dpaudit.generation.manifest import (
    build_manifest,
    declared_batching,
    declared_privacy,
    declared_sampling,
)
from dpaudit.generation.models import device_of
from dpaudit.generation.partition import Batch
from dpaudit.generation.passes import PUBLIC_ROWS, free_memory, planned_rows
from dpaudit.generation.worker import Worker
from dpaudit.mechanisms import AnchoredDifferences, Mean, Mechanism
from dpaudit.runs import (
    BatchHeader,
    Clustering,
    Clusters,
    InputError,
    Manifest,
    Sample,
    Step,
    as_released,
)
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.manifest import StopReason
from dpaudit.runs.public import new_folder, write_public
from dpaudit.runs.storage import Location

#: Of a hash that no record goes through.
_KEY = "00" * KEY_BYTES


def generate_public(
    config: Config,
    out: Location,
    progress: Progress = silent,
    made_with: Prompting | None = None,
) -> Location:
    """Write the baseline of a config's runs. Its data is not looked at, and need not be there.

    Args:
        config: all settings; of batching, those that say how many batches there are.
        out: path or URL of a new or empty directory.
        progress: told of every text and of every step.
        made_with: the config's model and prompts; None to load them.

    Returns:
        The directory, as it was named.

    Raises:
        InputError: the model or the directory cannot be used, or only the records tell how many
            batches there are.
    """
    asked = _without_records(config, _texts_per_label(config))
    free = free_memory(device_of(asked.model))
    made = made_with or prompting(asked, progress)
    rows = asked.model.rows
    if rows is None:
        rows = planned_rows(made.model, made.prompts.places, asked.decoding.longest, free)
    with new_folder(out) as storage:
        texts = _sample(asked, made, asked.data.groups, rows, progress)
        each = asked.batching.generate_per_label
        write_public(storage, texts.manifest, each, texts.samples(), made.model.tokenizer_json)
    return out


def public_samples(
    config: Config,
    made: Prompting,
    each: int,
    labels: Sequence[str],
    watch: Callable[[int, int], None],
) -> tuple[Manifest, tuple[Sample, ...]]:
    """Return `each` texts of the public prompt alone for some of a config's labels.

    With them goes the manifest of a run without records.

    No record is read, and nothing is written. `watch` is told of tokens, and of the most there are.
    """
    asked = _without_records(config, each)
    most, tokens = each * len(labels) * config.decoding.longest, count(1)

    def tell(event: Event) -> None:
        if isinstance(event, StepDone):
            watch(next(tokens), most)

    found = _sample(asked, made, labels, PUBLIC_ROWS, tell)
    watch(most, most)
    return found.manifest, tuple(found.samples())


def _sample(
    asked: Config, made: Prompting, labels: Sequence[str], rows: int, progress: Progress
) -> _Texts:
    """Generate the texts of a config without records, in memory."""
    batching, privacy = (
        declared_batching(asked, Clusters(), _KEY, secret=False),
        declared_privacy(asked, None),
    )
    progress(PhaseBegan("prompts"))
    manifest = build_manifest(
        asked,
        batching,
        (),
        privacy,
        Clustering(),
        *made,
        declared_sampling(asked.sampling),
        rows,
    )
    texts = (label for label in labels for _ in range(asked.batching.generate_per_label))
    batches = [Batch(number, label, None, ()) for number, label in enumerate(texts)]
    store = _Texts(manifest)
    for _ in Worker(store, batches, made.model, made.prompts).run(range(len(batches)), progress):
        pass
    return store


def _texts_per_label(config: Config) -> int:
    """Return how many texts of a label a config's runs have.

    Raises:
        InputError: only the records tell.
    """
    each, clustering = config.batching.generate_per_label, config.clustering
    if clustering is not None:
        clusters = clustering.keep or clustering.centers
        if clusters is None:
            problem = (
                f"{clustering.method} finds the number of clusters in the records, and "
                "with it that of the texts."
            )
            remedy = (
                "Leave out the section, and give batching.batches_per_label and "
                "batching.generate_per_label."
            )
            raise InputError("clustering.method", problem, remedy)
        each = clusters * config.batching.generate_per_cluster
    return each * config.batching.rounds


def _without_records(config: Config, each: int) -> Config:
    """Return the config of a run whose batches are all empty, `each` of them a label.

    Its clip and divisor are those of nothing.
    """
    drawn = {name: getattr(config.mechanism, name) for name in ("temperature", "support")}
    empty = {"contribution": AnchoredDifferences(clip=1.0), "aggregator": Mean(divisor=1.0)}
    return config.model_copy(
        update={
            "batching": BatchingConfig(batches_per_label=each, generate_per_label=each, slots=1),
            "clustering": None,
            "mechanism": Mechanism.model_validate(empty | drawn),
            "privacy": PrivacyConfig(),
            "claim": ClaimConfig(epsilon=0.0),
            # Nothing private is drawn: the operating system's numbers do.
            "sampling": SamplingConfig() if config.sampling.committed else config.sampling,
        }
    )


class _Texts:
    """A store of texts without records; see `Store`.

    Of their steps nothing is kept but the tokens.
    """

    location, whole = "", ()

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._batches: dict[int, _Batch] = {}

    @contextmanager
    def batch(self, header: BatchHeader) -> Iterator[_Batch]:
        """Give a batch's record."""
        yield self._batches.setdefault(header.id, _Batch(header))

    def samples(self) -> Iterator[Sample]:
        """Return all texts, in order."""
        return chain.from_iterable(
            self._batches[number].samples for number in sorted(self._batches)
        )


class _Batch:
    """A batch's tokens: a `Record`.

    Attributes:
        samples: the texts that have ended.
    """

    def __init__(self, header: BatchHeader) -> None:
        self._header = header
        self._tokens: list[int] = []
        self.samples: list[Sample] = []

    def write(self, step: Step) -> None:
        """Keep a step's token."""
        self._tokens.append(step.token)

    def end_text(self, *, text: str | None, stop: StopReason) -> None:
        """Keep the text that ends at the last step."""
        number, tokens, (id_, label) = (
            len(self.samples),
            tuple(self._tokens),
            (self._header.id, self._header.label),
        )
        sample = Sample(
            id=id_,
            number=number,
            label=label,
            cluster=None,
            tokens=tokens,
            text=None if text is None else as_released(text),
            stop=stop,
        )
        self.samples.append(sample)
        self._tokens = []

    finish = end_text
