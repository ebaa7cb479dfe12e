"""Signed statements about a release, as types: in-toto Statements (v1) in DSSE envelopes.

The attestation of a release is the file ATTESTATION: an envelope a line, one with the predicate
test-result and one with svr. Reviewers' sign-offs and a key's list of revocations are statements of
their own. Names of fields are in-toto's (https://github.com/in-toto/attestation).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from pydantic import AfterValidator, ConfigDict, Field, RootModel, model_validator
from pydantic.alias_generators import to_camel

from dpaudit.mechanisms import Fields, FirstVersion, Relation, Unit
from dpaudit.mechanisms.claims import CLAIM_KINDS, ClaimKind, KindOfClaim
from dpaudit.results.audit import AttackSettings
from dpaudit.runs.layout import ATTESTATION as ATTESTATION

#: Reviewers' sign-offs: in a run's report folder, and in a release folder.
SIGN_OFFS = "sign-offs.intoto.jsonl"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
TEST_RESULT: Final = "https://in-toto.io/attestation/test-result/v0.1"
SVR: Final = "https://in-toto.io/attestation/svr/v0.2"
SIGN_OFF: Final = "urn:dpaudit:sign-off:v1"
REVOCATIONS: Final = "urn:dpaudit:revocations:v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
#: Of what configuration entries hold; raised where a reader could take one for another.
ATTESTATION_VERSION: Literal[1] = 1
#: Characters of a sentence, and of a name.
MAX_WORDS, MAX_NAME = 1 << 12, 1 << 10
#: Files of a release, and checks of an audit.
MAX_FILES, MAX_CHECKS = 64, 1 << 10
#: Packages beside dpaudit that took part.
MAX_PLUGINS = 1 << 6
#: Of one envelope: whoever countersigns adds one.
MAX_SIGNATURES = 16
#: Sign-offs of a run, and things that one reviewer read.
MAX_SIGN_OFFS = 16
#: Releases that one key has revoked.
MAX_REVOKED = 1 << 11

Words = Annotated[str, Field(max_length=MAX_WORDS)]
Name = Annotated[str, Field(max_length=MAX_NAME)]
_Checks = Annotated[tuple[Name, ...], Field(max_length=MAX_CHECKS, strict=False)]
_DIGEST = r"^[0-9a-f]{64}$"
_TIME = r"^[0-9]{4}(-[0-9]{2}){2}T[0-9]{2}(:[0-9]{2}){2}(\.[0-9]{6})?Z$"


def timestamp(now: datetime, timespec: Literal["seconds", "microseconds"] = "seconds") -> str:
    """Return a time as statements write it, in UTC."""
    return now.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"


def days_since(time: str, now: datetime) -> int:
    """Return how many whole days ago a statement's time was; below 0 where it is later."""
    return (now - datetime.fromisoformat(time)).days


def _require_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


_Time = Annotated[str, Field(pattern=_TIME), AfterValidator(_require_time)]
_Line = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=200)]
#: An address that anybody can read. It goes into messages, so it has no blanks or signs of a shell.
URL: Final = r"^https?://[A-Za-z0-9._~:/?#@%+,=-]+$"
Url = Annotated[str, Field(pattern=URL, max_length=500)]


class Attested(Fields):
    """Base of all that is attested: immutable, no unknown fields, names as in-toto writes them."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, serialize_by_alias=True
    )

    def document(self) -> dict[str, Any]:
        """Return this as JSON's values; what is None is left out."""
        return self.model_dump(mode="json", exclude_none=True)


class Sha256(Attested):
    """A digest, in hexadecimal."""

    sha256: Annotated[str, Field(pattern=_DIGEST)]


