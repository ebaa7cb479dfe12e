"""Whether a model knew records before, for a terminal. Private."""

from __future__ import annotations

from dpaudit.reports.document import Banner, Document, Paragraph, Table
from dpaudit.reports.text import one_line
from dpaudit.reports.wording import say
from dpaudit.results.contamination import Contamination, Ranks
from dpaudit.results.rounding import exactly, nearest

HEADER = ("Told apart by", "AUC", "95% interval", "p, records higher", "p, records lower")


def build(found: Contamination) -> Document:
    """Return the outcome in a sentence, both tests, and what was compared."""
    records, others = found.records, found.others
    compared = (
        f"{records.texts:,} records (median {nearest(records.nats, 2)} nats a token) and "
        f"{others.texts:,} other texts ({nearest(others.nats, 2)}), up to "
        f"{found.model.max_tokens:,} tokens each, by {one_line(found.model.name)}."
    )
    omitted = {
        "in both files": found.in_both,
        "too short": records.too_short + others.too_short,
    }
    said = ", ".join(f"{count:,} {why}" for why, count in omitted.items() if count)
    rows = [_row("the model's likelihood", found.likelihood), _row("their words", found.words)]
    return Document(
        "",
        [
            Paragraph(say(f"contamination-{found.outcome}", level=exactly(found.level)), "lead"),
            Table.of("Tests", HEADER, rows),
            Paragraph(compared + (f" Left out: {said}." if said else "")),
            Paragraph(say("contamination-needs"), "quiet"),
            Banner("Internal.", say("contamination-private")),
        ],
    )


def _row(name: str, ranks: Ranks) -> tuple[str, ...]:
    return (
        name,
        nearest(ranks.auc, 3),
        f"{nearest(ranks.low, 3)} to {nearest(ranks.high, 3)}",
        f"{ranks.p:.2g}",
        f"{ranks.p_lower:.2g}",
    )
