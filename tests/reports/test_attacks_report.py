"""What an attacker can do, in a report's words: each number is true, and rounded up."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest

from dpaudit.accounting import ApproximateAccountant, ReleaseAccountant, SecretBatches
from dpaudit.accounting.risk import Way
from dpaudit.auditing.disclosure import public_form
from dpaudit.reports import attacks
from dpaudit.reports.audit_document import render_html, render_markdown
from dpaudit.reports.card import Released, render_card
from dpaudit.reports.drawing import file_of
from dpaudit.reports.figures import attack_curves
from dpaudit.results import Attack, AttackBound, AuditResult, CanaryGuesses, Message
from dpaudit.results.publication import About
from dpaudit.results.rounding import in_100
from tests.settings import MARK

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
    card = render_card(Released(result, "approximate", About(), {"train": 3}, True, None, MARK))
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


def test_numbers_in_short_are_true_at_both_levels(samples: Samples) -> None:
    release, batch = demo_bounds()
    for found, expected in (
        (with_bounds(samples["secret"](), release, batch), [52, 100, 50, 1, 100, 2, 100, 63, 5]),
        (with_bounds(samples["mean"](), batch, batch), [63, 100, 50, 1, 100, 5, 100]),
    ):
        said = attacks.in_short(found)
        assert sorted(numbers(said)) == sorted(expected), said
        assert "random numbers" in said and "a certain record" in said
    shown = re.findall(r"[\d.]+(?=%| \()|(?<=advantage )[\d.]+", attacks.rates_in_short(found))
    assert float(shown[0]) >= batch.advantage and "both levels" in attacks.rates_in_short(found)
    failed = samples["mean"]().model_copy(update={"verdict": "fail"})
    assert attacks.in_short(failed) == attacks.rates_in_short(failed) == ""


def test_a_figures_words_round_up(samples: Samples) -> None:
    """Its stated rates are the curve's, rounded up, for readers first."""
    release, batch = demo_bounds()
    page = render_markdown(with_bounds(samples["secret"](), release, batch))
    (words,) = (line for line in page.splitlines() if "rate of false alarms" in line)
    stated = [float(share) / 100 for share in re.findall(r"([\d.]+)%", words)]
    assert stated[:3] == [0.001, 0.01, 0.1] and len(stated) == 9
    for bounds, shown in ((release, stated[3:6]), (batch, stated[6:])):
        for rate, most in zip(stated[:3], shown, strict=True):
            exact = bounds.curve.true_positives(rate)
            assert exact <= most < exact * 1.01
    assert "optimal composition" in words and "secret batches" in words


@pytest.mark.parametrize("name", ["mean", "secret", "rho"])
def test_the_curve_is_drawn_inside_and_outside(samples: Samples, name: str) -> None:
    result = samples[name]()
    outside = result.model_copy(update={"audience": "public"})
    for each in (result, outside):
        html = render_html(each)
        assert html.count('alt="The most that a test can tell') == 1
    found = result.guarantees.attacks
    assert found is not None and found.attack is not None and found.batch_attack is not None
    apart = found.attack.lines != found.batch_attack.lines
    drawing = attack_curves(found.attack, found.batch_attack if apart else None, "")
    svg = file_of(drawing, "svg", "", ()).decode()
    assert ("someone who knows the batch" in svg) == apart
    assert "without the texts" in svg and "0.01%" in svg


def seen(result: AuditResult, **empirical: Any) -> AuditResult:
    found = result.guarantees.empirical.model_copy(update=empirical)
    return result.model_copy(
        update={"guarantees": result.guarantees.model_copy(update={"empirical": found})}
    )


def test_lower_bounds_stand_beside_and_only_inside(samples: Samples) -> None:
    mean = samples["mean"]()
    canaries = CanaryGuesses(
        coins=64, right=41, epsilon=0.21999, most=2.3, delta=1e-5, confidence=0.95
    )
    attack = Attack(epsilon=0.0, estimate=0.2, delta=1e-5, confidence=0.95, trials=40, beyond=0)
    both = seen(mean, canaries=canaries, attack=attack)
    lines = [line for line in render_markdown(both).splitlines() if "Lower bound" in line]
    attacked, guessed = lines
    assert numbers(guessed)[:2] == [64, 41] and "0.2199" in guessed and "0.22 " not in guessed
    assert "refutes no epsilon" in attacked and 80 in numbers(attacked)
    assert list(attacks.sentences(both)) == list(attacks.sentences(mean))
    outside = both.model_copy(update={"audience": "public"})
    assert "Lower bound" not in render_markdown(outside)
    assert "Lower bound" not in render_markdown(mean)


def test_the_odds_of_these_very_texts_are_the_officers_alone(samples: Samples) -> None:
    median = samples["median"]()
    found = median.guarantees.ex_post
    assert found is not None
    reason = Message(code="risk.no-attack-bound", words="Nothing bounds it.")

    def odds(**changes: Any) -> str:
        changed = found.model_copy(update=changes)
        guarantees = median.guarantees.model_copy(update={"ex_post": changed, "no_attack": reason})
        return attacks.posterior_odds(median.model_copy(update={"guarantees": guarantees}))

    # e^0.77 is 2.1598: rounded up. The larger of rise and fall, and clusters, whatever readers pay.
    said = odds(batch_epsilon=0.77, epsilon=0.1, exact=0.7, rise=0.7, fall=0.1)
    assert "2.16 " in said and "must not be published" in said and "all other records" in said
    assert "2.01 " not in said
    assert odds(relation="replace") == odds(delta=1e-6) == odds(batch_epsilon=math.inf) == ""
    assert "person's records" in odds(unit="user", records_per_user=3)
    guarantees = median.guarantees.model_copy(update={"no_attack": reason})
    inside = median.model_copy(update={"guarantees": guarantees})
    assert "by a factor of at most" in render_markdown(inside)
    outside = inside.model_copy(update={"audience": "public"})
    assert attacks.posterior_odds(outside) == ""
    assert list(attacks.details(outside)) == []
    failed = inside.model_copy(update={"verdict": "fail"})
    assert list(attacks.box(failed)) == list(attacks.details(failed)) == []


def test_an_ex_post_run_says_why_nothing_bounds_attacks(make_run: Callable[..., Any]) -> None:
    inside = make_run().audit()
    public = public_form(inside)
    for result in (inside, public):
        reason = result.guarantees.no_attack
        assert reason is not None and reason.code == "risk.no-attack-bound"
        assert str(reason) in render_markdown(result)
        assert str(reason) == attacks.in_short(result)
    assert attacks.posterior_odds(inside) and not attacks.posterior_odds(public)


def test_what_is_said_of_how_a_bound_was_found(samples: Samples) -> None:
    release, batch = demo_bounds()
    ways = get_args(Way)
    said = {way: attacks.found_by(batch.model_copy(update={"method": (way,)})) for way in ways}
    assert len({*said.values()}) == len(ways)
    assert "least" not in said["ranges"] and "least" in attacks.found_by(release)
    assert attacks.found_by(batch.model_copy(update={"method": ()})) == ""
