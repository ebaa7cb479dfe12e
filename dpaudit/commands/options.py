"""Options that several commands share: types of arguments, options, and sets of options."""

from __future__ import annotations

import math
import os
import re
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from click.shell_completion import CompletionItem

from dpaudit.commands.progress import TERMINAL
from dpaudit.commands.terminal import session

if TYPE_CHECKING:
    from collections.abc import Callable

    #: A function that click makes a command of.
    Command: TypeAlias = Callable[..., None]

PUBLIC = "public"
_CLAIM, _DIGESTS = "The claim that is tested", "Fingerprints and seeds"
_REPLAY, _WORKERS = "With the model and the data", "Workers"


class TitledOption(click.Option):
    """An option that help lists under a heading of its own."""

    def __init__(self, *args: Any, heading: str = "Options", **others: Any) -> None:
        """Args: as for click's, and the `heading`."""
        super().__init__(*args, **others)
        self.heading = heading


class TitledCommand(click.Command):
    """A command with headings in its help, which takes each option once."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and refuse an option given twice: click would keep the last."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            for param in given:
                once = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
                if once and given.count(param) > 1:
                    raise click.UsageError(f"{'/'.join(param.opts)} is given more than once.", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those without a heading first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections.setdefault(getattr(param, "heading", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


class FiniteRange(click.FloatRange):
    """A float within limits that is neither NaN nor infinite."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse one number."""
        try:
            finite = math.isfinite(float(value))
        except ValueError:
            finite = False
        if not finite:
            problem = f"{value!r} is not a finite number in the range {self._describe_range()}."
            self.fail(problem, param, ctx)
        return super().convert(value, param, ctx)


class WholeRange(click.IntRange):
    """A whole number within limits, which are named whatever else is given, such as 1e9."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse one number."""
        try:
            return super().convert(int(value), param, ctx)
        except ValueError:
            problem = f"{value!r} is not a whole number in the range {self._describe_range()}."
            self.fail(problem, param, ctx)


class NamedPath(click.Path):
    """A path that is not empty: a script's unset variable must not mean the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one path."""
        if not os.fspath(value):
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


class RunLocation(NamedPath):
    """A run directory: a path, or a URL that fsspec can open."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return folders only, which the shell lists."""
        return [CompletionItem(incomplete, type="dir")]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one location; a file's URL is its path."""
        scheme, separator, rest = os.fspath(value).partition("://")
        if separator and scheme != "file":
            return f"{scheme}://{rest.rstrip('/')}"
        return super().convert(rest if separator else value, param, ctx)


def step_name(text: str) -> tuple[int, int]:
    """Parse one step's name, BATCH:POSITION."""
    batch, _, position = text.partition(":")
    if not all(part.isascii() and part.isdigit() for part in (batch, position)):
        raise click.BadParameter(f"{text!r} is not BATCH:POSITION, such as 0:7")
    return int(batch), int(position)


def hex_digest(text: str) -> str:
    """Parse a SHA-256 in hexadecimal; spaces around it and upper case come of copying."""
    digest = text.strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise click.BadParameter(
            f"{text!r} is no digest, which has 64 digits from 0 to 9 and a to f"
        )
    return digest


def true_positives(text: str) -> dict[str, float]:
    """Parse a limit on true positives at a rate of false ones, T@X."""
    try:
        most, at = map(float, text.split("@"))
    except ValueError:
        most = at = 0.0
    if not 0 < at < most < 1:
        raise click.BadParameter(f"{text!r} is not T@X with 0 < X < T < 1, such as 0.05@0.01")
    return {"at": at, "most": most}


