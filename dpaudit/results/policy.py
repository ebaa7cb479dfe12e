"""A policy file, and the policy that an audit was held to, as types."""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dpaudit.mechanisms import Fields, FirstVersion, Relation, Unit
from dpaudit.mechanisms.claims import CLAIM_KINDS, ClaimKind
from dpaudit.runs import MostTruePositives

#: Checks of a list, and signers.
MAX_LISTED = 1 << 8

_Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
_NotNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
DIGEST, CHECK = r"^[0-9a-f]{64}$", r"^[a-z-]+\.[a-z0-9-]+$"
_Kinds = Annotated[
    tuple[ClaimKind, ...], Field(min_length=1, max_length=len(CLAIM_KINDS), strict=False)
]
_Digest = Annotated[str, Field(pattern=DIGEST)]
_Check = Annotated[str, Field(pattern=CHECK, max_length=100)]


class LeastWorth(Fields):
    """The records' least addition to a run's texts.

    Attributes:
        gain_at_least: what the gain of held-out records has to be, in nats a token, by the lower
            bound of the figure that `dpaudit evaluate --epsilon` pays for.
    """

    gain_at_least: Annotated[float, Field(gt=0, le=1e3, allow_inf_nan=False)]


class AskedSignOff(Fields):
    """Who has to sign a run off before it is released.

    Attributes:
        reviewers: how many, each with a key of their own.
        keys: ids of the keys that count, as `dpaudit key` prints them; None counts any.
    """

    reviewers: Annotated[int, Field(ge=1, le=16)]
    keys: (
        Annotated[tuple[_Digest, ...], Field(min_length=1, max_length=MAX_LISTED, strict=False)]
        | None
    ) = None

    def counted(self, keys: Iterable[str]) -> int:
        """Return how many of the keys that signed off count."""
        return len({key for key in keys if self.keys is None or key in self.keys})


class Policy(Fields):
    """The whole of a policy file. What is left out is not asked for.

    Attributes:
        name: what the house calls it. It is published with the texts.
        epsilon: the largest that a claim may state at the release level, in nats.
        batch_epsilon: the largest that it may state at the batch level, where that is another; in
            nats.
        rho: the largest that a claim of zCDP may state, in nats. A claim fails a policy that limits
            other figures than its own alone.
        delta: the largest that a claim may state.
        most_advantage: the most by which an attacker's true positives may exceed false ones, as the
            audit recomputes it for readers of the texts. A claim fails whose settings bound none.
        most_true_positives: the same of true positives at a rate of false ones.
        kinds: of claims that may be made.
        relation, unit: what neighbouring data sets differ by.
        evidence: the level up to which every check that is about the run must have been made.
        checks: ids of checks that must have passed, and not been skipped.
        worth: what the records have to add to the texts, by a figure that is paid for.
        short_texts: the largest share of texts that are empty or very short.
        quality: "public-baseline" asks that no figure of evaluation.json is worse than that of
            texts without any record, beyond what chance explains.
        trained_on_records: "no" asks that the run says so of its model.
        sign_off: who has to sign the run off, by `dpaudit sign-off`.
        signers: ids of the keys that may sign a release, as `dpaudit key` prints them.
    """

    policy_version: FirstVersion
    name: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=100)] | None = None
    epsilon: _NotNegative | None = None
    batch_epsilon: _NotNegative | None = None
    rho: _NotNegative | None = None
    delta: _Share | None = None
    most_advantage: _Share | None = None
    most_true_positives: MostTruePositives | None = None
    kinds: _Kinds | None = None
    relation: Relation | None = None
    unit: Unit | None = None
    evidence: Annotated[int, Field(ge=0, le=4)] | None = None
    checks: (
        Annotated[tuple[_Check, ...], Field(min_length=1, max_length=MAX_LISTED, strict=False)]
        | None
    ) = None
    worth: LeastWorth | None = None
    short_texts: _Share | None = None
    quality: Literal["public-baseline"] | None = None
    trained_on_records: Literal["no"] | None = None
    sign_off: AskedSignOff | None = None
    signers: (
        Annotated[tuple[_Digest, ...], Field(min_length=1, max_length=MAX_LISTED, strict=False)]
        | None
    ) = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not self.rules:
            raise ValueError("a policy asks for one thing at least")
        return self

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the fields that ask for something, in their order."""
        about = ("policy_version", "name")
        return tuple(
            name
            for name in type(self).model_fields
            if name not in about and getattr(self, name) is not None
        )


class AppliedPolicy(Fields):
    """The policy that an audit was held to.

    Attributes:
        name: as the policy has it.
        sha256: of the policy file's bytes, in hexadecimal.
    """

    name: str | None
    sha256: _Digest
