"""Release folders held against their attestation, without the run: signature, every byte, and what is said of them.

A folder may come from anywhere. No link is followed, nothing is unpickled, and sizes are limited before anything is
read as a whole. What no release has is not read at all.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from securesystemslib.signer import SSlibKey

from dpaudit.release.attestation import MAX_BYTES, Opened, found_by, opened, properties, verifier
from dpaudit.release.policy import PolicyFile
from dpaudit.results import AuditResult
from dpaudit.results.attestation import (
    ATTESTATION,
    Audit,
    ClaimTested,
    Commitment,
    PolicyMet,
    SvrStatement,
    TestResult,
    TestResultStatement,
    Tool,
)
from dpaudit.results.publication import CARD, JSONL, PARQUET, REGISTRY, REPORT, VerifiedFolder
from dpaudit.runs import InputError, strict_json

_REPORT_JSON = f"{REPORT}/report.json"
#: What every release has.
_NEEDED = (
    CARD,
    REGISTRY,
    f"{PARQUET}/train.parquet",
    f"{JSONL}/train.jsonl",
    *(f"{REPORT}/{name}" for name in ("report.html", "report.json", "report.md", "junit.xml")),
)
_ALLOWED = {*_NEEDED, f"{PARQUET}/test.parquet", f"{JSONL}/test.jsonl"}
#: Files and folders that are listed: a release has a dozen.
_MOST_ENTRIES = 1_000
#: Bytes of a table of texts, which was written from memory, and of any other file; values of a public report.
_MOST_TABLE, _MOST_BYTES, _MOST_VALUES = 1 << 33, 1 << 24, 1 << 18
_CHUNK = 1 << 20


class _Attested(NamedTuple):
    """Both statements, and their envelopes."""

    found: TestResultStatement
    summary: SvrStatement
    envelopes: tuple[Opened, ...]


def verify_folder(
    folder: Path,
    key: SSlibKey | None,
    *,
    level: int = 0,
    policy: PolicyFile | None = None,
    commitment: str | None = None,
) -> VerifiedFolder:
    """Hold a release folder against its attestation.

    Args:
        folder: as it was received.
        key: whose signature is asked for; None looks at no signature.
        level: the evidence that the audit must rest on at least.
        policy: that the run must have been held to, and whose signers must have signed.
        commitment: that the run's must be: what `dpaudit generate` printed before the first token, in hexadecimal.

    Returns:
        A result that never raises for bad content: each problem is a sentence in it.

    Raises:
        InputError: there is no such folder, or it cannot be read.
    """
    problems: list[str] = []
    try:
        held = _listed(folder)
        attested = _attested(folder, held)
    except InputError:
        raise
    except ValueError as error:
        return VerifiedFolder(
            verdict="fail", problems=(str(error),), guarantee="", evidence=None, created="", signer=None, files=0
        )
    if key is not None:
        problems += dict.fromkeys(_signature_problems(attested.envelopes, key))
    named = {subject.name: subject.digest.sha256 for subject in attested.found.subject}
    problems += _name_problems(held, named)
    problems += _content_problems(folder, held, named)
    problems += _statement_problems(attested)
    problems += _report_problems(folder, held, attested.found)
    audit = attested.found.configured(Audit)
    evidence = None if audit is None else audit.annotations.evidence
    problems += _asked_problems(attested.found, evidence, level, policy, key, commitment)
    signed = key is not None and all(each.signed_by(key) for each in attested.envelopes)
    return VerifiedFolder(
        verdict="fail" if problems else "pass",
        problems=tuple(problems),
        guarantee="" if audit is None else audit.annotations.guarantee,
        evidence=evidence,
        created=attested.summary.predicate.time_created,
        signer=key.keyid if signed and key is not None else None,
        files=len(named),
    )


def _listed(folder: Path) -> dict[str, int | None]:
    """Bytes of each plain file by its path, and None of what is none. Raises ValueError where there are too many."""
    found: dict[str, int | None] = {}
    with _readable(folder):
        for name, entry in _walk(folder, ""):
            if len(found) >= _MOST_ENTRIES:
                raise ValueError(f"There are more than {_MOST_ENTRIES:,} files: a release has a dozen.")
            status = entry.stat(follow_symlinks=False)
            found[name] = status.st_size if stat.S_ISREG(status.st_mode) else None
    return found


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(str(folder), f"cannot be read ({error.strerror}).", "Check the path.") from None


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything that is no folder, and empty folders, by their paths."""
    with os.scandir(folder) as entries:
        listed = sorted(islice(entries, _MOST_ENTRIES + 1), key=lambda entry: entry.name)
    for entry in listed:
        name = f"{prefix}{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            yield name, entry
        elif prefix.count("/") > 4 or not os.listdir(entry.path):  # no release has folders in folders
            yield f"{name}/", entry
        else:
            yield from _walk(Path(entry.path), f"{name}/")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with _plain(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _plain(path: Path) -> Any:
    """A file that is opened without following a link or waiting for a pipe."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def _attested(folder: Path, held: Mapping[str, int | None]) -> _Attested:
    """What the attestation says. Raises ValueError, with a sentence, where it is missing or none."""
    if held.get(ATTESTATION) is None:
        raise ValueError(f"The attestation is missing: there is no plain file {ATTESTATION}.")
    with _readable(folder), _plain(folder / ATTESTATION) as file:
        content = file.read(MAX_BYTES + 1)
    try:
        envelopes = opened(content)
        found, summary = (each.statement for each in envelopes) if len(envelopes) == 2 else (None, None)
        if not (isinstance(found, TestResultStatement) and isinstance(summary, SvrStatement)):
            raise ValueError("it has other statements than the two of a release")
    except ValueError as error:
        raise ValueError(f"The attestation cannot be read: {str(error)[:200]}.") from None
    return _Attested(found, summary, envelopes)


def _signature_problems(envelopes: tuple[Opened, ...], key: SSlibKey) -> Iterator[str]:
    for each in envelopes:
        signer = next((signature.keyid for signature in each.signatures), None)
        if signer is None:
            yield "Nobody signed the attestation."
        elif signer != key.keyid:
            yield f"The signature is foreign: it is of the key {signer}, and not of {key.keyid}."
        elif not each.signed_by(key):
            yield "The signature is stale: the attestation was changed after the key had signed it."


def _name_problems(held: Mapping[str, int | None], named: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each file that is missing, or is there and should not be."""
    for name in named:
        if name not in _ALLOWED:
            yield f"The attestation names {_shown(name)}, which no release has."
        elif name not in held:
            yield f"{name} is missing: the attestation names it."
    for name in _NEEDED:
        if name not in named:
            yield f"The attestation does not name {name}, which every release has."
    for name, size in held.items():
        if size is None:
            yield f"{_shown(name)} was added, and is no plain file."
        elif name not in named and name != ATTESTATION:
            yield f"{_shown(name)} was added: the attestation does not name it."


def _content_problems(folder: Path, held: Mapping[str, int | None], named: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each file that is not as attested. No other is read, and none that is larger than it can be."""
    there = {name: size for name, size in held.items() if size is not None and name in named and name in _ALLOWED}
    with _readable(folder):
        changed = [name for name, size in there.items() if size > _most(name) or _digest(folder / name) != named[name]]
    for name in changed:
        yield f"{_what(name)} ({name}) was changed: it is not the one that was audited and released."
    if changed and len(changed) == len(there):
        yield "The attestation is of another release: it fits no file here."


def _most(name: str) -> int:
    return _MOST_TABLE if name.startswith((f"{PARQUET}/", f"{JSONL}/")) else _MOST_BYTES


def _what(name: str) -> str:
    """What a file is, at the beginning of a sentence."""
    folder = name.partition("/")[0]
    parts = {PARQUET: "A table of texts", JSONL: "A file of texts", REPORT: "The public report", CARD: "The card"}
    return parts.get(folder, "The registry's entry" if name == REGISTRY else "A file")


def _statement_problems(attested: _Attested) -> Iterator[str]:
    """Where the two statements contradict each other, or are of no pass."""
    found, summary = attested.found, attested.summary
    names = [subject.name for subject in found.subject]
    if len(set(names)) < len(names):
        yield "The attestation names a file twice."
    if found.subject != summary.subject:
        yield "The attestation's statements name different files."
    if found.predicate.result == "FAILED" or found.predicate.failed_tests:
        yield "The attestation is of an audit that failed."
    claim, audit, policy = (found.configured(ClaimTested), found.configured(Audit), found.configured(PolicyMet))
    tool = found.configured(Tool)
    if claim is None or audit is None or tool is None:
        yield "The attestation lacks the claim, the audit or what made it."
        return
    said = properties(audit.annotations.evidence, claim.annotations.kind, policy is not None)
    if summary.predicate.properties != said:
        yield (
            f"The attestation's statements contradict each other: one says {', '.join(said)}, the other "
            f"{', '.join(summary.predicate.properties)}."
        )
    digests = [held.digest for held in summary.predicate.verifier.policies or ()]
    if digests != ([] if policy is None else [policy.digest]):
        yield "The attestation's statements name different policies."
    if summary.predicate.verifier.id != verifier(tool.annotations.dpaudit):
        yield "The attestation's statements are of different versions of dpaudit, or of another program."


def _report_problems(folder: Path, held: Mapping[str, int | None], found: TestResultStatement) -> Iterator[str]:
    """Where the attestation says something else of the audit than the report in the folder does."""
    claim = found.configured(ClaimTested)
    if held.get(_REPORT_JSON) is None or claim is None:
        return
    try:
        with _plain(folder / _REPORT_JSON) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError("it is too large")
        strict_json.load(content, _MOST_VALUES)
        report = AuditResult.model_validate_json(content)
        made = found.configured(Commitment)
        expected = found_by(report, claim.annotations.kind, None if made is None else made.digest.sha256)
    except (ValueError, OSError):  # pydantic's, too
        yield f"{_REPORT_JSON} is no report that this dpaudit reads."
        return
    if report.audience != "public" or report.verdict != "pass":
        yield f"{_REPORT_JSON} is not the public report of a pass."
        return
    yield from _contradictions(found.predicate, expected)


def _contradictions(attested: TestResult, expected: TestResult) -> Iterator[str]:
    """What differs between what is attested and what the report gives, a sentence each."""
    mine, theirs = ({type(each): each for each in of.configuration} for of in (attested, expected))
    audit, reported = mine.get(Audit), theirs[Audit]
    if isinstance(audit, Audit) and isinstance(reported, Audit) and audit != reported:
        levels = (audit.annotations.evidence, reported.annotations.evidence)
        if levels[0] != levels[1]:
            yield (
                f"The evidence level was changed: the attestation says level {levels[0]}, and the report in the "
                f"folder level {levels[1]}."
            )
        else:
            yield "The attestation says something else of the audit than the report in the folder."
    for kind, what in ((ClaimTested, "claim"), (Tool, "versions"), (PolicyMet, "policy")):
        if mine.get(kind) != theirs.get(kind):
            yield f"The attestation and the report in the folder have different {what}{'s' * (kind is ClaimTested)}."
    parts = ("result", "passed_tests", "warned_tests", "failed_tests")
    if any(getattr(attested, part) != getattr(expected, part) for part in parts):
        yield "The attestation and the report in the folder have different checks."


def _asked_problems(
    found: TestResultStatement,
    evidence: int | None,
    level: int,
    policy: PolicyFile | None,
    key: SSlibKey | None,
    commitment: str | None,
) -> Iterator[str]:
    """What whoever receives the folder asks beyond its being whole."""
    if evidence is not None and evidence < level:
        yield f"The release rests on evidence level {evidence}, and level {level} is asked for."
    made = found.configured(Commitment)
    if commitment is not None and (made is None or made.digest.sha256 != commitment):
        theirs = "none" if made is None else made.digest.sha256
        yield f"The release is of another run: its commitment is {theirs}, and not {commitment}."
    if policy is None:
        return
    met = found.configured(PolicyMet)
    if met is None:
        yield "The run was held to no policy, and one is asked for."
    elif met.digest.sha256 != policy.sha256:
        theirs, ours = _policy(met.annotations.name, met.digest.sha256), _policy(policy.policy.name, policy.sha256)
        yield f"The run was held to another policy: to {theirs}, and not to {ours}."
    signers = policy.policy.signers
    if signers is not None and (key is None or key.keyid not in signers):
        whose = "no signature was asked for" if key is None else f"the key {key.keyid} is none of them"
        yield f"The policy names who may sign, and {whose}."


def _policy(name: str | None, digest: str) -> str:
    return f"{_shown(name)} ({digest})" if name else digest


def _shown(name: str) -> str:
    """A file's name in a sentence: it may hold anything."""
    return ascii(name[:100])[1:-1]
