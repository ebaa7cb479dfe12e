"""`dpaudit key`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from dpaudit.commands.options import NamedPath, output_options
from dpaudit.commands.terminal import print_line


@click.command()
@click.option(
    "--out",
    required=True,
    type=NamedPath(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File to write.",
)
@click.option(
    "--seed", is_flag=True, help="Make a part of a seed instead, for runs with a committed seed."
)
@output_options
def key(out: Path, seed: bool, as_json: bool) -> None:
    """Make a key to sign releases with.

    FILE is the private key: only you can read it, and it belongs where releases are signed. Give
    FILE.pub to everybody who verifies releases. A policy names by the key's id who may sign.

    With --seed, FILE is a part of a seed instead (sampling.seed_files in a config). It is as secret
    as the records; its hash, which is printed, is not.

    \b
    Example:
      dpaudit key --out release-key
      dpaudit key --seed --out steward.seed
    """
    from dpaudit.api.publishing import make_key, make_seed_part
    from dpaudit.reports.text import in_a_line

    if seed:
        hashed = make_seed_part(out)
        found = {"seed": str(out), "hash": hashed}
        said = f"Part of a seed (secret): {in_a_line(out)}\nIts hash: {hashed}"
    else:
        public, keyid = make_key(out)
        found = {"key": str(out), "public": str(public), "keyid": keyid}
        said = f"Private key: {in_a_line(out)}\nPublic key: {in_a_line(public)}\nKey id: {keyid}"
    print_line(json.dumps(found) if as_json else said)
