"""Algorithm 1 of the paper, from private records to a run directory."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from dpaudit.accounting import ContextChange, MedianAccountant
from dpaudit.engines import Engine
from dpaudit.runs import BatchStore, InputError, Manifest, RunReader, RunWriter
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.layout import MANIFEST
from dpaudit.runs.storage import Location, open_storage
from generation.config import Config
from generation.contexts import Prompts
from generation.events import BatchDone, Progress
from generation.manifest import build_manifest, changed_contexts, ex_post_claim, require_same_run
from generation.memory import free_memory, planned_rows
from generation.models import LanguageModel, device_of, load_model
from generation.partition import Partition, Rule, partition
from generation.prompts import Template, template
from generation.records import read_records
from generation.worker import Finished, Worker

#: How many times over a task's contexts fill a pass, and how many tasks there are at least where batches allow it.
FULL, TASKS = 2, 8


@dataclass(frozen=True)
class _Parts:
    """What batches are generated from."""

    model: LanguageModel
    wording: Template
    prompts: Prompts
    records: Partition
    most_per_user: int | None
    free: int


def generate(config: Config, out: Location, progress: Progress | None = None, engine: Engine | None = None) -> Location:
    """Run Algorithm 1 and write a run directory, or go on with the one that is there.

    Args:
        config: all settings.
        out: path or URL of the run directory; new, empty, or an unfinished run of the same config.
        progress: told of every batch, and of every step that is taken in this process; never of any text.
        engine: where batches are generated, each worker with a model of its own; None for this process.

    Returns:
        The run directory, as it was named.

    Raises:
        InputError: the data, the model or the directory cannot be used.
    """
    existing = RunReader(out).manifest if open_storage(out).exists(MANIFEST) else None
    key = _key(config, existing)
    parts = _parts(config, key)
    manifest = _manifest(config, key, parts, _rows(config, existing, parts))
    with _open(out, existing, manifest, parts) as writer:
        epsilon = _generate(config, writer, parts, progress or (lambda event: None), engine)
        # A run that was killed while it finished may hold its claim already.
        writer.finish(None if writer.manifest.claim is not None else ex_post_claim(config, epsilon))
    return out


def _parts(config: Config, key: bytes) -> _Parts:
    """Read the data, place every record, and load the model. Free memory is measured before that."""
    free = free_memory(device_of(config.model))
    data = read_records(config.data)
    records = partition(Rule.of_config(config), data.records, key)
    model = load_model(config.model)
    wording = template(config.prompt.template, model.tokenizer)
    shown, most = config.prompt.examples_per_context, config.prompt.max_example_tokens
    prompts = Prompts(model, wording, config.data.labels, shown, most)
    _require_room(config, model, prompts.places)
    return _Parts(model, wording, prompts, records, data.most_per_user, free)


def _manifest(config: Config, key: bytes, parts: _Parts, rows: int) -> Manifest:
    assignment, most = parts.records.assignment, parts.most_per_user
    return build_manifest(config, key, assignment, most, parts.model, parts.wording, rows)


def _generate(config: Config, writer: RunWriter, parts: _Parts, progress: Progress, engine: Engine | None) -> float:
    """Charge for the batches that are on disk, and generate the others; the ex-post sum of all of them, in nats."""
    accountant = MedianAccountant(_change(config, writer.manifest), config.mechanism.temperature)
    worker = _worker(writer.store, parts, accountant)
    batches = range(writer.manifest.batching.batches)
    finished = writer.finished
    for _ in worker.run(batches if engine is None else sorted(finished), progress):
        pass
    if engine is None:
        return accountant.epsilon
    missing = [batch for batch in batches if batch not in finished]
    parts.model.leave_gpu()  # the workers have models of their own
    unkeyed = config.batching.model_copy(update={"key": None})  # secret, and in the run directory already
    make_worker = partial(BatchTasks, config.model_copy(update={"batching": unkeyed}), writer.location)
    for done in chain.from_iterable(engine.map(make_worker, _shares(missing, parts, worker.rows))):
        if done.sums is not None:
            accountant.attach(done.batch, done.sums)
        progress(BatchDone(done.batch, len(batches), done.tokens, worker.epsilon))
    return accountant.epsilon


class BatchTasks:
    """Generates lists of batches wherever an engine puts it: a worker that an engine makes.

    It reads the data and loads the model itself, so what travels between processes are settings and batch ids.
    """

    def __init__(self, config: Config, location: str) -> None:
        """Raises InputError where data, model or device here are not those of the run."""
        manifest = RunReader(location).manifest
        key = _key(config, manifest)
        parts = _parts(config, key)
        require_same_run(location, manifest, _manifest(config, key, parts, manifest.model.rows or 1))
        accountant = MedianAccountant(_change(config, manifest), config.mechanism.temperature)
        self._worker = _worker(BatchStore(location, manifest), parts, accountant)

    def __call__(self, batches: Sequence[int]) -> list[Finished]:
        """Generate these batches, but for those that are on disk."""
        return list(self._worker.run(batches, lambda event: None))


def _shares(batches: Sequence[int], parts: _Parts, rows: int) -> Iterator[list[int]]:
    """Batches in lists, one for each task. What their contexts need of a pass fills it where there are enough."""
    share: list[int] = []
    contexts = 0
    for batch in batches:
        share.append(batch)
        contexts += len(parts.records.batches[batch].contexts)
        if contexts >= FULL * rows or len(share) >= max(1, len(batches) // TASKS):
            yield share
            share, contexts = [], 0
    if share:
        yield share


def _worker(store: BatchStore, parts: _Parts, accountant: MedianAccountant) -> Worker:
    return Worker(store, parts.records.batches, parts.model, parts.prompts, accountant)


def _change(config: Config, manifest: Manifest) -> ContextChange | None:
    return changed_contexts(config, manifest.privacy.records_per_user)


def _key(config: Config, existing: Manifest | None) -> bytes:
    known = config.batching.key or (existing.batching.key if existing is not None else None)
    return secrets.token_bytes(KEY_BYTES) if known is None else bytes.fromhex(known)


def _rows(config: Config, existing: Manifest | None, parts: _Parts) -> int:
    """Rows of a forward pass: as the config or the unfinished run says, else as many as memory allows."""
    known = config.model.rows or (existing.model.rows if existing is not None else None)
    return known or planned_rows(parts.model, parts.prompts.places, config.decoding.max_tokens, parts.free)


def _open(out: Location, existing: Manifest | None, manifest: Manifest, parts: _Parts) -> RunWriter:
    if existing is None:
        json, assignment = parts.model.tokenizer_json, parts.records.assignment
        return RunWriter.create(out, manifest, tokenizer_json=json, assignment=assignment)
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
