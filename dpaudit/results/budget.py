"""The cost of mean runs, from public numbers alone. Epsilons are in nats."""

from __future__ import annotations

from dpaudit.mechanisms import DivisorKind, Relation
from dpaudit.results.result import AttackBound, Result
from dpaudit.results.values import Number
from dpaudit.runs import MostTruePositives


class MeanBudget(Result):
    """The common part of all three answers.

    Attributes:
        asked_epsilon, asked_advantage, asked_true_positives: the limit that the answer stays
            within, one of these three; None in all of them if costs follow from other numbers.
        batch_epsilon: at the batch level, for someone who knows which batch a record was in.
        batch_attack: the most that this someone can do.
        tokens: the most tokens of a batch, in a round; None if any number is paid for.
        batch_size: the divisor of the sum of contexts.
        group_size: contexts, or records in rounds, that one unit can change.
        rebalancing_epsilon: the noisy counts' part of epsilon.
    """

    asked_epsilon: float | None
    asked_advantage: float | None
    asked_true_positives: MostTruePositives | None
    batch_epsilon: Number
    batch_attack: AttackBound
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
        tokens: 0 where a limit pays for none, and figures are those of one token then.
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
    """The most texts within a limit at one clip."""

    clip: float
    rounds: int
    texts: int


class RoundsCost(MeanBudget):
    """Texts in rounds, every record hashed in secret into one of its label's batches.

    Attributes:
        rounds, texts: what is paid for; 0 where one round is too dear, and epsilons are those of
            one round then.
        epsilon: at the release level, for readers of the texts.
        attack: the most that these readers can do.
        batches, generated: batches of a label in a round, and how many of them are generated.
        one_label: None with one label, or where it was not asked for.
        menu: other clips within the same limit; empty without one, or it was not asked for.
    """

    rounds: int
    texts: int
    epsilon: Number
    attack: AttackBound
    batches: int
    generated: int
    labels: int
    tokens: int
    clip: float
    one_label: OneLabel | None = None
    menu: tuple[ClipTexts, ...] = ()


class OwnBudgets(MeanBudget):
    """A budget of rho for each context that keeps any number of tokens within a limit.

    Attributes:
        epsilon: at the release level; None if batches are not known, so that it is no smaller than
            the other.
        attack: the most that readers can do; None likewise.
        rho: what one unit can spend in one round.
        budget: rho of one context in one round.
        rounds, texts: `texts` is None if batches are not known.
        sure_tokens: the first tokens of a batch, which every context pays for whatever it says.
        share: of the clip's range, with which a context can pay for all `tokens`; None without
            `tokens`.
    """

    epsilon: Number | None
    attack: AttackBound | None
    rho: float
    budget: float
    rounds: int
    texts: int | None
    sure_tokens: int
    share: float | None
