"""Where the model that a run names is on this machine: found without a download, and never in the run itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpaudit.generation.sources import installed_model


def test_finds_a_folder_outside_the_run_alone(tmp_path: Path) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    (run / "model").mkdir(parents=True)
    model.mkdir()
    (tmp_path / "link").symlink_to(run / "model")
    assert installed_model(str(model), run) == str(model)
    for inside in (run, run / "model", tmp_path / "link", model / ".." / "run" / "model"):
        assert installed_model(str(inside), run) is None


@pytest.mark.parametrize("name", ["", "nobody/has-this-model", "package:no_such_package/model", "../..//x", "a\0b"])
def test_finds_nothing_where_nothing_is_installed(tmp_path: Path, name: str) -> None:
    assert installed_model(name, tmp_path / "run") is None


def test_finds_a_model_in_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--some--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert installed_model("some/model", tmp_path / "run") == str(snapshot)
