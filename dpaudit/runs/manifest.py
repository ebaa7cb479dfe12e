"""run.json: what a run claims and how it was made, as typed and validated fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dpaudit.claims import CLAIM_KINDS, ClaimKind
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
    context_change,
)
from dpaudit.plugins import CLUSTERING, PlugIn, plug_in
from dpaudit.runs.committed_seed import MAX_PARTS
from dpaudit.runs.layout import MAX_CLUSTERS_BYTES
from dpaudit.runs.rules import DecodingRules, ForbiddenTokens

FORMAT_VERSION: Literal[1] = 1

Origin = Literal["public", "private"]
#: Whether a model's weights come from the private records; what nobody says is "unknown".
TrainedOnRecords = Literal["no", "yes", "unknown"]
#: How dpaudit's own clusterings find centres, and none.
OWN_CLUSTERINGS = ("none", "k-means", "chang", "dpm", "public-centers", "public-centers-rebalanced")


def _known_clustering(name: str) -> str:
    if name not in OWN_CLUSTERINGS and plug_in(CLUSTERING, name) is None:
        *others, last = (repr(known) for known in OWN_CLUSTERINGS)
        expected = f"{', '.join(others)} or {last}"
        raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
    return name


ClusteringMethod: TypeAlias = Annotated[
    str,
    Field(max_length=60),
    AfterValidator(_known_clustering),
    WithJsonSchema({"enum": [*OWN_CLUSTERINGS], "type": "string"}),
]
StopReason = Literal["end-token", "max-tokens", "budget"]
Isolation = Literal["shared", "alone", "batch"]

#: Bounds on what a manifest may declare, so that a hostile one cannot make the reader allocate at will. Every number,
#: text and list has one.
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
#: Far beyond any count and its noise, and small enough that no sum of a file of them overflows 64 bits.
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


Name = Annotated[str, Field(max_length=MAX_NAME)]
#: One line, without control characters.
MadeBy = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]+$", max_length=100)]
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
Created = Annotated[
    str,
    Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$"),
    AfterValidator(_on_the_calendar),
]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SettingName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
PublicTokens = Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_VOCABULARY)], ...], Field(max_length=MAX_PROMPT)]
Setting = (
    Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
    | Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER, allow_inf_nan=False)]
    | Annotated[str, Field(max_length=256)]
)


class Claim(Fields):
    """The privacy statement that the audit tests.

    Attributes:
        epsilon: at the release level, in nats: against whoever does not know which batch a record was in. None for a
            kind that has another figure.
        batch_epsilon: at the batch level, in nats: against whoever does; None where the run claims nothing there.
        rho: of zCDP, in nats, at the batch level; None for the other kinds.
        delta: 0 for an ex-post claim; of either level. For zCDP what an epsilon is worked out at, or 0 for none.
        kind: "ex-post" is data-dependent, epsilon(D, X); "approximate" is (epsilon, delta)-DP fixed beforehand, and
            "zcdp" is rho-zCDP fixed beforehand.
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
    def _states_what_its_kind_has(self) -> Claim:
        if (misfit := CLAIM_KINDS[self.kind].misfit(self)) is not None:
            field, allowed = misfit
            raise ValueError(f"{field} has to be {allowed}")
        return self

    @model_serializer(mode="wrap")
    def _with_the_figures_of_its_kind(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = written(self)
        own = CLAIM_KINDS[self.kind].figures
        return {name: value for name, value in fields.items() if value is not None or name in own}

    @property
    def stated(self) -> float:
        """The figure that it promises, in nats: epsilon at the release level, or rho."""
        return CLAIM_KINDS[self.kind].stated(self)


class Privacy(Fields):
    """What neighbouring data sets differ by, fixed before the run. A claim may be tested for others.

    Attributes:
        unit: what one unit of the difference is.
        relation: how neighbouring data sets differ by it.
        records_per_user: the most records that one user has; the unit "user" needs it.
        delta_from: whether a delta was declared, or worked out from the number of private records, which it then tells.
        records_per_user_from: whether that number was declared beforehand, or is the largest in the private data (and
            a claim per user then holds among data sets whose users have no more).
        shared_budgets: whether a user's contexts share one `mechanism.budget`, rather than each having one; the
            assignment then says whose each record is.
        earlier: commitments of the runs whose spending the budgets of this one go on from, in their order; the
            assignment then says what each record, or user, had spent.
        split_delta: whether delta is split evenly over the rounds after which the run may be stopped, so that each
            number of rounds has an epsilon of its own. Else a run that is stopped early costs what all rounds do.
    """

    unit: Unit = "record"
    relation: Relation = "add_remove"
    records_per_user: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    records_per_user_from: Literal["declared", "data"] = "declared"
    delta_from: Literal["declared", "records"] = "declared"
    shared_budgets: bool = False
    earlier: Annotated[tuple[Digest, ...], Field(max_length=MAX_EARLIER)] = ()
    split_delta: bool = False

    @model_serializer(mode="wrap")
    def _with_what_is_chosen(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = written(self)
        chosen = ("shared_budgets", "earlier", "split_delta")
        return {name: value for name, value in fields.items() if value or name not in chosen}

    @model_validator(mode="after")
    def _users_have_a_bound(self) -> Privacy:
        if self.unit == "user" and self.records_per_user is None:
            raise ValueError('the unit "user" needs records_per_user')
        if self.shared_budgets and self.unit != "user":
            raise ValueError('shared_budgets is for the unit "user"')
        if len(set(self.earlier)) < len(self.earlier):
            raise ValueError("earlier names a run twice")
        return self

    def shares(self, rounds: int) -> int:
        """Over how many stopping points delta is split, where the run may have so many rounds."""
        return rounds if self.split_delta else 1

    def change(
        self, rule: BatchingRule, unit: Unit | None = None, relation: Relation | None = None
    ) -> ContextChange | None:
        """What one unit's difference does to the contexts; None where nothing bounds it. By default its own unit."""
        most, shared = self.records_per_user, self.shared_budgets
        return context_change(unit or self.unit, relation or self.relation, rule, records_per_user=most, shared=shared)


class Allocation(Fields):
    """How records were given to batches, as far as whoever reads the texts can know.

    Attributes:
        kind: "hashed" by a keyed hash of each record alone; "uniform" by a draw for each record, independent of all
            others; into batches of a "fixed-size", which ties records to each other; or "by-order".
        secret: whether nobody but the curator can know the key, or the draws: they come from the operating system, and
            not from a config or a seed.
    """

    kind: Literal["hashed", "uniform", "fixed-size", "by-order"]
    secret: bool


class Batching(Fields):
    """How records became contexts and batches (mathematics: a rule that looks at one record alone).

    Attributes:
        rule: "hashed-records" makes one context of each record; "hashed-slots" fills a fixed number of
            contexts per batch; "hashed-cells" makes one context of each cell of a batch that holds exactly k records;
            "paper-slices" cuts each label's records into slices of fixed size.
        rounds: how often the records are hashed again, under a key of each round (`KeyedHash.of_round`). A record
            serves once in each.
        batches: how many batches the run generates in all rounds, with ids 0 .. batches - 1: those of the first round,
            of the second, and so on, as many in each. A public number.
        batches_per_label: how many batches each label's records are hashed into; None when not by label.
        generate_per_label: how many of each label's batches are generated in a round, the first ones: within the round
            a batch's id is index of its label * generate_per_label + number within the label. None declares no rule for
            which batches are.
        generate_per_cluster: how many of each cluster's batches are generated, the first ones, instead: ids go through
            labels, their kept centres, and numbers within a cluster. The file `clusters` has how many there are.
        slots: contexts per batch for "hashed-slots" and "paper-slices", None for the others.
        cells: per batch for "hashed-cells", None for the others.
        examples_per_context: k, the most records that one context shows; under "hashed-cells" each shows so many.
        labels: the public list of labels, in the order in which batches are numbered; empty when there are none. All
            records are then one group, for which "per label" holds.
        key: of the hash (`KeyedHash`), in hexadecimal: 16 to 64 secret bytes.
        allocation: how records were given to batches; None where the generator does not say.
    """

    rule: BatchingRule
    rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = 1
    batches: Count
    batches_per_label: Count | None = None
    generate_per_label: Count | None = None
    generate_per_cluster: Count | None = None
    slots: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    cells: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    examples_per_context: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] = 1
    labels: Labels = ()
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{2}){16,64}$")] | None = None
    allocation: Allocation | None = None

    @property
    def per_round(self) -> int:
        """How many batches a round generates."""
        return self.batches // self.rounds

    @model_validator(mode="after")
    def _fields_fit_each_other(self) -> Batching:
        per_label, generated = self.batches_per_label, self.generate_per_label
        if self.batches % self.rounds:
            raise ValueError("batches is not a multiple of rounds: each round has as many")
        by_rule = self.generate_per_cluster or (per_label and generated)
        if self.rounds > 1 and (self.rule == "paper-slices" or self.key is None or not by_rule):
            raise ValueError(
                "rounds are for hashed rules, and need a key, and batches_per_label with generate_per_label, or "
                "generate_per_cluster: a record's places follow from these"
            )
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("a label is listed twice")
        if per_label is not None and self.per_round > (len(self.labels) or 1) * per_label:
            raise ValueError("there are more batches in a round than batches_per_label times labels")
        if per_label is not None and generated is not None and generated > per_label:
            raise ValueError("generate_per_label is larger than batches_per_label")
        if (self.rule in ("hashed-slots", "paper-slices")) != (self.slots is not None):
            raise ValueError("slots is for hashed-slots and paper-slices, which need it")
        if (self.rule == "hashed-cells") != (self.cells is not None):
            raise ValueError("cells is for hashed-cells, which needs it")
        if self.rule == "hashed-records" and self.examples_per_context != 1:
            raise ValueError("hashed-records puts one record into each context: examples_per_context must be 1")
        return self


