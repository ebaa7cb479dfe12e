"""An audit report's sections for engineers: figures by kind, costs, composition and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

from pydantic import JsonValue

from dpaudit.mechanisms.claims import EMPIRICAL, ApproximateClaim, ExPostClaim, ZcdpClaim
from dpaudit.reports import budgets, costs, figures, wording
from dpaudit.reports.costs import MOST_BATCHES, batch_costs, ex_post_digits
from dpaudit.reports.document import (
    Block,
    Columns,
    Commands,
    Definitions,
    Entry,
    Figure,
    Link,
    Node,
    Paragraph,
    Section,
    Table,
    Tree,
    Words,
)
from dpaudit.reports.findings import caution, cited, is_public
from dpaudit.reports.key_figures import KeyFigure, in_nats, key_figures, promises
from dpaudit.reports.levels import digits_for, holding
from dpaudit.reports.reproducing import commands
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.wording import (
    ABSENT,
    KIND_MEANINGS,
    KIND_TITLES,
    neighbours,
    or_absent,
    say,
    section_title,
    signed,
)
from dpaudit.results import (
    Approximate,
    AuditResult,
    BatchResult,
    ExPost,
    Kind,
    LedgerEntry,
    RunSummary,
)
from dpaudit.results.rounding import (
    bound,
    delta_bound,
    nearest,
    saving,
    stated,
)
from dpaudit.results.values import leaves

MOST_CONTEXTS = 20
#: Levels and children of a composition that are listed.
_DEPTH, _BREADTH = 4, 10
WORST_COLUMNS = (
    "Batch",
    "Slot",
    "Empirical loss (nats)",
    "Ex-post bound of the batch, exact (nats)",
)
#: Entries of the run's summary that say which software audited it.
_VERSIONS = ("audited", "dpaudit", "dp_accounting", "plugins")
_MOST_SETTINGS, _MOST_LISTED = 200, 60


def sections(result: AuditResult) -> Iterator[Section]:
    """Yield the sections that this result has something for, in their order."""
    kinds = [*kind_sections(result).values()]
    doubt = [Paragraph(caution(result), "caution")] if caution(result) else []
    # What the first screen says in plain words, in full.
    stated_in_full = [Paragraph(one_line(result.guarantee))] if holding(result) else []
    lead = [*stated_in_full, Paragraph(say("kinds-apart"), "quiet"), *doubt]
    yield _named("claimed", [*lead, Columns(kinds)], folded=False)
    parts: dict[str, Callable[[AuditResult], Sequence[Block]]] = {"ledger": _ledger}
    if not is_public(result):
        per_token = {"tokens": _tokens, "budgets": _budgets, "losses": _losses}
        parts = {**per_token, "batches": _batches, **parts}
    for name, made in {**parts, "settings": _settings, "reproduce": _reproduce}.items():
        if blocks := made(result):
            yield _named(name, blocks)


def _named(name: str, blocks: Sequence[Block], *, folded: bool = True) -> Section:
    return Section(section_title(name), blocks, id=name, folded=folded)


def kind_sections(result: AuditResult) -> dict[Kind, Section]:
    """Return a section for each kind of epsilon, so that their figures cannot be read across."""
    kinds: list[Kind] = [ExPostClaim.id, ApproximateClaim.id, EMPIRICAL]
    if result.claim is not None and result.claim.kind == ZcdpClaim.id:
        kinds.insert(0, ZcdpClaim.id)
    return {kind: _kind(result, kind) for kind in kinds}


def _kind(result: AuditResult, kind: Kind) -> Section:
    """Return a kind's meaning, what is promised, what that is made of, and what to mind."""
    blocks: list[Block] = [Paragraph(KIND_MEANINGS[kind], "quiet")]
    if parts := [*promises(result, kind), *key_figures(result, kind)]:
        blocks.append(
            Definitions(
                [Entry(_name(result, kind, each), each.with_unit) for each in parts], "figures"
            )
        )
    return Section(
        KIND_TITLES[kind], [*blocks, Paragraph(_remark(result, kind), "quiet")], id=f"kind-{kind}"
    )


