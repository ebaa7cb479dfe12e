"""run.json: what a run claims and how it was made, as typed and validated fields."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_args

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import override

from dpaudit.mechanisms import (
    MAX_NUMBER,
    MAX_VOCABULARY,
    BatchingRule,
    ContextChange,
    Fields,
    Mechanism,
    Positive,
    Relation,
    Unit,
    clash,
    context_change,
)
from dpaudit.mechanisms.claims import CLAIM_KINDS, ClaimKind, KindOfClaim
from dpaudit.plugins import CLUSTERING, PlugIn, plug_in
from dpaudit.runs.assignment import MILLION
from dpaudit.runs.committed_seed import MAX_PARTS
from dpaudit.runs.layout import MAX_CLUSTERS_BYTES
from dpaudit.runs.limits import MostTruePositives, Share, given_limits
from dpaudit.runs.rules import DecodingRules, ForbiddenTokens

FORMAT_VERSION: Literal[3] = 3

Origin = Literal["public", "private"]
#: Whether a model's weights come from the private records; what nobody says is "unknown".
TrainedOnRecords = Literal["no", "yes", "unknown"]
#: How dpaudit's own clusterings find centres, and none.
OWN_CLUSTERINGS = ("none", "k-means", "chang", "dpm", "public-centers", "public-centers-rebalanced")


def none_of(names: Iterable[str]) -> PydanticCustomError:
    """Return the error of a name that is none of these."""
    *others, last = map(repr, names)
    expected = {"expected": f"{', '.join(others)} or {last}"}
    return PydanticCustomError("literal_error", "Input should be {expected}", expected)


def _known_clustering(name: str) -> str:
    if name not in OWN_CLUSTERINGS and plug_in(CLUSTERING, name) is None:
        raise none_of(OWN_CLUSTERINGS)
    return name


ClusteringMethod: TypeAlias = Annotated[
    str,
    Field(max_length=60),
    AfterValidator(_known_clustering),
    WithJsonSchema({"enum": [*OWN_CLUSTERINGS], "type": "string"}),
]
StopReason = Literal["end-token", "max-tokens", "budget"]
#: See `ModelSettings`.
CoupledRows = Literal["alone", "batch"]
Isolation = Literal["shared", "alone", "batch"]

#: Bounds on what a manifest may declare, so that a hostile one cannot make the reader allocate at
#: will. Every number, text and list has one.
MAX_CONTEXTS = 1 << 20
MAX_TOKENS = 1 << 15
MAX_RECORDS = 1 << 40
MAX_LABELS = 1 << 14
#: Stop sequences, and tokens of one: every step of an audit is held against each.
MAX_SEQUENCES, MAX_SEQUENCE = 1 << 8, 1 << 8
#: Characters of a name, a label or a version.
MAX_NAME = 1 << 10
MAX_SOFTWARE = 1 << 8
MAX_BATCHES = 1 << 24
MAX_ROUNDS = 1 << 20
MAX_WIDTH = 64
MAX_CENTERS = 1 << 20
#: Characters of a template of the user's own, and of the mark that ends its texts.
MAX_TEMPLATE = 1 << 14
MAX_END = 64
#: Public examples of a label.
MAX_PUBLIC_EXAMPLES = 64
#: Tokens of a label's public prompt.
MAX_PROMPT = 1 << 16
#: What is worked out of them takes the square of their number.
MAX_CANARIES = 1 << 12
#: Runs whose spending another goes on from.
MAX_EARLIER = 1 << 8
#: Far beyond any count and its noise, and small enough that no sum of a file of them overflows 64
#: bits.
MAX_COUNT = 1 << 40
#: Of a centre, in absolute value: far beyond embeddings, and small enough for distances in float32.
MAX_COORDINATE = 1e6

#: What `Manifest.software` says of a run of ours, and all that a public report repeats of any.
SOFTWARE = ("dpaudit", "numpy", "tokenizers", "torch", "transformers")
SENSITIVITY = (
    "This directory is as sensitive as the private records it was made from. "
    "Only the texts in samples.jsonl are meant for release, and only after an audit."
)


def _on_the_calendar(created: str) -> str:
    datetime.fromisoformat(created)  # raises ValueError
    return created


#: What groups records that have no labels: no label is empty where there are any.
NO_LABELS = ("",)

Name = Annotated[str, Field(max_length=MAX_NAME)]
#: One line, without control characters.
MadeBy = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$", max_length=100)]
NotEmpty = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
#: One line that is not blank.
Label = Annotated[str, Field(pattern=r"^[^\r\n]*\S[^\r\n]*$", max_length=MAX_NAME)]
Labels = Annotated[tuple[Name, ...], Field(max_length=MAX_LABELS)]
Token = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]
Count = Annotated[int, Field(ge=1, le=MAX_BATCHES)]
NotNegative = Annotated[float, Field(ge=0, le=MAX_NUMBER, allow_inf_nan=False)]
Software = Annotated[dict[Name, Name], Field(max_length=MAX_SOFTWARE)]
#: Of one label.
PublicExamples = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)], ...],
    Field(min_length=1, max_length=MAX_PUBLIC_EXAMPLES, strict=False),
]
ExamplesByLabel = Annotated[dict[Name, PublicExamples], Field(max_length=MAX_LABELS)]
Created = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$"
    ),
    AfterValidator(_on_the_calendar),
]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SettingName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
PublicTokens = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=MAX_VOCABULARY)], ...], Field(max_length=MAX_PROMPT)
]
Setting = (
    Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
    | Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
    | Annotated[str, Field(max_length=256)]
)


class Claim(Fields):
    """The privacy statement that the audit tests.

    Attributes:
        epsilon: at the release level, in nats: against whoever does not know which batch a record
            was in. None for a kind that has another figure.
        batch_epsilon: at the batch level, in nats: against whoever does; None where the run claims
            nothing there.
        rho: of zCDP, in nats, at the batch level; None for the other kinds.
        delta: 0 for an ex-post claim; of either level. For zCDP what an epsilon is worked out at,
            or 0 for none.
        kind: "ex-post" is data-dependent, epsilon(D, X); "approximate" is (epsilon, delta)-DP fixed
            beforehand, and "zcdp" is rho-zCDP fixed beforehand.
        relation: what neighbouring data sets differ by.
        unit: what one unit of that difference is.
    """

    epsilon: NotNegative | None = None
    batch_epsilon: NotNegative | None = None
    rho: NotNegative | None = None
    delta: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    kind: ClaimKind
    relation: Relation = "add_remove"
    unit: Unit = "record"

    @model_validator(mode="after")
    def _states_what_its_kind_has(self) -> Self:
        if (misfit := self.terms.misfit(self)) is not None:
            field, allowed = misfit
            raise ValueError(f"{field} has to be {allowed}")
        return self

    @property
    def terms(self) -> type[KindOfClaim]:
        """Its kind, as a class: what claims of this kind state and promise."""
        return CLAIM_KINDS[self.kind]

    @property
    def stated(self) -> float:
        """The figure that it promises, in nats: epsilon at the release level, or rho."""
        return self.terms.stated(self)


class PrivacySettings(Fields):
    """The difference between neighbouring data sets, fixed before the run.

    A claim may be tested for others.

    Attributes:
        unit: what one unit of the difference is: a record, a context (prompt), or all records of a
            user.
        relation: whether it comes or goes, or is replaced by another.
        records_per_user: the most records that one user has; the unit "user" needs it. A config may
            leave it out: the run then has the largest number in the data, which counts as public.
        epsilon: what a run of means may cost in all, in nats, at `delta`. Every context then has a
            budget of its own (mechanism.budget), pays what it can really move, and is left out once
            that is spent, so that texts may be of any length. None for what all tokens cost at
            most, which is then claimed.
        advantage: instead: the most by which true positives of any test about one unit, by readers
            of the texts, may exceed false ones. Budgets follow from it, and so does the epsilon
            that is claimed.
        true_positives: instead: the most true positives of such a test at a rate of false ones.
        delta: for the mean's approximate guarantee; None takes records ** -1.1.
        canaries: how many made-up records are in the data or out of it by secret coins, which audit
            the run itself (docs/canaries.md). Each pays as any record does, and is in a batch of
            its own. None for none.
        amplification: secret-batches claims what holds against whoever does not know which batch a
            record was in, wherever that is less (docs/secret-batches.md); none what holds against
            whoever knows.
        split_delta: whether delta is split evenly over the rounds after which the run may be
            stopped, so that each number of rounds has an epsilon of its own. Else a run that is
            stopped early costs what all rounds do.
    """

    unit: Unit = "record"
    relation: Relation = "add_remove"
    records_per_user: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    epsilon: Positive | None = None
    advantage: Share | None = None
    true_positives: MostTruePositives | None = None
    delta: Share | None = None
    canaries: Annotated[int, Field(ge=1, le=MAX_CANARIES)] | None = None
    amplification: Literal["secret-batches", "none"] = "secret-batches"
    split_delta: bool = False

    @property
    def limit(self) -> str | None:
        """The name of the field that says what a run may cost; None without one."""
        return next(iter(given_limits(self)), None)

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (given := given_limits(self))[1:]:
            raise clash(given[1], getattr(self, given[1]), f"null with privacy.{given[0]}")
        return self


class Privacy(PrivacySettings):
    """The section `privacy`, with what generation made of it.

    Attributes:
        delta_from: whether a delta was declared, or worked out from the number of private records,
            which it then tells.
        records_per_user_from: whether that number was declared beforehand, or is the largest in the
            private data (and a claim per user then holds among data sets whose users have no more).
        shared_budgets: whether a user's contexts share one `mechanism.budget`, rather than each
            having one; the assignment then says whose each record is.
        earlier: commitments of the runs whose spending the budgets of this one go on from, in their
            order; the assignment then says what each record, or user, had spent.
    """

    records_per_user_from: Literal["declared", "data"] = "declared"
    delta_from: Literal["declared", "records"] = "declared"
    shared_budgets: bool = False
    earlier: Annotated[tuple[Digest, ...], Field(max_length=MAX_EARLIER)] = ()

    @model_validator(mode="after")
    def _users_have_a_bound(self) -> Self:
        if self.unit == "user" and self.records_per_user is None:
            raise ValueError('the unit "user" needs records_per_user')
        if self.shared_budgets and self.unit != "user":
            raise ValueError('shared_budgets is for the unit "user"')
        if len(set(self.earlier)) < len(self.earlier):
            raise ValueError("earlier names a run twice")
        return self

    def shares(self, rounds: int) -> int:
        """Return how many stopping points delta is split over, for a run of at most `rounds`."""
        return rounds if self.split_delta else 1

    def change(
        self, rule: BatchingRule, unit: Unit | None = None, relation: Relation | None = None
    ) -> ContextChange | None:
        """Return how one unit's difference changes the contexts, or None where nothing bounds it.

        By default its own unit.
        """
        most, shared = self.records_per_user, self.shared_budgets
        return context_change(
            unit or self.unit, relation or self.relation, rule, records_per_user=most, shared=shared
        )


class Allocation(Fields):
    """The way records were assigned to batches, as far as readers of the texts can know.

    Attributes:
        kind: "hashed" by a keyed hash of each record alone; "uniform" by a draw for each record,
            independent of all others; into batches of a "fixed-size", which ties records to each
            other; or "by-order".
        secret: whether nobody but the curator can know the key, or the draws: they come from the
            operating system, and not from a config or a seed.
    """

    kind: Literal["hashed", "uniform", "fixed-size", "by-order"]
    secret: bool


#: The fields of batching that are for labels alone, and for clusters.
OF_LABELS = ("batches_per_label", "generate_per_label")
OF_CLUSTERS = (
    "batches_per_cluster",
    "records_per_batch",
    "most_batches",
    "least_batches",
    "generate_per_cluster",
)


class BatchingSettings(Fields):
    """The rule by which records become contexts and batches.

    docs/mathematics.md explains it: a rule that looks at one record alone.

    Attributes:
        rule: "hashed-records" makes one context of each record; "hashed-slots" fills a fixed number
            of contexts per batch; "hashed-cells" makes one context of each cell of a batch that
            holds exactly k records; "paper-slices" cuts each label's records into slices of fixed
            size. A config says "hashed" for the one of these that its slots and cells make it.
        rounds: how often the records are hashed again, each time under a key of its own
            (`KeyedHash.of_round`). Every record serves once in each. Settle it before the run:
            whoever stops early pays for all of them, unless privacy.split_delta.
        batches_per_label: how many batches each label's records are hashed into; None when not by
            label. Without labels this is about all records, and so is the next.
        generate_per_label: how many of each label's batches are generated in a round, the first
            ones: within the round a batch's id is index of its label * generate_per_label + number
            within the label. None declares no rule for which batches are.
        generate_per_cluster: how many of each cluster's batches are generated, the first ones,
            instead: ids go through labels, their kept centres, and numbers within a cluster. The
            file `clusters` has how many there are.
        batches_per_cluster: with `clustering`, how many batches the records of each cluster are
            hashed into.
        records_per_batch: instead: so many of them that about so many records are in each, by noisy
            counts.
        most_batches: with records_per_batch, the most batches of a cluster.
        least_batches: with records_per_batch, the fewest: 1 where None, and a cluster's one batch
            is no secret.
        slots: contexts per batch for "hashed-slots" and "paper-slices", None for the others.
        cells: cells per batch for "hashed-cells", None for the others. One that holds exactly
            prompt.examples_per_context records is a context; the records of other cells are not
            shown.
        held_out: the share of records that no prompt shows, in millionths: a hash of each record
            alone decides, by the run's key, before its batch. They show what the others added to
            the texts (docs/evaluation.md). A public number.
    """

    rule: Literal["hashed", "hashed-records", "hashed-slots", "hashed-cells", "paper-slices"]
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = 1
    batches_per_label: Count | None = None
    generate_per_label: Count | None = None
    generate_per_cluster: Count | None = None
    batches_per_cluster: Count | None = None
    records_per_batch: Positive | None = None
    most_batches: Count | None = None
    least_batches: Count | None = None
    slots: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    cells: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    held_out: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0

    @property
    def held_out_millionths(self) -> int:
        """The share of records that no prompt shows, in millionths."""
        return round(self.held_out * MILLION)

    @property
    def full_rule(self) -> BatchingRule:
        """The rule by its own name, which follows from slots and cells."""
        if self.rule == "paper-slices":
            return "paper-slices"
        if self.cells is not None:
            return "hashed-cells"
        return "hashed-records" if self.slots is None else "hashed-slots"

    @model_validator(mode="after")
    def _fields_fit_the_rule(self) -> Self:
        if self.cells is not None and self.slots is not None:
            allowed = "null with slots: a record is hashed to a slot or to a cell"
            raise clash("cells", self.cells, allowed)
        if self.rule not in ("hashed", self.full_rule):
            raise clash("rule", self.rule, f"{self.full_rule}, by slots and cells")
        number, generated = self.batches_per_label, self.generate_per_label
        if number is not None and generated is not None and generated > number:
            allowed = f"at most batches_per_label, which is {number}"
            raise clash("generate_per_label", generated, allowed)
        if self.rule != "paper-slices":
            return self
        if number is not None:
            allowed = "null when rule is paper-slices: the number of slices follows from the data"
            raise clash("batches_per_label", number, allowed)
        if self.slots is None:
            raise clash("slots", None, "a whole number of at least 1 when rule is paper-slices")
        if self.held_out:
            raise clash("held_out", self.held_out, "0 when rule is paper-slices")
        if self.rounds > 1:
            allowed = "1 when rule is paper-slices: every round would cut the same slices"
            raise clash("rounds", self.rounds, allowed)
        return self

    def given(self, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield those of some fields that are given, with their values."""
        for name in names:
            if name in self.model_fields_set and getattr(self, name):
                yield name, getattr(self, name)

    @model_validator(mode="after")
    def _one_number_of_batches(self) -> Self:
        if (self.records_per_batch is None) != (self.most_batches is None):
            lacking = "most_batches" if self.most_batches is None else "records_per_batch"
            raise clash(
                lacking,
                None,
                "a number of at least 1: records_per_batch and most_batches go together",
            )
        if self.batches_per_cluster is not None and self.records_per_batch is not None:
            allowed = "null when batches_per_cluster says how many batches there are"
            raise clash("records_per_batch", self.records_per_batch, allowed)
        if self.least_batches is not None and not self.least_batches <= (self.most_batches or 0):
            allowed = f"at most most_batches, which is {self.most_batches}"
            if self.most_batches is None:
                allowed = "null without records_per_batch and most_batches"
            raise clash("least_batches", self.least_batches, allowed)
        return self


