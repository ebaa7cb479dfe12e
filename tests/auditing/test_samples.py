"""Which released texts a result shows, how much of them, and what their tokens cost."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dpaudit.api.reading import open_run
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.results import SAMPLE_LENGTH, VERY_SHORT, TextCounts
from dpaudit.runs import RunReader, without_stop

EXAMPLE = Path(__file__).parents[2] / "examples/runs/bbc-median"


def rewrite(run, number: int, **fields) -> None:
    """Changes one line of samples.jsonl."""
    lines = (run / "samples.jsonl").read_text("utf-8").splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | fields, ensure_ascii=False)
    (run / "samples.jsonl").write_text("\n".join([*lines, ""]), "utf-8")


def test_every_text_is_shown_as_released_with_what_its_tokens_cost(make_run):
    run = make_run(sizes=(3, 20, 5))
    result, reader = run.audit(), RunReader(run.path)
    released = list(reader.samples())
    assert [(shown.batch, shown.number) for shown in result.samples] == [
        (each.id, each.number) for each in released
    ]
    for shown, sample, batch in zip(result.samples, released, result.batches, strict=True):
        assert (shown.text, shown.label, shown.tokens) == (
            sample.text,
            sample.label,
            len(sample.tokens),
        )
        costs, steps = shown.costs, open_run(run.path).batches[batch.id].costs
        assert costs.exact == tuple(step.exact for step in steps)
        assert costs.ends[-1] == len(sample.text)
        kept = without_stop(sample.tokens, reader.manifest.decoding.sequences)
        decode = reader.decoder(special=False)
        spelt = [decode(kept[: place + 1]) for place in range(len(kept))]
        assert [sample.text[:end] for end in costs.ends[: len(kept)]] == spelt
        assert [token.exact for token in costs.most_expensive] == sorted(costs.exact, reverse=True)
        for token in costs.most_expensive:
            step = steps[token.at]
            assert (token.rise, token.fall) == (step.rise, step.fall)
            assert token.probability == pytest.approx(math.exp(step.log_probability), rel=1e-5)


def test_the_likeliest_others_are_those_of_the_step(make_run):
    run = make_run(sizes=(4, 5))
    for shown in run.audit().samples:
        for token in shown.costs.most_expensive:
            step = open_run(run.path).batches[shown.batch].steps[token.at]
            others = [other for other in step.top(10) if other.token != step.sampled.token][:3]
            assert [other.text.strip() for other in token.likeliest] == [
                other.text for other in others
            ]
            for told, other in zip(token.likeliest, others, strict=True):
                assert told.probability == pytest.approx(other.probability, rel=1e-5)


def test_texts_of_one_batch_have_their_own_tokens(make_run):
    run = make_run(sizes=(6, 7), tokens_per_batch=9)
    shown = [sample for sample in run.audit().samples if sample.batch == 0]
    steps = open_run(run.path).batches[0].costs
    assert len(shown) > 1
    assert [cost for sample in shown for cost in sample.costs.exact] == [
        step.exact for step in steps
    ]


def test_a_text_that_its_tokens_do_not_spell_has_no_costs(make_run):
    run = make_run(sizes=(4, 5))
    rewrite(run, 0, text="Something else.")
    rewrite(run, 1, tokens=[0, 0, 0])
    assert [shown.costs for shown in run.audit().samples] == [None, None]


def test_only_so_many_tokens_are_told_of(make_run, monkeypatch):
    run = make_run(sizes=(4, 5, 6))
    everything = run.audit()
    costs = sorted(
        (cost for shown in everything.samples for cost in shown.costs.exact), reverse=True
    )
    monkeypatch.setattr("dpaudit.auditing.samples.MOST_DEAR", 3)
    told = [token.exact for shown in run.audit().samples for token in shown.costs.most_expensive]
    assert sorted(told, reverse=True) == costs[:3]
    lengths = {shown.batch: shown.tokens for shown in everything.samples}
    costliest = max(everything.batches, key=lambda batch: batch.exact).id
    monkeypatch.setattr("dpaudit.auditing.samples.MOST_TOKENS", lengths[costliest])
    assert [shown.batch for shown in run.audit().samples if shown.costs is not None] == [costliest]


def test_only_so_many_texts_are_shown(make_run, monkeypatch):
    run = make_run(sizes=(4, 5, 6))
    monkeypatch.setattr(
        "dpaudit.auditing.samples.ALL_SAMPLES_LENGTH", len(run.audit().samples[0].text) + 1
    )
    assert [shown.batch for shown in run.audit().samples] == [0]


def test_a_long_text_is_cut_and_says_how_long_it_is(make_run):
    run = make_run(sizes=(4, 5))
    rewrite(run, 0, text="word " * 10_000)
    shown = next(shown for shown in run.audit().samples if shown.batch == 0)
    assert shown.text == ("word " * 10_000)[:SAMPLE_LENGTH]
    assert shown.characters == 50_000


def test_a_run_without_texts_has_samples_without_texts(make_run):
    run = make_run(sizes=(4, 5))
    for number in (0, 1):
        rewrite(run, number, text=None)
    assert {(shown.text, shown.characters) for shown in run.audit().samples} == {(None, 0)}


def test_samples_that_cannot_be_read_are_not_shown(make_run):
    for content in [b"", b"{}\n", b'{"id": "', b"\xff\xfe\n", None]:
        run = make_run(sizes=(4, 5))
        (run / "samples.jsonl").unlink()
        if content is not None:
            (run / "samples.jsonl").write_bytes(content)
        result = run.audit()
        assert result.verdict != "pass"
        assert result.samples == ()


def test_an_unreadable_run_has_none(tmp_path):
    assert audit_run(tmp_path).samples == ()


def test_empty_and_very_short_texts_are_counted(make_run):
    found = set()
    for fields in (
        {},
        {"sizes": (3, 20, 5, 9, 30)},
        {"max_tokens": 2},
        {"max_tokens": 12, "sizes": (1, 2, 3, 4)},
    ):
        run = make_run(**fields)
        reader = RunReader(run.path)
        ends = reader.manifest.decoding.sequences
        texts = [(sample.text, without_stop(sample.tokens, ends)) for sample in reader.samples()]
        empty = [
            text for text, tokens in texts if (not tokens if text is None else not text.strip())
        ]
        short = [text for text, tokens in texts if text not in empty and len(tokens) < VERY_SHORT]
        released = run.audit().released
        assert (released.texts, released.empty) == (len(texts), len(empty))
        assert released.very_short == len(short)
        found |= {bool(empty), bool(short)}
    assert found == {True, False}
    assert public_form(run.audit()).released is None


def test_the_examples_empty_texts_are_counted():
    # Two are a line break and the end mark. Others are headings, dates, and letters with dots.
    released = audit_run(EXAMPLE).released
    assert released == TextCounts(texts=10, empty=2, very_short=0, digits=2, lists=1)
    assert released.nothing == 5


def test_white_space_around_a_text_is_not_released(make_run):
    """The sampled tokens stay, and each keeps its place in what is left of the text."""
    samples = {sample.id: sample for sample in RunReader(EXAMPLE).samples()}
    decode = RunReader(EXAMPLE).decoder(special=False)
    shown = {sample.batch: sample for sample in audit_run(EXAMPLE).samples}
    ends = RunReader(EXAMPLE).manifest.decoding.sequences
    for batch, sample in samples.items():
        kept = without_stop(sample.tokens, ends)
        assert decode(kept).startswith("\n")
        assert sample.text == decode(kept).strip()
        places = (0, *shown[batch].costs.ends)
        assert list(places) == sorted(places)
        assert places[-1] == len(sample.text)