class Origins(Fields):
    """Where the numbers of this manifest were taken from: "private" when private records had a say in them.

    Attributes:
        batching: numbers of batches, slots and examples per context.
        settings: clip, temperature, divisor, support, maximum length and every other setting.
    """

    batching: Origin | None = None
    settings: Origin | None = None


class Stopping(Fields):
    """When a text ends, and when its batch begins no other.

    Attributes:
        max_tokens: a text ends at this public maximum length.
        sequences: or when its own tokens end in one of these.
        tokens_per_batch: the public number of tokens that a batch spends on texts, one after another. Where it is spent
            the last one ends, too. None for one text a batch.
    """

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    sequences: Annotated[
        tuple[Annotated[tuple[Token, ...], Field(max_length=MAX_SEQUENCE)], ...], Field(max_length=MAX_SEQUENCES)
    ] = ()
    tokens_per_batch: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None

    @model_validator(mode="after")
    def _a_batch_holds_the_longest_text(self) -> Stopping:
        if self.most_tokens < self.max_tokens:
            raise ValueError("max_tokens is larger than tokens_per_batch")
        return self

    @property
    def most_tokens(self) -> int:
        """The most tokens of a batch."""
        return self.max_tokens if self.tokens_per_batch is None else self.tokens_per_batch

    def reason(self, text: Sequence[int], spent: int) -> StopReason | None:
        """Why a text ends with its last token; None where it goes on. Sampled tokens and public numbers alone decide.

        Args:
            text: its tokens so far.
            spent: tokens of its batch so far.
        """
        if any(sequence and tuple(text[-len(sequence) :]) == sequence for sequence in self.sequences):
            return "end-token"
        if len(text) == self.max_tokens:
            return "max-tokens"
        return "budget" if spent == self.tokens_per_batch else None


