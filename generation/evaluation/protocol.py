"""One evaluation of a run's texts, from files to figures.

Every figure that was measured before is looked up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dpaudit.generation.caches import Figures, ScoreCache, VectorCache
from dpaudit.generation.clustering.embedding import OFFLINE, Embedder, Watch
from dpaudit.generation.evaluation.bench import (
    NAMES,
    TITLES,
    Bench,
    FitTask,
    MauveTask,
    ProbeTask,
    Task,
    versions,
)
from dpaudit.generation.evaluation.fine_tuning import encoder_of
from dpaudit.generation.evaluation.likelihood import measure_run
from dpaudit.generation.evaluation.settings import PAPER_N, EvaluationSettings
from dpaudit.generation.evaluation.texts import (
    Corpus,
    RealData,
    as_many,
    corpus_of,
    distinct_texts,
    own_records,
    read_real,
    read_synthetic,
    subsample,
    summary_of,
)
from dpaudit.generation.records import Record
from dpaudit.results.quality import (
    Baseline,
    Downstream,
    Encoder,
    Mauve,
    Quality,
    Trained,
    added_by,
    scores,
)
from dpaudit.runs import InputError, RunReader
from dpaudit.runs.engines import Engine, LocalEngine
from dpaudit.runs.layout import HASHES, PUBLIC, SAMPLES
from dpaudit.runs.public import PublicReader
from dpaudit.runs.reader import RESUME

#: Fewer texts to train on than this are remarked upon.
_FEW = 100


def evaluate(
    reader: RunReader,
    data: RealData,
    settings: EvaluationSettings,
    *,
    baseline: PublicReader | None = None,
    cache: ScoreCache,
    private_cache: VectorCache | None = None,
    previous: Quality | None = None,
    engine: Engine | None = None,
    watch: Watch = lambda what, done, of: None,
) -> Quality:
    """Measure how good a run's texts are.

    Args:
        reader: the run.
        data: real records. Nothing of them is kept but figures and digests. For a likelihood the
            reference is the run's own private data, and there is a test file.
        settings: what is measured.
        baseline: public-only texts of the run's settings, to be measured beside it.
        cache: where figures are looked up and kept.
        private_cache: where embeddings are kept, of the run's texts and real ones; None keeps none.
        previous: an earlier evaluation. Where no fine-tuning is asked for, its sweep is shown again
            if every figure is in the cache; its own figures are not used.
        engine: where seeds and fits are spread to. Embeddings, and texts where there are fits,
            travel to its workers. None works in this process.
        watch: called with what is done.

    Raises:
        InputError: the run is unfinished, the baseline is not its own, or texts or models cannot be
            used.
    """
    if not reader.has(HASHES):
        raise InputError(
            reader.name, "the run is unfinished, and figures of a part of it say little.", RESUME
        )
    watch("Reading texts", 0, 1)
    samples = reader.digest(SAMPLES)  # before hours of work, in which the file could change
    synthetic, label_lines = read_synthetic(reader)
    public = () if baseline is None else _read_baseline(baseline, reader, synthetic)
    corpus, own, warnings = _read(reader, synthetic, public, data, settings)
    embedder = Embedder(settings.embedding or OFFLINE, normalize=True, field="--embedding")
    classifier = None
    if settings.fine_tune is not None and corpus.labels:
        classifier = encoder_of(settings.classifier or OFFLINE, settings.fine_tune)
    bench = Bench(
        corpus, settings, Encoder.model_validate(embedder, from_attributes=True), classifier
    )
    figures = {
        task: found
        for task in bench.tasks
        if (found := cache.find(bench.key(task), NAMES[type(task)]))
    }
    missing = [task for task in bench.tasks if task not in figures]
    likelihood = (
        None
        if settings.likelihood is None
        else measure_run(reader, data, settings.likelihood, watch)
    )
    if any(not isinstance(task, FitTask) for task in missing):
        texts = sorted(
            {
                record.text
                for record in (*corpus.synthetic, *corpus.public, *corpus.reference, *corpus.test)
            }
        )
        vectors = embedder.embed(texts, private_cache, partial(watch, "Embedding texts"))
        bench = replace(bench, vectors=dict(zip(texts, vectors, strict=True)))
    with closing(
        (engine or LocalEngine(1)).map(partial(getattr, bench, "measure"), missing)
    ) as results:
        if missing:
            watch(TITLES[type(missing[0])], 0, len(missing))
        for done, (task, found) in enumerate(zip(missing, results, strict=True), start=1):
            cache.keep(bench.key(task), found)
            figures[task] = found
            watch(TITLES[type(task)], done, len(missing))
    mauve, downstream = (
        _mauve(bench, figures),
        (*_downstream(bench, figures), *_earlier_sweeps(bench, previous, cache)),
    )
    return Quality(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        samples=samples,
        synthetic=summary_of(corpus.synthetic),
        label_lines=label_lines,
        reference=summary_of(corpus.reference),
        own=own,
        features=bench.features,
        held_out=corpus.held_out,
        mauve=mauve,
        downstream=downstream,
        warnings=(*warnings, *_warnings(bench, figures)),
        versions=versions(),
        baseline=None
        if baseline is None
        else Baseline(
            samples=baseline.public.samples,
            texts=summary_of(public),
            added=added_by(mauve, downstream, len(corpus.test)),
        ),
        likelihood=likelihood,
    )


def _read_baseline(
    baseline: PublicReader, reader: RunReader, synthetic: tuple[Record, ...]
) -> tuple[Record, ...]:
    """Read a baseline's texts, at most as many of each label as the run has."""
    baseline.public.require_fit(baseline.where(PUBLIC), reader.manifest)
    texts, _ = read_synthetic(baseline)
    public = as_many(texts, synthetic)
    if not public:
        remedy = "Generate public-only texts with the run's own config."
        raise InputError(
            baseline.where(SAMPLES),
            "there is no text of a label that the run has texts of.",
            remedy,
        )
    return public


