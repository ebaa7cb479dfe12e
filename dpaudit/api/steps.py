"""One step of a run: the sampled token, the distribution it was sampled from, and its cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.auditing.checks.neighbors import BatchLosses, ContextSums
from dpaudit.auditing.checks.registry import Objections
from dpaudit.auditing.checks.steps import MOST_CONTEXTS, BatchView, RunView
from dpaudit.auditing.guarantees import figures
from dpaudit.mechanisms import ContextChange, Relation, Unit, shares_spent
from dpaudit.results import Finding, Number, Result
from dpaudit.results.catalogue import sentence
from dpaudit.runs import BatchReader, InputError, Manifest, RunReader

#: How many tokens before a step are decoded, and how many characters of a token or of them are
#: kept.
PREFIX, LONGEST = 60, 200


class Neighbours(Result):
    """The neighbours that ex-post costs are for.

    The unit is the claim's, or the settings' where there is no claim.

    Attributes:
        contexts: how many contexts that difference changes; None if nothing bounds it.
        change: how it changes them: contexts that come and go, or that are replaced.
        problem: why there are no costs; empty if there are.
    """

    relation: Relation
    unit: Unit
    records_per_user: int | None
    contexts: int | None
    change: Relation | None
    problem: str


class Costs(Result):
    """Ex-post costs in nats if the whole change falls on this batch; None without a bound."""

    theorem1: Number | None
    exact: Number | None
    rise: Number | None
    fall: Number | None


class StepCost(Costs):
    """One sampled token and what it cost.

    Attributes:
        step: counts from 0.
        token: its id.
        text: the token decoded; None if the run records no tokenizer that can be read.
        log_probability: natural logarithm of its probability, as the sampler recorded it.
    """

    step: int
    token: int
    text: str | None
    log_probability: Number


class AllowedToken(Result):
    """A token that may be sampled at a step.

    Attributes:
        rank: 1 for the most probable.
        probability: by the record's aggregate.
        center: the aggregate there, in nats times temperature.
        lower, upper: bounds of any neighbour's aggregate; None if nothing bounds it.
    """

    token: int
    text: str | None
    rank: int
    probability: Number
    lower: Number | None
    center: Number
    upper: Number | None


class Objection(Result):
    """An objection of a step check.

    Attributes:
        check: its id.
        step: counts from 0.
        problem: its finding, by the catalogue (`dpaudit.results.catalogue`).
        message: the problem in words, for people.
    """

    check: str
    step: int
    problem: Finding
    message: str


class StepBudgets(Result):
    """The spending of a batch's contexts after a step, where they have budgets of their own.

    Attributes:
        budget: the most that a context may spend, in nats of zCDP's rho.
        active: how many contexts took part in the step.
        spent: the least, the median and the most that a context has spent, as shares of the budget.
    """

    budget: Number
    active: int
    spent: tuple[Number, Number, Number]


class StepSource:
    """The common part of a batch's steps: open file, accountant, tokenizer and step checks."""

    def __init__(self, reader: RunReader, opened: BatchReader) -> None:
        self.neighbours = neighbours(reader.manifest)
        self.change = None if self.neighbours.problem else _change(reader.manifest)
        self.batch = BatchView(RunView(reader, self.change), opened)
        self.accountant, self.checks = self.batch.accountant, Objections.open(self.batch)
        self._decode = reader.decoder(special=True)

    def text(self, tokens: Sequence[int]) -> str | None:
        """Return tokens decoded; None if the run has no tokenizer that can be read."""
        return self._decode(tokens) if self._decode else None


