"""Release folders compared with their attestation, without the run: signature and bytes.

The statements about them are compared, too.

A folder may come from anywhere. Nothing is unpickled, and sizes are limited before anything is read
as a whole. What no release has is not read at all. A link is followed in one case: as the Hugging
Face hub's cache has it, into the `blobs` beside `snapshots`. What lies there is the receiver's own
copy; whoever made the folder cannot change it afterwards, which a link to anywhere else would
allow.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from securesystemslib.signer import SSlibKey

from dpaudit.accounting import ApproximateAccountant
from dpaudit.accounting.renyi import TINY
from dpaudit.accounting.worth import composed_epsilon, composed_rho, cost_for
from dpaudit.mechanisms import ContextChange, Mechanism, context_change
from dpaudit.releasing.attestation import (
    MAX_BYTES,
    Attestation,
    Beside,
    Opened,
    Predicates,
    attested_bound,
    found_by,
    properties,
    verifier,
)
from dpaudit.releasing.marks import mark_of, marks_in
from dpaudit.releasing.policy import PolicyFile
from dpaudit.releasing.revocation import Listed
from dpaudit.releasing.sign_off import SignOffError, signed_off
from dpaudit.releasing.stamp import stamped_time
from dpaudit.reports.attacks import Told, beside_worth, in_a_sentence
from dpaudit.results import (
    Approximate,
    AttackBound,
    AuditResult,
    Finding,
    ForNeighbours,
    Message,
    Quantity,
    Value,
    Zcdp,
)
from dpaudit.results.attestation import (
    SIGN_OFFS,
    Attacks,
    AttestedBound,
    Audit,
    ClaimTested,
    Commitment,
    PolicyMet,
    StatedClaim,
    Statement,
    TestResult,
    TestResultStatement,
    Tool,
    WorthPaid,
)
from dpaudit.results.audit import BatchCost
from dpaudit.results.catalogue import message
from dpaudit.results.publication import SignedOff, VerifiedFolder
from dpaudit.results.release_layout import (
    CARD,
    DPIA,
    HIPAA,
    JSONL,
    PARQUET,
    QUESTIONS,
    REGISTRY,
    REPORT,
    SIDE_CAR,
    STAMPS,
)
from dpaudit.runs import InputError, strict_json
from dpaudit.runs.layout import ATTESTATION
from dpaudit.runs.secrecy import MOST_RECORDS

if TYPE_CHECKING:
    from dpaudit.auditing.run import Question

_REPORT_JSON = f"{REPORT}/report.json"
#: What every release has.
_NEEDED = (
    CARD,
    REGISTRY,
    f"{PARQUET}/train.parquet",
    f"{JSONL}/train.jsonl",
    f"{JSONL}/train.jsonl{SIDE_CAR}",
    *(f"{REPORT}/{name}" for name in ("report.html", "report.json", "report.md", "junit.xml")),
)
_TEST = (f"{PARQUET}/test.parquet", f"{JSONL}/test.jsonl", f"{JSONL}/test.jsonl{SIDE_CAR}")
_ALLOWED = {*_NEEDED, *_TEST, DPIA, HIPAA, QUESTIONS, *STAMPS.values(), SIGN_OFFS}
#: Files and folders that are listed: a release has a dozen.
_MOST_ENTRIES = 1_000
#: Bytes of a table of texts, which was written from memory, and of any other file; values of a
#: public report.
_MOST_TABLE, _MOST_BYTES, _MOST_VALUES = 1 << 33, 1 << 24, 1 << 18
_CHUNK = 1 << 20
#: Groups of batches times records of a unit whose bounds are recomputed: some forty seconds' work
#: at the worst.
_MOST_WORK = 1 << 10
#: How far other processors' sums may be apart, of bounds that are recomputed.
_RECOMPUTED = 1e-9
#: What hosts of data sets and their clients add to a copy, at its top; no release has it, and
#: nobody vouches for it.
_ADDED_BY_HOSTS = frozenset({".cache", ".git", ".gitattributes", ".huggingface"})
#: Of the hub's cache, where a file of SNAPSHOTS/REVISION is a link into BLOBS.
_SNAPSHOTS, _BLOBS = "snapshots", "blobs"


class _File(NamedTuple):
    """A plain file, or what a link of the hub's cache leads to: its real path, and its bytes."""

    path: Path
    size: int


