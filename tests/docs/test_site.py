"""The documentation's site builds without a warning, has all the code, and needs no network."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel

import dpaudit.accounting
import dpaudit.auditing
import dpaudit.mechanisms
import dpaudit.recording
import dpaudit.runs
from dpaudit.auditing.checks import registered
from dpaudit.commands.cli import PROGRAM, cli
from dpaudit.generation.config import Config
from dpaudit.generation.experiments.cluster_results import ClusterComparison
from dpaudit.generation.experiments.likelihood_results import Likelihoods
from dpaudit.mechanisms import Mechanism
from dpaudit.results import AuditResult
from dpaudit.results.attestation import TestResultStatement
from dpaudit.results.comparison import Comparison
from dpaudit.results.composition import JointCost
from dpaudit.results.contamination import Contamination
from dpaudit.results.disclosed_texts import DisclosedTexts
from dpaudit.results.policy import Policy
from dpaudit.results.publication import About
from dpaudit.results.quality import Quality
from dpaudit.runs import Manifest

ROOT = Path(__file__).parents[2]
#: A server shows it for any address, so its links start at the site's root.
NOT_FOUND = "404.html"
#: Elements that a browser loads without being asked. Links that a reader clicks may lead out of the
#: site.
LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "object": "data",
}
FIELDS: dict[str, type[BaseModel]] = {
    "config": Config,
    "manifest": Manifest,
    "mechanism": Mechanism,
    "report": AuditResult,
    "comparison": Comparison,
    "composition": JointCost,
    "contamination": Contamination,
    "disclosed-texts": DisclosedTexts,
    "clusters": ClusterComparison,
    "likelihood": Likelihoods,
    "evaluation": Quality,
    "policy": Policy,
    "about": About,
    "attestation": TestResultStatement,
}


#: `mkdocs build --strict`, but for the line breaks of long signatures: a process of ruff for each.
BUILD = """
import logging
import sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
logging.basicConfig()
config = load_config("mkdocs.yml", strict=True, site_dir=sys.argv[1])
config.plugins["mkdocstrings"].config.handlers["python"]["options"]["line_length"] = 1 << 20
config.plugins.on_startup(command="build", dirty=False)
build(config)
"""
API = (dpaudit.accounting, dpaudit.auditing, dpaudit.mechanisms, dpaudit.recording, dpaudit.runs)


@dataclass
class Html(HTMLParser):
    """What a page can be linked by, what it links to, and what it loads."""

    ids: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loads: set[str] = field(default_factory=set)
    text: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if tag in LOADED and LOADED[tag] in given:
            self.loads.add(given[LOADED[tag]])

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def build(folder: Path) -> dict[str, Html]:
    """Every page of the site, by its path."""
    command = [sys.executable, "-c", BUILD, str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        page = pages[path.relative_to(folder).as_posix()] = Html()
        page.feed(path.read_text(encoding="utf-8"))
    return pages


def models_of(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and those in its fields, each once."""
    seen, waiting = set(), [model]
    while waiting:
        annotation = waiting.pop()
        waiting += getattr(annotation, "__args__", ())
        if (
            isinstance(annotation, type)
            and issubclass(annotation, BaseModel)
            and annotation not in seen
        ):
            seen.add(annotation)
            yield annotation
            waiting += [field.annotation for field in annotation.model_fields.values()]


def public_names(module: ModuleType) -> set[str]:
    """Functions and classes of a module's own, or a package's exports; no aliases of types.

    Aliases have no docstring.
    """
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    things = {name: getattr(module, name) for name in names}
    own = {
        name: thing
        for name, thing in things.items()
        if inspect.isclass(thing) or inspect.isfunction(thing)
    }
    return {name for name, thing in own.items() if thing.__module__.startswith(module.__name__)}


def assert_links_lead_somewhere(folder: Path, pages: dict[str, Html]) -> None:
    for name, page in pages.items():
        for link in page.links | page.loads:
            address = urlsplit(link)
            if address.scheme or name == NOT_FOUND:
                continue
            target = (
                os.path.normpath(os.path.join(os.path.dirname(name), unquote(address.path)))
                if address.path
                else name
            )
            assert (folder / target).is_file(), f"{name} links to {link}"
            if address.fragment and target in pages:
                assert unquote(address.fragment) in pages[target].ids | {"__skip"}, (
                    f"{name} links to {link}"
                )


def assert_nothing_is_remote(folder: Path, pages: dict[str, Html]) -> None:
    for name, page in pages.items():
        assert not {load for load in page.loads if re.match(r"(?:https?:)?//", load)}, name
    for style in folder.rglob("*.css"):
        assert not re.search(
            r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")
        ), style


def test_site_is_whole_and_stands_alone(tmp_path: Path) -> None:
    pages = build(tmp_path)
    assert_links_lead_somewhere(tmp_path, pages)
    assert_nothing_is_remote(tmp_path, pages)

    assert set(registered()) <= pages["reference/checks.html"].ids
    commands = pages["reference/commands.html"]
    assert {f"{PROGRAM}-{name}" for name in cli.commands} <= commands.ids
    options = {
        name
        for command in cli.commands.values()
        for option in command.params
        for name in option.opts
    }
    shown = " ".join(commands.text)
    assert not {
        name for name in options if name.startswith("--") and not re.search(rf"{name}\b", shown)
    }
    assert "Sentinel" not in shown
    anchors = set().union(*(pages[f"reference/{name}.html"].ids for name in FIELDS))
    for model in FIELDS.values():
        for part in models_of(model):
            fields = {
                f"{part.__module__}.{part.__qualname__}({name})" for name in part.model_fields
            }
            assert fields <= anchors, part
    for module in API:
        page = pages[f"reference/{module.__name__.removeprefix('dpaudit.')}.html"]
        assert {f"{module.__name__}.{name}" for name in public_names(module)} <= page.ids
