"""evaluation.json and worth.json: written whole, for their owner alone; read from anywhere."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from dpaudit.mechanisms import Fields
from dpaudit.runs import InputError, RunReader, strict_json
from dpaudit.runs.layout import SAMPLES

if TYPE_CHECKING:
    from dpaudit.results.quality import Quality
    from dpaudit.results.worth import Worth

#: In the run's report folder, which is no part of the record: no digest covers it, and no check
#: looks at it.
EVALUATION, WORTH = "evaluation.json", "worth.json"
MAX_BYTES, MAX_VALUES = 1 << 24, 1 << 18
_AGAIN = "Delete it, and run `dpaudit evaluate` again."
_REMEDY = {
    EVALUATION: _AGAIN,
    WORTH: "Restore it from a copy: it says what the figures of this run have cost.",
}
_ELSEWHERE = "Make the folder writable, or evaluate a copy of the run directory."


def read_quality(folder: Path, samples: Callable[[], str]) -> Quality | None:
    """Read the evaluation in a report folder; None without one.

    Args:
        folder: a run's report folder.
        samples: gives the SHA-256 of the run's samples.jsonl as it is now. Not called where there
            is no evaluation.

    Raises:
        InputError: there is one that cannot be read, or it is of other texts than the run's.
    """
    path = folder / EVALUATION
    if (content := _content(path)) is None:
        return None
    from dpaudit.results.quality import Quality  # few runs were evaluated

    quality = _read(path, content, Quality)
    if not quality.has_digests:
        raise InputError(str(path), "this evaluation lacks the digests of its texts.", _AGAIN)
    _require_texts(path, quality.samples, samples)
    return quality


def read_worth(folder: Path, run: Callable[[], RunReader]) -> Worth | None:
    """Read what the records added, in a report folder.

    Args:
        folder: where `dpaudit report` of the run writes.
        run: reads the run; called only if there is such a file.

    Raises:
        InputError: there is one that cannot be read, or it is of other texts or settings than the
            run's.
    """
    path = folder / WORTH
    if (content := _content(path)) is None:
        return None
    from dpaudit.results.worth import Worth

    worth, reader = _read(path, content, Worth), run()
    _require_texts(path, worth.samples, lambda: reader.digest(SAMPLES))
    if worth.paid is not None and not worth.paid.fits(reader.manifest):
        problem = "its paid figure is none that a run of these settings has."
        raise InputError(str(path), problem, _REMEDY[WORTH])
    return worth


def _require_texts(path: Path, measured: str, samples: Callable[[], str]) -> None:
    if measured != samples():
        problem = "other texts were evaluated than samples.jsonl now holds."
        raise InputError(str(path), problem, _REMEDY[path.name])


_Measured = TypeVar("_Measured", bound=Fields)


def _read(path: Path, content: bytes, kind: type[_Measured]) -> _Measured:
    """Read a file of measures by its content. Raises InputError where it cannot be read."""
    try:
        return _parsed(content, kind)
    except ValueError as error:  # pydantic's, too
        # Neither the value nor a name from the file is repeated: it may hold anything.
        count = error.error_count() if isinstance(error, ValidationError) else 1
        wrong = (
            f"this is no evaluation that this dpaudit wrote ({count} "
            f"thing{'s' * (count > 1)} wrong in it)."
        )
        raise InputError(str(path), wrong, _REMEDY[path.name]) from None


def _parsed(content: bytes, kind: type[_Measured]) -> _Measured:
    """Parse measures. Raises ValueError, before errors about many values fill memory."""
    strict_json.load(content, MAX_VALUES)
    return kind.model_validate_json(content)


def write_measures(measured: Quality | Worth, folder: Path) -> Path:
    """Write an evaluation, or what the records added, into a report folder.

    One that is there is replaced.

    Raises:
        InputError: it cannot be written, or what is in its place is no plain file.
        ValueError: it could not be read back, which is a defect of whoever made it.
    """
    from dpaudit.results.quality import Quality

    path = folder / (EVALUATION if isinstance(measured, Quality) else WORTH)
    content = measured.to_json().encode()
    if len(content) > MAX_BYTES or _parsed(content, type(measured)) != measured:
        raise ValueError("this evaluation could not be read back")
    write_private(path, content)
    return path


def require_place(path: Path, remedy: str = _ELSEWHERE) -> None:
    """Raise as `write_private` before measuring, if it will not be able to write."""
    with private_place(path, remedy), tempfile.TemporaryFile(dir=path.parent):
        pass


def write_private(path: Path, content: bytes, remedy: str = _ELSEWHERE) -> None:
    """Write a file that only its owner may read, whole or not at all.

    Folders are made where they lack, as private.

    Args:
        path: of the file; a plain one that is there is replaced.
        content: all of it.
        remedy: what a reader can do where it cannot be written.

    Raises:
        InputError: it cannot be written, or what is in its place is no plain file.
    """
    with private_place(path, remedy):
        replace_file(path, content)


def replace_file(path: Path, content: bytes) -> None:
    """Put a file that only its owner may read in the place of what is there: whole, or not at all.

    Raises:
        OSError: it cannot be written. What was there is then still whole.
    """
    # mode 0600, which a rename keeps
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(partial)


@contextmanager
def private_place(path: Path, remedy: str) -> Iterator[None]:
    """Make the private folders of a file that the block writes; raise as `write_private`."""
    try:
        _make_private(path.parent)
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise InputError(
                str(path), "what is there is no plain file, and is not replaced.", "Remove it."
            )
        yield
    except OSError as error:
        raise InputError(str(path), f"cannot be written ({error.strerror}).", remedy) from None


def _make_private(folder: Path) -> None:
    """Make a folder with its parents, of which Python would leave the modes to the umask."""
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _content(path: Path) -> bytes | None:
    """Read a plain file; None without one.

    No link is followed, and a size is asked for before anything is read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            os.close(handle)
            raise InputError(str(path), "this is no plain file of an evaluation's size.", _AGAIN)
        with os.fdopen(handle, "rb") as file:
            return file.read(MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", _AGAIN) from None
