"""Work in a process of its own: what it allocates goes away with it, and a crash takes nothing else along."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


class ChildFailed(Exception):
    """The process ended without a result; says how."""


def call_in_child(function: Callable[..., Any], *args: Any, timeout_seconds: float) -> Any:
    """Calls a function of some module in a fresh Python process; arguments and result are pickled.

    Raises:
        ChildFailed: it raised or crashed, or the time was up.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, args))
    process.start()
    sender.close()  # so that the child's death closes the pipe
    try:
        if receiver.poll(timeout_seconds):
            return receiver.recv()
        raise ChildFailed(f"not done after {timeout_seconds:g} s")
    except EOFError:
        process.join()
        raise ChildFailed(f"ended with exit code {process.exitcode}") from None
    finally:
        process.kill()
        process.join()


def _send(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    sender.send(function(*args))
