"""Algorithm 1 of the paper, from private records to a run directory."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from dpaudit.accounting import ExPostAccountant
from dpaudit.engines import Engine
from dpaudit.generation.config import Config
from dpaudit.generation.events import BatchDone, Progress, RecordsPlaced
from dpaudit.generation.manifest import (
    build_manifest,
    changed_contexts,
    declared_privacy,
    ex_post_claim,
    require_claimable,
    require_same_clusters,
    require_same_run,
)
from dpaudit.generation.memory import free_memory, planned_rows
from dpaudit.generation.models import LanguageModel, device_of, load_model
from dpaudit.generation.partition import Partition, Rule, partition, partition_as_recorded
from dpaudit.generation.prompts import Prompts, template
from dpaudit.generation.records import Record, read_records
from dpaudit.generation.worker import Finished, Worker
from dpaudit.runs import BatchStore, Clustering, Clusters, InputError, Manifest, Privacy, RunReader, RunWriter
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.layout import MANIFEST
from dpaudit.runs.storage import Location, open_storage

#: How many times over a task's contexts fill a pass, and how many tasks there are at least where batches allow it.
FULL, TASKS = 2, 8


@dataclass(frozen=True)
class _Ready:
    """A run that is ready to be generated, or to go on.

    Attributes:
        manifest: as config, data and model of this process make it.
        model, prompts: what makes logits.
        records: every record's place.
        clusters: by which clusters they are placed.
        repeated: rows of the data whose text and label another row has.
    """

    manifest: Manifest
    model: LanguageModel
    prompts: Prompts
    records: Partition
    clusters: Clusters
    repeated: int

    def worker(self, store: BatchStore, accountant: ExPostAccountant | None) -> Worker:
        """Generates batches in this process."""
        return Worker(store, self.records.batches, self.model, self.prompts, accountant)


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
    begun = RunReader(out) if open_storage(out).exists(MANIFEST) else None
    progress = progress or (lambda event: None)
    ready = _ready(config, begun, progress)
    progress(_placement(config, ready))
    with _open(out, begun, ready) as writer:
        epsilon = _generate(config, writer, ready, progress, engine)
        # A run that was killed while it finished may hold its claim already.
        claimed = writer.manifest.claim is not None
        writer.finish(None if claimed else ex_post_claim(config, epsilon, writer.manifest.clustering))
    return out


def require_made_with(config: Config, out: Location) -> None:
    """Refuse a run, finished or not, that could not have gone on with this config and what it names.

    Reads the data and loads the model, as going on would.

    Raises:
        InputError: names what differs; or data, model or run directory cannot be used.
    """
    _ready_for(config, RunReader(out))


def _ready_for(config: Config, begun: RunReader) -> _Ready:
    """What a run that has begun goes on with. Raises InputError where that is not what it began with."""
    ready = _ready(config, begun, lambda event: None)
    require_same_run(begun.name, begun.manifest, ready.manifest)
    return ready


def _ready(config: Config, begun: RunReader | None, progress: Progress) -> _Ready:
    """Read the data, load the model, and place every record. Free memory is measured before that.

    Records come last: where a new run has clusters, noise is drawn, and what cannot be used is to cost no draw.
    """
    existing = None if begun is None else begun.manifest
    known = config.batching.key or (existing.batching.key if existing is not None else None)
    key = secrets.token_bytes(KEY_BYTES) if known is None else bytes.fromhex(known)
    free = free_memory(device_of(config.model))
    data = read_records(config.data)
    privacy = declared_privacy(config, data.most_per_user)
    model = load_model(config.model)
    wording = template(config.prompt.template, model.tokenizer)
    shown, most = config.prompt.examples_per_context, config.prompt.max_example_tokens
    prompts = Prompts(model, wording, config.data.labels, shown, most)
    _require_room(config, model, prompts.places)
    records, clustering, clusters = _placed(config, model, key, data.records, privacy, begun, progress)
    # As many as memory allows, where neither the config nor the unfinished run says.
    rows = config.model.rows or (existing.model.rows if existing is not None else None)
    rows = rows or planned_rows(model, prompts.places, config.decoding.max_tokens, free)
    manifest = build_manifest(config, key, records, privacy, clustering, model, wording, rows)
    return _Ready(manifest, model, prompts, records, clusters, data.repeated)


def _placed(
    config: Config,
    model: LanguageModel,
    key: bytes,
    records: Sequence[Record],
    privacy: Privacy,
    begun: RunReader | None,
    progress: Progress,
) -> tuple[Partition, Clustering, Clusters]:
    """Place every record: by the rule, or, where a run with clusters has begun, as it says."""
    clusters = Clusters() if begun is None else begun.clusters()
    if begun is not None:
        require_same_clusters(begun.name, begun.manifest, clusters, config)
    if config.clustering is None:
        return partition(Rule.of_config(config), records, key), Clustering(), clusters
    # Embedding takes other libraries and a model.
    from dpaudit.generation.grouping import expected_statement, group, recorded_statement

    if begun is None:
        require_claimable(config, len(records), privacy, expected_statement(config, privacy), model)
        grouping = group(config, records, privacy, progress)
        parts = partition(Rule.of_config(config, grouping.clusters), records, key, grouping.centers)
        return parts, grouping.statement, grouping.clusters
    parts = partition_as_recorded(Rule.of_config(config, clusters), records, key, begun.assignment())
    return parts, recorded_statement(config, begun.manifest, privacy), clusters


def _generate(config: Config, writer: RunWriter, ready: _Ready, progress: Progress, engine: Engine | None) -> float:
    """Charge for the batches that are on disk, and generate the others; the ex-post sum of all of them, in nats."""
    accountant = _accountant(config, writer.manifest)
    worker = ready.worker(writer.store, accountant)
    batches = range(writer.manifest.batching.batches)
    finished = writer.finished
    for _ in worker.run(batches if engine is None else sorted(finished), progress):
        pass
    if engine is None:
        return accountant.epsilon if accountant else math.inf
    missing = [batch for batch in batches if batch not in finished]
    ready.model.leave_gpu()  # the workers have models of their own
    unkeyed = config.batching.model_copy(update={"key": None})  # secret, and in the run directory already
    make_worker = partial(BatchTasks, config.model_copy(update={"batching": unkeyed}), writer.location)
    for done in chain.from_iterable(engine.map(make_worker, _shares(missing, ready, worker.rows))):
        if accountant and done.spent is not None:
            accountant.attach(done.batch, done.spent)
        progress(BatchDone(done.batch, len(batches), done.tokens, worker.epsilon))
    return accountant.epsilon if accountant else math.inf


class BatchTasks:
    """Generates lists of batches wherever an engine puts it: a worker that an engine makes.

    It reads the data and loads the model itself, so what travels between processes are settings and batch ids.
    """

    def __init__(self, config: Config, location: str) -> None:
        """Raises InputError where data, model or device here are not those of the run."""
        begun = RunReader(location)
        ready = _ready_for(config, begun)
        self._worker = ready.worker(BatchStore(location, begun.manifest), _accountant(config, begun.manifest))

    def __call__(self, batches: Sequence[int]) -> list[Finished]:
        """Generate these batches, but for those that are on disk."""
        return list(self._worker.run(batches, lambda event: None))


def _placement(config: Config, ready: _Ready) -> RecordsPlaced:
    filled = [sum(map(bool, batch.contexts)) for batch in ready.records.batches]
    return RecordsPlaced(ready.repeated, min(filled, default=0), max(filled, default=0), _larger_batches(config))


def _larger_batches(config: Config) -> str:
    """Which setting makes batches larger."""
    if config.rule == "paper-slices":
        return "Raise batching.slots"
    if config.clustering is None:
        return "Lower batching.batches_per_label"
    counted = config.batching.records_per_batch is not None
    return "Raise batching.records_per_batch" if counted else "Lower batching.batches_per_cluster"


def _shares(batches: Sequence[int], ready: _Ready, rows: int) -> Iterator[list[int]]:
    """Batches in lists, one for each task. What their contexts need of a pass fills it where there are enough."""
    share: list[int] = []
    contexts = 0
    for batch in batches:
        share.append(batch)
        contexts += len(ready.records.batches[batch].contexts)
        if contexts >= FULL * rows or len(share) >= max(1, len(batches) // TASKS):
            yield share
            share, contexts = [], 0
    if share:
        yield share


def _accountant(config: Config, manifest: Manifest) -> ExPostAccountant | None:
    """What adds up the cost of tokens; None for a run that states its cost beforehand."""
    if config.mechanism.claim_kind == "approximate":
        return None
    return ExPostAccountant(config.mechanism, changed_contexts(config, manifest.privacy.records_per_user))


def _open(out: Location, begun: RunReader | None, ready: _Ready) -> RunWriter:
    if begun is not None:
        require_same_run(str(out), begun.manifest, ready.manifest)
        return RunWriter.resume(out)
    json, assignment = ready.model.tokenizer_json, ready.records.assignment
    return RunWriter.create(out, ready.manifest, tokenizer_json=json, assignment=assignment, clusters=ready.clusters)


def _require_room(config: Config, model: LanguageModel, places: int) -> None:
    """Raises InputError where the model was not made for a prompt of so many places and the text after it."""
    longest = places + config.decoding.max_tokens
    if model.positions is not None and longest > model.positions:
        problem = f"prompt and text may take {longest} tokens, but the model takes {model.positions}."
        remedy = "Lower decoding.max_tokens, prompt.max_example_tokens or prompt.examples_per_context."
        alone = config.decoding.max_tokens >= model.positions
        raise InputError("decoding.max_tokens" if alone else "prompt.max_example_tokens", problem, remedy)
