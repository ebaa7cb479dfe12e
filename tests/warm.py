"""A Python that has imported dpaudit already and runs commands and programs in forks of itself.

Figures are not drawn in them, which takes four fifths of a report's time: no document shows one
that it makes. Nor does `init` sample texts of a model: tests/generation/test_preview.py does. And
commands, unlike programs, work bounds out on coarse grids: no document shows what `budget` prints.
Most of a short command's time is the start of Python and its imports, and documents and actions
have dozens of them. The stub that `warm_dpaudit` makes stands in for the command, and passes on
arguments, folder, environment and files.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Whose modules are imported beforehand. No module of `generation`: torch would be most of the
#: memory.
PACKAGES = (
    "dpaudit.accounting",
    "dpaudit.auditing",
    "dpaudit.auditing.checks",
    "dpaudit.commands",
    "dpaudit.releasing",
    "dpaudit.reports",
    "dpaudit.runs",
)
#: What commands import when they need it.
LIBRARIES = (
    "dp_accounting.rdp",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "rich.progress",
    "tokenizers",
)
#: What is run as `dpaudit`; it takes `-c PROGRAM` too.
STUB = """\
#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [request], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""
#: In place of QUICK: the evaluations that a bound may take.
COARSE = 2e6
#: In place of a figure.
EMPTY = b'<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt" viewBox="0 0 1 1"/>'


def grids() -> list[Any]:
    """Return the functions whose only default is the evaluations that a bound may take."""
    from dpaudit.accounting.blocks import profile_in_blocks
    from dpaudit.accounting.recursion import Problem

    return [Problem.places, profile_in_blocks]


def accepted(listener: socket.socket) -> list[str]:
    """Answer requests: return each one's arguments in a fork with the requester's surroundings."""
    while True:
        connection, _ = listener.accept()
        request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        fork = os.fork()
        if not fork:
            connection.close()
            listener.close()
            for number, file in enumerate(files):
                os.dup2(file, number)
                os.close(file)
            arguments, folder, environment = json.loads(request)
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            return list(arguments)
        for file in files:
            os.close(file)
        _, status = os.waitpid(fork, 0)
        code = os.waitstatus_to_exitcode(status)
        connection.sendall(bytes([code if code >= 0 else 128 - code]))
        connection.close()


@contextmanager
def warm_dpaudit(folder: Path) -> Iterator[Path]:
    """Yield a command `dpaudit` in a folder; it answers until the end."""
    stub = folder / "dpaudit"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + f"{stub}"[-80:])
        listener.listen()
        stub.write_text(STUB.format(python=sys.executable, address=listener.getsockname()))
        stub.chmod(0o755)
        command = [sys.executable, __file__, str(listener.fileno())]
        root = Path(__file__).parents[1]
        with subprocess.Popen(command, cwd=root, pass_fds=[listener.fileno()]) as server:
            yield stub
            server.kill()


def main() -> None:
    """Serve on the socket of the given number.

    A request `-c PROGRAM` is a program, any other one is for dpaudit.
    """
    from dpaudit.api import starting
    from dpaudit.commands.cli import main as dpaudit

    for name in LIBRARIES:
        importlib.import_module(name)
    for name in PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    from matplotlib.figure import Figure

    Figure.savefig = lambda figure, file, **_: file.write(EMPTY)
    starting.is_installed = lambda name: False
    # or each fork, when it ends, looks at every object, and so copies all of its memory
    gc.freeze()
    arguments = accepted(socket.socket(fileno=int(sys.argv[1])))
    if arguments[:1] == ["-c"]:
        warnings.simplefilter("error")
        sys.argv, sys.path[0] = ["-c"], ""
        exec(compile(arguments[1], "<document>", "exec"), {"__name__": "__main__"})
    else:
        for function in grids():
            function.__defaults__ = (COARSE,)
        sys.argv = ["dpaudit", *arguments]
        dpaudit()


if __name__ == "__main__":
    main()
