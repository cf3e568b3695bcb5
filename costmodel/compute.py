"""The roofline: an op takes as long as the busiest of arithmetic, memory and special functions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from costmodel.topology import Device


def roofline_seconds(
    device: Device, flops: ArrayLike, nbytes: ArrayLike, dtype: str, transcendentals: ArrayLike = 0.0
) -> np.ndarray:
    """Seconds on one device, without the launch (which the ops of one fusion share).

    Args:
        flops: multiplications and additions, counted apart, on this device.
        nbytes: read from and written to memory by this device.
        dtype: numpy name of the type that the arithmetic is done in.
        transcendentals: elements through exp, tanh, log and their like.

    Source: Williams, Waterman, Patterson, "Roofline" (2009).
    """
    arithmetic = np.asarray(flops, dtype=float) / device.rate(dtype)
    memory = np.asarray(nbytes, dtype=float) / device.memory_bytes_per_second
    seconds = np.maximum(arithmetic, memory)
    if device.transcendentals_per_second is None:
        return seconds
    return np.maximum(seconds, np.asarray(transcendentals, dtype=float) / device.transcendentals_per_second)


def matmul_efficiency(device: Device, rows: ArrayLike, inner: ArrayLike, columns: ArrayLike) -> np.ndarray:
    """The share of the device's rate that a matrix multiplication of these sizes reaches.

    Each dimension costs as if it were larger by a fixed amount: what it takes to fill and drain the units.

    Args:
        rows, inner, columns: the sizes on one device; a convolution's rows are its output positions.
    """
    half = device.half_rate_size
    efficiency = np.ones(())
    for size in (rows, inner, columns):
        at_least_one = np.maximum(np.asarray(size, dtype=float), 1.0)
        efficiency = efficiency * at_least_one / (at_least_one + half)
    return efficiency
