"""The command line as a page: what `--help` prints, with a heading for each command and a table of its options."""

from __future__ import annotations

import inspect
import re

import click

from docsite.markdown import escaped

#: In a click docstring, before a paragraph whose lines stay as they are.
_AS_IT_STANDS = "\b\n"


def commands_page(group: click.Group, name: str) -> str:
    """A group of commands: what holds for all of them, and then each."""
    top = click.Context(group, info_name=name)
    sections = [_section(command, top, title) for title, command in sorted(group.commands.items())]
    contents = "\n".join(
        f"| [{title}](#{title}) | {escaped(command.get_short_help_str(limit=200))} |"
        for title, command in sorted(group.commands.items())
    )
    return "\n".join(
        [f"# Commands\n\n{_prose(group)}\n", f"| command | does |\n|---|---|\n{contents}\n", _options(top), *sections]
    )


def _section(command: click.Command, top: click.Context, title: str) -> str:
    context = click.Context(command, info_name=title, parent=top)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    return f"## {title} {{: #{title} }}\n\n```text\n{usage}\n```\n\n{_prose(command)}\n\n{_options(context)}"


def _options(context: click.Context) -> str:
    """A table of a command's options, and of its arguments that have a help; usage shows the others."""
    records = [param.get_help_record(context) for param in context.command.get_params(context)]
    shown = [record for record in records if record is not None and (record[1] or record[0].startswith("-"))]
    return "\n".join(
        ["| option | meaning |", "|---|---|", *(f"| `{option}` | {_worded(about)} |" for option, about in shown), ""]
    )


def _prose(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(map(_paragraph, paragraphs))


def _paragraph(text: str) -> str:
    if text.startswith(_AS_IT_STANDS):
        return f"```text\n{text.removeprefix(_AS_IT_STANDS)}\n```"
    return _worded(text)


def _worded(text: str) -> str:
    """A help text, with names of options as code."""
    return escaped(re.sub(r"(?<![\w`-])--[a-z][a-z-]*", r"`\g<0>`", text))
