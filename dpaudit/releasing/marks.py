"""Marks in files of texts: for programs, that they are synthetic, and which attestation says so.

A mark is what a file says of itself. It becomes worth something by an attestation that names the
file, digest and all, and that the mark names in turn.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from securesystemslib.signer import SSlibKey

from dpaudit.releasing.attestation import MAX_BYTES, Attestation, Beside, Predicates
from dpaudit.releasing.revocation import Listed
from dpaudit.results import Finding, Message, Settings
from dpaudit.results.attestation import Audit, Tool
from dpaudit.results.catalogue import message
from dpaudit.results.publication import Generator, Mark, Provenance, SideCar
from dpaudit.results.release_layout import CARD, JSONL, PARQUET, SIDE_CAR
from dpaudit.runs import InputError, strict_json, strict_yaml
from dpaudit.runs.layout import ATTESTATION

#: Of the footer and of the front matter.
KEY = "dpaudit"
_MAGIC = b"PAR1"
#: Bytes of a footer or a side-car, values of a mark, and how deep a footer nests.
_MOST_FOOTER, _MOST_MARK, _MOST_VALUES, _MOST_DEEP = 1 << 22, 1 << 14, 64, 16
_CHUNK = 1 << 20
_REMEDY = "Name a file of a release folder: data/*.parquet, jsonl/*.jsonl or README.md."
#: Thrift's compact protocol: kinds of values.
_TRUE, _FALSE, _BYTE, _INTEGERS, _DOUBLE, _TEXT, _LISTS, _STRUCT = (
    1,
    2,
    3,
    (4, 5, 6),
    7,
    8,
    (9, 10),
    12,
)
#: Parquet's FileMetaData: its fifth field is a list of pairs of a key and a value.
_PAIRS, _NAME, _VALUE = 5, 1, 2


def mark_of(said: Predicates, settings: Settings | None) -> Mark:
    """Return the mark of a release's files.

    Args:
        said: what its attestation says.
        settings: the run's, as readers outside may know them; None if they are withheld.
    """
    tool = said.found.configured(Tool)
    if tool is None:
        raise ValueError("this attestation does not say what made it")
    beside = Beside.of(said.found)
    model = None if settings is None else settings.model
    return Mark(
        generator=Generator(
            dpaudit=tool.annotations.dpaudit,
            model=None if model is None else model.name,
            model_digest=None if model is None else model.digest,
        ),
        run=beside.commitment,
        release=said.release,
        revocations=beside.revocations,
    )


def side_car(name: str, content: bytes, mark: Mark) -> bytes:
    """Return the file that stands beside one of JSON lines."""
    digest = hashlib.sha256(content).hexdigest()
    return _as_json(SideCar(file=name.rpartition("/")[2], sha256=digest, mark=mark)) + b"\n"


def in_footer(mark: Mark) -> dict[str, str]:
    """Return the footer's entry of a Parquet file, and of any table that keeps such."""
    return {KEY: _as_json(mark).decode()}


def _as_json(fields: BaseModel) -> bytes:
    return fields.model_dump_json().encode()


def marks_in(
    files: Mapping[str, Path], digests: Mapping[str, str]
) -> Iterator[tuple[str, Mark | None]]:
    """Yield the path in a release folder of each file that has to have a mark, and its mark.

    Args:
        files: where plain files are, by their paths in the folder.
        digests: SHA-256 of them in hexadecimal, likewise.
    """
    for name, path in files.items():
        if name.endswith(SIDE_CAR) or not (name == CARD or name.startswith((PARQUET, JSONL))):
            continue
        try:
            beside = files.get(f"{name}{SIDE_CAR}")
            yield name, _read_mark(path, name.rpartition("/")[2], digests[name], beside)[0]
        except (ValueError, OSError, InputError):  # pydantic's, too
            yield name, None


def provenance(
    path: Path,
    attestation: Path | None = None,
    key: SSlibKey | None = None,
    revoked: Listed | None = None,
) -> Provenance:
    """Say what can be known of one file.

    Args:
        path: a file of a release folder, wherever it is now.
        attestation: the attestation or its folder; None looks beside the file and one folder up.
        key: that must have signed; None looks at no signature.
        revoked: the key's list of revocations; None without one.

    Raises:
        InputError: the file cannot be read or has no mark, or the attestation cannot be read.
    """
    digest, mark, beside = _marked(path)
    place = _attestation_of(path, attestation)
    problems = []
    attested = None if place is None else _attestation_in(place)
    if attested is None:
        if key is not None:
            problems.append(_problem("no-attestation", name=ATTESTATION))
    else:
        named = {each.digest.sha256 for each in attested.found.subject}
        if digest not in named:
            problems.append(_problem("unattested", name=path.name))
        if beside is not None and beside not in named:
            problems.append(_problem("unattested", name=f"{path.name}{SIDE_CAR}"))
        if mark.release != attested.release:
            problems.append(
                _problem("other-mark", name=path.name, mark=mark.release, release=attested.release)
            )
        if key is not None and not attested.signed_by(key):
            problems.append(_problem("no-signature", wanted=key.keyid))
    if revoked is not None:
        problems += revoked.problems(mark.release)
    audit = None if attested is None else attested.found.configured(Audit)
    signer = None if key is None or problems else key.keyid
    verdict = "attested" if signer is None else "signed"
    if attested is None:
        verdict = "marked"
    return Provenance.model_validate(
        {
            "verdict": "fail" if problems else verdict,
            "sha256": digest,
            "mark": mark,
            "attestation": None if place is None else str(place),
            "problems": problems,
            "guarantee": "" if audit is None else audit.annotations.guarantee,
            "signer": signer,
        }
    )


