"""A run whose texts copy records of their own batches fails by these alone; a clean one passes."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
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
from dpaudit.disclosing.units import Units, units_of_run
from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.disclosed import headline
from dpaudit.results.crosswalk import crosswalk
from dpaudit.results.disclosed_texts import NO_POWER, DisclosedTexts
from dpaudit.runs import InputError, KeyedHash, RunReader
from tests.trials import SECRET, trial

#: Batches of a label, of which three are generated.
BATCHES = 63
KIND = {
    "aggregator": "mean",
    "sizes": (4, 4, 4),
    "vocabulary": 60,
    "max_tokens": 14,
    "divisor": 75.0,
    "seed": 1,
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
                    found[place] = found[place]._replace(digest=digest)
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
            csv.writer(file).writerows(
                [["text", "label"], *[[text, "a"] for text in texts.values()]]
            )
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

    # Whoever puts texts elsewhere leaves nothing that is right.
    lines = (made.run / "samples.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    moved = dict(zip(texts, texts[1:] + texts[:1], strict=True))
    made.run.edit_samples(lambda rows: [row.update(text=moved[row["text"]]) for row in rows])
    tampered = tried(made).epsilon
    assert (tampered.guesses, tampered.right, tampered.claim_refuted) == (3, 0, False)


def test_clean_run_passes(make_copied):
    result = audited(make_copied(copied=False))
    (found,) = [check for check in result.checks if check.id == "release.disclosure"]
    assert (result.verdict, found.status, found.evidence) == ("pass", "pass", 2)


def test_a_trial_that_was_made_is_not_asked_for(make_run):
    """Of an ex-post claim its check does not apply: the page says so, and what the trial found."""

    def answer(result: Any) -> str:
        lines = render_markdown(result).splitlines()
        return next(line for line in lines if line.startswith("| 20\\. "))

    ask = next(each.trial for each in crosswalk().questions if each.trial)
    result = audit_run(make_run(aggregator="median").path, disclosed=trial())
    check = next(each for each in result.checks if each.id == "release.disclosure")
    assert result.disclosed is not None and check.status == "skip" and not check.applicable
    said = answer(result)
    assert headline(result.disclosed) in said and check.detail[:40] in said and ask not in said
    untried = answer(result.model_copy(update={"disclosed": None}))
    assert check.detail[:40] in untried and ask in untried
    asked = answer(make_run(aggregator="mean").audit())
    assert ask in asked and "release.disclosure" not in asked


def test_without_data_the_check_is_asked_for_where_data_are(make_run):
    run = make_run(aggregator="mean")
    (found,) = [check for check in run.audit().checks if check.id == "release.disclosure"]
    assert (found.status, found.evidence, found.made_with) == ("skip", 3, "--data FILE")


def test_public_report_is_the_same_whatever_the_trial_found(make_run):
    run = make_run(aggregator="mean")
    results = [
        audit_run(run.path, disclosed=trial(p=p, refuted=refuted))
        for p, refuted in ((0.3, 0.0), (1e-5, 0.4))
    ]
    assert SECRET in render_html(results[0]) and SECRET in results[0].to_json()
    told, others = map(public_form, results)
    assert told.to_json() == others.to_json()
    assert SECRET not in told.to_json() + render_html(told) and told.disclosed is None
    (check,) = [check for check in told.checks if check.id == "release.disclosure"]
    assert set(check.values) == {"k", "measure", "at", "level"}


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"rounds": 3, "aggregator": "mean"},
        {"held_out": 0.3},
        {"rule": "hashed-slots"},
        {"held_out": 0.3, "rounds": 2, "aggregator": "mean"},
    ],
    ids=str,
)
def test_every_records_coin_is_that_of_its_key_and_round(make_copied, kind):
    made = make_copied(copied=False, **kind)
    reader = RunReader(made.run.path)
    units, batching = units_of(made), reader.manifest.batching
    master = KeyedHash(bytes.fromhex(batching.key))
    due = [
        HELD_OUT
        if batching.held_out and master.holds_out(digest, batching.held_out_millionths)
        else master.of_round(number).batch(digest, BATCHES)
        for number in range(reader.manifest.rounds)
        for digest in (master.digest("a", text) for (text,) in units.records)
    ]
    assert units.values.tolist() == due and len(due) == units.rounds * len(made.texts)
    assert (units.coins.batches == BATCHES).all() and (units.coins.generated == 3).all()
    assert units.coins.linked == (units.rounds > 1 and batching.held_out > 0)
    tried(made)


def test_claims_are_of_the_level_that_coins_test(make_run):
    claims = {
        name: claim_of_run(reader, claim, 100)
        for name, fields, change in (
            ("equal", {"aggregator": "mean"}, {}),
            ("secret", {"aggregator": "mean", "secret": True}, {}),
            ("release", {"aggregator": "mean", "secret": True}, {"batch_epsilon": None}),
            ("ex-post", {}, {}),
            ("replace", {"aggregator": "mean"}, {"relation": "replace"}),
            ("rounds", {"aggregator": "mean", "secret": True, "rounds": 3}, {}),
        )
        for reader in [RunReader(make_run(**fields).path)]
        for claim in [reader.manifest.claim.model_copy(update=change)]
    }
    secret = claims["secret"]
    assert claims["equal"].level == secret.level == "batch"
    assert claims["release"].level == "release"
    assert claims["release"].epsilon < secret.epsilon >= secret.stated[0]
    assert claims["ex-post"].not_compared == "known-afterwards"
    assert claims["replace"].not_compared == "other-neighbours"
    assert claims["rounds"].epsilon < claims["rounds"].stated[0]


def test_refuses_runs_without_coins_and_other_data(make_copied, make_run):
    made = make_copied(copied=False)
    sliced = make_run(rule="paper-slices", unit="context", sizes=(4, 4))
    refusals = {}
    for name, run, change in (
        ("sliced", sliced, {}),
        ("unkeyed", made.run, {"batching.key": None}),
        ("other", made.run, {"data.digest": "0" * 64}),
    ):
        before = (run / "run.json").read_text()
        run.edit_manifest(change)
        with pytest.raises(InputError) as refused:
            units_of_run(RunReader(run.path), str(made.data))
        (run / "run.json").write_text(before)
        refusals[name] = refused.value.where
    assert refusals["sliced"].endswith("batching.rule")
    assert refusals["unkeyed"].endswith("batching.key")
    assert refusals["other"] == str(made.data)
    few = dpaudit.disclose(made.run.path, str(made.data), level=0.5)
    assert few.result.test.least_records == 1
    with pytest.raises(InputError) as refused:
        dpaudit.disclose(made.run.path, str(made.data), level=1e-300)
    assert refused.value.code == NO_POWER and "record 1" not in str(refused.value)
    lists = {"shown": str(made.data), "held_out": str(made.data), "split_is_random": True}
    with pytest.raises(InputError, match="--data FILE") as refused:
        dpaudit.disclose(made.run.path, **lists)
    assert refused.value.where == "TEXTS"
