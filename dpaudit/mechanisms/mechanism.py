"""One step's mechanism: contributions are aggregated, and a token is drawn, by softmax unless another way is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails

from dpaudit.claims import ClaimKind
from dpaudit.mechanisms.budgets import charged, zcdp_of_draw
from dpaudit.mechanisms.central import Central
from dpaudit.mechanisms.differences import AnchoredDifferences, RawDifferences
from dpaudit.mechanisms.draws import NO_EX_POST_COST, Draw, GaussianDraws, Softmax
from dpaudit.mechanisms.interfaces import (
    ANCHOR,
    NO_FIXED_COLUMNS,
    Aggregator,
    Arrays,
    Box,
    Contribution,
    Doubles,
    Fields,
    FixedColumns,
    Floats,
    Positive,
    Problem,
    ReducedStep,
    ReducedSteps,
    Spans,
    StepArray,
    clash,
    log_sum_exp,
    with_anchor,
)
from dpaudit.mechanisms.logits import TopClippedLogits
from dpaudit.mechanisms.mean import Mean
from dpaudit.mechanisms.median import Median
from dpaudit.mechanisms.neighbors import ContextChange
from dpaudit.plugins import MECHANISMS, PlugIn, Registry, plug_in

_Part: TypeAlias = Contribution | Aggregator | Draw


def _objection(kind: type[_Part]) -> str:
    """Return why a plug-in's part of a mechanism cannot be used; empty where it can."""
    others = [known for known in _PARTS.values() if not issubclass(kind, known.kind)]
    theirs = [name for known in others for each in known.own.values() for name in each.model_fields]
    taken = {*Mechanism.model_fields, *theirs}
    if shared := sorted(taken & kind.model_fields.keys()):
        return f"its fields {', '.join(shared)} are those of other parts of a mechanism."
    excused = getattr(kind, "not_applicable", {}).keys() - _EXCUSED
    return f"it switches off checks: {', '.join(sorted(excused))}." if excused else ""


#: Every contribution, aggregator and draw there is, by the name that configs and run.json have for it.
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
_PARTS: dict[str, Registry[Any]] = {"contribution": CONTRIBUTIONS, "aggregator": AGGREGATORS, "draw": DRAWS}
#: Checks that mechanisms may say are not about them. No plug-in excuses its runs from another one of dpaudit's.
_EXCUSED = {
    *(check for kind in (Median, Mean, Central, Aggregator, Draw) for check in kind.not_applicable),
    *NO_EX_POST_COST,
}

#: Of a support, so that a hostile manifest cannot make the reader allocate at will.
MAX_VOCABULARY = 1 << 22


#: Times 1 + 1 / temperature the least bounded range of an anchored draw: below, adding the anchor in float64 could
#: move one further than `mean.ROUNDING` allows for (docs/mathematics.md, "Anchored contributions").
LEAST_RANGE = 2.0**-15

#: A support with a margin has at most so many times its size: where the public prompt hardly tells tokens apart, any
#: margin would take in nearly all of them.
MOST_WITH_MARGIN = 4
#: How far float32 puts a margin off between logits and the anchor, relative to the log-probability where it begins.
_MARGIN_ROUNDING = 1e-4


