"""Two or more audited runs side by side, with each kind of epsilon in a table of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dpaudit.results import Approximate, AuditResult, ExPost
from reports.costs import MEASURE_NAMES, BatchCosts, batch_costs
from reports.html import environment
from reports.outline import ABSENT, privacy_warning
from reports.rounding import bound, bound_beside, nearest, stated
from reports.text import LABEL_LENGTH, one_line
from reports.wording import NOT_COMPARABLE, PRIVATE_FIGURES, PRIVATE_REPORT, neighbours

SCHEMA_VERSION = "1"

Cell = Callable[[AuditResult], str]


@dataclass(frozen=True)
class ComparisonTable:
    """One table of a comparison: a row for each run, and columns of one subject only."""

    title: str
    note: str
    columns: tuple[tuple[str, Cell], ...]


def print_comparison(results: Mapping[str, AuditResult], console: Console) -> None:
    """The comparison as tables that fit 80 columns."""
    for table in TABLES:
        shown = Table(title=Text(table.title, style="bold"), title_justify="left", box=None, pad_edge=False)
        shown.add_column("Run", overflow="fold", min_width=10, max_width=24)
        for name, _ in table.columns:
            shown.add_column(Text(name), overflow="fold", min_width=len(name))
        for name, result in results.items():
            shown.add_row(Text(_name(name)), *(Text(cell(result)) for _, cell in table.columns))
        console.print(shown)
        console.print(Text(table.note, style="dim"))
        console.print()
    console.print(Text(NOT_COMPARABLE))


def render_comparison_html(results: Mapping[str, AuditResult], links: Mapping[str, str] | None = None) -> str:
    """The comparison as one self-contained page.

    Args:
        results: the audited runs by the name to show.
        links: path of each run's report.html, relative to the folder that the comparison will lie in.
    """
    # Quoting the colon keeps a path from being read as a scheme such as javascript:.
    targets = {name: quote(path) for name, path in (links or {}).items()}
    runs = [(_name(name), targets.get(name), result) for name, result in results.items()]
    return environment().get_template("comparison.html.j2").render(runs=runs, tables=TABLES, warning=_warning(results))


def comparison_json(results: Mapping[str, AuditResult]) -> str:
    """The comparison as strict JSON, with every figure in full; what a run does not have is null."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "not_comparable": NOT_COMPARABLE,
        "runs": [{"name": name, **_summary(result)} for name, result in results.items()],
    }
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _warning(results: Mapping[str, AuditResult]) -> str:
    warnings = {privacy_warning(result) for result in results.values()}
    return PRIVATE_FIGURES if PRIVATE_FIGURES in warnings else PRIVATE_REPORT


def _summary(result: AuditResult) -> dict[str, Any]:
    full = result.model_dump(mode="json", include={"verdict", "guarantee", "claim", "guarantees"})
    costs = batch_costs(result)
    return {
        "verdict": full["verdict"],
        "guarantee": full["guarantee"],
        "aggregator": _stated_setting(result, "mechanism", "aggregator"),
        "clip": _stated_setting(result, "mechanism", "clip"),
        "temperature": _stated_setting(result, "mechanism", "temperature"),
        "batches": len(result.batches),
        "contexts": sum(batch.contexts for batch in result.batches),
        "tokens": sum(batch.steps for batch in result.batches),
        "longest_batch": max((batch.steps for batch in result.batches), default=0),
        "claim": full["claim"],
        "ex_post": full["guarantees"]["ex_post"],
        "approximate": full["guarantees"]["approximate"],
        "empirical": full["guarantees"]["empirical"],
        "per_batch": None if costs is None else _per_batch(costs),
    }


def _per_batch(costs: BatchCosts) -> dict[str, str | float]:
    return {
        "measure": costs.measure,
        "min": _finite_or_text(costs.minimum),
        "median": _finite_or_text(costs.median),
        "max": _finite_or_text(costs.maximum),
    }


