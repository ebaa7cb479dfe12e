"""Is the mechanism that the manifest declares one that a guarantee can rest on?"""

from __future__ import annotations

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, run_check


@run_check(
    check_id="mechanism.randomness",
    title="Tokens were drawn with randomness that nobody can predict",
    failed="Tokens were drawn with randomness that can be replayed",
    evidence=0,
    reference="docs/sharp-edges.md",
)
def randomness_is_secret(facts: Facts) -> Outcome:
    """The declared generator: the operating system's entropy, or a seed that makes the run repeatable."""
    generator = facts.manifest.sampling.generator
    expected = "the operating system's entropy"
    if generator == "os-entropy":
        return Outcome("pass", generator, expected)
    remedy = "Who knows the seed can replay the sampler, so no guarantee holds. Generate again without test_seed."
    return Outcome("fail", "a fixed test seed", expected, remedy)
