"""The joint cost of releases of the same records: totals by kind, refusals, and displays."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit.accounting import ApproximateAccountant, Parts, joint_epsilon, zcdp_epsilon
from dpaudit.auditing.composition import compose_runs
from dpaudit.auditing.run import audit_run
from dpaudit.generation.clustering.chang import Chang
from dpaudit.generation.clustering.noise import Noise
from dpaudit.generation.sampling import OsEntropy
from dpaudit.results.composition import JointCost
from dpaudit.runs import InputError
from dpaudit.runs.statements import read_statements

FIRST_KEY = "24650f99f58a3693fcce6c3df982e96e0b2a1154b0576d69ca5fdbd0e7c7c135"
SECOND_KEY = "1233665de3637070cdb8a3b5ff6c78b1b7e481791f7e99404e81f03a048d8933"
THIRD_KEY = "db1e954b96710592d666e6ab3df2bb3eb3d513f0b2ddcaf57d9a4a9e9f5a1e7d"
MEAN: dict[str, Any] = {"aggregator": "mean"}
BUDGETS: dict[str, Any] = {"aggregator": "mean", "budget": 0.05, "max_tokens": 9}
CENTRES: dict[str, Any] = {"aggregator": "mean", "sizes": (3, 4, 5, 2), "clusters": "chang"}
COUNTED: dict[str, Any] = CENTRES | {"clusters": "public-centers-rebalanced"}
GOLDEN = Path(__file__).parent / "golden"
STATED = """\
- {name: a histogram, relation: add_remove, unit: record, zcdp: {rho: 0.01}}
- name: two models
  relation: add_remove
  unit: record
  rdp: {2: 0.1, 8: 0.5, 64: 4.5}
