"""What the records added: an unpaid figure leaves the house nowhere, a paid one is charged for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpaudit.api.audits import audit
from dpaudit.api.comparing import compose
from dpaudit.api.publishing import release, verify_release
from dpaudit.auditing.composition import compose_runs
from dpaudit.auditing.disclosure import public_form
from dpaudit.releasing.policy import PolicyFile, apply_policy
from dpaudit.reports.attacks import in_short
from dpaudit.reports.write import documents
from dpaudit.results import AuditResult
from dpaudit.results.policy import Policy
from dpaudit.results.quality import PerToken
from dpaudit.results.quality_file import write_measures
from dpaudit.results.worth import Gain, Nothing, PaidGain, Worth
from dpaudit.runs import InputError, RunReader

Run = Any
#: Digits that stand nowhere else.
UNPAID, PAID, BOUND = "0.17391", "12.00325", "0.22675"


def paid_gain(steps: int = 48013, **fields: Any) -> PaidGain:
    about: dict[str, Any] = {"unit": "record", "relation": "add_remove", **fields}
    first = PaidGain.of(0, 0.15, records=1, batches=4, earlier=None, **about)
    return PaidGain.of(steps, 0.1, records=1, batches=4, earlier=first, **about)


def worth_of(run: Run, paid: PaidGain | None = None) -> Worth:
    found = PerToken(mean=float(UNPAID), error=float(UNPAID) / 10)
    return Worth(
        samples=RunReader(run.path).digest("samples.jsonl"),
        gain=Gain(
            held_out=73821391, texts=73821390, tokens=98217315, supported=91827364, gain=found
        ),
        baseline=Nothing(texts=61738291, nothing=19378261),
        paid=paid,
    )


COUNTS = ("73821391", "73821390", "98217315", "91827364", "61738291", "19378261")
PRIVATE = (UNPAID, "0.174", "0.1739", *COUNTS)


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    return make_run(aggregator="mean", sizes=(3, 4, 5, 4), held_out=1e-6)


@pytest.mark.parametrize("paid", [None, paid_gain()], ids=["unpaid", "paid"])
def test_no_byte_of_a_release_has_the_unpaid_gain(
    run: Run, tmp_path: Path, contents: Any, paid: PaidGain | None, empty_figures: None
) -> None:
    """Neither card nor report nor attestation; the private report has it, so it was there."""
    pytest.importorskip("pyarrow")
    write_measures(worth_of(run, paid), run / "report")
    inside = audit(run.path).to_html()
    assert "0.174" in inside
    assert "73821390" in inside.replace(",", "")
    release(run.path, tmp_path / "texts", unsigned=True)
    for name, text in contents(tmp_path / "texts").items():
        for private in PRIVATE:
            assert private not in text.replace(",", ""), (name, private)
    card = (tmp_path / "texts" / "README.md").read_text()
    assert ("12.0 nats" in card and "0.226" in card) == (paid is not None)


def test_the_public_form_has_the_paid_figure_alone(run: Run) -> None:
    found = run.audit().model_copy(update={"worth": worth_of(run, paid_gain()), "paid": None})
    public = public_form(found)
    assert (public.worth, public.paid) == (None, None)
    for text in documents(public).values():
        assert not any(private in str(text) for private in PRIVATE[:3])
    known = public_form(found.model_copy(update={"paid": paid_gain()}))
    assert known.worth is None
    assert known.paid == paid_gain()


def judged(result: AuditResult, **rules: Any) -> str:
    policy = Policy.model_validate({"policy_version": 1, **rules})
    found = apply_policy(result, PolicyFile(policy, "ab" * 32))
    (rule,) = (check for check in found.checks if check.id.startswith("policy."))
    return f"{found.verdict} {rule.code.rpartition(':')[2]}"


def test_a_policy_is_held_to_the_lower_bound(run: Run) -> None:
    result = run.audit()
    paid = result.model_copy(update={"paid": paid_gain()})
    assert judged(result, worth={"gain_at_least": 0.05}).startswith("not_verified")
    assert judged(paid, worth={"gain_at_least": float(BOUND)}).startswith("pass")
    # the figure would do, its bound does not
    assert judged(paid, worth={"gain_at_least": 0.23}).startswith("fail")


def test_an_unpaid_gain_meets_no_policy(run: Run) -> None:
    write_measures(worth_of(run), run / "report")
    policy = run / "report" / "policy.yaml"
    policy.write_text("policy_version: 1\nworth: {gain_at_least: 0.05}\n")
    assert audit(run.path, policy=policy).verdict == "not_verified"
    write_measures(worth_of(run, paid_gain()), run / "report")
    assert audit(run.path, policy=policy).verdict == "pass"


@pytest.mark.parametrize(
    ("unit", "relation", "cost"),
    [("record", "add_remove", 0.25), ("record", "replace", 0.25), ("user", "add_remove", None)],
)
def test_a_policy_counts_what_figures_have_cost(
    run: Run, unit: str, relation: str, cost: float | None
) -> None:
    """All of them, also those that were paid for before: composition adds up."""
    result = run.audit()
    assert result.claim is not None
    paid = result.model_copy(update={"paid": paid_gain(unit=unit, relation=relation)})
    claimed = result.claim.epsilon
    assert judged(result, epsilon=claimed).startswith("pass")
    assert judged(paid, epsilon=claimed).startswith("fail")
    assert judged(paid, epsilon=claimed + 0.2499).startswith("fail")
    if cost is None:
        assert judged(paid, epsilon=1e9).startswith("fail")
    else:
        assert judged(paid, epsilon=claimed + cost + 1e-9).startswith("pass")


def test_a_policy_on_attacks_counts_them_too(run: Run) -> None:
    result = run.audit()
    found = result.guarantees.approximate
    assert found is not None
    assert found.attack is not None
    paid = result.model_copy(update={"paid": paid_gain()})
    curve = found.attack.curve
    advantage, rate = curve.advantage, curve.true_positives(0.01)
    assert judged(result, most_advantage=advantage).startswith("pass")
    assert judged(result, most_true_positives={"at": 0.01, "most": rate}).startswith("pass")
    if advantage < 1:
        assert judged(paid, most_advantage=advantage).startswith("fail")
    if rate < 1:
        assert judged(paid, most_true_positives={"at": 0.01, "most": rate}).startswith("fail")


def test_a_released_figure_counts_for_whoever_verifies_the_folder(
    run: Run, tmp_path: Path, empty_figures: None
) -> None:
    pytest.importorskip("pyarrow")
    write_measures(worth_of(run, paid_gain()), run / "report")
    made = release(run.path, tmp_path / "texts", unsigned=True)
    claim = made.audit.claim
    assert claim is not None
    assert claim.epsilon is not None
    problems = {
        most: [
            problem.code for problem in verify_release(tmp_path / "texts", epsilon=most).problems
        ]
        for most in (claim.epsilon, claim.epsilon + 0.26)
    }
    assert problems == {claim.epsilon: ["released.claim-larger"], claim.epsilon + 0.26: []}
    # who asks for no figure is told of its cost, too
    assert "0.25" in verify_release(tmp_path / "texts").worth
    assert "0.25" in in_short(made.audit.result)
    entry = yaml.safe_load((tmp_path / "texts" / "opendp_deployment.yaml").read_text())
    parameters = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    assert claim.epsilon + 0.25 <= parameters["epsilon"] < claim.epsilon + 0.2501
    # the report says something else
    report = tmp_path / "texts" / "report" / "report.json"
    assert '"paid"' in report.read_text()
    stated = json.loads(report.read_text())
    stated["paid"] = paid_gain(steps=48014).model_dump()
    report.write_text(json.dumps(stated))
    codes = {problem.code for problem in verify_release(tmp_path / "texts").problems}
    assert "released.other-worth" in codes


@pytest.mark.parametrize(
    "change",
    [
        {"unit": "user"},
        {"relation": "replace"},
        {"held_out": 0.0},
        {"sizes": (3, 4, 5, 4, 3, 4)},
    ],
    ids=str,
)
def test_a_figure_of_other_settings_is_not_the_runs(
    make_run: Callable[..., Run], change: dict[str, Any]
) -> None:
    """Planted in the run's folder, with its texts' digest: it is neither shown nor charged."""
    asked = {name: change[name] for name in ("held_out", "sizes") if name in change}
    run = make_run(**{"aggregator": "mean", "sizes": (3, 4, 5, 4), "held_out": 1e-6, **asked})
    figure = paid_gain(**{name: value for name, value in change.items() if name not in asked})
    write_measures(worth_of(run, figure), run / "report")
    with pytest.warns(UserWarning, match="settings"):
        assert audit(run.path).result.paid is None


def test_joint_costs_count_what_figures_have_cost(make_run: Callable[..., Run]) -> None:
    """At both levels, of these texts, and for attacks: a reader has texts and figures."""
    runs = [
        make_run(aggregator="mean", sizes=(3, 4, 5, 4), held_out=1e-6, seed=seed) for seed in (1, 2)
    ]
    texts = compose(*(run.path for run in runs), delta=1e-6).result
    for run in runs:
        write_measures(worth_of(run, paid_gain()), run / "report")
    found = compose(*(run.path for run in runs), delta=1e-6).result
    for level in ("approximate", "batch_approximate", "ex_post", "batch_ex_post"):
        alone, whole = getattr(texts, level).figure, getattr(found, level).figure
        most = 0.5 + 1e-9
        least = most - 2e-9 if "ex_post" in level else 0.01
        assert alone.epsilon + least < whole.epsilon < alone.epsilon + most
    assert texts.approximate.attack is not None and found.approximate.attack is not None
    before, after = texts.approximate.attack.advantage, found.approximate.attack.advantage
    assert before < after <= before + 2 * math.tanh(0.125) + 1e-9
    notes = {note.code for note in found.notes} - {note.code for note in texts.notes}
    assert notes == {"compose.paid"}


def test_joint_rhos_count_what_figures_have_cost(run: Run, tmp_path: Path) -> None:
    others = tmp_path / "others.yaml"
    others.write_text("- {name: counts, relation: add_remove, unit: record, zcdp: {rho: 0.01}}\n")

    def rho() -> float:
        found = compose(run.path, guarantees=others, delta=1e-6).result.zcdp
        assert found is not None
        return found.rho

    texts = rho()
    write_measures(worth_of(run, paid_gain()), run / "report")
    assert texts + 0.25**2 / 2 <= rho() < texts + 0.25**2 / 2 + 1e-9


def test_figures_for_another_unit_than_the_claims_are_not_composed(
    make_run: Callable[..., Run],
) -> None:
    runs = [make_run(aggregator="mean", sizes=(3, 4, 5, 4), seed=seed) for seed in (1, 2)]
    audits = {run.path: run.audit() for run in runs}
    other = paid_gain(unit="user")
    audits[runs[0].path] = audits[runs[0].path].model_copy(update={"paid": other})
    with pytest.raises(InputError):
        compose_runs(audits)


@pytest.mark.filterwarnings("ignore::UserWarning")  # an audit alone warns
def test_costs_that_cannot_be_read_are_none_that_were_not_spent(
    run: Run, tmp_path: Path, empty_figures: None
) -> None:
    """Planted: a higher bound in the file. Else its epsilon would be forgotten, and not counted."""
    pytest.importorskip("pyarrow")
    file = write_measures(worth_of(run, paid_gain()), run / "report")
    file.write_text(file.read_text().replace(BOUND, "0.9"))
    assert audit(run.path).result.paid is None
    policy, others = tmp_path / "policy.yaml", tmp_path / "others.yaml"
    policy.write_text("policy_version: 1\nepsilon: 1000\n")
    others.write_text("- {name: counts, relation: add_remove, unit: record, zcdp: {rho: 0.01}}\n")
    for decide in (
        lambda: audit(run.path, policy=policy),
        lambda: release(run.path, tmp_path / "texts", unsigned=True),
        lambda: compose(run.path, guarantees=others),
    ):
        with pytest.raises(InputError) as error:
            decide()
        assert error.value.where.endswith("worth.json")
    assert not (tmp_path / "texts").exists()
