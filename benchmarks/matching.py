"""Unique runs of released texts in private records: CPU time against a floor and a peer.

The floor is one pass that cuts all texts and records into words. The peer is scikit-learn's
CountVectorizer, fitted on the texts at five run lengths and at 3, which finds those lengths alone.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks.control_power import bbc_news
from benchmarks.rows import Row, Wanted
from benchmarks.timing import interleaved
from dpaudit.disclosing.matching import shared_runs
from dpaudit.disclosing.words import WORDS, words

#: Words of a record, and how many of them a copy of it has changed.
WIDTH, CHANGED = 40, 8


def rows(small: bool) -> Iterator[Row]:
    """Yield ratios at 10,000 records, and seconds at up to 100,000."""
    texts, records = (50, 500) if small else (1_000, 10_000)
    released, private = _texts(texts, records)
    yield from _ratios(released, private, rounds=1 if small else 3)
    for number, most in ((records, 20.0), (10 * records, 300.0)):
        released, private = _texts(texts, number)
        seconds = _timed(partial(shared_runs, released, [[text] for text in private]))()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Row(
            "matching",
            f"CPU seconds: {texts:,} texts, {number:,} records",
            seconds,
            unit="s",
            wanted=Wanted("at most", most),
            figures={"peak of the process, MiB": peak},
        )


def _ratios(texts: Sequence[str], records: Sequence[str], rounds: int) -> Iterator[Row]:
    units = [[record] for record in records]
    timings = interleaved(
        {
            "dpaudit": _timed(lambda: shared_runs(texts, units)),
            "words": _timed(lambda: [len(words(text)) for text in (*texts, *records)]),
            "CountVectorizer": _timed(lambda: _peer(texts, records)),
        },
        rounds,
        warm=False,
    )
    case = f"{len(texts):,} texts, {len(records):,} records"
    for what, other, wanted in (
        ("CPU time over one pass of words", "words", None),
        ("CPU time over CountVectorizer's", "CountVectorizer", Wanted("at most", 1.0)),
    ):
        yield Row(
            "matching",
            f"{what}: {case}",
            timings.ratio("dpaudit", other),
            wanted=wanted,
            figures={
                "dpaudit, s": timings.median("dpaudit"),
                f"{other}, s": timings.median(other),
                "lowest to highest": timings.spread("dpaudit", other),
            },
        )


def _timed(call: Callable[[], object]) -> Callable[[], float]:
    """Return a case that tells the CPU seconds of its only thread."""

    def case() -> float:
        start = time.process_time()
        call()
        return time.process_time() - start

    return case


def _peer(texts: Sequence[str], records: Sequence[str]) -> int:
    """Return how many runs of each length stand in one record alone, of all lengths together."""
    found = 0
    for length in (WORDS.gram, *WORDS.runs):
        counter = CountVectorizer(
            ngram_range=(length, length),
            token_pattern=r"\w+",  # noqa: S106
            binary=True,
            dtype=np.int32,
        )
        counter.fit(texts)
        found += int((counter.transform(records).sum(axis=0) == 1).sum())
    return found


def _texts(texts: int, records: int) -> tuple[list[str], list[str]]:
    """Return pieces of news; beyond all that there are, records repeat with changed words."""
    random, news = np.random.default_rng(0), bbc_news()
    every = " ".join((*news.texts, *news.records)).split()
    pieces = [every[at : at + WIDTH] for at in range(0, len(every) - WIDTH, WIDTH)]
    random.shuffle(pieces)
    released, private = pieces[: len(pieces) // 4], pieces[len(pieces) // 4 :]
    made = list[str]()
    for number in range(texts + records):
        source = released if number < texts else private
        own = list(source[(number if number < texts else number - texts) % len(source)])
        if number >= texts + len(private):
            for place in random.integers(WIDTH, size=CHANGED).tolist():
                own[place] = every[int(random.integers(len(every)))]
        made.append(" ".join(own))
    return made[:texts], made[texts:]
