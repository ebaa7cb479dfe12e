"""A row's cost, from public settings alone: no model, no records, and nothing they would tell."""

from __future__ import annotations

import json
import math
import secrets
from pathlib import Path

from dpaudit.accounting import CLUSTERINGS, ApproximateAccountant
from dpaudit.generation import expected
from dpaudit.generation.config import ClusteringConfig, Config
from dpaudit.generation.experiments.table import Row, Table
from dpaudit.generation.experiments.table_results import Estimate, Estimates, Throughput
from dpaudit.generation.manifest import (
    declared_batching,
    declared_privacy,
    expected_clusters,
    release_accountant,
    secrecy_of,
    with_budget,
)
from dpaudit.mechanisms import ContextChange
from dpaudit.results import Amplification, Finding
from dpaudit.runs import Clustering, CountsNoise, InputError, NoGain, NotSecret
from dpaudit.runs.assignment import KEY_BYTES

#: The paper's choice of delta: records ** -1.1.
DELTA_EXPONENT = -1.1
#: What the paper's accounting rests on: a context comes or goes, and the divisor is fixed.
_PAPER = ContextChange("add_remove")
#: What `python -m benchmarks` measured, in a checkout of this repository.
MEASURED = Path("benchmarks/results/latest.json")
#: Of SmolLM2-135M, which benchmarks generate with.
_MEASURED_PARAMETERS = 134.5e6
_MEASURED_CONTEXTS = 32
_MEASURED_ROW = f"ours over a bare loop: 2 texts of {_MEASURED_CONTEXTS} contexts"


def estimates(table: Table, tokens_per_second: float | None) -> Estimates:
    """Work out what every row of a table takes.

    Args:
        table: the rows.
        tokens_per_second: contexts that the model continues by a token in a second; None for what
            benchmarks measured.
    """
    throughput = None
    if tokens_per_second is not None:
        throughput = stated_throughput(tokens_per_second)
    elif MEASURED.exists():
        throughput = measured_throughput(MEASURED, table.parameters)
    rows = tuple(estimate(row, throughput) for row in table.rows)
    return Estimates(title=table.title, throughput=throughput, rows=rows)


def estimate(row: Row, throughput: Throughput | None) -> Estimate:
    """Work out a row's cost.

    Epsilons are those that the run would claim, but from the config alone.
    """
    config, records, privacy = row.config, row.records, row.config.privacy
    tokens, paper_delta = config.decoding.most_tokens, row.records**DELTA_EXPONENT
    counts, centers, centers_delta = _clustering_costs(config.clustering)
    as_paper = None
    if math.isinf(centers):
        as_paper = math.inf
    elif one := ApproximateAccountant.of(
        config.mechanism, _PAPER, centers=centers, centers_delta=centers_delta
    ):
        as_paper = one.epsilon(tokens, paper_delta, "rdp").epsilon
    affordable, of_tokens = None, ApproximateAccountant.of(config.mechanism, _PAPER)
    aimed_at = None if row.paper is None else row.paper.epsilon
    if of_tokens is not None and aimed_at is not None and math.isfinite(aimed_at):
        affordable = of_tokens.affordable_tokens(aimed_at, paper_delta)
    delta = None
    if config.claim_kind.beforehand:
        stated = privacy.delta if config.claim is None else config.claim.delta or privacy.delta
        delta = paper_delta if stated is None else stated
    epsilon, batch_epsilon, equal = _levels(config, delta)
    batches, contexts = (
        expected.batches(config, records),
        config.batching.slots or expected.contexts(config, records),
    )
    work = round(batches * contexts * tokens)
    return Estimate(
        config=row.name,
        dataset=row.dataset,
        method=row.method,
        clusters=expected.clusters(config),
        batches=batches,
        counted=config.batching.records_per_batch is not None,
        contexts=contexts,
        tokens=tokens,
        context_tokens=work,
        epsilon_as_paper=as_paper,
        counts_epsilon=counts,
        affordable_tokens=affordable,
        epsilon=epsilon,
        batch_epsilon=batch_epsilon,
        equal=equal,
        delta=delta,
        unit=privacy.unit,
        relation=privacy.relation,
        hours=None if throughput is None else work / throughput.context_tokens_per_second / 3600,
        paper=row.paper,
    )


