"""What `dpaudit inspect` prints: a run, a batch or a step at a glance. Bounds are rounded outward, tokens are quoted.

Everything is built as rich Text, never as markup, and a token's text stands last in its row: whatever it holds, it
moves no figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from dpaudit.reports.terminal import print_pair
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line, printable
from dpaudit.reports.wording import ABSENT, STATUS_NAMES, neighbours
from dpaudit.results import BatchResult, ContextLoss
from dpaudit.results.inspection import (
    InspectedBatch,
    InspectedRun,
    InspectedStep,
    Neighbours,
    Objection,
    StepCost,
    TokenView,
)
from dpaudit.results.rounding import (
    DIGITS,
    bound,
    bound_against,
    bound_beside,
    digits_against,
    lower_bound,
    nearest,
    saving,
    stated,
)

WARNING = "Internal: as sensitive as the private records. Do not share it."

#: Rows of a table, and what else is listed.
MOST_ROWS, MOST_LISTED = 10, 5
#: Characters of a token, of a label in a table, and of a text.
_TOKEN, _LABEL, _PROSE = 40, 24, 400
#: Columns of the terminal that words have at least, and between two columns of a table.
_NARROWEST, _GAP = 12, 2
_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t"})


def print_found(found: InspectedRun | InspectedBatch | InspectedStep, console: Console) -> None:
    """Print what was looked into."""
    if isinstance(found, InspectedRun):
        print_run(found, console)
    elif isinstance(found, InspectedBatch):
        print_batch(found, console)
    else:
        print_step(found, console)


def deeper(found: InspectedRun | InspectedBatch | InspectedStep) -> str:
    """The options that look into what stands first in the table; empty where there is nothing below."""
    if isinstance(found, InspectedRun):
        return f"--batch {_ranked_batches(found.batches)[0].id}" if found.batches else ""
    if isinstance(found, InspectedBatch):
        return f"--batch {found.batch} --step {_ranked_costs(found.costs)[0].step}"
    return ""


def print_run(run: InspectedRun, console: Console) -> None:
    """Settings, claim and figures, and the batches that cost most."""
    console.print(Text(_name(run.run), style="bold"))
    print_pair("mechanism", ", ".join((*run.mechanism, f"at most {counted(run.max_tokens, 'token')} a batch")), console)
    there = counted(len(run.batches), "batch", "batches")
    if len(run.batches) != run.declared:
        there = f"{len(run.batches):,} of {counted(run.declared, 'batch', 'batches')} on disk"
    print_pair("batching", ", ".join((*run.batching, there, counted(run.records, "private record"))), console)
    for label, said in _figures(run):
        print_pair(label, said, console)
    for check in run.problems:
        words = (check.measured or check.title, check.detail)
        said = f"{one_line(check.id, LABEL_LENGTH)}: {one_line('; '.join(filter(None, words)), _PROSE)}"
        print_pair(STATUS_NAMES[check.status].lower(), said, console)
    if run.batches:
        console.print()
        _print_batches(run, console)


def _figures(run: InspectedRun) -> Iterable[tuple[str, str]]:
    """Claim and verdict, and what each kind of epsilon is, one in a line of its own."""
    if run.claim is None:
        yield "claim", "none: the run is not finished, so it was not audited"
        return
    claim = run.claim
    delta = f", δ = {stated(claim.delta)}" if claim.delta else ""
    of = neighbours(claim.relation, claim.unit, claim.records_per_user)
    yield "claim", f"{claim.kind}, ε ≤ {stated(claim.epsilon)} nats{delta}, {of}"
    yield "audit", f"{run.verdict}"
    if run.ex_post is not None:
        found, digits = run.ex_post, _digits(run)
        parts = {"rise": found.rise, "fall": found.fall, "Theorem 1": found.theorem1, "rebalancing": found.rebalancing}
        said = ", ".join(f"{name} {bound(value, digits)}" for name, value in parts.items())
        yield "ex-post", f"{bound(found.total, digits)} nats; generation exact {bound(found.exact, digits)}, {said}"
    if run.approximate is not None:
        epsilon, delta = bound(run.approximate.epsilon), bound(run.approximate.delta)
        if claim.kind == "approximate":
            epsilon = bound_against(run.approximate.epsilon, claim.epsilon)
            delta = bound_beside(run.approximate.delta, claim.delta)
        yield "approximate", f"{epsilon} nats at δ = {delta}, {run.approximate.method}"


def _digits(run: InspectedRun) -> int:
    """Of ex-post figures: as many as it takes for rounding up not to push one past the claim it stands beside."""
    if run.claim is None or run.claim.kind != "ex-post" or run.ex_post is None:
        return DIGITS
    return digits_against(run.ex_post.total, run.claim.epsilon)


def _print_batches(run: InspectedRun, console: Console) -> None:
    batches, digits = run.batches, _digits(run)
    costed = any(batch.exact is not None for batch in batches)
    title = "Batches by ex-post cost, in nats" if costed else "Batches"
    table = _table(("batch", "contexts", "tokens", "exact", "rise", "fall", "Theorem 1"), ("label",))
    for batch in _ranked_batches(batches)[:MOST_ROWS]:
        figures = (_bound(cost, digits) for cost in (batch.exact, batch.rise, batch.fall, batch.theorem1))
        counts = (str(batch.id), f"{batch.contexts:,}", f"{batch.steps:,}")
        table.add_row(*counts, *figures, Text(_label(batch.label)))
    _print_table(title, table, len(batches), console)


def print_batch(batch: InspectedBatch, console: Console) -> None:
    """The text, its cost in either direction, and the tokens that cost most."""
    cluster = () if batch.cluster is None else (f"cluster {batch.cluster}",)
    of = (*cluster, counted(batch.contexts, "context"), counted(len(batch.costs), "token"))
    _print_title(f"Batch {batch.batch} of {_name(batch.run)}", batch.label, of, console)
    print_pair("text", _quoted(batch.text, batch.characters), console)
    print_pair("ended", _ended(batch), console)
    _print_neighbours(batch.neighbours, console)
    if batch.exact is not None and batch.theorem1 is not None:
        digits = DIGITS if batch.claimed is None else digits_against(batch.exact, batch.claimed)
        rise, fall = _bound(batch.rise, digits), _bound(batch.fall, digits)
        print_pair(
            "sum",
            f"exact {bound(batch.exact, digits)} nats (rise {rise}, fall {fall}), "
            f"Theorem 1 {bound(batch.theorem1, digits)}, saving {saving(batch.theorem1, batch.exact)}",
            console,
        )
    _print_objections(batch.objections, console)
    _print_losses(batch.worst, batch.losses, console)
    console.print()
    table = _table(("step", "token", "probability", "exact", "rise", "fall", "Theorem 1"), ("text",))
    for cost in _ranked_costs(batch.costs)[:MOST_ROWS]:
        table.add_row(*_cost_cells(cost), Text(_token(cost.text)))
    _print_table("Tokens by ex-post cost, in nats", table, len(batch.costs), console)


def _cost_cells(cost: StepCost) -> tuple[str, ...]:
    figures = (_bound(value) for value in (cost.exact, cost.rise, cost.fall, cost.theorem1))
    return (str(cost.step), str(cost.token), _probability(_exp(cost.log_probability)), *figures)


def print_step(step: InspectedStep, console: Console) -> None:
    """The sampled token, what it cost, and the most probable ones with where a neighbour's values can lie."""
    place = f"Step {step.cost.step} (of 0 to {step.steps - 1}), batch {step.batch} of {_name(step.run)}"
    _print_title(place, step.label, (counted(step.contexts, "context"),), console)
    before = _quoted(step.prefix, len(step.prefix or "")) if step.cost.step else "nothing: it is the first"
    print_pair("before it", before, console)
    print_pair("sampled", _sampled(step), console)
    _print_neighbours(step.neighbours, console)
    cost = step.cost
    if cost.exact is not None:
        print_pair(
            "cost",
            f"exact {bound(cost.exact)} nats (rise {_bound(cost.rise)}, fall {_bound(cost.fall)}), "
            f"Theorem 1 {_bound(cost.theorem1)}",
            console,
        )
    _print_objections(step.objections, console)
    _print_losses(step.worst, step.losses, console)
    console.print()
    table = _table(("rank", "token", "probability", "lower", "center", "upper"), ("text",))
    for token in step.top:
        chosen = step.sampled is not None and token.token == step.sampled.token
        table.add_row(*_token_cells(token), Text(_token(token.text)), style="bold" if chosen else "")
    moves = "" if step.movable is None else f"; a neighbour can move {step.movable:,} of them"
    _print_table(f"Most probable of {counted(step.support, 'token')}{moves}", table, len(step.top), console)
    console.print(
        Text(
            f"center is the aggregate, which is divided by the temperature {step.temperature:g}; lower and upper bound "
            "a neighbour's. All three in nats times temperature.",
            style="dim",
        )
    )


