"""Algorithm 1 of the paper, from private records to a run directory."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from dpaudit.accounting import ExPostAccountant
from dpaudit.generation import expected
from dpaudit.generation.canaries import canaries_of, included, with_canaries
from dpaudit.generation.config import Config
from dpaudit.generation.earlier import Earlier
from dpaudit.generation.events import (
    BatchDone,
    Event,
    ModelLoaded,
    PhaseBegan,
    Progress,
    RecordsPlaced,
    RunCommitted,
    RunResumed,
)
from dpaudit.generation.manifest import (
    build_manifest,
    claim_beforehand,
    declared_batching,
    declared_decoding,
    declared_privacy,
    declared_record,
    declared_sampling,
    ex_post_claim,
    expected_clusters,
    require_apart,
    require_same_clusters,
    require_same_logits,
    require_same_run,
    revealed_seed,
    with_budget,
)
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.models import LanguageModel, device_of
from dpaudit.generation.partition import (
    Layout,
    Partition,
    partition,
    partition_as_recorded,
    with_allowances,
)
from dpaudit.generation.passes import free_memory, planned_rows
from dpaudit.generation.prompts import Prompts, template
from dpaudit.generation.records import read_public_examples, read_records
from dpaudit.generation.worker import Finished, Worker
from dpaudit.runs import (
    BatchStore,
    Canaries,
    Clustering,
    Clusters,
    CommittedSeed,
    ForbiddenTokens,
    InputError,
    Manifest,
    RunReader,
    RunWriter,
)
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.engines import Engine
from dpaudit.runs.layout import MANIFEST
from dpaudit.runs.manifest import Decoding
from dpaudit.runs.storage import Location, open_storage

#: How many times over a task's contexts fill a pass, and how many tasks there are at least where
#: batches allow it.
FULL, TASKS = 2, 8


def silent(event: Event) -> None:
    """Do nothing with the event."""


@dataclass(frozen=True)
class Ready:
    """A run that is ready to be generated, or to go on.

    `clusters` are those that records are placed by; `repeated` rows of the data have the text and
    label of another. `canaries` are among the records, or out of them.
    """

    manifest: Manifest
    model: LanguageModel
    prompts: Prompts
    records: Partition
    clusters: Clusters
    repeated: int
    canaries: Canaries | None

    @property
    def prompting(self) -> Prompting:
        """What texts of the public prompt alone are made with."""
        return Prompting(self.model, self.prompts, self.manifest.decoding)

    @property
    def left(self) -> float | None:
        """Return contexts' mean share of budget left at the start, or None without earlier runs."""
        budget = self.manifest.mechanism.budget
        if budget is None or not self.manifest.privacy.earlier:
            return None
        spent = [place.spent for place in self.records.assignment if place.batch is not None]
        return max(0.0, 1 - fmean(spent) / budget) if spent else None


