"""`dpaudit compose`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.options import (
    RUN_DIR,
    FiniteRange,
    NamedPath,
    TitledCommand,
    output_options,
    several_runs_options,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import show_document, tell

if TYPE_CHECKING:
    from dpaudit.api.places import Location


@click.command(cls=TitledCommand)
@click.argument("run_dirs", type=RUN_DIR, nargs=-1, required=True, metavar="RUN_DIR [...]")
@click.option(
    "--with",
    "stated",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE.yaml",
    help="Guarantees of other tools for the same records: a list of zCDP, Renyi DP or (epsilon, "
    "delta).",
)
@click.option(
    "--delta", type=FiniteRange(0, 1, min_open=True, max_open=True), help="Delta of the total."
)
@several_runs_options
@output_options
def compose(
    run_dirs: tuple[Location, ...],
    stated: Path | None,
    delta: float | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Add up what releases of the same records cost together.

    Every run is audited first. A run that does not pass is not composed. Each kind of epsilon has a
    total of its own. Runs that continue each other's spending (`dpaudit generate --spent`) share
    one budget.

    \b
    Example:
      dpaudit compose spring-run autumn-run --with statistics.yaml --delta 1e-6
    """
    from dpaudit.api.audits import AuditError
    from dpaudit.api.comparing import compose as compose_releases
    from dpaudit.reports.composition import build
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    try:
        found = compose_releases(
            *run_dirs, guarantees=stated, delta=delta, monitor=TERMINAL, **asked
        )
    except AuditError as refused:
        by_model = "" if asked["model"] is None else f" --model {argument(asked['model'], 'NAME')}"
        for run in (
            audit.run for audit in refused.audits if audit.verdict in ("not_verified", "fail")
        ):
            tell(
                f"dpaudit: not composed: {in_a_line(run)} does not pass its own audit, so "
                "nothing is known of what it "
                f"cost. What to mend: dpaudit verify {argument(str(run), 'RUN_DIR')}{by_model}"
            )
        leave(*refused.audits)
        return
    show_document(found.result, as_json, build)
