"""`dpaudit.generate`: settings and records from Python, and how they are refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import dpaudit
from dpaudit.api.tables import records_file

pandas = pytest.importorskip("pandas")


@pytest.fixture
def frame(data_file):
    return pandas.read_csv(data_file)


@pytest.fixture
def config(settings):
    values = settings()
    del values["data"]["path"]
    return dpaudit.Config(**values)


def digest(run):
    return run.manifest.data.digest, run.manifest.data.records


@pytest.mark.filterwarnings("ignore:sampling.seed")
def test_tables_give_the_run_of_a_file(config, settings, frame, data_file, tmp_path):
    datasets = pytest.importorskip("datasets")
    classes = datasets.Features(
        {"label": datasets.ClassLabel(names=["north", "south"]), "text": datasets.Value("string")}
    )
    given = {
        "file": data_file,
        "frame": frame,
        "categories": frame.astype({"label": "category"}),
        "dataset": datasets.Dataset.from_list(frame.to_dict("records"), features=classes),
    }
    runs = {
        name: dpaudit.generate(config, records, tmp_path / name) for name, records in given.items()
    }
    runs["config"] = dpaudit.generate(settings(), out=tmp_path / "config")
    assert len({digest(run) for run in runs.values()}) == 1
    assert len({tuple(text.tokens for text in run.texts) for run in runs.values()}) == 1
    assert not list(Path(tmp_path).rglob("*.parquet"))
    with pytest.raises(dpaudit.InputError):  # a finished run does not go on
        dpaudit.generate(config, frame, tmp_path / "frame")
    replayed = dpaudit.audit(
        tmp_path / "frame", data=frame, evidence=3, replay={"steps": 1, "left_out": 0, "trials": 0}
    )
    failed = {check.id for check in replayed.checks if check.status in ("fail", "error")}
    assert failed <= {"mechanism.randomness"}, "the seed of these tests"


def test_settings_are_refused_by_field(settings):
    with pytest.raises(dpaudit.InputError) as raised:
        dpaudit.Config(**settings(mechanism={"clip": -1.0}))
    assert raised.value.field == "mechanism.contribution.clip"


def test_records_must_be_given(config, tmp_path):
    with pytest.raises(dpaudit.InputError) as raised:
        dpaudit.generate(config, out=tmp_path / "run")
    assert raised.value.file == "records"


@pytest.mark.parametrize("records", [3, [{"text": "a"}], object()])
def test_other_things_are_no_records(config, records, tmp_path):
    with pytest.raises(dpaudit.InputError) as raised:
        dpaudit.generate(config, records, tmp_path / "run")
    assert raised.value.file == "records"


def test_errors_name_the_argument_and_no_text(config, frame, canary, tmp_path):
    frame.loc[3, "label"] = "east"
    with pytest.raises(dpaudit.InputError) as raised:
        dpaudit.generate(config, frame, tmp_path / "run")
    assert raised.value.file == "records"
    assert raised.value.field.startswith("row 4")
    assert canary not in str(raised.value)
    assert "parquet" not in str(raised.value)


def test_a_tables_file_is_private_and_goes(frame):
    with records_file(frame, "records") as name:
        path = Path(name)
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()


def test_a_path_stays_as_it_is(data_file):
    with records_file(data_file, "records") as name:
        assert name == str(data_file)
    with data_file.open() as file:
        assert len(list(csv.reader(file))) == 11


def test_public_texts(settings, tmp_path):
    texts = dpaudit.generate_public(settings(), tmp_path / "public")
    assert len(texts) == 4
    assert list(texts) == list(dpaudit.open_public(tmp_path / "public"))
