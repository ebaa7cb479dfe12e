"""The attack against honest mechanisms, which it must not flag, and broken ones, which it must."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpaudit.accounting import ApproximateAccountant
from dpaudit.generation.aggregation import NOTHING_PUBLIC, Floats, contributions
from dpaudit.generation.attack import CANARIES, Doubles, StepMechanism, attack, declared_step
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import CachedPrompts
from dpaudit.generation.prompts import Prompts, template
from dpaudit.generation.records import Record
from dpaudit.mechanisms import ContextChange, Mechanism, PublicPart, Relation
from dpaudit.mechanisms import Support as Declared
from dpaudit.results.replay import Attacked
from tests.nesting import mechanism_with

CLIP = 6.0
MEDIAN = mechanism_with({"aggregator": "median", "clip": CLIP, "temperature": 1.0})
MEAN = mechanism_with({"aggregator": "mean", "clip": CLIP, "temperature": 1.0, "divisor": 8.0})
DELTA = 1e-3
#: Log-probabilities of a toy model's 50 tokens: all on the first, all on the second, half on
#: either.
FIRST, SECOND, EITHER = np.full((3, 50), -np.inf)
FIRST[0] = SECOND[1] = 0.0
EITHER[:2] = np.log(0.5)


@dataclass
class ToyModel:
    """Contexts whose logits are a hash of the text so far.

    They are alike in shape and apart in height, as a model's are. With `public` it is the public
    prompt, whose logits they share.
    """

    contexts: int
    seed: int
    public: bool = False
    text: tuple[int, ...] = ()
    vocabulary: int = 50

    @property
    def logits(self) -> torch.Tensor:
        generator, rows = np.random.default_rng((self.seed, *self.text)), self.contexts + 1
        shared = 3 * generator.standard_normal(self.vocabulary)
        own = generator.standard_normal((rows, self.vocabulary)) + 4 * generator.standard_normal(
            (rows, 1)
        )
        return torch.from_numpy((shared[None] if self.public else shared + own).astype(np.float32))

    def logits_over(self, support: NDArray[np.integer]) -> torch.Tensor:
        return self.logits[:, torch.as_tensor(support)]

    def append(self, token: int) -> None:
        self.text = (*self.text, token)

    def fork(self) -> ToyModel:
        return replace(self)


def delta_of(declared: Mechanism) -> float:
    return DELTA if declared.claim_kind == "approximate" else 0.0


def claimed(declared: Mechanism, tokens: int, relation: Relation = "add_remove") -> float:
    """What so many tokens are accounted for beforehand; infinite where nothing is."""
    accountant = ApproximateAccountant.of(declared, ContextChange(relation))
    return np.inf if accountant is None else accountant.epsilon(tokens, DELTA).epsilon


def attacked(
    step: StepMechanism,
    declared: Mechanism,
    contexts: int = 8,
    *,
    seed: int = 0,
    relation: Relation = "add_remove",
    trials: int = 12,
    tokens: int = 4,
    top_k: int | None = None,
    delta: float | None = None,
) -> Attacked:
    if delta is None:
        delta = delta_of(declared)
    if top_k is not None:
        declared = declared.model_copy(
            update={"support": Declared(kind="public-top-k", size=top_k)}
        )
    model, public = ToyModel(contexts, seed), ToyModel(contexts, seed, public=True)
    return attack(
        step, model, public, declared, relation=relation, delta=delta, trials=trials, tokens=tokens
    )


def log_softmax(scores: np.ndarray) -> Doubles:
    shifted = scores.astype(np.float64) - scores.max()
    result: Doubles = shifted - np.log(np.exp(shifted).sum())
    return result


def unclipped_mean(logits: Floats, public: PublicPart) -> Doubles:
    return log_softmax(logits.sum(axis=0) / 8.0)


def unclipped_median(logits: Floats, public: PublicPart) -> Doubles:
    return log_softmax(np.median(logits, axis=0))


def loudest_context(logits: Floats, public: PublicPart) -> Doubles:
    """The context with the highest confidence speaks for all."""
    each = np.array(
        [log_softmax(row) for row in contributions(logits, NOTHING_PUBLIC, MEDIAN.contribution)]
    )
    result: Doubles = each[each.max(axis=1).argmax()]
    return result


def told_by_number(eight: Doubles, other: Doubles) -> StepMechanism:
    """A mechanism that gives away if there are eight contexts, `attacked`'s number, or another."""
    return lambda logits, public: eight if len(logits) == 8 else other


