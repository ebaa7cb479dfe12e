"""The mechanism of one step: contributions are aggregated, and a token is drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dpaudit.mechanisms.budgets import charged, zcdp_of_draw
from dpaudit.mechanisms.central import Central
from dpaudit.mechanisms.claims import ClaimKind
from dpaudit.mechanisms.differences import AnchoredDifferences, RawDifferences
from dpaudit.mechanisms.draws import NO_EX_POST_COST, Draw, GaussianDraws, Softmax
from dpaudit.mechanisms.interfaces import (
    ANCHOR,
    Aggregator,
    Arrays,
    Box,
    Contribution,
    Doubles,
    Fields,
    Floats,
    Part,
    Positive,
    Problem,
    ReducedSteps,
    Spans,
    StepArray,
    clash,
    log_sums_exp,
    with_anchor,
)
from dpaudit.mechanisms.logits import TopClippedLogits
from dpaudit.mechanisms.mean import Mean
from dpaudit.mechanisms.median import Median
from dpaudit.mechanisms.neighbors import ContextChange
from dpaudit.plugins import MECHANISMS, PlugIn, Registry, plug_in


def _objection(kind: type[Part]) -> str:
    """Return why a plug-in's part of a mechanism cannot be used; empty where it can."""
    excused = getattr(kind, "not_applicable", {}).keys() - _EXCUSED
    if excused:
        return f"it switches off checks: {', '.join(sorted(excused))}."
    return ""


#: Every contribution, aggregator and draw there is, by its kind.
CONTRIBUTIONS: Registry[Contribution] = Registry(
    MECHANISMS,
    Contribution,
    {kind.name: kind for kind in (TopClippedLogits, AnchoredDifferences, RawDifferences)},
    _objection,
)
AGGREGATORS: Registry[Aggregator] = Registry(
    MECHANISMS, Aggregator, {kind.name: kind for kind in (Median, Mean, Central)}, _objection
)
DRAWS: Registry[Draw] = Registry(MECHANISMS, Draw, {Softmax.name: Softmax}, _objection)
#: Checks that mechanisms may declare inapplicable. Plug-ins cannot excuse their runs from others.
_EXCUSED = {
    *(check for kind in AGGREGATORS.own.values() for check in kind.not_applicable),
    *Aggregator.not_applicable,
    *Draw.not_applicable,
    *NO_EX_POST_COST,
}


@dataclass(frozen=True)
class OneOf:
    """Annotation of a part of a mechanism: its `kind` names the class that has its other fields.

    Attributes:
        kinds: all classes that it may be of.
    """

    kinds: Registry[Any]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(Part.model_dump)
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"oneOf": [self._described(kind) for kind in self.kinds.values()]}

    def read(self, given: object) -> Part:
        """Return the part that settings describe.

        Raises:
            PydanticCustomError: they are no mapping, or name no kind that there is.
            ValidationError: a field is not one of that kind.
        """
        if isinstance(given, Part) and isinstance(given, self.kinds.kind):
            return given
        if not isinstance(given, Mapping):
            raise PydanticCustomError("model_type", "Input should be a mapping with a kind")
        fields = dict(given)
        kind = fields.pop("kind", None)
        if not isinstance(kind, str) or kind not in self.kinds:
            raise clash("kind", kind, " or ".join(map(repr, self.kinds)))
        # JSON and YAML have lists where settings have tuples.
        read = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
        }
        part: Part = self.kinds[kind].model_validate(read)
        return part

    @property
    def field_names(self) -> list[str]:
        """The fields that a part may have, of all kinds."""
        return list(
            dict.fromkeys(
                ["kind", *(name for kind in self.kinds.values() for name in kind.model_fields)]
            )
        )

    @staticmethod
    def _described(kind: type[Part]) -> JsonSchemaValue:
        schema = kind.model_json_schema()
        fields = {"kind": {"const": kind.name}, **schema.get("properties", {})}
        return schema | {"properties": fields, "required": list(fields)}


#: The largest support, so that a hostile manifest cannot make the reader allocate at will.
MAX_VOCABULARY = 1 << 22


