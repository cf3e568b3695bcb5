"""Where the compiler puts arrays: in memory that others leave idle, and around the holes between those alive.

As XLA does (xla/service/buffer_assignment.cc, xla/service/heap_simulator).
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

SMALL = 1e-3
"""Of what is alive at once: arrays no larger than this find a hole."""

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
        place: alike for those that lie at one place, one after the other, as a kernel's result does where what it
            reads lay; or None.
    """

    nbytes: float
    start: int
    end: int
    name: str
    source: str = ""
    role: Role = "temporary"
    alike: int = 1
    idle: range = range(0)
    place: int | None = None

    @property
    def each_bytes(self) -> float:
        return self.nbytes / self.alike

    @property
    def since(self) -> int:
        """From when on it has memory."""
        return 0 if self.role == "result" else self.start


@dataclass(frozen=True)
class Packing:
    """Where temporaries lie.

    Attributes:
        nbytes: what they take together, the holes between them included.
        spans: where each but the smallest begins and ends, by its `Allocation.place` and, of several alike, its number.
    """

    nbytes: float
    spans: Mapping[tuple[int, int], tuple[float, float]]


@dataclass(frozen=True)
class _Block:
    """What lies at one place, of so many bytes, from each start to each end; the place is that of `Packing.spans`."""

    place: tuple[int, int]
    nbytes: float
    starts: np.ndarray
    ends: np.ndarray


class Lodging(NamedTuple):
    """Which allocations have memory of their own, and which lie in memory that others leave idle.

    Attributes:
        own: those that have; of several alike as many as have.
        inside: of the others, by place and number as in `Packing.spans`, the number of the memory that they lie in and
            their bytes.
    """

    own: list[Allocation]
    inside: dict[tuple[int, int], tuple[int, float]]


def lodged(allocations: Sequence[Allocation]) -> Lodging:
    """Puts temporaries into memory that others leave idle.

    The largest comes first, of several as large the first of the list, and each goes into the smallest memory that is
    idle for as long as it lives (`MaybeAssignBuffer`).
    """
    hosts = sorted((one for one in allocations if one.idle for _ in range(one.alike)), key=lambda one: one.each_bytes)
    sizes = [one.each_bytes for one in hosts]
    idle = [_points(one.idle) for one in hosts]
    own = [one for one in allocations if one.role != "temporary"]
    guests = (one for one in allocations if one.role == "temporary")
    inside = {}
    for one in sorted(guests, key=lambda one: -one.each_bytes):
        needed, left = _points(range(one.start, one.end + 1)), one.alike
        for host in range(bisect.bisect_left(sizes, one.each_bytes), len(hosts)):
            if not left:
                break
            if idle[host] & needed == needed:
                idle[host] ^= needed
                left -= 1
                if one.place is not None:
                    inside[one.place, left] = host, one.each_bytes
        if left:
            own.append(replace(one, nbytes=left * one.each_bytes, alike=left) if left < one.alike else one)
    return Lodging(own, inside)


def _points(points: range) -> int:
    """Program points as bits."""
    return (1 << points.stop) - (1 << points.start) if points else 0


def packed(temporaries: Sequence[Allocation]) -> Packing:
    """Where temporaries with memory of their own lie.

    The largest come first, or those that live longest, whichever takes less; each goes into the smallest hole that is
    free for as long as it lives (`GlobalDecreasingSizeBestFitHeap`).
    """
    together = float(alive_bytes(temporaries).max())
    blocks = [block for block in _blocks(temporaries) if block.nbytes > SMALL * together]
    largest = sorted(blocks, key=lambda block: (-block.nbytes, block.starts[0] - block.ends[0]))
    longest = sorted(blocks, key=lambda block: (block.starts[0] - block.ends[-1], -block.nbytes))
    least = min(map(_stacked, (largest, longest)), key=lambda packing: packing.nbytes)
    return replace(least, nbytes=max(together, least.nbytes))


def alive_bytes(allocations: Sequence[Allocation]) -> np.ndarray:
    """What is alive at each program point, from the first on."""
    change = np.zeros(max((one.end for one in allocations), default=0) + 2)
    for one in allocations:
        change[one.since] += one.nbytes
        change[one.end + 1] -= one.nbytes
    return np.cumsum(change)


def _blocks(temporaries: Sequence[Allocation]) -> list[_Block]:
    """In the order of the first at each place; of several alike each is at a place of its own."""
    places: dict[tuple[int, int], list[Allocation]] = {}
    for number, one in enumerate(temporaries):
        for piece in range(one.alike):
            places.setdefault((-1 - number if one.place is None else one.place, piece), []).append(one)
    found = []
    for place, lives in places.items():
        lives.sort(key=lambda one: one.start)
        starts, ends = (np.array(times) for times in zip(*((one.start, one.end) for one in lives), strict=True))
        found.append(_Block(place, max(one.each_bytes for one in lives), starts, ends))
    return found


def _stacked(blocks: Sequence[_Block]) -> Packing:
    """Blocks put down in this order."""
    starts = np.concatenate([block.starts for block in blocks]) if blocks else np.zeros(0)
    ends = np.concatenate([block.ends for block in blocks]) if blocks else np.zeros(0)
    low, high = np.zeros(starts.size), np.zeros(starts.size)
    spans = {}
    down = 0
    for block in blocks:
        meets = (starts[:down, None] <= block.ends) & (block.starts <= ends[:down, None])
        beside = np.flatnonzero(meets.any(axis=1))
        beside = beside[np.argsort(low[beside], kind="stable")]
        tops = np.maximum.accumulate(np.append(0.0, high[beside]))
        gaps = low[beside] - tops[:-1]
        fits = np.flatnonzero(gaps >= block.nbytes)
        offset = tops[fits[np.argmin(gaps[fits])]] if fits.size else tops[-1]
        more = block.starts.size
        low[down : down + more], high[down : down + more] = offset, offset + block.nbytes
        down += more
        spans[block.place] = float(offset), float(offset + block.nbytes)
    return Packing(float(high.max(initial=0.0)), spans)
