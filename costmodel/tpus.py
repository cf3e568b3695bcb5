"""TPUs and the tori they stand in, each figure with its source, by the letter behind it.

- [S] the maker's specification: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}.
- [B] Google's scaling book, jax-ml/scaling-book: chapters "TPUs", "Sharded matrices".
- [T] AI-Hypercomputer/tpu-recipes, microbenchmarks on v6e and tpu7x.
- [L] XLA's speed-of-light model: openxla/xla, service/gpu/model/sol_gpu_cost_model.cc, round trip between hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel.device import Device
from costmodel.gemm import MatmulShape
from costmodel.topology import Dim, Link

Shape = tuple[int, ...]

HOP_SECONDS, START_SECONDS = 1e-6, 5e-6  # [B]: 1 µs a hop; an all-gather of 8 µs over 3 hops leaves 5 µs
DCN_HOP_SECONDS = 31e-6  # [L]
LAUNCH_SECONDS = 1e-6  # not measured: an order of magnitude
STREAM_SHARE = 0.83  # of the specified memory bandwidth [T]: a copy on v6e, 1,360 of 1,638 GB/s
MATMUL_SHARE = 0.90  # of the specified rate [T]: 8192³ on v6e, 827 of 918 TFLOP/s
LINK_SHARE = 0.9  # of the specified rate of an ICI link [B]: 45 of 50 GB/s
LANES = 4 * 8 * 128  # float32 units of a core's vector processor [B, "GPUs", quiz 1.1]
PCIE_BYTES_PER_SECOND = 16e9  # of a chip, from its host [B, "TPUs"]
# Cubes of 128 to 32,768 in bfloat16 on tpu7x [T], fitted by `fit_matmul` to 4 % but for 2,048 (15 %).
HALF_RATE_SIZE, HALF_RATE_INNER, HALF_RATE_OUTPUTS, MATMUL_LAUNCH_SECONDS = 17.0, 75.0, 1.1e5, 1.5e-6


@dataclass(frozen=True)
class Tpu:
    """A TPU chip, as specified, and the torus it stands in.

    Attributes:
        device_kind: the name that JAX gives it.
        bfloat16, int8, float8: operations per second of a chip; None where it has no such type.
        memory_bytes, memory_bytes_per_second: of a chip.
        link_bytes_per_second: of one link in one direction.
        dcn_bytes_per_second: of a chip in one direction, between slices.
        host_shape: the smallest slice, the chips of one host.
        pod_shape: the largest slice.
        wraps: from a slice's shape, which of its dimensions close to rings.
        cores: how many devices JAX sees in a chip; they share its memory bandwidth and links.
        tensor_cores: how many cores a chip has, be they one device together or several.
    """

    device_kind: str
    bfloat16: float
    int8: float | None
    float8: float | None
    memory_bytes: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    dcn_bytes_per_second: float
    host_shape: Shape
    pod_shape: Shape
    wraps: Callable[[Shape], tuple[bool, ...]]
    cores: int = 1
    tensor_cores: int = 1

    @property
    def lanes(self) -> int:
        """Units of its vector processors, each doing one float32 operation a clock."""
        return self.tensor_cores * LANES

    @property
    def pod_chips(self) -> int:
        return math.prod(self.pod_shape)

    @property
    def pod_hosts(self) -> int:
        return self.pod_chips // math.prod(self.host_shape)

    def device(self, specified: bool = False) -> Device:
        """What JAX calls a device; as specified, it has no launches and reaches what its data sheet says."""
        share = (1.0 if specified else MATMUL_SHARE) / self.cores
        rates = {"bfloat16": self.bfloat16, "float32": self.bfloat16}  # at XLA's default precision, one bfloat16 pass
        rates |= {} if self.int8 is None else {"int8": self.int8}
        rates |= {} if self.float8 is None else {"float8_e4m3fn": self.float8, "float8_e5m2": self.float8}
        rates = {dtype: rate * share for dtype, rate in rates.items()}
        memory, stream = self.memory_bytes / self.cores, self.memory_bytes_per_second / self.cores
        if specified:
            return Device(self.device_kind, rates, memory, stream, 0.0)
        stream *= STREAM_SHARE
        shape = MatmulShape(MATMUL_LAUNCH_SECONDS, stream, HALF_RATE_SIZE, HALF_RATE_INNER, HALF_RATE_OUTPUTS)
        return Device(self.device_kind, rates, memory, stream, LAUNCH_SECONDS, matmul={"float32": shape})

    def dims(self, shape: Shape, slices: int, specified: bool = False) -> tuple[Dim, ...]:
        """Slices, the torus of each, and where JAX sees several the devices of a chip."""
        start = 0.0 if specified else START_SECONDS
        ici = self.link_bytes_per_second * LINK_SHARE / self.cores
        dcn = Link("network", DCN_HOP_SECONDS, self.dcn_bytes_per_second / self.cores, start, staged=True)
        torus = [Link("torus", HOP_SECONDS, ici, start, wrap, staged=self.cores > 1) for wrap in self.wraps(shape)]
        # Two dies of a chip are six times as fast to each other as one link [S].
        dies = Link("switch", HOP_SECONDS, 6 * ici * self.cores, start)
        found = [("slice", slices, dcn), *zip("xyz", shape, torus, strict=False), ("core", self.cores, dies)]
        return tuple(Dim(name, size, link) for name, size, link in found if size > 1)


def _pod_rings(shape: Shape) -> tuple[bool, ...]:
    """Only a dimension of 16, the pod's whole width, closes [B, "TPUs"]."""
    return tuple(size == 16 for size in shape)


