"""Whether a model knew records before they were used, as types. All of it is private."""

from __future__ import annotations

from typing import Literal

from dpaudit.results.quality import Encoder
from dpaudit.results.result import Result
from dpaudit.results.values import Number

#: known: records are more likely than the other texts, at the level. no-sign: they are not.
#: files-differ: the two files can be told apart without the model, so its likelihood shows nothing.
Outcome = Literal["known", "no-sign", "files-differ"]
EXIT_CODES: dict[Outcome, int] = {"no-sign": 0, "known": 1, "files-differ": 1}


class Ranks(Result):
    """A rank-sum test: is a record's score larger than another text's?

    Attributes:
        auc: the probability that a record's score is the larger one; 0.5 if there is no difference.
        low, high: its interval at 95%.
        p: the chance of this AUC or a larger one if records and other texts are alike.
        p_lower: likewise, of a smaller one.
    """

    auc: Number
    low: Number
    high: Number
    p: Number
    p_lower: Number


class Side(Result):
    """The texts of a file that were measured.

    Attributes:
        texts: how many.
        too_short: how many more are left out, because nothing of them could be scored.
        nats: the median over texts of the mean negative log-probability of a token.
    """

    texts: int
    too_short: int
    nats: Number


class Contamination(Result):
    """Records against other texts of the same kind, by a model's likelihood.

    Attributes:
        model: `max_tokens` is the number of a text's tokens that are read.
        in_both: texts that stand in both files; they are left out.
        level: of both tests.
        likelihood: of the model's mean log-probability of a text's tokens.
        words: of a linear classifier of the texts' words, which never saw the model: trained on one
            half of both files, tested on the other.
    """

    schema_version: Literal["1"] = "1"
    model: Encoder
    records: Side
    others: Side
    in_both: int
    level: Number
    likelihood: Ranks
    words: Ranks
    outcome: Outcome
    audience: Literal["internal"] = "internal"

    @property
    def exit_code(self) -> int:
        """The exit code: 0 for no sign of knowledge, 1 for any other outcome."""
        return EXIT_CODES[self.outcome]
