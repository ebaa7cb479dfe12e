"""`dpaudit completion`."""

from __future__ import annotations

import click

from dpaudit.commands.options import quiet_option
from dpaudit.commands.terminal import output

PROGRAM, VARIABLE = "dpaudit", "_DPAUDIT_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@quiet_option
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for completion in a shell.

    It completes commands, options and their values, and run directories.

    \b
    Example:
      eval "$(dpaudit completion bash)"
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # click knows all three
    # As click writes it, but without a look at which version of the shell is installed here.
    script = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    with output():
        click.echo(script.source_template % script.source_vars())
