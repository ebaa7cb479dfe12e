"""A trial of a loaded network: does it generate, and does one context move another's bits?

Mixtures of experts sort the tokens of a pass by expert. How many tokens an expert gets, and so how
its sums are rounded, then depends on all contexts, and a last bit can send a token to another
expert. The accounting takes a context's logits to depend on that context alone, so a model that
moves a bit here does not share a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel

from dpaudit.generation.head import Head, HeadInFours
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import (
    PUBLIC_ROWS,
    CachedPrompts,
    Passes,
    Prompt,
    SharedPasses,
    out_of_memory,
    parameters_of,
)
from dpaudit.mechanisms import MASKED
from dpaudit.runs.manifest import Isolation

#: Logits of a prompt among others may differ by this share of their spread from those that it has
#: alone. Padding or a cache that a network misreads gives other logits altogether.
AGREEMENT = {torch.float32: 0.01, torch.bfloat16: 0.25}
#: Rows, places of a prompt, and tokens after it, in the passes that are tried out.
_ROWS, _PLACES, _TOKENS = 20, 5, 2
#: How many prompts are looked at; and how many are beside them in their batch, and in another one.
_WATCHED = 6
_COMPANIES = ((0, 0), (5, 0), (2, 11))
#: Of the prompts that are tried: the same ones every time.
_SEED = 40


class UnusableModelError(ValueError):
    """The reason why a network cannot generate, and a remedy.

    The reason ends a sentence that begins with the network's name.
    """

    def __init__(
        self,
        reason: str,
        remedy: str = "Name another causal language model, or a whole copy of this one.",
    ) -> None:
        super().__init__(reason)
        self.remedy = remedy


class Probe(NamedTuple):
    """A trial's result: shared passes give the model's logits, contexts move each other's bits."""

    shares: bool
    couples: bool


_PROBED: WeakKeyDictionary[PreTrainedModel, Probe] = WeakKeyDictionary()


@torch.inference_mode()
def vocabulary_of(network: PreTrainedModel) -> int:
    """Return the number of tokens that a network scores.

    Raises:
        UnusableModelError: it is no causal language model.
    """
    ids = torch.tensor([[1, 2, 3, 0], [1, 2, 3, 2]], device=network.device)
    try:
        logits = network(input_ids=ids).logits.to(torch.float32)
    except Exception as error:  # whatever an architecture raises
        raise _failed(error) from error
    if logits.ndim != 3 or logits.shape[:2] != ids.shape:
        raise UnusableModelError("does not give every token one row of scores")
    if logits.isnan().any():
        raise UnusableModelError("gives scores that are no numbers")
    if _apart(logits[0, :3], logits[1, :3], network.dtype):
        raise UnusableModelError(
            "lets a later token change the scores before it, so it is no causal language model"
        )
    return int(logits.shape[-1])


def probe(model: LanguageModel) -> Probe:
    """Try a model out, once for each network.

    Raises:
        UnusableModelError: it cannot generate.
    """
    if model.network not in _PROBED:
        _PROBED[model.network] = _probed(model)
    return _PROBED[model.network]


def isolation_of(model: LanguageModel) -> Isolation:
    """Return how a model's contexts are kept apart, as run.json says it."""
    return model.coupled_rows if probe(model).couples else "shared"


def passes_for(
    model: LanguageModel, rows: int, places: int, tokens: int, head: Head | None = None
) -> Passes:
    """Return shared passes, or else passes for each batch or context.

    They are shared where the model's cache allows them and no bit moves. A pass has `rows`
    contexts, each with `places` for its prompt, one of them padding, and for `tokens` after it.
    With a `head` of the model, tokens are scored only where somebody looks.
    """
    shares, couples = probe(model)
    shared = None
    if shares and not couples:
        shared = SharedPasses.fit(model, rows, places, tokens, head)
    return shared or Passes(
        model, rows, places, head, alone=couples and model.coupled_rows == "alone"
    )


def public_passes(model: LanguageModel, places: int, tokens: int) -> Passes:
    """Return passes for public prompts, never shared with private ones; see `passes_for`.

    On a CPU their few rows have the head computed in its own way.
    """
    network, head = model.network, None
    scored_last = "logits_to_keep" in parameters_of(type(network).forward)
    if model.device.type == "cpu" and network.dtype == torch.float32 and scored_last:
        whole = Head.of(network)
        head = None if whole is None else HeadInFours(whole)
    return passes_for(model, PUBLIC_ROWS, places, tokens, head)