def _token_cells(token: TokenView) -> tuple[str, ...]:
    lower = ABSENT if token.lower is None else lower_bound(token.lower)
    upper = ABSENT if token.upper is None else bound(token.upper)
    return (str(token.rank), str(token.token), _probability(token.probability), lower, nearest(token.center), upper)


def _sampled(step: InspectedStep) -> str:
    name = f"token {step.cost.token} {_token(step.cost.text)}"
    recorded = _probability(_exp(step.cost.log_probability))
    if step.sampled is None:
        return f"{name}, which is not among the {counted(step.support, 'token')} it was to be sampled from"
    recomputed = _probability(step.sampled.probability)
    same = f"probability {recorded}" if recorded == recomputed else f"probability {recomputed}, recorded as {recorded}"
    return f"{name}, {same}, rank {step.sampled.rank:,}"


def _print_neighbours(found: Neighbours, console: Console) -> None:
    of = neighbours(found.relation, found.unit, found.records_per_user)
    if found.problem or found.contexts is None or found.change is None:
        said = f"{of}: no cost, for {one_line(found.problem)}"
    else:
        how = "replaced" if found.change == "replace" else "added or removed"
        said = f"{of}: {counted(found.contexts, 'context')} {how}, all in this batch"
    print_pair("ex-post for", said, console)


