"""`dpaudit verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dpaudit.commands.audits import audit_of, leave, replay_of
from dpaudit.commands.options import DATA, EVIDENCE, MODEL, RUN_DIR, claim_options, engine_options, output_options
from dpaudit.commands.terminal import note, output, print_json, stdout

if TYPE_CHECKING:
    from dpaudit.audit import Question
    from dpaudit.engines import Engine
    from dpaudit.runs.storage import Location


@click.command()
@click.argument("run_dir", type=RUN_DIR)
@claim_options
@EVIDENCE
@DATA
@MODEL
@engine_options
@output_options
def verify(
    run_dir: Location,
    question: Question,
    evidence: int,
    data: str | None,
    model: str | None,
    engine: Engine | None,
    as_json: bool,
) -> None:
    """Gate a release by the checks of `report`.

    Prints a line per failure and writes no files.

    \b
    Example:
      dpaudit verify run --epsilon 3 && publish run/samples.jsonl
    """
    found = replay_of(run_dir, data, model, question)
    result = audit_of(run_dir, question, evidence=evidence, replay=found, engine=engine)
    if as_json:
        with output():
            # A gate's output lands in logs: the texts are not released yet.
            print_json(result.model_copy(update={"samples": ()}).to_json())
    elif result.claim is not None:  # else there is nothing to say but why it cannot be read
        from dpaudit.reports.findings import unmade_lines
        from dpaudit.reports.terminal import print_failures

        with output():
            print_failures(result, stdout())
        said = (f"{result.verdict}: {result.guarantee}", *result.caveats, *unmade_lines(result))
        for line in said:
            note(f"dpaudit: {line}")
    leave(result)