def _marked(path: Path) -> tuple[str, Mark, str | None]:
    """Return a file's digest and mark, and the digest of the side-car where that has the mark.

    Raises:
        InputError: it has no mark, or cannot be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(str(path), "this is no plain file.", _REMEDY)
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
        found, beside = digest.hexdigest(), path.with_name(f"{path.name}{SIDE_CAR}")
        return found, *_read_mark(path, path.name, found, beside if beside.is_file() else None)
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", _REMEDY) from None
    except InputError:
        raise
    except ValidationError:
        problem = "it has no mark that this dpaudit reads."
        raise InputError(str(path), problem, _REMEDY) from None
    except ValueError as error:
        raise InputError(str(path), f"{error}.", _REMEDY) from None


def _read_mark(path: Path, name: str, digest: str, beside: Path | None) -> tuple[Mark, str | None]:
    """Read the mark of a file of this name and digest, and digest the side-car that has it, if any.

    Raises:
        ValueError: there is none.
    """
    with path.open("rb") as file:
        start = file.read(len(_MAGIC))
        if start == _MAGIC:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - len(_MAGIC) - 4))
            length = int.from_bytes(file.read(4), "little")
            if file.read() != _MAGIC or not length <= min(size - 12, _MOST_FOOTER):
                raise ValueError("its Parquet footer is cut short or too large")
            file.seek(size - 8 - length)
            return _parsed(_pairs(file.read(length)).get(KEY)), None
        if start == b"---\n":
            front, found, _ = file.read(_MOST_MARK).partition(b"\n---\n")
            if not found:
                raise ValueError("its front matter does not end")
            values = strict_yaml.parse(front, path, "a card", _REMEDY)
            return Mark.model_validate(values.get(KEY) if isinstance(values, dict) else None), None
    if beside is None:
        raise ValueError(f"it has no mark, and no file {name}{SIDE_CAR} is beside it")
    with beside.open("rb") as file:
        content = file.read(_MOST_MARK + 1)
    if len(content) > _MOST_MARK:
        raise ValueError(f"{name}{SIDE_CAR} is too large for a mark")
    strict_json.load(content, _MOST_VALUES)
    car = SideCar.model_validate_json(content)
    if (car.file, car.sha256) != (name, digest):
        raise ValueError(f"{name}{SIDE_CAR} is of another file")
    return car.mark, hashlib.sha256(content).hexdigest()


def _parsed(text: bytes | None) -> Mark:
    if text is None:
        raise ValueError(f'its footer has no entry "{KEY}"')
    if len(text) > _MOST_MARK:
        raise ValueError("its mark is too large")
    strict_json.load(text, _MOST_VALUES)
    return Mark.model_validate_json(text)


def _attestation_of(path: Path, given: Path | None) -> Path | None:
    if given is not None:
        return given / ATTESTATION if given.is_dir() else given
    near = (folder / ATTESTATION for folder in (path.parent, path.parent.parent))
    return next((place for place in near if place.is_file()), None)


def _attestation_in(place: Path) -> Attestation:
    remedy = f"Give the {ATTESTATION} of the release, or its folder."
    try:
        with place.open("rb") as file:
            return Attestation.of(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise InputError(str(place), f"cannot be read ({error.strerror}).", remedy) from None
    except ValueError as error:
        raise InputError(str(place), f"this is no attestation: {error}.", remedy) from None


def _problem(code: str, **values: Any) -> Message:
    return message(Finding(code=f"released.{code}", values=values))


def _pairs(footer: bytes) -> dict[str, bytes]:
    """Return the pairs of keys and values of a Parquet footer. Raises ValueError where it is none.

    Receivers verify a release without pyarrow.
    """
    found: dict[str, bytes] = {}
    try:
        for pair in _Footer(footer).struct(0).get(_PAIRS, ()):
            name = pair[_NAME].decode()
            if name in found:
                raise ValueError(f'its footer has "{name[:60]}" twice')
            found[name] = pair.get(_VALUE, b"")
    except (IndexError, KeyError, TypeError, AttributeError):
        raise ValueError("its Parquet footer cannot be read") from None
    return found


class _Footer:
    """A reader of Thrift's compact protocol, as far as Parquet's footers use it."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    def struct(self, deep: int) -> dict[int, Any]:
        """Return a struct's fields by their ids."""
        fields: dict[int, Any] = {}
        last = 0
        while header := self._byte():
            step, kind = header >> 4, header & 0xF
            last = last + step if step else self._zigzag()
            if last in fields:
                raise ValueError("its Parquet footer has a field twice")
            fields[last] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, deep)
        return fields

    def _value(self, kind: int, deep: int) -> Any:
        if deep > _MOST_DEEP:
            raise ValueError("its Parquet footer is too deep")
        if kind in (_TRUE, _FALSE, _BYTE):  # of a list: a byte each
            return self._byte()
        if kind in _INTEGERS:
            return self._zigzag()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _TEXT:
            return self._bytes(self._varint())
        if kind in _LISTS:
            header = self._byte()
            count = header >> 4 if header >> 4 < 15 else self._varint()
            if count > len(self._data):  # each value takes a byte at least
                raise ValueError("its Parquet footer is cut short")
            return [
                self.struct(deep + 1)
                if header & 0xF == _STRUCT
                else self._value(header & 0xF, deep + 1)
                for _ in range(count)
            ]
        if kind == _STRUCT:
            return self.struct(deep + 1)
        raise ValueError("its Parquet footer cannot be read")

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._place:
            raise ValueError("its Parquet footer is cut short")
        self._place += count
        return self._data[self._place - count : self._place]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            if (shift := shift + 7) > 63:
                raise ValueError("its Parquet footer cannot be read")

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
