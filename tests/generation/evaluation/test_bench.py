"""What is measured under which key, and what classifiers are trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dpaudit.generation.evaluation import bench as bench_module
from dpaudit.generation.evaluation.bench import Bench, FitTask, MauveTask, ProbeTask, Task, versions
from dpaudit.generation.evaluation.fine_tuning import Attempt
from dpaudit.generation.evaluation.settings import LAPTOP, EvaluationSettings
from dpaudit.generation.evaluation.texts import Corpus
from dpaudit.generation.records import Record
from dpaudit.results.quality import Encoder

ENCODER = Encoder(
    name="a", digest="ab" * 32, max_tokens=8, pooling="mean", dimensions=4, normalized=True
)
CLASSIFIER = Encoder(name="b", digest="cd" * 32, max_tokens=8)
#: What a task may rest on, and one task of each kind that does.
TASKS: dict[str, Task] = {
    "score": MauveTask(0, "run"),
    "ceiling": MauveTask(0, "ceiling"),
    "probe": ProbeTask("synthetic", 0),
    "probe of real": ProbeTask("real-all", 0),
    "fit": FitTask("synthetic", Attempt(0, 1e-3, 0.0)),
    "fit of real": FitTask("real-all", Attempt(0, 1e-3, 0.0)),
}
MAUVES, PROBES, FITS = {"score", "ceiling"}, {"probe", "probe of real"}, {"fit", "fit of real"}


def records(count: int, start: int = 0, label: str = "ab") -> tuple[Record, ...]:
    return tuple(
        Record(label[number % len(label)], f"text {number}")
        for number in range(start, start + count)
    )


def a_bench() -> Bench:
    corpus = Corpus(
        records(20),
        records(60, 100),
        records(50, 110),
        records(19),
        records(10, 100),
        ("a", "b"),
        None,
    )
    return Bench(corpus, EvaluationSettings(fine_tune=LAPTOP), ENCODER, CLASSIFIER)


def corpus(**fields: Any) -> Callable[[Bench], Bench]:
    return lambda bench: replace(bench, corpus=replace(bench.corpus, **fields))


def settings(**fields: Any) -> Callable[[Bench], Bench]:
    return lambda bench: replace(bench, settings=replace(bench.settings, **fields))


def part(which: str, **fields: Any) -> Callable[[Bench], Bench]:
    def change(bench: Bench) -> Bench:
        changed: Any = getattr(bench.settings, which).model_copy(update=fields)
        return replace(bench, settings=replace(bench.settings, **{which: changed}))

    return change


def encoder(which: str, **fields: Any) -> Callable[[Bench], Bench]:
    return lambda bench: replace(bench, **{which: getattr(bench, which).model_copy(update=fields)})


CHANGES: dict[str, tuple[Callable[[Bench], Bench], set[str]]] = {
    "nothing": (lambda bench: bench, set()),
    "the run's texts": (corpus(synthetic=records(20, 1)), {"score"}),
    "their order": (corpus(synthetic=records(20)[::-1]), {"score"}),
    "synthetic training texts": (corpus(trainable=records(18)), {"probe", "fit"}),
    "their labels": (corpus(trainable=records(19, label="ba")), {"probe", "fit"}),
    "the reference": (corpus(reference=records(61, 100)), MAUVES),
    "real training texts": (corpus(train=records(49, 110)), {"probe of real", "fit of real"}),
    "test texts": (corpus(test=records(9, 100)), PROBES | FITS),
    "labels of test texts": (corpus(test=records(10, 100, "ba")), PROBES | FITS),
    "the list of labels": (corpus(labels=("a", "b", "c")), PROBES | FITS),
    "most n": (settings(n=10), MAUVES),
    **{
        name: (settings(**{name: value}), MAUVES)
        for name, value in {
            "clusters": 3,
            "iterations": 7,
            "initialisations": 2,
            "explained_variance": 0.5,
            "scaling": 2.0,
            "points": 9,
        }.items()
    },
    "strength": (part("probe", strength=2.0), PROBES),
    "iterations of the probe": (part("probe", iterations=9), PROBES),
    "seeds of the probe": (part("probe", seeds=(0, 1)), set()),
    **{
        f"{name} of fine-tuning": (part("fine_tune", **{name: value}), FITS)
        for name, value in {
            "preset": "paper",
            "batch_size": 3,
            "steps": 7,
            "patience": 2,
            "validation": 0.3,
            "max_tokens": 9,
        }.items()
    },
    "other rates and seeds": (
        part("fine_tune", learning_rates=(1.0,), weight_decays=(1.0,), seeds=(7,)),
        set(),
    ),
    "the name of the features' model": (encoder("features", name="c"), set()),
    **{
        f"{name} of features": (encoder("features", **{name: value}), MAUVES | PROBES)
        for name, value in {
            "digest": "ef" * 32,
            "max_tokens": 9,
            "pooling": "cls",
            "normalized": False,
        }.items()
    },
    **{
        f"{name} of the classifier": (encoder("classifier", **{name: value}), FITS)
        for name, value in {"digest": "ef" * 32, "max_tokens": 9, "name": "c"}.items()
    },
}


def test_a_key_changes_with_what_its_figure_rests_on_and_with_nothing_else() -> None:
    for what in CHANGES:
        change, rest_on_it = CHANGES[what]
        before, after = a_bench(), change(a_bench())
        assert {
            name for name, task in TASKS.items() if before.key(task) != after.key(task)
        } == rest_on_it


def test_every_key_changes_with_what_computes() -> None:
    for name in [
        "protocol",
        "device",
        "python",
        "dpaudit",
        "scikit-learn",
        "scipy",
        "torch",
        "faiss-cpu",
    ]:
        with pytest.MonkeyPatch.context() as monkeypatch:
            assert name in versions()
            before = [a_bench().key(task) for task in TASKS.values()]
            monkeypatch.setattr(bench_module, "versions", lambda: {**versions(), name: "another"})
            assert not set(before) & {a_bench().key(task) for task in TASKS.values()}


def test_tasks_have_keys_of_their_own() -> None:
    bench = a_bench()
    assert len({bench.key(task) for task in bench.tasks}) == len(bench.tasks)
    fits = [task for task in bench.tasks if isinstance(task, FitTask)]
    assert len(fits) == 3 * 3  # sources and seeds, at the laptop's one rate


def test_real_texts_of_the_same_size_are_as_many_of_each_label_and_drawn_anew_for_every_seed() -> (
    None
):
    corpus = replace(
        a_bench().corpus, trainable=(*records(9, label="a"), *records(3, 9, label="b"))
    )
    bench = replace(a_bench(), corpus=corpus)
    drawn = [bench.training("real-same-size", seed) for seed in range(4)]
    for chosen in drawn:
        assert [sum(record.label == label for record in chosen) for label in "ab"] == [9, 3]
        assert set(chosen) <= set(corpus.train) and len(set(chosen)) == 12
    assert len(set(drawn)) == 4
    assert bench.training("real-same-size", 2) == drawn[2]
    assert (
        bench.training("synthetic", 0) == corpus.trainable
        and bench.training("real-all", 0) == corpus.train
    )


def test_mauve_has_distinct_texts_on_its_real_sides() -> None:
    doubled = (*records(30), *(Record("a", f" {record.text.upper()}") for record in records(30)))
    bench = replace(a_bench(), corpus=replace(a_bench().corpus, reference=doubled))
    assert bench.real == records(30) and bench.mauve is not None and bench.mauve.n == 15


def test_texts_that_are_all_the_same_are_not_fine_tuned_on() -> None:
    same = tuple(Record("ab"[number % 2], "the same") for number in range(9))
    bench = replace(a_bench(), corpus=replace(a_bench().corpus, trainable=same))
    assert {task.source for task in bench.tasks if isinstance(task, FitTask)} == {
        "real-same-size",
        "real-all",
    }
