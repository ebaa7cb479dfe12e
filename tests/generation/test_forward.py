import numpy as np
import pytest

from dpaudit.generation.forward import OwnCache
from dpaudit.generation.models import LanguageModel

PROMPTS = [[5], [7, 8, 9, 10, 11, 12, 13], [20, 21, 22], [7, 8, 9]]
CONTINUATION = (30, 31, 5)
PLACES = 16


def all_logits(model: LanguageModel, prompts: list[list[int]]) -> np.ndarray:
    """[steps, n, V] along the continuation."""
    cached = OwnCache(model, prompts, PLACES)
    steps = [cached.logits.numpy()]
    for token in CONTINUATION:
        cached.append(token)
        steps.append(cached.logits.numpy())
    return np.stack(steps)


def largest_difference(model: LanguageModel) -> float:
    together = all_logits(model, PROMPTS)
    alone = np.concatenate([all_logits(model, [prompt]) for prompt in PROMPTS], axis=1)
    assert together.dtype == np.float32
    assert together.shape == (4, len(PROMPTS), model.vocabulary)
    return float(np.abs(together - alone).max())


def test_prompts_together_give_the_logits_of_each_alone(tiny: LanguageModel) -> None:
    assert tiny.vocabulary == 272 > len(tiny.tokenizer)
    assert largest_difference(tiny) < 1e-4


@pytest.mark.model
def test_prompts_together_give_the_logits_of_each_alone_with_smollm2(smollm2: LanguageModel) -> None:
    """And another prompt moves no bit: the accounting takes a context's logits to depend on that context alone."""
    assert largest_difference(smollm2) < 1e-3
    longest, shortest = [40] * (PLACES - 1), [41]
    before, after = (all_logits(smollm2, [*PROMPTS, other]) for other in (longest, shortest))
    assert np.array_equal(before[:, :-1], after[:, :-1])


def test_the_cache_gives_the_logits_of_the_whole_sequence(tiny: LanguageModel) -> None:
    cached = OwnCache(tiny, PROMPTS, PLACES)
    for token in CONTINUATION:
        cached.append(token)
    whole = OwnCache(tiny, [[*prompt, *CONTINUATION] for prompt in PROMPTS], PLACES)
    assert np.abs(cached.logits.numpy() - whole.logits.numpy()).max() < 1e-4


def test_no_cached_prompts_have_no_logits(tiny: LanguageModel) -> None:
    cached = OwnCache(tiny, [], PLACES)
    cached.append(3)
    assert cached.logits.numpy().shape == (0, 272)
    assert cached.logits.numpy().dtype == np.float32


def test_a_prompt_that_leaves_no_padding_is_refused(tiny: LanguageModel) -> None:
    with pytest.raises(ValueError, match="shorter than the 7 places"):
        OwnCache(tiny, PROMPTS, 7)
