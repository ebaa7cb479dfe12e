"""What the publisher alone knows, as the card and the drafts show it. All of it is published."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from dpaudit.reports.document import Block, Definitions, Entry, Link, Paragraph
from dpaudit.reports.text import one_line
from dpaudit.reports.wording import say

if TYPE_CHECKING:
    from dpaudit.results.publication import About

#: An address that a mail can be sent to, which stays whole between angle brackets.
_ADDRESS = re.compile(r"([A-Za-z0-9.+_-]+@[A-Za-z0-9]+(?:[.-][A-Za-z0-9]+)*)")
#: Names of the fields of about.yaml on pages, in their order.
TITLES: Final = {
    "name": "Name",
    "curators": "Published by",
    "curator_type": "Kind of publisher",
    "description": "Description",
    "intended_use": "Purpose",
    "region": "Region",
    "sector": "Sector",
    "contact": "Contact",
    "revocations": "Where releases that were taken back are listed",
    "recipients": "Recipients, and who might look for a person",
    "roles": "Who answers for what",
    "access": "Who can read the records",
    "source": "Where the records come from",
    "lawful_basis": "Lawful basis",
    "necessity": "Why made-up texts, and why these records",
    "justification": "Why the risk is acceptable, and what stays",
    "retention": "How long records and run are kept",
    "other_releases": "Other releases of the same records",
    "intruder_test": "Attempts to find a person by the texts",
    "review": "Who looks again, and when",
    "incidents": "What happens if something goes wrong",
    "hipaa.expert": "Expert",
    "hipaa.recipient": "Anticipated recipient",
    "hipaa.risk": "The expert's finding on the risk",
    "hipaa.date": "Date",
}
#: Those of the card's section on personal data: the others stand elsewhere on it.
PERSONAL: Final = (
    "recipients",
    "roles",
    "access",
    "source",
    "lawful_basis",
    "necessity",
    "justification",
    "retention",
    "other_releases",
    "intruder_test",
    "review",
    "incidents",
)


def statements(about: About, names: Iterable[str]) -> Iterator[Block]:
    """Yield the publisher's statements in these fields; nothing where none is stated."""
    found = [(TITLES[name], about.stated(name)) for name in names]
    entries = [
        Entry(title, with_addresses(one_line(said, len(said)))) for title, said in found if said
    ]
    if entries:
        yield Definitions(entries, "terms")


def with_addresses(text: str) -> list[str | Link]:
    """Return text with its mail addresses as links: other text gets an invisible sign into each."""
    parts = enumerate(_ADDRESS.split(text))
    return [Link(part, f"mailto:{part}") if place % 2 else part for place, part in parts]


def missing(about: About, names: Iterable[str]) -> str:
    """Return the titles of those of these fields that the publisher does not state, in a line."""
    return "; ".join(TITLES[name] for name in names if about.stated(name) is None)


def personal_data(about: About) -> Iterator[Block]:
    """Yield the card's statements on personal data, and what is missing of them.

    Nothing comes of a publisher who states none of it.
    """
    if said := list(statements(about, PERSONAL)):
        yield Paragraph(say("publisher-says"))
        yield from said
        if absent := missing(about, PERSONAL):
            yield Paragraph(say("publisher-missing", missing=absent))
