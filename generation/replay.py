"""A run against its model and its data: values recomputed, the assignment derived anew, records left out, an attack.

Nothing that the run's maker could foresee decides what is looked at: steps, contexts and texts are drawn from the
operating system's entropy. The checks judge what is found. See docs/replay.md.
"""

from __future__ import annotations

import math
import re
import secrets
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dpaudit.generation.aggregation import Floats, aggregated, contributions
from dpaudit.generation.attack import CANARIES, DecodedContexts, attack, declared_step
from dpaudit.generation.config import DataConfig, ModelConfig
from dpaudit.generation.grouping import recompute_grouping
from dpaudit.generation.memory import planned_rows
from dpaudit.generation.models import LanguageModel, load_model
from dpaudit.generation.partition import Batch, Context, Rule, partition
from dpaudit.generation.passes import Seat, logits, out_of_memory
from dpaudit.generation.prompts import Prompts, template
from dpaudit.generation.records import Record, read_records
from dpaudit.generation.sources import PACKAGE
from dpaudit.mechanisms import (
    FLOAT64_ROUNDING,
    Mechanism,
    Recomputed,
    context_change,
    largest_absolute,
    log_probability,
)
from dpaudit.results.replay import Attacked, LeftOut, Replay, ReplayedStep
from dpaudit.runs import BatchReader, Claim, InputError, KeyedHash, Manifest, RunReader, Step, data_digest, without_stop
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.layout import ASSIGNMENT, MANIFEST
from dpaudit.runs.reader import RESUME
from dpaudit.runs.storage import Location

#: How much a replay does where it is not told: a minute or two on two cores for the demo's run.
STEPS, LEFT_OUT, TRIALS = 10, 2, 6
#: Length of the attack's texts.
ATTACK_TOKENS = 3
#: The record that the attack adds: public, and unlike any other.
CANARY_TEXT = "zebra quartz " * 64

#: How far beyond their root-mean-square size rounding errors are taken to reach.
REACH = 2.0
#: Largest relative error of rounding once (IEEE 754; bfloat16 has 8 significant bits).
UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8}

Progress = Callable[[int, int], None]


