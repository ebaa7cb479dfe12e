"""The crosswalk: questions of standards and regulators, and where a release answers each.

crosswalk.toml beside this file has them; docs/crosswalk.md and a section of each report show them.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

import tomli
from pydantic import Field, model_validator

from dpaudit.mechanisms import Fields, FirstVersion
from dpaudit.results.audit import AuditResult

Answered = Literal["answered", "partly", "not"]
#: How a result answers a question: from its own fields and checks, by what its publisher says
#: beside it, or not at all.
Standing = Literal["here", "publisher", "not-here"]
_Words = Annotated[str, Field(min_length=1, max_length=300)]
_Names = Annotated[tuple[_Words, ...], Field(strict=False)]


class Source(Fields):
    """A standard, a law or a guidance.

    Attributes:
        read: what dpaudit's authors read: the text, its table of contents, or summaries by others.
        read_on: the day, in ISO 8601.
    """

    id: _Words
    title: _Words
    issued: _Words
    read: Literal["full", "contents", "summaries"]
    read_on: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]

    @property
    def short(self) -> str:
        """The title up to its first comma."""
        return self.title.split(",")[0]


class Where(Fields):
    """The places of an answer.

    Attributes:
        report: fields of report.json, by their path with points.
        checks: ids.
        sections: of report.html, by their id.
        card: headings of README.md, or fields of its front matter.
        entry: fields of the registry's entry, by their path with points.
        attestation: names of entries of the attestation's configuration.
        about: fields of about.yaml.
        pages: of the documentation, each with or without an anchor.
    """

    report: _Names = ()
    checks: _Names = ()
    sections: _Names = ()
    card: _Names = ()
    entry: _Names = ()
    attestation: _Names = ()
    about: _Names = ()
    pages: _Names = ()

    @property
    def of_run(self) -> bool:
        """Whether anything but the publisher's words answers."""
        made = (self.report, self.checks, self.card, self.entry, self.attestation)
        return any(made) or bool({*self.sections} - {"sign-off"})


class Question(Fields):
    """One question.

    Attributes:
        clause: of the source, by number or subject.
        question: in our own words.
        before: how the report and card of early November 2026 answered it.
        now: how a release answers it today, with all fields of about.yaml.
        answer: the answer's sense, as a sentence; empty if there is none.
        ask: what stays open, and whom to ask.
        trial: what to ask about a trial of the texts where none was made; else its finding answers.
    """

    number: Annotated[int, Field(ge=1)]
    source: _Words
    clause: _Words
    question: _Words
    before: Answered
    now: Answered
    answer: Annotated[str, Field(max_length=300)] = ""
    where: Where = Where()
    ask: Annotated[str, Field(max_length=300)] = ""
    trial: Annotated[str, Field(max_length=300)] = ""

    @model_validator(mode="after")
    def _is_answered_somewhere(self) -> Question:
        answered = bool(self.answer) and self.where != Where()
        if answered != (self.now != "not"):
            raise ValueError("an answer has a sentence and a place, and no answer has neither")
        if self.now != "answered" and not self.ask:
            raise ValueError("what is open names whom to ask")
        return self

    def standing(self, result: AuditResult) -> Standing:
        """Return how this result answers: with fields that hold something, and checks made.

        An answer that the publisher alone has stands in no result.
        """
        if not self.where.of_run:
            return "publisher" if self.where.about else "not-here"
        held = all(value_at(result, path) is not None for path in self.where.report)
        if self.where.checks:
            made = {check.id for check in result.checks if check.status != "skip"}
            held = held and not made.isdisjoint(self.where.checks)
        if held:
            return "here"
        return "publisher" if self.where.about else "not-here"


class Crosswalk(Fields):
    """All of crosswalk.toml."""

    crosswalk_version: FirstVersion
    sources: Annotated[tuple[Source, ...], Field(strict=False)]
    questions: Annotated[tuple[Question, ...], Field(strict=False)]

    @model_validator(mode="after")
    def _names_each_once(self) -> Crosswalk:
        ids = [source.id for source in self.sources]
        if len(set(ids)) < len(ids) or {each.source for each in self.questions} - {*ids}:
            raise ValueError("each source is listed once, and each question's is among them")
        if [each.number for each in self.questions] != list(range(1, len(self.questions) + 1)):
            raise ValueError("questions are numbered from 1")
        return self

    def source(self, question: Question) -> Source:
        """Return the source of a question."""
        return next(source for source in self.sources if source.id == question.source)


@cache
def crosswalk() -> Crosswalk:
    """Return the crosswalk that is part of dpaudit."""
    text = resources.files("dpaudit.results").joinpath("crosswalk.toml").read_text("utf-8")
    return Crosswalk.model_validate(tomli.loads(text))


def value_at(result: AuditResult, path: str) -> Any:
    """Return the value of a result's field, None where it or what holds it is none.

    Args:
        result: of an audit.
        path: names with points between them, as in report.json.

    Raises:
        AttributeError: no result has such a field.
    """
    value: Any = result
    for name in path.split("."):
        if value is None:
            return None
        value = value.get(name) if isinstance(value, dict) else getattr(value, name)
    return None if value == () else value
