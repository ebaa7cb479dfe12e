"""A mean's cost, from public numbers alone: before any text, and without records or a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpaudit.accounting import (
    ApproximateAccountant,
    AttackLimit,
    Limit,
    Method,
    ReleaseAccountant,
    limit_of,
)
from dpaudit.accounting.approximate import largest
from dpaudit.accounting.release import Plan, amount_of, cost_of_texts, most_texts
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.api.shown import Shown
from dpaudit.errors import in_short
from dpaudit.mechanisms import (
    ContextChange,
    DivisorKind,
    Relation,
    bounded_range,
    mean_sensitivity,
    range_of_draw,
    zcdp_of_draw,
)
from dpaudit.mechanisms.mean import ROUNDING
from dpaudit.reports.budget_plans import heading, lines
from dpaudit.reports.levels import FEWEST_BATCHES, few_batches
from dpaudit.results import AttackBound
from dpaudit.results.budget import (
    BatchCost,
    ClipTexts,
    MeanBudget,
    OneLabel,
    OwnBudgets,
    RoundsCost,
)
from dpaudit.results.rounding import stated
from dpaudit.runs import InputError, MostTruePositives, SecretBatches
from dpaudit.runs.limits import LIMITS, Share, given_limits

#: Of a budget, for the rounding of what is spent of it.
_ROOM = 1 - 2.0**-30
#: Of a batch, and of its tokens, where fewer are looked for or more would say nothing.
MOST_CONTEXTS, MOST_SURE = 1 << 20, 1 << 40
#: Clips that are set side by side within one limit.
_MENU = (1.0, 2.0, 4.0)

Positive: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Many: TypeAlias = Annotated[int, Field(ge=1, le=1 << 20)]


class Budget(Shown[MeanBudget]):
    """The cost of mean runs. `result` is a BatchCost, a RoundsCost or an OwnBudgets.

    Attributes:
        epsilon: at the release level, in nats; None if the batches that hide a record are not
            known.
        batch_epsilon: at the batch level.
    """

    @property
    def epsilon(self) -> float | None:
        """Return epsilon at the release level in nats, or None if the batches are not known."""
        return getattr(self.result, "epsilon", None)

    @property
    def batch_epsilon(self) -> float:
        """Return epsilon at the batch level in nats."""
        return self.result.batch_epsilon

    def _title(self) -> str:
        return heading(self.result)

    def _rows(self) -> list[tuple[str, str]]:
        return list(lines(self.result))


def plan_budget(
    clip: float,
    temperature: float,
    records: int,
    *,
    batch_size: float | None = None,
    epsilon: float | None = None,
    advantage: float | None = None,
    true_positives: MostTruePositives | Mapping[str, float] | None = None,
    tokens: int | None = None,
    texts: int | None = None,
    rounds: int | None = None,
    labels: int | None = None,
    batches: int | None = None,
    generated: int | None = None,
    delta: float | None = None,
    individual: bool = False,
    method: Method = "rdp",
    relation: Relation = "add_remove",
    group_size: int = 1,
    divisor: DivisorKind = "fixed",
    rebalancing_epsilon: float = 0.0,
    alternatives: bool = False,
    monitor: Monitor = SILENT,
) -> Budget:
    """Compute epsilon, texts, tokens or contexts of a mean from the others.

    Only a mean's cost is known beforehand. In place of epsilon you may limit what attacks can gain;
    every answer has its epsilon and its bound on attacks.

    With texts, rounds, labels, batches or generated it is about texts in rounds, with epsilon at
    the release level; else about one round at the batch level.

    Args:
        clip: logits, or differences, lie in [-clip, clip].
        temperature: of sampling.
        records: number of private records.
        batch_size: what the sum of contexts is divided by; None to find the fewest contexts. In
            rounds a larger size may cost more, for there are fewer batches then.
        epsilon: find the most tokens, or texts in rounds, within this epsilon, in nats.
        advantage: the same within this advantage of any test about one unit.
        true_positives: the same within `most` true positives of any such test `at` a rate of false
            ones: {"at": 0.01, "most": 0.05}.
        tokens: the most tokens of a batch.
        texts: find the rounds for so many texts, and what they cost.
        rounds: find what so many rounds cost.
        labels: how many labels the records have; None for 1.
        batches: a label's batches in a round; None for as many as its records fill.
        generated: how many of these are generated; None for all.
        delta: None for records ** -1.1.
        individual: give every context a budget of its own, which keeps any number of tokens within
            the limit.
        method: of composition.
        relation: of contexts.
        group_size: how many contexts one unit can change.
        divisor: divide by the batch size, or by the number of contexts with the batch size as a
            public floor.
        rebalancing_epsilon: what noisy counts cost one unit; it is part of epsilon.
        alternatives: also say what one label and other clips would give for texts in rounds. Takes
            several times as long.
        monitor: receives warnings.

    Raises:
        InputError: an argument cannot be used, two do not go together, or there is no answer.
    """
    asked = {
        name: value for name, value in locals().items() if name not in ("alternatives", "monitor")
    }
    try:
        runs = _MeanRuns(**asked)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise InputError(
            name, f"the value is {in_short(first['input'])}.", f"{first['msg']}."
        ) from None
    runs.require_question()
    warn_of_delta(runs.known_delta, records, monitor)
    try:
        sized = runs if batch_size is not None else runs.with_size(runs.fewest())
        if not runs.in_rounds:
            return Budget(sized.own_budgets() if individual else sized.cost())
        if sized.per_label < FEWEST_BATCHES and not individual:
            monitor.warn(few_batches(sized.per_label, sized.groups))
        return Budget(sized.own_budgets() if individual else sized.cost_of_rounds(alternatives))
    except InputError:
        raise
    except ValueError as error:
        raise InputError("budget", f"{error}.", "Change one of the numbers.") from None


def warn_of_delta(delta: float, records: int, monitor: Monitor) -> None:
    """Warn of a delta that is as large as one of so many records."""
    if delta * records >= 1:
        monitor.warn(
            f"delta {stated(delta)} is not below 1 / records = 1 / {records}: publishing a "
            "random record whole would "
            "pass for private. Give a smaller delta."
        )


class _MeanRuns(BaseModel):
    """Mean runs, and what is asked of them; fields as the arguments of `plan_budget`.

    In rounds, every record is hashed in secret into one of its label's batches.
    """

    model_config = ConfigDict(frozen=True)

    clip: Positive
    temperature: Positive
    records: Annotated[int, Field(ge=1, le=10**12)]
    batch_size: Positive | None
    epsilon: Positive | None
    advantage: Share | None
    true_positives: MostTruePositives | None
    tokens: Annotated[int, Field(ge=0)] | None
    texts: Many | None
    rounds: Many | None
    labels: Many | None
    batches: Many | None
    generated: Many | None
    delta: Annotated[float, Field(gt=0, lt=1)] | None
    individual: bool
    method: Method
    relation: Relation
    group_size: Annotated[int, Field(ge=1, le=10**6)]
    divisor: DivisorKind
    rebalancing_epsilon: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def require_question(self) -> None:
        """Raise InputError where arguments do not fit, or leave nothing or too much to be found."""
        for argument, problem, remedy in self._objections():
            raise InputError(argument, problem, remedy)

    def _objections(self) -> Any:
        limits = given_limits(self)
        limit, finds = (limits or ["epsilon"])[0], self.individual or self.batch_size is None
        if len(limits) > 1:
            yield limits[1], f"there is {limits[0]}, too.", "Give one of them."
        if self.in_rounds and self.batch_size is None and self.individual:
            yield "batch_size", "budgets in rounds need it.", "Give a batch size."
        if self.in_rounds and self.tokens is None and not self.individual:
            yield "tokens", "texts in rounds need it.", "Give the most tokens of a batch."
        if self.tokens == 0 and (self.in_rounds or self.batch_size is None):
            yield "tokens", "a text has one token or more.", "Give 1 or more."
        if (self.in_rounds or self.individual) and self.method != "rdp":
            yield "method", "texts in rounds and individual budgets do without it.", "Leave it out."
        if self.texts is not None and self.rounds is not None:
            yield "texts", "texts and rounds follow from each other.", "Give one of them."
        if not finds and limits and (self.texts or self.rounds):
            yield limit, f"{limit}, texts and rounds follow from each other.", "Give one of them."
        if self.individual and not limits:
            yield "epsilon", "individual budgets are worked out from it.", "Give an epsilon."
        if self.individual and self.divisor != "fixed":
            yield (
                "divisor",
                "the number of contexts tells who takes part.",
                "Individual budgets need a fixed divisor.",
            )
        if self.batch_size is None and (not limits or self.tokens is None):
            yield (
                "batch_size",
                "there is none.",
                "Give one, or epsilon and tokens to find the fewest contexts.",
            )
        if not (finds or self.in_rounds) and bool(limits) == (self.tokens is not None):
            remedy = f"Give one of them; for texts in rounds within {limit} give labels, too."
            yield limit, f"{limit} and tokens follow from each other.", remedy
        if self.delta is None and self.records == 1:
            yield "delta", "one record leaves no default for it.", "Give a delta."

    @property
    def limit(self) -> Limit | None:
        """The limit that is asked about; None without one."""
        return limit_of(self)

    @property
    def finds_rounds(self) -> bool:
        """Whether the most rounds within the limit are asked for."""
        return self.limit is not None and self.texts is None and self.rounds is None

    @property
    def in_rounds(self) -> bool:
        """Whether the question is of texts in rounds, whose batches hide records."""
        return any(
            each is not None
            for each in (self.texts, self.rounds, self.labels, self.batches, self.generated)
        )

    def with_size(self, size: float) -> Self:
        """Return the same with another batch size."""
        return self.model_copy(update={"batch_size": float(size)})

    @property
    def size(self) -> float:
        """The batch size."""
        assert self.batch_size is not None, "looked for before"
        return self.batch_size

    @property
    def known_delta(self) -> float:
        """The delta of everything."""
        return self.records**-1.1 if self.delta is None else self.delta

    @property
    def change(self) -> ContextChange:
        """The change of contexts for one unit."""
        return ContextChange(self.relation, self.group_size)

    def _eta(self, change: ContextChange) -> float:
        return bounded_range(self.clip, self.temperature, self.size, change, self.divisor)

    @property
    def accountant(self) -> ApproximateAccountant:
        """The batch level's accountant; all of the rebalancing is on one count, the worst case."""
        return ApproximateAccountant(self._eta(self.change), laplace=(self.rebalancing_epsilon,))

    @property
    def groups(self) -> int:
        """The number of labels, or 1 without any."""
        return self.labels or 1

    @property
    def per_label(self) -> int:
        """Batches of a label in a round. Raises InputError where its records fill none."""
        if self.batches is not None:
            return self.batches
        filled = math.floor(self.records / self.groups / self.size)
        if not filled:
            problem = (
                f"{self.records:,} records of {self.groups:,} labels do not fill a batch "
                f"of {self.size:g}."
            )
            raise InputError("records", problem, "Give a smaller batch size.")
        return filled

    @property
    def texts_per_round(self) -> int:
        """Texts of all labels in a round. Raises InputError where there are too few batches."""
        generated = self.per_label if self.generated is None else self.generated
        if generated > self.per_label:
            problem = (
                f"a label has {self.per_label:,} batches, of which {generated:,} cannot be "
                "generated."
            )
            raise InputError("generated", problem, "Give as many or fewer.")
        return generated * self.groups

    @property
    def release_accountant(self) -> ReleaseAccountant:
        """Both levels', in one round."""
        laplace = (self.rebalancing_epsilon,) if self.rebalancing_epsilon else ()
        return ReleaseAccountant(
            ApproximateAccountant(self._eta(self.change), laplace=laplace),
            ApproximateAccountant(self._eta(ContextChange("add_remove"))),
            SecretBatches(((self.per_label, self.texts_per_round // self.groups),)),
            records=self.group_size * (2 if self.relation == "replace" else 1),
        )

    @property
    def asked_rounds(self) -> int:
        """The rounds that are asked about, by themselves or by their texts; one by default."""
        return self.rounds or (1 if self.texts is None else -(-self.texts // self.texts_per_round))

    def plan(self, rounds: int | None = None) -> Plan:
        """Compute the most rounds within a limit, or what so many rounds cost at both levels."""
        release, tokens, texts = self.release_accountant, self.tokens or 1, self.texts_per_round
        if rounds is None and self.finds_rounds and self.limit is not None:
            return most_texts(release, self.limit, tokens, self.known_delta, texts)
        return cost_of_texts(
            release, (rounds or self.asked_rounds) * texts, tokens, self.known_delta, texts
        )

    def _shared(self) -> dict[str, Any]:
        names = ("tokens", "batch_size", "relation", "divisor", "group_size", "rebalancing_epsilon")
        return {
            "delta": self.known_delta,
            **{name: getattr(self, name) for name in names},
            **{f"asked_{name}": getattr(self, name) for name in LIMITS},
        }

    def cost(self) -> BatchCost:
        """Compute one round's batch level: of so many tokens, or of the most within a limit."""
        accountant, tokens, charged = self.accountant, self.tokens, self.tokens
        if tokens is None or charged is None:
            assert self.limit is not None, "or tokens are given"
            tokens = accountant.affordable_tokens(self.limit, self.known_delta, self.method)
            charged = max(1, tokens)
        spent = accountant.epsilon(charged, self.known_delta, self.method)
        return BatchCost(
            **self._shared() | {"tokens": tokens},
            batch_epsilon=spent.epsilon,
            batch_attack=AttackBound.of(accountant.attack_curve(charged, self.known_delta)),
            method=spent.method,
            rho=accountant.rho(charged),
            batch_lower=spent.epsilon_lower,
            sensitivity=mean_sensitivity(self.change, self.divisor).text,
        )

    def cost_of_rounds(self, alternatives: bool) -> RoundsCost:
        """Compute the most rounds within a limit, or both levels of so many rounds or texts."""
        plan = self.plan()
        cost = plan if plan.rounds else self.plan(1)
        accountant, asked = self.release_accountant.of_rounds(cost.rounds), self.tokens or 1
        return RoundsCost(
            **self._shared(),
            batch_epsilon=cost.batch_epsilon,
            batch_attack=AttackBound.of(accountant.batch_attack_curve(asked, self.known_delta)),
            rounds=plan.rounds,
            texts=plan.texts,
            epsilon=cost.epsilon,
            attack=AttackBound.of(accountant.attack_curve(asked, self.known_delta)),
            batches=self.per_label,
            generated=self.texts_per_round // self.groups,
            labels=self.groups,
            clip=self.clip,
            one_label=self._one_label(plan.rounds) if alternatives and self.groups > 1 else None,
            menu=self._menu() if alternatives and self.finds_rounds else (),
        )

    def _one_label(self, rounds: int) -> OneLabel:
        together = None if self.batches is None else self.batches * self.groups
        changes = {"labels": 1, "batches": together, "generated": self.texts_per_round}
        merged = self.model_copy(update=changes)
        plan = merged.plan(None if self.finds_rounds else rounds)
        return OneLabel(
            batches=merged.per_label, rounds=plan.rounds, texts=plan.texts, epsilon=plan.epsilon
        )

    def _menu(self) -> tuple[ClipTexts, ...]:
        plans = {
            clip: self.model_copy(update={"clip": clip}).plan()
            for clip in sorted({*_MENU, self.clip})
        }
        return tuple(
            ClipTexts(clip=clip, rounds=plan.rounds, texts=plan.texts)
            for clip, plan in plans.items()
        )

    def own_budgets(self) -> OwnBudgets:
        """Compute contexts' own budgets: in rounds at the release, else at the batch level."""
        assert self.limit is not None, "individual budgets are worked out from it"
        delta, rounds = self.known_delta, self.asked_rounds if self.in_rounds else 1
        levels: dict[str, Any] = {"epsilon": None, "attack": None}
        if self.in_rounds:
            release = self.release_accountant.of_rounds(rounds)
            budget = release.most_rho_within(self.limit, delta)
            rho = budget * self.change.half_steps**2
            kept = release.of_budget(budget)
            levels["attack"] = AttackBound.of(kept.attack_curve(1, delta))
            levels["epsilon"] = self.epsilon or kept.epsilon(1, delta)
        else:
            rho = self.accountant.most_rho_within(self.limit, delta)
            budget = rho / self.change.half_steps**2
        batch = replace(self.accountant, eta=math.inf, most_rho=rho, rounds=rounds)
        share = None
        if self.tokens is not None:
            each = range_of_draw(budget * _ROOM / max(1, self.tokens))
            share = min(1.0, each / self._widest)
        return OwnBudgets(
            **self._shared(),
            batch_epsilon=batch.budgets_epsilon(delta)
            if self.in_rounds or self.epsilon is None
            else self.epsilon,
            batch_attack=AttackBound.of(batch.attack_curve(1, delta)),
            **levels,
            rho=rho,
            budget=budget,
            rounds=rounds,
            texts=rounds * self.texts_per_round if self.in_rounds else None,
            sure_tokens=self._sure_tokens(budget),
            share=share,
        )

    @property
    def _widest(self) -> float:
        """The widest range of a draw that one context can cause, in nats."""
        change = ContextChange("add_remove")
        return bounded_range(self.clip, self.temperature, self.size, change) * (1 + ROUNDING)

    def _sure_tokens(self, budget: float) -> int:
        """Return how many tokens any context can pay for out of a budget."""
        costliest = float(zcdp_of_draw(self._widest))
        return min(math.floor(budget * _ROOM / costliest), MOST_SURE) if costliest else MOST_SURE

    def fewest(self) -> int:
        """Find the fewest contexts whose tokens cost no more than the limit.

        With own budgets, every context must be able to pay for all tokens instead.

        Raises:
            InputError: MOST_CONTEXTS are too few, or the records in rounds.
        """
        tokens, limit = self.tokens, self.limit
        assert tokens is not None and limit is not None, "or a batch size is given"
        if self.in_rounds:
            return self._fewest_in_rounds(limit, tokens)

        # It is the same for any size.
        budget = self.with_size(1).own_budgets().budget if self.individual else 0.0

        def enough(size: int, method: Method = "rdp") -> bool:
            runs = self.with_size(size)
            if self.individual:
                return runs._sure_tokens(budget) >= tokens
            if isinstance(limit, AttackLimit):
                return limit.allows(runs.accountant.attack_curve(tokens, self.known_delta))
            return runs.accountant.epsilon(tokens, self.known_delta, method).epsilon <= limit

        if not enough(MOST_CONTEXTS, self.method):
            raise self._too_few(f"{tokens} tokens take more than {MOST_CONTEXTS:,} contexts.")
        if isinstance(limit, AttackLimit) and not self.individual:
            # Ranges fall with the size: those of as many normal draws.
            range_of_one = self.with_size(1).accountant.eta
            return _first(enough, range_of_one * math.sqrt(tokens) / (2 * limit.deviations()))
        # Renyi accounting is quick, and never below the optimal bound: what it finds is where that
        # one begins.
        found = _first(enough, 1)
        if self.individual or self.method == "rdp":
            return found
        return _first(partial(enough, method=self.method), found)

    def _fewest_in_rounds(self, limit: Limit, tokens: int) -> int:
        """Find the smallest size of batches with which readers are within a limit.

        Larger batches cost less, and more batches do; but a larger size may leave a batch fewer.
        So sizes are ruled out together by the largest of them with as many batches as the smallest
        has.
        """

        def within(runs: Self) -> bool:
            accountant = runs.release_accountant.of_rounds(runs.asked_rounds)
            return accountant.spent(limit, tokens, self.known_delta) <= amount_of(limit)

        def smallest(low: int, high: int) -> int | None:
            most = self.with_size(low).per_label
            if not within(self.with_size(high).model_copy(update={"batches": most})):
                return None
            if low == high:
                return low
            middle = (low + high) // 2
            return smallest(low, middle) or smallest(middle + 1, high)

        largest_size = math.floor(self.records / self.groups)
        if self.batches is not None:
            largest_size = MOST_CONTEXTS
        elif self.generated is not None:
            largest_size = math.floor(largest_size / self.generated)
        found = smallest(1, min(largest_size, MOST_CONTEXTS)) if largest_size else None
        if found is None:
            raise self._too_few("batches of as many records as there are cost more.")
        return found

    def _too_few(self, problem: str) -> InputError:
        return InputError(given_limits(self)[0], problem, "Give a larger one, or fewer tokens.")


def _first(enough: Callable[[int], bool], guess: float) -> int:
    """Return the fewest contexts that are enough, near a guess; MOST_CONTEXTS are."""
    near = min(max(1, round(guess)), MOST_CONTEXTS)
    return 1 + largest(lambda size: not size or not enough(size), near - 1)
