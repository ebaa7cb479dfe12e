"""Ends of texts and batches: the audit's rule against a naive one, over every cut of the tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpaudit.auditing.checks.release import stop_problems, text_problems
from dpaudit.results import Finding, Place, Value
from dpaudit.runs import Decoding, RunReader, Sample
from dpaudit.runs.manifest import StopReason

Text = tuple[int, StopReason]
REASONS: tuple[StopReason, ...] = ("end-token", "max-tokens", "budget")


def ended(tokens: Sequence[int], decoding: Decoding) -> list[Text] | None:
    """The texts a generator would write, by length and reason, or None for an incomplete batch.

    A token at a time, as generation goes.
    """
    texts: list[Text] = []
    text: list[int] = []
    for spent, token in enumerate(tokens, start=1):
        if texts and decoding.tokens_per_batch is None:
            return None
        text.append(token)
        reason: StopReason | None = None
        if spent == decoding.tokens_per_batch:
            reason = "budget"
        if len(text) == decoding.max_tokens:
            reason = "max-tokens"
        if any(tuple(text[-len(sequence) :]) == sequence for sequence in decoding.sequences):
            reason = "end-token"
        if reason is not None:
            texts.append((len(text), reason))
            text = []
    whole = not text and decoding.tokens_per_batch in (None, len(tokens))
    return texts if whole else None


def cuts(length: int) -> Iterator[list[int]]:
    """All ways to cut so many tokens into texts, by their lengths."""
    for places in itertools.product((False, True), repeat=length - 1):
        ends = [*(place for place, cut in enumerate(places, start=1) if cut), length]
        yield [end - start for start, end in itertools.pairwise([0, *ends])]


def samples(tokens: Sequence[int], texts: Sequence[Text]) -> list[Sample]:
    left = iter(tokens)
    return [
        Sample(
            id=3,
            number=number,
            label=None,
            cluster=None,
            tokens=tuple(itertools.islice(left, length)),
            text=None,
            stop=stop,
        )
        for number, (length, stop) in enumerate(texts)
    ]


def text(number: int) -> Place:
    return Place(batch=3, text=number)


def ends(reason: str) -> Finding:
    return Finding(code=f"release.ends-{reason}")


sequences = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=2).map(tuple), max_size=2
).map(tuple)


@given(st.data())
def test_only_the_texts_that_the_rule_gives_are_accepted(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=5))
    most = data.draw(st.integers(1, 6))
    budget = data.draw(st.none() | st.integers(most, 7))
    decoding = Decoding(max_tokens=most, sequences=data.draw(sequences), tokens_per_batch=budget)
    expected = ended(tokens, decoding)
    for lengths in cuts(len(tokens)):
        for reasons in itertools.product(REASONS, repeat=len(lengths)):
            texts = list(zip(lengths, reasons, strict=True))
            problems = list(stop_problems(samples(tokens, texts), decoding))
            assert (not problems) == (texts == expected), (tokens, decoding, texts, problems)


@pytest.mark.parametrize(
    ("tokens", "texts", "code", "values"),
    [
        ([0, 9, 0, 0, 0, 0], [(6, "end-token")], "past-end", {"text": text(0)}),
        (
            [0, 0, 0, 9, 0, 0],
            [(3, "end-token"), (1, "end-token"), (2, "budget")],
            "other-end",
            {"text": text(0), "tokens": 3, "stated": ends("end-token"), "found": ends("none")},
        ),
        (
            [0, 0, 0, 0, 9, 0],
            [(5, "end-token"), (1, "budget")],
            "too-long",
            {"tokens": 5, "most": 4},
        ),
        (
            [0, 9, 0, 0, 0, 9],
            [(2, "budget"), (4, "end-token")],
            "other-end",
            {"text": text(0), "stated": ends("budget")},
        ),
        (
            [0, 9, 0, 0, 0, 9],
            [(2, "end-token"), (4, "budget")],
            "other-end",
            {"tokens": 4, "found": ends("end-token")},
        ),
        (
            [0, 9, 0, 0, 0, 0],
            [(2, "end-token"), (4, "budget")],
            "other-end",
            {"tokens": 4, "found": ends("max-tokens")},
        ),
        (
            [0, 9, 0, 0, 0, 0],
            [(2, "max-tokens"), (4, "max-tokens")],
            "other-end",
            {"text": text(0), "stated": ends("max-tokens")},
        ),
        (
            [0, 9, 0, 0, 9],
            [(2, "end-token"), (3, "end-token")],
            "other-length",
            {"batch": Place(batch=3), "tokens": 5, "due": 6},
        ),
    ],
)
def test_what_is_wrong_is_told(
    tokens: list[int], texts: list[Text], code: str, values: dict[str, Value]
) -> None:
    decoding = Decoding(max_tokens=4, sequences=((9,),), tokens_per_batch=6)
    found = list(stop_problems(samples(tokens, texts), decoding))
    assert any(
        each.code == f"release.{code}" and values.items() <= each.values.items() for each in found
    )


def test_a_batch_of_one_text_has_one() -> None:
    found = stop_problems(
        samples([0, 9, 9], [(2, "end-token"), (1, "end-token")]),
        Decoding(max_tokens=4, sequences=((9,),)),
    )
    assert list(found) == [
        Finding(code="release.several-texts", values={"batch": Place(batch=3), "texts": 2})
    ]


def test_a_run_without_labels_releases_none_by_an_empty_name_either(make_run: Any) -> None:
    labelled = RunReader(make_run().path).manifest
    data = labelled.data.model_copy(update={"labels": None})
    for label, codes in (("", ["release.other-label"]), (None, [])):
        sample = Sample(
            id=0, number=0, label=label, cluster=None, tokens=(1,), text=None, stop="max-tokens"
        )
        found = text_problems(sample, None, labelled.model_copy(update={"data": data}))
        assert [finding.code for finding in found] == codes