def _print_objections(objections: Sequence[Objection], console: Console) -> None:
    for objection in objections[:MOST_LISTED]:
        said = (
            f"{one_line(objection.check, LABEL_LENGTH)}, step {objection.step}: {one_line(objection.problem, _PROSE)}"
        )
        print_pair("objection", said, console, style="bold red")
    if len(objections) > MOST_LISTED:
        print_pair("", f"and {counted(len(objections) - MOST_LISTED, 'more objection')}; --json has them all", console)


def _print_losses(worst: Sequence[ContextLoss], contexts: int, console: Console) -> None:
    if not worst:
        return
    listed = "; ".join(f"slot {loss.slot} {_signed(loss.loss)}" for loss in worst[:MOST_LISTED])
    said = f"{listed} nats, of {counted(contexts, 'context')} left out one at a time. Measured, no bound"
    print_pair("empirical", said, console)


def _ended(batch: InspectedBatch) -> str:
    if batch.stop == "end-token":
        texts = {cost.token: cost.text for cost in batch.costs}
        names = " ".join(f"{token} {_token(texts.get(token))}" for token in batch.end)
        return f"with the stop sequence {names}" if names else "with a token that is no recorded stop sequence"
    return f"at the maximum length, after {counted(len(batch.costs), 'token')}"


def _print_title(place: str, label: str | None, said: Sequence[str], console: Console) -> None:
    named = () if label is None else (_label(label),)
    console.print(Text.assemble((place, "bold"), ": ", ", ".join((*named, *said))))


def _table(figures: Iterable[str], words: Iterable[str]) -> Table:
    """Columns of figures, which are never cut, and of words, which wrap where there is no room."""
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
    )
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in words:
        table.add_column(heading, overflow="fold", min_width=_NARROWEST)
    return table


def _print_table(title: str, table: Table, among: int, console: Console) -> None:
    more = f" (the first {table.row_count} of {among:,}; --json has all)" if table.row_count < among else ""
    console.print(Text.assemble((title, "bold"), more))
    figures = (max(cell_len(str(cell)) for cell in (column.header, *column.cells)) for column in table.columns[:-1])
    needed = sum(_GAP + width for width in figures) + _NARROWEST
    # Where the console is too narrow for its figures, it wraps the table's lines: cut figures would say less.
    room = console.options.update(width=max(console.width, needed))
    console.print(Segments(console.render(table, room)), crop=False, end="")


def _token(text: str | None) -> str:
    """A token in quotes, its white space visible; empty where it cannot be decoded."""
    return "" if text is None else f'"{printable(text, _TOKEN).translate(_ESCAPES)}"'


def _quoted(text: str | None, characters: int) -> str:
    if text is None:
        return "none: token ids alone, or no tokenizer that can be read"
    more = f" ({counted(characters, 'character')})" if characters > _PROSE else ""
    return f'"{printable(text[:_PROSE], _PROSE).translate(_ESCAPES)}"{more}'


def _name(run: str) -> str:
    return one_line(run)


def _label(label: str | None) -> str:
    return ABSENT if label is None else one_line(label, _LABEL) or "empty"


def _bound(value: float | None, digits: int = DIGITS) -> str:
    return ABSENT if value is None else bound(value, digits)


def _ranked_batches(batches: Iterable[BatchResult]) -> list[BatchResult]:
    return sorted(batches, key=lambda batch: (-_cost(batch.exact), batch.id))


def _ranked_costs(costs: Iterable[StepCost]) -> list[StepCost]:
    return sorted(costs, key=lambda cost: (-_cost(cost.exact), cost.step))


def _cost(value: float | None) -> float:
    """What to sort by: what has no cost or no finite one goes first, for it is what to look at."""
    return math.inf if value is None or math.isnan(value) else value


def _probability(value: float) -> str:
    return nearest(value, 3)


def _exp(logarithm: float) -> float:
    """A recorded probability, which may be nonsense."""
    return math.exp(logarithm) if logarithm < 1 else math.inf


def _signed(loss: float) -> str:
    return f"{'+' if loss > 0 else ''}{nearest(loss)}"
