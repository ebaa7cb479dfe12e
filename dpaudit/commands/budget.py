"""`dpaudit budget`."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass
from decimal import ROUND_FLOOR
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.options import POSITIVE, RELATIONS, FiniteRange, output_options
from dpaudit.commands.rounds import SecretRuns, show_plans
from dpaudit.commands.terminal import output, stdout, tell

if TYPE_CHECKING:
    from dpaudit.accounting import ApproximateAccountant, Method
    from dpaudit.mechanisms import ContextChange, DivisorKind, Relation

_MANY = click.IntRange(min=1, max=1 << 20)
#: Of a budget, for the rounding of what is spent of it.
_ROOM = 1 - 2.0**-30
#: Of a batch, and of its tokens, where fewer are looked for or more would say nothing.
MOST_CONTEXTS, MOST_SURE = 1 << 20, 1 << 40


@click.command()
@click.option("--clip", type=POSITIVE, required=True, help="Clip c: logits, or differences, lie in [-c, c].")
@click.option("--temperature", type=POSITIVE, required=True)
@click.option(
    "--batch-size",
    "sizes",
    type=POSITIVE,
    multiple=True,
    help="What the sum of contexts is divided by. Repeat it for a table; leave it out to find the fewest contexts.",
)
@click.option("--records", type=click.IntRange(min=1, max=10**12), required=True, help="Number of private records.")
@click.option("--delta", type=FiniteRange(min=0, max=1, min_open=True, max_open=True), help="[default: N ** -1.1]")
@click.option("--epsilon", type=POSITIVE, help="Find the most tokens, or texts in rounds, within this epsilon.")
@click.option("--tokens", type=click.IntRange(min=0), help="Find the epsilon of this many tokens per batch.")
@click.option("--texts", type=_MANY, help="Find the rounds for so many texts, and their epsilon at both levels.")
@click.option("--rounds", type=_MANY, help="Find the epsilon of so many rounds over the records, at both levels.")
@click.option("--labels", type=_MANY, help="How many labels the records have, for texts in rounds.  [default: 1]")
@click.option("--batches", type=_MANY, help="A label's batches in a round.  [default: as many as its records fill]")
@click.option("--generated", type=_MANY, help="How many of these are generated.  [default: all]")
@click.option("--individual", is_flag=True, help="With budgets of their own, contexts keep any number within epsilon.")
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
    sizes: tuple[float, ...],
    records: int,
    delta: float | None,
    epsilon: float | None,
    tokens: int | None,
    texts: int | None,
    rounds: int | None,
    labels: int | None,
    batches: int | None,
    generated: int | None,
    individual: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Epsilon, texts, tokens or contexts of a mean, from the others. Only a mean's cost is known beforehand.

    With --texts, --rounds, --labels, --batches or --generated, epsilon is that for readers of the texts, who do not
    know which batch a record was in (release level); else that for whoever does (batch level).

    \b
    Examples:
      dpaudit budget --clip 2 --temperature 1 --records 1230 --batch-size 32 --tokens 64 --labels 1 --epsilon 2
      dpaudit budget --clip 2 --temperature 1 --records 1230 --batch-size 32 --tokens 64 --labels 1 --texts 1000
      dpaudit budget --clip 9 --temperature 1.5 --records 108000 --batch-size 64 --epsilon 10
      dpaudit budget --clip 2 --temperature 1 --records 108000 --tokens 200 --epsilon 3
      dpaudit budget --clip 2 --temperature 1 --records 108000 --batch-size 64 --epsilon 3 --individual
    """
    in_rounds = any(given is not None for given in (texts, rounds, labels, batches, generated))
    if in_rounds and (not sizes or (tokens is None and not individual) or settings["method"] != "rdp"):
        raise click.UsageError("Texts in rounds need --batch-size and --tokens, and do without --method.")
    if in_rounds and tokens == 0:
        raise click.UsageError("Texts in rounds have a token at least: give --tokens 1 or more.")
    if sum(given is not None for given in (None if individual else epsilon, texts, rounds)) > 1:
        raise click.UsageError("Give one of --epsilon, --texts and --rounds: the others follow.")
    if individual and epsilon is None:
        raise click.UsageError("--individual needs --epsilon: budgets are worked out from it.")
    if individual and settings["divisor"] != "fixed":
        raise click.UsageError("--individual needs a fixed divisor: the number of contexts tells who takes part.")
    if individual and settings["method"] != "rdp":
        raise click.UsageError("--individual is by Rényi accounting: leave out --method.")
    if not sizes and (epsilon is None or tokens is None):
        raise click.UsageError("Without --batch-size give --epsilon and --tokens: the fewest contexts are found.")
    if sizes and not individual and not in_rounds and (epsilon is None) == (tokens is None):
        raise click.UsageError(
            "Give either --epsilon or --tokens; for texts in rounds within --epsilon give --labels, too."
        )
    if len(set(sizes)) < len(sizes):
        raise click.UsageError("A batch size is named twice.")
    if delta is None and records == 1:
        raise click.UsageError("One record leaves no default for delta: give --delta.")
    delta = records**-1.1 if delta is None else delta
    warn_of_delta(delta, records)
    try:
        if in_rounds:
            own = {name: value for name, value in settings.items() if name != "method"}
            groups: dict[str, Any] = {
                "records": records,
                "labels": labels or 1,
                "batches": batches,
                "generated": generated,
            }
            runs = [SecretRuns(size=size, tokens=tokens or 1, delta=delta, **groups, **own) for size in sizes]
            if not individual:
                show_plans(runs, epsilon, rounds=rounds, texts=texts, as_json=as_json)
                return
        asked = _Asked(epsilon, tokens, delta, **settings)
        if in_rounds:
            found = [asked.own_budgets(run.size, run, run.rounds_for(texts, rounds)) for run in runs]
        else:
            find = asked.own_budgets if individual else asked.of
            found = [find(size) for size in sizes or [asked.fewest(individual)]]
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
    with output():
        if as_json:
            click.echo(json.dumps(found if len(found) > 1 else found[0]))
        elif individual:
            for each in found:
                click.echo(_own_budgets_in_words(each))
        elif len(found) > 1:
            _print_budgets(found)
        else:
            words = _budget_in_words(found[0])
            click.echo(words if sizes else f"{found[0]['batch_size']} contexts per batch are the fewest: {words}")


