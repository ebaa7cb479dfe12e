"""The released texts in a report for readers inside: every token marked by its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from dpaudit.reports.costs import ex_post_digits
from dpaudit.reports.document import Piece, Row, Table, Text, Texts
from dpaudit.reports.findings import is_public
from dpaudit.reports.text import LABEL_LENGTH, counted, one_line, printable
from dpaudit.reports.wording import say
from dpaudit.results import AuditResult, BatchResult, ExpensiveToken, SampleText, TokenCosts
from dpaudit.results.rounding import bound, lower_bound, nearest

#: Texts that are open at a time, and rows of a text's table.
PAGE, MOST_ROWS = 50, 10
#: Where the marks begin, as shares of the most expensive token of all that are shown; below the
#: first there is none.
_MARKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
#: How many tokens of a text lead to their row.
_LINKED = 3
#: Stands for a token that shows none of its own: a part of a character, or the end.
NO_TEXT = "·"
DEAREST_COLUMNS = (
    "Token",
    "Exact (nats)",
    "Rise",
    "Fall",
    "Probability",
    "A neighbour's",
    "Likeliest others",
)
_DIGITS = 3  # of a probability


class ReleasedTexts:
    """All texts of a result that are shown. None for readers outside, whatever the result holds."""

    def __init__(self, result: AuditResult) -> None:
        """Prepare nothing before it is asked for: texts may be many."""
        self._result, self._samples = result, () if is_public(result) else result.samples
        self._places = {batch.id: place for place, batch in enumerate(result.batches)}
        finite = [
            cost for sample in self._samples for cost in _exact(sample.costs) if math.isfinite(cost)
        ]
        self._dearest = max(finite, default=0.0)
        #: Whether any text's tokens have costs.
        self.marked = any(sample.costs is not None for sample in self._samples)

    def __len__(self) -> int:
        """Return how many texts are shown."""
        return len(self._samples)

    def block(self) -> Texts:
        """Return all of them, with what each mark begins at."""
        marks = say("marks-lead") if self.marked else ""
        return Texts([self._shown(sample) for sample in self._samples], marks, self.legend, PAGE)

    @property
    def legend(self) -> tuple[str, ...]:
        """The threshold of each mark; empty if nothing is marked."""
        return (
            tuple(f"{nearest(share * self._dearest, 3)} nats" for share in _MARKS)
            if self._dearest
            else ()
        )

    @property
    def left_out(self) -> str:
        """The number of texts not shown, and the tokens told only by marks, or "" if none."""
        of_all = sum(batch.texts for batch in self._result.batches)
        said = []
        if self._samples and of_all > len(self):
            said.append(
                f"These are the first {len(self):,} of {of_all:,} texts: read the others in "
                "samples.jsonl."
            )
        if self._samples and not self.marked and self._result.guarantees.ex_post is not None:
            said.append(
                "No token is marked: what each cost is not known, or the record's tokens spell "
                "other texts."
            )
        told = sum(
            len(sample.costs.most_expensive) for sample in self._samples if sample.costs is not None
        )
        tokens = sum(len(_exact(sample.costs)) for sample in self._samples)
        if told < tokens:
            said.append(
                f"The {told:,} most expensive of {tokens:,} tokens are described in full; "
                "`dpaudit inspect` shows the others."
            )
        return " ".join(said)

    def _shown(self, sample: SampleText) -> Text:
        anchor, title, table_title, table = (
            f"text-{sample.batch}-{sample.number}",
            f"Batch {sample.batch}",
            "",
            None,
        )
        if self._has_several(sample):
            title += f", text {sample.number}"
        if sample.costs is not None and (rows := sample.costs.most_expensive[:MOST_ROWS]):
            table_title = (
                "Its only token" if len(rows) == 1 else f"Its {len(rows)} most expensive tokens"
            )
            cells = [Row(_cells(token), f"{anchor}-{token.at}") for token in rows]
            last = frozenset({len(DEAREST_COLUMNS) - 1})
            table = Table(f"Most expensive tokens of {title}", DEAREST_COLUMNS, cells, last)
        return Text(
            id=anchor,
            title=title,
            about=", ".join(self._about(sample)),
            pieces=tuple(self._pieces(sample, anchor)),
            remark=" ".join(self._remarks(sample)),
            table_title=table_title,
            table=table,
        )

    def _batch(self, sample: SampleText) -> BatchResult | None:
        place = self._places.get(sample.batch)
        return None if place is None else self._result.batches[place]

    def _has_several(self, sample: SampleText) -> bool:
        batch = self._batch(sample)
        return sample.number > 0 or (batch is not None and batch.texts > 1)

    def _about(self, sample: SampleText) -> Iterator[str]:
        """Yield a text's length, cost and label."""
        if sample.label is not None:
            yield f"label {one_line(sample.label, LABEL_LENGTH) or 'empty'}"
        yield counted(sample.tokens, "token")
        batch, shown = (
            self._batch(sample),
            partial(bound, digits=ex_post_digits(self._result)),
        )
        if batch is not None and batch.exact is not None:
            whole = f"its batch of {batch.steps:,} tokens" if batch.texts > 1 else "exact ex-post"
            yield f"{whole} {shown(batch.exact)} nats"

    def _remarks(self, sample: SampleText) -> Iterator[str]:
        if not sample.text:
            yield (
                "The run releases its token ids, and no text."
                if sample.text is None
                else "The text is empty."
            )
        if (cut := sample.characters - len(sample.text or "")) > 0:
            yield f"{counted(cut, 'more character')} in samples.jsonl."
        if sample.text and sample.costs is None and self.marked:
            yield (
                "Not marked: the record's tokens do not spell this text, or are too many to "
                "tell of."
            )

    def _pieces(self, sample: SampleText, anchor: str) -> Iterator[Piece]:
        """Yield the text's tokens; those of which nothing is to be said, together."""
        text, costs = sample.text or "", sample.costs
        if costs is None:
            if text:
                yield Piece(_words(text))
            return
        told = {token.at: token for token in costs.most_expensive}
        # a link needs a name
        linked = {token.at for token in costs.most_expensive[:_LINKED] if not token.text.isspace()}
        plain = ""
        for at, ((start, end), cost) in enumerate(
            zip(pairwise((0, *costs.ends)), costs.exact, strict=True)
        ):
            words, mark = text[start:end], self._mark(cost)
            if mark == 0 and at not in told:
                plain += words
                continue
            if plain:
                yield Piece(_words(plain))
                plain = ""
            said = _sentence(told[at]) if at in told else ""
            target = f"{anchor}-{at}" if at in linked else ""
            yield Piece(_words(words) or NO_TEXT, mark, said, target, stands_in=not _words(words))
        plain += text[costs.ends[-1] if costs.ends else 0 :]
        if plain:
            yield Piece(_words(plain))

    def _mark(self, cost: float) -> int:
        if not math.isfinite(cost):
            return len(_MARKS)
        return sum(cost >= share * self._dearest for share in _MARKS) if self._dearest else 0


