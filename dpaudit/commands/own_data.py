"""Records of one's own: options that `init` and `generate` share, and questions for the others."""

from __future__ import annotations

import csv
import io
import re
import shlex
import sys
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal

import click

from dpaudit.commands.options import POSITIVE, NamedPath, TitledOption, WholeRange, limit_options
from dpaudit.commands.terminal import note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dpaudit.api.starting import Own
    from dpaudit.commands.options import Command
    from dpaudit.results.plan import PlanName

_HEADING = "Your records"
#: Words in the names of columns that say whose record it is.
_PERSONS = frozenset(
    ("author", "client", "customer", "employee", "member", "patient", "person", "student", "user")
)
#: As in dpaudit.runs.manifest, which is not loaded for this; a test compares them.
POSITIVE_COUNT = WholeRange(1, 1 << 40)
MOST_CONTEXTS = WholeRange(1, 1 << 20)
#: The shortest text of a first config has 8 tokens; the most are as in dpaudit.runs.manifest.
MOST_TOKENS = WholeRange(8, 1 << 15)
#: As in dpaudit.results.plan; likewise.
PLANS = ("many", "close", "careful")


@dataclass(frozen=True)
class Given:
    """The values of the shared options; None, or nothing, where one was not given."""

    text: str | None
    label: str | None
    labels: tuple[str, ...]
    no_labels: bool
    skip_other_labels: bool
    user: str | None
    records_per_user: int | None
    records: int | None
    texts: int | None
    tokens: int | None
    epsilon: float | None
    advantage: float | None
    true_positives: dict[str, float] | None
    plan: PlanName | None
    aggregator: Literal["mean", "central"]
    model: str | None
    template: Literal["it", "pt", "own"] | None
    about: str | None
    examples: str | None
    encoding: str | None

    @property
    def options(self) -> list[str]:
        """The options that were given, by their names."""
        defaults: dict[str, Any] = {"aggregator": "mean"}
        return [
            f"--{field.name.replace('_', '-')}"
            for field in fields(self)
            if (getattr(self, field.name) or None) != defaults.get(field.name)
        ]

    def arguments(self) -> str:
        """Return the options that were given, as a shell takes them."""
        found = []
        for option in self.options:
            value = getattr(self, option[2:].replace("-", "_"))
            if isinstance(value, tuple):
                listed = io.StringIO()
                csv.writer(listed, lineterminator="").writerow(value)
                value = listed.getvalue()
            elif isinstance(value, dict):
                value = f"{value['most']}@{value['at']}"
            # after "=" even a value that begins with a hyphen is one
            found.append(option if value is True else f"{option}={shlex.quote(str(value))}")
        return " ".join(found)

    @property
    def limited(self) -> bool:
        """Whether it is said what a run may cost."""
        return any(
            limit is not None for limit in (self.epsilon, self.advantage, self.true_positives)
        )

    def missing(self) -> list[str]:
        """Return what is to be said about the records still, each with its option."""
        from dpaudit.api.starting import promises

        found = []
        if not (self.labels or self.no_labels):
            found.append("--labels A,B (they become public), or --no-labels")
        if self.records is None:
            found.append(
                "--records N (about how many there are: this number becomes public, and is never "
                "counted; if it may not be known, state a smaller one)"
            )
        if self.user is not None and self.records_per_user is None:
            found.append("--records-per-user N (the most that one has: it becomes public)")
        if not self.limited and promises(self.aggregator):
            found.append(
                "--epsilon E (the largest that you accept, at the release level), or --advantage "
                "or --true-positives"
            )
        return found

    def own(self, data: str) -> Own:
        """Return the settings of a config for this data.

        Raises:
            InputError: names all options that are missing.
        """
        from dpaudit.api.starting import MODEL, TOKENS, MostTruePositives, Own
        from dpaudit.errors import InputError
        from dpaudit.reports.text import in_a_line

        if missing := self.missing():
            problem = "what everyone may know of these records is not stated."
            raise InputError(in_a_line(data), problem, f"Give {'; '.join(missing)}.")
        assert self.records is not None  # or it is missing
        return Own(
            data=data,
            records=self.records,
            text=self.text or "text",
            label=None if self.no_labels else self.label or "label",
            labels=self.labels,
            skip_other_labels=self.skip_other_labels,
            user=self.user,
            records_per_user=self.records_per_user,
            model=self.model or MODEL,
            template=self.template,
            about=self.about,
            examples=self.examples,
            texts=self.texts,
            tokens=self.tokens or TOKENS,
            epsilon=self.epsilon,
            advantage=self.advantage,
            true_positives=None
            if self.true_positives is None
            else MostTruePositives(**self.true_positives),
            encoding=self.encoding,
            plan=self.plan or "many",
        )