class RunStep:
    """One step: the sampled token, and what it was sampled from. S is the number of allowed tokens.

    Attributes:
        position: which token of its batch, from 0.
        batch, label, contexts: id, label and number of private contexts of the batch.
        token: the sampled token's id.
        log_probability: natural logarithm of its probability, as the sampler recorded it.
        support: int [S], ids of the allowed tokens, ascending; None for the whole vocabulary.
        arrays: the mechanism's arrays by name, [..., S]: for a median central, sides and holder;
            for a mean aggregate.
        first: whether it is the first step of its text.
        neighbours: what the cost is for.
        source: what the batch's steps share.
    """

    def __init__(self, source: StepSource, position: int) -> None:
        """Read the step's record. Raises InputError where it cannot be decoded."""
        self.source, self._view, self.position = source, source.batch.step(position), position
        step, header = self._view.step, self._view.header
        self.batch, self.label, self.contexts = header.id, header.label, header.contexts
        self.token, self.log_probability, self.support = (
            step.token,
            step.log_probability,
            step.support,
        )
        self.arrays, self.neighbours = self._view.arrays, source.neighbours
        self._before = self._view.before.tolist()
        self.first = not self._before

    @property
    def contributions(self) -> NDArray[np.floating] | None:
        """Each context's contribution to the aggregate, real [n, S]; None if not recorded."""
        return self._view.contributions

    @property
    def aggregate(self) -> NDArray[np.floating]:
        """Real [S]: the vector that the token was sampled from, in nats times temperature."""
        with np.errstate(all="ignore"):  # a corrupt record's values are shown as they are
            return self._view.aggregate

    @cached_property
    def probabilities(self) -> NDArray[np.float64]:
        """Allowed tokens' probabilities [S], recomputed from the aggregate; they add up to 1."""
        mechanism = self._view.mechanism
        with np.errstate(all="ignore"):
            scaled = self.aggregate.astype(np.float64) / mechanism.temperature
            # NaN, where nothing else is there, has no maximum
            largest = np.fmax.reduce(scaled, initial=-np.inf)
            likely = mechanism.draw.likely
            weights = np.exp(scaled - largest) if likely else (scaled == largest).astype(np.float64)
            return np.asarray(weights / np.nansum(weights), dtype=np.float64)

    @cached_property
    def bounds(self) -> tuple[NDArray[np.floating], NDArray[np.floating]] | None:
        """Lower and upper bounds [S] of any neighbour's aggregate; None if nothing bounds it."""
        if self.source.change is None:
            return None
        with np.errstate(all="ignore"):
            box = self._view.mechanism.box(self._view.arrays, self.source.change)
        return None if box is None else (box[0], box[2])

    @property
    def movable(self) -> int | None:
        """The number of allowed tokens that differ for a neighbour; None if nothing bounds it."""
        return None if self.bounds is None else int((self.bounds[0] != self.bounds[1]).sum())

    @cached_property
    def cost(self) -> StepCost:
        """The sampled token's cost, in nats; figures are None if the record bounds nothing."""
        with np.errstate(all="ignore"):
            return StepCost(
                step=self.position,
                token=self.token,
                text=self._text(self.token),
                log_probability=self.log_probability,
                **figures(self._view.cost),
            )

    @property
    def prefix(self) -> str | None:
        """The last tokens of its text before it, decoded; None without a readable tokenizer."""
        text = self.source.text(self._before[-PREFIX:]) if self._before else ""
        return None if text is None else text[-LONGEST:]

    @property
    def sampled(self) -> AllowedToken | None:
        """The sampled token; None if it is not among the allowed ones."""
        return None if self._view.index is None else self._allowed(self._view.index)

    def top(self, number: int) -> tuple[AllowedToken, ...]:
        """Return the most probable tokens, in order."""
        order = np.argsort(-self.aggregate, kind="stable")[:number]
        return tuple(self._allowed(int(index)) for index in order)

    @property
    def losses(self) -> BatchLosses | None:
        """The largest changes, in nats, by leaving out a context; None if none is recorded."""
        sums = ContextSums(self.batch, self.contexts)
        self.add_losses(sums)
        return sums.result()

    def add_losses(self, sums: ContextSums) -> None:
        """Add what leaving out each context would change to a batch's sums."""
        with np.errstate(all="ignore"):
            sums.look(self._view)

    @property
    def objections(self) -> tuple[Objection, ...]:
        """The objections of step checks here."""
        with np.errstate(all="ignore"):
            return tuple(
                Objection(
                    check=check, step=self.position, problem=problem, message=sentence(problem)
                )
                for check, problem in self.source.checks.at(self._view)
            )

    @property
    def budgets(self) -> StepBudgets | None:
        """The spending of contexts after the step; None without budgets of their own."""
        budget, own, step = self._view.mechanism.budget, self._view.budgets, self._view.step
        if budget is None or own is None or step.spent is None or step.active is None:
            return None
        with np.errstate(all="ignore"):
            shares = shares_spent(step.spent[1], own)
            least, median, most = np.quantile(shares, (0, 0.5, 1), method="higher").tolist()
        return StepBudgets(
            budget=budget, active=int(step.active.sum()), spent=(least, median, most)
        )

    def _allowed(self, index: int) -> AllowedToken:
        """Return the token at an index of the support."""
        token = index if self.support is None else int(self.support[index])
        lower, upper = (
            (None, None) if self.bounds is None else (float(bound[index]) for bound in self.bounds)
        )
        return AllowedToken(
            token=token,
            text=self._text(token),
            rank=1 + int((self.aggregate > self.aggregate[index]).sum()),
            probability=float(self.probabilities[index]),
            lower=lower,
            center=float(self.aggregate[index]),
            upper=upper,
        )

    def _text(self, token: int) -> str | None:
        text = self.source.text([token])
        return None if text is None else text[:LONGEST]

    def __repr__(self) -> str:
        return f"<step {self.position} of batch {self.batch}: token {self.token}>"


