"""Documents as HTML: one file that needs no network, and no script to be read."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.environment import TemplateModule
from markupsafe import Markup, escape

from dpaudit.reports import wording
from dpaudit.reports.document import (
    Block,
    Document,
    Link,
    Piece,
    Section,
    Text,
    Verdict,
    Words,
    parts_of,
)
from dpaudit.reports.drawing import in_page
from dpaudit.reports.text import printable

#: Words at whose hyphens a line would break. They fit the narrowest column.
_HYPHENED = re.compile(
    r"((?<!\S)(?:\(?--[\w-]{1,20}\)?(?: [\w.]{1,6}(?!\S))?|(?=\S*-)\S{1,24}(?!\S)))"
)
_HEADINGS = 6


def render(document: Document) -> str:
    """Return the document as one page: templates escape words, our drawings stay as they are."""
    listed = [block for block in document.blocks if isinstance(block, Section) and block.id]
    # The contents stand before what they list, and after what has to be read first.
    first = next(
        (place for place, block in enumerate(document.blocks) if isinstance(block, Section)), 0
    )
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            document=document,
            headed=any(isinstance(block, Verdict) for block in document.blocks),
            before=document.blocks[:first],
            after=document.blocks[first:],
            listed=listed if document.contents else [],
        )
    )


@cache
def environment() -> Environment:
    """Return the templates, with autoescape on and undefined names an error."""
    loaded = Environment(
        loader=PackageLoader("dpaudit.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
        optimized=False,  # each template is rendered once: constants folded would save nothing
    )
    folder = Path(__file__).parents[1] / "templates"
    script = (folder / "report.js").read_text("utf-8")
    style = (folder / "style.css").read_text("utf-8").removesuffix("\n")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    loaded.filters.update(
        words=_words,
        options=_options,
        marked=_marked,
        pages=_pages,
    )
    loaded.globals.update(
        wording=wording,
        script=Markup(script),  # noqa: S704 - our own script
        style=Markup(style),  # noqa: S704 - our own style; a template would be parsed
        script_digest=digest,
        show=_show,
        heading=_heading,
        drawn=lambda drawing: in_page(drawing),
    )
    return loaded


def _printable(shown: object) -> object:
    """Return what is shown without anything that drives a terminal or reorders a line."""
    if isinstance(shown, str) and not isinstance(shown, Markup):
        return printable(shown, max(len(shown), 1))
    return shown


@cache
def _macros() -> TemplateModule:
    return environment().get_template("blocks.html.j2").module


def _show(block: Block, level: int = 2) -> Markup:
    """Return a block as HTML, by the macro of its type; headings in it are of `level`."""
    return Markup(getattr(_macros(), type(block).__name__.lower())(block, level))  # noqa: S704 - escaped by the macro


def _heading(level: int) -> str:
    return f"h{min(level, _HEADINGS)}"


def _words(words: Words) -> Markup:
    """Return escaped words: what stands between backticks as code, links as such."""
    return Markup().join(
        _link(part) if isinstance(part, Link) else _spans(part) for part in parts_of(words)
    )


def _link(link: Link) -> Markup:
    return Markup('<a href="{}">{}</a>').format(link.target, _spans(link.words))


def _spans(text: str) -> Markup:
    parts = re.split("`([^`]+)`", printable(text))
    return Markup().join(
        Markup("<code>{}</code>").format(_options(part)) if at % 2 else part
        for at, part in enumerate(parts)
    )


def _options(command: str) -> Markup:
    """Return escaped text with unbroken short hyphened words, and options with their values."""
    parts = _HYPHENED.split(command)
    whole = Markup('<span class="whole">{}</span>')
    return Markup().join(whole.format(part) if at % 2 else part for at, part in enumerate(parts))


def _pages(texts: tuple[Text, ...], size: int) -> Iterable[tuple[str, tuple[Text, ...]]]:
    """Yield texts by so many at a time, with what to call them."""
    for start in range(0, len(texts), size):
        found = texts[start : start + size]
        yield f"Texts {start + 1:,} to {start + len(found):,} of {len(texts):,}", found


def _marked(pieces: Iterable[Piece]) -> Markup:
    """Return pieces of a text, which lead to their row and say what they cost."""
    shown = [
        piece._replace(words=printable(piece.words, max(len(piece.words), 1))) for piece in pieces
    ]
    first = shown[0].words.lstrip("\n")
    # made visible, or a text would seem to begin further down
    breaks = len(shown[0].words) - len(first)
    return Markup().join(map(_mark, [shown[0]._replace(words="↵" * breaks + first), *shown[1:]]))


def _mark(piece: Piece) -> Markup:
    if not (piece.mark or piece.said):
        return escape(piece.words)
    said = Markup(' data-said="{}"').format(printable(piece.said)) if piece.said else ""
    if piece.target:
        return Markup('<a class="t{}" href="#{}"{}>{}</a>').format(
            piece.mark, piece.target, said, piece.words
        )
    return Markup('<span class="t{}"{}>{}</span>').format(piece.mark, said, piece.words)
