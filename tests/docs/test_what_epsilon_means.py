"""Every number of docs/what-epsilon-means.md is what the accounting gives, rounded up.

The example is the demo's mean. After a change of its settings or of a bound:
DPAUDIT_UPDATE_DOCS=1 pytest tests/docs/test_what_epsilon_means.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from dpaudit.accounting import ApproximateAccountant, AttackCurve, ReleaseAccountant, SecretBatches
from dpaudit.accounting.zcdp import renyi_attacks
from dpaudit.generation.config import load_config
from dpaudit.mechanisms import context_change
from dpaudit.reports import attacks
from dpaudit.results import Approximate, AttackBound, AuditResult, ClaimResult, Guarantees
from dpaudit.results.rounding import bound, exactly, in_100

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/what-epsilon-means.md"
DEMO = "generation/demos/bbc-mean.yaml"
UPDATE = "DPAUDIT_UPDATE_DOCS"
BLOCK = re.compile(r"(?<=<!-- begin )([\w-]+) -->\n(.*?)(?=<!-- end \1 -->)", re.S)

CONFIG = load_config(ROOT / DEMO)
ROUNDS, TOKENS, DELTA = CONFIG.batching.rounds, CONFIG.decoding.max_tokens, CONFIG.privacy.delta
#: Base rates, as one in so many; factors of odds; records; releases; epsilons.
ONE_IN, FACTORS, RECORDS, RELEASES = (2, 10, 100, 1000), (2, 3, 10), (1, 2, 5, 20), (1, 3, 10)
EPSILONS = (0.1, 1.0, 2.0, 3.0, 8.0)
FALSE_ALARMS = 0.01


def accountant(releases: int = 1) -> ReleaseAccountant:
    """Return both levels of the demo's mean, or of several such releases under keys of their own.

    Rounds and releases under fresh keys compose alike.
    """
    rule, rounds = CONFIG.batching.full_rule, ROUNDS * releases
    one = ApproximateAccountant.of(CONFIG.mechanism, context_change("record", "add_remove", rule))
    labels = CONFIG.batching.batches_per_label, CONFIG.batching.generate_per_label
    return ReleaseAccountant(replace(one, rounds=rounds), one, SecretBatches((labels,), rounds))


@cache
def levels(releases: int = 1) -> tuple[AttackCurve, AttackCurve]:
    """Bound attacks by readers of the texts, and by someone who knows the batches."""
    found = accountant(releases)
    return found.attack_curve(TOKENS, DELTA), found.batch_attack_curve(TOKENS, DELTA)


def figures(curve: AttackCurve) -> tuple[float, float]:
    """Return how often a toss-up is decided rightly, and true alarms at 1% of false ones."""
    return curve.accuracy(), curve.true_positives(FALSE_ALARMS)


def table(header: str, rows: Iterable[Iterable[str]]) -> str:
    columns = header.split("; ")
    head, *body = (f"| {' | '.join(cells)} |" for cells in (columns, *rows))
    return "\n".join([head, "|---" * len(columns) + "|", *body])


def of_100(*shares: float) -> list[str]:
    return [in_100(share) for share in shares]


#: Columns of a table on both levels, and what they say.
BOTH = "toss-up, readers; toss-up, batch known; true alarms, readers; true alarms, batch known"
ABOUT_BOTH = (
    "How often somebody is right about a toss-up, and the true alarms of a test that gives 1 false "
    "alarm in 100; at most, times in 100:"
)


def both_levels(curves: Iterable[AttackCurve]) -> list[str]:
    (reader, knowing), (found, found_knowing) = zip(*map(figures, curves), strict=True)
    return of_100(reader, knowing, found, found_knowing)


def sentences() -> Iterator[str]:
    release, batch = levels()
    result = AuditResult.model_construct(
        claim=ClaimResult.model_construct(
            kind="approximate", unit="record", relation="add_remove", records_per_user=None
        ),
        guarantees=Guarantees.model_construct(
            zcdp=None,
            approximate=Approximate.model_construct(
                attack=AttackBound.of(release), batch_attack=AttackBound.of(batch)
            ),
        ),
    )
    epsilons = accountant()
    batching = CONFIG.batching
    texts = len(CONFIG.data.labels) * batching.generate_per_label * ROUNDS
    reader = bound(epsilons.epsilon(TOKENS, DELTA))
    knowing = bound(epsilons.batch_level(TOKENS, DELTA).epsilon)
    yield (
        f"The example is the mean of `make demo` ([settings](../{DEMO})): {texts} texts, epsilon "
        f"{reader} for readers and {knowing} for someone who knows the batches, at delta "
        f"{exactly(DELTA)}, for one record that is added or removed. Its report says:\n"
    )
    yield from (f"- {said}" for said in attacks.sentences(result))
    three, ten = release.odds_tail(3), release.odds_tail(10)
    yield (
        "\nThe same readers can do no more than this:\n\n"
        f"- If her record is in, their odds of that rise threefold with a chance of at most "
        f"{in_100(three)} in 100, tenfold at most {in_100(100 * ten)} in 10,000.\n"
        f"- A secret that an attack guesses 1 time in 10 from texts written without her record, it "
        f"guesses at most {in_100(release.guess(0.1))} times in 100 from these texts."
    )


def base_rates() -> str:
    release, batch = levels()
    header = (
        "thought beforehand; right without the texts; with them, readers; with them, batch known; "
        "alarms that are true, readers; alarms that are true, batch known"
    )
    rows = []
    for times in ONE_IN:
        prior = 1 / times
        shares = (
            *(max(prior, 1 - prior), release.accuracy(prior), batch.accuracy(prior)),
            *(curve.precision(prior, FALSE_ALARMS) for curve in (release, batch)),
        )
        rows.append([f"1 in {times:,}", *(share_of_100(share) for share in shares)])
    return (
        "How often somebody is right about her, and how many alarms are true of a test that gives "
        f"a false one exactly 1 time in 100; at most, times in 100:\n\n{table(header, rows)}"
    )


def share_of_100(share: float) -> str:
    """Return times in 100 with two decimals, rounded up: whole ones would hide what texts add."""
    whole, hundredths = divmod(int(in_100(100 * share)), 100)
    return f"{whole}.{hundredths:02}"


def odds() -> str:
    release, batch = levels()
    rows = (
        [
            f"{factor}-fold or more",
            *(f"{int(in_100(100 * curve.odds_tail(factor))):,}" for curve in (release, batch)),
        ]
        for factor in FACTORS
    )
    return "At most, times in 10,000, if she is in:\n\n" + table(
        "the odds that she is in rise; to readers; batch known", rows
    )


def records() -> str:
    rows = [[str(k), *both_levels(curve.group(k) for curve in levels())] for k in RECORDS]
    return f"{ABOUT_BOTH}\n\n{table(f'records; {BOTH}', rows)}"


def releases() -> str:
    rows = []
    for count in RELEASES:
        epsilon = accountant(count).epsilon(TOKENS, DELTA)
        rows.append([str(count), bound(epsilon), *both_levels(levels(count))])
    header = f"releases; epsilon, readers; {BOTH}"
    return (
        f"The same, of releases like the example under keys of their own:\n\n{table(header, rows)}"
    )


def epsilons() -> str:
    rows = []
    for epsilon in EPSILONS:
        rho = ApproximateAccountant(0.0).most_rho_within(epsilon, DELTA)
        zcdp = figures(renyi_attacks(rho, (), DELTA))
        alone = figures(AttackCurve.of_epsilon(epsilon, DELTA))
        rows.append([exactly(epsilon), *of_100(alone[0], zcdp[0], alone[1], zcdp[1])])
    header = (
        "epsilon; toss-up, epsilon alone; toss-up, zCDP; "
        "true alarms, epsilon alone; true alarms, zCDP"
    )
    return f"The same, at delta {exactly(DELTA)}:\n\n{table(header, rows)}"


GENERATED: dict[str, Callable[[], str]] = {
    "sentences": lambda: "\n".join(sentences()),
    "base-rates": base_rates,
    "odds": odds,
    "records": records,
    "releases": releases,
    "epsilons": epsilons,
}


@cache
def generated(name: str) -> str:
    return GENERATED[name]()


def filled(page: str) -> str:
    return BLOCK.sub(lambda found: f"{found[1]} -->\n{generated(found[1])}\n", page)


def test_page_says_what_the_accounting_gives() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name, _ in BLOCK.findall(page)] == list(GENERATED)
    if os.environ.get(UPDATE):
        PAGE.write_text(filled(page), "utf-8")
    assert PAGE.read_text("utf-8") == filled(page), f"run {UPDATE}=1 pytest {Path(__file__).name}"


def test_no_other_sentence_has_a_number() -> None:
    written = re.sub(r"\]\([^)]*\)", "", BLOCK.sub("", PAGE.read_text("utf-8")))
    assert not re.search(r"\d", written)


def attained(range_of_a_draw: float, draws: int) -> Callable[[float], tuple[float, float]]:
    """Return an attack that works: every draw answers truthfully as often as its range allows.

    Gives, for an attacker's base rate, how often it is right, and its true alarms at 1% of false
    ones.
    """
    truthful = expit(range_of_a_draw / 2)
    counts = np.arange(draws + 1)
    inside, outside = (binom.pmf(counts, draws, p) for p in (truthful, 1 - truthful))

    def found(prior: float) -> tuple[float, float]:
        right = float(np.maximum(prior * inside, (1 - prior) * outside).sum())
        false, true = np.cumsum(outside[::-1]), np.cumsum(inside[::-1])
        return right, float(np.interp(FALSE_ALARMS, false, true))

    return found


def cells(name: str, page: str) -> dict[str, list[float]]:
    """Return a table's rows by their first cell."""
    block = dict(BLOCK.findall(page))[name]
    rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")]
    return {first: [float(cell) for cell in rest] for first, *rest in rows[1:]}