class Steps:
    """The steps of a batch, one for each token, counted from 0."""

    def __init__(self, reader: RunReader, batch: int, number: int) -> None:
        self._reader, self._batch, self._number = reader, batch, number

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[RunStep]:
        """Yield the steps. Their accountant adds up the costs that are asked for."""
        with self._reader.batch(self._batch) as opened:
            source = StepSource(self._reader, opened)
            for position in range(self._number):
                yield RunStep(source, position)

    def __getitem__(self, position: int) -> RunStep:
        """Return a step. Raises InputError where there is none, or it cannot be decoded."""
        with self._reader.batch(self._batch) as opened:
            if not 0 <= position < self._number:
                remedy = f"Name one from 0 to {self._number - 1} with --step."
                raise InputError(opened.where, f"there is no step {position}.", remedy)
            return RunStep(StepSource(self._reader, opened), position)

    def __repr__(self) -> str:
        return f"<{len(self)} steps of batch {self._batch}>"


def neighbours(manifest: Manifest) -> Neighbours:
    """Return what a run's ex-post costs are for, and why there are none where there are none."""
    stated, change = manifest.claim or manifest.privacy, _change(manifest)
    problem = ""
    if change is None:
        problem = (
            f"nothing bounds how many contexts one {stated.unit} changes under the rule "
            f"{manifest.batching.rule}"
        )
    elif not manifest.mechanism.draw.ex_post:
        problem = (
            "the tokens depend on noise that costs are averaged over, so no text has a "
            "cost of its own"
        )
    elif not manifest.mechanism.bounds(change, manifest.record.width):
        problem = (
            f"record.width {manifest.record.width} is too small for {change.contexts} "
            "changed contexts"
        )
    elif change.contexts > MOST_CONTEXTS:
        problem = (
            f"{change.contexts} changed contexts are more than the {MOST_CONTEXTS} that "
            "costs are worked out for"
        )
    return Neighbours(
        relation=stated.relation,
        unit=stated.unit,
        records_per_user=manifest.privacy.records_per_user if stated.unit == "user" else None,
        contexts=None if change is None else change.contexts,
        change=None if change is None else change.relation,
        problem=problem,
    )


def _change(manifest: Manifest) -> ContextChange | None:
    """Return how one unit changes the contexts; None if nothing bounds it."""
    stated = manifest.claim or manifest.privacy
    return manifest.privacy.change(manifest.batching.rule, stated.unit, stated.relation)
