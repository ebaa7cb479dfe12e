"""Tokens per second of whole generation, recording included, against a bare loop and InvisibleInk.

Of medians over the whole vocabulary, and of anchored means over the tokens of a public support.

All continue the same prompts of the same model by as many tokens, and loading the model is nobody's
time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from benchmarks.rivals import INVINK, Rivals
from benchmarks.rows import Row, Wanted
from benchmarks.timing import Timings, interleaved
from benchmarks.workload import TOP, Workload, workload
from dpaudit.generation import algorithm
from dpaudit.generation.config import Config
from dpaudit.generation.models import LanguageModel
from dpaudit.runs import RunReader

#: The paper's settings for the median.
CLIP, TEMPERATURE = 6.0, 1.5
#: Contexts of a batch, and batches: the most rows that InvisibleInk recommends, and its own
#: default.
CASES = ((32, 2), (8, 8))
#: Of a text: enough for them, and not the prompts, to take most of the time.
TOKENS = 64


def rows(small: bool) -> Iterator[Row]:
    """Compare with the bare loop in two rows, and with InvisibleInk in one, by contexts."""
    for contexts, batches in ((4, 2),) if small else CASES:
        with TemporaryDirectory() as folder:
            tokens = 4 if small else TOKENS
            work, model = workload(
                Path(folder), small=small, contexts=contexts, batches=batches, tokens=tokens
            )
            with Rivals(work) as rivals:
                yield from _rows(work, model, rivals, rounds=1 if small else 3)


def _rows(work: Workload, model: LanguageModel, rivals: Rivals, rounds: int) -> Iterator[Row]:
    together = _rows_together(work, model)
    cases = {
        "ours": lambda: _generate(work.config(clip=CLIP, temperature=TEMPERATURE), model),
        "anchored": lambda: _generate(work.anchored(), model),
        "bare": lambda: rivals.bare(together),
    }
    reason = rivals.lacks_invink()
    timings = interleaved(cases if reason else {**cases, INVINK: rivals.invink}, rounds, warm=False)
    case = (
        f"{work.batches} texts of {work.contexts} contexts and {work.tokens} tokens, "
        f"{model.device.type}"
    )
    yield _row(
        f"ours over a bare loop: {case}",
        timings,
        "bare",
        Wanted("at least", 0.9),
        {"rows": together},
    )
    anchored = f"ours, anchored, top {TOP}, over a bare loop: {case}"
    yield _row(anchored, timings, "bare", Wanted("at least", 1.2), {"rows": together}, "anchored")
    against = f"ours over {INVINK}: {case}"
    if reason:
        yield Row("generation", against, None, wanted=Wanted("at least", 1.1), skipped=reason)
    else:
        yield _row(against, timings, INVINK, Wanted("at least", 1.1), {})


def _row(
    what: str,
    timings: Timings,
    other: str,
    wanted: Wanted,
    more: dict[str, int],
    ours: str = "ours",
) -> Row:
    """Return a row: a ratio of rates is the inverse ratio of the seconds that a token takes."""
    figures = {f"{name}, tokens/s": 1 / timings.median(name) for name in (ours, other)}
    spread = {"lowest to highest": timings.spread(other, ours)}
    return Row(
        "generation",
        what,
        timings.ratio(other, ours),
        wanted=wanted,
        figures={**figures, **spread, **more},
    )


def _rows_together(work: Workload, model: LanguageModel) -> int:
    """Return the contexts that `generation` forwards together: whole batches. Also warm up."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with mock.patch.object(algorithm, "load_model", lambda _: model):
            algorithm.generate(work.config(clip=CLIP, temperature=TEMPERATURE, tokens=1), run)
        planned = RunReader(run).manifest.model.rows or 1
    return work.contexts * max(1, min(planned // work.contexts, work.batches))


def _generate(config: Config, model: LanguageModel) -> float:
    """Return seconds a token of a whole run, from the records to the last digest."""
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(algorithm, "load_model", lambda _: model),
    ):
        run = Path(folder) / "run"
        start = time.perf_counter()
        algorithm.generate(config, run)
        elapsed = time.perf_counter() - start
        return elapsed / sum(len(sample.tokens) for sample in RunReader(run).samples())
