"""`dpaudit release`."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands import places
from dpaudit.commands.audits import (
    audit_with_model,
    leave,
    quality_of,
    replay_of,
    spare_findings,
    write_findings,
)
from dpaudit.commands.options import RUN_DIR, SHARE, NamedPath, TitledCommand, audit_options
from dpaudit.commands.terminal import note, output, print_json, stdout, tell

if TYPE_CHECKING:
    from dpaudit.auditing import Question
    from dpaudit.engines import Engine
    from dpaudit.releasing.policy import PolicyFile
    from dpaudit.results import AuditResult
    from dpaudit.results.publication import ReleasedFolder
    from dpaudit.runs import Held
    from dpaudit.runs.storage import Location


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option("--out", required=True, type=NamedPath(path_type=Path), metavar="FOLDER", help="Make this folder.")
@click.option(
    "--key",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Sign with this private key, of `dpaudit key`.",
)
@click.option("--unsigned", is_flag=True, help="Leave the attestation unsigned: nobody vouches for the folder then.")
@click.option(
    "--about",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE.yaml",
    help="What the card and the registry's entry say beside the audit: name, curators, description, license ...",
)
@click.option(
    "--test-share",
    type=SHARE,
    help="Put at least this share of each label's texts into a test split, whole batches, but one of them.",
)
@click.option(
    "--junit",
    type=NamedPath(path_type=Path, dir_okay=False),
    help="Write the checks as JUnit XML here, for readers outside, passed or not.",
)
@click.option(
    "--sarif",
    type=NamedPath(path_type=Path, dir_okay=False),
    help="Write the findings as SARIF here, for readers outside, passed or not.",
)
@audit_options
def release(
    run_dir: Location,
    out: Path,
    key: Path | None,
    unsigned: bool,
    about: Path | None,
    test_share: float | None,
    junit: Path | None,
    sarif: Path | None,
    question: Question,
    evidence: int,
    data: str | None,
    model: str | None,
    find_model: bool,
    engine: Engine | None,
    held: Held,
    policy: PolicyFile | None,
    as_json: bool,
) -> None:
    """Audit a run, and write the folder that leaves the house.

    Texts as Parquet and JSON lines, a dataset card, the public report, an entry for the OpenDP registry, and a signed
    attestation of all of them. Nothing is written unless the audit passes.

    \b
    Example:
      dpaudit release run --out texts --key release-key --epsilon 3 --data records.csv --level 4
      dpaudit verify texts --key release-key.pub --level 4
    """
    from dpaudit.auditing.disclosure import public_form
    from dpaudit.releasing.folder import (
        RefusedError,
        read_about,
        require_new,
        require_signer,
        require_split,
        write_release,
    )
    from dpaudit.releasing.keys import read_signer
    from dpaudit.releasing.policy import held_to
    from dpaudit.results.shell import argument, claim_options
    from dpaudit.runs import InputError, RunReader

    if evidence < 2:
        raise click.UsageError(
            "A release rests on level 2 at least: below it nothing holds texts against their tokens."
        )
    if (key is None) != unsigned:
        raise click.UsageError("Give either --key FILE, to sign, or --unsigned.")
    # Whatever is wrong with what was given is told before an audit is spent.
    said, signer = read_about(about), None if key is None else read_signer(key)
    places.spare_runs(out, [run_dir], "Name a folder elsewhere.")
    if isinstance(run_dir, Path) and Path(os.path.realpath(out)).is_relative_to(os.path.realpath(run_dir)):
        problem = "this is inside the run directory, whose reports are private."
        raise InputError(str(out), problem, "Name a folder elsewhere.")
    require_new(out)
    places.require_writable(out.parent, "--out")
    spare_findings(run_dir, junit, sarif)
    findings = [Path(os.path.realpath(file)) for file in (junit, sarif) if file]
    if key is not None and Path(os.path.realpath(key)) in findings:
        raise click.UsageError("--junit or --sarif would replace the key.")
    if any(file.is_relative_to(os.path.realpath(out)) for file in findings):
        raise click.UsageError("A release folder holds what is attested alone: write --junit and --sarif elsewhere.")
    if importlib.util.find_spec("pyarrow") is None:
        raise ModuleNotFoundError(name="pyarrow")
    if test_share is not None:
        require_split(RunReader(run_dir), test_share)
    try:
        require_signer(policy, signer)
        found = replay_of(run_dir, data, model, question, gate=True)
        audited = audit_with_model(
            run_dir,
            question,
            policy,
            found,
            find_model=find_model,
            gate=True,
            evidence=evidence,
            engine=engine,
            held=held,
        )
        # Read once: the card shows the evaluation that the policy was held against.
        quality, problem = quality_of(run_dir)
        keyid = None if signer is None else signer.public_key.keyid
        result = audited if policy is None else held_to(audited, policy, quality, problem, keyid)
        if junit is not None or sarif is not None:
            write_findings(public_form(result), junit=junit, sarif=sarif)
        if result.verdict != "pass":
            _tell_why(result, as_json)
            leave(result)
        if problem:
            tell(f"dpaudit: warning: {problem}")
        with places.writing(out, "--out"):
            written = write_release(
                result, RunReader(run_dir), out, signer=signer, about=said, quality=quality, test_share=test_share
            )
    except RefusedError as refused:
        for reason in refused.reasons:
            tell(f"dpaudit: not released: {reason}")
        sys.exit(1)
    with output():
        if as_json:
            print_json(written.to_json())
        else:
            _print_released(written)
    _note_epsilon(result)
    if about is None:
        note("No --about FILE.yaml was given: the card says of curators, use and licence that they are not stated.")
    public = "FILE.pub" if key is None else argument(f"{key}.pub", "FILE.pub")
    gate = "--unsigned" if key is None else f"--key {public}"
    if policy is not None:
        gate += f" --policy {argument(str(click.get_current_context().params['policy']), 'FILE.yaml')}"
    if held.commitment is not None:
        gate += f" --commitment {held.commitment}"
    # Where the claim is withheld, nobody outside can ask for it.
    gate += claim_options(public_form(result).claim, result.asked)
    note(f"Next: dpaudit verify {argument(str(out), 'FOLDER')} {gate} --level {evidence}")


def _tell_why(result: AuditResult, as_json: bool) -> None:
    """Say what failed, as `verify` does."""
    from dpaudit.reports.terminal import print_failures

    if as_json:
        with output():
            print_json(result.model_copy(update={"samples": ()}).to_json())
    elif result.claim is not None:
        with output():
            print_failures(result, stdout())
    tell(f"dpaudit: not released: {result.guarantee}")


def _note_epsilon(result: AuditResult) -> None:
    """Say where the folder has no figure, and why, or a larger one than it could have."""
    from dpaudit.auditing.disclosure import public_form
    from dpaudit.reports.card import states_epsilon

    public = public_form(result)
    if result.claim is None:
        return
    if states_epsilon(public, result.claim.kind):
        own = public.own_claim
        if own is not None and own.epsilon < result.claim.epsilon and own.delta <= result.claim.delta:
            note("The card states the epsilon that was given. The run's own claim is smaller: it stands there without.")
        return
    if result.claim.kind == "ex-post":
        note("The card states no epsilon, for this run's account is ex-post.")
    else:
        note(f"The card states no epsilon. {public.guarantee}")


def _print_released(written: ReleasedFolder) -> None:
    from dpaudit.reports.text import in_a_line

    counts = ", ".join(f"{count:,} {split}" for split, count in written.texts.items())
    signed = "unsigned" if written.signer is None else f"signed by {written.signer}"
    click.echo(f"Released: {in_a_line(written.folder)} ({counts} texts; evidence level {written.evidence}; {signed})")
