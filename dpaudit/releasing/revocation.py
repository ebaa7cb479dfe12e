"""Releases taken back: a list of them for each key, signed as a whole with that key.

One list, so that leaving out an entry breaks the signature. An older list is a whole one: its date
is said wherever it is used.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from dpaudit.releasing.attestation import MAX_BYTES, Attestation, envelopes, opened
from dpaudit.results import Finding, Message
from dpaudit.results.attestation import (
    MAX_REVOKED,
    KeySubject,
    RevocationList,
    RevocationsStatement,
    Revoked,
    Sha256,
    days_since,
    timestamp,
)
from dpaudit.results.catalogue import message
from dpaudit.results.quality_file import replace_file
from dpaudit.runs import InputError
from dpaudit.runs.layout import ATTESTATION

#: Seconds to wait for a server.
_PATIENCE = 20.0
_REMEDY = "Give the list as its publisher signed it with `dpaudit revoke`, or its address."


class Listed(NamedTuple):
    """A key's list, whose signature fits."""

    made: str
    revoked: tuple[Revoked, ...]

    def problems(self, release: str) -> list[Message]:
        """Return that this release was revoked, when and why; nothing if it is not listed."""
        return [
            message(
                Finding(code="released.revoked", values={"time": each.time, "reason": each.reason})
            )
            for each in self.revoked
            if each.release == release
        ]


def read_list(
    place: str, key: SSlibKey, most_days: int | None = None, now: datetime | None = None
) -> Listed:
    """Read a key's list from a file, or from an address that begins with https:// or http://.

    Args:
        place: the file or address.
        key: whose list it must be.
        most_days: how old the list may be; None for any age. One that is dated more than a day
            ahead is refused, too: it would never be too old.
        now: when; by default the clock's.

    Raises:
        InputError: it cannot be reached or read, is not signed with this key, or is too old.
            Nothing is known of any release then.
    """
    read: Callable[[str], bytes] = _file
    if place.startswith(("https://", "http://")):
        read = _fetched
    found = _listed(place, read(place), key)
    days = days_since(found.made, now or datetime.now(UTC))
    if most_days is not None and not -1 <= days < most_days:
        raise InputError(
            place,
            f"this list was signed on {found.made}, and may be {most_days} days old at most: "
            "nobody knows what was revoked since.",
            "Get a newer list from its publisher, who signs it anew with `dpaudit revoke`.",
        )
    return found


def revoke(
    attestation: Path | None, signer: CryptoSigner, reason: str, out: Path, now: datetime
) -> Listed:
    """Add a release to the list of the key that signed it, and sign the list anew.

    Args:
        attestation: of the release, or its folder; None signs the list as it stands, or an empty
            one.
        signer: its key.
        reason: why, in a line.
        out: the list's file, which is made or replaced.
        now: when.

    Raises:
        InputError: the attestation or the list cannot be read, is signed with another key, or has
            no room.
    """
    key = signer.public_key
    revoked = _listed(str(out), _file(str(out)), key).revoked if out.exists() else ()
    made = timestamp(now)
    if attestation is not None:
        revoked = (*revoked, _revoked(attestation, key, reason, made))
    if len(revoked) > MAX_REVOKED:
        raise InputError(str(out), "the list is full.", "Sign further releases with a new key.")
    listed = RevocationsStatement(
        subject=(KeySubject(digest=Sha256(sha256=key.keyid)),),
        predicate=RevocationList(made=made, revoked=revoked),
    )
    content = envelopes([listed], signer)
    if len(content) > MAX_BYTES:
        raise InputError(str(out), "the list is full.", "Sign further releases with a new key.")
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(out, content)
    out.chmod(0o644)  # it is published
    return Listed(made, revoked)


def _revoked(place: Path, key: SSlibKey, reason: str, now: str) -> Revoked:
    """Return the entry of a release that this key signed."""
    path = place / ATTESTATION if place.is_dir() else place
    content = _file(str(path), f"Give a release folder, or its {ATTESTATION}.")
    try:
        found = Attestation.of(content)
    except ValueError as error:
        raise InputError(
            str(path), f"this is no attestation: {error}.", f"Give the {ATTESTATION} of a release."
        ) from None
    if not found.signed_by(key):
        raise InputError(
            str(path),
            f"the key {key.keyid} did not sign this release, and cannot revoke it.",
            "Give the key that signed it. An unsigned release has none: nobody vouches for it.",
        )
    try:
        return Revoked(release=found.release, reason=reason, time=now)
    except ValidationError:
        raise InputError(
            "--reason", "this is not one line of at most 200 characters.", "Give a shorter one."
        ) from None


def _listed(place: str, content: bytes, key: SSlibKey) -> Listed:
    try:
        found = opened(content, RevocationsStatement)
        if len(found) != 1:
            raise ValueError("it does not hold one list")
    except ValueError as error:
        raise InputError(place, f"this is no list of revocations: {error}.", _REMEDY) from None
    (envelope,) = found
    (subject,) = envelope.statement.subject
    if subject.digest.sha256 != key.keyid or not envelope.signed_by(key):
        raise InputError(
            place,
            f"this list is of the key {subject.digest.sha256}, or changed since it was signed: "
            f"the key {key.keyid} did not sign it.",
            "Only the key that signed a release can revoke it. Ask its publisher for the list.",
        )
    return Listed(envelope.statement.predicate.made, envelope.statement.predicate.revoked)


def _file(place: str, remedy: str = _REMEDY) -> bytes:
    try:
        with open(place, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(place, f"cannot be read ({error.strerror}).", remedy) from None


def _fetched(place: str) -> bytes:
    content, end = b"", time.monotonic() + 2 * _PATIENCE
    try:
        with urllib.request.urlopen(place, timeout=_PATIENCE) as answer:  # noqa: S310 - no file:
            while len(content) <= MAX_BYTES and (chunk := answer.read1(MAX_BYTES)):
                content += chunk
                if time.monotonic() > end:
                    raise TimeoutError("it sends too slowly")
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise InputError(
            place,
            f"cannot be reached ({str(reason)[:100]}), so nobody knows whether this release was "
            "revoked.",
            "Try again, or give the list as a file.",
        ) from None
    return content
