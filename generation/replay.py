"""A run against its model and data: values, assignment, left-out records, and an attack.

Nothing that the run's maker could foresee decides what is looked at: steps, contexts and texts are
drawn from the operating system's entropy. The checks judge what is found. See docs/replay.md.
"""

from __future__ import annotations

import math
import secrets
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate

import numpy as np

from dpaudit.generation.aggregation import Floats
from dpaudit.generation.attack import CANARIES, attack, declared_step
from dpaudit.generation.model_step import (
    ModelStep,
    largest_kept,
    support_problem,
)
from dpaudit.generation.partition import Batch, Context
from dpaudit.generation.passes import CachedPrompts, logits_for, out_of_memory, planned_rows
from dpaudit.generation.public_parts import public_steps, recompute_public
from dpaudit.generation.rebuilt import Rebuilt
from dpaudit.generation.records import Record, Records
from dpaudit.generation.run_data import read_run_records
from dpaudit.mechanisms import COME_AND_GO, FLOAT64_ROUNDING, PublicPart
from dpaudit.results import Finding
from dpaudit.results.replay import Attacked, LeftOut, Replay, ReplayedStep
from dpaudit.runs import BatchReader, Claim, InputError, RunReader
from dpaudit.runs.layout import MANIFEST
from dpaudit.runs.reader import RESUME
from dpaudit.runs.storage import Location

#: How much a replay does where it is not told: a minute or two on two cores for the demo's run.
STEPS, LEFT_OUT, TRIALS = 10, 2, 6
#: Characters of a prompt without its examples; a run directory may ask for any.
LONGEST_FRAME = 1 << 22
#: Length of the attack's texts.
ATTACK_TOKENS = 3
#: The record that the attack adds: public, and unlike any other.
CANARY_TEXT = "zebra quartz " * 64

Progress = Callable[[int, int], None]