def _stated_setting(result: AuditResult, group: str, name: str) -> str | float | None:
    """A manifest setting, or None where the run states none (or something that is neither text nor a number)."""
    value: Any = result.run.get("manifest")
    for key in (group, name):
        value = value.get(key) if isinstance(value, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return _finite_or_text(value) if isinstance(value, float) else value


def _finite_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _setting(name: str) -> Cell:
    def cell(result: AuditResult) -> str:
        value = _stated_setting(result, "mechanism", name)
        if value is None:
            return ABSENT
        return stated(value) if isinstance(value, float) else one_line(value, LABEL_LENGTH)

    return cell


def _claimed(kind: str) -> Cell:
    def cell(result: AuditResult) -> str:
        claim = result.claim
        if claim is None or claim.kind != kind:
            return ABSENT
        return stated(claim.epsilon) + (f", δ = {stated(claim.delta)}" if kind == "approximate" else "")

    return cell


def _neighbours(found: ExPost | Approximate | None, result: AuditResult, kind: str) -> str:
    """What the recomputed figure holds for, and what the claim does where that differs."""
    claim = result.claim if result.claim is not None and result.claim.kind == kind else None
    claimed = ABSENT if claim is None else neighbours(claim.relation, claim.unit)
    if found is None:
        return claimed
    computed = neighbours(found.relation, found.unit)
    return computed if claimed in (ABSENT, computed) else f"{computed} (claimed: {claimed})"


def _of_ex_post(name: str) -> Cell:
    def cell(result: AuditResult) -> str:
        found = result.guarantees.ex_post
        value = None if found is None else getattr(found, name)
        return ABSENT if value is None else _beside_claim(value, result, "ex-post")

    return cell


def _of_approximate(shown: Callable[[Approximate, AuditResult], str]) -> Cell:
    def cell(result: AuditResult) -> str:
        found = result.guarantees.approximate
        return ABSENT if found is None else shown(found, result)

    return cell


def _beside_claim(value: float, result: AuditResult, kind: str) -> str:
    claim = result.claim
    return bound(value) if claim is None or claim.kind != kind else bound_beside(value, claim.epsilon)


def _leave_one_out(result: AuditResult) -> str:
    loss = result.guarantees.empirical.leave_one_out_max
    return ABSENT if loss is None else nearest(loss)


def _distribution(name: str) -> Cell:
    def cell(result: AuditResult) -> str:
        costs = batch_costs(result)
        return ABSENT if costs is None else bound(getattr(costs, name))

    return cell


def _measure(result: AuditResult) -> str:
    costs = batch_costs(result)
    return ABSENT if costs is None else MEASURE_NAMES[costs.measure]


def _tokens(result: AuditResult) -> str:
    return f"{sum(batch.steps for batch in result.batches):,}"


def _name(name: str) -> str:
    return one_line(name, LABEL_LENGTH) or "unnamed"


TABLES = (
    ComparisonTable(
        "Runs",
        "Tokens and contexts are summed over the batches.",
        (
            ("Verdict", lambda result: result.verdict.upper()),
            ("Aggregator", _setting("aggregator")),
            ("Clip", _setting("clip")),
            ("Temp.", _setting("temperature")),
            ("Batches", lambda result: f"{len(result.batches):,}"),
            ("Contexts", lambda result: f"{sum(batch.contexts for batch in result.batches):,}"),
            ("Tokens", _tokens),
        ),
    ),
    ComparisonTable(
        "Ex-post epsilon (nats)",
        "Known only after the run, for the text that came out. Private: depends on the data.",
        (
            ("Claimed", _claimed("ex-post")),
            ("Theorem 1", _of_ex_post("theorem1")),
            ("Exact", _of_ex_post("exact")),
            ("Total", _of_ex_post("total")),
            ("Neighbours", lambda result: _neighbours(result.guarantees.ex_post, result, "ex-post")),
        ),
    ),
    ComparisonTable(
        "Approximate DP (epsilon in nats)",
        "Fixed by public settings and δ in advance, for every text that could come out.",
        (
            ("Claimed", _claimed("approximate")),
            ("Epsilon", _of_approximate(lambda found, result: _beside_claim(found.epsilon, result, "approximate"))),
            ("Delta", _of_approximate(lambda found, _: bound(found.delta))),
            ("Method", _of_approximate(lambda found, _: one_line(found.method, LABEL_LENGTH))),
            ("Tokens", _of_approximate(lambda found, _: f"{found.tokens:,}")),
            ("Neighbours", lambda result: _neighbours(result.guarantees.approximate, result, "approximate")),
        ),
    ),
    ComparisonTable(
        "Ex-post cost per batch (nats)",
        "The costliest batch decides the run's ex-post epsilon; the others show how uneven the cost is.",
        (
            ("Measure", _measure),
            ("Least", _distribution("minimum")),
            ("Median", _distribution("median")),
            ("Most", _distribution("maximum")),
        ),
    ),
    ComparisonTable(
        "Empirical losses (nats)",
        "Seen on actual left-out contexts; no guarantee.",
        (("Largest loss", _leave_one_out),),
    ),
)
