"""report.html: one file that needs no network and no script."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpaudit.results import AuditResult, CheckResult
from reports import outline, quality, wording
from reports.costs import batch_costs, curve_described, growth_described
from reports.figures import batch_histogram_svg, growth_svg, token_curve_svg
from reports.text import LABEL_LENGTH, one_line, printable


def render_html(result: AuditResult) -> str:
    """The whole report as one HTML document.

    Text from the run is escaped by the templates; only the figures, which hold none of it, are inserted as they are.
    """
    costs = batch_costs(result)
    anchored = _anchored(result.checks)
    template = environment().get_template("report.html.j2")
    return template.render(
        result=result,
        outline=outline,
        quality=quality,
        costs=costs,
        curve_description=curve_described(result.tokens),
        growth_description=growth_described(result),
        histogram=markup(batch_histogram_svg(result)),
        growth=markup(growth_svg(result)),
        curve=markup(token_curve_svg(result)),
        checks={status: [pair for pair in anchored if pair[1].status == status] for status in wording.STATUS_ORDER},
        path=one_line(result.run.get("path") or "", LABEL_LENGTH),
    )


@cache
def environment() -> Environment:
    """The templates, with autoescape on and undefined names an error."""
    loaded = Environment(
        loader=PackageLoader("reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loaded.filters.update(plain=printable, line=one_line, label=_label, spans=_spans)
    loaded.globals.update(wording=wording)
    return loaded


def markup(svg: str | None) -> Markup | None:
    """One of our figures, to stand in a page as it is."""
    return None if svg is None else Markup(svg)  # noqa: S704 - our own drawing, escaped when it was serialised


def _label(text: object) -> str:
    return one_line(text, LABEL_LENGTH)


def _spans(text: str) -> Markup:
    """Escaped text, with what stands between backticks as code."""
    parts = re.split("`([^`]+)`", text)
    return Markup().join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _anchored(checks: tuple[CheckResult, ...]) -> list[tuple[str, CheckResult]]:
    """Each check with its place in the page: by its id, so that a link to it holds from one audit to the next."""
    taken: set[str] = set()
    anchored = []
    for index, check in enumerate(checks):
        anchor = "check-" + re.sub(r"[^A-Za-z0-9.-]", "-", check.id[:LABEL_LENGTH])
        anchor = f"{anchor}-{index}" if anchor in taken else anchor
        taken.add(anchor)
        anchored.append((anchor, check))
    return anchored