def replay_run(
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

    Memory is that of one batch: it does not grow with the run. A KeyboardInterrupt ends it once the
    model is at work, and what is done by then is kept.

    Args:
        run: a finished run directory of `dpaudit generate`.
        data: the run's private data: what its config had as data.path or data.dataset.
        model: where the run's model is; None if the manifest says.
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
    positions, slots, attacked, total = _plan(reader, steps, chosen, left_out, trials)
    total, done = total + public_steps(reader), 0

    def tick(passes: int) -> None:
        nonlocal done
        done += passes
        if progress is not None:
            progress(done, total)

    head, replayer = reader.head_or_none(), _Replayer(reader, data, model, tick)
    try:
        assignment, texts = replayer.assignment_problem(), replayer.named.text_problem()
        shared = replayer.shared_texts()
        found: list[ReplayedStep] = []
        left: list[LeftOut] = []
        public = attack = None
        whole = False
        with suppress(KeyboardInterrupt):
            public = recompute_public(reader, replayer.named, tick)
            # In no order, so that what is done when somebody stops is as random as all of it.
            for batch in sorted(
                positions.keys() | slots.keys(), key=lambda _: secrets.randbits(64)
            ):
                batch_steps, batch_left = replayer.teacher_force(
                    batch, positions[batch], slots[batch]
                )
                found += batch_steps
                left += batch_left
            attack = None if attacked is None else replayer.attack(attacked, trials, asked)
            whole = True
        found.sort(key=lambda step: (step.batch, step.position))
        left.sort(key=lambda each: (each.batch, each.slot))
        return Replay(
            texts,
            public,
            assignment,
            replayer.noise,
            tuple(found),
            tuple(left),
            attack,
            whole,
            most_per_user=replayer.most_per_user,
            shared=shared,
            head=head,
        )
    except Exception as error:
        if not out_of_memory(error):
            raise
        remedy = "Replay it on a machine with more memory."
        raise InputError(
            reader.name, "memory is too small for a batch of this run.", remedy
        ) from None


def _plan(
    reader: RunReader, steps: int, chosen: Sequence[tuple[int, int]], left_out: int, trials: int
) -> tuple[dict[int, set[int]], dict[int, list[int]], int | None, int]:
    """Draw what is to be recomputed, each step and each context of the run alike.

    Returns:
        Positions and slots by batch, the attacked batch, and the forward passes for all of it.
    """
    draw = secrets.SystemRandom()
    spans: dict[int, list[range]] = {}
    contexts: dict[int, int] = {}
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            spans[batch], contexts[batch] = opened.spans, opened.header.contexts
    lengths = {batch: own[-1].stop for batch, own in spans.items()}
    positions: dict[int, set[int]] = defaultdict(set)
    for batch, position in chosen or _draw_distinct(draw, lengths, steps):
        if not 0 <= position < lengths.get(batch, 0):
            problem = f"there is no step {position} of batch {batch} in the run."
            raise InputError("--step", problem, "Name BATCH:POSITION; both count from 0.")
        positions[batch].add(position)
    slots: dict[int, list[int]] = defaultdict(list)
    for batch, slot in _draw_distinct(draw, contexts, left_out):
        slots[batch].append(slot)
    known = [batch for batch in reader.batches if batch < reader.manifest.batches]
    filled = [batch for batch in known if contexts[batch]] or known
    forced = sum(
        sum(map(len, _needed_steps(spans[b], positions[b], slots[b]))) for b in {*positions, *slots}
    )
    left = sum(lengths[batch] * len(slots[batch]) for batch in slots)
    attacking = 2 * trials * len(CANARIES) * min(ATTACK_TOKENS, reader.manifest.decoding.max_tokens)
    attacked = draw.choice(filled) if trials and filled else None
    return positions, slots, attacked, forced + left + attacking


def _draw_distinct(
    draw: secrets.SystemRandom, sizes: Mapping[int, int], wanted: int
) -> list[tuple[int, int]]:
    """Draw distinct pairs (batch, index below its size), uniform over all that there are."""
    batches, ends = list(sizes), list(accumulate(sizes.values()))
    places = sorted(draw.sample(range(ends[-1]), min(wanted, ends[-1])))
    found = [(bisect_right(ends, place), place) for place in places]
    return [(batches[row], place - (ends[row] - sizes[batches[row]])) for row, place in found]


def _needed_steps(spans: Sequence[range], positions: set[int], slots: Sequence[int]) -> list[range]:
    """Return the steps of a batch to compute, from the beginnings of its texts.

    A context that is left out takes all steps.
    """
    if slots:
        return list(spans)
    last = [
        (span, max((p for p in positions if p in span), default=span.start - 1)) for span in spans
    ]
    return [range(span.start, position + 1) for span, position in last if position in span]


class _Replayer(Rebuilt):
    """A run with its data and its model, ready to be computed again."""

    def __init__(
        self, reader: RunReader, data: str, model: str | None, tick: Callable[[int], None]
    ) -> None:
        """Rebuild the run.

        Args:
            tick: told of forward passes.

        Raises:
            InputError: the data or the model is not the run's.
        """
        self._tick = tick
        whose = reader.manifest.privacy.shared_budgets
        where = reader.where(MANIFEST)

        def read() -> Records:
            return read_run_records(reader.manifest, data, where, whose=whose)

        super().__init__(reader, data, read, model)

    def teacher_force(
        self, batch_id: int, positions: set[int], slots: Sequence[int]
    ) -> tuple[list[ReplayedStep], list[LeftOut]]:
        """Feed a batch's contexts its tokens; compare at `positions`, leave out `slots`."""
        with self._reader.batch(batch_id) as recorded:
            needed = _needed_steps(recorded.spans, positions, slots)
            if obstacle := self._obstacle(recorded):
                self._tick(sum(map(len, needed)) + len(slots) * len(recorded.tokens))
                found = [
                    ReplayedStep(batch_id, p, math.inf, 0.0, (obstacle,)) for p in sorted(positions)
                ]
                return found, [LeftOut(batch_id, slot, math.nan, math.nan, 0.0) for slot in slots]
            batch, found = self.partition.batches[batch_id], []
            prompts = self._cached(batch.label, batch.contexts)
            losses, log_probability, squares = np.zeros(len(slots)), 0.0, 0.0
            for position, private in self._along(recorded, needed, prompts):
                if slots or position in positions:
                    here = self._model_step(recorded, position, private)
                    if position in positions:
                        found.append(here.compared())
                    if slots:
                        losses += here.recorded_losses(slots)
                        log_probability += here.log_probability()
                        squares += here.nats**2
            # Steps round independently, so their errors add up like the root of the sum of their
            # squares.
            tolerance = math.sqrt(squares) + FLOAT64_ROUNDING
            left = []
            for slot, loss in zip(slots, losses, strict=True):
                without, prompts = (
                    0.0,
                    self._cached(batch.label, self._contexts_without(batch, slot)),
                )
                for position, private in self._along(recorded, recorded.spans, prompts):
                    without += self._model_step(recorded, position, private, slot).log_probability()
                left.append(
                    LeftOut(batch_id, slot, float(loss), log_probability - without, tolerance)
                )
            return found, left

    def _along(
        self, recorded: BatchReader, spans: Iterable[range], prompts: CachedPrompts
    ) -> Iterator[tuple[int, CachedPrompts]]:
        """Yield prompts with a batch's tokens, at each step of its texts that is in `spans`."""
        for span in spans:
            going_on = prompts.fork()
            for position in span:
                yield position, going_on
                self._tick(1)
                if position + 1 < span.stop:
                    going_on.append(int(recorded.tokens[position]))

    def _model_step(
        self,
        recorded: BatchReader,
        position: int,
        private: CachedPrompts,
        without: int | None = None,
    ) -> ModelStep:
        step, mechanism = recorded.step(position), self._manifest.mechanism
        problem = support_problem(step.support, self.named.model.vocabulary)
        looked_at, _ = logits_for(private, PublicPart(None if problem else step.support), mechanism)
        raw: Floats = looked_at.cpu().numpy()
        rounding = self.named.rounding(max(mechanism.clip, largest_kept(raw, mechanism)))
        return ModelStep(
            mechanism, raw, step, rounding, recorded.header.id, position, problem, without
        )

    def attack(self, batch_id: int, trials: int, claim: Claim) -> Attacked:
        """Attack the declared mechanism on a batch's contexts, with the canary record added."""
        manifest, batch = self._manifest, self.partition.batches[batch_id]
        mechanism, canary = manifest.mechanism, (Record(batch.label, CANARY_TEXT),)
        # no guarantee covers longer texts
        tokens = min(ATTACK_TOKENS, manifest.decoding.max_tokens)
        change = manifest.privacy.change(manifest.batching.rule, claim.unit, claim.relation)
        delta = claim.terms.tested_delta(claim.delta)
        return attack(
            declared_step(mechanism),
            self._cached(batch.label, (*batch.contexts, canary), tokens),
            self.named.prompts.public(batch.label, tokens, manifest.needs_public),
            mechanism,
            relation="add_remove" if change is None else change.relation,
            ruled=manifest.decoding.any,
            # no output refutes a delta of 1, or of nearly 1
            delta=min(delta, math.nextafter(1, 0)),
            trials=trials,
            tokens=tokens,
            progress=lambda: self._tick(tokens),
        )

    def _cached(
        self, label: str, contexts: Sequence[Context], tokens: int | None = None
    ) -> CachedPrompts:
        """Return contexts in passes of the run's own shape, so that they round as in the run."""
        manifest = self._manifest
        most = manifest.decoding.max_tokens if tokens is None else tokens
        planned = planned_rows(self.named.model, self.named.prompts.places, most)
        rows = min(manifest.model.rows or planned, planned)
        if self.named.model.device.type == "cpu":  # where the number of rows moves no bit
            rows = min(rows, max(1, len(contexts)))
        return self.named.prompts.alone(label, contexts, rows, most, self.named.head)

    def _obstacle(self, recorded: BatchReader) -> Finding | None:
        """Return why a batch cannot be computed again as it is recorded, or None."""
        header = recorded.header
        batch = (
            self.partition.batches[header.id] if header.id < len(self.partition.batches) else None
        )
        if batch is None or batch.public_label != header.label:
            return Finding(code="replay.no-such-batch")
        if batch.cluster != header.cluster:
            return Finding(code="replay.other-cluster")
        if len(batch.contexts) != header.contexts:
            return Finding(
                code="replay.other-contexts",
                values={"recorded": header.contexts, "due": len(batch.contexts)},
            )
        if not (recorded.tokens.min() >= 0 and recorded.tokens.max() < self.named.model.vocabulary):
            return Finding(code="replay.foreign-token")
        return None

    def _contexts_without(self, batch: Batch, slot: int) -> tuple[Context, ...]:
        """Return a batch's contexts without one record; with fixed slots, without one context."""
        if self._manifest.batching.rule not in COME_AND_GO:
            return batch.contexts[:slot] + batch.contexts[slot + 1 :]
        gone = batch.contexts[slot][0]
        rest = self.partitioned(record for record in self.records if record != gone).batches
        per_round = self._manifest.batching.per_round
        first = batch.id - batch.id % per_round
        ids = range(first, first + per_round)  # of its round
        changed = [
            number
            for number in ids
            if rest[number].contexts != self.partition.batches[number].contexts
        ]
        assert changed == [batch.id], "a hashed record's place depends on that record alone"
        return rest[batch.id].contexts