class Sampling(Fields):
    """Where the sampler's randomness comes from.

    Attributes:
        generator: the operating system's entropy; a secret seed of 256 bits that the run commits to ("committed-seed",
            `dpaudit.runs.committed_seed`); or a seed that makes a run repeatable and unfit for release: of dpaudit's
            own ("test-seed"), or of numpy's Mersenne Twister ("mt19937").
        seed: for the latter two.
        seed_hashes: for a committed seed: the hash of each of its parts.
    """

    generator: Literal["os-entropy", "committed-seed", "test-seed", "mt19937"] = "os-entropy"
    seed: Annotated[int, Field(ge=-(1 << 127), lt=1 << 128)] | None = None
    seed_hashes: Annotated[tuple[Digest, ...], Field(max_length=MAX_PARTS)] = ()

    @property
    def committed(self) -> bool:
        """Whether the tokens are those of a committed seed."""
        return self.generator == "committed-seed"

    @model_serializer(mode="wrap")
    def _with_hashes_where_there_are_any(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = written(self)
        return {name: value for name, value in fields.items() if value or name != "seed_hashes"}

    @model_validator(mode="after")
    def _seeds_belong_to_seeded_generators(self) -> Sampling:
        if (self.generator in ("test-seed", "mt19937")) != (self.seed is not None):
            raise ValueError("seed is for the generators test-seed and mt19937, which need one")
        if self.committed != bool(self.seed_hashes):
            raise ValueError("seed_hashes is for the generator committed-seed, which needs one of each part")
        if len(set(self.seed_hashes)) < len(self.seed_hashes):
            raise ValueError("seed_hashes names a part twice")
        return self


class Record(Fields):
    """What each step's arrays hold.

    Attributes:
        dtype: of logits, central order statistics and aggregates.
        vocabulary: V, the number of tokens the model scores.
        width: central order statistics kept on each side of the median.
        contexts: whether every context's contributions are kept too.
    """

    dtype: Literal["float32", "float64"] = "float32"
    vocabulary: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)]
    width: Annotated[int, Field(ge=2, le=MAX_WIDTH)] = 2
    contexts: bool = False


