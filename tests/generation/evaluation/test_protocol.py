"""A whole evaluation: what it measures is what the parts give, and nothing is measured twice."""

from __future__ import annotations

import pickle
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.generation.caches import ScoreCache, VectorCache, key_of
from dpaudit.generation.clustering.embedding import Embedder
from dpaudit.generation.evaluation import bench
from dpaudit.generation.evaluation.bench import probe_accuracy
from dpaudit.generation.evaluation.fine_tuning import Attempt, Examples, Outcome
from dpaudit.generation.evaluation.mauve_score import draw_indices, mauve_of
from dpaudit.generation.evaluation.protocol import evaluate
from dpaudit.generation.evaluation.settings import LAPTOP, PROBE, EvaluationSettings
from dpaudit.generation.evaluation.texts import RealData, hash_fraction, normalized_text
from dpaudit.generation.records import Record
from dpaudit.results.quality import Quality
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.engines import LocalEngine

Evaluate = Callable[..., Quality]
Rows = Callable[[int, int], list[Record]]
Write = Callable[[Path, Iterable[Record]], Path]
TINY = LAPTOP.model_copy(
    update={"steps": 4, "batch_size": 8, "learning_rates": (1e-3, 3e-3), "seeds": (0, 1)}
)


@pytest.fixture
def measure(run: Any, reference: Path, encoder_folder: Path) -> Evaluate:
    defaults = EvaluationSettings(
        embedding=str(encoder_folder),
        classifier=str(encoder_folder),
        seeds=1,
        iterations=20,
        initialisations=1,
    )

    def measured(test: Path | None = None, real: Path = reference, **options: Any) -> Quality:
        names = ("previous", "engine", "private_cache", "watch")
        passed = {name: options.pop(name) for name in names if name in options}
        data = RealData(str(real), None if test is None else str(test))
        return evaluate(
            RunReader(run.path), data, replace(defaults, **options), cache=ScoreCache(), **passed
        )

    return measured


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Examples, Examples, Attempt]]:
    """All that was fine-tuned on, by a stand-in for fine-tuning, which takes seconds."""
    seen: list[tuple[Examples, Examples, Attempt]] = []

    def fine_tune(
        name: str, train: Examples, test: Examples, labels: int, attempt: Attempt, settings: Any
    ) -> Outcome:
        seen.append((train, test, attempt))
        return OUTCOMES.get(attempt.learning_rate, Outcome(5, 2, 0.5, 0.7, 0.25))

    monkeypatch.setattr(bench, "fine_tune", fine_tune)
    return seen


#: By rate. Ties in accuracy go to the lower loss, and then to the first; what diverged has lost.
OUTCOMES = {
    1.0: Outcome(5, 2, 0.5, 0.7, 1.0),
    2.0: Outcome(3, 0, 0.0, 0.0, 0.0),
    3.0: Outcome(5, 2, 0.5, 0.4, 0.25),
    4.0: Outcome(5, 2, 0.5, 0.4, 0.75),
    5.0: Outcome(5, 2, 0.4, 0.1, 0.5),
}


