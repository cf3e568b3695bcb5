"""What is read together and lies far apart: a cache has few places for it where its distance is a power of two."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def spread_bytes(stride_bytes: ArrayLike, span_bytes: ArrayLike) -> np.ndarray:
    """Of a cache, that lines take which lie so far apart: as many as those for which the same places are.

    >>> float(spread_bytes(8192, 512 * 8192)) / 2**20  # lines at multiples of a page, wherever the pages lie
    2.0
    """
    strides, powers = dividing_powers(stride_bytes)
    # Where pages lie in memory, which is anywhere, decides about the places of what lies further apart.
    return np.asarray(np.asarray(span_bytes) * 2.0 ** np.minimum(powers, 12) / np.maximum(strides, 1))


def dividing_powers(stride_bytes: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Strides as whole numbers, and log2 of the largest power of two that divides each; 0 of a stride of 0."""
    strides = np.rint(stride_bytes).astype(np.int64)
    return strides, np.log2(np.maximum(strides & -strides, 1))
