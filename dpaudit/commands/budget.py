"""`dpaudit budget`."""

from __future__ import annotations

from typing import Any

import click

from dpaudit.commands.options import (
    POSITIVE,
    RELATIONS,
    FiniteRange,
    WholeRange,
    limit_options,
    output_options,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import show_document

_MANY = WholeRange(min=1, max=1 << 20)


@click.command()
@click.option(
    "--clip",
    type=POSITIVE,
    required=True,
    help="Clip c: logits, or differences of logits, lie in [-c, c].",
)
@click.option("--temperature", type=POSITIVE, required=True, help="Temperature of sampling.")
@click.option(
    "--batch-size",
    type=POSITIVE,
    help="Divisor of the sum of contexts; leave it out to find the fewest contexts.",
)
@click.option(
    "--records",
    type=WholeRange(min=1, max=10**12),
    required=True,
    help="Number of private records.",
)
@click.option(
    "--delta",
    type=FiniteRange(min=0, max=1, min_open=True, max_open=True),
    help="Delta of the guarantee [default: RECORDS ** -1.1].",
)
@click.option(
    "--epsilon",
    type=POSITIVE,
    help="Find the most tokens, or the most texts in rounds, within this epsilon.",
)
@limit_options
@click.option(
    "--tokens", type=WholeRange(min=0), help="Find the epsilon of this many tokens per batch."
)
@click.option(
    "--texts",
    type=_MANY,
    help="Find how many rounds this many texts take, and their epsilon at both levels.",
)
@click.option(
    "--rounds",
    type=_MANY,
    help="Find the epsilon of this many rounds over the records, at both levels.",
)
@click.option(
    "--labels",
    type=_MANY,
    help="For texts in rounds: how many labels the records have [default: 1].",
)
@click.option(
    "--batches",
    type=_MANY,
    help="For texts in rounds: batches of each label [default: as many as its records fill].",
)
@click.option(
    "--generated",
    type=_MANY,
    help="For texts in rounds: how many of these batches are generated [default: all].",
)
@click.option(
    "--individual",
    is_flag=True,
    help="Give each context a budget, which keeps any number of tokens within the limit.",
)
@click.option(
    "--method",
    type=click.Choice(["rdp", "optimal"]),
    default="rdp",
    show_default=True,
    help="How costs of tokens are composed.",
)
@click.option(
    "--relation",
    type=RELATIONS,
    default="add_remove",
    show_default=True,
    help="What neighbouring data sets differ by: a context added or removed, or replaced.",
)
@click.option(
    "--group-size",
    type=WholeRange(min=1, max=10**6),
    default=1,
    show_default=True,
    help="How many contexts one unit (record or user) can change.",
)
@click.option(
    "--divisor",
    type=click.Choice(["fixed", "actual"]),
    default="fixed",
    show_default=True,
    help="Divide by the batch size, or by the number of contexts, but at least by the batch size.",
)
@click.option(
    "--rebalancing-epsilon",
    type=FiniteRange(min=0),
    default=0.0,
    show_default=True,
    help="Cost of noisy counts of cluster sizes. It is part of epsilon.",
)
@output_options
def budget(batch_size: float | None, as_json: bool, **asked: Any) -> None:
    """Compute a mean's epsilon, texts, tokens or contexts.

    Give some of them to get the others; in place of --epsilon, --advantage or --true-positives.
    Every answer says what attacks can gain.
    Only a mean's cost is known before the run. With --texts, --rounds, --labels, --batches or
    --generated, these limits are at the release level: for readers of the texts, who do not know
    which batch a record was in. Otherwise they are at the batch level: for people who know that.
    If a limit pays for nothing, the answer is 0 tokens, or texts, and the cost of one token, or
    round; the exit code is 0.

    \b
    Examples:
      dpaudit budget --clip 2 --temperature 1 --records 1230 --batch-size 32 --tokens 64 --labels 1 --epsilon 2
      dpaudit budget --clip 2 --temperature 1 --records 1230 --batch-size 32 --tokens 64 --labels 1 --texts 1000
      dpaudit budget --clip 9 --temperature 1.5 --records 108000 --batch-size 64 --epsilon 10
      dpaudit budget --clip 2 --temperature 1 --records 108000 --tokens 200 --epsilon 3
      dpaudit budget --clip 2 --temperature 1 --records 108000 --tokens 200 --advantage 0.2
      dpaudit budget --clip 2 --temperature 1 --records 108000 --tokens 200 --true-positives 0.05@0.01
      dpaudit budget --clip 2 --temperature 1 --records 108000 --batch-size 64 --epsilon 3 --individual
    """  # noqa: E501
    from dpaudit.api.budgeting import plan_budget
    from dpaudit.reports.budget_plans import build

    found = plan_budget(**asked, batch_size=batch_size, alternatives=True, monitor=TERMINAL)
    fewest = batch_size is None and not asked["individual"]
    show_document(found.result, as_json, lambda cost: build(cost, fewest=fewest))
