"""The roofline: an op takes as long as arithmetic or memory, whichever is busier, and what its class takes beside."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from costmodel.device import Device


def roofline_seconds(
    device: Device,
    flops: ArrayLike,
    nbytes: ArrayLike,
    dtype: str,
    elements: Mapping[str, ArrayLike] = MappingProxyType({}),
    cold_bytes: ArrayLike = 0.0,
    crowding: ArrayLike = 1.0,
    cold_written: ArrayLike = 0.0,
) -> np.ndarray:
    """Seconds on one device, without the launch (which the ops of one fusion share).

    Args:
        flops: multiplications and additions, counted apart, on this device.
        nbytes: read from and written to memory by this device.
        dtype: numpy name of the type that the arithmetic is done in.
        elements: by class of `ELEMENT_CLASSES`, how many this device works on.
        cold_bytes, crowding, cold_written: see `Device.memory_seconds`.

    Source: Williams, Waterman, Patterson, "Roofline" (2009).
    """
    arithmetic = np.asarray(flops, dtype=float) / device.rate(dtype)
    beside = sum(device.element_seconds.get(name, 0.0) * np.asarray(count) for name, count in elements.items())
    return np.maximum(arithmetic, device.memory_seconds(nbytes, cold_bytes, crowding, cold_written)) + beside


def cold_seconds(
    device: Device, nbytes: ArrayLike, crowding: ArrayLike = 1.0, cold_written: ArrayLike = 0.0
) -> np.ndarray:
    """Seconds that cold bytes take beyond those of an op that has them in the caches.

    Args:
        crowding, cold_written: as in `Device.memory_seconds`.
    """
    cold = device.memory_seconds(nbytes, nbytes, crowding, cold_written)
    return np.maximum(0.0, cold - device.memory_seconds(nbytes))


def selection_comparisons(length: int, count: int) -> float:
    """With how many comparisons the largest `count` of a row of so many elements are selected, and sorted.

    Each is compared with the least of those kept so far; of a row in random order so many as a harmonic series says go
    among them, each at two comparisons a level of their heap, as each does at the end to be sorted.

    Source: Knuth, "The Art of Computer Programming" 3 (1998), 5.2.3, for heaps; C++'s `std::partial_sort`, which XLA's
    library for CPUs calls.
    """
    kept = min(count, length)
    if kept < 1:
        return 0.0
    return length + 2.0 * kept * math.log2(kept) * (1.0 + math.log(length / kept))


def matmul_seconds(
    device: Device,
    dtype: str,
    rows: ArrayLike,
    inner: ArrayLike,
    columns: ArrayLike,
    batch: ArrayLike = 1.0,
    nbytes: ArrayLike = 0.0,
    transposed_itemsize: int = 0,
    window: float = 0.0,
) -> np.ndarray:
    """Seconds of a matrix multiplication on one device, its launch included; formula and source in `costmodel.gemm`.

    A convolution is one whose left operand is gathered patch by patch, a row of channels for each output position and
    pixel of its kernel, instead of being packed.

    Args:
        dtype: numpy name of the type that is multiplied.
        rows, inner, columns: the sizes on one device; a convolution's rows are its output positions of all images, its
            inner size channels times `window`.
        batch: how many products.
        nbytes: of operands and results that go through this device's memory.
        transposed_itemsize: bytes of an element of a left operand that lies the other way round in memory; 0 of others.
        window: pixels of a convolution's kernel; 0 of other products.
    """
    shape = device.matmul_shape(dtype, transposed=transposed_itemsize > 0)
    if window:
        shape = replace(shape, left_packing_seconds=0.0, overflow_seconds=0.0)
    patches = window * np.multiply(batch, rows)
    gathered = device.element_seconds.get("patch", 0.0) * patches
    row_bytes = np.multiply(transposed_itemsize, rows)
    return shape.seconds(device.rate(dtype), rows, inner, columns, batch, nbytes, row_bytes) + gathered
