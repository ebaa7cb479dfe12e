"""Attestations: an audit's findings, as in-toto statements about released files.

They are in DSSE envelopes, as all that dpaudit signs.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from dpaudit.results import AttackBound, AuditResult, ClaimKind, Status
from dpaudit.results.attestation import (
    PAYLOAD_TYPE,
    Attacks,
    Attested,
    AttestedAttacks,
    AttestedBound,
    Audit,
    AuditMade,
    ClaimTested,
    Commitment,
    Configured,
    DsseEnvelope,
    DsseSignature,
    Head,
    Made,
    PaidFigure,
    PolicyDigest,
    PolicyMet,
    PolicyName,
    Revocations,
    Sha256,
    StatedClaim,
    Statement,
    Subject,
    Svr,
    SvrStatement,
    TestResult,
    TestResultStatement,
    Tool,
    Verifier,
    WorthPaid,
    timestamp,
)
from dpaudit.runs import strict_json

#: Of the file, and of values of a payload.
MAX_BYTES, MAX_VALUES = 1 << 20, 1 << 14
_OTHERWISE = (
    "it is cut short, or was written anew: each line holds one envelope, has no blanks between "
    "JSON's signs, and ends with a line feed. Ask for the file as it was released"
)


class Predicates(NamedTuple):
    """What both statements of an attestation say, of whatever files."""

    found: TestResult
    summary: Svr

    @property
    def release(self) -> str:
        """The release's id: SHA-256 of both as compact JSON with sorted keys, in hexadecimal.

        The files' marks have it, and cannot have the digest of the attestation, which has theirs.
        """
        return hashlib.sha256(_canonical([each.document() for each in self])).hexdigest()

    def about(self, digests: Mapping[str, str]) -> tuple[TestResultStatement, SvrStatement]:
        """Return the statements about released files.

        Args:
            digests: SHA-256 of each file in hexadecimal, by its path in the folder.
        """
        subject = tuple(
            Subject(name=name, digest=Sha256(sha256=digest))
            for name, digest in sorted(digests.items())
        )
        return (
            TestResultStatement(subject=subject, predicate=self.found),
            SvrStatement(subject=subject, predicate=self.summary),
        )


class Beside(NamedTuple):
    """What an attestation says beside the audit.

    Attributes:
        commitment, head: the run's, in hexadecimal; None without them.
        revocations: where the key's list of revocations is published; None without one.
    """

    commitment: str | None = None
    head: str | None = None
    revocations: str | None = None

    @classmethod
    def of(cls, found: TestResult) -> Beside:
        """Return what an attestation says of these."""
        made, head = found.configured(Commitment), found.configured(Head)
        published = found.configured(Revocations)
        return cls(
            None if made is None else made.digest.sha256,
            None if head is None else head.digest.sha256,
            None if published is None else published.uri,
        )


def predicates(public: AuditResult, kind: ClaimKind, beside: Beside, now: datetime) -> Predicates:
    """Return what is attested of a passed audit.

    Args:
        public: the audit's result, in its public form: nothing else is attested, but for what
            follows.
        kind: of the claim, which the public form says in its sentence alone where it withholds the
            claim.
        beside: what else is.
        now: when.

    Raises:
        ValueError: this is no public form of a pass.
    """
    if public.audience != "public" or public.verdict != "pass":
        raise ValueError("only a pass is attested, in its public form")
    held = (
        () if public.policy is None else (PolicyDigest(digest=Sha256(sha256=public.policy.sha256)),)
    )
    summary = Svr(
        verifier=Verifier(id=verifier(public.run.dpaudit), policies=held),
        # so that two releases of one audit have ids of their own
        time_created=timestamp(now, "microseconds"),
        properties=properties(public.evidence, kind, bool(held)),
    )
    return Predicates(found_by(public, kind, beside), summary)


def found_by(public: AuditResult, kind: ClaimKind, beside: Beside) -> TestResult:
    """Return the first statement's findings of an audit's public form.

    Arguments are those of `predicates`.
    """
    warned = _named(public, "warn")
    return TestResult(
        result="WARNED" if warned else "PASSED",
        configuration=_configuration(public, kind, beside),
        passed_tests=_named(public, "pass"),
        warned_tests=warned,
        failed_tests=_named(public, "fail", "error"),
    )


def properties(evidence: int, kind: ClaimKind, policy: bool) -> tuple[str, ...]:
    """Return what the summary says of a pass."""
    said = (
        "DPAUDIT_CLAIM_HOLDS",
        f"DPAUDIT_CLAIM_{kind.upper().replace('-', '_')}",
        f"DPAUDIT_EVIDENCE_{evidence}",
    )
    return (*said, *["DPAUDIT_POLICY_MET"] * policy)


def verifier(version: str) -> str:
    """Return the id of a dpaudit of this version."""
    return f"urn:dpaudit:verifier:{version}"


def _configuration(public: AuditResult, kind: ClaimKind, beside: Beside) -> tuple[Configured, ...]:
    versions = public.run.model_dump(include={"dpaudit", "dp_accounting", "plugins"})
    attacked = attacks(public)
    found: list[Configured] = [
        ClaimTested(annotations=stated_claim(public, kind)),
        *([] if attacked is None else [Attacks(annotations=attacked)]),
        Audit(
            annotations=AuditMade(
                evidence=public.evidence,
                not_made=tuple(public.not_checked),
                guarantee=str(public.guarantee),
            )
        ),
        Tool(annotations=Made.model_validate(versions)),
    ]
    if beside.commitment is not None:
        found.append(Commitment(digest=Sha256(sha256=beside.commitment)))
    if beside.head is not None:
        found.append(Head(digest=Sha256(sha256=beside.head)))
    if beside.revocations is not None:
        found.append(Revocations(uri=beside.revocations))
    if public.policy is not None:
        name = PolicyName(name=public.policy.name)
        found.append(PolicyMet(digest=Sha256(sha256=public.policy.sha256), annotations=name))
    if (paid := public.paid) is not None:
        figure = paid.model_dump(include={"gain", "at_least", "relation", "unit"})
        found.append(WorthPaid(annotations=PaidFigure(epsilon=paid.spent, **figure)))
    return tuple(found)


def stated_claim(public: AuditResult, kind: ClaimKind) -> StatedClaim:
    """Return the claim as a public form has it."""
    if public.claim is None:
        return StatedClaim(kind=kind, withheld=str(public.guarantee))
    return StatedClaim.model_validate(public.claim.model_dump())


def attacks(public: AuditResult) -> AttestedAttacks | None:
    """Return what attacks can do as a public form has it; None if it says nothing of them."""
    found, reason = public.guarantees.attacks, public.guarantees.no_attack
    if found is None or found.attack is None or found.batch_attack is None:
        return None if reason is None else AttestedAttacks(unbounded=str(reason))
    return AttestedAttacks(
        release=attested_bound(found.attack),
        batch=attested_bound(found.batch_attack),
        settings=found.attack_settings,
    )


def attested_bound(found: AttackBound) -> AttestedBound:
    """Return a bound's figures, as they are attested."""
    return AttestedBound(**found.model_dump(include=set(AttestedBound.model_fields)))