def _read(
    reader: RunReader,
    synthetic: tuple[Record, ...],
    public: tuple[Record, ...],
    data: RealData,
    settings: EvaluationSettings,
) -> tuple[Corpus, int | None, list[str]]:
    """Read all texts, count the run's own among the reference, and collect warnings of limits."""
    manifest, warnings = reader.manifest, list[str]()

    def real(name: str, option: str) -> tuple[Record, ...]:
        records, most = read_real(manifest, name, option, data), settings.most_records
        if len(records) > most:
            warnings.append(
                f"{option} has {len(records):,} records, of which {most:,} were used "
                "(--most-records)."
            )
        return subsample(records, most, settings.split_seed)

    reference = real(data.reference, "--reference")
    test = None if data.test is None else real(data.test, "--test")
    labels = manifest.data.labels or ()
    if labels and not {record.label for record in synthetic} <= set(labels):
        problem = "a text has a label that is not among data.labels."
        raise InputError(reader.where(SAMPLES), problem, "Audit the run: `dpaudit verify`.")
    count_own = own_records(reader)
    split: dict[str, Any] = {"share": settings.test_share, "seed": settings.split_seed}
    corpus = corpus_of(
        labels, synthetic, reference, test, **split, count_own=count_own, public=public
    )
    return corpus, None if count_own is None else count_own(reference), warnings


def _mauve(bench: Bench, figures: Mapping[Task, Figures]) -> Mauve | None:
    if bench.mauve is None:
        return None
    found = {
        of: scores(tuple(figures[MauveTask(seed, of)]["mauve"] for seed in bench.mauve.seeds))
        for of in dict.fromkeys(task.of for task in bench.tasks if isinstance(task, MauveTask))
    }
    return Mauve(
        settings=bench.mauve,
        wanted=bench.settings.n,
        real=len(bench.real),
        score=found["run"],
        ceiling=found["ceiling"],
        public=found.get("baseline"),
    )


def _downstream(bench: Bench, figures: Mapping[Task, Figures]) -> Iterator[Downstream]:
    """Yield the accuracies of trained classifiers: linear probes, fine-tuned encoders, or both."""
    for kind, encoder, settings in (
        (ProbeTask, bench.features, bench.settings.probe),
        (FitTask, bench.classifier, bench.settings.fine_tune),
    ):
        tasks = [task for task in bench.tasks if isinstance(task, kind) and task in figures]
        trained = [
            _source_accuracy(bench, [task for task in tasks if task.source == source], figures)
            for source in dict.fromkeys(task.source for task in tasks)
        ]
        if trained and encoder is not None and settings is not None:
            tested = Counter(record.label for record in bench.corpus.test)
            yield Downstream(
                method="linear-probe" if kind is ProbeTask else "fine-tuned",
                encoder=encoder,
                settings=settings,
                majority=max(tested.values()) / tested.total(),
                trained=tuple(trained),
            )


def _source_accuracy(
    bench: Bench, tasks: Sequence[ProbeTask | FitTask], figures: Mapping[Task, Figures]
) -> Trained:
    """Return one source's accuracy: of every probe, or of each seed's best fit."""
    fits = [task for task in tasks if isinstance(task, FitTask)]
    best = [
        _best([fit for fit in fits if fit.seed == seed], figures)
        for seed in dict.fromkeys(fit.seed for fit in fits)
    ]
    accuracies = [figures[fit]["test"] for fit in best] or [
        figures[probe]["accuracy"] for probe in tasks
    ]
    return Trained(
        source=tasks[0].source,
        texts=len(bench.training(tasks[0].source, tasks[0].seed)),
        accuracy=scores(tuple(accuracies)),
    )


def _best(fits: Sequence[FitTask], figures: Mapping[Task, Figures]) -> FitTask:
    """Return one seed's best fit by validation accuracy, then the lowest loss, then the first."""
    whole = [task for task in fits if figures[task]["best_epoch"]]
    if not whole:
        source, seed = fits[0].source, fits[0].seed
        problem = (
            f"with every rate, training on {source} texts ends in numbers that are not "
            f"finite (seed {seed})."
        )
        raise InputError("--learning-rate", problem, "Try smaller rates, or another encoder.")
    return min(whole, key=lambda task: (-figures[task]["validation"], figures[task]["loss"]))


