"""A run against its model alone: supports and anchors of all steps from the public prompts.

No data is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpaudit.generation.aggregation import Floats
from dpaudit.generation.model_probe import public_passes
from dpaudit.generation.model_step import support_problem
from dpaudit.generation.passes import PUBLIC_ROWS, Passes, out_of_memory
from dpaudit.generation.rebuilt import NamedModel
from dpaudit.mechanisms import ANCHOR, MASKED, Mechanism, largest_absolute
from dpaudit.results import Finding, Place, Value
from dpaudit.results.replay import PublicParts, PublicReplay
from dpaudit.runs import BatchReader, InputError, Manifest, RunReader, Step
from dpaudit.runs.reader import RESUME
from dpaudit.runs.storage import Location


def replay_public(
    run: Location, *, model: str | None = None, progress: Callable[[int, int], None] | None = None
) -> PublicReplay:
    """Recompute a run's values from its public prompts, at all steps, with its model, without data.

    Memory is that of a few texts: it does not grow with the run.

    Args:
        run: a finished run directory of `dpaudit generate`.
        model: where the run's model is; None if the manifest says.
        progress: called with (steps done, steps in all).

    Raises:
        InputError: the run cannot be replayed, or the model is not the run's.
    """
    reader = RunReader(run)
    if reader.manifest.claim is None or not reader.batches:
        raise InputError(reader.name, "the run is not finished.", RESUME)
    total, done = public_steps(reader), 0

    def tick(steps: int) -> None:
        nonlocal done
        done += steps
        if progress is not None:
            progress(done, total)

    named, head = NamedModel(reader, model), reader.head_or_none()
    try:
        return PublicReplay(
            texts=named.text_problem(), public=recompute_public(reader, named, tick), head=head
        )
    except Exception as error:
        if not out_of_memory(error):
            raise
        remedy = "Replay it on a machine with more memory."
        raise InputError(
            reader.name, "memory is too small for the public prompts of this run.", remedy
        ) from None


def public_steps(reader: RunReader) -> int:
    """Return the number of steps of `recompute_public`."""
    if not reader.manifest.needs_public:
        return 0
    found = 0
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            found += len(opened.tokens)
    return found


def recompute_public(
    reader: RunReader, named: NamedModel, tick: Callable[[int], None]
) -> PublicParts | None:
    """Compare each step's support and anchor with the public prompt's, after the text's own tokens.

    Args:
        reader: the run.
        named: its model and prompts.
        tick: told of steps that are done.

    Returns:
        None in a run whose steps take nothing from a public prompt.
    """
    manifest = reader.manifest
    if not manifest.needs_public:
        return None
    passes = public_passes(named.model, named.prompts.public_places, manifest.decoding.max_tokens)
    found = _Found()
    texts = _texts(reader)
    # As many texts as a pass has rows for: it takes little longer than a pass of one.
    while together := list(islice(texts, PUBLIC_ROWS)):
        with ExitStack() as stack:
            opened = {batch: stack.enter_context(reader.batch(batch)) for batch in dict(together)}
            _follow(
                manifest,
                named,
                passes,
                [(opened[batch], span) for batch, span in together],
                found,
                tick,
            )
    return PublicParts(found.steps, found.wrong, found.first, found.difference, found.tolerance)


def _texts(reader: RunReader) -> Iterator[tuple[int, range]]:
    """Yield each text's batch and steps."""
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            spans = opened.spans
        yield from ((batch, span) for span in spans)


class _Gap(NamedTuple):
    """The difference of one part of a step, in logit units.

    Attributes:
        off: how far it is off.
        most: how far rounding can put it.
        problem: what is wrong if it is further off.
    """

    off: float
    most: float
    problem: Finding


class _Found:
    """The sums of `PublicParts` so far."""

    def __init__(self) -> None:
        self.steps = self.wrong = 0
        self.first: Finding | None = None
        self.difference = self.tolerance = 0.0

    def take(self, place: Place, gaps: Sequence[_Gap]) -> None:
        """Take in one step: how far each of its parts is off."""
        self.steps += 1
        if problems := [problem for off, most, problem in gaps if not off <= most]:
            self.wrong += 1
            found: dict[str, Value] = {"place": place, "problem": tuple(problems)}
            self.first = self.first or Finding(code="step.problem", values=found)
        self.difference = max([self.difference, *(off for off, _, _ in gaps)])
        self.tolerance = max([self.tolerance, *(most for _, most, _ in gaps)])


