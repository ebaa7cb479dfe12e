"""What `dpaudit budget` says of runs whose records' batches are secret: both levels, rounds, and texts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.terminal import output, stdout, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpaudit.accounting import ReleaseAccountant
    from dpaudit.accounting.release import Plan
    from dpaudit.mechanisms import DivisorKind, Relation

#: Clips that are set side by side at one epsilon.
_MENU = (1.0, 2.0, 4.0)


@dataclass(frozen=True)
class SecretRuns:
    """Mean runs in rounds, every record of which is hashed in secret into one of its label's batches.

    Attributes:
        records: private records.
        labels: how many labels they have; 1 without labels.
        batches: of one label, in one round; None for as many as `size` records fill.
        generated: of these; None for all.
        tokens: the most of a batch, each time.
        group_size: how many records one unit has.
    """

    clip: float
    temperature: float
    size: float
    records: int
    labels: int
    batches: int | None
    generated: int | None
    tokens: int
    delta: float
    relation: Relation
    divisor: DivisorKind
    group_size: int
    rebalancing_epsilon: float

    @property
    def of_label(self) -> int:
        """How many batches a label has in a round. Raises ValueError where its records fill none."""
        if self.batches is not None:
            return self.batches
        filled = math.floor(self.records / self.labels / self.size)
        if not filled:
            raise ValueError(f"{self.records:,} records of {self.labels:,} labels do not fill a batch of {self.size:g}")
        return filled

    @property
    def texts(self) -> int:
        """Of a round. Raises ValueError where more batches are to be generated than there are."""
        generated = self.of_label if self.generated is None else self.generated
        if generated > self.of_label:
            raise ValueError(f"a label has {self.of_label:,} batches, of which {generated:,} cannot be generated")
        return generated * self.labels

    @property
    def accountant(self) -> ReleaseAccountant:
        """Of both levels, in one round."""
        from dpaudit.accounting import ApproximateAccountant, ReleaseAccountant
        from dpaudit.mechanisms import ContextChange, bounded_range
        from dpaudit.runs import SecretBatches

        def eta(change: ContextChange) -> float:
            return bounded_range(self.clip, self.temperature, self.size, change, self.divisor)

        laplace = (self.rebalancing_epsilon,) if self.rebalancing_epsilon else ()
        several = 2 if self.relation == "replace" else 1
        return ReleaseAccountant(
            ApproximateAccountant(eta(ContextChange(self.relation, self.group_size)), laplace=laplace),
            ApproximateAccountant(eta(ContextChange("add_remove"))),
            SecretBatches(((self.of_label, self.texts // self.labels),)),
            records=self.group_size * several,
        )

    def cost(self, rounds: int) -> Plan:
        """What so many rounds cost at both levels."""
        from dpaudit.accounting.release import cost_of_texts

        return cost_of_texts(self.accountant, rounds * self.texts, self.tokens, self.delta, self.texts)

    def affordable(self, epsilon: float) -> Plan:
        """The most rounds that readers' epsilon pays for."""
        from dpaudit.accounting.release import most_texts

        return most_texts(self.accountant, epsilon, self.tokens, self.delta, self.texts)

    def rounds_for(self, texts: int | None, rounds: int | None) -> int:
        """How many rounds are asked about, by themselves or by their texts: one by default."""
        return rounds or (1 if texts is None else -(-texts // self.texts))

    def most_budget(self, epsilon: float, rounds: int) -> float:
        """The budget of a context in each of so many rounds that keeps any number of tokens within readers' epsilon."""
        return self.accountant.of_rounds(rounds).most_rho_within(epsilon, self.delta)

    def answer(self, epsilon: float | None, rounds: int) -> dict[str, Any]:
        """What `--json` prints: of the most rounds within `epsilon`, or of so many where that is None.

        Where not one is, the epsilons are what one would cost.
        """
        from dpaudit.results import finite_or_text

        plan = self.cost(rounds) if epsilon is None else self.affordable(epsilon)
        cost = plan if plan.rounds else self.cost(1)
        return {
            "rounds": plan.rounds,
            "texts": plan.texts,
            "epsilon": finite_or_text(cost.epsilon),
            "batch_epsilon": finite_or_text(cost.batch_epsilon),
            "delta": self.delta,
            "batches": self.of_label,
            "generated": self.texts // self.labels,
            "labels": self.labels,
            "tokens": self.tokens,
            "batch_size": self.size,
            "clip": self.clip,
            "relation": self.relation,
            "group_size": self.group_size,
            "divisor": self.divisor,
            "rebalancing_epsilon": self.rebalancing_epsilon,
        }

    def beside(self, epsilon: float | None, rounds: int) -> dict[str, Any]:
        """What other settings give: the same records under one label, and other clips at that epsilon."""
        one = None
        if self.labels > 1:
            together = None if self.batches is None else self.batches * self.labels
            merged = replace(self, labels=1, batches=together, generated=self.texts)
            plan = merged.cost(rounds) if epsilon is None else merged.affordable(epsilon)
            one = {"batches": merged.of_label, "rounds": plan.rounds, "texts": plan.texts, "epsilon": plan.epsilon}
        menu = []
        for clip in () if epsilon is None else sorted({*_MENU, self.clip}):
            plan = replace(self, clip=clip).affordable(epsilon or 0.0)
            menu.append({"clip": clip, "rounds": plan.rounds, "texts": plan.texts})
        return {"one_label": one, "menu": menu}


def show_plans(
    runs: list[SecretRuns], epsilon: float | None, *, rounds: int | None, texts: int | None, as_json: bool
) -> None:
    """Print what runs of each batch size give for an epsilon, or what so many rounds or texts cost.

    One round by default. Of a single size it also says what other settings give.

    Raises:
        ValueError: there is no answer.
    """
    from dpaudit.reports.levels import FEWEST_BATCHES, few_batches

    found = [run.answer(epsilon, run.rounds_for(texts, rounds)) for run in runs]
    for run, plan in zip(runs, found, strict=True):
        if plan["batches"] < FEWEST_BATCHES:
            tell(f"dpaudit: warning: {few_batches(plan['batches'], run.labels)}")
    if len(found) == 1:
        found[0] |= runs[0].beside(epsilon, found[0]["rounds"])
    with output():
        if as_json:
            click.echo(json.dumps(found if len(found) > 1 else found[0]))
        elif len(found) > 1:
            _print_table(found)
        else:
            for line in _in_words(found[0], epsilon):
                click.echo(line)


def _in_words(found: dict[str, Any], epsilon: float | None) -> Iterator[str]:
    from dpaudit.results.rounding import decimals, delta_bound

    label = "" if found["labels"] == 1 else f" of each of {found['labels']:,} labels"
    if found["generated"] < found["batches"]:
        batches = f"{found['generated']:,} of {found['batches']:,} batches"
    else:
        batches = "the only batch" if found["batches"] == 1 else f"all {found['batches']:,} batches"
    tokens = "1 token" if found["tokens"] == 1 else f"{found['tokens']:,} tokens"
    how = [found["relation"]]
    how += [f"{found['group_size']} records per unit"] * (found["group_size"] != 1)
    how += [f"rebalancing epsilon {found['rebalancing_epsilon']!r} inside"] * bool(found["rebalancing_epsilon"])
    cost = (
        f"epsilon {decimals(found['epsilon'])} at the release level, for readers of the texts; "
        f"{decimals(found['batch_epsilon'])} at the batch level, for whoever knows a record's batch; "
        f"delta {delta_bound(found['delta'])} ({', '.join(how)})."
    )
    if found["texts"]:
        rounds = "1 round" if found["rounds"] == 1 else f"{found['rounds']:,} rounds"
        yield f"{found['texts']:,} texts of up to {tokens}, in {rounds} of {batches}{label}: {cost}"
    else:
        yield f"No round is within epsilon {epsilon:g} at the release level: one of {batches}{label} costs {cost}"
    if (one := found["one_label"]) is not None:
        gives = (
            f"{one['texts']:,} texts"
            if epsilon is not None
            else f"epsilon {decimals(one['epsilon'])} at the release level"
        )
        yield f"The same records under one label ({one['batches']:,} batches): {gives}."
    if found["menu"]:
        said = "; ".join(f"clip {each['clip']:g}: {each['texts']:,}" for each in found["menu"])
        yield (
            f"Texts at epsilon {epsilon:g}, release level, by clip: {said}. "
            "A smaller clip lets records say less (docs/budgets.md)."
        )


def _print_table(found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from dpaudit.results.rounding import decimals, delta_bound

    first = found[0]
    click.echo(f"delta {delta_bound(first['delta'])}; {first['tokens']:,} tokens; {first['relation']}")
    table = Table()
    for heading in ("batch size", "batches", "rounds", "texts", "epsilon, release level", "epsilon, batch level"):
        table.add_column(heading, justify="right")
    for each in found:
        counts = (f"{each[name]:,}" for name in ("batches", "rounds", "texts"))
        table.add_row(f"{each['batch_size']:g}", *counts, decimals(each["epsilon"]), decimals(each["batch_epsilon"]))
    stdout().print(table)