class Model(Fields):
    """The language model. What is None the generator does not say.

    Attributes:
        name: its public name.
        digest: of its weights, tokenizer and settings.
        dtype: of weights and activations.
        device: the kind of device that it ran on.
        rows: contexts that went through it together.
        trained_on_records: whether its weights were trained on any of the private records, or fine-tuned.
        isolation: whether a context's logits depended on that context alone, to the last bit: contexts of any batches
            "shared" passes, and when the model was loaded none moved another's bits; each went through "alone", for
            they did; or with its "batch", whose contexts move each other's last bits, and no other's.
        public_logits: SHA-256 of the first public prompt's logits, where steps take a support or an anchor from public
            prompts. A machine that computes other logits cannot go on with the run.
    """

    name: Name
    digest: Digest | None = None
    dtype: Name | None = None
    device: Name | None = None
    rows: Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None = None
    trained_on_records: TrainedOnRecords = "unknown"
    isolation: Isolation | None = None
    public_logits: Digest | None = None

    @model_serializer(mode="wrap")
    def _with_public_logits_where_taken(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Runs that were made before it was recorded committed to a run.json without it.
        fields: dict[str, Any] = written(self)
        return {name: value for name, value in fields.items() if value is not None or name != "public_logits"}


class Prompt(Fields):
    """The prompt.

    Attributes:
        template: the template's id; "own" where `text` is it.
        digest: of the template's text.
        max_example_tokens: the length that each example is cut to.
        text: a template of the user's own, with its placeholders, so that a replay can build the prompts.
        end: the mark that ends a text under it. Its token ids are among `stopping.sequences`.
        one_line: whether white space in examples became single spaces before they were cut.
        public_examples: texts by label that every prompt shows before its records, the public prompt too; under ""
            where there are no labels.
        public: token ids of the public prompt, for each label in their order, or for all records; empty where no
            decoding rule looks at it.
    """

    template: Name
    digest: Digest | None = None
    max_example_tokens: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None = None
    text: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)] | None = None
    end: Annotated[str, Field(min_length=1, max_length=MAX_END)] | None = None
    one_line: bool = False
    public_examples: Annotated[dict[Name, PublicExamples], Field(max_length=MAX_LABELS)] = Field(default_factory=dict)
    public: Annotated[tuple[PublicTokens, ...], Field(max_length=MAX_LABELS)] = ()


#: Fields of `Data` that are written only where a config gave them.
_AS_GIVEN = frozenset({"config", "delimiter", "encoding", "user"})


