"""report.html: one file that needs no network, and no script to be read."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpaudit.reports import budgets, costs, figures, findings, levels, outline, quality, released, wording
from dpaudit.reports.figure_files import in_page
from dpaudit.reports.released import Piece
from dpaudit.reports.text import LABEL_LENGTH, one_line, printable
from dpaudit.results import AuditResult, CheckResult


def render_html(result: AuditResult) -> str:
    """The whole report as one HTML document.

    Text from the run is escaped by the templates; only the figures, which hold none of it, are inserted as they are.
    """
    anchors = _anchors(result.checks)
    template = environment().get_template("report.html.j2")
    return template.render(
        result=result,
        outline=outline,
        findings=findings,
        levels=levels,
        budgets=budgets,
        costs=costs,
        quality=quality,
        released=released,
        texts=released.Texts(result),
        contents=outline.contents(result),
        batch_costs=costs.batch_costs(result),
        curve_description=costs.curve_described(result.tokens),
        growth_description=costs.growth_described(result),
        figures={drawing.name: in_page(drawing) for drawing in figures.of_run(result)},
        failed=findings.checks_with(result, "fail", "error"),
        anchor=lambda check: anchors[id(check)],
        path=one_line(result.run.path or "", LABEL_LENGTH),
    )


#: Words at whose hyphens a line would break. They fit the narrowest column.
_HYPHENED = re.compile(r"((?<!\S)(?:\(?--[\w-]{1,20}\)?(?: [\w.]{1,6}(?!\S))?|(?=\S*-)\S{1,24}(?!\S)))")


@cache
def environment() -> Environment:
    """The templates, with autoescape on and undefined names an error."""
    loaded = Environment(
        loader=PackageLoader("dpaudit.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (Path(__file__).parent / "templates" / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    loaded.filters.update(
        plain=printable,
        line=one_line,
        label=partial(one_line, limit=LABEL_LENGTH),
        spans=_spans,
        options=_options,
        marked=_marked,
        breakable=_breakable,
    )
    loaded.globals.update(wording=wording, script=Markup(script), script_digest=digest)  # noqa: S704 - our own script
    return loaded


def _breakable(path: str) -> Markup:
    """Escaped text that may be broken behind its slashes."""
    return Markup("/<wbr>").join(path.split("/"))


def _spans(text: str) -> Markup:
    """Escaped text, with what stands between backticks as code."""
    parts = re.split("`([^`]+)`", text)
    return Markup().join(
        Markup("<code>{}</code>").format(_options(part)) if at % 2 else part for at, part in enumerate(parts)
    )


def _options(command: str) -> Markup:
    """Escaped text whose short words with a hyphen stay whole, and so do options with their values."""
    parts = _HYPHENED.split(command)
    whole = Markup('<span class="whole">{}</span>')
    return Markup().join(whole.format(part) if at % 2 else part for at, part in enumerate(parts))


def _marked(pieces: Iterable[Piece]) -> Markup:
    """A text's tokens as HTML. One with a row leads to it; what is said of one is shown where it is pointed at."""
    shown = list(pieces)
    first = shown[0].words.lstrip("\n")
    breaks = len(shown[0].words) - len(first)  # made visible, or a text would seem to begin further down
    return Markup().join(map(_mark, [shown[0]._replace(words="↵" * breaks + first), *shown[1:]]))


def _mark(piece: Piece) -> Markup | str:
    if not (piece.mark or piece.said):
        return piece.words
    said = Markup(' data-said="{}"').format(piece.said) if piece.said else ""
    if piece.row:
        return Markup('<a class="t{}" href="#{}"{}>{}</a>').format(piece.mark, piece.row, said, piece.words)
    return Markup('<span class="t{}"{}>{}</span>').format(piece.mark, said, piece.words)


def _anchors(checks: tuple[CheckResult, ...]) -> dict[int, str]:
    """Each check's place in the page: by its id, so that a link to it holds from one audit to the next."""
    taken: set[str] = set()
    anchors = {}
    for index, check in enumerate(checks):
        anchor = "check-" + re.sub(r"[^A-Za-z0-9.-]", "-", check.id[:LABEL_LENGTH])
        anchor = f"{anchor}-{index}" if anchor in taken else anchor
        taken.add(anchor)
        anchors[id(check)] = anchor
    return anchors
