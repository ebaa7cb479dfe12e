"""Is the temperature one that this house allows?"""

from __future__ import annotations

from dpaudit.checks.facts import Facts
from dpaudit.checks.registry import Outcome, RunCheck

MOST = 2.0


@RunCheck(id="acme.temperature")
def temperature_is_moderate(facts: Facts) -> Outcome:
    """Hold the temperature against the highest that this house allows."""
    values = {"temperature": facts.manifest.mechanism.temperature, "most": MOST}
    if facts.manifest.mechanism.temperature > MOST:
        return Outcome("fail", "too-hot", values)
    return Outcome("pass", "moderate", values)
