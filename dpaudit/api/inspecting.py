"""Documents and JSON figures of `dpaudit inspect`, as private as the records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from dpaudit.api.places import Location
from dpaudit.api.reading import Batch, open_run
from dpaudit.api.steps import Costs, Neighbours, Objection, RunStep, StepCost
from dpaudit.auditing.batches import Progress
from dpaudit.mechanisms.claims import ExPostClaim
from dpaudit.reports.costs import cost_of, percent
from dpaudit.reports.document import Definitions, Document, Entry, Paragraph, Section, Table
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line, printable
from dpaudit.reports.wording import neighbours, or_absent
from dpaudit.results.rounding import DIGITS, bound, digits_against, lower_bound, nearest, saving
from dpaudit.runs import Manifest, Sample, without_stop

#: Rows of a table, and what else is listed.
MOST_ROWS, MOST_LISTED = 10, 5
#: Attributes of a batch and of a step that JSON has by the same names.
_OF_BOTH = ("label", "contexts", "neighbours", "cost", "losses", "objections")
#: Characters of a token, of a label in a table, and of a text.
_TOKEN, _LABEL, _PROSE = 40, 24, 400
_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t"})


class Look(NamedTuple):
    """A view into a run.

    Attributes:
        document: for a terminal.
        figures: all of it by name, unrounded.
        deeper: the options of `dpaudit inspect` that open the first row of the table; empty if
            there are none.
    """

    document: Document
    figures: Mapping[str, Any]
    deeper: str

    def to_json(self) -> str:
        """Return the figures as JSON text: numbers that are not finite are strings."""
        found = TypeAdapter(dict[str, Any]).dump_python(dict(self.figures), mode="json")
        return json.dumps(found, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def look_into_batch(run_dir: Location, number: int, progress: Progress | None = None) -> Look:
    """Look into a batch: its texts, and each token's cost.

    `progress` is called with (steps read, all steps).
    """
    run = open_run(run_dir)
    batch = run.batches[number].read(progress)
    texts = [
        _Ended.of(sample, start, run.manifest)
        for sample, start in zip(batch.texts, batch.starts, strict=True)
    ]
    entries = [*_texts(texts, batch.costs), *_evidence(batch, "sum", _sum(batch, run.manifest))]
    cluster = () if batch.cluster is None else (f"cluster {batch.cluster}",)
    said = (*cluster, counted(batch.contexts, "context"), counted(len(batch.costs), "token"))
    ranked = sorted(batch.costs, key=lambda cost: (-cost_of(cost.exact), cost.step))
    rows = [
        (
            str(each.step),
            str(each.token),
            nearest(_exp(each.log_probability), 3),
            *_costs(each),
            _token(each.text),
        )
        for each in ranked[:MOST_ROWS]
    ]
    header = ("step", "token", "probability", "exact", "rise", "fall", "Theorem 1", "text")
    table = _table("Tokens by ex-post cost, in nats", header, rows, len(ranked))
    return Look(
        document=Document(
            _title(f"Batch {number} of {run.name}", batch.label, said),
            [Definitions(entries), table],
        ),
        figures={
            "run": run.name,
            "batch": number,
            "texts": [text._asdict() for text in texts],
            **_named(batch, *_OF_BOTH, "cluster", "costs"),
        },
        deeper=f"--batch {number} --step {ranked[0].step}",
    )


def look_into_step(run_dir: Location, number: int, position: int, top: int = 10) -> Look:
    """Look into a step: its token, and the `top` most probable, with neighbours' reach for each."""
    run = open_run(run_dir)
    batch = run.batches[number]
    step, steps, temperature = (
        batch.steps[position],
        len(batch.steps),
        run.manifest.mechanism.temperature,
    )
    listed, support = step.top(top), len(step.aggregate)
    entries = [Entry("before it", _before(step)), Entry("sampled", _sampled(step, support))]
    entries += _evidence(step, "cost", "" if step.cost.exact is None else _cost(step.cost))
    if (budgets := step.budgets) is not None:
        least, median, most = map(percent, budgets.spent)
        took_part = f"{budgets.active:,} of {counted(step.contexts, 'context')} took part"
        each = f"of its rho {bound(budgets.budget)}"
        said = f"{took_part}; after it, each has spent {least} to {most} {each}, median {median}"
        entries.append(Entry("budgets", said))
    rows = [
        (
            f"{each.rank:,}",
            str(each.token),
            nearest(each.probability, 3),
            or_absent(each.lower, lower_bound),
            nearest(each.center),
            or_absent(each.upper, bound),
            _token(each.text),
        )
        for each in listed
    ]
    moves = "" if step.movable is None else f"; a neighbour can move {step.movable:,} of them"
    header = ("rank", "token", "probability", "lower", "center", "upper", "text")
    table = _table(
        f"Most probable of {counted(support, 'allowed token')}{moves}", header, rows, len(rows)
    )
    note = (
        "The token is sampled from center, the aggregate, divided by the temperature "
        f"{temperature:g}. Lower and upper "
        "bound the same value for any neighbour. All three are in nats times temperature."
    )
    place = f"Step {position} (of 0 to {steps - 1}), batch {number} of {run.name}"
    title = _title(place, step.label, [counted(step.contexts, "context")])
    return Look(
        document=Document(title, [Definitions(entries), table, Paragraph(note, "quiet")]),
        figures={
            "run": run.name,
            "batch": number,
            "steps": steps,
            "temperature": temperature,
            "support": support,
            "top": listed,
            **_named(
                step, *_OF_BOTH, "position", "first", "prefix", "sampled", "movable", "budgets"
            ),
        },
        deeper="",
    )


