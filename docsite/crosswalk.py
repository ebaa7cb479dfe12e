"""docs/crosswalk.md, made of the crosswalk that reports use.

After a change of dpaudit/results/crosswalk.toml:
DPAUDIT_UPDATE_DOCS=1 pytest tests/releasing/test_crosswalk.py -k page
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dpaudit.reports.wording import section_title
from dpaudit.results.crosswalk import Answered, Question, crosswalk

_ABOUT = """\
# Standards

What privacy officers, regulators and registries ask of a release, and where dpaudit answers it.
Each report has the same list with links into that very run, under the same title. A [release with
about.yaml](release.md#what-only-people-know) has `annexes/questions.md`, with figures and the
publisher's words under each question. This page is made from `dpaudit/results/crosswalk.toml`.

**This is no legal advice**, and no finding that a law or a standard is kept. The questions are in
our own words. Most come from summaries, as the table says: read the standard itself before you rely
on a clause.

"""
_READ = {
    "full": "in full",
    "contents": "its table of contents, and summaries by others",
    "summaries": "summaries by others",
}
_SAID: dict[Answered, str] = {"answered": "yes", "partly": "in part", "not": "no"}
#: How places are called, in the order of the data file.
_PLACES = {
    "report": "report.json",
    "checks": "checks",
    "sections": "report.html",
    "card": "card",
    "entry": "registry's entry",
    "attestation": "attestation",
    "about": "[about.yaml](reference/about.md)",
}


def page() -> str:
    """Return the page as Markdown."""
    return _ABOUT + "\n".join([*_sources(), "", *_counts(), "", *_questions()]) + "\n"


def _sources() -> Iterator[str]:
    yield "| source | issued | what was read | when |"
    yield "|---|---|---|---|"
    for source in crosswalk().sources:
        yield f"| {source.title} | {source.issued} | {_READ[source.read]} | {source.read_on} |"


def _counts() -> Iterator[str]:
    questions = crosswalk().questions
    alone = [each for each in questions if each.now == "answered" and each.where.of_run]
    before, now = (Counter(getattr(each, name) for each in questions) for name in ("before", "now"))
    yield f"| {len(questions)} questions | answered | in part | not |"
    yield "|---|---:|---:|---:|"
    for name, found in (("early November 2026", before), ("now, with about.yaml", now)):
        yield f"| {name} | {found['answered']} | {found['partly']} | {found['not']} |"
    yield ""
    yield (
        f"Of the {now['answered']}, a run with a claim that was fixed beforehand answers "
        f"{len(alone)} from its own figures and checks; for the others the publisher has to fill "
        "in a field of about.yaml."
    )


def _questions() -> Iterator[str]:
    for source in crosswalk().sources:
        asked = [each for each in crosswalk().questions if each.source == source.id]
        yield from ("", f"## {source.short}", "")
        yield "| question | before, now | answer, and where |"
        yield "|---|---|---|"
        yield from map(_row, asked)


def _row(question: Question) -> str:
    asked = f"{question.number}. {question.question} ({question.clause})"
    answer = " ".join(filter(None, (question.answer, question.trial, question.ask)))
    if question.now == "not":
        answer = f"Not answered by dpaudit. {question.ask}"
    where = "; ".join(_places(question)) or "–"
    said = (_SAID[question.before], _SAID[question.now])
    # One column for both: side by side they leave no room on a page.
    return f"| {asked} | {', '.join(said)} | {answer}<br>{where} |"


def _places(question: Question) -> Iterator[str]:
    for name, place in _PLACES.items():
        if held := getattr(question.where, name):
            if name == "sections":
                shown = ", ".join(f"“{section_title(each)}”" for each in held)
            elif name == "card":
                shown = ", ".join(f"“{each}”" for each in held)
            else:
                shown = ", ".join(f"`{each}`" for each in held)
            yield f"{place}: {shown}"
    for each in question.where.pages:
        yield f"[{each.partition('.')[0]}]({each})"
