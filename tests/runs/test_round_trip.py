"""RunReader gives back RunWriter's data bit for bit; data unlike the manifest are refused."""

from __future__ import annotations

import itertools
import zipfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc
from zarr.storage import ZipStore

from dpaudit.mechanisms import central_order_statistics, median_sides
from dpaudit.runs import BatchHeader, RunReader, Step
from dpaudit.runs.archive import ArchiveReader, ArchiveWriter, ArraySpec

KINDS = {
    "median": {},
    "median-float64": {"dtype": "float64", "width": 4},
    "median-contexts": {"contexts": True},
    "median-top-k": {"top_k": 5, "contexts": True},
    "mean": {"aggregator": "mean"},
    "mean-contexts": {"aggregator": "mean", "contexts": True, "dtype": "float64"},
    "mean-top-k": {"aggregator": "mean", "top_k": 5},
}
GRIDS = {
    "grid": {"grid": 0.125},
    "grid-contexts": {"grid": 2.0**-6, "contexts": True},
    "grid-fine": {"grid": 2.0**-18, "contexts": True, "width": 3},
    "grid-float64": {"grid": 2.0**-6, "dtype": "float64", "contexts": True},
    "grid-top-k": {"grid": 0.125, "top_k": 5},
    "grid-mean": {"grid": 2.0**-6, "aggregator": "mean", "contexts": True},
}


def same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        # Bytes, not values: NaN equals NaN, and -0.0 is not 0.0.
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    return one == other


def differing(written: Step, read: Step) -> list[str]:
    one, other = flat(written), flat(read)
    return sorted(
        name for name in one.keys() | other.keys() if not same(one.get(name), other.get(name))
    )


def flat(step: Step) -> dict[str, Any]:
    """A step's fields by name, the aggregator's arrays among them."""
    return {f.name: getattr(step, f.name) for f in fields(step) if f.name != "arrays"} | dict(
        step.arrays
    )


def edited(step: Step, **changes: Any) -> Step:
    """The step with other fields or arrays.

    None takes an array away, and an unknown name is an array more.
    """
    own = {
        name: changes.pop(name) for name in flat(replace(step, arrays={})).keys() & changes.keys()
    }
    arrays = {
        name: array for name, array in {**step.arrays, **changes}.items() if array is not None
    }
    return replace(step, arrays=arrays, **own)


def write_and_read(run, path, headers, steps):
    with run.create(path) as writer:
        for header in headers:
            with writer.batch(header) as batch:
                for step in steps[header.id]:
                    batch.write(step)
                batch.finish(text="a text – ü", stop="max-tokens")
        writer.finish(run.claim())
    read = {}
    for header in headers:
        with RunReader(path).batch(header.id) as batch:
            read[header.id] = (batch.header, list(batch.steps()), list(batch.samples()))
    return read


def test_every_array_comes_back_bit_for_bit(make_run, tmp_path):
    for name, kind in (KINDS | GRIDS).items():
        for contexts in (0, 1, 2, 5, 8):
            run = make_run.generator(sizes=(contexts,), **kind)
            header = BatchHeader(id=0, contexts=contexts, label="a", cluster=3)
            steps = [run.step(0, contexts) for _ in range(3)]
            read_header, read, samples = write_and_read(
                run, tmp_path / f"{name}-{contexts}", [header], {0: steps}
            )[0]
            ended = [("a text – ü", "max-tokens", tuple(step.token for step in steps))]
            assert (read_header, [(text.text, text.stop, text.tokens) for text in samples]) == (
                header,
                ended,
            )
            assert [differing(one, other) for one, other in zip(steps, read, strict=True)] == [
                [],
                [],
                [],
            ], contexts


