"""`python -m benchmarks.homogeneity`: cost of batches of similar records, against those of a label.

Two median runs over the same records, with as many batches, about as many records in each, and as
many tokens. One hashes each label's records into batches, the other does so within clusters.
Compared is the ex-post cost per token, exact, of every batch that has contexts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import describe
from dpaudit.auditing.run import audit_run
from dpaudit.generation.algorithm import generate
from dpaudit.generation.config import BatchingConfig, Config, SamplingConfig, load_config
from dpaudit.generation.events import BatchDone, Event
from dpaudit.results import BatchResult

_RESAMPLES = 10_000
_LEVELS = (2.5, 97.5)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A ratio and its 95% bootstrap interval."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Arm:
    """Batches with contexts of one run, in one order: nats per token, contexts, label, tokens."""

    costs: Floats
    contexts: Floats
    labels: NDArray[np.str_]
    tokens: Floats

    @classmethod
    def of(cls, batches: Sequence[BatchResult]) -> Arm:
        """Read an audit; batches without contexts or tokens are left out."""
        kept = [
            batch for batch in batches if batch.contexts and batch.steps and batch.exact is not None
        ]
        tokens = np.array([batch.steps for batch in kept], dtype=np.float64)
        sums = np.array([batch.exact for batch in kept], dtype=np.float64)
        contexts = np.array([batch.contexts for batch in kept], dtype=np.float64)
        return cls(
            sums / tokens,
            contexts,
            np.array([batch.label for batch in kept], dtype=np.str_),
            tokens,
        )

    def resampled(self, random: np.random.Generator) -> Arm:
        """Draw as many batches of each label, with replacement."""
        rows = [np.flatnonzero(self.labels == label) for label in np.unique(self.labels)]
        drawn = np.concatenate([random.choice(row, len(row)) for row in rows])
        return Arm(self.costs[drawn], self.contexts[drawn], self.labels[drawn], self.tokens[drawn])

    def summary(self) -> dict[str, float]:
        """Describe its batches."""
        return {
            "batches": float(len(self.costs)),
            "tokens": float(self.tokens.mean()),
            "contexts": float(self.contexts.mean()),
            "fewest contexts": float(self.contexts.min()),
            "nats a token": float(self.costs.mean()),
            "dearest batch, nats": float((self.costs * self.tokens).max()),
        }


def mean_ratio(clustered: Arm, by_label: Arm) -> float:
    """Return the mean cost per token of clustered batches over that of batches by label."""
    return float(clustered.costs.mean() / by_label.costs.mean())


def matched_ratio(clustered: Arm, by_label: Arm) -> float:
    """Return the ratio for equal sizes and labels.

    It is from a linear model of log cost over log contexts and labels.
    """
    costs = np.log(np.concatenate([clustered.costs, by_label.costs]))
    labels = np.concatenate([clustered.labels, by_label.labels])
    arm = np.repeat([1.0, 0.0], [len(clustered.costs), len(by_label.costs)])
    sizes = np.log(np.concatenate([clustered.contexts, by_label.contexts]))
    of_label = labels[:, None] == np.unique(labels)
    columns = np.column_stack([arm, sizes, of_label.astype(np.float64)])
    return float(np.exp(np.linalg.lstsq(columns, costs, rcond=None)[0][0]))


def estimates(clustered: Arm, by_label: Arm, seed: int = 0) -> dict[str, Estimate]:
    """Return both ratios, with percentiles over batches drawn anew within arm and label."""
    random = np.random.default_rng(seed)
    draws = [(clustered.resampled(random), by_label.resampled(random)) for _ in range(_RESAMPLES)]
    found = {}
    for name, ratio in (("mean", mean_ratio), ("matched", matched_ratio)):
        low, high = np.percentile([ratio(*draw) for draw in draws], _LEVELS)
        found[name] = Estimate(ratio(clustered, by_label), float(low), float(high))
    return found


def arms(config: Config, batches_per_label: int, seed: int | None) -> dict[str, Config]:
    """Return a clustered run, and one by label alone with as many batches."""
    if config.clustering is None or config.clustering.keep is None:
        raise click.UsageError(
            "The config needs a clustering that keeps so many centres of each label."
        )
    generated = config.clustering.keep * config.batching.generate_per_cluster
    hashed = BatchingConfig(batches_per_label=batches_per_label, generate_per_label=generated)
    clustered = config.model_copy(
        update={"sampling": SamplingConfig(generator="test-seed", seed=seed)}
    )
    return {
        "clustered": clustered,
        "by label": clustered.model_copy(update={"clustering": None, "batching": hashed}),
    }


def _tell(event: Event) -> None:
    if isinstance(event, BatchDone) and event.batch % 10 == 9:
        click.echo(f"  {event.batch + 1} of {event.batches} batches", err=True)


@click.command()
@click.argument("config", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--batches-per-label",
    type=click.IntRange(min=1),
    required=True,
    help="Into which labels are hashed.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Where the runs go; unfinished ones go on.",
)
@click.option(
    "--seed", type=int, help="A test seed, which gives the same texts again [default: none]."
)
def main(config: Path, batches_per_label: int, out: Path, seed: int | None) -> None:
    """Compare what batches of a clustered config cost with what batches by label alone do.

    \b
    Example:
      python -m benchmarks.homogeneity examples/agnews-clustered.yaml --batches-per-label 100 --out homogeneity
    """  # noqa: E501
    found = {}
    for name, settings in arms(load_config(config), batches_per_label, seed).items():
        click.echo(name, err=True)
        run = out / name.replace(" ", "-")
        if not (run / "hashes").exists():
            generate(settings, run, _tell)
        found[name] = Arm.of(audit_run(run).batches)
    ratios = estimates(found["clustered"], found["by label"])
    result = {
        "arms": {name: arm.summary() for name, arm in found.items()},
        "ratios": {name: asdict(estimate) for name, estimate in ratios.items()},
        "machine": describe(),
    }
    text = json.dumps(result, indent=1)
    (out / "homogeneity.json").write_text(text + "\n", encoding="utf-8")
    click.echo(text)


if __name__ == "__main__":
    main()
