"""A distinguishing attack on a step mechanism: texts from two neighbours, with exact log-ratios.

The mechanism is a black box that turns contexts' logits into a distribution. Each text's log-ratio
is held against the ex-post bound that the declared accounting gives for that very text, and all of
them together bound the mechanism's epsilon from below. See docs/replay.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dpaudit.accounting import ExPostAccountant, LowerBound, epsilon_lower_bound
from dpaudit.generation.aggregation import NOTHING_PUBLIC, Budgets, Floats, aggregated
from dpaudit.generation.passes import CachedPrompts, next_logits
from dpaudit.generation.sampling import OsEntropy, sample
from dpaudit.mechanisms import ContextChange, Mechanism, PublicPart, Relation
from dpaudit.results import Finding, Quantity
from dpaudit.results.replay import Attacked

Doubles: TypeAlias = NDArray[np.float64]
#: One step as a black box: (raw logits float32 [n, V], what is public) -> log-probabilities float64
#: [S] in nats.
StepMechanism: TypeAlias = Callable[[Floats, PublicPart], Doubles]
#: What differs between the neighbours: a record's context, or logits that raise or lower one token
#: as far as any can.
Canary: TypeAlias = Literal["record", "raise", "lower"]
CANARIES: tuple[Canary, ...] = get_args(Canary)

#: A log-ratio this far beyond its bound, in nats, is no rounding: float32 log-probabilities keep
#: within a tenth of it.
SLACK = 1e-3
#: How much further than the clip a crafted canary's logits reach. Clipping hides it; a mechanism
#: without shows it.
LOUD = 1000.0


def declared_step(mechanism: Mechanism) -> StepMechanism:
    """Return the mechanism that a manifest declares, as `dpaudit generate` runs it."""

    def step(logits: Floats, public: PublicPart) -> Doubles:
        arrays = aggregated(logits, public, mechanism)
        scores = mechanism.aggregate(arrays).astype(np.float64) / mechanism.temperature
        scores -= scores.max()
        result: Doubles = scores - np.log(np.exp(scores).sum())
        return result

    return step


def attack(
    step: StepMechanism,
    private: CachedPrompts,
    public: CachedPrompts,
    declared: Mechanism,
    *,
    relation: Relation = "add_remove",
    ruled: bool = False,
    delta: float = 0.0,
    confidence: float = 0.95,
    trials: int,
    tokens: int,
    progress: Callable[[], None] | None = None,
) -> Attacked:
    """Generate texts from both of two neighbours, with each canary, and weigh their log-ratios.

    Args:
        step: the mechanism, as it really is.
        private: a batch's contexts before the first token, and last a canary record's context as
            one more.
        public: the public prompt before the first token; not looked at where the mechanism takes
            nothing from it.
        declared: the mechanism as it is accounted for. Of both prompts only forks are changed.
        relation: the neighbours are the batch and the batch with a canary more, or with one in its
            first context's place.
        ruled: whether decoding rules take tokens out of supports; `public` has the logit -inf for
            them then.
        delta, confidence: of the lower bound (`epsilon_lower_bound`).
        trials: texts from either side with each canary, at least 1.
        tokens: length of each, at least 1. Any length will do: a guarantee covers every prefix.
        progress: called after every text.

    Raises:
        ValueError: the model gave logits that no mechanism can use, or an argument is out of its
            range.
    """
    text = partial(_text, step, private, public, declared, relation, ruled, tokens)
    bounds: list[LowerBound] = []
    texts: list[_Text] = []
    share = 1 - (1 - confidence) / len(CANARIES)
    for canary in CANARIES:
        sides: tuple[list[float], list[float]] = ([], [])
        for _ in range(trials):
            for side, losses in enumerate(sides):
                texts.append(text(canary, side))
                losses.append(texts[-1].loss)
                if progress is not None:
                    progress()
        bounds.append(epsilon_lower_bound(np.array(sides[0]), np.array(sides[1]), delta, share))
    strongest = max(bounds, key=lambda bound: (bound.epsilon, bound.estimate))
    beyond = [text for text in texts if text.excess > SLACK]
    worst = None
    if beyond:
        loss, fall, rise = max(beyond, key=lambda text: text.excess)
        bound = fall if loss > 0 else rise
        ratio, allowed = (Quantity(value=value, unit="nats") for value in (abs(loss), bound))
        worst = Finding(code="replay.beyond-bound", values={"ratio": ratio, "allowed": allowed})
    return Attacked(
        replace(strongest, confidence=confidence), len(CANARIES) * trials, len(beyond), worst
    )


class _Text(NamedTuple):
    """A text's log-ratio, own side over other, and its bounds by the accounting, in nats.

    The bounds say how far the log-ratio may fall and rise.
    """

    loss: float
    fall: float
    rise: float

    @property
    def excess(self) -> float:
        """The distance of the log-ratio beyond its bound in either direction; negative inside."""
        return max(self.loss - self.fall, -self.loss - self.rise)


def _text(
    step: StepMechanism,
    private: CachedPrompts,
    public: CachedPrompts,
    declared: Mechanism,
    relation: Relation,
    ruled: bool,
    tokens: int,
    canary: Canary,
    side: int,
) -> _Text:
    """Generate a text from a side (0 without the canary, 1 with it), by the system's entropy."""
    private, public, entropy = private.fork(), public.fork(), OsEntropy()
    accountant, loss = ExPostAccountant(declared, ContextChange(relation)), 0.0
    budgets = Budgets(declared), Budgets(declared)
    for position in range(tokens):
        logits = next_logits(public)  # none where nothing is taken from it
        part = declared.public_part(logits[0], ruled) if len(logits) else NOTHING_PUBLIC
        both = _neighbours(step, next_logits(private), part, declared.clip, relation, canary)
        neighbours = [own.paying(logits, part) for own, logits in zip(budgets, both, strict=True)]
        here, there = (step(neighbours[which], part) for which in (side, 1 - side))
        index = sample(here, 1.0, entropy).index
        loss += float(here[index] - there[index])
        accountant.charge(0, declared.reduced(aggregated(neighbours[side], part, declared), index))
        if position + 1 < tokens:
            for prompts in (private, public):
                prompts.append(index if part.support is None else int(part.support[index]))
    cost = accountant.batch_cost(0)
    return _Text(loss, cost.fall, cost.rise)


