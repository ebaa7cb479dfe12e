"""Keys: for their owner alone, never replaced, and no file of another kind is taken for one."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dpaudit.release.keys import make_key, read_public_key, read_signer
from dpaudit.runs import InputError

Command = Callable[..., tuple[int, str, str]]


def test_a_key_is_made_for_its_owner_alone(tmp_path: Path, dpaudit: Command) -> None:
    before = os.umask(0o277)
    try:
        code, out, _ = dpaudit("key", "--out", "release-key")
    finally:
        os.umask(before)
    assert code == 0
    assert stat.S_IMODE((tmp_path / "release-key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "release-key.pub").stat().st_mode) == 0o644
    signer, public = read_signer(tmp_path / "release-key"), read_public_key(tmp_path / "release-key.pub")
    assert signer.public_key == public
    assert f"Key id: {public.keyid}" in out
    public.verify_signature(signer.sign(b"text"), b"text")
    found = json.loads(dpaudit("key", "--out", "other", "--json")[1])
    assert found["keyid"] == read_public_key(tmp_path / "other.pub").keyid != public.keyid


def test_a_key_is_never_replaced(tmp_path: Path, dpaudit: Command) -> None:
    for there in ("a", "a.pub"):
        (tmp_path / there).write_text("kept")
        code, out, err = dpaudit("key", "--out", "a")
        assert (code, out) == (2, "")
        assert "keys are not replaced" in err
        assert sorted(path.name for path in tmp_path.iterdir()) == [there]
        assert (tmp_path / there).read_text() == "kept"
        (tmp_path / there).unlink()
    (tmp_path / "b").symlink_to(tmp_path / "elsewhere")
    assert dpaudit("key", "--out", "b")[0] == 2
    assert not (tmp_path / "elsewhere").exists()
    code, _, err = dpaudit("key", "--out", tmp_path / "nowhere" / "c")
    assert code == 2 and "cannot be written" in err


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    for mode in (0o640, 0o604, 0o660):
        (tmp_path / "key").chmod(mode)
        with pytest.raises(InputError, match="others may read"):
            read_signer(tmp_path / "key")


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    other = generate_private_key(65537, 2048)
    (tmp_path / "rsa").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "rsa.pub").write_bytes(other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    (tmp_path / "text").write_text("a text")
    (tmp_path / "large").write_bytes(b"x" * 10_000)
    os.mkfifo(tmp_path / "pipe")
    for name in ("rsa", "text", "large", "pipe", "nowhere", ".", "key.pub"):
        if (tmp_path / name).is_file():
            (tmp_path / name).chmod(0o600)
        with pytest.raises(InputError):
            read_signer(tmp_path / name)
    for name in ("rsa.pub", "text", "large", "pipe", "nowhere", "."):
        with pytest.raises(InputError):
            read_public_key(tmp_path / name)
    with pytest.raises(InputError, match="this is a private key"):
        read_public_key(tmp_path / "key")
    (tmp_path / "key.pub").chmod(0o644)
    with pytest.raises(InputError, match="this is a public key"):
        read_signer(tmp_path / "key.pub")


def test_a_receiver_without_the_key_is_not_told_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Whoever signed the release has it"):
        read_public_key(tmp_path / "key.pub")
    with pytest.raises(InputError, match="Make one"):
        read_signer(tmp_path / "key")
