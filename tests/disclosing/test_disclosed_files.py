"""Any generator's texts against the two lists of one random draw."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from jsonschema import Draft202012Validator

import dpaudit
from dpaudit.commands.cli import main
from dpaudit.disclosing.files import Columns
from dpaudit.disclosing.trial import try_texts
from dpaudit.disclosing.units import units_of_files
from dpaudit.results.disclosed_texts import DisclosedTexts
from dpaudit.results.schemas import json_schema
from dpaudit.runs import InputError

SECRET = "zanzibar"
WORDS = [f"word{number}" for number in range(3000)]
RANDOM = np.random.default_rng(7)


def text(words: int = 20) -> str:
    return " ".join(RANDOM.choice(WORDS, words))


RECORDS = [text() for _ in range(160)]


def table(path: Path, rows: Iterable[Sequence[str]], header: Sequence[str] = ("text",)) -> str:
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.fixture(autouse=True)
def fewer_redraws(monkeypatch):
    """As many as the level needs, and no more."""
    monkeypatch.setitem(try_texts.__kwdefaults__, "draws", 5000)


@pytest.fixture
def lists(tmp_path) -> dict[str, Any]:
    """Two lists of 80 records, as arguments of `dpaudit.disclose`."""
    shown = table(tmp_path / "shown.csv", [[each] for each in RECORDS[:80]])
    held_out = table(tmp_path / "held.csv", [[each] for each in RECORDS[80:]])
    return {"shown": shown, "held_out": held_out, "split_is_random": True, "seed": 3}


def copying(path: Path, records: Iterable[str], times: int = 1) -> str:
    """Texts of which one for each record has twelve words of it, in other letters and marks."""
    copied = [f"{text(8)} ... {' - '.join(each.split()[4:16]).upper()}" for each in records]
    return table(path, [[each] for each in [*copied * times, *(text() for _ in range(20))]])


def test_copies_of_shown_records_are_found_and_refute_a_claim(lists, tmp_path):
    found = dpaudit.disclose(copying(tmp_path / "t.csv", RECORDS[:16]), epsilon=0.2, **lists)
    result = found.result
    assert found.depends and not found.avoids and found.claim_refuted and found.epsilon > 0.5
    assert (result.named[2].shown, result.named[2].held_out, result.named[4].shown) == (16, 0, 0)
    assert result.epsilon.level == "split" and result.coins.p_split is None
    assert [span.shown for span in result.spans] == [True] * 16
    first = result.spans[0]
    assert first.words == 12 and first.text == first.text.upper()
    assert len(found.to_dataframe()) == 16
    with pytest.raises(TypeError):
        bool(found)


def test_copies_of_held_out_records_are_avoidance_and_refute_nothing(lists, tmp_path):
    found = dpaudit.disclose(copying(tmp_path / "t.csv", RECORDS[80:100]), epsilon=0.0, **lists)
    assert found.avoids and not found.depends and not found.claim_refuted and found.epsilon == 0
    assert {span.shown for span in found.result.spans} == {False}


def test_one_record_in_many_texts_is_one_guess(lists, tmp_path):
    found = dpaudit.disclose(copying(tmp_path / "t.csv", RECORDS[:1], times=30), **lists)
    assert found.result.named[0].shown == 1 and not found.depends


def test_which_twin_is_the_unit_does_not_hang_on_its_list(tmp_path):
    """Equal records in both lists: to drop the held-out ones would make all of them shown."""
    shown = table(tmp_path / "a.csv", [[f"{each}!"] for each in RECORDS])
    held_out = table(tmp_path / "b.csv", [[each.upper()] for each in RECORDS])
    texts = table(tmp_path / "t.csv", [[text()]])
    units = units_of_files(
        texts, shown, held_out, Columns(), split_is_random=True, public=(), seed=1
    )
    assert units.twins == len(units.records) == len(RECORDS)
    assert 60 <= units.shown.sum() <= 100


def test_rejects_one_list_given_twice(lists, tmp_path):
    given = lists | {"held_out": lists["shown"]}
    with pytest.raises(InputError) as refused:
        dpaudit.disclose(copying(tmp_path / "t.csv", RECORDS[:1]), **given)
    assert refused.value.where == "--held-out"


def test_rejects_one_column_named_twice(lists, tmp_path):
    with pytest.raises(InputError) as refused:
        dpaudit.disclose(copying(tmp_path / "t.csv", RECORDS[:1]), label="text", **lists)
    assert refused.value.where == "TEXTS" and "column" in refused.value.problem


def test_users_are_units_and_stand_in_one_list(tmp_path):
    header = ("text", "who")
    shown = table(tmp_path / "a.csv", [[RECORDS[n], f"u{n // 2}"] for n in range(40)], header)
    rows = [[RECORDS[n], f"u{n // 2}"] for n in range(40, 80)]
    held_out = table(tmp_path / "b.csv", rows, header)
    given = {"shown": shown, "held_out": held_out, "split_is_random": True, "user": "who"}
    found = dpaudit.disclose(copying(tmp_path / "t.csv", RECORDS[:24]), **given)
    assert found.result.coins.units == 40 and found.result.named[0].shown == 12
    assert found.depends and found.result.epsilon.unit == "user"

    # Spaces do not make another user of one.
    table(tmp_path / "b.csv", [*rows, [RECORDS[90], " u3 "]], header)
    with pytest.raises(InputError) as refused:
        dpaudit.disclose(copying(tmp_path / "t.csv", RECORDS[:1]), **given)
    assert refused.value.where == "--held-out: row 41" and RECORDS[90] not in str(refused.value)


def test_texts_and_records_of_other_labels_are_not_compared(tmp_path):
    header = ("text", "label")
    labelled = [[each, "ab"[n % 2]] for n, each in enumerate(RECORDS)]
    shown = table(tmp_path / "a.csv", labelled[:80], header)
    held_out = table(tmp_path / "b.csv", labelled[80:], header)
    texts = table(tmp_path / "t.csv", [[each, "a"] for each in RECORDS[:30]], header)
    given = {"shown": shown, "held_out": held_out, "split_is_random": True, "label": "label"}
    assert dpaudit.disclose(texts, **given).result.named[0].shown == 15
    strange = table(tmp_path / "s.csv", [[RECORDS[0], "c"]], header)
    with pytest.raises(InputError) as refused:
        dpaudit.disclose(strange, **given)
    assert refused.value.field.endswith("row 1, column 'label'")


def test_coins_of_their_own_and_what_everybody_has(lists, tmp_path):
    texts = copying(tmp_path / "t.csv", RECORDS[:16])
    found = dpaudit.disclose(texts, p=0.5, epsilon=0.2, **lists)
    assert found.result.coins.independent and found.result.coins.p_split > 0.9
    assert found.claim_refuted and found.result.named[0].caused_low >= 8
    public = tmp_path / "public.txt"
    public.write_text("\n".join(RECORDS[:16]))
    assert dpaudit.disclose(texts, public=[str(public)], **lists).result.named[0].shown == 0


def test_names_are_asked_for_and_listed(lists, tmp_path):
    rows = [["Diane  KEATON and 20071984"], ["Nobody Here"]]
    texts = table(tmp_path / "t.csv", rows)
    table(tmp_path / "held.csv", [*([each] for each in RECORDS[80:]), ["so diane keaton said"]])
    names = tmp_path / "names.txt"
    names.write_text("diane keaton\nnobody here\nsomebody else\n")
    found = dpaudit.disclose(texts, ask="Diane Keaton", entities=str(names), **lists).result
    assert (found.asked.shown, found.asked.held_out, found.asked.texts) == (0, 1, 1)
    told = {each.name: (each.given, each.held_out, each.phantom) for each in found.entities}
    assert told == {
        "diane keaton": (True, 1, True),
        "nobody here": (True, 0, True),
        "20071984": (False, 0, True),
    }


def test_scripts_without_spaces_are_counted_by_characters(tmp_path):
    letters = [chr(0x4E00 + number) for number in range(4000)]
    records = ["".join(RANDOM.choice(letters, 90)) for _ in range(60)]
    shown = table(tmp_path / "a.csv", [[each] for each in records[:30]])
    held_out = table(tmp_path / "b.csv", [[each] for each in records[30:]])
    texts = table(tmp_path / "t.csv", [[f"。{each[10:60]}。"] for each in records[:15]])
    given = {"shown": shown, "held_out": held_out, "split_is_random": True}
    assert not dpaudit.disclose(texts, **given).depends
    found = dpaudit.disclose(texts, unit="characters", **given)
    assert found.depends and found.result.epsilon.guesses == 15


def test_tables_and_other_files_are_read_alike(lists, tmp_path):
    texts = copying(tmp_path / "t.csv", RECORDS[:12])
    rows = pd.read_csv(texts)
    (tmp_path / "t.txt").write_text("\n\n".join(rows["text"]), encoding="utf-8-sig")
    rows.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    read = [
        dpaudit.disclose(given, **lists).result.named
        for given in (texts, rows, str(tmp_path / "t.txt"), str(tmp_path / "t.jsonl"))
    ]
    assert all(named == read[0] for named in read)


def test_command_leaves_with_what_it_found(lists, tmp_path, capsys):
    copied, clean = copying(tmp_path / "t.csv", RECORDS[:16]), copying(tmp_path / "c.csv", [])
    options = ["--shown", lists["shown"], "--held-out", lists["held_out"], "-q", "--seed", "3"]

    def code(*arguments: str) -> int:
        with pytest.raises(SystemExit) as left:
            main(["disclose", *arguments, *options])
        return int(left.value.code or 0)

    random = "--split-is-random"
    assert code(copied, random, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    Draft202012Validator(json_schema("trial")).validate(printed)
    assert DisclosedTexts.model_validate(printed).test.depends
    assert code(copied, random, "--expect-nothing") == 1
    assert code(clean, random, "--expect-nothing") == 0
    assert code(copied, random, "--epsilon", "0.2") == 1
    assert code(copied) == 2
    assert "--split-is-random" in capsys.readouterr().err


HOSTILE = {
    "zero bytes": b"text\nzanzibar\0\n",
    "latin": "text\nzanzibar \xe9\n".encode("latin-1"),
    "open quote": b'text\n"zanzibar\n',
    "no column": b"zanzibar\nzanzibar\n",
    "nothing": b"",
    "header alone": b"text\n",
    "blank": b"text\nzanzibar\n \n",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("suffix", ["csv", "txt", "jsonl"])
def test_hostile_files_are_refused_without_a_word_of_them(lists, tmp_path, content, suffix, capsys):
    file = tmp_path / f"hostile.{suffix}"
    file.write_bytes(content)
    texts = copying(tmp_path / "t.csv", [])
    try:
        dpaudit.disclose(texts, **lists | {"shown": str(file)})
    except InputError as refused:
        assert SECRET not in str(refused) and str(refused.remedy)
        assert refused.__cause__ is None
    else:  # lines of anything are texts
        assert suffix == "txt" and content.isascii() and b"\0" not in content
    assert SECRET not in capsys.readouterr().err


def test_a_mistyped_path_of_texts_is_told_first_of_all(tmp_path):
    with pytest.raises(InputError) as refused:
        dpaudit.disclose(tmp_path / "none.csv")
    assert refused.value.where == "TEXTS" and "none.csv" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"split_is_random": False}, "--split-is-random"),
        ({"held_out": None}, "--held-out"),
        ({"data": "records.csv"}, "--shown"),
        ({"level": 0.0}, "--level"),
        ({"p": 1.0}, "--p"),
        ({"epsilon": -1.0}, "--epsilon"),
        ({"delta": 0.1}, "--delta"),
        ({"unit": "letters"}, "--unit"),
        ({"ask": " ?! "}, "--ask"),
        ({"text": "txt"}, None),
        ({"label": "text"}, None),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(lists, tmp_path, given, where):
    with pytest.raises(InputError) as refused:
        dpaudit.disclose(copying(tmp_path / "t.csv", []), **lists | given)
    assert where is None or refused.value.where == where
