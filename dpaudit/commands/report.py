"""`dpaudit report`, `verify` and `replay`: a run's audit for readers, for a gate, with its data."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.options import (
    COUNT,
    DATA_HELP,
    PUBLIC,
    RUN_DIR,
    NamedPath,
    TitledCommand,
    WholeRange,
    audit_options,
    engine_options,
    junit_option,
    model_option,
    output_options,
    sarif_option,
    seed_option,
    step_name,
    tokenizer_option,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_document, print_json, print_line, show_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpaudit.api.audits import AuditOptions
    from dpaudit.api.places import Location
    from dpaudit.reports.document import Document
    from dpaudit.results import AuditResult
    from dpaudit.results.publication import VerifiedFolder


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--out",
    type=NamedPath(path_type=Path),
    help="Folder for the reports [default: RUN_DIR/report; ./NAME-report for a URL that ends in "
    "NAME].",
)
@click.option(
    "--audience",
    type=click.Choice(["internal", PUBLIC]),
    default="internal",
    show_default=True,
    help="Who reads the reports: public ones leave out what was computed from the records.",
)
@sarif_option
@click.option("--open", "open_it", is_flag=True, help="Open report.html in the browser.")
@audit_options
def report(
    run_dir: Location,
    out: Path | None,
    audience: Literal["internal", "public"],
    sarif: Path | None,
    open_it: bool,
    asked: AuditOptions,
    as_json: bool,
) -> None:
    """Audit a run: print the verdict and write the reports.

    The reports are report.html, report.json, report.md and junit.xml. --audience public leaves out
    what was computed from the records, and writes into RUN_DIR/report/public, unless --out names
    another folder.

    \b
    Example:
      dpaudit report examples/runs/bbc-median --out /tmp/report
    """
    from dpaudit import InputError
    from dpaudit.api import places
    from dpaudit.api.audits import audit, report_place, spare_findings, write_findings
    from dpaudit.reports.drawing import spare_documentation
    from dpaudit.reports.reproducing import rests_on
    from dpaudit.reports.terminal import summary
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument, claim_options

    if places.is_released(run_dir):
        remedy = "Verify it with `dpaudit verify FOLDER --key FILE.pub`."
        raise InputError(str(run_dir), "this is a release folder, and no run.", remedy)
    folder = report_place(run_dir, out, audience)
    spare_findings(run_dir, sarif)
    try:
        audited = audit(run_dir, **asked, keep_partial=True)
    except InputError:
        if audience != PUBLIC or (asked["data"] is None and asked["model"] is None):
            raise
        # What stops a replay may quote the run or its data: readers outside are told no more than
        # that it stopped.
        raise InputError(
            "--data", "the run cannot be replayed.", "Leave --audience away to see why."
        ) from None
    found = audited.public() if audience == PUBLIC else audited
    result = found.report
    # Printed first: where nothing can be written, the audit is not lost.
    show_document(result, as_json, summary)
    write_findings(result, sarif=sarif)
    if audited.claim is not None or out is not None or places.holds_reports(folder):
        spare_documentation()
        paths = found.save(folder)
        if not as_json:
            print_line(
                f"Report ({'public' if audience == PUBLIC else 'private'}): "
                f"{in_a_line(paths['html'])}"
            )
        if open_it:
            click.launch(str(paths["html"]))
    # What is said beside a public report may be shared with it, and the run's path is not public.
    if not as_json and audience != PUBLIC and result.verdict == "pass":
        figure = "epsilon" if result.claim is None else result.claim.terms.figures[0]
        run, agreed = (
            argument(str(run_dir), "RUN_DIR"),
            "" if figure in result.asked else f" --{figure} AGREED",
        )
        gate = claim_options(result.claim, dict.fromkeys((*result.asked, "relation", "unit")))
        note(f"Next: dpaudit verify {run}{agreed}{gate}{rests_on(result)}")
    leave(found)


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR, metavar="RUN_DIR|FOLDER")
@click.option(
    "--key",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE.pub",
    help="The public key that must have signed a release folder.",
)
@click.option(
    "--unsigned", is_flag=True, help="Check the files of a release folder, but no signature."
)
@click.option(
    "--revocations",
    type=NamedPath(path_type=str),
    metavar="FILE|URL",
    help="Refuse a release folder that this list of its key revokes. Exit code 2 if it cannot be "
    "reached or is not the key's.",
)
@click.option(
    "--revocations-days",
    type=COUNT,
    metavar="DAYS",
    help="How old that list may be. Exit code 2 if it is older [default: any age].",
)
@click.option(
    "--authority",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE.pem",
    help="Ask for a time stamp in a release folder, by a holder of one of these certificates.",
)
@junit_option
@sarif_option
@audit_options
def verify(
    run_dir: Location,
    key: Path | None,
    unsigned: bool,
    revocations: str | None,
    revocations_days: int | None,
    authority: Path | None,
    junit: Path | None,
    sarif: Path | None,
    asked: AuditOptions,
    as_json: bool,
) -> None:
    """Check a run; exit code 0 means that it may be released.

    Prints every failed check, and writes only the files that you ask for. Without --epsilon, a run
    is checked against the number that it states itself, so it passes even at epsilon 1,000.

    \b
    Example:
      dpaudit verify run --epsilon 3 && publish run/samples.jsonl
      dpaudit verify run --commitment "$(cat ticket.txt)"
      dpaudit verify run --policy policy.yaml --junit junit.xml

    A folder that `dpaudit release` wrote is checked against its attestation, without the run:
    signature, every byte, the claim, the level of evidence, the policy, and the commitment.

    \b
    Example:
      dpaudit verify texts --key release-key.pub --epsilon 3 --relation add_remove --unit record
    """
    from dpaudit.api import places
    from dpaudit.api.audits import audit, spare_findings, write_findings

    of_release = (key, unsigned or None, revocations, revocations_days, authority)
    if any(each is not None for each in of_release) or places.is_released(run_dir):
        if places.is_run(run_dir):
            raise click.UsageError(
                "This is a run, and no release folder: --key, --unsigned, --revocations, "
                "--revocations-days and --authority are for those."
            )
        others = ("data", "model", "engine", "head", "tokenizers", "seed_files")
        if junit or sarif or not asked["find_model"] or any(asked.get(name) for name in others):
            raise click.UsageError(
                "A release folder is verified by --key, --revocations, --revocations-days, "
                "--authority, --level, --policy, --commitment and the claim "
                "(--epsilon, --rho, --delta, --relation, --unit) alone."
            )
        wanted = {
            "revocations": revocations,
            "revocations_days": revocations_days,
            "authority": authority,
        }
        _verify_released(run_dir, key, unsigned, wanted, asked, as_json)
        return
    spare_findings(run_dir, junit, sarif)
    found = audit(run_dir, **asked)
    result = found.result
    write_findings(result, junit=junit, sarif=sarif)
    if as_json:
        # A gate's output lands in logs: the texts are not released yet.
        print_json(result.model_copy(update={"samples": (), "disclosed": None}).to_json())
    elif result.claim is not None:  # else there is nothing to say but why it cannot be read
        from dpaudit.reports.attacks import in_short
        from dpaudit.reports.findings import still_to_make
        from dpaudit.reports.wording import VERDICT_NAMES

        # else there is nothing to print, whether or not anybody reads it
        if result.verdict != "pass":
            from dpaudit.reports.terminal import failures

            print_document(failures(result))
        lacking = (f"not made: {group.described}" for group in still_to_make(result))
        for line in (
            f"{VERDICT_NAMES[result.verdict]}: {result.guarantee}",
            *filter(None, [in_short(result)]),
            *result.caveats,
            *lacking,
        ):
            note(f"dpaudit: {line}", wrapped=True)
    leave(found)


def _verify_released(
    place: Location,
    key: Path | None,
    unsigned: bool,
    beside: dict[str, Any],
    asked: AuditOptions,
    as_json: bool,
) -> None:
    """Say what is wrong with a release folder, a line each, and leave with 1; or say what it is."""
    from dpaudit.api.publishing import verify_release
    from dpaudit.reports.text import in_a_line, one_line

    if (key is None) != unsigned:
        raise click.UsageError(
            "Give either --key FILE.pub, whose signature a release must have, or --unsigned."
        )
    if not isinstance(place, Path):
        raise click.UsageError(
            "A release folder is verified where its files are: copy it here first."
        )
    given = (
        "epsilon",
        "batch_epsilon",
        "rho",
        "delta",
        "relation",
        "unit",
        "evidence",
        "policy",
        "commitment",
    )
    wanted: dict[str, Any] = {name: value for name, value in asked.items() if name in given}
    found = verify_release(place, key=key, **beside, **wanted)
    if as_json:
        print_json(found.to_json())
    else:
        for problem in found.problems:
            print_line(f"FAIL {one_line(problem.words)}")
    if found.verdict == "pass":
        signed = (
            "nobody's signature was looked at"
            if found.signer is None
            else f"signed by {found.signer}"
        )
        note(
            f"dpaudit: pass: {in_a_line(place)}: {found.files} files as released "
            f"{found.created}, {signed}."
        )
        parts = (found.guarantee, found.attacks, found.worth)
        said = " ".join(one_line(part) for part in parts if part)
        note(f"dpaudit: evidence level {found.evidence}. {said}", wrapped=True)
        for line in _vouched(found):
            note(f"dpaudit: {line}", wrapped=True)
    if found.ignored:
        added = ", ".join(found.ignored)
        note(
            f"dpaudit: nobody vouches for {added}: sites that keep data sets add them, and they "
            "were not looked at."
        )
    sys.exit(found.verdict != "pass")


def _vouched(found: VerifiedFolder) -> Iterator[str]:
    """Yield what people and authorities say of a release, and what of that nobody looked at."""
    from dpaudit.reports.text import one_line

    for each in found.sign_offs:
        yield one_line(
            f"{each.name} ({each.role}) read {', '.join(each.read)} and signed the run off on "
            f"{each.time[:10]} with the key {each.key}: {each.accepts}"
        )
    yield from (
        f"the {of} existed on {time}, by the authority." for of, time in found.stamps.items()
    )
    for name in found.unstamped:
        yield f"nobody looked at the time stamp {name}: give --authority FILE.pem."
    if found.revocations_as_of is not None:
        age = _age_of(found.revocations_as_of)
        yield f"not revoked in the list of {found.revocations_as_of} ({age})."
    elif found.revocations is not None:
        yield f"whether it was revoked was not asked: --revocations {found.revocations}"


def _age_of(made: str) -> str:
    """Return how long ago a list was signed, in words."""
    from dpaudit.reports.text import counted
    from dpaudit.results.attestation import days_since

    days = days_since(made, datetime.now(UTC))
    if days < 0:
        return "dated later than this machine's clock"
    return f"signed {counted(days, 'day')} ago" if days else "signed less than a day ago"


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--data", type=NamedPath(path_type=str), metavar="FILE", required=True, help=DATA_HELP
)
@click.option(
    "--steps", type=WholeRange(min=0), help="Recompute this many random steps [default: 10]."
)
@click.option(
    "--step",
    "chosen",
    type=step_name,
    metavar="BATCH:POSITION",
    multiple=True,
    help="Recompute this step instead. Both numbers count from 0. Repeat it for several.",
)
@click.option(
    "--left-out",
    type=WholeRange(min=0),
    help="Leave out this many random contexts [default: 2].",
)
@click.option(
    "--trials",
    type=WholeRange(min=0),
    help="Texts of the attack for each canary, with it and without it [default: 6].",
)
@click.option(
    "--without",
    type=COUNT,
    metavar="ROW",
    multiple=True,
    help="Run a recorded generator's script again without this row of FILE. Repeat it for several.",
)
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, metavar="[-- PYTHON SCRIPT [ARGUMENTS]...]"
)
@model_option
@seed_option
@tokenizer_option
@engine_options
@output_options
def replay(
    run_dir: Location,
    data: str,
    model: str | None,
    chosen: tuple[tuple[int, int], ...],
    without: tuple[int, ...],
    command: tuple[str, ...],
    as_json: bool,
    **asked: Any,
) -> None:
    """Recompute a run with its model and its data.

    Audits the run with everything that this shows: the allowed tokens and public logits of all
    steps, the recorded values of random steps, the batch of every record, the loss of random
    contexts that are left out, and an attack on neighbouring data. The defaults take a minute or
    two on two cores for a run like the demo's. Ctrl-C keeps what is done by then.

    \b
    Example:
      dpaudit replay run --data records.csv --steps 20

    If `dpaudit record` or a recorder of dpaudit made the run, its own script is run again with
    every token frozen to the released one: on the data, and without each ROW. Anything that changes
    beside the row's own contribution is a fault.

    \b
    Example:
      dpaudit replay run --data notes.txt --without 7 -- python their_script.py notes.txt
    """
    from dpaudit.api.audits import audit
    from dpaudit.results.shell import argument

    amounts = {name: asked.pop(name) for name in ("steps", "left_out", "trials")}
    known: dict[str, Any] = {**asked, "monitor": TERMINAL}
    if chosen and amounts["steps"] is not None:
        raise click.UsageError("Give either --steps or --step.")
    if without or command:
        amounted = chosen or any(amount is not None for amount in (model, *amounts.values()))
        if not (without and command) or amounted:
            raise click.UsageError(
                "--without goes with a command, and with --data and --tokenizer alone."
            )
        _rerun(run_dir, data, without, command, known, as_json)
        return
    replayed = {"chosen": chosen, **amounts}
    found = audit(
        run_dir, data=data, model=model, evidence=4, replay=replayed, keep_partial=True, **known
    )
    show_document(found.result, as_json, _replayed)
    if not as_json and found.claim is not None:
        where = "" if model is None else f" --model {argument(model, 'NAME')}"
        run, records = argument(str(run_dir), "RUN_DIR"), argument(data, "FILE")
        note(f"Next: dpaudit report {run} --data {records}{where} --evidence 4")
    leave(found)


def _rerun(
    run_dir: Location,
    data: str,
    rows: tuple[int, ...],
    command: tuple[str, ...],
    known: dict[str, Any],
    as_json: bool,
) -> None:
    """Audit a recorded run with what its script does without some records."""
    from dpaudit.api.audits import audit
    from dpaudit.api.recording import rerun

    reruns = rerun(run_dir, data, rows, command, TERMINAL)
    found = audit(run_dir, reruns=reruns, **known)
    show_document(found.result, as_json, _replayed)
    leave(found)


def _replayed(result: AuditResult) -> Document:
    from dpaudit.reports.document import Document
    from dpaudit.reports.terminal import higher_levels, summary

    return Document("", [*summary(result).blocks, higher_levels(result)])