def _remark(result: AuditResult, kind: Kind) -> str:
    """Say what to mind about figures of a kind, or why there are none."""
    if kind != ZcdpClaim.id and not key_figures(result, kind):
        return say(f"{'withheld' if is_public(result) else 'no'}-{kind}")
    said = [say(f"of-{kind}"), *[say("rise-and-fall")] * (kind == ExPostClaim.id)]
    empirical = result.guarantees.empirical
    if kind == EMPIRICAL and empirical.attack is not None:
        said = [say("lower-bound")]
    if kind == EMPIRICAL and empirical.canaries is not None:
        said.append(say("of-canaries"))
    return " ".join(said)


def _name(result: AuditResult, kind: Kind, figure: KeyFigure) -> str:
    """Return a figure's name, with "batch level" if it is of that level alone."""
    found = None if kind == EMPIRICAL else result.guarantees.epsilons(kind)
    return (
        f"{figure.name}{_of_batch_level(found)}"
        if figure.of_batch and found is not None
        else figure.name
    )


def _of_batch_level(found: ExPost | Approximate) -> str:
    """Return the mark of figures that are the batch level's alone, or "" if levels are equal."""
    return " (batch level)" if found.amplification.groups else ""


def _tokens(result: AuditResult) -> list[Block]:
    words = costs.curve_described(result.tokens)
    return [Figure(figures.token_curve(result), words, say("curve-marks"))] if words else []


def _budgets(result: AuditResult) -> list[Block]:
    if result.budgets is None:
        return []
    return [Definitions(list(budgets.entries(result.budgets)), "figures")]


def _losses(result: AuditResult) -> list[Block]:
    rows = worst_contexts(result)
    if not rows:
        return []
    said = f"{say('loss-sign')} {several_contexts(result)}".strip()
    listed = Table.of("Contexts with the largest losses", WORST_COLUMNS, rows, sortable=True)
    return [Paragraph(said), listed]


def _batches(result: AuditResult) -> list[Block]:
    found = batch_costs(result)
    blocks: list[Block] = [Paragraph(say("of-the-batch-level"))]
    if found is not None:
        words = found.described()
        blocks.append(Figure(figures.batch_spread(result), words, say("spread-marks")))
    listed = result.batches[:MOST_BATCHES] if found is None else found.costliest
    note = say("no-batch-costs") if found is None else several_contexts(result)
    said = _listed(result, len(listed), "first" if found is None else "costliest")
    blocks.append(Paragraph(f"{said} {note if result.batches else ''}".strip()))
    if result.batches:
        columns = batch_columns(result.batches, ex_post_digits(result))
        links = _batch_links(result, [batch.id for batch in listed])
        rows = [
            [link, *(column.cell(batch) for column in columns[1:])]
            for link, batch in zip(links, listed, strict=True)
        ]
        wide = [place for place, column in enumerate(columns) if column.words]
        title = "Batches, with columns of their own for each kind of cost"
        header = [column.name for column in columns]
        blocks.append(
            Section(
                "Batches", [Table.of(title, header, rows, wide, sortable=True)], filter="batches"
            )
        )
    return blocks


def _batch_links(result: AuditResult, batches: Sequence[int]) -> list[Words]:
    """Return batches' ids, each of which leads to its text where one is shown."""
    shown = {sample.batch for sample in result.samples}.intersection(batches)
    return [
        Link(str(batch), f"#text-{batch}-0") if batch in shown else str(batch) for batch in batches
    ]


class Column(NamedTuple):
    """A column of the per-batch table; `words`: it holds text, which may be hostile."""

    name: str
    cell: Callable[[BatchResult], str]
    words: bool = False


