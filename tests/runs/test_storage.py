"""Run directories in folders and in stores: the same files, whole or absent, and one writer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pickle
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from collections import namedtuple
from functools import partial
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dpaudit.auditing.run import audit_run
from dpaudit.commands.cli import main
from dpaudit.runs import BatchExistsError, BatchHeader, BatchStore, InputError, RunReader, RunWriter
from dpaudit.runs.engines import LocalEngine
from dpaudit.runs.storage import open_storage


class SharedFiles(LocalFileSystem):
    """A file system with folders that dpaudit knows through fsspec alone, as it does sftp."""

    protocol = "shared"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("shared://"))


fsspec.register_implementation("shared", SharedFiles, clobber=True)


@pytest.fixture
def urls(make_run, tmp_path):
    """Places that only fsspec reaches, each with a fresh generator, for runs of a name."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]

    def made(name="run"):
        for location in (f"memory://bucket/{name}", f"shared://{tmp_path}/shared/{name}"):
            yield make_run.generator(sizes=(3, 4)), location

    return made


@pytest.fixture
def places(make_run, urls, tmp_path):
    """Where runs can be written: paths and URLs, as `urls` has them."""

    def made(name="run"):
        for location in (tmp_path / "folder" / name, f"file://{tmp_path}/files/{name}"):
            yield make_run.generator(sizes=(3, 4)), location
        yield from urls(name)

    return made


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Where downloads go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def generator(make_run):
    return make_run.generator(sizes=(3, 4))


def audit(location):
    """In this process: no other one knows the URLs of these tests."""
    return audit_run(location, engine=LocalEngine(1))


def write(generator, location):
    with generator.create(location) as writer:
        generator.batch(writer, 0)
        generator.batch(writer, 1)
        writer.finish(generator.claim())


def contents(location):
    """Every recorded file with its digest; run.json's content without the nonce, the run's own."""
    reader = RunReader(location)
    digests = {name: reader.digest(name) for name in reader.files()}
    assert digests == reader.hashes().digests
    return digests | {"run.json": reader.manifest.model_dump(exclude={"nonce", "commitment"})}


def half(generator, location):
    """A run with its first batch."""
    with generator.create(location) as writer:
        generator.batch(writer, 0)


def finish(generator, location):
    with RunWriter.resume(location) as writer:
        for batch in {0, 1} - set(writer.whole):
            generator.batch(writer, batch)
        writer.finish(generator.claim())


def one_step(generator, store, batch=1, contexts=4, before_end=lambda: None):
    with store.batch(BatchHeader(id=batch, contexts=contexts, label="b")) as record:
        record.write(generator.step(batch, contexts))
        record.finish(text=None, stop="max-tokens")
        before_end()