#: Times 1 + 1 / temperature the least bounded range of an anchored draw. For smaller ones, adding
#: the anchor in float64 could move a draw further than `mean.ROUNDING` allows for
#: (docs/mathematics.md, "Anchored contributions").
LEAST_RANGE = 2.0**-15

#: The largest multiple of its size that a support with a margin has. If the public prompt hardly
#: tells tokens apart, any margin would include nearly all of them.
MOST_WITH_MARGIN = 4
#: The rounding of a margin between logits and the anchor by float32, relative to the
#: log-probability where the margin begins.
_MARGIN_ROUNDING = 1e-4


class Support(Fields):
    """The tokens a step samples from. They follow from public values alone, so they cost nothing.

    Attributes:
        kind: the whole vocabulary, or the top of a public prompt's logits.
        size: number of tokens of that top; for "public-top-k" only.
        margin: in logit units: tokens that are less than this below the last of them belong to the
            support as well, the likeliest first, up to MOST_WITH_MARGIN times the size (top-k+ of
            InvisibleInk, arXiv 2507.02974, whose margin is 2 clip / divisor). None for the top
            alone.
        limit: with a margin, the most tokens that a step may have; None for MOST_WITH_MARGIN times
            the size.
    """

    kind: Literal["full", "public-top-k"] = "full"
    size: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None = None
    margin: Positive | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None = None

    @model_validator(mode="after")
    def _size_and_margin_belong_to_top_k(self) -> Support:
        if (self.kind == "full") != (self.size is None):
            wanted = "null" if self.kind == "full" else "a whole number of at least 1"
            raise clash("size", self.size, f"{wanted} when kind is {self.kind}")
        if self.kind == "full" and self.margin is not None:
            raise clash("margin", self.margin, "null when kind is full")
        if self.limit is not None and (self.margin is None or self.limit < (self.size or 0)):
            raise clash("limit", self.limit, "at least size, beside a margin")
        return self

    def most(self, vocabulary: int) -> int:
        """Return the largest number of tokens that a step can have."""
        if self.size is None:
            return vocabulary
        if self.margin is None:
            return min(vocabulary, self.size)
        return min(vocabulary, self.limit or MOST_WITH_MARGIN * self.size)

    def tokens(self, public: Floats, ruled: bool = False) -> NDArray[np.int32] | None:
        """Return the ids of a step's tokens, ascending: int32 [S]; None for the whole vocabulary.

        Args:
            public: logits [V] of a public prompt, -inf if decoding rules forbid a token.
            ruled: whether there are such rules.
        """
        if self.size is None:
            if ruled:
                return np.flatnonzero(public > -np.inf).astype(np.int32)
            return None
        most = self.most(len(public))
        # most of the vocabulary needs no order
        likely = np.flatnonzero(public >= np.partition(public, -most)[-most])
        order = likely[np.argsort(-public[likely], kind="stable")][:most]
        if ruled:
            order = order[public[order] > -np.inf]
        if self.margin is not None:
            least = public[order[: self.size][-1]] - self.margin
            order = order[: max(self.size, np.count_nonzero(public[order] > least))]
        return np.sort(order).astype(np.int32)

    def anchor_problem(self, anchor: Floats) -> Problem | None:
        """Return why tokens with these public log-probabilities [S] cannot be a step's, or None.

        Only a margin can be checked: tokens beyond the first `size` are at most the margin less
        likely than the last of them.
        """
        if self.size is None or self.margin is None or len(anchor) <= self.size:
            return None
        last = float(np.sort(anchor)[-self.size])
        far = int(
            np.count_nonzero(
                ~(anchor >= last - self.margin - _MARGIN_ROUNDING * max(1.0, abs(last)))
            )
        )
        if far:
            return Problem("mechanisms.beyond-margin", {"tokens": far, "size": self.size})
        return None


class PublicPart(NamedTuple):
    """The part of a step that follows from the public prompt.

    Attributes:
        support: int32 [S] ids of the tokens to sample from, ascending; None for the whole
            vocabulary.
        anchor: float32 [S], see `Contribution`; None without one.
    """

    support: NDArray[np.integer] | None = None
    anchor: Floats | None = None


