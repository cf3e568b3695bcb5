"""Programs that are compiled one after the other, and then called in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from experiments.terminal import bars


class Called(Protocol):
    """A program that can be called.

    Attributes:
        taken: the seconds of its calls.
    """

    taken: list[float]

    def call(self) -> float:
        """Seconds of a call."""


C = TypeVar("C", bound=Called)


def called_in_turns(makers: Sequence[Callable[[], C]], turns: int, before: int = 0, calls: int = 1) -> list[C]:
    """Compiles all, with progress, and calls them in turns, so that what the host does meets all alike.

    Args:
        before: calls in each turn that do not count: they find in the caches what another program has left there.
        calls: that do.
    """
    cases: list[C] = []
    with bars() as shown:
        compiling = shown.add_task("planning and compiling", total=len(makers))
        for make in makers:
            cases.append(make())
            shown.advance(compiling)
        calling = shown.add_task("calling in turns", total=turns)
        for _ in range(turns):
            for case in cases:
                for _ in range(before):
                    case.call()
                case.taken += [case.call() for _ in range(calls)]
            shown.advance(calling)
    return cases