def batch_columns(batches: Sequence[BatchResult], digits: int) -> tuple[Column, ...]:
    """Return the columns of a table of batches, apart for each kind.

    Columns that no batch has a figure for are left out.

    Args:
        batches: all of the run's.
        digits: significant ones, of ex-post costs.
    """
    cost = partial(or_absent, shown=partial(bound, digits=digits))
    several = any(batch.texts != 1 for batch in batches)
    columns = [
        Column("Batch", lambda batch: str(batch.id)),
        Column("Ex-post, exact (nats)", lambda batch: cost(batch.exact)),
        Column("Rise", lambda batch: cost(batch.rise)),
        Column("Fall", lambda batch: cost(batch.fall)),
        Column("Ex-post, Theorem 1 (nats)", lambda batch: cost(batch.theorem1)),
        Column("Saving (nats)", _saved),
        Column(
            "Empirical, largest loss (nats)",
            lambda batch: or_absent(batch.leave_one_out_max, nearest),
        ),
        Column("Contexts", lambda batch: f"{batch.contexts:,}"),
        Column("Texts", lambda batch: f"{batch.texts:,}" if several else ABSENT),
        Column("Tokens", lambda batch: f"{batch.steps:,}"),
        Column("Label", lambda batch: or_absent(batch.label, _label), words=True),
    ]
    return tuple(
        column for column in columns if any(column.cell(batch) != ABSENT for batch in batches)
    )


def _saved(batch: BatchResult) -> str:
    return (
        ABSENT
        if batch.theorem1 is None or batch.exact is None
        else saving(batch.theorem1, batch.exact)
    )


def _label(label: str) -> str:
    return one_line(label, LABEL_LENGTH) or "empty"


def _listed(result: AuditResult, listed: int, which: Literal["first", "costliest"]) -> str:
    """Say how many batches are listed, which these are, and how many are not."""
    count = len(result.batches)
    if count == 0:
        return "No batch was read."
    texts = sum(batch.texts for batch in result.batches)
    in_all = f" They have {texts:,} texts in all." if texts != count else ""
    if count > listed:
        others = "one" if count - listed == 1 else f"{count - listed:,}"
        return (
            f"The {listed} {which} of {count:,} batches; report.json has the other {others} "
            f"too.{in_all}"
        )
    return (
        counted(count, "batch", "batches")
        + (", costliest first." if which == "costliest" and count > 1 else ".")
        + in_all
    )


def several_contexts(result: AuditResult) -> str:
    """Say what a batch's figures are for if a unit can change several contexts, or nothing."""
    found = result.guarantees.ex_post
    if found is None or found.unit == "context":
        return ""
    one = found.relation == "add_remove" and (found.unit == "record" or found.records_per_user == 1)
    return "" if one else say("several-contexts")


def worst_contexts(result: AuditResult) -> list[list[Words]]:
    """Return rows of WORST_COLUMNS, by size of loss: contexts whose absence matters most."""
    contexts = result.guarantees.empirical.worst[:MOST_CONTEXTS]
    batches = [context.batch for context in contexts]
    exact = {batch.id: batch.exact for batch in result.batches if batch.id in batches}
    shown = partial(bound, digits=ex_post_digits(result))
    return [
        [
            link,
            str(context.slot),
            signed(context.loss),
            or_absent(exact.get(context.batch), shown),
        ]
        for link, context in zip(_batch_links(result, batches), contexts, strict=True)
    ]


def _ledger(result: AuditResult) -> list[Block]:
    if not result.ledger:
        return []
    return [
        Paragraph(say("ledger-lead")),
        *(_composition(result, entry) for entry in result.ledger),
    ]


