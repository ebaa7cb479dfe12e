"""What a report says of canaries: apart from other figures, in all private formats, and in no public one."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dpaudit.audit.disclosure import public_form
from dpaudit.reports import outline
from dpaudit.reports.html import render_html
from dpaudit.reports.markdown import render_markdown
from dpaudit.reports.terminal import print_summary
from dpaudit.results import AuditResult
from dpaudit.results.rounding import lower_bound


def in_terminal(result: AuditResult) -> str:
    file = io.StringIO()
    print_summary(result, Console(file=file, width=400))
    return file.getvalue()


FORMATS: dict[str, Callable[[AuditResult], str]] = {
    "html": render_html,
    "markdown": render_markdown,
    "terminal": in_terminal,
}


@pytest.fixture
def result(make_run: Callable[..., Any]) -> AuditResult:
    audited: AuditResult = make_run(sizes=(4,) * 24, canaries=24, aggregator="mean", divisor=8.0).audit()
    return audited


@pytest.mark.parametrize("render", FORMATS.values(), ids=FORMATS)
def test_guesses_epsilon_and_power_are_said(result: AuditResult, render: Callable[[AuditResult], str]) -> None:
    found = result.guarantees.empirical.canaries
    assert found is not None
    shown = render(result)
    assert f"{found.right} of 24" in shown
    assert lower_bound(found.epsilon) in shown and lower_bound(found.most) in shown
    assert "of 24" not in render(public_form(result))


def test_they_stand_with_empirical_figures_alone(result: AuditResult) -> None:
    blocks = {block.kind: str(block) for block in outline.kind_blocks(result)}
    assert [kind for kind, said in blocks.items() if "anaries" in said] == ["empirical"]
