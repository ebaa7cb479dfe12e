"""Obstacles that keep a run from passing its own audit at evidence level 2, before it begins.

The checks that settings decide are made on the planned run. A check that needs more says nothing
here, so that a run without an obstacle may still fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from dpaudit.auditing.checks import registered
from dpaudit.auditing.checks.costs import Costs
from dpaudit.auditing.checks.evidence import AuditedRun
from dpaudit.auditing.checks.registry import Check, Outcome
from dpaudit.plugins import FAILURES
from dpaudit.results.catalogue import render
from dpaudit.results.planned import PlannedRun
from dpaudit.results.replay import Replay
from dpaudit.runs import Clusters, InputError, Manifest, RunReader


@dataclass(frozen=True)
class Obstacle:
    """An outcome of a check that no run of these settings can avoid.

    Attributes:
        check: the check that fails or cannot be made.
        code: of the outcome.
        setting: the config's field.
        problem: what is wrong there, without a full stop. Never holds text of a private record.
        remedy: what would do instead, as a sentence.
        meant: whether the config itself says that its run is for no release.
    """

    check: str
    code: str
    setting: str
    problem: str
    remedy: str
    meant: bool

    def __str__(self) -> str:
        return str(self.error())

    def error(self, otherwise: str = "") -> InputError:
        """Return the obstacle as an error; `otherwise` is what else can be done, as a sentence."""
        problem, remedy = f"{self.problem} ({self.check}).", f"{self.remedy} {otherwise}".rstrip()
        return InputError(self.setting, problem, remedy, self.check)


class _NothingWritten(RunReader):
    """The reader of a run that has settings and expected clusters, and no file."""

    def __init__(self, manifest: Manifest, clusters: Clusters) -> None:
        self.manifest, self._expected = manifest, clusters

    @override
    def clusters(self) -> Clusters:
        return self._expected


def obstacles(planned: PlannedRun) -> tuple[Obstacle, ...]:
    """Return what keeps every run of these settings from passing, in the order of the checks."""
    replayed = None
    if planned.shared is not None:
        replayed = Replay(None, None, None, None, (), (), None, whole=False, shared=planned.shared)
    run = AuditedRun(_NothingWritten(planned.manifest, planned.clusters), planned.claim, replayed)
    run.begin(Costs)  # what settings cost is known before any step
    made = ((check, _outcome(check, run)) for check in registered().values())
    return tuple(
        _obstacle(check, outcome, planned)
        for check, outcome in made
        if outcome is not None
        and (outcome.status == "fail" or (outcome.status == "skip" and outcome.applicable))
    )


def refuse(found: Sequence[Obstacle], otherwise: str = "") -> None:
    """Refuse settings with an unintended obstacle; `otherwise` is another remedy, a sentence.

    Raises:
        InputError: names the setting of the first of them.
    """
    refused = [each for each in found if not each.meant]
    if refused:
        more = len(refused) - 1
        raise refused[0].error(
            f"({more} more to mend after this one.) {otherwise}" if more else otherwise
        )


def _outcome(check: Check[Any], run: AuditedRun) -> Outcome | None:
    try:
        return check.before(run)
    except FAILURES:
        if check.plug_in is None:
            raise
        return None  # the audit says so


def _obstacle(check: Check[Any], outcome: Outcome, planned: PlannedRun) -> Obstacle:
    about, values = check.entry, outcome.values
    words = about.before.get(outcome.code)
    if words is None:  # of a plug-in, or of an outcome that no config should have
        return Obstacle(
            check.id,
            outcome.code,
            check.id,
            about.fails[:1].lower() + about.fails[1:],
            about.remedy,
            False,
        )
    setting = render(words.setting, values)
    section = setting.partition("[")[0]
    return Obstacle(
        check=check.id,
        code=outcome.code,
        setting=planned.names.get(section, section),
        problem=render(words.problem, values),
        remedy=render(words.remedy, values),
        meant=words.meant,
    )
