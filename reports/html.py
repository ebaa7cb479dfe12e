"""report.html: one file that needs no network, and no script to be read."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpaudit.reports import families, ladder, outline, pairs, quality, wording
from dpaudit.reports.costs import batch_costs, curve_described, growth_described
from dpaudit.reports.figures import batch_histogram_svg, growth_svg, token_curve_svg
from dpaudit.reports.samples import samples
from dpaudit.reports.text import LABEL_LENGTH, one_line, printable
from dpaudit.results import AuditResult, CheckResult

_TEMPLATES = Path(__file__).with_name("templates")


def render_html(result: AuditResult) -> str:
    """The whole report as one HTML document.

    Text from the run is escaped by the templates; only the figures, which hold none of it, are inserted as they are.
    """
    anchors = _anchors(result.checks)
    template = environment().get_template("report.html.j2")
    return template.render(
        result=result,
        outline=outline,
        families=families,
        ladder=ladder,
        pairs=pairs,
        quality=quality,
        contents=_contents(result),
        costs=batch_costs(result),
        curve_description=curve_described(result.tokens),
        growth_description=growth_described(result),
        histogram=markup(batch_histogram_svg(result)),
        growth=markup(growth_svg(result)),
        curve=markup(token_curve_svg(result)),
        directions=markup(pairs.directions_svg(result)),
        losses=markup(pairs.losses_svg(result)),
        failed=outline.checks_with(result, "fail", "error"),
        anchor=lambda check: anchors[id(check)],
        samples=samples(result),
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
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    loaded.filters.update(plain=printable, line=one_line, label=_label, spans=_spans, breakable=_breakable)
    loaded.globals.update(wording=wording, script=Markup(script), script_digest=digest)  # noqa: S704 - our own script
    return loaded


def markup(svg: str | None) -> Markup | None:
    """One of our figures, to stand in a page as it is."""
    return None if svg is None else Markup(svg)  # noqa: S704 - our own drawing, escaped when it was serialised


def _contents(result: AuditResult) -> dict[str, str]:
    """The parts that this result has, in their order, by the id that links lead to."""
    public = outline.is_public(result)
    present = {
        "ledger": bool(result.ledger),
        "batches": not public,
        "tokens": not public and bool(growth_described(result) or curve_described(result.tokens)),
        "directions": not public and pairs.directions(result) is not None,
        "losses": not public and (pairs.losses(result) is not None or bool(outline.worst_contexts(result))),
        "quality": result.quality is not None and not public,
        "samples": bool(samples(result)),
    }
    parts = {"claimed": wording.SECTIONS["claimed"], "sign-off": outline.SIGN_OFF} | wording.SECTIONS
    return {name: title for name, title in parts.items() if present.get(name, True)}


def _label(text: object) -> str:
    return one_line(text, LABEL_LENGTH)


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