- {name: "a mean <b>", relation: add_remove, unit: record, approximate: {epsilon: 0.5, delta: 1e-7}}
"""

Command = Callable[..., tuple[int, str, str]]


def composed(*runs: Any, **named: Any) -> JointCost:
    return compose_runs({run.path: audit_run(run.path) for run in runs}, **named)


@pytest.mark.usefixtures("coarse")
def test_kinds_are_added_up_apart(make_run: Any) -> None:
    runs = [make_run(**MEAN, seed=0), make_run(**MEAN, seed=1), make_run(seed=2)]
    cost = composed(*runs)
    means = [str(run.path) for run in runs[:2]]
    assert cost.approximate.releases == tuple(means)
    assert cost.approximate.reason.values == {"runs": (str(runs[2].path),)}
    alone = [release.approximate for release in cost.releases]
    assert cost.approximate.figure is not None and cost.ex_post.figure is not None
    assert alone[0] is not None and alone[1] is not None and alone[2] is None
    assert max(alone[0].epsilon, alone[1].epsilon) < cost.approximate.figure.epsilon
    assert cost.approximate.figure.epsilon < alone[0].epsilon + alone[1].epsilon
    spent = [release.ex_post.epsilon for release in cost.releases if release.ex_post is not None]
    assert len(spent) == 3 and math.isclose(cost.ex_post.figure.epsilon, sum(spent)), (
        "added up, rounded up"
    )
    assert cost.ex_post.figure.epsilon >= sum(spent)


@pytest.mark.usefixtures("coarse")
def test_budgets_are_zcdp_among_others(make_run: Any) -> None:
    runs = make_run(**BUDGETS), make_run(**BUDGETS, seed=1)
    found = composed(*runs, delta=1e-4).approximate
    assert found.figure is not None
    assert found.figure.epsilon == pytest.approx(zcdp_epsilon(0.1, 1e-4), rel=1e-9)
    with_draws = composed(runs[0], make_run(**MEAN, seed=2), delta=1e-4).approximate.figure
    eta = runs[0].spec.mechanism.eta(runs[0].spec.change)
    expected = joint_epsilon([Parts(rho=0.05), Parts(segments=((eta, 3),))], 1e-4)
    assert with_draws is not None and with_draws.epsilon == pytest.approx(
        expected.epsilon, rel=1e-9
    )


@pytest.mark.usefixtures("coarse")
def test_attacks_on_all_releases_are_composed_and_never_added(make_run: Any) -> None:
    runs = [make_run(**MEAN, seed=seed) for seed in (0, 1)]
    cost = composed(*runs, delta=1e-5)
    alone = audit_run(runs[0].path).guarantees.approximate
    eta, tokens = runs[0].spec.mechanism.eta(runs[0].spec.change), runs[0].spec.max_tokens
    direct = ApproximateAccountant(eta).attack_curve(2 * tokens, 1e-5)
    for total in (cost.approximate, cost.batch_approximate):
        found = total.attack
        assert found is not None and alone is not None and alone.batch_attack is not None
        assert direct.advantage <= found.advantage * (1 + 1e-9) <= direct.advantage * 1.001
        assert found.advantage > alone.batch_attack.advantage
        assert found.tpr_at_1pct > alone.batch_attack.tpr_at_1pct
    assert cost.no_attack is None
    assert cost.ex_post.attack is cost.batch_ex_post.attack is None


def test_readers_of_all_releases_have_less_than_who_knows_the_batches(make_run: Any) -> None:
    runs = [make_run(**MEAN, **SECRET, key=key) for key in (FIRST_KEY, SECOND_KEY)]
    cost = composed(*runs, delta=1e-4)
    release, batch = cost.approximate.attack, cost.batch_approximate.attack
    assert release is not None and batch is not None
    assert release.advantage < batch.advantage and release.tpr_at_1pct < batch.tpr_at_1pct
    assert "secret-batches" in release.method and "secret-batches" not in batch.method
    for x in (1e-4, 0.01, 0.5):
        assert release.curve.true_positives(x) <= batch.curve.true_positives(x) * (1 + 1e-9)


def test_costs_of_these_texts_bound_no_attack_together(make_run: Any) -> None:
    cost = composed(make_run(seed=0), make_run(seed=1))
    assert cost.approximate.attack is None and cost.ex_post.figure is not None
    assert cost.no_attack is not None and cost.no_attack.code == "compose.no-attack-bound"


@pytest.mark.usefixtures("coarse")
def test_clusters_of_two_runs_are_two_releases_unless_they_are_one(make_run: Any) -> None:
    one, other, apart = (
        make_run(**COUNTED),
        make_run(**COUNTED, max_tokens=2),
        make_run(**COUNTED, seed=4),
    )
    shared, twice = composed(one, other), composed(one, apart)
    assert [each.releases for each in shared.shared] == [(str(one.path), str(other.path))]
    assert not twice.shared, (
        "other records: what they have in common are the counts of this test alone"
    )
    assert shared.approximate.figure is not None and twice.approximate.figure is not None
    assert shared.approximate.figure.epsilon < twice.approximate.figure.epsilon


@pytest.mark.usefixtures("coarse")
def test_noised_centres_are_paid_for_each_time(make_run: Any) -> None:
    """Equal centres are no sign of one draw.

    Where noise leaves no leaf, every draw gives the origin.
    """
    own = np.random.default_rng(3).normal(size=(40, 6))
    private = own / np.linalg.norm(own, axis=1, keepdims=True)
    method = Chang(5, 0.1, 1e-6, 4)
    drawn = [method.fit(private, private[:0], Noise(OsEntropy())).tobytes() for _ in range(8)]
    assert len(set(drawn)) < len(drawn), "independent draws agree"
    runs = make_run(**CENTRES), make_run(**CENTRES, max_tokens=2)
    found = composed(*runs)
    assert not found.shared and found.approximate.figure is not None
    assert found.approximate.figure.epsilon > 2 * runs[0].spec.centers_cost[0]


@pytest.mark.usefixtures("coarse")
def test_clusters_are_paid_for_in_every_total(make_run: Any) -> None:
    """Whoever has them first in a total pays, whatever stands before it in another."""
    counted = make_run(**COUNTED)
    runs = make_run(**{**COUNTED, "aggregator": "median"}), counted, make_run(**MEAN, seed=3)
    costs = [composed(*way, delta=1e-3) for way in permutations(runs)]
    assert all(len(cost.shared) == 1 for cost in costs)
    alone = composed(*runs[1:], delta=1e-3).approximate.figure
    assert [cost.approximate.figure for cost in costs] == [alone] * 6, (
        "the median's clusters are the mean's"
    )


@pytest.mark.usefixtures("coarse")
def test_what_others_state_joins(make_run: Any, tmp_path: Path) -> None:
    file = tmp_path / "stated.yaml"
    file.write_text(STATED)
    statements = read_statements(file)
    found = composed(make_run(**MEAN), statements=statements, delta=1e-4)
    assert found.approximate.figure is not None and found.approximate.method == "optimal"
    assert found.approximate.releases[1:] == ("a histogram", "two models", "a mean <b>")
    without = composed(make_run(**MEAN), statements=statements[:1], delta=1e-4).approximate.figure
    assert without is not None and without.epsilon < found.approximate.figure.epsilon


def test_what_cannot_be_composed_is_refused_with_a_reason(
    make_run: Any, tmp_path: Path, dpaudit: Command
) -> None:
    mean, exchanged = make_run(**MEAN), make_run(**MEAN, relation="replace")
    per_user = make_run(**MEAN, unit="user", records_per_user=2)
    copy = Path(shutil.copytree(mean.path, tmp_path / "copy"))
    centres, broken = make_run(**CENTRES), make_run(**MEAN, seed=5)
    broken.edit_manifest({"mechanism.divisor": 90.0})
    broken.rehash()
    stated = tmp_path / "stated.yaml"
    stated.write_text(STATED)
    for arguments, code, said in (
        ([mean.path], 2, "Name two or more"),
        ([mean.path, mean.path], 2, "named twice"),
        ([mean.path, copy], 2, "the same run as"),
        ([mean.path, exchanged.path], 2, "it is for replace of a record"),
        ([mean.path, per_user.path], 2, "it is for add_remove of a user"),
        ([exchanged.path, "--with", stated], 2, "a histogram: it is for add_remove"),
        ([mean.path, broken.path], 1, f"not composed: {broken.path} does not pass its own audit"),
        ([mean.path, tmp_path / "nowhere"], 2, "nowhere"),
        ([mean.path, "--with", tmp_path / "none.yaml"], 2, "none.yaml"),
        ([mean.path, "--with", stated, "--delta", 1e-8], 2, "deltas take 1e-7"),
        ([mean.path, "--with", stated, "--delta", 1], 2, "--delta"),
        ([mean.path, "--with", stated, "--delta", "nan"], 2, "--delta"),
        ([centres.path, mean.path, "--delta", 1e-9], 2, "deltas take"),
    ):
        found = dpaudit("compose", *arguments)
        assert found[0] == code and said in " ".join(found[2].split()), (arguments, found)
        assert code == 1 or not found[1]
    with pytest.raises(InputError, match="per context"):
        composed(make_run(**MEAN, unit="context"), mean)


def test_numbers_mean_what_they_look_like(tmp_path: Path) -> None:
    file = tmp_path / "stated.yaml"
    for text, rho in (
        ("1e-7", 1e-7),
        ("1.5e3", 1500.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("1_000.5", 1000.5),
        ("0", 0.0),
    ):
        file.write_text(f"- {{name: a, relation: add_remove, unit: record, zcdp: {{rho: {text}}}}}")
        (found,) = read_statements(file)
        assert found.zcdp is not None and found.zcdp.rho == rho, text


@pytest.mark.usefixtures("coarse")
def test_a_delta_as_large_as_one_record_is_warned_of(make_run: Any, dpaudit: Command) -> None:
    runs = make_run(**MEAN).path, make_run(**MEAN, seed=1).path
    assert "1 / records" not in dpaudit("compose", *runs)[2]
    code, _, told = dpaudit("compose", *runs, "--delta", "0.9999999")
    assert code == 0 and "1 / records" in told


@pytest.mark.usefixtures("coarse")
def test_a_run_whose_earlier_ones_are_not_named_is_told(make_run: Any) -> None:
    runs = make_run(**BUDGETS), make_run(**BUDGETS, seed=1)
    earlier = "ab" * 32
    results = {run.path: audit_run(run.path) for run in runs}
    assert not any(note.code == "compose.own-budgets" for note in compose_runs(results).notes)
    runs[1].edit_manifest({"privacy.earlier": [earlier]})
    notes = [note for note in compose_runs(results).notes if note.code == "compose.own-budgets"]
    assert [note.values for note in notes] == [{"runs": (str(runs[1].path),)}]


def test_statements_that_say_too_little_or_too_much(tmp_path: Path) -> None:
    file, line = tmp_path / "stated.yaml", "{name: a, relation: add_remove, unit: record, %s}"
    for text, said in (
        ("", "empty"),
        ("a: 1", "dict instead of a list"),
        ("[]", "a list of 0 instead of a list of 1 to"),
        ("[" + "3, " * 101 + "]", "a list of 101 instead"),
        ("- 3", "item 1: the value is 3. Allowed: a mapping of fields to values."),
        (
            '- {name: "a\\e[31m", relation: add_remove, unit: record, zcdp: {rho: 1}}',
            "item 1, name",
        ),
        (
            '- {name: " ", relation: add_remove, unit: record, zcdp: {rho: 1}}',
            "printable characters, and not blanks",
        ),
        ("- " + line % "zcdp: {rho: -1}", "item 1, zcdp.rho"),
        ("- " + line % "zcdp: {rho: .nan}", "item 1, zcdp.rho"),
        *(
            ("- " + line % f"zcdp: {{rho: {number}}}", number)
            for number in ("010", "1:30", "1:30.5", "0x10", "0_1")
        ),
        ("- " + line % "zcdp: {rho: 1}, approximate: {epsilon: 1, delta: 0}", "several"),
        ("- {name: a, relation: add_remove, unit: record}", "none of the guarantees"),
        ("- " + line % "approximate: {epsilon: 1, delta: 1}", "item 1, approximate.delta"),
        ("- " + line % "approximate: {epsilon: 1, delta: 1.0e-400}", "too close to zero"),
        ("- " + line % "approximate: {epsilon: .inf, delta: 0}", "item 1, approximate.epsilon"),
        ("- " + line % "rdp: {1: 0.1}", "item 1, rdp"),
        ("- " + line % "rdp: {2: 0.1, 2.0: 0.2}", "given twice"),
        ("- " + line % "rdp: {}", "item 1, rdp"),
        ("- " + line % "rho: 1", "no such field"),
        ("- " + line % "zcdp: {rho: 1}, zcdp: {rho: 0}", "given twice"),
        ("- {name: a, unit: record, zcdp: {rho: 1}}", "item 1, relation"),
        ("\n".join(["- " + line % "zcdp: {rho: 1}"] * 2), "is there already"),
        ("- " * 30_000 + "1", "nests too deeply"),
        ("- !!python/object/apply:os.system [ls]", "not valid YAML"),
        ("x" * 70_000, "more than"),
    ):
        file.write_text(text)
        with pytest.raises(InputError) as caught:
            read_statements(file)
        assert said in str(caught.value), (text[:80], str(caught.value))
    with pytest.raises(InputError, match="cannot be read"):
        read_statements(tmp_path)


def test_the_terminal_and_json_say_the_same(
    make_run: Any, tmp_path: Path, dpaudit: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs = {
        "spring": make_run(**MEAN),
        "autumn": make_run(**BUDGETS, seed=1),
        "winter": make_run(seed=2),
    }
    for name, run in runs.items():
        shutil.copytree(run.path, tmp_path / name)
    (tmp_path / "stated.yaml").write_text(STATED)
    arguments = ["compose", *runs, "--with", "stated.yaml"]
    code, shown, _ = dpaudit(*arguments)
    assert code == 0
    _, printed, _ = dpaudit(*arguments, "--json")
    rounded = json.loads(printed, parse_float=lambda number: float(f"{float(number):.9g}"))
    for name, found in (
        ("compose.txt", shown),
        ("compose.json", json.dumps(rounded, indent=2, ensure_ascii=False)),
    ):
        if os.environ.get("DPAUDIT_UPDATE_GOLDEN") == "1":
            (GOLDEN / name).write_text(found)
        assert found == (GOLDEN / name).read_text()
    assert max(map(len, shown.splitlines())) <= 80
    cost = JointCost.model_validate_json(printed)
    assert code == 0 and json.loads(printed)["schema_version"] == "1"
    assert (
        cost.approximate.figure is not None
        and f"{cost.approximate.figure.epsilon:.3f}"[:4] in shown
    )


SECRET: dict[str, Any] = {"sizes": (4, 5, 4, 5), "secret": True}


def test_amplified_releases_compose_as_curves(make_run: Any) -> None:
    runs = [
        make_run(**SECRET, **MEAN, key=FIRST_KEY),
        make_run(**SECRET, **MEAN, key=SECOND_KEY, seed=1),
    ]
    cost = composed(*runs)
    alone = [release.approximate for release in cost.releases]
    known = [release.batch_approximate for release in cost.releases]
    assert (
        alone[0]
        and alone[1]
        and known[0]
        and cost.approximate.figure
        and cost.batch_approximate.figure
    )
    assert max(alone[0].epsilon, alone[1].epsilon) < cost.approximate.figure.epsilon
    assert cost.approximate.figure.epsilon < alone[0].epsilon + alone[1].epsilon
    assert known[0].epsilon < cost.batch_approximate.figure.epsilon
    assert cost.approximate.figure.epsilon < 0.8 * cost.batch_approximate.figure.epsilon
    two_rounds = runs[0].spec.release
    both = replace(
        two_rounds,
        secret=replace(two_rounds.secret, rounds=2),
        batch=replace(two_rounds.batch, rounds=2),
    )
    due = both.epsilon(runs[0].spec.decoding.most_tokens, alone[0].delta)
    assert math.isclose(cost.approximate.figure.epsilon, due, rel_tol=5e-3), (
        "two releases are as two rounds"
    )


def test_releases_by_one_key_are_composed_in_the_batch(make_run: Any) -> None:
    """Same-key releases cost more than two keys', and less than for someone who knows the batch.

    A release of other batches by that key costs as much.
    """
    one = composed(make_run(**SECRET, **MEAN), make_run(**SECRET, **MEAN, seed=1))
    two = composed(make_run(**SECRET, **MEAN), make_run(**SECRET, **MEAN, seed=1, key=THIRD_KEY))
    assert one.approximate.figure and two.approximate.figure and one.batch_approximate.figure
    assert (
        two.approximate.figure.epsilon
        < one.approximate.figure.epsilon
        < one.batch_approximate.figure.epsilon
    )
    assert any(note.code == "compose.batch-by-batch" for note in one.notes)
    runs = [make_run(**SECRET, **MEAN), make_run(**SECRET, **MEAN, seed=1)]
    for other in (
        make_run(**SECRET | {"sizes": (4, 5, 4, 5, 4, 5)}, **MEAN, seed=2),
        make_run(**SECRET | {"secret": False}, **MEAN, seed=2),
    ):
        apart = composed(*runs, other)
        assert apart.approximate == apart.batch_approximate
        assert any(note.code == "compose.key-in-common" for note in apart.notes)


def test_releases_by_one_key_are_not_amplified_ex_post(make_run: Any) -> None:
    for kind in (MEAN, {}):
        cost = composed(make_run(**SECRET, **kind), make_run(**SECRET, **kind, seed=1))
        assert cost.ex_post == cost.batch_ex_post
        assert any(
            note.code in ("compose.batch-by-batch", "compose.key-in-common") for note in cost.notes
        )
        third = composed(
            make_run(**SECRET, **kind),
            make_run(**SECRET, **kind, seed=1),
            make_run(**SECRET, **kind, key=THIRD_KEY),
        )
        for release, batch in (
            (third.ex_post, third.batch_ex_post),
            (third.approximate, third.batch_approximate),
        ):
            assert (release.figure is None) == (batch.figure is None)
            assert (
                not (release.figure and batch.figure)
                or release.figure.epsilon < batch.figure.epsilon
            )


def test_ex_post_totals_add_up_a_level(make_run: Any) -> None:
    runs = [make_run(**SECRET, key=FIRST_KEY), make_run(**SECRET, key=SECOND_KEY, seed=1)]
    cost = composed(*runs)
    for total, level in ((cost.ex_post, "ex_post"), (cost.batch_ex_post, "batch_ex_post")):
        alone = [getattr(release, level).epsilon for release in cost.releases]
        assert total.figure is not None and math.isclose(
            total.figure.epsilon, sum(alone), rel_tol=1e-12
        )
        assert total.figure.epsilon >= sum(alone)
    assert cost.ex_post.figure and cost.batch_ex_post.figure
    assert cost.ex_post.figure.epsilon < 0.8 * cost.batch_ex_post.figure.epsilon


def test_counts_that_are_one_release_are_paid_for_once_at_either_level(make_run: Any) -> None:
    kind = COUNTED | {"sizes": (3, 4, 5, 2), "secret": True, "least_batches": 3}
    both = composed(make_run(**kind, key=FIRST_KEY), make_run(**kind, key=SECOND_KEY, seed=1))
    assert both.approximate.figure and both.batch_approximate.figure
    assert both.approximate.figure.epsilon < both.batch_approximate.figure.epsilon