class TestRoundTrip:
    def test_every_place_gets_the_same_files(self, places, make_run):
        for generator, place in places():
            write(generator, place)
            assert contents(place) == contents(make_run(sizes=(3, 4)).path)

    def test_audit_says_the_same_of_every_place(self, places, make_run):
        for generator, place in places():
            write(generator, place)
            here, there = (
                # Remedies name the run.
                json.loads(audit(at).to_json().replace(str(at).removeprefix("file://"), "AT"))
                for at in (make_run(sizes=(3, 4)).path, place)
            )
            assert there["run"]["path"] == "AT"
            for result in (here, there):
                del result["run"]["settings"]["commitment"], result["run"]["digests"]["run.json"]
            assert there == here
            assert there["verdict"] == "pass"

    def test_steps_come_back_bit_for_bit(self, urls, make_run):
        for generator, url in urls():
            write(generator, url)
            with (
                RunReader(url).batch(1) as there,
                RunReader(make_run(sizes=(3, 4)).path).batch(1) as here,
            ):
                for step, original in zip(there.steps(), here.steps(), strict=True):
                    assert (step.arrays["central"] == original.arrays["central"]).all()
                    assert (step.token, step.aggregate_digest) == (
                        original.token,
                        original.aggregate_digest,
                    )

    def test_batches_may_be_written_side_by_side(self, places):
        for generator, place in places():
            with generator.create(place) as writer:
                first, second = (
                    BatchHeader(id=0, contexts=3, label="a"),
                    BatchHeader(id=1, contexts=4, label="b"),
                )
                with writer.batch(first) as one, writer.batch(second) as two:
                    for _ in range(2):
                        one.write(generator.step(0, 3))
                        two.write(generator.step(1, 4))
                    two.finish(text=None, stop="max-tokens")
                    one.finish(text=None, stop="max-tokens")
                assert writer.whole == (0, 1)
            with RunReader(place).batch(0) as one, RunReader(place).batch(1) as two:
                assert (
                    len(one.tokens),
                    one.header.contexts,
                    len(two.tokens),
                    two.header.contexts,
                ) == (2, 3, 2, 4)

    def test_run_goes_on_where_it_was_left(self, places, make_run):
        for generator, place in places():
            half(generator, place)
            finish(generator, place)
            assert contents(place) == contents(make_run(sizes=(3, 4)).path)

    def test_run_cannot_be_created_where_one_is(self, places):
        for generator, place in places():
            half(generator, place)
            with pytest.raises(InputError, match="not empty"):
                generator.create(place)
            assert RunReader(place).batches == (0,)

    def test_digest_comes_with_the_batch(self, places, make_run):
        for generator, place in places():
            write(generator, place)
            reader = RunReader(place)
            with reader.batch(1) as batch:
                assert (
                    batch.digest()
                    == reader.digest("steps/00000001.zip")
                    == reader.hashes().digests["steps/00000001.zip"]
                )
                assert batch.header.id == 1

    def test_folder_of_a_url_is_private(self, generator, tmp_path):
        write(generator, f"file://{tmp_path}/run")
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
        assert {
            stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "run").rglob("*") if p.is_file()
        } == {0o600}

    def test_fsspec_is_not_loaded_for_a_folder(self, make_run, monkeypatch):
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
        assert RunReader(make_run(sizes=(3, 4)).path).batches == (0, 1)


class TestOtherProcesses:
    def test_store_is_picklable_and_needs_no_lock(self, places):
        for generator, place in places():
            with generator.create(place) as writer:
                generator.batch(writer, 0)
                one_step(generator, pickle.loads(pickle.dumps(writer.store)))
                assert writer.whole == (0, 1)
                writer.finish(generator.claim())
            assert RunReader(place).hashes().digests.keys() >= {
                "steps/00000000.zip",
                "steps/00000001.zip",
            }

    def test_location_does_not_depend_on_the_working_directory(
        self, generator, tmp_path, monkeypatch
    ):
        monkeypatch.chdir(tmp_path)
        half(generator, "run")
        reader = RunReader("run")
        monkeypatch.chdir("/")
        assert RunReader(reader.location).batches == (0,)
        assert (reader.name, reader.location) == ("run", str(tmp_path / "run"))

    def test_batch_that_is_whole_is_refused_before_any_work(self, places):
        for generator, place in places():
            half(generator, place)
            with RunWriter.resume(place) as writer:
                before = RunReader(place).digest("steps/00000000.zip")
                with (
                    pytest.raises(BatchExistsError, match="batch 0 is already whole"),
                    writer.store.batch(BatchHeader(id=0, contexts=3)),
                ):
                    pytest.fail("the block must not run")
                assert RunReader(place).digest("steps/00000000.zip") == before

    def test_second_of_two_that_write_a_batch_does_not_replace_the_first(self, places):
        for generator, place in places():
            with generator.create(place) as writer:
                with pytest.raises(BatchExistsError) as refused:
                    one_step(
                        generator, writer, before_end=partial(one_step, generator, writer.store)
                    )
                assert refused.value.batch == 1
                assert writer.whole == (1,)
            names = [entry.name for entry in open_storage(place).entries("steps")]
            assert names == ["00000001.zip"]
            with RunReader(place).batch(1) as batch:
                assert len(batch.tokens) == 1

    def test_one_of_many_processes_writes_the_batch(self, generator, tmp_path):
        with generator.create(tmp_path / "run") as writer:
            started = [
                subprocess.Popen([sys.executable, "-c", PUBLISH, writer.location]) for _ in range(6)
            ]
            outcomes = [process.wait(timeout=60) for process in started]
        assert sorted(outcomes) == [0, 1, 1, 1, 1, 1]
        assert os.listdir(tmp_path / "run/steps") == ["00000001.zip"]

    def test_refusal_survives_pickling(self):
        assert pickle.loads(pickle.dumps(BatchExistsError(7))).batch == 7

    def test_late_process_fails_when_its_run_was_finished_without_it(self, places):
        for generator, place in places():

            def finish_it(generator=generator):
                one_step(generator, writer.store)
                writer.finish(generator.claim())

            with generator.create(place) as writer:
                generator.batch(writer, 0)
                with pytest.raises((BatchExistsError, InputError)):
                    one_step(generator, writer.store, before_end=finish_it)
            assert audit(place).verdict != "error"