@torch.inference_mode()
def _probed(model: LanguageModel) -> Probe:
    known = _known_tokens(model)
    draw = torch.Generator().manual_seed(_SEED)

    def prompts(count: int) -> list[list[int]]:
        lengths = [number % (_PLACES - 1) + 1 for number in range(count)]
        return [torch.randint(known, (length,), generator=draw).tolist() for length in lengths]

    watched, after = prompts(_WATCHED), prompts(_TOKENS)
    watched[0] = [known - 1]
    tokens = [token for (token, *_) in after]
    companies = [(prompts(behind), prompts(before)) for behind, before in _COMPANIES]
    alone = [_alone(model, [*prompt, *tokens]) for prompt in watched[:2]]
    for shares in (True, False):
        if shares and SharedPasses.fit(model, _ROWS, _PLACES, _TOKENS) is None:
            continue
        try:
            found = [_beside(model, shares, watched, tokens, *company) for company in companies]
        except Exception as error:  # whatever another kind of cache makes a network raise
            if shares and not out_of_memory(error):
                continue
            raise _failed(error) from error
        if found[0].isnan().any():
            raise UnusableModelError("gives scores that are no numbers")
        if not any(
            _apart(*pair, model.network.dtype) for pair in zip(found[0][-1], alone, strict=False)
        ):
            moved = not all(torch.equal(found[0], other) for other in found[1:])
            # Experts may happen to get as many tokens as before, on this machine and for these
            # prompts.
            return Probe(shares, couples=moved or has_experts(model.network))
    raise UnusableModelError(
        "gives prompts of several lengths together other scores than each of them has alone"
    )


def _known_tokens(model: LanguageModel) -> int:
    """Return the number of the tokenizer's ids, all of which the network must know.

    Without a tokenizer it is the number that the network knows.
    """
    embeddings = model.network.get_input_embeddings()
    known = min(model.vocabulary, getattr(embeddings, "num_embeddings", model.vocabulary))
    ids = [*model.tokenizer.get_vocab().values()] if model.tokenizer is not None else []
    ids += model.end_tokens if model.tokenizer is not None else []
    if max(ids, default=0) >= known:
        raise UnusableModelError(
            f"has a tokenizer with ids up to {max(ids)}, and knows those below {known} alone"
        )
    return known


def has_experts(network: PreTrainedModel) -> bool:
    """Return whether a network is a mixture of experts, by the names of its parts."""
    names = {type(module).__name__.lower() for module in network.modules()}
    return any("expert" in name or "moe" in name for name in names)


def _alone(model: LanguageModel, tokens: Sequence[int]) -> torch.Tensor:
    """Return the network's logits [V] after all tokens, in its plainest use."""
    ids = torch.tensor([tokens], device=model.device)
    logits: torch.Tensor = model.network(input_ids=ids).logits
    return logits[0, -1].to(torch.float32)


def _beside(
    model: LanguageModel,
    shares: bool,
    watched: Sequence[Prompt],
    tokens: Sequence[int],
    behind: Sequence[Prompt],
    before: Sequence[Prompt],
) -> torch.Tensor:
    """Return the watched prompts' logits [1 + tokens, watched, V] in company.

    There are other prompts behind them in their batch, and a batch before it.
    """
    passes = (
        SharedPasses(model, _ROWS, _PLACES, _TOKENS) if shares else Passes(model, _ROWS, _PLACES)
    )
    other: CachedPrompts | None = passes.start(before) if before else None
    # Where batches do not share passes, those before stand in the batch itself.
    mine = passes.start([*([] if shares else before), *watched, *behind])
    first = 0 if shares else len(before)
    found = [mine.logits[first : first + len(watched)].clone()]
    for number, token in enumerate(tokens):
        together = [(mine, token)] if other is None else [(other, before[0][0]), (mine, token)]
        passes.advance(together if number else together[-1:])
        found.append(mine.logits[first : first + len(watched)].clone())
    return torch.stack(found)


def _apart(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether logits [..., V] differ by more than rounding.

    Masked logits have no spread.
    """
    kept = (one > MASKED) & (other > MASKED)
    if not kept.any():
        return False
    gap, spread = (one - other)[kept].abs().max(), other[kept].std(correction=0)
    return not float(gap) <= AGREEMENT[dtype] * float(spread)


def _failed(error: Exception) -> UnusableModelError:
    """Return the error of a failed first pass, as a reason."""
    if out_of_memory(error):
        return UnusableModelError(
            "does not fit into memory", "Name a smaller one, or free some memory."
        )
    reason = str(error).strip().split("\n")[0][:200]
    return UnusableModelError(
        f"cannot be given prompts: its first pass ends in an error ({reason})"
    )
