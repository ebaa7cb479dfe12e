"""Probability of the same held-out texts under the mechanisms of several configs, and their costs.

The figures read private records without noise: they are for readers who may see the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.generation.algorithm import prepare
from dpaudit.generation.config import Config, ModelConfig, in_config, load_config
from dpaudit.generation.evaluation.likelihood import (
    TEST,
    HeldOut,
    Measurement,
    Watch,
    choose_held_out,
    enough_memory,
)
from dpaudit.generation.experiments.likelihood_results import Likelihoods, MechanismLikelihood
from dpaudit.generation.manifest import equal_levels, ex_post_epsilon
from dpaudit.generation.rebuilt import RunParts
from dpaudit.generation.records import read_public_examples, read_records
from dpaudit.generation.rows import FIELDS
from dpaudit.generation.sources import DATASET, overlap
from dpaudit.reports.figures import MOST_RUNS
from dpaudit.results.composition import Spent
from dpaudit.runs import InputError

#: The hash's key where a config has none. It is fixed, so that the same records meet under every
#: config; nothing is released.
KEY = hashlib.sha256(b"held-out likelihood").hexdigest()


def compare_likelihoods(
    paths: Sequence[Path],
    test: str,
    *,
    texts: int = 4,
    batches: int = 1,
    model: str | None = None,
    monitor: Monitor = SILENT,
) -> Likelihoods:
    """Give held-out texts to each config's batches, token by token, beside the public prompt alone.

    Every config and its held-out texts are read before the first is measured.

    Args:
        paths: of configs.
        test: held-out texts, in the columns of the configs' data and apart from it.
        texts: most texts of each label.
        batches: most batches of each label.
        model: in place of the configs' own, in the fastest dtype; None for theirs.
        monitor: receives progress.

    Raises:
        InputError: a config or the texts cannot be used, or there are too many configs for a
            figure.
    """
    if len(set(paths)) < len(paths):
        raise InputError("configs", "one is named twice.", "Name each once.")
    if len(paths) > MOST_RUNS:
        raise InputError("configs", f"a figure shows {MOST_RUNS} at most.", "Name fewer.")
    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else list(map(str, paths))
    rows, read = [], []
    for path in paths:
        config = load_config(path)
        if model is not None:
            named = ModelConfig(name=model, dtype="auto")
            config = config.model_copy(update={"model": named})
        try:
            read.append((config, held_out_texts(config, test, texts)))
        except InputError as error:
            raise in_config(path, error) from None
    with monitor.steps() as watch:
        for path, name, (config, held_out) in zip(paths, names, read, strict=True):
            count = sum(map(len, held_out.texts.values()))
            monitor.note(f"{name}: {count} texts of up to {config.decoding.max_tokens} tokens")
            try:
                rows.append(measure(config, name, held_out, batches, partial(watch, name)))
            except InputError as error:
                raise in_config(path, error) from None
    return Likelihoods(rows=tuple(rows))


def held_out_texts(config: Config, test: str, most: int) -> HeldOut:
    """Choose up to `most` texts of each label from a file by their hashes.

    They are the same for every config. What equals a private record or a public example, up to case
    and white space, is left out.

    Args:
        config: all settings; the file has the columns of its data.
        test: as data.path.
        most: of a label, at least 1.

    Raises:
        InputError: the file is the private data, cannot be read, or has no text of a label.
    """
    if overlap(test, config.data.path or f"{DATASET}{config.data.dataset}"):
        raise InputError(
            TEST, "this leads to the private records.", "Name real texts that are not among them."
        )
    away = {"path": test, "dataset": None, "config": None, "split": None, "user": None}
    elsewhere = config.data.model_copy(update=away)
    found = read_records(elsewhere, names={**FIELDS, "path": TEST}).records
    shown = [record.text for record in read_records(config.data).records]
    shown += sum(read_public_examples(config).values(), ())
    return choose_held_out(test, found, shown, config.data.groups, most)


def measure(
    config: Config, name: str, held_out: HeldOut, batches: int, watch: Watch
) -> MechanismLikelihood:
    """Give held-out texts to up to `batches` batches of each label, the first ones.

    Args:
        config: all settings.
        name: what to call it.
        held_out: see `held_out_texts`.
        batches: at least 1.
        watch: see `Watch`.

    Raises:
        InputError: the config cannot be used with its data or model, memory is too small, or no
            token is supported.
    """
    config = _without_claim(config)
    ready = prepare(config, key=KEY)
    manifest = ready.manifest
    with enough_memory():
        parts = RunParts(manifest, ready.model, ready.prompts, ready.records.batches)
        measurement = Measurement(parts, batches, held_out, watch, charge=True)
        figures = measurement.figures()
    filled = [sum(map(bool, batch.contexts)) for batch in measurement.batches]
    claim, delta, ex_post = manifest.claim, manifest.clustering.delta or 0.0, None
    if measurement.most_expensive is not None:
        ex_post = Spent(
            epsilon=ex_post_epsilon(measurement.most_expensive, manifest.clustering), delta=delta
        )
    return MechanismLikelihood(
        name=name,
        mechanism=manifest.mechanism,
        **manifest.privacy.model_dump(include={"relation", "unit", "records_per_user"}),
        batches=len(filled),
        fewest=min(filled),
        most=max(filled),
        texts=measurement.texts,
        left_out=held_out.left_out,
        max_tokens=manifest.decoding.max_tokens,
        **figures,
        approximate=None if claim is None else Spent(epsilon=claim.stated, delta=claim.delta),
        batch_epsilon=None if claim is None else claim.batch_epsilon,
        equal=None if claim is None else equal_levels(config, manifest),
        ex_post=ex_post,
    )


def _without_claim(config: Config) -> Config:
    """Return the config without a claim.

    Its run would state what the settings guarantee, at the same delta.
    """
    updates: dict[str, object] = {"claim": None}
    if config.claim is not None and config.claim.delta and config.claim_kind.beforehand:
        updates["privacy"] = config.privacy.model_copy(update={"delta": config.claim.delta})
    return config.model_copy(update=updates)
