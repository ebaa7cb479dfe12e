"""Releases from Python: from an audited run to the folder that may be published."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from dpaudit.api import places
from dpaudit.api.audits import (
    Audit,
    AuditError,
    AuditOptions,
    asked_claim,
    audit,
    require_worth,
    sign_offs_of,
    spare_findings,
    write_findings,
)
from dpaudit.api.missing import missing, needs
from dpaudit.api.monitor import SILENT
from dpaudit.api.shown import Shown
from dpaudit.api.vouching import revocations_of
from dpaudit.results.publication import ReleasedFolder, VerifiedFolder
from dpaudit.runs import InputError, RunReader


class Release(Shown[ReleasedFolder]):
    """A folder of synthetic texts to publish: texts, card, report, registry entry, attestation.

    The report is the public one.

    Attributes:
        audit: the audit that it rests on. It is private, and no part of the folder.
    """

    def __init__(self, result: ReleasedFolder, audit: Audit) -> None:
        super().__init__(result)
        self.audit = audit

    def _title(self) -> str:
        return f"Release in {self.result.folder}"

    def _rows(self) -> list[tuple[str, str]]:
        texts = ", ".join(f"{count:,} {split}" for split, count in self.result.texts.items())
        signer = self.result.signer
        return [
            ("texts", texts),
            ("evidence", f"level {self.result.evidence}"),
            ("signature", "none" if signer is None else f"by {signer}"),
            ("files", f"{len(self.result.files)} attested"),
        ]


def release(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    unsigned: bool = False,
    about: str | os.PathLike[str] | None = None,
    test_share: float | None = None,
    stamps: Sequence[str | os.PathLike[str]] = (),
    junit: str | os.PathLike[str] | None = None,
    sarif: str | os.PathLike[str] | None = None,
    **asked: Unpack[AuditOptions],
) -> Release:
    """Audit a run, and package its texts for release. Nothing is written unless the audit passes.

    Args:
        run: the run directory.
        out: the folder to make; nothing may be there yet.
        key: sign with this private key, a file of `dpaudit key`.
        unsigned: leave the attestation unsigned. Give either this or `key`.
        about: a YAML file with what only people know: publisher, purpose, recipients, roles ...
            (docs/release.md). All of it is published.
        test_share: put at least this share of each label's texts into a test split.
        stamps: answers of time stamping authorities (.tsr) about the run's commitment or head,
            which the folder then holds (`dpaudit stamp`).
        junit: write the checks as JUnit XML here, passed or not, in the form for readers outside.
        sarif: write the findings as SARIF here, likewise.
        asked: keyword arguments of `audit`.

    Raises:
        AuditError: the run does not pass its audit.
        RefusedError: it passes, and may not be released so all the same; `reasons` says why.
        InputError: an argument or the run cannot be used.
    """
    from dpaudit.auditing.disclosure import public_form
    from dpaudit.releasing.folder import (
        read_about,
        require_new,
        require_signer,
        require_split,
        write_release,
    )
    from dpaudit.releasing.keys import read_signer
    from dpaudit.releasing.policy import read_policy
    from dpaudit.releasing.stamp import read_stamps

    where, folder, monitor = (
        places.location_of(run),
        places.path_of(out, "out"),
        asked.get("monitor", SILENT),
    )
    policy = asked.get("policy")
    rules = None if policy is None else read_policy(places.path_of(policy, "policy"))
    if max(asked.get("evidence", 2), (rules and rules.policy.evidence) or 0) < 2:
        problem = (
            "a release needs evidence level 2 or more: below that, no check compares texts "
            "with their tokens."
        )
        raise InputError("evidence", problem, "Give a level from 2 to 4.")
    if (key is None) != unsigned:
        raise InputError(
            "key",
            "a release is signed, or is said to be unsigned.",
            "Give either --key FILE or --unsigned.",
        )
    # Whatever is wrong with what was given is told before an audit is spent.
    said = read_about(None if about is None else places.path_of(about, "about"))
    signer = None if key is None else read_signer(places.path_of(key, "key"))
    places.spare_runs(folder, [where], "Name a folder elsewhere.")
    if isinstance(where, Path) and Path(os.path.realpath(folder)).is_relative_to(
        os.path.realpath(where)
    ):
        problem = "this is inside the run directory, whose reports are private."
        raise InputError(str(folder), problem, "Name a folder elsewhere.")
    require_new(folder)
    places.require_writable(folder.parent, "--out")
    spare_findings(where, junit, sarif)
    findings = [Path(os.path.realpath(file)) for file in (junit, sarif) if file]
    if key is not None and Path(os.path.realpath(key)) in findings:
        raise InputError(
            str(key), "--junit or --sarif would replace the key.", "Write them elsewhere."
        )
    if any(file.is_relative_to(os.path.realpath(folder)) for file in findings):
        problem = "a release folder may hold only what is attested."
        raise InputError(str(folder), problem, "Write --junit and --sarif elsewhere.")
    if importlib.util.find_spec("pyarrow") is None:
        raise missing("release", "pyarrow", "release", "to write releases")
    if test_share is not None:
        if not 0 < test_share < 1:
            raise InputError(
                "test_share", f"the value is {test_share!r}.", "Give a number between 0 and 1."
            )
        require_split(RunReader(where), test_share)
    require_signer(rules, signer)
    reader, answers = RunReader(where), [places.path_of(file, "stamps") for file in stamps]
    sign_offs_of(where)
    with needs("stamp", "to read time stamps"):
        read_stamps(answers, reader.manifest.commitment if answers else None, reader.head_or_none())
    found = audit(where, **asked, signer=None if signer is None else signer.public_key.keyid)
    if junit is not None or sarif is not None:
        write_findings(public_form(found.result), junit=junit, sarif=sarif)
    if found.verdict != "pass":
        raise AuditError(found)
    require_worth(where)
    # Read once: the folder has the evaluation and sign-offs that the policy was held against.
    quality, problem = found.quality
    if problem:
        monitor.warn(problem)
    with places.writing(folder, "--out"):
        written = write_release(
            found.result,
            RunReader(where),
            folder,
            signer=signer,
            about=said,
            quality=quality,
            test_share=test_share,
            stamps=answers,
            sign_offs=found.sign_offs,
        )
    return Release(written, found)


def about_template() -> str:
    """Return a YAML file for `release(about=...)` that explains each field, all commented out."""
    from dpaudit.releasing.folder import about_template as template

    return template()


def verify_release(
    folder: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str] | None = None,
    epsilon: float | None = None,
    batch_epsilon: float | None = None,
    rho: float | None = None,
    delta: float | None = None,
    relation: str | None = None,
    unit: str | None = None,
    evidence: int = 0,
    policy: str | os.PathLike[str] | None = None,
    commitment: str | None = None,
    revocations: str | os.PathLike[str] | None = None,
    revocations_days: int | None = None,
    authority: str | os.PathLike[str] | None = None,
) -> VerifiedFolder:
    """Compare a release folder with its attestation, without the run.

    This is about the signature, every byte, and what is asked.

    Args:
        folder: as it was received.
        key: the public key that must have signed; None looks at no signature.
        epsilon: the most that the attested claim may say at the release level, in nats.
        batch_epsilon: the most that it may say at the batch level, in nats.
        rho: the most that it may say of zCDP, in nats, in place of any epsilon.
        delta: the most that it may say of delta.
        relation: the neighbours that it must be about.
        unit: the privacy unit that it must be about.
        evidence: the level that the audit must rest on at least.
        policy: that the run must have been held to, and whose signers must have signed.
        commitment: that the run's must be, in hexadecimal.
        revocations: the list of the key's revoked releases: a file, or an address that begins with
            https:// or http://. It needs `key`.
        authority: file of a stamping authority's certificates in PEM: its time stamp of the run's
            commitment or head must be in the folder.

    Raises:
        InputError: there is no such folder, or an argument cannot be used: also where the list of
            revocations cannot be reached or is too old. Bad content is a problem in the result.
    """
    from dpaudit.releasing.keys import read_public_key
    from dpaudit.releasing.policy import read_policy
    from dpaudit.releasing.verify import verify_folder

    rules = None if policy is None else read_policy(places.path_of(policy, "policy"))
    public = None if key is None else read_public_key(places.path_of(key, "key"))
    with needs("stamp", "to verify time stamps"):
        return verify_folder(
            places.path_of(folder, "folder"),
            public,
            level=max(evidence, (rules and rules.policy.evidence) or 0),
            question=asked_claim(epsilon, batch_epsilon, rho, delta, relation, unit),
            policy=rules,
            commitment=commitment,
            revoked=revocations_of(revocations, public, revocations_days),
            authorities=None if authority is None else places.path_of(authority, "authority"),
        )


def push_to_hub(
    folder: str | os.PathLike[str],
    repository: str,
    *,
    key: str | os.PathLike[str] | None = None,
    unsigned: bool = False,
    private: bool | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> str:
    """Verify a release folder, and upload it to the Hugging Face hub as a data set.

    Files that an earlier release left in the repository are removed, so that what is there
    verifies, too.

    Args:
        folder: as `release` wrote it.
        repository: OWNER/NAME; made if it is not there.
        key: the public key that must have signed.
        unsigned: look at no signature. Give either this or `key`.
        private: whether a new repository is; None leaves that to the hub.
        endpoint: the hub's address; None for huggingface_hub's own setting.
        token: of an account that may write; None for the one that is logged in.

    Returns:
        The commit's address.

    Raises:
        RefusedError: the folder does not verify; nothing was sent.
        InputError: the folder cannot be read, or the hub refuses the upload.
    """
    from dpaudit.releasing.folder import RefusedError
    from dpaudit.runs.layout import ATTESTATION

    if (key is None) != unsigned:
        problem = "a release is signed, or is said to be unsigned."
        raise InputError("key", problem, "Give either key or unsigned=True.")
    found = verify_release(folder, key=key)
    if found.verdict != "pass":
        raise RefusedError(*(problem.words for problem in found.problems))
    with needs("release", "to upload releases"):
        from huggingface_hub import HfApi
    hub = HfApi(endpoint=endpoint, token=token)
    try:
        hub.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        commit = hub.upload_folder(
            repo_id=repository,
            repo_type="dataset",
            folder_path=places.path_of(folder, "folder"),
            allow_patterns=[*found.names, ATTESTATION],
            delete_patterns="*",
            commit_message=f"Release {found.release}",
        )
    except Exception as error:  # the hub's, and of whichever client of HTTP it has
        first = str(error).strip().partition("\n")[0][:200]
        remedy = "Check repository, token and network, and upload again."
        raise InputError(repository, f"the hub took no release ({first}).", remedy) from None
    return str(commit.commit_url)


def make_key(file: str | os.PathLike[str]) -> tuple[Path, str]:
    """Make a key to sign releases with.

    The private key goes into `file`, for its owner alone, the public one into `file`.pub beside it.

    Returns:
        The public key's file and the key's id, by which a policy names signers.

    Raises:
        InputError: a file is there already, or it would lie in a run or a release.
    """
    from dpaudit.releasing import keys

    private = _place_of_key(file)
    keyid = keys.make_key(private).keyid
    return private.with_name(private.name + keys.PUBLIC_SUFFIX), keyid


def make_seed_part(file: str | os.PathLike[str]) -> str:
    """Make a secret part of a committed seed; return its public hash. Raises as `make_key`."""
    from dpaudit.releasing import keys

    return keys.make_seed_part(_place_of_key(file))


def _place_of_key(file: str | os.PathLike[str]) -> Path:
    place = places.path_of(file, "file")
    places.spare_runs(
        place, (), "Keep keys where releases are signed, and nowhere else.", keep_folder=True
    )
    return place