def reached(attack: float, bound: float) -> bool:
    return attack <= bound + 1e-9


def require_above_attacks(page: str) -> None:
    """Hold what is said of someone who knows the batches against attacks that work."""
    eta, draws = accountant().batch.eta, TOKENS * ROUNDS
    for shown, right in (
        (cells("records", page)[str(k)], attained(k * eta, draws)) for k in RECORDS
    ):
        accuracy, alarms = (100 * share for share in right(0.5))
        assert reached(accuracy, shown[1]) and reached(alarms, shown[3])
    for count in RELEASES:
        shown = cells("releases", page)[str(count)]
        accuracy, alarms = (100 * share for share in attained(eta, count * draws)(0.5))
        assert reached(accuracy, shown[2]) and reached(alarms, shown[4])
        assert shown[2] <= accuracy + 3 and shown[4] <= alarms + 8
    one = attained(eta, draws)
    for times in ONE_IN:
        shown = cells("base-rates", page)[f"1 in {times:,}"]
        accuracy, alarms = one(1 / times)
        precision = alarms / (alarms + FALSE_ALARMS * (times - 1))
        assert reached(100 * accuracy, shown[2]) and reached(100 * precision, shown[4])


def test_figures_lie_above_attacks_that_work() -> None:
    require_above_attacks(PAGE.read_text("utf-8"))


@pytest.mark.parametrize("block", ["records", "releases", "base-rates"])
def test_smaller_figures_are_found_out(block: str) -> None:
    page = PAGE.read_text("utf-8")

    def lowered(found: re.Match[str]) -> str:
        if found[1] != block:
            return f"{found[1]} -->\n{found[2]}"
        # Cells behind the first: what a row is about stays.
        number = re.compile(r"(?<=[|] )\d+(?:[.]\d+)?(?= [|]\n| [|] )")
        lines = []
        for line in found[2].splitlines():
            about, bar, rest = line.removeprefix("| ").partition(" |")
            smaller = number.sub(lambda cell: f"{0.8 * float(cell[0]):.1f}", f"{rest}\n").rstrip(
                "\n"
            )
            lines.append(f"| {about}{bar}{smaller}" if bar else line)
        return f"{found[1]} -->\n" + "\n".join(lines) + "\n"

    with pytest.raises(AssertionError):
        require_above_attacks(BLOCK.sub(lowered, page))
