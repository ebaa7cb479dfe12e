"""The command line: the group of commands, what every error becomes, and the exit codes.

Exit codes: 0 the claim holds; 1 it does not, or a check failed; 2 the input or the command line is
unusable; 3 internal error; 130 interrupted; 141 what would have been 0, but the output pipe was
closed early.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import ClassVar, cast

import click

import dpaudit
from dpaudit.commands.terminal import Session, prepare_streams, reader_left, tell

UNUSABLE, INTERNAL, INTERRUPTED, UNREAD = 2, 3, 130, 141
DEBUG = "DPAUDIT_DEBUG"
#: Commands that continue what they wrote, when they are given again.
RESUMABLE = (["demo"], ["generate"], ["lab"])
PROGRAM, COMPLETION = "dpaudit", "_DPAUDIT_COMPLETE"


#: Containers made since the last look for cycles at which Python looks again. Imports and a small
#: audit make 150,000 that stay, and each look at so many takes some 50 ms.
MADE = 200_000

#: The modules of commands by their heading in the help, in the order of a first release.
COMMANDS = {
    "Commands": {
        "init": "init",
        "generate": "generate",
        "report": "report",
        "evaluate": "evaluate",
        "release": "release",
        "verify": "report",
    },
    "Look closer": {
        "demo": "demo",
        "compare": "compare",
        "compose": "compose",
        "budget": "budget",
        "checks": "checks",
        "inspect": "inspect",
        "replay": "report",
    },
    "Put on trial": {"disclose": "disclose", "contamination": "contamination"},
    "Answer for a release": {
        "key": "key",
        "sign-off": "vouching",
        "stamp": "vouching",
        "revoke": "vouching",
    },
    "Other generators": {"record": "record"},
    "Research": {"lab": "lab"},
}


class _Commands(Mapping[str, click.Command]):
    """The commands by name. Each is imported when it is used: a start needs one of them."""

    _modules: ClassVar = {
        name: module for named in COMMANDS.values() for name, module in named.items()
    }

    def __getitem__(self, name: str) -> click.Command:
        module = self._modules[name]
        try:
            found = getattr(
                importlib.import_module(f"dpaudit.commands.{module}"), name.replace("-", "_")
            )
        except KeyError as error:  # which would say that there is no such command
            raise ImportError(f"dpaudit.commands.{module}") from error
        return cast("click.Command", found)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class _GroupedCommands(click.Group):
    """A group whose help lists commands under headings."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each heading."""
        width = formatter.width - max(map(len, self.commands)) - 6
        for heading, names in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(name, self.commands[name].get_short_help_str(width)) for name in names]
                )


@click.group(
    cls=_GroupedCommands,
    commands=_Commands(),
    subcommand_metavar="COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(dpaudit.__version__, prog_name=PROGRAM)
def cli() -> None:
    """Generate text with differentially private LLM inference, and audit the epsilon it claims.

    \b
    Exit codes: 0 the claim holds, 1 it does not or a check failed,
    2 the input or the command line is unusable, 3 internal error,
    130 interrupted, 141 output pipe closed early.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the program: turn every error into one message on stderr and its exit code."""
    gc.set_threshold(MADE)
    # Nobody else's code takes part in validation, and no entry point has to be looked for.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    prepare_streams()
    session = Session()
    code = _exit_code(sys.argv[1:] if arguments is None else arguments, session)
    gc.freeze()  # else Python ends by a look for cycles among all that was imported
    # A verdict stands whoever reads it; a success needs its output to be whole.
    if not code and reader_left():
        code = UNREAD
    if code is not None:
        sys.exit(code)


def _exit_code(arguments: list[str], session: Session) -> int | None:
    """Run a command, and report its error; None if it ended and named no exit code."""
    try:
        return _run(arguments, session)
    except SystemExit as left:
        return int(left.code or 0)
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        # Not 0, which says that a claim holds: a script's variable may be empty.
        tell(error.message)
    except click.ClickException as error:
        _show(error)
    except (click.Abort, EOFError, KeyboardInterrupt):
        # The line break ends the line in which the terminal shows ^C.
        more = (
            " The same command continues an unfinished run." if arguments[:1] in RESUMABLE else ""
        )
        tell(f"\ndpaudit: interrupted.{more}")
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == PROGRAM:
            return _internal(error)
        from dpaudit.api.missing import missing

        extra, purpose = "generate", "to generate runs"
        if arguments[:1] == ["release"]:
            extra, purpose = "release", "to write releases"
        tell(str(missing(PROGRAM, error.name, extra, purpose)))
    except OSError as error:
        if error.errno is None:  # a library's own, of a file that it does not understand
            _show_traceback()
            tell(
                f"dpaudit: a library cannot read or write a file ({type(error).__name__}). Look "
                "at the files that this "
                f"command names. {DEBUG}=1 shows the traceback, which may quote private data."
            )
        else:
            tell(
                f"dpaudit: {error.filename or 'the disk'}: {error.strerror}. Mend that and try "
                "again."
            )
    except Exception as error:
        return _internal(error)
    return UNUSABLE


def _run(arguments: list[str], session: Session) -> int | None:
    """Run a command, and report unusable input.

    All other errors are raised, those of imports among them.
    """
    from dpaudit.errors import InputError  # a second's imports, which may fail or be interrupted

    if asked := os.environ.get(COMPLETION):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {"obj": session}, PROGRAM, COMPLETION, asked)
    try:
        # Not cli.main, which exits with 1 where a pipe is closed: that is a verdict here.
        with cli.make_context(PROGRAM, [*arguments], obj=session) as context:
            cli.invoke(context)
    except InputError as error:
        said = f"{_as_typed(error.where, arguments)}: {error.problem} {error.remedy}"
        # A file's name may hold line breaks: one error is one line.
        tell(f"dpaudit: {' '.join(said.splitlines())}")
        return UNUSABLE
    return None


def _as_typed(where: str, arguments: list[str]) -> str:
    """Return where an error is; an argument of a Python function by the name that people type."""
    found = re.fullmatch(r"(\w+)(?:\.\d+)?((?:: .*)?)", where)
    command = cli.commands.get(arguments[0]) if arguments else None
    if found is None or command is None or found[1] in arguments:  # a file may have such a name
        return where
    for param in command.params:
        if param.name == found[1]:
            typed = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            return f"{typed}{found[2]}"
    return where


def _show_traceback() -> None:
    if os.environ.get(DEBUG):
        traceback.print_exc()


def _internal(error: Exception) -> int:
    _show_traceback()
    tell(
        f"dpaudit: internal error ({type(error).__name__}). This is a defect in dpaudit; set "
        f"{DEBUG}=1 for the "
        "traceback, which may quote private data."
    )
    return INTERNAL


def _show(error: click.ClickException) -> None:
    from dpaudit.reports.text import in_a_line

    message = error.format_message()
    if isinstance(error, click.MissingParameter):  # click's own line breaks, before each choice
        message = " ".join(message.split())
    # It may repeat an argument, such as a file's name.
    said = click.UsageError(
        in_a_line(message), error.ctx if isinstance(error, click.UsageError) else None
    )
    with suppress(OSError):  # standard error has no room
        said.show()


if __name__ == "__main__":
    main()
