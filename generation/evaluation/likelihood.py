"""The likelihood of real texts under a mechanism whose batches have not seen them, and its cost.

Batches are those that a run of a config would have, or those of a finished run. A held-out text of
their label is given to them token by token, whatever they would have drawn, and every token's
log-probability under the aggregate is added up. Nothing is drawn or released, and the figures read
private records without noise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ExPostAccountant
from dpaudit.generation.aggregation import NOTHING_PUBLIC, Budgets, aggregated
from dpaudit.generation.evaluation.texts import (
    RealData,
    hash_fraction,
    normalized_text,
    read_real,
    summary_of,
)
from dpaudit.generation.head import Head
from dpaudit.generation.models import UNUSABLE_LOGITS
from dpaudit.generation.partition import Batch
from dpaudit.generation.passes import CachedPrompts, logits_for, next_logits, out_of_memory
from dpaudit.generation.prompts import Prompts
from dpaudit.generation.rebuilt import RunParts, rebuild
from dpaudit.generation.records import Record
from dpaudit.mechanisms import MASKED, Arrays, PublicPart, log_probability
from dpaudit.results.quality import Encoder, HeldOutLikelihood, PerToken
from dpaudit.runs import InputError, Manifest, RunReader

TEST, LIKELIHOOD = "--test", "--likelihood"

#: Told of tokens that were given to batches, and of how many there are.
Watch: TypeAlias = Callable[[int, int], None]
Doubles: TypeAlias = NDArray[np.float64]


class HeldOut(NamedTuple):
    """Held-out texts by label, and how many were left out because a prompt may have shown them."""

    texts: dict[str, tuple[str, ...]]
    left_out: int


class _Place(NamedTuple):
    """A text's token: what is public before it, and its column in the step's support, or None.

    `alone`: its log-probability by the public prompt alone, in nats; NaN without a column.
    """

    token: int
    public: PublicPart
    column: int | None
    alone: float


class _Text(NamedTuple):
    """A held-out text, token by token. The first `lead` places only lead up to it."""

    places: tuple[_Place, ...]
    lead: int


def choose_held_out(
    test: str, found: Sequence[Record], shown: Iterable[str], labels: Sequence[str], most: int
) -> HeldOut:
    """Choose up to `most` texts of each label, by a hash of each, that no prompt has shown.

    Args:
        test: the file, as messages name it.
        found: its records.
        shown: texts of prompts.
        labels: all of them.
        most: of a label, at least 1.

    Raises:
        InputError: there is no text of a label.
    """
    known = {normalized_text(text) for text in shown}
    new = [record for record in found if normalized_text(record.text) not in known]
    texts: dict[str, tuple[str, ...]] = {}
    for label in labels:
        ranked = sorted(
            (record.text for record in new if record.label == label),
            key=lambda text: (hash_fraction(text, 0, b"likelihood"), text),
        )
        if not ranked:
            what = f"text of the label {label!r}" if label else "text"
            remedy = "Name a file with real texts of every label that are no private records."
            raise InputError(TEST, f"{test!r} has no held-out {what}.", remedy)
        texts[label] = tuple(ranked[:most])
    return HeldOut(texts, len(found) - len(new))


def measure_run(
    reader: RunReader, data: RealData, most: int, watch: Callable[[str, int, int], None]
) -> HeldOutLikelihood:
    """Give held-out texts to a finished run's first batch of each label.

    Args:
        reader: the run.
        data: the run's private records are the reference; texts are from the test file.
        most: texts of a label, at least 1; chosen as `held_out_texts` does.
        watch: told what is done, of tokens, and of how many.

    Raises:
        InputError: the reference or the model is not the run's, no text was held out, or none can
            be measured.
    """
    if data.test is None:
        raise InputError(
            LIKELIHOOD, "no texts were held out from the run.", "Give some with --test."
        )
    manifest = reader.manifest
    records = read_real(manifest, data.reference, "--reference", data)
    with (
        naming_the_option(
            LIKELIHOOD,
            "Give the run's own data with --reference, and have its model where run.json says.",
        ),
        enough_memory(),
    ):
        run = rebuild(reader, data.reference, records)
    named = manifest.model
    shown = [
        *(record.text for record in records),
        *sum(manifest.prompt.public_examples.values(), ()),
    ]
    found = read_real(manifest, data.test, TEST, data)
    labels = dict.fromkeys(batch.label for batch in run.batches)
    held_out = choose_held_out(data.test, found, shown, tuple(labels), most)
    remedy = "Give other texts with --test, or take more memory."
    with naming_the_option(LIKELIHOOD, remedy), enough_memory():
        figures = Measurement(run, 1, held_out, partial(watch, "Held-out likelihood")).figures()
    assert named.digest is not None, "a run that names no model is not rebuilt"
    return HeldOutLikelihood(
        model=Encoder(
            name=named.name, digest=named.digest, max_tokens=manifest.decoding.max_tokens
        ),
        texts=summary_of(
            [Record(label, text) for label, texts in held_out.texts.items() for text in texts]
        ),
        left_out=held_out.left_out,
        **figures,
    )


@contextmanager
def naming_the_option(option: str, remedy: str) -> Iterator[None]:
    """Speak of the option in an error about a replay or a config's fields.

    A run no longer has these fields.
    """
    try:
        yield
    except InputError as error:
        problem = f"{error.where}: {error.problem}"
        remedy = f"{remedy} Without this option all else is measured."
        raise InputError(option, problem, remedy) from None


@contextmanager
def enough_memory() -> Iterator[None]:
    """Raise InputError where memory runs out inside."""
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        remedy = "Use bfloat16 or a smaller model, or shorter prompts."
        raise InputError("model", "memory is too small for one batch's contexts.", remedy) from None


class Measurement:
    """All texts in the first batches of each label, of a config or of a run."""

    def __init__(
        self,
        run: RunParts,
        batches: int,
        held_out: HeldOut,
        watch: Watch,
        *,
        charge: bool = False,
    ) -> None:
        """Prepare to give texts to the first `batches` of each label; `charge` for their tokens."""
        self._manifest, self._prompts, self._held_out, self._watch = (
            run.manifest,
            run.prompts,
            held_out,
            watch,
        )
        self._chosen: dict[str, list[Batch]] = defaultdict(list)
        for batch in run.batches[: run.manifest.batching.per_round]:
            self._chosen[batch.label] += [batch] * (len(self._chosen[batch.label]) < batches)
        self._mechanism = run.manifest.mechanism
        self._head = Head.of(run.model.network) if self._mechanism.over_support else None
        self._most = run.manifest.decoding.max_tokens
        # An accountant for every number that a text has within its label: a run writes one text
        # from a batch.
        change = run.manifest.privacy.change(run.manifest.batching.rule)
        numbers = max(map(len, held_out.texts.values()))
        bounded = (
            charge
            and change is not None
            and self._mechanism.bounds(change, run.manifest.record.width)
        )
        self._accountants: list[ExPostAccountant] = []
        if bounded:
            self._accountants = [ExPostAccountant(self._mechanism, change) for _ in range(numbers)]
        self._sums: list[Doubles] = []

    def sums(self) -> Doubles:
        """Measure all texts, and return a row for each, by labels.

        Columns are nats by the aggregates, nats by the public prompt alone, supported tokens, and
        tokens.
        """
        texts = {label: self._public_side(label) for label in self._chosen}
        passes = sum(
            len(text.places)
            for label, found in texts.items()
            for text in found
            for _ in self._chosen[label]
        )
        done = 0
        for label, found in texts.items():
            sums = np.zeros((len(found), 4))
            for batch in self._chosen[label]:
                rows = max(1, len(batch.contexts))
                private = self._prompts.alone(label, batch.contexts, rows, self._most, self._head)
                for number, text in enumerate(found):
                    budgets = Budgets(self._mechanism, batch.budgets)
                    for going, place, counts in _prompts_along(private, text):
                        added = self._step(going, place, budgets, batch.id, number)
                        if counts:
                            sums[number] += added
                        done += 1
                        self._watch(done, passes)
            self._sums.extend(sums)
        return np.array(self._sums)

    def figures(self) -> dict[str, Any]:
        """Measure all texts, and return the figures of any result.

        These are tokens, and means over the supported ones.
        """
        nats, alone, supported, tokens = self.sums().T
        if not tokens.any():
            problem = f"this is {self._most}, and what leads up to a text takes as many."
            raise InputError("decoding.max_tokens", problem, "Raise it.")
        if not supported.any():
            remedy = "Take a larger support, or other held-out texts."
            raise InputError("mechanism.support", "it has no token of the held-out texts.", remedy)
        if not np.max([nats, alone]) < -MASKED:  # NaN is below nothing
            problem = "it has a token of the held-out texts that the model rules out."
            raise InputError(
                "mechanism.support", problem, "Take a smaller support, or other held-out texts."
            )
        return {
            "tokens": int(tokens.sum()),
            "supported": int(supported.sum()),
            "nll": per_token(nats, supported),
            "public_nll": per_token(alone, supported),
            "gain": per_token(alone - nats, supported),
        }

    def _public_side(self, label: str) -> list[_Text]:
        """Return texts of a label with all that is public about them, the same for every batch."""
        public = self._prompts.public(label, self._most)
        return [
            _read(public, self._prompts, self._manifest, label, text, self._most)
            for text in self._held_out.texts[label]
        ]

    def _step(
        self, going: CachedPrompts, place: _Place, budgets: Budgets, batch: int, number: int
    ) -> Doubles:
        """Return what one token adds to a text's sums, and charge for it."""
        if place.column is None:
            return np.array([0.0, 0.0, 0.0, 1.0])
        with _usable_logits():
            arrays = self._arrays(going, place.public, budgets)
        aggregate = self._mechanism.aggregate(arrays)
        for accountant in self._accountants[number : number + 1]:
            reduced = self._mechanism.reduced(arrays, place.column, aggregate=aggregate)
            accountant.charge(batch, reduced)
        nats = log_probability(aggregate, place.column, self._mechanism.temperature)
        return np.array([-nats, -place.alone, 1.0, 1.0])

    def _arrays(self, going: CachedPrompts, public: PublicPart, budgets: Budgets) -> Arrays:
        """Return a step as `dpaudit.generation.worker` aggregates it."""
        logits, taken = logits_for(going, public, self._mechanism)
        return aggregated(
            budgets.paying(logits, taken), taken, self._mechanism, self._manifest.record.width
        )

    @property
    def batches(self) -> list[Batch]:
        """The batches that texts were given to."""
        return [batch for found in self._chosen.values() for batch in found]

    @property
    def texts(self) -> int:
        """The number of texts that were given to batches."""
        return len(self._sums)

    @property
    def most_expensive(self) -> float | None:
        """Return the texts' largest ex-post epsilon in nats, or None if nothing bounds it.

        All texts must have been given, and charged for.
        """
        return max((accountant.epsilon for accountant in self._accountants), default=None)