#: Exits with 1 where another process published the batch first.
PUBLISH = """
import sys, time
from dpaudit.runs.storage import open_storage
place = open_storage(sys.argv[1])
with place.building("steps/00000001.zip") as built:
    built.write_bytes(b"a batch")
    time.sleep(-time.time() % 1)  # all at the same time
    try:
        place.publish(built, "steps/00000001.zip", replace=False)
    except FileExistsError:
        sys.exit(1)
"""


class TestLock:
    def test_second_writer_is_told_who_is_writing(self, urls):
        for generator, url in urls():
            with generator.create(url):
                with pytest.raises(InputError) as refused:
                    RunWriter.resume(url)
                said = str(refused.value)
                assert f"process {os.getpid()} on " in said and "since 2" in said
                assert (
                    refused.value.where.endswith("/writer.lock")
                    and "delete this file" in refused.value.remedy
                )
            RunWriter.resume(url).close()

    def test_lock_is_no_part_of_the_record(self, urls):
        for generator, url in urls():
            with generator.create(url) as writer:
                assert "writer.lock" not in RunReader(url).files()
                generator.batch(writer, 0)
                generator.batch(writer, 1)
                writer.finish(generator.claim())
            assert "writer.lock" not in RunReader(url).hashes().digests
            assert not open_storage(url).exists("writer.lock")

    def test_lock_is_given_back_when_creating_fails(self, urls):
        for generator, url in urls():
            half(generator, url)
            with pytest.raises(InputError, match="not empty"):
                generator.create(url)
            assert not open_storage(url).exists("writer.lock")

    def test_lock_that_another_took_over_is_not_deleted(self, urls):
        for generator, url in urls():
            writer, store = generator.create(url), open_storage(url)
            store.remove("writer.lock")
            other = RunWriter.resume(url)
            writer.close()
            assert store.exists("writer.lock")
            other.close()
            assert not store.exists("writer.lock")

    def test_lock_of_no_known_form_is_a_lock_too(self, urls):
        for generator, url in urls():
            half(generator, url)
            open_storage(url).write_text("writer.lock", ["[1]"])
            with pytest.raises(InputError, match="another process is"):
                RunWriter.resume(url)

    def test_folder_that_cannot_be_locked_gets_a_lock_file(self, generator, tmp_path, monkeypatch):
        def refuse(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        path = tmp_path / "run"
        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", refuse)
            with generator.create(path) as writer:
                assert stat.S_IMODE((path / "writer.lock").stat().st_mode) == 0o600
                with pytest.raises(InputError, match=f"process {os.getpid()} on "):
                    RunWriter.resume(path)
                patch.undo()
                with pytest.raises(InputError, match=f"process {os.getpid()} on "):
                    RunWriter.resume(path)
                generator.batch(writer, 0)
                generator.batch(writer, 1)
                writer.finish(generator.claim())
        assert not (path / "writer.lock").exists()
        assert audit(path).verdict == "pass"


class TestReading:
    def test_download_is_gone_as_soon_as_it_is_open(self, urls, temporary):
        for generator, url in urls():
            write(generator, url)
            with RunReader(url).batch(1) as batch:
                assert os.listdir(temporary) == []
                assert len(list(batch.steps())) == len(batch.tokens)
                assert batch.digest() == RunReader(url).digest("steps/00000001.zip")
            assert os.listdir(temporary) == []

    def test_downloads_are_private(self, urls, monkeypatch):
        """Nobody else can look into the folder of downloads, and no file has a name in it."""
        modes, usage = [], shutil.disk_usage
        for generator, url in urls():
            write(generator, url)
            with monkeypatch.context() as patch:
                patch.setattr(
                    "shutil.disk_usage",
                    lambda path: modes.append(path.stat().st_mode) or usage(path),
                )
                with open_storage(url).local("steps/00000000.zip") as file:
                    assert os.fstat(file.fileno()).st_nlink == 0
        assert modes and {stat.S_IMODE(mode) for mode in modes} == {0o700}

    def test_download_that_is_no_batch_is_deleted(self, urls, temporary):
        for generator, url in urls():
            write(generator, url)
            replace(url, "steps/00000000.zip", b"PK")
            with pytest.raises(InputError, match=r"00000000\.zip.*not a whole"):
                RunReader(url).batch(0)
            assert os.listdir(temporary) == []
            assert audit(url).verdict == "error"

    def test_file_that_vanishes_is_named(self, urls):
        for generator, url in urls():
            write(generator, url)
            reader = RunReader(url)
            assert reader.batches == (0, 1)
            for name in ("samples.jsonl", "steps/00000001.zip", "assignment", "hashes"):
                data = open_storage(url).open(name)
                with data as file:
                    whole = file.read()
                open_storage(url).remove(name)
                reader = RunReader(url)
                with pytest.raises(InputError, match="missing") as refused:
                    (
                        list(reader.samples()),
                        list(reader.assignment()),
                        reader.hashes(),
                        reader.batch(1),
                    )
                assert refused.value.where == f"{url}/{name}"
                replace(url, name, whole)

    def test_file_above_its_limit_is_not_downloaded(self, urls, monkeypatch):
        for generator, url in urls():
            with monkeypatch.context() as patch:
                write(generator, url)
                reader = RunReader(url)
                with open_storage(url).open("clusters") as file:
                    limit = len(file.read()) - 1
                patch.setattr("dpaudit.runs.layout._MOST_BYTES", {"clusters": limit})
                patch.setattr(MemoryFileSystem, "_open", None)
                patch.setattr(SharedFiles, "_open", None)
                with pytest.raises(InputError, match=f"clusters: .* larger than {limit} bytes"):
                    reader.clusters()

    def test_file_larger_than_the_disk_is_not_downloaded(self, urls, monkeypatch, temporary):
        for generator, url in urls():
            with monkeypatch.context() as patch:
                write(generator, url)
                patch.setattr("shutil.disk_usage", lambda _: namedtuple("usage", "free")(100))
                with pytest.raises(InputError, match="only 100 are free") as refused:
                    RunReader(url).batch(0)
                assert "TMPDIR" in refused.value.remedy
                assert os.listdir(temporary) == []

    def test_full_disk_is_named_while_a_batch_is_downloaded(self, urls, temporary):
        for generator, url in urls():
            write(generator, url)
            with (
                file_size_limit(1000),
                pytest.raises(InputError, match="cannot be written") as refused,
            ):
                RunReader(url).batch(0)
            assert refused.value.where.startswith(str(temporary))
            assert os.listdir(temporary) == []

    def test_file_of_another_size_than_stated_is_no_batch(self, urls, monkeypatch):
        """A store that states one size sends another.

        What is missing is noticed, and what is too much is not read.
        """
        for generator, url in urls():
            with monkeypatch.context() as patch:
                write(generator, url)
                reader, infos = (
                    RunReader(url),
                    {files: files.info for files in (MemoryFileSystem, SharedFiles)},
                )
                for more, problem in ((1, "did not arrive"), (-1, "not a whole batch")):
                    for files, info in infos.items():
                        stated = lambda *a, info=info, more=more: (  # noqa: E731
                            (i := info(*a)) | {"size": i["size"] + more}
                        )
                        patch.setattr(files, "info", stated)
                    with pytest.raises(InputError, match=problem):
                        reader.batch(0)

    def test_error_of_the_store_is_one_sentence(self, urls, monkeypatch):
        for generator, url in urls():
            with monkeypatch.context() as patch:

                class ThrottledError(Exception):
                    pass

                def refuse(*_, **__):
                    raise ThrottledError("slow down")

                write(generator, url)
                reader = RunReader(url)
                for files in (MemoryFileSystem, SharedFiles):
                    patch.setattr(files, "_open", refuse)
                with pytest.raises(
                    InputError, match=r"samples\.jsonl: .*be read \(ThrottledError: slow down\)"
                ):
                    next(reader.samples())

    def test_folder_in_a_files_place_is_refused(self, generator, tmp_path):
        write(generator, f"shared://{tmp_path}/run")
        (tmp_path / "run/samples.jsonl").unlink()
        (tmp_path / "run/samples.jsonl").mkdir()
        with pytest.raises(InputError, match="not a plain"):
            next(RunReader(f"shared://{tmp_path}/run").samples())

    def test_address_that_leads_nowhere_is_refused(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "s3fs", None)
        for address, problem in {
            "nowhere://bucket/run": "cannot be opened",
            "memory://bucket/nothing": "run.json is missing",
            "file:///no/such/folder": "no such directory",
            "s3://bucket/run": "cannot be opened",
        }.items():
            with pytest.raises(InputError, match=problem):
                RunReader(address)

    def test_password_in_an_address_is_not_repeated(self, monkeypatch):
        monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (MemoryFileSystem(), "/none"))
        with pytest.raises(InputError) as refused:
            RunReader("memory://someone:secret@host/run?signature=secret")
        assert str(refused.value).startswith("memory://host/run:") and "secret" not in str(
            refused.value
        )