class Batching(BatchingSettings):
    """The section `batching`, with what generation made of it.

    Attributes:
        batches: how many batches the run generates in all rounds, with ids 0 .. batches - 1: those
            of the first round, of the second, and so on, as many in each. A public number.
        key: of the hash (`KeyedHash`), in hexadecimal: 16 to 64 secret bytes.
        allocation: how records were given to batches; None where the generator does not say.
    """

    rule: BatchingRule
    batches: Count
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){16,64}$")] | None = None
    allocation: Allocation | None = None

    @property
    def per_round(self) -> int:
        """The number of batches that a round generates."""
        return self.batches // self.rounds

    @model_validator(mode="after")
    def _every_round_has_as_many_batches(self) -> Self:
        per_label, generated = self.batches_per_label, self.generate_per_label
        if self.batches % self.rounds:
            raise ValueError("batches is not a multiple of rounds: each round has as many")
        by_rule = self.generate_per_cluster or (per_label and generated)
        if self.held_out and self.key is None:
            raise ValueError("held_out needs a key, which says which records are held out")
        if self.rounds > 1 and (self.key is None or not by_rule):
            raise ValueError(
                "rounds need a key, and batches_per_label with generate_per_label, or "
                "generate_per_cluster: a record's places follow from these"
            )
        return self