def colder(declared: Mechanism) -> StepMechanism:
    """Sampled at half of the temperature that is accounted for."""
    return declared_step(declared.model_copy(update={"temperature": declared.temperature / 2}))


@given(
    contexts=st.integers(0, 12),
    seed=st.integers(0, 2**32),
    relation=st.sampled_from(["add_remove", "replace"]),
    declared=st.sampled_from([MEDIAN, MEAN]),
    top_k=st.sampled_from([None, 1, 7]),
)
@settings(max_examples=40, deadline=None)
def test_an_honest_mechanism_is_not_flagged(
    contexts: int, seed: int, relation: Relation, declared: Mechanism, top_k: int | None
) -> None:
    # A context can only be replaced where there is one.
    contexts = max(contexts, relation == "replace")
    found = attacked(
        declared_step(declared),
        declared,
        contexts,
        seed=seed,
        relation=relation,
        trials=3,
        tokens=3,
        top_k=top_k,
    )
    assert (found.beyond, found.worst) == (0, None)
    assert found.bound.epsilon <= claimed(declared, 3, relation)


def test_many_texts_of_an_honest_mechanism_stay_within_their_bounds() -> None:
    for declared in (MEDIAN, MEAN):
        found = attacked(declared_step(declared), declared, trials=30)
        assert found.trials == len(CANARIES) * 30
        assert found.beyond == 0
        assert 0 < found.bound.epsilon <= found.bound.estimate + 1e-9
        assert (found.bound.delta, found.bound.confidence) == (delta_of(declared), 0.95)


def test_a_broken_mechanism_is_caught() -> None:
    broken: list[tuple[StepMechanism, Mechanism, tuple[int, int]]] = [
        (unclipped_mean, MEAN, (1, 8)),
        (unclipped_median, MEDIAN, (8, 9)),
        (loudest_context, MEDIAN, (1, 9)),
        (colder(MEDIAN), MEDIAN, (1, 8)),
    ]
    for step, declared, sizes in broken:
        for contexts in sizes:
            found = attacked(step, declared, contexts, trials=12)
            assert found.beyond > 0
            assert found.worst is not None and "replay.beyond-bound" in str(found.worst)
    # Few contexts leave the mean flat, and a single one cannot make it cold enough to notice; 32
    # can.
    assert attacked(colder(MEAN), MEAN, 32, trials=12).beyond > 0


def test_the_lower_bound_alone_refutes_the_claim_of_a_mean_without_a_clip() -> None:
    assert attacked(declared_step(MEAN), MEAN, trials=30).bound.epsilon < claimed(MEAN, 4)
    assert attacked(unclipped_mean, MEAN, trials=30).bound.epsilon > claimed(MEAN, 4)


def test_a_support_that_follows_the_contexts_gives_an_infinite_log_ratio() -> None:
    def private_top(logits: Floats, public: PublicPart) -> Doubles:
        scores = declared_step(MEDIAN)(logits, public)
        cut = np.full_like(scores, -np.inf)
        kept = np.argsort(scores)[-2:]
        cut[kept] = log_softmax(scores[kept])
        return cut

    found = attacked(private_top, MEDIAN, 3, trials=40)
    assert found.beyond > 0
    assert found.bound.epsilon == np.inf


def test_the_adversarial_canaries_attain_the_bound() -> None:
    """One token of the likeliest kind: its exact cost is met, so no smaller bound would hold."""
    colder_by_little = MEDIAN.model_copy(update={"temperature": 0.98})
    for relation in get_args(Relation):
        for step, flagged in (
            (declared_step(MEDIAN), False),
            (declared_step(colder_by_little), True),
        ):
            assert (
                attacked(step, MEDIAN, relation=relation, trials=60, tokens=1).beyond > 0
            ) == flagged


