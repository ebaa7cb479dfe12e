"""The places of run directories: a folder, or a URL of any file system that fsspec knows.

Both kinds keep the same promises. A file is under its name whole or not at all, a batch that is
under its name is never replaced, and one process at a time has the run's lock. What is read is a
plain file of a size that was asked for first. A folder is private to its owner; a bucket is
protected by its own settings.

A file system beyond fsspec that is no object store (sftp, hdfs, ...) gets a whole file by upload
and rename, and there two writers of one batch in the same instant can both succeed: the second
replaces the first.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import secrets
import shutil
import socket
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import urlsplit

from dpaudit.errors import InputError
from dpaudit.runs import layout

Location: TypeAlias = Path | str

_NAME_RUN = "Name the directory that holds run.json."
RESTORE = "Restore the run directory from a copy, or generate the run again."
#: File systems in which a finished upload appears whole under its name, and fsspec's
#: `mode="create"` replaces nothing.
OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
#: The most of a remote file that is in memory.
BLOCK_BYTES = 1 << 24
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Errors of flock on folders that it cannot lock: NFS and Lustre, by how they are mounted.
_NO_FLOCK = frozenset({errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
#: Errors of link on file systems that have no hard links.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})


class Entry(NamedTuple):
    """A name in a folder, and whether it is a folder itself (a link to one is not)."""

    name: str
    folder: bool


class Storage(ABC):
    """The place of one run directory. Names are relative to it, with "/" between folder and file.

    A method that fails raises InputError with the file's name and a remedy, unless it says
    otherwise.

    Attributes:
        location: opens the same place from any process that can reach it.
    """

    location: str

    @abstractmethod
    def where(self, name: str = "") -> str:
        """Return a file's name for messages, without any password that the address has."""

    def require_run(self) -> None:
        """Refuse a place that has no run.json."""
        if self.exists(layout.MANIFEST):
            return
        if self.exists(layout.PUBLIC):
            problem = (
                "these texts are public-only: no private record went into them, so there "
                "is nothing to audit."
            )
            remedy = "Use them with `dpaudit evaluate RUN --reference DATA --baseline FOLDER`."
            raise InputError(self.where(), problem, remedy)
        raise InputError(
            self.where(), "this is not a run directory: run.json is missing.", _NAME_RUN
        )

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return whether anything is under the name, even a broken link."""

    @abstractmethod
    def entries(self, folder: str = "") -> list[Entry]:
        """List a folder; steps/ must not be a link."""

    @contextmanager
    def open(self, name: str) -> Iterator[io.BufferedReader]:
        """Open a file of the format, as `local` does, and close it."""
        if layout.most_bytes(name) is None:
            problem = "this file does not belong in a run directory."
            raise InputError(self.where(name), problem, "Remove it from the run directory.")
        with self.local(name) as file, _naming_refusal(self.where(name)):
            yield file

    @abstractmethod
    def local(self, name: str) -> io.BufferedReader:
        """Open a plain file on this machine, which the caller closes: no link, folder or device.

        It has no more bytes than `layout.most_bytes` says.
        """

    @abstractmethod
    def lock(self) -> Callable[[], None]:
        """Make sure that the place exists, and become its one writer.

        Return what gives the lock back.
        """

    @abstractmethod
    def claim(self) -> None:
        """Make the folders of a run in an unused place."""

    @abstractmethod
    def building(self, name: str) -> AbstractContextManager[Path]:
        """Provide a fresh private file on this machine to build `name` in.

        What is left of it in the end is deleted.
        """

    @abstractmethod
    def publish(self, built: Path, name: str, *, replace: bool) -> None:
        """Give a built file its name, once all of it is stored.

        Raises:
            FileExistsError: not `replace`, and the name is taken.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a file that may be gone already."""

    def write_text(self, name: str, parts: Iterable[str]) -> None:
        """Write a text file that appears under its name only once all of it is stored.

        It replaces what is there.
        """
        with self.building(name) as built:
            with writing(self.where(name)), open(built, "w", encoding="utf-8") as file:
                file.writelines(parts)
            self.publish(built, name, replace=True)

    @abstractmethod
    def append(self, name: str, lines: str) -> None:
        """Add lines to a text file, all of them or none, and wait until they are stored.

        There is one writer at a time.
        """

    def _require_size(self, name: str, size: int) -> None:
        most = layout.most_bytes(name)
        if most is not None and size > most:
            raise InputError(self.where(name), f"the file is larger than {most} bytes.", RESTORE)

    def _create_lock(self, create: Callable[[bytes], None]) -> Callable[[], None]:
        """Create the lock file, which names its owner; return what deletes it."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        # Enough to find the process, and nothing of the run.
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": since,
            "token": secrets.token_hex(8),
        }
        note = json.dumps(holder).encode()
        try:
            create(note)
        except FileExistsError:
            raise self._locked_error() from None

        def release() -> None:
            with suppress(InputError):
                if self._lock_note() == note:  # else someone took us for dead, and holds it now
                    self.remove(layout.LOCK)

        return release

    def _lock_note(self) -> bytes:
        """Return the content of the lock file; empty if it is gone or too large to be one."""
        try:
            with self.open(layout.LOCK) as file:
                return file.read()
        except InputError:
            return b""

    def _locked_error(self) -> InputError:
        try:
            fields = json.loads(self._lock_note())
            holder = f"process {fields['pid']} on {fields['host']} since {fields['since']}"[:200]
        except (ValueError, KeyError, TypeError):
            holder = "another process"
        remedy = "Wait until it ends. If that process is dead, delete this file."
        return InputError(self.where(layout.LOCK), f"{holder} is writing here.", remedy)


