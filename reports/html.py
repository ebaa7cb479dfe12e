"""report.html: one file that needs no network, and no script to be read."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache, partial
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpaudit.reports import costs, figures, findings, outline, quality, wording
from dpaudit.reports.figure_files import in_page
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
        costs=costs,
        quality=quality,
        contents=outline.contents(result),
        batch_costs=costs.batch_costs(result),
        curve_description=costs.curve_described(result.tokens),
        growth_description=costs.growth_described(result),
        figures={drawing.name: in_page(drawing) for drawing in figures.of_run(result)},
        failed=findings.checks_with(result, "fail", "error"),
        anchor=lambda check: anchors[id(check)],
        path=one_line(result.run.get("path") or "", LABEL_LENGTH),
    )


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
        plain=printable, line=one_line, label=partial(one_line, limit=LABEL_LENGTH), spans=_spans, breakable=_breakable
    )
    loaded.globals.update(wording=wording, script=Markup(script), script_digest=digest)  # noqa: S704 - our own script
    return loaded


def _breakable(path: str) -> Markup:
    """Escaped text that may be broken behind its slashes."""
    return Markup("/<wbr>").join(path.split("/"))


def _spans(text: str) -> Markup:
    """Escaped text, with what stands between backticks as code."""
    parts = re.split("`([^`]+)`", text)
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


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
