"""Sign-offs: reviewers answer for a run by name, each with a key of their own.

They lie in the run's report folder until it is released, and then in the release folder, where the
attestation names their file. A sign-off is of one finished run, by its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from dpaudit.releasing.attestation import envelopes, opened
from dpaudit.releasing.files import input_error
from dpaudit.releasing.keys import public_key_of
from dpaudit.results.attestation import (
    MAX_SIGN_OFFS,
    SIGN_OFFS,
    RunSubject,
    Sha256,
    SignOff,
    SignOffStatement,
    timestamp,
)
from dpaudit.results.publication import SignedOff
from dpaudit.results.quality_file import write_private
from dpaudit.runs import InputError

_MAX_BYTES = 1 << 20
_REMEDY = (
    f"Remove {SIGN_OFFS} from the run's report folder, and have its reviewers sign this run off."
)


class SignOffError(ValueError):
    """A sign-off that does not count. `code`: of the sentence in `released.toml`."""

    def __init__(self, code: str, words: str) -> None:
        super().__init__(words)
        self.code = code


def sign_off(
    folder: Path,
    head: str,
    signer: CryptoSigner,
    *,
    name: str,
    role: str,
    read: Sequence[str],
    accepts: str,
    now: datetime,
) -> SignedOff:
    """Sign a run off, into its report folder, beside earlier sign-offs of the run.

    Args:
        folder: the run's report folder.
        head: the run's, in hexadecimal.
        signer: the reviewer's own key.
        name, role, read, accepts: fields of `dpaudit.results.attestation.SignOff`.
        now: when.

    Raises:
        InputError: a field cannot be used, earlier sign-offs cannot be read or are of another run,
            this key signed the run off already, or the file cannot be written.
    """
    path = folder / SIGN_OFFS
    content, earlier = require_sign_offs(folder, head)
    if signer.public_key.keyid in {each.key for each in earlier}:
        problem = f"the key {signer.public_key.keyid} signed this run off already."
        raise InputError(str(path), problem, "Each reviewer signs once, with a key of their own.")
    if len(earlier) >= MAX_SIGN_OFFS:
        raise InputError(
            str(path), f"there are {len(earlier)} sign-offs already.", "Release with these."
        )
    try:
        said = SignOff.model_validate(
            {
                "name": name,
                "role": role,
                "read": tuple(read),
                "accepts": accepts,
                "time": timestamp(now),
                "public_key": signer.public_key.keyval["public"],
            }
        )
    except ValidationError as error:
        raise input_error("", error, SignOff, "Write it in plain lines.") from None
    statement = SignOffStatement(subject=(RunSubject(digest=Sha256(sha256=head)),), predicate=said)
    content += envelopes([statement], signer)
    write_private(path, content)
    return signed_off(content, head)[-1]


def require_sign_offs(folder: Path, head: str | None) -> tuple[bytes, tuple[SignedOff, ...]]:
    """Return the sign-offs in a run's report folder: the file, empty without one, and who signed.

    Args:
        folder: the run's report folder.
        head: the run's, in hexadecimal; None if it has none.

    Raises:
        InputError: they cannot be read, or one is not of this run.
    """
    path = folder / SIGN_OFFS
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return b"", ()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", _REMEDY) from None
    try:
        return content, signed_off(content, head)
    except SignOffError as error:
        raise InputError(str(path), f"{error}.", _REMEDY) from None


def signed_off(content: bytes, head: str | None) -> tuple[SignedOff, ...]:
    """Return who signed a run off, each signature checked.

    Args:
        content: of a file of sign-offs.
        head: the run's; None if it is not known.

    Raises:
        SignOffError: one of them cannot be read, is of another run, or its signature does not fit.
    """
    try:
        found = opened(content, SignOffStatement)
    except ValueError as error:
        raise SignOffError("sign-offs-unreadable", str(error)) from None
    listed = []
    for each in found:
        said, (run,) = each.statement.predicate, each.statement.subject
        if run.digest.sha256 != head:
            raise SignOffError("sign-off-of-other-run", f"{said.name} signed another run off")
        try:
            key: SSlibKey | None = public_key_of(bytes.fromhex(said.public_key))
        except ValueError:
            key = None
        if key is None or not each.signed_by(key):
            raise SignOffError("sign-off-not-signed", f"the signature of {said.name} does not fit")
        fields = said.model_dump(exclude={"public_key"})
        listed.append(SignedOff(**fields, key=key.keyid))
    if len({each.key for each in listed}) < len(listed) or len(listed) > MAX_SIGN_OFFS:
        raise SignOffError("sign-offs-unreadable", "a key is there twice, or there are too many")
    return tuple(listed)