def _neighbours(
    step: StepMechanism,
    logits: Floats,
    public: PublicPart,
    clip: float,
    relation: Relation,
    canary: Canary,
) -> tuple[Floats, Floats]:
    """Return raw logits [n, V] of the batch without the canary, and with it.

    The canary is one more context, or takes the first context's place.
    """
    replaced = 0 if relation == "add_remove" else 1
    first, kept = logits[:replaced], logits[replaced:-1]
    added = logits[-1:]
    if canary != "record":
        # The adversary knows all other contexts, so it can aim at what they make likeliest.
        aim = int(step(kept, public).argmax())
        token = aim if public.support is None else int(public.support[aim])
        raised = canary == "raise"
        added = _crafted(raised, token, logits.shape[1], clip)
        first = _crafted(not raised, token, logits.shape[1], clip)[: len(first)]
    return np.concatenate([first, kept]), np.concatenate([added, kept])


def _crafted(raised: bool, token: int, vocabulary: int, clip: float) -> Floats:
    """Return a context that moves one token against all others, as far as clipping allows: [1, V].

    It is [1, V]. Added contexts of this kind attain the exact ex-post bound (docs/mathematics.md,
    "Exact cost"), but for differences, which no probabilities take all the way up.
    """
    low, high = -LOUD * clip, 0
    row = np.full((1, vocabulary), low if raised else high, dtype=np.float32)
    row[0, token] = high if raised else low
    return row
