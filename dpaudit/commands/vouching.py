"""`dpaudit sign-off`, `stamp` and `revoke`: who answers for a run or a release."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import RUN_DIR, NamedPath, output_options
from dpaudit.commands.terminal import note, print_json, print_line, tell

if TYPE_CHECKING:
    from dpaudit.api.places import Location

_FILE = NamedPath(path_type=Path, dir_okay=False)


@click.command("sign-off")
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--key", type=_FILE, required=True, metavar="FILE", help="Your own private key (`dpaudit key`)."
)
@click.option("--name", required=True, help="Your name. It is published with the texts.")
@click.option("--role", required=True, help="Your role, such as privacy officer.")
@click.option(
    "--read",
    required=True,
    multiple=True,
    metavar="TEXT",
    help="What you read, such as the report. Repeat it for several.",
)
@click.option("--accepts", required=True, metavar="TEXT", help="The risk that you accept.")
@output_options
def sign_off(
    run_dir: Location,
    key: Path,
    name: str,
    role: str,
    read: tuple[str, ...],
    accepts: str,
    as_json: bool,
) -> None:
    """Sign a finished run off, as one of its reviewers.

    Writes RUN_DIR/report/sign-offs.intoto.jsonl, beside other reviewers' sign-offs. `dpaudit
    release` publishes all of them in the release folder, so quote no private figure. A policy asks
    for a number of reviewers by `sign_off`.

    \b
    Example:
      dpaudit sign-off run --key ada-key --name Ada --role officer --read texts --accepts "ε 3"
    """
    from dpaudit.api import vouching
    from dpaudit.reports.text import one_line

    signed = vouching.sign_off(run_dir, key=key, name=name, role=role, read=read, accepts=accepts)
    if as_json:
        print_json(signed.to_json())
    else:
        print_line(f"Signed off by {one_line(signed.name)} ({one_line(signed.role)}), {signed.key}")


@click.command()
@click.argument("digest")
@click.option("--out", type=_FILE, metavar="FILE.tsq", help="Write a request to this file.")
@click.option(
    "--answer", type=_FILE, metavar="FILE.tsr", help="Verify this answer of the authority instead."
)
@click.option(
    "--authority",
    type=_FILE,
    metavar="FILE.pem",
    help="The authority's certificates, which you trust. Goes with --answer.",
)
@output_options
def stamp(
    digest: str, out: Path | None, answer: Path | None, authority: Path | None, as_json: bool
) -> None:
    """Ask an outside authority to stamp a digest (RFC 3161).

    DIGEST is the commitment, or the head, that `dpaudit generate` printed. Send the request to a
    time stamping authority, and give its answer to `dpaudit release --stamp`. Nothing here uses the
    network. With --answer, exit code 0 means that the authority stamped DIGEST, and 1 that it did
    not.

    \b
    Example:
      dpaudit stamp DIGEST --out commitment.tsq
      dpaudit stamp DIGEST --answer commitment.tsr --authority authority.pem
    """
    from dpaudit.api import vouching
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    if (out is None) == (answer is None) or (answer is None) != (authority is None):
        raise click.UsageError("Give either --out, or --answer and --authority.")
    if out is not None:
        place = vouching.stamp_request(digest, out)
        print_line(
            json.dumps({"request": str(place)}) if as_json else f"Request: {in_a_line(place)}"
        )
        file = argument(str(place), "FILE.tsq")
        note(
            f"Next: curl -H 'Content-Type: application/timestamp-query' --data-binary @{file} "
            "AUTHORITY_URL > answer.tsr"
        )
        return
    assert answer is not None and authority is not None
    time = vouching.stamped_time(digest, answer, authority)
    if as_json:
        print_line(json.dumps({"stamped": time}))
    if time is None:
        tell(
            f"dpaudit: {in_a_line(answer)} is a stamp of another digest, or of an authority that "
            "was not given."
        )
        sys.exit(1)
    if not as_json:
        print_line(f"Stamped: {time}")


@click.command()
@click.argument(
    "attestation", type=NamedPath(path_type=Path), required=False, metavar="[ATTESTATION|FOLDER]"
)
@click.option(
    "--key", type=_FILE, required=True, metavar="FILE", help="Private key that signed the release."
)
@click.option("--reason", default="", metavar="TEXT", help="Why, in one line. It is published.")
@click.option(
    "--out", type=_FILE, required=True, metavar="FILE", help="The key's list, continued if there."
)
@output_options
def revoke(attestation: Path | None, key: Path, reason: str, out: Path, as_json: bool) -> None:
    """Take a release back: add it to the signed list of its key.

    Publish FILE where the release says that revocations are (`revocations` in --about). Receivers
    give it to `dpaudit verify FOLDER --revocations FILE|URL`. Without ATTESTATION the list is
    signed anew as it stands: an empty one can be published with the first release, and receivers
    may ask for a recent one.

    \b
    Example:
      dpaudit revoke texts --key release-key --reason "Wrong claim" --out revoked.jsonl
    """
    from dpaudit.api import vouching
    from dpaudit.reports.text import in_a_line

    count, made = vouching.revoke(attestation, out, key=key, reason=reason)
    print_line(
        json.dumps({"list": str(out), "revoked": count, "made": made})
        if as_json
        else f"Revoked releases in {in_a_line(out)}: {count} (signed {made})"
    )
    note("Publish it: whoever has the release learns of this by the list alone.")
