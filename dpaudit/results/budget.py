"""The cost of mean runs, from public numbers alone. Epsilons are in nats."""

from __future__ import annotations

from dpaudit.mechanisms import DivisorKind, Relation
from dpaudit.results.audit import Result
from dpaudit.results.values import Number


class MeanBudget(Result):
    """The common part of all three answers.

    Attributes:
        batch_epsilon: at the batch level, for someone who knows which batch a record was in.
        tokens: the most tokens of a batch, in a round; None if any number is paid for.
        batch_size: the divisor of the sum of contexts.
        group_size: contexts, or records in rounds, that one unit can change.
        rebalancing_epsilon: the noisy counts' part of epsilon.
    """

    batch_epsilon: Number
    delta: float
    tokens: int | None
    batch_size: float
    relation: Relation
    divisor: DivisorKind
    group_size: int
    rebalancing_epsilon: float


class BatchCost(MeanBudget):
    """The epsilon of so many tokens in each batch, at the batch level.

    Attributes:
        batch_lower: no accountant can state a smaller epsilon; None if that is not known.
    """

    tokens: int
    method: str
    rho: Number
    batch_lower: float | None
    sensitivity: str


class OneLabel(Result):
    """The same records without labels: a round's batches, what they give, and its release level."""

    batches: int
    rounds: int
    texts: int
    epsilon: Number


class ClipTexts(Result):
    """The most texts within an epsilon at one clip."""

    clip: float
    rounds: int
    texts: int


class RoundsCost(MeanBudget):
    """Texts in rounds, every record hashed in secret into one of its label's batches.

    Attributes:
        rounds, texts: what is paid for; 0 where one round is too dear, and epsilons are those of
            one round then.
        epsilon: at the release level, for readers of the texts.
        asked_epsilon: the epsilon that the texts must stay within; None if it follows from texts or
            rounds.
        batches, generated: batches of a label in a round, and how many of them are generated.
        one_label: None with one label, or where it was not asked for.
        menu: other clips at `asked_epsilon`; empty without one, or it was not asked for.
    """

    rounds: int
    texts: int
    epsilon: Number
    asked_epsilon: float | None
    batches: int
    generated: int
    labels: int
    tokens: int
    clip: float
    one_label: OneLabel | None = None
    menu: tuple[ClipTexts, ...] = ()


class OwnBudgets(MeanBudget):
    """A budget of rho for each context that keeps any number of tokens within epsilon.

    Attributes:
        epsilon: at the release level; None if batches are not known, so that it is no smaller than
            the other.
        rho: what one unit can spend in one round.
        budget: rho of one context in one round.
        rounds, texts: `texts` is None if batches are not known.
        sure_tokens: the first tokens of a batch, which every context pays for whatever it says.
        share: of the clip's range, with which a context can pay for all `tokens`; None without
            `tokens`.
    """

    epsilon: float | None
    rho: float
    budget: float
    rounds: int
    texts: int | None
    sure_tokens: int
    share: float | None
