"""Settings of an evaluation: the paper's numbers and those for a laptop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from dpaudit.mechanisms import Fields
from dpaudit.results.quality import FineTuneSettings, ProbeSettings
from dpaudit.runs import InputError

#: The paper's numbers (appendix, "Evaluation hyperparameters").
PAPER = FineTuneSettings(
    preset="paper",
    batch_size=200,
    steps=500,
    learning_rates=(1e-6, 3e-6, 1e-5, 3e-5, 1e-4),
    weight_decays=(0.0, 5e-4),
    patience=4,
    validation=0.1,
    max_tokens=None,
    seeds=(0, 1, 2),
)
#: The same protocol at a size for two cores: one rate, fewer and smaller steps, shorter texts.
LAPTOP = PAPER.model_copy(
    update={
        "preset": "laptop",
        "batch_size": 32,
        "steps": 60,
        "learning_rates": (1e-4,),
        "weight_decays": (0.0,),
        "max_tokens": 64,
    }
)
PRESETS = {settings.preset: settings for settings in (PAPER, LAPTOP)}

#: The paper's n. MAUVE of fewer texts is on another scale.
PAPER_N = 1000
#: Of a model's name.
_LONGEST_NAME = 1000
_OPTIONS = {
    "learning_rates": "--learning-rate",
    "weight_decays": "--weight-decay",
    "seeds": "--accuracy-seeds",
}
#: scikit-learn's defaults, with iterations enough.
PROBE = ProbeSettings(strength=1.0, iterations=1000, seeds=(0, 1, 2))


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of an evaluation.

    Attributes:
        embedding: the model whose embeddings are MAUVE's features and the probe's; None for the
            offline one.
        n, clusters, iterations, initialisations, explained_variance, scaling, points: as in
            `MauveSettings`, where `n` is the most and `clusters` may be None for n / 10.
        seeds: how many of them MAUVE has.
        probe: of the linear probe.
        fine_tune: of the paper's protocol; None for no fine-tuning.
        classifier: the encoder that is fine-tuned; None for the offline one.
        most_records: of the reference, and of a test file, that are used; a hash under `split_seed`
            chooses them.
        test_share: of the reference that is held out without a test file.
        split_seed: of that hash.
        likelihood: most held-out texts of each label that are given to the run's batches; None for
            no likelihood.
    """

    embedding: str | None = None
    n: int = PAPER_N
    clusters: int | None = None
    iterations: int = 500
    initialisations: int = 5
    explained_variance: float = 0.9
    scaling: float = 5.0
    points: int = 32
    seeds: int = 5
    probe: ProbeSettings = PROBE
    fine_tune: FineTuneSettings | None = None
    classifier: str | None = None
    most_records: int = 4000
    test_share: float = 0.2
    split_seed: int = 0
    likelihood: int | None = None


def settings_from_options(options: Mapping[str, Any]) -> EvaluationSettings:
    """Return settings from the command's options, by name; missing ones have their defaults.

    `fine_tune`, `preset` and `classifier` ask for fine-tuning.

    Raises:
        InputError: a result could not hold them, or a number is of fine-tuning, for which nothing
            asks.
    """
    given = dict(options)
    seeds: dict[str, tuple[int, ...]] = {}
    if "accuracy_seeds" in given:
        seeds["seeds"] = tuple(range(given.pop("accuracy_seeds")))
    probe = {
        name: given.pop(f"probe_{name}")
        for name in ("strength", "iterations")
        if f"probe_{name}" in given
    }
    tuned = {
        name: given.pop(name)
        for name in FineTuneSettings.model_fields
        if name in given and name != "seeds"
    }
    wanted = given.pop("fine_tune", False) or "preset" in tuned or "classifier" in given
    if tuned and not wanted:  # it takes hours, which no number alone asks for
        first = next(iter(tuned))
        option = _OPTIONS.get(first, "--" + first.replace("_", "-"))
        raise InputError(
            option,
            "this is of fine-tuning, for which nothing asks.",
            "Add --fine-tune or a --preset.",
        )
    preset = PRESETS[tuned.pop("preset", PAPER.preset)]
    for name in ("embedding", "classifier"):
        if len(given.get(name) or "") > _LONGEST_NAME:
            raise InputError(
                f"--{name}",
                f"the name is longer than {_LONGEST_NAME} letters.",
                "Name a shorter path.",
            )
    return EvaluationSettings(
        **given,
        probe=_changed(PROBE, {**probe, **seeds}, "--probe-"),
        fine_tune=_changed(preset, {**tuned, **seeds}, "--") if wanted else None,
    )


Settings = TypeVar("Settings", bound=Fields)


def _changed(settings: Settings, fields: Mapping[str, Any], prefix: str) -> Settings:
    try:
        return type(settings).model_validate({**settings.model_dump(), **fields})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        # without a field, it is the size of the sweep
        field = first["loc"][0] if first["loc"] else "learning_rates"
        option = _OPTIONS.get(str(field), prefix + str(field).replace("_", "-"))
        raise InputError(
            option, f"{first['msg']}.", "`dpaudit evaluate --help` tells what is allowed."
        ) from None
