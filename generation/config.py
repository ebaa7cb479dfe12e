"""The settings of a generation run, read from YAML.

Public values only: private records arrive separately.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

import numpy as np
from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from dpaudit.accounting import CLUSTERINGS
from dpaudit.accounting.guesses import ALARM_AT, LEAST_CANARIES
from dpaudit.errors import in_short
from dpaudit.generation.sources import DATASET, overlap
from dpaudit.generation.wording import EXAMPLE, LABEL, Wording, WordingError, require_seen
from dpaudit.mechanisms import Fields, Mechanism, OneOf, clash
from dpaudit.mechanisms.claims import CLAIM_KINDS, ClaimKind, KindOfClaim
from dpaudit.runs import InputError
from dpaudit.runs.committed_seed import MAX_PARTS
from dpaudit.runs.limits import Share
from dpaudit.runs.manifest import (
    MAX_BATCHES,
    MAX_CONTEXTS,
    MAX_TOKENS,
    OF_CLUSTERS,
    BatchingSettings,
    ClusteringSettings,
    Count,
    CoupledRows,
    DataSettings,
    Label,
    ModelSettings,
    NotEmpty,
    NotNegative,
    Origin,
    Origins,
    PrivacySettings,
    PromptSettings,
    SamplingSettings,
    Settings,
    none_of,
)
from dpaudit.runs.strict_yaml import load

#: exp(-700) is still a normal double, so every token keeps a probability that can be sampled.
MAX_LOGIT_RANGE = 700.0

#: What the commonest mistakes should have been, in the words of someone who writes YAML.
_PLAIN = {
    "tuple_type": "a list, such as [sport, tech]",
    "too_short": "a list with at least one item",
    "string_type": "text; put it in quotes where YAML reads a number, a date or a yes",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "invalid_key": "fields with names",
}

#: Central values that are kept on either side of a median at least: enough to bound one replaced
#: context.
LEAST_WIDTH = 2
#: Fields whose value no error shows.
_SECRETS = ("batching.key", "sampling.seed")
#: In a location: one of several types that a value may have.
_TYPE = re.compile(r"\[|constrained")
#: Marks a field of a config that run.json does not repeat: it says where files lie, how a process
#: runs, or what generation resolves and records itself.
UNRECORDED: Final = "unrecorded"
#: Numbers of tokens, of what has one token at least, and of coordinates: no model takes more.
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
#: What a file can be called: nothing with a zero byte.
_File = Annotated[str, Field(pattern=r"^[^\x00]+$")]


class DataConfig(DataSettings):
    """The place of the private records, and the part of them that is read.

    Attributes:
        path: a .csv, .tsv, .jsonl or .parquet file, a folder of several of one kind, a folder of
            LABEL/*.txt (without labels, of *.txt too), or package:NAME/FOLDER.
        dataset: a Hugging Face dataset's name, instead of a path.
    """

    path: Annotated[NotEmpty | None, UNRECORDED] = None
    dataset: Annotated[NotEmpty | None, UNRECORDED] = None
    label: NotEmpty = "label"
    labels: Annotated[tuple[Label, ...], Field(min_length=1, strict=False)] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(
            column for column in (self.text, self.labels and self.label, self.user) if column
        )

    @property
    def named(self) -> dict[str, str]:
        """The label of each value that the label column may hold."""
        return dict(zip(self.label_values or self.groups, self.groups, strict=True))

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.dataset is None):
            raise clash("path", self.path, "give either path or dataset, and not both")
        for field in ("config", "split"):
            if getattr(self, field) is not None and self.dataset is None:
                raise clash(field, getattr(self, field), f"{field} is for dataset; a path has none")
        try:
            # what encodes no text, such as base64, raises a LookupError too
            "".encode(self.encoding or "utf-8")
        except (LookupError, ValueError):
            raise clash(
                "encoding", self.encoding, "one that Python knows, such as utf-8, utf-16 or cp1252"
            ) from None
        if self.user == self.text:
            raise clash(
                "user",
                self.user,
                "another column than data.text, by which every text is somebody's only one",
            )
        if self.labels is None:
            for field in ("label", "label_values", "other_labels"):
                if getattr(self, field) != type(self).model_fields[field].default:
                    raise clash(
                        field, getattr(self, field), "left out without labels, which are not given"
                    )
            return self
        values = self.label_values or self.labels
        if len(values) != len(self.labels) or len(set(values)) != len(values):
            raise clash(
                "label_values",
                list(values),
                "a value of its own for each of labels, in their order",
            )
        return self


class ModelConfig(ModelSettings):
    """The language model, and how it runs; run.json says what came of that.

    Attributes:
        device: auto takes a GPU where there is one.
        rows: contexts that go through the network together; null for as many as memory allows and
            the device can use.
    """

    name: NotEmpty
    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    coupled_rows: CoupledRows = "alone"
    device: Annotated[Literal["auto", "cpu", "cuda"], UNRECORDED] = "auto"
    rows: Annotated[Annotated[int, Field(ge=1, le=MAX_CONTEXTS)] | None, UNRECORDED] = None


class PromptConfig(PromptSettings):
    """The prompt."""

    template: Literal["pt", "it"] | None = None
    examples_per_context: Tokens = 1
    max_example_tokens: Tokens = 96

    @property
    def id(self) -> Literal["pt", "it", "own"]:
        """The template's id in the run directory."""
        return (self.template or "pt") if self.text is None else "own"

    @property
    def shows_label(self) -> bool:
        """Whether a prompt says its label."""
        return self.text is None or Wording.of(self.text).shows_label

    @model_validator(mode="after")
    def _one_template(self) -> Self:
        if self.drafted and not self.public_examples:
            raise clash("drafted", True, "false without public_examples, which a model wrote")
        if self.text is None:
            if self.end is not None:
                raise clash(
                    "end",
                    self.end,
                    "null without text: the paper's templates have an end of their own",
                )
            return self
        if self.template is not None:
            raise clash("template", self.template, "null with text, which is a template of its own")
        if "\\n" in (self.end or ""):
            allowed = (
                'a mark without a backslash; YAML reads a line break in double quotes, as "\\n"'
            )
            raise clash("end", self.end, allowed)
        for field, check in (("text", Wording.of), ("end", require_seen)):
            try:
                check(getattr(self, field) or "")
            except WordingError as error:
                raise clash(field, error.given, error.allowed) from None
        return self


#: How often a canary's text is drawn anew, on average, until no round sends it to another's batch.
_TRIES = 100


class BatchingConfig(BatchingSettings):
    """The rule by which records become contexts and batches.

    Attributes:
        key: 64 hexadecimal digits that fix the hash; drawn from the operating system when null,
            which alone makes it a secret that hides records' batches.
        records: about how many there are, as everyone may know; never counted. Plans go by it.
    """

    rule: Literal["hashed", "paper-slices"] = "hashed"
    generate_per_label: Count = 1
    generate_per_cluster: Count = 1
    key: Annotated[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None, UNRECORDED] = None
    records: Annotated[Count | None, UNRECORDED] = None

    @model_validator(mode="after")
    def _there_are_so_many_batches(self) -> Self:
        hashed, number = self.rule == "hashed", self.batches_per_label
        if hashed and number is None and not any(self.given(OF_CLUSTERS)):
            allowed = "a whole number of at least 1 when rule is hashed and there is no clustering"
            raise clash("batches_per_label", None, allowed)
        most = self.batches_per_cluster or self.most_batches
        if most is not None and self.generate_per_cluster > most:
            name = "batches_per_cluster" if self.batches_per_cluster else "most_batches"
            raise clash(
                "generate_per_cluster",
                self.generate_per_cluster,
                f"at most {name}, which is {most}",
            )
        return self


_WANTED = {
    "public": "a file or a folder of public texts",
    "centers": "a whole number of at least 1",
    "keep": "a whole number of at least 1",
    "epsilon": "a number above 0",
    "delta": "a number above 0 and below 1",
    "dimension": "a whole number of at least 1",
}


def _known_clustering(method: str) -> str:
    if method not in CLUSTERINGS:
        raise none_of(CLUSTERINGS)
    return method


class ClusteringConfig(ClusteringSettings):
    """The grouping of each label's records before they are batched.

    See the paper's section "Batching by clustering".

    Attributes:
        public: public texts, as data.path and apart from it, or dataset:NAME of the Hugging Face
            hub. Nobody's private records must be among them.
        epsilon: of the counts for public-centers-rebalanced, of the centres for chang and dpm, in
            nats.
        delta: of the centres.
    """

    method: Annotated[str, AfterValidator(_known_clustering)]
    public: Annotated[NotEmpty | None, UNRECORDED] = None
    public_text: NotEmpty = "text"
    normalize: bool = True
    epsilon: Annotated[Annotated[float, Field(ge=1e-9, allow_inf_nan=False)] | None, UNRECORDED] = (
        None
    )
    delta: Annotated[Share | None, UNRECORDED] = None

    @property
    def budget(self) -> float:
        """`epsilon`, of a method that has one."""
        if self.epsilon is None:
            raise ValueError(f"{self.method} has no epsilon")
        return self.epsilon

    @model_validator(mode="after")
    def _fields_fit_the_method(self) -> Self:
        needs = CLUSTERINGS[self.method].needs
        for field, wanted in _WANTED.items():
            value, needed = getattr(self, field), field in needs
            if needed and value is None:
                raise clash(field, None, f"{wanted} when method is {self.method}")
            if not needed and value is not None:
                raise clash(field, value, f"null when method is {self.method}")
        if self.method == "chang" and not self.normalize:
            raise clash(
                "normalize",
                False,
                "true when method is chang: its noise is for vectors of length 1",
            )
        return self


class SamplingConfig(SamplingSettings):
    """The source of the random numbers that decide every token.

    Attributes:
        seed_files: with committed-seed, a file for each part of the seed, of 64 hexadecimal digits,
            which its owner alone may read (`dpaudit key --seed`). The seed is the exclusive or of
            all parts.
    """

    generator: Literal["os-entropy", "committed-seed", "test-seed"] = "os-entropy"
    seed: Annotated[int, Field(ge=0, lt=1 << 128)] | None = None
    seed_files: Annotated[
        Annotated[tuple[_File, ...], Field(min_length=1, max_length=MAX_PARTS, strict=False)]
        | None,
        UNRECORDED,
    ] = None

    @model_validator(mode="after")
    def _files_are_for_a_committed_seed(self) -> Self:
        files, hashes = self.seed_files, self.seed_hashes
        if not self.committed and files is not None:
            raise clash("seed_files", list(files), "null without the generator committed-seed")
        if self.committed and files is None:
            raise clash(
                "seed_files",
                None,
                "a list of files with the generator committed-seed (dpaudit key --seed)",
            )
        if hashes and len(hashes) != len(files or ()):
            raise clash(
                "seed_hashes",
                list(hashes),
                "left out, or a hash for each of seed_files, in their order",
            )
        return self


class PrivacyConfig(PrivacySettings):
    """The subject of the claim."""

    @model_validator(mode="after")
    def _canaries_could_refute_something(self) -> Self:
        if self.canaries is not None and self.canaries < LEAST_CANARIES:
            lucky = (
                "guesses of fewer coins may all be right by luck, once in "
                f"{1 / ALARM_AT:,.0f} runs or more often"
            )
            raise clash("canaries", self.canaries, f"null, or at least {LEAST_CANARIES}: {lucky}")
        return self


class OriginsConfig(Origins):
    """The origins of the numbers in this config; a config has to state them."""

    batching: Origin
    settings: Origin


class ClaimConfig(Fields):
    """A claim that is fixed before generation.

    Attributes:
        kind: null for the mechanism's own. "zcdp" is for means: rho of zero-concentrated DP, which
            contexts' budgets promise (docs/claims.md).
        epsilon: in nats; of the other kinds than zcdp.
        rho: in nats; of zcdp.
        delta: of the mean's approximate guarantee, or of noised centres. For zcdp what epsilons are
            worked out at, privacy.delta where it is 0.
    """

    kind: ClaimKind | None = None
    epsilon: NotNegative | None = None
    rho: NotNegative | None = None
    delta: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0

    @property
    def batch_epsilon(self) -> None:
        """None: the run states the batch level itself."""


class Config(Settings):
    """All settings of a run: those that run.json repeats, and those that are marked as unrecorded.

    Attributes:
        clustering: how records are grouped before that; null for by their labels alone.
        claim: an epsilon that is fixed beforehand; null to claim what the texts cost (median), or
            what the settings guarantee (mean).
    """

    data: DataConfig
    model: ModelConfig
    prompt: PromptConfig = PromptConfig()
    batching: BatchingConfig
    clustering: ClusteringConfig | None = None
    sampling: SamplingConfig = SamplingConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    chosen_from: OriginsConfig
    claim: Annotated[ClaimConfig | None, UNRECORDED] = None

    @property
    def claim_kind(self) -> type[KindOfClaim]:
        """The kind of claim that the run states.

        It is the mechanism's own, unless the config's claim is of another kind.
        """
        chosen = None if self.claim is None else self.claim.kind
        return CLAIM_KINDS[chosen or self.mechanism.claim_kind]

    @property
    def counts_delta(self) -> bool:
        """Whether the claim's delta follows from the number of records: no field gives one."""
        given = self.privacy.delta or (None if self.claim is None else self.claim.delta)
        return self.claim_kind.beforehand and not given

    @property
    def records_contexts(self) -> bool:
        """Whether every context's contributions are recorded."""
        mechanism, asked = self.mechanism, self.record.contexts
        if asked is not None or self.has_budgets or self.privacy.canaries:
            return asked is not False
        return mechanism.over_support or (
            mechanism.support.size is not None and mechanism.aggregator.sums
        )

    @model_validator(mode="after")
    def _prompt_batching_and_privacy_fit(self) -> Self:
        shown, cells = self.prompt.examples_per_context, self.batching.cells
        if shown == 1 and cells is not None:
            allowed = (
                "null when prompt.examples_per_context is 1: without cells every record of "
                "a batch is shown"
            )
            raise clash("batching.cells", cells, allowed)
        if self.batching.full_rule == "paper-slices" and self.privacy.unit != "context":
            allowed = (
                "context when batching.rule is paper-slices. Taking one record out moves every "
                "later record of its "
                "label to another place in the slices, so many contexts and batches change and "
                "no claim per record "
                "holds"
            )
            raise clash("privacy.unit", self.privacy.unit, allowed)
        if (
            self.privacy.unit == "user"
            and self.privacy.records_per_user is None
            and self.data.user is None
        ):
            allowed = (
                "a whole number of at least 1 when privacy.unit is user and data.user "
                "names no column"
            )
            raise clash("privacy.records_per_user", None, allowed)
        return self

    @model_validator(mode="after")
    def _labels_are_shown_only_where_there_are_any(self) -> Self:
        if self.data.labels is None and self.prompt.shows_label:
            if self.prompt.text is not None:
                raise clash("prompt.text", LABEL, f"{EXAMPLE} alone when data.labels is not given")
            shown = (
                f"which the prompt {self.prompt.id} shows; data without labels needs prompt.text"
            )
            raise clash("data.labels", None, f"a list of labels, {shown}")
        return self

    @model_validator(mode="after")
    def _public_examples_are_of_labels_and_not_the_data(self) -> Self:
        examples, labels = self.prompt.public_examples, self.data.labels
        if isinstance(examples, str):
            if overlap(examples, self.data.path or f"{DATASET}{self.data.dataset}"):
                allowed = "public texts, which lie neither in data.path nor around it"
                raise clash("prompt.public_examples", examples, allowed)
        elif isinstance(examples, tuple) and labels is not None:
            raise clash(
                "prompt.public_examples",
                list(examples),
                "a list of texts for each label, under its name",
            )
        elif isinstance(examples, dict):
            for label in examples:
                if label not in (labels or ()):
                    allowed = (
                        "a list of texts" if labels is None else f"texts under {', '.join(labels)}"
                    )
                    raise clash("prompt.public_examples", label, allowed)
        return self

    @model_validator(mode="after")
    def _clusters_are_hashed_into_so_many_batches(self) -> Self:
        batching = self.batching
        if self.clustering is None:
            return self
        if batching.rule == "paper-slices":
            raise clash("batching.rule", batching.rule, "hashed with a section clustering")
        if batching.records_per_batch is not None and self.clustering.keep is None:
            allowed = (
                "null, and batches_per_cluster instead: only public-centers-rebalanced has "
                "noisy counts"
            )
            raise clash("batching.records_per_batch", batching.records_per_batch, allowed)
        if batching.batches_per_cluster is None and batching.records_per_batch is None:
            instead = (
                ""
                if self.clustering.keep is None
                else "; or give records_per_batch and most_batches"
            )
            raise clash(
                "batching.batches_per_cluster", None, f"a whole number of at least 1{instead}"
            )
        return self

    @model_validator(mode="after")
    def _batches_are_not_too_many(self) -> Self:
        """Refuse too many batches, by public numbers alone: dpm finds its centres later."""
        labels, clustering, batching = len(self.data.groups), self.clustering, self.batching
        parts = [("batching.generate_per_label", batching.generate_per_label, labels, "labels")]
        if clustering is not None:
            name = "centers" if clustering.keep is None else "keep"
            clusters = getattr(clustering, name) or 1
            parts = [
                (f"clustering.{name}", clusters, labels, "labels"),
                (
                    "batching.generate_per_cluster",
                    batching.generate_per_cluster,
                    labels * clusters,
                    "clusters in all",
                ),
            ]
        field, each, groups, _ = parts[-1]
        parts.append(("batching.rounds", batching.rounds, each * groups, "batches in a round"))
        for field, each, groups, of in parts:
            if each * groups > MAX_BATCHES:
                there = f"there are {groups:,} {of}, and a run has up to {MAX_BATCHES:,} batches"
                raise clash(field, each, f"at most {MAX_BATCHES // groups:,}: {there}")
        return self

    @model_validator(mode="after")
    def _names_mean_one_thing(self) -> Self:
        self.mechanism.require_unclaimed()
        if self.clustering is not None:
            CLUSTERINGS.require_unclaimed(self.clustering.method)
        return self

    @model_validator(mode="after")
    def _clustering_fits_data_and_privacy(self) -> Self:
        if self.clustering is None:
            return self
        method, unit = self.clustering.method, self.privacy.unit
        public, private = self.clustering.public, self.data.path or f"{DATASET}{self.data.dataset}"
        if public is not None and (public == private or overlap(public, private)):
            allowed = "public texts, which lie neither in data.path nor around it"
            raise clash("clustering.public", public, allowed)
        if method == "k-means" and self.chosen_from.batching == "public":
            allowed = (
                "private when clustering.method is k-means, whose centres are found by "
                "looking at private records"
            )
            raise clash("chosen_from.batching", "public", allowed)
        if CLUSTERINGS[method].origin == "noised" and unit == "user":
            raise clash(
                "privacy.unit",
                unit,
                f"record when clustering.method is {method}: its noise hides a record",
            )
        if unit == "context" and self.batching.full_rule != "hashed-records":
            allowed = (
                "record or user with a section clustering: a context's records are of many counts"
            )
            raise clash("privacy.unit", unit, allowed)
        return self

    @field_validator("mechanism")
    @classmethod
    def _mechanism_is_computed_in_float32(cls, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism with its clip as a float32 number.

        Contributions are clipped in float32, so the clip that is declared and accounted for is a
        float32 number, too.
        """
        if mechanism.draw.arrays():
            allowed = (
                "softmax, or left out: other draws are for runs that a recorder writes "
                "(docs/foreign-runs.md)"
            )
            raise clash("draw.kind", mechanism.draw.name, allowed)
        clip = float(np.float32(mechanism.clip))
        if not clip:
            raise clash("contribution.clip", mechanism.clip, "a number that float32 tells from 0")
        if 2 * clip / mechanism.temperature > MAX_LOGIT_RANGE:
            allowed = (
                f"at least 2 * clip / {MAX_LOGIT_RANGE:g}, so that no token's probability "
                "underflows"
            )
            raise clash("temperature", mechanism.temperature, allowed)
        contribution = mechanism.contribution.model_copy(update={"clip": clip})
        return mechanism.model_copy(update={"contribution": contribution})

    @model_validator(mode="after")
    def _claim_is_of_its_kind(self) -> Self:
        if self.claim is None:
            return self
        own, possible = self.mechanism.claim_kind, self.mechanism.kinds
        allowed = [
            own,
            *(kind for kind in possible if kind != own and CLAIM_KINDS[kind].beforehand),
        ]
        if self.claim_kind.id not in allowed:
            raise clash(
                "claim.kind",
                self.claim.kind,
                f"{' or '.join(allowed)} for {self.mechanism.aggregator.name}",
            )
        if (misfit := self.claim_kind.misfit(self.claim)) is not None:
            field, wanted = misfit
            raise clash(f"claim.{field}", getattr(self.claim, field), wanted)
        return self

    @model_validator(mode="after")
    def _deltas_fit_the_kind_of_claim(self) -> Self:
        name, delta = self.mechanism.aggregator.name, self.privacy.delta
        claimed = None if self.claim is None else self.claim.delta
        centers = 0.0 if self.clustering is None else self.clustering.delta or 0.0
        above = f"above clustering.delta, which is {centers:g}"
        if not self.claim_kind.beforehand:
            if delta is not None:
                raise clash(
                    "privacy.delta", delta, f"null for {name}: an ex-post guarantee has none"
                )
            if claimed not in (None, centers):
                theirs = f"{centers:g} for {name} with this clustering, whose delta it is"
                allowed = theirs if centers else f"0 for {name}: an ex-post guarantee has no delta"
                raise clash("claim.delta", claimed, allowed)
        elif claimed is not None and (claimed or self.claim_kind.delta == "needed"):
            if claimed == 0:
                raise clash("claim.delta", claimed, f"a number above 0 and below 1 for {name}")
            if delta not in (None, claimed):
                raise clash("privacy.delta", delta, "null or equal to claim.delta")
            if claimed <= centers:
                raise clash("claim.delta", claimed, above)
        elif delta is not None and delta <= centers:
            raise clash("privacy.delta", delta, above)
        return self

    @model_validator(mode="after")
    def _canaries_find_batches_of_their_own(self) -> Self:
        canaries, rounds = self.privacy.canaries, self.batching.rounds
        if canaries is None:
            return self
        if self.counts_delta:
            allowed = (
                "a number above 0 and below 1 with privacy.canaries: one by the records "
                "tells of their coins"
            )
            raise clash("privacy.delta", None, allowed)
        # Of its label, with the others' batches in each round.
        labels, per_label = len(self.data.groups), self.batching.batches_per_label or 1
        most = int(per_label * (1 - _TRIES ** (-1 / rounds)))
        if rounds > 1 and (canaries - 1) // labels > most:
            why = f"with more, hardly any text has a batch of its own in each of {rounds} rounds"
            raise clash("privacy.canaries", canaries, f"at most {labels * (most + 1)}: {why}")
        return self

    @model_validator(mode="after")
    def _deltas_are_split_where_there_is_one(self) -> Self:
        if self.privacy.split_delta and not self.claim_kind.beforehand:
            raise clash(
                "privacy.split_delta",
                True,
                f"false for {self.mechanism.aggregator.name}, which has no delta",
            )
        return self

    @model_validator(mode="after")
    def _budgets_are_of_sums_and_recorded(self) -> Self:
        limit = self.privacy.limit
        if limit is None:
            return self
        aggregator, budget, delta = (
            self.mechanism.aggregator,
            self.mechanism.budget,
            self.privacy.delta,
        )
        if not aggregator.sums:
            allowed = (
                f"null for {aggregator.name}: what a context moves depends on the others there"
            )
            raise clash(f"privacy.{limit}", getattr(self.privacy, limit), allowed)
        if delta is None:
            raise clash("privacy.delta", None, f"a number above 0 and below 1 with privacy.{limit}")
        if budget is not None:
            raise clash(
                "mechanism.budget",
                budget,
                f"null with privacy.{limit}, from which it is worked out",
            )
        if self.claim is not None:
            figure = self.claim_kind.figures[0]
            stated = getattr(self.claim, figure)
            raise clash(
                f"claim.{figure}",
                stated,
                f"left out with privacy.{limit}, from which the claim follows",
            )
        return self


def load_config(path: Path) -> Config:
    """Read and check a YAML config.

    Raises:
        InputError: names the field by its dotted path, the value that was given, and what is
            allowed.
    """
    values = read_yaml(path, Config.model_fields)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise input_error(path, error) from None


def in_config(path: Path, error: InputError) -> InputError:
    """Return the error, with the config's path before it if it is about a config's field."""
    section, _, field = error.file.partition(".")
    # A file of records may be called data.csv.
    if section not in Config.model_fields or (
        field and field.partition(".")[0] not in _fields_at((section,))
    ):
        return error
    return InputError(f"{path}: {error.where}", error.problem, error.remedy)


def read_yaml(path: Path, fields: Iterable[str]) -> dict[str, Any]:
    """Return the mapping that a YAML file holds, without looking at its fields.

    `fields`: that it should have, for errors.

    Raises:
        InputError: the file cannot be read, or holds anything else.
    """
    remedy = f"Give the sections {', '.join(fields)}."
    values = load(path, "a YAML config", remedy)
    if not isinstance(values, dict):
        problem = f"the file holds a {type(values).__name__}, not a mapping."
        raise InputError(str(path), problem, remedy)
    return values


def input_error(path: Path, error: ValidationError) -> InputError:
    """Return the first mistake of a config, or of a table, in its author's words."""
    first, *others = error.errors(include_url=False)
    context, kind = first.get("ctx", {}), first["type"]
    if isinstance(unusable := context.get("error"), InputError):
        return unusable  # a plug-in that the config names
    location, given = first["loc"], first["input"]
    if kind == "clash":
        location, given = (*location, context["field"]), context["given"]
    field = ".".join(_place(location))
    problems = {"missing": "this field is missing.", "extra_forbidden": "there is no such field."}
    shown = f"the value is {'null' if given is None else in_short(given)}."
    problem = problems.get(kind) or ("this value cannot be used." if field in _SECRETS else shown)
    # What else the value could have been is an error at the same place, or around it.
    elsewhere = {
        place
        for other in others
        if (place := _place(other["loc"])) != _place(location)[: len(place)]
    }
    more = f" ({len(elsewhere)} more to mend after this one.)" if elsewhere else ""
    return InputError(f"{path}: {field}", problem, _remedy(first) + _misspelt(first, others) + more)


def _misspelt(missing: ErrorDetails, others: Iterable[ErrorDetails]) -> str:
    """Return a hint to the unknown field that looks like the missing one beside it, or ""."""
    if missing["type"] != "missing":
        return ""
    *parent, name = map(str, missing["loc"])
    unknown = [error["loc"] for error in others if error["type"] == "extra_forbidden"]
    beside = [str(field) for *section, field in unknown if list(map(str, section)) == parent]
    close = difflib.get_close_matches(name, beside, n=1)
    return "".join(f" Did you write {field} for it?" for field in close)


def _place(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the place of a mistake, without the types that its value was held against."""
    return tuple(part for part in map(str, location) if not _TYPE.search(part))


def _remedy(error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "clash":
        return f"Allowed: {context['allowed']}."
    if kind in ("missing", "extra_forbidden"):
        *parent, name = map(str, error["loc"])
        fields = _fields_at(tuple(parent))
        hint = ""
        if kind == "extra_forbidden":
            hint = "".join(
                f" Did you mean {close}?" for close in difflib.get_close_matches(name, fields, n=1)
            )
        elif parent[-1:] == ["aggregator"]:
            hint = " Choose it without the data, or start from `dpaudit init`."
        return f"Allowed fields of {'.'.join(parent) or 'a config'}: {', '.join(fields)}.{hint}"
    if kind == "literal_error":
        return f"Allowed: {context['expected']}."
    if kind == "string_too_short":
        return "Allowed: a text that is not empty."
    if kind == "string_too_long":
        return f"Allowed: a text of at most {context['max_length']:,} characters."
    if kind in ("model_type", "model_attributes_type"):
        return f"Allowed: a mapping with the fields {', '.join(_fields_at(error['loc']))}."
    return f"Allowed: {_PLAIN.get(kind) or error['msg'].removeprefix('Input should be ')}."


def _fields_at(location: tuple[int | str, ...]) -> list[str]:
    """Return the fields of the section that a location names; none if it has no sections."""
    section: Any = Config
    for name in location:
        field = getattr(section, "model_fields", {}).get(name)
        if field is None:
            return []
        for part in field.metadata:
            if isinstance(part, OneOf):
                return part.field_names
        section = next(iter(get_args(field.annotation)), field.annotation)
    return list(getattr(section, "model_fields", {}))
