"""Models as files: where a name leads, what identifies them, and what is said when they cannot be loaded."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable, Iterator
from logging import CRITICAL, getLogger
from pathlib import Path
from typing import Any

import transformers
from transformers.utils.hub import cached_file

from dpaudit.generation.sources import PACKAGE, locate
from dpaudit.runs import InputError

#: The files in a model's folder that decide what it computes.
IDENTITY = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")


def origin_of(name: str, field: str) -> Path | str:
    """A folder, or else a name on the Hugging Face hub.

    Args:
        name: a Hugging Face name, a folder, or package:NAME/FOLDER.
        field: the config's field that holds the name.

    Raises:
        InputError: the name is a path, and nothing is there.
    """
    if name.startswith((PACKAGE, "/", "./", "../", "~")):
        return locate(name, field)
    return Path(name) if Path(name).is_dir() else name


def identity_files(origin: Path | str, field: str) -> list[Path]:
    """The files that decide what a model computes. A hub's model must have been loaded before: they are here then."""
    if isinstance(origin, str):
        config = cached_file(origin, "config.json")
        if config is None:
            raise InputError(field, f"{origin!r} has no config.json.", "Name a model in Hugging Face's format.")
        origin = Path(config).parent
    return [file for pattern in IDENTITY for file in origin.glob(pattern)]


def digest_of(files: Iterable[Path]) -> str:
    """SHA-256 over sorted (file name, SHA-256 of its content)."""
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{content}  {path.name}\n".encode())
    return total.hexdigest()


@contextlib.contextmanager
def loading(name: str, field: str, kind: str) -> Iterator[None]:
    """Load a model without noise, and say in a config author's words why it cannot be loaded.

    Args:
        name: the model, as the config has it.
        field: the config's field that holds the name.
        kind: what it is loaded as, with its article.

    Raises:
        InputError: whatever went wrong inside.
    """
    try:
        with _quiet():
            yield
    except InputError:
        raise
    except PermissionError as error:
        problem = f"{str(error.filename)!r} of the model {name!r} may not be read."
        raise InputError(field, problem, "Give this user leave to read it, or name a copy.") from None
    except OSError:
        problem = f"the model {name!r} was not found, here or on the Hugging Face hub."
        remedy = "Check the name and the network; without a network, name a folder or an installed package."
        raise InputError(field, problem, remedy) from None
    except Exception as error:  # a broken file makes the libraries raise many kinds
        reason = str(error).strip().split("\n")[0][:200]
        problem = f"{name!r} cannot be loaded as {kind} without running its own code ({reason})."
        raise InputError(field, problem, "Name a model that transformers supports.") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and warnings; errors are raised all the same."""
    logging: Any = transformers.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub = getLogger("huggingface_hub")  # it tells of every retry
    hub_level = hub.level
    hub.setLevel(CRITICAL)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # Reading a GGUF file draws a bar that no setting turns off.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(verbosity)
        hub.setLevel(hub_level)
        if bars:
            logging.enable_progress_bar()
