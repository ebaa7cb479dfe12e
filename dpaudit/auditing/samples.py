"""The released texts for readers inside, with the cost of each of their tokens."""

from __future__ import annotations

import codecs
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from dpaudit.auditing.checks.evidence import BatchEvidence, Evidence
from dpaudit.auditing.checks.steps import BatchView, StepsView
from dpaudit.results import (
    ALL_SAMPLES_LENGTH,
    SAMPLE_LENGTH,
    Alternative,
    ExpensiveToken,
    SampleText,
    TokenCosts,
)
from dpaudit.results.rows import Rows
from dpaudit.runs import InputError, RunReader, Sample, Vocabulary, as_released, without_stop

#: So many tokens' costs are kept, of the costliest batches.
MOST_TOKENS = 200_000
#: So many of them, the most expensive, are told in full.
MOST_DEAR = 3_000
#: Characters of a token's text.
_LONGEST = 40


#: How many others of a step's most probable tokens are noted.
ALTERNATIVES = 3


class BatchTokens(BatchEvidence):
    """A batch's tokens, their costs and their alternatives, a row for each of its T steps.

    Attributes:
        lengths: how many of the tokens each of its texts has.
        tokens: int32 [T] ids.
        costs: float64 [T, 3] exact cost, rise and fall, in nats; infinite if nothing bounds
            them.
        probabilities: float64 [T] of the sampled token, by the record; NaN where it has none.
        others: int32 [T, ALTERNATIVES] the most probable other tokens, likeliest first.
        likely: float64 [T, ALTERNATIVES] their probabilities; NaN where there is no such token.
    """

    def __init__(self, batch: BatchView) -> None:
        self.lengths = [len(span) for span in batch.record.spans]
        self.tokens = tokens = batch.tokens
        self.costs = np.full((len(tokens), 3), math.inf)
        self.probabilities = np.full(len(tokens), math.nan)
        self.others = np.zeros((len(tokens), ALTERNATIVES), dtype=np.int32)
        self.likely = np.full((len(tokens), ALTERNATIVES), math.nan)

    @override
    def look(self, view: StepsView) -> None:
        steps = slice(view.positions.start, view.positions.stop)
        exact = np.maximum(view.costs[:, 1], view.costs[:, 2])
        costs = np.stack([exact, view.costs[:, 1], view.costs[:, 2]], axis=-1)
        self.costs[steps] = np.where(np.isnan(costs), math.inf, costs)
        if view.log_probabilities is not None:
            found = view.shared(_likely)
            self.probabilities[steps] = found[0]
            self.likely[steps] = found[1 : ALTERNATIVES + 1].T
            self.others[steps] = found[ALTERNATIVES + 1 :].T


def _likely(view: StepsView) -> NDArray[np.float64]:
    """Return [1 + 2 * ALTERNATIVES, k] probabilities of each step's token and of others.

    Then ids of these others.
    """
    logarithms = view.log_probabilities
    assert logarithms is not None, "its caller has looked"
    found = np.full((1 + 2 * ALTERNATIVES, len(view)), math.nan)
    found[0] = [math.exp(min(each, 0.0)) for each in logarithms.tolist()]
    spans, rows = view.spans, np.arange(len(view))
    scores = spans.padded(view.aggregate.astype(np.float64), -math.inf)
    own = view.columns - spans.starts
    sampled = scores[rows, own]
    scores[rows, own] = -math.inf
    for place in range(ALTERNATIVES):
        best = scores.argmax(axis=-1)
        beyond = (scores[rows, best] - sampled) / view.mechanism.temperature
        scores[rows, best] = -math.inf
        there = spans.lengths > place + 1
        ids = np.where(there, best, 0)
        if view.support is not None:
            ids = np.where(there, view.support[ids + spans.starts], 0)
        found[1 + ALTERNATIVES + place] = ids
        likely = np.minimum(np.exp(logarithms + beyond), 1.0)
        found[1 + place] = np.where(there, likely, math.nan)
    return found