class Subject(Attested):
    """A released file: its path in the folder, with slashes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]+$", max_length=200)]
    digest: Sha256


class StatedClaim(Attested):
    """The claim that was tested, as readers outside may know it.

    Attributes:
        epsilon, delta: at the release level, against whoever does not know which batch a record was
            in; epsilon in nats; None if they are withheld.
        batch_epsilon: at the batch level, against whoever does; None if the claim says nothing of
            it, too.
        rho: of zCDP, at the batch level, in place of epsilons; None for the other kinds, too.
        relation, unit, records_per_user: what neighbouring data sets differ by; None likewise.
        withheld: why they are; None if they are not.
    """

    kind: ClaimKind
    epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    batch_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    rho: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    delta: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    relation: Relation | None = None
    unit: Unit | None = None
    records_per_user: Annotated[int, Field(ge=1)] | None = None
    withheld: Words | None = None

    @property
    def terms(self) -> type[KindOfClaim]:
        """Its kind, as a class: what claims of this kind state and promise."""
        return CLAIM_KINDS[self.kind]


_Rate = Annotated[float, Field(ge=0, le=1)]


class AttestedBound(Attested):
    """The most that attacks can do, as `dpaudit.results.AttackBound` has it."""

    advantage: _Rate
    accuracy: _Rate
    tpr_at_1pct: _Rate
    tpr_at_01pct: _Rate
    guess_at_10pct: _Rate


class AttestedAttacks(Attested):
    """What attacks can do at both levels, and what that follows from.

    Attributes:
        release, batch: for readers of the texts, and for someone who knows a record's batch.
        settings: public ones, as report.json has them, by which anybody recomputes both.
        unbounded: why nothing bounds attacks; None if something does.
    """

    release: AttestedBound | None = None
    batch: AttestedBound | None = None
    settings: AttackSettings | None = None
    unbounded: Words | None = None

    @model_validator(mode="after")
    def _bounds_or_says_why_not(self) -> AttestedAttacks:
        there = {each is not None for each in (self.release, self.batch, self.settings)}
        if there != {self.unbounded is None}:
            raise ValueError("attacks are bounded at both levels, or nothing bounds them")
        return self


class AuditMade(Attested):
    """The audit's metadata.

    Attributes:
        evidence: the level up to which every check that is about the run was made.
        not_made: checks that are about the run and were not made, of higher levels.
    """

    evidence: Annotated[int, Field(ge=0, le=4)]
    not_made: _Checks
    guarantee: Words


class Made(Attested):
    """Versions of what made the audit.

    Attributes:
        plugins: versions of other packages that took part in the run or its audit, by name.
    """

    attestation: FirstVersion = ATTESTATION_VERSION
    dpaudit: Name
    dp_accounting: Name | None = None
    plugins: Annotated[dict[Name, Name], Field(default_factory=dict, max_length=MAX_PLUGINS)]


class PolicyName(Attested):
    """The organisation's name for its policy; None without one."""

    name: Name | None = None


class ClaimTested(Attested):
    """The claim, as a resource descriptor."""

    name: Literal["claim"] = "claim"
    uri: Literal["urn:dpaudit:claim"] = "urn:dpaudit:claim"
    annotations: StatedClaim


class Attacks(Attested):
    """What attacks can do by the texts, as a resource descriptor."""

    name: Literal["attacks"] = "attacks"
    uri: Literal["urn:dpaudit:attacks"] = "urn:dpaudit:attacks"
    annotations: AttestedAttacks


class Audit(Attested):
    """The audit, as a resource descriptor."""

    name: Literal["audit"] = "audit"
    uri: Literal["urn:dpaudit:audit"] = "urn:dpaudit:audit"
    annotations: AuditMade


class Tool(Attested):
    """dpaudit, as a resource descriptor."""

    name: Literal["dpaudit"] = "dpaudit"
    uri: Literal["pkg:pypi/dpaudit"] = "pkg:pypi/dpaudit"
    annotations: Made


class Commitment(Attested):
    """The digest of all settled before the run's first token, as `dpaudit generate` printed it."""

    name: Literal["commitment"] = "commitment"
    digest: Sha256


class Head(Attested):
    """The digest of the finished run, and through it of every file, as `generate` printed it."""

    name: Literal["head"] = "head"
    digest: Sha256


class Revocations(Attested):
    """Where the signing key's list of revocations is published."""

    name: Literal["revocations"] = "revocations"
    uri: Url


class PolicyMet(Attested):
    """The policy that the run was held to, by its file's digest."""

    name: Literal["policy"] = "policy"
    digest: Sha256
    annotations: PolicyName = PolicyName()


class PaidFigure(Attested):
    """What the records added, with noise.

    Attributes:
        epsilon: the cost of all such figures of the run, in nats, beside the claim's.
        gain: of held-out records, in nats a token.
        at_least: the figure without noise is at least this, with a confidence of 95%.
        relation, unit: what neighbouring data sets differ by.
    """

    epsilon: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    gain: Annotated[float, Field(allow_inf_nan=False)]
    at_least: Annotated[float, Field(allow_inf_nan=False)]
    relation: Relation
    unit: Unit


class WorthPaid(Attested):
    """The worth figure that was paid for, as a resource descriptor."""

    name: Literal["worth"] = "worth"
    uri: Literal["urn:dpaudit:worth"] = "urn:dpaudit:worth"
    annotations: PaidFigure


_Kinds = (
    ClaimTested | Attacks | Audit | Tool | Commitment | Head | PolicyMet | WorthPaid | Revocations
)
Entry = TypeVar(
    "Entry",
    ClaimTested,
    Attacks,
    Audit,
    Tool,
    Commitment,
    Head,
    PolicyMet,
    WorthPaid,
    Revocations,
)
Configured = Annotated[_Kinds, Field(discriminator="name")]


class TestResult(Attested):
    """The predicate test-result v0.1: what the audit found, check by check."""

    __test__ = False  # no test of pytest

    result: Literal["PASSED", "WARNED", "FAILED"]
    configuration: Annotated[
        tuple[Configured, ...], Field(min_length=3, max_length=len(get_args(_Kinds)), strict=False)
    ]
    passed_tests: _Checks
    warned_tests: _Checks
    failed_tests: _Checks

    def configured(self, kind: type[Entry]) -> Entry | None:
        """Return the configuration's entry of this type; None without one."""
        return next((entry for entry in self.configuration if isinstance(entry, kind)), None)

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> TestResult:
        if len({entry.name for entry in self.configuration}) < len(self.configuration):
            raise ValueError("one thing is said twice")
        return self


