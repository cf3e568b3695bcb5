"""What moving bytes takes, by how many there are: a curve through timed sizes, ascending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class MemorySample:
    """So many bytes, read and written, and the seconds that they took."""

    nbytes: float
    seconds: float


def moving_seconds(curve: Sequence[MemorySample], nbytes: ArrayLike, among: ArrayLike) -> np.ndarray:
    """Seconds of bytes that move among so many; between the sizes of the curve by a power law."""
    sizes, rates = _rates(curve)
    return np.asarray(nbytes) / np.exp(np.interp(np.log(np.maximum(1.0, among)), np.log(sizes), np.log(rates)))


def kept_bytes(curve: Sequence[MemorySample]) -> float:
    """From how many bytes on they move the slower the more there are: a core's own caches have no more.

    Among fewer, they may move faster the more there are: what counts there is that a kernel starts on several threads.

    >>> kept_bytes([MemorySample(1e5, 1e-5), MemorySample(1e6, 8e-5), MemorySample(1e7, 1e-3), MemorySample(1e8, 2e-2)])
    1000000.0
    """
    sizes, rates = _rates(curve)
    return float(sizes[np.flatnonzero(np.diff(rates, prepend=0.0) > 0)[-1]])


def slowing(curve: Sequence[MemorySample]) -> list[MemorySample]:
    """The same where more bytes never move at a higher rate: without what it takes to start kernels over few of them.

    >>> slowing([MemorySample(1e5, 1e-4), MemorySample(1e6, 1e-4), MemorySample(1e7, 1e-2)])[0].seconds.__round__(9)
    1e-05
    """
    sizes, rates = _rates(curve)
    slower = np.maximum.accumulate(rates[::-1])[::-1]
    return [MemorySample(float(nbytes), float(nbytes / rate)) for nbytes, rate in zip(sizes, slower, strict=True)]


def faster(curve: tuple[MemorySample, ...], speed: float) -> tuple[MemorySample, ...]:
    return tuple(replace(sample, seconds=sample.seconds / speed) for sample in curve)


def _rates(curve: Sequence[MemorySample]) -> tuple[np.ndarray, np.ndarray]:
    """The sizes of a curve, and bytes a second."""
    sizes = np.array([sample.nbytes for sample in curve])
    return sizes, sizes / np.array([sample.seconds for sample in curve])
