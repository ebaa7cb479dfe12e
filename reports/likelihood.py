"""What mechanisms make of held-out texts beside what they cost: a table, and files. Kinds of epsilon stay apart."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console

from dpaudit.reports import figures
from dpaudit.reports.document import Banner, Block, Document, Paragraph, Table
from dpaudit.reports.drawing import drawable, file_of
from dpaudit.reports.experiments import equal_levels
from dpaudit.reports.text import LABEL_LENGTH, counted, grouped, one_line
from dpaudit.reports.wording import neighbours, or_absent
from dpaudit.reports.writers.terminal import print_document
from dpaudit.results.likelihood import Likelihoods, MechanismLikelihood, Spent
from dpaudit.results.quality import PerToken
from dpaudit.results.rounding import bound, exactly, stated

WARNING = (
    "These figures look at the configs' records without noise: do not publish them. Choosing a mechanism or a setting "
    "by them is a choice by those records: measure on public texts like yours, or declare it (chosen_from: private)."
)
HEADER = ("", "Clip", "τ", "Contexts", "Tokens", "Loss", "Public", "Gain", "ε approx.", "ε ex-post")
NOTE = (
    "Loss: negative log-probability of a real token, in nats, ± its standard error over texts. Public: the same by the "
    "public prompt alone, at ε = 0. Gain: how much less the loss is than that. All three are over the tokens that the "
    "supports have: under Tokens stands how many, of how many. Losses of different supports cannot be compared. "
    "ε approx.: of texts as long as the config allows, at the release level, and below it after a slash at the batch "
    "level, where that is another. ε ex-post: of the dearest of these "
    "held-out texts, and not of sampled ones, at the batch level."
)
_NAMES = {"logits": "clipped logits", "differences": "anchored differences", "central": "central mean"}
_SETTINGS = {"central": "m"}


def print_likelihoods(found: Likelihoods, console: Console) -> None:
    """Print what each config's mechanism is, then a row for each."""
    print_document(build(found), console)


def build(found: Likelihoods) -> Document:
    """Return what each config's mechanism is, then a row for each, and what it was measured on."""
    names = [one_line(row.name, LABEL_LENGTH) for row in found.rows]
    blocks: list[Block] = [
        Paragraph(in_words(row), lead=f"{name}:") for name, row in zip(names, found.rows, strict=True)
    ]
    rows = [(name, *_figures(row)) for name, row in zip(names, found.rows, strict=True)]
    blocks.append(Table.of("Held-out likelihood", HEADER, rows))
    for said, measured in grouped((_measured_on(row), row.name) for row in found.rows).items():
        of = f"{one_line(', '.join(measured))}: " if len(measured) < len(found.rows) else ""
        blocks.append(Paragraph(f"{of}{said}"))
    blocks += map(Paragraph, equal_levels((row.equal, one_line(row.name)) for row in found.rows))
    return Document("", [*blocks, Paragraph(NOTE, "quiet"), Banner("Internal.", WARNING)])


def likelihood_files(found: Likelihoods) -> Mapping[str, str | bytes]:
    """likelihood.json, and the figure as likelihood.svg and likelihood.png where an epsilon is finite; by name."""
    files: dict[str, str | bytes] = {"likelihood.json": found.to_json()}
    of = [f"{row.supported:,} of {row.tokens:,} tokens" for row in found.rows]
    labels = [f"{drawable(row.name)} ({tokens})" for row, tokens in zip(found.rows, of, strict=True)]
    drawing = figures.likelihoods(found.rows, labels)
    if drawing is not None:
        notes = ["Hollow: the public prompt alone, at ε = 0, over the same tokens."]
        notes += ["Supports differ: configs of other tokens are at no comparable height."] * (len(set(of)) > 1)
        formats: tuple[figures.Format, ...] = ("svg", "png")
        files |= {f"likelihood.{each}": file_of(drawing, each, "", notes) for each in formats}
    return files


def in_words(row: MechanismLikelihood) -> str:
    """A mechanism, but for clip and temperature."""
    mechanism = row.mechanism
    parts = (mechanism.aggregator, mechanism.contribution)
    said = [" of ".join(_NAMES.get(part.name, part.name) for part in parts)]
    own = {name: value for part in parts for name, value in part.model_dump(exclude={"clip"}).items()}
    said += [f"{_SETTINGS.get(name, name)} {stated(value)}" for name, value in own.items() if value is not None]
    if mechanism.support.size is not None:
        margin = "" if mechanism.support.margin is None else f" and up to {stated(mechanism.support.margin)} below"
        said.append(f"top {mechanism.support.size}{margin}")
    return ", ".join(said)


def _figures(row: MechanismLikelihood) -> tuple[str, ...]:
    """A config's cells under `HEADER`, after its name. What was measured is rounded to the nearest."""
    return (
        stated(row.mechanism.clip),
        stated(row.mechanism.temperature),
        f"{row.fewest:,}" if row.fewest == row.most else f"{row.fewest:,}-{row.most:,}",
        f"{row.supported:,}\nof {row.tokens:,}",
        _per_token(row.nll),
        f"{row.public_nll.mean:.3f}",
        _per_token(row.gain),
        or_absent(row.approximate, lambda found: _spent(found, row.batch_epsilon)),
        or_absent(row.ex_post, _spent),
    )


def _per_token(found: PerToken) -> str:
    return f"{found.mean:.3f}" + ("" if found.error is None else f"\n± {found.error:.3f}")


def _spent(found: Spent, batch_epsilon: float | None = None) -> str:
    batch = "" if batch_epsilon in (None, found.epsilon) else f"\n/{bound(batch_epsilon or 0.0)}"
    return bound(found.epsilon) + batch + (f"\nδ {exactly(found.delta)}" if found.delta else "")


def _measured_on(row: MechanismLikelihood) -> str:
    """Texts, batches and neighbours, in a sentence or two."""
    left_out = f" ({row.left_out:,} left out, which are records or public examples)" if row.left_out else ""
    return (
        f"{counted(row.texts, 'held-out text')}{left_out}, cut to {counted(row.max_tokens, 'token')}, in "
        f"{counted(row.batches, 'batch', 'batches')}; ε to {neighbours(row.relation, row.unit, row.records_per_user)}."
    )
