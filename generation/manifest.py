"""What a run says about itself before its first step, and whether a run on disk is the same one."""

from __future__ import annotations

import math
import platform
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from importlib import metadata
from typing import Any

from dpaudit.accounting import ApproximateAccountant, rebalancing_events, rounded_sum
from dpaudit.generation.config import Config
from dpaudit.generation.models import LanguageModel
from dpaudit.generation.partition import Partition
from dpaudit.generation.prompts import Template
from dpaudit.mechanisms import ContextChange, context_change
from dpaudit.results.rounding import decimals
from dpaudit.runs import (
    Batching,
    Claim,
    Clustering,
    Clusters,
    Data,
    InputError,
    Manifest,
    Model,
    Origins,
    Privacy,
    Prompt,
    Record,
    Sampling,
    Stopping,
    data_digest,
)
from dpaudit.runs.manifest import MAX_WIDTH

SOFTWARE = ("dpaudit", "numpy", "tokenizers", "torch", "transformers")
MIN_WIDTH = 2
#: The paper's choice of delta: records ** -1.1.
DELTA_EXPONENT = -1.1


def build_manifest(
    config: Config,
    key: bytes,
    parts: Partition,
    privacy: Privacy,
    clustering: Clustering,
    model: LanguageModel,
    template: Template,
    rows: int,
) -> Manifest:
    """The manifest of a new run. Its claim is None where the generator states its own at the end.

    Args:
        parts: every record's place.
        privacy: see `declared_privacy`.
        clustering: how records are grouped within labels; its cost is part of the claim.
        rows: contexts in one forward pass.

    Raises:
        InputError: the settings do not fit the data or the model.
    """
    assignment, seed = parts.assignment, config.decoding.test_seed
    generated = "generate_per_label" if clustering.method == "none" else "generate_per_cluster"
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        privacy=privacy,
        mechanism=config.mechanism,
        batching=Batching(
            rule=config.rule,
            batches=len(parts.batches),
            **config.batching.model_dump(include={"batches_per_label", generated, "slots"}),
            examples_per_context=config.prompt.examples_per_context,
            labels=config.data.labels,
            key=key.hex(),
        ),
        clustering=clustering,
        origins=Origins(**config.chosen_from.model_dump()),
        stopping=Stopping(max_tokens=config.decoding.max_tokens, sequences=_stop_sequences(model, template)),
        sampling=Sampling() if seed is None else Sampling(generator="test-seed", seed=seed),
        record=_record(config, model, privacy),
        data=Data(
            records=len(assignment),
            digest=data_digest(assigned.digest for assigned in assignment),
            source="path" if config.data.dataset is None else "dataset",
            **config.data.model_dump(include={"text", "label", "split", "label_values"}),
        ),
        model=Model(
            **config.model.model_dump(include={"name", "dtype"}),
            digest=model.digest,
            device=model.device.type,
            rows=rows,
        ),
        prompt=Prompt(**config.prompt.model_dump(exclude={"examples_per_context"}), digest=template.digest),
        software={"python": platform.python_version(), **dict(_versions())},
        claim=_claim_beforehand(config, len(assignment), privacy, clustering),
    )


def require_claimable(
    config: Config, records: int, privacy: Privacy, clustering: Clustering, model: LanguageModel
) -> None:
    """Refuse settings that `build_manifest` would refuse too, but before noise is drawn.

    Args:
        records: how many there are.
        privacy: see `declared_privacy`.
        clustering: its cost is part of the claim; what is found later need not be right.

    Raises:
        InputError: the settings do not fit the data or the model.
    """
    _record(config, model, privacy)
    _claim_beforehand(config, records, privacy, clustering)


def ex_post_epsilon(tokens: float, clustering: Clustering) -> float:
    """The ex-post sum of tokens and what their clusters cost, in nats; rounded up where there are any."""
    counts, centers = _clustering_epsilons(clustering)
    return rounded_sum(tokens, rounded_sum(counts, centers))


