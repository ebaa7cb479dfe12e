"""The part of a run that an audit read: its settings, without secrets, and its size.

A field of a part of the settings is that of run.json (`dpaudit.runs.manifest`). None: not set, or
not told.
"""

import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, JsonValue

from dpaudit.mechanisms import BatchingRule, Relation, Unit
from dpaudit.results.values import Name
from dpaudit.runs import DecodingRules, Manifest
from dpaudit.runs.manifest import (
    FORMAT_VERSION,
    CanaryCoins,
    Origins,
    Recorded,
    TrainedOnRecords,
)


class Section(BaseModel):
    """Base of a part of a run's settings; fields that are not listed are as run.json has them."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    def only(self, *names: str) -> Self:
        """Return the part with these fields alone."""
        return type(self)(**{name: getattr(self, name, None) for name in names})


class PrivacySettings(Section):
    """The difference of neighbouring data sets."""

    unit: Unit
    relation: Relation
    records_per_user_from: Literal["declared", "data"]
    delta_from: Literal["declared", "records"] | None = None


class BatchingSettings(Section):
    """The rule that made contexts and batches of records. The key is in no result."""

    rule: BatchingRule
    batches: int | None = None
    records_per_batch: float | None = None


class ClusteringSettings(Section):
    """The grouping of records. A report is read without the plug-in of a method, too."""

    method: Name


class DecodingSettings(Section):
    """Lengths of texts, and the rules about what no text may hold."""

    max_tokens: int
    tokens_per_batch: int | None = None

    @property
    def rules(self) -> dict[str, object]:
        """The rules about what no text may hold, by name."""
        return {name: getattr(self, name, None) for name in DecodingRules.model_fields}


class SamplingSettings(Section):
    """The source of randomness. A seed here makes a run repeatable, and unfit for release."""

    generator: Literal["os-entropy", "committed-seed", "test-seed", "mt19937"]


class DataSettings(Section):
    """The private data."""

    labels: tuple[str, ...] | None = None
    records: int | None = None
    source: Literal["path", "dataset"] | None = None


class ModelSettings(Section):
    """The language model."""

    name: str | None = None
    digest: str | None = None
    trained_on_records: TrainedOnRecords


class PromptSettings(Section):
    """The prompt."""

    text: str | None = None


class Settings(Section, extra="forbid"):
    """All of run.json but the claim, the key and the nonce.

    Attributes:
        mechanism: fields that are the mechanism's own, by name: a report is read without its
            plug-in, too.
    """

    format_version: int
    sensitivity: str | None = None
    created: str
    made_by: str | None = None
    privacy: PrivacySettings
    mechanism: dict[str, JsonValue] | None = None
    batching: BatchingSettings
    clustering: ClusteringSettings
    chosen_from: Origins
    decoding: DecodingSettings | None = None
    sampling: SamplingSettings
    record: Section | None = None
    data: DataSettings | None = None
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
    def of(cls, manifest: Manifest) -> Self:
        """Return a manifest's settings.

        With the key, a reader of the report could test guesses of a record's text against its
        digest; with the nonce, guesses of all that is settled against a commitment that was
        published.
        """
        secrets: Any = {"claim": True, "nonce": True, "batching": {"key"}}
        stated = manifest.model_dump(mode="json", exclude=secrets)
        return cls.model_validate_json(json.dumps({"format_version": FORMAT_VERSION, **stated}))


class RunSummary(Section, extra="forbid"):
    """The part of a run that an audit read. None.

    It cannot be read, or readers outside are not told.

    Attributes:
        audited: the day of the audit, in ISO 8601, by Coordinated Universal Time.
        dpaudit, dp_accounting: versions of what audited it.
        plugins: versions of other packages that took part, by name.
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
