"""Tokens per second of whole generation, recording included, against a bare loop and InvisibleInk.

Of medians over the whole vocabulary, and of anchored means over the tokens of a public support.

All continue the same prompts of the same model by as many tokens, and loading the model is nobody's
time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import torch

from benchmarks.rivals import INVINK, Rivals
from benchmarks.rows import Row, Wanted
from benchmarks.timing import Timings, command, interleaved
from benchmarks.workload import GEMMA, SMOLLM2, TOP, Workload, workload, write_config
from dpaudit.generation import algorithm
from dpaudit.generation.config import Config, ModelConfig
from dpaudit.generation.joined import JOINED
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.models import LanguageModel, dtype_of
from dpaudit.generation.starting import demo_configs
from dpaudit.runs import RunReader

#: The paper's settings for the median.
CLIP, TEMPERATURE = 6.0, 1.5
#: Contexts of a batch, the most rows that InvisibleInk recommends; and batches.
CONTEXTS, BATCHES = 32, 2
#: Wanted of texts over a support, beside a bare loop that scores no token at all: over one that
#: scores all tokens they cannot gain more than that one does. What they lose is the public prompts'
#: pass, which reads all weights once more: of Gemma's, most are its head's.
HEADLESS = {SMOLLM2: Wanted("at least", 0.8), GEMMA: Wanted("at least", 0.65)}
#: Of a text: enough for them, and not the prompts, to take most of the time; and beside
#: InvisibleInk, which takes minutes for as many.
TOKENS, FEW_TOKENS = 64, 8
DEMO = f"`dpaudit generate` of the demo's central mean, whole command: {GEMMA} over SmolLM2-135M"
#: Twice the parameters, five times the vocabulary: of which a step needs some hundred rows.
DEMO_RATIO = Wanted("at most", 1.8)


def rows(small: bool) -> Iterator[Row]:
    """Compare with the bare loop and with InvisibleInk, by the model's vocabulary.

    With Gemma's, only texts over a support are looked at: the others pay for its head as all do.
    """
    if small:
        yield from _compared(small, 4, BATCHES, SMOLLM2)
        return
    yield from _compared(small, CONTEXTS, BATCHES, SMOLLM2)
    yield from _halved()
    if JOINED[GEMMA].folder.is_dir():
        yield from _compared(small, CONTEXTS, BATCHES, GEMMA)
        yield _demo()
    else:
        what = f"{_headless(GEMMA)}: {BATCHES} texts of {CONTEXTS} contexts and {TOKENS} tokens"
        reason = f"{GEMMA} is not joined: dpaudit demo --model {GEMMA}"
        yield Row("generation", what, None, wanted=HEADLESS[GEMMA], skipped=reason)
        yield Row("generation", DEMO, None, wanted=DEMO_RATIO, skipped=reason)


def _demo() -> Row:
    """Measure a whole command: the demo's central mean, a text a label, loading included."""
    seconds: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        for name in (GEMMA, SMOLLM2):
            config = demo_configs(name)["central"]
            one = config.batching.model_copy(update={"generate_per_label": 1})
            file = Path(folder) / f"{len(seconds)}.yaml"
            write_config(config.model_copy(update={"batching": one}), file)
            run = str(file.with_suffix(""))
            seconds[name] = command("-m", "dpaudit", "generate", str(file), "--out", run).wall
    ratio = seconds[GEMMA] / seconds[SMOLLM2]
    figures = {f"{name}, s": each for name, each in seconds.items()}
    return Row(
        "generation", f"{DEMO}, 5 texts of 48 tokens", ratio, wanted=DEMO_RATIO, figures=figures
    )


def _halved() -> Iterator[Row]:
    """Compare anchored texts in bfloat16 with the same in float32, where the CPU computes in it."""
    what = f"ours, anchored, in bfloat16 over float32: {BATCHES} texts of {CONTEXTS} contexts"
    if dtype_of(ModelConfig(name=SMOLLM2, dtype="auto"), torch.device("cpu")) == torch.float32:
        yield Row("generation", what, None, skipped="this CPU does not compute in bfloat16")
        return
    with TemporaryDirectory() as folder:
        work, model = workload(
            Path(folder), small=False, contexts=CONTEXTS, batches=BATCHES, tokens=TOKENS
        )
        half = replace(work, model=work.model.model_copy(update={"dtype": "auto"}))
        models = {"float32": (work, model), "bfloat16": (half, load_model(half.model))}
        timings = interleaved(
            {name: partial(_generate, each.anchored(), of) for name, (each, of) in models.items()},
            rounds=3,
            warm=False,
        )
    yield _row(what, timings, "float32", None, {}, "bfloat16")