class Origins(Fields):
    """The origins of numbers: "private" when private records were looked at to choose them.

    Attributes:
        batching: those of `batching`, and prompt.examples_per_context.
        settings: all others: clip, temperature, divisor, support, numbers of tokens, banned_words,
            ...
    """

    batching: Origin | None = None
    settings: Origin | None = None


class DecodingSettings(DecodingRules):
    """The decoding of texts: how long they get, and the rules of what they may not hold.

    Attributes:
        max_tokens: the longest that a text can get. A config may leave it out for
            `tokens_per_batch`.
        tokens_per_batch: how many tokens each batch spends, on one text after another; they may cut
            the last one. None for one text a batch.
    """

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    tokens_per_batch: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None

    @property
    def longest(self) -> int:
        """The most tokens of a text."""
        return self.max_tokens or self.tokens_per_batch or 0

    @property
    def most_tokens(self) -> int:
        """The most tokens of a batch: all that it pays for."""
        return self.tokens_per_batch or self.longest

    @model_validator(mode="after")
    def _a_batch_holds_the_longest_text(self) -> Self:
        if not self.longest:
            raise clash("max_tokens", None, "a whole number of at least 1 without tokens_per_batch")
        if self.most_tokens < self.longest:
            raise clash(
                "max_tokens",
                self.max_tokens,
                f"at most tokens_per_batch, which is {self.tokens_per_batch}",
            )
        if self.least_tokens > self.longest:
            longest = "max_tokens" if self.max_tokens else "tokens_per_batch"
            raise clash(
                "least_tokens", self.least_tokens, f"at most {longest}, which is {self.longest}"
            )
        return self


