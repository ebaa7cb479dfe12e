"""The cost of mean runs, in words, for `dpaudit budget`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import ROUND_FLOOR

from dpaudit.reports.document import Definitions, Document, Entry
from dpaudit.reports.levels import attack_words
from dpaudit.reports.text import counted
from dpaudit.results import AttackBound
from dpaudit.results.budget import BatchCost, MeanBudget, OwnBudgets, RoundsCost
from dpaudit.results.rounding import decimals, delta_bound, lower_bound, stated


def build(found: MeanBudget, *, fewest: bool = False) -> Document:
    """Return a budget in words; `fewest`: contexts were looked for."""
    least = f". No fewer contexts are within {_limit(found)}" if fewest else ""
    entries = [Entry(*line) for line in lines(found)]
    return Document(f"{heading(found)}{least}", [Definitions(entries)])


def heading(found: MeanBudget) -> str:
    """Return what is paid for, in a line."""
    size = f"batches of {found.batch_size:g} contexts"
    if isinstance(found, OwnBudgets):
        return f"A budget for each context, in {size}"
    if not isinstance(found, RoundsCost):
        searched = found.asked_epsilon or found.asked_advantage or found.asked_true_positives
        if searched and not found.tokens:
            return f"{_pays_for(found, 'token')} per batch, in {size}, costs"
        return f"{counted(found.tokens or 0, 'token')} per batch, in {size}"
    batches = f"all {found.batches:,} batches"
    if found.generated < found.batches:
        batches = f"{found.generated:,} of {found.batches:,} batches"
    elif found.batches == 1:
        batches = "the only batch"
    label = "" if found.labels == 1 else f" of each of {found.labels:,} labels"
    if found.texts:
        texts = f"{found.texts:,} texts of up to {counted(found.tokens, 'token')}"
        return f"{texts}, in {counted(found.rounds, 'round')} of {batches}{label}"
    return f"{_pays_for(found, 'round')} of {batches}{label} costs"


def _limit(found: MeanBudget) -> str:
    """Return the limit that was asked for."""
    if found.asked_advantage is not None:
        return f"advantage {found.asked_advantage:g}"
    if (rates := found.asked_true_positives) is not None:
        return f"{rates.most:g} true positives at {rates.at:g} false ones"
    return f"epsilon {found.asked_epsilon or 0:g}"


def _pays_for(found: MeanBudget, what: str) -> str:
    limit = _limit(found)
    return f"{limit[0].upper()}{limit[1:]} pays for no {what}. One {what}"


def lines(found: MeanBudget) -> Iterator[tuple[str, str]]:
    """Yield what a budget says, each line with its name."""
    if isinstance(found, OwnBudgets):
        yield from _own(found)
    elif isinstance(found, RoundsCost):
        yield from _levels(found, f"epsilon {decimals(found.epsilon)}", found.attack)
    else:
        yield "batch level", f"epsilon {decimals(found.batch_epsilon)}"
        yield "", attack_words(found.batch_attack)
    if isinstance(found, BatchCost):
        yield "method", found.method
        yield from _lower_end(found)
    yield "delta", delta_bound(found.delta)
    yield "relation", found.relation
    if found.group_size != 1:
        unit = "records" if isinstance(found, RoundsCost) else "contexts"
        yield "group size", f"one unit changes {found.group_size} {unit}"
    if found.divisor != "fixed":
        yield "divisor", "the number of contexts, at least the batch size"
    if found.rebalancing_epsilon:
        yield "noisy counts", f"epsilon {found.rebalancing_epsilon!r}, inside the figures above"
    if isinstance(found, RoundsCost):
        yield from _alternatives(found)


def _levels(
    found: RoundsCost | OwnBudgets, epsilon: str, attack: AttackBound
) -> Iterator[tuple[str, str]]:
    yield "release level", f"{epsilon}, for readers of the texts"
    yield "", attack_words(attack)
    yield (
        "batch level",
        f"epsilon {decimals(found.batch_epsilon)}, for people who know each record's batch",
    )
    yield "", attack_words(found.batch_attack)


def _lower_end(found: BatchCost) -> Iterator[tuple[str, str]]:
    if found.batch_lower is not None:
        yield (
            "lower end",
            f"{decimals(found.batch_lower, rounding=ROUND_FLOOR)}: no accountant can state less",
        )
    elif found.method == "optimal" and found.batch_epsilon != 0:
        yield "lower end", "not known: another accountant may state less"


def _own(found: OwnBudgets) -> Iterator[tuple[str, str]]:
    shown = decimals if found.asked_epsilon is None else stated
    if found.epsilon is not None and found.texts is not None and found.attack is not None:
        yield "texts", f"{found.texts:,} in {counted(found.rounds, 'round')}"
        yield from _levels(found, f"epsilon {shown(found.epsilon)}", found.attack)
        each = "in each round"
    else:
        yield "batch level", f"epsilon {shown(found.batch_epsilon)}"
        yield "", attack_words(found.batch_attack)
        each = "for any number of tokens"
    yield "budget", f"rho {lower_bound(found.budget)} for each context, {each}"
    sure = f"each context takes part in the first {found.sure_tokens:,} of its batch"
    if found.share is None:
        yield "tokens", f"{sure}, and in more if it moves them less than the clip lets it"
    elif found.share == 1:
        yield "tokens", f"each context takes part in all {found.tokens:,}"
    else:
        share = f"{math.floor(1000 * found.share) / 10:g}%"
        yield (
            "tokens",
            f"{sure}, and in all {found.tokens:,} if it uses {share} of the clip's range or less",
        )


def _alternatives(found: RoundsCost) -> Iterator[tuple[str, str]]:
    if (one := found.one_label) is not None:
        gives = (
            f"{one.texts:,} texts"
            if found.menu
            else f"epsilon {decimals(one.epsilon)} (release level)"
        )
        yield (
            "one label",
            f"{gives}, in {one.batches:,} batches: the same records without their labels",
        )
    if found.menu:
        menu = ", ".join(f"{each.texts:,} at clip {each.clip:g}" for each in found.menu)
        yield (
            "other clips",
            f"texts within {_limit(found)}: {menu}. A smaller clip gives each record less "
            "influence",
        )
