"""Plans as they are shown: the screen of `dpaudit generate --dry-run`, and the menu of plans."""

from __future__ import annotations

from collections.abc import Iterator

from dpaudit.reports import preview
from dpaudit.reports.document import Definitions, Document, Entry
from dpaudit.reports.levels import (
    FEWEST_BATCHES,
    UNIT_NAMES,
    attack_words,
    claim_words,
    few_batches,
)
from dpaudit.reports.text import counted, one_line, span
from dpaudit.results.catalogue import sentence
from dpaudit.results.plan import Menu, Offer, Plan, PlanName
from dpaudit.results.rounding import bound, decimals, lower_bound, stated

#: With so many contexts on average, or more, a batch without any is seldom: of 1,000 some two.
_SOME_EMPTY = 6
_EX_POST = "ex-post: known after the run, because it depends on the texts and on the records"


def build(plan: Plan, name: str) -> Document:
    """Return a plan under the name of its config."""
    entries = [Entry(title, said) for title, said in _lines(plan)]
    title = f"{one_line(name)}: dry run, nothing was written"
    return Document(title, [Definitions(entries), preview.section(plan.preview)])


def headline(menu: Menu, texts: int, epsilon: float | None) -> str:
    """Say in a sentence what so many texts are of, by public numbers alone."""
    labels = f" with {counted(menu.labels, 'label')}" if menu.labels else ""
    given = f"{counted(texts, 'text')} of up to {counted(menu.tokens, 'token')}"
    cost = "" if epsilon is None else f" at epsilon {stated(epsilon)} for {UNIT_NAMES[menu.unit]}"
    return f"About {counted(menu.records, 'record')}{labels} give {given}{cost}."


def menu_document(menu: Menu, chosen: PlanName) -> Document:
    """Return the menu, under what the chosen plan gives."""
    offer = next(offer for offer in menu.offers if offer.name == chosen)
    entries = [Entry(name, words) for name, words in menu_lines(menu)]
    return Document(headline(menu, offer.texts, offer.epsilon), [Definitions(entries)])


def menu_lines(menu: Menu) -> Iterator[tuple[str, str]]:
    """Yield the name of each plan and what it gives, and what budgets would buy."""
    for offer in menu.offers:
        yield offer.name, _offer_words(offer)
    if menu.epsilon is not None:
        yield (
            "budgets",
            "individual budgets (privacy.epsilon) would buy nothing: these plans pay for every "
            "token in full",
        )


def _offer_words(offer: Offer) -> str:
    rounds = f" in {offer.rounds:,} rounds" if offer.rounds > 1 else ""
    texts = f"{counted(offer.texts, 'text')}{rounds}"
    batches = f"about {offer.records:,} records a batch"
    said = [
        {
            "many": f"{texts}, each context with one record; {batches}",
            "close": f"{texts}, closer to the records: {offer.examples} in each context; {batches}",
            "careful": f"{texts}, each record with {offer.influence:.0%} of the influence",
        }[offer.name]
    ]
    if offer.epsilon is not None and offer.batch_epsilon is not None:
        said.append(
            f"epsilon {stated(offer.epsilon)} (release level), {stated(offer.batch_epsilon)} "
            "(batch level)"
        )
    if offer.attack is not None and offer.batch_attack is not None:
        said.append(
            f"advantage of an attack {bound(offer.attack.advantage)} (release level), "
            f"{bound(offer.batch_attack.advantage)} (batch level)"
        )
    if offer.seconds is not None:
        said.append(f"about {span(offer.seconds)}")
    if offer.stored is not None and offer.audit is not None:
        said.append(f"about {size_words(offer.stored)}, audited in {audit_span(offer.audit)}")
    return "; ".join(said)


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.menu is not None:
        epsilon = None if plan.claim is None else plan.claim.epsilon
        yield "plan", headline(plan.menu, plan.batches, epsilon)
    labels = f", {counted(plan.labels, 'label')}" if plan.labels else ""
    batches, held = (
        plan.batches,
        f"{plan.contexts:,.0f}" if plan.contexts >= 9.5 else f"{plan.contexts:.2g}",
    )
    rounds = f" in {plan.rounds:,} rounds" if plan.rounds > 1 else ""
    yield "data", f"{counted(plan.records, 'record')}{labels}"
    yield "batches", f"{counted(batches, 'batch', 'batches')}{rounds}, about {held} contexts each"
    if plan.held_out:
        yield (
            "held out",
            f"{100 * plan.held_out:.3g}% of the records, which no prompt shows: they show what the "
            "others add, and batches are so much smaller",
        )
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
    if plan.attack is not None:
        yield "attacks", attack_words(plan.attack)
    if plan.batch_attack is not None and plan.equal is None:
        yield "", f"batch level: {attack_words(plan.batch_attack)}"
    if plan.fewest is not None and plan.fewest < FEWEST_BATCHES:
        yield "warning", few_batches(plan.fewest, plan.labels)
    if plan.one_label is not None:
        yield (
            "labels",
            f"under one label, the same records reach epsilon {decimals(plan.one_label)} "
            "(release level)",
        )
    if plan.menu is not None:
        yield from menu_lines(plan.menu)
    elif plan.affordable is not None:
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
            "they buy nothing: every token is paid for in full at less"
            if plan.sure >= plan.tokens
            else f"each context pays for {counted(plan.sure, 'token')} or more: the less it moves "
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
    yield (
        "disk",
        f"at most {size_words(plan.stored)}; an audit takes about {audit_span(plan.audit)}",
    )
    if plan.large:
        yield "warning", large_words(plan.stored, plan.audit)
    passes = "these settings can pass the audit"
    if plan.needs_data:
        passes += (
            ", with a replay of the data (--data): nothing else shows where rounds put records"
        )
    yield "audit", " ".join(plan.obstacles) or passes
    if plan.public_parts:
        yield (
            "model",
            f"audit with --model NAME: without it, hardly any {' or '.join(plan.public_parts)} "
            "can be checked",
        )
    if plan.dtype == "bfloat16":
        yield (
            "dtype",
            "bfloat16, about twice as fast as float32. A replay on other hardware does not tell "
            "one context's logits from another's; with model.dtype: float32 it does",
        )
    if not plan.knows_tokenizer:
        yield "tokenizer", "audits do not know it: give it to them with --tokenizer FILE"


def audit_span(seconds: float) -> str:
    """Return the time of an audit: `3 min of one core`."""
    if seconds >= 1.5 * 3600:
        return f"{seconds / 3600:,.0f} core-hours"
    return f"{span(seconds)} of one core"


def large_words(stored: int, seconds: float) -> str:
    """Warn about a record of every context's contribution to every token of the vocabulary."""
    return (
        "every context's contribution to every token of the vocabulary is recorded (record.contexts"
        f"): up to {size_words(stored)}, and {audit_span(seconds)} for each audit. With "
        "mechanism.support: {kind: public-top-k, size: 100}, both are small"
    )


def size_words(stored: int) -> str:
    """Return a number of bytes in its largest unit: `3.2 GB`."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if stored >= size:
            return f"{stored / size:.3g} {unit}"
    return f"{-(-stored // 1000):,} kB"