#: As in dpaudit.results.quality, which is not loaded for this; a test compares them.
MOST = 2**31 - 1
#: As a manifest has it; likewise.
MOST_EPSILON = 1e15
RUN_DIR = RunLocation(path_type=Path)
POSITIVE = FiniteRange(min=0, min_open=True)
#: Between 0 and 1, and neither of them.
SHARE = FiniteRange(min=0, max=1, min_open=True, max_open=True)
COUNT = WholeRange(1, MOST)
RELATIONS = click.Choice(["add_remove", "replace"])
DATA_HELP = "The run's private data, as data.path or data.dataset in its config."
model_option = click.option(
    "--model",
    cls=TitledOption,
    heading=_REPLAY,
    type=NamedPath(path_type=str),
    metavar="NAME",
    help="Where the run's model is [with --data: where the run says]. Without --data, recompute "
    "what is public.",
)


def private_cache_option(of: str) -> Callable[[Command], Command]:
    """Return the option for a folder that keeps embeddings; `of` says of what."""
    return click.option(
        "--private-cache",
        type=NamedPath(path_type=Path, file_okay=False),
        help=f"Keep embeddings {of} in this folder. They are as sensitive as the texts.",
    )


quiet_option = click.option(
    "-q",
    "--quiet",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda _, __, quiet: setattr(session(), "quiet", quiet),
    help="Print no progress and no notes, only errors and warnings.",
)