def _levels(
    config: Config, delta: float | None
) -> tuple[float | None, float | None, Finding | None]:
    """Work out a row's claims at both levels, in nats, and the reason why these are equal, if so.

    None if only the data shows the cost. The batch level is by the accounting that a run's own
    claim is.
    """
    counts, centers, centers_delta = _clustering_costs(config.clustering)
    if math.isinf(centers):
        return math.inf, math.inf, Amplification.why_equal(NoGain.UNBOUNDED)
    clustering, privacy = Clustering(), declared_privacy(config, None)
    if config.clustering is not None:
        clustering = Clustering.model_construct(
            method=config.clustering.method,
            epsilon=centers,
            delta=centers_delta,
            counts=CountsNoise.model_construct(epsilon=counts) if counts else None,
            records_per_batch=config.batching.records_per_batch,
            least_batches=config.batching.least_batches,
        )
    key = secrets.token_hex(KEY_BYTES)
    batching = declared_batching(
        config, expected_clusters(config), key, secret=config.batching.key is None
    )
    secrecy = secrecy_of(config, privacy, batching, clustering)
    budgeted = with_budget(config, privacy, batching, clustering)
    accountant, tokens = (
        release_accountant(budgeted, privacy, batching, clustering),
        config.decoding.most_tokens,
    )
    if accountant is None or delta is None:
        return (
            None,
            None,
            Amplification.why_equal(secrecy) if isinstance(secrecy, NotSecret) else None,
        )
    known = accountant.batch_level(tokens, delta, "rdp").epsilon
    why = secrecy if isinstance(secrecy, NotSecret) else accountant.gains_nothing(tokens, delta)
    epsilon = known if why is not None else min(known, accountant.epsilon(tokens, delta))
    if config.privacy.epsilon is not None:
        epsilon = config.privacy.epsilon
    return (
        epsilon,
        epsilon if accountant.secret is None else max(epsilon, known),
        None if why is None else Amplification.why_equal(why),
    )


def unbounded(config: Config) -> bool:
    """Return whether centres are found on records without noise: nothing bounds their cost."""
    return math.isinf(_clustering_costs(config.clustering)[1])


def stated_throughput(context_tokens_per_second: float) -> Throughput:
    """Return a throughput that the user measured."""
    return Throughput(
        context_tokens_per_second=context_tokens_per_second,
        source=f"{context_tokens_per_second:g} context tokens/s, as given",
    )


def measured_throughput(path: Path, parameters: float) -> Throughput:
    """Read the throughput from results of `python -m benchmarks` (latest.json).

    It is in proportion to the parameters of the rows' model.

    Raises:
        InputError: the file has no such figures.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        row = next(row for row in results["rows"] if row["what"].startswith(_MEASURED_ROW))
        rate = float(row["figures"]["ours, tokens/s"]) * _MEASURED_CONTEXTS
        where, machine = row["what"].rpartition(", ")[2], results["machine"]
        device = (
            f"{machine['processor']}, {machine['cores']} cores"
            if where == "cpu"
            else machine["accelerator"]
        )
        date = results["made"][row["topic"]].partition(",")[0]
        measured_on = f"{device}, {date} ({where})"
    except OSError as error:
        raise InputError(
            str(path), f"cannot be read ({error.strerror}).", "Give --tokens-per-second."
        ) from None
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        problem = "these are no results of `python -m benchmarks`."
        raise InputError(
            str(path), problem, "Measure them anew, or give --tokens-per-second."
        ) from None
    scaled = rate * _MEASURED_PARAMETERS / parameters
    if not 0 < scaled < math.inf:
        raise InputError(str(path), "the measured rate is not positive.", "Measure it anew.")
    source = f"{scaled:.3g} context tokens/s: {rate:.3g} with SmolLM2-135M on {measured_on}"
    return Throughput(
        context_tokens_per_second=scaled, source=f"{source}, in proportion to the parameters"
    )


def _clustering_costs(clustering: ClusteringConfig | None) -> tuple[float, float, float]:
    """Return the cost of the noisy counts that decide on kept centres, and that of the centres.

    Nothing bounds centres that are found on records without noise: their epsilon is infinite.
    """
    if clustering is None or (
        clustering.keep is None and CLUSTERINGS[clustering.method].origin == "public"
    ):
        return 0.0, 0.0, 0.0
    if clustering.keep is not None:
        return clustering.budget, 0.0, 0.0
    if clustering.method == "k-means":
        return 0.0, math.inf, 0.0
    return 0.0, clustering.budget, clustering.delta or 0.0
