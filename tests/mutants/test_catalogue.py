"""Every mutant can be planted: a change to the code that its text was taken from shows here, and not weeks later."""

from __future__ import annotations

from pathlib import Path

from tests.mutants.__main__ import problems


def test_every_mutant_can_be_planted():
    assert list(problems(Path(__file__).parents[2])) == []
