"""Private Evolution in small: texts of a public model, chosen by noisy votes of the records.

Each round every record votes for the text nearest to it (MiniLM). Votes get Gaussian noise, the
third with most votes stays, and SmolLM2 writes two variations of each of these. Lin et al. 2023
(arXiv 2305.15560) and Xie et al. 2024 (arXiv 2403.01749) have it at full size.

python private_evolution.py shown.csv 60 texts.csv --rounds 3 --noise 2
"""

from __future__ import annotations

import argparse
import secrets

import numpy as np
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from shared import continuations, language_model, read_texts, write_texts

from dpaudit.generation.clustering.embedding import Embedder

TOPICS = ("world politics", "sports", "business", "science and technology")
VARIATION = """\
Text: The city's oldest bridge will close for two years while engineers replace its cables.
Variation: A tunnel under the harbour stays shut until spring, because its lamps are renewed.

Text: {text}
Variation:"""


def main() -> None:
    """Run the rounds, and write the texts of the last one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shown")
    parser.add_argument("count", type=int, help="texts of a round, a multiple of 3")
    parser.add_argument("out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--noise", type=float, default=2.0, help="standard deviation of a vote")
    asked = parser.parse_args()
    random = np.random.default_rng(secrets.randbits(128))
    records = embedded(read_texts(asked.shown))
    network, tokenizer = language_model()
    topics = [TOPICS[number % len(TOPICS)] for number in range(asked.count)]
    prompts = [f"A short news item about {topic}, in one or two sentences:" for topic in topics]
    texts = list(continuations(network, tokenizer, prompts, tokens=40))
    for number in range(asked.rounds):
        nearest = (records @ embedded(texts).T).argmax(1)
        votes = np.bincount(nearest, minlength=len(texts)).astype(float)
        votes += random.normal(0, asked.noise, len(texts))
        kept = [texts[place] for place in np.argsort(-votes)[: asked.count // 3]]
        prompts = [VARIATION.format(text=text) for text in kept for _ in range(2)]
        made = continuations(network, tokenizer, prompts, tokens=40)
        texts = kept + [text.split(" Text:")[0] for text in made]
        print(f"round {number + 1}: largest vote {votes.max():.1f}", flush=True)
    # a record that comes or goes changes one vote by one
    rounds = SelfComposedDpEvent(GaussianDpEvent(asked.noise), asked.rounds)
    print(f"epsilon {PLDAccountant().compose(rounds).get_epsilon(1e-5):.3f} at delta 1e-5")
    write_texts(asked.out, texts)


def embedded(texts: list[str]) -> np.ndarray:
    """Return unit vectors of texts, float [n, 384]."""
    return Embedder(normalize=True).embed(texts)


if __name__ == "__main__":
    main()