class Decoding(DecodingSettings):
    """The section `decoding`, with what ends a text before its longest.

    Attributes:
        sequences: a text ends when its own tokens end in one of these.
    """

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    sequences: Annotated[
        tuple[Annotated[tuple[Token, ...], Field(max_length=MAX_SEQUENCE)], ...],
        Field(max_length=MAX_SEQUENCES),
    ] = ()

    def reason(self, text: Sequence[int], spent: int) -> StopReason | None:
        """Return why a text ends with its last token, or None where it goes on.

        Sampled tokens and public numbers alone decide.

        Args:
            text: its tokens so far.
            spent: tokens of its batch so far.
        """
        if any(
            sequence and tuple(text[-len(sequence) :]) == sequence for sequence in self.sequences
        ):
            return "end-token"
        if len(text) == self.max_tokens:
            return "max-tokens"
        return "budget" if spent == self.tokens_per_batch else None


class SamplingSettings(Fields):
    """The source of the random numbers that decide every token.

    Attributes:
        generator: the operating system's entropy, whose numbers nobody has ("os-entropy"); a secret
            seed of 256 bits that the run commits to ("committed-seed"), so that an auditor who is
            given it can recompute every one of them (docs/committed-seed.md); or a seed that makes
            a run repeatable, and its texts unfit for release: of dpaudit's own ("test-seed"), or of
            numpy's Mersenne Twister ("mt19937"), in runs of other generators.
        seed: for the latter two.
        seed_hashes: for a committed seed, the hash of each of its parts. With them in a config a
            run can be committed to while a part is still its owner's secret; it goes on once all
            files are there. Else they are taken from the files.
    """

    generator: Literal["os-entropy", "committed-seed", "test-seed", "mt19937"] = "os-entropy"
    seed: Annotated[int, Field(ge=-(1 << 127), lt=1 << 128)] | None = None
    seed_hashes: Annotated[tuple[Digest, ...], Field(max_length=MAX_PARTS, strict=False)] = ()

    @property
    def committed(self) -> bool:
        """Whether the tokens are those of a committed seed."""
        return self.generator == "committed-seed"

    @model_validator(mode="after")
    def _seeds_belong_to_their_generators(self) -> Self:
        if (self.generator in ("test-seed", "mt19937")) != (self.seed is not None):
            raise clash(
                "seed",
                self.seed,
                "a whole number with the generators test-seed and mt19937, else null",
            )
        if self.seed_hashes and not self.committed:
            raise clash(
                "seed_hashes",
                list(self.seed_hashes),
                "left out without the generator committed-seed",
            )
        if len(set(self.seed_hashes)) < len(self.seed_hashes):
            raise clash("seed_hashes", list(self.seed_hashes), "another hash for each part")
        return self


class Sampling(SamplingSettings):
    """The section `sampling` of a run."""

    @model_validator(mode="after")
    def _has_the_hash_of_each_part(self) -> Self:
        if self.committed and not self.seed_hashes:
            raise ValueError("the generator committed-seed needs seed_hashes, one of each part")
        return self


class RecordSettings(Fields):
    """The contents of the run directory beyond what an audit needs.

    Attributes:
        contexts: whether every context's contributions are kept too, which are large over the whole
            vocabulary. A config may leave it out: they are then kept over a truncated support where
            they are differences or go into a mean, so that all figures can be worked out anew. What
            a mean is the sum of nothing else shows but a replay (the check mechanism.divisor).
    """

    contexts: bool | None = None


class Record(RecordSettings):
    """The section `record`, with what each step's arrays hold.

    Attributes:
        dtype: of logits, central order statistics and aggregates.
        vocabulary: V, the number of tokens the model scores.
        width: central order statistics kept on each side of the median.
    """

    contexts: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    vocabulary: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)]
    width: Annotated[int, Field(ge=2, le=MAX_WIDTH)] = 2


class ModelSettings(Fields):
    """The language model.

    Attributes:
        name: a Hugging Face name, a folder (safetensors or one .gguf file), or package:NAME/FOLDER.
        dtype: of weights and activations; logits are float32 either way. A config may say auto,
            which takes bfloat16 where the device computes in it, about twice as fast, and keeps the
            rows of a pass apart; float32 elsewhere. None where the generator does not say.
        coupled_rows: what becomes of contexts where the model lets one move another's last bits, as
            mixtures of experts do: each goes through alone, or with its batch, which is faster and
            more than the claim covers. None where the generator does not say.
        trained_on_records: no, yes or unknown: whether its weights were trained on any of the
            private records. What it remembers of them no epsilon here covers.
    """

    name: Name
    dtype: Name | None = None
    coupled_rows: CoupledRows | None = None
    trained_on_records: TrainedOnRecords = "unknown"


class Model(ModelSettings):
    """The section `model`, with what was loaded. What is None the generator does not say.

    Attributes:
        digest: of its weights, tokenizer and settings.
        device: the kind of device that it ran on.
        rows: contexts that went through it together.
        isolation: whether a context's logits depended on that context alone, to the last bit:
            contexts of any batches "shared" passes, and when the model was loaded none moved
            another's bits; each went through "alone", for they did; or with its "batch", whose
            contexts move each other's last bits, and no other's.
        public_logits: SHA-256 of the first public prompt's logits, where steps take a support or an
            anchor from public prompts. A machine that computes other logits cannot go on with the
            run.
    """

    digest: Digest | None = None
    device: Name | None = None
    rows: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    isolation: Isolation | None = None
    public_logits: Digest | None = None


class PromptSettings(Fields):
    """The prompt.

    Attributes:
        template: pt for pre-trained models, it for instruction-tuned ones, both with labels; "own"
            where `text` is it, which a config leaves out. Other generators name theirs.
        text: a template of one's own instead, with `{example}` in one of its lines, which is there
            once for each example, and `{label}` where wanted. A brace that is meant as one is
            doubled. The text is the whole prompt: for an instruction-tuned model write its turns
            into it, as the model's makers show them.
        end: with `text`, the mark that ends a text, as examples may be seen to end in it; null for
            the model's own. Its token ids are among `decoding.sequences`.
        one_line: whether white space in an example becomes single spaces, line breaks too, before
            it is cut.
        public_examples: texts by label that every prompt shows before its records, and the public
            prompt alone: written for it, or anything else that is nobody's secret; a list where
            there are no labels. Or the path of a file of them, with the columns of the data, as
            data.path and apart from it; by that it is declared public. run.json has the texts that
            were read, under "" where there are no labels.
        drafted: whether a model wrote these, from the labels and a public sentence. Examples that
            people write, or take from a public corpus of the records' kind, are worth more.
        examples_per_context: k, the most records that one prompt shows; under hashed-cells each
            shows so many. Several need batching.slots or batching.cells.
        max_example_tokens: the length that each example is cut to.
    """

    template: Name | None = None
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)] | None = None
    end: Annotated[str, Field(min_length=1, max_length=MAX_END)] | None = None
    one_line: bool = False
    public_examples: ExamplesByLabel | PublicExamples | NotEmpty | None = None
    drafted: bool = False
    examples_per_context: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] = 1
    max_example_tokens: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None = None


