"""What `dpaudit inspect` prints: a run, a batch or a step at a glance. Bounds are rounded outward, tokens are quoted.

Everything is built as rich Text, never as markup, and a token's text stands last in its row: whatever it holds, it
moves no figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import partial

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from dpaudit.claims import CLAIM_KINDS, ApproximateClaim, ExPostClaim
from dpaudit.reports.costs import cost_of, costliest_first, percent
from dpaudit.reports.levels import are_apart, claim_words, digits_for, neighbours_of, why_equal
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line, printable
from dpaudit.reports.wording import ABSENT, STATUS_NAMES, VERDICT_NAMES, or_absent
from dpaudit.reports.writers.terminal import print_pair
from dpaudit.results import Approximate, BatchResult, ExPost
from dpaudit.results.inspection import InspectedBatch, InspectedRun, InspectedStep, StepCost
from dpaudit.results.rounding import (
    DIGITS,
    bound,
    delta_bound,
    digits_against,
    lower_bound,
    nearest,
    saving,
)

WARNING = "Internal: as sensitive as the private records. Do not share it."

#: Rows of a table, and what else is listed.
MOST_ROWS, MOST_LISTED = 10, 5
#: Characters of a token, of a label in a table, and of a text.
_TOKEN, _LABEL, _PROSE = 40, 24, 400
#: Columns of the terminal that words have at least, and between two columns of a table.
_NARROWEST, _GAP = 12, 2
_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t"})
#: Cells of figures, then one of words, and the row's style.
_Row = tuple[tuple[str, ...], str, str]


def print_found(found: InspectedRun | InspectedBatch | InspectedStep, console: Console) -> None:
    """Print what was looked into."""
    if isinstance(found, InspectedRun):
        _print_run(found, console)
    elif isinstance(found, InspectedBatch):
        _print_batch(found, console)
    else:
        _print_step(found, console)


def deeper(found: InspectedRun | InspectedBatch | InspectedStep) -> str:
    """The options that look into what stands first in the table; empty where there is nothing below."""
    if isinstance(found, InspectedRun):
        return f"--batch {costliest_first(found.batches)[0].id}" if found.batches else ""
    return f"--batch {found.batch} --step {_ranked(found)[0].step}" if isinstance(found, InspectedBatch) else ""


def _print_run(run: InspectedRun, console: Console) -> None:
    """Settings, claim and figures, and the batches that cost most."""
    console.print(Text(one_line(run.run), style="bold"))
    _print_pairs(_said_of_run(run), console)
    if not run.batches:
        return
    digits, several = digits_for(run.claim, run.ex_post), run.tokens_per_batch is not None
    rows: list[_Row] = []
    for batch in costliest_first(run.batches)[:MOST_ROWS]:
        texts = (f"{batch.texts:,}",) * several
        figures = (str(batch.id), f"{batch.contexts:,}", *texts, f"{batch.steps:,}", *_costs(batch, digits))
        rows.append((figures, or_absent(batch.label, _label), ""))
    costed = any(batch.exact is not None for batch in run.batches)
    title = "Batches by ex-post cost (batch level), in nats" if costed else "Batches"
    header = ("batch", "contexts", *("texts",) * several, "tokens", "exact", "rise", "fall", "Theorem 1", "label")
    _print_table(title, header, rows, len(run.batches), console)


def _said_of_run(run: InspectedRun) -> Iterator[tuple[str, str]]:
    """Settings, claim and verdict, what each kind of epsilon is, one in a line of its own, and what is wrong."""
    tokens = f"at most {counted(run.max_tokens, 'token')} a batch"
    if run.tokens_per_batch is not None:
        tokens = f"{counted(run.tokens_per_batch, 'token')} a batch, texts of at most {run.max_tokens:,}"
    yield "mechanism", ", ".join((*run.mechanism, tokens))
    there = counted(len(run.batches), "batch", "batches")
    if len(run.batches) != run.declared:
        there = f"{len(run.batches):,} of {counted(run.declared, 'batch', 'batches')} on disk"
    yield "batching", ", ".join((*run.batching, there, counted(run.records, "private record")))
    if (claim := run.claim) is None:
        yield "claim", "none: the run is not finished, so it was not audited"
    else:
        yield "claim", claim_words(claim)
        yield "audit", VERDICT_NAMES[run.verdict] if run.verdict else ABSENT
    if claim is not None and (ex_post := run.ex_post) is not None:
        digits = digits_for(claim, ex_post)
        exact, rise, fall, theorem1 = _costs(ex_post, digits)
        rebalancing = bound(ex_post.rebalancing, digits)
        parts = f"rise {rise}, fall {fall}, Theorem 1 {theorem1}, rebalancing {rebalancing}"
        yield ExPostClaim.id, _at_both_levels(ex_post, digits)
        yield "", f"{'batch level, ' * are_apart(None, ex_post)}generation exact {exact}, {parts}"
    if claim is not None and (approximate := run.approximate) is not None:
        stands = claim.kind == ApproximateClaim.id
        delta = delta_bound(approximate.delta, claim.delta if stands else None)
        shown = _at_both_levels(approximate, digits_for(claim, approximate))
        yield ApproximateClaim.id, f"{shown} at δ = {delta}, {approximate.method}"
    if claim is not None and (
        equal := why_equal(run.approximate if CLAIM_KINDS[claim.kind].beforehand else run.ex_post)
    ):
        yield "levels", equal
    for check in run.problems:
        words = "; ".join(filter(None, (check.measured or check.title, check.detail)))
        yield STATUS_NAMES[check.status].lower(), f"{one_line(check.id, LABEL_LENGTH)}: {one_line(words, _PROSE)}"


def _at_both_levels(found: ExPost | Approximate, digits: int) -> str:
    """The recomputed epsilons, each with its level."""
    release, batch = bound(found.epsilon, digits), bound(found.batch_epsilon, digits)
    if not are_apart(None, found):
        return f"{release} nats (both levels)"
    return f"{release} nats (release level), {batch} nats (batch level)"


def _print_batch(batch: InspectedBatch, console: Console) -> None:
    """The texts, their cost in either direction, and the tokens that cost most."""
    cluster = () if batch.cluster is None else (f"cluster {batch.cluster}",)
    tokens = counted(len(batch.costs), "token")
    _print_title(f"Batch {batch.batch}", batch, (*cluster, counted(batch.contexts, "context"), tokens), console)
    cost = ""
    if batch.exact is not None and batch.theorem1 is not None:
        digits = DIGITS if batch.claimed is None else digits_against(batch.exact, batch.claimed)
        cost = f"{_cost(batch, digits)}, saving {saving(batch.theorem1, batch.exact)}"
    _print_pairs((*_texts(batch), *_evidence(batch, "sum", cost)), console)
    rows: list[_Row] = []
    for each in _ranked(batch)[:MOST_ROWS]:
        probability = nearest(_exp(each.log_probability), 3)
        rows.append(((str(each.step), str(each.token), probability, *_costs(each)), _token(each.text), ""))
    header = ("step", "token", "probability", "exact", "rise", "fall", "Theorem 1", "text")
    _print_table("Tokens by ex-post cost, in nats", header, rows, len(batch.costs), console)


def _texts(batch: InspectedBatch) -> Iterator[tuple[str, str]]:
    """Texts and why they ended; of several texts, at which step each begins."""
    names = {cost.token: cost.text for cost in batch.costs}
    for number, text in enumerate(batch.texts[:MOST_LISTED]):
        ended = f"at the maximum length, after {counted(text.tokens, 'token')}"
        if text.stop == "end-token":
            end = " ".join(f"{token} {_token(names.get(token))}" for token in text.end)
            ended = f"with the stop sequence {end}" if end else "with a token that is no recorded stop sequence"
        elif text.stop == "budget":
            ended = f"where the batch's tokens were spent, after {counted(text.tokens, 'token')}"
        several = len(batch.texts) > 1
        yield (f"text {number}" if several else "text"), _quoted(text.text, text.characters)
        yield "ended", f"{ended}; it begins at step {text.first}" if several else ended
    if len(batch.texts) > MOST_LISTED:
        yield "", f"and {counted(len(batch.texts) - MOST_LISTED, 'more text')}; --json has them all"


def _print_step(step: InspectedStep, console: Console) -> None:
    """The sampled token, what it cost, and the most probable ones with where a neighbour's values can lie."""
    place = f"Step {step.cost.step} (of 0 to {step.steps - 1}), batch {step.batch}"
    _print_title(place, step, (counted(step.contexts, "context"),), console)
    before = "nothing: it is the first" if step.begins else _quoted(step.prefix, len(step.prefix or ""))
    sampled = f"token {step.cost.token} {_token(step.cost.text)}"
    if step.sampled is None:
        sampled += f", which is not among the {counted(step.support, 'token')} it was to be sampled from"
    else:
        recorded, recomputed = (nearest(p, 3) for p in (_exp(step.cost.log_probability), step.sampled.probability))
        differs = "" if recorded == recomputed else f", recorded as {recorded}"
        sampled += f", probability {recomputed}{differs}, rank {step.sampled.rank:,}"
    cost = "" if step.cost.exact is None else _cost(step.cost)
    pairs = (("before it", before), ("sampled", sampled), *_evidence(step, "cost", cost), *_budgets(step))
    _print_pairs(pairs, console)
    rows: list[_Row] = []
    for token in step.top:
        limits = (or_absent(token.lower, lower_bound), nearest(token.center), or_absent(token.upper, bound))
        figures = (str(token.rank), str(token.token), nearest(token.probability, 3), *limits)
        chosen = step.sampled is not None and token.token == step.sampled.token
        rows.append((figures, _token(token.text), "bold" if chosen else ""))
    moves = "" if step.movable is None else f"; a neighbour can move {step.movable:,} of them"
    title = f"Most probable of {counted(step.support, 'token')}{moves}"
    header = ("rank", "token", "probability", "lower", "center", "upper", "text")
    _print_table(title, header, rows, len(step.top), console)
    console.print(
        Text(
            f"center is the aggregate, which is divided by the temperature {step.temperature:g}; lower and upper bound "
            "a neighbour's. All three in nats times temperature.",
            style="dim",
        )
    )


