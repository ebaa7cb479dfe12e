"""One evaluation of a run's texts, from files to figures. Every figure that was measured before is looked up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial

from dpaudit.engines import Engine, LocalEngine
from dpaudit.quality import Downstream, Encoder, Fit, Mauve, Quality, Trained, scores
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.layout import SAMPLES
from generation.clustering.embedding import OFFLINE, Embedder
from generation.clustering.vector_cache import VectorCache
from generation.evaluation.bench import (
    NAMES,
    TITLES,
    Bench,
    FitTask,
    MauveTask,
    ProbeTask,
    Task,
    TextVectors,
    Worker,
    versions,
)
from generation.evaluation.fine_tuning import encoder_of
from generation.evaluation.score_cache import Figures, ScoreCache
from generation.evaluation.settings import PAPER_N, EvaluationSettings, RealData
from generation.evaluation.texts import (
    Corpus,
    at_most,
    corpus_of,
    described,
    is_runs_data,
    read_real,
    read_synthetic,
)
from generation.records import Record

#: Fewer texts to train on than this are remarked upon.
_FEW = 100

#: Told what is being done, how much of it is done, and how much there is.
Watch = Callable[[str, int, int], None]


def evaluate(
    reader: RunReader,
    data: RealData,
    settings: EvaluationSettings,
    *,
    cache: ScoreCache,
    private_cache: VectorCache | None = None,
    previous: Quality | None = None,
    engine: Engine | None = None,
    watch: Watch = lambda what, done, of: None,
) -> Quality:
    """Measure how good a run's texts are.

    Args:
        reader: the run.
        data: real records. Nothing of them is kept but figures and digests.
        settings: what is measured.
        cache: where figures are looked up and kept.
        private_cache: where embeddings are kept, of the run's texts and real ones; None keeps none.
        previous: an evaluation of the same texts, whose fine-tuned accuracies stand where none are asked for.
        engine: where seeds and fits are spread to. Embeddings, and texts where there are fits, travel to its workers.
            None works in this process.
        watch: told of what is done.

    Raises:
        InputError: texts or models cannot be used.
    """
    watch("Reading texts", 0, 1)
    samples = reader.digest(SAMPLES)  # before hours of work, in which the file could change
    synthetic, label_lines = read_synthetic(reader)
    corpus, known, warnings = _read(reader, synthetic, data, settings)
    embedder = Embedder(settings.embedding or OFFLINE, normalize=True, field="--embedding")
    bench = Bench(corpus, settings, _features(embedder), _classifier(corpus, settings))
    figures = {task: found for task in bench.tasks if (found := cache.find(bench.key(task), NAMES[type(task)]))}
    missing = [task for task in bench.tasks if task not in figures]
    if any(not isinstance(task, FitTask) for task in missing):
        bench = replace(bench, vectors=_embedded(corpus, embedder, private_cache, watch))
    with closing((engine or LocalEngine(1)).map(partial(Worker, bench), missing)) as results:
        for done, (task, found) in enumerate(zip(missing, _told(results, missing, watch), strict=True), start=1):
            cache.keep(bench.key(task), found)
            figures[task] = found
            watch(TITLES[type(task)], done, len(missing))
    return Quality(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        samples=samples,
        synthetic=described(corpus.synthetic),
        label_lines=label_lines,
        reference=described(corpus.reference),
        is_runs_data=known,
        features=bench.features,
        held_out=corpus.held_out,
        mauve=_mauve(bench, figures),
        downstream=(*_downstream(bench, figures), *_carried(bench, previous)),
        warnings=(*warnings, *_warnings(bench, known)),
        versions=versions(),
    )


def _read(
    reader: RunReader, synthetic: tuple[Record, ...], data: RealData, settings: EvaluationSettings
) -> tuple[Corpus, bool | None, list[str]]:
    """All texts, whether the reference is the run's own data, and what there is to say of that."""
    manifest = reader.manifest
    reference = read_real(manifest, data.reference, "--reference", data.columns)
    test = None if data.test is None else read_real(manifest, data.test, "--test", data.columns)
    known, warnings = is_runs_data(manifest, reference), []
    for records, option in ((reference, "--reference"), (test or (), "--test")):
        if len(records) > settings.most_records:
            said = f"{option} has {len(records):,} records, of which {settings.most_records:,} were used"
            warnings.append(f"{said} (--most-records).")
    reference = at_most(reference, settings.most_records, settings.split_seed)
    if test is not None:
        test = at_most(test, settings.most_records, settings.split_seed)
    labels = manifest.batching.labels
    if labels and not {record.label for record in synthetic} <= set(labels):
        problem = "a text has a label that is not among batching.labels."
        raise InputError(reader.where(SAMPLES), problem, "Audit the run: `dpaudit verify`.")
    share, seed = settings.test_share, settings.split_seed
    return corpus_of(manifest, synthetic, reference, test, share=share, seed=seed), known, warnings


def _features(embedder: Embedder) -> Encoder:
    return Encoder(
        name=embedder.name,
        digest=embedder.digest,
        max_tokens=embedder.max_tokens,
        pooling=embedder.pooling,
        dimensions=embedder.dimensions,
        normalized=embedder.normalize,
    )


def _classifier(corpus: Corpus, settings: EvaluationSettings) -> Encoder | None:
    if settings.fine_tune is None or not corpus.labels:
        return None
    return encoder_of(settings.classifier or OFFLINE, settings.fine_tune)