def _named(result: AuditResult, *statuses: Status) -> tuple[str, ...]:
    return tuple(check.id for check in result.checks if check.status in statuses)


def envelopes(found: Iterable[Attested], signer: CryptoSigner | None) -> bytes:
    """Return the file of these statements: an envelope a line, signed unless there is no signer."""
    lines = []
    for statement in found:
        envelope = Envelope(_canonical(statement.document()), PAYLOAD_TYPE, {})
        if signer is not None:
            envelope.sign(signer)
        lines.append(_compact(envelope.to_dict()) + b"\n")
    return b"".join(lines)


def _canonical(values: Any) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _compact(values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


_Statement = TypeVar("_Statement", bound=BaseModel)


class Opened(NamedTuple, Generic[_Statement]):
    """One envelope.

    Attributes:
        statement: what it holds; nobody vouches for it yet.
        signatures: as they stand.
        signed: the bytes that signatures of it are of.
    """

    statement: _Statement
    signatures: tuple[DsseSignature, ...]
    signed: bytes

    def signed_by(self, key: SSlibKey) -> bool:
        """Return whether a signature of this key is there and fits what the envelope holds now.

        Each signature is tried, whatever key it names: a name is a hint that nobody signed, and may
        be empty.
        """
        for signature in self.signatures:
            try:
                key.verify_signature(
                    Signature(key.keyid, b64decode(signature.sig).hex()), self.signed
                )
            except UnverifiedSignatureError:
                continue
            return True
        return False


def opened(content: bytes, kind: type[_Statement]) -> tuple[Opened[_Statement], ...]:
    """Return the envelopes of a file of statements of some kind.

    Raises:
        ValueError: it is none, and why.
    """
    if len(content) > MAX_BYTES:
        raise ValueError("it is too large")
    lines = content.splitlines()
    # no signature is of what is between the lines
    if b"".join(line + b"\n" for line in lines) != content:
        raise ValueError(_OTHERWISE)
    return tuple(_opened(line, kind) for line in lines)


def _opened(line: bytes, kind: type[_Statement]) -> Opened[_Statement]:
    try:
        values = strict_json.load(line, MAX_VALUES)
        fields = DsseEnvelope.model_validate_json(line)
        payload = b64decode(fields.payload, validate=True)
        strict_json.load(payload, MAX_VALUES)
        # By the names that the formats have: others read no other.
        statement = kind.model_validate_json(payload, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"][:8])
        raise ValueError(f"{place}: {first['msg']}") from None
    encoded = (fields.payload, *(each.sig for each in fields.signatures))
    if _compact(values) != line or any(
        b64encode(b64decode(text)).decode() != text for text in encoded
    ):
        raise ValueError(_OTHERWISE)
    return Opened(statement, fields.signatures, Envelope(payload, fields.payloadType, {}).pae())


class Attestation(NamedTuple):
    """Both statements of a release, and their envelopes."""

    found: TestResultStatement
    summary: SvrStatement
    envelopes: tuple[Opened[Statement], ...]

    @property
    def release(self) -> str:
        """The release's id, as its marks have it."""
        return Predicates(self.found.predicate, self.summary.predicate).release

    def signed_by(self, key: SSlibKey) -> bool:
        """Return whether this key signed both."""
        return all(each.signed_by(key) for each in self.envelopes)

    @classmethod
    def of(cls, content: bytes) -> Attestation:
        """Return what an attestation file holds. Raises ValueError where it is none."""
        envelopes = opened(content, Statement)
        found, summary = (
            (each.statement.root for each in envelopes) if len(envelopes) == 2 else (None, None)
        )
        if not (isinstance(found, TestResultStatement) and isinstance(summary, SvrStatement)):
            raise ValueError("it has other statements than the two of a release")
        return cls(found, summary, envelopes)