class Mechanism(Fields):
    """The way a token is drawn from a batch, as a config asks for it and run.json declares it.

    Attributes:
        contribution: what one context gives.
        aggregator: how contributions become one vector.
        draw: how a token follows from that vector.
        temperature: what the aggregate is divided by; 1 where a draw has none.
        support: the tokens that are sampled from.
        budget: the most that one context may spend in a run, in nats of zCDP's rho, or one user's
            contexts together; before a draw that it cannot afford a context is left out. None if
            all take part in every draw.
    """

    contribution: Annotated[Contribution, OneOf(CONTRIBUTIONS)]
    aggregator: Annotated[Aggregator, OneOf(AGGREGATORS)]
    draw: Annotated[Draw, OneOf(DRAWS)] = Softmax()
    temperature: Positive
    support: Support = Support()
    budget: Positive | None = None

    @model_validator(mode="after")
    def _anchors_round_less_than_is_allowed_for(self) -> Mechanism:
        eta = self.aggregator.eta(ContextChange("add_remove"), self.clip, self.temperature)
        least = LEAST_RANGE * (1 + 1 / self.temperature)
        if self.contribution.anchored and eta is not None and eta < least:
            allowed = (
                f"so large that a draw's bounded range, {eta:.3g}, is at least "
                f"{least:.3g}, or rounding counts"
            )
            raise clash("contribution.clip", self.clip, allowed)
        return self

    @model_validator(mode="after")
    def _what_a_context_moves_is_its_own(self) -> Mechanism:
        if self.budget is not None and not self.aggregator.sums:
            allowed = (
                f"null: what a context moves in a {self.aggregator.name} depends on the others"
            )
            raise clash("budget", self.budget, allowed)
        return self

    @model_validator(mode="after")
    def _has_what_its_draw_needs(self) -> Mechanism:
        found = {
            "contribution.kind": self.contribution.name,
            "contribution.grid": self.contribution.grid,
            "aggregator.kind": self.aggregator.name,
            "temperature": self.temperature,
            "budget": self.budget,
        }
        for field, needed in self.draw.needs.items():
            if field not in found:
                raise ValueError(f"the draw {self.draw.name} needs {field}, which is no setting")
            if found[field] != needed:
                allowed = f"{'null' if needed is None else needed} with the draw {self.draw.name}"
                raise clash(field, found[field], allowed)
        return self

    @property
    def clip(self) -> float:
        """Contributions lie in [-clip, clip]."""
        return self.contribution.clip

    @property
    def claim_kind(self) -> ClaimKind:
        """The kind of claim that a run states of itself."""
        return self.kinds[0]

    @property
    def kinds(self) -> tuple[ClaimKind, ...]:
        """The kinds of claims that its runs support."""
        return self.draw.kinds(self.aggregator.kinds)

    @property
    def plug_ins(self) -> tuple[PlugIn, ...]:
        """The plug-ins that its parts came by; none for a part of dpaudit's core."""
        names = [part.name for known, part in self._parts if part.name not in known.own]
        found = [plug_in(MECHANISMS, name) for name in names]
        return tuple(each for each in found if each is not None)

    def require_unclaimed(self) -> None:
        """Raise InputError if another package has the name of a part that is dpaudit's own."""
        for known, part in self._parts:
            known.require_unclaimed(part.name)

    @property
    def _parts(self) -> tuple[tuple[Registry[Any], Part], ...]:
        return (
            (CONTRIBUTIONS, self.contribution),
            (AGGREGATORS, self.aggregator),
            (DRAWS, self.draw),
        )

    def inapplicable_reason(self, check: str) -> str:
        """Return why a check does not apply, as a code of the catalogue, or ""."""
        return self.draw.not_applicable.get(check) or self.aggregator.not_applicable.get(check, "")

    @property
    def in_blocks(self) -> bool:
        """Whether several steps may be looked at together, as one step of all their columns."""
        return self.draw.in_blocks

    @property
    def over_support(self) -> bool:
        """Whether contexts' logits are read over a truncated support alone."""
        return self.support.size is not None and self.contribution.over_support

    def public_part(self, logits: Floats, ruled: bool = False) -> PublicPart:
        """Return a step's support and anchor from the public prompt's logits [V].

        `ruled` is as for `Support.tokens`.

        Raises:
            ValueError: they are no anchor.
        """
        support = self.support.tokens(logits, ruled)
        if support is not None:
            logits = logits[support]
        return PublicPart(support, self.contribution.anchor(logits))

    def arrays(self, contexts: int, width: int) -> dict[str, StepArray]:
        """Return the arrays that a step of `contexts` contexts records, by name."""
        found = self.aggregator.arrays(contexts, width, self.clip)
        if self.contribution.anchored:
            found[ANCHOR] = StepArray("<f4")
        return found | self.draw.arrays()

    def aggregate(self, arrays: Arrays) -> Floats:
        """Return the vector [S] that was sampled from."""
        return self.draw.scores(
            with_anchor(arrays, self.aggregator.aggregate(arrays)), arrays, self.temperature
        )

    def odds(self, arrays: Arrays) -> Floats:
        """Return scores [S] whose softmax at the temperature gives the tokens' probabilities.

        Those are the probabilities over the noise that chooses the token.
        """
        aggregate = with_anchor(arrays, self.aggregator.aggregate(arrays))
        return self.draw.odds(aggregate, arrays, self.temperature, self.aggregator, self.clip)

    def log_probability(self, scores: Floats, token: int) -> float:
        """Return a token's log-probability, in nats, given the scores [S] it was drawn from."""
        step = ReducedSteps.whole({}, np.array([token]), Spans([len(scores)]))
        return float(self.draw.log_probabilities(scores, step, self.temperature)[0])

    def log_probabilities(self, steps: ReducedSteps) -> Doubles:
        """Return the same of reduced steps, [k], by their own records."""
        return self.draw.log_probabilities(self.aggregate(steps.arrays), steps, self.temperature)

    def box(self, arrays: Arrays, change: ContextChange) -> Box:
        """Return bounds on the aggregates of all neighbours.

        Raises:
            ValueError: the arrays do not bound the change.
        """
        lower, center, upper = self.aggregator.box(arrays, change, self.clip)
        anchored = (with_anchor(arrays, values) for values in (lower, center, upper))
        low, mid, high = (self.draw.scores(values, arrays, self.temperature) for values in anchored)
        return low, mid, high

    def bounds(self, change: ContextChange, width: int) -> bool:
        """Return whether a record of this width bounds a change."""
        return self.aggregator.width_for(change) <= width

    def eta(self, change: ContextChange) -> float | None:
        """Return the bounded range of one draw by softmax, in nats.

        It is None if only the data bounds it.

        It is infinite if a token costs more than that, and all tokens are bounded together (`rho`).
        """
        eta = self.aggregator.eta(change, self.clip, self.temperature)
        return eta if self._rho_by_draw(eta) is None else math.inf

    def _rho_by_draw(self, eta: float | None) -> float | None:
        return None if eta is None else self.draw.rho(eta, self.aggregator)

    def gaussian(self, change: ContextChange | None) -> GaussianDraws | None:
        """Return what draws by noise cost; None for draws by softmax.

        Accountants know it for one context that comes or goes. For any other change nothing is
        known: rate 1, no noise.
        """
        draws = self.draw.gaussian
        if draws is None or change == ContextChange("add_remove"):
            return draws
        return GaussianDraws(0.0, 1.0)

    def rho(self, change: ContextChange) -> float | None:
        """Return the zCDP of a run of any number of tokens, rounded up.

        It comes from its draw or its contexts' budgets; without these it is None. The costs of
        several contexts add up by their roots, for their ranges do: each has the budget, and at
        every draw the root of what all of them pay is at most the sum of the roots
        (docs/budgets.md, "Individual budgets").
        """
        by_draw = self._rho_by_draw(self.aggregator.eta(change, self.clip, self.temperature))
        if by_draw is not None:
            return by_draw if change == ContextChange("add_remove") else math.inf
        if self.budget is None:
            return None
        if change.budgets == 1:
            return self.budget
        return math.nextafter(self.budget * change.budgets**2, math.inf)

    def sure_draws(self, budget: float) -> int:
        """Return how many draws a budget pays for, whatever its context gives."""
        most = float(self.costs(np.array([[-self.clip, self.clip]]))[0])
        if not most:
            return 0
        # A relative 2^-30 for the rounding of the sum, up to a million draws.
        return math.floor(budget / most * (1 - 2.0**-30))

    def spend(
        self, contributions: Floats, spent: Doubles, budgets: Doubles | None = None
    ) -> Doubles:
        """Return what contexts have spent after a draw, [n]. It grows for those that take part.

        Args:
            contributions: [n, S] of all of them.
            spent: [n], before the draw, in nats of rho.
            budgets: [n], of each of them; None if each has the mechanism's.
        """
        assert self.budget is not None, "without budgets every context takes part"
        after = charged(spent, self.costs(contributions))
        limits = self.budget if budgets is None else budgets
        return np.where(after <= limits, after, spent)

    def costs(self, contributions: Floats) -> Doubles:
        """Return rho of one draw for each context, [n], above 0, by its own contributions [n, S].

        It is rounded up.
        """
        return zcdp_of_draw(self.aggregator.ranges(contributions, self.clip, self.temperature))

    def reduced(
        self,
        arrays: Arrays,
        tokens: ArrayLike,
        spans: Spans | None = None,
        aggregate: Floats | None = None,
    ) -> ReducedSteps:
        """Return steps less the columns that no neighbour can move; the tokens' own are kept.

        Args:
            arrays: the steps', [..., columns].
            tokens: [k] the sampled tokens' columns, or one step's.
            spans: which columns each step has; None for one step.
            aggregate: [columns] of these arrays, if it is known already.

        Raises:
            ValueError: a token is not among its step's columns.
        """
        aggregate = self.aggregate(arrays) if aggregate is None else aggregate
        spans = Spans([len(aggregate)]) if spans is None else spans
        tokens = np.atleast_1d(tokens)
        if ((tokens < spans.starts) | (tokens >= spans.ends)).any():
            raise ValueError(f"tokens {tokens} are not all among their steps' columns")
        # what a corrupt record's infinite values give, accountants refuse
        with np.errstate(all="ignore"):
            movable = self.aggregator.movable(arrays)
            if movable is None:
                return ReducedSteps.whole(arrays, tokens, spans)
            kept = movable.copy()
            kept[tokens] = True
            columns, fixed = np.flatnonzero(kept), aggregate.take(np.flatnonzero(~kept))
            left = Spans(spans.counts(kept))
            others = Spans(spans.lengths - left.lengths)
            beside = {name for name, array in self.draw.arrays().items() if not array.columns}
            return ReducedSteps(
                {
                    name: array if name in beside else array.take(columns, axis=-1)
                    for name, array in arrays.items()
                },
                np.searchsorted(columns, tokens),
                left,
                log_sums_exp(fixed, others, self.temperature),
                others.lengths,
                np.maximum(-others.smallest(fixed), others.largest(fixed)).astype(np.float64),
            )

    def losses(
        self, steps: ReducedSteps, contributions: Floats | None, contexts: int
    ) -> Doubles | None:
        """Return every context's log p(token) - log p(token without the context), in nats.

        It is [contexts, k] at each of k steps, and None where the record of any has none.
        """
        if not self.draw.ex_post:
            return None
        return self.aggregator.losses(steps, contributions, contexts, self.temperature)

    def with_context(self, arrays: Arrays, values: Doubles) -> Floats | None:
        """Return the vector [S] to sample from after a context with contributions [S] joins.

        It is None if it is unknown.
        """
        if not self.draw.ex_post:
            return None
        joined = self.aggregator.with_context(arrays, values)
        return None if joined is None else with_anchor(arrays, joined)
