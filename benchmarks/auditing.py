"""An audit's cost, against reading the same arrays: seconds a step, and memory as the run grows."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np
from numcodecs.blosc import decompress

from benchmarks.rows import Row, Wanted
from benchmarks.synthetic import ANCHORED, ANCHORED_FULL, MECHANISM, WIDTH, Shape, write_run
from benchmarks.timing import command, interleaved
from dpaudit.accounting import ExPostAccountant
from dpaudit.auditing.run import audit_run
from dpaudit.mechanisms import ContextChange
from dpaudit.runs import RunReader, Step
from dpaudit.runs.encoding import FloatCode
from dpaudit.runs.engines import Engine, LocalEngine, cores
from dpaudit.runs.layout import steps_file

#: As large as SmolLM2's.
VOCABULARY = 49_152
#: Contexts of a batch over a support.
SUPPORT_CONTEXTS = 32
#: As large as Gemma's.
FULL = 256_000
#: Steps of a million texts of 64 tokens.
MILLION_TEXTS = 64e6
#: Imports of numpy and pydantic: what commands' CPU time is counted in, since machines differ. They
#: took .3 s where the goals were set in seconds.
UNIT = ("-c", "import numpy, pydantic; pydantic.BaseModel")
#: Most units of `dpaudit verify`, by the number of batches.
VERIFY_UNITS = {10: 2.0, 100: 3.3, 1000: 16.7}
#: Rounds of a verification that takes longer than all other commands.
LONG, LONG_ROUNDS = 1000, 2
EXAMPLE = Path(__file__).parents[1] / "examples/runs/bbc-median"
BUDGET = "--clip 2 --temperature 1 --records 108000 --tokens 200 --epsilon 3"
#: Where arrays are read, and every cost of a step is worked out, with nothing else.
FLOOR = "one core, over decompression and 25 lines of numpy"
#: How `peak_memory` is run in a process of its own.
PEAK = "import sys; from benchmarks.auditing import peak_memory; print(peak_memory(sys.argv[1]))"


def rows(small: bool) -> Iterator[Row]:
    """Compare accounting and audits with reading, and anchored records with whole vocabularies.

    Then measure peak memory.
    """
    shape = (
        Shape(2, 2, 8, 512)
        if small
        else Shape(batches=8, steps=12, contexts=32, vocabulary=VOCABULARY)
    )
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, shape)
        yield from _times(run, shape, rounds=1 if small else 5)
        yield from _anchored(Path(folder), shape, run, rounds=1 if small else 5)
        yield from _support(Path(folder), batches=2 if small else 64, rounds=1 if small else 5)
        yield from _whole(Path(folder), 1 << 16 if small else FULL, rounds=1 if small else 5)
        sizes = (10,) if small else (10, 100, LONG)  # fewer batches pass no audit
        yield from _commands(Path(folder), sizes, rounds=1 if small else 5)
    if not sys.platform.startswith("linux"):
        yield Row("audit", "peak memory", None, skipped="only measured on Linux")
        return
    few, many = (2, 6) if small else (10, 1000)
    yield _memory(few, many, Shape(0, 4, 8, 2048))
    if not small:
        yield _memory(2, 20, Shape(0, 3, 32, VOCABULARY))
        # Small ones, for what is kept of a batch is the same, and writing large ones takes minutes.
        yield _memory(10, 10_000, Shape(0, 2, 4, 64))


def _times(run: Path, shape: Shape, rounds: int) -> Iterator[Row]:
    steps = list(_read(run))
    cases = {
        "read": lambda: sum(1 for _ in _read(run)),
        "account": lambda: _account(steps),
        "audit": lambda: _require_pass(run, LocalEngine(1)),
        "audit, all cores": lambda: _require_pass(run),
    }
    timings = interleaved(cases, rounds)
    number = shape.batches * shape.steps
    case = f"{number} steps of {shape.contexts} contexts and {shape.vocabulary:,} tokens"
    for what, name, wanted in (
        ("accounting and every leave-one-out loss over reading", "account", Wanted("at most", 3)),
        ("whole audit over reading, one core", "audit", None),
        (f"whole audit over reading, {cores()} cores", "audit, all cores", None),
    ):
        figures: dict[str, float | str] = {
            f"{name}, ms a step": timings.median(name) / number * 1e3,
            "read, ms a step": timings.median("read") / number * 1e3,
            "lowest to highest": timings.spread(name, "read"),
        }
        yield Row(
            "audit", f"{what}: {case}", timings.ratio(name, "read"), wanted=wanted, figures=figures
        )


def _anchored(folder: Path, shape: Shape, medians: Path, rounds: int) -> Iterator[Row]:
    """Compare the steps a second of an anchored record with those of larger records.

    An anchored record has a support's tokens with every context's differences. It has more steps,
    so that what an audit does once a run does not count for much in either.
    """
    shapes = {
        "anchored": replace(shape, steps=8 * shape.steps, mechanism=ANCHORED),
        "whole vocabulary": replace(shape, steps=2, mechanism=ANCHORED_FULL),
        "medians": shape,
    }
    runs = {name: folder / name for name in shapes} | {"medians": medians}
    for name in ("anchored", "whole vocabulary"):
        write_run(runs[name], shapes[name])
    timings = interleaved(
        {name: partial(_require_pass, run, LocalEngine(1)) for name, run in runs.items()}, rounds
    )
    steps = {name: each.batches * each.steps for name, each in shapes.items()}
    rates = {name: f"{steps[name] / timings.median(name):.3g}" for name in runs}
    case = f"{shape.contexts} contexts, {ANCHORED.support.size} of {shape.vocabulary:,} tokens"
    for what, other, wanted in (
        ("the same of the whole vocabulary", "whole vocabulary", Wanted("at least", 20)),
        ("medians of the whole vocabulary without contexts", "medians", None),
    ):
        ratios = [
            ratio * steps["anchored"] / steps[other] for ratio in timings.ratios(other, "anchored")
        ]
        figures = {f"{name}, steps/s": rates[name] for name in ("anchored", other)}
        figures |= {"lowest to highest": f"{min(ratios):.3g} to {max(ratios):.3g}"}
        said = (
            "steps a second of a whole audit, one core, anchored with all contexts, over "
            f"{what}: {case}"
        )
        yield Row("audit", said, median(ratios), wanted=wanted, figures=figures)


def _support(folder: Path, batches: int, rounds: int) -> Iterator[Row]:
    """Compare an audit of anchored steps over a support with a floor, in CPU time of one core."""
    shape = Shape(batches, 64, contexts=SUPPORT_CONTEXTS, vocabulary=4096, mechanism=ANCHORED)
    case = f"{shape.contexts} contexts, {ANCHORED.support.size} tokens"
    what = f"audit of a support, {FLOOR}: {case}"
    row = _over_floor(folder / "support", shape, what, _floor, rounds)
    yield row
    hours = float(row.figures["audit, ms CPU a step"]) * MILLION_TEXTS / 3.6e6
    what = f"audit of a million texts of 64 tokens, in core hours, by proportion: {case}"
    yield Row("audit", what, hours, unit="h", wanted=Wanted("at most", 6))


def _whole(folder: Path, vocabulary: int, rounds: int) -> Iterator[Row]:
    """Compare an audit of medians over a whole vocabulary with a floor, in CPU time of one core."""
    shape = Shape(2, 8, contexts=64, vocabulary=vocabulary)
    what = f"audit of medians, {FLOOR}: {shape.contexts} contexts, {vocabulary:,} tokens"
    yield _over_floor(folder / "whole", shape, what, _floor_of_medians, rounds)


def _over_floor(
    run: Path, shape: Shape, what: str, floor: Callable[[Path], object], rounds: int
) -> Row:
    write_run(run, shape)
    cases: dict[str, Callable[[Path], object]] = {
        "floor": floor,
        "audit": partial(_require_pass, engine=LocalEngine(1)),
    }
    timings = interleaved(
        {name: partial(_cpu_seconds, case, run) for name, case in cases.items()}, rounds
    )
    number = shape.batches * shape.steps
    return Row(
        "audit",
        what,
        timings.ratio("audit", "floor"),
        figures={
            **{
                f"{name}, ms CPU a step": min(timings.seconds[name]) / number * 1e3
                for name in cases
            },
            "lowest to highest": timings.spread("audit", "floor"),
        },
    )


def _commands(folder: Path, sizes: tuple[int, ...], rounds: int) -> Iterator[Row]:
    """Compare commands' CPU time with the imports of numpy and pydantic, the least of each.

    Runs of more and more batches have 16 steps a batch over a support.
    """
    run = str(shutil.copytree(EXAMPLE, folder / "example"))
    cases = {
        "imports": UNIT,
        "verify": ("-m", "dpaudit", "verify", run),
        "report": ("-m", "dpaudit", "report", run),
        "budget": ("-m", "dpaudit", "budget", *BUDGET.split()),
    }
    of_supports = {}
    for batches in sizes:
        support, name = folder / f"verified-{batches}", f"verify of {batches:,} batches"
        write_run(support, Shape(batches, 16, 32, 4096, ANCHORED))
        cases[name] = ("-m", "dpaudit", "verify", str(support))
        of_supports[name] = batches
    for name in ("imports", "report", "budget"):  # compiles what is not yet
        command(*cases[name])
    found = defaultdict[str, list[float]](list)
    for done in range(rounds):
        for name, arguments in cases.items():
            if done < LONG_ROUNDS or of_supports.get(name, 0) < LONG:
                found[name].append(command(*arguments).cpu)
    least = {name: min(seconds) for name, seconds in found.items()}
    unit = least["imports"]
    what = "CPU time over the imports of numpy and pydantic"
    most = {"verify": 4.0, "budget": 3.5}
    most |= {name: VERIFY_UNITS[size] for name, size in of_supports.items() if size in VERIFY_UNITS}
    for name in ("verify", "budget", *of_supports):
        yield Row(
            "audit",
            f"{what}: dpaudit {name}" + " of a support" * (name in of_supports),
            least[name] / unit,
            wanted=Wanted("at most", most[name]) if name in most else None,
            figures={f"{each}, s CPU": least[each] for each in ("imports", name)},
        )
    yield Row(
        "audit",
        f"{what}, of `dpaudit report` beyond `dpaudit verify`: the example run",
        (least["report"] - least["verify"]) / unit,
        wanted=Wanted("at most", 2.33),
        figures={f"{each}, s CPU": least[each] for each in ("imports", "verify", "report")},
    )


def _cpu_seconds(case: Callable[[Path], object], run: Path) -> float:
    start = time.process_time()
    case(run)
    return time.process_time() - start


def _floor_of_medians(run: Path) -> None:
    """Decompress medians' steps; work out digests, Theorem 1, exact and leave-one-out costs."""
    temperature = MECHANISM.temperature
    for number in RunReader(run).batches:
        with ZipFile(run / steps_file(number)) as file:
            found = {
                entry.filename: decompress(file.read(entry))
                for entry in file.infolist()
                if "/c/" in entry.filename
            }
        tokens = np.frombuffer(found["token/c/0"], "<i4")
        digests = np.frombuffer(found["aggregate_digest/c/0/0"], "|u1").reshape(-1, 32)
        for step, (token, digest) in enumerate(zip(tokens, digests, strict=True)):
            # One step of so many tokens is a chunk.
            rows = np.frombuffer(bytearray(found[f"central/c/{step}/0/0"]), "<u4")
            codes = np.cumsum(rows.reshape(2 * WIDTH, -1), axis=0, dtype=np.uint32)
            sides = np.frombuffer(found[f"sides/c/{step}/0/0"], "|u1").reshape(-1, codes.shape[1])
            constant = np.unpackbits(
                np.frombuffer(found[f"constant/c/{step}/0"], "|u1"), count=codes.shape[1]
            ).view(np.bool_)
            order = np.concatenate([np.flatnonzero(~constant), np.flatnonzero(constant)])
            places = np.empty_like(order)
            places[order] = np.arange(len(order))
            central = FloatCode("<f4").decode(codes)[:, places]
            low, high = central[WIDTH - 1], central[WIDTH]
            mid = (low + high) / np.float32(2)
            assert hashlib.sha256(mid.tobytes()).digest() == digest.tobytes()
            box = np.stack([low, mid, high]).astype(np.float64) / temperature
            weights = np.exp(box)
            totals = weights.sum(axis=1)
            others, own = totals - weights[:, token], box[:, token]
            rise = own[2] - own[1] + np.log(totals[1]) - np.log(others[0] + weights[2, token])
            fall = own[1] - own[0] + np.log(others[2] + weights[0, token]) - np.log(totals[1])
            moving = np.flatnonzero(~constant)
            gain = (weights[2] - weights[0])[moving]
            sides = sides[:, : len(moving)]
            by_value = [np.bincount(row, weights=gain, minlength=256) for row in sides]
            sums = (
                by_value @ np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
            ).ravel()
            below = np.unpackbits(sides[:, np.searchsorted(moving, token)])
            left = np.where(below, own[2], own[0])
            losses = own[1] - np.log(totals[1]) - left + np.log(totals[0] + sums)
            assert max(rise, fall) >= np.abs(losses).max() - 1e-9