def test_figures_are_those_of_the_parts(
    measure: Evaluate, run: Any, held_out: Path, encoder_folder: Path
) -> None:
    found = measure(held_out, seeds=2, iterations=500, initialisations=5)
    embedder = Embedder(str(encoder_folder), normalize=True)
    texts = [sample.text or "" for sample in RunReader(run.path).samples()]
    rows = sorted(
        {
            tuple(line.split(","))
            for line in (held_out.parent / "real.csv").read_text().split("\n")[1:-1]
        }
    )
    ours, real = embedder.embed(texts), embedder.embed([text for _, text in rows])
    assert (
        found.mauve is not None
        and found.mauve.settings.n == 40
        and found.mauve.settings.clusters == 4
    )
    assert (found.mauve.wanted, found.mauve.real) == (1000, 90)
    for seed, score, ceiling in zip(
        (0, 1), found.mauve.score.values, found.mauve.ceiling.values, strict=True
    ):
        a, b, c = draw_indices(seed, 40, 90, 40)
        assert score == mauve_of(ours[a], real[b], found.mauve.settings, seed)
        assert ceiling == mauve_of(real[c], real[b], found.mauve.settings, seed)
    tested = sorted({tuple(line.split(",")) for line in held_out.read_text().split("\n")[1:-1]})
    vectors = embedder.embed([text for _, text in tested])
    truth = np.array([label == "b" for label, _ in tested], dtype=np.int64)
    ours_labels = np.array(
        [sample.label == "b" for sample in RunReader(run.path).samples()], dtype=np.int64
    )
    real_labels = np.array([label == "b" for label, _ in rows], dtype=np.int64)
    (probe,) = found.downstream
    synthetic, same, everything = probe.trained
    assert synthetic.accuracy.values == (
        probe_accuracy(ours, ours_labels, vectors, truth, PROBE).accuracy,
    )
    assert everything.accuracy.values == (
        probe_accuracy(real, real_labels, vectors, truth, PROBE).accuracy,
    )
    assert (synthetic.texts, same.texts, everything.texts) == (40, 40, 90)
    assert len(same.accuracy.values) == 3 and everything.accuracy.mean > 0.9
    assert probe.majority == 0.5


def test_everything_that_decides_a_figure_is_in_the_result(measure: Evaluate, run: Any) -> None:
    found = measure(
        scaling=2.0,
        points=9,
        seeds=3,
        iterations=7,
        initialisations=2,
        explained_variance=0.7,
        clusters=5,
    )
    assert found.mauve is not None
    asked = {"scaling": 2.0, "points": 9, "seeds": [0, 1, 2], "iterations": 7, "initialisations": 2}
    asked |= {"explained_variance": 0.7, "clusters": 5, "n": 40, "stratified": False}
    assert found.mauve.settings.model_dump(mode="json") == asked
    assert found.samples == RunReader(run.path).digest("samples.jsonl")
    assert found.audience == "internal" and "private records" in found.private
    assert {
        "mauve-text",
        "faiss-cpu",
        "scikit-learn",
        "torch",
        "python",
        "protocol",
        "device",
    } <= found.versions.keys()
    assert (
        found.held_out is not None
        and found.held_out.origin == "split"
        and found.held_out.share == 0.2
    )
    assert Quality.model_validate_json(found.to_json()) == found


def test_a_reader_is_told_which_test_texts_the_prompts_may_have_shown(
    measure: Evaluate, run: Any, held_out: Path, rows: Rows, make_own: Callable[..., None]
) -> None:
    def told(*test: Path) -> tuple[int | None, int | None, str]:
        found = measure(*test)
        assert found.held_out is not None
        (said,) = [warning for warning in found.warnings if "--test" in warning] or [""]
        return found.own, found.held_out.own, said

    assert told() == told(held_out) == (0, 0, "")
    for records, of_all in ((rows(100, 90), 90), (rows(100, 89), 89), (rows(90, 200), 90)):
        make_own(run, records)
        own, tested, said = told()
        assert own == of_all and tested and f"was made from {tested} of the" in said
    make_own(run, rows(200, 4))
    assert told()[:2] == (0, 0)
    own, tested, said = told(held_out)
    assert (own, tested) == (0, 4) and "was made from 4 of the 24 test texts" in said
    run.edit_manifest({"data.digest": None})
    for own, tested, said in (told(), told(held_out)):
        assert (own, tested) == (
            None,
            None,
        ) and "not known whether the run was made from test texts" in said


def test_what_a_reader_must_know_is_said(
    measure: Evaluate, run: Any, tmp_path: Path, rows: Rows, write_records: Write, held_out: Path
) -> None:
    run.edit_samples(
        lambda lines: [
            line.update(text=" " if row < 25 else f"text {row}") for row, line in enumerate(lines)
        ]
    )
    found = measure(held_out, most_records=20, probe=PROBE.model_copy(update={"iterations": 1}))
    said = "\n".join(found.warnings)
    for part in (
        "n = 10",
        "1,000",
        "biased upwards",
        "40 synthetic texts",
        "--reference has 90 records, of which 20",
        "--test has 24 records, of which 20",
        "25 of the run's 40 texts are empty",
        "Of the run's 40 texts 16 are distinct",
        "20 real texts for 40 synthetic ones",
        "did not converge",
    ):
        assert part in said
    assert found.held_out is not None and found.reference.texts == found.held_out.test.texts == 20
    one_label = write_records(
        tmp_path / "a.csv", [record for record in rows(300, 30) if record.label == "a"]
    )
    assert "2 labels 1 have no test" in "".join(measure(one_label).warnings)


