"""An encoder fine-tuned to find labels, in one training run of the paper's sweep.

See the paper's appendix, "Evaluation hyperparameters".

The paper fixes batch size, number of steps, Adam, rates, weight decays and early stopping. What it
leaves open is here: the rate is constant, weight decay is Adam's own (an L2 penalty), the loss is
cross-entropy, and weights are float32. Of epochs with the same validation accuracy the one with the
lowest validation loss counts, and then the first: a tenth of few texts gives many ties. Only a
better accuracy keeps a fit from stopping early. Doubles of a text are all trained on, or all
validated by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dpaudit.generation.config import ModelConfig
from dpaudit.generation.evaluation.texts import normalized_text
from dpaudit.generation.models import (
    device_of,
    digest_of,
    identity_files,
    load_network,
    loading,
    origin_of,
    padded,
    token_limit,
)
from dpaudit.results.quality import Encoder, FineTuneSettings
from dpaudit.runs import InputError

FIELD = "--classifier"
_KIND = "an encoder that can be fine-tuned"
#: Texts of a pass without gradients.
_PASS = 64

Labels: TypeAlias = NDArray[np.int64]
Indices: TypeAlias = NDArray[np.int64]
Weights: TypeAlias = dict[str, torch.Tensor]
#: Token ids of texts.
Rows: TypeAlias = list[list[int]]


@dataclass(frozen=True)
class Attempt:
    """One point of the sweep."""

    seed: int
    learning_rate: float
    weight_decay: float


class Outcome(NamedTuple):
    """The outcome of an attempt. Accuracies, and the loss in nats, are of the best checkpoint.

    Attributes:
        epochs: the number that was begun.
        best_epoch: 0 where training ended in numbers that are not finite. All figures are 0 then,
            and mean nothing.
    """

    epochs: int
    best_epoch: int
    validation: float
    loss: float
    test: float


class _DivergedError(ArithmeticError):
    """Training has come to numbers that are not finite."""


@dataclass(frozen=True)
class Examples:
    """Texts with the numbers of their labels, int64 [n]."""

    texts: tuple[str, ...]
    labels: Labels

    def __repr__(self) -> str:
        """Keep private text out of logs and tracebacks."""
        return f"Examples({len(self.texts)} texts)"


def encoder_of(name: str, settings: FineTuneSettings) -> Encoder:
    """Return the encoder to fine-tune: name, digest, and where texts are cut.

    Raises:
        InputError: there is no such model, or it is none that can be fine-tuned here.
    """
    classifier = _loaded(name, 2, settings)
    with loading(name, FIELD, _KIND):
        digest = digest_of(identity_files(origin_of(name, FIELD), FIELD))
    return Encoder(name=name, digest=digest, max_tokens=classifier.max_tokens)


def fine_tune(
    name: str,
    train: Examples,
    test: Examples,
    labels: int,
    attempt: Attempt,
    settings: FineTuneSettings,
) -> Outcome:
    """Train once, stop early, and test the best checkpoint.

    Args:
        name: a Hugging Face name, a folder, or package:NAME/FOLDER; safetensors only, and none of
            its own code.
        train: 2 distinct texts or more, of which a share is kept for validation.
        test: 1 text or more, which nothing here is chosen by.
        labels: how many there are.
        attempt: rate, weight decay, and a seed for split, new weights, order and dropout.
        settings: the rest of the protocol.

    Raises:
        InputError: the model cannot be loaded.
        ValueError: there are too few texts.
    """
    if (distinct := len({normalized_text(text) for text in train.texts})) < 2 or not test.texts:
        raise ValueError(
            f"{distinct} distinct texts to train on and {len(test.texts)} to test on are too few"
        )
    device = device_of(ModelConfig(name=name))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(attempt.seed)
        classifier, random = _loaded(name, labels, settings), np.random.default_rng(attempt.seed)
        classifier.network.to(device)
        return _trained(classifier, train, test, attempt, settings, random)


def epochs_of(texts: int, settings: FineTuneSettings) -> int:
    """Return the paper's number of epochs for `texts` training texts, validation left out."""
    return math.ceil(settings.batch_size * settings.steps / texts)


def _split(
    texts: Sequence[str], share: float, random: np.random.Generator
) -> tuple[Indices, Indices]:
    """Return training and validation rows: a share of distinct texts, and at least one of each."""
    numbers: dict[str, int] = {}
    distinct = np.array([numbers.setdefault(normalized_text(text), len(numbers)) for text in texts])
    held = min(max(1, round(share * len(numbers))), len(numbers) - 1)
    watched = np.isin(distinct, random.permutation(len(numbers))[:held])
    return np.flatnonzero(~watched), np.flatnonzero(watched)


