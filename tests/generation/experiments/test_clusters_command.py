"""`dpaudit lab clusters` on files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dpaudit.commands.cli import main

Command = Callable[..., int]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Private and public texts: secrets that no output may hold."""
    private, public = tmp_path / "private.csv", tmp_path / "public.csv"
    for path, word, count in ((private, "secret", 60), (public, "public", 40)):
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", "text"])
            writer.writerows(
                ["a", f"{word} {chr(97 + number % 7) * (number % 11)} {number}"]
                for number in range(count)
            )
    return private, public


@pytest.fixture
def command(
    files: tuple[Path, Path], encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.setenv("DPAUDIT_CACHE", str(tmp_path / "cache"))

    def run(*options: str, private: Path = files[0], public: Path = files[1]) -> int:
        arguments = [
            "lab",
            "clusters",
            str(private),
            "--public",
            str(public),
            "--embedding",
            str(encoder_folder),
        ]
        settings = ["--centers", "5", "--keep", "2", "--dimension", "4", "--chang-epsilon", "1"]
        try:
            main([*arguments, *settings, *options])
        except SystemExit as left:
            return int(str(left.code or 0))
        return 0

    return run


def test_the_table_says_that_it_is_internal(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    shown = capsys.readouterr()
    assert "Internal." in shown.out and "V-measure" in shown.out
    assert "secret" not in shown.out + shown.err


def test_three_files_are_written(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--out", str(tmp_path / "out"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["methods"][0]["method"] == found["reference"] == "k-means"
    assert found["records"] == 60 and found["public_records"] == 40
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"clusters.html", "clusters.json", "clusters.csv"}
    assert json.loads((tmp_path / "out" / "clusters.json").read_text()) == found
    assert not any("secret" in path.read_text() for path in (tmp_path / "out").iterdir())


def test_embeddings_of_private_texts_are_kept_only_where_they_may_be(
    command: Command, tmp_path: Path
) -> None:
    def kept() -> int:
        return sum(path.is_file() for path in tmp_path.joinpath("cache", "embeddings").rglob("*"))

    assert command() == 0
    public = kept()
    assert public > 0
    private = tmp_path / "mine"
    assert command("--private-cache", str(private)) == 0
    assert kept() == public
    assert any(path.is_file() for path in private.rglob("*"))


def test_too_few_public_texts(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--centers", "50") == 2
    assert "few for 50 cluster centres" in capsys.readouterr().err


def test_private_texts_are_no_public_ones(
    command: Command, files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "link.csv").symlink_to(files[0])
    assert command(public=tmp_path / "link.csv") == 2
    assert "--public: this leads" in capsys.readouterr().err


def test_a_column_that_is_not_there(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--public-text", "body") == 2
    assert "in --public-text" in capsys.readouterr().err


def test_settings_that_no_method_works_with(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, named in [
        (("--delta", "0.5"), "--delta"),
        (("--delta", "1e-12"), "--delta"),
        (("--rebalancing-epsilon", "1e-300"), "--rebalancing-epsilon"),
        (("--chang-epsilon", "1e-300"), "epsilon"),
        (("--dpm-epsilon", "1e-300"), "epsilon"),
        (("--dimension", "17"), "--dimension: 17"),
    ]:
        assert command(*options) == 2
        assert named in capsys.readouterr().err


def test_more_to_keep_than_there_are(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--keep", "9") == 2
    assert "--keep" in capsys.readouterr().err


def test_files_that_are_not_there(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(private=tmp_path / "none.csv") == 2
    assert "DATA" in capsys.readouterr().err
