"""Hooks of mkdocs: add the pages that are made from code and from files outside docs/, and mend links to them."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docsite import faults
from docsite.pages import generated_pages
from docsite.repository import ROOT, ROOT_PAGES, examples, linked, site_path, source_page, with_site_links

_ORIGINS = {page: origin for origin, page in ROOT_PAGES.items()}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add every page that docs/ does not hold."""
    pages = {page: (ROOT / origin).read_text(encoding="utf-8") for page, origin in _ORIGINS.items() if _there(origin)}
    pages |= generated_pages()
    pages |= {site_path(path): source_page(path) for path in _shown(files, pages)}
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links that work on GitHub work in the site."""
    path = page.file.src_uri
    if path == faults.PAGE:
        markdown = faults.with_links(markdown)
    return markdown if path.startswith(("reference/", "source/")) else with_site_links(_origin(path), path, markdown)


def _shown(files: Files, pages: dict[str, str]) -> list[str]:
    """The repository's files and folders that become pages: the examples, and what documents link to."""
    texts = {_ORIGINS[page]: text for page, text in pages.items() if page in _ORIGINS}
    texts |= {f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()}
    targets = [target for origin, text in texts.items() for target in linked(origin, text)]
    outside = [target for target in targets if site_path(target).startswith("source/")]
    return list(dict.fromkeys(["LICENSE", "dpaudit/schemas/report.schema.json", *examples(), *outside]))


def _there(origin: str) -> bool:
    return (ROOT / origin).exists()


def _origin(page: str) -> str:
    return _ORIGINS.get(page, f"docs/{page}")