def ex_post_claim(config: Config, epsilon: float, clustering: Clustering) -> Claim:
    """What a run states of itself at its end: its own sum and its clusters' cost, rounded up."""
    return _claim(config, round_up(ex_post_epsilon(epsilon, clustering)), clustering.delta or 0.0)


def round_up(epsilon: float) -> float:
    """The next multiple of 0.0001, never below epsilon.

    Raises:
        InputError: epsilon is infinite, so there is nothing to claim.
    """
    if not math.isfinite(epsilon):
        remedy = "Lower mechanism.clip or decoding.max_tokens, or raise the divisor or the temperature."
        raise InputError("mechanism", "these settings give no finite epsilon.", remedy)
    return float(decimals(epsilon, 4, most=math.inf))


def require_same_run(path: str, existing: Manifest, wanted: Manifest) -> None:
    """Refuse to go on with a run that was started under another config, model or data set.

    Raises:
        InputError: names the fields that differ.
    """
    stated_later = {"created", "software", "claim_stated"} | ({"claim"} if wanted.claim is None else set())
    before, now = (_flat(manifest.model_dump(exclude=stated_later)) for manifest in (existing, wanted))
    differing = sorted(field for field in before.keys() | now.keys() if before.get(field) != now.get(field))
    if differing:
        problem = f"the run there was started with another {', '.join(differing)}."
        raise InputError(path, problem, "Restore the config, the data and the model, or name a new directory.")


def require_same_clusters(path: str, existing: Manifest, clusters: Clusters, config: Config) -> None:
    """Refuse to go on with a run whose records are clustered otherwise, before its clusters are used.

    Raises:
        InputError: the method, the labels or the public number of a cluster's batches differ.
    """
    method = "none" if config.clustering is None else config.clustering.method
    each = config.batching.batches_per_cluster
    differing = ""
    if existing.clustering.method != method:
        differing = "clustering.method"
    elif existing.batching.labels != config.data.labels:
        differing = "batching.labels"
    elif each is not None and any(count != each for row in clusters.batches for count in row):
        differing = "batching.batches_per_cluster"
    if differing:
        problem = f"the run there was started with another {differing}."
        raise InputError(path, problem, "Restore the config, or name a new directory.")


def changed_contexts(config: Config, records_per_user: int | None) -> ContextChange | None:
    """What one unit's difference does to the contexts under this config; None where nothing bounds it."""
    privacy = config.privacy
    return context_change(privacy.unit, privacy.relation, config.rule, records_per_user=records_per_user)


def declared_privacy(config: Config, most_per_user: int | None) -> Privacy:
    """Unit and relation, with the group size of a claim per user: declared, or the largest in the data.

    Args:
        config: all settings.
        most_per_user: the largest number of records of one user; None where the data names no users.

    Raises:
        InputError: a user has more records than the config declares.
    """
    declared = config.privacy.records_per_user
    if declared is not None and most_per_user is not None and most_per_user > declared:
        problem = f"this is {declared}, but one user has {most_per_user} records."
        raise InputError("privacy.records_per_user", problem, "Thin out that user's records, or declare more.")
    found = most_per_user if declared is None else declared
    return Privacy(
        unit=config.privacy.unit,
        relation=config.privacy.relation,
        records_per_user=found,
        records_per_user_from="declared" if declared is not None or found is None else "data",
        delta_from="records" if _delta_is_worked_out(config) else "declared",
    )


