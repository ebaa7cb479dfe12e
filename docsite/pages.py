"""The pages that are made from code: commands, files' fields, checks and the Python API."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby

from docsite.commands import commands_page
from docsite.faults import PAGE, faults_of
from docsite.fields import Schema, field_tables
from docsite.markdown import escaped
from docsite.repository import ROOT

#: Planted faults that a check's section names.
_MOST_FAULTS = 3
_SCHEMA = "dpaudit/schemas/report.schema.json"
_NUMBERS = 'Costs are in nats. Numbers that JSON does not have are the texts "inf", "-inf" and "nan".'
_API = ("dpaudit.accounting", "dpaudit.audit", "dpaudit.runs")


def generated_pages() -> dict[str, str]:
    """Markdown of every generated page, by its path in the site."""
    makers: dict[str, Callable[[], str]] = {
        "commands": _commands,
        "config": _config,
        "manifest": _manifest,
        "report": _report,
        "comparison": _comparison,
        "clusters": _clusters,
        "evaluation": _evaluation,
        "checks": _checks,
        **{module.removeprefix("dpaudit."): partial(_api, module) for module in _API},
    }
    return {f"reference/{name}.md": make() for name, make in makers.items()}


def _commands() -> str:
    from dpaudit.cli import cli

    return commands_page(cli, "dpaudit")


def _config() -> str:
    from dpaudit.generation.config import Config

    about = (
        "What `dpaudit generate` reads, in YAML. Unknown fields are refused, and values of another type are too. The "
        "[examples](../source/examples/index.md) are such files, with comments; `dpaudit init` writes one "
        "([how](../inspect.md#start-a-config))."
    )
    return _fields_page("Config", about, Config.model_json_schema(), "config.yaml")


def _manifest() -> str:
    from dpaudit.runs import Manifest

    about = (
        "The manifest of a run directory. [The run directory](../run-directory.md) tells what lies beside it, and "
        "[what of it no arithmetic can confirm](../run-directory.md#what-a-run-says-of-itself)."
    )
    return _fields_page("run.json", about, Manifest.model_json_schema(), "run.json")


def _report() -> str:
    from dpaudit.results import report_schema

    about = (
        "What `dpaudit report` writes, and what `report`, `verify` and `replay` print with `--json`: all that an audit "
        "found. The other reports are renderings of it. The same as JSON Schema: "
        f"[report.schema.json](../source/{_SCHEMA}.md)."
    )
    return _fields_page("report.json", f"{about} {_NUMBERS}", report_schema(), "report.json")


def _comparison() -> str:
    from dpaudit.results import Comparison

    about = "What `dpaudit compare` prints with `--json`."
    schema = Comparison.model_json_schema(mode="serialization")
    return _fields_page("Comparison", f"{about} {_NUMBERS}", schema, "Runs side by side")


def _clusters() -> str:
    from dpaudit.results import ClusterComparison

    about = "What `dpaudit clusters` prints with `--json`. It is private."
    schema = ClusterComparison.model_json_schema(mode="serialization")
    return _fields_page("Clusters", f"{about} {_NUMBERS}", schema, "Clusterings side by side")


def _evaluation() -> str:
    from dpaudit.results.quality import Quality

    about = "What `dpaudit evaluate` writes. It is private, and no part of a public report."
    return _fields_page("evaluation.json", about, Quality.model_json_schema(mode="serialization"), "evaluation.json")


def _fields_page(title: str, about: str, schema: Schema, table: str) -> str:
    return f"# {title}\n\n{about}\n\n{field_tables(schema, table)}"


def _checks() -> str:
    """The catalogue by family, with the faults on which the tests show each check."""
    from dpaudit.checks import registry
    from dpaudit.results.evidence import EVIDENCE_LEVELS

    levels = [level.compares for level in EVIDENCE_LEVELS]
    ladder = "\n".join(f"| {level} | {meaning} |" for level, meaning in enumerate(levels))
    about = (
        "What an audit checks, family by family, in the order of reports; `dpaudit checks` prints the same. What a "
        "check rests on is its evidence:"
    )
    rule = (
        "A run passes when no check fails, and none up to the level that was asked for (`--evidence`, 2 unless told "
        "otherwise) is left out though it is about the run. Levels 3 and 4 need [a replay](../replay.md)."
    )
    families = groupby(registry.listed(), key=lambda row: str(row["id"]).split(".")[0])
    sections = [
        f"## {family} {{: #{family} }}\n\n" + "\n".join(_check(row, levels) for row in rows)
        for family, rows in families
    ]
    return f"# Checks\n\n{about}\n\n| level | evidence |\n|---|---|\n{ladder}\n\n{rule}\n\n" + "\n".join(sections)


def _check(row: Mapping[str, str | int], levels: Sequence[str]) -> str:
    said = {
        "Compares": escaped(str(row["compares"])),
        "Evidence": f"{row['evidence']}, {levels[int(row['evidence'])]}",
        "When it fails": escaped(f"{row['fails']}."),
        "Why it matters": escaped(str(row["why"])),
        "What to do": escaped(str(row["remedy"])),
        "Reference": _reference(str(row["reference"])),
        "Shown on": _shown_on(str(row["id"])),
    }
    lines = [f"- **{name}**: {text}\n" for name, text in said.items() if text != ""]
    return f"### {row['id']} {{: #{row['id']} }}\n\n{escaped(str(row['title']))}.\n\n" + "".join(lines)


def _reference(text: str) -> str:
    """A check's reference with the documentation's places as links, by their titles."""

    def linked(match: re.Match[str]) -> str:
        title = (ROOT / "docs" / match[1]).read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        return f"[{title}](../{match[1]}{match[2] or ''})"

    return re.sub(r"docs/([\w-]+\.md)(#[\w-]+)?", linked, text)


def _shown_on(check: str) -> str:
    faults = faults_of(check)
    named = "; ".join(f"[{fault.name}](../{PAGE}#{fault.anchor})" for fault in faults[:_MOST_FAULTS])
    more = f" and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
    return f"runs with a planted fault: {named}{more}" if faults else ""


def _api(module: str) -> str:
    """The public names of a package or module; mkdocstrings reads signatures and docstrings off the code."""
    return f"# {module}\n\n::: {module}\n"