def test_every_canary_has_its_share_of_the_chance_of_error() -> None:
    """Neighbours without a text in common: the mass that n texts prove is (error / 2n)^(1/n)."""
    trials, share = 4, 0.05 / len(CANARIES)
    proved = (share / (2 * trials)) ** (1 / trials)
    for delta, epsilon in ((proved * 0.99, np.inf), (proved * 1.01, 0.0)):
        found = attacked(
            told_by_number(FIRST, SECOND), MEDIAN, trials=trials, tokens=1, delta=delta
        )
        assert (found.bound.epsilon, found.bound.estimate, found.bound.confidence) == (
            epsilon,
            np.inf,
            0.95,
        )


def test_texts_of_both_sides_count() -> None:
    """A token that one side alone can give shows only in the texts of that side."""
    for sides in ((FIRST, EITHER), (EITHER, FIRST)):
        assert attacked(told_by_number(*sides), MEDIAN, trials=40, tokens=1).bound.epsilon == np.inf


def test_a_replaced_context_leaves_their_number_as_it_is() -> None:
    step = told_by_number(FIRST, SECOND)
    assert attacked(step, MEDIAN, trials=1).bound.epsilon == np.inf
    found = attacked(step, MEDIAN, relation="replace", trials=1)
    assert (found.beyond, found.bound.epsilon) == (0, 0.0)


def test_a_mechanism_that_breaks_at_the_second_token_is_caught() -> None:
    start = ToyModel(8, 0).logits.numpy()

    def step(logits: Floats, public: PublicPart) -> Doubles:
        broken = not (logits == start[1]).all(axis=1).any()
        return (unclipped_median if broken else declared_step(MEDIAN))(logits, public)

    assert attacked(step, MEDIAN, trials=60, tokens=1).beyond == 0
    assert attacked(step, MEDIAN, trials=60, tokens=2).beyond > 0


def test_a_text_goes_on_with_the_tokens_it_was_given_in_forks_alone() -> None:
    """The contexts see the vocabulary's tokens, not their places in the support."""
    seen: set[tuple[int, ...]] = set()

    class Watched(ToyModel):
        @property
        def logits(self) -> torch.Tensor:
            seen.add(self.text)
            return super().logits

    for top_k in (None, 7):
        seen.clear()
        support = Declared() if top_k is None else Declared(kind="public-top-k", size=top_k)
        declared, model, public = (
            MEDIAN.model_copy(update={"support": support}),
            Watched(8, 0),
            ToyModel(8, 0, True),
        )
        attack(declared_step(declared), model, public, declared, trials=8, tokens=3)
        assert {len(text) for text in seen} == {0, 1, 2}
        assert model.text == public.text == ()
        if top_k is not None:
            assert {text[0] for text in seen if text} <= set(
                support.tokens(public.logits[0].numpy()).tolist()
            )


def cached(
    model: LanguageModel, top_k: int | None = None
) -> tuple[tuple[CachedPrompts, CachedPrompts], Mechanism]:
    prompts = Prompts(model, template("pt", model.tokenizer), ["sport"], 1, 16)
    records = [
        Record("sport", text)
        for text in ("the match", "a goal at last", "he ran far", "zebra " * 9)
    ]
    private = prompts.alone("sport", [(record,) for record in records], 8, 4)
    support = Declared() if top_k is None else Declared(kind="public-top-k", size=top_k)
    return (private, prompts.public("sport", 8, top_k is not None)), MEDIAN.model_copy(
        update={"support": support}
    )


def test_with_a_model_of_transformers(tiny: LanguageModel) -> None:
    for contexts, declared in (cached(tiny), cached(tiny, 20)):
        assert attack(declared_step(declared), *contexts, declared, trials=2, tokens=3).beyond == 0
        assert attack(colder(declared), *contexts, declared, trials=40, tokens=1).beyond > 0


@pytest.mark.slow
@pytest.mark.model
def test_with_smollm2(smollm2: LanguageModel) -> None:
    contexts, declared = cached(smollm2)
    assert attack(declared_step(declared), *contexts, declared, trials=1, tokens=2).beyond == 0
    # The first token's logits are there already, so many texts of one token cost nothing.
    assert attack(declared_step(declared), *contexts, declared, trials=4, tokens=1).beyond == 0
    assert attack(colder(declared), *contexts, declared, trials=8, tokens=1).beyond > 0
