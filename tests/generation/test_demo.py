"""The demo's configs: two runs that differ in the aggregator alone, at epsilons worth claiming."""

import pytest

from dpaudit.accounting import ApproximateAccountant
from dpaudit.generation.starting import demo_configs
from dpaudit.mechanisms.neighbors import ContextChange


def test_the_demos_runs_differ_in_the_aggregator_alone() -> None:
    configs = demo_configs()
    assert [config.mechanism.aggregator.name for config in configs.values()] == list(configs) == ["mean", "central"]
    # A delta belongs to the mean's kind of guarantee alone.
    mean, central = (config.model_dump(exclude={"privacy": {"delta"}}) for config in configs.values())
    for fields in (mean, central):
        for own in ("aggregator", "divisor", "central"):
            fields["mechanism"].pop(own, None)
    assert mean == central


@pytest.mark.parametrize("quick", [False, True])
def test_the_demo_can_pass_its_audit_and_leaves_no_text_empty(quick: bool) -> None:
    for config in demo_configs(quick=quick).values():
        assert config.batching.generate_per_label >= 2, "supports and anchors are held against another batch's"
        assert config.decoding.least_tokens > 0
        examples = config.prompt.public_examples
        assert isinstance(examples, dict) and set(examples) == set(config.data.groups)
        assert all(len(set(texts)) == len(texts) == 4 for texts in examples.values())


def test_quick_demo_differs_in_labels_and_length_alone() -> None:
    for config, quick in zip(demo_configs().values(), demo_configs(quick=True).values(), strict=True):
        sizes = {"data": {"labels", "other_labels"}, "prompt": {"public_examples"}, "decoding": {"max_tokens"}}
        assert quick.model_dump(exclude=sizes) == config.model_dump(exclude=sizes)


def test_the_demos_mean_claims_at_most_epsilon_3_at_delta_1e_5() -> None:
    config = demo_configs()["mean"]
    accountant = ApproximateAccountant.of(config.mechanism, ContextChange(config.privacy.relation))
    assert config.privacy.delta == 1e-5 and accountant is not None
    assert accountant.epsilon(config.decoding.most_tokens, 1e-5, "rdp").epsilon <= 3