def warn_of_delta(delta: float, records: int) -> None:
    """Say on stderr that a delta is as large as one of so many records."""
    if delta * records >= 1:
        from dpaudit.results.rounding import stated

        tell(
            f"dpaudit: warning: delta {stated(delta)} is not below 1 / records = 1 / {records}: publishing a random "
            "record whole would pass for private. Give a smaller --delta."
        )


@dataclass(frozen=True)
class _Asked:
    """A question about mean runs, whatever the number of contexts that it is asked for."""

    epsilon: float | None
    tokens: int | None
    delta: float
    clip: float
    temperature: float
    method: Method
    relation: Relation
    divisor: DivisorKind
    group_size: int
    rebalancing_epsilon: float

    @property
    def change(self) -> ContextChange:
        """What one unit does to contexts."""
        from dpaudit.mechanisms import ContextChange

        return ContextChange(self.relation, self.group_size)

    def accountant(self, size: float) -> ApproximateAccountant:
        """Of batches of so many contexts. All of the rebalancing is on one count: the worst case, whatever they are."""
        from dpaudit.accounting import ApproximateAccountant
        from dpaudit.mechanisms import bounded_range

        eta = bounded_range(self.clip, self.temperature, size, self.change, self.divisor)
        return ApproximateAccountant(eta, laplace=(self.rebalancing_epsilon,))

    def of(self, size: float) -> dict[str, Any]:
        """What `dpaudit budget --json` prints for a batch size. Raises ValueError where there is no answer."""
        from dpaudit.mechanisms import mean_sensitivity
        from dpaudit.results import finite_or_text

        accountant, tokens = self.accountant(size), self.tokens
        if tokens is None:
            assert self.epsilon is not None
            tokens = accountant.affordable_tokens(self.epsilon, self.delta, self.method)
        spent = accountant.epsilon(tokens, self.delta, self.method)
        return {
            "tokens": tokens,
            "batch_epsilon": finite_or_text(spent.epsilon),
            "delta": self.delta,
            "method": spent.method,
            "rho": finite_or_text(accountant.rho(tokens)),
            "relation": self.relation,
            "batch_lower": spent.epsilon_lower,
            "batch_size": size,
            "divisor": self.divisor,
            "group_size": self.group_size,
            "sensitivity": mean_sensitivity(self.change, self.divisor).text,
            "rebalancing_epsilon": self.rebalancing_epsilon,
        }

    def own_budgets(self, size: float, secret: SecretRuns | None = None, rounds: int = 1) -> dict[str, Any]:
        """The same with `--individual`: at the release level, for so many rounds, where batches are `secret`."""
        from dpaudit.mechanisms import ContextChange, bounded_range, range_of_draw, zcdp_of_draw
        from dpaudit.mechanisms.mean import ROUNDING

        assert self.epsilon is not None
        if secret is None:
            rho = self.accountant(size).most_rho_within(self.epsilon, self.delta)
            budget, level = rho / self.change.half_steps**2, "batch_epsilon"
        else:
            budget, level = secret.most_budget(self.epsilon, rounds), "epsilon"
            rho = budget * self.change.half_steps**2
        widest = bounded_range(self.clip, self.temperature, size, ContextChange("add_remove")) * (1 + ROUNDING)
        dearest = float(zcdp_of_draw(widest))
        sure = math.floor(budget * _ROOM / dearest) if dearest else MOST_SURE
        each = None if self.tokens is None else budget * _ROOM / max(1, self.tokens)
        share = None if each is None else min(1.0, range_of_draw(each) / widest)
        return {
            level: self.epsilon,
            "delta": self.delta,
            "rho": rho,
            "budget": budget,
            "rounds": rounds,
            "texts": None if secret is None else rounds * secret.texts,
            "batch_size": size,
            "sure_tokens": min(sure, MOST_SURE),
            "tokens": self.tokens,
            "share": share,
            "relation": self.relation,
            "group_size": self.group_size,
            "rebalancing_epsilon": self.rebalancing_epsilon,
        }

    def fewest(self, individual: bool) -> int:
        """The fewest contexts whose tokens cost no more than epsilon, or can all be paid for by every context.

        Raises:
            ValueError: MOST_CONTEXTS are too few.
        """
        assert self.epsilon is not None and self.tokens is not None

        def enough(size: int, method: Method = "rdp") -> bool:
            if individual:
                return bool(self.own_budgets(size)["sure_tokens"] >= self.tokens)
            return self.accountant(size).epsilon(self.tokens or 0, self.delta, method).epsilon <= (self.epsilon or 0.0)

        if not enough(MOST_CONTEXTS, self.method):
            raise ValueError(
                f"{self.tokens} tokens take more than {MOST_CONTEXTS:,} contexts at epsilon {self.epsilon:g}"
            )
        # Renyi accounting is quick, and never below the optimal bound: what it finds is where that one begins.
        found = 1 + bisect_left(range(1, MOST_CONTEXTS), True, key=enough)
        if individual or self.method == "rdp":
            return found
        return 1 + bisect_left(range(1, found), True, key=partial(enough, method=self.method))


