"""Honest runs whose clip is very many temperatures: scores of 10^8 nats and more, and top ties."""

from __future__ import annotations

import numpy as np
import pytest

from dpaudit.auditing.checks.record import aggregate_is_defined
from dpaudit.auditing.checks.steps import StepView
from dpaudit.mechanisms import central_order_statistics, median_of, median_sides
from dpaudit.runs import BatchHeader, Step, aggregate_digest


@pytest.mark.parametrize("temperature", [6e-6, 6e-8, 6e-9, 1e-12])
@pytest.mark.parametrize(
    "kind",
    [
        {"dtype": "float64"},
        {"grid": 2.0},
        {"top_k": 3, "grid": 2.0},
        {"contribution": "differences", "sizes": (2,) * 4},
        {"aggregator": "mean", "divisor": 2.0, "contexts": True},
    ],
)
def test_honest_runs_pass_at_any_temperature(make_run, temperature, kind):
    result = make_run(
        temperature=temperature, **({"sizes": (1, 2, 4, 5)} | kind)
    ).audit_with_model()
    assert result.verdict == "pass", [
        (check.id, check.measured) for check in result.checks if check.status == "fail"
    ]


@pytest.mark.parametrize("ratio", [1e6, 1e7, 3e8, 1e9, 1e12, 1e200])
@pytest.mark.parametrize(("contexts", "tied"), [(8, 2), (9, 3), (20, 7)])
def test_fixed_columns_that_tie_for_the_first_place_have_their_probability(
    make_run, ratio, contexts, tied
):
    """Contexts agree on some tokens at the clip.

    Their score is far above the possible error of its logarithm.
    """
    spec = make_run.generator(temperature=6.0 / ratio).spec
    values = np.random.default_rng(0).integers(-6, 6, (contexts, 12)).astype(np.float32)
    values[:, :tied] = 6.0
    arrays = {"central": central_order_statistics(values, 6.0, 2)}
    arrays["sides"], holder = median_sides(values, arrays["central"])
    arrays |= {} if holder is None else {"holder": holder}
    aggregate = median_of(arrays["central"])
    step = Step(0, -np.log(tied), aggregate_digest(aggregate), arrays)
    assert aggregate_is_defined(StepView(spec.manifest, BatchHeader(0, contexts), step)) is None
    wrong = Step(0, -np.log(tied) - 1e-6, aggregate_digest(aggregate), arrays)
    found = aggregate_is_defined(StepView(spec.manifest, BatchHeader(0, contexts), wrong))
    assert found is not None and found.code == "record.other-probability"