def _record(config: Config, model: LanguageModel, privacy: Privacy) -> Record:
    """What is recorded, with as many central values as the change needs that a claim covers.

    Raises:
        InputError: the model has too few tokens for the support, or the format holds too few central values.
    """
    size, aggregator = config.mechanism.support.size, config.mechanism.aggregator
    if size is not None and size > model.vocabulary:
        problem = f"this is {size}, but the model has {model.vocabulary} tokens."
        raise InputError("mechanism.support.size", problem, f"Allowed: at most {model.vocabulary}.")
    change = changed_contexts(config, privacy.records_per_user)
    width = MIN_WIDTH if change is None else max(MIN_WIDTH, aggregator.width_for(change))
    if width > MAX_WIDTH:
        problem = f"a change of {change.contexts if change else 0} contexts needs {width} central values on each side."
        raise InputError("privacy.records_per_user", problem, f"The format holds {MAX_WIDTH}: thin out the users.")
    return Record(dtype=aggregator.dtype, vocabulary=model.vocabulary, width=width, contexts=config.record.contexts)


def _stop_sequences(model: LanguageModel, template: Template) -> tuple[tuple[int, ...], ...]:
    ends = tuple((token,) for token in model.end_tokens)
    return tuple(dict.fromkeys((*template.stop_sequences, *ends)))


def _claim_beforehand(config: Config, records: int, privacy: Privacy, clustering: Clustering) -> Claim | None:
    """The config's claim; without one, the guarantee that follows from public settings, where the mechanism has any."""
    accountant = accountant_beforehand(config, changed_contexts(config, privacy.records_per_user), clustering)
    if config.claim is not None:
        epsilon, delta = config.claim.epsilon, config.claim.delta
    elif accountant is None:
        return None
    else:
        delta = _delta(config, records)
        if not accountant.delta_left(delta):
            problem = f"this is {delta:g}, of which the clustering's centres alone take {clustering.delta:g}."
            raise InputError("privacy.delta", problem, "Allowed: a number above clustering.delta and below 1.")
        # By the paper's accounting, which any other library can repeat; the audit also knows a tighter one.
        epsilon = round_up(accountant.epsilon(config.decoding.max_tokens, delta, "rdp").epsilon)
    return _claim(config, epsilon, delta)


def _claim(config: Config, epsilon: float, delta: float) -> Claim:
    privacy = config.privacy
    kind = config.mechanism.claim_kind
    return Claim(epsilon=epsilon, delta=delta, kind=kind, relation=privacy.relation, unit=privacy.unit)


def _delta_is_worked_out(config: Config) -> bool:
    return config.mechanism.claim_kind == "approximate" and config.claim is None and config.privacy.delta is None


def _delta(config: Config, records: int) -> float:
    if config.privacy.delta is not None:
        return config.privacy.delta
    if records < 2:
        problem = f"this is null, which needs at least 2 records, and there are {records}."
        raise InputError("privacy.delta", problem, "Allowed: a number above 0 and below 1.")
    # Three digits, rounded down: a smaller delta claims more, and epsilon is worked out for the one that is claimed.
    delta = Decimal(math.pow(records, DELTA_EXPONENT))
    return float(delta.quantize(Decimal(1).scaleb(delta.adjusted() - 2), rounding=ROUND_FLOOR))


def accountant_beforehand(
    config: Config, change: ContextChange | None, clustering: Clustering
) -> ApproximateAccountant | None:
    """What a run costs beforehand, its clusters included; None for a mechanism whose cost only the data shows."""
    counts, centers = _clustering_epsilons(clustering)
    return ApproximateAccountant.of(
        config.mechanism,
        change,
        laplace=rebalancing_events(counts, config.privacy.relation),
        centers=centers,
        centers_delta=clustering.delta or 0.0,
    )


def _clustering_epsilons(clustering: Clustering) -> tuple[float, float]:
    """What noisy counts and centres cost, in nats, for the run's own unit and relation.

    Centres by k-means on private records have no finite cost. A run with them says so (`origins`, `clustering.origin`),
    fails its audit, and its claim is of its tokens alone.
    """
    return 0.0 if clustering.counts is None else clustering.counts.epsilon, clustering.epsilon or 0.0


def _versions() -> list[tuple[str, str]]:
    installed = {name for name in SOFTWARE if list(metadata.Distribution.discover(name=name))}
    return [(name, metadata.version(name)) for name in sorted(installed)]


def _flat(fields: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat
