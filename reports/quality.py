"""How good a run's texts are: MAUVE, accuracy and held-out likelihood, beside real texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel, JsonValue

from dpaudit.reports.document import (
    Block,
    Definitions,
    Document,
    Entry,
    Items,
    Paragraph,
    Section,
    Table,
)
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line
from dpaudit.reports.wording import ABSENT, say, section_title
from dpaudit.results.quality import Added, Downstream, Encoder, PerToken, Quality, Scores, Source
from dpaudit.results.values import leaves

METHODS = {
    "linear-probe": "Accuracy, linear probe",
    "fine-tuned": "Accuracy, fine-tuned",
    "likelihood": "Held-out likelihood, nats a token",
}
MEASURES = {"mauve": "MAUVE", **METHODS}


def header(quality: Quality) -> tuple[str, ...]:
    """Return names of the columns of `rows`."""
    public = ("Public only",) * _beside(quality)
    return ("Measure", "Synthetic", *public, "Real, same size", "Real, all used", "Of")


def rows(quality: Quality) -> list[tuple[str, ...]]:
    """Return rows of `header`."""
    found: list[tuple[str, ...]] = []
    beside = _beside(quality)
    if (mauve := quality.mauve) is not None:
        of = f"n = {mauve.settings.n:,}, {counted(len(mauve.settings.seeds), 'seed')}"
        public = (shown(mauve.public),) * beside
        found.append(("MAUVE", shown(mauve.score), *public, shown(mauve.ceiling), ABSENT, of))
    tested = (
        "" if quality.held_out is None else f"{counted(quality.held_out.test.texts, 'test text')}, "
    )
    sources: tuple[Source, ...] = ("synthetic", "public", "real-same-size", "real-all")
    for each in quality.downstream:
        figures = (_accuracy(each, source) for source in sources if beside or source != "public")
        found.append(
            (METHODS[each.method], *figures, f"{tested}most frequent label {each.majority:.3f}")
        )
    if (given := quality.likelihood) is not None:
        of = (
            f"{counted(given.texts.texts, 'held-out text')}, {given.supported:,} of "
            f"{counted(given.tokens, 'token')}"
        )
        found.append(
            (METHODS["likelihood"], shown(given.score), shown(given.public), ABSENT, ABSENT, of)
        )
    return found


def _beside(quality: Quality) -> bool:
    """Return whether anything was measured without records."""
    return quality.baseline is not None or quality.likelihood is not None


def added(quality: Quality) -> tuple[str, ...]:
    """Say what the records added, the sum of it first; empty if nothing was measured without."""
    if not _beside(quality):
        return ()
    measured = quality.added
    outcomes = {each.outcome for each in measured}
    if not outcomes:
        first = (
            "What the records added is not known: no measure has a figure of texts without records."
        )
    elif "more" in outcomes:
        first = "The records added something:"
    elif "unknown" in outcomes:
        first = "Whether the records added anything is not known:"
    else:
        well = "better" if "less" in outcomes else "as well"
        first = (
            "The records added nothing: the same prompts without any record, at epsilon 0, "
            f"do {well}."
        )
    return (first, *(f"{MEASURES[each.measure]}: {difference(each)}." for each in measured))


def difference(found: Added) -> str:
    """Return what was added to one figure, in words."""
    if found.spread is None:
        one = "text" if found.measure == "likelihood" else "seed"
        return f"{found.difference:+.3f}, of which one {one} cannot tell whether it is chance"
    figure = f"{found.difference:+.3f} ± {found.spread:.3f}"
    return {
        "more": f"{figure} with the records",
        "nothing": f"{figure}, nothing that can be told from chance",
        "less": f"{figure}, less with the records than without any",
    }[found.outcome]


def shown(found: Scores | PerToken | None) -> str:
    """Return mean and spread, rounded to the nearest: measured figures promise nothing."""
    if found is None:
        return ABSENT
    spread = found.std if isinstance(found, Scores) else found.error
    return f"{found.mean:.3f}" + ("" if spread is None else f" ± {spread:.3f}")


def about(quality: Quality) -> str:
    """Return texts and model, in a sentence."""
    synthetic, real = (
        counted(quality.synthetic.texts, "synthetic text"),
        counted(quality.reference.texts, "real text"),
    )
    doubles = quality.synthetic.texts - quality.synthetic.distinct
    notes = [counted(doubles, "double")] if doubles else []
    if quality.label_lines:
        notes.append(f"{quality.label_lines:,} measured without a first line that is their label")
    said = f" ({', '.join(notes)})" if notes else ""
    own = _own(quality.own, quality.reference.texts)
    return f"{synthetic}{said} against {real} ({own}), by {_encoder(quality.features)}."


def build(quality: Quality) -> Document:
    """Return an evaluation of a run's texts as a screen."""
    return Document(section_title("quality"), list(blocks(quality)))