class ExpensiveTokens(Evidence):
    """Costs of a run's tokens, batch by batch: only of the costliest if batches are too many."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, BatchTokens]] = []
        self._count = 0

    @override
    @classmethod
    def open(cls, batch: BatchView) -> BatchEvidence | None:
        # What a text's tokens cost is shown on the text.
        said = any(sample.text is not None for sample in batch.samples)
        told = batch.accountant is not None and batch.run.decode is not None and said
        return BatchTokens(batch) if told else None

    @override
    def merge(self, batch: int, found: BatchTokens) -> None:
        found.costs[np.isnan(found.costs)] = math.inf  # what is no number bounds nothing
        heapq.heappush(self._kept, (float(found.costs[:, 0].sum()), -batch, found))
        self._count += len(found.tokens)
        while self._count > MOST_TOKENS:
            self._count -= len(heapq.heappop(self._kept)[2].tokens)

    def kept(self) -> dict[int, BatchTokens]:
        """Return what was kept, by batch."""
        return {-id_: found for _, id_, found in self._kept}


def released_texts(reader: RunReader, expensive: ExpensiveTokens) -> Sequence[SampleText]:
    """Return the texts of samples.jsonl in order, up to ALL_SAMPLES_LENGTH characters.

    They are those of the file, whether or not they are what was sampled: the check release.text
    tells. Empty if the file cannot be read.
    """
    samples: Iterable[Sample] = _beginnings(reader.samples())
    try:
        kept = expensive.kept()
        if kept:  # which texts' tokens are told in full, all of them say
            samples = list(samples)
        costs = _Costs(reader, kept, samples if kept else ())
        shown = (
            SampleText(
                batch=sample.id,
                number=sample.number,
                label=sample.label,
                text=None if sample.text is None else sample.text[:SAMPLE_LENGTH],
                characters=len(sample.text or ""),
                tokens=len(sample.tokens),
                costs=costs.of(sample),
            )
            for sample in samples
        )
        return Rows(SampleText, shown)
    except InputError:  # integrity.format and release.text say what is wrong with the file
        return ()


def _beginnings(samples: Iterator[Sample]) -> Iterator[Sample]:
    """Yield the first texts, as many as a result holds."""
    left = ALL_SAMPLES_LENGTH
    for sample in samples:
        left -= min(len(sample.text or ""), SAMPLE_LENGTH) + 1  # a text of nothing takes room, too
        if left < 0:
            return
        yield sample


class _Costs:
    """Costs of samples' tokens, if the record has these very tokens and they spell the text."""

    def __init__(
        self, reader: RunReader, kept: Mapping[int, BatchTokens], samples: Iterable[Sample]
    ) -> None:
        self._kept, self._sequences = kept, reader.manifest.decoding.sequences
        self._vocabulary: Vocabulary | None = None
        with suppress(InputError):  # integrity.format says why
            self._vocabulary = reader.tokenizer()
        spans = {
            (sample.id, sample.number): span
            for sample in samples
            if (span := self._span(sample)) is not None
        }
        flat = np.concatenate(
            [np.zeros(0), *(self._kept[id_].costs[span, 0] for (id_, _), span in spans.items())]
        )
        told = np.zeros(len(flat), dtype=bool)
        told[np.argsort(-flat, kind="stable")[:MOST_DEAR]] = True
        starts = accumulate((len(span) for span in spans.values()), initial=0)
        #: Of each text: where its tokens stand in its batch, and [tokens] which of them are told in
        #: full.
        self._texts = {
            key: (span, told[start : start + len(span)])
            for (key, span), start in zip(spans.items(), starts, strict=False)
        }

    def of(self, sample: Sample) -> TokenCosts | None:
        """Return the cost of a sample's tokens."""
        if (
            (sample.id, sample.number) not in self._texts
            or self._vocabulary is None
            or sample.text is None
        ):
            return None
        span, told = self._texts[sample.id, sample.number]
        kept = without_stop(sample.tokens, self._sequences)
        ends = _ends(kept, sample.text, self._vocabulary.piece)
        if ends is None:
            return None
        ends += [len(sample.text)] * (len(sample.tokens) - len(kept))
        ends = [end for end in ends if end <= SAMPLE_LENGTH]
        exact = self._kept[sample.id].costs[span, 0][: len(ends)]
        most_expensive = [at for at in np.argsort(-exact, kind="stable").tolist() if told[at]]
        return TokenCosts(
            ends=tuple(ends),
            exact=tuple(exact.tolist()),
            most_expensive=tuple(
                self._in_full(sample, span.start, at, ends) for at in most_expensive
            ),
        )

    def _span(self, sample: Sample) -> range | None:
        """Return the place of a sample's tokens in its batch.

        Return None if other tokens are there, or nothing is known of them.
        """
        batch = self._kept.get(sample.id)
        if batch is None or sample.number >= len(batch.lengths):
            return None
        start = sum(batch.lengths[: sample.number])
        span = range(start, start + batch.lengths[sample.number])
        return span if batch.tokens[span].tolist() == list(sample.tokens) else None

    def _in_full(self, sample: Sample, start: int, at: int, ends: Sequence[int]) -> ExpensiveToken:
        found = self._kept[sample.id]
        exact, rise, fall = found.costs[start + at].tolist()
        others = zip(
            found.others[start + at].tolist(), found.likely[start + at].tolist(), strict=True
        )
        return ExpensiveToken(
            at=at,
            text=(sample.text or "")[ends[at - 1] if at else 0 : ends[at]][:_LONGEST],
            exact=exact,
            rise=rise,
            fall=fall,
            probability=float(found.probabilities[start + at]),
            likeliest=tuple(
                Alternative(text=self._said(token), probability=probability)
                for token, probability in others
                if not math.isnan(probability)
            ),
        )

    def _said(self, token: int) -> str:
        """Return the text of another token; a special one by its name."""
        if self._vocabulary is None:
            return ""
        piece = (self._vocabulary.piece(token) or b"").decode("utf-8", "replace")
        return (piece or self._vocabulary.tokens.get(token, f"token {token}"))[:_LONGEST]


def _ends(
    tokens: Sequence[int], text: str, piece: Callable[[int], bytes | None]
) -> list[int] | None:
    """Return where each token ends in the text, in characters; None if they do not spell it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    said, ends = "", []
    for place, token in enumerate(tokens, start=1):
        found = piece(token)
        if found is None:
            return None
        said += decoder.decode(found, final=place == len(tokens))
        ends.append(len(said))
    # Decoders take a blank off the beginning, and a released text has no white space around it.
    if as_released(said) != text:
        return None
    lead = len(said) - len(said.lstrip())
    return [min(max(0, end - lead), len(text)) for end in ends]
