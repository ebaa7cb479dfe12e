"""Keys: for their owner alone, never replaced, and no file of another kind is taken for one."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from dpaudit.releasing.keys import make_key, read_public_key, read_signer
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
    signer, public = (
        read_signer(tmp_path / "release-key"),
        read_public_key(tmp_path / "release-key.pub"),
    )
    assert signer.public_key == public
    assert f"Key id: {public.keyid}" in out
    public.verify_signature(signer.sign(b"text"), b"text")
    found = json.loads(dpaudit("key", "--out", "other", "--json")[1])
    assert found["keyid"] == read_public_key(tmp_path / "other.pub").keyid != public.keyid


def test_a_private_key_is_not_written_where_files_are_given_away(
    tmp_path: Path, dpaudit: Command, make_run: Callable[..., Any]
) -> None:
    run, release = make_run(), tmp_path / "texts"
    (release / "data").mkdir(parents=True)
    (release / "attestation.intoto.jsonl").touch()
    for place, said in (
        ("a.pub", "files that end in .pub are given away"),
        ("a.PUB", "files that end in .pub are given away"),
        (run / "key", "inside a run directory"),
        (release / "key", "inside a release folder"),
        (release / "data" / "key", "inside a release folder"),
    ):
        before = sorted(tmp_path.rglob("*"))
        code, out, err = dpaudit("key", "--out", place)
        assert (code, out) == (2, "") and said in err
        assert sorted(tmp_path.rglob("*")) == before


def test_a_file_of_two_keys_is_refused(tmp_path: Path) -> None:
    make_key(tmp_path / "key")
    make_key(tmp_path / "other")
    private, public, other = (tmp_path / name for name in ("key", "key.pub", "other.pub"))
    (tmp_path / "both").write_bytes(public.read_bytes() + private.read_bytes())
    (tmp_path / "two").write_bytes(public.read_bytes() + other.read_bytes())
    (tmp_path / "private").write_bytes(private.read_bytes() * 2)
    for name in ("both", "two"):
        with pytest.raises(InputError, match="than one key"):
            read_public_key(tmp_path / name)
    (tmp_path / "private").chmod(0o600)
    with pytest.raises(InputError, match="than one key"):
        read_signer(tmp_path / "private")


def test_a_key_under_which_anybody_can_sign_is_refused(tmp_path: Path) -> None:
    """Points of small order: what is signed under one of them is signed by whoever likes."""
    one = bytes([1, *[0] * 31])
    # a signature that nobody's key made
    Ed25519PublicKey.from_public_bytes(one).verify(one + bytes(32), b"any text")
    p = 2**255 - 19
    eight = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    for y in (0, 1, p - 1, p, p + 1, eight, p - eight):
        for sign in (0, 1 << 255):
            point = Ed25519PublicKey.from_public_bytes((y | sign).to_bytes(32, "little"))
            (tmp_path / "weak.pub").write_bytes(
                point.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            )
            with pytest.raises(InputError, match="anybody can sign"):
                read_public_key(tmp_path / "weak.pub")


def test_a_key_is_never_replaced(tmp_path: Path, dpaudit: Command) -> None:
    for there in ("a", "a.pub"):
        (tmp_path / there).write_text("kept")
        code, out, err = dpaudit("key", "--out", "a")
        assert (code, out) == (2, "")
        assert f"{there}: " in err and "not replaced" in err
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
    (tmp_path / "rsa").write_bytes(
        other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (tmp_path / "rsa.pub").write_bytes(
        other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
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
    with pytest.raises(InputError, match="is a private"):
        read_public_key(tmp_path / "key")
    (tmp_path / "key.pub").chmod(0o644)
    with pytest.raises(InputError, match="is a public"):
        read_signer(tmp_path / "key.pub")


def test_a_receiver_without_the_key_is_not_told_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="release has it"):
        read_public_key(tmp_path / "key.pub")
    with pytest.raises(InputError, match="Make one"):
        read_signer(tmp_path / "key")