def _follow(
    manifest: Manifest,
    named: NamedModel,
    passes: Passes,
    texts: Sequence[tuple[BatchReader, range]],
    found: _Found,
    tick: Callable[[int], None],
) -> None:
    """Feed several texts to their public prompts, a token of each in a pass."""
    going_on = []
    for recorded, span in texts:
        label, tokens = recorded.header.label, recorded.tokens[span.start : span.stop]
        if problem := obstacle(manifest, label, tokens):
            for position in span:
                found.take(
                    Place(batch=recorded.header.id, step=position), [_Gap(math.inf, 0.0, problem)]
                )
            tick(len(span))
            continue
        prompt = named.prompts.public_tokens(label or "")
        going_on.append((recorded, span, passes.start([prompt], prompt[:-1])))
    rows, offset = [prompts for *_, prompts in going_on], 0
    while going_on:
        for recorded, span, prompts in going_on:
            step, text = (
                recorded.step(span[offset]),
                recorded.tokens[span.start : span.start + offset].tolist(),
            )
            logits = (
                named.prompts.allowed(recorded.header.label or "", text, prompts.logits)[0]
                .cpu()
                .numpy()
            )
            rounding = named.rounding(float(np.abs(logits[logits > MASKED]).max(initial=0.0)))
            place = Place(batch=recorded.header.id, step=span[offset])
            found.take(place, list(_gaps(manifest.mechanism, step, logits, 2 * rounding)))
            tick(1)
        offset += 1
        going_on = [each for each in going_on if offset < len(each[1])]
        passes.advance(
            [
                (prompts, int(recorded.tokens[span[offset - 1]]))
                for recorded, span, prompts in going_on
            ]
        )
    for prompts in rows:
        passes.finish(prompts)


def obstacle(manifest: Manifest, label: str | None, tokens: NDArray[np.integer]) -> Finding | None:
    """Return why a text cannot follow a public prompt of this run, or None."""
    if (label or "") not in manifest.data.groups:
        return Finding(code="replay.no-public-prompt")
    if not (tokens.min() >= 0 and tokens.max() < manifest.record.vocabulary):
        return Finding(code="replay.foreign-token")
    if len(tokens) > manifest.decoding.max_tokens:
        return Finding(
            code="replay.text-too-long",
            values={"tokens": len(tokens), "most": manifest.decoding.max_tokens},
        )
    return None


def _gaps(mechanism: Mechanism, step: Step, public: Floats, most: float) -> Iterator[_Gap]:
    """Yield how far support and anchor are off the public prompt's.

    Args:
        mechanism: the run's.
        step: the record.
        public: the public prompt's logits, float32 [V], -inf if a rule forbids a token.
        most: how far two of these may be off from each other, in logit units.
    """
    support, anchor = step.support, step.arrays.get(ANCHOR)
    problem = support_problem(support, len(public))
    if np.isnan(public).any():
        problem = Finding(code="replay.no-scores")
    if problem:
        yield _Gap(math.inf, most, problem)
        return
    if support is not None:
        off, wrong = _support_gap(mechanism, support, public, most)
        yield _Gap(off, most, Finding(code="replay.other-support", values={"tokens": wrong}))
    if anchor is not None:
        yield _anchor_gap(mechanism, anchor, public if support is None else public[support], most)


def _support_gap(
    mechanism: Mechanism, support: NDArray[np.integer], public: Floats, most: float
) -> tuple[float, int]:
    """Return the largest gap of a misplaced token to the public prompt's last one.

    Return the number of gaps beyond `most`, too.
    """
    chosen = mechanism.support
    again = chosen.tokens(public, ruled=True)  # where there are no rules, no logit is -inf
    assert again is not None
    last = float(public[again].min())
    if chosen.size and chosen.margin and len(again) < chosen.most(len(public)):
        last = float(np.sort(public[again])[-chosen.size]) - chosen.margin
    gaps = np.abs(public[np.setxor1d(again, support)] - last)
    return largest_absolute(gaps), int(np.count_nonzero(~(gaps <= most)))


def _anchor_gap(mechanism: Mechanism, anchor: Floats, logits: Floats, most: float) -> _Gap:
    """Compare the anchor with the public prompt's over the recorded support.

    An error of one logit also moves their sum.
    """
    try:
        again = mechanism.contribution.anchor(logits)
    except ValueError:
        return _Gap(math.inf, most, Finding(code="replay.no-anchor"))
    assert again is not None
    gap = largest_absolute(anchor - again)
    most += float(np.spacing(np.abs(again).max()))  # either is rounded to float32 once more
    return _Gap(gap, most, Finding(code="replay.other-anchor", values={"difference": gap}))
