"""Texts of the public prompt alone, before anything is spent: epsilon 0, no record is read.

They show whether the model can follow the prompt at all. A model that cannot writes texts that say
nothing, and does not tell by a public example which label it belongs to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from transformers import DynamicCache

from dpaudit.generation.algorithm import Prompting, prompting
from dpaudit.generation.config import Config, SamplingConfig
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.passes import SharedPasses
from dpaudit.generation.prompts import Prompts
from dpaudit.generation.public import public_samples
from dpaudit.results.plan import PreviewedText, PublicPreview
from dpaudit.runs import InputError, Manifest, Sample, without_stop
from dpaudit.runs.vacuity import PublicText, Vacuity, vacuity

#: Texts of a label that are shown, and labels that texts are made of at most.
SHOWN, MOST_LABELS = 2, 8
#: Texts that are made at least: of fewer no share is worth telling.
LEAST_TEXTS = 8
#: Public examples of a label that the model is asked about at most.
_ASKED = 4
#: Drafted examples of a label, and texts among which they are chosen.
DRAFTS, _TRIED = 4, 12


#: Told of tokens, and of the most that there are.
Watch: TypeAlias = Callable[[int, int], None]


def silent(done: int, most: int) -> None:
    """Tell nothing of the tokens."""


def preview(config: Config, made: Prompting | None = None, watch: Watch = silent) -> PublicPreview:
    """Return texts of a config's public prompt alone, and whether its model can follow the prompt.

    The same config gives the same texts, so that what changes is due to the prompt.

    Args:
        config: all settings; its data is not looked at.
        made: its model and prompts; loaded if None.
        watch: told of the tokens.

    Raises:
        InputError: the model or the prompt cannot be used.
    """
    made = made or prompting(config)
    labels = config.data.groups[:MOST_LABELS]
    each = max(SHOWN, -(-LEAST_TEXTS // len(labels)))
    fixed = SamplingConfig(generator="test-seed", seed=0)
    manifest, samples = public_samples(
        config.model_copy(update={"sampling": fixed}), made, each, labels, watch
    )
    reason = _reasons(manifest)
    texts = [
        PreviewedText(
            label=sample.label or "",
            text=sample.text or "",
            empty=reason(sample),
        )
        for sample in samples
    ]
    told, asked = _told_labels(made, labels, config.decoding.longest)
    return PublicPreview(
        model=config.model.name,
        parameters=made.model.network.num_parameters(),
        shown=tuple(text for number, text in enumerate(texts) if number % each < SHOWN),
        texts=len(texts),
        empty=dict(Counter(text.empty for text in texts if text.empty is not None)),
        labels=len(config.data.labels or ()),
        told=told,
        asked=asked,
        examples=sum(map(len, made.prompts.public_examples.values())),
        drafted=config.prompt.drafted,
    )


def draft_examples(config: Config, watch: Watch = silent) -> dict[str, tuple[str, ...]]:
    """Let a config's model write public examples from the prompt's own words and the labels.

    Args:
        config: all settings, without public examples; its data is not looked at.
        watch: told of the tokens.

    Returns:
        Up to DRAFTS of each label, under "" where there are none.

    Raises:
        InputError: the model cannot be used, or it wrote nothing of use for a label.
    """
    made, labels = prompting(config), config.data.groups
    drafts = dict[str, dict[str, None]]()
    unseeded = config.model_copy(update={"sampling": SamplingConfig()})
    manifest, samples = public_samples(unseeded, made, _TRIED, labels, watch)
    reason = _reasons(manifest)
    for sample in samples:
        text = " ".join((sample.text or "").split())
        if sample.stop == "end-token" and reason(sample) is None:  # whole, and says something
            drafts.setdefault(sample.label or "", {})[text] = None
    for label in labels:
        if label not in drafts:
            problem = f"the model wrote nothing of use for {label!r} in {_TRIED} tries."
            raise InputError(
                "--draft-examples", problem, "Write examples yourself, or name a larger model."
            )
    most = config.decoding.longest
    return {
        label: _most_typical(made, labels, label, tuple(drafts[label]), most) for label in labels
    }


def _most_typical(
    made: Prompting, labels: tuple[str, ...], own: str, texts: tuple[str, ...], most: int
) -> tuple[str, ...]:
    """Return the texts that are likelier by the most after their own label than after others."""
    others = [label for label in labels if label != own]
    if not others or not _shares_prompts(made, most):
        return texts[:DRAFTS]
    after, *elsewhere = (
        _log_probabilities(made.model, made.prompts, label, texts, most) for label in (own, *others)
    )
    gains = [
        mine - max(theirs) for mine, theirs in zip(after, zip(*elsewhere, strict=True), strict=True)
    ]
    ranked = sorted(range(len(texts)), key=lambda number: -gains[number])
    return tuple(texts[number] for number in ranked[:DRAFTS])


def _shares_prompts(made: Prompting, most: int) -> bool:
    """Return whether what the model keeps of a prompt can be shared by several texts."""
    return SharedPasses.fit(made.model, 1, made.prompts.public_places, most) is not None


def _reasons(manifest: Manifest) -> Callable[[Sample], Vacuity | None]:
    """Return the rule that tells how a text says nothing."""
    public, ends = PublicText.of(manifest), manifest.decoding.sequences

    def reason(sample: Sample) -> Vacuity | None:
        return vacuity(sample.text, without_stop(sample.tokens, ends), public)

    return reason


def _told_labels(made: Prompting, labels: tuple[str, ...], most: int) -> tuple[int, int]:
    """Return of how many public examples the model tells the label, and how many it was asked.

    An example is likelier after its own label's prompt, which does not show it, than after every
    other label's, by up to `most` tokens.
    """
    model, prompts = made.model, made.prompts
    examples = {label: prompts.public_examples.get(label, ()) for label in labels}
    if len(labels) < 2 or min(map(len, examples.values())) < 2:
        return 0, 0
    if not _shares_prompts(made, most):
        return 0, 0
    told = asked = 0
    for place in range(min(_ASKED, max(map(len, examples.values())))):
        others = prompts.without_example(place)
        own = [label for label in labels if place < len(examples[label])]
        texts = [examples[label][place] for label in own]
        scores = [_log_probabilities(model, others, label, texts, most) for label in labels]
        for label, found in zip(own, zip(*scores, strict=True), strict=True):
            told += labels[found.index(max(found))] == label
            asked += 1
    return told, asked


@torch.inference_mode()
def _log_probabilities(
    model: LanguageModel, prompts: Prompts, label: str, texts: Sequence[str], most: int
) -> list[float]:
    """Return the log-probability of each text after a label's public prompt, in nats."""
    prompt = torch.tensor([prompts.public_tokens(label)], device=model.device)
    continued = [prompts.continuation(label, text, most) for text in texts]
    width = max(len(tokens) for tokens, _ in continued)
    # padding comes after a text, so that no token of the text attends to it
    rows = [[*tokens, *[0] * (width - len(tokens))] for tokens, _ in continued]
    ids, cache = torch.tensor(rows, device=model.device), DynamicCache(config=model.network.config)
    first = model.network(input_ids=prompt, past_key_values=cache, logits_to_keep=1).logits
    cache.batch_repeat_interleave(len(texts))
    rest = model.network(input_ids=ids, past_key_values=cache).logits[:, :-1]
    logits = torch.cat([first.expand(len(texts), -1, -1), rest], dim=1).float()
    chosen = logits.log_softmax(-1).gather(2, ids[:, :, None])[:, :, 0]
    return [
        float(row[lead : len(tokens)].sum())
        for row, (tokens, lead) in zip(chosen, continued, strict=True)
    ]