#: Files by their names in a folder; None is what is no file that a release could have.
_Held = Mapping[str, _File | None]


class _UnusableError(Exception):
    """A folder in which nothing more can be looked at."""

    def __init__(self, problem: Message) -> None:
        super().__init__(problem.words)
        self.problem = problem


def _problem(code: str, **values: Value) -> Message:
    return message(Finding(code=f"released.{code}", values=values))


def verify_folder(
    folder: Path,
    key: SSlibKey | None,
    *,
    level: int = 0,
    question: Question | None = None,
    policy: PolicyFile | None = None,
    commitment: str | None = None,
    revoked: Listed | None = None,
    authorities: Path | None = None,
) -> VerifiedFolder:
    """Hold a release folder against its attestation.

    Args:
        folder: as it was received, or as the hub's cache has it (`snapshots/REVISION`, its files
            links into `blobs`).
        key: whose signature is asked for; None looks at no signature.
        level: the evidence that the audit must rest on at least.
        question: the claim that the audit must have tested: at most its epsilons and delta, its
            relation, its unit.
        policy: that the run must have been held to, and whose signers must have signed.
        commitment: that the run's must be: what `dpaudit generate` printed before the first token,
            in hexadecimal.
        revoked: the key's list of revocations; None looks at none.
        authorities: file of the certificates, in PEM, by which the folder must have a time stamp
            of the run's commitment; None looks at no stamp.

    Returns:
        A result. Nothing is raised for bad content: each problem is in the result, by its code.

    Raises:
        InputError: there is no such folder, or it cannot be read; or a stamp or the certificates
            cannot.
        ModuleNotFoundError: stamps are looked at, and rfc3161-client is not installed.
    """
    problems: list[Message] = []
    try:
        held, ignored = _listed(folder)
        attested = _attested(held)
    except InputError:
        raise
    except _UnusableError as error:
        return VerifiedFolder(
            verdict="fail",
            problems=(error.problem,),
            guarantee="",
            attacks="",
            worth="",
            evidence=None,
            created="",
            signer=None,
            files=0,
            ignored=(),
        )
    if key is not None:
        problems += _signature_problems(attested.envelopes, key)
    named = {subject.name: subject.digest.sha256 for subject in attested.found.subject}
    problems += _name_problems(held, named)
    changed, whole = _changed(held, named)
    problems += changed
    problems += _statement_problems(attested)
    problems += _report_problems(held, attested, whole, named)
    recomputed = _recomputed(attested.found)
    problems += _attack_problems(attested.found, recomputed)
    audit = attested.found.configured(Audit)
    evidence = None if audit is None else audit.annotations.evidence
    beside = Beside.of(attested.found.predicate)
    reviewers, wrong = _sign_offs(held, beside.head)
    problems += wrong
    problems += _asked_problems(attested.found, evidence, level, policy, key, commitment, reviewers)
    stamps: dict[str, str] = {}
    if authorities is not None:
        stamps, wrong = _stamps(held, beside, authorities)
        problems += wrong
    if revoked is not None:
        problems += revoked.problems(attested.release)
    if question is not None:
        problems += _claim_problems(attested.found, question)
    signed = key is not None and attested.signed_by(key)
    return VerifiedFolder(
        verdict="fail" if problems else "pass",
        problems=tuple(problems),
        guarantee="" if audit is None else audit.annotations.guarantee,
        attacks=_said_of_attacks(attested.found, recomputed),
        worth=_said_of_worth(attested.found),
        evidence=evidence,
        created=attested.summary.predicate.time_created,
        signer=key.keyid if signed and key is not None else None,
        files=len(named),
        names=tuple(named),
        release=attested.release,
        sign_offs=reviewers,
        stamps=stamps,
        unstamped=() if authorities else tuple(each for each in STAMPS.values() if each in named),
        revocations=beside.revocations,
        revocations_as_of=None if revoked is None else revoked.made,
        ignored=ignored,
    )


