"""Plug-ins that are installed for as long as a block runs, in this process."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from dpaudit import plugins
from dpaudit.auditing.checks import registry
from dpaudit.results.catalogue import entries

#: A package with an aggregator and a check, which is not part of dpaudit.
PACKAGE = Path(__file__).parent / "plugin_package"


def metadata_of(package: Path) -> tuple[str, Mapping[str, Mapping[str, str]]]:
    """The name of a package, and its entry points by their group."""
    project: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return project["name"], project["entry-points"]


@contextmanager
def plugged_in(site: Path, package: Path) -> Iterator[None]:
    """Lay a package out as an installer does, from its folder, to be found while a block runs."""
    name, groups = metadata_of(package)
    code = package / name.replace("-", "_")
    shutil.copytree(code, site / code.name, ignore=shutil.ignore_patterns("__pycache__"))
    with installed(site, name, groups):
        yield


@contextmanager
def installed(site: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Let a folder's modules be a package with these entry points while a block runs."""
    told = site / f"{name.replace('-', '_')}-0.1.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    sections = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in held.items())
        for group, held in groups.items()
    ]
    (told / "entry_points.txt").write_text("\n".join(sections))
    registry.registered()  # dpaudit's own are declared once, when they are imported
    before = set(sys.modules)
    try:
        with (
            mock.patch.object(
                plugins, "_places", lambda places=plugins._places: [*places(), str(site)]
            ),
            mock.patch.object(plugins, "_LOADED", list(plugins._LOADED)),
            mock.patch.object(registry, "_DECLARED", dict(registry._DECLARED)),
            mock.patch.object(sys, "path", [*sys.path, str(site)]),
        ):
            forget()
            yield
    finally:
        for module in [
            name for name in set(sys.modules) - before if is_of(site, sys.modules[name])
        ]:
            del sys.modules[module]
        forget()


def is_of(site: Path, module: Any) -> bool:
    return Path(str(getattr(module, "__file__", None))).is_relative_to(site)


def forget() -> None:
    """Look for plug-ins anew."""
    catalogue = entries._catalogue_with  # knows plug-ins by their names, which other tests' have
    for each in (
        plugins._installed,
        plugins.plug_ins,
        plugins._load,
        registry.registered,
        catalogue,
    ):
        each.cache_clear()
