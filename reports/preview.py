"""The texts of the public prompt alone, on the screens of `init` and `generate --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator

from dpaudit.reports.document import Block, Document, Paragraph, Piece, Section, Text, Texts
from dpaudit.reports.text import counted, one_line
from dpaudit.results.plan import PublicPreview, Vacuity, is_toy

_REASONS: dict[Vacuity, str] = {
    "empty": "empty",
    "very_short": "very short",
    "digits": "digits and signs",
    "lists": "lists",
    "repetitions": "one phrase repeated",
    "prompts": "the prompt or an example repeated",
    "other_language": "another language than the public examples",
}
_REMEDY = "Write better public examples, or name a larger model (model.name)."
_LARGER = (
    "Texts that are worth releasing take a larger model. `dpaudit demo --model gemma3-270m` says "
    "how to get one."
)
_WORTH = (
    "Examples that people write, or take from a public corpus of the records' kind, are worth more."
)


def build(preview: PublicPreview) -> Document:
    """Return the texts, and what they say of model and examples."""
    return Document("", [section(preview)])


def section(preview: PublicPreview) -> Section:
    """Return the same as a part of a plan."""
    title = "Texts of the public prompt alone (epsilon 0, no record was read)"
    return Section(title, list(_blocks(preview)))


def toy_words(model: str, parameters: int) -> tuple[str, str] | None:
    """Say that a model is a toy, and what to do; None if it is none."""
    if not is_toy(parameters):
        return None
    lead = f"{one_line(model)} is a toy: it shows how dpaudit works."
    return lead, f"It has {parameters / 1e6:,.3g} million parameters. {_LARGER}"


def _blocks(preview: PublicPreview) -> Iterator[Block]:
    yield Texts(
        [Text("", one_line(text.label), "", [Piece(text.text.strip())]) for text in preview.shown]
    )
    measured = list(_measured(preview))
    if preview.follows:
        yield Paragraph(f"{'; '.join(measured)}.", "quiet")
    else:
        lead = "The model does not follow the prompt:"
        yield Paragraph(f"{'; '.join(measured)}. {_REMEDY}", "caution", lead)
    if toy := toy_words(preview.model, preview.parameters):
        lead, said = toy
        yield Paragraph(said, "caution", lead)
    if preview.drafted:
        yield Paragraph(f"The model drafted the public examples. {_WORTH}")
    elif not preview.examples:
        yield Paragraph(f"There are no public examples (prompt.public_examples). {_WORTH}")


def _measured(preview: PublicPreview) -> Iterator[str]:
    empty = sum(preview.empty.values())
    reasons = ", ".join(f"{count:,} {_REASONS[name]}" for name, count in preview.empty.items())
    yield (
        f"{empty:,} of {counted(preview.texts, 'text')} "
        f"{'says' if empty == 1 else 'say'} nothing{f' ({reasons})' if reasons else ''}"
    )
    if preview.asked:
        yield (
            f"by the other examples the model tells the label of {preview.told:,} of "
            f"{counted(preview.asked, 'public example')}"
        )
