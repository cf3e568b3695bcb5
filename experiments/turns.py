"""Programs that are compiled one after the other, and then called in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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


def called_in_turns(compiled: Iterable[Callable[[], C]], turns: int) -> list[C]:
    """Compiles all, with progress, and calls each once in every turn, so that what the host does meets all alike."""
    makers: Sequence[Callable[[], C]] = list(compiled)
    cases: list[C] = []
    with bars() as shown:
        compiling = shown.add_task("planning and compiling", total=len(makers))
        for make in makers:
            cases.append(make())
            shown.advance(compiling)
        calling = shown.add_task("calling in turns", total=turns)
        for _ in range(turns):
            for case in cases:
                case.taken.append(case.call())
            shown.advance(calling)
    return cases