def _earlier_sweeps(
    bench: Bench, previous: Quality | None, cache: ScoreCache
) -> Iterator[Downstream]:
    """Yield an earlier sweep on these very texts, if the cache has all of it.

    The run directory may be another's, and with it the evaluation that names the sweep: figures are
    the cache's alone, and their keys bind everything else that is shown.
    """
    if bench.settings.fine_tune is not None or previous is None:
        return
    for found in previous.downstream:
        if found.method == "fine-tuned":
            earlier = bench.earlier(found)
            fits = [task for task in earlier.tasks if isinstance(task, FitTask)]
            known: dict[Task, Figures] = {
                fit: figures
                for fit in fits
                if (figures := cache.find(earlier.key(fit), NAMES[FitTask])) is not None
            }
            # Of a baseline that was not there then, the sweep has nothing.
            whole = [
                source
                for source in earlier.sources
                if all(fit in known for fit in fits if fit.source == source)
            ]
            if set(whole) | {"public"} >= set(earlier.sources):
                kept = {
                    task: found
                    for task, found in known.items()
                    if getattr(task, "source", None) in whole
                }
                yield from _downstream(earlier, kept)


def _warnings(bench: Bench, figures: Mapping[Task, Figures]) -> Iterator[str]:
    """Yield the warnings for readers of the figures."""
    corpus, half = bench.corpus, len(bench.real) // 2
    texts, empty = (
        len(corpus.synthetic),
        sum(not record.text.strip() for record in corpus.synthetic),
    )
    if empty:
        yield f"{empty:,} of the run's {texts:,} texts are empty, or nothing but their label."
    if texts > 1 and (distinct := len(distinct_texts(corpus.synthetic))) <= texts / 2:
        yield f"Of the run's {texts:,} texts {distinct:,} are distinct, up to case and white space."
    if corpus.public and len(corpus.public) < texts:
        yield (
            f"The baseline has {len(corpus.public):,} texts of the run's labels, fewer than its "
            f"{texts:,}: accuracy is "
            "lower of fewer texts. Raise the number of batches of a label, and generate it again."
        )
    if bench.mauve is None:
        yield "No MAUVE: it needs 2 texts of the run, and 4 distinct ones of the reference."
    elif bench.mauve.n < (wanted := max(bench.settings.n, PAPER_N)):
        yield (
            f"MAUVE is of n = {bench.mauve.n:,} texts a side, fewer than {wanted:,} (the run has "
            f"{texts:,} texts, "
            f"half of the reference's distinct ones are {half:,}). Of few texts it is biased "
            "upwards, and its scale "
            "depends on n: compare it with its ceiling, and with runs of the same n."
        )
    if not bench.corpus.labels:
        yield "No accuracy: it is of classifiers of labels, and the run has none."
        return
    if not bench.sources:
        yield (
            "No accuracy: it needs two labels, and two texts of the run that are not among the "
            "test texts."
        )
        return
    yield from _of_training(bench)
    yield from _of_the_test(bench.corpus)
    unfinished = sum(
        not found["converged"] for task, found in figures.items() if isinstance(task, ProbeTask)
    )
    if unfinished:
        yield f"{unfinished} linear probes did not converge: give them more --probe-iterations."


def _of_training(bench: Bench) -> Iterator[str]:
    corpus = bench.corpus
    missing = len(set(corpus.labels) - {record.label for record in corpus.trainable})
    if missing:
        yield (
            f"Of {len(corpus.labels)} labels the run has no text with {missing}: classifiers "
            "cannot find these."
        )
    if len(corpus.trainable) < _FEW:
        yield (
            f"Classifiers were trained on {len(corpus.trainable)} synthetic texts: so few say "
            "little."
        )
    wanted, found = len(corpus.trainable), len(bench.training("real-same-size", 0))
    if found < wanted:
        yield (
            f"There are {found:,} real texts for {wanted:,} synthetic ones of the same labels: "
            "what is called the same "
            "size is smaller."
        )


def _of_the_test(corpus: Corpus) -> Iterator[str]:
    held, texts = corpus.held_out, len(corpus.test)
    missing = len(set(corpus.labels) - {record.label for record in corpus.test})
    if missing:
        yield (
            f"Of {len(corpus.labels)} labels {missing} have no test text: accuracy says "
            "nothing of these."
        )
    if held is None or held.own == 0:
        return
    if held.own is None:
        said = "It is not known whether the run was made from test texts"
    else:
        said = f"The run was made from {held.own:,} of the {texts:,} test texts"
    yield (
        f"{said}: no classifier was trained on them, but the generator's prompts may have shown "
        "them. Give texts that "
        "were held out from the run with --test."
    )
