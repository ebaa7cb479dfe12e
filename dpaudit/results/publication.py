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


class About(Fields):
    """The publisher's statements about the texts; all are published, and nobody checks them.

    Attributes:
        region: which it describes, or whose law applies.
        sector: of the registry's list.
        license: by its id on the Hugging Face hub, such as cc-by-4.0.
        languages: of the texts, by their codes of ISO 639.
        public_reference: the real texts of evaluation.json are public, and none of them is a
            private record. The card then has the public baseline's figures.
    """

    name: _Line = "Synthetic texts"
    curators: _Lines = (NOT_STATED,)
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