def test_the_most_frequent_label_is_that_of_the_test_texts(
    measure: Evaluate, tmp_path: Path, rows: Rows, write_records: Write
) -> None:
    of_a, of_b = ([record for record in rows(300, 40) if record.label == label] for label in "ab")
    found = measure(write_records(tmp_path / "unbalanced.csv", [*of_a[:15], *of_b[:5]]))
    assert found.downstream[0].majority == 0.75


def test_a_second_call_measures_nothing(
    measure: Evaluate, monkeypatch: pytest.MonkeyPatch, scores_folder: Path, held_out: Path
) -> None:
    first = measure(held_out)
    files = list(scores_folder.iterdir())
    assert files and all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    assert stat.S_IMODE(scores_folder.stat().st_mode) == 0o700

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured again")

    with monkeypatch.context() as patched:
        for place, name in ((bench, "mauve_of"), (bench, "probe_accuracy"), (Embedder, "embed")):
            patched.setattr(place, name, refused)
        again = measure(held_out)
        assert again.model_copy(update={"created": first.created}) == first
        with pytest.raises(AssertionError, match="measured again"):
            measure(held_out, points=8)
    next(file for file in files if "mauve" in file.read_text()).write_text('{"mauve": "0.5"}')
    assert measure(held_out).model_copy(update={"created": first.created}) == first


def test_the_best_fit_of_each_seed_counts_and_what_diverged_has_lost(
    measure: Evaluate, held_out: Path, fits: list[Any]
) -> None:
    settings = TINY.model_copy(update={"learning_rates": (1.0, 2.0, 3.0, 4.0, 5.0)})
    probe, tuned = measure(held_out, fine_tune=settings).downstream
    assert (probe.method, tuned.method) == ("linear-probe", "fine-tuned")
    assert [trained.source for trained in tuned.trained] == [
        "synthetic",
        "real-same-size",
        "real-all",
    ]
    assert [trained.texts for trained in tuned.trained] == [40, 40, 90]
    for trained in tuned.trained:
        assert trained.accuracy.values == (
            0.25,
            0.25,
        )  # 3.0: neither the best test accuracy, nor the lowest loss
    with pytest.raises(InputError, match="not finite"):
        measure(held_out, fine_tune=settings.model_copy(update={"learning_rates": (2.0,)}))


def test_no_test_text_is_trained_on(
    measure: Evaluate, run: Any, rows: Rows, fits: list[tuple[Examples, Examples, Attempt]]
) -> None:
    """All test texts that a run repeats, in any letter case, are left out of its training texts."""
    real = rows(100, 40)
    run.edit_samples(
        lambda lines: [
            line.update(text=f"{real[row].text.upper()} ") for row, line in enumerate(lines[:40])
        ]
    )
    found = measure(fine_tune=TINY)
    tested = {
        normalized_text(record.text)
        for record in rows(100, 90)
        if hash_fraction(record.text, 0, b"test") < 0.2
    }
    dropped = sum(normalized_text(record.text) in tested for record in real)
    assert dropped and found.held_out is not None and found.held_out.dropped_synthetic == dropped
    assert len(fits) == 3 * 2 * 2
    for train, test, _ in fits:
        assert {normalized_text(text) for text in test.texts} == tested
        assert not {normalized_text(text) for text in train.texts} & tested
    sizes = {len(train.texts) for train, _, _ in fits}
    assert sizes == {40 - dropped, 90 - len(tested)}
    assert [trained.texts for trained in found.downstream[0].trained] == [40 - dropped] * 2 + [
        90 - len(tested)
    ]


