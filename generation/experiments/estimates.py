"""What a row costs, from public settings alone: no model, no records, nothing that either would tell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpaudit.accounting import (
    ContextChange,
    affordable_tokens,
    context_change,
    mean_epsilon,
    rebalancing_events,
)
from dpaudit.runs import InputError
from generation.config import ClusteringConfig, Config
from generation.experiments.table import Row

#: The paper's choice of delta: records ** -1.1.
DELTA_EXPONENT = -1.1
#: What the paper's accounting rests on: a context comes or goes, and the divisor is fixed.
_PAPER = ContextChange("add_remove")
#: Of SmolLM2-135M, which benchmarks generate with.
_MEASURED_PARAMETERS = 134.5e6
_MEASURED_CONTEXTS = 32
_MEASURED_ROW = f"ours over a bare loop: 2 texts of {_MEASURED_CONTEXTS} contexts"


@dataclass(frozen=True)
class Throughput:
    """How many contexts the rows' model continues by a token in a second, and where that figure is from."""

    context_tokens_per_second: float
    source: str


@dataclass(frozen=True)
class Estimate:
    """What one row takes.

    Attributes:
        clusters: groups of records that share batches: labels, or clusters within them.
        batches: texts; where noisy counts decide, about as many.
        contexts: of a batch: its slots, or about so many records.
        tokens: of a text at most; one that ends early takes fewer.
        context_tokens: batches x contexts x tokens.
        epsilon_as_paper: of a mean's tokens for one context, at records ** -1.1: the paper's figure; None for medians.
        affordable_tokens: how many tokens the paper's epsilon buys by the same accounting; None without one.
        epsilon: of a mean with its noisy counts, for the unit and relation of the config's own claim; infinite where
            nothing bounds it, None for medians, whose ex-post epsilon is known afterwards.
        delta: that goes with `epsilon`.
        hours: None without a throughput.
    """

    row: Row
    clusters: int
    batches: int
    contexts: float
    tokens: int
    context_tokens: int
    epsilon_as_paper: float | None
    affordable_tokens: int | None
    epsilon: float | None
    delta: float | None
    hours: float | None


def estimate(row: Row, throughput: Throughput | None) -> Estimate:
    """What a row takes."""
    config, tokens = row.config, row.config.decoding.max_tokens
    batches, contexts = _batches(config, row.records), _contexts(config, row.records)
    work = round(batches * contexts * tokens)
    own = _delta(config, row.records)
    return Estimate(
        row=row,
        clusters=clusters(config),
        batches=batches,
        contexts=contexts,
        tokens=tokens,
        context_tokens=work,
        epsilon_as_paper=_epsilon_as_paper(config, row.records),
        affordable_tokens=_affordable(row),
        epsilon=None if own is None else _epsilon(config, own),
        delta=own,
        hours=None if throughput is None else work / throughput.context_tokens_per_second / 3600,
    )


def clusters(config: Config) -> int:
    """Groups of records that share batches; for centres whose number is not public (dpm), labels alone."""
    clustering, labels = config.clustering, len(config.data.labels)
    return labels if clustering is None else labels * (clustering.keep or clustering.centers or 1)


def stated_throughput(context_tokens_per_second: float) -> Throughput:
    """A throughput that the user measured."""
    return Throughput(context_tokens_per_second, f"{context_tokens_per_second:g} context tokens/s, as given")


