"""Every kind of page, of results that are real or hostile, as files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from dpaudit.auditing.comparison import compare_runs
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.generation.experiments.cluster_page import files
from dpaudit.reports.audit_document import render_html
from dpaudit.reports.compare import render_comparison_html
from dpaudit.results import AuditResult
from tests.generation.experiments.test_cluster_page import comparison as clusterings
from tests.reports.conftest import HOSTILE, budgets_run, hostile_run, mean_run, median_run

EXAMPLE = Path(__file__).parents[2] / "examples/runs/bbc-median"
#: 100 kB each: without a space to break at, from right to left, and of signs that are several code
#: points each.
LONG = (
    "x" * 100_000,
    "مرحبا بالعالم " * 4_000,
    "👩‍👩‍👧🇦🇶" * 3_000,
    "<script>alert(1)</script>" * 4_000,
)


@cache
def clean() -> AuditResult:
    """A run that passes."""
    return audit_run(EXAMPLE)


def failed(folder: Path) -> AuditResult:
    """A copy of that run, in a folder of its own, with one text that its tokens do not spell."""
    return changed(folder / "bbc-changed", [{"text": "Profits at the bank rose by a tenth."}])


def hostile(folder: Path) -> AuditResult:
    """A run whose maker controls every text of a report.

    Released texts have come through an audit.
    """
    run, texts = hostile_run(), [HOSTILE + long for long in LONG] * 3
    released = changed(folder / "bbc-hostile", [{"text": text, "label": text} for text in texts])
    labels = zip(run.batches, LONG, strict=False)
    batches = tuple(batch.model_copy(update={"label": text}) for batch, text in labels)
    return run.model_copy(
        update={"samples": released.samples, "batches": (*batches, *run.batches[len(LONG) :])}
    )


def changed(copy: Path, changes: Sequence[dict[str, str]]) -> AuditResult:
    """The audit of a copy whose first samples were changed."""
    shutil.copytree(EXAMPLE, copy)
    path = copy / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line, change in zip(lines, changes, strict=False):
        line |= change
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return audit_run(copy)


def comparison() -> str:
    """Runs of both aggregators, one with a hostile name."""
    return render_comparison_html(
        compare_runs({"bbc": clean(), HOSTILE: mean_run(), LONG[0]: median_run(7)})
    )


def pages(folder: Path) -> Mapping[str, Callable[[], str]]:
    """What makes each page, by name."""
    return {
        "clean": lambda: render_html(clean()),
        "failed": lambda: render_html(failed(folder)),
        "thousand": lambda: render_html(median_run(1_000)),
        "hostile": lambda: render_html(hostile(folder)),
        "public": lambda: render_html(public_form(clean())),
        "budgets": lambda: render_html(budgets_run()),
        "comparison": comparison,
        "clusters": lambda: str(files(clusterings())["clusters.html"]),
    }
