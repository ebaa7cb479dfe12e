"""Shared forward passes against the model's own way, each other, and other architectures."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers.cache_utils import Cache

from dpaudit.generation.model_probe import passes_for
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import OwnCache, Passes, SharedPasses, out_of_memory

PLACES, TOKENS = 16, 6
ONE = [[5], [7, 8, 9, 10, 11, 12, 13], [20, 21, 22]]
OTHER = [[7, 8, 40, 41], [7, 8, 9], [60], [61, 62], [63] * 15]
CONTINUATION = (30, 31, 5)


def shared(model: LanguageModel, rows: int = 8, tokens: int = TOKENS) -> SharedPasses:
    passes = SharedPasses.fit(model, rows, PLACES, tokens)
    assert passes is not None
    return passes


def along(
    passes: Passes,
    prompts: list[list[int]],
    prefix: tuple[int, ...] = (),
    places: int | None = None,
) -> np.ndarray:
    """[steps, n, V] along the continuation."""
    batch = passes.start(prompts, prefix, places)
    found = [batch.logits.clone()]
    for token in CONTINUATION:
        batch.append(token)
        found.append(batch.logits.clone())
    return torch.stack(found).numpy()


def gap(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def test_shared_passes_give_the_models_own_logits(tiny: LanguageModel) -> None:
    own = along(Passes(tiny, 8, PLACES), ONE + OTHER)
    for rows, prefix in ((1, ()), (4, (7,)), (8, (7, 8)), (4, (7, 8)), (8, (1, 2)), (1, (7,))):
        assert gap(own, along(shared(tiny, rows), ONE + OTHER, prefix)) < 1e-4


def test_less_padding_gives_the_same_logits_in_fewer_places(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One prompt of them is longer than its label's places."""
    own, computed = along(Passes(tiny, 8, PLACES), ONE + OTHER), list[int]()
    forward = type(tiny.network).forward

    def counted(self: Any, input_ids: torch.Tensor, **rest: Any) -> Any:
        computed.append(input_ids.numel())
        return forward(self, input_ids, **rest)

    counted.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(tiny.network), "forward", counted)
    for prefix, places in (((), 9), ((7, 8), 9), ((7,), 8), ((1, 2), 9), ((7, 8), 2), ((), 99)):
        passes = shared(tiny)
        rows = passes.start([[9] * (PLACES - 1)] * 8)  # which leaves all its places behind
        passes.finish(rows)
        computed.clear()
        found = along(passes, ONE + OTHER, prefix, places)
        assert gap(own, found) < 1e-4
        assert np.array_equal(found, along(shared(tiny), ONE + OTHER, prefix, places))
        without = along(shared(tiny), [ONE[0], ONE[2]], prefix, places)
        assert np.array_equal(found[:, [0, 2]], without), "removed contexts move no bit"
    assert sum(computed[:1]) == 8 * PLACES
    computed.clear()
    along(shared(tiny), ONE, (), 9)
    assert computed[0] == 4 * 9


def beside_others(model: LanguageModel, lag: int, first: list[list[int]]) -> np.ndarray:
    """ONE's logits where `first` came before it and went on with tokens of its own."""
    passes = shared(model, rows=16)
    early = passes.start(first)
    for token in range(lag):
        early.append(50 + token)
    batch = passes.start(ONE)
    found = [batch.logits.clone()]
    for position, token in enumerate(CONTINUATION):
        passes.advance(
            [(early, 70 + position), (batch, token)]
            if lag + position < TOKENS
            else [(batch, token)]
        )
        found.append(batch.logits.clone())
    return torch.stack(found).numpy()


def assert_independent(model: LanguageModel) -> None:
    alone = along(shared(model), ONE)
    for lag, first in ((0, OTHER), (2, OTHER), (5, OTHER[:1]), (1, [[9]] * 12)):
        assert np.array_equal(alone, beside_others(model, lag, first))
    assert np.array_equal(alone[:, [0, 2]], along(shared(model), [ONE[0], ONE[2]])), (
        "a removed context moves no bit"
    )
    assert np.array_equal(alone[:, ::-1], along(shared(model), ONE[::-1]))
    assert np.array_equal(alone, along(shared(model, rows=64), ONE))
    assert np.array_equal(alone, along(shared(model, rows=1), ONE))


def test_no_bit_of_a_contexts_logits_depends_on_other_contexts(tiny: LanguageModel) -> None:
    """The accounting takes a context's logits to depend on it alone, rounding included."""
    assert_independent(tiny)


