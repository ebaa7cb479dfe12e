"""The released texts that a report for readers inside shows."""

from __future__ import annotations

from dataclasses import dataclass

from dpaudit.reports.costs import ex_post_digits
from dpaudit.reports.outline import is_public
from dpaudit.reports.rounding import bound
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line, printable
from dpaudit.results import AuditResult, SampleText

_CHOSEN = {
    "costliest": "the costliest",
    "median": "the middle one by cost",
    "cheapest": "the cheapest",
    "first": "the first",
    "last": "the last",
}


@dataclass(frozen=True)
class Shown:
    """One text as a report shows it.

    Attributes:
        title: which batch, and why this one.
        about: what it cost, how long it is and what it is labelled with.
        text: printable; empty where there is none to show.
        remark: what is missing of it.
    """

    title: str
    about: str
    text: str
    remark: str


def samples(result: AuditResult) -> tuple[Shown, ...]:
    """The texts; none for readers outside, whatever the result holds."""
    return () if is_public(result) else tuple(_shown(result, sample) for sample in result.samples)


def _shown(result: AuditResult, sample: SampleText) -> Shown:
    exact = next((batch.exact for batch in result.batches if batch.id == sample.batch), None)
    about = [counted(sample.tokens, "token")]
    if exact is not None:
        about.append(f"exact ex-post cost {bound(exact, ex_post_digits(result))} nats")
    if sample.label is not None:
        about.append(f"label {one_line(sample.label, LABEL_LENGTH) or 'empty'}")
    return Shown(
        f"Batch {sample.batch}, {_CHOSEN[sample.chosen]}",
        ", ".join(about),
        printable(sample.text or ""),
        _remark(sample),
    )


def _remark(sample: SampleText) -> str:
    if sample.text is None:
        return "The run releases its token ids, and no text."
    if not sample.text:
        return "The text is empty."
    cut = sample.characters - len(sample.text)
    return f"{counted(cut, 'more character')} in samples.jsonl." if cut > 0 else ""
