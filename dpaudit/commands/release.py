"""`dpaudit release`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.audits import leave
from dpaudit.commands.options import (
    RUN_DIR,
    SHARE,
    NamedPath,
    TitledCommand,
    audit_options,
    junit_option,
    sarif_option,
)
from dpaudit.commands.terminal import note, print_document, print_json, print_line, tell

if TYPE_CHECKING:
    from dpaudit.api.audits import AuditOptions
    from dpaudit.api.places import Location
    from dpaudit.results import AuditResult
    from dpaudit.results.publication import ReleasedFolder


def _print_template(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Print the file that --about reads, and leave; no run is needed for it."""
    if not wanted or ctx.resilient_parsing:
        return
    from dpaudit.api.publishing import about_template

    print_line(about_template().rstrip())
    ctx.exit()


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--out",
    required=True,
    type=NamedPath(path_type=Path),
    metavar="FOLDER",
    help="Folder to write. It must not exist yet.",
)
@click.option(
    "--key",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Private key to sign with, from `dpaudit key`.",
)
@click.option(
    "--unsigned",
    is_flag=True,
    help="Leave the attestation unsigned, so that nobody vouches for the folder.",
)
@click.option(
    "--about",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE.yaml",
    help="What only people know: publisher, purpose, recipients, roles, retention ... It is "
    "published, on the card and in drafts for your own files.",
)
@click.option(
    "--about-template",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_template,
    help="Print a file for --about that explains each field, and exit.",
)
@click.option(
    "--test-share",
    type=SHARE,
    help="Put at least this share of each label's texts into a test split: whole batches, and "
    "never all of them.",
)
@click.option(
    "--stamp",
    "stamps",
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE.tsr",
    multiple=True,
    help="An authority's time stamp of the run's commitment or head, to release with it (`dpaudit "
    "stamp`). Repeat it for both.",
)
@junit_option
@sarif_option
@audit_options
def release(
    run_dir: Location,
    out: Path,
    key: Path | None,
    unsigned: bool,
    about: Path | None,
    test_share: float | None,
    stamps: tuple[Path, ...],
    junit: Path | None,
    sarif: Path | None,
    asked: AuditOptions,
    as_json: bool,
) -> None:
    """Audit a run and package its synthetic texts for release.

    The folder holds the texts as Parquet and JSON lines, a dataset card, the public report, an
    entry for the OpenDP registry, and a signed attestation of all of them. Nothing else is written
    unless the audit passes: --junit and --sarif, which are for readers outside, are written either
    way.

    \b
    Example:
      dpaudit release run --out texts --key release-key --epsilon 3 --data records.csv --level 4
      dpaudit verify texts --key release-key.pub --level 4
    """
    from dpaudit import AuditError, RefusedError
    from dpaudit.api.publishing import release as package
    from dpaudit.results.shell import argument, claim_options

    try:
        found = package(
            run_dir,
            out,
            key=key,
            unsigned=unsigned,
            about=about,
            test_share=test_share,
            stamps=stamps,
            junit=junit,
            sarif=sarif,
            **asked,
        )
    except AuditError as failed:
        _tell_why(failed.audits[0].result, as_json)
        leave(*failed.audits)
        return
    except RefusedError as refused:
        for reason in refused.reasons:
            tell(f"dpaudit: not released: {reason}")
        sys.exit(1)
    written, result = found.result, found.audit.result
    if as_json:
        print_json(written.to_json())
    else:
        _print_released(written)
    _note_epsilon(result, found.audit.public().result)
    if about is None:
        note(
            "No --about FILE.yaml was given: the card says of curators, use and licence that "
            "they are not stated. `dpaudit release --about-template` prints a file to fill in."
        )
    public = "FILE.pub" if key is None else argument(f"{key}.pub", "FILE.pub")
    gate = "--unsigned" if key is None else f"--key {public}"
    if (policy := asked["policy"]) is not None:
        gate += f" --policy {argument(str(policy), 'FILE.yaml')}"
    if (commitment := asked["commitment"]) is not None:
        gate += f" --commitment {commitment}"
    # Where the claim is withheld, nobody outside can ask for it.
    gate += claim_options(found.audit.public().claim, result.asked)
    note(f"Next: dpaudit verify {argument(str(out), 'FOLDER')} {gate} --level {result.evidence}")


def _tell_why(result: AuditResult, as_json: bool) -> None:
    """Say what failed, as `verify` does."""
    from dpaudit.reports.terminal import failures

    if as_json:
        print_json(result.model_copy(update={"samples": ()}).to_json())
    elif result.claim is not None:
        print_document(failures(result))
    tell(f"dpaudit: not released: {result.guarantee}")


def _note_epsilon(result: AuditResult, public: AuditResult) -> None:
    """Say where the card has no figure and why, or where it has a larger one than it could have."""
    from dpaudit.reports.card import states_epsilon

    if result.claim is None:
        return
    if states_epsilon(public, result.claim.kind):
        own = public.own_claim
        claim, figure = result.claim, result.claim.terms.figures[0]
        if (
            own is not None
            and own.kind == claim.kind
            and own.stated < claim.stated
            and own.delta <= claim.delta
        ):
            note(
                f"The card states the {figure} that you gave. Without it, it states the run's "
                "own, which is smaller."
            )
        return
    if not result.claim.terms.beforehand:
        note("The card states no epsilon: this run's is ex-post, which is private.")
    else:
        note(f"The card states no epsilon. {public.guarantee}")


def _print_released(written: ReleasedFolder) -> None:
    from dpaudit.reports.text import in_a_line

    counts = ", ".join(f"{count:,} {split}" for split, count in written.texts.items())
    signed = "unsigned" if written.signer is None else f"signed by {written.signer}"
    print_line(
        f"Released: {in_a_line(written.folder)} ({counts} texts; evidence level "
        f"{written.evidence}; {signed})"
    )