def _listed(folder: Path) -> tuple[_Held, tuple[str, ...]]:
    """Return the contents of a folder, and its host's additions.

    Raises:
        _UnusableError: it is too much.
    """
    found: dict[str, _File | None] = {}
    ignored = []
    with _readable(folder):
        real = Path(os.path.realpath(folder))
        # Not where `blobs` is itself a link: to anywhere.
        blobs = real.parents[1] / _BLOBS if real.parent.name == _SNAPSHOTS else None
        if blobs is not None and os.path.realpath(blobs) != str(blobs):
            blobs = None
        for name, entry in _walk(real, ""):
            if name.rstrip("/") in _ADDED_BY_HOSTS:
                ignored.append(name.rstrip("/"))
                continue
            if len(found) >= _MOST_ENTRIES:
                raise _UnusableError(_problem("too-many-files", most=_MOST_ENTRIES))
            found[name] = _file(Path(entry.path), blobs)
    return found, tuple(ignored)


def _file(path: Path, blobs: Path | None) -> _File | None:
    """Return the plain file at a path, or the one in `blobs` that its link leads to, or None."""
    if path.is_symlink() and blobs is not None:
        target = path.parent / os.readlink(path)
        if os.path.realpath(target.parent) != str(blobs):
            return None
        path = blobs / target.name  # opened without following a link any more
    try:
        status = path.lstat()
    except FileNotFoundError:  # of a link that leads nowhere
        return None
    if stat.S_ISREG(status.st_mode):
        return _File(path, status.st_size)
    return None


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            str(folder), f"cannot be read ({error.strerror}).", "Check the path."
        ) from None


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the paths of all files, and of folders that are empty or were added by hosts."""
    with os.scandir(folder) as entries:
        listed = sorted(islice(entries, _MOST_ENTRIES + 1), key=lambda entry: entry.name)
    for entry in listed:
        name = f"{prefix}{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            yield name, entry
        elif prefix.count("/") > 4 or name in _ADDED_BY_HOSTS or not os.listdir(entry.path):
            # a release nests little
            yield f"{name}/", entry
        else:
            yield from _walk(Path(entry.path), f"{name}/")


def _digest(file: _File, most: int) -> str | None:
    """Return the digest of a file; None if it is no plain file, or larger than `most` bytes."""
    digest, left = hashlib.sha256(), most
    with _plain(file.path) as opened_file:
        if not stat.S_ISREG(os.fstat(opened_file.fileno()).st_mode):
            return None
        while chunk := opened_file.read(min(_CHUNK, left + 1)):
            if (left := left - len(chunk)) < 0:
                return None
            digest.update(chunk)
    return digest.hexdigest()


def _plain(path: Path) -> Any:
    """Open a file without following a link or waiting for a pipe."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def _attested(held: _Held) -> Attestation:
    """Return what the attestation says. Raises _UnusableError where it is missing or none."""
    content = _content(held, ATTESTATION, MAX_BYTES)
    if content is None:
        raise _UnusableError(_problem("no-attestation", name=ATTESTATION))
    try:
        return Attestation.of(content)
    except ValueError as error:
        raise _UnusableError(_problem("unreadable", problem=str(error)[:200])) from None


def _content(held: _Held, name: str, most: int) -> bytes | None:
    """Return up to a byte more than `most` of a plain file; None if it is none."""
    there = held.get(name)
    if there is None:
        return None
    with _readable(there.path), _plain(there.path) as file:
        content: bytes = file.read(most + 1)
    return content


def _sign_offs(held: _Held, head: str | None) -> tuple[tuple[SignedOff, ...], list[Message]]:
    """Return who signed the run off, and what is wrong with that."""
    content = _content(held, SIGN_OFFS, MAX_BYTES)
    if content is None:
        return (), []
    try:
        return signed_off(content, head), []
    except SignOffError as error:
        return (), [_problem(error.code, problem=_shown(str(error)))]


def _stamps(held: _Held, beside: Beside, authorities: Path) -> tuple[dict[str, str], list[Message]]:
    """Return when what was stamped, and what is wrong with that."""
    times: dict[str, str] = {}
    problems = []
    for of, digest in (("commitment", beside.commitment), ("head", beside.head)):
        content = _content(held, name := STAMPS[of], _MOST_BYTES)
        if content is None:
            continue
        time = stamped_time(content, digest or "", authorities, name)
        if time is None:
            problems.append(_problem("other-stamp", name=name, of=of))
        else:
            times[of] = time
    if not times and not problems:
        problems.append(_problem("no-stamp"))
    return times, problems


