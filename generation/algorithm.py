"""Algorithm 1 of the paper, from private records to a run directory."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import (
    MedianAccountant,
    median_sides,
)
from dpaudit.runs import BatchHeader, InputError, Manifest, RunReader, RunWriter, Step, aggregate_digest, without_stop
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.layout import MANIFEST
from generation.aggregation import Floats, aggregated, top_tokens
from generation.config import Config
from generation.decoding import Decoder, Prompts
from generation.manifest import build_manifest, changed_contexts, ex_post_claim, require_same_run
from generation.models import LanguageModel, load_model
from generation.partition import Batch, Partition, Rule, partition
from generation.prompts import ends_with, template
from generation.records import read_records
from generation.sampling import Draw, OsEntropy, RandomBytes, SeededStream, sample

StopReason: TypeAlias = Literal["end-token", "max-tokens"]


@dataclass(frozen=True)
class BatchStarted:
    """A batch is about to be generated. `contexts` is a private figure, as is every epsilon below."""

    batch: int
    batches: int
    label: str
    contexts: int


@dataclass(frozen=True)
class StepDone:
    """A token was sampled. `epsilon` is the run's ex-post sum so far, in nats; None for mean."""

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
    resumed: bool


Event: TypeAlias = BatchStarted | StepDone | BatchDone
Progress: TypeAlias = Callable[[Event], None]


def generate(config: Config, out: Path, progress: Progress | None = None) -> Path:
    """Run Algorithm 1 and write a run directory, or go on with the one that is there.

    Args:
        config: all settings.
        out: the run directory; new, empty, or an unfinished run of the same config.
        progress: told of every batch and step, never of any text.

    Returns:
        The run directory.

    Raises:
        InputError: the data, the model or the directory cannot be used.
    """
    existing = RunReader(out).manifest if (out / MANIFEST).exists() else None
    key = _key(config, existing)
    data = read_records(config.data)
    parts = partition(Rule.of_config(config), data.records, key)
    model = load_model(config.model)
    wording = template(config.prompt.template, model.tokenizer)
    shown, most = config.prompt.examples_per_context, config.prompt.max_example_tokens
    prompts = Prompts(model, wording, config.data.labels, shown, most)
    _require_room(config, model, prompts.places)
    manifest = build_manifest(config, key, parts.assignment, data.most_per_user, model, wording)
    with _open(out, existing, manifest, model, parts) as writer:
        run = _Run(config, model, prompts, writer, progress or (lambda event: None))
        for batch in parts.batches:
            if batch.id in writer.finished:
                run.resume(batch.id)
            else:
                run.generate(batch)
        # A run that was killed while it finished may hold its claim already.
        writer.finish(None if writer.manifest.claim is not None else ex_post_claim(config, run.stated_epsilon))
    return out


def _key(config: Config, existing: Manifest | None) -> bytes:
    known = config.batching.key or (existing.batching.key if existing is not None else None)
    return secrets.token_bytes(KEY_BYTES) if known is None else bytes.fromhex(known)


def _open(
    out: Path, existing: Manifest | None, manifest: Manifest, model: LanguageModel, parts: Partition
) -> RunWriter:
    if existing is None:
        return RunWriter.create(out, manifest, tokenizer_json=model.tokenizer_json, assignment=parts.assignment)
    require_same_run(str(out), existing, manifest)
    return RunWriter.resume(out)


def _require_room(config: Config, model: LanguageModel, places: int) -> None:
    """Raises InputError where the model was not made for a prompt of so many places and the text after it."""
    longest = places + config.decoding.max_tokens
    if model.positions is not None and longest > model.positions:
        problem = f"prompt and text may take {longest} tokens, but the model takes {model.positions}."
        remedy = "Lower decoding.max_tokens, prompt.max_example_tokens or prompt.examples_per_context."
        alone = config.decoding.max_tokens >= model.positions
        raise InputError("decoding.max_tokens" if alone else "prompt.max_example_tokens", problem, remedy)


