"""What looking into a run found, as types: the run, a batch, a step. All of it is as private as the run's record."""

from __future__ import annotations

from dpaudit.results import (
    Approximate,
    BatchResult,
    CheckResult,
    ClaimResult,
    ContextLoss,
    ExPost,
    Finding,
    ForNeighbours,
    Number,
    Relation,
    Result,
    Verdict,
)


class InspectedRun(Result):
    """A run at a glance.

    Attributes:
        run: the run directory, as the caller named it.
        mechanism, batching: their settings, a phrase each.
        max_tokens: of a text.
        tokens_per_batch: that each batch spends on texts; None for one text a batch.
        records: how many private records there are, as the run says.
        verdict: of its audit; None for an unfinished run, which states no claim and is not audited.
        claim: None likewise.
        ex_post, approximate: the audit's figures, each where the record gives one. Never in one column.
        declared: how many batches the run is to have.
        batches: those on disk, in order. An unfinished run's have no costs.
        problems: the checks that failed, could not run or warned, or that were needed and not made.
    """

    run: str
    mechanism: tuple[str, ...]
    batching: tuple[str, ...]
    max_tokens: int
    tokens_per_batch: int | None
    records: int
    verdict: Verdict | None
    claim: ClaimResult | None
    ex_post: ExPost | None
    approximate: Approximate | None
    declared: int
    batches: tuple[BatchResult, ...]
    problems: tuple[CheckResult, ...]


class Neighbours(ForNeighbours):
    """What the ex-post costs are for: the unit of the claim, or of the settings where there is none.

    Attributes:
        contexts: how many contexts that difference changes; None where nothing bounds it.
        change: how it changes them: contexts that come and go, or that are replaced.
        problem: why there are no costs; empty where there are.
    """

    contexts: int | None
    change: Relation | None
    problem: str


class Objection(Result):
    """What a check of single steps objects to.

    Attributes:
        check: its id.
        step: counts from 0.
        problem: what it objects to, by the catalogue (`dpaudit.catalogue`).
        message: the problem in words, for people.
    """

    check: str
    step: int
    problem: Finding
    message: str


class StepCost(Result):
    """One sampled token and what it cost, in nats; costs are None where the record bounds nothing.

    Attributes:
        step: counts from 0.
        token: its id.
        text: the token decoded; None where the run records no tokenizer that can be read.
        log_probability: natural logarithm of its probability, as the sampler recorded it.
        theorem1, rise, fall, exact: ex-post cost when the whole change falls on this batch.
    """

    step: int
    token: int
    text: str | None
    log_probability: Number
    theorem1: Number | None
    rise: Number | None
    fall: Number | None
    exact: Number | None


class InspectedText(Result):
    """A text of a batch.

    Attributes:
        first: its first step.
        tokens: how many steps it has.
        stop: why it ended; "budget" where the batch's number of tokens was spent.
        end: the stop sequence that the tokens end in; empty where a number of tokens ended them.
        text: its beginning; None where token ids alone are released.
        characters: of the whole text.
    """

    first: int
    tokens: int
    stop: str
    end: tuple[int, ...]
    text: str | None
    characters: int


class InspectedBatch(Result):
    """A batch: its texts, and what each token cost.

    Attributes:
        claimed: the run's ex-post epsilon, which all its batches are to stay within; None where it claims none.
        theorem1, rise, fall, exact: sums over the tokens, in nats; None where a token has no cost.
        costs: every step, in order.
        worst: the contexts whose removal would change the batch's log-probability most.
        losses: how many contexts have such a loss.
        objections: of the checks of single steps, in order of steps.
    """

    run: str
    batch: int
    label: str | None
    cluster: int | None
    contexts: int
    texts: tuple[InspectedText, ...]
    neighbours: Neighbours
    claimed: Number | None
    theorem1: Number | None
    rise: Number | None
    fall: Number | None
    exact: Number | None
    costs: tuple[StepCost, ...]
    worst: tuple[ContextLoss, ...]
    losses: int
    objections: tuple[Objection, ...]


class TokenView(Result):
    """One token of a step's support.

    Attributes:
        rank: 1 for the most probable.
        probability: by the record's aggregate.
        center: the aggregate there, in nats times temperature.
        lower, upper: where the aggregate of a neighbour can lie; None where nothing bounds it.
    """

    token: int
    text: str | None
    rank: int
    probability: Number
    lower: Number | None
    center: Number
    upper: Number | None


class StepBudgets(Result):
    """How a batch's contexts stand by budgets of their own, once a draw is paid for.

    Attributes:
        budget: the most that a context may spend, in nats of zCDP's rho.
        active: how many took part in the draw.
        spent: the least, the median and the most that a context has spent, as shares of the budget.
    """

    budget: Number
    active: int
    spent: tuple[Number, Number, Number]


class InspectedStep(Result):
    """A step: the token that was sampled, and what it was sampled from.

    Attributes:
        begins: whether it is the first of its text.
        prefix: the tokens of its text before it, decoded; None where they cannot be.
        sampled: None where the token is not in the support.
        cost: of the sampled token.
        support: how many tokens it was sampled from.
        movable: in how many of them a neighbour's aggregate can differ; None where nothing bounds it.
        top: the most probable tokens.
        worst: the contexts whose removal would change the token's log-probability most.
        losses: how many contexts have such a loss.
        budgets: None where contexts have none.
    """

    run: str
    batch: int
    label: str | None
    contexts: int
    steps: int
    temperature: Number
    begins: bool
    prefix: str | None
    neighbours: Neighbours
    sampled: TokenView | None
    cost: StepCost
    support: int
    movable: int | None
    top: tuple[TokenView, ...]
    worst: tuple[ContextLoss, ...]
    losses: int
    objections: tuple[Objection, ...]
    budgets: StepBudgets | None
