"""The record's size, against raw central order statistics, and its share of generation's time."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest import mock

import numpy as np

from benchmarks.rows import Row, Wanted
from benchmarks.timing import Clock
from benchmarks.workload import TOP, Workload, workload
from dpaudit.generation import algorithm
from dpaudit.generation.models import LanguageModel
from dpaudit.mechanisms import movable
from dpaudit.runs import RunReader, RunWriter, Step
from dpaudit.runs.batches import BatchWriter

CLIPS = (6.0, 7.0, 8.0, 9.0, 12.0)
#: The paper's clip for the median. The larger the clip, the more of the values are random bits that
#: nothing can spare.
PAPER = 6.0
THIRD = Wanted("at most", 100 / 3)
#: A small model writes language only where the clipped range is many temperatures wide, as in
#: `dpaudit demo`.
RANGE = 15.0
GRID = 2.0**-6
#: Bytes of a float32.
FLOAT = 4
#: The arrays of a step file that the central statistics are decoded from.
CENTRAL = ("central", "constant")


def rows(small: bool) -> Iterator[Row]:
    """Measure for each clip: bytes of central statistics and of all, time, a grid's savings.

    Then measure an anchored run.
    """
    with TemporaryDirectory() as folder:
        contexts, tokens = (4, 4) if small else (32, 16)
        work, model = workload(
            Path(folder), small=small, contexts=contexts, batches=2, tokens=tokens
        )
        for clip in CLIPS[:1] if small else CLIPS:
            yield from _clip_rows(work, model, clip)
        yield _anchored_row(work, model)


class Measured(NamedTuple):
    """Bytes of a step's central statistics and of all, and seconds to write it."""

    central: float
    whole: float
    writing: float


def _clip_rows(work: Workload, model: LanguageModel, clip: float) -> Iterator[Row]:
    writing = Clock()
    with TemporaryDirectory() as folder, ExitStack() as patches:
        run = Path(folder) / "run"
        patches.enter_context(mock.patch.object(algorithm, "load_model", lambda *_, **__: model))
        for owner, name in ((BatchWriter, "write"), (BatchWriter, "finish"), (RunWriter, "finish")):
            patches.enter_context(writing.around(owner, name))
        start = time.perf_counter()
        algorithm.generate(work.config(clip=clip, temperature=clip / RANGE), run)
        elapsed = time.perf_counter() - start
        reader = RunReader(run)
        steps = sum(len(sample.tokens) for sample in reader.samples())
        plain = Measured(*_sizes(run / "steps", steps), writing.seconds / steps)
        on_grid = _on_grid(reader, Path(folder), steps)
        raw = _raw_bytes(reader)
    yield from _rows(
        f"clip {clip:g}, no grid", plain, raw, elapsed / steps, THIRD if clip == PAPER else None
    )
    yield from _rows(f"clip {clip:g}, grid {GRID:g}", on_grid, raw, elapsed / steps, None)
    saved = 100 * on_grid.whole / plain.whole
    yield Row(
        "record",
        f"whole record on a grid over one off it: clip {clip:g}",
        saved,
        "%",
        Wanted("at most", 50),
    )


def _anchored_row(work: Workload, model: LanguageModel) -> Row:
    """Return the bytes of a step that records all contexts' differences over a public support."""
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(algorithm, "load_model", lambda *_, **__: model),
    ):
        run = Path(folder) / "run"
        algorithm.generate(work.anchored(), run)
        _, whole = _sizes(
            run / "steps", sum(len(sample.tokens) for sample in RunReader(run).samples())
        )
    raw = work.contexts * TOP * FLOAT
    figures = {"KiB a step": whole / 1024, "raw, KiB a step": raw / 1024}
    what = f"whole record over raw differences: anchored, {work.contexts} contexts, top {TOP}"
    return Row("record", what, 100 * whole / raw, "%", Wanted("at most", 150), figures)


def _rows(
    case: str, found: Measured, raw: float, step: float, bound: Wanted | None
) -> Iterator[Row]:
    for what, size, wanted in (
        ("central", found.central, None),
        ("whole record", found.whole, bound),
    ):
        figures = {"KiB a step": size / 1024, "raw, KiB a step": raw / 1024}
        yield Row(
            "record", f"{what} over raw central: {case}", 100 * size / raw, "%", wanted, figures
        )
    figures = {"writing, ms a step": 1e3 * found.writing, "all, ms a step": 1e3 * step}
    share = 100 * found.writing / step
    yield Row(
        "record",
        f"time to write over generation: {case}",
        share,
        "%",
        Wanted("at most", 10),
        figures,
    )


def _on_grid(reader: RunReader, folder: Path, steps: int) -> Measured:
    """Measure the same steps as if every context's logits had been rounded.

    Rounding keeps the order, so it may as well come after the central statistics are taken.
    """
    manifest = reader.manifest
    contribution = manifest.mechanism.contribution.model_copy(update={"grid": GRID})
    mechanism = manifest.mechanism.model_copy(update={"contribution": contribution})
    rounded = folder / "rounded"
    rounded.mkdir()
    seconds = 0.0
    for number in reader.batches:
        with reader.batch(number) as batch:
            found = [_rounded(step) for step in batch.steps()]
            start = time.perf_counter()
            path = rounded / f"{number}.zip"
            writer = BatchWriter(
                path, manifest.model_copy(update={"mechanism": mechanism}), batch.header
            )
            for step in found:
                writer.write(step)
            (sample,) = batch.samples()
            writer.finish(text=sample.text, stop=sample.stop)
            seconds += time.perf_counter() - start
    return Measured(*_sizes(rounded, steps), seconds / steps)


def _rounded(step: Step) -> Step:
    grid = np.float32(GRID)
    central = np.rint(step.arrays["central"] / grid) * grid + np.float32(0)  # no negative zeros
    others = {
        name: array * movable(central) for name, array in step.arrays.items() if name != "central"
    }
    return replace(step, arrays={"central": central, **others})


def _sizes(folder: Path, steps: int) -> tuple[float, float]:
    """Return the stored bytes a step of the arrays for central statistics, and of whole files."""
    central = whole = 0
    for path in folder.iterdir():
        whole += path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            central += sum(
                entry.compress_size
                for entry in archive.infolist()
                if entry.filename.partition("/")[0] in CENTRAL
            )
    return central / steps, whole / steps


def _raw_bytes(reader: RunReader) -> int:
    """Return bytes of one step's central order statistics as plain float32."""
    with reader.batch(reader.batches[0]) as batch:
        return batch.step(0).arrays["central"].size * FLOAT
