"""The questions that officers, regulators and registries ask, with their answers' places.

A report has a table of them. A release with about.yaml has a page, with the publisher's answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from dpaudit.reports import publisher
from dpaudit.reports.document import (
    Block,
    Definitions,
    Entry,
    Link,
    Paragraph,
    Row,
    Section,
    Table,
    Words,
)
from dpaudit.reports.findings import status_name, why_skipped
from dpaudit.reports.wording import say, section_title
from dpaudit.results import AuditResult
from dpaudit.results.crosswalk import Question, Standing, crosswalk, value_at
from dpaudit.results.release_layout import CARD, QUESTIONS, REGISTRY, REPORT
from dpaudit.results.rounding import bound, exactly

if TYPE_CHECKING:
    from dpaudit.results.publication import About

#: The check of a trial of the texts.
_TRIAL = "release.disclosure"
_HEADER = ("Question", "Answer", "Where")
#: Columns of words.
_WORDS = frozenset(range(len(_HEADER)))


def standings(result: AuditResult) -> dict[Standing, int]:
    """Return how many questions a result answers itself, the publisher has to, and nobody does."""
    found = [question.standing(result) for question in crosswalk().questions]
    kinds: tuple[Standing, ...] = ("here", "publisher", "not-here")
    return {kind: found.count(kind) for kind in kinds}


def in_short(result: AuditResult, about: About) -> str:
    """Say for a card where its release answers which questions."""
    from dpaudit.results.publication import About

    found = standings(result)
    if about != About():
        return say("card-answers", file=QUESTIONS, questions=sum(found.values()))
    return say(
        "card-questions",
        report=REPORT,
        section=section_title("crosswalk"),
        questions=sum(found.values()),
        here=found["here"],
        publisher=found["publisher"],
    )


def blocks(
    result: AuditResult, anchors: Mapping[str, str], sections: Collection[str]
) -> Iterator[Block]:
    """Yield a table of all questions, each with its answer's place in this report.

    Args:
        result: of the audit.
        anchors: the places of checks in this report, by their ids.
        sections: ids of the sections that this report has.
    """
    found = standings(result)
    yield Paragraph(
        say(
            "crosswalk-lead",
            questions=sum(found.values()),
            here=found["here"],
            publisher=found["publisher"],
            open=found["not-here"],
        )
    )
    rows = [
        Row(_cells(question, result, anchors, sections), id=f"question-{question.number}")
        for question in crosswalk().questions
    ]
    yield Table(section_title("crosswalk"), _HEADER, rows, _WORDS)
    yield Paragraph(say("crosswalk-read"), "quiet")


def _cells(
    question: Question,
    result: AuditResult,
    anchors: Mapping[str, str],
    sections: Collection[str],
) -> tuple[Words, ...]:
    source = crosswalk().source(question)
    asked_by = f"{source.title.split(',')[0]}: {question.clause}"
    return (
        f"{question.number}. {question.question} ({asked_by})",
        _answer(question, question.standing(result), result),
        list(_places(question, result, anchors, sections)) or "–",
    )


def _answer(question: Question, standing: Standing, result: AuditResult) -> str:
    """Return the answer and what stays open; of what this run lacks, whom to ask."""
    if standing == "here" and question.now == "answered":
        return question.answer
    lacking = standing == "not-here" or (standing == "publisher" and question.where.of_run)
    said = [say("crosswalk-not-here") if lacking else question.answer]
    if question.trial:
        said += _trial(question.trial, result)
    return " ".join(filter(None, (*said, question.ask)))


def _trial(ask: str, result: AuditResult) -> Iterator[str]:
    """Yield what a trial of the texts found and what its check says; without one, what to ask."""
    tried = result.disclosed
    if tried is not None:
        from dpaudit.reports import disclosed  # few results have one

        yield f"The texts were put on trial: {disclosed.headline(tried)}."
    said = [
        each for each in result.checks if each.id == _TRIAL and each.id not in result.not_checked
    ]
    for check in said:
        skipped = check.status == "skip"
        words = why_skipped(result, check) if skipped else f"{status_name(result, check)}."
        yield f"Check `{check.id}`: {words}"
    if tried is None and all(check.status == "skip" for check in said):
        yield ask


def _places(
    question: Question,
    result: AuditResult,
    anchors: Mapping[str, str],
    sections: Collection[str],
) -> Iterator[str | Link]:
    """Yield links to sections and checks of this report, and names of places beside it."""
    where, checks = question.where, {check.id: check for check in result.checks}
    parts: list[tuple[str | Link, ...]] = [
        (Link(section_title(name), f"#{name}"),) for name in where.sections if name in sections
    ]
    parts += [
        (Link(f"`{name}`", f"#{anchors[name]}"), f" ({status_name(result, checks[name]).lower()})")
        for name in where.checks
        if name in anchors
    ]
    parts += [(f"`{name}` in report.json",) for name in where.report]
    beside = {
        "card": where.card,
        "registry's entry": [name.rpartition(".")[2] for name in where.entry],
        "attestation": where.attestation,
        "about.yaml": where.about,
    }
    parts += [(f"{name}: {', '.join(held)}",) for name, held in beside.items() if held]
    for place, part in enumerate(parts):
        yield from part
        if place < len(parts) - 1:
            yield "; "


def answers(result: AuditResult, about: About) -> Iterator[Block]:
    """Yield all questions by their sources, with what audit and publisher of a release answer.

    Args:
        result: the audit's, in its public form, and passed.
        about: what the publisher says.
    """
    asked = crosswalk().questions
    standing = {each.number: _standing_with(each, result, about) for each in asked}
    found = list(standing.values())
    yield Paragraph(
        say(
            "answers-lead",
            questions=len(found),
            here=found.count("here"),
            publisher=found.count("publisher"),
            open=found.count("not-here"),
        )
    )
    yield Paragraph(say("crosswalk-read"))
    for source in crosswalk().sources:
        parts = [
            Section(
                f"{each.number}. {each.question}",
                list(_answered(each, standing[each.number], result, about)),
            )
            for each in asked
            if each.source == source.id
        ]
        yield Section(source.short, parts)


def _standing_with(question: Question, result: AuditResult, about: About) -> Standing:
    """Return how a release answers: its publisher by what about.yaml states."""
    standing = question.standing(result)
    if standing == "publisher" and not any(map(about.stated, question.where.about)):
        return "not-here"
    return standing


def _answered(
    question: Question, standing: Standing, result: AuditResult, about: About
) -> Iterator[Block]:
    """Yield what is asked by which clause, the answer, its figures, and where to read on."""
    where = question.where
    yield Paragraph(f"Clause: {question.clause}.")
    yield Paragraph(_answer(question, standing, result))
    statuses = {check.id: status_name(result, check).lower() for check in result.checks}
    entries = [
        *(Entry(f"{path} in report.json", _shown(result, path)) for path in where.report),
        *(Entry(f"check {name}", statuses.get(name, "")) for name in where.checks),
    ]
    if held := [entry for entry in entries if entry.value]:
        yield Definitions(held, "terms")
    if any(map(about.stated, where.about)):
        yield Paragraph("The publisher says:")
        yield from publisher.statements(about, where.about)
    if absent := publisher.missing(about, where.about):
        yield Paragraph(say("publisher-missing", missing=absent))
    if places := list(_places_beside(question)):
        yield Paragraph(["Read on: ", *places])


def _shown(result: AuditResult, path: str) -> str:
    """Return a field's value where it is a single one; empty where it is none, or several."""
    value = value_at(result, path)
    if isinstance(value, float):
        return bound(value) if path.startswith("guarantees.") else exactly(value)
    return str(value) if isinstance(value, str | int) else ""


def _places_beside(question: Question) -> Iterator[str | Link]:
    """Yield links from a page in a folder of the release to the report, the card and the entry."""
    where = question.where
    parts: list[tuple[str | Link, ...]] = [
        ("report, ", Link(section_title(name), f"../{REPORT}/report.html#{name}"))
        for name in where.sections
    ]
    parts += [("card, ", Link(name, f"../{CARD}")) for name in where.card]
    if where.entry:
        names = ", ".join(name.rpartition(".")[2] for name in where.entry)
        parts.append((Link("registry's entry", f"../{REGISTRY}"), f": {names}"))
    if where.attestation:
        parts.append((f"attestation: {', '.join(where.attestation)}",))
    for place, part in enumerate(parts):
        yield from part
        yield "." if place == len(parts) - 1 else "; "
