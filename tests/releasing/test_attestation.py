"""Attestations say what a public report says, and others read and verify them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from securesystemslib.dsse import Envelope

from dpaudit.auditing.disclosure import public_form
from dpaudit.releasing.attestation import Beside, envelopes, opened, predicates
from dpaudit.releasing.keys import make_key, read_public_key, read_signer
from dpaudit.releasing.policy import PolicyFile, apply_policy
from dpaudit.results import AuditResult
from dpaudit.results.attestation import Audit, ClaimTested, Commitment, PolicyMet, Statement, Tool
from dpaudit.results.policy import Policy
from dpaudit.results.schemas import json_schema

Run = Any
NOW = datetime(2026, 11, 24, 12, tzinfo=UTC)
COMMITMENT, POLICY = "c0" * 32, "ab" * 32
FILES = {"README.md": "01" * 32, "data/train.parquet": "02" * 32}


@pytest.fixture
def passed(make_run: Callable[..., Run]) -> AuditResult:
    result = make_run(aggregator="mean").audit()
    return apply_policy(
        result, PolicyFile(Policy(policy_version=1, name="the house", epsilon=1000), POLICY)
    )


def test_both_statements_say_what_the_public_report_says(passed: AuditResult) -> None:
    public = public_form(passed)
    found, summary = predicates(public, "approximate", Beside(COMMITMENT), NOW).about(FILES)
    claim, audit, tool = (found.configured(kind) for kind in (ClaimTested, Audit, Tool))
    assert claim.annotations.epsilon == public.claim.epsilon
    assert (claim.annotations.delta, claim.annotations.unit) == (
        public.claim.delta,
        public.claim.unit,
    )
    assert (audit.annotations.evidence, audit.annotations.guarantee) == (2, str(public.guarantee))
    assert set(audit.annotations.not_made) == set(public.not_checked)
    assert tool.annotations.dpaudit == public.run.dpaudit
    assert found.configured(Commitment).digest.sha256 == COMMITMENT
    assert (
        found.configured(PolicyMet).digest.sha256,
        found.configured(PolicyMet).annotations.name,
    ) == (
        POLICY,
        "the house",
    )
    assert found.predicate.result == "PASSED"
    assert set(found.predicate.passed_tests) == {
        check.id for check in passed.checks if check.status == "pass"
    }
    assert {each.name: each.digest.sha256 for each in found.subject} == FILES
    assert summary.subject == found.subject
    assert summary.predicate.time_created == "2026-11-24T12:00:00.000000Z"
    assert "DPAUDIT_EVIDENCE_2" in summary.predicate.properties
    for statement in (found, summary):
        jsonschema.validate(statement.document(), json_schema("attestation"))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(statement.document() | {"new": 1}, json_schema("attestation"))


def test_names_the_plug_ins_that_took_part(passed: AuditResult) -> None:
    public = public_form(passed)
    took_part = {"a-package": "1.2"}
    with_them = public.model_copy(
        update={"run": public.run.model_copy(update={"plugins": took_part})}
    )
    for result, expected in ((public, public.run.plugins), (with_them, took_part)):
        found, _ = predicates(result, "approximate", Beside(COMMITMENT), NOW).about(FILES)
        tool = found.configured(Tool)
        assert tool is not None and tool.annotations.plugins == expected
        jsonschema.validate(found.document(), json_schema("attestation"))


def test_a_withheld_claim_has_no_figure(make_run: Callable[..., Run]) -> None:
    public = public_form(make_run().audit())
    found, _ = predicates(public, "ex-post", Beside(), NOW).about(FILES)
    claim = found.configured(ClaimTested).annotations
    assert (claim.kind, claim.epsilon, claim.delta) == ("ex-post", None, None)
    assert "withheld here" in claim.withheld
    assert found.configured(Commitment) is None


def test_only_a_pass_in_its_public_form_is_attested(passed: AuditResult) -> None:
    for result in (passed, public_form(passed.model_copy(update={"verdict": "fail"}))):
        with pytest.raises(ValueError, match="only a pass"):
            predicates(result, "approximate", Beside(COMMITMENT), NOW).about(FILES)


def test_envelopes_are_signed_and_verify_by_their_key_alone(
    passed: AuditResult, tmp_path: Path
) -> None:
    make_key(tmp_path / "key")
    make_key(tmp_path / "other")
    both = predicates(public_form(passed), "approximate", Beside(COMMITMENT), NOW).about(FILES)
    content = envelopes(both, read_signer(tmp_path / "key"))
    found = opened(content, Statement)
    assert tuple(each.statement.root for each in found) == both
    for each in found:
        assert each.signed_by(read_public_key(tmp_path / "key.pub"))
        assert not each.signed_by(read_public_key(tmp_path / "other.pub"))
    unsigned = opened(envelopes(both, None), Statement)
    assert [each.signatures for each in unsigned] == [(), ()]
    assert not any(each.signed_by(read_public_key(tmp_path / "key.pub")) for each in unsigned)


def test_every_changed_byte_of_a_payload_is_noticed(passed: AuditResult, tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    both = predicates(public_form(passed), "approximate", Beside(COMMITMENT), NOW).about(FILES)
    line = envelopes(both, read_signer(tmp_path / "key")).splitlines()[0]
    fields, key = json.loads(line), read_public_key(tmp_path / "key.pub")
    payload = base64.b64decode(fields["payload"])
    for place in range(0, len(payload), 101):
        changed = payload[:place] + bytes([payload[place] ^ 1]) + payload[place + 1 :]
        other = json.dumps(fields | {"payload": base64.b64encode(changed).decode()}).encode()
        try:
            (found,) = opened(other, Statement)
        except ValueError:
            continue
        assert not found.signed_by(key)


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b"x",
        b'{"payload":"","payloadType":"application/vnd.in-toto+json","signatures":[]}',
        b'{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[]}',
        b'{"payload":"e30=","payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[]}',
        b'{"payload":"e30=","payloadType":"text/plain","signatures":[]}',
        b"{" * 2000,
        b"x" * (1 << 21),
    ],
)
def test_what_is_no_attestation_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        opened(content, Statement)


def test_others_read_and_verify_it(passed: AuditResult, tmp_path: Path) -> None:
    """in-toto's own bindings and securesystemslib verify the attestations from the files alone."""
    parser = pytest.importorskip("google.protobuf.json_format")
    protos = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    results = pytest.importorskip("in_toto_attestation.predicates.test_result.v0.test_result_pb2")
    statement_of = pytest.importorskip("in_toto_attestation.v1.statement").Statement.copy_from_pb
    make_key(tmp_path / "key")
    both = predicates(public_form(passed), "approximate", Beside(COMMITMENT), NOW).about(FILES)
    for line in envelopes(both, read_signer(tmp_path / "key")).splitlines():
        envelope = Envelope.from_dict(json.loads(line))
        assert envelope.verify([read_public_key(tmp_path / "key.pub")], 1)
        document = json.loads(envelope.payload)
        statement = statement_of(parser.ParseDict(document, protos.Statement()))
        statement.validate()
        assert {each.name: each.digest["sha256"] for each in statement.pb.subject} == FILES
        if statement.pb.predicate_type.endswith("test-result/v0.1"):
            found = parser.ParseDict(document["predicate"], results.TestResult())
            assert found.result == "PASSED"
            assert "claim.epsilon" in found.passed_tests
