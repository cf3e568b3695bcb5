"""Seconds of a matrix multiplication by its shape: six parameters a type, fitted to what was measured; on CPUs eight.

    launch + max(2 (b (m + h) (n + h) + o) (k + c) / rate + b k (l m + r n) + s max(0, b (k m + k n + m n) - e),
                 bytes / bandwidth)

for b products of [m, k] and [k, n]. What is added is work that the units do in vain: at the edges of the result (h rows
and columns), at the start and end of each sum (c elements), and on cores that are left over when the result is small
(o elements). The bandwidth is that of the caches where the operands stay in them. Counting tiles in whole rounds of the
cores is no better on XLA's measurements as a whole, and jumps where a planner wants a slope.

A CPU's core packs its operands before it multiplies, l and r seconds an element of the left and the right one: with
few rows, or where the left operand is transposed, that is much of the time. On one core o is 0, and l and r say all
that h would. The core waits for each of the elements beyond those that its cache holds (e) for s seconds.

A left operand that lies the other way round has a curve of its own, with a ninth parameter: it is packed out of many
rows at a time, and rows that lie apart by large powers of two push each other out of the cache. To l comes
a min(1, p / 2 KiB), p bytes being the largest power of two that divides a row: an L1 of 64 sets of 64 bytes has two
sets for what lies 2 KiB apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from costmodel.least_squares import fit_positive
from costmodel.strides import dividing_powers

DOUBT = 10.0
"""How freely the data may move a parameter that it says little of; see `fit_positive`."""
KNOWN = 1e-3
"""The same for what is known."""

ON_UNITS = {"half_rate_size": 16.0, "half_rate_outputs": 1e5}
"""Where a fit begins. A tile of units that are filled by columns is of the order of 16 by 16; a machine of 100 cores
wants some 10⁵ elements of a result."""
ON_A_CORE = {
    "cached_elements": 2.0**18,
    "overflow_seconds": 1e-9,
    "left_packing_seconds": 2e-9,
    "right_packing_seconds": 2e-9,
}
"""The same. A core's cache is about a megabyte; several lines of 16 elements are on their way from memory at a time,
which answers after a hundred nanoseconds. From half to two nanoseconds fits end alike; from five in another minimum, in
which one slow shape has all the waiting."""
SUM_HIDING_ITS_START = 64.0
ALIASED_SECONDS = 5e-9
"""Where a fit begins of left operands that lie the other way round."""
ALIASED_BYTES = 2**11
"""Rows that lie apart by multiples of this push each other out of a cache as much as any. Seen on one processor, by
rows of twelve lengths, and not fitted."""


@dataclass(frozen=True)
class MatmulShape:
    """How the time of a matrix multiplication depends on its sizes, apart from the rate of a large one.

    Attributes:
        launch_seconds: the time of the smallest.
        bytes_per_second: of operands and result together, where they bound.
        half_rate_size: with so many rows or columns, and all else large, it runs at half the rate.
        half_rate_inner: the same for the size that is summed over.
        half_rate_outputs: the same for the elements of the result, all batches together.
        cached_elements: of operands and results, all batches together, that a core's cache holds.
        overflow_seconds: of each element beyond those.
        left_packing_seconds, right_packing_seconds: of each element of the operand.
        aliased_packing_seconds: beside, of each element of a left operand that lies the other way round, at most.
        slowdown: how many times as long as at the rate of its type a large product takes.
    """

    launch_seconds: float
    bytes_per_second: float
    half_rate_size: float = 0.0
    half_rate_inner: float = 0.0
    half_rate_outputs: float = 0.0
    cached_elements: float = 0.0
    overflow_seconds: float = 0.0
    left_packing_seconds: float = 0.0
    right_packing_seconds: float = 0.0
    aliased_packing_seconds: float = 0.0
    slowdown: float = 1.0

    def scaled(self, speed: float, wait: float) -> MatmulShape:
        """The same where all runs `speed` times as fast, and what starts waits `wait` times as long."""
        return replace(
            self,
            launch_seconds=self.launch_seconds * wait,
            bytes_per_second=self.bytes_per_second * speed,
            overflow_seconds=self.overflow_seconds / speed,
            left_packing_seconds=self.left_packing_seconds / speed,
            right_packing_seconds=self.right_packing_seconds / speed,
            aliased_packing_seconds=self.aliased_packing_seconds / speed,
        )

    def efficiency(self, rows: ArrayLike, inner: ArrayLike, columns: ArrayLike, batch: ArrayLike = 1.0) -> np.ndarray:
        """The share of the rate that a product of these sizes reaches, were memory no bound.

        >>> float(MatmulShape(0.0, 1e12, half_rate_size=64).efficiency(64, 1e9, 1e9).round(3))
        0.5
        """
        m, k, n, b = (np.maximum(np.asarray(size, dtype=float), 1.0) for size in (rows, inner, columns, batch))
        spent = b * (m + self.half_rate_size) * (n + self.half_rate_size) + self.half_rate_outputs
        return np.asarray(b * m * n / spent * k / (k + self.half_rate_inner))

    def seconds(
        self,
        flops_per_second: float,
        rows: ArrayLike,
        inner: ArrayLike,
        columns: ArrayLike,
        batch: ArrayLike,
        nbytes: ArrayLike,
        row_bytes: ArrayLike = 0.0,
    ) -> np.ndarray:
        """Seconds on one device.

        Args:
            flops_per_second: the rate of a large product.
            rows, inner, columns: the sizes on the device; a convolution's rows are its output positions.
            batch: how many products.
            nbytes: of operands and results that go through memory.
            row_bytes: of a left operand that lies the other way round, in memory; 0 of others.
        """
        m, k, n, b = (np.asarray(size, dtype=float) for size in (rows, inner, columns, batch))
        rate = flops_per_second / self.slowdown
        arithmetic = 2.0 * b * m * k * n / rate / self.efficiency(rows, inner, columns, batch)
        left = self.left_packing_seconds + self.aliased_packing_seconds * _aliased(row_bytes)
        packing = b * k * (left * m + self.right_packing_seconds * n)
        overflow = np.maximum(0.0, b * (k * m + k * n + m * n) - self.cached_elements) * self.overflow_seconds
        memory = np.asarray(nbytes, dtype=float) / self.bytes_per_second
        return np.asarray(self.launch_seconds + np.maximum(arithmetic + packing + overflow, memory))


def _aliased(row_bytes: ArrayLike) -> np.ndarray:
    """How much rows push each other out of a cache, from 0 to 1.

    >>> _aliased([0, 4000, 1024, 3072, 4096]).tolist()
    [0.0, 0.015625, 0.5, 0.5, 1.0]
    """
    rows, powers = dividing_powers(row_bytes)
    return np.where(rows > 0, np.minimum(1.0, 2.0**powers / ALIASED_BYTES), 0.0)


@dataclass(frozen=True)
class MatmulSample:
    """One timed matrix multiplication; sizes as in `MatmulShape.seconds`."""

    rows: float
    inner: float
    columns: float
    batch: float
    nbytes: float
    seconds: float
    row_bytes: float = 0.0


@dataclass(frozen=True)
class MatmulFit:
    """Attributes:
    flops_per_second: the rate of a large product.
    shape: how smaller ones fall behind it.
    relative_error: the median over the samples.
    """

    flops_per_second: float
    shape: MatmulShape
    relative_error: float


def fit_matmul(
    samples: Sequence[MatmulSample],
    bytes_per_second: float,
    *,
    packed: bool = False,
    flops_per_second: float | None = None,
) -> MatmulFit:
    """The curve through timed products of one type.

    Args:
        samples: as many as parameters at least, from launch-bound to large, wide and narrow.
        bytes_per_second: of the device's memory; samples that stay in caches move it.
        packed: whether each product is computed by one core of a CPU, which packs its operands.
        flops_per_second: the rate of a large product, if that is known; else it is fitted.

    Raises:
        ValueError: fewer samples than parameters.
    """
    shape = {
        "launch_seconds": float(np.min([s.seconds for s in samples], initial=np.inf)),
        "bytes_per_second": bytes_per_second,
        "half_rate_inner": SUM_HIDING_ITS_START,
        **(ON_A_CORE if packed else ON_UNITS),
    }
    if packed and any(sample.row_bytes for sample in samples):
        shape["aliased_packing_seconds"] = ALIASED_SECONDS
    if len(samples) < 1 + len(shape):
        raise ValueError(f"a matmul curve has {1 + len(shape)} parameters, got {len(samples)} samples")
    rows, inner, columns, batch, nbytes, seconds, row_bytes = np.array([astuple(sample) for sample in samples]).T
    best_rate = float(np.max(2 * batch * rows * inner * columns / seconds))

    def curve(parameters: np.ndarray) -> tuple[float, MatmulShape]:
        rate, *found = parameters.tolist()
        return rate, MatmulShape(**dict(zip(shape, found, strict=True)))

    def predict(parameters: np.ndarray) -> np.ndarray:
        rate, found = curve(parameters)
        return found.seconds(rate, rows, inner, columns, batch, nbytes, row_bytes)

    start = np.array([1.1 * best_rate, *shape.values()])
    # The fastest product seen is not far from the rate: a few noisy ones alone would not tell rate from efficiency.
    doubt = np.array([1.0, np.inf, *[DOUBT] * (len(start) - 2)])
    if flops_per_second is not None:
        start[0], doubt[0] = flops_per_second, KNOWN
    fitted = fit_positive(predict, seconds, start, doubt)
    errors = np.abs(predict(fitted) / seconds - 1)
    return MatmulFit(*curve(fitted), float(np.median(errors)))
