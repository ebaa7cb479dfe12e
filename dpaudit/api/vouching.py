"""Sign-offs, time stamps, revocations and marks, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dpaudit.api import places
from dpaudit.api.audits import digest_of
from dpaudit.api.missing import needs
from dpaudit.results.publication import Provenance, SignedOff
from dpaudit.runs import InputError, RunReader

if TYPE_CHECKING:
    from securesystemslib.signer import SSlibKey

    from dpaudit.releasing.revocation import Listed


def provenance(
    file: str | os.PathLike[str],
    *,
    attestation: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    revocations: str | os.PathLike[str] | None = None,
) -> Provenance:
    """Say where a single file of a release comes from, by its mark and the attestation.

    Without the attestation a mark is the file's own word, and anybody can write one. With it, the
    file is known to be whole and of that release. The folder's other files, its report and the
    bounds on attacks are looked at by `verify_release` alone.

    Args:
        file: a Parquet or JSON lines file of a release, or its card. One of JSON lines needs the
            file NAME.provenance.json beside it.
        attestation: the release's attestation or its folder; None looks beside the file and in the
            folder above.
        key: the public key that must have signed the attestation; None looks at no signature.
        revocations: the list of the key's revoked releases, as for `verify_release`.

    Raises:
        InputError: the file has no mark or cannot be read, or an argument cannot be used.
            Contradictions are problems in the result, whose verdict is "fail" then.
    """
    from dpaudit.releasing import marks
    from dpaudit.releasing.keys import read_public_key

    public = None if key is None else read_public_key(places.path_of(key, "key"))
    return marks.provenance(
        places.path_of(file, "file"),
        None if attestation is None else places.path_of(attestation, "attestation"),
        public,
        revocations_of(revocations, public),
    )


def revocations_of(
    place: str | os.PathLike[str] | None, key: SSlibKey | None, most_days: int | None = None
) -> Listed | None:
    """Return a key's list of revocations; None where none is named.

    Args:
        place: a file or an address.
        key: whose list it must be.
        most_days: how old the list may be; None for any age.

    Raises:
        InputError: it cannot be read as this key's, is too old, or no key is given.
    """
    from dpaudit.releasing.revocation import read_list

    if place is None:
        if most_days is not None:
            problem = "no list of revocations is given."
            raise InputError("revocations_days", problem, "Give --revocations FILE|URL with it.")
        return None
    if key is None:
        problem = "a list of revocations is signed, and no key is given."
        raise InputError("revocations", problem, "Give --key FILE.pub with it.")
    return read_list(os.fspath(place), key, most_days)


def revoke(
    attestation: str | os.PathLike[str] | None,
    out: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str],
    reason: str = "",
) -> tuple[int, str]:
    """Take a release back: add it to the signed list of the key that signed it.

    Args:
        attestation: of the release, or its folder; None signs the list as it stands, so that an
            empty one can be published before anything is revoked.
        out: the list's file. One that is there is continued, and must be this key's.
        key: the private key that signed the release.
        reason: why, in one line. It is published.

    Returns:
        How many releases the list revokes, and when it was signed.

    Raises:
        InputError: the key did not sign the release or the list, or a file cannot be used.
    """
    from dpaudit.releasing import revocation
    from dpaudit.releasing.keys import read_signer

    place = places.path_of(out, "out")
    places.spare_runs(place, (), "Name a file elsewhere.", keep_folder=True)
    if (attestation is None) != (not reason.strip()):
        problem = "a reason goes with a release, and a release with a reason."
        raise InputError("--reason", problem, "Give both, or neither to sign the list anew.")
    with places.writing(place, "--out"):
        listed = revocation.revoke(
            None if attestation is None else places.path_of(attestation, "attestation"),
            read_signer(places.path_of(key, "key")),
            reason,
            place,
            datetime.now(UTC),
        )
    return len(listed.revoked), listed.made


def sign_off(
    run: str | os.PathLike[str],
    *,
    key: str | os.PathLike[str],
    name: str,
    role: str,
    read: Sequence[str],
    accepts: str,
) -> SignedOff:
    """Sign a finished run off, as one of its reviewers. `release` then publishes that.

    Args:
        run: the run directory.
        key: the reviewer's own private key, of `dpaudit key`.
        name: the reviewer's.
        role: the reviewer's.
        read: what the reviewer read, such as "the report".
        accepts: the risk that the reviewer accepts.

    Raises:
        InputError: the run is not finished or has no commitment, a file of it is missing or too
            many, an argument cannot be used, or earlier sign-offs are of another run.
    """
    from dpaudit.releasing import sign_off as signing
    from dpaudit.releasing.keys import read_signer

    where = places.location_of(run)
    places.require_runs([where])
    reader = RunReader(where)
    head = reader.head_or_none()
    if head is None or reader.manifest.commitment is None:
        problem = "this run is not finished, or has no commitment."
        raise InputError(str(where), problem, "Sign a finished run of `dpaudit generate` off.")
    # What anyone can see before an audit, which says the rest.
    if other := reader.hashes().digests.keys() ^ {*reader.files()}:
        problem = "the run's files are not those that it had when it was finished."
        raise InputError(reader.where(min(other)), problem, "Restore the run from a copy.")
    return signing.sign_off(
        places.reports_of(where),
        head,
        read_signer(places.path_of(key, "key")),
        name=name,
        role=role,
        read=read,
        accepts=accepts,
        now=datetime.now(UTC),
    )


def stamp_request(digest: str, out: str | os.PathLike[str]) -> Path:
    """Write a request (.tsq) to stamp a run's commitment or head, by RFC 3161.

    Send it to a time stamping authority and keep the answer (.tsr) for `release(stamps=...)`.

    Args:
        digest: the commitment or the head, in hexadecimal.
        out: the file to write; nothing may be there yet.

    Raises:
        InputError: this is no digest, or the file is there already or cannot be written.
    """
    from dpaudit.releasing.stamp import request

    place = places.path_of(out, "out")
    places.spare_runs(place, (), "Name a file elsewhere.", keep_folder=True)
    content = request(digest_of("digest", digest) or "")
    with places.writing(place, "--out"), place.open("xb") as file:
        file.write(content)
    return place


def stamped_time(
    digest: str, answer: str | os.PathLike[str], authority: str | os.PathLike[str]
) -> str | None:
    """Return when an authority stamped a digest, in UTC; None if it did not. No network is used.

    Args:
        digest: a run's commitment or head, in hexadecimal.
        answer: the authority's answer (.tsr).
        authority: file of the certificates that you trust, in PEM.

    Raises:
        InputError: an argument cannot be used, or rfc3161-client is not installed.
    """
    from dpaudit.releasing import stamp

    where = places.path_of(answer, "answer")
    wanted = digest_of("digest", digest) or ""
    with needs("stamp", "to verify time stamps"):
        content = stamp.read_answer(where)
        return stamp.stamped_time(
            content, wanted, places.path_of(authority, "authority"), str(where)
        )