def _budgets(step: InspectedStep) -> Iterator[tuple[str, str]]:
    """Who took part in the draw, and what is spent after it, where contexts have budgets."""
    if (found := step.budgets) is not None:
        least, median, most = (percent(share) for share in found.spent)
        yield (
            "budgets",
            f"{found.active:,} of {counted(step.contexts, 'context')} took part; spent after it: {least} to {most} of "
            f"rho {bound(found.budget)} each, median {median}",
        )


def _evidence(found: InspectedBatch | InspectedStep, what: str, cost: str) -> Iterator[tuple[str, str]]:
    """For whom the costs are, the cost itself, and what checks and losses say of it."""
    between = found.neighbours
    said = f"{neighbours_of(between)}: no cost, for {one_line(between.problem)}"
    if not between.problem and between.contexts is not None and between.change is not None:
        how = "replaced" if between.change == "replace" else "added or removed"
        said = f"{neighbours_of(between)}: {counted(between.contexts, 'context')} {how}, all in this batch"
    yield "ex-post for", said
    if cost:
        yield what, cost
    for objection in found.objections[:MOST_LISTED]:
        check, message = one_line(objection.check, LABEL_LENGTH), one_line(objection.message, _PROSE)
        yield "objection", f"{check}, step {objection.step}: {message}"
    if len(found.objections) > MOST_LISTED:
        yield "", f"and {counted(len(found.objections) - MOST_LISTED, 'more objection')}; --json has them all"
    if found.worst:
        worst = found.worst[:MOST_LISTED]
        listed = "; ".join(f"slot {each.slot} {'+' * (each.loss > 0)}{nearest(each.loss)}" for each in worst)
        losses = counted(found.losses, "context")
        yield "empirical", f"{listed} nats, of {losses} left out one at a time. Measured, no bound"