def test_texts_of_a_batch_come_back_as_they_were_written(make_run, tmp_path):
    run = make_run.generator(sizes=(2,), max_tokens=4, tokens_per_batch=9)
    header, steps = (
        BatchHeader(id=0, contexts=2, label="a", cluster=5),
        [run.step(0, 2) for _ in range(9)],
    )
    tokens = [step.token for step in steps]
    texts = [
        (4, "one", "max-tokens"),
        (1, "", "end-token"),
        (3, None, "end-token"),
        (1, "cut", "budget"),
    ]
    with run.create(tmp_path / "run") as writer:
        with writer.batch(header) as batch:
            left = iter(steps)
            for length, text, stop in texts:
                for step in itertools.islice(left, length):
                    batch.write(step)
                (batch.finish if stop == "budget" else batch.end_text)(text=text, stop=stop)
        writer.finish(run.claim())
    reader = RunReader(tmp_path / "run")
    with reader.batch(0) as read:
        samples = list(read.samples())
        assert read.spans == [range(4), range(4, 5), range(5, 8), range(8, 9)]
        assert [(len(each.tokens), each.text, each.stop) for each in samples] == texts
        assert (
            [token for each in samples for token in each.tokens] == tokens == read.tokens.tolist()
        )
        assert {(each.id, each.label, each.cluster) for each in samples} == {(0, "a", 5)}
        for position, start in zip(range(9), (0, 0, 0, 0, 4, 5, 5, 5, 8), strict=True):
            assert read.before(position).tolist() == tokens[start:position]
    assert list(reader.samples()) == samples, "the one that was cut too"
    assert [sample.number for sample in samples] == [0, 1, 2, 3]


def test_a_text_has_a_step(make_run, tmp_path):
    run = make_run.generator(sizes=(2,), tokens_per_batch=4)
    with (
        run.create(tmp_path / "run") as writer,
        writer.batch(BatchHeader(id=0, contexts=2)) as batch,
    ):
        for end in (batch.end_text, batch.finish):
            with pytest.raises(ValueError, match="least one step"):
                end(text="", stop="end-token")
        batch.write(run.step(0, 2))
        batch.end_text(text="", stop="end-token")
        with pytest.raises(ValueError, match="least one step"):
            batch.finish(text="", stop="end-token")


def test_arbitrary_bits_come_back(make_run, tmp_path):
    """NaN payloads, infinities and signed zeros come back.

    A reader that mends values would hide faults.
    """
    count = iter(range(10_000))

    @given(
        contexts=st.integers(0, 17),
        vocabulary=st.integers(2, 9),
        kind=st.sampled_from(sorted(KINDS)),
        seed=st.integers(0, 2**32 - 1),
    )
    @settings(max_examples=25)
    def check(contexts, vocabulary, kind, seed):
        run = make_run.generator(sizes=(contexts,), vocabulary=vocabulary + 5, **KINDS[kind])
        random = np.random.default_rng(seed)
        honest = run.step(0, contexts)
        noise = {
            name: random.integers(0, 256, array.nbytes, dtype=np.uint8)
            .view(array.dtype)
            .reshape(array.shape)
            for name, array in flat(honest).items()
            if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size
        }
        step = edited(honest, **noise, log_probability=float(random.normal()))
        header = BatchHeader(id=0, contexts=contexts)
        _, (read,), *_ = write_and_read(run, tmp_path / f"run{next(count)}", [header], {0: [step]})[
            0
        ]
        assert differing(step, read) == []

    check()


def wrong_shape(array):
    return np.concatenate([array, array[:1]])