def per_token(sums: Doubles, tokens: Doubles) -> PerToken:
    """Return the mean over all tokens of texts.

    It is from each text's sum [n] and number of tokens [n], one of them positive. The standard
    error is that of a ratio of sums over independent texts (Cochran, "Sampling Techniques", section
    6.4).
    """
    mean, n = float(sums.sum() / tokens.sum()), len(sums)
    if n < 2:
        return PerToken(mean=mean, error=None)
    spread = float(((sums - mean * tokens) ** 2).sum())
    return PerToken(mean=mean, error=math.sqrt(n / (n - 1) * spread) / float(tokens.sum()))


def _read(
    public: CachedPrompts, prompts: Prompts, manifest: Manifest, label: str, text: str, most: int
) -> _Text:
    """Take a text's places from the public prompt of its label."""
    mechanism, ruled = manifest.mechanism, manifest.decoding.any
    tokens, lead = prompts.continuation(label, text, most)
    bare = _Text(tuple(_Place(token, NOTHING_PUBLIC, None, math.nan) for token in tokens), lead)
    places: list[_Place] = []
    for going, place, _ in _prompts_along(public, bare):
        logits, token = next_logits(going)[0], place.token
        with _usable_logits():
            part = NOTHING_PUBLIC
            if manifest.needs_public:
                part = mechanism.public_part(logits, ruled)
        kept, column = logits, token
        if part.support is not None:
            kept, column = logits[part.support], int(np.searchsorted(part.support, token))
            if column == len(part.support) or part.support[column] != token:
                places.append(_Place(token, part, None, math.nan))
                continue
        places.append(
            _Place(token, part, column, log_probability(kept, column, mechanism.temperature))
        )
    return _Text(tuple(places), lead)


def _prompts_along(
    prompts: CachedPrompts, text: _Text
) -> Iterator[tuple[CachedPrompts, _Place, bool]]:
    """Yield the prompts before a text's place, the place, and whether it is the text's own."""
    going = prompts.fork()
    for position, place in enumerate(text.places):
        if position:
            going.append(text.places[position - 1].token)
        yield going, place, position >= text.lead


@contextmanager
def _usable_logits() -> Iterator[None]:
    """Turn an error for logits that are no numbers into InputError."""
    try:
        yield
    except ValueError as error:
        raise InputError("model", f"{error}.", UNUSABLE_LOGITS) from None