def _cube_rings(shape: Shape) -> tuple[bool, ...]:
    """Slices made of whole 4×4×4 cubes close in all dimensions, smaller ones in none [B, "TPUs"]."""
    return (all(size % 4 == 0 for size in shape),) * len(shape)


TPUS: Mapping[str, Tpu] = {
    "v4": Tpu(
        device_kind="TPU v4",
        bfloat16=275e12,  # [S]
        int8=275e12,  # [S]
        float8=None,
        memory_bytes=32 * 2**30,  # [S]
        memory_bytes_per_second=1.2e12,  # [S]
        link_bytes_per_second=50e9,  # [S]
        dcn_bytes_per_second=6.25e9,  # not published: the v5p's
        host_shape=(2, 2, 1),  # [B]
        pod_shape=(16, 16, 16),  # [S]
        wraps=_cube_rings,
        tensor_cores=2,  # [S]
    ),
    "v5e": Tpu(
        device_kind="TPU v5 lite",
        bfloat16=197e12,  # [S]
        int8=393e12,  # [S]
        float8=None,
        memory_bytes=16e9,  # [S]
        memory_bytes_per_second=819e9,  # [S]
        link_bytes_per_second=50e9,  # [S]
        dcn_bytes_per_second=3.125e9,  # [B]
        host_shape=(2, 4),  # [B]
        pod_shape=(16, 16),  # [S]
        wraps=_pod_rings,
    ),
    "v5p": Tpu(
        device_kind="TPU v5",
        bfloat16=459e12,  # [S]
        int8=918e12,  # [S]
        float8=None,
        memory_bytes=95 * 2**30,  # [S]
        memory_bytes_per_second=2.765e12,  # [S]
        link_bytes_per_second=100e9,  # [S]
        dcn_bytes_per_second=6.25e9,  # [B]
        host_shape=(2, 2, 1),  # [B]
        pod_shape=(16, 20, 28),  # [S]
        wraps=_cube_rings,
        tensor_cores=2,  # [S]
    ),
    "v6e": Tpu(
        device_kind="TPU v6 lite",
        bfloat16=918e12,  # [S]
        int8=1836e12,  # [S]
        float8=None,
        memory_bytes=32e9,  # [S]
        memory_bytes_per_second=1.638e12,  # [S]
        link_bytes_per_second=100e9,  # [S]
        dcn_bytes_per_second=12.5e9,  # [B]
        host_shape=(2, 4),  # [B]
        pod_shape=(16, 16),  # [S]
        wraps=_pod_rings,
    ),
    "v7x": Tpu(
        device_kind="TPU7x",
        bfloat16=2307e12,  # [S]
        int8=None,
        float8=4614e12,  # [S]
        memory_bytes=192 * 2**30,  # [S]
        memory_bytes_per_second=7.37e12,  # [S]
        link_bytes_per_second=100e9,  # [S]
        dcn_bytes_per_second=12.5e9,  # not published: the v6e's
        host_shape=(2, 2, 1),  # [S]
        pod_shape=(16, 24, 24),  # [S]: 9,216 chips
        wraps=_cube_rings,
        cores=2,  # [S]
        tensor_cores=2,  # [S]
    ),
}