def measured_throughput(path: Path, parameters: float) -> Throughput:
    """From the results of `python -m benchmarks`, in proportion to the number of parameters.

    Args:
        path: of results such as benchmarks/results/latest.json.
        parameters: of the rows' model.

    Raises:
        InputError: the file has no such figures.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        row = next(row for row in results["rows"] if row["what"].startswith(_MEASURED_ROW))
        rate = float(row["figures"]["ours, tokens/s"]) * _MEASURED_CONTEXTS
        where, machine = row["what"].rpartition(", ")[2], _machine(results["machine"], row["what"])
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}).", "Give --tokens-per-second.") from None
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        problem = "these are no results of `python -m benchmarks`."
        raise InputError(str(path), problem, "Measure them anew, or give --tokens-per-second.") from None
    scaled = rate * _MEASURED_PARAMETERS / parameters
    if not 0 < scaled < math.inf:
        raise InputError(str(path), "the measured rate is not positive.", "Measure it anew.")
    source = f"{scaled:.3g} context tokens/s: {rate:.3g} with SmolLM2-135M on {machine} ({where})"
    return Throughput(scaled, f"{source}, in proportion to the parameters")


def _machine(machine: Mapping[str, Any], row: str) -> str:
    device = machine["accelerator"] if not row.endswith("cpu") else f"{machine['processor']}, {machine['cores']} cores"
    return f"{device}, {machine['date']}"


def _batches(config: Config, records: int) -> int:
    batching, groups = config.batching, clusters(config)
    if config.clustering is None:
        return groups * batching.generate_per_label
    if batching.records_per_batch is None:
        return groups * batching.generate_per_cluster
    # By noisy counts: together about as many as records fill, and one for each cluster at least.
    filled = max(groups, round(records / batching.records_per_batch))
    return min(filled, groups * batching.generate_per_cluster)


def _contexts(config: Config, records: int) -> float:
    batching = config.batching
    if batching.slots is not None:
        return batching.slots
    if batching.records_per_batch is not None:
        return batching.records_per_batch
    of_group = batching.batches_per_cluster if config.clustering is not None else batching.batches_per_label
    return records / clusters(config) / (of_group or 1)


def _epsilon_as_paper(config: Config, records: int) -> float | None:
    mechanism = config.mechanism
    if mechanism.divisor is None:
        return None
    tokens, delta = config.decoding.max_tokens, records**DELTA_EXPONENT
    return mean_epsilon(mechanism.clip, mechanism.temperature, mechanism.divisor, tokens, delta, _PAPER)


def _affordable(row: Row) -> int | None:
    mechanism, paper = row.config.mechanism, row.paper
    if mechanism.divisor is None or paper is None or math.isinf(paper.epsilon):
        return None
    delta = row.records**DELTA_EXPONENT
    return affordable_tokens(paper.epsilon, mechanism.clip, mechanism.temperature, mechanism.divisor, delta, _PAPER)


def _delta(config: Config, records: int) -> float | None:
    if config.mechanism.aggregator == "median":
        return None
    stated = config.privacy.delta if config.claim is None else config.claim.delta
    return records**DELTA_EXPONENT if stated is None else stated


def _epsilon(config: Config, delta: float) -> float:
    """As the run works out its own claim (`generation.manifest`), from the config alone."""
    mechanism, privacy, clustering = config.mechanism, config.privacy, config.clustering
    change = context_change(privacy.unit, privacy.relation, config.rule, records_per_user=privacy.records_per_user)
    centers, centers_delta = _centers(clustering)
    if change is None or mechanism.divisor is None or math.isinf(centers) or delta <= centers_delta:
        return math.inf
    counts = clustering.budget if clustering is not None and clustering.keep is not None else 0.0
    tokens = mean_epsilon(
        mechanism.clip,
        mechanism.temperature,
        mechanism.divisor,
        config.decoding.max_tokens,
        delta - centers_delta,
        change,
        laplace=rebalancing_events(counts, privacy.relation),
    )
    return tokens + centers


def _centers(clustering: ClusteringConfig | None) -> tuple[float, float]:
    """(epsilon, delta) of the centres; epsilon is infinite for those that are found on records without noise."""
    if clustering is None or clustering.keep is not None or clustering.method == "public-centers":
        return 0.0, 0.0
    if clustering.method == "k-means":
        return math.inf, 0.0
    return clustering.budget, clustering.delta or 0.0
