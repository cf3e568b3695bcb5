"""Timed collectives as curves: what was measured, and straight lines in between.

On shared memory no α-β formula holds: the runtime's own algorithm, its threads and the caches decide, and a line with
one bend is up to 18 % off where it was fitted. Bytes are counted over all devices of the machine, since it is their sum
that the bus moves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

LEAST_SIZES = 3
"""Of bytes, that a curve goes through: its error is told by those that have neighbours."""
OWN_SHARE = 0.1
"""Of the shortest collective, which it takes itself, however long groups are said to have waited for each other:
that is a difference of two measurements, and on a busy host may come out as more than the whole."""


@dataclass(frozen=True)
class Sample:
    """One timed collective: every device took part, in groups of `group_size`, all groups at once.

    Attributes:
        parting_seconds: of its seconds, what devices of different groups then waited for each other.
    """

    kind: str
    group_size: int
    total_bytes: float
    seconds: float
    parting_seconds: float = 0.0


@dataclass(frozen=True)
class CollectiveCurve:
    """Seconds of one kind of collective over groups of one size, by the bytes summed over all devices.

    Attributes:
        total_bytes: ascending; two at least.
        timed_seconds: what so many bytes took where the same devices meet again, none less than fewer bytes.
        parting_seconds: what devices of different groups wait for each other when they meet; see `costmodel.waits`.
        relative_error: by how much what was timed is off the line between its neighbours, root mean square: sizes
            between are closer to theirs.
    """

    kind: str
    group_size: int
    total_bytes: tuple[float, ...]
    timed_seconds: tuple[float, ...]
    parting_seconds: float
    relative_error: float

    @property
    def start_seconds(self) -> float:
        """Of the fewest bytes that were timed, and of fewer."""
        return self.timed_seconds[0]

    def seconds(self, total_bytes: ArrayLike) -> np.ndarray:
        """Along the curve, and beyond its end as steeply as there."""
        total = np.asarray(total_bytes, dtype=float)
        steepness = (self.timed_seconds[-1] - self.timed_seconds[-2]) / (self.total_bytes[-1] - self.total_bytes[-2])
        beyond = np.maximum(0.0, total - self.total_bytes[-1])
        return np.interp(total, self.total_bytes, self.timed_seconds) + steepness * beyond

    def scaled(self, start: float, speed: float) -> CollectiveCurve:
        """The same with start-up times `start` times as long, and `speed` times the cores and caches."""
        later = (start - 1.0) * self.start_seconds
        return replace(
            self,
            total_bytes=tuple(nbytes * speed for nbytes in self.total_bytes),
            timed_seconds=tuple(seconds + later for seconds in self.timed_seconds),
            parting_seconds=self.parting_seconds * start,
        )


def collective_curves(samples: Iterable[Sample]) -> tuple[CollectiveCurve, ...]:
    """One curve per kind and group size that the samples hold.

    Raises:
        ValueError: a kind and group size with fewer than three different byte counts.
    """
    ordered = sorted(samples, key=lambda s: (s.kind, s.group_size, s.total_bytes))
    groups = itertools.groupby(ordered, key=lambda s: (s.kind, s.group_size))
    return tuple(_curve(kind, size, list(members)) for (kind, size), members in groups)


def between_group_sizes(
    curves: Sequence[CollectiveCurve], group_size: int, seconds: Callable[[CollectiveCurve], ArrayLike]
) -> np.ndarray:
    """Seconds for any group size, by what those of the curves of one kind say: linear in log2 of the size."""
    ordered = sorted(curves, key=lambda curve: curve.group_size)
    low = next((curve for curve in reversed(ordered) if curve.group_size <= group_size), ordered[0])
    high = next((curve for curve in ordered if curve.group_size >= group_size), ordered[-1])
    if low.group_size == high.group_size:
        return np.asarray(seconds(low))
    weight = math.log2(group_size / low.group_size) / math.log2(high.group_size / low.group_size)
    return (1 - weight) * np.asarray(seconds(low)) + weight * np.asarray(seconds(high))


def _curve(kind: str, group_size: int, samples: Sequence[Sample]) -> CollectiveCurve:
    sizes = np.array([sample.total_bytes for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    (waited,) = {sample.parting_seconds for sample in samples}
    parting = min(waited, (1 - OWN_SHARE) * float(seconds.min()))
    timed = seconds - parting
    if len(set(sizes)) < max(LEAST_SIZES, len(sizes)):
        raise ValueError(f"{kind} over groups of {group_size}: three different byte counts are needed, got {sizes}")
    weights = (sizes[1:-1] - sizes[:-2]) / (sizes[2:] - sizes[:-2])
    between = (1 - weights) * timed[:-2] + weights * timed[2:]
    error = float(np.sqrt(np.mean((between / timed[1:-1] - 1) ** 2)))
    ascending = np.maximum.accumulate(timed)
    return CollectiveCurve(kind, group_size, tuple(map(float, sizes)), tuple(map(float, ascending)), parting, error)
