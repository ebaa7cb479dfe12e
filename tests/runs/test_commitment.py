"""A commitment covers all that is settled before the first token, outlasts the rest, is secret."""

from __future__ import annotations

import hashlib
import itertools

import pytest

from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.runs import (
    Batching,
    CanaryCoins,
    Claim,
    Clustering,
    Decoding,
    KnownDigests,
    Manifest,
    Model,
    Origins,
    Privacy,
    Prompt,
    Record,
    Recorded,
    RunReader,
    RunWriter,
    Sampling,
    commitment_of,
)
from dpaudit.runs.commitment import SETTLED

#: Another value of every field of run.json that is settled before the first token.
OTHER = {
    "sensitivity": "none",
    "created": "2025-01-01T00:00:01+00:00",
    "privacy": Privacy(relation="replace"),
    "batching": Batching(rule="hashed-records", batches=2, key="5eed" * 15 + "5eee"),
    "clustering": Clustering(
        method="dpm",
        origin="noised",
        embedding="m",
        normalize=True,
        centers=2,
        keep=1,
        epsilon=1.0,
        delta=0.0,
    ),
    "chosen_from": Origins(batching="private", settings="public"),
    "decoding": Decoding(
        max_tokens=3, sequences=((11,), (1, 11), (2, 3), (7,)), no_line_breaks=True
    ),
    "sampling": Sampling(generator="test-seed", seed=1),
    "record": Record(vocabulary=12, contexts=True),
    "model": Model(name="miniature", dtype="float16"),
    "prompt": Prompt(template="none", public_examples={"a": ("An example.",)}),
    "software": {"dpaudit": "0"},
    "recorded": Recorded(generator="other 1.0"),
    "canaries": CanaryCoins(count=15, digest="00" * 32),
    "made_by": "The records team",
    "claim_stated": "beforehand",
    "nonce": "00" * 32,
}


@pytest.fixture
def run(make_run):
    return make_run()


def digests(reader):
    return {name: reader.digest(name) for name in SETTLED if reader.has(name)}


def test_it_is_over_every_field_that_is_settled(run):
    reader = RunReader(run.path)
    manifest, files = reader.manifest, digests(reader)
    other = OTHER | {
        "data": manifest.data.model_copy(update={"records": 999}),
        "mechanism": manifest.mechanism.model_copy(update={"temperature": 1.5}),
    }
    assert other.keys() == Manifest.model_fields.keys() - {
        "claim",
        "commitment",
        "redrawn",
        "stopped_after",
    }, "a new field needs a line here"
    found = {
        name: commitment_of(manifest.model_copy(update={name: value}), files)
        for name, value in other.items()
    }
    assert len({manifest.commitment, *found.values()}) == 1 + len(found)


def test_it_is_over_the_files_that_are_settled(run):
    reader = RunReader(run.path)
    files = digests(reader)
    assert files.keys() == {"assignment", "clusters", "tokenizer.json"}
    changed = [files | {name: "00" * 32} for name in files] + [
        {each: files[each] for each in files.keys() - {name}} for name in files
    ]
    found = {commitment_of(reader.manifest, each) for each in changed}
    assert len(found | {reader.manifest.commitment}) == 1 + len(changed)


def test_a_claim_is_in_it_if_it_was_stated_beforehand(make_run):
    for aggregator, settled in (("median", False), ("mean", True)):
        reader = RunReader(make_run(aggregator=aggregator).path)
        raised = reader.manifest.claim.model_copy(update={"epsilon": 99.0})
        other = commitment_of(reader.manifest.model_copy(update={"claim": raised}), digests(reader))
        assert (other != reader.manifest.commitment) == settled


def test_it_is_there_before_the_first_batch_and_stays(make_run, tmp_path):
    generator = make_run.generator(sizes=(3, 4))
    with generator.create(tmp_path / "run") as writer:
        first = writer.manifest.commitment
        assert first == RunReader(tmp_path / "run").manifest.commitment
        assert first == commitment_of(writer.manifest, digests(RunReader(tmp_path / "run")))
        generator.batch(writer, 0)
    with RunWriter.resume(tmp_path / "run") as writer:
        assert writer.manifest.commitment == first
        generator.batch(writer, 1)
        writer.finish(generator.claim())
    reader = RunReader(tmp_path / "run")
    assert reader.manifest.commitment == first
    assert (
        audit_run(tmp_path / "run", known_digests=KnownDigests(first, reader.head())).verdict
        == "pass"
    )


def test_equal_runs_have_unlike_commitments(make_run, tmp_path):
    """Otherwise someone could test a guess of the records by making the run they would give."""
    generator = make_run.generator(sizes=(3, 4))
    found = set()
    for name in ("one", "other"):
        with generator.create(tmp_path / name) as writer:
            found.add(writer.manifest.commitment)
            assert len(bytes.fromhex(writer.manifest.nonce)) == 32
    assert len(found) == 2


def test_head_is_the_digest_of_the_digests(run):
    assert RunReader(run.path).head() == hashlib.sha256((run / "hashes").read_bytes()).hexdigest()


def test_audit_says_what_it_was_not_given(run):
    commitment, head = RunReader(run.path).manifest.commitment, RunReader(run.path).head()
    for held in itertools.starmap(
        KnownDigests, itertools.product((commitment, None), (head, None))
    ):
        result = audit_run(run.path, known_digests=held)
        (check,) = [check for check in result.checks if check.id == "integrity.commitment"]
        assert (result.verdict, check.status) == ("pass", "pass")
        for audience in (result, public_form(result)):
            codes = {caveat.code for caveat in audience.caveats}
            assert ("caveat.no-commitment" in codes) == (held.commitment is None)
            assert ("caveat.no-head" in codes) == (
                held.head is None and held.commitment is not None
            )
        given = [name for name in ("commitment", "head") if getattr(held, name) is not None]
        assert (check.code, check.values.get("given", ())) == (
            "given-holds" if given else "holds",
            tuple(given),
        )


def test_what_cannot_be_read_is_not_compared(run):
    run.hold()
    (run / "tokenizer.json").write_text("{")
    run.rehash()
    (check,) = [check for check in run.audit().checks if check.id == "integrity.commitment"]
    assert (check.status, check.applicable) == ("skip", True)
    assert (check.code, check.values["file"]) == ("unread", "tokenizer.json")


def test_a_commitment_that_is_taken_for_a_head_is_told(run):
    run.hold()
    swapped = KnownDigests(run.known_digests.head, run.known_digests.commitment)
    for held in (
        swapped,
        KnownDigests(head=swapped.head),
        KnownDigests(commitment=swapped.commitment),
    ):
        (check,) = [
            check
            for check in audit_run(run.path, known_digests=held).checks
            if check.status == "fail"
        ]
        assert (check.id, [note.code for note in check.notes]) == (
            "integrity.commitment",
            ["integrity.swapped"],
        )


def test_result_holds_no_nonce(run):
    nonce = RunReader(run.path).manifest.nonce
    assert nonce not in run.audit().to_json()


def test_a_claim_that_is_stated_at_the_end_is_in_the_head_alone(make_run):
    run = make_run()
    run.hold(head=False)
    run.edit_manifest({"claim": Claim(epsilon=99.0, kind="ex-post").model_dump(mode="json")})
    run.rehash()
    assert run.audit().verdict == "pass"
