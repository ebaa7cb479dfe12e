"""Audited runs side by side, as types.

A comparison's JSON is one Comparison; pages only render it.
"""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from dpaudit.claims import ClaimKind, kind_of_accountant
from dpaudit.results.audit import (
    BudgetUse,
    ClaimResult,
    ForNeighbours,
    Guarantees,
    Result,
    SampleText,
    TextCounts,
    Verdict,
)
from dpaudit.results.quality import PRIVATE, Added, Digest, Measure, PerToken, Scores
from dpaudit.results.values import Message, Number


class RunEpsilon(ForNeighbours):
    """One run's epsilon, in nats, with what it cannot be read without.

    Attributes:
        epsilon: at the batch level, of everything, rebalancing and centres included; for ex-post by the exact cost of
            generation.
        theorem1: the same by the paper's bound, beside an exact one; None for mean runs, and where the kind has none.
        delta: None where the kind has none.
    """

    run: str
    kind: ClaimKind
    epsilon: Number
    theorem1: Number | None
    delta: Number | None


class RunRho(ForNeighbours):
    """The rho of zCDP of a run that claims one, in nats, at the batch level, clusters included.

    Rhos for the same neighbours are compared as they are: the smaller one promises more, at every delta.
    """

    run: str
    rho: Number


class OneKind(Result):
    """Figures that may stand in one column: all of one kind.

    Raises:
        ValidationError: a figure is of another kind.
    """

    kind: ClaimKind
    figures: tuple[RunEpsilon, ...]

    @model_validator(mode="after")
    def _kinds_agree(self) -> OneKind:
        if any(figure.kind != self.kind for figure in self.figures):
            raise ValueError(f"a column of {self.kind} figures holds nothing of another kind")
        return self


class SameLength(OneKind):
    """Epsilon of runs with the same neighbours, as if all their batches had equally many tokens.

    Raises:
        ValidationError: a figure is of another kind, or holds for other neighbours.
    """

    tokens: int

    @model_validator(mode="after")
    def _neighbours_agree(self) -> SameLength:
        if any(figure.neighbours != self.figures[0].neighbours for figure in self.figures):
            raise ValueError("figures for different neighbours are not set side by side at one length")
        return self


class Afforded(Result):
    """How many tokens a batch of one run can have within another run's epsilon.

    Attributes:
        tokens: None where there is no answer.
        all_generated: the run's longest batch ends here still within that epsilon; what more would cost is unknown.
        reason: why there is no answer; None where there is one.
    """

    tokens: int | None
    all_generated: bool
    reason: Message | None = None


class Affordable(OneKind):
    """Tokens of each run at the epsilon of each.

    `cells[i][j]` is the run of figure i at the epsilon of figure j.

    Raises:
        ValidationError: a figure is of another kind, the cells are no square of the figures, or one has tokens where
            the neighbours differ.
    """

    cells: tuple[tuple[Afforded, ...], ...]

    @model_validator(mode="after")
    def _cells_fit(self) -> Affordable:
        if [len(row) for row in self.cells] != [len(self.figures)] * len(self.figures):
            raise ValueError("there is a row and a column for each figure")
        for figure, row in zip(self.figures, self.cells, strict=True):
            for other, cell in zip(self.figures, row, strict=True):
                if cell.tokens is not None and figure.neighbours != other.neighbours:
                    raise ValueError("an epsilon for other neighbours buys no tokens")
        return self


class BudgetCurve(Result):
    """One run's epsilon, in nats, by the number of tokens that a batch may have.

    Attributes:
        accountant: "exact" and "theorem1" are of the ex-post kind, the others of the approximate one. "budgets" is what
            contexts' own promise whatever the length, beside what "rdp" and "optimal" give without them.
        batches: how many batches an ex-post epsilon is the maximum over; None for what settings alone give.
        delta: None where the kind has none.
        tokens: ascending.
        epsilon: upper bounds, of everything, had no batch gone beyond as many tokens. It holds for all lengths from
            the one before on: read between two points, take the later.

    Raises:
        ValidationError: lengths differ, or `tokens` do not ascend.
    """

    run: str
    accountant: Literal["exact", "theorem1", "rdp", "optimal", "budgets"]
    batches: int | None
    delta: Number | None
    tokens: tuple[int, ...]
    epsilon: tuple[Number, ...]

    @property
    def kind(self) -> ClaimKind:
        """What sort of statement the curve's figures make."""
        return kind_of_accountant(self.accountant).id

    @model_validator(mode="after")
    def _points_fit(self) -> BudgetCurve:
        if len(self.tokens) != len(self.epsilon) or list(self.tokens) != sorted(set(self.tokens)):
            raise ValueError("a curve has an epsilon for each of its lengths, which ascend")
        return self