def _signature_problems(envelopes: tuple[Opened[Statement], ...], key: SSlibKey) -> list[Message]:
    """Return the faults of the statements' signatures, once if both have the same fault."""
    found: list[Message] = []
    for each in envelopes:
        named = [signature.keyid for signature in each.signatures if signature.keyid]
        if each.signed_by(key):
            continue
        if not each.signatures:
            problem = _problem("unsigned")
        elif key.keyid in named:
            problem = _problem("stale-signature")
        elif len(named) == len(each.signatures):
            problem = _problem("other-key", keys=_shown(", ".join(named)), wanted=key.keyid)
        else:
            problem = _problem("no-signature", wanted=key.keyid)
        if problem not in found:
            found.append(problem)
    return found


def _name_problems(held: _Held, named: Mapping[str, str]) -> Iterator[Message]:
    """Yield each file that is missing, or is there and should not be."""
    for name in named:
        if name not in _ALLOWED:
            yield _problem("foreign-name", name=_shown(name))
        elif name not in held:
            yield _problem("missing", name=name)
    for name in _NEEDED:
        if name not in named:
            yield _problem("unnamed", name=name)
    for name, file in held.items():
        if file is None:
            yield _problem("no-plain-file", name=_shown(name))
        elif name not in named and name != ATTESTATION:
            yield _problem("added", name=_shown(name))


def _changed(held: _Held, named: Mapping[str, str]) -> tuple[list[Message], dict[str, Path]]:
    """Return each file that is not as attested, and where those are that are.

    No other file is read, and none that is too large.
    """
    there = {
        name: file
        for name, file in held.items()
        if file is not None and name in named and name in _ALLOWED
    }
    whole = {}
    for name, file in there.items():
        with _readable(file.path):
            if file.size <= _most(name) and _digest(file, _most(name)) == named[name]:
                whole[name] = file.path
    found = [
        _problem("changed", what=_what(name), name=name) for name in there if name not in whole
    ]
    if there and not whole:
        found.append(_problem("other-release"))
    return found, whole


def _most(name: str) -> int:
    if name.startswith((f"{PARQUET}/", f"{JSONL}/")):
        return _MOST_TABLE
    return _MOST_BYTES


def _what(name: str) -> str:
    """Return what a file is, at the beginning of a sentence."""
    folder = name.partition("/")[0]
    parts = {
        PARQUET: "A table of texts",
        JSONL: "A file of texts",
        REPORT: "The public report",
        CARD: "The card",
    }
    return parts.get(folder, "The registry's entry" if name == REGISTRY else "A file")


def _statement_problems(attested: Attestation) -> Iterator[Message]:
    """Yield where the two statements contradict each other, or are of no pass."""
    found, summary = attested.found, attested.summary
    names = [subject.name for subject in found.subject]
    if len(set(names)) < len(names):
        yield _problem("named-twice")
    if found.subject != summary.subject:
        yield _problem("other-subjects")
    if found.predicate.result == "FAILED" or found.predicate.failed_tests:
        yield _problem("failed-audit")
    claim, audit, policy = (
        found.configured(ClaimTested),
        found.configured(Audit),
        found.configured(PolicyMet),
    )
    tool = found.configured(Tool)
    if claim is None or audit is None or tool is None:
        yield _problem("incomplete")
        return
    said = properties(audit.annotations.evidence, claim.annotations.kind, policy is not None)
    if summary.predicate.properties != said:
        yield _problem(
            "contradiction", said=tuple(said), summary=tuple(summary.predicate.properties)
        )
    digests = [held.digest for held in summary.predicate.verifier.policies]
    if digests != ([] if policy is None else [policy.digest]):
        yield _problem("other-policies")
    if summary.predicate.verifier.id != verifier(tool.annotations.dpaudit):
        yield _problem("other-versions")


