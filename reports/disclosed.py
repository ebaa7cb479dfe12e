"""Released texts on trial, in words: for a terminal, and for an audit's private page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from dpaudit.reports.document import (
    Banner,
    Block,
    Document,
    Items,
    Paragraph,
    Section,
    Table,
    Verdict,
)
from dpaudit.reports.text import counted, one_line
from dpaudit.reports.wording import ABSENT
from dpaudit.results.disclosed_texts import (
    CLAIM_AT,
    LEVEL,
    Asked,
    DisclosedTexts,
    Level,
    Named,
    NamedEntity,
    NamedSpan,
    RefutedEpsilon,
)
from dpaudit.results.rounding import bound, delta_bound, exactly, lower_bound, nearest

#: Spans and names that a screen or a page lists; --json has more.
LISTED = 10
#: Characters of a span, a name or a label.
_LONGEST = 300
#: Whose epsilon it is, and who that is.
_LEVELS: dict[Level, tuple[str, str]] = {
    "batch": (" at the batch level", " (for someone who knows a record's batch)"),
    "release": (" at the release level", " (for readers of the texts)"),
    "split": ("", " (for someone who knows all others)"),
}
_Status: TypeAlias = Literal["pass", "warn", "fail"]
_NOT_COMPARED = {
    "none-claimed": "No claim was compared: give one with `--epsilon`.",
    "known-afterwards": (
        "The run's claim was not compared. It is the cost of these very texts (ex-post), and this "
        "test needs an epsilon that was fixed before the run: give one with `--epsilon`."
    ),
    "other-neighbours": (
        "The run's claim was not compared. It is about other neighbouring data sets than those "
        "with one record more or less: give an epsilon for these with `--epsilon`."
    ),
    "all-shown": (
        "The run's claim was not compared. It is of the release level, and every record was shown, "
        "so that no coin tests that: give one of the batch level with `--epsilon`."
    ),
}


def build(found: DisclosedTexts) -> Document:
    """Return what a trial found, for readers who may see the records."""
    return Document(
        "",
        [
            Banner("Private.", "Do not publish any of this: no epsilon covers it."),
            Verdict(status_of(found), headline(found), [Paragraph(_setting(found), "quiet")]),
            *blocks(found),
        ],
    )


def status_of(found: DisclosedTexts) -> _Status:
    """Return "fail" for a refuted claim, "warn" for texts that hang on coins, else "pass"."""
    if found.epsilon.claim_refuted:
        return "fail"
    return "warn" if found.test.depends or found.test.avoids else "pass"


def headline(found: DisclosedTexts) -> str:
    """Return the finding in a line, without a full stop."""
    if found.epsilon.claim_refuted:
        return "The claimed epsilon does not hold for these texts"
    if found.test.depends:
        return "The texts depend on which records were shown"
    if found.test.avoids:
        return "The texts name fewer shown records than chance gives"
    return "No sign that shown records are named more than others"


def blocks(found: DisclosedTexts) -> Iterator[Block]:
    """Yield all but the headline: counts, what they mean, the epsilon, copies and limits."""
    if found.asked is not None:
        yield Paragraph(asked_words(found.asked, _unit(found)))
    yield Paragraph(test_words(found))
    if any(each.shown or each.held_out for each in found.named):
        yield Table.of("Named records", *_named_table(found))
    yield Paragraph(" ".join(epsilon_words(found.epsilon)))
    yield Paragraph(power_words(found))
    yield Paragraph(split_words(found), "quiet")
    if found.spans:
        yield Section(
            "Copied passages",
            [Paragraph(copies_words(found)), _span_table(found)],
            note=f"the longest {LISTED}" if _span_count(found) > LISTED else "",
        )
    if found.entities:
        yield Section("Names and numbers in the texts", list(_entities(found)))
    yield Section("What this cannot show", [Items(list(_limits(found)))])


def _unit(found: DisclosedTexts) -> str:
    return found.epsilon.unit


def _units(found: DisclosedTexts, number: int) -> str:
    return counted(number, _unit(found))


def _runs(found: DisclosedTexts, k: int) -> str:
    return f"{k} {found.measure} or more in a row"


def _setting(found: DisclosedTexts) -> str:
    coins = found.coins
    number = _units(found, coins.units // coins.rounds)
    rounds = f" in {coins.rounds:,} rounds" if coins.rounds > 1 else ""
    return f"{counted(found.texts, 'text')}, {number}{rounds}."


def told(found: DisclosedTexts) -> Named:
    """Return the count that sentences tell: of 8 words, or the one that tells most."""
    usual = found.named[1]
    if not (found.test.depends or found.epsilon.claim_refuted):
        return usual
    return min(found.named, key=lambda each: (each.p, each.k != usual.k))


def test_words(found: DisclosedTexts) -> str:
    """Return what was counted, what chance gives, and what follows."""
    test, named = found.test, told(found)
    number = named.shown + named.held_out
    said = [f"The texts name {_units(found, number)} by {_runs(found, named.k)}."]
    if not number:
        said = [f"The texts name no {_unit(found)} by {_runs(found, named.k)}."]
    elif named.own_batch is not None:
        said.append(
            f"{_part(named.own_batch, number)} named by a text of the same batch; chance gives "
            f"{nearest(named.expected_right, 2)}."
        )
    else:
        said.append(
            f"{_part(named.shown, number, ('was', 'were'))} shown; chance gives "
            f"{nearest(named.expected_right, 2)}."
        )
    if test.depends:
        said.append(
            f"By chance that has a probability of at most {_probability(test.p)} (all counts "
            f"together, those of shared 3-grams, too). The texts depend on the {_unit(found)}s "
            "that they were made from. That alone breaks no promise: private texts may depend on "
            "records, within their epsilon."
        )
    elif test.avoids:
        said.append(
            f"The texts name fewer shown {_unit(found)}s than chance gives (probability at most "
            f"{_probability(test.p_lower)}). Something that saw the private records took matches "
            "out, or the records were prepared in two ways."
        )
    else:
        said.append(
            f"All counts together are within chance (probability {_probability(test.p)}): no sign "
            f"that shown {_unit(found)}s are named more than others."
        )
    return " ".join(said)


def _part(part: int, number: int, verbs: tuple[str, str] = ("is", "are")) -> str:
    """Return how many of some things, just counted, with a verb."""
    one, many = verbs
    if number == 1:
        return f"It {one}{'' if part else ' not'}"
    if not part:
        return f"None of them {one}"
    if part == number:
        return f"All of them {many}"
    return f"{part:,} of these {number:,} {one if part == 1 else many}"


def _is(number: int, one: str = "is", many: str = "are") -> str:
    return one if number == 1 else many


def _probability(p: float) -> str:
    return bound(p, 2)


def _named_table(found: DisclosedTexts) -> tuple[list[str], list[list[str]]]:
    """Return the header, and a row for each number of words in a row."""
    columns: dict[str, list[str]] = {
        f"{found.measure.capitalize()} in a row": [f"{each.k} or more" for each in found.named],
        "Shown": [f"{each.shown:,}" for each in found.named],
        "Not shown": [f"{each.held_out:,}" for each in found.named],
        "Named anyway": [_number(each.expected_by_chance) for each in found.named],
        "Because shown": list(map(_limits_of, found.named)),
    }
    if found.coins.rule == "own-batch":
        columns["Own batch"] = [_number(each.own_batch) for each in found.named]
        columns["Own by chance"] = [_number(each.expected_right) for each in found.named]
    columns["p"] = [_probability(each.p) for each in found.named]
    told_of = {name: cells for name, cells in columns.items() if set(cells) != {ABSENT}}
    return list(told_of), [list(row) for row in zip(*told_of.values(), strict=True)]


def _limits_of(each: Named) -> str:
    if each.caused_low is None or each.caused_high is None:
        return ABSENT
    return f"{each.caused_low:,} to {each.caused_high:,}"


def _number(value: float | int | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:,}" if isinstance(value, int) else nearest(value, 2)


def epsilon_words(found: RefutedEpsilon) -> Iterator[str]:
    """Yield what epsilon the texts refute, of which level, and whether the claim is refuted."""
    (level, whom), delta = _LEVELS[found.level], _delta(found.delta)
    guesses = f"{found.right:,} of {counted(found.guesses, 'guess', 'guesses')} right"
    if found.refuted > 0:
        yield (
            f"These texts refute every epsilon up to {lower_bound(found.refuted, 3)}{level}{whom}"
            f"{delta}, with {found.confidence:.0%} confidence: {guesses}."
        )
    elif found.guesses:
        yield f"These texts refute no epsilon above 0{level}{whom}{delta}: {guesses}."
    else:
        yield f"These texts refute no epsilon{level}{whom}{delta}: there was nothing to guess by."
    if found.claimed is None or found.p_claim is None:
        if found.not_compared is not None:
            yield _NOT_COMPARED[found.not_compared]
        return
    claim = _claim_words(found, f"{level}{delta}")
    probability = _probability(found.p_claim)
    if found.claim_refuted:
        yield (
            f"{claim} does not hold: under it so many right guesses have a probability of at most "
            f"{probability}."
        )
    elif found.claimed <= found.refuted:
        yield (
            f"{claim} is among them, but not refuted at the level of {exactly(LEVEL)} that a "
            f"failure needs (its probability is up to {probability}). Look closer."
        )
    elif not found.claim_refutable:
        yield f"{claim} is more than any outcome of this test could refute."
    else:
        yield f"{claim} is not refuted. That does not prove it."


def _claim_words(found: RefutedEpsilon, of: str) -> str:
    """Return what is compared, as the subject of a sentence."""
    assert found.claimed is not None  # as the caller has looked
    if found.claimed_of == "given":
        return f"The epsilon that you gave, {exactly(found.claimed)}{of},"
    if found.stated is None or found.stated_delta is None:
        return f"The run's claim, {bound(found.claimed)}{of},"
    stated = f"{exactly(found.stated)}{_delta(found.stated_delta)}"
    return (
        f"The run claims epsilon {stated}. At a delta that leaves so many records something to "
        f"refute, its settings promise {bound(found.claimed)}{of}. That figure"
    )


def _delta(delta: float) -> str:
    return f" at delta {delta_bound(delta)}" if delta else ""


def power_words(found: DisclosedTexts) -> str:
    """Return what no outcome could have shown."""
    least, most = found.test.least_records, found.epsilon
    level = f"(level {exactly(found.test.level)})"
    said = (
        f"This test cannot reject with fewer than {least:,} named {_unit(found)}s {level}: a leak "
        "of fewer stays unseen."
        if least > 1
        else f"In this test one named {_unit(found)} can be enough to reject {level}."
    )
    if most.right < most.guesses:
        every = "its one guess" if most.guesses == 1 else f"all {most.guesses:,} guesses"
        said += (
            f" Were {every} by {_runs(found, most.k)} right, epsilon up to "
            f"{lower_bound(most.most_refutable, 3)} would be refuted."
        )
    return said


def split_words(found: DisclosedTexts) -> str:
    """Return whether as many were shown as the coins say."""
    coins = found.coins
    said = (
        f"Split check: {coins.shown:,} of {_places(found, coins.units)} "
        f"{_is(coins.shown, 'was', 'were')} shown"
    )
    if coins.p_split is None:
        said += "; that number was fixed, so nothing can be told of it."
    else:
        said += (
            f", {nearest(coins.expected_shown, 4)} expected; a number as far from it has a "
            f"probability of {_probability(coins.p_split)}."
        )
    left = []
    if found.left_out.twins:
        left.append(
            f"{counted(found.left_out.twins, 'record')} with the same words as another "
            f"{_is(found.left_out.twins, 'was', 'were')} left out"
        )
    if found.left_out.short:
        shortest = found.named[0].k
        left.append(
            f"{_units(found, found.left_out.short)} of fewer than {shortest} {found.measure} "
            "cannot be named"
        )
    return f"{said} {'; '.join(left).capitalize()}." if left else said


def _places(found: DisclosedTexts, number: int) -> str:
    if found.coins.rounds == 1:
        return _units(found, number)
    pairs = "pair" if number == 1 else "pairs"
    return f"{number:,} {pairs} of a {_unit(found)} and a round"


def _span_count(found: DisclosedTexts) -> int:
    return len(found.spans) + found.more_spans


def copies_words(found: DisclosedTexts) -> str:
    """Return how many passages stand in one unit alone, and what that tells of a trained model."""
    number = _span_count(found)
    shown = sum(span.shown for span in found.spans)
    others = len(found.spans) - shown
    whose = f"{shown:,} {_is(shown)} of {_unit(found)}s that were shown and {others:,} of others."
    if number == 1:
        whose = f"It is of a {_unit(found)} that was {'shown' if shown else 'not shown'}."
    elif found.more_spans:
        whose = f"Of the {len(found.spans):,} longest, {whose}"
    alone = "one record" if _unit(found) == "record" else f"the records of one {_unit(found)}"
    said = (
        f"{counted(number, 'passage')} of the texts {_is(number, 'stands', 'stand')} in {alone} "
        f"alone. {whose}"
    )
    if others:
        said += (
            f" A copy of a {_unit(found)} that was not shown came by another way: two sources may "
            "say the same, or the model knew it before."
        )
    return said


def _span_table(found: DisclosedTexts) -> Table:
    batches = found.coins.rule == "own-batch"
    header = (
        found.measure.capitalize(),
        "Text",
        "Characters",
        _unit(found).capitalize(),
        "Shown",
        *(("Own batch",) if batches else ()),
        "Passage",
    )
    rows = [_span_row(span, batches) for span in found.spans[:LISTED]]
    return Table.of("Copied passages", header, rows, words=(len(header) - 1,))


def _span_row(span: NamedSpan, batches: bool) -> tuple[str, ...]:
    own = ("yes" if span.own_batch else "no",) if batches else ()
    return (
        f"{span.words}",
        f"{span.release_row:,}",
        f"{span.start:,}–{span.end:,}",
        f"{span.unit:,}",
        "yes" if span.shown else "no",
        *own,
        one_line(span.text, _LONGEST),
    )


def _entities(found: DisclosedTexts) -> Iterator[Block]:
    number, unit = len(found.entities), _unit(found)
    phantoms = sum(each.phantom for each in found.entities)
    said = f"Numbers of four digits or more that stand in one {unit} or in none are listed"
    if any(each.given for each in found.entities):
        said = f"Names that you gave are listed, and n{said[1:].removesuffix(' are listed')}"
    if phantoms:
        some = f"{phantoms:,} of the {number:,}"
        if phantoms == number:
            some = "The one listed" if number == 1 else f"All {number:,}"
        said += (
            f". {some} {_is(phantoms, 'stands', 'stand')} in no {unit} that was shown and in no "
            "public text: the model writes such without having been shown them"
        )
    yield Paragraph(f"{said}.")
    header = ("Texts", "Shown", "Not shown", "Public", "Name")
    first = sorted(found.entities, key=lambda each: (not each.given, -each.shown))[:LISTED]
    yield Table.of("Names and numbers", header, map(_entity_row, first), words=(4,))


def _entity_row(each: NamedEntity) -> tuple[str, ...]:
    return (
        f"{each.texts:,}",
        f"{each.shown:,}",
        f"{each.held_out:,}",
        "yes" if each.public else "no",
        one_line(each.name, _LONGEST),
    )


def asked_words(asked: Asked, unit: str = "record") -> str:
    """Return the answer to "is this in the records?" in a sentence or two."""
    name, number = one_line(asked.name, _LONGEST), asked.shown + asked.held_out
    if number:
        said = (
            f"“{name}” stands in {counted(number, unit)}: {asked.shown:,} shown and "
            f"{asked.held_out:,} not"
        )
        if asked.expected_by_chance is not None:
            said += (
                f" (going by the {asked.held_out:,}, chance gives "
                f"{nearest(asked.expected_by_chance, 2)} shown)"
            )
    else:
        said = f"“{name}” stands in no {unit}"
    public = "and in a public text" if asked.public else "and in no public text"
    texts = counted(asked.texts, "released text") if asked.texts else "no released text"
    return f"{said}, {public}; it stands in {texts}."


def _limits(found: DisclosedTexts) -> Iterator[str]:
    unit = _unit(found)
    yield (
        f"A pass is weak. It bounds no epsilon: it says that {unit}s are not copied by words, or "
        "by too few to tell."
    )
    yield (
        f"A model that was trained on all of these {unit}s names shown and other ones alike, "
        "which no coin shows: look at the copied passages. `dpaudit contamination` compares its "
        "likelihood of records with that of later texts of the same kind."
    )
    if found.source == "files":
        yield (
            "It rests on your word that lots split the files, before anybody cleaned or looked "
            "at them."
        )
    else:
        yield (
            "It rests on the run's key: nobody may have known it when records or texts were chosen."
        )
    yield f"An epsilon is held against {unit}s named by {_runs(found, CLAIM_AT[found.measure])}."
