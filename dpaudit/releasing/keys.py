"""Keys of releases: Ed25519, a private key in a file of its owner's, a public one beside it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.signer import CryptoSigner, SSlibKey

from dpaudit.runs import InputError
from dpaudit.runs.committed_seed import new_part, part_hash

#: The eight points of small order, under whose "keys" anybody can sign; encodings without the bit
#: of the sign.
_WEAK = {
    *(
        "00" * 32,
        "01" + "00" * 31,
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    ),
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
}
#: A key's file has some hundred bytes.
MAX_BYTES = 1 << 13
PUBLIC_SUFFIX = ".pub"
_MAKE = "Make one with `dpaudit key --out FILE`."
_ASK = "Whoever signed the release has it: the file that ends in .pub, which `dpaudit key` wrote."


def make_key(path: Path) -> SSlibKey:
    """Write a new private key, for its owner alone, and its public key to the same name with .pub.

    Raises:
        InputError: the name is a public key's, or one of the files is there already or cannot be
            written.
    """
    if path.suffix.lower() == PUBLIC_SUFFIX:
        problem = (
            f"files that end in {PUBLIC_SUFFIX} are given away, and this would be the private key."
        )
        raise InputError(
            str(path), problem, f"Name it without {PUBLIC_SUFFIX}; the public key gets that name."
        )
    key = Ed25519PrivateKey.generate()
    signer = CryptoSigner(key)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    beside = path.with_name(path.name + PUBLIC_SUFFIX)
    if os.path.lexists(beside):
        raise _there_already(beside)
    _write_new(path, signer.private_bytes, 0o600)
    try:
        _write_new(beside, public, 0o644)
    except InputError:
        path.unlink()
        raise
    return signer.public_key


def make_seed_part(path: Path) -> str:
    """Write a new part of a seed, for its owner alone, and return its hash.

    Raises:
        InputError: as for `make_key`.
    """
    part = new_part()
    _write_new(path, part.encode(), 0o600)
    return part_hash(bytes.fromhex(part))


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask takes away
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ELOOP):
            raise _there_already(path) from None
        raise InputError(
            str(path), f"cannot be written ({error.strerror}).", "Name another place with --out."
        ) from None


def _there_already(path: Path) -> InputError:
    return InputError(
        str(path), "a file is there already, and keys are not replaced.", "Name another with --out."
    )


def read_signer(path: Path) -> CryptoSigner:
    """Read the private key of a file. Raises InputError where it is none, or others may read it."""
    content, mode = _read(path, _MAKE)
    _require_one(path, content)
    if b"PUBLIC KEY" in content:
        raise InputError(
            str(path),
            "this is a public key.",
            "Give the private one, which lies beside it without .pub.",
        )
    if mode & 0o077:
        problem = "others may read this private key."
        raise InputError(
            str(path),
            problem,
            "Make a new key; whoever could read this one may have. (chmod 600 FILE)",
        )
    try:
        key = load_pem_private_key(content, None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            str(path), "this is no private Ed25519 key without a password, in PEM.", _MAKE
        )
    return CryptoSigner(key)


def read_public_key(path: Path) -> SSlibKey:
    """Read the public key of a file. Raises InputError where it is none."""
    content, _ = _read(path, _ASK)
    _require_one(path, content)
    try:
        key = load_pem_public_key(content)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        private = b"PRIVATE KEY" in content
        problem = "this is no public Ed25519 key, in PEM."
        if private:
            problem = "this is a private key."
        raise InputError(
            str(path),
            problem,
            "Give the file that ends in .pub, which `dpaudit key` wrote beside it.",
        )
    try:
        return public_key_of(key.public_bytes_raw())
    except ValueError as error:
        raise InputError(str(path), f"{error}.", _MAKE) from None


def public_key_of(point: bytes) -> SSlibKey:
    """Return the key of 32 bytes. Raises ValueError where anybody can sign under it."""
    if (point[:-1] + bytes([point[-1] & 0x7F])).hex() in _WEAK:
        raise ValueError("anybody can sign under this key")
    return SSlibKey.from_crypto(Ed25519PublicKey.from_public_bytes(point))


def _require_one(path: Path, content: bytes) -> None:
    """Refuse a file of several keys.

    One of them would be read, and a reader of the file may mean another.
    """
    if content.count(b"-----BEGIN ") > 1:
        raise InputError(
            str(path), "this file holds more than one key.", "Give a file of one key alone."
        )


def _read(path: Path, remedy: str) -> tuple[bytes, int]:
    """Read a plain file's bytes and mode; `remedy` is for where there is none."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
                raise InputError(str(path), "this is no plain file of a key's size.", remedy)
            return file.read(MAX_BYTES), found.st_mode
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", remedy) from None
