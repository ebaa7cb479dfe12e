"""A paraphraser with no privacy: two public examples in the prompt, and a private record.

python few_shot.py shown.csv 100 texts.csv
"""

from __future__ import annotations

import random
import sys

from shared import continuations, language_model, read_texts, write_texts

PROMPT = """\
Original: The city's oldest bridge will close for two years while engineers replace its cables.
Paraphrase: Engineers are going to renew the cables of the oldest bridge in town, which shuts it \
for two years.

Original: {record}
Paraphrase:"""


def main(shown: str, count: str, out: str) -> None:
    """Paraphrase `count` of the records, of one file or of several, separated by commas."""
    records = random.SystemRandom().sample(read_texts(*shown.split(",")), int(count))
    network, tokenizer = language_model()
    prompts = [PROMPT.format(record=record) for record in records]
    written = continuations(network, tokenizer, prompts, tokens=40, temperature=0.7)
    write_texts(out, (text.split(" Original:")[0] for text in written))


if __name__ == "__main__":
    main(*sys.argv[1:])