class LabelList(click.ParamType[tuple[str, ...]]):
    """Labels with commas between them; one that holds a comma stands in double quotes."""

    name = "A,B"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Parse one list."""
        if isinstance(value, tuple):
            return value
        try:
            (row,) = csv.reader([value], skipinitialspace=True, strict=True)
        except (csv.Error, ValueError):
            self.fail('this is no list such as Motor,Theft or "Fire, water",Theft', param, ctx)
        return tuple(label.strip() for label in row)


def _no_file(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse the file of `dpaudit release --about`, whose name would go into every prompt."""
    if value is not None and value.strip().lower().endswith((".yaml", ".yml")):
        raise click.BadParameter(
            f"{value} names a file, and this takes a sentence about your texts. "
            "`dpaudit release --about` takes the file.",
            ctx,
            param,
        )
    return value


def own_data_options(command: Command) -> Command:
    """Give a command the options about records of one's own, as `given`, a `Given`."""

    def option(name: str, **others: Any) -> Callable[[Command], Command]:
        return click.option(name, cls=TitledOption, heading=_HEADING, **others)

    @option("--text", metavar="COLUMN", help="Column of the texts [default: text].")
    @option("--label", metavar="COLUMN", help="Column of the labels [default: label].")
    @option(
        "--labels",
        type=LabelList(),
        default=(),
        show_default=False,
        help="All labels, with commas between them. Labels become public, so list them; they are "
        "not taken from your data.",
    )
    @option("--no-labels", is_flag=True, help="Your records have no labels.")
    @option(
        "--skip-other-labels",
        is_flag=True,
        help="Leave out rows with another label, or none, or no text, each by itself.",
    )
    @option(
        "--user",
        metavar="COLUMN",
        help="Column that names the person whose record it is: the epsilon then covers all "
        "records of one person.",
    )
    @option(
        "--records-per-user",
        type=MOST_CONTEXTS,
        metavar="N",
        help="The most records that one person has. This number becomes public.",
    )
    @option(
        "--records",
        type=POSITIVE_COUNT,
        metavar="N",
        help="About how many records you have. This number becomes public, and is never counted.",
    )
    @option(
        "--texts",
        type=POSITIVE_COUNT,
        metavar="N",
        help="Generate at most this many texts [default: as many as the epsilon gives].",
    )
    @option(
        "--tokens",
        type=MOST_TOKENS,
        metavar="N",
        help="Longest text, in tokens (a token is about three quarters of an English word). Longer "
        "texts cost more time, and fewer fit the epsilon [default: 40].",
    )
    @option(
        "--epsilon",
        type=POSITIVE,
        help="Largest epsilon that you accept, at the release level. For a mean only.",
    )
    @partial(limit_options, heading=_HEADING)
    @option(
        "--plan",
        type=click.Choice(PLANS),
        help="many: the most texts; close: closer to the records, several in each prompt; careful: "
        "as many texts at a smaller epsilon [default: many].",
    )
    @option(
        "--aggregator",
        type=click.Choice(["mean", "central"]),
        default="mean",
        show_default=True,
        help="central: a central mean, whose epsilon is known after the run.",
    )
    @option(
        "--model",
        metavar="NAME",
        help="Model: a Hugging Face name or a folder [default: the example's].",
    )
    @option(
        "--template",
        type=click.Choice(["it", "pt", "own"]),
        help="Prompt: `own` for one that the config holds, `it` for a model with a chat template, "
        "`pt` for a base model [default: own].",
    )
    @option(
        "--about",
        metavar="SENTENCE",
        callback=_no_file,
        help="What your texts are, in a sentence with nothing private in it. It becomes public. "
        "(Not the file of `dpaudit release --about`.)",
    )
    @option(
        "--examples",
        type=NamedPath(path_type=str),
        metavar="FILE",
        help="A few texts like yours that are nobody's secret, with the columns of your records: "
        "written for this, or public. Never a record, nor anything made from one.",
    )
    @option(
        "--encoding",
        metavar="NAME",
        help="Encoding of a .csv or .jsonl file, such as cp1252 [default: UTF-8 or UTF-16].",
    )
    @wraps(command)
    def told(**values: Any) -> None:
        given = Given(**{field.name: values.pop(field.name) for field in fields(Given)})
        if given.no_labels and (given.label or given.labels or given.skip_other_labels):
            raise click.UsageError(
                "--no-labels does not go with --label, --labels and --skip-other-labels."
            )
        if given.records_per_user is not None and given.user is None:
            raise click.UsageError("--records-per-user needs --user.")
        command(given=given, **values)

    return told


def note_persons(given: Given, data: str) -> None:
    """Say which column may name people, where nobody said which does: by columns' names alone."""
    from dpaudit.api.starting import read_columns
    from dpaudit.reports.text import in_a_line
    from dpaudit.results.shell import argument

    if given.user is not None:
        return
    named = [
        name
        for name in read_columns(data, given.encoding)
        if name not in (given.text, given.label)
        and _PERSONS & {word.removesuffix("id") for word in re.split(r"[\W_]+", name.casefold())}
    ]
    if named:
        column = in_a_line(named[0])
        note(
            f"The epsilon is about one record. If the column {column} says whose record it is, "
            f"`--user {argument(named[0], 'COLUMN')} --records-per-user N` makes it about one "
            "person."
        )


