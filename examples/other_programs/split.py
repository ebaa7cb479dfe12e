"""Split short texts of a CSV file at random: some are shown to the programs, others held out.

python split.py DATA.csv 50 shown.csv 100 held_out.csv
"""

from __future__ import annotations

import random
import sys

from programs import read_texts, write_texts

WORDS = range(15, 31)


def main(data: str, count: str, shown: str, held_out_count: str, held_out: str) -> None:
    """Draw texts by the operating system's randomness, and write both files."""
    short = {text for text in read_texts(data) if len(text.split()) in WORDS}
    chosen = random.SystemRandom().sample(sorted(short), int(count) + int(held_out_count))
    write_texts(shown, chosen[: int(count)])
    write_texts(held_out, chosen[int(count) :])


if __name__ == "__main__":
    main(*sys.argv[1:])