class _Run:
    """The batches of one run: generates them, or charges for those already on disk."""

    def __init__(
        self,
        config: Config,
        model: LanguageModel,
        prompts: Prompts,
        writer: RunWriter,
        progress: Progress,
    ) -> None:
        self._config, self._model, self._prompts = config, model, prompts
        self._writer, self._manifest, self._progress = writer, writer.manifest, progress
        change = changed_contexts(config, writer.manifest.privacy.records_per_user)
        self._accountant = MedianAccountant(change, config.mechanism.temperature)
        self._median = config.mechanism.aggregator == "median"

    @property
    def stated_epsilon(self) -> float:
        """The ex-post sum of all batches so far, in nats."""
        return self._accountant.epsilon

    @property
    def _shown_epsilon(self) -> float | None:
        return self._accountant.epsilon if self._median else None

    def resume(self, batch: int) -> None:
        """Charge again for a batch that an earlier process finished."""
        with RunReader(self._writer.path).batch(batch) as recorded:
            for step in recorded.steps():
                if step.central is not None:
                    self._accountant.charge(batch, step.central, _index(step.token, step.support))
            tokens = len(recorded.tokens)
        self._accountant.close(batch)
        self._progress(BatchDone(batch, self._manifest.batching.batches, tokens, self._shown_epsilon, True))

    def generate(self, batch: Batch) -> None:
        """Generate one batch's text (Algorithm 1, lines 3 to 11)."""
        contexts, batches = len(batch.contexts), self._manifest.batching.batches
        self._progress(BatchStarted(batch.id, batches, batch.label, contexts))
        private = self._prompts.private(batch.label, batch.contexts)
        public = self._prompts.public(batch.label, self._config.mechanism.top_k is not None)
        source = self._source(batch.id)
        tokens: list[int] = []
        with self._writer.batch(BatchHeader(id=batch.id, contexts=contexts, label=batch.label)) as record:
            stop: StopReason | None = None
            while stop is None:
                step = self._step(batch.id, len(tokens), private, public, source)
                record.write(step)
                tokens.append(step.token)
                self._progress(StepDone(batch.id, len(tokens), self._shown_epsilon))
                stop = self._stop(tokens)
                if stop is None:
                    for decoder in (private, public):
                        decoder.append(step.token)
            record.finish(text=self._text(tokens), stop=stop)
        self._accountant.close(batch.id)
        self._progress(BatchDone(batch.id, batches, len(tokens), self._shown_epsilon, False))

    def _source(self, batch: int) -> RandomBytes:
        seed = self._config.decoding.test_seed
        return OsEntropy() if seed is None else SeededStream(seed, batch)

    def _step(self, batch: int, position: int, private: Decoder, public: Decoder, source: RandomBytes) -> Step:
        """One token: support, clipped logits, aggregate, draw (Algorithm 1, lines 6 to 8)."""
        mechanism = self._manifest.mechanism
        size = mechanism.support.size
        support = None if size is None else top_tokens(public.logits()[0], size)
        try:
            here = aggregated(private.logits(), support, mechanism, self._manifest.record.width)
        except ValueError as error:
            where = f"batch {batch}, step {position}"
            raise InputError(where, f"{error}.", "Try model.dtype float32, or another model.") from None
        draw = sample(here.aggregate, mechanism.temperature, source)
        if here.central is not None:
            self._accountant.charge(batch, here.central, draw.index)
        sides, holder = (None, None) if here.central is None else median_sides(here.values, here.central)
        return Step(
            token=_token(draw, support),
            log_probability=draw.log_probability,
            aggregate_digest=aggregate_digest(here.aggregate),
            central=here.central,
            sides=sides,
            holder=holder,
            aggregate=here.aggregate if here.central is None else None,
            contexts=self._kept(here.values),
            support=support,
        )

    def _kept(self, values: Floats) -> NDArray[np.floating] | None:
        wanted = self._config.record.contexts and len(values)
        return values.astype(self._manifest.record.dtype) if wanted else None

    def _stop(self, tokens: Sequence[int]) -> StopReason | None:
        if any(ends_with(tokens, sequence) for sequence in self._manifest.stopping.sequences):
            return "end-token"
        return "max-tokens" if len(tokens) == self._manifest.stopping.max_tokens else None

    def _text(self, tokens: list[int]) -> str | None:
        """Text of a sequence without the stop sequence it ends in."""
        return self._model.decode(without_stop(tokens, self._manifest.stopping.sequences))


def _token(draw: Draw, support: NDArray[np.int32] | None) -> int:
    return draw.index if support is None else int(support[draw.index])


def _index(token: int, support: NDArray[np.integer] | None) -> int:
    """Position of a token in the vector it was sampled from."""
    return token if support is None else int(np.searchsorted(support, token))
