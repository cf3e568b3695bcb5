"""What one device can do: its rates, its memory and caches, and what classes of ops take beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from costmodel.calls import CallCost
from costmodel.gemm import MatmulShape
from costmodel.memory import MemorySample, faster, kept_bytes, moving_seconds, slowing
from costmodel.strides import dividing_powers, spread_bytes

# Where a device does not list a type, the rate of the type it computes in instead, and that rate's multiple.
_STAND_INS: Mapping[str, tuple[tuple[str, float], ...]] = {
    "bfloat16": (("float16", 1.0), ("float32", 1.0)),
    "float16": (("bfloat16", 1.0), ("float32", 1.0)),
    "float64": (("float32", 0.5),),
    "complex64": (("float32", 1.0),),
    "complex128": (("float64", 1.0), ("float32", 0.5)),
    "int8": (("float32", 1.0),),
    "uint8": (("int8", 1.0), ("float32", 1.0)),
}

REARRANGING = ("rearrange rows", "rearrange", "rearrange by 1 KiB", "rearrange by 2 KiB", "rearrange by 4 KiB")
"""Copies in another order of dimensions: of rows that stay whole; of elements; and of elements that lie so far apart,
or an odd multiple of that (of 4 KiB, any). A cache has few places for what lies a large power of two apart (in an L1
of 64 sets of 64 bytes, addresses 4 KiB apart share one), and reads each element's line anew."""

FAR = ("rearrange over 2 MiB", "rearrange over 4 MiB")
"""The last of `REARRANGING` where elements lie over more than a megabyte. A cache of 2 MiB and 16 places has room for
512 lines that lie 4 KiB apart (for 8,192 that lie 256 bytes apart, and so on); of more, each is read from behind it."""

OPERANDS_IN_TILES = 0.3
"""How much of that elements of operands of products take, which are copied tile by tile, so that each line is read once
or twice: between a fifth and two fifths in programs on a CPU."""

MOST_IN_TILES = 2**21
"""Bytes over which elements lie that are copied tile by tile: over more they take no longer; see docs/costs.md."""

BROUGHT_BYTES, BROUGHT_ARRAYS = 2**24, 16
"""Of the arrays on each CPU device into which collectives bring one after the other while they are timed: so many bytes
in all, and no more arrays than that."""

ELEMENT_CLASSES = (
    "exponential", "sine", "power", "sum along rows", "sum along columns", *REARRANGING, *FAR, "gather",
    "scatter", "sort", "selection", "cumulative", "window", "window gradient", "patch", "random", "concatenate", "pad",
)  # fmt: skip
"""What takes a device longer than its memory: exp, log, tanh and their like; sin, cos, rsqrt; pow, atan2, remainders;
reductions over the last dimension and over others; copies in another order of dimensions; rows looked up and added
to; comparisons of a sort, and of a selection of the largest; running sums; elements under a pooling window, and
under that of its gradient; pixels under a convolution's window, of all channels together; random bits; arrays put
together, and padded, within a loop over the result."""