def generate(
    config: Config,
    out: Location,
    progress: Progress | None = None,
    engine: Engine | None = None,
    *,
    spent: Sequence[Location] = (),
    redraw: bool = False,
    stop_after: int | None = None,
    made_config: str | None = None,
    afterwards: Callable[[Ready], None] | None = None,
) -> Location:
    """Run Algorithm 1 and write a run directory, or continue the one that is there.

    Args:
        config: all settings.
        out: path or URL of the run directory; new, empty, or an unfinished run of the same config.
        progress: told of every batch, and of every step that is taken in this process; never of any
            text.
        engine: where batches are generated, each worker with a model of its own; None for this
            process.
        spent: finished runs of the same records, of whose budgets this one has what they left.
        redraw: whether finished batches whose files are gone may be drawn again
            (`RunWriter.resume`).
        stop_after: finish so many of the rounds, and the run with them; None for all of them.
        made_config: the config as YAML, to stand in the run directory; None for one that stands
            elsewhere.
        afterwards: told the run's parts once it is finished.

    Returns:
        The run directory, as it was named.

    Raises:
        InputError: the data, the model, an earlier run or the directory cannot be used, or the run
            cannot be stopped there.
    """
    if stop_after is not None and stop_after >= config.batching.rounds:
        problem = (
            f"this is {stop_after}, and the config has batching.rounds: {config.batching.rounds}."
        )
        raise InputError("--stop-after", problem, "Name fewer rounds, or leave it out.")
    begun = RunReader(out) if open_storage(out).exists(MANIFEST) else None
    progress = progress or silent
    require_apart(config.sampling, out)
    ready = _ready(config, begun, progress, spent)
    if begun is None:
        progress(ModelLoaded(config.model.name, ready.model.network.num_parameters()))
    of_none = "what the public prompt does" if config.mechanism.contribution.anchored else "noise"
    contexts = expected.contexts(config, ready.manifest.data.records)
    large = expected.large_record(ready.manifest, contexts)
    remedy = _larger_batches(config)
    progress(RecordsPlaced(ready.repeated, contexts, remedy, of_none, ready.left, large))
    if begun is None:
        json, assignment = ready.model.tokenizer_json, ready.records.assignment
        opened = RunWriter.create(
            out,
            ready.manifest,
            tokenizer_json=json,
            assignment=assignment,
            clusters=ready.clusters,
            canaries=ready.canaries,
        )
    else:
        require_same_logits(begun.name, begun.manifest, ready.manifest)
        opened = RunWriter.resume(out, redraw=redraw)
    with opened as writer:
        if made_config is not None:
            writer.keep_config(made_config)
        if writer.manifest.commitment is not None:
            progress(RunCommitted(writer.manifest.commitment))
        seed = revealed_seed(config.sampling, writer.manifest)
        if stop_after is not None:
            writer.stop_after(stop_after)
        if begun is not None:
            progress(
                RunResumed(len(writer.whole), writer.manifest.batches, writer.head, writer.redrawn)
            )
        accountant = _generate(config, writer, ready, seed, progress, engine)
        claim = None
        # A run that was killed while it finished may hold its claim already.
        if writer.manifest.claim is None:
            assert accountant is not None, "what claims nothing beforehand adds up what tokens cost"
            exact, cost = accountant.epsilon, accountant.batch_cost
            claim = ex_post_claim(config, writer.manifest, ready.clusters, exact, cost)
        writer.finish(claim)
    if afterwards is not None:
        afterwards(ready)
    return out


def made_with(
    config: Config,
    out: Location,
    progress: Progress = silent,
    spent: Sequence[Location] = (),
) -> Ready:
    """Return the parts of a run, finished or not, that could have gone on with this config.

    Reads the data and loads the model, as going on would.

    Args:
        config: all settings.
        out: the run directory.
        progress: told of the phases.
        spent: the runs that it went on from.

    Raises:
        InputError: names what differs; or data, model or run directory cannot be used.
    """
    return _ready(config, RunReader(out), progress, spent)


def prepare(
    config: Config,
    spent: Sequence[Location] = (),
    key: str | None = None,
    progress: Progress = silent,
) -> Ready:
    """Make what a new run of a config begins with, where nothing is to be written.

    Args:
        config: all settings.
        spent: runs that it goes on from.
        key: what records are hashed by where neither of them has a key, in hexadecimal; drawn by
            default.
        progress: told of the phases.

    Raises:
        InputError: as `generate` does.
    """
    return _ready(config, None, progress, spent, key)


