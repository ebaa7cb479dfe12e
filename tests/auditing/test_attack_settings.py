"""What an audit says of attacks follows from the settings that stand beside it, whoever reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from dpaudit.auditing.run import audit_run
from dpaudit.results import AttackSettings, AuditResult
from dpaudit.results.audit import BatchCost

SECRET = {"secret": True, "sizes": (4, 5, 4, 5), "divisor": 96.0}
KINDS: dict[str, dict[str, Any]] = {
    "records": {},
    "budgets": {"budget": 0.05, "max_tokens": 9},
    "noisy counts": {"sizes": (3, 4, 5, 2), "clusters": "public-centers-rebalanced"},
    "centres": {"sizes": (3, 4, 5, 2), "clusters": "chang"},
    "replaced": {"relation": "replace"},
    "a person's": {"unit": "user", "records_per_user": 2, "width": 8},
    "secret batches": SECRET,
    "rounds": SECRET | {"rounds": 3},
    "replaced in secret batches": SECRET | {"relation": "replace"},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_bounds_follow_from_the_settings_beside_them(
    make_run: Callable[..., Any], kind: dict[str, Any]
) -> None:
    """Also from those that a reader finds in report.json."""
    found = audit_run(make_run(aggregator="mean", **kind).path)
    read = AuditResult.model_validate_json(found.to_json()).guarantees.approximate
    stated = found.guarantees.approximate
    assert stated is not None and read is not None
    assert stated.attack is not None and stated.batch_attack is not None
    assert read.attack_settings == stated.attack_settings is not None
    assert read.attack_settings.bounds() == (stated.attack, stated.batch_attack)
    assert stated.attack.method and stated.batch_attack.method
    assert stated.attack.advantage <= stated.batch_attack.advantage
    hidden = bool(kind.get("secret"))
    assert (read.attack_settings.record is not None) == hidden
    assert (stated.attack.advantage < stated.batch_attack.advantage) == hidden


def test_settings_are_of_the_claims_own_neighbours(make_run: Callable[..., Any]) -> None:
    """Of a person with two records, and of one that is replaced, and not of one record."""
    settings = {}
    for name in ("records", "replaced", "a person's", "noisy counts"):
        found = audit_run(make_run(aggregator="mean", **KINDS[name]).path).guarantees.approximate
        assert found is not None and found.attack_settings is not None
        settings[name] = found.attack_settings
    eta = {name: found.unit.eta for name, found in settings.items()}
    assert eta["records"] is not None and eta["replaced"] is not None
    assert eta["a person's"] is not None
    assert eta["replaced"] > eta["records"] * 1.5
    assert settings["a person's"].records * eta["a person's"] > eta["records"]
    assert settings["noisy counts"].laplace and not settings["records"].laplace
    hidden = audit_run(make_run(aggregator="mean", **SECRET, relation="replace").path)
    replaced = hidden.guarantees.approximate
    assert replaced is not None and replaced.attack is not None
    assert replaced.attack_settings is not None and replaced.attack_settings.records == 2
    # One record's bound, in place of a replaced one's, promises too much.
    forgotten = replaced.attack_settings.model_copy(update={"records": 1})
    assert forgotten.bounds()[0].advantage < replaced.attack.advantage


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 1 << 41},
        {"rounds": 1 << 21},
        {"records": 258},
        {"delta": 0.0},
        {"laplace": (-1.0,)},
        {"unit": {"eta": "inf"}},
        {"groups": ((2, 1),) * 65},
        {"groups": ((0, 0),)},
    ],
)
def test_settings_of_strangers_are_limited(wrong: dict[str, Any]) -> None:
    fit: dict[str, Any] = {"unit": BatchCost(eta=0.1), "tokens": 8, "delta": 1e-5}
    assert AttackSettings(**fit).bounds()
    with pytest.raises(ValidationError):
        AttackSettings(**(fit | wrong))


def test_settings_that_do_not_fit_each_other_bound_nothing() -> None:
    fit: dict[str, Any] = {"unit": BatchCost(eta=0.1), "tokens": 8, "delta": 1e-5}
    for wrong in (
        {"record": BatchCost(eta=0.1)},
        {"record": BatchCost(eta=0.1), "groups": ((2, 3),)},
    ):
        with pytest.raises(ValueError, match=r"group|generated"):
            AttackSettings(**fit, **wrong).bounds()
    unbounded = AttackSettings(**fit | {"unit": BatchCost()})
    assert [bound.advantage for bound in unbounded.bounds()] == [1, 1]
