"""Runs whose contexts have budgets: from an epsilon to texts, through kills and lack of memory."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from dpaudit.accounting import zcdp_epsilon
from dpaudit.auditing.composition import compose_runs
from dpaudit.auditing.run import audit_run
from dpaudit.generation import earlier, worker
from dpaudit.generation.algorithm import generate, prepare
from dpaudit.generation.config import Config
from dpaudit.generation.events import RecordsPlaced
from dpaudit.generation.planning import plan
from dpaudit.generation.replay import replay_run
from dpaudit.results.composition import JointCost
from dpaudit.runs import InputError, RunReader, spent_by
from tests.trials import trial

MEAN = {"aggregator": "mean", "clip": 4.0, "divisor": 12.0, "contribution": "differences"}
TOP = {"kind": "public-top-k", "size": 24}
DECODING = {"max_tokens": 6, "tokens_per_batch": 14, "test_seed": 7}
BUDGETS: dict[str, Any] = {
    "mechanism": {**MEAN, "support": TOP},
    "privacy": {"epsilon": 3.0, "delta": 1e-3},
    "decoding": DECODING,
}
#: Of runs with a test seed, whose other checks pass.
SEEDED = {"mechanism.randomness"}

MakeConfig = Callable[..., Config]


def spent(run: Path, batch: int) -> Any:
    """[T + 1, n], before the first token and after each."""
    with RunReader(run).batch(batch) as reader:
        steps = [*reader.steps()]
        assert all(
            (after.spent[0] == before.spent[1]).all() for before, after in itertools.pairwise(steps)
        )
        return np.array([steps[0].spent[0], *(step.spent[1] for step in steps)])


def test_an_epsilon_is_all_that_a_config_says(generated: Callable[..., Path]) -> None:
    run = generated(**BUDGETS)
    manifest, result = RunReader(run).manifest, audit_run(run, evidence=1)
    assert manifest.claim is not None and manifest.mechanism.budget is not None
    assert (manifest.claim.epsilon, manifest.claim.delta, manifest.claim_stated) == (
        3.0,
        1e-3,
        "beforehand",
    )
    assert {check.id for check in result.checks if check.status == "fail"} == SEEDED
    assert result.guarantees.approximate is not None and result.budgets is not None
    assert result.guarantees.approximate.method == "zcdp"
    assert 3.0 - 1e-6 < result.guarantees.approximate.epsilon <= 3.0
    assert math.isclose(zcdp_epsilon(manifest.mechanism.budget, 1e-3), 3.0, rel_tol=1e-6)
    # Some are left out, and length goes on: it is public.
    assert result.budgets.left_out > 0 and any(0 < share < 1 for share in result.budgets.active)
    assert {batch.steps for batch in result.batches if batch.contexts} == {
        DECODING["tokens_per_batch"]
    }
    sums = spent(run, 0)
    assert (
        (sums[0] == 0).all()
        and (np.diff(sums, axis=0) >= 0).all()
        and sums.max() <= manifest.mechanism.budget
    )


def test_what_one_unit_changes_shares_the_budget(make_config: MakeConfig, tmp_path: Path) -> None:
    whole = RunReader(
        generate(make_config(**BUDGETS), tmp_path / "record")
    ).manifest.mechanism.budget
    assert whole is not None
    slots = {"prompt": {"examples_per_context": 2}, "batching": {"slots": 5}}
    user = {"unit": "user", "records_per_user": 3}
    for name, share, sections in (
        ("replaced", 4, {"privacy": {"relation": "replace"}}),
        ("user", 9, {"privacy": user}),
        ("slots", 4, slots),
        ("context", 1, {"privacy": {"unit": "context"}}),
    ):
        merged = {
            key: {**BUDGETS.get(key, {}), **sections.get(key, {})}
            for key in BUDGETS.keys() | sections.keys()
        }
        run = generate(make_config(**merged), tmp_path / name)
        budget = RunReader(run).manifest.mechanism.budget
        assert budget == pytest.approx(whole / share, rel=2e-8), (
            "each is rounded down to nine digits"
        )
        result = audit_run(Path(str(run)), evidence=1)
        assert {check.id for check in result.checks if check.status == "fail"} == SEEDED, name


def test_an_interruption_changes_no_sum(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(**BUDGETS)
    whole = Path(str(generate(config, tmp_path / "whole")))

    def stop_at_the_twentieth(event: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 20:
            raise KeyboardInterrupt

    steps = 0
    with pytest.raises(KeyboardInterrupt):
        generate(config, tmp_path / "resumed", stop_at_the_twentieth)
    resumed = Path(str(generate(config, tmp_path / "resumed")))

    own, failed = worker.aggregated, iter([True])

    def without_memory(*arguments: Any, **named: Any) -> Any:
        if (batch := arguments[0]).shape[0] and next(failed, False):
            raise MemoryError(f"{len(batch)} contexts")
        return own(*arguments, **named)

    monkeypatch.setattr(worker, "aggregated", without_memory)
    again = Path(str(generate(config, tmp_path / "again")))
    filled = [batch.id for batch in audit_run(whole).batches if batch.contexts]
    assert len(filled) > 1 and not next(failed, False)
    for run, batch in itertools.product((resumed, again), filled):
        np.testing.assert_array_equal(spent(run, batch), spent(whole, batch))


def test_a_replay_leaves_out_who_was_left_out(
    generated: Callable[..., Path], data_file: Path
) -> None:
    run = generated(**BUDGETS)
    found = replay_run(run, str(data_file), steps=40, left_out=6, trials=2)
    assert found.whole and len(found.steps) == 40
    result = audit_run(run, evidence=4, replay=found, disclosed=trial())
    checks = {check.id: check.status for check in result.checks}
    assert [
        checks[name] for name in ("replay.logits", "neighbors.regenerated", "replay.lower-bound")
    ] == ["pass"] * 3


def test_a_plan_says_what_every_budget_pays_for(make_config: MakeConfig) -> None:
    ready = prepare(make_config(**BUDGETS))
    mechanism = ready.manifest.mechanism
    sure = plan(make_config(**BUDGETS)).sure
    assert sure is not None and mechanism.budget is not None
    most_expensive, spent = (
        np.array([[-mechanism.clip, mechanism.clip]], dtype=np.float32),
        np.zeros(1),
    )
    for draws in range(1, sure + 3):
        after = mechanism.spend(most_expensive, spent)
        assert (after > spent).all() == (draws <= sure)
        spent = after
    assert plan(make_config(mechanism=BUDGETS["mechanism"], decoding=DECODING)).sure is None


def test_configs_that_budgets_do_not_fit(settings: Callable[..., dict[str, Any]]) -> None:
    for sections, field in (
        ({"mechanism": {"aggregator": "median"}, "privacy": {"epsilon": 3.0}}, "privacy.epsilon"),
        ({"mechanism": {"aggregator": "median", "budget": 0.1}}, "budget"),
        ({"mechanism": MEAN, "privacy": {"epsilon": 3.0}}, "privacy.delta"),
        ({"mechanism": {**MEAN, "budget": 0.1}, "privacy": BUDGETS["privacy"]}, "mechanism.budget"),
        (
            {"mechanism": MEAN, "privacy": BUDGETS["privacy"], "record": {"contexts": False}},
            "record.contexts",
        ),
        ({"mechanism": {**MEAN, "budget": 0.1}, "record": {"contexts": False}}, "record.contexts"),
        (
            {
                "mechanism": MEAN,
                "privacy": BUDGETS["privacy"],
                "claim": {"epsilon": 9.0, "delta": 1e-3},
            },
            "claim.epsilon",
        ),
        ({"mechanism": MEAN, "privacy": {"epsilon": math.inf, "delta": 1e-3}}, "epsilon"),
    ):
        with pytest.raises(ValidationError) as caught:
            Config.model_validate(settings(**sections))
        assert field in str(caught.value.errors()), sections


@pytest.fixture(scope="session")
def owned_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve records of four users: one has seven, one has a single record in the south."""
    path = tmp_path_factory.mktemp("owned") / "records.csv"
    rows = [
        ("north", f"entry {number} lorem", f"user {max(0, number - 5) // 2}")
        for number in range(11)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text", "who"), *rows, ("south", "alone", "user 9")])
    return path


def per_user(owned_file: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    privacy = {**BUDGETS["privacy"], "unit": "user"} | sections.pop("privacy", {})
    return {
        **BUDGETS,
        "data": {"path": str(owned_file), "user": "who"},
        "privacy": privacy,
        **sections,
    }


def shared(run: Path) -> dict[str, float]:
    """Each user's most spending with all of their contexts: m times a batch's sum of m contexts."""
    reader, found = RunReader(run), defaultdict[str, float](float)
    places = [place for place in reader.assignment() if place.batch is not None]
    for batch in reader.batches:
        with reader.batch(batch) as opened:
            users = [place.payer for place in places if place.batch == batch]
            for user, budget in zip(users, opened.header.budgets or (), strict=True):
                found[user] += users.count(user) * budget
    return found


def paid(run: Path) -> dict[str, float]:
    """What each user has spent: in every batch m times the sum of what m contexts have."""
    reader, found = RunReader(run), defaultdict[str, float](float)
    for batch in reader.batches:
        users = [place.payer for place in reader.assignment() if place.batch == batch]
        for user, own in zip(users, spent(run, batch)[-1] if users else (), strict=True):
            found[user] += users.count(user) * own
    return found


def test_contexts_of_a_user_share_one_budget(
    make_config: MakeConfig, generated: Callable[..., Path], owned_file: Path, tmp_path: Path
) -> None:
    run = generated(**per_user(owned_file))
    manifest, result = RunReader(run).manifest, audit_run(run, evidence=1)
    assert {check.id for check in result.checks if check.status == "fail"} == SEEDED
    assert manifest.privacy.shared_budgets and manifest.privacy.records_per_user == 7
    budget, alone = (
        manifest.mechanism.budget,
        RunReader(generated(**BUDGETS)).manifest.mechanism.budget,
    )
    assert budget == alone, "a user has what a record has in a run per record"
    assert (
        budget is not None
        and result.budgets is not None
        and 0 < result.budgets.smallest <= budget / 7
    )
    found = shared(run)
    assert len(found) == 4 and all(math.isclose(share, budget) for share in found.values())
    # A config that does not say whose records are whose counts with the most for everybody.
    whole = per_user(owned_file, data={"path": str(owned_file)}, privacy={"records_per_user": 7})
    apart = RunReader(generate(make_config(**whole), tmp_path / "apart")).manifest
    assert apart.mechanism.budget == pytest.approx(budget / 49, rel=2e-8)
    assert not apart.privacy.shared_budgets

    replayed = replay_run(run, str(owned_file), steps=8, left_out=2, trials=1)
    assert (
        not replayed.assignment
        and audit_run(run, evidence=4, replay=replayed, disclosed=trial()).checks
    )
    other = tmp_path / "other.csv"
    other.write_text(owned_file.read_text().replace("alone,user 9", "alone,user 0"))
    problem = replay_run(run, str(other), steps=1, left_out=0, trials=0).assignment
    assert problem is not None and problem.code == "replay.other-user"


def test_a_text_of_two_users_has_no_one_budget(
    make_config: MakeConfig, owned_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.csv"
    other.write_text(owned_file.read_text() + "south,alone,user 1\n")
    with pytest.raises(InputError) as caught:
        generate(make_config(**per_user(other)), tmp_path / "run")
    assert "row 13" in str(caught.value) and "alone" not in str(caught.value)
    assert "more of the" not in str(caught.value)
    other.write_text(other.read_text() + "south,alone,user 2\nsouth,alone,user 3\n")
    with pytest.raises(InputError, match=r"row 13.* 2 more of the"):
        generate(make_config(**per_user(other)), tmp_path / "run")
    # The remedy: one declared number for everybody, of which nobody's share depends on another's
    # rows.
    assert "declare privacy.records_per_user" in caught.value.remedy
    declared = per_user(other, data={"path": str(other)}, privacy={"records_per_user": 7})
    run = generate(make_config(**declared), tmp_path / "declared")
    replayed = replay_run(run, str(other), steps=2, left_out=1, trials=0)
    failed = {
        check.id for check in audit_run(run, replay=replayed).checks if check.status == "fail"
    }
    assert failed == SEEDED and not RunReader(run).manifest.privacy.shared_budgets


def test_a_run_goes_on_from_what_others_left(
    make_config: MakeConfig, owned_file: Path, tmp_path: Path
) -> None:
    config = make_config(**per_user(owned_file, batching={"key": None}))
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    generate(config, first)
    larger = config.model_copy(
        update={"privacy": config.privacy.model_copy(update={"epsilon": 3.5})}
    )
    told: list[Any] = []
    generate(larger, second, told.append, spent=[first])
    (left,) = [event.left for event in told if isinstance(event, RecordsPlaced)]
    assert 0 < left < 1
    generate(larger, third, spent=[second, first])
    manifests = [RunReader(run).manifest for run in (first, second, third)]
    for number, run in enumerate((first, second, third)):
        result = audit_run(run, evidence=1)
        assert {check.id for check in result.checks if check.status == "fail"} == SEEDED
        assert manifests[number].privacy.earlier == tuple(
            each.commitment for each in manifests[:number]
        )
        before = {place.payer: place.spent for place in RunReader(run).assignment()}
        after, budget = spent_by(RunReader(run)), manifests[number].mechanism.budget
        assert budget is not None and all(
            before[payer] <= after[payer] <= budget for payer in before
        )
        if number:
            left = spent_by(RunReader((first, second)[number - 1]))
            assert before == left and max(before.values()) > 0
            assert all(share + before[payer] <= budget for payer, share in shared(run).items())
    assert spent_by(RunReader(first)) == pytest.approx(paid(first))
    # Each time again: the same command goes on where the run stopped, and other earlier runs are
    # refused.
    again = tmp_path / "again"
    events = itertools.count()

    def stop_at_the_twentieth(event: Any) -> None:
        if next(events) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(larger, again, stop_at_the_twentieth, spent=[first])
    with pytest.raises(InputError, match="went on from"):
        generate(larger, again, spent=[first, second])
    generate(larger, again)
    np.testing.assert_array_equal(spent(again, 0), spent(second, 0))


def test_earlier_runs_that_cannot_be_gone_on_from(
    make_config: MakeConfig, generated: Callable[..., Path], owned_file: Path, tmp_path: Path
) -> None:
    config = make_config(**per_user(owned_file))
    run, unfinished = tmp_path / "run", tmp_path / "unfinished"
    generate(config, run)
    generate(config, tmp_path / "second", spent=[run])
    shutil.copytree(run, unfinished)
    (unfinished / "hashes").unlink()
    worst = generate(make_config(mechanism=MEAN, decoding=DECODING), tmp_path / "worst")
    whole = {"data": {"path": str(owned_file)}, "privacy": {"records_per_user": 7}}
    apart = generate(make_config(**per_user(owned_file, **whole)), tmp_path / "apart")
    with pytest.raises(InputError, match="nothing says which"):
        generate(make_config(**per_user(owned_file, **whole)), tmp_path / "new", spent=[apart])
    for name, change in (
        ("assignment", lambda text: ""),
        ("assignment", lambda text: re.sub(r"\t[0-9a-f]{64}\t[^\n]*", "", text)),
        ("run.json", lambda text: re.sub(r'"commitment": "\w+"', '"commitment": null', text)),
        ("run.json", lambda text: text.replace('"records_per_user": 7', '"records_per_user": 8')),
    ):
        changed = tmp_path / f"changed-{len(list(tmp_path.iterdir()))}"
        shutil.copytree(run, changed)
        (changed / name).write_text(change((changed / name).read_text()))
        with pytest.raises(InputError):
            generate(config, tmp_path / "new", spent=[changed])
    for before, changes, said in (
        ([generated(**BUDGETS)], {}, "privacy.unit"),
        ([unfinished], {}, "not finished"),
        ([worst], {}, "no budgets of their own"),
        ([tmp_path / "second"], {}, "just those named before"),
        ([run, run], {}, "two of these are the same run"),
        ([run], {"batching": {"key": "1f" * 32}}, "batching.key"),
        (
            [run],
            {"data": {"path": str(owned_file), "user": "who", "labels": ["south", "north"]}},
            "data.labels",
        ),
        (
            [run],
            {"privacy": {**BUDGETS["privacy"], "unit": "user", "epsilon": None}},
            "no budgets of their own",
        ),
    ):
        with pytest.raises(InputError, match=said):
            generate(make_config(**per_user(owned_file, **changes)), tmp_path / "new", spent=before)
        assert not (tmp_path / "new" / "run.json").exists()


def test_runs_that_go_on_from_each_other_cost_one_budget_together(
    make_config: MakeConfig, owned_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {
        "mechanism": MEAN | {"contribution": "logits"},
        "decoding": {**DECODING, "test_seed": None},
    }
    config = make_config(**per_user(owned_file, **own))
    larger = config.model_copy(
        update={"privacy": config.privacy.model_copy(update={"epsilon": 3.5})}
    )
    first, second, third, forged, alone = (
        tmp_path / name for name in ("1st", "2nd", "3rd", "forged", "alone")
    )
    generate(config, first)
    generate(larger, second, spent=[first])
    generate(larger, third, spent=[first, second])
    generate(config, alone)
    monkeypatch.setattr(
        earlier, "spent_by", lambda run: {payer: own / 2 for payer, own in spent_by(run).items()}
    )
    generate(larger, forged, spent=[first])

    def together(*runs: Path) -> JointCost:
        results = {run: audit_run(run) for run in runs}
        assert {result.verdict for result in results.values()} == {"pass"}
        return compose_runs(results, delta=1e-3)

    def epsilon(found: JointCost) -> float:
        assert found.approximate.figure is not None
        return found.approximate.figure.epsilon

    budgets = [
        RunReader(run).manifest.mechanism.budget or math.nan for run in (first, second, alone)
    ]
    found = together(third, first, second)
    assert [each.releases for each in found.continued] == [tuple(map(str, (first, second, third)))]
    assert epsilon(found) == pytest.approx(3.5, rel=1e-6)
    # One that is not named leaves a gap, and what has no part in the chain pays for itself.
    for runs, rho in (
        ((first, second, alone), budgets[1] + budgets[2]),
        ((first, third), budgets[0] + budgets[1]),
        ((second, third), 2 * budgets[1]),
    ):
        assert epsilon(together(*runs)) == pytest.approx(zcdp_epsilon(rho, 1e-3), rel=1e-6)
    with pytest.raises(InputError, match="begins with less"):
        together(first, forged)


def test_a_command_goes_on_from_runs_that_pass_alone_and_says_beforehand_what_they_left(
    settings: Callable[..., dict[str, Any]],
    owned_file: Path,
    tmp_path: Path,
    dpaudit: Callable[..., Any],
) -> None:
    asked = settings(
        **per_user(owned_file, batching={"key": None}, decoding={**DECODING, "test_seed": None})
    )
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(asked))
    asked["privacy"]["epsilon"] = 3.5
    (tmp_path / "more.yaml").write_text(yaml.safe_dump(asked))
    asked["sampling"] = {"generator": "test-seed", "seed": 1}  # which fails an audit
    (tmp_path / "seeded.yaml").write_text(yaml.safe_dump(asked))
    assert dpaudit("generate", "first.yaml", "--out", "first")[0] == 0
    assert dpaudit("generate", "seeded.yaml", "--out", "seeded", "--unverified")[0] == 0
    before = set(tmp_path.iterdir())
    code, said, _ = dpaudit("generate", "more.yaml", "--dry-run", "--spent", "first", "--json")
    assert code == 0
    assert 0 < json.loads(said)["left"] < 1
    code, said, _ = dpaudit("generate", "more.yaml", "--dry-run", "--spent", "first")
    assert code == 0
    assert "earlier runs left" in said
    code, _, said = dpaudit("generate", "more.yaml", "--out", "second", "--spent", "seeded")
    assert code == 2
    assert "--spent seeded: it" in said and "its own audit" in said
    assert (
        dpaudit("generate", "more.yaml", "--dry-run", "--spent", "seeded", "--unverified")[0] == 0
    )
    assert set(tmp_path.iterdir()) == before


def test_only_the_model_shows_that_an_earlier_run_passes(
    settings: Callable[..., dict[str, Any]], tmp_path: Path, dpaudit: Callable[..., Any]
) -> None:
    """One batch a label has no other to compare with.

    The config's model is asked, and nothing is waved through.
    """
    one = {"key": None, "batches_per_label": 1, "generate_per_label": 1}
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump(
            settings(**BUDGETS | {"batching": one, "decoding": {**DECODING, "test_seed": None}})
        )
    )
    assert dpaudit("generate", "own.yaml", "--out", "first")[0] == 0
    assert audit_run(tmp_path / "first").verdict == "not_verified", "or the model need not be asked"
    code, _, said = dpaudit("generate", "own.yaml", "--dry-run", "--spent", "first")
    assert code == 0, said
    code, _, said = dpaudit("generate", "own.yaml", "--dry-run", "--spent", "nowhere")
    assert code == 2 and "no such directory" in said and "own audit" not in said


def test_edited_texts_are_nobody_whose_budget_went_on(
    make_config: MakeConfig, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every budget is spent anew, and two runs with nothing in common pass for one budget."""
    own = {
        **BUDGETS,
        "mechanism": MEAN | {"contribution": "logits"},
        "decoding": {**DECODING, "test_seed": None},
    }
    first, second, edited = tmp_path / "first", tmp_path / "second", tmp_path / "edited.csv"
    edited.write_text(data_file.read_text().replace("\n", " \n"))
    edited.write_text(edited.read_text().replace("text \n", "text\n", 1))
    config = make_config(**own, data={"path": str(edited)})
    generate(make_config(**own), first)
    with pytest.raises(InputError, match="not one record"):
        generate(config, second, spent=[first])
    assert not (second / "run.json").exists()
    monkeypatch.setattr(earlier.Earlier, "require_known", lambda self, assignment: None)
    generate(config, second, spent=[first])
    found = compose_runs({run: audit_run(run) for run in (first, second)}, delta=1e-3)
    budget = RunReader(first).manifest.mechanism.budget
    assert budget is not None and found.approximate.figure is not None and not found.continued
    assert found.approximate.figure.epsilon == pytest.approx(
        zcdp_epsilon(2 * budget, 1e-3), rel=1e-6
    )


def test_a_budget_is_a_rho_that_a_config_can_claim(
    settings: Callable[..., dict[str, Any]], tmp_path: Path, dpaudit: Callable[..., Any]
) -> None:
    mechanism = {**BUDGETS["mechanism"], "budget": 0.05}
    privacy, claim = {"delta": 1e-3}, {"kind": "zcdp", "rho": 0.05}
    asked = settings(
        mechanism=mechanism,
        privacy=privacy,
        claim=claim,
        decoding={**DECODING, "test_seed": None},
        batching={"key": None},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(asked))
    assert dpaudit("generate", "run.yaml", "--out", "run")[0] == 0
    manifest = RunReader(tmp_path / "run").manifest
    assert manifest.claim is not None and (manifest.claim_stated, manifest.privacy.delta_from) == (
        "beforehand",
        "declared",
    )
    assert (manifest.claim.kind, manifest.claim.rho, manifest.claim.delta) == ("zcdp", 0.05, 1e-3)
    found = audit_run(tmp_path / "run")
    assert (
        found.verdict != "fail"
        and found.guarantees.zcdp is not None
        and found.guarantees.approximate is not None
    )
    assert found.guarantees.zcdp.rho == 0.05 and found.guarantees.zcdp.any_length
    known = found.guarantees.approximate
    assert known.epsilon < known.batch_epsilon <= zcdp_epsilon(0.05, 1e-3)
    # What is too small is told before the first token, and afterwards.
    asked["claim"]["rho"] = 0.0499
    (tmp_path / "less.yaml").write_text(yaml.safe_dump(asked))
    assert dpaudit("generate", "less.yaml", "--out", "less")[0] != 0
    model = "--model", manifest.model.name
    assert dpaudit("verify", "run", "--rho", "0.0499", *model)[0] == 1
    assert dpaudit("verify", "run", "--rho", "0.05", *model)[0] == 0
    assert dpaudit("verify", "run", *model)[0] == 0
    assert dpaudit("verify", "run", "--rho", "0.05", "--epsilon", "1")[0] == 2


@pytest.mark.parametrize(
    ("claim", "field"),
    [
        ({"kind": "zcdp"}, "claim.rho"),
        ({"kind": "zcdp", "rho": 0.1, "epsilon": 1.0}, "claim.epsilon"),
        ({"rho": 0.1, "delta": 1e-3}, "claim.epsilon"),
        ({"kind": "ex-post", "epsilon": 1.0}, "claim.kind"),
    ],
)
def test_claims_of_a_config_are_of_their_kind(
    settings: Callable[..., dict[str, Any]], claim: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        Config.model_validate(
            settings(mechanism=BUDGETS["mechanism"], decoding=DECODING, claim=claim)
        )
    assert raised.value.errors()[0]["ctx"]["field"] == field
