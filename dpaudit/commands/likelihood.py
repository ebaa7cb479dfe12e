"""`dpaudit likelihood`."""

from __future__ import annotations

from pathlib import Path

import click

from dpaudit.commands.options import COUNT, NamedPath, output_options
from dpaudit.commands.terminal import TERMINAL, note, show


@click.command()
@click.argument(
    "configs", type=NamedPath(path_type=Path), nargs=-1, required=True, metavar="CONFIG.yaml [CONFIG.yaml ...]"
)
@click.option(
    "--test",
    required=True,
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Held-out real texts, in the columns of the configs' data and apart from it.",
)
@click.option("--texts", type=COUNT, default=4, show_default=True, help="Most texts of each label.")
@click.option("--batches", type=COUNT, default=1, show_default=True, help="Most batches of each label.")
@click.option(
    "--out",
    type=NamedPath(path_type=Path, file_okay=False),
    help="Write likelihood.json, likelihood.svg and likelihood.png here.",
)
@output_options
def likelihood(configs: tuple[Path, ...], test: str, texts: int, batches: int, out: Path | None, as_json: bool) -> None:
    """Put mechanisms' held-out likelihood beside their epsilon.

    Each config's batches are given real texts that they have not seen, token by token, beside the public prompt alone.
    It takes texts x batches x labels x decoding.max_tokens passes of the model for each config. Every figure looks at
    the configs' records without noise: to choose settings, let them be public texts like yours.

    \b
    Example:
      dpaudit likelihood median.yaml anchored.yaml --test held-out.csv --out likelihood
    """
    from dpaudit.api.places import require_writable
    from dpaudit.api.research import compare_likelihoods
    from dpaudit.reports.likelihood import print_likelihoods

    if out is not None:
        require_writable(out, "--out")
    found = compare_likelihoods(configs, test, texts=texts, batches=batches, monitor=TERMINAL)
    show(found.result, as_json, print_likelihoods)
    if out is not None:
        for path in found.save(out):
            note(f"Written: {path}")