class PolicyDigest(Attested):
    """A policy by its digest, as a resource descriptor."""

    name: Literal["policy"] = "policy"
    digest: Sha256


class Verifier(Attested):
    """The verifier: this program of a version.

    Attributes:
        policies: those that it held the run to; svr says [] where there is none.
    """

    id: Name
    policies: Annotated[tuple[PolicyDigest, ...], Field(max_length=1, strict=False)] = ()


class Svr(Attested):
    """The predicate svr v0.2, for policy engines: properties, and when what verified them."""

    verifier: Verifier
    time_created: _Time
    properties: Annotated[tuple[Name, ...], Field(min_length=1, max_length=16, strict=False)]


_Subjects = Annotated[tuple[Subject, ...], Field(min_length=1, max_length=MAX_FILES, strict=False)]


class _InToto(Attested):
    """What all statements begin with."""

    statement_type: Literal["https://in-toto.io/Statement/v1"] = Field(
        default=STATEMENT, alias="_type"
    )


class TestResultStatement(_InToto):
    """The audit's result, about the released files."""

    __test__ = False

    subject: _Subjects
    predicate_type: Literal["https://in-toto.io/attestation/test-result/v0.1"] = TEST_RESULT
    predicate: TestResult

    def configured(self, kind: type[Entry]) -> Entry | None:
        """Return the configuration's entry of this type; None without one."""
        return self.predicate.configured(kind)


class SvrStatement(_InToto):
    """The properties of the released files that hold."""

    subject: _Subjects
    predicate_type: Literal["https://in-toto.io/attestation/svr/v0.2"] = SVR
    predicate: Svr


class Statement(RootModel[TestResultStatement | SvrStatement]):
    """The payload of one envelope of an attestation."""


class RunSubject(Attested):
    """A finished run, by its head."""

    name: Literal["run"] = "run"
    digest: Sha256


class SignOff(Attested):
    """What one person answers for. Nobody checks it but the signature.

    Attributes:
        name, role: who this is.
        read: what this person read, such as "the public report".
        accepts: the risk that this person accepts, in their words.
        time: when this was signed.
        public_key: the reviewer's, Ed25519, in hexadecimal.
    """

    name: _Line
    role: _Line
    read: Annotated[tuple[_Line, ...], Field(min_length=1, max_length=MAX_SIGN_OFFS, strict=False)]
    accepts: Annotated[
        str, Field(pattern=r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]+$", max_length=MAX_WORDS)
    ]
    time: _Time
    public_key: Annotated[str, Field(pattern=_DIGEST)]


class SignOffStatement(_InToto):
    """A reviewer's sign-off of a run: a line of SIGN_OFFS, signed with the reviewer's own key."""

    subject: Annotated[tuple[RunSubject], Field(strict=False)]
    predicate_type: Literal["urn:dpaudit:sign-off:v1"] = SIGN_OFF
    predicate: SignOff


class KeySubject(Attested):
    """A key that signs releases, by its id."""

    name: Literal["key"] = "key"
    digest: Sha256


class Revoked(Attested):
    """A release that its publisher has taken back.

    Attributes:
        release: its id, which its marks and `dpaudit verify` say.
        reason: why.
        time: when.
    """

    release: Annotated[str, Field(pattern=_DIGEST)]
    reason: _Line
    time: _Time


class RevocationList(Attested):
    """All releases that a key has revoked.

    Attributes:
        made: when the list was last signed: it says nothing of what was revoked later.
    """

    made: _Time
    revoked: Annotated[tuple[Revoked, ...], Field(max_length=MAX_REVOKED, strict=False)]


class RevocationsStatement(_InToto):
    """A key's list of revocations, signed as a whole with that key."""

    subject: Annotated[tuple[KeySubject], Field(strict=False)]
    predicate_type: Literal["urn:dpaudit:revocations:v1"] = REVOCATIONS
    predicate: RevocationList


class DsseSignature(Fields):
    """A signature in base64.

    Attributes:
        keyid: whose it says to be, which nobody signed; empty if it does not say.
    """

    keyid: Name = ""
    sig: Annotated[str, Field(max_length=1 << 10, pattern=r"^[A-Za-z0-9+/=]+$")]


class DsseEnvelope(Fields):
    """An envelope, which a line holds (https://github.com/secure-systems-lab/dsse)."""

    payload: Annotated[str, Field(max_length=1 << 20, pattern=r"^[A-Za-z0-9+/=]+$")]
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 - the format's
    signatures: Annotated[tuple[DsseSignature, ...], Field(max_length=MAX_SIGNATURES, strict=False)]
