"""Released texts on trial against records that could not have made them, as types. All private.

The file is no part of a release: counts, p-values, spans and the epsilon that texts refute are
worked out from private records, and no epsilon pays for publishing them.
"""

import json
from typing import Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from dpaudit.accounting.laws import LEVEL as LEVEL
from dpaudit.results.values import Number

#: Whose epsilon is compared: of someone who knows a record's batch, of readers of the texts, or of
#: someone who knows which records were shown and which held out but for one.
Level: TypeAlias = Literal["batch", "release", "split"]
#: What a guess says of a unit: which batch it is in, or that it was shown.
Rule: TypeAlias = Literal["own-batch", "shown", "fixed-size-split"]
#: Why no claim is compared.
NotCompared: TypeAlias = Literal[
    "none-claimed", "known-afterwards", "other-neighbours", "all-shown"
]

#: The code of an error: no outcome of the test could reject.
NO_POWER: Final = "disclose.no-power"
#: Of the epsilon that is shown.
CONFIDENCE: Final = 0.95
#: Words, or characters, in a row that name a record against which a claim is held. Fixed: the
#: largest epsilon of several lengths would be refuted too often.
CLAIM_AT: Final = {"words": 10, "characters": 40}

#: Spans that a result lists, names likewise, and rows of texts that have a name.
MOST_SPANS: Final = 200
MOST_ROWS: Final = 20


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class GroupCoins(_Part):
    """The coins of one group of units, whose texts and records are compared with each other alone.

    Attributes:
        label: theirs; None without labels.
        cluster: index of their centre; None if labels alone group records.
        units: how many there are, of all rounds.
        shown: how many of them were shown: those of generated batches, or of the file of shown
            records.
        p: the probability that one is shown; None if the group's split was of a fixed size that
            nobody knows more of.
        batches, generated: of each round; None without batches.
    """

    label: str | None
    cluster: int | None = None
    units: int
    shown: int
    p: Number
    batches: int | None = None
    generated: int | None = None


class Coins(_Part):
    """What decided which units were shown, and how many were.

    Attributes:
        rule: what a guess says of a unit.
        groups: of labels and clusters.
        independent: whether each unit has a coin of its own; else a number was fixed.
        rounds: how often each record's coin was drawn.
        units: records, or users, times rounds.
        shown, held_out: how many of them were shown, and how many not.
        expected_shown: the mean of `shown` by the coins.
        p_split: the probability, on both sides, of a number of shown ones as far from the mean;
            None where the number was fixed beforehand.
    """

    rule: Rule
    groups: tuple[GroupCoins, ...]
    independent: bool
    rounds: int
    units: int
    shown: int
    held_out: int
    expected_shown: Number
    p_split: Number | None


class Test(_Part):
    """The test of whether texts and coins have anything to do with each other.

    Attributes:
        statistics: the counts whose smallest tail decides, fixed before anybody saw a coin.
        level: of the whole test: each tail has half of it.
        p: the probability of as many right guesses where texts hang on no coin; by redraws.
        p_lower: likewise of as few.
        least_records: with fewer named records no outcome could reject.
        redraws, seed: of the coins; the seed also breaks ties.
    """

    statistics: tuple[str, ...]
    level: Number
    p: Number
    p_lower: Number
    least_records: int
    redraws: int
    seed: int

    @property
    def depends(self) -> bool:
        """Whether the texts name shown records more than chance gives."""
        return self.p <= self.level / 2

    @property
    def avoids(self) -> bool:
        """Whether the texts name shown records less than chance gives."""
        return self.p_lower <= self.level / 2


class Named(_Part):
    """The units that texts name by k words, or characters, in a row.

    Attributes:
        k: how many in a row at least; they stand in one unit alone, and in no public text.
        shown, held_out: how many units of each kind are named.
        expected_by_chance: of `shown`, by those that are held out; None if none are.
        caused, caused_low, caused_high: disclosures by reason of having been shown, and their 95%
            limits; None where no one chance is behind them.
        own_batch: how many are named by a text of their own batch; None without batches.
        expected_right: by chance, the mean of the right guesses among the named: of `own_batch`,
            or of `shown` without batches.
        p: the upper tail of the right guesses at this k, by itself.
    """

    k: int
    shown: int
    held_out: int
    expected_by_chance: Number | None
    caused: Number | None
    caused_low: int | None
    caused_high: int | None
    own_batch: int | None
    expected_right: Number
    p: Number