class Support(Fields):
    """The tokens a step samples from. All that decides about them is public, so they cost nothing.

    Attributes:
        kind: the whole vocabulary, or the top of a public prompt's logits.
        size: how many tokens of that top; for "public-top-k" only.
        margin: in logit units: tokens that are less than this below the last of them belong to it as well, the
            likeliest first, up to MOST_WITH_MARGIN times the size (top-k+ of InvisibleInk, arXiv 2507.02974, whose
            margin is 2 clip / divisor). None for the top alone.
        limit: with a margin, the most tokens that a step may have; None for MOST_WITH_MARGIN times the size.
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

    @model_serializer(mode="wrap")
    def _without_a_limit_that_is_not_given(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = written(self)
        return {name: value for name, value in fields.items() if value is not None or name != "limit"}

    def most(self, vocabulary: int) -> int:
        """The most tokens that a step can have."""
        most = (self.size or vocabulary) * (1 if self.margin is None else MOST_WITH_MARGIN)
        return min(vocabulary, most if self.limit is None else self.limit)

    def tokens(self, public: Floats, ruled: bool = False) -> NDArray[np.int32] | None:
        """Ids of a step's tokens, ascending: int32 [S]; None for the whole vocabulary.

        Args:
            public: logits [V] of a public prompt, -inf where decoding rules forbid a token.
            ruled: whether there are such rules.
        """
        if self.size is None:
            return np.flatnonzero(public > -np.inf).astype(np.int32) if ruled else None
        most = self.most(len(public))
        likely = np.flatnonzero(public >= np.partition(public, -most)[-most])  # most of the vocabulary needs no order
        order = likely[np.argsort(-public[likely], kind="stable")][:most]
        if ruled:
            order = order[public[order] > -np.inf]
        if self.margin is not None:
            least = public[order[: self.size][-1]] - self.margin
            order = order[: max(self.size, np.count_nonzero(public[order] > least))]
        return np.sort(order).astype(np.int32)

    def anchor_problem(self, anchor: Floats) -> Problem | None:
        """Return why tokens with these public log-probabilities [S] cannot be a step's; None where they can.

        Only a margin shows there: tokens beyond the first `size` are at most so much less likely than the last of them.
        """
        if self.size is None or self.margin is None or len(anchor) <= self.size:
            return None
        last = float(np.sort(anchor)[-self.size])
        far = int(np.count_nonzero(~(anchor >= last - self.margin - _MARGIN_ROUNDING * max(1.0, abs(last)))))
        return Problem("mechanisms.beyond-margin", {"tokens": far, "size": self.size}) if far else None


class PublicPart(NamedTuple):
    """What a step takes from the public prompt.

    Attributes:
        support: int32 [S] ids of the tokens to sample from, ascending; None for the whole vocabulary.
        anchor: float32 [S], see `Contribution`; None without one.
    """

    support: NDArray[np.integer] | None = None
    anchor: Floats | None = None


def _chosen(part: str, given: object) -> type[_Part]:
    """Return the class that settings choose for a part; an error where there is none of that name."""
    if isinstance(given, Contribution | Aggregator | Draw):
        return type(given)
    known = _PARTS[part]
    if not isinstance(given, str) or given not in known:
        raise clash(part, given, " or ".join(map(repr, known)))
    return known[given]


def _is_spare(name: str, given: object, chosen: Mapping[str, type[_Part]]) -> bool:
    """Whether a field may be left out that no chosen part has: it is null. An error where it says anything."""
    owners = [(part, kind) for part, known in _PARTS.items() for kind in known.values() if name in kind.model_fields]
    if not owners:
        first = InitErrorDetails(type="extra_forbidden", loc=(str(name),), input=given)
        raise ValidationError.from_exception_data("Mechanism", [first])
    others = [(part, kind) for part, kind in owners if part in chosen]
    for part, kind in others:
        if given is not None:
            raise clash(name, given, f"null: {name} is for {part} {kind.name}, and this is {chosen[part].name}")
    return bool(others)


class Mechanism(Fields):
    """How a token is drawn from a batch, as a config asks for it and run.json declares it.

    Written flat: the names of contribution, aggregator and draw, their own fields beside them, and the rest. Of
    softmax, which is what a draw is unless another is named, nothing is written.

    Attributes:
        contribution: what one context gives.
        aggregator: how contributions become one vector.
        draw: how a token follows from that vector.
        temperature: what the aggregate is divided by; 1 where a draw has none.
        support: the tokens that are sampled from.
        budget: the most that one context may spend in a run, in nats of zCDP's rho, or one user's contexts together;
            before a draw that it cannot afford a context is left out. None where all take part in every draw.
    """

    contribution: SerializeAsAny[Contribution]
    aggregator: SerializeAsAny[Aggregator]
    draw: SerializeAsAny[Draw] = Softmax()
    temperature: Positive
    support: Support = Support()
    budget: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_flat_fields(cls, value: Any) -> Any:
        """Give contribution and aggregator the fields that are theirs."""
        if not isinstance(value, Mapping):
            return value
        rest = {"contribution": next(iter(CONTRIBUTIONS)), **value}
        chosen = {part: _chosen(part, rest[part]) for part in _PARTS if part in rest}
        own = {name for kind in chosen.values() for name in kind.model_fields}
        for name in [name for name in value if name not in own and name not in cls.model_fields]:
            if _is_spare(name, value[name], chosen):
                del rest[name]
        for part, kind in chosen.items():
            if isinstance(rest[part], Fields):
                continue
            given = {name: rest.pop(name) for name in kind.model_fields if name in rest}
            # JSON and YAML have lists where settings have tuples, and null is as good as absent.
            read = {name: tuple(field) if isinstance(field, list) else field for name, field in given.items()}
            rest[part] = kind.model_validate({name: field for name, field in read.items() if field is not None})
        return rest

    @model_validator(mode="after")
    def _anchors_round_less_than_is_allowed_for(self) -> Mechanism:
        eta = self.aggregator.eta(ContextChange("add_remove"), self.clip, self.temperature)
        least = LEAST_RANGE * (1 + 1 / self.temperature)
        if self.contribution.anchored and eta is not None and eta < least:
            allowed = f"so large that a draw's bounded range, {eta:.3g}, is at least {least:.3g}, or rounding counts"
            raise clash("clip", self.clip, allowed)
        return self

    @model_validator(mode="after")
    def _what_a_context_moves_is_its_own(self) -> Mechanism:
        if self.budget is not None and not self.aggregator.sums:
            allowed = f"null: what a context moves in a {self.aggregator.name} depends on the others"
            raise clash("budget", self.budget, allowed)
        return self

    @model_validator(mode="after")
    def _has_what_its_draw_needs(self) -> Mechanism:
        given = self.model_dump() if self.draw.needs else {}
        for field, needed in self.draw.needs.items():
            if (found := given.get(field)) != needed:
                raise clash(field, found, f"{'null' if needed is None else needed} with the draw {self.draw.name}")
        return self

    @model_serializer
    def _flat_fields(self) -> dict[str, Any]:
        return {
            "contribution": self.contribution.name,
            "aggregator": self.aggregator.name,
            **self.contribution.model_dump(),
            "temperature": self.temperature,
            **self.aggregator.model_dump(),
            **({} if isinstance(self.draw, Softmax) else {"draw": self.draw.name, **self.draw.model_dump()}),
            "support": self.support.model_dump(),
            **({} if self.budget is None else {"budget": self.budget}),
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The flat form's: a field that is another part's may be null."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        flat: dict[str, Any] = {
            name: field for name, field in schema.get("properties", {}).items() if name not in _PARTS
        }
        rules = []
        for part, known in _PARTS.items():
            flat[part] = {"enum": list(known)}
            own = {name: kind.model_json_schema()["properties"] for name, kind in known.items() if kind.model_fields}
            for fields in own.values():
                for field, described in fields.items():
                    flat[field] = described if "anyOf" in described else {"anyOf": [described, {"type": "null"}]}
            for name, kind in known.items():
                needed = [field for field, info in kind.model_fields.items() if info.is_required()]
                others = {field for fields in own.values() for field in fields} - set(kind.model_fields)
                # Strict validators want a property of each required field, beside `required`.
                there: dict[str, Any] = dict.fromkeys(sorted(needed), True)
                absent = {field: {"type": "null"} for field in sorted(others)}
                then = {"required": sorted(needed), "properties": there | absent}
                rules.append({"if": {"properties": {part: {"const": name}}, "required": [part]}, "then": then})
        required = ["aggregator", "temperature"]
        return schema | {"properties": flat, "required": required, "allOf": rules}

    @classmethod
    def flat_names(cls) -> list[str]:
        """The names that its fields may have, written flat."""
        parts: list[type[_Part]] = [kind for known in _PARTS.values() for kind in known.values()]
        return list(dict.fromkeys([*cls.model_fields, *(name for kind in parts for name in kind.model_fields)]))

    @property
    def clip(self) -> float:
        """Contributions lie in [-clip, clip]."""
        return self.contribution.clip

    @property
    def claim_kind(self) -> ClaimKind:
        """Return the kind of claim that a run states of itself."""
        return self.kinds[0]

    @property
    def kinds(self) -> tuple[ClaimKind, ...]:
        """Of claims that its runs support."""
        return self.draw.kinds(self.aggregator.kinds)

    @property
    def plug_ins(self) -> tuple[PlugIn, ...]:
        """What its parts came by that are not of dpaudit's core."""
        names = [
            getattr(self, part).name for part, known in _PARTS.items() if getattr(self, part).name not in known.own
        ]
        found = [plug_in(MECHANISMS, name) for name in names]
        return tuple(each for each in found if each is not None)

    def require_unclaimed(self) -> None:
        """Raise InputError where another package has the name of a part that is dpaudit's own."""
        for part, known in _PARTS.items():
            known.require_unclaimed(getattr(self, part).name)

    def inapplicable_reason(self, check: str) -> str:
        """Return why a check is not about it, as a code of the catalogue; empty where it is."""
        return self.draw.not_applicable.get(check) or self.aggregator.not_applicable.get(check, "")

    @property
    def in_blocks(self) -> bool:
        """Whether several steps may be looked at together, as one step of all their columns.

        What a plug-in's parts say may hang on the step as a whole, and what contexts spend hangs on the step before.
        """
        own = (getattr(self, part).name in known.own for part, known in _PARTS.items())
        return self.budget is None and all(own)

    @property
    def over_support(self) -> bool:
        """Whether contexts' logits are looked at over a truncated support alone."""
        return self.support.size is not None and self.contribution.over_support

    def public_part(self, logits: Floats, ruled: bool = False) -> PublicPart:
        """What a step takes from the public prompt's logits [V], as `Support.tokens` reads them.

        Raises:
            ValueError: they are no anchor.
        """
        support = self.support.tokens(logits, ruled)
        return PublicPart(support, self.contribution.anchor(logits if support is None else logits[support]))

    def arrays(self, contexts: int, width: int) -> dict[str, StepArray]:
        """What a step of so many contexts records, by name."""
        found = self.aggregator.arrays(contexts, width, self.clip)
        if self.contribution.anchored:
            found[ANCHOR] = StepArray("<f4")
        return found | self.draw.arrays()

    def aggregate(self, arrays: Arrays) -> Floats:
        """The vector [S] that was sampled from."""
        return self.draw.scores(with_anchor(arrays, self.aggregator.aggregate(arrays)), arrays, self.temperature)

    def odds(self, arrays: Arrays) -> Floats:
        """What softmax at the temperature gives each token's probability of, [S], over the noise that chooses it."""
        aggregate = with_anchor(arrays, self.aggregator.aggregate(arrays))
        return self.draw.odds(aggregate, arrays, self.temperature, self.aggregator, self.clip)

    def log_probability(self, scores: Floats, token: int, fixed: FixedColumns = NO_FIXED_COLUMNS) -> float:
        """Logarithm of a token's probability, in nats, given what it was drawn from, [S], and further columns."""
        return self.draw.log_probability(scores, token, self.temperature, fixed)

    def log_probabilities(self, steps: ReducedSteps) -> Doubles:
        """The same of reduced steps, [k], by what their records say that they were drawn from."""
        return self.draw.log_probabilities(self.aggregate(steps.arrays), steps, self.temperature)

    def box(self, arrays: Arrays, change: ContextChange) -> Box:
        """Where the aggregates of all neighbours lie. Raises ValueError where the arrays do not bound the change."""
        lower, center, upper = self.aggregator.box(arrays, change, self.clip)
        anchored = (with_anchor(arrays, values) for values in (lower, center, upper))
        low, mid, high = (self.draw.scores(values, arrays, self.temperature) for values in anchored)
        return low, mid, high

    def bounds(self, change: ContextChange, width: int) -> bool:
        """Whether a record of this width bounds a change."""
        return self.aggregator.width_for(change) <= width

    def eta(self, change: ContextChange) -> float | None:
        """Bounded range of one draw by softmax, in nats; None where nothing but the data bounds it.

        Infinite where it is not all that a token costs, and all tokens are bounded together (`rho`).
        """
        eta = self.aggregator.eta(change, self.clip, self.temperature)
        return eta if self._rho_by_draw(eta) is None else math.inf

    def _rho_by_draw(self, eta: float | None) -> float | None:
        return None if eta is None else self.draw.rho(eta, self.aggregator)

    def gaussian(self, change: ContextChange | None) -> GaussianDraws | None:
        """What draws by noise cost; None of those by softmax.

        Accountants know it where one context comes or goes. Whatever else changes, nothing is known: rate 1, no noise.
        """
        draws = self.draw.gaussian
        return draws if draws is None or change == ContextChange("add_remove") else GaussianDraws(0.0, 1.0)

    def rho(self, change: ContextChange) -> float | None:
        """zCDP of a run of any number of tokens, rounded up: by its draw, or its contexts' budgets; None without these.

        What several contexts pay adds up by its roots, for their ranges do: each has the budget, and at every draw the
        root of what all of them pay is at most the sum of the roots (docs/budgets.md, "Individual budgets").
        """
        by_draw = self._rho_by_draw(self.aggregator.eta(change, self.clip, self.temperature))
        if by_draw is not None:
            return by_draw if change == ContextChange("add_remove") else math.inf
        if self.budget is None:
            return None
        return self.budget if change.budgets == 1 else math.nextafter(self.budget * change.budgets**2, math.inf)

    def sure_draws(self, budget: float) -> int:
        """How many draws a budget pays for, whatever its context gives."""
        dearest = float(self.costs(np.array([[-self.clip, self.clip]]))[0])
        # A relative 2^-30 for the rounding of the sum, up to a million draws.
        return math.floor(budget / dearest * (1 - 2.0**-30)) if dearest else 0

    def spend(self, contributions: Floats, spent: Doubles, budgets: Doubles | None = None) -> Doubles:
        """What contexts have spent after a draw, [n]; before it they had `spent`. It grows for those that take part.

        Args:
            contributions: [n, S] of all of them.
            spent: [n], in nats of rho.
            budgets: [n], of each of them; None where each has the mechanism's.
        """
        assert self.budget is not None, "without budgets every context takes part"
        after = charged(spent, self.costs(contributions))
        return np.where(after <= (self.budget if budgets is None else budgets), after, spent)

    def costs(self, contributions: Floats) -> Doubles:
        """rho of one draw for each context by its own contributions [n, S]: [n], above 0, rounded up."""
        return zcdp_of_draw(self.aggregator.ranges(contributions, self.clip, self.temperature))

    def reduced(self, arrays: Arrays, token: int, aggregate: Floats | None = None) -> ReducedStep:
        """A step less the columns that no neighbour can move.

        Args:
            arrays: the step's, [..., S].
            token: the sampled token's index along S.
            aggregate: [S] of these arrays, where it is known already.

        The token's own column is kept.

        Raises:
            ValueError: the token is not among them.
        """
        aggregate = self.aggregate(arrays) if aggregate is None else aggregate
        if not 0 <= token < len(aggregate):
            raise ValueError(f"token {token} is not among the {len(aggregate)} tokens")
        return self.reduced_steps(arrays, np.array([token]), Spans([len(aggregate)]), aggregate).one(0)

    def reduced_steps(self, arrays: Arrays, tokens: NDArray[np.intp], spans: Spans, aggregate: Floats) -> ReducedSteps:
        """The same of k steps, whose columns lie one behind another: arrays [..., columns], tokens' columns [k]."""
        with np.errstate(all="ignore"):  # what a corrupt record's infinite values give, accountants refuse
            movable = self.aggregator.movable(arrays)
            if movable is None:
                nothing = np.zeros(len(spans))
                return ReducedSteps(
                    arrays, tokens, spans, np.full(len(spans), -np.inf), nothing.astype(np.intp), nothing
                )
            kept = movable.copy()
            kept[tokens] = True
            columns, fixed = np.flatnonzero(kept), aggregate.take(np.flatnonzero(~kept))
            left = Spans(spans.counts(kept))
            others = Spans(spans.lengths - left.lengths)
            values = [fixed[span] for span in others.slices]
            largest = [float(max(-each.min(), each.max())) if len(each) else 0.0 for each in values]
            beside = {name for name, array in self.draw.arrays().items() if not array.columns}
            return ReducedSteps(
                {name: array if name in beside else array.take(columns, axis=-1) for name, array in arrays.items()},
                np.searchsorted(columns, tokens),
                left,
                np.array([log_sum_exp(each, self.temperature) for each in values]),
                others.lengths,
                np.array(largest),
            )

    def losses(self, step: ReducedStep, contributions: Floats | None, contexts: int) -> Doubles | None:
        """log p(token) - log p(token without context i), in nats, for every context; None where the record has none."""
        return self.aggregator.losses(step, contributions, contexts, self.temperature) if self.draw.ex_post else None

    def losses_of_steps(self, steps: ReducedSteps, contributions: Floats | None, contexts: int) -> Doubles | None:
        """The same of k steps, [contexts, k]; None where the record of any has none."""
        if not self.draw.ex_post:
            return None
        return self.aggregator.losses_of_steps(steps, contributions, contexts, self.temperature)

    def with_context(self, arrays: Arrays, values: Doubles) -> Floats | None:
        """What is sampled from, [S], once a context with these contributions [S] joins; None where it is not known."""
        joined = self.aggregator.with_context(arrays, values) if self.draw.ex_post else None
        return None if joined is None else with_anchor(arrays, joined)
