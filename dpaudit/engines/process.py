"""The other end of the local engine: one process that builds a worker and gives it one task after the other."""

from __future__ import annotations

import os
import pickle
import select
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any


def serve(handle: int) -> None:
    """Answer tasks on a socket until its other end closes.

    The first message is a callable that builds the worker, each later one a task. Every task is answered by
    (False, result) or (True, exception).
    """
    threading.Thread(target=_leave_with, args=(handle,), daemon=True).start()
    connection = Connection(handle)
    try:
        work, failure = connection.recv()(), None
    except EOFError:
        return
    except Exception as error:
        work, failure = None, error
    while True:
        try:
            task = connection.recv_bytes()
        except (EOFError, OSError):
            return
        connection.send_bytes(answered(work, task) if failure is None else _raised(failure))


def answered(work: Any, task: bytes) -> bytes:
    """The pickled pair (False, result) or (True, exception) of a pickled task."""
    try:
        return pickle.dumps((False, work(pickle.loads(task))))  # noqa: S301  (from the process that started this one)
    except Exception as error:
        return _raised(error)


def _raised(error: Any) -> bytes:
    """An exception as the caller gets it, with what led to it here."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        answer = pickle.dumps((True, error))
        pickle.loads(answer)  # noqa: S301  (written one line above)
    except Exception:
        return pickle.dumps((True, RuntimeError("".join(traceback.format_exception(error)))))
    return answer


def _leave_with(handle: int) -> None:
    """End this process as soon as the caller's end of the socket is closed, in the middle of a task too."""
    poller = select.poll()
    poller.register(handle, 0)  # hanging up is always reported
    poller.poll()
    os._exit(1)
