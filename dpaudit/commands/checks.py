"""`dpaudit checks`."""

from __future__ import annotations

import json

import click

from dpaudit.commands.options import output_options
from dpaudit.commands.terminal import print_document, print_json


@click.command()
@click.argument("check_id", metavar="[ID]", required=False)
@output_options
def checks(check_id: str | None, as_json: bool) -> None:
    """List the audit's checks, or explain one.

    \b
    Example:
      dpaudit checks sampling.distribution
    """
    from dpaudit.api.audits import list_checks, require_checks

    rows = every = list_checks()
    if check_id is not None:
        rows = [row for row in every if row["id"] == check_id]
        if not rows:
            family = f"{check_id.partition('.')[0]}."
            alike = [str(row["id"]) for row in every if str(row["id"]).startswith(family)]
            named = f" Of that family there are {', '.join(alike)}." if alike else ""
            raise click.UsageError(
                f"There is no check {check_id!r}.{named} `dpaudit checks` lists all of them."
            )
    if as_json:
        print_json(json.dumps(rows if check_id is None else rows[0]))
        return
    from dpaudit.reports.terminal import check_explained, checks_listed

    if check_id is None:
        print_document(checks_listed(rows))
        require_checks()
    else:
        print_document(check_explained(rows[0]))