def _embedded(corpus: Corpus, embedder: Embedder, cache: VectorCache | None, watch: Watch) -> TextVectors:
    records = (*corpus.synthetic, *corpus.reference, *corpus.test)
    texts = sorted({record.text for record in records})
    vectors = embedder.embed(texts, cache, partial(watch, "Embedding texts"))
    return TextVectors({text: row for row, text in enumerate(texts)}, vectors)


def _told(results: Iterator[Figures], tasks: Sequence[Task], watch: Watch) -> Iterator[Figures]:
    """The results, after a word on what is done first."""
    if tasks:
        watch(TITLES[type(tasks[0])], 0, len(tasks))
    yield from results


def _mauve(bench: Bench, figures: Mapping[Task, Figures]) -> Mauve | None:
    if bench.mauve is None:
        return None
    score, ceiling = (
        scores(tuple(figures[MauveTask(seed, ceiling)]["mauve"] for seed in bench.mauve.seeds))
        for ceiling in (False, True)
    )
    return Mauve(settings=bench.mauve, wanted=bench.settings.n, score=score, ceiling=ceiling)


def _downstream(bench: Bench, figures: Mapping[Task, Figures]) -> Iterator[Downstream]:
    probed, tuned = tuple(_probed(bench, figures)), tuple(_tuned(bench, figures))
    if probed:
        yield Downstream(
            method="linear-probe",
            encoder=bench.features,
            settings=bench.settings.probe,
            majority=_majority(bench.corpus),
            trained=probed,
        )
    if tuned and bench.classifier is not None and bench.settings.fine_tune is not None:
        yield Downstream(
            method="fine-tuned",
            encoder=bench.classifier,
            settings=bench.settings.fine_tune,
            majority=_majority(bench.corpus),
            trained=tuned,
        )


def _probed(bench: Bench, figures: Mapping[Task, Figures]) -> Iterator[Trained]:
    for source in bench.sources:
        tasks = [task for task in bench.tasks if isinstance(task, ProbeTask) and task.source == source]
        if tasks:
            size = len(bench.training(source, tasks[0].seed))
            yield Trained(
                source=source, texts=size, accuracy=scores(tuple(figures[task]["accuracy"] for task in tasks))
            )


def _tuned(bench: Bench, figures: Mapping[Task, Figures]) -> Iterator[Trained]:
    for source in bench.sources:
        tasks = [task for task in bench.tasks if isinstance(task, FitTask) and task.source == source]
        if not tasks:
            continue
        best: dict[int, FitTask] = {}
        for task in tasks:  # the first of equally good ones
            kept = best.get(task.attempt.seed)
            if kept is None or figures[task]["validation"] > figures[kept]["validation"]:
                best[task.attempt.seed] = task
        yield Trained(
            source=source,
            texts=len(bench.training(source, tasks[0].attempt.seed)),
            accuracy=scores(tuple(figures[task]["test"] for task in best.values())),
            fits=tuple(_fit(task, figures[task], best[task.attempt.seed] == task) for task in tasks),
        )


def _fit(task: FitTask, found: Figures, chosen: bool) -> Fit:
    """An attempt without its test accuracy: nobody is to choose by that."""
    return Fit(
        **asdict(task.attempt),
        epochs=int(found["epochs"]),
        best_epoch=int(found["best_epoch"]),
        validation_accuracy=found["validation"],
        chosen=chosen,
    )


def _majority(corpus: Corpus) -> float:
    counts = [sum(record.label == label for record in corpus.test) for label in corpus.labels]
    return max(counts) / len(corpus.test)


def _carried(bench: Bench, previous: Quality | None) -> tuple[Downstream, ...]:
    """Fine-tuned accuracies of an earlier evaluation of these very texts by these very versions."""
    if bench.settings.fine_tune is not None or previous is None or previous.versions != versions():
        return ()
    sides = (described(bench.corpus.synthetic), described(bench.corpus.reference), bench.corpus.held_out)
    if sides != (previous.synthetic, previous.reference, previous.held_out):
        return ()
    return tuple(found for found in previous.downstream if found.method == "fine-tuned")


def _warnings(bench: Bench, known: bool | None) -> Iterator[str]:
    corpus, settings = bench.corpus, bench.settings
    if bench.mauve is None:
        yield "No MAUVE: it needs 2 texts of the run, and 4 of the reference."
    elif bench.mauve.n < (wanted := max(settings.n, PAPER_N)):
        yield (
            f"MAUVE is of n = {bench.mauve.n:,} texts a side, fewer than {wanted:,} (the run has "
            f"{len(corpus.synthetic):,} texts, half of the reference {len(corpus.reference) // 2:,}). Of few texts it "
            "is biased upwards, and its scale depends on n: compare it with its ceiling, and with runs of the same n."
        )
    if not bench.sources:
        yield "No accuracy: it needs two labels, and two texts of the run that are not among the test texts."
        return
    missing = [label for label in corpus.labels if all(record.label != label for record in corpus.trainable)]
    if missing:
        yield f"Of {len(corpus.labels)} labels the run has no text with {len(missing)}: classifiers cannot find these."
    if len(corpus.trainable) < _FEW:
        yield f"Classifiers were trained on {len(corpus.trainable)} synthetic texts: so few say little."
    if corpus.held_out is not None and corpus.held_out.origin == "split" and known is not False:
        whose = "the run's own data" if known else "the run's own data, as far as is known"
        yield (
            f"The test texts are a share of the reference, {whose}: no classifier was trained on them, but the "
            "generator's prompts may have shown them. Give held-out texts with --test."
        )
