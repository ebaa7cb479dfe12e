"""What mean runs cost, in words and tables: what `dpaudit budget` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import ROUND_FLOOR

from rich.console import Console
from rich.table import Table

from dpaudit.reports.text import counted
from dpaudit.results.budget import BatchCost, MeanBudget, OwnBudgets, RoundsCost
from dpaudit.results.rounding import decimals, delta_bound, lower_bound, stated


def print_budgets(found: Sequence[MeanBudget], console: Console, *, fewest: bool = False) -> None:
    """Print one budget in words, or several as a table; `fewest`, its contexts are what was looked for."""
    costs = [each for each in found if isinstance(each, BatchCost)]
    rounds = [each for each in found if isinstance(each, RoundsCost)]
    if len(costs) > 1:
        _print_costs(costs, console)
    elif len(rounds) > 1:
        _print_rounds(rounds, console)
    else:
        for each in found:
            lines = list(budget_words(each))
            if fewest and costs:
                lines[0] = f"{each.batch_size:g} contexts per batch are the fewest: {lines[0]}"
            console.out("\n".join(lines), highlight=False)


def budget_words(found: MeanBudget) -> Iterator[str]:
    """Give what a budget says, a line each."""
    if isinstance(found, BatchCost):
        yield _cost_words(found)
    elif isinstance(found, OwnBudgets):
        yield _own_words(found)
    elif isinstance(found, RoundsCost):
        yield from _rounds_words(found)


def _settings(found: MeanBudget, units: str, *first: str) -> str:
    said = [*first, found.relation]
    if found.divisor != "fixed":
        said.append("divisor: the number of contexts, at least the batch size")
    if found.group_size != 1:
        said.append(f"{found.group_size} {units} per unit")
    return ", ".join([*said, *_rebalancing(found)])


def _rebalancing(found: MeanBudget) -> list[str]:
    return [f"rebalancing epsilon {found.rebalancing_epsilon!r} inside"] if found.rebalancing_epsilon else []


def _cost_words(found: BatchCost) -> str:
    cost = "1 token per batch costs" if found.tokens == 1 else f"{found.tokens} tokens per batch cost"
    delta, settings = delta_bound(found.delta), _settings(found, "contexts", found.method)
    line = f"{cost} epsilon {decimals(found.batch_epsilon)} at the batch level, delta {delta} ({settings})."
    if found.batch_lower is not None:
        return f"{line} No accountant can go below {decimals(found.batch_lower, rounding=ROUND_FLOOR)}."
    unknown = found.method == "optimal" and found.batch_epsilon != 0
    return f"{line} How far accountants could go below is not known." if unknown else line


def _own_words(found: OwnBudgets) -> str:
    epsilon, each = f"epsilon {stated(found.batch_epsilon)} at the batch level", ""
    if found.epsilon is not None and found.texts is not None:
        texts = f"{found.texts:,} texts in {counted(found.rounds, 'round')}"
        batch = decimals(found.batch_epsilon)
        epsilon = f"epsilon {stated(found.epsilon)} at the release level ({batch} at the batch level) for {texts}"
        each = " in each round"
    said = (
        f"{found.batch_size:g} contexts per batch, {epsilon}, delta {delta_bound(found.delta)} "
        f"({_settings(found, 'contexts')}): every context has a budget of rho {lower_bound(found.budget)}{each}, for "
        f"any number of tokens. It takes part in the first {found.sure_tokens:,} of a batch, whatever it says"
    )
    if found.share is None:
        return f"{said}, and in more as it moves less than the clip lets it."
    if found.share == 1:
        return f"{said}: in all {found.tokens:,}."
    share = f"{math.floor(1000 * found.share) / 10:g}%"
    return f"{said}, and in all {found.tokens:,} where its contributions have {share} of the clip's range or less."


def _rounds_words(found: RoundsCost) -> Iterator[str]:
    label = "" if found.labels == 1 else f" of each of {found.labels:,} labels"
    batches = "the only batch" if found.batches == 1 else f"all {found.batches:,} batches"
    if found.generated < found.batches:
        batches = f"{found.generated:,} of {found.batches:,} batches"
    cost = (
        f"epsilon {decimals(found.epsilon)} at the release level, for readers of the texts; "
        f"{decimals(found.batch_epsilon)} at the batch level, for whoever knows a record's batch; "
        f"delta {delta_bound(found.delta)} ({_settings(found, 'records')})."
    )
    asked = "" if found.asked_epsilon is None else f"{found.asked_epsilon:g}"
    if found.texts:
        rounds = f"{counted(found.rounds, 'round')} of {batches}{label}"
        yield f"{found.texts:,} texts of up to {counted(found.tokens, 'token')}, in {rounds}: {cost}"
    else:
        yield f"No round is within epsilon {asked} at the release level: one of {batches}{label} costs {cost}"
    if (one := found.one_label) is not None:
        gives = f"{one.texts:,} texts" if asked else f"epsilon {decimals(one.epsilon)} at the release level"
        yield f"The same records under one label ({one.batches:,} batches): {gives}."
    if found.menu:
        menu = "; ".join(f"clip {each.clip:g}: {each.texts:,}" for each in found.menu)
        less = "A smaller clip lets records say less (docs/budgets.md)."
        yield f"Texts at epsilon {asked}, release level, by clip: {menu}. {less}"


def _print_costs(found: Sequence[BatchCost], console: Console) -> None:
    first = found[0]
    settings = (f"delta {delta_bound(first.delta)}", first.method, first.sensitivity, *_rebalancing(first))
    rows = ((f"{each.batch_size:g}", str(each.tokens), decimals(each.batch_epsilon)) for each in found)
    _print_table("; ".join(settings), ("batch size", "tokens per batch", "epsilon, batch level"), rows, console)


def _print_rounds(found: Sequence[RoundsCost], console: Console) -> None:
    first = found[0]
    settings = f"delta {delta_bound(first.delta)}; {first.tokens:,} tokens; {first.relation}"
    headings = ("batch size", "batches", "rounds", "texts", "epsilon, release level", "epsilon, batch level")
    rows = (
        (
            f"{each.batch_size:g}",
            *(f"{count:,}" for count in (each.batches, each.rounds, each.texts)),
            decimals(each.epsilon),
            decimals(each.batch_epsilon),
        )
        for each in found
    )
    _print_table(settings, headings, rows, console)


def _print_table(title: str, headings: Sequence[str], rows: Iterator[tuple[str, ...]], console: Console) -> None:
    console.out(title, highlight=False)
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