MISFITS = {
    "central missing": {"central": lambda a: None},
    "central shape": {"central": wrong_shape},
    "central transposed": {"central": lambda a: a.T},
    "central dtype": {"central": lambda a: a.astype("float64")},
    "central big-endian": {"central": lambda a: a.astype(">f4")},
    "sides missing": {"sides": lambda a: None},
    "sides with one more context": {"sides": wrong_shape},
    "sides with no context": {"sides": lambda a: a[1:]},
    "sides with fewer tokens": {"sides": lambda a: a[:, 1:]},
    "sides as numbers": {"sides": lambda a: a.astype("float32")},
    "sides not packed": {"sides": lambda a: np.unpackbits(a, axis=0)},
    "holder missing": {"holder": lambda a: None},
    "holder shape": {"holder": wrong_shape},
    "holder negative": {"holder": lambda a: a.astype("int64") - 10},
    "holder with fractions": {"holder": lambda a: a + 0.5},
    "support missing": {"support": lambda a: None},
    "support shape": {"support": wrong_shape},
    "support beyond int32": {"support": lambda a: a.astype("int64") + 2**40},
    "contexts missing": {"contexts": lambda a: None},
    "contexts shape": {"contexts": wrong_shape},
    "contexts dtype": {"contexts": lambda a: a.astype("float16")},
    "aggregate superfluous": {"aggregate": lambda a: np.zeros(7, dtype="float32")},
    "digest too short": {"aggregate_digest": lambda a: a[:-1]},
    "digest too long": {"aggregate_digest": lambda a: a + b"0"},
    "token beyond int32": {"token": lambda a: 2**31},
}


def test_step_that_does_not_fit_the_manifest_is_refused(make_run, tmp_path):
    run = make_run.generator(sizes=(5,), contexts=True, top_k=7)
    step = run.step(0, 5)
    with (
        run.create(tmp_path / "run") as writer,
        writer.batch(BatchHeader(id=0, contexts=5)) as batch,
    ):
        for misfit in MISFITS.values():
            bad = edited(
                step, **{name: change(flat(step).get(name)) for name, change in misfit.items()}
            )
            with pytest.raises(ValueError, match=next(iter(misfit))):
                batch.write(bad)
        # The batch is as it was: an honest step still fits.
        batch.write(step)
        batch.finish(text=None, stop="max-tokens")
    with RunReader(tmp_path / "run").batch(0) as batch:
        assert [differing(step, read) for read in batch.steps()] == [[]]


def test_batch_takes_at_most_the_public_maximum_of_steps(make_run, tmp_path):
    run = make_run.generator(sizes=(2,), max_tokens=2)
    with (
        run.create(tmp_path / "run") as writer,
        writer.batch(BatchHeader(id=0, contexts=2)) as batch,
    ):
        batch.write(run.step(0, 2))
        batch.write(run.step(0, 2))
        with pytest.raises(ValueError, match="at most 2 steps"):
            batch.write(run.step(0, 2))


def test_superfluous_sides_of_a_mean_step_are_refused(make_run, tmp_path):
    run = make_run.generator(aggregator="mean", sizes=(2,))
    step = edited(run.step(0, 2), sides=np.zeros((1, 12), dtype=np.uint8))
    with (
        run.create(tmp_path / "run") as writer,
        writer.batch(BatchHeader(id=0, contexts=2)) as batch,
        pytest.raises(ValueError, match="sides"),
    ):
        batch.write(step)


def test_a_large_batch_and_a_mostly_constant_one_come_back(make_run, tmp_path):
    """More contexts than a byte counts, and tokens that are all at the floor, or none."""
    for number, floor in enumerate((0.0, 0.9, 1.0)):
        run = make_run.generator(sizes=(301,), vocabulary=3000, contexts=True)
        step = run.step(0, 301)
        random = np.random.default_rng(number)
        values = np.where(random.random(3000) < floor, np.float32(-6), step.contexts).astype(
            np.float32
        )
        central = central_order_statistics(values, 6.0)
        sides, holder = median_sides(values, central)
        step = edited(step, contexts=values, central=central, sides=sides, holder=holder)
        path = tmp_path / f"run{number}"
        _, (read,), *_ = write_and_read(run, path, [BatchHeader(id=0, contexts=301)], {0: [step]})[
            0
        ]
        assert differing(step, read) == []