@pytest.mark.model
def test_smollm2s_shared_passes_give_its_own_logits_whoever_shares_them(
    smollm2: LanguageModel,
) -> None:
    own, alone = along(Passes(smollm2, 8, PLACES), ONE + OTHER), along(shared(smollm2), ONE)
    assert gap(own, along(shared(smollm2), ONE + OTHER, (7, 8))) < 1e-3
    assert np.array_equal(alone, beside_others(smollm2, 2, OTHER))


@pytest.mark.slow
@pytest.mark.model
def test_no_bit_of_a_contexts_logits_depends_on_other_contexts_with_smollm2(
    smollm2: LanguageModel,
) -> None:
    assert_independent(smollm2)


def test_nor_does_it_in_passes_of_a_batchs_own(tiny: LanguageModel) -> None:
    whole = along(Passes(tiny, 8, PLACES), ONE + OTHER)
    for n in range(1, len(ONE + OTHER)):
        assert np.array_equal(whole[:, :n], along(Passes(tiny, 8, PLACES), (ONE + OTHER)[:n]))


def test_rows_of_those_who_left_are_taken_again(tiny: LanguageModel) -> None:
    passes = shared(tiny, rows=4)
    alone = along(shared(tiny), ONE)
    for _ in range(3):
        assert passes.fits(3)
        batch = passes.start(ONE)
        assert not passes.fits(2)
        assert passes.fits(1)
        assert np.array_equal(batch.logits.numpy(), alone[0])
        batch.append(CONTINUATION[0])
        assert np.array_equal(batch.logits.numpy(), alone[1])
        passes.finish(batch)


def test_a_batch_that_is_larger_than_a_pass_takes_several(tiny: LanguageModel) -> None:
    passes = shared(tiny, rows=4)
    assert passes.fits(len(ONE + OTHER))
    assert np.array_equal(along(passes, ONE + OTHER), along(shared(tiny, rows=16), ONE + OTHER))


def test_a_batchs_logits_hold_no_more_memory_than_most_of_it_needs(tiny: LanguageModel) -> None:
    """Not even where every batch is fed in a pass of its own, as after memory ran out."""
    passes = shared(tiny, rows=16)
    batches = [passes.start([[5], [7, 9]]) for _ in range(8)]

    def held() -> float:
        own = sum(batch.logits.nbytes for batch in batches)
        return (
            sum(
                {
                    (s := batch.logits.untyped_storage()).data_ptr(): s.nbytes()
                    for batch in batches
                }.values()
            )
            / own
        )

    for batch in batches:
        batch.append(3)
    assert held() <= 2
    passes.advance([(batch, 4) for batch in batches])
    assert held() <= 2


def test_forks_go_on_apart(tiny: LanguageModel) -> None:
    passes = shared(tiny)
    batch = passes.start(ONE)
    batch.append(30)
    fork = batch.fork()
    fork.append(44)
    fork.append(45)
    batch.append(31)
    again = fork.fork()
    batch.append(5)
    again.append(46)
    assert np.array_equal(batch.logits.numpy(), along(shared(tiny), ONE)[-1])
    straight = shared(tiny).start(ONE)
    for token in (30, 44, 45, 46):
        straight.append(token)
    assert np.array_equal(again.logits.numpy(), straight.logits.numpy())


def test_no_prompts_have_no_logits_and_one_that_leaves_no_padding_is_refused(
    tiny: LanguageModel,
) -> None:
    for made in (shared(tiny), Passes(tiny, 8, PLACES)):
        batch = made.start([])
        made.advance([(batch, 3)])
        batch.append(4)
        assert tuple(batch.logits.shape) == (0, tiny.vocabulary)
        with pytest.raises(ValueError, match="shorter than the 16 places"):
            made.start([[1] * PLACES])


SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
WIDE = SIZES | {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 16}


def made_of(config: transformers.PreTrainedConfig) -> LanguageModel:
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(config).eval()
    return LanguageModel(network, None, "", 96)  # type: ignore[arg-type]


def test_architectures_that_share_passes_and_some_whose_caches_are_of_another_kind() -> None:
    for config in (
        transformers.LlamaConfig(**WIDE),
        transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=2),
        transformers.Gemma2Config(**WIDE, sliding_window=64, attn_implementation="eager"),
        transformers.MistralConfig(**WIDE, sliding_window=23),
        transformers.Qwen2Config(**WIDE),
    ):
        model = made_of(config)
        assert isinstance(passes_for(model, 8, PLACES, TOKENS), SharedPasses), config.model_type
        assert gap(along(Passes(model, 8, PLACES), ONE), along(shared(model), ONE, (7,))) < 1e-4
    for config in (
        transformers.MistralConfig(**WIDE, sliding_window=22),
        transformers.Lfm2Config(**WIDE, layer_types=["conv", "full_attention"]),
        transformers.BloomConfig(vocab_size=96, hidden_size=16, n_layer=2, n_head=2),
    ):
        passes = passes_for(made_of(config), 8, PLACES, TOKENS)
        assert not isinstance(passes, SharedPasses), config.model_type
        assert along(passes, ONE).shape == (4, 3, 96)


