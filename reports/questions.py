"""The questions that officers, regulators and registries ask, each with its answer's place here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from dpaudit.reports.document import Block, Link, Paragraph, Row, Table, Words
from dpaudit.reports.findings import status_name
from dpaudit.reports.wording import say, section_title
from dpaudit.results import AuditResult
from dpaudit.results.crosswalk import Question, Standing, crosswalk
from dpaudit.results.publication import REPORT

_HEADER = ("No.", "Question", "Asked by", "Answer", "Where")
#: Columns of words.
_WORDS = frozenset({1, 2, 3, 4})


def standings(result: AuditResult) -> dict[Standing, int]:
    """Return how many questions a result answers itself, the publisher has to, and nobody does."""
    found = [question.standing(result) for question in crosswalk().questions]
    kinds: tuple[Standing, ...] = ("here", "publisher", "not-here")
    return {kind: found.count(kind) for kind in kinds}


def in_short(result: AuditResult) -> str:
    """Say for a card which questions a report of this result lists, and how many it answers."""
    found = standings(result)
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
        str(question.number),
        question.question,
        asked_by,
        _answer(question, question.standing(result)),
        list(_places(question, result, anchors, sections)) or "–",
    )


def _answer(question: Question, standing: Standing) -> str:
    """Return the answer and what stays open; of what this run lacks, whom to ask."""
    if standing == "here" and question.now == "answered":
        return question.answer
    lacking = standing == "not-here" or (standing == "publisher" and question.where.of_run)
    said = say("crosswalk-not-here") if lacking else question.answer
    return f"{said} {question.ask}".rstrip()


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