tokenizer_option = click.option(
    "--tokenizer",
    "tokenizers",
    cls=TitledOption,
    heading=_REPLAY,
    type=NamedPath(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="The tokenizer.json of the run's model, or its folder, from a source that you trust. "
    "Repeat it for several.",
)


def file_option(name: str, content: str) -> Callable[[Command], Command]:
    """Return an option for a file that the findings of checks are written to."""
    return click.option(
        name,
        type=NamedPath(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=f"Write {content} here.",
    )


junit_option = file_option("--junit", "the checks as JUnit XML")
sarif_option = file_option("--sarif", "the findings as SARIF")

seed_option = click.option(
    "--seed-file",
    "seed_files",
    cls=TitledOption,
    heading=_DIGESTS,
    type=NamedPath(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Check every token against the seed that the run commits to. Repeat it for each part of "
    "the seed.",
)


def output_options(command: Command) -> Command:
    """Give a command its output options: `as_json`, and --quiet, which `note` heeds."""
    json = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print JSON on standard output, and nothing else there.",
    )
    return json(quiet_option(command))


def limit_options(command: Command, heading: str = "Options") -> Command:
    """Add the limits on attacks that a command takes in place of an epsilon."""
    advantage = click.option(
        "--advantage",
        cls=TitledOption,
        heading=heading,
        type=SHARE,
        help="In place of an epsilon: the most by which true positives of any test about one unit "
        "exceed false ones.",
    )
    rates = click.option(
        "--true-positives",
        cls=TitledOption,
        heading=heading,
        type=true_positives,
        metavar="T@X",
        help="In place of an epsilon: the most true positives T of any such test at a rate X of "
        "false ones.",
    )
    return advantage(rates(command))


def engine_options(command: Command, *, models: bool = False) -> Command:
    """Give a command an Engine or None, `engine`; `models`: its workers hold a language model."""

    @click.option(
        "--workers",
        cls=TitledOption,
        heading=_WORKERS,
        type=WholeRange(min=1),
        help="Number of processes [default: as many as fit the machine or the cluster, and the "
        "run].",
    )
    @click.option(
        "--engine",
        cls=TitledOption,
        heading=_WORKERS,
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where these processes run: on this machine, or on a Ray cluster.",
    )
    @click.option(
        "--ray-address",
        cls=TitledOption,
        heading=_WORKERS,
        metavar="ADDRESS",
        help="The cluster [default: $RAY_ADDRESS, or one started here].",
    )
    @wraps(command)
    def spread(workers: int | None, engine: str, ray_address: str | None, **others: Any) -> None:
        from dpaudit.api.workers import local_engine, ray_engine

        place = None
        if engine == "ray":
            place = ray_engine(ray_address, workers, models=models)
        elif ray_address is not None:
            raise click.UsageError("--ray-address is for --engine ray.")
        elif workers is not None:
            place = local_engine(workers)
        command(engine=place, **others)

    return spread


def several_runs_options(command: Command) -> Command:
    """Give a command the options of the audits of several runs: a model, tokenizers and workers."""
    model = click.option(
        "--model",
        type=NamedPath(path_type=str),
        metavar="NAME",
        help="Recompute what is public in the runs, all with this model.",
    )
    return model(tokenizer_option(engine_options(command)))


model_engine_options = partial(engine_options, models=True)


_of_claim = partial(click.option, cls=TitledOption, heading=_CLAIM)
_of_digests = partial(click.option, cls=TitledOption, heading=_DIGESTS)
_of_replay = partial(click.option, cls=TitledOption, heading=_REPLAY)


def audit_options(command: Command) -> Command:
    """Give a command all options of an audit: claim, evidence level, replay, workers and output.

    It gets all but the output's as keyword arguments of `dpaudit.audit`, in one mapping, `asked`.
    """

    @_of_claim(
        "--epsilon",
        type=FiniteRange(min=0, max=MOST_EPSILON),
        help="Test this epsilon instead of the claimed one, at the release level: for readers of "
        "the texts. What the run claims of the batch level is then not tested; --batch-epsilon is.",
    )
    @_of_claim(
        "--batch-epsilon",
        type=FiniteRange(min=0, max=MOST_EPSILON),
        help="Test this epsilon at the batch level: for someone who knows a record's batch.",
    )
    @_of_claim(
        "--rho",
        type=FiniteRange(min=0, max=MOST_EPSILON),
        help="Test this rho of zCDP (zero-concentrated DP), at the batch level, in place of any "
        "epsilon.",
    )
    @_of_claim(
        "--delta",
        type=FiniteRange(min=0, max=1),
        help="Test this delta instead of the claimed one.",
    )
    @_of_claim(
        "--relation",
        type=RELATIONS,
        help="Test this neighbouring relation instead of the claimed one.",
    )
    @_of_claim(
        "--unit",
        type=click.Choice(["record", "context", "user"]),
        help="Test this privacy unit instead of the claimed one.",
    )
    @_of_claim(
        "--policy",
        type=NamedPath(path_type=Path, dir_okay=False),
        metavar="FILE.yaml",
        help="Check the run against this policy too. Its level of evidence counts where it is "
        "higher.",
    )
    @_of_replay(
        "--evidence",
        "--level",
        "evidence",
        type=WholeRange(0, 4),
        default=2,
        show_default=True,
        help="Pass only if every check up to this level was made. 3 and 4 need --data.",
    )
    @_of_replay(
        "--data",
        type=NamedPath(path_type=str),
        metavar="FILE",
        help=f"{DATA_HELP} Replays the run with its model.",
    )
    @_of_digests(
        "--commitment",
        type=hex_digest,
        metavar="HEX",
        help="Check the run against its fingerprint from before the run, the commitment that "
        "`generate` printed.",
    )
    @_of_digests(
        "--head",
        type=hex_digest,
        metavar="HEX",
        help="Check the run against its fingerprint from after the run, the head that `generate` "
        "printed last.",
    )
    @seed_option
    @model_option
    @_of_replay(
        "--no-model",
        is_flag=True,
        help="Do not load the run's model. Otherwise a required check that needs it loads it, "
        "where it is installed.",
    )
    @tokenizer_option
    @engine_options
    @output_options
    @wraps(command)
    def asked(no_model: bool, **given: Any) -> None:
        if no_model and (given["model"] or given["data"]):
            raise click.UsageError(
                "--no-model goes with neither --model nor --data, which load the model."
            )
        from dpaudit.api.audits import AuditOptions

        names = AuditOptions.__annotations__
        audited = {name: value for name, value in given.items() if name in names}
        command(
            asked={**audited, "find_model": not no_model, "monitor": TERMINAL},
            **{name: value for name, value in given.items() if name not in names},
        )

    return asked