def test_passes_that_a_model_misreads_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that took positions from the cache's length, say, would give other logits."""
    # positions then tell in the logits
    config = transformers.LlamaConfig(**WIDE, initializer_range=0.5)
    assert isinstance(passes_for(made_of(config), 8, PLACES, TOKENS), SharedPasses)
    model = made_of(config)
    own = model.network.forward

    def misread(**arguments: Any) -> Any:
        if (
            isinstance(arguments.get("past_key_values"), Cache)
            and arguments["input_ids"].shape[1] == 1
        ):
            arguments["position_ids"] = arguments["position_ids"] + 7 * (
                type(arguments["past_key_values"]) is Cache
            )
        return own(**arguments)

    misread.__signature__ = __import__("inspect").signature(own)  # type: ignore[attr-defined]
    monkeypatch.setattr(model.network, "forward", misread)
    assert not isinstance(passes_for(model, 8, PLACES, TOKENS), SharedPasses)


def test_own_passes_have_room_for_rows_of_contexts(tiny: LanguageModel) -> None:
    passes = Passes(tiny, 4, PLACES)
    assert passes.fits(9)
    batch = passes.start(ONE)
    assert isinstance(batch, OwnCache)
    assert passes.fits(1)
    assert not passes.fits(2)
    passes.finish(batch)
    assert passes.fits(9)


def test_what_means_that_memory_ran_out() -> None:
    allocator = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError(allocator),
    ):
        assert out_of_memory(error)
    assert out_of_memory(RuntimeError("not enough memory: you tried to allocate 8"))
    assert not out_of_memory(RuntimeError("size mismatch"))
    assert not out_of_memory(ValueError("out of memory"))


PADDED = [[5], [7, 8, 9, 10, 11, 12, 13], [20, 21, 22], [7, 8, 9]]


def all_logits(model: LanguageModel, prompts: list[list[int]]) -> np.ndarray:
    """[steps, n, V] along the continuation."""
    cached = OwnCache(model, prompts, PLACES)
    steps = [cached.logits.numpy()]
    for token in CONTINUATION:
        cached.append(token)
        steps.append(cached.logits.numpy())
    return np.stack(steps)


def difference_alone(model: LanguageModel) -> float:
    together = all_logits(model, PADDED)
    alone = np.concatenate([all_logits(model, [prompt]) for prompt in PADDED], axis=1)
    assert together.dtype == np.float32
    assert together.shape == (4, len(PADDED), model.vocabulary)
    return float(np.abs(together - alone).max())


def test_prompts_together_give_the_logits_of_each_alone(tiny: LanguageModel) -> None:
    assert tiny.vocabulary == 272 > len(tiny.tokenizer)
    assert difference_alone(tiny) < 1e-4


@pytest.mark.model
def test_prompts_together_give_the_logits_of_each_alone_with_smollm2(
    smollm2: LanguageModel,
) -> None:
    """Other prompts move no bit: the accounting takes a context's logits to depend on it alone."""
    assert difference_alone(smollm2) < 1e-3
    longest, shortest = [40] * (PLACES - 1), [41]
    before, after = (all_logits(smollm2, [*PADDED, other]) for other in (longest, shortest))
    assert np.array_equal(before[:, :-1], after[:, :-1])


def test_the_cache_gives_the_logits_of_the_whole_sequence(tiny: LanguageModel) -> None:
    cached = OwnCache(tiny, PADDED, PLACES)
    for token in CONTINUATION:
        cached.append(token)
    whole = OwnCache(tiny, [[*prompt, *CONTINUATION] for prompt in PADDED], PLACES)
    assert np.abs(cached.logits.numpy() - whole.logits.numpy()).max() < 1e-4


def test_no_cached_prompts_have_no_logits(tiny: LanguageModel) -> None:
    cached = OwnCache(tiny, [], PLACES)
    cached.append(3)
    assert cached.logits.numpy().shape == (0, 272)
    assert cached.logits.numpy().dtype == np.float32


def test_a_prompt_that_leaves_no_padding_is_refused(tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match="shorter than the 7 places"):
        OwnCache(tiny, PADDED, 7)
