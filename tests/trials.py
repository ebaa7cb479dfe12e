"""A small result of a trial of released texts, for tests of audits and reports."""

from __future__ import annotations

from typing import Any

from dpaudit.results.disclosed_texts import (
    Coins,
    DisclosedTexts,
    GroupCoins,
    LeftOut,
    Named,
    NamedSpan,
    RefutedEpsilon,
    Test,
)

SECRET = "zanzibar"
SPAN = NamedSpan(
    text=f"{SECRET} and nine words more of a record that nobody else has",
    words=12,
    release_row=1,
    start=0,
    end=60,
    unit=7,
    shown=True,
    own_batch=True,
)


def trial(*, p: float = 0.3, **epsilon: Any) -> DisclosedTexts:
    """A trial of a run whose texts name three records, all by their own batch."""
    named = {
        "shown": 3,
        "held_out": 0,
        "expected_by_chance": 0.0,
        "caused": 3.0,
        "caused_low": 1,
        "caused_high": 3,
        "own_batch": 3,
        "expected_right": 0.05,
        "p": 4e-6,
    }
    found = {
        "level": "batch",
        "refuted": 2.5,
        "unit": "record",
        "relation": "add_remove",
        "delta": 1e-7,
        "k": 10,
        "guesses": 3,
        "right": 3,
        "most_refutable": 2.5,
        "claimed": 0.73,
        "claimed_of": "run",
        "stated": 0.5,
        "stated_delta": 1e-5,
        "not_compared": None,
        "p_claim": 0.02,
        "claim_refutable": True,
        "claim_refuted": False,
    }
    return DisclosedTexts(
        source="run",
        measure="words",
        texts=4,
        coins=Coins(
            rule="own-batch",
            groups=(GroupCoins(label="a", units=100, shown=9, p=0.1, batches=20, generated=2),),
            independent=True,
            rounds=1,
            units=100,
            shown=9,
            held_out=91,
            expected_shown=10.0,
            p_split=0.9,
        ),
        test=Test(
            statistics=("unique-runs", "unique-3-grams"),
            level=1e-3,
            p=p,
            p_lower=1.0,
            least_records=3,
            redraws=1000,
            seed=0,
        ),
        named=tuple(Named(k=k, **named) for k in (6, 8, 10, 12, 16)),
        epsilon=RefutedEpsilon(**(found | epsilon)),
        spans=(SPAN,),
        more_spans=0,
        entities=(),
        asked=None,
        left_out=LeftOut(twins=0, short=0),
    )