def _composition(result: AuditResult, entry: LedgerEntry) -> Section:
    """Return the composition of one kind as a tree, bounded in depth and breadth."""
    # As elsewhere in the report: a loss is measured, an epsilon is a bound.
    shown: dict[Kind, Callable[[float], str]] = {
        EMPIRICAL: nearest,
        ZcdpClaim.id: bound,
        ExPostClaim.id: partial(bound, digits=ex_post_digits(result)),
        ApproximateClaim.id: partial(
            bound, digits=digits_for(result.claim, result.guarantees.approximate)
        ),
    }
    claimed = None if result.claim is None else result.claim.delta
    records = result.claim.records_per_user if result.claim else None

    def figure(each: LedgerEntry) -> str:
        delta = f", δ = {delta_bound(each.delta, claimed)}" if each.delta else ""
        return in_nats(shown[entry.kind](each.value)) + delta

    title = f"Composition: {KIND_TITLES[entry.kind]}"
    note = neighbours(entry.relation, entry.unit, records)
    return Section(title, [Tree(_node(entry, figure, _DEPTH))], note=note)


def _node(
    entry: LedgerEntry,
    figure: Callable[[LedgerEntry], str],
    depth: int,
    inherited: str | None = None,
) -> Node:
    """Return a node down to `depth` levels; a reference that the parent has too is not repeated."""
    listed = entry.children[:_BREADTH] if depth > 1 else ()
    omitted = max(0, entry.omitted) + len(entry.children) - len(listed)
    shared = (entry.rule, entry.kind) == ("joint", ExPostClaim.id)
    words = wording.SHARED if shared else wording.RULES[entry.rule]
    return Node(
        name=one_line(entry.name, LABEL_LENGTH) or "unnamed",
        figure=figure(entry),
        rule=words and f"{words} {len(listed) + omitted:,}",
        reference=""
        if entry.reference == inherited
        else one_line(cited(entry.reference), LABEL_LENGTH),
        children=[_node(child, figure, depth - 1, entry.reference) for child in listed],
        omitted=omitted,
    )


def _settings(result: AuditResult) -> list[Block]:
    parts = settings(result.run)
    if not parts:
        return [Paragraph("The run states nothing that could be read.")]
    lead = (
        "As the run declares them public."
        if is_public(result)
        else "As the run states them, with its digests."
    )
    return [Paragraph(lead), *(Section(title, [Definitions(entries)]) for title, entries in parts)]


def settings(run: RunSummary) -> list[tuple[str, list[Entry]]]:
    """Return the run's summary as bounded, printable text: configuration, versions, digests."""
    configuration = run.model_dump(mode="json", exclude={"digests"}, exclude_none=True)
    configuration |= configuration.pop("settings", {})
    configuration.get("prompt", {}).pop("public", None)  # token ids say nothing to a reader
    versions = {name: configuration.pop(name, None) for name in _VERSIONS}
    versions["software"] = configuration.pop("software", None)
    parts = (("Configuration", configuration), ("Versions", versions), ("Digests", run.digests))
    return [(title, _entries(held)) for title, held in parts if held]


def _entries(stated_settings: Mapping[str, JsonValue]) -> list[Entry]:
    """Return settings by their places, without those that hold nothing."""
    found = [(name, value) for name, value in leaves(stated_settings) if value not in ("", [])]
    shown = [
        Entry(one_line(name, LABEL_LENGTH), shown_setting(value))
        for name, value in found[:_MOST_SETTINGS]
    ]
    if len(found) > _MOST_SETTINGS:
        more = counted(len(found) - _MOST_SETTINGS, "more entry", "more entries")
        shown.append(Entry("…", f"{more} in report.json"))
    return shown


def shown_setting(value: JsonValue) -> str:
    """Return the value of a setting as text; a list by its first entries."""
    if isinstance(value, list):
        left_out = len(value) - _MOST_LISTED
        more = f", and {left_out:,} more" if left_out > 0 else ""
        shown = (
            f"[{shown_setting(each)}]" if isinstance(each, list) else shown_setting(each)
            for each in value[:_MOST_LISTED]
        )
        return ", ".join(shown) + more
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return stated(value)
    # white space, made visible
    return one_line(value) or (json.dumps(str(value)) if value else "empty")


def _reproduce(result: AuditResult) -> list[Block]:
    return [Paragraph(say("reproduce")), Commands(commands(result))]