class Prompt(PromptSettings):
    """The section `prompt`, with what was read for it.

    Attributes:
        digest: of the template's text.
        public: token ids of the public prompt, for each label in their order, or for all records;
            empty where no decoding rule looks at it.
    """

    template: Name
    public_examples: ExamplesByLabel = Field(default_factory=dict)
    digest: Digest | None = None
    public: Annotated[tuple[PublicTokens, ...], Field(max_length=MAX_LABELS)] = ()


class DataSettings(Fields):
    """The part of the private data that is read, so that a replay reads the same.

    Attributes:
        config: a data set's configuration, where it has several.
        split: the data set's split; None for a path.
        text: the column of texts.
        label: the column of labels; None where there are none, and no such column is read.
        labels: the public list of labels, in the order in which batches are numbered; it must not
            be read off the private records. None where there are none: then no column of labels is
            read, all records are one group, for which "per label" holds, and `prompt.text` says
            what is asked for.
        user: the column that says whose record it is, for claims per user.
        label_values: what the column of labels holds for each label, in their order; None where it
            holds them as they stand.
        other_labels: what becomes of rows with any other label, with none, or without text:
            refuse them all, or skip each of them. Blanks around a label do not count.
        delimiter: what separates the fields of a .csv; None for the first of comma, semicolon, tab
            and | that gives its first line the columns named here.
        encoding: of files of text; None for UTF-8, or what a file begins by saying that it is.
    """

    config: NotEmpty | None = None
    split: NotEmpty | None = None
    text: NotEmpty = "text"
    label: NotEmpty | None = "label"
    labels: (
        Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_LABELS, strict=False)] | None
    ) = None
    user: NotEmpty | None = None
    label_values: (
        Annotated[tuple[Label, ...], Field(min_length=1, max_length=MAX_LABELS, strict=False)]
        | None
    ) = None
    other_labels: Literal["refuse", "skip"] = "refuse"
    delimiter: Annotated[str, Field(pattern=r'^[^\r\n"]$')] | None = None
    encoding: NotEmpty | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """The labels that records are grouped by: one without a name where there are none."""
        return self.labels or NO_LABELS

    @model_validator(mode="after")
    def _each_label_comes_once(self) -> Self:
        if len(set(self.groups)) < len(self.groups):
            raise clash("labels", list(self.groups), "each label once")
        return self


class Data(DataSettings):
    """The section `data`, with what was read.

    Attributes:
        records: how many distinct records there are, a private figure.
        digest: `data_digest` of them, private too.
        source: whether it was read from a path, or from a data set of the Hugging Face hub.
    """

    records: Annotated[int, Field(ge=0, le=MAX_RECORDS)]
    digest: Digest | None = None
    source: Literal["path", "dataset"] = "path"


class CountsNoise(Fields):
    """Laplace noise on how many records of each label are nearest to each centre.

    Attributes:
        epsilon: what the counts are said to cost one unit, in nats.
        scale: of the noise, in records.
        noised: whether all counts had their noise before any centre was chosen by them.
    """

    epsilon: Positive
    scale: Positive
    noised: Literal["before-selection", "after-selection"]


class ClusteringSettings(Fields):
    """The grouping of records within their labels before batching.

    Each record goes to the nearest of its label's centres.

    Attributes:
        method: where centres come from; k-means looks at private records, with no privacy at all.
        public_text: the column of the public texts.
        embedding: the sentence-embedding model, as model.name. A config may leave it out, for the
            one that needs no network.
        centers: k, how many centres are looked for, or were found: dpm finds their number itself.
        keep: k', how many centres each label keeps, by noisy counts of its records.
        dimension: onto which chang projects embeddings.
        normalize: whether embeddings are made unit vectors.
    """

    method: ClusteringMethod
    public_text: NotEmpty | None = None
    embedding: Name | None = None
    normalize: bool | None = None
    dimension: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    centers: Annotated[int, Field(ge=1, le=MAX_CENTERS)] | None = None
    keep: Annotated[int, Field(ge=1, le=MAX_CENTERS)] | None = None

    @model_validator(mode="after")
    def _keeps_no_more_than_there_are(self) -> Self:
        if self.keep is not None and self.centers is not None and self.keep > self.centers:
            raise clash("keep", self.keep, f"at most centers, which is {self.centers}")
        return self


class Clustering(ClusteringSettings):
    """The section `clustering`, with what was found.

    Which centres a label keeps, and how many batches each cluster has, is in the file `clusters`.
    The method is "none" where labels alone group records, and all else is None or empty then.

    Attributes:
        settings: what decided the centres beside the texts, by name: how many were asked for,
            dimensions, each part of the budget, and the seed of k-means on public texts.
        public_digest: `texts_digest` of the public texts; None where there are none, or it is not
            recorded.
        origin: who had a say in where the k centres lie, counts apart: public data, private records
            through noise, or private records. Centres that are rebalanced are as public as before.
        embedding_digest: of the embedding model's weights, tokenizer and settings.
        digest: SHA-256 of the centres, row by row as little-endian float32.
        epsilon: what the centres are said to cost one unit of `privacy`, counts apart, in nats;
            None where nothing bounds it.
        delta: what they are said to cost in delta.
        counts: the noise on counts; None where no counts were used.
    """

    method: ClusteringMethod = "none"
    settings: Annotated[dict[SettingName, Setting], Field(max_length=64)] = Field(
        default_factory=dict
    )
    public_digest: Digest | None = None
    origin: Literal["public", "noised", "private"] | None = None
    embedding_digest: Digest | None = None
    digest: Digest | None = None
    epsilon: NotNegative | None = None
    delta: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    counts: CountsNoise | None = None

    @model_validator(mode="after")
    def _fields_fit_the_method(self) -> Self:
        stated = {name for name, value in self if name != "method" and value not in (None, {})}
        if self.method == "none":
            if stated:
                raise ValueError(f"{min(stated)} is for a clustering method, and method is none")
            return self
        for name in ("origin", "embedding", "normalize", "centers", "keep", "delta"):
            if name not in stated:
                raise ValueError(f"{name} must be stated for the method {self.method}")
        if self.origin == "public" and (self.epsilon, self.delta) != (0, 0):
            raise ValueError("centres of public data cost nothing: epsilon and delta must be 0")
        return self


_Value = TypeVar("_Value")
#: Of a label.
_Row = Annotated[tuple[_Value, ...], Field(max_length=MAX_CENTERS)]


