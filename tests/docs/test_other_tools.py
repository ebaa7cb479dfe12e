"""docs/other-tools.md is right on dpaudit: its commands, its mechanisms, and its limits."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from dpaudit.commands.cli import cli
from dpaudit.mechanisms.mechanism import AGGREGATORS, CONTRIBUTIONS, DRAWS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/other-tools.md").read_text("utf-8")
COMMANDS = {name: command for name, command in cli.commands.items() if not command.hidden}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def words(commands: dict[str, click.Command]) -> Iterator[str]:
    """Names and summaries of commands, and of their options."""
    for name, command in commands.items():
        yield f"{name} {command.help}"
        yield from (" ".join(parameter.opts) for parameter in command.params)


def required_packages() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    return {
        re.split(r"[^\w-]", requirement, maxsplit=1)[0].lower()
        for each in lists
        for requirement in each
    }


def no_command_about(pattern: str) -> Callable[[], bool]:
    return lambda: not any(re.search(pattern, said, re.IGNORECASE) for said in words(COMMANDS))


#: By the beginning of a line of "What dpaudit does not do": what holds as long as it is true.
ABSENT: dict[str, Callable[[], bool]] = {
    "Train a model": lambda: not required_packages() & {"opacus", "jax-privacy", "dp-transformers"},
    "Attack a model's weights": no_command_about(r"memori[sz]|extract|membership"),
    "Read logs of PATE": lambda: (
        not {"votes", "histogram", "pate"} & {*AGGREGATORS, *DRAWS, *CONTRIBUTIONS}
    ),
    "Synthesise tables or images": no_command_about(r"tabular|image"),
    "Search for the neighbours": no_command_about(r"black box|black-box"),
    "Say that an epsilon is small enough": no_command_about(r"small enough|strong privacy"),
}


def test_every_command_is_named_and_every_command_that_is_named_is_there() -> None:
    assert {*re.findall(r"`dpaudit ([a-z-]+)", PAGE)} == COMMANDS.keys()
    assert {*re.findall(r"`dpaudit ([a-z-]+)`", section("What dpaudit is"))} == COMMANDS.keys()


def test_options_that_are_named_are_there() -> None:
    known = {
        option
        for command in COMMANDS.values()
        for parameter in command.params
        for option in parameter.opts
    }
    named = {*re.findall(r"(--[a-z][a-z-]*)", PAGE)}
    assert named and named <= known


def test_the_parts_of_mechanisms_are_those_of_the_registries() -> None:
    table = section("What dpaudit is")
    for part, registry in (
        ("contribution", CONTRIBUTIONS),
        ("aggregator", AGGREGATORS),
        ("draw", DRAWS),
    ):
        (row,) = re.findall(rf"^\| {part}\b.*\|(.*)\|$", table, re.MULTILINE)
        assert {*re.findall(r"`([\w-]+)`", row)} == registry.keys(), part


def test_settings_that_are_named_elsewhere_are_of_the_registries() -> None:
    for part, registry in (
        ("contribution", CONTRIBUTIONS),
        ("aggregator", AGGREGATORS),
        ("draw", DRAWS),
    ):
        named = re.findall(rf"`{part}: ([\w-]+)`", PAGE)
        assert {*named} <= registry.keys()


def test_what_it_does_not_do_is_not_there() -> None:
    lines = re.findall(r"^- (.+)$", section("What dpaudit does not do"), re.MULTILINE)
    assert len(lines) == len(ABSENT)
    for beginning, holds in ABSENT.items():
        assert any(line.startswith(beginning) for line in lines), beginning
        assert holds(), beginning


@pytest.mark.parametrize(
    "denied", ["differences from a public prompt", "composition", "mechanisms but the paper's"]
)
def test_what_it_has_is_not_denied(denied: str) -> None:
    assert not re.search(rf"\b[Nn]o (other )?{denied}", PAGE)


def test_every_tool_has_a_source_with_a_date() -> None:
    rows = [line for line in section("Sources").splitlines() if line.startswith("|")][2:]
    tools = re.findall(r"\*\*([\w' -]+)\*\*", PAGE)
    assert len(tools) > 12
    for tool in tools:
        assert any(tool.lower().replace("_", "") in row.lower().replace("_", "") for row in rows), (
            tool
        )
    for row in rows:
        assert re.search(r"\| 2026-1[12]-\d\d \|", row), row
