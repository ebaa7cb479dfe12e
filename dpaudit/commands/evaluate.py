"""`dpaudit evaluate`."""

from __future__ import annotations

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
    WholeRange,
    model_engine_options,
    output_options,
    private_cache_option,
)
from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import note, print_line, show_document

if TYPE_CHECKING:
    from dpaudit.api.places import Location


@click.command(cls=TitledCommand)
@click.argument("run_dir", type=RUN_DIR)
@click.option(
    "--reference",
    required=True,
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Real texts: the run's private data (data.path of its config) or others. NAME:SPLIT for "
    "the hub's.",
)
@click.option(
    "--test",
    type=NamedPath(path_type=str),
    metavar="DATA",
    help="Held-out real texts for accuracy and likelihood [default: for accuracy, a part of the "
    "reference].",
)
@click.option(
    "--baseline",
    type=RUN_DIR,
    metavar="DIR",
    help="Public-only texts of the run's config. Measured too, they show what the records added "
    "[default: the run's own, if generate made them].",
)
@click.option(
    "--likelihood",
    type=COUNT,
    metavar="N",
    help="Also measure held-out likelihood in the run's batches, for up to N texts of each label "
    "[default: no].",
)
@click.option(
    "--epsilon",
    type=POSITIVE,
    metavar="EPSILON",
    help="Also pay this much for the gain of held-out records, with noise: a figure that may be "
    "published. Each call pays anew.",
)
@click.option("--text", help="Column of the real texts [default: the run's].")
@click.option("--label", help="Column of their labels [default: the run's].")
@click.option(
    "--embedding", help="Model that embeds the texts [default: all-MiniLM-L6-v2, offline]."
)
@click.option(
    "--n", type=WholeRange(2, MOST), help="MAUVE: most texts on each side [default: 1000]."
)
@click.option(
    "--clusters",
    type=WholeRange(2, MOST),
    help="MAUVE: clusters of its k-means [default: n / 10].",
)
@click.option("--iterations", type=COUNT, help="MAUVE: iterations of its k-means [default: 500].")
@click.option(
    "--initialisations", type=COUNT, help="MAUVE: initialisations of its k-means [default: 5]."
)
@click.option(
    "--explained-variance",
    type=FiniteRange(min=0, max=0.999, min_open=True),
    help="MAUVE: share of the variance that its PCA keeps [default: 0.9].",
)
@click.option("--scaling", type=POSITIVE, help="MAUVE: scaling factor [default: 5].")
@click.option(
    "--points",
    type=WholeRange(2, 100_000),
    help="MAUVE: points of the divergence curve [default: 32].",
)
@click.option(
    "--seeds", type=WholeRange(min=1, max=1000), help="MAUVE: number of seeds [default: 5]."
)
@click.option(
    "--most-records",
    type=WholeRange(4, 2**40),
    help="Most real records of a file that are used [default: 4000].",
)
@click.option(
    "--test-share",
    type=SHARE,
    help="Without --test: share of the reference that is held out [default: 0.2].",
)
@click.option(
    "--probe-iterations", type=COUNT, help="Linear probe: most iterations [default: 1000]."
)
@click.option(
    "--fine-tune", is_flag=True, help="Also fine-tune a classifier as the paper does. Takes hours."
)
@click.option(
    "--preset",
    type=click.Choice(["paper", "laptop"]),
    help="Fine-tuning: its settings. Implies --fine-tune [default: paper].",
)
@click.option(
    "--classifier",
    metavar="NAME",
    help="Fine-tuning: the encoder. Implies --fine-tune [default: MiniLM, offline].",
)
@click.option("--steps", type=COUNT, help="Fine-tuning: steps, about [paper: 500; laptop: 60].")
@click.option(
    "--learning-rate",
    "learning_rates",
    type=POSITIVE,
    multiple=True,
    help="Fine-tuning: learning rate. Repeat for several [paper: 1e-6 3e-6 1e-5 3e-5 1e-4; "
    "laptop: 1e-4].",
)
@click.option(
    "--accuracy-seeds",
    type=WholeRange(min=1, max=1000),
    help="Probes and fine-tuning: number of seeds [default: 3].",
)
@private_cache_option("of all texts")
@model_engine_options
@output_options
def evaluate(
    run_dir: Location,
    reference: str,
    as_json: bool,
    **asked: Any,
) -> None:
    """Measure the texts: MAUVE, accuracy, held-out likelihood.

    Real texts are measured in the same way, and the run's baseline, texts of the same prompts
    without records: the difference is what the records added. --likelihood compares the run's
    batches with the public prompt. It needs --test, the run's private data as --reference, and the
    run's model.

    --epsilon measures the records that the run held out (batching.held_out), with noise that is
    paid for: that figure may be published, and a policy can ask for it. It needs the run's private
    data as --reference, and the run's model.

    The figures are computed from private records without noise. Show them only to people who may
    see the records. They are written to RUN_DIR/report/evaluation.json, which reports and
    comparisons show.

    \b
    Example:
      dpaudit evaluate run --reference records.csv --test held-out.csv
      dpaudit evaluate run --reference records.csv --epsilon 0.1
      dpaudit evaluate run --reference records.csv --test held-out.csv --likelihood 8
    """
    from dpaudit.api.evaluating import evaluate as measure
    from dpaudit.reports.quality import build
    from dpaudit.reports.worth import paid_words

    if asked["test"] is not None and asked["test_share"] is not None:
        raise click.UsageError("--test-share does not go with --test, which gives the test texts.")
    if asked["test"] is None and asked["likelihood"] is not None:
        raise click.UsageError(
            "--likelihood needs texts that were held out from the run: give them with --test."
        )
    found = measure(run_dir, reference, monitor=TERMINAL, **asked)
    show_document(found.result, as_json, build)
    if not as_json:
        if found.paid is not None:
            print_line(paid_words(found.paid))
        note(f"Written: {found.file}. `dpaudit report` and `dpaudit compare` show it.")
