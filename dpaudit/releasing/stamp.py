"""Time stamps of RFC 3161: an authority says that a digest existed at a time.

The digests are a run's commitment and head, which are SHA-256, so a request needs no more than one
of them, and its answer is checked against it: by `openssl ts -verify -digest HEX`, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

from cryptography import x509

from dpaudit.results.attestation import timestamp
from dpaudit.results.release_layout import STAMPS
from dpaudit.runs import InputError

#: Of an answer, and of a file of certificates.
MAX_BYTES = 1 << 16
#: DER of a TimeStampReq before its SHA-256, and after it: the answer shall hold certificates.
_BEFORE, _AFTER = "30390201013031300d060960864801650304020105000420", "0101ff"
_SHA256 = "2.16.840.1.101.3.4.2.1"
_REMEDY = "Give the authority's answer to the request of `dpaudit stamp` (.tsr), as it came."


def request(digest: str) -> bytes:
    """Return a request (.tsq) to stamp a SHA-256 in hexadecimal. It carries no nonce."""
    return bytes.fromhex(f"{_BEFORE}{digest}{_AFTER}")


def stamped_digest(content: bytes, where: str) -> str:
    """Return the SHA-256 that an answer is about, in hexadecimal; nobody vouches for it yet.

    Raises:
        InputError: it is no answer about a SHA-256.
        ModuleNotFoundError: rfc3161-client is not installed.
    """
    info = _decoded(content, where).tst_info
    if info.message_imprint.hash_algorithm.dotted_string != _SHA256:
        raise InputError(where, "this stamp is of no SHA-256.", _REMEDY)
    digest: bytes = info.message_imprint.message
    return digest.hex()


def read_answer(path: Path) -> bytes:
    """Return an authority's answer. Raises InputError where it cannot be read."""
    return _read(path, MAX_BYTES, _REMEDY)


def read_stamps(
    answers: Sequence[Path], commitment: str | None, head: str | None
) -> dict[str, bytes]:
    """Return answers about a run's commitment or head, by their names in a release folder.

    Args:
        answers: their files.
        commitment, head: the run's, in hexadecimal; None without them.

    Raises:
        InputError: one cannot be read, is of another digest, or there are two of the same.
    """
    found: dict[str, bytes] = {}
    names = {digest: STAMPS[of] for of, digest in (("commitment", commitment), ("head", head))}
    for path in answers:
        content = read_answer(path)
        digest = stamped_digest(content, str(path))
        name = names.get(digest)
        if name is None or name in found:
            problem = f"this stamp is of {digest}: neither this run's commitment nor its head."
            if name is not None:
                problem = "there are two stamps of the same digest."
            raise InputError(str(path), problem, "Give one stamp of each.")
        found[name] = content
    return found


def stamped_time(content: bytes, digest: str, authorities: Path, where: str) -> str | None:
    """Return when an authority stamped a SHA-256, by its own clock, in UTC.

    Args:
        content: its answer (.tsr).
        digest: in hexadecimal.
        authorities: file of the certificates that are trusted, in PEM: roots, and where the answer
            lacks them, what is between.
        where: what to call the answer in errors.

    Returns:
        The time; None if none of these vouches for this digest.

    Raises:
        InputError: the answer or the certificates cannot be read.
        ModuleNotFoundError: rfc3161-client is not installed.
    """
    from rfc3161_client import VerificationError, VerifierBuilder

    found = _decoded(content, where)
    if stamped_digest(content, where) != digest:
        return None
    builder = VerifierBuilder()
    for certificate in dict.fromkeys(_certificates(authorities)):
        builder = builder.add_root_certificate(certificate)
    try:
        builder.build().verify(found, bytes.fromhex(digest))
    except (VerificationError, ValueError):
        return None
    return timestamp(found.tst_info.gen_time.replace(tzinfo=UTC))


def _decoded(content: bytes, where: str) -> Any:
    from rfc3161_client import decode_timestamp_response

    try:
        found = decode_timestamp_response(content)
        _ = found.tst_info  # which a refusal lacks
    except ValueError:
        raise InputError(where, "this is no granted time stamp of RFC 3161.", _REMEDY) from None
    return found


def _certificates(path: Path) -> list[x509.Certificate]:
    remedy = "Give the authority's certificates in PEM, as it publishes them."
    content = _read(path, MAX_BYTES * 16, remedy)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise InputError(str(path), "this holds no certificates in PEM.", remedy) from None


def _read(path: Path, most: int, remedy: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", remedy) from None
    if len(content) > most:
        raise InputError(str(path), "this file is too large.", remedy)
    return content
