"""Where the repository's files are in the site, so that one link works on GitHub, in an editor and in the site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
#: Documents at the repository's root that are pages of the site.
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
#: Always in the site, whether something links to them or not.
EXAMPLES = "examples"

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=[)\s])")
_LANGUAGES = {".cff": "yaml", ".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}


def site_path(path: str) -> str:
    """The page or file of the site that shows a file or folder of the repository; both paths are relative."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def linked(origin: str, markdown: str) -> Iterator[str]:
    """The repository's files and folders that a document links to; `origin` is its own path in the repository."""
    for match in _LINK.finditer(markdown):
        target = _target(origin, match["target"])
        if target is not None:
            yield target


def with_site_links(origin: str, page: str, markdown: str) -> str:
    """A document as it stands in the site.

    Args:
        origin: the document's path in the repository.
        page: its path in the site.
        markdown: its text. Links that lead nowhere are left alone: mkdocs reports them.
    """

    def moved(match: re.Match[str]) -> str:
        target = _target(origin, match["target"])
        if target is None:
            return match[0]
        return os.path.relpath(site_path(target), os.path.dirname(page)) + (match["anchor"] or "")

    return _LINK.sub(moved, markdown)


def source_page(path: str) -> str:
    """The page, in Markdown, that shows a file or lists a folder of the repository."""
    place = ROOT / path
    if place.is_dir():
        return f"# {path}\n\n{_listing(path)}"
    language = _LANGUAGES.get(place.suffix, "text")
    return f"# {path}\n\n````{language}\n{place.read_text(encoding='utf-8').rstrip()}\n````\n"


def examples() -> list[str]:
    """The examples that are shown as pages, with the folder that lists them."""
    files = (path for pattern in ("*.py", "*.yaml") for path in (ROOT / EXAMPLES).rglob(pattern))
    return [EXAMPLES, *sorted(path.relative_to(ROOT).as_posix() for path in files)]


def _listing(path: str) -> str:
    shown = set(examples())
    lines = []
    for place in sorted((ROOT / path).rglob("*")):
        name = place.relative_to(ROOT).as_posix()
        if name in shown:
            link = os.path.relpath(site_path(name), os.path.dirname(site_path(path)))
            lines.append(f"- [{PurePosixPath(name).relative_to(path)}]({link})\n")
    return "".join(lines) or "".join(f"- {place.name}\n" for place in sorted((ROOT / path).iterdir()))


def _target(origin: str, link: str) -> str | None:
    path = os.path.normpath(os.path.join(os.path.dirname(origin), link))
    return path if not path.startswith("..") and (ROOT / path).exists() else None