def _print_title(place: str, found: InspectedBatch | InspectedStep, said: Iterable[str], console: Console) -> None:
    named = () if found.label is None else (_label(found.label),)
    console.print(Text.assemble((f"{place} of {one_line(found.run)}", "bold"), ": ", ", ".join((*named, *said))))


def _print_pairs(pairs: Iterable[tuple[str, str]], console: Console) -> None:
    for label, said in pairs:
        print_pair(label, said, console, style="bold red" if label == "objection" else "")


def _print_table(title: str, header: tuple[str, ...], rows: list[_Row], among: int, console: Console) -> None:
    """Columns of figures, which are never cut, and one of words, which wraps where there is no room.

    What has no room beside the first columns goes on below them, behind the first one again.
    """
    more = f" (the first {len(rows)} of {among:,}; --json has all)" if len(rows) < among else ""
    console.print()
    console.print(Text.assemble((title, "bold"), more))
    columns = zip(header[:-1], *(figures for figures, _, _ in rows), strict=True)
    needed = [*(_GAP + max(map(cell_len, column)) for column in columns), _NARROWEST]
    pieces = [[0]]
    for place in range(1, len(needed)):
        if len(pieces[-1]) > 1 and sum(needed[other] for other in (*pieces[-1], place)) > console.width:
            pieces.append([0])
        pieces[-1].append(place)
    for piece in pieces:
        table = Table(
            box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
        )
        for place in piece:
            if place < len(needed) - 1:
                table.add_column(header[place], justify="right", no_wrap=True)
            else:
                table.add_column(header[place], overflow="fold", min_width=_NARROWEST)
        for figures, words, style in rows:
            cells = (*figures, words)
            table.add_row(*(Text(cells[place]) for place in piece), style=style)
        # Where not even two columns have room, the console wraps the lines: cut figures would say less.
        room = console.options.update(width=max(console.width, sum(needed[place] for place in piece)))
        console.print(Segments(console.render(table, room)), crop=False, end="")


