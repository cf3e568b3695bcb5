"""Bytes per device over the life of a program."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
        role: a result's memory is set aside from the start.
        alike: how many they are.
        idle: program points at which its memory may hold a temporary array that is no larger: a result's before it is
            made, a donated argument's between the last that reads it and the result that takes it over.
    """

    nbytes: float
    start: int
    end: int
    name: str
    source: str = ""
    role: Role = "temporary"
    alike: int = 1
    idle: range = range(0)

    @property
    def each_bytes(self) -> float:
        return self.nbytes / self.alike

    @property
    def since(self) -> int:
        """From when on it has memory."""
        return 0 if self.role == "result" else self.start


@dataclass(frozen=True)
class Peak:
    """When most is alive.

    Attributes:
        nbytes: bytes per device at that point.
        time: the program point.
        source: the user's line there.
        largest: what is in memory there, largest first; results to come too, temporaries in idle memory not.
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
    for one in with_memory_of_their_own(allocations):
        change[one.role][place[one.since]] += one.nbytes
        change[one.role][place.get(one.end + 1, len(times))] -= one.nbytes
    alive = {role: tuple(np.cumsum(steps)[:-1].tolist()) for role, steps in change.items()}
    reached = sorted((point, line) for point, line in lines.items() if line)
    points = [point for point, _ in reached]
    sources = [reached[at - 1][1] if (at := bisect.bisect_right(points, time)) else "" for time in times]
    return MemoryCurve(tuple(times), alive["argument"], alive["result"], alive["temporary"], tuple(sources))


def peak(allocations: Sequence[Allocation], lines: Mapping[int, str] = MappingProxyType({})) -> Peak:
    """The program point at which most is alive.

    Args:
        lines: the user's line that is reached at a program point, ascending.
    """
    if not allocations:
        return Peak(0.0, 0, "", ())
    own = with_memory_of_their_own(allocations)
    change = np.zeros(max(one.end for one in own) + 2)
    for one in own:
        change[one.since] += one.nbytes
        change[one.end + 1] -= one.nbytes
    total = np.cumsum(change)
    time = int(np.argmax(total))
    alive = sorted((one for one in own if one.since <= time <= one.end), key=lambda one: -one.nbytes)
    reached = [line for point, line in lines.items() if point <= time and line]
    return Peak(float(total[time]), time, reached[-1] if reached else "", tuple(alive))


def with_memory_of_their_own(allocations: Sequence[Allocation]) -> list[Allocation]:
    """The allocations without the temporaries that lie in memory which others leave idle.

    The largest comes first, of several as large the first of the list, and each goes into the smallest memory that is
    idle for as long as it lives (openxla/xla: xla/service/buffer_assignment.cc).
    """
    hosts = sorted((one for one in allocations if one.idle for _ in range(one.alike)), key=lambda one: one.each_bytes)
    sizes = [one.each_bytes for one in hosts]
    idle = [_points(one.idle) for one in hosts]
    own = [one for one in allocations if one.role != "temporary"]
    guests = (one for one in allocations if one.role == "temporary")
    for one in sorted(guests, key=lambda one: -one.each_bytes):
        needed, left = _points(range(one.start, one.end + 1)), one.alike
        for place in range(bisect.bisect_left(sizes, one.each_bytes), len(hosts)):
            if not left:
                break
            if idle[place] & needed == needed:
                idle[place] ^= needed
                left -= 1
        if left:
            own.append(replace(one, nbytes=left * one.each_bytes, alike=left) if left < one.alike else one)
    return own


def _points(points: range) -> int:
    """Program points as bits."""
    return (1 << points.stop) - (1 << points.start) if points else 0
