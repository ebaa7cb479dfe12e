"""A whole evaluation: what it measures is what the parts give, and nothing is measured twice."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.engines import LocalEngine
from dpaudit.quality import Quality
from dpaudit.runs import RunReader
from generation.clustering.embedding import Embedder
from generation.clustering.vector_cache import VectorCache
from generation.evaluation import bench
from generation.evaluation.mauve_score import drawn, mauve_of
from generation.evaluation.probe import probe_accuracy
from generation.evaluation.protocol import evaluate
from generation.evaluation.score_cache import ScoreCache, key_of
from generation.evaluation.settings import LAPTOP, PROBE, EvaluationSettings, RealData

Evaluate = Callable[..., Quality]
TINY = LAPTOP.model_copy(update={"steps": 4, "batch_size": 8, "learning_rates": (1e-3, 3e-3), "seeds": (0, 1)})


@pytest.fixture
def measure(run: Any, reference: Path, encoder_folder: Path, tmp_path: Path) -> Evaluate:
    defaults = EvaluationSettings(embedding=str(encoder_folder), classifier=str(encoder_folder), seeds=2)

    def measured(test: Path | None = None, **options: Any) -> Quality:
        names = ("previous", "engine", "private_cache", "watch")
        passed = {name: options.pop(name) for name in names if name in options}
        data = RealData(str(reference), None if test is None else str(test))
        settings = replace(defaults, **options)
        return evaluate(RunReader(run.path), data, settings, cache=ScoreCache(tmp_path / "scores"), **passed)

    return measured


def test_figures_are_those_of_the_parts(measure: Evaluate, run: Any, held_out: Path, encoder_folder: Path) -> None:
    found = measure(held_out)
    embedder = Embedder(str(encoder_folder), normalize=True)
    texts = [sample.text or "" for sample in RunReader(run.path).samples()]
    rows = sorted({tuple(line.split(",")) for line in (held_out.parent / "real.csv").read_text().split("\n")[1:-1]})
    ours, real = embedder.embed(texts), embedder.embed([text for _, text in rows])
    assert found.mauve is not None and found.mauve.settings.n == 40 and found.mauve.settings.clusters == 4
    for seed, score, ceiling in zip((0, 1), found.mauve.score.values, found.mauve.ceiling.values, strict=True):
        a, b, c = drawn(seed, 40, 90, 40)
        assert score == mauve_of(ours[a], real[b], found.mauve.settings, seed)
        assert ceiling == mauve_of(real[c], real[b], found.mauve.settings, seed)
    tested = sorted({tuple(line.split(",")) for line in held_out.read_text().split("\n")[1:-1]})
    vectors = embedder.embed([text for _, text in tested])
    truth = np.array([label == "b" for label, _ in tested], dtype=np.int64)
    ours_labels = np.array([sample.label == "b" for sample in RunReader(run.path).samples()], dtype=np.int64)
    real_labels = np.array([label == "b" for label, _ in rows], dtype=np.int64)
    (probe,) = found.downstream
    synthetic, same, everything = probe.trained
    assert synthetic.accuracy.values == (probe_accuracy(ours, ours_labels, vectors, truth, PROBE),)
    assert everything.accuracy.values == (probe_accuracy(real, real_labels, vectors, truth, PROBE),)
    assert (synthetic.texts, same.texts, everything.texts) == (40, 40, 90)
    assert len(same.accuracy.values) == 3 and everything.accuracy.mean > 0.9
    assert probe.majority == 0.5


def test_everything_that_decides_a_figure_is_in_the_result(measure: Evaluate, run: Any) -> None:
    found = measure(scaling=2.0, points=9, seeds=3, iterations=7, initialisations=2, explained_variance=0.7, clusters=5)
    assert found.mauve is not None
    asked = {"scaling": 2.0, "points": 9, "seeds": [0, 1, 2], "iterations": 7, "initialisations": 2}
    asked |= {"explained_variance": 0.7, "clusters": 5, "n": 40, "stratified": False}
    assert found.mauve.settings.model_dump(mode="json") == asked
    assert found.samples == RunReader(run.path).digest("samples.jsonl")
    assert found.audience == "internal" and "private records" in found.private
    assert {"mauve-text", "faiss-cpu", "scikit-learn", "torch", "python"} <= found.versions.keys()
    assert found.held_out is not None and found.held_out.origin == "split" and found.held_out.share == 0.2
    assert Quality.model_validate_json(found.to_json()) == found


def test_what_a_reader_must_know_is_said(measure: Evaluate, run: Any, held_out: Path) -> None:
    said = "\n".join(measure().warnings)
    for part in ("n = 40", "1,000", "biased upwards", "40 synthetic texts"):
        assert part in said
    assert "--test" not in said  # the reference is not what the run was made from
    run.edit_manifest({"data.digest": None})
    assert "Give held-out texts with --test." in measure().warnings[-1]
    assert "--test" not in "".join(measure(held_out).warnings)
    assert "90 records, of which 60" in measure(most_records=60).warnings[0]


def test_a_second_call_measures_nothing(
    measure: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, held_out: Path
) -> None:
    first = measure(held_out)
    files = list((tmp_path / "scores").iterdir())
    assert files and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert stat.S_IMODE((tmp_path / "scores").stat().st_mode) == 0o700

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured again")

    with monkeypatch.context() as patched:
        for place, name in ((bench, "mauve_of"), (bench, "probe_accuracy"), (Embedder, "embed")):
            patched.setattr(place, name, refused)
        again = measure(held_out)
        assert again.model_copy(update={"created": first.created}) == first
        for changed in ({"points": 8}, {"seeds": 3}, {"most_records": 50}):
            with pytest.raises(AssertionError, match="measured again"):
                measure(held_out, **changed)
    next(file for file in files if "mauve" in file.read_text()).write_text('{"mauve": "0.5"}')
    assert measure(held_out).model_copy(update={"created": first.created}) == first


def test_other_texts_are_measured_anew(measure: Evaluate, run: Any) -> None:
    first = measure()
    run.edit_samples(lambda lines: lines[0].update(text="something else entirely"))
    second = measure()
    assert first.mauve is not None and second.mauve is not None
    assert first.mauve.score != second.mauve.score and first.mauve.ceiling == second.mauve.ceiling


def test_fine_tuning_chooses_by_validation_and_is_kept(measure: Evaluate, held_out: Path) -> None:
    found = measure(held_out, fine_tune=TINY)
    probe, tuned = found.downstream
    assert (probe.method, tuned.method) == ("linear-probe", "fine-tuned")
    assert [trained.source for trained in tuned.trained] == ["synthetic", "real-same-size", "real-all"]
    for trained in tuned.trained:
        assert len(trained.fits) == 4 and len(trained.accuracy.values) == 2
        for seed in (0, 1):
            fits = [fit for fit in trained.fits if fit.seed == seed]
            (chosen,) = (fit for fit in fits if fit.chosen)
            assert chosen == next(f for f in fits if f.validation_accuracy == max(g.validation_accuracy for g in fits))
    later = measure(held_out, previous=found)
    assert later.downstream == found.downstream
    assert measure(held_out, previous=found, most_records=60).downstream[1:] == ()
    assert measure(previous=found).downstream[1:] == ()


def test_workers_find_the_same(measure: Evaluate, tmp_path: Path, held_out: Path) -> None:
    least = TINY.model_copy(update={"learning_rates": (1e-3,), "seeds": (0,)})
    one = measure(held_out, fine_tune=least)
    for file in (tmp_path / "scores").iterdir():
        file.unlink()
    two = measure(held_out, fine_tune=least, engine=LocalEngine(2))
    assert one.mauve == two.mauve
    assert [d.trained[0].accuracy for d in one.downstream] == [d.trained[0].accuracy for d in two.downstream]


def test_embeddings_are_kept_where_they_may_be(measure: Evaluate, tmp_path: Path) -> None:
    measure()
    assert not list(tmp_path.rglob("*.safetensors"))
    measure(points=5, private_cache=VectorCache(folder=tmp_path / "mine"))
    assert list((tmp_path / "mine").rglob("*.safetensors"))


def test_few_texts_and_no_labels(measure: Evaluate, run: Any) -> None:
    run.edit_samples(lambda lines: lines.__setitem__(slice(1, None), []))
    found = measure()
    assert found.mauve is None and found.downstream == ()
    assert "No MAUVE" in found.warnings[0] and "No accuracy" in found.warnings[1]


def test_progress_is_told(measure: Evaluate) -> None:
    told: list[tuple[str, int, int]] = []
    measure(watch=lambda *what: told.append(what))
    assert list(dict.fromkeys(title for title, _, _ in told)) == [
        "Reading texts",
        "Embedding texts",
        "MAUVE",
        "Linear probes",
    ]
    assert told[-1][1] == told[-1][2]


@pytest.mark.parametrize("content", ["", "[]", '{"mauve": NaN}', '{"mauve": true}', '{"other": 1}', "{" * 3000])
def test_a_score_that_was_not_written_here_is_no_score(tmp_path: Path, content: str) -> None:
    cache, key = ScoreCache(tmp_path), key_of(task=1)
    assert cache.find(key, ("mauve",)) is None
    cache.keep(key, {"mauve": 0.5})
    assert cache.find(key, ("mauve",)) == {"mauve": 0.5}
    (tmp_path / f"{key}.json").write_text(content)
    assert cache.find(key, ("mauve",)) is None