def _floor(run: Path) -> None:
    """Decompress anchored steps; hold digests, orders and costs of all of a batch's at once."""
    size = ANCHORED.support.size
    assert size is not None
    for number in RunReader(run).batches:
        parts = defaultdict[str, list[bytes]](list)
        with ZipFile(run / steps_file(number)) as file:
            for entry in file.infolist():
                name, _, row = entry.filename.partition("/c/")
                if row:
                    parts[name].append(decompress(file.read(entry)))
        joined = {name: bytearray().join(found) for name, found in parts.items()}
        tokens = np.frombuffer(joined["token"], "<i4")
        layouts = {
            "central": ("<u4", 2 * WIDTH),
            "contexts": ("<u4", SUPPORT_CONTEXTS),
            "support": ("<i4", 1),
            "anchor": ("<f4", 1),
        }
        rows = {
            name: np.frombuffer(joined[name], dtype).reshape(-1, each, size)[: len(tokens)]
            for name, (dtype, each) in layouts.items()
        }
        code, steps = FloatCode("<f4"), np.arange(len(tokens))
        central = code.decode(np.cumsum(rows["central"], axis=1, dtype=np.uint32))
        contexts = code.decode(rows["contexts"])
        middle = contexts.shape[1] // 2 - WIDTH
        ordered = np.sort(contexts, axis=1)[:, middle : middle + 2 * WIDTH]
        assert np.array_equal(ordered, central)
        halves = (central[:, :-1] + central[:, 1:]) / np.float32(2)
        box = rows["anchor"].astype(np.float64) + np.stack(
            [central[:, 1], halves[:, 1], central[:, 2]], axis=1
        )
        digests = [hashlib.sha256(vector.tobytes()).digest() for vector in box[:, 1]]
        assert b"".join(digests) == joined["aggregate_digest"]
        own = (rows["support"][:, 0] == tokens[:, None]).argmax(axis=1)
        low, mid, high = np.moveaxis(box[steps, :, own], 1, 0)
        weights = np.exp(box)
        others = weights.sum(axis=2) - weights[steps, :, own]
        rise = high - mid + np.log(others[:, 1] + np.exp(mid)) - np.log(others[:, 0] + np.exp(high))
        fall = mid - low + np.log(others[:, 2] + np.exp(low)) - np.log(others[:, 1] + np.exp(mid))
        assert (np.maximum(rise, fall) >= 0).all()


