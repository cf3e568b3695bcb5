"""Bytes per device over the life of a program."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from planner.packing import Allocation, Role, alive_bytes, lodged, packed


@dataclass(frozen=True)
class Peak:
    """When most is alive.

    Attributes:
        nbytes: bytes per device that the program takes: what is alive at that point, and the holes.
        time: the program point.
        source: the user's line there.
        largest: what is in memory there, largest first; results to come too, temporaries in idle memory not.
        holes: bytes that nothing lies in then, between the places of temporaries.
    """

    nbytes: float
    time: int
    source: str
    largest: tuple[Allocation, ...]
    holes: float = 0.0


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
    """What is alive at every program point at which that changes; the highest total is `peak`'s without the holes.

    Args:
        lines: the user's line that is reached at a program point, ascending.
    """
    times = sorted({0, *(one.start for one in allocations), *(one.end + 1 for one in allocations)})[:-1]
    place = {time: index for index, time in enumerate(times)}
    roles: tuple[Role, ...] = ("argument", "result", "temporary")
    change = {role: np.zeros(len(times) + 1) for role in roles}
    for one in lodged(allocations).own:
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
    own = lodged(allocations).own
    temporary = [one for one in own if one.role == "temporary"]
    total = alive_bytes(own)
    time = int(np.argmax(total))
    holes = packed(temporary).nbytes - float(alive_bytes(temporary).max())
    alive = sorted((one for one in own if one.since <= time <= one.end), key=lambda one: -one.nbytes)
    reached = [line for point, line in lines.items() if point <= time and line]
    return Peak(float(total[time]) + holes, time, reached[-1] if reached else "", tuple(alive), holes)
