"""Where the model that a run names is on this machine: found without a download, and by no path."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from dpaudit.generation.sources import installed_model


def test_follows_no_path_that_a_run_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote the run chose the path: a model there would vouch for their texts."""
    for place in ("model", "some/model"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    outside = "/".join([".."] * 24)
    for name in (
        str(tmp_path / "model"),
        "model",
        "./model",
        "some/model",
        f"package:numpy/{outside}{tmp_path}/model",
    ):
        assert installed_model(name) is None


def test_finds_a_model_in_a_package() -> None:
    assert installed_model("package:numpy/linalg") == Path(numpy.linalg.__file__).parent


@pytest.mark.parametrize(
    "name", ["", "nobody/has-this-model", "package:no_such_package/model", "../..//x", "a\0b"]
)
def test_finds_nothing_where_nothing_is_installed(name: str) -> None:
    assert installed_model(name) is None


def test_finds_a_model_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert installed_model("some/model") == snapshot