class BudgetPanel(ForNeighbours):
    """Curves that may share an axis: of one kind of epsilon, for one kind of neighbours.

    Raises:
        ValidationError: a curve is of another kind.
    """

    kind: ClaimKind
    curves: tuple[BudgetCurve, ...]

    @model_validator(mode="after")
    def _kinds_agree(self) -> BudgetPanel:
        if any(curve.kind != self.kind for curve in self.curves):
            raise ValueError(f"an axis of {self.kind} figures holds nothing of another kind")
        return self


class Spread(ForNeighbours):
    """The spread of a run's exact ex-post cost over its batches, in nats.

    Quartiles are costs of actual batches.
    """

    run: str
    batches: int
    minimum: Number
    lower_quartile: Number
    median: Number
    upper_quartile: Number
    maximum: Number


class LeftOut(Result):
    """A run that a comparison at one length leaves out, and why.

    An ex-post figure that does not cover the whole run is left out of every comparison of its kind.
    """

    run: str
    kind: ClaimKind
    reason: Message


class RunScore(Result):
    """How good one run's texts are, by one measure. Computed from private records.

    Attributes:
        score: of the run's texts; a likelihood is the mean log-probability of a held-out text's token, in nats.
        ceiling: of real texts in their place, as many as there are synthetic ones; None where there is none.
        public: of texts of the same prompts without any record, or by the public prompt; None where none was measured.
        added: what the records added to that; None likewise.
        conditions: a digest of all that must agree for two figures to be compared.
    """

    run: str
    score: Scores | PerToken
    ceiling: Scores | None
    public: Scores | PerToken | None = None
    added: Added | None = None
    conditions: Digest


class QualityColumn(Result):
    """Figures of one measure that may stand in one column.

    Attributes:
        n: texts on every side of MAUVE; test texts of an accuracy or a likelihood.
        features: name of the model that the measure rests on.
        private: the mark of every figure here, wherever it goes.

    Raises:
        ValidationError: a figure was measured under other conditions.
    """

    measure: Measure
    n: int
    features: str
    private: Literal["computed from private records, and no epsilon pays for publishing it"] = PRIVATE
    figures: tuple[RunScore, ...]

    @model_validator(mode="after")
    def _conditions_agree(self) -> QualityColumn:
        if len({figure.conditions for figure in self.figures}) != 1:
            raise ValueError("figures that were measured under other conditions are not set side by side")
        return self


class ComparedRun(Result):
    """One run of a comparison, as its audit found it.

    A run that cannot be read as a whole has no figures.

    Attributes:
        caveats: what a reader of the guarantee must know beside it.
        caution: why its epsilons cannot be relied on, as what is said of the run; None where they can.
        contribution, aggregator, clip, temperature, divisor: as the run states them; None where it states none.
        contexts, texts, tokens: summed over the batches.
        longest_batch: in tokens.
        released: how many of the texts are empty or very short; None where unknown.
        samples: a few of the texts, of as many labels as there are. As private as the figures beside them.
        budgets: how contexts used budgets of their own; None where they have none. As private.
    """

    name: str
    verdict: Verdict
    guarantee: Message
    caveats: tuple[Message, ...]
    caution: Message | None = None
    contribution: str | None
    aggregator: str | None
    clip: Number | None
    temperature: Number | None
    divisor: Number | None
    batches: int
    contexts: int
    texts: int
    tokens: int
    longest_batch: int
    released: TextCounts | None = None
    samples: tuple[SampleText, ...] = ()
    claim: ClaimResult | None
    guarantees: Guarantees
    budgets: BudgetUse | None = None


class Comparison(Result):
    """Two or more audited runs side by side.

    Every column of figures is of one kind, by the types that hold it.
    """

    schema_version: Literal["1"] = "1"
    runs: tuple[ComparedRun, ...]
    same_length: tuple[SameLength, ...]
    affordable: tuple[Affordable, ...]
    spreads: tuple[Spread, ...]
    left_out: tuple[LeftOut, ...]
    budgets: tuple[BudgetPanel, ...] = ()
    quality: tuple[QualityColumn, ...] = ()
    rhos: tuple[RunRho, ...] = ()
