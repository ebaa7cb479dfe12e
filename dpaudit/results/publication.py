"""A release folder's words on itself beside its audit, as types: its publisher and its files."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from dpaudit.mechanisms import Fields
from dpaudit.results.audit import Result
from dpaudit.results.hub import Language, Licence
from dpaudit.results.policy import CHECK, DIGEST
from dpaudit.results.values import Message

CARD, REGISTRY, REPORT = "README.md", "opendp_deployment.yaml", "report"
#: Drafts for the house's own files, of the public form and of what the publisher says.
DPIA, HIPAA = "annexes/dpia.md", "annexes/hipaa.md"
#: Of a release: its texts are in data/SPLIT.parquet and, the same, in jsonl/SPLIT.jsonl.
PARQUET, JSONL = "data", "jsonl"
Split = Literal["train", "test"]
NOT_STATED: Final = "Not stated by the publisher."

#: What people may write, and how errors say so.
_LINE, _TEXT = r"^[^\x00-\x1f\x7f-\x9f]+$", r"^[^\x00-\x09\x0b-\x1f\x7f-\x9f]+$"
PATTERNS: Final = {
    _LINE: "one line of text, without control characters",
    _TEXT: "text without control characters but line breaks",
    DIGEST: "64 digits from 0 to 9 and a to f",
    CHECK: "the id of a check, such as release.text",
}
_Line = Annotated[str, Field(pattern=_LINE, max_length=200)]
_Text = Annotated[str, Field(pattern=_TEXT, max_length=4000)]
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


class ReleasedFolder(Result):
    """The output of `dpaudit release`.

    Attributes:
        signer: id of the key that signed; None if nobody did.
        files: SHA-256 of each file that the attestation names, by its path.
    """

    folder: str
    texts: dict[Split, int]
    evidence: int
    signer: str | None
    files: dict[str, str]


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
    ignored: tuple[str, ...]