class RefutedEpsilon(_Part):
    """The epsilon that texts refute, and the claim beside it, of one level.

    Attributes:
        level: whose epsilon it is.
        refuted: the largest that is refuted with `confidence`, in nats, rounded down; 0 for none.
        unit, relation: of the neighbouring data sets.
        delta: of the claim; 0 for none.
        k: records named by so many in a row are counted.
        guesses, right: how many, and how many are right.
        most_refutable: what as many guesses would refute if all were right; 0 without any.
        claimed: the epsilon that is compared, in nats; None if none is.
        claimed_of: whether it was given to the test, or is the run's own.
        stated, stated_delta: what the run's claim states, where `claimed` is what its settings
            promise at a smaller delta; None elsewhere.
        not_compared: why none is; None if one is.
        p_claim: the probability of as many right guesses under the claim, at most; None likewise.
        claim_refutable: whether it would be, if every unit were named and every guess right.
        claim_refuted: whether that is at most `LEVEL`.
    """

    level: Level
    refuted: Number
    confidence: Number = CONFIDENCE
    unit: Literal["record", "user"]
    relation: Literal["add_remove", "replace"]
    delta: Number
    k: int
    guesses: int
    right: int
    most_refutable: Number
    claimed: Number | None
    claimed_of: Literal["run", "given"] | None
    stated: Number | None
    stated_delta: Number | None
    not_compared: NotCompared | None
    p_claim: Number | None
    claim_refutable: bool
    claim_refuted: bool


class NamedSpan(_Part):
    """Words in a row that stand in a released text and in one unit alone.

    Attributes:
        text: as the released text has them.
        words: how many, or how many characters.
        release_row: the released text's row, from 1.
        start, end: where it is there, in characters from 0.
        unit: the row of the unit's first record in the data, from 1: of a run's by the order of
            its digests.
        shown: whether the unit was shown.
        own_batch: whether the text is of its own batch; None without batches.
    """

    text: str
    words: int
    release_row: int
    start: int
    end: int
    unit: int
    shown: bool
    own_batch: bool | None


class NamedEntity(_Part):
    """A name or number that stands in released texts.

    Attributes:
        name: as it was given, or as the texts have it.
        given: whether it is of the caller's list; else it is a number of four digits or more that
            stands in one unit at most, and in no public text.
        release_rows: the released texts that hold it, from 1; the first few.
        texts: how many do.
        shown, held_out: how many units of each kind hold it.
        public: whether a public text does.
    """

    name: str
    given: bool
    release_rows: tuple[int, ...]
    texts: int
    shown: int
    held_out: int
    public: bool

    @property
    def phantom(self) -> bool:
        """Whether the model wrote it without having been shown it in a record."""
        return not self.shown and not self.public


class Asked(_Part):
    """The answer to: does this stand in the records, and in the texts?

    Attributes:
        name: what was asked.
        shown, held_out: how many units of each kind hold it.
        texts: how many released texts do.
        public: whether a public text does.
        expected_by_chance: of `shown`, by those that are held out; None if nothing was held out.
    """

    name: str
    shown: int
    held_out: int
    texts: int
    public: bool
    expected_by_chance: Number | None


class LeftOut(_Part):
    """What is no unit of the test.

    Attributes:
        twins: records whose text is another's but for case, marks and width; one of them is a unit.
        short: units with too few words, or characters, to be named at the smallest k.
    """

    twins: int
    short: int


class DisclosedTexts(_Part):
    """Released texts on trial.

    Attributes:
        source: whether a run's key, or two files, tell which records were shown.
        measure: what is counted in a row.
        texts: how many released texts were read.
        coins: what decided who was shown.
        test: whether texts and coins are independent.
        named: by k, ascending.
        epsilon: what the texts refute, and the claim.
        spans: the longest first, at most `MOST_SPANS`.
        more_spans: how many more there are.
        entities: names of the caller's list that stand in texts, and numbers; at most `MOST_SPANS`.
        asked: the answer to --ask; None if nothing was asked.
        left_out: what is no unit.
    """

    schema_version: Literal["1"] = "1"
    audience: Literal["internal"] = "internal"
    source: Literal["run", "files"]
    measure: Literal["words", "characters"]
    texts: int
    coins: Coins
    test: Test
    named: tuple[Named, ...]
    epsilon: RefutedEpsilon
    spans: tuple[NamedSpan, ...]
    more_spans: int
    entities: tuple[NamedEntity, ...]
    asked: Asked | None
    left_out: LeftOut

    def to_json(self) -> str:
        """Return this as strict JSON text."""
        return (
            json.dumps(self.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)
            + "\n"
        )