def is_url(location: Location) -> bool:
    """Return whether this names a place beyond the file system, or one written as a URL."""
    return isinstance(location, str) and "://" in location


def open_storage(location: Location) -> Storage:
    """Return the storage of a path or a URL.

    Raises:
        InputError: nothing here can open such a URL.
    """
    if not is_url(location):
        return _Folder(Path(location))
    scheme, _, path = str(location).partition("://")
    if scheme in ("file", "local"):
        return _Folder(Path(path))
    return _Remote(str(location))


@contextmanager
def writing(where: str) -> Iterator[None]:
    """Turn an error in writing into one that names the file.

    Raises:
        InputError: the disk is full, the quota is used up, or the system refuses to write.
        FileExistsError: as it was met.
    """
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        mend = "Make room" if error.errno in _FULL else "Make it writable"
        remedy = f"{mend} and give the same command again: finished files are kept."
        raise InputError(where, f"cannot be written ({_reason(error)}).", remedy) from None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {str(error)[:200]}"


class _Folder(Storage):
    """A folder of this machine, or one that it shares with others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.location = os.path.abspath(path)

    def where(self, name: str = "") -> str:
        return str(self._path / name)

    def require_run(self) -> None:
        try:
            self._path.stat()
        except (OSError, ValueError) as error:
            reason = ""
            if not isinstance(error, FileNotFoundError):
                reason = f" ({getattr(error, 'strerror', None) or error})"
            raise InputError(
                self.where(), f"there is no such directory{reason}.", "Check the path."
            ) from None
        if not self._path.is_dir():
            raise InputError(self.where(), "this is a file, not a run directory.", _NAME_RUN)
        super().require_run()

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._path / name)

    def entries(self, folder: str = "") -> list[Entry]:
        path = self._path / folder
        if folder and (path.is_symlink() or not path.is_dir()):
            raise InputError(str(path), "the folder is missing or is a link.", RESTORE)
        with _naming_refusal(str(path)), os.scandir(path) as entries:
            return [Entry(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    def local(self, name: str) -> io.BufferedReader:
        """Open a file before it is looked at, so that nobody can replace it in between."""
        where, (folder, _, last) = self.where(name), name.rpartition("/")
        with _naming_missing(where), ExitStack() as opened:
            parent = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, parent)
            if folder:
                parent = os.open(
                    folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent
                )
                opened.callback(os.close, parent)
            # A pipe that nobody writes to would keep us waiting.
            handle = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
            opened.callback(os.close, handle)
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise InputError(where, "this is not a plain file.", RESTORE)
            self._require_size(name, found.st_size)
            return open(os.dup(handle), "rb")

    def lock(self) -> Callable[[], None]:
        """Lock the folder itself, so that no file is left in the record; or else by a file."""
        self._make_folder("")
        with writing(self.where()):
            handle = os.open(self._path, os.O_RDONLY)
        with ExitStack() as opened:
            opened.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_FLOCK:
                    return self._create_lock(self._write_lock)
                problem = "another process is writing here."
                raise InputError(
                    self.where(), problem, "Wait until it ends, or name another directory."
                ) from None
            if self.exists(layout.LOCK):
                raise self._locked_error()
            return opened.pop_all().close

    def claim(self) -> None:
        """Make the folder private, and an empty steps/ in it."""
        with writing(self.where()):
            self._path.chmod(0o700)
            shutil.rmtree(self._path / layout.STEPS, ignore_errors=True)
        self._make_folder(layout.STEPS)

    @contextmanager
    def building(self, name: str) -> Iterator[Path]:
        """Provide a file beside the final one, so that a rename is all that is left to do."""
        built = self._path / layout.partial_name(name)
        with writing(str(built)):
            _create_private(built)
        try:
            yield built
        finally:
            with suppress(OSError):
                built.unlink(missing_ok=True)

    def publish(self, built: Path, name: str, *, replace: bool) -> None:
        """Rename the file, durably.

        Its bytes are on the disk before its name is, and its name when this returns.
        """
        path = self._path / name
        with writing(str(path)):
            _sync(built)
            if replace:
                os.replace(built, path)
            else:
                _rename_to_free(built, path)
            _sync(path.parent)

    def append(self, name: str, lines: str) -> None:
        """Append lines; a crash of the whole machine may leave a part of them."""
        path = self._path / name
        with writing(str(path)), ExitStack() as opened:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            opened.callback(os.close, handle)
            size, data = os.fstat(handle).st_size, lines.encode()
            try:
                if os.write(handle, data) < len(data):  # a disk that is full takes a part
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise

    def remove(self, name: str) -> None:
        with writing(self.where(name)):
            (self._path / name).unlink(missing_ok=True)

    def _make_folder(self, name: str) -> None:
        with _naming_refusal(
            self.where(name), "cannot be used as a directory", "Name another one."
        ):
            (self._path / name).mkdir(mode=0o700, parents=True, exist_ok=True)

    def _write_lock(self, note: bytes) -> None:
        path = self._path / layout.LOCK
        with writing(str(path)):
            _create_private(path)
            path.write_bytes(note)


class _Remote(Storage):
    """A URL that fsspec opens.

    A file is built or read on this machine, in a private temporary folder.
    """

    def __init__(self, url: str) -> None:
        """Open the file system.

        Raises:
            InputError: fsspec cannot open such a URL.
        """
        self.location = url
        scheme, _, rest = url.partition("://")
        try:
            parts = urlsplit(f"//{rest}")
        except ValueError:  # what stands in brackets is no address
            raise InputError(f"{scheme}://...", "this is no URL.", "Check the address.") from None
        # Without the user, the password and the query that may be in it.
        self._shown = f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        from fsspec.core import url_to_fs

        try:
            self._files, root = url_to_fs(url)
        except (
            Exception
        ) as error:  # a package that is missing, a scheme or an address that nobody knows
            remedy = (
                "Check the address, and install the fsspec package for it (s3fs for s3://, "
                "gcsfs for gs://)."
            )
            raise InputError(self._shown, f"cannot be opened ({_reason(error)}).", remedy) from None
        self._root = str(root).rstrip("/")
        protocols = self._files.protocol
        self._objects = not OBJECT_STORES.isdisjoint(
            [protocols] if isinstance(protocols, str) else protocols
        )

    def where(self, name: str = "") -> str:
        return f"{self._shown}/{name}" if name else self._shown

    def exists(self, name: str) -> bool:
        with self._asking(name):
            self._files.invalidate_cache()
            return bool(self._files.exists(self._path(name)))

    def entries(self, folder: str = "") -> list[Entry]:
        """List the names under a prefix; none, if the store knows no such prefix."""
        with self._asking(folder):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
            return [
                Entry(each["name"].rstrip("/").rpartition("/")[2], each["type"] == "directory")
                for each in found
            ]

    def local(self, name: str) -> io.BufferedReader:
        """Download exactly as many bytes as the store states, into a copy without a name."""
        left = size = self._size(name)
        self._require_size(name, size)
        with _private_folder() as folder:
            free = shutil.disk_usage(folder).free
            if size > free:
                problem = f"the file has {size} bytes, and only {free} are free in {folder.parent}."
                raise InputError(
                    self.where(name), problem, "Set TMPDIR to a folder with more room."
                )
            copy = folder / "file"
            with self._asking(name):
                source = self._files.open(self._path(name), "rb", block_size=BLOCK_BYTES)
            with source, writing(str(copy)), open(copy, "wb") as file:
                while left:
                    with self._asking(name):
                        data = source.read(min(left, BLOCK_BYTES))
                        if not data:
                            raise EOFError(f"its last {left} bytes did not arrive")
                    left -= file.write(data)
            return open(copy, "rb")

    def lock(self) -> Callable[[], None]:
        """Create a lock object."""
        with self._asking(layout.LOCK, "cannot be written"):
            if not self._objects:
                self._files.makedirs(self._root, exist_ok=True)
            return self._create_lock(
                partial(self._files.pipe_file, self._path(layout.LOCK), mode="create")
            )

    def claim(self) -> None:
        """Make steps/ where the store has folders."""
        if not self._objects:
            with self._asking(layout.STEPS, "cannot be written"):
                self._files.makedirs(self._path(layout.STEPS), exist_ok=True)

    @contextmanager
    def building(self, name: str) -> Iterator[Path]:
        with _private_folder() as folder:
            built = folder / name.rpartition("/")[2]
            _create_private(built)
            yield built

    def publish(self, built: Path, name: str, *, replace: bool) -> None:
        """Upload the file: in one put, or under another name first."""
        path = self._path(name)
        with self._asking(
            name, "cannot be written", through=InputError if replace else FileExistsError
        ):
            self._files.invalidate_cache()
            if not replace and self._files.exists(path):
                raise FileExistsError(errno.EEXIST, "the name is taken", path)
            if self._objects:
                self._files.put_file(str(built), path, mode="overwrite" if replace else "create")
                return
            beside = self._path(layout.partial_name(name))
            try:
                self._files.put_file(str(built), beside)
                self._files.mv(beside, path)
            except BaseException:
                with suppress(Exception):
                    self._files.rm_file(beside)
                raise

    def append(self, name: str, lines: str) -> None:
        """Append lines by reading the file and putting it again: stores take whole files."""
        with self.open(name) as file:
            there = file.read().decode()
        self.write_text(name, [there, lines])

    def remove(self, name: str) -> None:
        with self._asking(name, "cannot be deleted"), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _size(self, name: str) -> int:
        """Return the size of a plain file in bytes."""
        with self._asking(name):
            self._files.invalidate_cache()
            found = self._files.info(self._path(name))
        size = found.get("size")
        if found.get("type") != "file" or not isinstance(size, int):
            raise InputError(
                self.where(name), "this is not a plain file of a stated size.", RESTORE
            )
        return size

    @contextmanager
    def _asking(
        self, name: str, problem: str = "cannot be read", through: type[Exception] = InputError
    ) -> Iterator[None]:
        """Name the file that the store failed at; errors of the type `through` pass unchanged."""
        try:
            yield
        except through:
            raise
        except FileNotFoundError:
            raise InputError(self.where(name), "the file is missing.", RESTORE) from None
        except Exception as error:  # every file system has errors of its own
            remedy = (
                "Check the address, the network and your permissions, and give the same "
                "command again."
            )
            raise InputError(self.where(name), f"{problem} ({_reason(error)}).", remedy) from None


@contextmanager
def _naming_refusal(
    where: str, problem: str = "cannot be read", remedy: str = "Check its permissions."
) -> Iterator[None]:
    """Name the file when the system refuses."""
    try:
        yield
    except OSError as error:
        raise InputError(where, f"{problem} ({error.strerror}).", remedy) from None


@contextmanager
def _naming_missing(where: str) -> Iterator[None]:
    """Name the file that cannot be opened."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            problem = "this is not a plain file."
        elif error.errno == errno.ENOENT:
            problem = "the file is missing."
        else:
            problem = f"{error.strerror}."
        raise InputError(where, problem, RESTORE) from None


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Provide a temporary folder for its owner alone, in TMPDIR."""
    with writing(tempfile.gettempdir()):
        folder = tempfile.TemporaryDirectory(prefix="dpaudit-", ignore_cleanup_errors=True)
    with folder as path:
        yield Path(path)


def _create_private(path: Path) -> None:
    """Create a file that its owner alone may read.

    Raises:
        FileExistsError: there is one.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _rename_to_free(built: Path, path: Path) -> None:
    """Rename to a name that is free.

    Without hard links, two processes in the same instant can both succeed.
    """
    try:
        os.link(built, path, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(built, path)
        return
    built.unlink()


def _sync(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
