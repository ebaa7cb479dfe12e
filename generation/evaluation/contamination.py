"""Whether a model knew records before they were used: its likelihood of them and of other texts.

A model that was trained on all records finds those that a prompt showed as likely as those that
were held out: this comparison is blind to it. What can tell are texts of the same kind that the
model cannot have seen. Every text goes through the model by itself, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from dpaudit.accounting.ranks import RankTest, rank_test
from dpaudit.generation.config import ModelConfig
from dpaudit.generation.evaluation.likelihood import enough_memory
from dpaudit.generation.evaluation.texts import hash_fraction, normalized_text
from dpaudit.generation.model_loading import load_model
from dpaudit.generation.models import UNUSABLE_LOGITS, LanguageModel
from dpaudit.results.contamination import Contamination, Outcome, Ranks, Side
from dpaudit.results.quality import Encoder
from dpaudit.runs import InputError

RECORDS, AGAINST = "RECORDS", "--against"
#: With fewer texts on a side the test of the words has no power.
FEWEST = 40
#: At this level a difference of words voids the comparison: a larger one than that of the test
#: itself, for a difference that is overlooked makes a model look guilty.
_WORDS_LEVEL = 0.05

#: Told of texts that went through the model, and of how many there are.
Watch = Callable[[int, int], None]
Doubles = NDArray[np.float64]


def compare(
    records: Sequence[str],
    others: Sequence[str],
    model: ModelConfig,
    *,
    most: int = 1000,
    tokens: int = 128,
    level: float = 1e-3,
    watch: Watch = lambda done, of: None,
) -> Contamination:
    """Compare a model's likelihood of records with that of other texts of their kind.

    Args:
        records: their texts.
        others: texts of the same kind that the model cannot have been trained on.
        model: which one, and how to load it.
        most: texts of each that are used, chosen by a hash of each.
        tokens: of a text that are read, from its beginning.
        level: of the tests, between 0 and 1.
        watch: see `Watch`.

    Raises:
        InputError: there are fewer than `FEWEST` texts, or the model cannot be used.
    """
    files = {RECORDS: _distinct(records), AGAINST: _distinct(others)}
    twice = files["RECORDS"].keys() & files[AGAINST].keys()
    sides = []
    for place, found in files.items():
        kept = sorted(found.keys() - twice, key=_place)
        if len(kept) < FEWEST:
            problem = f"it has {len(kept)} texts that the other file has not."
            raise InputError(place, problem, f"Give at least {FEWEST}, each once.")
        sides.append([found[each] for each in kept[:most]])
    loaded = load_model(model)
    total = sum(map(len, sides))
    with enough_memory():
        done, scores = 0, []
        for side in sides:
            losses = []
            for each in side:
                losses.append(log_probability(loaded, each, tokens))
                done += 1
                watch(done, total)
            scores.append(np.array(losses))
    known = [scored[~np.isnan(scored)] for scored in scores]
    for place, scored in zip(files, known, strict=True):
        if len(scored) < FEWEST:
            problem = f"{len(scored)} of its texts have two tokens or more."
            raise InputError(place, problem, f"Give at least {FEWEST} such texts.")
    likelihood, words = rank_test(*known), words_test(*sides)
    return Contamination(
        model=Encoder(name=model.name, digest=loaded.digest, max_tokens=tokens),
        records=_side(scores[0]),
        others=_side(scores[1]),
        in_both=len(twice),
        level=level,
        likelihood=_ranks(likelihood),
        words=_ranks(words),
        outcome=outcome_of(likelihood, words, level),
    )


def outcome_of(likelihood: RankTest, words: RankTest, level: float) -> Outcome:
    """Return what both tests say together."""
    if words.p <= _WORDS_LEVEL:  # a classifier that learned something ranks records higher
        return "files-differ"
    return "known" if likelihood.p <= level else "no-sign"


def log_probability(model: LanguageModel, text: str, tokens: int) -> float:
    """Return the mean log-probability of a text's first tokens, in nats; NaN if none is scored.

    A tokenizer's token for the beginning of a text goes before them. Without one, the first token
    is not scored.

    Raises:
        InputError: the model's logits are no numbers.
    """
    first = model.tokenizer.bos_token_id
    ids = model.tokenizer.encode(text, add_special_tokens=False)[:tokens]
    if isinstance(first, int):
        ids = [first, *ids]
    if len(ids) < 2:
        return math.nan
    row = torch.tensor([ids], device=model.device)
    with torch.inference_mode():
        logits = model.network(input_ids=row, use_cache=False).logits[0, :-1].float()
        found = float(-torch.nn.functional.cross_entropy(logits, row[0, 1:]))
    if not math.isfinite(found):
        raise InputError("--model", "its logits are not finite numbers.", UNUSABLE_LOGITS)
    return found


def words_test(records: Sequence[str], others: Sequence[str]) -> RankTest:
    """Test whether two files' texts can be told apart by their words, without the model.

    A linear classifier is trained on the even places of both files, which are in an order by
    hashes, and ranks the texts in the odd ones. Given the first half, the test of the second is as
    exact as `rank_test` is (Das, Zhang and Tramèr 2024, arXiv 2406.16201, on why it is needed).

    Args:
        records, others: texts, two or more each.
    """
    classifier = make_pipeline(
        TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)),
        LogisticRegression(class_weight="balanced", max_iter=1000),
    )
    half = [*records[::2], *others[::2]]
    classifier.fit(half, [1] * len(records[::2]) + [0] * len(others[::2]))
    first, second = (classifier.decision_function(list(side[1::2])) for side in (records, others))
    return rank_test(first, second)


def _place(text: str) -> tuple[float, str]:
    """Return a text's place in an order that looks random."""
    return hash_fraction(text, 0, b"known"), text


def _distinct(texts: Sequence[str]) -> dict[str, str]:
    """Return texts by their normalised form."""
    return {normalized_text(text): text for text in texts}


def _side(scores: Doubles) -> Side:
    known = scores[~np.isnan(scores)]
    return Side(texts=len(known), too_short=len(scores) - len(known), nats=float(-np.median(known)))


def _ranks(found: RankTest) -> Ranks:
    return Ranks(**found._asdict())