class Clusters(Fields):
    """The file `clusters`. Rows are labels in the manifest's order.

    Attributes:
        method: as in run.json.
        centers: k × d, the centres, row by row as little-endian float32, in base64;
            `clustering.digest` is of these bytes. No number is beyond MAX_COORDINATE. Empty where
            neither is recorded.
        noisy_counts: labels × k, how many records of a label are nearest to each centre, with
            noise; empty where no counts were used.
        kept: labels × k', indices of the centres that a label's records go to, ascending.
        batches: labels × k', how many batches the records of each of these clusters are hashed
            into.
    """

    method: ClusteringMethod = "none"
    centers: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=MAX_CLUSTERS_BYTES)
    ] = ""
    noisy_counts: Annotated[
        tuple[_Row[Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]], ...],
        Field(max_length=MAX_LABELS),
    ] = ()
    kept: Annotated[
        tuple[_Row[Annotated[int, Field(ge=0, lt=MAX_CENTERS)]], ...], Field(max_length=MAX_LABELS)
    ] = ()
    batches: Annotated[tuple[_Row[Count], ...], Field(max_length=MAX_LABELS)] = ()


class Moved(Fields):
    """The changes that a recorder saw in the batches when it emptied records.

    It empties one record at a time, and has the batches made again.

    Attributes:
        tried: how many records were emptied.
        moved: the most batches that one of them changed; its own counts.
    """

    tried: Annotated[int, Field(ge=0, le=MAX_RECORDS)]
    moved: Annotated[int, Field(ge=0, le=MAX_BATCHES)]


class Rows(Fields):
    """The changes that a recorder saw in all other rows when it lengthened a private text.

    It has the model score the rows again with the longer text.

    Attributes:
        logit: the most that a logit of another row moved, in logit units; for a row of a public
            prompt, too.
        support: how many tokens the support gained or lost, which should hang on the public prompt
            alone.
    """

    logit: NotNegative
    support: Annotated[int, Field(ge=0, le=MAX_VOCABULARY)]


#: What a recorder may replace in a generator.
Mend = Literal["randomness", "batches", "lengths", "rows"]


class Recorded(Fields):
    """A recorder's observations of another project's generator, before its first token.

    Nothing that is recorded later shows them.

    Attributes:
        generator: its name and version.
        mended: what the recorder replaced in it.
        batches: what emptying a record did to the batches; None where nobody tried.
        rows: what a longer text did to the other rows; None where nobody tried.
    """

    generator: Name
    mended: Annotated[tuple[Mend, ...], Field(max_length=len(get_args(Mend)), strict=False)] = ()
    batches: Moved | None = None
    rows: Rows | None = None


class CanaryCoins(Fields):
    """The commitment to canaries before the first token.

    Secret coins decide which canaries are in the data.

    Attributes:
        count: how many there are, in and out.
        digest: SHA-256 of the file `canaries`, in hexadecimal.
    """

    count: Annotated[int, Field(ge=1, le=MAX_CANARIES)]
    digest: Digest


class Settings(Fields):
    """The settings of a run, which its config has and run.json repeats.

    They leave out how a process runs and where files lie.

    Attributes:
        data: which of the private data is read.
        model: the language model.
        prompt: what it is shown.
        batching: how records become contexts and batches.
        clustering: how records are grouped before that.
        mechanism: how a token is drawn from a batch.
        decoding: how long texts are, how many a batch writes, and what they may not hold.
        sampling: where randomness comes from.
        record: what is kept.
        privacy: what neighbouring data sets differ by.
        chosen_from: whether private records had a say in the numbers here.
        made_by: the person or team who makes the run, in one line and in their own words. Public:
            every report shows it, also one for readers outside. Nobody checks it.
    """

    data: DataSettings
    model: ModelSettings
    prompt: PromptSettings
    batching: BatchingSettings
    clustering: ClusteringSettings | None
    mechanism: Mechanism
    decoding: DecodingSettings
    sampling: SamplingSettings = SamplingSettings()
    record: RecordSettings = RecordSettings()
    privacy: PrivacySettings = PrivacySettings()
    chosen_from: Origins = Origins()
    made_by: MadeBy | None = None

    @property
    def has_budgets(self) -> bool:
        """Whether every context has a budget of its own."""
        return self.mechanism.budget is not None or self.privacy.limit is not None

    @property
    def own_allowances(self) -> bool:
        """Whether what each context may spend is its own (`allowances`).

        It is where a record is a context, and the data says whose it is: users share budgets then.
        """
        per_user = self.privacy.unit == "user" and self.data.user is not None
        return self.has_budgets and per_user and self.batching.full_rule == "hashed-records"

    @property
    def clustered(self) -> bool:
        """Whether records are grouped by more than their labels."""
        return self.clustering is not None and self.clustering.method != "none"

    @model_validator(mode="after")
    def _budgets_are_recorded_and_deltas_split_over_rounds(self) -> Self:
        if self.has_budgets and self.record.contexts is False:
            raise clash(
                "record.contexts",
                False,
                "true with budgets: what a context spends shows nowhere else",
            )
        if self.privacy.split_delta and self.batching.rounds == 1:
            raise clash("privacy.split_delta", True, "false without several batching.rounds")
        if self.batching.rounds > 1 and self.own_allowances:
            allowed = (
                "1 where the records of a user share a budget (data.user), or budgets go on from "
                "earlier runs: budgets are of each round"
            )
            raise clash("batching.rounds", self.batching.rounds, allowed)
        return self

    @model_validator(mode="after")
    def _contexts_of_several_examples_have_places(self) -> Self:
        if self.prompt.examples_per_context > 1 and self.batching.full_rule == "hashed-records":
            allowed = (
                "a whole number of at least 1, or batching.cells is, when "
                "prompt.examples_per_context is above 1"
            )
            raise clash("batching.slots", None, allowed)
        return self

    @model_validator(mode="after")
    def _batches_are_of_clusters_or_of_labels(self) -> Self:
        for field, value in self.batching.given(OF_LABELS if self.clustered else OF_CLUSTERS):
            allowed = "null without a section clustering"
            if self.clustered:
                instead = field.replace("label", "cluster")
                allowed = f"{instead} instead, with a section clustering"
            raise clash(f"batching.{field}", value, allowed)
        return self

    @model_validator(mode="after")
    def _canaries_are_records_in_batches_of_their_own(self) -> Self:
        canaries, batching = self.privacy.canaries, self.batching
        alone = "null with privacy.canaries"
        if canaries is None:
            return self
        if batching.full_rule == "paper-slices":
            raise clash("batching.rule", batching.rule, "hashed with privacy.canaries")
        for field in ("slots", "cells"):
            if getattr(batching, field) is not None:
                allowed = f"{alone}: each is a context by itself"
                raise clash(f"batching.{field}", getattr(batching, field), allowed)
        if batching.held_out:
            allowed = "0 with privacy.canaries, whose coins say who is in"
            raise clash("batching.held_out", batching.held_out, allowed)
        if self.clustering is not None and self.clustered:
            raise clash("clustering", self.clustering.method, alone)
        if self.own_allowances:
            allowed = "null where the records of a user share a budget: no canary is anybody's"
            raise clash("privacy.canaries", canaries, allowed)
        if self.record.contexts is False:
            raise clash("record.contexts", False, "null or true with privacy.canaries")
        batches = len(self.data.groups) * (batching.generate_per_label or 1)
        if canaries > batches:
            allowed = f"at most one for each of the {batches} batches"
            raise clash("privacy.canaries", canaries, allowed)
        return self


