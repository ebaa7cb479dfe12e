"""`dpaudit likelihood`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpaudit.commands.options import COUNT, NamedPath, output_options
from dpaudit.commands.terminal import note, note_in_log, progress_steps, show

if TYPE_CHECKING:
    from dpaudit.results.likelihood import Likelihoods


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
    from dpaudit.api.places import require_writable, writing
    from dpaudit.reports.figures import MOST_RUNS
    from dpaudit.reports.likelihood import likelihood_files, print_likelihoods
    from dpaudit.reports.write import write_files

    if len(set(configs)) < len(configs):
        raise click.UsageError("A config is named twice.")
    if len(configs) > MOST_RUNS:
        raise click.UsageError(f"Nobody can tell more than {MOST_RUNS} configs apart on a figure: name fewer.")
    if out is not None:
        require_writable(out, "--out")
    found = _measure(configs, test, texts, batches)
    show(found, as_json, print_likelihoods)
    if out is not None:
        with writing(out, "--out"):
            for path in write_files(likelihood_files(found), out):
                note(f"Written: {path}")


def _measure(paths: tuple[Path, ...], test: str, texts: int, batches: int) -> Likelihoods:
    """Every config and its held-out texts are read before the first is measured."""
    from dpaudit.generation.config import in_config, load_config
    from dpaudit.generation.evaluation.likelihood import held_out_texts, measure
    from dpaudit.generation.starting import require_labels
    from dpaudit.results.likelihood import Likelihoods
    from dpaudit.runs import InputError

    stems = [path.stem for path in paths]
    names = stems if len(set(stems)) == len(stems) else list(map(str, paths))
    rows, read = [], []
    for path in paths:
        config = load_config(path)
        try:
            require_labels(config.data)
            read.append((config, held_out_texts(config, test, texts)))
        except InputError as error:
            raise in_config(path, error) from None
    with progress_steps() as watch:
        for path, name, (config, held_out) in zip(paths, names, read, strict=True):
            note_in_log(
                f"{name}: {sum(map(len, held_out.texts.values()))} texts of up to {config.decoding.max_tokens} tokens"
            )
            try:
                rows.append(measure(config, name, held_out, batches, partial(watch, name)))
            except InputError as error:
                raise in_config(path, error) from None
    return Likelihoods(rows=tuple(rows))