# --- a batch --------------------------------------------------------------------------------------


class _Ended(NamedTuple):
    """A text of a batch, and why it ended.

    Attributes:
        first: its first step.
        tokens: how many steps it has.
        stop: why it ended; "budget" where the batch's number of tokens was spent.
        end: the stop sequence that the tokens end in; empty if a number of tokens ended them.
        text: None if token ids alone are released.
    """

    first: int
    tokens: int
    stop: str
    end: tuple[int, ...]
    text: str | None

    @classmethod
    def of(cls, sample: Sample, first: int, manifest: Manifest) -> _Ended:
        # The stop sequence is what a released text is decoded without.
        kept = len(without_stop(sample.tokens, manifest.decoding.sequences))
        end = sample.tokens[kept:] if sample.stop == "end-token" else ()
        return cls(first, len(sample.tokens), sample.stop, end, sample.text)


def _texts(texts: Sequence[_Ended], costs: Iterable[StepCost]) -> Iterator[Entry]:
    """Yield texts and why they ended; of several texts, also at which step each begins."""
    names = {cost.token: cost.text for cost in costs}
    several = len(texts) > 1
    for number, text in enumerate(texts[:MOST_LISTED]):
        ended = f"at the maximum length, after {counted(text.tokens, 'token')}"
        if text.stop == "end-token":
            end = " ".join(f"{token} {_token(names.get(token))}" for token in text.end)
            ended = (
                f"with the stop sequence {end}"
                if end
                else "with a token that is no recorded stop sequence"
            )
        elif text.stop == "budget":
            ended = f"where the batch's tokens were spent, after {counted(text.tokens, 'token')}"
        yield Entry(f"text {number}" if several else "text", _quoted(text.text))
        yield Entry("ended", f"{ended}; it begins at step {text.first}" if several else ended)
    if len(texts) > MOST_LISTED:
        yield Entry(
            "", f"and {counted(len(texts) - MOST_LISTED, 'more text')}; --json has them all"
        )


def _sum(batch: Batch, manifest: Manifest) -> str:
    """Return the batch's ex-post cost, with digits enough to stay within the claimed epsilon."""
    cost, claim = batch.cost, manifest.claim
    if cost.exact is None or cost.theorem1 is None:
        return ""
    claimed = claim.epsilon if claim is not None and claim.kind == ExPostClaim.id else None
    digits = DIGITS if claimed is None else digits_against(cost.exact, claimed)
    return f"{_cost(cost, digits)}, saving {saving(cost.theorem1, cost.exact)}"


# --- a step ---------------------------------------------------------------------------------------


def _before(step: RunStep) -> str:
    return "nothing: it is the first" if step.first else _quoted(step.prefix)