class Manifest(Settings):
    """All of run.json: the settings, and what generation made of them.

    A section such as `data` has both. The file keeps them apart (`to_json`), so that what a config
    says is found in one place, and what was measured, drawn or counted in another.

    Attributes:
        sensitivity: a warning to whoever opens the file.
        created: when generation began, in ISO 8601 with a time zone.
        software: versions of what made the run, by name.
        recorded: what a recorder saw of a generator that is not ours; None where the generator
            wrote the run.
        canaries: made-up records among the data, by which the run is audited; None where there are
            none.
        redrawn: ids of the batches that were drawn again after they were finished, ascending.
            RunWriter sets it.
        stopped_after: the number of rounds after which the run was stopped early; None where all
            were generated. RunWriter sets it.
        claim: None until the run is finished, unless it was fixed beforehand.
        claim_stated: which of the two it was; RunWriter sets it.
        nonce: 32 secret random bytes in hexadecimal, which keep others from testing guesses against
            the commitment; RunWriter draws them.
        commitment: digest of all that was settled before the first token
            (`dpaudit.runs.commitment`); RunWriter sets it.
    """

    sensitivity: Annotated[str, Field(max_length=MAX_TEMPLATE)] = SENSITIVITY
    data: Data
    model: Model
    prompt: Prompt
    batching: Batching
    clustering: Clustering = Clustering()
    decoding: Decoding
    sampling: Sampling = Sampling()
    record: Record
    privacy: Privacy = Privacy()
    created: Created
    software: Software = Field(default_factory=dict)
    recorded: Recorded | None = None
    canaries: CanaryCoins | None = None
    redrawn: Annotated[
        tuple[Annotated[int, Field(ge=0, lt=MAX_BATCHES)], ...], Field(max_length=MAX_BATCHES)
    ] = ()
    stopped_after: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | None = None
    claim: Claim | None = None
    claim_stated: Literal["beforehand", "afterwards"] = "afterwards"
    nonce: Digest | None = None
    commitment: Digest | None = None

    @model_validator(mode="after")
    def _parts_fit_each_other(self) -> Self:
        size, aggregator = self.mechanism.support.size, self.mechanism.aggregator
        if size is not None and size > self.record.vocabulary:
            raise ValueError("mechanism.support.size is larger than record.vocabulary")
        if aggregator.dtype == "float64" != self.record.dtype:
            raise ValueError(
                f"record.dtype must be float64 for the {aggregator.name}: rounding in float32 "
                "moves it by more than "
                "its guarantee allows one context"
            )
        if self.own_allowances and (
            self.mechanism.budget is None or self.batching.rule != "hashed-records"
        ):
            raise ValueError(
                "shared_budgets and earlier are for a mechanism.budget and the rule hashed-records"
            )
        if self.privacy.shared_budgets and self.data.user is None:
            raise ValueError(
                "privacy.shared_budgets needs data.user, the column that says whose a record is"
            )
        batching, labels = self.batching, len(self.data.groups)
        per_label = batching.batches_per_label
        if per_label is not None and batching.per_round > labels * per_label:
            raise ValueError(
                "there are more batches in a round than batches_per_label times labels"
            )
        if self.stopped_after is not None and not self.stopped_after < batching.rounds:
            raise ValueError(
                "stopped_after is for a run that was stopped before the last of batching.rounds"
            )
        if self.sampling.committed and self.mechanism.draw.arrays():
            raise ValueError(
                "sampling.generator committed-seed is for draws by softmax, not "
                f"{self.mechanism.draw.name}"
            )
        by_rule = batching.key and batching.batches_per_label and batching.generate_per_label
        if self.canaries is not None and not by_rule:
            raise ValueError("canaries need batching.key, batches_per_label and generate_per_label")
        prompts = labels if self.decoding.no_repeated_ngram else 0
        if len(self.prompt.public) != prompts:
            raise ValueError(
                "prompt.public is for decoding.no_repeated_ngram, which needs one for each label"
            )
        return self

    @model_validator(mode="after")
    def _what_was_made_is_what_was_asked_for(self) -> Self:
        asked, claim = self.privacy, self.claim
        made = 0 if self.canaries is None else self.canaries.count
        if (asked.canaries or 0) != made:
            raise ValueError(
                f"privacy.canaries asks for {asked.canaries or 0}, and canaries has {made}"
            )
        if asked.limit is not None and self.mechanism.budget is None:
            raise ValueError(
                f"privacy.{asked.limit} is kept by a mechanism.budget, and there is none"
            )
        stated = 0.0 if claim is None or claim.epsilon is None else claim.epsilon
        if asked.epsilon is not None and stated > asked.epsilon:
            raise ValueError("claim.epsilon is above privacy.epsilon, which is the most")
        if claim is not None and claim.delta and asked.delta not in (None, claim.delta):
            raise ValueError("claim.delta is another number than privacy.delta")
        coupled, isolation = self.model.coupled_rows, self.model.isolation
        if coupled is not None and isolation not in (None, "shared", coupled):
            raise ValueError(f"model.isolation is {isolation}, and model.coupled_rows {coupled}")
        return self

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Read run.json, which has to hold every field that `to_json` writes.

        A field that is left out is never read as its default: that may be the one that is best for
        the run.

        Raises:
            ValidationError: a field is missing, unknown or has another type, or fields contradict
                each other.
        """
        with suppress(ValueError, LookupError, TypeError, RecursionError):
            file = json.loads(text)
            if json.dumps(file["format"]) == json.dumps(FORMAT_VERSION):
                found = cls._of_file(file)
                written = found.parts()
                if not any(_left_out(written, file)) and not any(_left_out(file, written)):
                    return found
        # The type of the file names places in it, and takes as long to make as the manifest's own.
        whole = run_json().model_validate_json(text)
        left_out = _left_out(whole.model_dump(mode="json"), json.loads(text))
        missing = [InitErrorDetails(type="missing", loc=place, input=None) for place in left_out]
        if missing:
            raise ValidationError.from_exception_data("RunJson", missing)
        return cls._of_file(json.loads(text))

    @classmethod
    def _of_file(cls, file: Mapping[str, Any]) -> Self:
        """Read the content of run.json, whose sections are in two halves.

        Raises:
            LookupError, TypeError: they are not.
            ValidationError: as for `of_json`; fields that are left out have their defaults.
        """
        settings, made = file["settings"], file["made"]
        sections = {name: settings[name] | made[name] for name in SECTIONS}
        fields = {"sensitivity": file["sensitivity"]} | settings | made | sections
        return cls.model_validate_json(json.dumps(fields))

    def parts(self, without: Collection[str] = ()) -> dict[str, Any]:
        """Return what run.json holds, as JSON has it.

        Args:
            without: fields of the manifest that are left out.
        """
        fields = self.model_dump(mode="json", exclude=set(without))
        sensitivity = fields.pop("sensitivity")
        settings = {name: fields.pop(name) for name in Settings.model_fields if name in fields}
        for name, (kind, _) in SECTIONS.items():
            section = settings[name]
            settings[name] = {field: section.pop(field) for field in kind.model_fields}
            fields[name] = section
        return {
            "format": FORMAT_VERSION,
            "sensitivity": sensitivity,
            "settings": settings,
            "made": fields,
        }

    def to_json(self) -> str:
        """Write run.json."""
        return json.dumps(self.parts(), indent=2, ensure_ascii=False) + "\n"

    @property
    def rounds(self) -> int:
        """The number of rounds that were generated, or are to be."""
        return self.stopped_after or self.batching.rounds

    @property
    def batches(self) -> int:
        """The number of batches that were generated in them, or are to be."""
        return self.rounds * self.batching.per_round

    @property
    def foreign(self) -> bool:
        """Whether the generator is one that dpaudit cannot run again.

        Such a generator is a recorder's, or has prompts of its own.
        """
        prompt = self.prompt
        return self.recorded is not None or (
            prompt.template not in ("pt", "it") and prompt.text is None
        )

    @property
    @override
    def own_allowances(self) -> bool:
        return self.privacy.shared_budgets or bool(self.privacy.earlier)

    @property
    def plug_ins(self) -> tuple[PlugIn, ...]:
        """The plug-ins that the run was made with, which are not part of dpaudit's core."""
        method = self.clustering.method
        grouped = None if method in OWN_CLUSTERINGS else plug_in(CLUSTERING, method)
        return (*self.mechanism.plug_ins, *([] if grouped is None else [grouped]))

    @property
    def truncated(self) -> bool:
        """Whether each step samples from a support of its own, which it records."""
        return self.mechanism.support.size is not None or self.decoding.any

    @property
    def needs_public(self) -> bool:
        """Whether a step takes anything from the public prompt."""
        return self.truncated or self.mechanism.contribution.anchored

    @property
    def public_parts(self) -> tuple[str, ...]:
        """The parts that each step takes from the public prompt's logits.

        Of a support, what decoding rules decide is not among them.
        """
        support = ("support",) if self.mechanism.support.size is not None else ()
        return (*support, *["anchor"] * self.mechanism.contribution.anchored)

    @property
    def most_support(self) -> int:
        """The most tokens that a step samples from."""
        return self.mechanism.support.most(self.record.vocabulary)

    @property
    def least_support(self) -> int:
        """And the fewest, where decoding rules leave so many."""
        return self.mechanism.support.size or self.record.vocabulary

    def public_prompt(self, label: str | None) -> tuple[int, ...]:
        """Return the token ids of the public prompt before a batch's text.

        They are empty where no rule asks for them, or there is no such label.
        """
        labels, group = self.data.groups, label or ""
        if not self.prompt.public or group not in labels:
            return ()
        return self.prompt.public[labels.index(group)]

    def forbidden_tokens(self, tokenizer_json: str | bytes | None) -> ForbiddenTokens:
        """Return the tokens that the decoding rules forbid.

        Raises InputError where that cannot be told with this tokenizer.
        """
        fewest, sequences = self.mechanism.support.size or 1, self.decoding.sequences
        return ForbiddenTokens(
            self.decoding, sequences, self.record.vocabulary, fewest, tokenizer_json
        )