@dataclass(frozen=True)
class Device:
    """One accelerator, or one of the CPU devices that share a host.

    Attributes:
        kind: the name that `jax.Device.device_kind` gives it.
        flops_per_second: achievable (not advertised) matrix-multiply rate by numpy dtype name, while all
            devices work.
        memory_bytes: the memory that arrays may take.
        memory_bytes_per_second: achievable rate of streaming through that memory, reads and writes counted
            together.
        memory_curve: what moving so many bytes of one op took, ascending, where caches make small arrays faster;
            none where everything moves at `memory_bytes_per_second`.
        cold_memory_curve: the same of bytes that no op of this call has touched before, whether read or written; those
            of all devices have gone through the caches since. None where that makes no difference.
        met_memory_curve: the same of bytes that this call has touched, but before devices met; where none was timed, it
            is as for those not touched before.
        cold_write_factor: how many times as long as another such byte one takes that is written and not read: a cache
            fetches its line all the same.
        launch_seconds: what one more op costs, however small.
        element_seconds: per element and class of op (see `ELEMENT_CLASSES`), what it takes beside moving it through
            memory; a class that is not listed takes nothing more.
        matmul: by numpy dtype name, how the rate of a matrix multiplication depends on its sizes; a type that is not
            listed goes by the nearest one that is, as its rate does.
        transposed_matmul: the same for products whose left operand is transposed, where they were measured apart.
        call: what calling a program takes beside running it.
        round_seconds: what a round of a loop around one kernel takes at least: on a GPU, its host starts it, and the
            one that counts.
    """

    kind: str
    flops_per_second: Mapping[str, float] = field(hash=False)
    memory_bytes: float
    memory_bytes_per_second: float
    launch_seconds: float
    element_seconds: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_curve: tuple[MemorySample, ...] = ()
    cold_memory_curve: tuple[MemorySample, ...] = ()
    met_memory_curve: tuple[MemorySample, ...] = ()
    cold_write_factor: float = 1.0
    call: CallCost = field(default_factory=CallCost)
    matmul: Mapping[str, MatmulShape] = field(default_factory=dict, hash=False)
    transposed_matmul: Mapping[str, MatmulShape] = field(default_factory=dict, hash=False)
    round_seconds: float = 0.0

    def memory_seconds(
        self,
        nbytes: ArrayLike,
        cold_bytes: ArrayLike = 0.0,
        crowding: ArrayLike = 1.0,
        cold_written: ArrayLike = 0.0,
    ) -> np.ndarray:
        """Seconds in which an op's bytes, read and written, move between this device and its caches and memory.

        Args:
            cold_bytes: of them, those that no op has touched in this call.
            crowding: how many times as many such bytes there are in the whole call, all devices together.
            cold_written: of the cold bytes, those that are written and not read.
        """
        total, cold = np.asarray(nbytes, dtype=float), np.asarray(cold_bytes, dtype=float)
        if not self.memory_curve:
            return total / self.memory_bytes_per_second
        warm, shared = np.maximum(0.0, total - cold), np.maximum(1.0, crowding) * cold
        as_read = cold + (self.cold_write_factor - 1.0) * np.asarray(cold_written)
        cold_curve = self.cold_memory_curve or self.memory_curve
        return moving_seconds(self.memory_curve, warm, warm) + moving_seconds(cold_curve, as_read, shared)

    def refetch_seconds(self, nbytes: ArrayLike, distance: ArrayLike, met: ArrayLike = True) -> np.ndarray:
        """Seconds that bytes take beyond those of an op that has them in the caches, if they come from further away.

        Args:
            distance: bytes that this device has touched since it last touched these.
            met: whether it has met others since that share its cores: then another core goes on with it, and the caches
                have taken in what all of them touched. Until then it is as in a loop, which goes over its own memory
                again and again.
        """
        moved = np.asarray(nbytes, dtype=float)
        if not self.memory_curve:
            return np.zeros_like(moved)
        near = np.maximum(moved, kept_bytes(self.memory_curve))
        own = moving_seconds(self.memory_curve, moved, np.maximum(near, distance))
        own = own - moving_seconds(self.memory_curve, moved, near)
        if not self.cold_memory_curve:
            return own
        curve = slowing(self.met_memory_curve or self.cold_memory_curve)
        far = moving_seconds(curve, moved, np.maximum(moved, distance))
        return np.where(met, np.maximum(0.0, far - moving_seconds(self.memory_curve, moved, moved)), own)

    def brought_seconds(self, nbytes: ArrayLike, distance: ArrayLike) -> np.ndarray:
        """Seconds, more or less than none, beyond a collective's price for where the bytes come to lie that it brings.

        Args:
            distance: bytes that this device has touched since it last touched the memory; the price is that of
                `BROUGHT_ARRAYS` such arrays that take turns, or as many as there are in `BROUGHT_BYTES`.
        """
        brought = np.asarray(nbytes, dtype=float)
        if not self.cold_memory_curve:
            return np.zeros_like(brought)
        timed = np.clip(BROUGHT_BYTES, 2.0 * brought, BROUGHT_ARRAYS * brought)
        return self.refetch_seconds(brought, distance) - self.refetch_seconds(brought, timed)

    def rearranging_seconds(
        self,
        stride_bytes: ArrayLike,
        itemsize: int,
        span_bytes: ArrayLike,
        in_tiles: bool = False,
        near_share: float = 1.0,
        beside_bytes: float = 0.0,
    ) -> np.ndarray:
        """Seconds of an element, beside moving it, of a copy in another order; see `REARRANGING` and `FAR`.

        Args:
            stride_bytes: from each element to the one that it comes to lie before, where they lie now; `itemsize` where
                that is its neighbour already, so that rows stay whole.
            span_bytes: over how many the elements lie that come to lie in a row.
            in_tiles: whether elements are copied tile by tile; see `MOST_IN_TILES`.
            near_share: of what they take where the cache has places for all; where rows stay whole that is no matter.
            beside_bytes: of the cache, that the lines of other arrays take which are read so at the same time; see
                `spread_bytes`.

        >>> slow = Device("d", {"float32": 1e9}, 1e9, 1e9, 0.0, {"rearrange": 3e-9, "rearrange by 2 KiB": 9e-9})
        >>> [float(slow.rearranging_seconds(stride, 4, 2**20)) for stride in (4, 1280, 6144)]
        [0.0, 3e-09, 9e-09]
        """
        strides, powers = dividing_powers(stride_bytes)
        place = np.where(strides <= itemsize, 0, np.clip(powers - 8, 1, 4)).astype(int)
        classes = np.array([self.element_seconds.get(name, 0.0) for name in REARRANGING])
        near = np.where(place, near_share, 1.0) * classes[place]
        spread = spread_bytes(stride_bytes, span_bytes) + beside_bytes
        spread = np.minimum(spread, MOST_IN_TILES if in_tiles else np.inf)
        last = self.element_seconds.get(REARRANGING[-1], 0.0)
        further = [max(0.0, self.element_seconds.get(name, last) - last) for name in FAR]
        far = np.interp(np.log2(np.maximum(spread, 1.0)), (20, 21, 22), (0.0, *np.maximum.accumulate(further)))
        return near + np.where(place, far, 0.0)

    def scaled(self, speed: float, wait: float) -> Device:
        """The device where everything runs `speed` times as fast, and what starts waits `wait` times as long."""
        return replace(
            self,
            flops_per_second={dtype: rate * speed for dtype, rate in self.flops_per_second.items()},
            memory_bytes_per_second=self.memory_bytes_per_second * speed,
            memory_curve=faster(self.memory_curve, speed),
            cold_memory_curve=faster(self.cold_memory_curve, speed),
            met_memory_curve=faster(self.met_memory_curve, speed),
            launch_seconds=self.launch_seconds * wait,
            round_seconds=self.round_seconds * wait,
            element_seconds={name: seconds / speed for name, seconds in self.element_seconds.items()},
            call=self.call.scaled(wait),
            matmul={dtype: shape.scaled(speed, wait) for dtype, shape in self.matmul.items()},
            transposed_matmul={dtype: shape.scaled(speed, wait) for dtype, shape in self.transposed_matmul.items()},
        )

    def rate(self, dtype: str) -> float:
        """FLOP/s for a numpy dtype name; a type that is not listed runs at the rate of the nearest one that
        is.

        >>> Device("d", {"float32": 1e12}, 1e9, 1e11, 1e-6).rate("float64")
        500000000000.0
        """
        for name, multiple in _stand_ins(dtype):
            if name in self.flops_per_second:
                return self.flops_per_second[name] * multiple
        return min(self.flops_per_second.values())

    def matmul_shape(self, dtype: str, transposed: bool = False) -> MatmulShape:
        """How the time of a matrix multiplication depends on its sizes; where nothing was measured, by the roofline."""
        for shapes in (self.transposed_matmul, self.matmul) if transposed else (self.matmul,):
            for name, _ in _stand_ins(dtype):
                if name in shapes:
                    return shapes[name]
        return MatmulShape(self.launch_seconds, self.memory_bytes_per_second)


def _stand_ins(dtype: str) -> tuple[tuple[str, float], ...]:
    """The type itself and those that may stand in for it, each with a multiple of its rate."""
    nearest = "bfloat16" if dtype.startswith("float8") else "float32"
    return ((dtype, 1.0), *_STAND_INS.get(dtype, ((nearest, 1.0),)))