def blocks(quality: Quality) -> Iterator[Block]:
    """Yield whose figures these are, a table, what the records added, and the settings."""
    yield Paragraph(say("quality-private"), "caution", "Internal.")
    yield Paragraph(about(quality))
    if found := rows(quality):
        names = header(quality)
        yield Table.of(section_title("quality"), names, found, range(1, len(names)))
    if said := added(quality):
        yield Paragraph(say("quality-added"), lead=said[0])
        yield Items(said[1:])
    yield Paragraph(say("quality-note"), "quiet")
    if quality.warnings:
        yield Items(list(map(one_line, quality.warnings)), tone="caution")
    yield Definitions([Entry(name, said) for name, said in details(quality)])


def brief(quality: Quality) -> Section:
    """Return the table of measures, for where there is little room, and what the records added."""
    names, title = header(quality), section_title("quality")
    table = Table.of(title, names, rows(quality), range(1, len(names)))
    said = [Paragraph(said) for said in added(quality)[:1]]
    note = "private: publishing them would leak private information"
    return Section(title, [table, *said], note=note)


def _accuracy(found: Downstream, source: Source) -> str:
    trained = found.of(source)
    return (
        ABSENT
        if trained is None
        else f"{shown(trained.accuracy)} ({counted(trained.texts, 'text')})"
    )


def _own(own: int | None, texts: int) -> str:
    """Return how many of some real texts the run was made from."""
    if own is None:
        return "it is not known whether the run was made from them"
    if own == 0:
        return "none is a record of the run"
    return (
        "all are records of the run" if own == texts else f"{own:,} of them are records of the run"
    )


def details(quality: Quality) -> Iterator[tuple[str, str]]:
    """Yield all settings, by what they belong to."""
    parts: dict[str, Mapping[str, JsonValue]] = {"Evaluated": {"at": quality.created}}
    if quality.mauve is not None:
        parts["MAUVE"] = {**_stated(quality.mauve.settings), "real texts": quality.mauve.real}
    if quality.held_out is not None:
        parts["Test texts"] = _stated(quality.held_out)
    for found in quality.downstream:
        parts[METHODS[found.method]] = {"model": _encoder(found.encoder), **_stated(found.settings)}
    if (given := quality.likelihood) is not None:
        parts[METHODS["likelihood"]] = {"model": _encoder(given.model), "left out": given.left_out}
    for name, part in {**parts, "Versions": quality.versions}.items():
        said = (f"{key.replace('_', ' ')} {value}" for key, value in leaves(part))
        yield name, one_line(", ".join(said))


def _stated(settings: BaseModel) -> dict[str, JsonValue]:
    """Return settings without digests of texts."""
    found: dict[str, JsonValue] = settings.model_dump(mode="json", exclude={"test": {"digest"}})
    return found


def _encoder(encoder: Encoder) -> str:
    return (
        f"{one_line(encoder.name, LABEL_LENGTH)} (at most "
        f"{counted(encoder.max_tokens, 'token')} of a text)"
    )
