"""Do the sampled tokens look drawn from the distribution that the record declares?"""

from __future__ import annotations

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, run_check
from dpaudit.checks.sampling_test import FALSE_ALARMS, POWER


@run_check(
    check_id="sampling.distribution",
    title="Tokens look drawn from softmax(aggregate / temperature)",
    failed="Tokens were not drawn from softmax(aggregate / temperature)",
    evidence=1,
    why=(
        "Privacy comes from the randomness of the draw. A colder, greedy or truncated draw can cost more than "
        "is charged here."
    ),
    remedy=(
        "Sample from softmax(aggregate / temperature) over the whole support: no top-k, top-p, greedy step or other "
        "default after the aggregation. Then generate again; do not release this run."
    ),
    reference="docs/mathematics.md#the-sampling-test",
)
def tokens_look_sampled(facts: Facts) -> Outcome:
    """The likelihood of all tokens as declared against other temperatures, truncations and any other distribution."""
    test = facts.sampling
    expected = f"no alternative explains the tokens better (false alarms below {FALSE_ALARMS:g})"
    if not test.steps:
        return Outcome("skip", "nothing", expected, "No step could be evaluated.")
    alarms = test.alarms()
    if alarms:
        found = f"{alarms[0].alternative} explains {test.steps} tokens e^{alarms[0].evidence:.1f} times better"
        return Outcome("fail", found, expected)
    power = f"{test.steps} tokens; with probability {POWER:g} this would have shown {test.detectable()}"
    return Outcome("pass", power, expected)