def _token(text: str | None) -> str:
    """A token in quotes, its white space visible; empty where it cannot be decoded."""
    return "" if text is None else f'"{printable(text, _TOKEN).translate(_ESCAPES)}"'


def _quoted(text: str | None, characters: int) -> str:
    if text is None:
        return "none: token ids alone, or no tokenizer that can be read"
    more = f" ({counted(characters, 'character')})" if characters > _PROSE else ""
    return f'"{printable(text[:_PROSE], _PROSE).translate(_ESCAPES)}"{more}'


def _label(label: str) -> str:
    return one_line(label, _LABEL) or "empty"


def _costs(found: ExPost | BatchResult | InspectedBatch | StepCost, digits: int = DIGITS) -> tuple[str, ...]:
    """Exact cost, rise, fall and Theorem 1's."""
    figures = (found.exact, found.rise, found.fall, found.theorem1)
    return tuple(or_absent(figure, partial(bound, digits=digits)) for figure in figures)


def _cost(found: InspectedBatch | StepCost, digits: int = DIGITS) -> str:
    exact, rise, fall, theorem1 = _costs(found, digits)
    return f"exact {exact} nats (rise {rise}, fall {fall}), Theorem 1 {theorem1}"


def _ranked(batch: InspectedBatch) -> list[StepCost]:
    return sorted(batch.costs, key=lambda cost: (-cost_of(cost), cost.step))


def _exp(logarithm: float) -> float:
    """A recorded probability, which may be nonsense."""
    return math.exp(logarithm) if logarithm < 1 else math.inf