def _exact(costs: TokenCosts | None) -> tuple[float, ...]:
    return () if costs is None else costs.exact


def _words(text: str) -> str:
    return printable(text, max(len(text), 1))


def _quoted(text: str) -> str:
    """Return a token in quotes, its line breaks visible."""
    if not text:
        return NO_TEXT
    return f"“{_words(text)}”".replace("\n", "\\n").replace("\t", "\\t")


def _probability(value: float) -> str:
    return nearest(value, _DIGITS)


def _reach(token: ExpensiveToken) -> str:
    """Return the probabilities between which a neighbour could have put the token."""
    if not all(map(math.isfinite, (token.probability, token.rise, token.fall))):
        return "not bounded"
    low = token.probability * math.exp(-token.fall)
    high = (
        token.probability * math.exp(min(token.rise, -math.log(token.probability)))
        if token.probability
        else 0.0
    )
    return f"{lower_bound(low, _DIGITS)} to {bound(min(high, 1.0), _DIGITS)}"


def _others(token: ExpensiveToken) -> str:
    return ", ".join(
        f"{_quoted(other.text)} {_probability(other.probability)}" for other in token.likeliest
    )


def _sentence(token: ExpensiveToken) -> str:
    """Return what a token cost, for whoever points at it."""
    others = _others(token)
    return (
        f"{_quoted(token.text)} cost {bound(token.exact)} nats (rise {bound(token.rise)}, fall "
        f"{bound(token.fall)}). "
        f"Probability {_probability(token.probability)}; a neighbour's {_reach(token)}."
        + (f" Likeliest others: {others}." if others else "")
    )


def _cells(token: ExpensiveToken) -> tuple[str, ...]:
    costs = (bound(cost) for cost in (token.exact, token.rise, token.fall))
    return (
        _quoted(token.text),
        *costs,
        _probability(token.probability),
        _reach(token),
        _others(token),
    )
