"""Bytes per device over the life of a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np


@dataclass(frozen=True)
class Allocation:
    """An array, or one layout of it, on one device.

    Attributes:
        start, end: program points between which it is alive, end included.
        name: the argument's path, or the op that made it.
        source: the user's line.
    """

    nbytes: float
    start: int
    end: int
    name: str
    source: str = ""


@dataclass(frozen=True)
class Peak:
    """When most is alive.

    Attributes:
        nbytes: bytes per device at that point.
        time: the program point.
        source: the user's line there.
        largest: what is alive there, largest first.
    """

    nbytes: float
    time: int
    source: str
    largest: tuple[Allocation, ...]


def peak(allocations: Sequence[Allocation], lines: Mapping[int, str] = MappingProxyType({})) -> Peak:
    """The program point at which most is alive.

    Args:
        lines: the user's line that is reached at a program point, ascending.
    """
    if not allocations:
        return Peak(0.0, 0, "", ())
    last = max(allocation.end for allocation in allocations)
    change = np.zeros(last + 2)
    for allocation in allocations:
        change[allocation.start] += allocation.nbytes
        change[allocation.end + 1] -= allocation.nbytes
    live = np.cumsum(change)
    time = int(live.argmax())
    alive = [allocation for allocation in allocations if allocation.start <= time <= allocation.end]
    alive.sort(key=lambda allocation: -allocation.nbytes)
    reached = [line for point, line in lines.items() if point <= time and line]
    return Peak(float(live[time]), time, reached[-1] if reached else "", tuple(alive))