def replace(location, name, data):
    store = open_storage(location)
    with store.building(name) as built:
        built.write_bytes(data)
        store.publish(built, name, replace=True)


class file_size_limit:  # noqa: N801  (reads like a function)
    """Within the block no file grows beyond a size, as on a full disk, with EFBIG for ENOSPC."""

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


class TestWritingThatFails:
    def test_full_disk_leaves_a_run_that_can_be_resumed(self, make_run, places):
        """The room ends anywhere in a batch: at its first byte, in a step, or in the file's end."""
        kind = {"sizes": (3, 4), "vocabulary": 2000, "text": False}
        whole = make_run(**kind).steps_file(0).stat().st_size
        for share in (0, 0.03, 0.5, 0.9, 0.999):
            for _, place in places(f"run{share}"):
                generator = make_run.generator(**kind)
                with generator.create(place) as writer:
                    with (
                        file_size_limit(int(share * whole)),
                        pytest.raises(InputError, match="cannot be written") as e,
                    ):
                        generator.batch(writer, 0)
                    assert "room" in e.value.remedy
                assert RunReader(place).batches == ()
                assert open_storage(place).entries("steps") == []
                finish(make_run.generator(**kind), place)
                assert share != 0.5 or audit(place).verdict == "pass"

    def test_full_disk_at_the_end_leaves_a_run_that_can_be_finished(self, places):
        for room in (0, 500):
            for generator, place in places(f"run{room}"):
                with generator.create(place) as writer:
                    generator.batch(writer, 0)
                    generator.batch(writer, 1)
                    with (
                        file_size_limit(room),
                        pytest.raises(InputError, match="cannot be written"),
                    ):
                        writer.finish(generator.claim())
                finish_again(generator, place)
                assert audit(place).verdict == "pass"

    def test_full_disk_at_the_start_leaves_a_place_that_can_be_used(self, places):
        for generator, place in places():
            with file_size_limit(100), pytest.raises(InputError, match="cannot be written"):
                generator.create(place)
            write(generator, place)
            assert audit(place).verdict == "pass"

    def test_folder_that_refuses_is_named_with_a_remedy(self, make_run, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        for call in ("fsync", "replace", "link", "open"):
            path, generator = tmp_path / call, make_run.generator(sizes=(3, 4))
            half(generator, path)
            with RunWriter.resume(path) as writer:
                with monkeypatch.context() as patch:
                    patch.setattr(os, call, refuse)
                    with pytest.raises(InputError, match="Read-only file system") as refused:
                        generator.batch(writer, 1)
                        writer.finish(generator.claim())
                assert (
                    refused.value.where.startswith(str(path)) and "writable" in refused.value.remedy
                )
            finish(generator, path)
            assert audit(path).verdict == "pass"

    def test_store_that_refuses_is_named_with_a_remedy(self, urls, monkeypatch):
        for generator, url in urls():
            half(generator, url)

            def refuse(*_, **__):
                raise PermissionError(errno.EACCES, "Forbidden")

            with RunWriter.resume(url) as writer, monkeypatch.context() as patch:
                for files in (MemoryFileSystem, SharedFiles):
                    patch.setattr(files, "put_file", refuse)
                with pytest.raises(InputError, match=r"00000001\.zip: .*be written \(Forbidden\)"):
                    generator.batch(writer, 1)
            finish(generator, url)
            assert audit(url).verdict == "pass"

    def test_upload_that_breaks_off_leaves_no_batch(self, generator, tmp_path, monkeypatch):
        """Without atomic uploads, half a file has another name, but never the batch's."""
        url = f"shared://{tmp_path}/run"
        half(generator, url)

        def break_off(_, source, target):
            Path(target).write_bytes(Path(source).read_bytes()[:100])
            raise ConnectionError("reset by peer")

        with RunWriter.resume(url) as writer:
            with monkeypatch.context() as patch:
                patch.setattr(SharedFiles, "put_file", break_off)
                with pytest.raises(InputError, match="reset by peer"):
                    generator.batch(writer, 1)
            assert os.listdir(tmp_path / "run/steps") == ["00000000.zip"]

    def test_what_a_killed_upload_left_is_dropped_on_resume(self, urls):
        for generator, url in urls():
            half(generator, url)
            replace(url, "steps/00000001.zip.0a1b2c3d.part", b"half")
            finish(generator, url)
            assert audit(url).verdict == "pass"

    def test_file_system_without_hard_links_will_do(self, generator, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", refuse)
        write(generator, tmp_path / "run")
        assert audit(tmp_path / "run").verdict == "pass"
        (tmp_path / "run/steps/00000001.zip").unlink()
        store = BatchStore(str(tmp_path / "run"), RunReader(tmp_path / "run").manifest)
        with pytest.raises(BatchExistsError):
            one_step(generator, store, before_end=lambda: one_step(generator, store))

    def test_data_is_on_disk_before_its_name(self, generator, tmp_path, monkeypatch):
        """Otherwise a power cut can leave a name without data, or an entry without its batch."""
        done, fsync, link = [], os.fsync, os.link
        monkeypatch.setattr(
            os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))
        )
        monkeypatch.setattr(os, "link", lambda *a, **k: (done.append("named"), link(*a, **k)))
        with generator.create(tmp_path / "run") as writer:
            done.clear()
            generator.batch(writer, 0)
        synced, named, folder, journal = done
        assert Path(journal).name == "journal"
        assert (
            Path(synced).name.startswith("00000000.zip.")
            and named == "named"
            and Path(folder).name == "steps"
        )