def _compared(small: bool, contexts: int, batches: int, name: str) -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        tokens = 4 if small else TOKENS
        work, model = workload(
            Path(folder), small=small, contexts=contexts, batches=batches, tokens=tokens, name=name
        )
        with Rivals(work) as rivals:
            rounds = 1 if small else 3
            yield from _rows(work, model, rivals, name, rounds)
            few = replace(work, tokens=min(tokens, FEW_TOKENS))
            yield _beside_invink(few, model, rivals, name, rounds)


def _anchored(name: str) -> str:
    return f"ours, anchored, top {TOP}{_of(name)}, over a bare loop"


def _headless(name: str) -> str:
    return f"{_anchored(name)} without its head"


def _of(name: str) -> str:
    """Return how a row names a model; the usual one has no name."""
    return "" if name == SMOLLM2 else f", {name}"


def _rows(
    work: Workload, model: LanguageModel, rivals: Rivals, name: str, rounds: int
) -> Iterator[Row]:
    together = _rows_together(work, model)
    cases = {
        "anchored": lambda: _generate(work.anchored(), model),
        "bare": lambda: rivals.bare(together),
        "bare, no head": lambda: rivals.bare(together, head=False),
    }
    if name == SMOLLM2:
        config = work.config(clip=CLIP, temperature=TEMPERATURE)
        cases |= {"ours": lambda: _generate(config, model)}
    timings = interleaved(cases, rounds, warm=False)
    case = _case(work, model)
    more = {"rows": together}
    if "ours" in cases:
        whole = f"ours over a bare loop: {case}"
        yield _row(whole, timings, "bare", Wanted("at least", 0.9), more)
    least = f"a bare loop without its head{_of(name)}, over one with it: {case}"
    yield _row(least, timings, "bare", None, more, "bare, no head")
    yield _row(f"{_anchored(name)}: {case}", timings, "bare", None, more, "anchored")
    held = f"{_headless(name)}: {case}"
    yield _row(held, timings, "bare, no head", HEADLESS[name], more, "anchored")


def _beside_invink(
    work: Workload, model: LanguageModel, rivals: Rivals, name: str, rounds: int
) -> Row:
    """Compare medians with InvisibleInk; with Gemma, anchored texts."""
    config = work.config(clip=CLIP, temperature=TEMPERATURE) if name == SMOLLM2 else work.anchored()
    ours = "ours" if name == SMOLLM2 else "ours, anchored"
    what, wanted = f"{ours} over {INVINK}{_of(name)}: {_case(work, model)}", Wanted("at least", 1.1)
    if reason := rivals.lacks_invink():
        return Row("generation", what, None, wanted=wanted, skipped=reason)
    cases = {"ours": lambda: _generate(config, model), INVINK: lambda: rivals.invink(work.tokens)}
    return _row(what, interleaved(cases, rounds, warm=False), INVINK, wanted, {})


def _case(work: Workload, model: LanguageModel) -> str:
    return (
        f"{work.batches} texts of {work.contexts} contexts and {work.tokens} tokens, "
        f"{model.device.type}"
    )


def _row(
    what: str,
    timings: Timings,
    other: str,
    wanted: Wanted | None,
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
        with mock.patch.object(algorithm, "load_model", lambda *_, **__: model):
            algorithm.generate(work.config(clip=CLIP, temperature=TEMPERATURE, tokens=1), run)
        planned = RunReader(run).manifest.model.rows or 1
    return work.contexts * max(1, min(planned // work.contexts, work.batches))


def _generate(config: Config, model: LanguageModel) -> float:
    """Return seconds a token of a whole run, from the records to the last digest."""
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(algorithm, "load_model", lambda *_, **__: model),
    ):
        run = Path(folder) / "run"
        start = time.perf_counter()
        algorithm.generate(config, run)
        elapsed = time.perf_counter() - start
        return elapsed / sum(len(sample.tokens) for sample in RunReader(run).samples())
