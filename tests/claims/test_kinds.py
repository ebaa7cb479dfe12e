"""Kinds of claims are classes: nothing else tells them apart by their names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args

import dpaudit
from dpaudit.mechanisms.claims import CLAIM_KINDS, EMPIRICAL, KIND_MEANINGS, ClaimKind, Kind
from dpaudit.results import Guarantees
from dpaudit.results.catalogue import catalogue
from dpaudit.runs import Claim

PACKAGE = Path(dpaudit.__file__).parent
#: The kinds themselves, and formats: pydantic's models and what parses them.
FORMATS = ("mechanisms/claims/", "results/composition.py", "runs/manifest.py", "runs/statements.py")
_LITERAL = re.compile(r"""["'](ex-post|ex_post|approximate)["']""")


def test_no_module_names_a_kind_but_its_own_and_the_formats() -> None:
    files = (
        Path(folder, name)
        for folder, _, names in os.walk(PACKAGE, followlinks=True)
        for name in names
    )
    modules = [path for path in files if path.suffix == ".py"]
    assert any("reports" in path.parts for path in modules)
    named = {
        path.relative_to(PACKAGE).as_posix()
        for path in modules
        if _LITERAL.search(path.read_text("utf-8"))
    }
    assert {path for path in named if not path.startswith(FORMATS)} == set()


def test_every_kind_is_registered_with_what_is_asked_of_it() -> None:
    assert tuple(CLAIM_KINDS) == get_args(ClaimKind) and {*get_args(Kind)} == {
        *CLAIM_KINDS,
        EMPIRICAL,
    }
    assert {*KIND_MEANINGS} == {*get_args(Kind)}
    for name, kind in CLAIM_KINDS.items():
        assert kind.id == name and kind.risk in catalogue().sentence
        assert {kind.guarantee, kind.epsilons} <= Guarantees.model_fields.keys()
        assert {*kind.figures} <= Claim.model_fields.keys()


def test_nothing_covers_what_is_no_number() -> None:
    for kind in CLAIM_KINDS.values():
        assert kind.covers(1.0, 1.0) and not kind.covers(1.0, 1.0 + 1e-15)
        assert not kind.covers(float("inf"), float("nan"))