class Data(Fields):
    """The private data.

    Attributes:
        records: how many distinct records there are, a private figure.
        digest: `data_digest` of them, private too.
        source: whether it was read from a path, or from a data set of the Hugging Face hub.
        text: the column of texts that was read, so that a replay reads the same.
        label: the column of labels; None where there are none, and no such column was read.
        user: the column that names users, so that a replay counts their records; None where the config names none.
        split: the split that was read; None for a path.
        config: the data set's configuration, where it has several.
        label_values: what the label column holds for each label, in their order; None where it holds their names.
        delimiter, encoding: as the config gave them, so that a replay reads the same. These two, `config` and `user`
            are left out where there are none.
    """

    records: Annotated[int, Field(ge=0, le=MAX_RECORDS)]
    digest: Digest | None = None
    source: Literal["path", "dataset"] = "path"
    text: Name = "text"
    label: Name | None = "label"
    user: Name | None = None
    split: Name | None = None
    config: Name | None = None
    label_values: Labels | None = None
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    encoding: Name | None = None

    @model_serializer(mode="wrap")
    def _without_what_was_not_given(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = written(self)
        return {name: value for name, value in fields.items() if value is not None or name not in _AS_GIVEN}


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


class Clustering(Fields):
    """How records were grouped within their labels before batching: each goes to the nearest of its label's centres.

    Which centres a label keeps, and how many batches each cluster has, is in the file `clusters`.

    Attributes:
        method: how centres were found; "none" where labels alone group records, and all else is None or empty then.
        settings: what decided the centres beside the texts, by name: how many were asked for, dimensions, each part of
            the budget, and the seed of k-means on public texts.
        public_digest: `texts_digest` of the public texts; None where there are none, or it is not recorded.
        origin: who had a say in where the k centres lie, counts apart: public data, private records through noise, or
            private records. Centres that are rebalanced are as public as before.
        embedding: name of the embedding model.
        embedding_digest: of its weights, tokenizer and settings.
        normalized: whether its vectors were made unit vectors.
        centers: k, how many centres were found.
        keep: k', to how many of them each label's records go.
        digest: SHA-256 of the centres, row by row as little-endian float32.
        epsilon: what the centres are said to cost one unit of `privacy`, counts apart, in nats; None where nothing
            bounds it.
        delta: what they are said to cost in delta.
        counts: the noise on counts; None where no counts were used.
        records_per_batch: public number of records by which noisy counts become a cluster's number of batches; None
            where that number is public itself, and the same for all clusters.
        most_batches: public bound on that number; None likewise.
        least_batches: the fewest that any cluster gets, whatever its counts say; None where nothing keeps it from 1.
    """

    method: ClusteringMethod = "none"
    settings: Annotated[dict[SettingName, Setting], Field(max_length=64)] = Field(default_factory=dict)
    public_digest: Digest | None = None
    origin: Literal["public", "noised", "private"] | None = None
    embedding: Name | None = None
    embedding_digest: Digest | None = None
    normalized: bool | None = None
    centers: Annotated[int, Field(ge=1, le=MAX_CENTERS)] | None = None
    keep: Annotated[int, Field(ge=1, le=MAX_CENTERS)] | None = None
    digest: Digest | None = None
    epsilon: NotNegative | None = None
    delta: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    counts: CountsNoise | None = None
    records_per_batch: Positive | None = None
    most_batches: Count | None = None
    least_batches: Count | None = None

    @model_validator(mode="after")
    def _fields_fit_the_method(self) -> Clustering:
        stated = {name for name, value in self if name != "method" and value not in (None, {})}
        if self.method == "none":
            if stated:
                raise ValueError(f"{min(stated)} is for a clustering method, and method is none")
            return self
        for name in ("origin", "embedding", "normalized", "centers", "keep", "delta"):
            if name not in stated:
                raise ValueError(f"{name} must be stated for the method {self.method}")
        if (self.keep or 0) > (self.centers or 0):
            raise ValueError("keep is larger than centers")
        if ("records_per_batch" in stated) != ("most_batches" in stated):
            raise ValueError("records_per_batch and most_batches go together")
        if self.least_batches is not None and not self.least_batches <= (self.most_batches or 0):
            raise ValueError("least_batches is for records_per_batch, and at most most_batches")
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
        centers: k × d, the centres, row by row as little-endian float32, in base64; `clustering.digest` is of these
            bytes. No number is beyond MAX_COORDINATE. Empty where neither is recorded.
        noisy_counts: labels × k, how many records of a label are nearest to each centre, with noise; empty where no
            counts were used.
        kept: labels × k', indices of the centres that a label's records go to, ascending.
        batches: labels × k', how many batches the records of each of these clusters are hashed into.
    """

    method: ClusteringMethod = "none"
    centers: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=MAX_CLUSTERS_BYTES)] = ""
    noisy_counts: Annotated[
        tuple[_Row[Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]], ...], Field(max_length=MAX_LABELS)
    ] = ()
    kept: Annotated[tuple[_Row[Annotated[int, Field(ge=0, lt=MAX_CENTERS)]], ...], Field(max_length=MAX_LABELS)] = ()
    batches: Annotated[tuple[_Row[Count], ...], Field(max_length=MAX_LABELS)] = ()


class Moved(Fields):
    """What a recorder saw of the batches when it emptied records, one at a time, and had them made again.

    Attributes:
        tried: how many records were emptied.
        moved: the most batches that one of them changed; its own counts.
    """

    tried: Annotated[int, Field(ge=0, le=MAX_RECORDS)]
    moved: Annotated[int, Field(ge=0, le=MAX_BATCHES)]


class Rows(Fields):
    """What a recorder saw of all other rows when it lengthened a private text, and had the model score them again.

    Attributes:
        logit: the most that a logit of another row moved, in logit units; for a row of a public prompt, too.
        support: how many tokens the support gained or lost, which should hang on the public prompt alone.
    """

    logit: NotNegative
    support: Annotated[int, Field(ge=0, le=MAX_VOCABULARY)]


#: What a recorder may replace in a generator.
Mend = Literal["randomness", "batches", "lengths", "rows"]


class Recorded(Fields):
    """What a recorder saw of a generator that is not ours, before its first token, and no record shows later.

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
    """What is committed to before the first token of canaries, which are in the data or not by secret coins.

    Attributes:
        count: how many there are, in and out.
        digest: SHA-256 of the file `canaries`, in hexadecimal.
    """

    count: Annotated[int, Field(ge=1, le=MAX_CANARIES)]
    digest: Digest


#: Fields of `Manifest` that are written only where there is something.
_WHERE_THERE_ARE_ANY = frozenset({"made_by", "recorded", "canaries", "redrawn", "stopped_after"})


class Manifest(Fields):
    """The whole of run.json.

    Attributes:
        format_version: of the run directory.
        sensitivity: a warning to whoever opens the file.
        created: when generation began, in ISO 8601 with a time zone.
        made_by: the person or team who made the run, in their own words. Public: every report shows it, also one for
            readers outside. Nobody checks it; left out where the config says nothing.
        privacy: what neighbouring data sets differ by.
        mechanism: how a token is drawn from a batch.
        batching: how records became contexts and batches.
        clustering: how records were grouped before that.
        origins: who had a say in the numbers here.
        stopping: when a text ends, and when its batch does.
        decoding: what no text may hold.
        sampling: where randomness comes from.
        record: what each step's arrays hold.
        data: the private data.
        model: the language model.
        prompt: the prompt.
        software: versions of what made the run, by name.
        recorded: what a recorder saw of a generator that is not ours; left out where the generator wrote the run.
        canaries: made-up records among the data, by which the run is audited; left out where there are none.
        redrawn: ids of the batches that were drawn again after they were finished, ascending; left out where there are
            none. RunWriter sets it.
        stopped_after: the number of rounds after which the run was stopped early; left out where all were generated.
            RunWriter sets it.
        claim: None until the run is finished, unless it was fixed beforehand.
        claim_stated: which of the two it was; RunWriter sets it.
        nonce: 32 secret random bytes in hexadecimal, which keep others from testing guesses against the commitment;
            RunWriter draws them.
        commitment: digest of all that was settled before the first token (`dpaudit.runs.commitment`); RunWriter sets
            it.
    """

    format_version: Literal[1] = FORMAT_VERSION
    sensitivity: Annotated[str, Field(max_length=MAX_TEMPLATE)] = SENSITIVITY
    created: Created
    made_by: MadeBy | None = None
    privacy: Privacy = Privacy()
    mechanism: Mechanism
    batching: Batching
    clustering: Clustering = Clustering()
    origins: Origins = Origins()
    stopping: Stopping
    decoding: DecodingRules = DecodingRules()
    sampling: Sampling = Sampling()
    record: Record
    data: Data
    model: Model
    prompt: Prompt
    software: Software = Field(default_factory=dict)
    recorded: Recorded | None = None
    canaries: CanaryCoins | None = None
    redrawn: Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_BATCHES)], ...], Field(max_length=MAX_BATCHES)] = ()
    stopped_after: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] | None = None
    claim: Claim | None = None
    claim_stated: Literal["beforehand", "afterwards"] = "afterwards"
    nonce: Digest | None = None
    commitment: Digest | None = None

    @model_validator(mode="after")
    def _parts_fit_each_other(self) -> Manifest:
        size, aggregator = self.mechanism.support.size, self.mechanism.aggregator
        if size is not None and size > self.record.vocabulary:
            raise ValueError("mechanism.support.size is larger than record.vocabulary")
        if aggregator.dtype == "float64" != self.record.dtype:
            raise ValueError(
                f"record.dtype must be float64 for the {aggregator.name}: rounding in float32 moves it by more than "
                "its guarantee allows one context"
            )
        if self.mechanism.budget is not None and not self.record.contexts:
            raise ValueError("mechanism.budget needs record.contexts: what a context spends is seen from nothing else")
        if self.own_allowances and (self.mechanism.budget is None or self.batching.rule != "hashed-records"):
            raise ValueError("shared_budgets and earlier are for a mechanism.budget and the rule hashed-records")
        if self.privacy.shared_budgets and self.data.user is None:
            raise ValueError("privacy.shared_budgets needs data.user, the column that says whose a record is")
        batching, clustered = self.batching, self.clustering.method != "none"
        if batching.rounds > 1 and self.own_allowances:
            raise ValueError("rounds are not for shared_budgets and earlier: budgets are of each round")
        if self.stopped_after is not None and not self.stopped_after < batching.rounds:
            raise ValueError("stopped_after is for a run that was stopped before the last of batching.rounds")
        if self.privacy.split_delta and batching.rounds == 1:
            raise ValueError("privacy.split_delta is for several batching.rounds")
        if clustered and (batching.batches_per_label, batching.generate_per_label) != (None, None):
            raise ValueError("with a clustering, batching has no batches_per_label and no generate_per_label")
        if not clustered and batching.generate_per_cluster is not None:
            raise ValueError("batching.generate_per_cluster is for a clustering, and there is none")
        if self.sampling.committed and self.mechanism.draw.arrays():
            raise ValueError(
                f"sampling.generator committed-seed is for draws by softmax, not {self.mechanism.draw.name}"
            )
        if self.decoding.least_tokens > self.stopping.max_tokens:
            raise ValueError("decoding.least_tokens is larger than stopping.max_tokens")
        if self.canaries is not None:
            if batching.rule != "hashed-records" or clustered or self.own_allowances or not self.record.contexts:
                raise ValueError(
                    "canaries are for the rule hashed-records and record.contexts, without clusters and without "
                    "shared_budgets or earlier"
                )
            if batching.key is None or not (batching.batches_per_label and batching.generate_per_label):
                raise ValueError("canaries need batching.key, batches_per_label and generate_per_label")
            if self.canaries.count > batching.batches:
                raise ValueError("there are more canaries than batches, and a batch has one at most")
        prompts = len(batching.labels or ("",)) if self.decoding.no_repeated_ngram else 0
        if len(self.prompt.public) != prompts:
            raise ValueError("prompt.public is for decoding.no_repeated_ngram, which needs one for each label")
        return self

    @model_serializer(mode="wrap")
    def _without_what_there_is_none_of(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = written(self)
        return {name: value for name, value in fields.items() if value or name not in _WHERE_THERE_ARE_ANY}

    @property
    def rounds(self) -> int:
        """How many rounds were generated, or are to be."""
        return self.stopped_after or self.batching.rounds

    @property
    def batches(self) -> int:
        """How many batches were generated in them, or are to be."""
        return self.rounds * self.batching.per_round

    @property
    def foreign(self) -> bool:
        """Whether the generator is none that dpaudit can run again: a recorder's, or one with prompts of its own."""
        prompt = self.prompt
        return self.recorded is not None or (prompt.template not in ("pt", "it") and prompt.text is None)

    @property
    def own_allowances(self) -> bool:
        """Whether what each context may spend is its own (`allowances`)."""
        return self.privacy.shared_budgets or bool(self.privacy.earlier)

    @property
    def plug_ins(self) -> tuple[PlugIn, ...]:
        """What the run was made by that is not of dpaudit's core."""
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
        """What each step takes from the public prompt by its logits: of a support, not what rules decide."""
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
        """Token ids of the public prompt before a batch's text; empty where no rule asks, or there is no such label."""
        labels = self.batching.labels or (None,)
        return self.prompt.public[labels.index(label)] if self.prompt.public and label in labels else ()

    def forbidden_tokens(self, tokenizer_json: str | bytes | None) -> ForbiddenTokens:
        """What the decoding rules forbid. Raises InputError where that cannot be told with this tokenizer."""
        fewest, sequences = self.mechanism.support.size or 1, self.stopping.sequences
        return ForbiddenTokens(self.decoding, sequences, self.record.vocabulary, fewest, tokenizer_json)
