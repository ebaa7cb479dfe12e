"""A run whose texts copy records of their own batches fails by these alone; a clean one passes."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import dpaudit
from dpaudit.accounting.coins import HELD_OUT
from dpaudit.api.disclosing import disclosed_of_run
from dpaudit.api.monitor import SILENT
from dpaudit.auditing.disclosure import public_form
from dpaudit.auditing.run import audit_run
from dpaudit.disclosing.claims import claim_of_run
from dpaudit.disclosing.trial import try_texts
from dpaudit.disclosing.units import Units, units_of_run
from dpaudit.reports.audit_document import render_html
from dpaudit.results.disclosed_texts import DisclosedTexts
from dpaudit.runs import InputError, RunReader

#: Batches of a label, of which three are generated.
BATCHES = 63
KIND = {
    "aggregator": "mean",
    "sizes": (4, 4, 4),
    "vocabulary": 60,
    "max_tokens": 14,
    "divisor": 400.0,
    "seed": 5,
}


@dataclass
class Copied:
    """A run, its data, and what each of its records says, by its digest."""

    run: Any
    data: Path
    texts: dict[str, str]


@pytest.fixture
def make_copied(make_run, tmp_path, monkeypatch) -> Callable[..., Copied]:
    """Make a run of which the first record of each batch is its text and one word more.

    Texts are sampled as ever. Records are chosen to fit them, as if a prompt had held them.
    """
    spec_class = type(make_run.generator().spec)
    conftest = sys.modules[spec_class.__module__]
    monkeypatch.setattr(conftest, "SPARE", BATCHES - 3)

    def made(copied: bool = True, **fields: Any) -> Copied:
        kind = KIND | fields
        first = make_run(**kind)
        spoken = [sample.text for sample in RunReader(first.path).samples()]
        spec = first.spec
        said = {
            spec._hash.digest("a", text): text
            for text in (f"record {number} of {spec.seed}" for number in range(6000))
        }

        class Copying(spec_class):
            def place_records(self):
                found = [*super().place_records()]
                for batch, text in enumerate(spoken):
                    goes = self.goes(batch, None)
                    own = (f"{text} x{number}" for number in itertools.count())
                    own_text = next(each for each in own if goes(self._hash.digest("a", each)))
                    place = next(at for at, each in enumerate(found) if each.batch == batch)
                    digest = self._hash.digest("a", own_text)
                    said[digest] = own_text
                    found[place] = replace(found[place], digest=digest)
                return tuple(sorted(found, key=lambda each: each.digest))

        run = first
        if copied:
            spec = Copying(**kind)
            path = tmp_path / f"copying{len(list(tmp_path.iterdir()))}"
            conftest.Generator(spec).run(path)
            run = conftest.Run(path, spec, make_run)
        texts = {each.digest: said[each.digest] for each in spec.assignment}
        data = tmp_path / f"data{len(list(tmp_path.iterdir()))}.csv"
        with open(data, "w", newline="") as file:
            csv.writer(file).writerows([["text", "label"], *[[text, "a"] for text in texts.values()]])
        return Copied(run, data, texts)

    return made


def tried(made: Copied) -> DisclosedTexts:
    claim = RunReader(made.run.path).manifest.claim
    found = disclosed_of_run(made.run.path, str(made.data), claim, SILENT)
    assert isinstance(found, DisclosedTexts), found
    return found


def units_of(made: Copied) -> Units:
    return units_of_run(RunReader(made.run.path), str(made.data))


def audited(made: Copied) -> Any:
    return audit_run(made.run.path, disclosed=tried(made))


def test_copies_of_three_records_fail_their_check_alone(make_copied, failed):
    made = make_copied()
    assert made.run.audit().verdict == "pass"
    result = audited(made)
    assert failed(result) == {"release.disclosure"}
    tested = result.disclosed.epsilon
    assert (tested.level, tested.guesses, tested.right) == ("batch", 3, 3)
    assert tested.stated == result.claim.epsilon <= tested.claimed <= tested.refuted
    assert {span.own_batch for span in result.disclosed.spans} == {True}


def test_clean_run_passes(make_copied):
    result = audited(make_copied(copied=False))
    (found,) = [check for check in result.checks if check.id == "release.disclosure"]
    assert (result.verdict, found.status, found.evidence) == ("pass", "pass", 2)