def replay(
    run: Location,
    data: str,
    *,
    model: str | None = None,
    steps: int = STEPS,
    chosen: Sequence[tuple[int, int]] = (),
    left_out: int = LEFT_OUT,
    trials: int = TRIALS,
    claim: Claim | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Recompute parts of a run with its model and its data.

    Memory is that of one batch: it does not grow with the run.

    Args:
        run: a finished run directory of `dpaudit generate`.
        data: the run's private data: what its config had as data.path or data.dataset.
        model: where the run's model is; None where the manifest says.
        steps: how many random steps to recompute, where none are chosen.
        chosen: (batch, position) of the steps to recompute.
        left_out: how many random contexts to leave out, one at a time.
        trials: texts that the attack generates from either side with each canary; 0 for no attack.
        claim: what the attack is held against; None takes the run's own.
        progress: called with (forward passes done, forward passes in all).

    Raises:
        InputError: the run cannot be replayed, or the data or the model is not the run's.
    """
    reader = RunReader(run)
    asked = claim or reader.manifest.claim
    if asked is None or not reader.batches:
        raise InputError(reader.name, "the run is not finished.", RESUME)
    plan = _plan(reader, steps, chosen, left_out, trials)
    again = _Again(reader, data, model, _Meter(plan.passes, progress))
    try:
        return _carried_out(plan, again, trials, asked)
    except Exception as error:
        if not out_of_memory(error):
            raise
        remedy = "Replay it on a machine with more memory."
        raise InputError(reader.name, "memory is too small for a batch of this run.", remedy) from None


def _carried_out(plan: _Plan, again: _Again, trials: int, asked: Claim) -> Replay:
    found: list[ReplayedStep] = []
    left: list[LeftOut] = []
    for batch in sorted(plan.positions.keys() | plan.slots.keys()):
        batch_steps, batch_left = again.force(batch, plan.positions[batch], plan.slots[batch])
        found += batch_steps
        left += batch_left
    return Replay(
        assignment=again.assignment_problem(),
        noise=again.noise,
        steps=tuple(found),
        left_out=tuple(left),
        attack=again.attack(plan.attacked, trials, asked) if plan.attacked is not None else None,
        texts=again.text_problem(),
    )


def rounding_tolerance(scale: float, layers: int, width: int, dtype: str) -> float:
    """How far rounding can put a model's logits apart when it computes them twice, in logit units.

    Padding, the other rows of a batch and the hardware change the order of sums and nothing else. Rounding errors are
    then independent with mean zero for all we know, and grow like the root of their number (Higham and Mary, "A new
    approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019): 2 `layers` blocks add to the
    residual stream, each rounded to the model's dtype, and each a sum of `width` products that is kept in float32.

    Args:
        scale: the largest number around: the raw logits' absolute maximum, or the clip.
        layers: L, hidden layers.
        width: d, the hidden size.
        dtype: of weights and activations, "float32" or "bfloat16".
    """
    stored = UNIT_ROUNDOFF[dtype] * math.sqrt(2 * layers)
    summed = UNIT_ROUNDOFF["float32"] * math.sqrt(2 * layers * width)
    return REACH * scale * (stored + summed)


@dataclass(frozen=True)
class _Plan:
    """What is to be recomputed: positions and slots by batch, the attacked batch, and the forward passes for it."""

    positions: dict[int, set[int]]
    slots: dict[int, list[int]]
    attacked: int | None
    passes: int


def _plan(reader: RunReader, steps: int, chosen: Sequence[tuple[int, int]], left_out: int, trials: int) -> _Plan:
    """Draw what is to be recomputed, each step and each context of the run alike."""
    draw = secrets.SystemRandom()
    lengths: list[int] = []
    contexts: list[int] = []
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            lengths.append(len(opened.tokens))
            contexts.append(opened.header.contexts)
    positions: dict[int, set[int]] = defaultdict(set)
    for batch, position in chosen or _drawn(draw, reader.batches, lengths, steps):
        if batch not in reader.batches or not 0 <= position < lengths[reader.batches.index(batch)]:
            problem = f"there is no step {position} of batch {batch} in the run."
            raise InputError("--step", problem, "Name BATCH:POSITION; both count from 0.")
        positions[batch].add(position)
    slots: dict[int, list[int]] = defaultdict(list)
    for batch, slot in _drawn(draw, reader.batches, contexts, left_out):
        slots[batch].append(slot)
    known = [pair for pair in zip(reader.batches, contexts, strict=True) if pair[0] < reader.manifest.batching.batches]
    filled = [batch for batch, n in known if n] or [batch for batch, _ in known]
    length = dict(zip(reader.batches, lengths, strict=True))
    forced = sum(_last(positions[b], slots[b], length[b]) for b in {*positions, *slots})
    left = sum(length[batch] * len(slots[batch]) for batch in slots)
    attacking = 2 * trials * len(CANARIES) * _attack_tokens(reader.manifest)
    return _Plan(positions, slots, draw.choice(filled) if trials and filled else None, forced + left + attacking)


def _attack_tokens(manifest: Manifest) -> int:
    return min(ATTACK_TOKENS, manifest.stopping.max_tokens)


def _drawn(
    draw: secrets.SystemRandom, batches: Sequence[int], sizes: Sequence[int], wanted: int
) -> list[tuple[int, int]]:
    """Distinct (batch, index below its size), uniform over all that there are."""
    ends = list(accumulate(sizes))
    total = ends[-1]
    places = sorted(draw.sample(range(total), min(wanted, total)))
    found = [(bisect_right(ends, place), place) for place in places]
    return [(batches[row], place - (ends[row] - sizes[row])) for row, place in found]


def _last(positions: set[int], slots: Sequence[int], length: int) -> int:
    """How many of a batch's steps are needed: all of them where a context is left out."""
    return length if slots else max(positions) + 1


class _Meter:
    """Counts forward passes."""

    def __init__(self, passes: int, progress: Progress | None) -> None:
        self._passes, self._progress, self._done = passes, progress, 0

    def tick(self, passes: int = 1) -> None:
        """So many passes are done."""
        self._done += passes
        if self._progress is not None:
            self._progress(self._done, self._passes)


class _Again:
    """A run with its data and its model, ready to be computed again.

    Attributes:
        noise: see `dpaudit.results.replay.Replay`.
    """

    def __init__(self, reader: RunReader, data: str, model: str | None, meter: _Meter) -> None:
        """Raises InputError where the data or the model is not the run's."""
        self._reader, self._meter = reader, meter
        self._where = reader.where(MANIFEST)
        manifest = reader.manifest
        self._mechanism, self._key = manifest.mechanism, _key(manifest, self._where)
        clusters = reader.clusters()
        self._rule = Rule.of_manifest(manifest, clusters, self._where)
        with _of_options():
            self._records = read_records(_data_config(manifest, data, self._where)).records
        _require_data(manifest, self._records, self._key, data, self._where)
        grouped = recompute_grouping(manifest, clusters, self._records, self._where)
        self._centers = None if grouped is None else grouped.centers
        self.noise = None if grouped is None else grouped.noise
        self._parts = partition(self._rule, self._records, self._key, self._centers)
        self._model = _model(manifest, model, self._where)
        self._prompts = _prompts(manifest, self._model, self._rule, self._where)

    def assignment_problem(self) -> str:
        """The first line of the recorded assignment that the rule does not give; empty where there is none."""
        pairs = zip_longest(self._reader.assignment(), self._parts.assignment)
        for number, (recorded, derived) in enumerate(pairs, start=1):
            if recorded != derived:
                return f"line {number} of {ASSIGNMENT} is not what the rule gives for the data"
        return ""

    def text_problem(self) -> str:
        """The first batch whose text is not its tokens decoded with the model's own tokenizer; empty where none is."""
        for batch_id in self._reader.batches:
            with self._reader.batch(batch_id) as recorded:
                if recorded.tokens.min() < 0:
                    return f"batch {batch_id}: a token is none of the model's"
                sequences = self._reader.manifest.stopping.sequences
                own = self._model.decode(without_stop(recorded.tokens.tolist(), sequences))
                if recorded.text is not None and recorded.text != own:
                    return f"batch {batch_id}: the model's own tokenizer decodes its tokens to another text"
        return ""

    def force(
        self, batch_id: int, positions: set[int], slots: Sequence[int]
    ) -> tuple[list[ReplayedStep], list[LeftOut]]:
        """Feed a batch's contexts its own tokens; compare steps at `positions`, leave the contexts in `slots` out."""
        with self._reader.batch(batch_id) as recorded:
            obstacle = self._obstacle(recorded)
            if obstacle:
                self._meter.tick(_last(positions, slots, len(recorded.tokens)) + len(slots) * len(recorded.tokens))
                steps = [ReplayedStep(batch_id, p, math.inf, 0.0, obstacle) for p in sorted(positions)]
                return steps, [LeftOut(batch_id, slot, math.nan, math.nan, 0.0) for slot in slots]
            found, whole = self._whole(recorded, positions, slots)
            left = []
            for slot, loss in zip(slots, whole.losses, strict=True):
                without = self._log_probability_without(recorded, slot)
                regenerated = whole.log_probability - without
                left.append(LeftOut(batch_id, slot, float(loss), regenerated, whole.tolerance))
            return found, left

    def attack(self, batch_id: int, trials: int, claim: Claim) -> Attacked:
        """Attack the declared mechanism on a batch's contexts, with the canary record as one more."""
        manifest, mechanism = self._reader.manifest, self._mechanism
        batch = self._parts.batches[batch_id]
        canary: Context = (Record(batch.label, CANARY_TEXT),)
        # No guarantee covers texts that are longer than the public maximum.
        top_k, tokens = mechanism.support.size, _attack_tokens(manifest)
        contexts = DecodedContexts(
            self._seat(batch.label, (*batch.contexts, canary), tokens),
            self._prompts.public(batch.label, top_k is not None),
            top_k,
        )
        most = manifest.privacy.records_per_user
        change = context_change(claim.unit, claim.relation, self._rule.name, records_per_user=most)
        return attack(
            declared_step(mechanism),
            contexts,
            mechanism,
            relation="add_remove" if change is None else change.relation,
            delta=min(claim.delta, math.nextafter(1, 0)),  # no output refutes a delta of 1, or of nearly 1
            trials=trials,
            tokens=tokens,
            progress=lambda: self._meter.tick(tokens),
        )

    def _seat(self, label: str, contexts: Sequence[Context], tokens: int | None = None) -> Seat:
        """Contexts in passes of the run's own shape, so that they round as they did there."""
        manifest = self._reader.manifest
        most = manifest.stopping.max_tokens if tokens is None else tokens
        planned = planned_rows(self._model, self._prompts.places, most)
        rows = min(manifest.model.rows or planned, planned)
        if self._model.device.type == "cpu":  # where the number of rows moves no bit
            rows = min(rows, max(1, len(contexts)))
        return self._prompts.alone(label, contexts, rows, most)

    def _obstacle(self, recorded: BatchReader) -> str:
        """Why a batch cannot be computed again as it is recorded; empty where it can."""
        header = recorded.header
        batch = self._parts.batches[header.id] if header.id < len(self._parts.batches) else None
        if batch is None or batch.label != header.label:
            return "the rule gives no such batch with this label"
        if batch.cluster != header.cluster:
            return "the rule gives this batch to another cluster"
        if len(batch.contexts) != header.contexts:
            return f"the record has {header.contexts} contexts, and the rule gives {len(batch.contexts)}"
        if not (recorded.tokens.min() >= 0 and recorded.tokens.max() < self._model.vocabulary):
            return "a recorded token is none of the model's"
        return ""

    def _whole(
        self, recorded: BatchReader, positions: set[int], slots: Sequence[int]
    ) -> tuple[list[ReplayedStep], _Whole]:
        """One pass over the batch as it was generated."""
        batch, tokens = self._parts.batches[recorded.header.id], recorded.tokens
        top_k = self._mechanism.support.size
        private = self._seat(batch.label, batch.contexts)
        public = self._prompts.public(batch.label, top_k is not None and bool(positions))
        found: list[ReplayedStep] = []
        whole = _Whole(np.zeros(len(slots)))
        last = _last(positions, slots, len(tokens))
        for position in range(last):
            if slots or position in positions:
                step = recorded.step(position)
                here = self._computed(logits(private), step, f"batch {batch.id}, step {position}")
                if position in positions:
                    public_logits = logits(public)[0] if top_k is not None else None
                    found.append(_compared(batch.id, position, step, here, public_logits))
                if slots:
                    whole.add(here.log_probability(), _recorded_losses(step, here, slots), here.nats)
            self._meter.tick()
            if position + 1 < last:
                for seat in (private, public):
                    seat.append(int(tokens[position]))
        return found, whole

    def _log_probability_without(self, recorded: BatchReader, slot: int) -> float:
        """log p of the batch's tokens, in nats, with one context taken out of the data."""
        batch, tokens = self._parts.batches[recorded.header.id], recorded.tokens
        private = self._seat(batch.label, self._contexts_without(batch, slot))
        total = 0.0
        for position, token in enumerate(tokens):
            place = f"batch {batch.id}, step {position}"
            total += self._computed(logits(private), recorded.step(position), place).log_probability()
            self._meter.tick()
            if position + 1 < len(tokens):
                private.append(int(token))
        return total

    def _contexts_without(self, batch: Batch, slot: int) -> tuple[Context, ...]:
        """The batch's contexts on the data less one record; where slots are fixed, less one context."""
        if self._rule.name != "hashed-records":
            return batch.contexts[:slot] + batch.contexts[slot + 1 :]
        (gone,) = batch.contexts[slot]
        others = (record for record in self._records if record != gone)
        rest = partition(self._rule, others, self._key, self._centers)
        changed = [new.id for new, old in zip(rest.batches, self._parts.batches, strict=True) if new != old]
        assert changed == [batch.id], "a hashed record's place depends on that record alone"
        return rest.batches[batch.id].contexts

    def _computed(self, logits: Floats, step: Step, place: str) -> _Computed:
        """One step's aggregate by the model, over the recorded support."""
        mechanism, manifest = self._mechanism, self._reader.manifest
        support, index = step.support, step.token
        problem = _support_problem(support, self._model.vocabulary)
        if support is not None and not problem:
            index = int(np.searchsorted(support, step.token))
            if index == len(support) or support[index] != step.token:
                problem = "the sampled token is not in the support"
        try:
            support = None if problem else support
            arrays = aggregated(logits, support, mechanism, manifest.record.width)
        except ValueError as error:
            raise InputError(place, f"{error}.", "Replay on a machine like the one that made the run.") from None
        config, dtype = self._model.network.config.get_text_config(), manifest.model.dtype or "float32"
        scale = max(mechanism.clip, _largest_kept(logits, mechanism.clip))
        tolerance = rounding_tolerance(scale, config.num_hidden_layers, config.hidden_size, dtype)
        aggregate = mechanism.aggregator.aggregate(arrays)
        return _Computed(manifest, logits, support, aggregate, index, tolerance, problem)


@dataclass
class _Whole:
    """A batch as it was generated: sums over its steps, in nats.

    Attributes:
        losses: [slots] what the record says that leaving each out changes.
        log_probability: of the batch's tokens.
        squares: sum of the steps' squared tolerances.
    """

    losses: NDArray[np.float64]
    log_probability: float = 0.0
    squares: float = 0.0

    def add(self, log_probability: float, losses: NDArray[np.float64], nats: float) -> None:
        """Take in one step."""
        self.losses = self.losses + losses
        self.log_probability += log_probability
        self.squares += nats**2

    @property
    def tolerance(self) -> float:
        """Steps round independently, so their errors add up like the root of the sum of their squares."""
        return math.sqrt(self.squares) + FLOAT64_ROUNDING


@dataclass(frozen=True)
class _Computed:
    """A step by the model.

    Attributes:
        manifest: the run's.
        raw: its logits, float32 [n, V].
        support: the recorded support.
        aggregate: what the step would sample from, [S].
        index: the sampled token's place in the support.
        rounding: how far a logit may be off by rounding, in logit units.
        problem: why the step cannot be compared; empty where it can.
    """

    manifest: Manifest
    raw: Floats
    support: NDArray[np.integer] | None
    aggregate: NDArray[np.floating]
    index: int
    rounding: float
    problem: str

    @property
    def mechanism(self) -> Mechanism:
        """The run's."""
        return self.manifest.mechanism

    @cached_property
    def values(self) -> Floats:
        """Contributions, float32 [n, S]."""
        return contributions(self.raw, self.support, self.mechanism.contribution)

    @cached_property
    def again(self) -> Recomputed:
        """What a recorded step is held against."""
        contribution, aggregator = self.mechanism.contribution, self.mechanism.aggregator
        free = contribution.model_copy(update={"grid": None})

        def aggregate_of(values: Floats) -> NDArray[np.floating]:
            return aggregator.aggregate(aggregator.step(values, contribution.clip, self.manifest.record.width))

        return Recomputed(contributions(self.raw, self.support, free), self.rounding, contribution, aggregate_of)

    @cached_property
    def tolerance(self) -> float:
        """How far what is compared may be off, in logit units."""
        return self.mechanism.aggregator.tolerance(self.again)

    @property
    def nats(self) -> float:
        """How far a token's log-probability may be off: its own logit one way, and all others the other way."""
        if self.mechanism.contribution.grid is None or self.problem:
            return 2 * self.tolerance / self.mechanism.temperature
        (least, greatest), x, tau = self.again.ends, self.index, self.mechanism.temperature
        likeliest, unlikeliest = least.copy(), greatest.copy()
        likeliest[x], unlikeliest[x] = greatest[x], least[x]
        return log_probability(likeliest, x, tau) - log_probability(unlikeliest, x, tau)

    def log_probability(self) -> float:
        """Of the sampled token, in nats; NaN where the step cannot be compared."""
        if self.problem:
            return math.nan
        return log_probability(self.aggregate, self.index, self.mechanism.temperature)


def _compared(batch: int, position: int, step: Step, here: _Computed, public: Floats | None) -> ReplayedStep:
    """Hold a recorded step against the model's. `public` are the public prompt's logits, where they choose support."""
    if here.problem:
        return ReplayedStep(batch, position, math.inf, here.tolerance, here.problem)
    found = here.mechanism.aggregator.deviation(dict(step.arrays), here.again)
    problems = [found.problem, _contexts_problem(step, here)]
    if public is not None and step.support is not None:
        problems.append(_top_problem(step.support, public, here.rounding))
    gap = abs(here.log_probability() - step.log_probability)
    if not gap <= here.nats + FLOAT64_ROUNDING:
        problems.append(f"the token's log-probability is {gap:.3g} nats off")
    return ReplayedStep(batch, position, found.difference, here.tolerance, "; ".join(filter(None, problems)))


def _contexts_problem(step: Step, here: _Computed) -> str:
    if step.contexts is None:
        return ""
    gap = largest_absolute(step.contexts - here.again.free) - here.again.half
    return "" if gap <= here.rounding else f"recorded contexts are {gap:.3g} off"


def _support_problem(support: NDArray[np.integer] | None, vocabulary: int) -> str:
    """Why a recorded support names no tokens, or one twice."""
    if support is None:
        return ""
    ascending = (np.diff(support) > 0).all() and support[0] >= 0 and support[-1] < vocabulary
    return "" if ascending else "the support is not a list of the model's tokens in ascending order"


def _top_problem(support: NDArray[np.integer], public: Floats, rounding: float) -> str:
    """Every token of the support must be among the public prompt's top ones; twice the rounding may swap two."""
    least = np.partition(public, -len(support))[-len(support)]
    wrong = ~(public[support] >= least - 2 * rounding)
    return f"{np.count_nonzero(wrong)} tokens of the support are not the public prompt's" if wrong.any() else ""


def _recorded_losses(step: Step, here: _Computed, slots: Sequence[int]) -> NDArray[np.float64]:
    """What leaving each slot out changes, by the record; NaN where it does not say."""
    chosen, losses = np.array(slots), None
    if not here.problem:
        # Without recorded contexts, the record is the aggregate, and what goes is the model's.
        contexts = here.values if step.contexts is None else step.contexts
        with np.errstate(all="ignore"):  # a record may hold any numbers
            reduced = here.mechanism.reduced(dict(step.arrays), here.index)
            losses = here.mechanism.losses(reduced, contexts, len(here.raw))
    return np.full(len(slots), math.nan) if losses is None else losses[chosen]


def _largest_kept(logits: Floats, clip: float) -> float:
    """The largest absolute raw logit that clipping keeps: what lies further down, masked or not, cannot be off."""
    if not logits.size:
        return 0.0
    kept = logits >= logits.max(axis=1, keepdims=True) - 2 * clip
    return float(np.abs(logits[kept]).max(initial=0.0))


def _key(manifest: Manifest, where: str) -> bytes:
    key = bytes.fromhex(manifest.batching.key or "")
    if len(key) != KEY_BYTES:
        raise InputError(f"{where}: batching.key", f"the run gives no key of {KEY_BYTES} bytes.", _ONLY_OURS)
    return key


_THE_DATA = "Give the very data that the run was made from."
_ONLY_OURS = "Only runs of `dpaudit generate` can be replayed."


@contextmanager
def _of_options() -> Iterator[None]:
    """Speak of the command's options where an error speaks of a config's fields, which cannot be changed here."""
    try:
        yield
    except InputError as error:
        where = {"data.path": "--data", "data.dataset": "--data", "model.name": "--model"}.get(error.where, error.where)
        problem = re.sub(r"data\.label(s|_values)\b", "the run's labels", error.problem)
        fixed = problem != error.problem or "data." in error.remedy
        raise InputError(where, problem, _THE_DATA if fixed else error.remedy) from None


def _data_config(manifest: Manifest, data: str, where: str) -> DataConfig:
    """Where the data is: a path, or the name of a data set where the run read one. No mistyped path goes to the hub."""
    named = manifest.data
    on_hub = named.source == "dataset" and not data.startswith(PACKAGE) and not Path(data).exists()
    place = {"dataset": data, "split": named.split} if on_hub else {"path": data}
    try:
        return DataConfig.model_validate(
            {
                **place,
                "text": named.text,
                "label": named.label,
                "labels": manifest.batching.labels,
                "label_values": named.label_values,
            }
        )
    except ValidationError:
        raise InputError(f"{where}: data", "its column names or labels cannot be used.", _ONLY_OURS) from None


def _require_data(manifest: Manifest, records: Sequence[Record], key: bytes, data: str, where: str) -> None:
    wanted = manifest.data
    if wanted.digest is None:
        raise InputError(f"{where}: data.digest", "the run does not say which data it used.", _ONLY_OURS)
    hashing = KeyedHash(key)
    digest = data_digest(sorted(hashing.digest(record.label, record.text) for record in records))
    if digest != wanted.digest:
        problem = (
            f"this is not the data of the run: {len(records)} records with the digest {digest[:12]}..., "
            f"where the run had {wanted.records} with {wanted.digest[:12]}..."
        )
        raise InputError(data, problem, _THE_DATA)


def _model(manifest: Manifest, name: str | None, where: str) -> LanguageModel:
    named = manifest.model
    if named.digest is None or named.dtype not in UNIT_ROUNDOFF:
        lacking = "digest" if named.digest is None else "dtype"
        raise InputError(f"{where}: model.{lacking}", "the run does not say which model it used.", _ONLY_OURS)
    # A run that was made on a CPU is computed bit for bit only there.
    place = {"name": name or named.name, "dtype": named.dtype, "device": "cpu" if named.device == "cpu" else "auto"}
    with _of_options():
        model = load_model(ModelConfig.model_validate(place), named.digest)
    if model.vocabulary != manifest.record.vocabulary:
        problem = f"this is {manifest.record.vocabulary}, but the model scores {model.vocabulary} tokens."
        raise InputError(f"{where}: record.vocabulary", problem, _ONLY_OURS)
    return model


def _prompts(manifest: Manifest, model: LanguageModel, rule: Rule, where: str) -> Prompts:
    named = manifest.prompt
    if named.template not in ("pt", "it") or named.max_example_tokens is None:
        raise InputError(
            f"{where}: prompt",
            "the run names no template, or no length of examples, that this version knows.",
            _ONLY_OURS,
        )
    wording = template(named.template, model.tokenizer)
    if wording.digest != named.digest:
        problem = f"the run's template {named.template!r} has another digest than this version's."
        raise InputError(f"{where}: prompt.digest", problem, "Replay with the dpaudit that made the run.")
    examples, most = rule.examples_per_context, named.max_example_tokens
    if model.positions is not None and examples * most > model.positions:
        problem = f"examples may take {examples * most} tokens, but the model takes {model.positions}."
        raise InputError(f"{where}: prompt.max_example_tokens", problem, _ONLY_OURS)
    return Prompts(model, wording, rule.labels, examples, most)