def test_an_earlier_sweep_is_shown_again_from_the_cache_alone(
    measure: Evaluate,
    held_out: Path,
    fits: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    scores_folder: Path,
) -> None:
    found = measure(held_out, fine_tune=TINY)
    done = len(fits)
    planted = found.to_json().replace("0.25", "0.99")
    later = measure(held_out, previous=Quality.model_validate_json(planted))
    assert later.downstream == found.downstream and len(fits) == done
    probe, tuned = found.downstream
    for lie in (
        {"encoder": tuned.encoder.model_copy(update={"name": "another"})},
        {"settings": TINY.model_copy(update={"preset": "paper"})},
        {"settings": TINY.model_copy(update={"seeds": (0, 1, 2)})},
    ):
        previous = found.model_copy(update={"downstream": (probe, tuned.model_copy(update=lie))})
        assert measure(held_out, previous=previous).downstream == (probe,)
    assert measure(held_out, previous=found, most_records=60).downstream[1:] == ()
    assert measure(previous=found).downstream[1:] == ()
    with monkeypatch.context() as patched:
        patched.setattr(bench, "versions", lambda: {"protocol": "another"})
        assert measure(held_out, previous=found).downstream[1:] == ()
    for file in scores_folder.iterdir():
        file.unlink()
    assert measure(held_out, previous=found).downstream[1:] == () and len(fits) == done


class PicklingEngine:
    """What goes to another process and comes back from it, without one."""

    def map(self, start: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        start, tasks = pickle.loads(pickle.dumps((start, list(tasks))))
        yield from map(start(), tasks)


@pytest.mark.parametrize(
    "engine",
    [PicklingEngine(), pytest.param(LocalEngine(2), marks=pytest.mark.slow)],
    ids=["pickled", "local"],
)
def test_workers_find_the_same(
    measure: Evaluate, scores_folder: Path, held_out: Path, engine: Any
) -> None:
    least = TINY.model_copy(update={"steps": 1, "learning_rates": (1e-3,), "seeds": (0,)})
    one = measure(held_out, fine_tune=least)
    for file in scores_folder.iterdir():
        file.unlink()
    two = measure(held_out, fine_tune=least, engine=engine)
    assert one.mauve == two.mauve
    assert [d.trained[0].accuracy for d in one.downstream] == [
        d.trained[0].accuracy for d in two.downstream
    ]


def test_embeddings_are_kept_where_they_may_be_and_progress_is_told(
    measure: Evaluate, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    measure(watch=lambda *what: told.append(what))
    assert list(dict.fromkeys(title for title, _, _ in told)) == [
        "Reading texts",
        "Embedding texts",
        "MAUVE",
        "Linear probes",
    ]
    assert told[-1][1] == told[-1][2]
    assert not list(tmp_path.rglob("*.safetensors"))
    measure(points=5, private_cache=VectorCache(folder=tmp_path / "mine"))
    assert list((tmp_path / "mine").rglob("*.safetensors"))


def test_a_run_that_is_not_whole_is_refused(measure: Evaluate, run: Any) -> None:
    (run / "hashes").unlink()
    with pytest.raises(InputError, match=r"unfinished.*dpaudit generate"):
        measure()


def test_few_texts_and_no_labels(measure: Evaluate, run: Any) -> None:
    run.edit_samples(lambda lines: lines.__setitem__(slice(1, None), []))
    found = measure()
    assert found.mauve is None and found.downstream == ()
    assert "No MAUVE" in found.warnings[0] and "No accuracy" in found.warnings[1]


def test_a_score_that_was_not_written_here_is_no_score(tmp_path: Path) -> None:
    for content in ["", "[]", '{"mauve": NaN}', '{"mauve": true}', '{"other": 1}', "{" * 3000]:
        cache, key = ScoreCache(tmp_path), key_of(task=1)
        assert cache.find(key, ("mauve",)) is None
        cache.keep(key, {"mauve": 0.5})
        assert cache.find(key, ("mauve",)) == {"mauve": 0.5}
        (tmp_path / f"{key}.json").write_text(content)
        assert cache.find(key, ("mauve",)) is None


def test_a_score_of_another_user_is_no_score(
    scores_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ScoreCache()
    cache.keep("a", {"mauve": 0.5})
    assert cache.find("a", ("mauve",)) and (scores_folder / "a.json").is_file()
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert cache.find("a", ("mauve",)) is None
