"""A head within its network's passes: the network's logits, and no bit of a row by the others."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpaudit.generation.head import FEW, Head, HeadInFours
from dpaudit.generation.model_probe import public_passes
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import Passes


@pytest.mark.parametrize("bias", [False, True])
def test_no_bit_of_a_rows_scores_depends_on_how_many_others_there_are(bias: bool) -> None:
    """How many batches run beside each other is private, and a support is made of these scores."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(577, 4099, bias=bias)
    whole: Any = SimpleNamespace(_layer=layer)
    head, hidden = HeadInFours(whole), torch.randn(3 * FEW, 1, 577)
    plain = layer(hidden)
    with torch.inference_mode(), head.in_pass():
        found = layer(hidden)
        assert torch.allclose(found, plain, atol=1e-4)
        for first, count in ((0, 1), (0, 2), (1, 1), (3, 3), (5, 1), (2, 5), (7, 5)):
            assert torch.equal(layer(hidden[first : first + count]), found[first : first + count])
    assert torch.equal(layer(hidden), plain)  # it is the layer's own again


def test_public_passes_give_the_networks_logits(tiny: LanguageModel) -> None:
    prompts = [[5, 6], [7, 8, 9], [10], [11, 12], [13]]
    own = Passes(tiny, 16, 8).start(prompts)
    passes = public_passes(tiny, 8, 4)
    assert isinstance(Head.of(tiny.network), Head)
    found = [passes.start([prompt], prompt[:-1]) for prompt in prompts]
    for step in (3, 4):
        assert torch.allclose(torch.cat([each.logits for each in found]), own.logits, atol=1e-4)
        some = found[0].logits_over(np.array([2, 9]))
        assert torch.equal(some, found[0].logits[:, [2, 9]])
        passes.advance([(each, step) for each in found])
        own.append(step)
