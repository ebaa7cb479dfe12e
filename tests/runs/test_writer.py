"""A run directory is private, grows by whole batches, has one writer, and can be continued."""

from __future__ import annotations

import os
import stat
import tracemalloc

import pytest

from dpaudit.runs import Assigned, BatchHeader, Claim, InputError, RunReader, RunWriter
from dpaudit.runs.commitment import SETTLED

CLAIM = Claim(epsilon=9.0, kind="ex-post")


def names(folder):
    return sorted(os.listdir(folder))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def generator(make_run):
    return make_run.generator(sizes=(3, 4))


def test_exception_in_a_batch_leaves_nothing(generator, path):
    with generator.create(path) as writer:
        with (
            pytest.raises(RuntimeError, match="power cut"),
            writer.batch(BatchHeader(id=0, contexts=3)) as batch,
        ):
            batch.write(generator.step(0, 3))
            raise RuntimeError("power cut")
        assert names(path / "steps") == []
        assert writer.whole == ()


def test_exception_after_finish_does_not_publish(generator, path):
    """The block did not end well, so neither did the batch."""
    with generator.create(path) as writer:
        with (
            pytest.raises(RuntimeError, match="power cut"),
            writer.batch(BatchHeader(id=0, contexts=3)) as batch,
        ):
            batch.write(generator.step(0, 3))
            batch.finish(text=None, stop="max-tokens")
            raise RuntimeError("power cut")
        assert RunReader(path).batches == ()
        assert writer.whole == ()


def test_batch_that_was_not_finished_is_dropped(generator, path):
    with generator.create(path) as writer:
        with writer.batch(BatchHeader(id=0, contexts=3)) as batch:
            batch.write(generator.step(0, 3))
        assert names(path / "steps") == []


def test_batch_appears_only_when_its_block_ends(generator, path):
    with generator.create(path) as writer:
        with writer.batch(BatchHeader(id=0, contexts=3)) as batch:
            batch.write(generator.step(0, 3))
            batch.finish(text=None, stop="max-tokens")
            assert RunReader(path).batches == ()
        assert RunReader(path).batches == (0,)


def test_empty_batch_cannot_be_finished(generator, path):
    with (
        generator.create(path) as writer,
        writer.batch(BatchHeader(id=0, contexts=3)) as batch,
        pytest.raises(ValueError, match="least one step"),
    ):
        batch.finish(text=None, stop="max-tokens")


def test_batch_that_the_manifest_does_not_have_is_refused(generator, path):
    refused = (
        (BatchHeader(id=2, contexts=3), "not among"),
        (BatchHeader(id=-1, contexts=3), "not among"),
        (BatchHeader(id=0, contexts=3), "already whole"),
        (BatchHeader(id=1, contexts=-1), "contexts"),
        (BatchHeader(id=1, contexts=2**20 + 1), "contexts"),
    )
    with generator.create(path) as writer:
        generator.batch(writer, 0)
        for header, message in refused:
            with pytest.raises(ValueError, match=message), writer.batch(header):
                pass
            assert names(path / "steps") == ["00000000.zip"]


def test_resumed_run_equals_an_unbroken_one(make_run, path):
    broken, unbroken = make_run.generator(sizes=(3, 4)), make_run()
    with broken.create(path) as writer:
        broken.batch(writer, 0)
    (path / "steps/00000001.zip.part").write_bytes(b"half a batch")
    kept = (path / "steps/00000000.zip").read_bytes()
    with RunWriter.resume(path) as writer:
        assert names(path / "steps") == ["00000000.zip"]
        assert writer.whole == (0,)
        broken.batch(writer, 1)
        writer.finish(broken.claim())
    assert (path / "steps/00000000.zip").read_bytes() == kept
    assert names(path) == names(unbroken.path)
    assert [p.name for p in path.rglob("*.part")] == []


