"""`dpaudit budget`."""

from __future__ import annotations

import json
from decimal import ROUND_FLOOR
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.options import POSITIVE, RELATIONS, FiniteRange, output_options
from dpaudit.commands.terminal import output, stdout, tell

if TYPE_CHECKING:
    from dpaudit.accounting import Method
    from dpaudit.mechanisms import DivisorKind, Relation


@click.command()
@click.option("--aggregator", type=click.Choice(["mean"]), required=True, help="Median has no budget known beforehand.")
@click.option("--clip", type=POSITIVE, required=True, help="Clip c: logits, or differences, lie in [-c, c].")
@click.option("--temperature", type=POSITIVE, required=True)
@click.option(
    "--batch-size",
    "sizes",
    type=POSITIVE,
    required=True,
    multiple=True,
    help="What the sum of contexts is divided by. Repeat it for a table.",
)
@click.option("--records", type=click.IntRange(min=1, max=10**12), required=True, help="Number of private records.")
@click.option("--delta", type=FiniteRange(min=0, max=1, min_open=True, max_open=True), help="[default: N ** -1.1]")
@click.option("--epsilon", type=POSITIVE, help="Find the most tokens within this epsilon.")
@click.option("--tokens", type=click.IntRange(min=0), help="Find the epsilon of this many tokens per batch.")
@click.option(
    "--method", type=click.Choice(["rdp", "optimal"]), default="rdp", show_default=True, help="Of composition."
)
@click.option("--relation", type=RELATIONS, default="add_remove", show_default=True, help="Of contexts.")
@click.option(
    "--group-size",
    type=click.IntRange(min=1, max=10**6),
    default=1,
    show_default=True,
    help="How many contexts one unit can change.",
)
@click.option(
    "--divisor",
    type=click.Choice(["fixed", "actual"]),
    default="fixed",
    show_default=True,
    help="Divide by the batch size, or by the number of contexts, with the batch size as a public floor.",
)
@click.option(
    "--rebalancing-epsilon",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    help="What noisy cluster counts cost one unit; it is part of epsilon.",
)
@output_options
def budget(
    aggregator: str,
    sizes: tuple[float, ...],
    records: int,
    delta: float | None,
    epsilon: float | None,
    tokens: int | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Mean aggregation's epsilon from tokens, or the reverse.

    \b
    Example:
      dpaudit budget --aggregator mean --clip 9 --temperature 1.5 --batch-size 64 \\
        --records 108000 --epsilon 10
    """
    if (epsilon is None) == (tokens is None):
        raise click.UsageError("Give either --epsilon or --tokens.")
    if len(set(sizes)) < len(sizes):
        raise click.UsageError("A batch size is named twice.")
    if delta is None and records == 1:
        raise click.UsageError("One record leaves no default for delta: give --delta.")
    delta = records**-1.1 if delta is None else delta
    if delta * records >= 1:
        from dpaudit.results.rounding import stated

        tell(
            f"dpaudit: warning: delta {stated(delta)} is not below 1 / records = 1 / {records}: publishing a random "
            "record whole would pass for private. Give a smaller --delta."
        )
    try:
        found = [_budget_of(size, epsilon, tokens, delta=delta, **settings) for size in sizes]
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    with output():
        if as_json:
            click.echo(json.dumps(found if len(found) > 1 else found[0]))
        elif len(found) > 1:
            _print_budgets(found)
        else:
            click.echo(_budget_in_words(found[0]))


def _budget_of(
    size: float,
    epsilon: float | None,
    tokens: int | None,
    *,
    clip: float,
    temperature: float,
    delta: float,
    method: Method,
    relation: Relation,
    divisor: DivisorKind,
    group_size: int,
    rebalancing_epsilon: float,
) -> dict[str, Any]:
    """What `dpaudit budget --json` prints for one batch size."""
    from dpaudit import mechanisms
    from dpaudit.accounting import ApproximateAccountant
    from dpaudit.results import finite_or_text

    change = mechanisms.ContextChange(relation, group_size)
    # All of the rebalancing on one count: the worst case, however records make up contexts.
    accountant = ApproximateAccountant(
        mechanisms.bounded_range(clip, temperature, size, change, divisor), laplace=(rebalancing_epsilon,)
    )
    if tokens is None:
        assert epsilon is not None
        tokens = accountant.affordable_tokens(epsilon, delta, method)
    spent = accountant.epsilon(tokens, delta, method)
    return {
        "tokens": tokens,
        "epsilon": finite_or_text(spent.epsilon),
        "delta": delta,
        "method": method,
        "rho": finite_or_text(accountant.rho(tokens)),
        "relation": relation,
        "epsilon_lower": spent.epsilon_lower,
        "batch_size": size,
        "divisor": divisor,
        "group_size": group_size,
        "sensitivity": mechanisms.mean_sensitivity(change, divisor).text,
        "rebalancing_epsilon": rebalancing_epsilon,
    }


def _budget_in_words(found: dict[str, Any]) -> str:
    from dpaudit.results.rounding import decimals, delta_bound

    tokens, epsilon, low = found["tokens"], found["epsilon"], found["epsilon_lower"]
    cost = "1 token per batch costs" if tokens == 1 else f"{tokens} tokens per batch cost"
    how = [found["method"], found["relation"]]
    if found["divisor"] != "fixed":
        how.append("divisor: the number of contexts, at least the batch size")
    if found["group_size"] != 1:
        how.append(f"{found['group_size']} contexts per unit")
    how += _rebalancing(found)
    line = f"{cost} epsilon {decimals(epsilon)} at delta {delta_bound(found['delta'])} ({', '.join(how)})."
    if low is None:  # what the optimal method says beside its epsilon
        return line
    if low == 0 and epsilon != 0:
        return f"{line} Optimal composition could not do better here: Renyi accounting or the pure sum gave the figure."
    return f"{line} No accountant can go below {decimals(low, rounding=ROUND_FLOOR)}."


def _rebalancing(found: dict[str, Any]) -> list[str]:
    epsilon = found["rebalancing_epsilon"]
    return [f"rebalancing epsilon {epsilon!r} inside"] if epsilon else []


def _print_budgets(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from dpaudit.results.rounding import decimals, delta_bound

    first = found[0]
    said = (f"delta {delta_bound(first['delta'])}", first["method"], first["sensitivity"], *_rebalancing(first))
    click.echo("; ".join(said))
    table = Table()
    for heading in ("batch size", "tokens per batch", "epsilon"):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(f"{each['batch_size']:g}", str(each["tokens"]), decimals(each["epsilon"]))
    stdout().print(table)
