"""How large the probes of `executor.probes` are on each kind of device: neither starting up nor noise shall be most of
what is timed, nor caches hold what programs read from memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.device import BROUGHT_ARRAYS, BROUGHT_BYTES, FAR, REARRANGING

Layer = tuple[int, int, int]
"""Rows, inputs and outputs of a linear layer."""


@dataclass(frozen=True)
class ProbeSizes:
    """Of the arrays on each device.

    Attributes:
        layers: whose products are timed: square, flat and thin ones.
        kept_bytes, most_kept: of what collectives bring, or, where no `cold_bytes` are timed, of the operands that a
            product's probe goes through, and at most how many they are.
        repeated: how often a loop repeats in each of its rounds what is timed, about. Between rounds a GPU stands
            still until its host has read whether there is another.
        launched_bytes: of the array that one op more goes over.
        array_bytes: of the arrays that tell the rates of caches and memory.
        elements: the shape of an array that tells what a class of elements takes, two powers of two.
        turned: for each class of rearranging that is priced, the shape of an array that is turned round.
        cold_bytes: of the arrays that a call reads and writes in their place, and that tell what the caches keep from
            one call to the next. Out of place it takes as long as in place over twice as much: what counts is what is
            touched. None on devices on which all that a call finds is in memory.
        fresh_bytes: of an array that the host's C library would not keep for the next call.
        image: images, height, width and channels, of the convolution and the pooling; as high as wide.
        gathers_patches: whether a convolution's patches are gathered before they are multiplied. A GPU's library does
            that on the way.
        kernel_apart: whether the element that a product leaves behind is put in its place by another kernel.
    """

    layers: tuple[Layer, ...]
    kept_bytes: int
    most_kept: int
    repeated: int
    launched_bytes: int
    array_bytes: tuple[int, ...]
    elements: tuple[int, int]
    turned: Mapping[str, tuple[int, ...]]
    cold_bytes: tuple[int, ...]
    fresh_bytes: int
    image: tuple[int, int, int, int]
    gathers_patches: bool
    kernel_apart: bool

    @property
    def written_bytes(self) -> int:
        """Of an array that is read, and written elsewhere: half as many as of the second largest of `cold_bytes`."""
        return self.cold_bytes[-2] // 2


CPU_SIZES = ProbeSizes(
    layers=(
        (64, 64, 64), (128, 512, 128), (256, 256, 256), (512, 512, 512), (16, 512, 512), (32, 512, 1024),
        (64, 1024, 256), (32, 1024, 1024), (128, 1024, 1024), (1024, 128, 128), (512, 128, 64),
    ),
    kept_bytes=BROUGHT_BYTES,
    most_kept=BROUGHT_ARRAYS,
    repeated=1,
    # Over a kilobyte or less XLA's CPU compiler would make one piece of machine code of all rounds.
    launched_bytes=2**12,
    array_bytes=(2**14, 2**16, 2**18, 2**20, 2**22, 2**24),
    elements=(256, 1024),
    turned={
        **dict(zip(REARRANGING, ((64, 64, 64), (800, 320), (1024, 256), (512, 512), (256, 1024)), strict=True)),
        **dict(zip(FAR, ((512, 1024), (1024, 1024)), strict=True)),
    },
    cold_bytes=(2**16, 2**18, 2**20, 2**22, 2**24),
    fresh_bytes=72 * 2**20,
    image=(8, 16, 16, 16),
    gathers_patches=True,
    kernel_apart=False,
)  # fmt: skip
"""Of eight devices that share a few cores and their caches."""

GPU_SIZES = ProbeSizes(
    layers=(
        (256, 256, 256), (512, 1024, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
        (8192, 8192, 8192), (64, 4096, 4096), (512, 4096, 16384), (16384, 1024, 1024), (8192, 768, 3072),
        (16384, 256, 256), (8192, 8192, 256),
    ),
    kept_bytes=2**28,
    most_kept=32,
    repeated=32,
    launched_bytes=2**12,
    array_bytes=(2**18, 2**20, 2**22, 2**24, 2**26, 2**28, 2**30),
    elements=(8192, 8192),
    turned={},
    cold_bytes=(),
    fresh_bytes=2**30,
    image=(64, 64, 64, 64),
    gathers_patches=False,
    kernel_apart=True,
)  # fmt: skip
"""Of one with some hundred multiprocessors, its second cache some tens of megabytes. Its compiler turns arrays round
tile by tile, at the rate of its memory."""


def probe_sizes(platform: str) -> ProbeSizes:
    """Of the devices of a platform, as JAX calls it."""
    return CPU_SIZES if platform == "cpu" else GPU_SIZES
