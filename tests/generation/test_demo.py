from importlib import resources
from pathlib import Path

import pytest

from dpaudit.generation.starting import demo_configs

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_demo_is_a_median_and_a_mean_run_that_differ_in_nothing_else() -> None:
    configs = demo_configs()
    assert list(configs) == ["median", "mean"]
    # A delta belongs to the mean's kind of guarantee alone.
    values = [config.model_dump(exclude={"privacy": {"delta"}}) for config in configs.values()]
    for fields in values:
        for own in ("aggregator", "divisor"):
            fields["mechanism"].pop(own, None)
    median, mean = values
    assert median == mean
    assert [config.mechanism.aggregator.name for config in configs.values()] == ["median", "mean"]


@pytest.mark.parametrize("name", ["bbc-median.yaml", "bbc-mean.yaml"])
def test_the_examples_are_the_demo(name: str) -> None:
    shipped = resources.files("dpaudit.generation") / "demos" / name
    assert (EXAMPLES / name).read_text() == shipped.read_text()
