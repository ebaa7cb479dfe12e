"""evaluation.json: written whole, for its owner alone; read as a file that may come from anywhere."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from dpaudit.quality import Quality
from dpaudit.runs import InputError

#: In the run's report folder, which is no part of the record: no digest covers it, and no check looks at it.
EVALUATION = "evaluation.json"
MAX_BYTES = 1 << 24
_AGAIN = "Delete it, and run `dpaudit evaluate` again."


def read_quality(folder: Path, samples: str | None) -> Quality | None:
    """The evaluation in a report folder; None where there is none.

    Args:
        folder: a run's report folder.
        samples: SHA-256 of the run's samples.jsonl; None where it is not known, and nothing is taken for the run's.

    Raises:
        InputError: there is one that cannot be read, or it is of other texts than the run's.
    """
    path = folder / EVALUATION
    content = _content(path)
    if content is None:
        return None
    try:
        quality = Quality.model_validate_json(content)
    except (ValidationError, RecursionError) as error:
        # Neither the value nor a name from the file is repeated: it may hold anything.
        count = error.error_count() if isinstance(error, ValidationError) else 1
        wrong = f"this is no evaluation that this dpaudit wrote ({count} thing{'s' * (count > 1)} wrong in it)."
        raise InputError(str(path), wrong, _AGAIN) from None
    if quality.samples != samples:
        raise InputError(str(path), "this evaluation is of other texts than this run's samples.jsonl.", _AGAIN)
    return quality


def write_quality(quality: Quality, folder: Path) -> Path:
    """Write the evaluation into a report folder; one that is there is replaced.

    Raises:
        InputError: it cannot be written, or what is in its place is no plain file.
    """
    path = folder / EVALUATION
    write_private(path, quality.to_json().encode())
    return path


def require_place(folder: Path) -> None:
    """Find out before anything is measured whether an evaluation can be written into a report folder.

    Raises:
        InputError: it cannot, or what is in its place is no plain file.
    """
    with _writing(folder / EVALUATION) as path, tempfile.TemporaryFile(dir=path.parent):
        pass


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read: whole, or not at all. Folders are made where they lack, as private.

    Raises:
        InputError: it cannot be written, or what is in its place is no plain file.
    """
    with _writing(path):
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
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
def _writing(path: Path) -> Iterator[Path]:
    """A place in a folder that is there, where nothing is or a plain file; errors name it."""
    try:
        _make_private(path.parent)
        if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
            raise InputError(str(path), "what is there is no plain file, and is not replaced.", "Remove it.")
        yield path
    except OSError as error:
        remedy = "Make the folder writable, or evaluate a copy of the run directory."
        raise InputError(str(path), f"cannot be written ({error.strerror}).", remedy) from None


def _make_private(folder: Path) -> None:
    """`mkdir` with parents, of which Python would leave the modes to the umask."""
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _content(path: Path) -> bytes | None:
    """What a plain file holds: no link is followed, and a size is asked for before anything is read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", _AGAIN) from None
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
        os.close(handle)
        raise InputError(str(path), "this is no plain file of an evaluation's size.", _AGAIN)
    with os.fdopen(handle, "rb") as file, suppress(OSError):
        return file.read(MAX_BYTES)
    raise InputError(str(path), "cannot be read.", _AGAIN)
