"""How long ago memory was touched in which something comes to lie: caches may still hold it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import numpy as np

from planner.buffers import Timeline
from planner.packing import lodged, packed
from planner.program import Array


class Places:
    """Where temporary arrays lie, in parts between all ends of arrays, and when each part was touched last."""

    def __init__(self, over_time: Timeline):
        own, inside = lodged(over_time.allocations)
        packing = packed([one for one in own if one.role == "temporary"])
        apart = max((nbytes for _, nbytes in inside.values()), default=0.0)
        begins = {key: packing.nbytes + host * apart for key, (host, _) in inside.items()}
        lodgers = {key: (begin, begin + inside[key][1]) for key, begin in begins.items()}
        spans = {**packing.spans, **lodgers}
        ends = np.unique([end for span in spans.values() for end in span])
        self._lengths = np.diff(ends)
        self._touched = np.full(self._lengths.size, -math.inf)
        self._parts: dict[Array, list[slice]] = {}
        self._outside = {array for array, alive in over_time.arrays.items() if alive.role != "temporary"}
        for array, alive in over_time.arrays.items():
            pieces = [(alive.place, piece) for piece in range(alive.alike) if alive.place is not None]
            self._parts[array] = [slice(*np.searchsorted(ends, spans[piece])) for piece in pieces if piece in spans]

    def untouched(self) -> Places:
        """The same places before anything was touched."""
        found = copy.copy(self)
        found._touched = np.full_like(self._touched, -math.inf)
        return found

    def known(self, array: Array) -> bool:
        """Whether it is a temporary array, and not one of the smallest, of whose places nothing is known."""
        return array not in self._outside and bool(self._parts.get(array))

    def touch(self, array: Array, now: float) -> None:
        for part in self._parts.get(array, ()):
            self._touched[part] = now

    def since(self, array: Array, now: float) -> Iterator[tuple[float, float]]:
        """Shares of an array's memory, each with how long before `now` it was touched last.

        That of arguments and results was not touched in this call; of the smallest arrays nothing is known.
        """
        if array in self._outside:
            yield 1.0, math.inf
        elif parts := self._parts.get(array, []):
            lengths = np.concatenate([self._lengths[part] for part in parts])
            touched = np.concatenate([self._touched[part] for part in parts])
            yield from zip((lengths / lengths.sum()).tolist(), (now - touched).tolist(), strict=True)
