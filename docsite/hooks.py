"""Hooks of mkdocs: pages of files outside docs/ and of the catalogue of checks, and their links."""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docsite.checks import catalogue, with_links_to_checks
from dpaudit.results.schemas import SCHEMAS

ROOT = Path(__file__).resolve().parents[1]
#: Documents outside docs/ that are pages of the site.
ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "examples/paper/README.md": "tables.md",
    "examples/laptop/README.md": "laptop.md",
    "examples/likelihood/README.md": "likelihoods.md",
    "examples/other_programs/README.md": "programs.md",
}
EXAMPLES = ("examples", "generation/demos")
SHOWN_KINDS = (".csv", ".ipynb", ".py", ".yaml")
#: Shown as they stand, beside the examples. mkdocs reports a link to any other file.
SHOWN = (
    "LICENSE",
    "CITATION.cff",
    "action.yml",
    *(f"dpaudit/schemas/{name}.schema.json" for name in SCHEMAS),
)
#: Of pages that show the fields of a file: `::: fields MODULE`.
FIELDS = """\
    options:
      filters: ["!^[a-z_]", "!^[A-Z_]+$"]
      heading_level: 2
      members_order: source
      parameter_headings: true
      show_bases: false
"""
_FIELDS = re.compile(r"^::: fields (?P<module>[\w.]+)\n", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<target>[^)\s#]+)")
_LANGUAGES = {
    ".cff": "yaml",
    ".ipynb": "json",
    ".json": "json",
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add every page that docs/ does not hold."""
    files_of = (
        path
        for folder in EXAMPLES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SHOWN_KINDS
    )
    examples = [path.relative_to(ROOT).as_posix() for path in sorted(files_of)]
    shown = [*examples, *SHOWN]
    pages = {
        page: (ROOT / origin).read_text(encoding="utf-8") for origin, page in ROOT_PAGES.items()
    }
    pages |= {site_path(path): _as_it_stands(path) for path in shown}
    listed = (f"- [{path}]({os.path.relpath(path, 'examples')}.md)" for path in examples)
    pages["source/examples/index.md"] = "# Examples\n\n" + "\n".join(listed)
    pages["reference/checks.md"] = catalogue(ROOT / "docs")
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links that work on GitHub and in an editor work in the site."""
    path = page.file.src_uri
    if path.startswith("source/"):
        return markdown
    if path == "reference/faults.md":
        markdown = with_links_to_checks(markdown)
    markdown = _FIELDS.sub(rf"::: \g<module>\n{FIELDS}", markdown)
    origins = {page: origin for origin, page in ROOT_PAGES.items()}
    return with_site_links(origins.get(path, f"docs/{path}"), path, markdown)


def site_path(path: str) -> str:
    """Return the site's page for a file or folder of the repository; both paths are relative."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return ROOT_PAGES.get(
        path, f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"
    )


def with_site_links(origin: str, page: str, markdown: str) -> str:
    """Return a document with the site's links.

    Args:
        origin: the document's path in the repository.
        page: its path in the site.
        markdown: its text. Links that lead nowhere are left alone: mkdocs reports them.
    """

    def moved(match: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join(os.path.dirname(origin), match["target"]))
        there = not path.startswith("..") and (ROOT / path).exists()
        return os.path.relpath(site_path(path), os.path.dirname(page)) if there else match[0]

    return _LINK.sub(moved, markdown)


def _as_it_stands(path: str) -> str:
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return (
        f"# {path}\n\n````{language}\n{(ROOT / path).read_text(encoding='utf-8').rstrip()}\n````\n"
    )
