"""Timed collectives to a formula: least squares on the relative error.

On shared memory no α-β formula with textbook coefficients holds: the runtime's own algorithm, its threads and
the caches decide. So each kind and group size gets a start-up time and a time per byte, and a second, steeper
time per byte for what overflows the caches. Bytes are counted over all devices of the machine, since it is
their sum that the bus moves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls


@dataclass(frozen=True)
class Sample:
    """One timed collective: every device took part, in groups of `group_size`, all groups at once."""

    kind: str
    group_size: int
    total_bytes: float
    seconds: float


@dataclass(frozen=True)
class CollectiveFit:
    """Seconds of one kind of collective over groups of one size, by the bytes summed over all devices.

        start_seconds + seconds_per_byte · b + overflow_seconds_per_byte · max(0, b - cache_bytes)

    `relative_error` is the root mean square over the samples that it was fitted to.
    """

    kind: str
    group_size: int
    start_seconds: float
    seconds_per_byte: float
    cache_bytes: float
    overflow_seconds_per_byte: float
    relative_error: float

    def seconds(self, total_bytes: ArrayLike, call_bytes: float = 0.0) -> np.ndarray:
        """By the formula; where a call moves more than these bytes, as large a part of them has left the caches as of
        all that it moves.

        Args:
            call_bytes: of one call, what all devices read and write before these bytes come again.
        """
        total = np.asarray(total_bytes, dtype=float)
        beyond = total * np.maximum(0.0, 1.0 - self.cache_bytes / np.maximum(total, max(call_bytes, 1.0)))
        return self.start_seconds + self.seconds_per_byte * total + self.overflow_seconds_per_byte * beyond

    def scaled(self, start: float, speed: float) -> CollectiveFit:
        """The same with start-up times `start` times as long, and `speed` times the cores and caches."""
        return replace(
            self,
            start_seconds=self.start_seconds * start,
            seconds_per_byte=self.seconds_per_byte / speed,
            cache_bytes=self.cache_bytes * speed,
            overflow_seconds_per_byte=self.overflow_seconds_per_byte / speed,
        )


def fit_collectives(samples: Iterable[Sample]) -> tuple[CollectiveFit, ...]:
    """One fit per kind and group size that the samples hold.

    Raises:
        ValueError: a kind and group size with fewer than three different byte counts.
    """
    ordered = sorted(samples, key=lambda s: (s.kind, s.group_size, s.total_bytes))
    groups = itertools.groupby(ordered, key=lambda s: (s.kind, s.group_size))
    return tuple(_fit(kind, size, list(members)) for (kind, size), members in groups)


def fitted_seconds(
    fits: Sequence[CollectiveFit], group_size: int, total_bytes: ArrayLike, call_bytes: float = 0.0
) -> np.ndarray:
    """Seconds for any group size, by the fits of one kind: linear in log2 of the size."""
    ordered = sorted(fits, key=lambda fit: fit.group_size)
    low = next((fit for fit in reversed(ordered) if fit.group_size <= group_size), ordered[0])
    high = next((fit for fit in ordered if fit.group_size >= group_size), ordered[-1])
    if low.group_size == high.group_size:
        return low.seconds(total_bytes, call_bytes)
    weight = math.log2(group_size / low.group_size) / math.log2(high.group_size / low.group_size)
    return (1 - weight) * low.seconds(total_bytes, call_bytes) + weight * high.seconds(total_bytes, call_bytes)


def _fit(kind: str, group_size: int, samples: Sequence[Sample]) -> CollectiveFit:
    """The formula whose relative error is least, with the knee at one of the sizes between the outermost."""
    sizes = np.array([sample.total_bytes for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    knees = np.unique(sizes)[1:-1]
    if not len(knees):
        raise ValueError(
            f"{kind} over groups of {group_size}: three different byte counts are needed, got {set(sizes)}"
        )
    fits = []
    for knee in knees:
        terms = np.stack([np.ones_like(sizes), sizes, np.maximum(0.0, sizes - knee)], axis=1)
        (start, slope, overflow), norm = nnls(terms / seconds[:, None], np.ones_like(seconds))
        # Whatever the fit says: a few bytes take about as long as the fastest seen.
        start = max(float(start), 0.5 * float(seconds.min()))
        error = float(norm / math.sqrt(len(seconds)))
        fits.append(CollectiveFit(kind, group_size, start, float(slope), float(knee), float(overflow), error))
    return min(fits, key=lambda fit: fit.relative_error)
