"""Work in a process of its own: what it allocates goes away with it, and a crash takes nothing else along."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import psutil

Reason = Literal["error", "crash", "time-out", "out of memory"]

POLL_SECONDS = 0.1
"""Between two looks at how much memory a process takes."""


class ChildFailed(Exception):
    """The process ended without a result; says how.

    Attributes:
        reason: "error": the function raised; "crash": the process ended by itself; "time-out" and "out of memory": it
            was ended for taking more than it may.
    """

    def __init__(self, message: str, reason: Reason = "crash"):
        super().__init__(message)
        self.reason = reason


def call_in_child(
    function: Callable[..., Any],
    *args: Any,
    timeout_seconds: float,
    memory_bytes: float = math.inf,
    log: Path | None = None,
) -> Any:
    """Calls a function of some module in a fresh Python process; arguments and result are pickled.

    The process ends when this one does, however that happens, and leaves Ctrl-C to this one.

    Args:
        memory_bytes: of the host's, that the process may take.
        log: a file for what the process says on stdout and stderr, instead of this one's.

    Raises:
        ChildFailed: it raised or crashed, or took more time or memory than it may.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, log, function, args))
    with undisturbed():  # the child starts with what is blocked here
        process.start()
    sender.close()  # so that the child's death closes the pipe
    try:
        _await(receiver, psutil.Process(process.pid), timeout_seconds, memory_bytes)
        value, error = receiver.recv()
    except (EOFError, psutil.NoSuchProcess):
        process.join()
        raise ChildFailed(_ending(process.exitcode)) from None
    finally:
        process.kill()
        process.join()
    if error is not None:
        raise ChildFailed(error, "error")
    return value


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until this is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _await(receiver: Connection, process: psutil.Process, timeout_seconds: float, memory_bytes: float) -> None:
    """Until there is a result to receive, or the pipe is closed.

    Raises:
        ChildFailed: the process took more than it may.
    """
    deadline = time.monotonic() + timeout_seconds
    while not receiver.poll(max(0.0, min(POLL_SECONDS, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            raise ChildFailed(f"not done after {timeout_seconds:g} s", "time-out")
        if memory_bytes < math.inf and (taken := process.memory_info().rss) > memory_bytes:
            raise ChildFailed(f"took {_mebibytes(taken)}, more than {_mebibytes(memory_bytes)}", "out of memory")


def _ending(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        total = _mebibytes(psutil.virtual_memory().total)
        hint = f", as when the host's {total} are used up" if name == "SIGKILL" else ""
        return f"ended by {name}{hint}"
    return f"ended with exit code {exitcode}"


def _mebibytes(nbytes: float) -> str:
    return f"{nbytes / 2**20:.0f} MiB"


def _send(sender: Connection, log: Path | None, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if log is not None:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    result: tuple[Any, str | None]
    try:
        result = function(*args), None
    except Exception as error:
        traceback.print_exc()
        result = None, f"{type(error).__name__}: {error}"
    sys.stdout.flush()
    sys.stderr.flush()
    sender.send(result)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this runs in a child"
    parent.join()
    os._exit(1)