def _sampled(step: RunStep, support: int) -> str:
    said, sampled = f"token {step.token} {_token(step.cost.text)}", step.sampled
    if sampled is None:
        return f"{said}, which is not among the {counted(support, 'allowed token')}"
    recorded, recomputed = (
        nearest(p, 3) for p in (_exp(step.log_probability), sampled.probability)
    )
    differs = "" if recorded == recomputed else f", recorded as {recorded}"
    return f"{said}, probability {recomputed}{differs}, rank {sampled.rank:,}"


# --- both -----------------------------------------------------------------------------------------


def _title(place: str, label: str | None, said: Iterable[str]) -> str:
    named = () if label is None else (_label(label),)
    return f"{one_line(place)}: {', '.join((*named, *said))}"


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], among: int) -> Section:
    """Return a table whose last column is of words."""
    table = Table.of(title, header, rows, [len(header) - 1])
    return Section(title, [table], note=_note(len(rows), among))


def _note(listed: int, among: int) -> str:
    return f"the first {listed} of {among:,}; --json has all" if listed < among else ""


def _evidence(found: Batch | RunStep, name: str, cost: str) -> Iterator[Entry]:
    """Yield what the costs are for, the cost itself, and what checks and losses say of it."""
    yield Entry("ex-post for", _neighbours(found.neighbours))
    if cost:
        yield Entry(name, cost)
    for objection in found.objections[:MOST_LISTED]:
        yield Entry("objection", _objection(objection))
    if len(found.objections) > MOST_LISTED:
        yield Entry(
            "",
            f"and {counted(len(found.objections) - MOST_LISTED, 'more objection')}; --json has "
            "them all",
        )
    if (losses := found.losses) is not None:
        worst = losses.worst[:MOST_LISTED]
        listed = "; ".join(
            f"slot {each.slot} {'+' * (each.loss > 0)}{nearest(each.loss)}" for each in worst
        )
        of = f"the largest of {counted(losses.contexts, 'context')} left out one at a time"
        yield Entry("empirical", f"{listed} nats, {of}. Measured, no bound")


def _neighbours(between: Neighbours) -> str:
    said = neighbours(between.relation, between.unit, between.records_per_user)
    if between.problem or between.contexts is None:
        return f"{said}: no cost, for {one_line(between.problem)}"
    how = "replaced" if between.change == "replace" else "added or removed"
    return f"{said}: {counted(between.contexts, 'context')} {how}, all in this batch"


def _objection(found: Objection) -> str:
    return (
        f"{one_line(found.check, LABEL_LENGTH)}, step {found.step}: "
        f"{one_line(found.message, _PROSE)}"
    )


def _named(found: Batch | RunStep, *names: str) -> dict[str, Any]:
    return {name: getattr(found, name) for name in names}


def _token(text: str | None) -> str:
    """Return a token in quotes, its white space visible; empty if it cannot be decoded."""
    return "" if text is None else f'"{printable(text, _TOKEN).translate(_ESCAPES)}"'


def _quoted(text: str | None) -> str:
    if text is None:
        return "none: token ids alone, or no tokenizer that can be read"
    more = f" ({counted(len(text), 'character')})" if len(text) > _PROSE else ""
    return f'"{printable(text[:_PROSE], _PROSE).translate(_ESCAPES)}"{more}'


def _label(label: str) -> str:
    return one_line(label, _LABEL) or "empty"


def _costs(found: Costs, digits: int = DIGITS) -> tuple[str, ...]:
    """Return exact cost, rise, fall and Theorem 1's."""
    shown = partial(bound, digits=digits)
    return tuple(
        or_absent(figure, shown) for figure in (found.exact, found.rise, found.fall, found.theorem1)
    )


def _cost(found: Costs, digits: int = DIGITS) -> str:
    exact, rise, fall, theorem1 = _costs(found, digits)
    return f"exact {exact} nats (rise {rise}, fall {fall}), Theorem 1 {theorem1}"


def _exp(logarithm: float) -> float:
    """Return a recorded probability, which may be nonsense."""
    return math.exp(logarithm) if logarithm < 1 else math.inf