def _trained(
    classifier: _Classifier,
    train: Examples,
    test: Examples,
    attempt: Attempt,
    settings: FineTuneSettings,
    random: np.random.Generator,
) -> Outcome:
    network, rows, tested = (
        classifier.network,
        classifier.tokens(train.texts),
        classifier.tokens(test.texts),
    )
    kept, held = _split(train.texts, settings.validation, random)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=attempt.learning_rate, weight_decay=attempt.weight_decay
    )
    best, best_loss, best_epoch, risen, weights, epoch = -1.0, math.inf, 0, 0, Weights(), 0
    try:
        for epoch in range(1, epochs_of(len(kept), settings) + 1):
            classifier.train(
                rows, train.labels, random.permutation(kept), optimizer, settings.batch_size
            )
            found, loss = classifier.test(rows, train.labels, held)
            risen = epoch if found > best else risen
            if (found, -loss) > (best, -best_loss):
                best, best_loss, best_epoch = found, loss, epoch
                weights = {
                    key: value.detach().cpu().clone() for key, value in network.state_dict().items()
                }
            if epoch - risen >= settings.patience:
                break
        network.load_state_dict(weights)
        accuracy, _ = classifier.test(tested, test.labels, np.arange(len(tested)))
    except _DivergedError:
        return Outcome(epoch, 0, 0.0, 0.0, 0.0)
    return Outcome(epoch, best_epoch, best, best_loss, accuracy)


@dataclass(frozen=True)
class _Classifier:
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int

    def tokens(self, texts: Sequence[str]) -> Rows:
        found: Any = self.tokenizer(
            list(texts),
            truncation=True,
            max_length=self.max_tokens,
            padding=False,
            return_attention_mask=False,
        )
        rows: Rows = found["input_ids"]
        return rows

    def train(
        self,
        rows: Rows,
        labels: Labels,
        order: Indices,
        optimizer: torch.optim.Optimizer,
        batch_size: int,
    ) -> None:
        """Train for one epoch on the texts at these indices.

        Raises:
            _DivergedError: a loss is not finite.
        """
        self.network.train(True)
        for chosen in np.split(order, range(batch_size, len(order), batch_size)):
            optimizer.zero_grad()
            logits, truth = self._logits(rows, chosen), torch.from_numpy(labels[chosen])
            loss = cross_entropy(logits, truth.to(logits.device))
            if not torch.isfinite(loss):
                raise _DivergedError
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.inference_mode()
    def test(self, rows: Rows, labels: Labels, indices: Indices) -> tuple[float, float]:
        """Return accuracy and mean cross-entropy in nats.

        Raises:
            _DivergedError: the cross-entropy is not finite.
        """
        self.network.train(False)
        right, loss = 0, 0.0
        of_like_lengths = indices[
            np.argsort([len(rows[index]) for index in indices], kind="stable")
        ]
        for chosen in np.split(of_like_lengths, range(_PASS, len(indices), _PASS)):
            logits = self._logits(rows, chosen).double()
            truth = torch.from_numpy(labels[chosen]).to(logits.device)
            right += int((logits.argmax(dim=-1) == truth).sum())
            loss += float(cross_entropy(logits, truth, reduction="sum"))
        if not math.isfinite(loss):
            raise _DivergedError
        return right / len(indices), loss / len(indices)

    def _logits(self, rows: Rows, chosen: Indices) -> torch.Tensor:
        """Return logits, float [chosen, labels].

        A text without any token counts as one token of padding.
        """
        texts, device = [rows[row] for row in chosen], self.network.device
        ids, mask = padded(texts, len(texts), max(1, *map(len, texts)), self.tokenizer)
        logits: torch.Tensor = self.network(
            input_ids=ids.to(device), attention_mask=mask.to(device)
        ).logits
        return logits


def _loaded(name: str, labels: int, settings: FineTuneSettings) -> _Classifier:
    """Load a model with a new head for `labels` labels, and its tokenizer."""
    with loading(name, FIELD, _KIND):
        origin = origin_of(name, FIELD)
        network, absent = load_network(
            AutoModelForSequenceClassification,
            origin,
            num_labels=labels,
            ignore_mismatched_sizes=True,  # the head of another task
        )
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            origin, trust_remote_code=False
        )
    # Head and pooler may be new; an encoder whose own weights are random would be another protocol.
    if any(
        key.startswith(f"{network.base_model_prefix}.") and ".pooler." not in key for key in absent
    ):
        raise InputError(
            FIELD,
            f"{name!r} lacks weights of an encoder.",
            "Name an encoder such as MiniLM or BERT.",
        )
    if network.config.pad_token_id is None:
        network.config.pad_token_id = int(tokenizer.pad_token_id or 0)
    return _Classifier(network, tokenizer, token_limit(network, tokenizer, settings.max_tokens))