def _ready(
    config: Config,
    begun: RunReader | None,
    progress: Progress = silent,
    spent: Sequence[Location] = (),
    key: str | None = None,
) -> Ready:
    """Read the data, load the model, and place every record. Free memory is measured before that.

    Records come last: where a new run has clusters, noise is drawn, and what cannot be used is to
    cost no draw.

    Raises:
        InputError: data or model cannot be used, or are not those of the run that has begun.
    """
    existing = None if begun is None else begun.manifest
    earlier = Earlier.of(spent, begun, config)
    if earlier.commitments and config.privacy.canaries is not None:
        problem = (
            "canaries are not for runs that go on from others, whose budgets are of the "
            "same records."
        )
        raise InputError("privacy.canaries", problem, "Leave it out, or leave out --spent.")
    key, secret = (
        config.batching.key or earlier.key or key or secrets.token_hex(KEY_BYTES),
        config.batching.key is None,
    )
    if secret and existing is not None and existing.batching.allocation is not None:
        # as it was when the run began, which this process cannot tell
        secret = existing.batching.allocation.secret
    elif earlier.commitments:
        secret = False
    free = free_memory(device_of(config.model))
    sampling = declared_sampling(config.sampling)
    progress(PhaseBegan("reading"))
    data = read_records(config.data, whose=config.own_allowances)
    privacy = declared_privacy(config, data.most_per_user, earlier.commitments)
    model, prompts, decoding = prompting(config, progress)
    progress(PhaseBegan("placing"))
    clusters = Clusters() if begun is None else begun.clusters()
    clustering, centers = Clustering(), None
    if begun is not None:
        require_same_clusters(begun.name, begun.manifest, clusters, config)
    if config.clustering is not None:
        # Embedding takes other libraries and a model.
        from dpaudit.generation.grouping import expected_statement, group

        clustering = expected_statement(config, privacy, existing)
        if begun is None:  # what these refuse is to be refused before noise is drawn
            declared_record(config, model.vocabulary, privacy)
            batching = declared_batching(config, expected_clusters(config), key, secret=secret)
            budgeted = with_budget(config, privacy, batching, clustering)
            claim_beforehand(budgeted, len(data.records), privacy, batching, clustering)
            clustering, clusters, centers = group(config, data.records, privacy, progress)
    batching = declared_batching(config, clusters, key, secret=secret)
    layout = Layout(batching, config.data.groups, config.prompt.examples_per_context)
    config = with_budget(config, privacy, batching, clustering)
    canaries = canaries_of(config, layout, begun)
    members = {*data.records, *included(canaries)}
    if begun is None or config.clustering is None:
        records = partition(
            layout, clusters, members, centers, users=data.users, spent=earlier.spent
        )
    else:
        records = partition_as_recorded(
            layout, clusters, data.records, begun.assignment(), Layout.of(begun.manifest)
        )
    # As many as memory allows, where neither the config nor the unfinished run says.
    rows = config.model.rows or (existing.model.rows if existing is not None else None)
    rows = rows or planned_rows(model, prompts.places, config.decoding.longest, free)
    progress(PhaseBegan("prompts"))
    manifest = build_manifest(
        config,
        batching,
        records.assignment,
        privacy,
        clustering,
        model,
        prompts,
        decoding,
        sampling,
        rows,
        canaries,
    )
    earlier.require_continued(manifest)
    earlier.require_known(records.assignment)
    if begun is not None:
        require_same_run(begun.name, begun.manifest, manifest)
    records = with_canaries(with_allowances(records, manifest), canaries, layout)
    return Ready(manifest, model, prompts, records, clusters, data.repeated, canaries)


class Prompting(NamedTuple):
    """A run's model, what its prompts are made from, all of it public, and when its texts end."""

    model: LanguageModel
    prompts: Prompts
    decoding: Decoding


def prompting(config: Config, progress: Progress = silent) -> Prompting:
    """Load a config's model and make its prompts; `progress` is told of these phases.

    Raises:
        InputError: the config does not allow it.
    """
    model, asked = load_model(config.model, progress=progress), config.prompt
    wording = template(asked.id, model.tokenizer, asked.text, asked.end)
    shown, most = asked.examples_per_context, asked.max_example_tokens
    ends = (*wording.stop_sequences, *((token,) for token in model.end_tokens))
    examples, decoding = read_public_examples(config), declared_decoding(config, ends)
    fewest = config.mechanism.support.size or 1
    rules = ForbiddenTokens(
        config.decoding, decoding.sequences, model.vocabulary, fewest, model.tokenizer_json
    )
    prompts = Prompts(
        model, wording, config.data.groups, shown, most, asked.one_line, examples, rules
    )
    _require_room(config, model, prompts.places)
    return Prompting(model, prompts, decoding)