def _own_budgets_in_words(found: dict[str, Any]) -> str:
    from dpaudit.results.rounding import delta_bound, lower_bound, stated

    how = [found["relation"], *([f"{found['group_size']} contexts per unit"] * (found["group_size"] != 1))]
    how += _rebalancing(found)
    budget, sure = lower_bound(found["budget"]), f"{found['sure_tokens']:,}"
    epsilon, each = f"{stated(found.get('batch_epsilon', 0.0))} at the batch level", ""
    if "epsilon" in found:
        rounds = "1 round" if found["rounds"] == 1 else f"{found['rounds']:,} rounds"
        epsilon = f"{stated(found['epsilon'])} at the release level for {found['texts']:,} texts in {rounds}"
        each = " in each round"
    said = (
        f"{found['batch_size']:g} contexts per batch, epsilon {epsilon}, delta {delta_bound(found['delta'])} "
        f"({', '.join(how)}): every context has a budget of rho {budget}{each}, for any number of tokens. It takes "
        f"part in the first {sure} of a batch, whatever it says"
    )
    if found["share"] is None:
        return f"{said}, and in more as it moves less than the clip lets it."
    if found["share"] == 1:
        return f"{said}: in all {found['tokens']:,}."
    share = f"{math.floor(1000 * found['share']) / 10:g}%"
    return f"{said}, and in all {found['tokens']:,} where its contributions have {share} of the clip's range or less."


def _budget_in_words(found: dict[str, Any]) -> str:
    from dpaudit.results.rounding import decimals, delta_bound

    tokens, epsilon, low = found["tokens"], found["batch_epsilon"], found["batch_lower"]
    cost = "1 token per batch costs" if tokens == 1 else f"{tokens} tokens per batch cost"
    how = [found["method"], found["relation"]]
    if found["divisor"] != "fixed":
        how.append("divisor: the number of contexts, at least the batch size")
    if found["group_size"] != 1:
        how.append(f"{found['group_size']} contexts per unit")
    how += _rebalancing(found)
    delta = delta_bound(found["delta"])
    line = f"{cost} epsilon {decimals(epsilon)} at the batch level, delta {delta} ({', '.join(how)})."
    if low is None:
        unknown = found["method"] == "optimal" and epsilon != 0
        return f"{line} How far accountants could go below is not known." if unknown else line
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
    for heading in ("batch size", "tokens per batch", "epsilon, batch level"):
        table.add_column(heading, justify="right")
    for each in found:
        table.add_row(f"{each['batch_size']:g}", str(each["tokens"]), decimals(each["batch_epsilon"]))
    stdout().print(table)
