"""What an attacker can do, in a report's words: each number is true, and rounded up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dpaudit.accounting import ApproximateAccountant, ReleaseAccountant, SecretBatches
from dpaudit.auditing.disclosure import public_form
from dpaudit.reports import attacks
from dpaudit.reports.audit_document import render_markdown
from dpaudit.reports.card import Released, render_card
from dpaudit.results import AttackBound, AuditResult, Message
from dpaudit.results.publication import About
from dpaudit.results.rounding import in_100

Samples = dict[str, Callable[[], AuditResult]]
TITLE = "What an attacker can do"


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"\d+", text)]


def with_bounds(result: AuditResult, release: AttackBound, batch: AttackBound) -> AuditResult:
    assert result.guarantees.approximate is not None
    found = result.guarantees.approximate.model_copy(
        update={"attack": release, "batch_attack": batch}
    )
    guarantees = result.guarantees.model_copy(update={"approximate": found})
    return result.model_copy(update={"guarantees": guarantees})


def demo_bounds() -> Iterator[AttackBound]:
    """Of today's demo: for readers, and for someone who knows the batch."""
    one = ApproximateAccountant(2 * 2 / (32 * 0.7))
    accountant = ReleaseAccountant(one, one, SecretBatches(((14, 2),)))
    yield AttackBound.of(accountant.attack_curve(48, 1e-5))
    yield AttackBound.of(accountant.batch_attack_curve(48, 1e-5))


def test_whole_numbers_are_rounded_up() -> None:
    shares = {0.62: 62, 0.62001: 63, 0.6225: 63, 0.07: 7, 0.29: 29, 1e-9: 1, 0.0: 0, 1.0: 100}
    assert {share: int(in_100(share)) for share in shares} == shares


def test_the_demos_sentences_are_true_and_readers_stand_first(samples: Samples) -> None:
    release, batch = demo_bounds()
    toss_up, alarms, rates = attacks.sentences(with_bounds(samples["secret"](), release, batch))
    assert numbers(toss_up) == [52, 100, 63, 50]
    assert numbers(alarms) == [1, 100, 2, 100, 5, 1]
    tenth, hundredth = (100 * batch.curve.precision(prior, 0.01) for prior in (0.1, 0.01))
    assert 32 < tenth <= 33 and 4 < hundredth <= 5
    assert numbers(rates) == [1, 10, 1, 100, 13, 100, 1, 100, 2, 33, 5]
    assert 12 < 100 * release.curve.precision(0.1, 0.01) <= 13
    assert 1 < 100 * release.curve.precision(0.01, 0.01) <= 2
    # Where both levels are equal there is one number each, and nobody is in the dark.
    toss_up, alarms, rates = attacks.sentences(with_bounds(samples["mean"](), batch, batch))
    assert numbers(toss_up) == [63, 100, 50]
    assert numbers(alarms) == [1, 100, 5, 100, 1]
    assert numbers(rates) == [1, 10, 1, 100, 33, 100, 1, 100, 5]


def require_on_first_screen(result: AuditResult) -> None:
    page = render_markdown(result)
    assert TITLE in page[: page.index("\n## ")]
    assert page.count(TITLE) == 1


@pytest.mark.parametrize("name", ["mean", "secret", "rho", "budgets"])
def test_the_box_is_on_the_first_screen(samples: Samples, name: str) -> None:
    require_on_first_screen(samples[name]())


def test_readers_outside_have_the_box_and_a_card_two_of_its_sentences(
    make_run: Callable[..., Any],
) -> None:
    inside = make_run(aggregator="mean").audit()
    result = public_form(inside)
    require_on_first_screen(result)
    toss_up, alarms, rates = attacks.sentences(result)
    assert [toss_up, alarms, rates] == list(attacks.sentences(inside))
    card = render_card(Released(result, "approximate", About(), {"train": 3}, True, None))
    assert toss_up[:40] in card and alarms[:40] in card
    assert rates[:40] not in card


def test_claims_that_fail_and_costs_of_these_texts_have_no_number(samples: Samples) -> None:
    failed = samples["mean"]().model_copy(update={"verdict": "fail"})
    assert list(attacks.box(failed)) == []
    median = samples["median"]()
    assert list(attacks.sentences(median)) == []
    reason = Message(code="risk.no-attack-bound", words="Nothing bounds it.")
    guarantees = median.guarantees.model_copy(update={"no_attack": reason})
    explained = median.model_copy(update={"guarantees": guarantees})
    assert "Nothing bounds it." in render_markdown(explained)
    # The approximate figures of a run whose claim is of its texts promise nothing.
    mean = samples["mean"]()
    assert mean.claim is not None
    claim = mean.claim.model_copy(update={"kind": "ex-post"})
    assert list(attacks.sentences(mean.model_copy(update={"claim": claim}))) == []


def test_the_sentences_are_about_the_claims_own_unit_and_relation(samples: Samples) -> None:
    mean = samples["mean"]()
    assert mean.claim is not None
    changed = mean.claim.model_copy(update={"relation": "replace", "unit": "user"})
    person, *_ = attacks.sentences(mean.model_copy(update={"claim": changed}))
    of_three = changed.model_copy(update={"records_per_user": 3})
    toss_up, *_ = attacks.sentences(mean.model_copy(update={"claim": of_three}))
    plain, *_ = attacks.sentences(mean)
    for said in (person, toss_up):
        assert "person's records" in said and "in their place" in said and "user" not in said
    assert 3 in numbers(toss_up) and 3 not in numbers(person)
    assert "record was used" in plain and "in its place" not in plain
