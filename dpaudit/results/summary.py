"""The part of a run that an audit read: its settings, without secrets, and its size.

A field of a part of the settings is that of run.json (`dpaudit.runs.manifest`). None: not set, or
not told.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue

from dpaudit.mechanisms import BatchingRule, Relation, Unit
from dpaudit.results.values import Name
from dpaudit.runs import Manifest
from dpaudit.runs.manifest import (
    Allocation,
    CanaryCoins,
    CountsNoise,
    Data,
    Isolation,
    Origins,
    Recorded,
    Setting,
    Stopping,
    TrainedOnRecords,
)


class Section(BaseModel):
    """Base of a part of a run's settings: immutable, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def only(self, *names: str) -> Self:
        """Return the part with these fields alone."""
        return type(self)(**{name: getattr(self, name) for name in names})


class PrivacySettings(Section):
    """The difference of neighbouring data sets."""

    unit: Unit
    relation: Relation
    records_per_user: int | None = None
    records_per_user_from: Literal["declared", "data"]
    delta_from: Literal["declared", "records"] | None = None
    shared_budgets: bool | None = None
    earlier: tuple[str, ...] | None = None
    split_delta: bool | None = None


class BatchingSettings(Section):
    """The rule that made contexts and batches of records. The key is in no result."""

    rule: BatchingRule
    rounds: int | None = None
    batches: int | None = None
    batches_per_label: int | None = None
    generate_per_label: int | None = None
    generate_per_cluster: int | None = None
    slots: int | None = None
    cells: int | None = None
    examples_per_context: int | None = None
    labels: tuple[str, ...]
    allocation: Allocation | None = None


class ClusteringSettings(Section):
    """The grouping of records before that.

    A report is read without the plug-in of a method, too.
    """

    method: Name
    settings: dict[str, Setting] | None = None
    public_digest: str | None = None
    origin: Literal["public", "noised", "private"] | None = None
    embedding: str | None = None
    embedding_digest: str | None = None
    normalized: bool | None = None
    centers: int | None = None
    keep: int | None = None
    digest: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    counts: CountsNoise | None = None
    records_per_batch: float | None = None
    most_batches: int | None = None
    least_batches: int | None = None


class DecodingSettings(Section):
    """The rules about what no text may hold."""

    least_tokens: int
    no_line_breaks: bool
    no_repeated_ngram: int | None = None
    banned_words: tuple[str, ...] | None = None


class SamplingSettings(Section):
    """The source of randomness.

    A seed here is one that makes a run repeatable, and unfit for release.
    """

    generator: Literal["os-entropy", "committed-seed", "test-seed", "mt19937"]
    seed: int | None = None
    seed_hashes: tuple[str, ...] | None = None


class RecordSettings(Section):
    """The content of each step's arrays."""

    dtype: Literal["float32", "float64"]
    vocabulary: int
    width: int | None = None
    contexts: bool


class ModelSettings(Section):
    """The language model."""

    name: str | None = None
    digest: str | None = None
    dtype: str | None = None
    device: str | None = None
    rows: int | None = None
    trained_on_records: TrainedOnRecords
    isolation: Isolation | None = None
    public_logits: str | None = None


class PromptSettings(Section):
    """The prompt."""

    template: str
    digest: str | None = None
    max_example_tokens: int | None = None
    text: str | None = None
    end: str | None = None
    one_line: bool
    public_examples: dict[str, tuple[str, ...]] | None = None
    public: tuple[tuple[int, ...], ...] | None = None


class Settings(Section):
    """All of run.json but the claim, the key and the nonce.

    Attributes:
        mechanism: fields that are the mechanism's own, by name: a report is read without its plug-in, too.
    """

    format_version: int
    sensitivity: str | None = None
    created: str
    made_by: str | None = None
    privacy: PrivacySettings
    mechanism: dict[str, JsonValue] | None = None
    batching: BatchingSettings
    clustering: ClusteringSettings
    origins: Origins
    stopping: Stopping | None = None
    decoding: DecodingSettings | None = None
    sampling: SamplingSettings
    record: RecordSettings | None = None
    data: Data | None = None
    model: ModelSettings
    prompt: PromptSettings | None = None
    software: dict[str, str]
    recorded: Recorded | None = None
    canaries: CanaryCoins | None = None
    redrawn: tuple[int, ...] | None = None
    stopped_after: int | None = None
    claim_stated: Literal["beforehand", "afterwards"] | None = None
    commitment: str | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Settings:
        """Return a manifest's settings.

        With the key, a reader of the report could test guesses of a record's text against its digest; with the nonce,
        guesses of all that is settled against a commitment that was published.
        """
        written = manifest.model_dump_json(exclude={"claim": True, "nonce": True, "batching": {"key"}})
        return cls.model_validate_json(written)


class RunSummary(Section):
    """The part of a run that an audit read. None.

    It cannot be read, or readers outside are not told.

    Attributes:
        path: where it was read.
        audited: the day of the audit, in ISO 8601, by Coordinated Universal Time.
        dpaudit, dp_accounting: versions of what audited it.
        plugins: versions of other packages that took part, by name.
        settings: as the run declares them.
        batches, contexts, texts, steps: how many it has.
        digests: SHA-256 of its files by name, those of steps apart.
    """

    path: Name | None = None
    audited: str | None = None
    dpaudit: str
    dp_accounting: str | None = None
    plugins: dict[Name, str] = {}
    settings: Settings | None = None
    batches: int | None = None
    contexts: int | None = None
    texts: int | None = None
    steps: int | None = None
    digests: dict[Name, str] = {}
