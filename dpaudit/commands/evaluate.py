"""`dpaudit evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dpaudit.commands.options import (
    COUNT,
    MOST,
    POSITIVE,
    RUN_DIR,
    SHARE,
    FiniteRange,
    NamedPath,
    TitledCommand,
    model_engine_options,
    output_options,
    private_cache_option,
)
from dpaudit.commands.terminal import TERMINAL, note, show

if TYPE_CHECKING:
    from dpaudit.api.places import Location
    from dpaudit.engines import Engine


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--reference",
    required=True,
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Real texts: the run's private data, as data.path in its config, or others. NAME:SPLIT for a hub's data set.",
)
@click.option(
    "--test",
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Held-out real texts for accuracy and likelihood [default: for accuracy a share of the reference].",
)
@click.option(
    "--baseline",
    type=RUN_DIR,
    metavar="DIR",
    help="Public-only texts of the run's config, to measure beside it: what did the records add?",
)
@click.option(
    "--likelihood",
    type=COUNT,
    metavar="N",
    help="Also held-out likelihood in the run's own batches, of up to N texts of each label [default: not measured].",
)
@click.option("--text", help="Their column of texts [default: the run's].")
@click.option("--label", help="Their column of labels [default: the run's].")
@click.option("--embedding", help="Model whose embeddings are compared [default: all-MiniLM-L6-v2, offline].")
@click.option("--n", type=click.IntRange(2, MOST), help="Most texts on every side of MAUVE [default: 1000].")
@click.option("--clusters", type=click.IntRange(2, MOST), help="Of MAUVE's k-means [default: n / 10].")
@click.option("--iterations", type=COUNT, help="Of MAUVE's k-means [default: 500].")
@click.option("--initialisations", type=COUNT, help="Of MAUVE's k-means [default: 5].")
@click.option(
    "--explained-variance",
    type=FiniteRange(min=0, max=0.999, min_open=True),
    help="That MAUVE's PCA keeps [default: 0.9].",
)
@click.option("--scaling", type=POSITIVE, help="MAUVE's scaling factor [default: 5].")
@click.option("--points", type=click.IntRange(2, 100_000), help="Of MAUVE's divergence curve [default: 32].")
@click.option("--seeds", type=click.IntRange(min=1, max=1000), help="Of MAUVE [default: 5].")
@click.option(
    "--most-records", type=click.IntRange(4, 2**40), help="Real records of a file that are used [default: 4000]."
)
@click.option("--test-share", type=SHARE, help="Of the reference that is held out without --test [default: 0.2].")
@click.option("--split-seed", type=click.IntRange(min=0, max=2**31 - 1), help="Of the share's choice [default: 0].")
@click.option("--probe-strength", type=POSITIVE, help="The linear probe's C [default: 1].")
@click.option("--probe-iterations", type=COUNT, help="Of the linear probe [default: 1000].")
@click.option("--fine-tune", is_flag=True, help="Also fine-tune a classifier by the paper's protocol. Takes hours.")
@click.option("--preset", type=click.Choice(["paper", "laptop"]), help="Of fine-tuning; implies it [default: paper].")
@click.option("--classifier", metavar="NAME", help="Encoder to fine-tune; implies it [default: MiniLM, offline].")
@click.option("--batch-size", type=COUNT, help="Of fine-tuning [paper: 200; laptop: 32].")
@click.option("--steps", type=COUNT, help="Of fine-tuning, about [paper: 500; laptop: 60].")
@click.option(
    "--learning-rate",
    "learning_rates",
    type=POSITIVE,
    multiple=True,
    help="Of fine-tuning. Repeat it [paper: 1e-6 3e-6 1e-5 3e-5 1e-4; laptop: 1e-4].",
)
@click.option(
    "--weight-decay",
    "weight_decays",
    type=FiniteRange(min=0),
    multiple=True,
    help="Of fine-tuning. Repeat it [paper: 0 5e-4; laptop: 0].",
)
@click.option("--patience", type=COUNT, help="Epochs that fine-tuning bears in vain [default: 4].")
@click.option("--validation", type=SHARE, help="Share of the training texts [default: 0.1].")
@click.option("--max-tokens", type=COUNT, help="Of a text for fine-tuning [laptop: 64].")
@click.option("--accuracy-seeds", type=click.IntRange(min=1, max=1000), help="Of probes and fine-tuning [default: 3].")
@private_cache_option("of all texts")
@model_engine_options
@output_options
def evaluate(
    run_dir: Location,
    reference: str,
    test: str | None,
    baseline: Location | None,
    text: str | None,
    label: str | None,
    private_cache: Path | None,
    engine: Engine | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure a run: MAUVE, accuracy, held-out likelihood.

    Real texts are measured in the same way, and with --baseline also texts of the same prompts without records: the
    difference is what the records added. --likelihood is compared with the public prompt alone. It needs --test, the
    run's private data as --reference, and the run's model.

    The figures are computed from private records without noise. Show them only to people who may see the records. They
    are written to RUN_DIR/report/evaluation.json, and from there into reports and comparisons.

    \b
    Example:
      dpaudit evaluate run --reference records.csv --test held-out.csv
      dpaudit evaluate run --reference records.csv --baseline public
      dpaudit evaluate run --reference records.csv --test held-out.csv --likelihood 8
    """
    from dpaudit.api.evaluating import evaluate as measure
    from dpaudit.reports.terminal import print_quality

    if test is not None and settings["test_share"] is not None:
        raise click.UsageError("--test-share is of the reference, for where there is no --test.")
    if test is None and settings["likelihood"] is not None:
        raise click.UsageError("--likelihood is of texts that were held out from the run: give them with --test.")
    found = measure(
        run_dir,
        reference,
        test=test,
        baseline=baseline,
        text=text,
        label=label,
        private_cache=private_cache,
        engine=engine,
        monitor=TERMINAL,
        **settings,
    )
    show(found.result, as_json, print_quality)
    if not as_json:
        note(f"Written: {found.file}. `dpaudit report` and `dpaudit compare` show it.")
