"""A release folder's words on itself beside its audit, as types: its publisher and its files."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from dpaudit.mechanisms import Fields, FirstVersion
from dpaudit.results.attestation import URL, Url
from dpaudit.results.hub import Language, Licence
from dpaudit.results.policy import CHECK, DIGEST
from dpaudit.results.result import Result
from dpaudit.results.values import Message
from dpaudit.runs.layout import ATTESTATION

Split = Literal["train", "test"]
NOT_STATED: Final = "Not stated by the publisher."

#: What people may write, and how errors say so.
_LINE, _TEXT = r"^[^\x00-\x1f\x7f-\x9f]+$", r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]+$"
PATTERNS: Final = {
    _LINE: "one line of text, without control characters",
    _TEXT: "text without control characters but line breaks",
    DIGEST: "64 digits from 0 to 9 and a to f",
    URL: "an address that begins with https:// or http://",
    CHECK: "the id of a check, such as release.text",
}
_Line = Annotated[str, Field(pattern=_LINE, max_length=200)]
_Text = Annotated[str, Field(pattern=_TEXT, max_length=4000)]
_Digest = Annotated[str, Field(pattern=DIGEST)]
#: Of marks; raised where a reader could take one for another.
MARK_VERSION: Final = 1
MACHINE_MADE: Final = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
_Lines = Annotated[tuple[_Line, ...], Field(min_length=1, max_length=20, strict=False)]


_Roles = Annotated[dict[_Line, _Line], Field(min_length=1, max_length=20)]


class HipaaDetermination(Fields):
    """An expert's own words for a determination under 45 CFR 164.514(b)(1).

    Attributes:
        expert: name and qualification.
        recipient: the anticipated one, and what else they can get hold of.
        risk: why the expert finds the risk very small, or does not.
        date: of the determination.
    """

    expert: _Text | None = None
    recipient: _Text | None = None
    risk: _Text | None = None
    date: _Line | None = None


class About(Fields):
    """The publisher's statements about the texts; all are published, and nobody checks them.

    `dpaudit release --about-template` explains each to the person who writes it.

    Attributes:
        curator_type: of the registry's list.
        intended_use: the purpose.
        region: which it describes, or whose law applies.
        sector: of the registry's list.
        license: by its id on the Hugging Face hub, such as cc-by-4.0.
        languages: of the texts, by their codes of ISO 639.
        revocations: where the signing key's list of revocations is published
            (`dpaudit revoke`): an address that begins with https:// or http://.
        public_reference: the real texts of evaluation.json are public, and none of them is a
            private record. The card then has the public baseline's figures.
        recipients: who gets the texts, on what terms, and who might want to find a person.
        roles: who answers for what, by role.
        access: who can read the private records, and how that is guarded.
        source: where the records come from, for what they were collected, whom they leave out.
        lawful_basis: of using the records for this.
        necessity: why made-up texts, and not fewer or no records.
        justification: why this epsilon, unit and threshold are acceptable, and the risk that stays.
        retention: how long records, run directory and reports are kept.
        other_releases: what else was published of the same records.
        intruder_test: who tried to find a person by the texts, how, and with what result.
        review: when the assessment is looked at again, and who watches until then.
        incidents: whom to tell of a problem, and how texts are taken back.
        hipaa: given where an expert determines by HIPAA.
    """

    name: _Line = "Synthetic texts"
    curators: _Lines = (NOT_STATED,)
    curator_type: Literal["Government", "Industry", "Nonprofit"] | None = None
    description: _Text = NOT_STATED
    intended_use: _Text = NOT_STATED
    region: _Line = NOT_STATED
    sector: (
        Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None
    ) = None
    license: Licence | None = None
    languages: (
        Annotated[tuple[Language, ...], Field(min_length=1, max_length=20, strict=False)] | None
    ) = None
    contact: _Line | None = None
    revocations: Url | None = None
    public_reference: bool = False
    recipients: _Text | None = None
    roles: _Roles | None = None
    access: _Text | None = None
    source: _Text | None = None
    lawful_basis: _Text | None = None
    necessity: _Text | None = None
    justification: _Text | None = None
    retention: _Text | None = None
    other_releases: _Text | None = None
    intruder_test: _Text | None = None
    review: _Text | None = None
    incidents: _Text | None = None
    hipaa: HipaaDetermination | None = None

    def stated(self, name: str) -> str | None:
        """Return a field as text, None where the publisher does not state it.

        Args:
            name: of a field; `hipaa.expert` is one of the determination's.
        """
        first, _, inner = name.partition(".")
        value = getattr(self, first)
        if inner:
            value = None if value is None else getattr(value, inner)
        if isinstance(value, dict):
            return "; ".join(f"{role}: {who}" for role, who in value.items())
        if isinstance(value, tuple):
            value = ", ".join(value)
        return None if value in (None, NOT_STATED) else str(value)


class Generator(Fields):
    """The maker of marked texts: this program, and the public settings' model, if they are public.

    Attributes:
        model_digest: of its weights, as the run has it.
    """

    dpaudit: str
    model: str | None
    model_digest: str | None


class Mark(Fields):
    """The mark in each file of texts, for programs: they are synthetic, and who says so where.

    It is in the footer of a Parquet file under the key "dpaudit", in a file beside one of JSON
    lines, and in the card's front matter under "dpaudit". Nobody signed it by itself: the
    attestation names the file that has it.

    Attributes:
        digital_source_type: IPTC's term for what a trained model made.
        run: the run's commitment, in hexadecimal; None if it has none.
        release: SHA-256 of what the attestation says of the audit, in hexadecimal.
        attestation: name of the attestation's file in the release folder.
        revocations: where the list of revoked releases is published; None if that is not stated.
    """

    mark_version: FirstVersion = MARK_VERSION
    synthetic: Literal[True] = True
    digital_source_type: Literal[
        "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
    ] = MACHINE_MADE
    generator: Generator
    run: _Digest | None
    release: _Digest
    attestation: Literal["attestation.intoto.jsonl"] = ATTESTATION
    revocations: Url | None


class SideCar(Fields):
    """The mark of a file that has no place for one, and the file's digest."""

    file: _Line
    sha256: _Digest
    mark: Mark