def is_terminal() -> bool:
    """Return whether questions can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask_data() -> str | None:
    """Ask for the file of records; None for the example's."""
    question = "Your records: a .csv, .tsv, .jsonl or .parquet file, or a folder [the example's]"
    data: str | None = _ask(question, _Optional(click.STRING))
    return data


def ask(given: Given, data: str, *, examples: bool = True) -> Given:
    """Ask at the terminal for what was not given. Of the data, the names of columns are shown.

    Args:
        given: the options.
        data: the records.
        examples: whether public examples are asked for.
    """
    from dpaudit.api.starting import promises, read_columns
    from dpaudit.reports.text import in_a_line

    columns = read_columns(data, given.encoding)
    if columns:
        note(f"Columns of {in_a_line(data)}: {in_a_line(', '.join(columns))}")
    if given.text is None and columns:
        given = replace(given, text=_ask_column("Which column holds the text?", columns, "text"))
    if given.label is None and not given.no_labels and columns:
        question = "Which column holds the label? [none]"
        label = _ask_column(question, columns, None) if not given.labels else "label"
        given = replace(given, label=label, no_labels=label is None)
    if not given.labels and not given.no_labels:
        question = "Which labels are there? With commas between them; they become public"
        given = replace(given, labels=_ask(question, LabelList()))
        if not given.skip_other_labels:
            question = (
                "Leave out rows with another label, or none, or no text, each by itself? [no]"
            )
            given = replace(given, skip_other_labels=_ask(question, _Optional(click.BOOL)) or False)
    if given.user is None and columns:
        question = (
            "Which column names the person whose record it is? Then the epsilon is about one "
            "person, and else about one record [none]"
        )
        given = replace(given, user=_ask_column(question, columns, None))
    if given.user is not None and given.records_per_user is None:
        question = "How many records has one person, at most? This number becomes public"
        given = replace(given, records_per_user=_ask(question, MOST_CONTEXTS))
    if given.records is None:
        question = (
            "About how many records are there? This number becomes public; if it may not be known, "
            "state a smaller one"
        )
        given = replace(given, records=_ask(question, POSITIVE_COUNT))
    if not given.limited and promises(given.aggregator):
        question = "Largest epsilon that you accept, for readers of the texts (1 to 3 are usual)"
        given = replace(given, epsilon=_ask(question, POSITIVE))
    if given.texts is None:
        question = "How many texts do you need, at most? [as many as the epsilon gives]"
        given = replace(given, texts=_ask(question, _Optional(POSITIVE_COUNT)))
    if given.about is None and given.template in (None, "own"):
        question = "What are your texts, in a sentence with nothing private in it? [texts]"
        given = replace(given, about=_ask(question, _Optional(click.STRING)))
    if given.examples is None and examples:
        question = (
            "A file of a few texts like yours that are nobody's secret, with the same columns? "
            "They make texts better, at no cost [none]"
        )
        file = NamedPath(exists=True, path_type=str)
        given = replace(given, examples=_ask(question, _Optional(file)))
    return given


@contextmanager
def keeping_answers(config: str, data: str, given: Callable[[], Given]) -> Iterator[None]:
    """Say all that was answered by then as a command, when the body refuses something."""
    from dpaudit.errors import InputError
    from dpaudit.results.shell import argument

    try:
        yield
    except InputError:
        command = f"dpaudit init {argument(config, 'CONFIG')} --data {argument(data, 'FILE')}"
        note(f"Your answers are kept in this command: {command} {given().arguments()}")
        raise


def ask_plan(names: tuple[PlanName, ...]) -> PlanName:
    """Ask which of the plans that were shown is wanted."""
    if len(names) == 1:
        return names[0]
    chosen: PlanName | None = _ask(f"Which plan? [{names[0]}]", _Optional(click.Choice(names)))
    return chosen or names[0]


def _ask(question: str, kind: click.ParamType[Any]) -> Any:
    optional = isinstance(kind, _Optional)
    default = "" if optional else None
    answer = click.prompt(
        question, default=default, type=kind, show_default=False, show_choices=False, err=True
    )
    return None if optional and answer == "" else answer


def _ask_column(question: str, columns: tuple[str, ...], usual: str | None) -> str | None:
    """Ask for one of the columns: for any, or, without a `usual` name, for one or none."""
    choice = click.Choice(columns)
    if usual is None:
        found: str | None = _ask(question, _Optional(choice))
        return found
    if usual in columns:
        return _ask(f"{question} [{usual}]", _Optional(choice)) or usual
    return str(_ask(question, choice))


class _Optional(click.ParamType[Any]):
    """A value of another type, or nothing."""

    name = "value"

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse one answer."""
        return self._kind.convert(value, param, ctx) if value != "" else ""
