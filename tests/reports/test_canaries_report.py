"""Canaries in reports: apart from other figures, in all private formats, and in no public one."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from dpaudit.auditing.disclosure import public_form
from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.engineers import kind_sections
from dpaudit.reports.terminal import summary
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results import AuditResult, CanaryGuesses
from dpaudit.results.rounding import lower_bound


def in_terminal(result: AuditResult) -> str:
    file = io.StringIO()
    print_document(summary(result), Console(file=file, width=400))
    return file.getvalue()


FORMATS: dict[str, Callable[[AuditResult], str]] = {
    "html": render_html,
    "markdown": render_markdown,
    "terminal": in_terminal,
}


@pytest.fixture
def result(make_run: Callable[..., Any]) -> AuditResult:
    audited: AuditResult = make_run(
        sizes=(4,) * 24, canaries=24, aggregator="mean", divisor=8.0
    ).audit()
    return audited


@pytest.mark.parametrize("render", FORMATS.values(), ids=FORMATS)
def test_guesses_epsilon_and_power_are_said(
    result: AuditResult, render: Callable[[AuditResult], str]
) -> None:
    found = result.guarantees.empirical.canaries
    assert found is not None
    shown = render(result)
    assert f"{found.right} of 24" in shown
    assert (lower_bound(found.epsilon) if found.epsilon else "above 0") in shown and lower_bound(
        found.most
    ) in shown
    assert "of 24" not in render(public_form(result))


@pytest.mark.parametrize("render", FORMATS.values(), ids=FORMATS)
def test_an_epsilon_of_0_is_not_said_as_a_bound(
    render: Callable[[AuditResult], str], results: dict[str, AuditResult]
) -> None:
    attacked = results["attacked"]
    attack = attacked.guarantees.empirical.attack
    assert attack is not None
    nothing = CanaryGuesses(coins=16, right=8, epsilon=0.0, most=0.0, delta=0.0, confidence=0.95)
    empirical = attacked.guarantees.empirical.model_copy(
        update={"attack": attack.model_copy(update={"epsilon": 0.0}), "canaries": nothing}
    )
    guarantees = attacked.guarantees.model_copy(update={"empirical": empirical})
    shown = render(attacked.model_copy(update={"guarantees": guarantees}))
    assert "above 0" in shown and "8 of 16" in shown
    assert not re.search(r"(at least:?|≥) 0(?![.\d])", shown)


def test_they_stand_with_empirical_figures_alone(result: AuditResult) -> None:
    blocks = {kind: str(section) for kind, section in kind_sections(result).items()}
    assert [kind for kind, said in blocks.items() if "anaries" in said] == ["empirical"]
