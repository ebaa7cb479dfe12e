"""Is the temperature one that this house allows?"""

from __future__ import annotations

from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.registry import Outcome, RunCheck

MOST = 2.0


@RunCheck(id="acme.temperature")
def temperature_is_moderate(run: AuditedRun) -> Outcome:
    """Hold the temperature against the highest that this house allows."""
    values = {"temperature": run.manifest.mechanism.temperature, "most": MOST}
    if run.manifest.mechanism.temperature > MOST:
        return Outcome("fail", "too-hot", values)
    return Outcome("pass", "moderate", values)