def _left_out(
    written: Any, given: Any, place: tuple[int | str, ...] = ()
) -> Iterator[tuple[int | str, ...]]:
    """Yield the places of all fields of JSON that would be `written`, but were not `given`."""
    if isinstance(written, dict):
        named = given if isinstance(given, dict) else {}
        for name, value in written.items():
            if name in named:
                yield from _left_out(value, named[name], (*place, name))
            else:
                yield (*place, name)
    elif isinstance(written, list):
        for number, (value, own) in enumerate(zip(written, given, strict=True)):
            yield from _left_out(value, own, (*place, number))


def settings_of(section: Fields, kind: type[Fields]) -> dict[str, Any]:
    """Return the fields of a section that are settings of this type, and no others."""
    return {name: getattr(section, name) for name in kind.model_fields}


#: The sections of run.json that have both halves, by name: the type of the settings, and that of
#: all of the section.
SECTIONS: dict[str, tuple[type[Fields], type[Fields]]] = {
    "data": (DataSettings, Data),
    "model": (ModelSettings, Model),
    "prompt": (PromptSettings, Prompt),
    "batching": (BatchingSettings, Batching),
    "clustering": (ClusteringSettings, Clustering),
    "decoding": (DecodingSettings, Decoding),
    "record": (RecordSettings, Record),
    "privacy": (PrivacySettings, Privacy),
}


def _type_of(name: str, fields: Mapping[str, FieldInfo], about: str | None) -> type[Fields]:
    """Return a type that has these fields of another one."""
    each: dict[str, Any] = {field: (info.annotation, info) for field, info in fields.items()}
    return create_model(name, __base__=Fields, __doc__=about, **each)


@cache
def run_json() -> type[Fields]:
    """Return the type of the file run.json: `Manifest`, with settings apart from what was made."""
    made = dict(Manifest.model_fields)
    sensitivity = made.pop("sensitivity")
    settings = {name: made.pop(name) for name in Settings.model_fields}
    for name, (kind, whole) in SECTIONS.items():
        own = dict(whole.model_fields)
        given = {field: own.pop(field) for field in kind.model_fields}
        settings[name] = FieldInfo(annotation=_type_of(kind.__name__, given, kind.__doc__))
        made[name] = FieldInfo(annotation=_type_of(f"{whole.__name__}Made", own, whole.__doc__))
    halves = {
        "format": FieldInfo(annotation=Literal[3]),
        "sensitivity": sensitivity,
        "settings": FieldInfo(annotation=_type_of("Settings", settings, Settings.__doc__)),
        "made": FieldInfo(annotation=_type_of("Made", made, Manifest.__doc__)),
    }
    return _type_of(
        "RunJson", halves, "The file run.json: settings, and what generation made of them."
    )