class Provenance(Result):
    """What can be known of one file that was taken out of a release folder.

    Attributes:
        verdict: "marked": it says of itself that it is synthetic, and anybody can write that;
            "attested": the attestation that was found names this very file, too, and no signature
            was looked at; "signed": and the key that was given signed it; "fail": these contradict
            each other, or the release was revoked.
        sha256: of the file.
        mark: as the file has it.
        attestation: path of the attestation that it was held against; None if none was found.
        problems: each by its code.
        guarantee: as attested; empty if no attestation was found.
        signer: id of the key; None unless it signed.
    """

    verdict: Literal["marked", "attested", "signed", "fail"]
    sha256: str
    mark: Mark
    attestation: str | None
    problems: tuple[Message, ...]
    guarantee: str
    signer: str | None


class ReleasedFolder(Result):
    """The output of `dpaudit release`.

    Attributes:
        signer: id of the key that signed; None if nobody did.
        release: its id, by which it is revoked.
        files: SHA-256 of each file that the attestation names, by its path.
    """

    folder: str
    release: str
    texts: dict[Split, int]
    evidence: int
    signer: str | None
    files: dict[str, str]


class SignedOff(Result):
    """A reviewer who signed off a run.

    Attributes:
        key: id of the reviewer's key, whose signature fits.
    """

    name: str
    role: str
    read: tuple[str, ...]
    accepts: str
    time: str
    key: str


class VerifiedFolder(Result):
    """The findings of `dpaudit verify` about a release folder, without the run.

    Attributes:
        problems: each by its code, with its values and its sentence.
        guarantee: as attested; empty if that cannot be read.
        attacks: what attackers can do, recomputed from attested settings, or why nothing bounds it;
            empty likewise, and where the claim is withheld.
        worth: what the figure of the records' addition costs beside the texts; empty without one.
        evidence: level of the audit, as attested; None likewise.
        created: when it was released, as attested.
        signer: id of the key that was given and signed; None if none was given, or it did not.
        names: paths of the files that the attestation names.
        release: its id, by which its marks name it and lists revoke it; empty likewise.
        sign_offs: who read the run and signed for it, as attested.
        stamps: the times before which an authority saw the commitment and the head, by which it
            was; empty where no authority was given.
        unstamped: stamps in the folder that nobody looked at.
        revocations: where revocations are published, as attested; None if that is not stated.
        revocations_as_of: when the list that was given was signed; None without one.
        ignored: files that the folder's host added, such as .gitattributes: they were not looked
            at.
    """

    verdict: Literal["pass", "fail"]
    problems: tuple[Message, ...]
    guarantee: str
    attacks: str
    worth: str
    evidence: int | None
    created: str
    signer: str | None
    files: int
    names: tuple[str, ...] = ()
    release: str = ""
    sign_offs: tuple[SignedOff, ...] = ()
    stamps: dict[str, str] = Field(default_factory=dict)
    unstamped: tuple[str, ...] = ()
    revocations: str | None = None
    revocations_as_of: str | None = None
    ignored: tuple[str, ...]
