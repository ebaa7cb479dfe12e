"""The commands that make a report again."""

from __future__ import annotations

from typing import get_args

from dpaudit.reports.findings import is_public
from dpaudit.results import Asked, AuditResult
from dpaudit.results.shell import WITH_DATA, argument, claim_options

#: How a model's name begins that a public report withholds.
WITHHELD_NAME = "withheld:"
#: The evidence level that the commands ask for unless told, and the first that needs the private
#: data.
_USUAL_EVIDENCE, _WITH_DATA = 2, 3
#: The checks that hold a run against its model and its data.
_REPLAYS = ("replay.logits", "replay.lower-bound", "neighbors.regenerated")


def commands(result: AuditResult) -> tuple[str, ...]:
    """Return what to type to get this report again and to use its claim as a release gate."""
    path = argument(result.run.path or "RUN_DIR", "RUN_DIR")
    audience = " --audience public" if is_public(result) else ""
    report = (
        "dpaudit report "
        f"{path}{audience}{claim_options(result.claim, result.asked)}{rests_on(result)}"
    )
    return (
        report,
        f"dpaudit verify {path}{claim_options(result.claim, get_args(Asked))}{rests_on(result)}",
    )


def rests_on(result: AuditResult) -> str:
    """Return the options that an audit needs to show the same: the model, the data, the level."""
    replays = [check for check in result.checks if check.id in _REPLAYS]
    replayed = result.guarantees.empirical.attack is not None or any(
        check.status != "skip" for check in replays
    )
    # Where nothing of ours can load the generator, no check asks for the data.
    wanted = result.evidence >= _WITH_DATA and any(
        check.made_with == WITH_DATA for check in replays
    )
    level = "" if result.evidence == _USUAL_EVIDENCE else f" --evidence {result.evidence}"
    if replayed or wanted:
        return f"{level} {WITH_DATA}"
    modelled = any(
        check.id == "mechanism.support-public"
        and check.status != "skip"
        and check.evidence == _WITH_DATA
        for check in result.checks
    )
    return (
        f"{level} --model {argument(model_name(result) or 'NAME', 'NAME')}" if modelled else level
    )


def model_name(result: AuditResult) -> str:
    """Return the name of the run's model; empty if it is not told."""
    settings = result.run.settings
    name = None if settings is None else settings.model.name
    return "" if name is None or name.startswith(WITHHELD_NAME) else name
