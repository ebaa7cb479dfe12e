"""The likelihoods of held-out texts under mechanisms, as types, beside their cost."""

from __future__ import annotations

from typing import Literal

from dpaudit.mechanisms import Mechanism, Relation, Unit
from dpaudit.results import Finding, Number, Result
from dpaudit.results.composition import Spent
from dpaudit.results.quality import PerToken


class MechanismLikelihood(Result):
    """The likelihood of held-out texts under one config's mechanism.

    A log-probability is that of a text's token in softmax(aggregate / temperature), once the batch
    has been given the text so far. Three means stand over the same tokens: those that the step's
    support has.

    Attributes:
        name: the config's.
        mechanism: the one measured.
        relation, unit, records_per_user: the difference of neighbours that epsilons are for.
        batches: that every text of their label was given to.
        fewest, most: contexts in one of them. Private.
        texts: held-out ones.
        left_out: texts of the file that are a private record or a public example, up to case and
            white space.
        max_tokens: the length that texts are cut to.
        tokens: of texts, each as often as there are batches of its label; a text's lead does not
            count.
        supported: how many of those the supports have.
        nll: mean negative log-probability of a supported token.
        public_nll: the same by the public prompt alone, at the same temperature over the same
            supports: epsilon 0.
        gain: public_nll - nll; its error is that of the difference, text by text.
        approximate: a run's guarantee for texts of up to `max_tokens` at the release level; None if
            only data shows the cost.
        batch_epsilon: its epsilon at the batch level.
        equal: why both levels are equal, None if they are not.
        ex_post: the exact ex-post cost of the held-out texts' supported tokens, had a run written
            one of them from each batch: that of the most expensive choice. None if nothing bounds
            it. Private.
    """

    name: str
    mechanism: Mechanism
    relation: Relation
    unit: Unit
    records_per_user: int | None
    batches: int
    fewest: int
    most: int
    texts: int
    left_out: int
    max_tokens: int
    tokens: int
    supported: int
    nll: PerToken
    public_nll: PerToken
    gain: PerToken
    approximate: Spent | None
    batch_epsilon: Number | None
    equal: Finding | None
    ex_post: Spent | None


class Likelihoods(Result):
    """Several configs on the same held-out texts."""

    schema_version: Literal["1"] = "1"
    audience: Literal["internal"] = "internal"
    rows: tuple[MechanismLikelihood, ...]
