"""Which texts are compared, trained on and tested on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from dpaudit.generation.evaluation.texts import (
    RealData,
    as_many,
    corpus_of,
    distinct_texts,
    hash_fraction,
    normalized_text,
    own_records,
    read_real,
    read_synthetic,
    subsample,
    summary_of,
)
from dpaudit.generation.records import Record
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.layout import SAMPLES

Run = Any


def records(count: int, labels: str = "ab") -> tuple[Record, ...]:
    return tuple(
        Record(labels[number % len(labels)], f"Text number {number}") for number in range(count)
    )


@pytest.fixture
def manifest(make_run: Callable[..., Run]) -> Any:
    return RunReader(make_run().path).manifest


def test_a_share_is_held_out_and_never_trained_on(manifest: Any) -> None:
    corpus = corpus_of(manifest.data.groups, records(5), records(400), None, share=0.25, seed=0)
    assert set(corpus.test) | set(corpus.train) == set(corpus.reference)
    assert not {normalized_text(r.text) for r in corpus.test} & {
        normalized_text(r.text) for r in (*corpus.train, *corpus.trainable)
    }
    assert 60 < len(corpus.test) < 140
    assert (
        corpus.held_out is not None
        and corpus.held_out.origin == "split"
        and corpus.held_out.dropped_real == 0
    )
    again = corpus_of(manifest.data.groups, records(5), records(500), None, share=0.25, seed=0)
    assert set(corpus.test) <= set(again.test)  # a text's side depends on that text alone
    assert (
        corpus_of(manifest.data.groups, records(5), records(400), None, share=0.25, seed=1).test
        != corpus.test
    )


def test_doubles_of_test_texts_are_not_trained_on(manifest: Any) -> None:
    reference = (*records(10), Record("a", "  A double\nof a test text"))
    synthetic = (*records(4), Record("b", "a DOUBLE of a test text"))
    test = (Record("b", "A double of a Test text"), Record("a", "another"))
    corpus = corpus_of(manifest.data.groups, synthetic, reference, test, share=0.2, seed=0)
    assert corpus.train == records(10) and corpus.trainable == records(4) and corpus.test == test
    # MAUVE is of all of them
    assert corpus.synthetic == synthetic and corpus.reference == reference
    held = corpus.held_out
    assert held is not None and (held.origin, held.share) == ("file", None)
    assert (held.dropped_real, held.dropped_synthetic, held.test.texts) == (1, 1, 2)


def test_nothing_left_to_train_or_test_on(manifest: Any) -> None:
    with pytest.raises(InputError, match=r"^--test: .*--reference .* to train on"):
        corpus_of(manifest.data.groups, records(3), records(4), records(9), share=0.2, seed=0)
    for reference, test, empty in (((), None, "--reference"), (records(4), (), "--test")):
        with pytest.raises(InputError, match=f"^{empty}: .* no record in"):
            corpus_of(manifest.data.groups, records(3), reference, test, share=0.2, seed=0)
    with pytest.raises(InputError, match=r"^--reference: .* to test on"):
        corpus_of(manifest.data.groups, records(3), records(4), None, share=1e-9, seed=0)


@limits(max_examples=30)
@given(st.lists(st.integers(0, 99), unique=True, max_size=40), st.integers(1, 50))
def test_a_limit_keeps_the_same_texts_whatever_else_there_is(numbers: list[int], most: int) -> None:
    found = tuple(Record("a", str(number)) for number in sorted(numbers))
    kept = subsample(found, most, 0)
    assert (
        len(kept) == min(most, len(found))
        and set(kept) <= set(found)
        and list(kept) == sorted(kept, key=found.index)
    )
    assert set(subsample(found, most - 1, 0)) <= set(kept)


@limits(max_examples=30)
@given(st.text(), st.integers(0, 2**31 - 1))
def test_places_are_shares_and_purposes_differ(text: str, seed: int) -> None:
    assert 0 <= hash_fraction(text, seed, b"test") < 1
    assert hash_fraction(text, seed, b"test") != hash_fraction(text, seed, b"kept")
    assert hash_fraction(f" {text}\n", seed, b"test") == hash_fraction(text, seed, b"test")


def test_digests_tell_sets_apart() -> None:
    one = summary_of((Record("a", "bc"), Record("a", "bc")))
    assert (one.texts, one.distinct) == (2, 1)
    digests = {
        summary_of(found).digest
        for found in ((Record("ab", "c"),), (Record("a", "bc"),), (), records(2))
    }
    assert len(digests) == 4


def test_the_runs_own_records_are_counted_one_by_one(
    make_run: Callable[..., Run], make_own: Callable[..., None]
) -> None:
    run, found = make_run(), records(30)
    make_own(run, found)
    own = own_records(RunReader(run.path))
    assert own is not None
    others = (
        Record("a", "another"),
        Record("b", found[0].text),
        Record("a", found[2].text.upper()),
    )
    assert own(found) == 30 and own(found[1:]) == 29 and own((*found, *others)) == 31
    assert own(others) == 1  # whatever its label, and letter by letter
    (run / "assignment").write_text((run / "assignment").read_text()[: 70 * 5])
    assert own_records(RunReader(run.path)) is None  # not what data.digest is of
    (run / "assignment").unlink()
    assert own_records(RunReader(run.path)) is None


def test_doubles_count_once_up_to_case_and_white_space() -> None:
    found = (
        Record("a", "One  text"),
        Record("b", "one text"),
        Record("a", "two"),
        Record("a", "two"),
    )
    assert distinct_texts(found) == (found[0], found[2])


def test_texts_of_a_run(make_run: Callable[..., Run]) -> None:
    found, label_lines = read_synthetic(RunReader(make_run().path))
    assert [record.label for record in found] == ["a", "b"] and label_lines == 0
    with pytest.raises(InputError, match="token ids, without"):
        read_synthetic(RunReader(make_run(text=False).path))


def test_a_first_line_that_is_the_label_is_not_measured(make_run: Callable[..., Run]) -> None:
    """A classifier would read the answer there."""
    for text, measured in [
        ("a\nstory", "story"),
        ("\n a \n\nstory", "\nstory"),
        ("a", ""),
        ("a\na\nstory", "story"),
        ("a\n\n a\na", ""),
        ("a story", "a story"),
        ("b\nstory", "b\nstory"),
        ("story\na\n", "story\na\n"),
        ("", ""),
    ]:
        run = make_run()
        lines = [json.loads(line) for line in (run.path / SAMPLES).read_text().splitlines()]
        lines[0]["text"] = text
        (run.path / SAMPLES).write_text("".join(json.dumps(line) + "\n" for line in lines))
        found, label_lines = read_synthetic(RunReader(run.path))
        assert found[0] == Record("a", measured) and label_lines == (text != measured)


def test_columns_and_labels(manifest: Any, tmp_path: Path) -> None:
    file = tmp_path / "real.csv"
    file.write_text("topic,body\na,one secret\nb,two secret\na,one secret\n")
    found = read_real(manifest, str(file), "--reference", RealData("", text="body", label="topic"))
    assert found == (Record("a", "one secret"), Record("b", "two secret"))
    with pytest.raises(InputError, match="--text") as raised:
        read_real(manifest, str(file), "--reference", RealData("", label="topic"))
    assert "data." not in str(raised.value)
    file.write_text("label,text\nc,one secret\n")
    with pytest.raises(InputError, match="the run's labels") as raised:
        read_real(manifest, str(file), "--reference", RealData(""))
    assert "secret" not in str(raised.value)
    with pytest.raises(InputError, match="--test"):
        read_real(manifest, str(tmp_path / "none.csv"), "--test", RealData(""))


def test_the_runs_own_file_is_read_as_the_run_read_it(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    """And no remedy says what only a config could: an evaluation has no option for it."""
    run, file = make_run(), tmp_path / "real.csv"
    run.edit_manifest({"data.encoding": "cp1252", "data.delimiter": "^"})
    manifest = RunReader(run.path).manifest
    file.write_text("text^label\nGrüße^a\n", encoding="cp1252")
    assert read_real(manifest, str(file), "--reference", RealData("")) == (Record("a", "Grüße"),)
    with pytest.raises(InputError, match=r"not UTF-8 text\..* to UTF-8\.$"):
        read_real(manifest, str(file), "--test", RealData(""))
    run.edit_manifest({"data.label_values": ["1", "2"]})
    for content, said in (
        (
            "text,label\none,3\n",
            "the label is not in the run's labels. Mend or leave out all such rows, each by "
            "itself.$",
        ),
        (
            "text,label\none,\n",
            "the value is missing. Fill in or leave out all such rows, each by itself, or name "
            "another",
        ),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=said):
            read_real(RunReader(run.path).manifest, str(file), "--test", RealData(""))


def test_other_columns_of_the_test_texts_are_told_as_theirs(manifest: Any, tmp_path: Path) -> None:
    file = tmp_path / "held-out.csv"
    file.write_text("kind,body\nsport,A text.\n")
    data = RealData(str(file), str(file))
    for setting, remedy in (
        ("--test", "Rename its columns"),
        ("--reference", "Name one of its 2 columns"),
    ):
        with pytest.raises(InputError, match="there is no such column") as error:
            read_real(manifest, str(file), setting, data)
        assert str(file) in str(error.value) and remedy in str(error.value)


def test_a_run_without_labels_reads_texts_alone(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = make_run()
    run.edit_manifest(
        {
            "data.labels": None,
            "batching.batches_per_label": None,
            "batching.generate_per_label": None,
        }
    )
    file = tmp_path / "real.csv"
    file.write_text("text\none\ntwo\n")
    manifest = RunReader(run.path).manifest
    found = read_real(manifest, str(file), "--reference", RealData(""))
    assert found == (Record("", "one"), Record("", "two"))
    corpus = corpus_of(manifest.data.labels or (), records(2), found, None, share=0.2, seed=0)
    assert corpus.held_out is None and corpus.test == ()


def test_what_may_be_a_path_is_not_asked_for_on_the_hub(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    for name, asked_for in [
        ("fancyzhx/ag_news", ("fancyzhx/ag_news", "train")),
        ("imdb:test[:10%]", ("imdb", "test[:10%]")),
        ("patients/layoffs.csv", None),
        ("layoffs.PARQUET", None),
        ("./layoffs", None),
        ("~/layoffs", None),
        ("/layoffs", None),
        ("a/b/c", None),
        ("folder/layoffs", None),
        ("package:none/layoffs", None),
    ]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            run, asked = make_run(), list[tuple[str, str]]()
            run.edit_manifest({"data.source": "dataset", "data.split": "train"})

            def load_dataset(dataset: str, config: str | None, split: str) -> Any:
                asked.append((dataset, split))
                raise OSError

            monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
            monkeypatch.chdir(tmp_path)
            (tmp_path / "folder").mkdir(exist_ok=True)
            with pytest.raises(InputError, match="--reference"):
                read_real(RunReader(run.path).manifest, name, "--reference", RealData(""))
            assert asked == ([] if asked_for is None else [asked_for])


def test_as_many_texts_of_each_label_as_there_are_others() -> None:
    many = tuple(Record(label, str(number)) for number in range(5) for label in "abc")
    others = (Record("a", "x"), Record("a", "x"), Record("c", "y"), Record("d", "z"))
    assert as_many(many, others) == (Record("a", "0"), Record("c", "0"), Record("a", "1"))