def _report_problems(
    held: _Held, attested: Attestation, whole: Mapping[str, Path], named: Mapping[str, str]
) -> Iterator[Message]:
    """Yield where the attestation contradicts the folder's report of the audit, or marks do."""
    found = attested.found
    claim, there = found.configured(ClaimTested), held.get(_REPORT_JSON)
    if there is None or claim is None:
        return
    try:
        with _plain(there.path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError("it is too large")
        strict_json.load(content, _MOST_VALUES)
        report = AuditResult.model_validate_json(content)
        expected = found_by(report, claim.annotations.kind, Beside.of(found.predicate))
    except (ValueError, OSError):  # pydantic's, too
        yield _problem("no-report", name=_REPORT_JSON)
        return
    if report.audience != "public" or report.verdict != "pass":
        yield _problem("no-pass", name=_REPORT_JSON)
        return
    contradicting = [*_contradictions(found.predicate, expected), *_cheaper_batches(report)]
    yield from contradicting
    # Marks follow from both: beside a contradiction all of them differ. The tool's absence is a
    # problem of its own.
    if not contradicting and found.configured(Tool) is not None:
        said = Predicates(found.predicate, attested.summary.predicate)
        expected_mark = mark_of(said, report.run.settings)
        for name, mark in marks_in(whole, named):
            if mark is None:
                yield _problem("no-mark", name=_shown(name))
            elif mark != expected_mark:
                release = expected_mark.release
                yield _problem("other-mark", name=_shown(name), mark=mark.release, release=release)


def _cheaper_batches(report: AuditResult) -> Iterator[Message]:
    """Yield where bounds on attacks rest on cheaper batches or clusters than the report has.

    Nothing is known where these are withheld, or of a plug-in's mechanism that is not installed.
    """
    settings, claim, found = report.run.settings, report.claim, report.guarantees.attacks
    stated = None if found is None else found.attack_settings
    if settings is None or claim is None or stated is None:
        return
    least: list[tuple[str, float | None, float]] = []
    if isinstance(found, Approximate):
        least.append(("noisy counts", sum(stated.laplace), found.rebalancing))
        least.append(("centers", stated.centers, found.centers))
        least.append(("centers_delta", stated.centers_delta, found.centers_delta))
    elif isinstance(found, Zcdp):
        noise = stated.laplace, stated.centers, stated.centers_delta
        rho = ApproximateAccountant(0.0, *noise).rho_of_clusters()
        least.append(("rho of clusters", rho, found.rebalancing))
    if (decoding := settings.decoding) is not None:
        tokens = decoding.tokens_per_batch or decoding.max_tokens
        least.append(("tokens", stated.tokens, tokens))
    batching = settings.batching.model_dump()
    if (rounds := batching.get("rounds")) is not None:
        # A run that split its delta has as many shares as it could have had rounds.
        least.append(("rounds", max(stated.rounds, stated.shares), rounds))
    if stated.groups and (hidden := _hidden_among(batching)) is not None:
        batches, generated = hidden
        known = [1 / each for each, texts in stated.groups if texts >= generated]
        least.append(("1 / batches", max(known, default=0.0), 1 / batches))
    if (mechanism := _mechanism(settings.mechanism)) is not None:
        rule, most = settings.batching.rule, claim.records_per_user
        # The least that budgets can be: contexts of a user may share theirs.
        shared = claim.unit == "user"
        change = context_change(
            claim.unit, claim.relation, rule, records_per_user=most, shared=shared
        )
        one = context_change("record", "add_remove", rule)
        told = settings.privacy.records_per_user_from == "declared"  # or budgets are left out
        for cost, of in ((stated.unit, change), (stated.record, one)):
            if cost is not None:
                least += _least_costs(mechanism, cost, of, budgets_told=told)
    for name, figure, most_of in least:
        if figure is not None and figure < most_of * (1 - _RECOMPUTED):
            yield _problem("attacks-of-cheaper", name=name, stated=figure, least=most_of)


def _hidden_among(batching: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return how many batches a record is hidden among at most, and how many are generated.

    None where the settings do not say so.
    """
    generated = batching.get("generate_per_label")
    batches = batching.get("batches_per_label") or generated
    if (of_cluster := batching.get("generate_per_cluster")) is not None:
        batches = batching.get("least_batches")
        generated = batches and min(batches, of_cluster)
    if batches is None or generated is None:
        return None
    allocation = batching.get("allocation") or {"secret": False}
    hides = batching["rule"] != "paper-slices" and allocation["secret"]
    return (batches, generated) if hides else (1, 1)


def _least_costs(
    mechanism: Mechanism, cost: BatchCost, change: ContextChange | None, *, budgets_told: bool
) -> Iterator[tuple[str, float | None, float]]:
    """Yield what a batch is said to cost, by name, and what it costs at least."""
    accountant = ApproximateAccountant.of(mechanism, change)
    eta = math.inf if accountant is None else accountant.eta
    rho = math.inf if accountant is None else accountant.most_rho
    noise = None if accountant is None else accountant.gaussian
    if cost.noise is None or noise is None:
        yield "eta", cost.eta if cost.noise is None else 0.0, eta
        if budgets_told:
            yield "budget", cost.budget, rho
        return
    yield "rate", cost.noise.rate, noise.rate
    yield "1 / multiplier", 1 / max(cost.noise.multiplier, TINY), 1 / noise.multiplier


def _mechanism(settings: Mapping[str, Any] | None) -> Mechanism | None:
    """Return the mechanism of a report's settings; None if they have none, or it is not here."""
    try:
        return None if settings is None else Mechanism.model_validate_json(json.dumps(settings))
    except ValueError:  # pydantic's
        return None


#: Bounds on attacks at the release and at the batch level.
_Bounds = tuple[AttackBound, AttackBound]


def _recomputed(found: TestResultStatement) -> _Bounds | None:
    """Work bounds on attacks out from the attested settings; None without any that fit."""
    attacked = found.configured(Attacks)
    if attacked is None or (settings := attacked.annotations.settings) is None:
        return None
    if len(settings.groups) * settings.records > _MOST_WORK:
        return None
    try:
        return settings.bounds()
    except (ValueError, OverflowError):
        return None


def _said_of_attacks(found: TestResultStatement, recomputed: _Bounds | None) -> str:
    """Return what attackers can do, as recomputed, or why nothing bounds it; empty if withheld."""
    claim, attacked = found.configured(ClaimTested), found.configured(Attacks)
    if claim is None or attacked is None:
        return ""
    stated = claim.annotations
    if recomputed is None or stated.relation is None or stated.unit is None:
        return attacked.annotations.unbounded or ""
    most = stated.records_per_user
    about = ForNeighbours(relation=stated.relation, unit=stated.unit, records_per_user=most)
    return in_a_sentence(Told(about, *recomputed))


def _said_of_worth(found: TestResultStatement) -> str:
    """Return what the folder's worth figure costs beside the texts; empty without one."""
    paid = found.configured(WorthPaid)
    return "" if paid is None else beside_worth(paid.annotations.epsilon)


def _attack_problems(found: TestResultStatement, recomputed: _Bounds | None) -> Iterator[Message]:
    """Yield where bounds on attacks do not follow from the settings and the claim beside them."""
    claim, attacked = found.configured(ClaimTested), found.configured(Attacks)
    if claim is None:  # a problem of its own
        return
    stated = claim.annotations
    if attacked is None:
        if stated.withheld is None:
            yield _problem("no-attacks")
        return
    bounds, settings = attacked.annotations, attacked.annotations.settings
    known = stated.terms.beforehand and stated.withheld is None
    if known if settings is None else not known:
        yield _problem("attacks-of-other-kind", kind=stated.kind)
    if settings is None or bounds.release is None or bounds.batch is None:
        return
    if settings.record is not None and settings.records < _least_records(stated):
        yield _problem("attacks-of-fewer", records=settings.records, least=_least_records(stated))
    if recomputed is None:
        yield _problem("attacks-unusable")
        return
    for level, mine, theirs in zip(
        ("release", "batch"),
        map(attested_bound, recomputed),
        (bounds.release, bounds.batch),
        strict=True,
    ):
        for name in AttestedBound.model_fields:
            least, figure = getattr(mine, name), getattr(theirs, name)
            if figure < least * (1 - _RECOMPUTED):
                yield _problem(
                    "attacks-too-low", level=level, name=name, figure=figure, least=least
                )


def _least_records(claim: StatedClaim) -> int:
    """Return how many records one unit of a claim changes at least, one after another."""
    most = claim.records_per_user if claim.unit == "user" else None
    return min((most or 1) * (2 if claim.relation == "replace" else 1), MOST_RECORDS + 1)


def _contradictions(attested: TestResult, expected: TestResult) -> Iterator[Message]:
    """Yield what differs between what is attested and what the report gives."""
    mine, theirs = ({type(each): each for each in of.configuration} for of in (attested, expected))
    audit, reported = mine.get(Audit), theirs[Audit]
    if isinstance(audit, Audit) and isinstance(reported, Audit) and audit != reported:
        levels = (audit.annotations.evidence, reported.annotations.evidence)
        if levels[0] != levels[1]:
            yield _problem("level-changed", attested=levels[0], reported=levels[1])
        else:
            yield _problem("other-audit")
    for kind, code in (
        (ClaimTested, "other-claim"),
        (Attacks, "other-attacks"),
        (Tool, "other-tool"),
        (PolicyMet, "other-met-policy"),
        (WorthPaid, "other-worth"),
    ):
        if mine.get(kind) != theirs.get(kind):
            yield _problem(code)
    parts = ("result", "passed_tests", "warned_tests", "failed_tests")
    if any(getattr(attested, part) != getattr(expected, part) for part in parts):
        yield _problem("other-checks")


def _asked_problems(
    found: TestResultStatement,
    evidence: int | None,
    level: int,
    policy: PolicyFile | None,
    key: SSlibKey | None,
    commitment: str | None,
    reviewers: tuple[SignedOff, ...],
) -> Iterator[Message]:
    """Yield what whoever receives the folder asks beyond its being whole."""
    if evidence is not None and evidence < level:
        yield _problem("low-evidence", evidence=evidence, level=level)
    made = found.configured(Commitment)
    if commitment is not None and made is None:
        yield _problem("no-commitment", wanted=commitment)
    elif commitment is not None and made is not None and made.digest.sha256 != commitment:
        yield _problem("other-commitment", commitment=made.digest.sha256, wanted=commitment)
    if policy is None:
        return
    met = found.configured(PolicyMet)
    if met is None:
        yield _problem("no-policy")
    elif met.digest.sha256 != policy.sha256:
        theirs, ours = (
            _policy(met.annotations.name, met.digest.sha256),
            _policy(policy.policy.name, policy.sha256),
        )
        yield _problem("other-policy", policy=theirs, wanted=ours)
    asked = policy.policy.sign_off
    if (
        asked is not None
        and (there := asked.counted(each.key for each in reviewers)) < asked.reviewers
    ):
        yield _problem("few-sign-offs", reviewers=asked.reviewers, there=there)
    signers = policy.policy.signers
    if signers is not None and (key is None or key.keyid not in signers):
        if key is None:
            yield _problem("signer-unasked")
        else:
            yield _problem("signer-unknown", key=key.keyid)


def _claim_problems(found: TestResultStatement, question: Question) -> Iterator[Message]:
    """Yield where the tested claim is weaker than the requested one, or another one."""
    tested = found.configured(ClaimTested)
    if not question.asked or tested is None:  # the second is a problem of its own
        return
    claim = tested.annotations
    promised = claim.terms.figures[0]
    if None in (getattr(claim, promised), claim.delta, claim.relation, claim.unit):
        yield _problem("claim-withheld", asked=question.asked)
        return
    for name in ("epsilon", "rho"):
        if getattr(question, name) is not None and getattr(claim, name) is None:
            yield _problem("other-figure", promised=promised, name=name)
    if question.batch_epsilon is not None and claim.batch_epsilon is None:
        yield _problem("no-batch-level")
    paid = _paid(found, claim)
    stated_and_asked = (
        ("epsilon", claim.epsilon, question.epsilon, composed_epsilon),
        ("batch_epsilon", claim.batch_epsilon, question.batch_epsilon, composed_epsilon),
        ("rho", claim.rho, question.rho, composed_rho),
        ("delta", claim.delta, question.delta, None),
    )
    for name, alone, most, compose in stated_and_asked:
        stated = alone if alone is None or compose is None else compose(alone, paid)
        if most is not None and stated is not None and not stated <= most:
            yield _problem(
                "claim-larger", name=name, stated=Quantity(value=stated), most=Quantity(value=most)
            )
    for name, of, wanted in (
        ("relation", claim.relation, question.relation),
        ("unit", claim.unit, question.unit),
    ):
        if wanted is not None and of != wanted:
            yield _problem("claim-of-others", name=name, stated=of or "", wanted=wanted)


def _paid(found: TestResultStatement, claim: StatedClaim) -> float:
    """Return what the folder's worth figure costs beside the claim, in nats."""
    paid = found.configured(WorthPaid)
    if paid is None or claim.relation is None or claim.unit is None:
        return 0.0
    figure = paid.annotations
    return cost_for(figure.epsilon, figure.relation, figure.unit, claim.relation, claim.unit)


def _policy(name: str | None, digest: str) -> str:
    return f"{_shown(name)} ({digest})" if name else digest


def _shown(name: str) -> str:
    """Return a file's name in a sentence: it may hold anything."""
    return ascii(name[:100])[1:-1]