def test_value_off_a_declared_grid_is_refused(make_run, tmp_path):
    run = make_run.generator(sizes=(5,), contexts=True, grid=0.125)
    step = run.step(0, 5)
    with (
        run.create(tmp_path / "run") as writer,
        writer.batch(BatchHeader(id=0, contexts=5)) as batch,
    ):
        for name, value in itertools.product(
            ("central", "contexts"), (0.1, -0.0, np.nan, np.inf, 16.0)
        ):
            values = flat(step)[name].copy()
            values[1, 3] = value
            with pytest.raises(
                ValueError, match=rf"^{name} .* multiples of mechanism\.contribution\.grid = 0\.125"
            ):
                batch.write(edited(step, **{name: values}))
        batch.write(step)
        batch.finish(text=None, stop="max-tokens")


def test_value_beyond_the_clip_can_be_expressed_on_a_grid(make_run, tmp_path):
    """The audit objects to it, so it must get that far."""
    run = make_run.generator(sizes=(5,), grid=0.125)
    step = run.step(0, 5)
    central = step.arrays["central"].copy()
    central[-1, 3], central[0, 4], central[0, 5] = 6.125, 6.0, -6.125
    step = edited(step, central=central)
    _, (read,), *_ = write_and_read(
        run, tmp_path / "run", [BatchHeader(id=0, contexts=5)], {0: [step]}
    )[0]
    assert differing(step, read) == []


def test_same_steps_make_the_same_file(make_run, tmp_path):
    run = make_run.generator(sizes=(5,), contexts=True)
    steps = [run.step(0, 5) for _ in range(3)]
    for name in ("one", "two"):
        write_and_read(run, tmp_path / name, [BatchHeader(id=0, contexts=5)], {0: steps})
    files = [(tmp_path / name / "steps/00000000.zip").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


def test_batch_file_is_a_zarr_group(make_run, monkeypatch):
    """Read by zarr itself: names, shapes and every number of every chunk that was written."""
    for kind in (KINDS | GRIDS).values():
        run = make_run(sizes=(5, 4), **kind)
        largest = _check_by_zarr(run.steps_file(0), together=None)
        with monkeypatch.context() as patch:  # other tests share the runs that `make_run` makes
            run.rechunk(2 * largest, patch)
            _check_by_zarr(run.steps_file(0), together=2)


def _check_by_zarr(path, *, together):
    arrays = ArchiveReader(path.open("rb"))
    with ZipStore(path, mode="r") as store:
        group = zarr.open_group(store, mode="r")
        assert group.attrs["header"]["contexts"] == 5
        with RunReader(path.parents[1]).batch(0) as batch:
            steps = len(batch.tokens)
            specs = batch._arrays.specs(steps)
            assert together is None or batch._arrays.together == together < steps
            (sample,) = batch.samples()
            ended = {"length": steps, "stop": sample.stop, "text": sample.text}
            assert dict(group["token"].attrs) == {"texts": [ended]}
            assert np.array_equal(group["token"][:], batch.tokens)
            arrays.expect(specs, attributed=["token"])
            assert {name for name, _ in group.arrays()} == specs.keys()
            for name in specs:
                assert same(group[name][:], arrays.rows(name))
    arrays.close()
    rows = (specs[name] for name in batch._arrays.stored)
    return max(spec.chunk_bytes // spec.chunk_shape[0] for spec in rows)


def test_a_large_chunk_has_the_same_bytes_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large vocabulary: threads of Blosc would put its blocks into the order of their ends."""
    monkeypatch.setattr(blosc, "use_threads", True)
    values = np.random.default_rng(0).integers(0, 1 << 20, (1, 8, 49152), dtype=np.uint64)
    spec, path = ArraySpec("<u8", values.shape[1:], rows=12), tmp_path / "batch.zip"
    threads = blosc.set_nthreads(4)
    try:
        archive = ArchiveWriter(path, {})
        for row in range(spec.rows):
            archive.chunk("numbers", spec, row, values)
        archive.close()
    finally:
        blosc.set_nthreads(threads)
    assert blosc.use_threads is True
    with zipfile.ZipFile(path) as found:
        chunks = [found.read(name) for name in found.namelist() if "/c/" in name]
    assert len(chunks) == spec.rows and len(set(chunks)) == 1
