"""Bytes per device over the life of a program."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

Role = Literal["argument", "result", "temporary"]


@dataclass(frozen=True)
class Allocation:
    """An array, or one layout of it, on one device; or several alike.

    Attributes:
        nbytes: of all of them.
        start, end: program points between which it is alive, end included.
        name: the argument's path, or the op that made it.
        source: the user's line.
        role: a result's memory is there before the result is, and may hold a smaller temporary array until then.
        alike: how many they are.
    """

    nbytes: float
    start: int
    end: int
    name: str
    source: str = ""
    role: Role = "temporary"
    alike: int = 1

    @property
    def each(self) -> list[float]:
        """The bytes of each of them."""
        return [self.nbytes / self.alike] * self.alike


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


@dataclass(frozen=True)
class MemoryCurve:
    """What is in a device's memory from each of some program points until the next.

    Attributes:
        times: program points, ascending; as long as all others.
        argument_bytes, temporary_bytes: alive then; temporaries that lie in the memory of results to come left out.
        result_bytes: the same; the memory of results that take over no argument's is set aside from the start.
        sources: the user's line that was reached last, or empty.
    """

    times: tuple[int, ...]
    argument_bytes: tuple[float, ...]
    result_bytes: tuple[float, ...]
    temporary_bytes: tuple[float, ...]
    sources: tuple[str, ...]

    @property
    def total_bytes(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(self.argument_bytes, self.result_bytes, self.temporary_bytes, strict=True)))


def over_time(allocations: Sequence[Allocation], lines: Mapping[int, str] = MappingProxyType({})) -> MemoryCurve:
    """What is alive at every program point at which that changes; the highest total is `peak`'s.

    Args:
        lines: the user's line that is reached at a program point, ascending.
    """
    times = sorted({0, *(one.start for one in allocations), *(one.end + 1 for one in allocations)})[:-1]
    place = {time: index for index, time in enumerate(times)}
    roles: tuple[Role, ...] = ("argument", "result", "temporary")
    change = {role: np.zeros(len(times) + 1) for role in roles}
    for one in allocations:
        change[one.role][place[0 if one.role == "result" else one.start]] += one.nbytes
        change[one.role][place.get(one.end + 1, len(times))] -= one.nbytes
    alive = {role: np.cumsum(steps)[:-1] for role, steps in change.items()}
    results = [one for one in allocations if one.role == "result"]
    largest = max((one.each[0] for one in results), default=0.0)
    guests = [one for one in allocations if one.role == "temporary" and one.each[0] <= largest]
    held = np.array([_held_bytes((*results, *guests), time) for time in times])
    reached = sorted((point, line) for point, line in lines.items() if line)
    points = [point for point, _ in reached]
    sources = [reached[at - 1][1] if (at := bisect.bisect_right(points, time)) else "" for time in times]
    return MemoryCurve(
        tuple(times),
        tuple(alive["argument"].tolist()),
        tuple(alive["result"].tolist()),
        tuple((alive["temporary"] - held).tolist()),
        tuple(sources),
    )


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
        change[0 if allocation.role == "result" else allocation.start] += allocation.nbytes
        change[allocation.end + 1] -= allocation.nbytes
    at_most = np.cumsum(change)
    time, most = 0, -1.0
    for candidate in map(int, np.argsort(-at_most, kind="stable")):
        if at_most[candidate] <= most:
            break
        taken = at_most[candidate] - _held_bytes(allocations, candidate)
        if taken > most:
            time, most = candidate, taken
    alive = [allocation for allocation in allocations if allocation.start <= time <= allocation.end]
    alive.sort(key=lambda allocation: -allocation.nbytes)
    reached = [line for point, line in lines.items() if point <= time and line]
    return Peak(most, time, reached[-1] if reached else "", tuple(alive))


def _held_bytes(allocations: Sequence[Allocation], time: int) -> float:
    """Bytes of temporaries in the memory of results to come: the largest first, each where it fits most tightly."""
    results = [one for one in allocations if one.role == "result" and time < one.start]
    waiting = sorted((nbytes, one.start) for one in results for nbytes in one.each)
    if not waiting:
        return 0.0
    held = 0.0
    alive = [one for one in allocations if one.start <= time <= one.end and one.role == "temporary"]
    guests = [(nbytes, one.end) for one in alive for nbytes in one.each]
    for nbytes, end in sorted(guests, key=lambda guest: -guest[0]):
        first = bisect.bisect_left(waiting, (nbytes, 0))
        fitting = (place for place in range(first, len(waiting)) if end < waiting[place][1])
        if (place := next(fitting, None)) is not None:
            held += nbytes
            del waiting[place]
    return held
