"""Which released texts a result shows, and how much of them."""

from __future__ import annotations

import json
from pathlib import Path

from dpaudit.audit import audit_run
from dpaudit.audit.disclosure import public_form
from dpaudit.audit.run import shortness
from dpaudit.results import SAMPLE_LENGTH, VERY_SHORT, TextCounts
from dpaudit.runs import RunReader, without_stop

EXAMPLE = Path(__file__).parents[2] / "examples/runs/bbc-median"


def rewrite(run, number: int, **fields) -> None:
    """Changes one line of samples.jsonl."""
    lines = (run / "samples.jsonl").read_text("utf-8").splitlines()
    lines[number] = json.dumps(json.loads(lines[number]) | fields, ensure_ascii=False)
    (run / "samples.jsonl").write_text("\n".join([*lines, ""]), "utf-8")


def test_costliest_middle_and_cheapest_batch_are_shown_as_released(make_run):
    run = make_run(sizes=(3, 20, 5, 9, 30))
    result = run.audit()
    ranked = [batch.id for batch in sorted(result.batches, key=lambda batch: -batch.exact)]
    assert [(shown.batch, shown.chosen) for shown in result.samples] == [
        (ranked[0], "costliest"),
        (ranked[2], "median"),
        (ranked[4], "cheapest"),
    ]
    released = {sample.id: sample for sample in RunReader(run.path).samples()}
    for shown in result.samples:
        sample = released[shown.batch]
        assert (shown.text, shown.label, shown.tokens) == (sample.text, sample.label, len(sample.tokens))


def test_a_batch_is_shown_once(make_run):
    assert [shown.chosen for shown in make_run(sizes=(4,)).audit().samples] == ["costliest"]
    assert len(make_run(sizes=(4, 5)).audit().samples) == 2


def test_a_long_text_is_cut_and_says_how_long_it_is(make_run):
    run = make_run(sizes=(4, 5))
    rewrite(run, 0, text="word " * 1000)
    shown = next(shown for shown in run.audit().samples if shown.batch == 0)
    assert shown.text == ("word " * 1000)[:SAMPLE_LENGTH]
    assert shown.characters == 5000


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
    for fields in ({}, {"sizes": (3, 20, 5, 9, 30)}, {"max_tokens": 2}, {"max_tokens": 12, "sizes": (1, 2, 3, 4)}):
        run = make_run(**fields)
        reader = RunReader(run.path)
        ends = reader.manifest.stopping.sequences
        texts = [(sample.text, without_stop(sample.tokens, ends)) for sample in reader.samples()]
        empty = [text for text, tokens in texts if (not tokens if text is None else not text.strip())]
        short = [text for text, tokens in texts if text not in empty and len(tokens) < VERY_SHORT]
        expected = TextCounts(texts=len(texts), empty=len(empty), very_short=len(short))
        assert run.audit().released == expected
        found |= {bool(empty), bool(short)}
    assert found == {True, False}
    assert public_form(run.audit()).released is None


def test_the_examples_short_text_is_counted():
    assert audit_run(EXAMPLE).released == TextCounts(texts=10, empty=0, very_short=1)


def test_a_text_of_white_space_is_empty_and_not_very_short():
    for text, tokens, said in [
        (" \n", (5,) * 9, "empty"),
        ("", (), "empty"),
        (None, (), "empty"),
        ("A b", (5,) * 4, "very short"),
        (None, (5,), "very short"),
        ("A b", (5,) * 5, ""),
    ]:
        assert shortness(text, tokens) == said
