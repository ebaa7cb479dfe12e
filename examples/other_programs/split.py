"""Draw short texts of a CSV file, and toss a coin for each: shown to the programs, or held out.

python split.py DATA.csv 400 shown.csv held_out.csv
"""

from __future__ import annotations

import csv
import random
import sys

WORDS = range(15, 31)


def main(data: str, count: str, shown: str, held_out: str) -> None:
    """Draw by the operating system's randomness, and write both files."""
    lots = random.SystemRandom()
    with open(data, encoding="utf-8", newline="") as file:
        texts = {row["text"] for row in csv.DictReader(file)}
    chosen = lots.sample(sorted(text for text in texts if len(text.split()) in WORDS), int(count))
    coins = [lots.random() < 0.5 for _ in chosen]
    for path, side in ((shown, True), (held_out, False)):
        with open(path, "w", encoding="utf-8", newline="") as file:
            rows = ([text] for text, coin in zip(chosen, coins, strict=True) if coin is side)
            csv.writer(file).writerows([["text"], *rows])


if __name__ == "__main__":
    main(*sys.argv[1:])
