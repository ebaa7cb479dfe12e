"""Evaluations from Python: how good a run's texts are. Every figure is private."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpaudit.api import places
from dpaudit.api.audits import quality_of, worth_of
from dpaudit.api.missing import missing
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.shown import Shown
from dpaudit.api.tables import Records, records_file, require_there
from dpaudit.results.quality import Quality
from dpaudit.results.rounding import lower_bound, nearest
from dpaudit.runs import InputError, RunReader

if TYPE_CHECKING:
    from dpaudit.results.worth import PaidGain
    from dpaudit.runs.engines import Engine


class Evaluation(Shown[Quality]):
    """The quality of a run's texts. Computed from private records: do not publish it.

    Attributes:
        run: the run directory, as it was named.
        file: evaluation.json, which reports and comparisons of the run show.
        paid: the gain of held-out records with noise that was paid for, the one figure here that
            may be published; None without `epsilon`.
    """

    def __init__(
        self, run: places.Location, result: Quality, file: Path, paid: PaidGain | None
    ) -> None:
        super().__init__(result)
        self.run, self.file, self.paid = run, file, paid

    def _title(self) -> str:
        return f"Evaluation of {self.run} (private)"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            (
                "texts",
                f"{self.result.synthetic.texts:,} synthetic, {self.result.reference.texts:,} real",
            )
        ]
        rows += [
            (str(each.measure), f"{nearest(each.difference, 3)} added by the records")
            for each in self.result.added
        ]
        if self.paid is not None:
            least = lower_bound(self.paid.at_least, 3)
            rows.append(("paid for", f"at least {least} nats a token, epsilon {self.paid.spent:g}"))
        return [*rows, ("warnings", str(len(self.result.warnings))), ("file", str(self.file))]


def evaluate(
    run: str | os.PathLike[str],
    reference: Records,
    *,
    test: Records | None = None,
    baseline: str | os.PathLike[str] | None = None,
    text: str | None = None,
    label: str | None = None,
    epsilon: float | None = None,
    private_cache: str | os.PathLike[str] | None = None,
    engine: Engine | None = None,
    monitor: Monitor = SILENT,
    **settings: Any,
) -> Evaluation:
    """Measure a run's texts, and write evaluation.json into its report folder.

    Measures are MAUVE, accuracy and held-out likelihood.

    Args:
        run: the run directory.
        reference: real records: a path, NAME:SPLIT of a hub's data set, a pandas.DataFrame or a
            datasets.Dataset.
        test: held-out real records for accuracy and likelihood; None to hold out a share of the
            reference.
        baseline: a folder of `generate_public`, to be measured beside the run; None for the one
            that `generate` made, if any.
        epsilon: also measure the gain of the records that the run held out, with noise that costs
            this epsilon, in nats: a figure for a public card and for a policy. The reference is
            the run's private data then. Each call pays anew.
        text: their column of texts; None for the run's own.
        label: their column of labels; None for the run's own.
        private_cache: keep embeddings of all texts in this folder. They are as sensitive as the
            texts.
        engine: where models work; None for this process.
        monitor: receives progress and warnings.
        settings: the options of `dpaudit evaluate` by name, such as n, seeds, embedding or
            likelihood. One that is None or empty has its default.

    Raises:
        InputError: a package is missing, or the run, the records or a setting cannot be used.
    """
    from dpaudit.results.quality_file import EVALUATION, WORTH, require_place, write_measures
    from dpaudit.results.worth import Worth
    from dpaudit.runs.layout import SAMPLES
    from dpaudit.runs.public import PublicReader

    where = places.location_of(run)
    reader = RunReader(where)  # a mistyped path is told before torch is loaded
    beside = places.baseline_of(where) if baseline is None else baseline
    public = None if beside is None else PublicReader(places.location_of(beside, "baseline"))
    folder = places.report_folder(where, "internal")
    for name in (EVALUATION, WORTH):
        require_place(folder / name)
    for argument, records in (("reference", reference), ("test", test)):
        require_there(records, argument, reader.manifest)
    from dpaudit.generation.evaluation.settings import settings_from_options
    from dpaudit.generation.evaluation.texts import RealData

    chosen = settings_from_options(
        {name: value for name, value in settings.items() if value not in (None, (), False)}
    )
    previous, _ = quality_of(where)
    with (
        records_file(reference, "reference") as real,
        nullcontext() if test is None else records_file(test, "test") as held_out,
        monitor.steps() as watch,
    ):
        try:  # seconds of imports, which the monitor is to show
            from dpaudit.generation.caches import ScoreCache, VectorCache
            from dpaudit.generation.evaluation.protocol import evaluate as run_evaluation
        except ModuleNotFoundError as error:
            raise missing("evaluate", error.name, "evaluate") from None
        data, paid = RealData(real, held_out, text, label), None
        worth, problem = worth_of(where)
        if epsilon is not None:
            from dpaudit.generation.evaluation.worth import pay_for_gain

            if problem:
                raise InputError("--epsilon", problem, "Then give the command again.")
            measured = pay_for_gain(reader, data, epsilon, worth, watch)
            # written before anybody sees it: what it cost is spent by then
            write_measures(measured, folder)
            paid = measured.paid
        elif not problem and reader.manifest.batching.held_out and not (worth and worth.gain):
            from dpaudit.generation.evaluation.worth import gain_of_run

            try:
                gain = gain_of_run(reader, data, watch).gain
            except InputError as error:
                monitor.warn(f"what the records added was not measured: {error}")
            else:
                before = worth or Worth(samples=reader.digest(SAMPLES))
                write_measures(before.model_copy(update={"gain": gain}), folder)
        vectors = None
        if private_cache is not None:
            vectors = VectorCache(folder=places.path_of(private_cache, "private_cache"))
        cache = ScoreCache()
        cache.require()
        quality = run_evaluation(
            reader,
            data,
            chosen,
            baseline=public,
            cache=cache,
            private_cache=vectors,
            previous=previous,
            engine=engine,
            watch=watch,
        )
    for warning in quality.warnings:
        monitor.warn(warning)
    return Evaluation(where, quality, write_measures(quality, folder), paid)