def finish_again(generator, location):
    with RunWriter.resume(location) as writer:
        writer.finish(None if writer.manifest.claim else generator.claim())


@pytest.mark.usefixtures("empty_figures")
class TestCommands:
    @pytest.fixture
    def dpaudit(self, capfd, monkeypatch, tmp_path):
        """Runs a command in this process, in a folder of its own: (exit code, stdout, stderr)."""
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.chdir(tmp_path)

        def run(*arguments):
            with pytest.raises(SystemExit) as left:
                main([*arguments, "--workers", "1"])
            return left.value.code, *capfd.readouterr()

        return run

    def test_report_of_a_url_is_written_here(self, urls, dpaudit, tmp_path):
        for generator, url in urls():
            write(generator, url)
            before = open_storage(url).entries()
            name = f"{url.rpartition('/')[2]}-report"
            code, out, _ = dpaudit("report", url)
            assert (code, open_storage(url).entries()) == (0, before)
            assert f"{name}/report.html" in out
            assert json.loads((tmp_path / name / "report.json").read_text())["run"]["path"] == url
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
            assert dpaudit("report", f"{url}/", "--audience", "public")[0] == 0
            assert (tmp_path / name / "public/report.html").is_file()

    def test_urls_are_verified_and_compared(self, urls, make_run, dpaudit, tmp_path):
        for generator, url in urls():
            write(generator, url)
            assert dpaudit("verify", url, "--json")[0] == 0
            local = f"file://{make_run(aggregator='mean').path}"
            code, out, _ = dpaudit("compare", url, local, "--json")
            assert code == 0
            assert list(json.loads(out)["runs"]) == [url, local.removeprefix("file://")]

    def test_run_under_a_files_url_keeps_its_reports(self, generator, dpaudit, tmp_path):
        write(generator, tmp_path / "run")
        assert dpaudit("report", f"file://{tmp_path}/run")[0] == 0
        assert (tmp_path / "run/report/report.html").is_file()

    def test_url_that_leads_nowhere_is_told(self, urls, dpaudit):
        for _, url in urls():
            for command in ("report", "verify"):
                code, _, err = dpaudit(command, f"{url}/nothing")
                assert code == 2 and "run.json is missing" in err and "Traceback" not in err