@pytest.mark.parametrize("name", ["run.json", *SETTLED])
def test_a_run_whose_beginning_was_changed_cannot_be_resumed(make_run, path, name):
    generator = make_run.generator(sizes=(3, 4))
    with generator.create(path) as writer:
        generator.batch(writer, 0)
    whole = (path / name).read_text()
    changes = (
        (('"clip": 6.0', '"clip": 7.0'),)
        if name == "run.json"
        else ((whole, ""), (whole, whole[: len(whole) // 2]))
    )
    for old, new in changes:
        (path / name).write_text(whole.replace(old, new))
        with pytest.raises(InputError, match=r"changed after .* began"):
            RunWriter.resume(path)
    (path / name).write_text(whole)
    RunWriter.resume(path).close()


def test_finished_run_cannot_be_resumed(make_run):
    with pytest.raises(InputError, match="finished"):
        RunWriter.resume(make_run().path)


def test_what_is_no_run_cannot_be_resumed(generator, path):
    generator.create(path).close()
    for missing in ("run.json", "steps"):
        (path / missing).rename(path / "elsewhere")
        with pytest.raises(InputError, match=missing):
            RunWriter.resume(path)
        (path / "elsewhere").rename(path / missing)


def test_directory_with_something_else_in_it_is_refused_and_left_alone(generator, path):
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    (path / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty"):
        generator.create(path)
    assert names(path) == ["thesis.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_run_cannot_be_created_over_another(make_run, generator):
    run = make_run()
    before = (run / "run.json").read_bytes()
    with pytest.raises(InputError, match="not empty"):
        generator.create(run.path)
    assert (run / "run.json").read_bytes() == before
    assert run.audit().verdict == "pass"


def test_directory_that_a_killed_create_left_is_taken(generator, path):
    (path / "steps").mkdir(parents=True)
    (path / "assignment.part").write_text("half")
    generator.create(path).close()
    assert RunReader(path).manifest.batching.batches == 2


def test_file_in_place_of_the_directory_is_refused(generator, path):
    path.write_text("a file")
    with pytest.raises(InputError, match="directory"):
        generator.create(path)


def test_second_writer_is_refused(generator, path):
    with generator.create(path):
        with pytest.raises(InputError, match="another process"):
            RunWriter.resume(path)
        with pytest.raises(InputError, match="another process"):
            generator.create(path)
    RunWriter.resume(path).close()


def test_permissions_are_the_owners_alone(generator, path):
    before = os.umask(0o022)
    try:
        with generator.create(path) as writer:
            with writer.batch(BatchHeader(id=0, contexts=3)) as batch:
                # Also while it is being written.
                (partial,) = (path / "steps").iterdir()
                assert stat.S_IMODE(partial.stat().st_mode) == 0o600
                batch.write(generator.step(0, 3))
                batch.finish(text=None, stop="max-tokens")
            generator.batch(writer, 1)
            writer.finish(CLAIM)
    finally:
        os.umask(before)
    modes = {
        p.relative_to(path).as_posix(): stat.S_IMODE(p.stat().st_mode)
        for p in [path, *path.rglob("*")]
    }
    assert {name for name, mode in modes.items() if mode == 0o700} == {".", "steps"}
    assert {name for name, mode in modes.items() if mode == 0o600} == modes.keys() - {".", "steps"}


def test_run_with_missing_batches_cannot_be_finished(generator, path):
    with generator.create(path) as writer:
        generator.batch(writer, 1)
        with pytest.raises(ValueError, match=r"1 batches are missing, .* is 0"):
            writer.finish(CLAIM)
    assert not (path / "hashes").exists()


def test_run_has_exactly_one_claim(make_run, path):
    for aggregator, claim in {"mean": CLAIM, "median": None}.items():
        generator = make_run.generator(aggregator=aggregator, sizes=(2,))
        with generator.create(path / aggregator) as writer:
            generator.batch(writer, 0)
            with pytest.raises(ValueError, match="exactly one claim"):
                writer.finish(claim)


def test_assignment_lists_each_record_once_and_in_order(generator, path):
    once, other = Assigned("ab" * 32, 1, 0), Assigned("cd" * 32, None, None)
    for records in ([once, once], [other, once]):
        with pytest.raises(ValueError, match="in ascending order"):
            RunWriter.create(path, generator.spec.manifest, tokenizer_json=None, assignment=records)


def test_private_assignment_is_recorded(generator, path):
    records = [Assigned("ab" * 32, 1, 0), Assigned("cd" * 32, None, None)]
    RunWriter.create(path, generator.spec.manifest, tokenizer_json=None, assignment=records).close()
    assert (path / "assignment").read_text() == f"{'ab' * 32}\t1\t0\n{'cd' * 32}\t-\t-\n"
    assert "sensitive" in RunReader(path).manifest.sensitivity


def test_writer_does_not_hold_the_steps(make_run, path):
    """Memory stays flat while some 15 MB of incompressible steps are written."""
    steps, vocabulary = 120, 4000
    run = make_run.generator(
        sizes=(4,), vocabulary=vocabulary, max_tokens=steps, contexts=True, text=False
    )
    with run.create(path) as writer, writer.batch(BatchHeader(id=0, contexts=4)) as batch:
        for position in range(steps):
            batch.write(run.step(0, 4))
            if position == 20:
                tracemalloc.start()
                before, _ = tracemalloc.get_traced_memory()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        batch.finish(text=None, stop="max-tokens")
    assert (path / "steps/00000000.zip").stat().st_size > 10e6
    assert after - before < 2e6
