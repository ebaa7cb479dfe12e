"""A Python that has imported dpaudit already and runs commands and programs in forks of itself.

Figures are not drawn in them, which takes four fifths of a report's time: no document shows one
that it makes. Nor does `init` sample texts of a model: tests/generation/test_preview.py does. And
commands, unlike programs, work bounds out on coarse grids: no document shows what `budget` prints.
Most of a short command's time is the start of Python and its imports, and documents and actions
have dozens of them. The stubs that `warm_dpaudit` makes stand in for `dpaudit` and `python`, and
pass on arguments, folder, environment and files.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
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
#: What is run as `dpaudit` and as `python`, which takes a file, `-`, `-c PROGRAM` or `-m MODULE`.
STUB = """\
#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
request = json.dumps([[{program!r}, *sys.argv[1:]], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(server, [request], [0, 1, 2])
sys.exit(server.recv(1)[0])
"""
#: In place of a figure.
EMPTY = b'<svg xmlns="http://www.w3.org/2000/svg" width="1pt" height="1pt" viewBox="0 0 1 1"/>'


def coarse() -> list[tuple[Any, str, Any]]:
    """Return owner, name and value of what makes bounds quick, and a little further up."""
    from dpaudit.accounting import allocation, zcdp
    from dpaudit.accounting.blocks import profile_in_blocks
    from dpaudit.accounting.recursion import QUICK, Problem

    budget = (QUICK / 100,)
    functions = [
        (function, "__defaults__", budget) for function in (Problem.places, profile_in_blocks)
    ]
    grids = [(zcdp, "_RATES", zcdp._RATES // 10), (allocation, "GRID", allocation.GRID >> 3)]
    return [*functions, *grids]


def accepted(listener: socket.socket) -> list[str]:
    """Answer requests: return each one's arguments in a fork with the requester's surroundings.

    Another fork waits for its end, so a pipe's two commands run side by side.
    """
    while True:
        connection, _ = listener.accept()
        request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        if not os.fork():
            listener.close()
            if fork := os.fork():
                for file in files:
                    os.close(file)
                _, status = os.waitpid(fork, 0)
                code = os.waitstatus_to_exitcode(status)
                connection.sendall(bytes([code if code >= 0 else 128 - code]))
                os._exit(0)
            connection.close()
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
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


@contextmanager
def warm_dpaudit(folder: Path) -> Iterator[Path]:
    """Yield a command `dpaudit` in a folder, with `python` beside it; both answer until the end."""
    stub = folder / "dpaudit"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + f"{stub}"[-80:])
        listener.listen()
        for program in ("dpaudit", "python"):
            text = STUB.format(
                python=sys.executable, address=listener.getsockname(), program=program
            )
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)
        command = [sys.executable, __file__, str(listener.fileno())]
        with subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()]) as server:
            yield stub
            server.kill()


def main() -> None:
    """Serve on the socket of the given number."""
    from dpaudit import audit
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
    with tempfile.TemporaryDirectory() as folder:  # what the first audit of a process looks up
        audit(ROOT / "examples/runs/bbc-median").save(folder)
    # or each fork, when it ends, looks at every object, and so copies all of its memory
    gc.freeze()
    program, *arguments = accepted(socket.socket(fileno=int(sys.argv[1])))
    if program == "python":
        run_python(*arguments)
    else:
        for place in coarse():
            setattr(*place)
        sys.argv = ["dpaudit", *arguments]
        dpaudit()


def run_python(first: str, *arguments: str) -> None:
    """Do what `python` does with these arguments, in this process."""
    if first == "-W":
        action, *arguments = arguments
        warnings.simplefilter(action)
        run_python(*arguments)
    elif first == "-m":
        module, *arguments = arguments
        sys.argv, sys.path[0] = [module, *arguments], os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    elif first in ("-", "-c"):
        text, *arguments = arguments if first == "-c" else (sys.stdin.read(), *arguments)
        sys.argv, sys.path[0] = [first, *arguments], ""
        exec(compile(text, "<document>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = [first, *arguments], str(Path(first).resolve().parent)
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
