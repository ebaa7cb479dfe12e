"""First steps from Python: a commented config for records of one's own, and the demo."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from dpaudit.api import places
from dpaudit.api.audits import audit
from dpaudit.api.comparing import RunComparison, compare
from dpaudit.api.generating import generate
from dpaudit.api.monitor import SILENT, Monitor
from dpaudit.auditing.checks.preflight import obstacles, refuse
from dpaudit.generation.starting import MODEL as MODEL
from dpaudit.generation.starting import (
    PARTS,
    First,
    demo_configs,
    example_config,
    first_config,
    missing_parts,
)
from dpaudit.generation.starting import PLACEHOLDER as PLACEHOLDER
from dpaudit.generation.starting import Demo as Demo
from dpaudit.generation.starting import Own as Own
from dpaudit.generation.starting import promises as promises
from dpaudit.generation.starting import template_for as template_for
from dpaudit.runs import InputError
from dpaudit.runs import MostTruePositives as MostTruePositives
from dpaudit.runs.layout import HASHES


@dataclass(frozen=True)
class Starter:
    """A commented config that was written.

    Attributes:
        file: where.
        own: what it says of the records, and the sizes that follow; None for the example.
        first: the same as YAML; None for the example.
        finished: whether `generate` takes it as it is. Else labels are to be filled in, in the
            place of PLACEHOLDER.
        needs: the command that installs what the model and the example's records need; empty if
            nothing is missing.
    """

    file: Path
    own: Own | None
    first: First | None
    finished: bool
    needs: str

    @property
    def plan(self) -> dict[str, Any] | None:
        """The sizes of a run and its cost at both levels, as JSON; None for the example."""
        if (first := self.first) is None:
            return None
        bounds = {"attack": first.attack, "batch_attack": first.batch_attack}
        return {
            **asdict(first.sizes),
            "epsilon": first.epsilon,
            "batch_epsilon": first.batch_epsilon,
            **{
                name: None if bound is None else bound.model_dump(mode="json")
                for name, bound in bounds.items()
            },
        }


def init(
    config: str | os.PathLike[str] = "dpaudit.yaml",
    own: Own | None = None,
    *,
    aggregator: Demo = "mean",
    overwrite: bool = False,
) -> Starter:
    """Write a commented config for `generate`.

    Args:
        config: the file to write.
        own: what is known of your records; None for the example's, which runs as it stands.
        aggregator: mean or central.
        overwrite: replace a file that is there.

    Raises:
        InputError: the records or a setting cannot be used, a run could not pass its audit, or the
            file is there.
    """
    if aggregator not in get_args(Demo):
        raise InputError("aggregator", f"the value is {aggregator!r}.", "Give mean or central.")
    file, first = places.path_of(config, "config"), None
    if own is not None:
        limits = ("epsilon", "advantage", "true_positives")
        given = [name for name in limits if getattr(own, name) is not None]
        if len(given) > 1:
            raise InputError(given[1], f"there is {given[0]}, too.", "Give one of them.")
        if given and not promises(aggregator):
            problem = f"what a {aggregator} run costs is known once the texts are."
            raise InputError(given[0], problem, "Leave it out, or choose aggregator mean.")
        if own.label is None and own.template not in (None, "own"):
            raise InputError(
                "template", "the others show a label, and there is none.", "Choose own."
            )
        first = first_config(aggregator, own)
        _require_possible(own, first)
    text = example_config(aggregator) if first is None else first.text
    with places.writing(file, "CONFIG"):
        try:
            with file.open(
                "w" if overwrite and file.is_file() else "x", encoding="utf-8"
            ) as opened:
                opened.write(text)
        except FileExistsError:
            remedy = "Name another file, or overwrite it with --force."
            raise InputError(str(file), "this is there already.", remedy) from None
    return Starter(
        file, own, first, PLACEHOLDER not in text, PARTS if own is None else missing_parts(text)
    )


def _require_possible(own: Own, first: First) -> None:
    """Refuse a config whose runs could not pass their audit, as far as is known without labels.

    Raises:
        InputError: they could not.
    """
    found = obstacles(first.planned)
    if own.records is None and any(each.check == "claim.delta" for each in found):
        problem = (
            "the example's delta is too large for so many records, and `init` chooses none "
            "by counting them."
        )
        raise InputError(
            "--records", problem, "Say about how many there are. This number becomes public."
        )
    refuse(found)


def demo(
    out: str | os.PathLike[str], *, quick: bool = False, monitor: Monitor = SILENT
) -> RunComparison:
    """Generate, audit and compare two small runs: of a mean and of a central mean.

    This loads torch and the model.

    Runs that are there already are not generated again.

    Args:
        out: folder for the runs, their reports and comparison.html.
        quick: short texts of one label.
        monitor: receives progress and warnings.

    Returns:
        The comparison; `audits` are named mean and central.
    """
    folder, audits = places.path_of(out, "out"), {}
    for name, config in demo_configs(quick=quick).items():
        run = folder / name
        if not (run / HASHES).exists():
            generate(config, out=run, monitor=monitor.titled(name))
        audits[name] = audit(run, model=config.model.name, monitor=monitor)
        audits[name].save()
    found = compare(*audits.values(), names=tuple(audits), monitor=monitor)
    found.save(folder / "comparison.html", {name: f"{name}/report/report.html" for name in audits})
    return found
