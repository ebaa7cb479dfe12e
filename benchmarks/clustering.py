"""Assignment of vectors from a file to nearest centres: time and peak memory.

Time is compared with a plain matrix product.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.lib.format import open_memmap

from benchmarks.rows import Row, Wanted
from benchmarks.timing import interleaved
from dpaudit.generation.clustering.assignment import nearest
from dpaudit.generation.clustering.interfaces import Vectors

#: Rows that are read at a time.
_PIECE = 16_384
#: How `peak_memory` is run in a process of its own.
_PEAK = (
    "import sys; from benchmarks.clustering import peak_memory; print(peak_memory(*sys.argv[1:]))"
)
_VECTORS, _CENTERS = "vectors.npy", "centers.npy"


class _Shape(NamedTuple):
    rows: int
    centers: int
    dimensions: int


def rows(small: bool) -> Iterator[Row]:
    """Compare throughput with the floor's, then peak memory of all rows with that of a tenth."""
    shape = _Shape(20_000, 50, 32) if small else _Shape(1_000_000, 1000, 384)
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder, shape)
        case = f"{shape.rows:,} x {shape.dimensions} to {shape.centers:,} centres"
        yield _throughput(folder, shape, case, rounds=1 if small else 3)
        if sys.platform.startswith("linux"):
            yield _memory(folder, shape, case)
        else:
            yield Row("clustering", "peak memory", None, skipped="only measured on Linux")


def _write(folder: Path, shape: _Shape) -> None:
    """Write normal vectors of length about 1, as wide as sentence embeddings."""
    random = np.random.default_rng(0)
    scale = np.float32(shape.dimensions**-0.5)
    for name, count in ((_VECTORS, shape.rows), (_CENTERS, shape.centers)):
        written = open_memmap(
            folder / name, mode="w+", dtype=np.float32, shape=(count, shape.dimensions)
        )
        for start in range(0, count, _PIECE):
            size = min(_PIECE, count - start)
            written[start : start + size] = (
                random.standard_normal((size, shape.dimensions), dtype=np.float32) * scale
            )


def _pieces(folder: Path, count: int) -> Iterator[Vectors]:
    """Yield the first rows, in pieces.

    Each piece opens the mapping anew, which lets go of the pages read.
    """
    for start in range(0, count, _PIECE):
        yield np.load(folder / _VECTORS, mmap_mode="r")[start : min(start + _PIECE, count)]


def _throughput(folder: Path, shape: _Shape, case: str, rounds: int) -> Row:
    centers = np.load(folder / _CENTERS)

    def ours() -> None:
        for piece in _pieces(folder, shape.rows):
            nearest(piece, centers)

    def floor() -> None:
        for piece in _pieces(folder, shape.rows):
            piece @ centers.T

    timings = interleaved({"ours": ours, "floor": floor}, rounds)
    figures: dict[str, float | str] = {
        f"{name}, rows/s": shape.rows / timings.median(name) for name in ("ours", "floor")
    }
    figures["lowest to highest"] = timings.spread("floor", "ours")
    what = f"nearest centres, streamed, over a plain matrix product: {case}"
    return Row(
        "clustering",
        what,
        timings.ratio("floor", "ours"),
        wanted=Wanted("at least", 0.7),
        figures=figures,
    )


def _memory(folder: Path, shape: _Shape, case: str) -> Row:
    """Compare peak memory of all rows with that of a tenth."""
    peaks = {}
    for count in (shape.rows // 10, shape.rows):
        command = [sys.executable, "-c", _PEAK, str(folder), str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
        peaks[count] = int(done.stdout)
    few, many = peaks.values()
    figures: dict[str, float | str] = {
        f"{count:,} rows, MiB": peak / 2**20 for count, peak in peaks.items()
    }
    figures["the vectors themselves, MiB"] = shape.rows * shape.dimensions * 4 / 2**20
    what = f"peak memory, all rows over a tenth of them: {case}"
    return Row("clustering", what, many / few, wanted=Wanted("at most", 1.1), figures=figures)


def peak_memory(folder: str, count: str) -> int:
    """Assign so many rows in this process: its peak resident bytes. Linux only."""
    centers = np.load(Path(folder) / _CENTERS)
    for piece in _pieces(Path(folder), int(count)):
        nearest(piece, centers)
    # getrusage's figure is handed down from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