def _read(run: Path) -> Iterator[Step]:
    reader = RunReader(run)
    for number in reader.batches:
        with reader.batch(number) as batch:
            yield from batch.steps()


def _account(steps: list[Step]) -> None:
    """Work out Theorem 1, the exact cost and all leave-one-out losses of every step."""
    accountant = ExPostAccountant(MECHANISM, ContextChange("add_remove"))
    for step in steps:
        reduced = MECHANISM.reduced(dict(step.arrays), step.token)
        accountant.charge(0, reduced)
        MECHANISM.losses(reduced, None, 8 * len(step.arrays["sides"]))


def _require_pass(run: Path, engine: Engine | None = None) -> None:
    result = audit_run(run, engine=engine)
    if failed := [check.id for check in result.checks if check.status in ("fail", "error")]:
        raise RuntimeError(f"the run that is measured does not pass: {', '.join(failed)}")


def _memory(few: int, many: int, shape: Shape) -> Row:
    """Compare peak memory of an audit of many batches with that of a few."""
    peaks = {}
    for batches in (few, many):
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            write_run(run, Shape(batches, shape.steps, shape.contexts, shape.vocabulary))
            own = [sys.executable, "-c", PEAK, str(run)]
            done = subprocess.run(own, check=True, capture_output=True, text=True)  # noqa: S603
            peaks[batches] = int(done.stdout)
    return Row(
        "audit",
        f"peak memory, {many:,} batches over {few}: {shape.vocabulary:,} tokens, one process",
        peaks[many] / peaks[few],
        wanted=Wanted("at most", 1.1),
        figures={f"{batches:,} batches, MiB": peak / 2**20 for batches, peak in peaks.items()},
    )


def peak_memory(run: str) -> int:
    """Audit a run in this process: its peak resident bytes. Linux only."""
    _require_pass(Path(run), LocalEngine(1))
    # getrusage's figure is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
