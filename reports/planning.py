"""The screen of `dpaudit generate --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator

from dpaudit.reports import preview
from dpaudit.reports.document import Definitions, Document, Entry
from dpaudit.reports.levels import FEWEST_BATCHES, claim_words, few_batches
from dpaudit.reports.text import counted, one_line
from dpaudit.results.catalogue import sentence
from dpaudit.results.plan import Plan
from dpaudit.results.rounding import bound, lower_bound

#: With so many contexts on average, or more, a batch without any is seldom: of 1,000 some two.
_SOME_EMPTY = 6
_EX_POST = "ex-post: known after the run, because it depends on the texts and on the records"


def build(plan: Plan, name: str) -> Document:
    """Return a plan under the name of its config."""
    entries = [Entry(title, said) for title, said in _lines(plan)]
    title = f"{one_line(name)}: dry run, nothing was written"
    return Document(title, [Definitions(entries), preview.section(plan.preview)])


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    labels = f", {counted(plan.labels, 'label')}" if plan.labels else ""
    batches, held = (
        plan.batches,
        f"{plan.contexts:,.0f}" if plan.contexts >= 9.5 else f"{plan.contexts:.2g}",
    )
    rounds = f" in {plan.rounds:,} rounds" if plan.rounds > 1 else ""
    yield "data", f"{counted(plan.records, 'record')}{labels}"
    yield "batches", f"{counted(batches, 'batch', 'batches')}{rounds}, about {held} contexts each"
    if plan.contexts < _SOME_EMPTY:
        yield (
            "warning",
            "a batch may have no record at all, and readers cannot tell its text from the others",
        )
    at_most = f"at most {counted(plan.longest, 'token')} each"
    if plan.several:
        texts = -(-plan.tokens // plan.longest) * batches
        yield "texts", f"{texts:,} or more, {at_most}; {counted(plan.tokens, 'token')} a batch"
    else:
        yield "texts", f"{batches:,}, {at_most}"
    yield "claim", _EX_POST if plan.claim is None else claim_words(plan.claim)
    if plan.equal is not None:
        yield "", f"both levels are equal: {sentence(plan.equal)}"
    elif plan.claim is not None:
        yield (
            "",
            "release level: for readers of the texts; batch level: for people who know each "
            "record's batch",
        )
    if plan.fewest is not None and plan.fewest < FEWEST_BATCHES:
        yield "warning", few_batches(plan.fewest, plan.labels)
    if plan.one_label is not None:
        yield (
            "labels",
            f"under one label, the same records reach epsilon {bound(plan.one_label)} (release "
            "level)",
        )
    if plan.affordable is not None:
        yield (
            "rounds",
            f"with batching.rounds, the same claim pays for {counted(plan.affordable, 'text')}",
        )
    if plan.withheld:
        yield (
            "public",
            f"reports and cards for readers outside do not state this claim: {plan.withheld}",
        )
    if plan.sure is not None:
        left = "" if plan.left is None else f"earlier runs left {100 * plan.left:.0f}% on average; "
        sure = (
            f"each context pays for {counted(plan.sure, 'token')} or more: the less it moves "
            "them, the more"
        )
        yield "budgets", left + sure
    if plan.canaries is not None and plan.refutable is not None:
        could = "can refute no epsilon (95% confidence)"
        if plan.refutable > 0:
            could = (
                f"can refute an epsilon of at most {lower_bound(plan.refutable)} (95% confidence)"
            )
        yield (
            "canaries",
            f"{counted(plan.canaries, 'made-up record')}, in or out by secret coins; they {could}",
        )
    yield "time", f"at most about {span(plan.seconds)} on this machine, after the model is loaded"
    yield "disk", f"at most {_size(plan.stored)}"
    yield "audit", " ".join(plan.obstacles) or "these settings can pass the audit"
    if plan.public_parts:
        yield (
            "model",
            f"audit with --model NAME: without it, hardly any {' or '.join(plan.public_parts)} "
            "can be checked",
        )
    if not plan.knows_tokenizer:
        yield "tokenizer", "audits do not know it: give it to them with --tokenizer FILE"


def span(seconds: float) -> str:
    """Return a time in its largest unit: `3 min`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1, round(seconds))} s"


def _size(stored: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6)):
        if stored >= size:
            return f"{stored / size:.3g} {unit}"
    return f"{-(-stored // 1000):,} kB"
