"""Drafts for the house's own files, and the page that answers questions of standards.

The drafts are of an impact assessment and of an expert's determination. All are in the release
folder and published with it: of the audit they hold its public form, and of the house what it says
in about.yaml. What neither says is listed as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dpaudit.mechanisms.claims import ClaimKind
from dpaudit.reports import card, findings, labels, publisher, questions
from dpaudit.reports.document import Block, Document, Items, Paragraph, Section
from dpaudit.reports.wording import say, section_title
from dpaudit.reports.writers import markdown
from dpaudit.results import AuditResult
from dpaudit.results.publication import About


class _Part(NamedTuple):
    """A part of a draft: its heading, the publisher's fields in it, and what the audit says."""

    title: str
    fields: tuple[str, ...] = ()
    found: Iterable[Block] = ()


def render_dpia(result: AuditResult, kind: ClaimKind, about: About) -> str:
    """Return a draft for the part of an impact assessment that is about these texts, as Markdown.

    Args:
        result: the audit's, in its public form, and passed.
        kind: of the claim, which the public form may withhold.
        about: what the publisher says.
    """
    return _draft(
        f"Impact assessment: {about.name}",
        say("draft-dpia"),
        about,
        (
            _Part("What is done", ("intended_use", "description", "source"), _made(result)),
            _Part("Why it is needed", ("lawful_basis", "necessity")),
            _Part("Who receives the texts", ("recipients", "region", "contact")),
            _Part(
                "Risks to a person",
                ("other_releases", "intruder_test"),
                card.promised(result, kind),
            ),
            _Part("Measures", ("access", "retention"), _measures(result, kind)),
            _Part("What stays, and who accepts it", ("justification", "roles")),
            _Part("After the release", ("review", "incidents")),
        ),
    )


def render_hipaa(result: AuditResult, kind: ClaimKind, about: About) -> str:
    """Return a draft of the methods and results of a determination by an expert, as Markdown.

    Arguments are those of `render_dpia`.
    """
    return _draft(
        f"Expert determination: {about.name}",
        say("draft-hipaa"),
        about,
        (
            _Part("Expert", ("hipaa.expert", "hipaa.date")),
            _Part("Methods", ("source",), [*_made(result), *_measures(result, kind)]),
            _Part("Results", ("intruder_test", "other_releases"), card.promised(result, kind)),
            _Part("Anticipated recipient", ("hipaa.recipient", "recipients")),
            _Part("Whether the risk is very small", ("hipaa.risk",)),
        ),
    )


def render_questions(result: AuditResult, kind: ClaimKind, about: About) -> str:
    """Return the page of questions that standards ask, with what answers each, as Markdown.

    Arguments are those of `render_dpia`.
    """
    blocks: list[Block] = [
        Paragraph(say("answers-caution"), "caution"),
        *card.promised(result, kind),
        *card.held_to_policy(result),
        Section(section_title("crosswalk"), list(questions.answers(result, about))),
    ]
    return markdown.render(Document(f"Questions and answers: {about.name}", blocks))


def _draft(title: str, lead: str, about: About, parts: Sequence[_Part]) -> str:
    sections = [
        Section(
            part.title,
            [*publisher.statements(about, part.fields), *part.found]
            or [Paragraph(say("draft-nothing"))],
        )
        for part in parts
    ]
    absent = [
        f"{publisher.TITLES[name]} (`{name}`)"
        for part in parts
        for name in part.fields
        if about.stated(name) is None
    ]
    listed: list[Block] = [Items(absent)] if absent else [Paragraph(say("draft-complete"))]
    blocks: list[Block] = [
        Paragraph(lead, "caution"),
        *sections,
        Section("Not stated by the publisher", listed),
    ]
    return markdown.render(Document(title, blocks))


def _made(result: AuditResult) -> Iterator[Block]:
    """Yield how the texts were made, by public settings alone."""
    yield Paragraph(say("card-made"))
    yield card.settings_table(result)
    if result.run.settings is not None:
        yield from labels.shares(result.run.settings, None)


def _measures(result: AuditResult, kind: ClaimKind) -> Iterator[Block]:
    """Yield what was checked, by whose rules, and what is trusted besides."""
    yield Paragraph(f"{findings.tally(result)}. {findings.evidence_asked(result)}")
    yield from card.held_to_policy(result)
    yield Items(card.assumptions(result, kind))
