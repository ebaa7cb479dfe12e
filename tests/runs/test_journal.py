"""A finished batch is never silently redrawn: not after a deletion, nor an edit of the journal."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.runs import InputError, KnownDigests, RunReader, RunWriter
from tests.forging import journal_of, unfinish
from tests.nesting import read_run


@pytest.fixture
def generator(make_run):
    return make_run.generator(sizes=(3, 4))


@pytest.fixture
def half(generator, tmp_path):
    """A run whose first batch is finished and whose second is not."""
    with generator.create(tmp_path / "run") as writer:
        generator.batch(writer, 0)
    return tmp_path / "run"


def finish(generator, path, **how):
    with RunWriter.resume(path, **how) as writer:
        for batch in sorted({0, 1} - set(writer.whole)):
            generator.batch(writer, batch)
        writer.finish(generator.claim())


def failed(path, held=None):
    result = audit_run(path, known_digests=held)
    return {check.id for check in result.checks if check.status in ("fail", "error")}


def entries(path):
    return [tuple(line.split("  ")) for line in path.read_text().splitlines()[1::2]]


def steps(path, batch=0):
    return path / f"steps/{batch:08d}.zip"


def test_a_running_head_is_the_digest_of_the_journal_so_far(generator, tmp_path):
    path, seen = tmp_path / "run", []
    with generator.create(path) as writer:
        for batch in (1, 0):
            generator.batch(writer, batch)
            seen.append(writer.head)
            assert writer.head == hashlib.sha256((path / "journal").read_bytes()).hexdigest()
        journal = (path / "journal").read_text()
        writer.finish(generator.claim())
    assert (path / "hashes").read_text().startswith(journal) and not (path / "journal").exists()
    found = RunReader(path).hashes()
    assert [found.batches_by(head) for head in seen] == [1, 2]
    assert [name for name in found.digests if name.startswith("steps")] == [
        "steps/00000001.zip",
        "steps/00000000.zip",
    ]


def test_a_head_that_was_given_early_holds_for_the_batches_until_then(generator, tmp_path):
    """The rest may be drawn again under it, and the audit says so to every audience."""
    path = tmp_path / "run"
    with generator.create(path) as writer:
        generator.batch(writer, 0)
        early = writer.head
    shutil.copytree(path, tmp_path / "kept")
    finish(generator, path)
    result = audit_run(path, known_digests=KnownDigests(RunReader(path).manifest.commitment, early))
    (check,) = [check for check in result.checks if check.id == "integrity.commitment"]
    assert result.verdict == "pass" and (check.values["entries"], check.values["batches"]) == (1, 2)
    for head in (
        early,
        RunReader(path).head(),
    ):
        # of what was drawn again before it was given no head tells
        (redrawn,) = [
            c
            for c in audit_run(path, known_digests=KnownDigests(head=head)).checks
            if c.id == "integrity.redrawn"
        ]
        assert (redrawn.status, redrawn.evidence) == ("pass", 0)
    for audience in (result, public_form(result)):
        assert "caveat.early-head" in {caveat.code for caveat in audience.caveats}
    # The same beginning with another batch 0, forged as well as can be.
    other = tmp_path / "kept"
    steps(other).unlink()
    lines = entries(other / "journal")[:-1]
    (other / "journal").write_text(journal_of(other, lines))
    finish(generator, other)
    assert failed(other) == set()
    assert failed(other, KnownDigests(head=early)) == {"integrity.commitment"}


@pytest.mark.parametrize("change", ["gone", "another"])
def test_a_finished_batch_is_drawn_again_only_where_somebody_says_so(generator, half, change):
    first = steps(half).read_bytes()
    steps(half).unlink() if change == "gone" else steps(half).write_bytes(first + b" ")
    before = (half / "journal").read_bytes()
    with pytest.raises(InputError, match=r"00000000.zip.*was finished.*--unverified"):
        RunWriter.resume(half)
    assert (half / "journal").read_bytes() == before
    steps(half).write_bytes(first)
    finish(generator, half)
    assert failed(half) == set() and read_run(half)["redrawn"] == []


def test_a_batch_that_was_drawn_again_fails_the_audit_and_is_named(generator, half):
    steps(half).unlink()
    finish(generator, half, redraw=True)
    assert [name for _, name in entries(half / "hashes")].count("steps/00000000.zip") == 2
    assert read_run(half)["redrawn"] == [0]
    assert failed(half) == {"integrity.redrawn"}


def test_a_crash_between_a_redraw_and_its_entry_hides_nothing(generator, half):
    kept = (half / "journal").read_bytes()
    steps(half).unlink()
    with RunWriter.resume(half, redraw=True) as writer:
        assert writer.redrawn == (0,)
        generator.batch(writer, 0)
    (half / "journal").write_bytes(kept)
    with pytest.raises(InputError, match="is another now"):
        RunWriter.resume(half)
    finish(generator, half, redraw=True)
    assert failed(half) == {"integrity.redrawn"}


def test_a_crash_between_a_batch_and_its_entry_accuses_nobody(generator, half):
    """Nor does one that cut the entry short, at any byte of it."""
    journal = (half / "journal").read_bytes()
    begun = len(journal) - len(b"".join(journal.splitlines(keepends=True)[-2:]))
    for kept in (begun, begun + 1, begun + 30, begun + 67, begun + 90, len(journal) - 1):
        (half / "journal").write_bytes(journal[:kept])
        RunWriter.resume(half).close()
        assert (half / "journal").read_bytes() == journal
    finish(generator, half)
    assert failed(half) == set()


def test_what_other_processes_wrote_is_entered_when_the_run_goes_on(generator, tmp_path):
    path = tmp_path / "run"
    writer = generator.create(path)
    generator.batch(writer.store, 0)
    generator.batch(writer.store, 1)
    assert len(entries(path / "journal")) == 3
    writer.note(1)
    assert [name for _, name in entries(path / "journal")[3:]] == [
        "steps/00000000.zip",
        "steps/00000001.zip",
    ]
    writer.close()
    finish(generator, path)
    assert failed(path) == set()


def drop_entry_in_the_middle(lines):
    del lines[2:4]


def swap_entries(lines):
    lines[:4] = lines[2:4] + lines[:2]


def another_digest(lines):
    lines[1] = "0" * 64 + lines[1][64:]


@pytest.mark.parametrize("edit", [drop_entry_in_the_middle, swap_entries, another_digest])
def test_an_edited_journal_is_refused(half, edit):
    lines = (half / "journal").read_text().splitlines(keepends=True)
    edit(lines)
    (half / "journal").write_text("".join(lines))
    with pytest.raises(InputError, match=r"journal, line \d+.*Restore"):
        RunWriter.resume(half)


def test_a_deleted_journal_and_that_of_another_run_are_refused(generator, half, tmp_path):
    with generator.create(tmp_path / "other") as other:
        generator.batch(other, 0)
    shutil.copy(tmp_path / "other/journal", half / "journal")
    with pytest.raises(InputError, match="journal, line 1"):
        RunWriter.resume(half)
    (half / "journal").unlink()
    with pytest.raises(InputError, match=r"journal: .* is missing"):
        RunWriter.resume(half)


def test_a_truncated_journal_contradicts_a_head_that_was_given(generator, half):
    """By itself it is what a crash leaves, so only somebody with a running head can tell."""
    early = RunReader(half).journal().head
    lines = entries(half / "journal")
    (half / "journal").write_text(
        journal_of(half, [entry for entry in lines if not entry[1].startswith("steps")])
    )
    steps(half).unlink()
    with RunWriter.resume(half) as writer:
        generator.batch(writer, 1)
        generator.batch(writer, 0)
        writer.finish(generator.claim())
    assert failed(half) == set()
    assert failed(half, KnownDigests(head=early)) == {"integrity.commitment"}


def test_a_journal_that_is_edited_while_the_run_is_written_is_noticed(generator, tmp_path):
    with generator.create(tmp_path / "run") as writer:
        generator.batch(writer, 0)
        journal = tmp_path / "run/journal"
        journal.write_text(journal.read_text()[:-1] + "x\n")
        generator.batch(writer, 1)
        with pytest.raises(InputError, match="journal"):
            writer.finish(generator.claim())


def test_a_batch_that_is_exchanged_or_deleted_while_the_run_is_written_is_noticed(
    generator, tmp_path
):
    with generator.create(tmp_path / "run") as writer:
        generator.batch(writer, 0)
        generator.batch(writer, 1)
        first = steps(tmp_path / "run").read_bytes()
        steps(tmp_path / "run").write_bytes(first + b" ")
        with pytest.raises(InputError, match=r"00000000\.zip"):
            writer.finish(generator.claim())
        steps(tmp_path / "run").unlink()
        with pytest.raises(InputError, match=r"00000000\.zip.*was finished"):
            writer.finish(generator.claim())


def test_heads_let_nobody_test_a_guess(generator, tmp_path):
    """Twins that differ in nothing but their nonce have no head in common."""
    heads = []
    for name in ("one", "other"):
        with generator.create(tmp_path / name):
            reader = RunReader(tmp_path / name)
            heads += [link for _, link in reader.journal_lines() if link.startswith("# ")]
            heads.append(f"# {reader.journal().head}")
    assert len(set(heads)) == len(heads) == 8


def test_an_audit_of_an_unfinished_run_has_it_resumed_and_nothing_else(tmp_path):
    """To generate it again would be another run, and nothing is there to be restored."""
    run = shutil.copytree(Path(__file__).parents[2] / "examples/runs/bbc-median", tmp_path / "run")
    unfinish(run)
    checks = {check.id: check for check in audit_run(run).checks}
    assert checks["integrity.complete"].code == "unfinished"
    assert [note.code for note in checks["integrity.complete"].notes] == ["file.resume"]
    for unread in ("integrity.hashes", "release.text"):
        assert checks[unread].values["problem"].code == "file.unfinished"
    resume = f"dpaudit generate CONFIG.yaml --out {run}`"
    for name in ("integrity.complete", "integrity.hashes", "release.text"):
        assert resume in checks[name].detail, "the command names the run"
