"""A seed's parts, their hashes and their files; and the numbers that follow from them."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpaudit.runs import CommittedSeed, InputError, read_seed
from dpaudit.runs.committed_seed import new_part, part_hash

PARTS = tuple(hashlib.sha256(name).digest() for name in (b"steward", b"auditor", b"third"))
RUN = "ab" * 32


def write(folder: Path, name: str, content: str | bytes, mode: int = 0o600) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_numbers_are_hmacs_of_run_batch_and_step_under_the_exclusive_or_of_the_parts() -> None:
    """Written out, since every run that was ever committed to hangs on it."""
    key = bytes(a ^ b for a, b in zip(*PARTS[:2], strict=True))
    place = (
        b"dpaudit committed draw v1\0"
        + bytes.fromhex(RUN)
        + (3).to_bytes(8, "big")
        + (257).to_bytes(8, "big")
    )
    number = int.from_bytes(hmac.new(key, place, "sha256").digest(), "big")
    seed = CommittedSeed.of(PARTS[:2])
    assert seed.uniform(RUN, 3, 257) == (2 * number + 1) / 2**257
    assert CommittedSeed.of(PARTS[1::-1]).uniform(RUN, 3, 257) == seed.uniform(RUN, 3, 257)
    assert seed.hashes == tuple(
        hashlib.sha256(b"dpaudit seed part v1\0" + part).hexdigest() for part in PARTS[:2]
    )


def test_other_places_runs_and_seeds_have_unrelated_numbers() -> None:
    seed = CommittedSeed.of(PARTS)
    places = [(RUN, batch, step) for batch in range(40) for step in range(50)]
    numbers = [seed.uniform(*place) for place in places]
    assert len(set(numbers)) == len(numbers)
    assert stats.kstest(numbers, "uniform").pvalue > 1e-6
    table = np.array(numbers).reshape(40, 50)
    others = (
        table[:, 1:].ravel(),  # the next step's
        table[1:].ravel(),  # the next batch's
        np.array([seed.uniform("cd" * 32, *place[1:]) for place in places]),
        np.array([CommittedSeed.of(PARTS[:2]).uniform(*place) for place in places]),
    )
    for other, same in zip(
        others,
        (table[:, :-1].ravel(), table[:-1].ravel(), table.ravel(), table.ravel()),
        strict=True,
    ):
        assert abs(np.corrcoef(other, same)[0, 1]) < 5 / len(other) ** 0.5


def test_a_seed_shows_itself_in_no_representation() -> None:
    seed = CommittedSeed.of(PARTS[:1])
    assert PARTS[0].hex() not in f"{seed} {seed!r} {seed.hashes}" and repr(PARTS[0]) not in repr(
        seed
    )


def test_files_of_parts_are_read_in_any_case_and_with_white_space(tmp_path: Path) -> None:
    first = write(tmp_path, "first", f"  {PARTS[0].hex().upper()}\r\n")
    second = write(tmp_path, "second", PARTS[1].hex(), mode=0o400)
    link = tmp_path / "link"
    link.symlink_to(first)
    assert read_seed([link, second]) == CommittedSeed.of(PARTS[:2])
    made = new_part()
    assert read_seed([write(tmp_path, "made", made)]).hashes == (part_hash(bytes.fromhex(made)),)


BAD = {
    "short": PARTS[0].hex()[:-1],
    "long": PARTS[0].hex() + "0",
    "not hexadecimal": "g" + PARTS[0].hex()[1:],
    "empty": "",
    "prefixed": "0x" + PARTS[0].hex(),
    "two lines": f"{PARTS[0].hex()}\n{PARTS[1].hex()}\n",
    "full-width digits": "\uff11" * 64,
    "bytes": PARTS[0],
    "zeros": "0" * 64,
    "typed": "deadbeef" * 8,
    "counted": "0123456789abcdef" * 4,
    "huge": "a1" * 100_000,
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_rejects_a_file_that_is_no_random_part_and_quotes_none_of_it(
    content: str | bytes, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        read_seed([write(tmp_path, "bad", content)])
    assert "bad" in str(error.value) and "dpaudit key --seed" in error.value.remedy
    assert len(content) < 8 or str(content)[:8] not in str(error.value)


def test_rejects_parts_that_cancel_out(tmp_path: Path) -> None:
    third = bytes(a ^ b for a, b in zip(*PARTS[:2], strict=True))
    files = [
        write(tmp_path, name, part.hex())
        for name, part in zip("abc", (*PARTS[:2], third), strict=True)
    ]
    again = write(tmp_path, "again", PARTS[0].hex())
    for wrong in (files, [files[0], again], [files[0], files[0]], [files[0], files[1], again]):
        with pytest.raises(InputError, match="cancel"):
            read_seed(wrong)
    assert len(read_seed(files[:2]).hashes) == 2


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_rejects_a_file_that_others_may_read_or_change(mode: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="chmod 600"):
        read_seed([write(tmp_path, "open", PARTS[0].hex(), mode=mode)])


def test_rejects_what_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("missing", ".", "pipe"):
        with pytest.raises(InputError):
            read_seed([tmp_path / name])