def _generate(
    config: Config,
    writer: RunWriter,
    ready: Ready,
    seed: CommittedSeed | None,
    progress: Progress,
    engine: Engine | None,
) -> ExPostAccountant | None:
    """Charge for the batches on disk and generate the others; return the costs' accountant."""
    worker = Worker(writer, ready.records.batches, ready.model, ready.prompts, seed)
    accountant = worker.accountant
    batches = range(writer.manifest.batches)
    finished = frozenset(writer.whole)
    for _ in worker.run(batches if engine is None else sorted(finished), progress):
        pass
    if engine is not None:
        missing = [batch for batch in batches if batch not in finished]
        ready.model.leave_gpu()  # the workers have models of their own
        # secret, and in the run directory already
        unkeyed = config.batching.model_copy(update={"key": None})
        make_worker = partial(
            batch_tasks, config.model_copy(update={"batching": unkeyed}), writer.location
        )
        contexts = config.batching.slots or expected.contexts(config, ready.manifest.data.records)
        with closing(engine.map(make_worker, _shares(missing, contexts, worker.rows))) as found:
            for done in chain.from_iterable(found):
                writer.note(done.batch)
                if accountant and done.spent is not None:
                    accountant.attach(done.batch, done.spent)
                progress(BatchDone(done.batch, len(batches), done.tokens))
    return accountant


def batch_tasks(config: Config, location: str) -> Callable[[Sequence[int]], list[Finished]]:
    """Return a function that generates lists of batches, wherever an engine puts it.

    Batches that are on disk are left out. It reads the data and loads the model itself, so only
    settings and batch ids travel between processes.

    Raises:
        InputError: data, model, seed or device here are not those of the run.
    """
    begun = RunReader(location)
    ready = _ready(config, begun)
    require_same_logits(begun.name, begun.manifest, ready.manifest)
    seed = revealed_seed(config.sampling, begun.manifest)
    store = BatchStore(location, begun.manifest)
    worker = Worker(store, ready.records.batches, ready.model, ready.prompts, seed)
    return lambda batches: list(worker.run(batches, silent))


def _larger_batches(config: Config) -> str:
    """Name the setting that makes batches larger."""
    if config.batching.full_rule == "paper-slices":
        return "Raise batching.slots"
    if config.clustering is None:
        setting = "Lower batching.batches_per_label"
    else:
        counted = config.batching.records_per_batch is not None
        setting = (
            "Raise batching.records_per_batch" if counted else "Lower batching.batches_per_cluster"
        )
    if config.batching.full_rule != "hashed-cells":
        return setting
    each = config.prompt.examples_per_context - 1
    records = "1 record" if each == 1 else f"{each} records"
    return f"{setting}; most contexts come of batching.cells with {records} each on average"


def _shares(batches: Sequence[int], contexts: float, rows: int) -> Iterator[Sequence[int]]:
    """Yield lists of batches, one for each task.

    With `contexts` per batch, a list fills passes if there are enough batches.
    """
    filling = math.ceil(FULL * rows / max(1.0, contexts))
    size = max(1, min(filling, len(batches) // TASKS))
    yield from (batches[start : start + size] for start in range(0, len(batches), size))


def _require_room(config: Config, model: LanguageModel, places: int) -> None:
    """Require a model long enough for a prompt of `places` and its text.

    Raises:
        InputError: the model was not made for so many.
    """
    longest = places + config.decoding.longest
    if model.positions is not None and longest > model.positions:
        problem = (
            f"prompt and text may take {longest} tokens, but the model takes {model.positions}."
        )
        remedy = (
            "Lower decoding.max_tokens, prompt.max_example_tokens or prompt.examples_per_context."
        )
        prompt = config.prompt
        examples = prompt.examples_per_context * prompt.max_example_tokens
        if prompt.text is not None and places - examples > model.positions:
            raise InputError(
                "prompt.text", problem, "Shorten it: without any example it is too long already."
            )
        alone = config.decoding.longest >= model.positions
        field = "decoding.max_tokens" if alone else "prompt.max_example_tokens"
        raise InputError(field, problem, remedy)
