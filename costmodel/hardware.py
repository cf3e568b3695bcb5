"""Accelerators, each figure with its source, by the letter behind it.

- [S] the maker's specification: docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}; NVIDIA data sheets.
- [M] the best matrix-multiply rate found by search: stas00/ml-engineering, compute/accelerator, "MAMF".
- [X] XLA's own measurements on H100: openxla/xla, service/gpu/model/default_matmul_perf_table.txtpb.
- [N] NCCL: latencies from src/graph/tuning.cc, those of a ring with protocol LL128, which serves middle
  sizes; bandwidths from nccl-tests at 1 GB and above (8×A100, 8×H200: stas00/ml-engineering, network; 8×H100
  and the network: meta-pytorch/autoparallel, nccl_cost_model.py).
- [T] AI-Hypercomputer/tpu-recipes, microbenchmarks on v6e.
- [B] Google's scaling book, jax-ml/scaling-book: chapters "TPUs", "Sharded matrices", "GPUs".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel.gemm import MatmulShape
from costmodel.topology import Device, Link

Shape = tuple[int, ...]

NCCL_START_SECONDS, NVLINK_HOP_SECONDS, NETWORK_HOP_SECONDS = 14e-6, 1.9e-6, 4e-6  # [N]
GPU_LAUNCH_SECONDS = 1.5e-6  # [B, "GPUs", quiz 1.7]: an addition of 64 Ki floats in JAX on H100
GPU_STREAM_SHARE = 0.94  # of the specified memory bandwidth [B, "GPUs", quiz 1.7]: a large addition on H100

ICI_HOP_SECONDS, ICI_START_SECONDS = (
    1e-6,
    5e-6,
)  # [B]: 1 µs a hop; an all-gather of 8 µs over 3 hops leaves 5 µs
# Fitted to XLA's measurements on H100 [X] by `fit_matmul`; the launch is of the smallest product there.
GPU_MATMUL = {
    "bfloat16": MatmulShape(5.08e-6, 3.5e12, half_rate_size=14, half_rate_inner=186, half_rate_outputs=3.8e5),
    "float32": MatmulShape(7.2e-6, 3.15e12, half_rate_size=171, half_rate_inner=94, half_rate_outputs=1.5e5),
}
TPU_LAUNCH_SECONDS = 1e-6  # not measured: an order of magnitude
TPU_STREAM_SHARE = 0.83  # of the specified memory bandwidth [T]: a copy, 1,360 of 1,638 GB/s
TPU_MATMUL_SHARE = 0.90  # of the specified rate [T]: 8192³, 827 of 918 TFLOP/s


@dataclass(frozen=True)
class Gpu:
    """A GPU and its links within and between hosts of eight. Rates are FLOP/s achieved, not specified."""

    device_kind: str
    bfloat16: float
    float32: float
    float64: float
    float8: float | None
    memory_bytes: float
    specified_bytes_per_second: float
    transcendentals_per_second: float
    nvlink_bytes_per_second: float
    nic_bytes_per_second: float

    @property
    def device(self) -> Device:
        rates = {"bfloat16": self.bfloat16, "float16": self.bfloat16}
        rates |= {"float32": self.float32, "float64": self.float64}
        if self.float8 is not None:
            rates |= {"float8_e4m3fn": self.float8, "float8_e5m2": self.float8}
        return Device(
            self.device_kind,
            rates,
            self.memory_bytes,
            self.specified_bytes_per_second * GPU_STREAM_SHARE,
            GPU_LAUNCH_SECONDS,
            self.transcendentals_per_second,
            matmul=GPU_MATMUL,
        )

    @property
    def nvlink(self) -> Link:
        return Link("switch", NVLINK_HOP_SECONDS, self.nvlink_bytes_per_second, NCCL_START_SECONDS)

    @property
    def network(self) -> Link:
        return Link("network", NETWORK_HOP_SECONDS, self.nic_bytes_per_second, NCCL_START_SECONDS)


GPUS: Mapping[str, Gpu] = {
    "a100-dgx": Gpu(
        device_kind="NVIDIA A100-SXM4-80GB",
        bfloat16=271.2e12,  # [M], of 312
        float32=135.6e12,  # TF32, XLA's default: 156 [S] at the share of its peak that bfloat16 reaches [M]
        float64=19.5e12,  # [S]
        float8=None,
        memory_bytes=80e9,  # [S]
        specified_bytes_per_second=2.0e12,  # [S]
        transcendentals_per_second=108
        * 16
        * 1.41e9,  # 16 a clock and multiprocessor: CUDA C++ Programming Guide
        nvlink_bytes_per_second=235e9,  # [N], of 300
        nic_bytes_per_second=24e9,  # [N], of 25
    ),
    "h100-dgx": Gpu(
        device_kind="NVIDIA H100 80GB HBM3",
        bfloat16=794.5e12,  # [M], of 989
        float32=403e12,  # TF32, XLA's default [X]
        float64=67e12,  # [S]
        float8=1402.6e12,  # [M]
        memory_bytes=80e9,  # [S]
        specified_bytes_per_second=3.35e12,  # [S]
        transcendentals_per_second=132 * 16 * 1.755e9,  # as on the A100
        nvlink_bytes_per_second=345e9,  # [N], of 450
        nic_bytes_per_second=48e9,  # [N], of 50
    ),
    "h200-dgx": Gpu(
        device_kind="NVIDIA H200",
        bfloat16=794.5e12,  # the H100's chip
        float32=403e12,  # the same
        float64=67e12,  # [S]
        float8=1453.4e12,  # [M]
        memory_bytes=141e9,  # [S]
        specified_bytes_per_second=4.8e12,  # [S]
        transcendentals_per_second=132 * 16 * 1.755e9,  # as on the A100
        nvlink_bytes_per_second=361e9,  # [N], of 450
        nic_bytes_per_second=48e9,  # [N], of 50
    ),
}


@dataclass(frozen=True)
class Tpu:
    """A TPU chip, as specified, and the torus it stands in.

    Attributes:
        link_bytes_per_second: of one link in one direction, achieved.
        host_shape: the smallest slice, the chips of one host.
        wraps: from a slice's shape, which of its dimensions close to rings.
    """

    device_kind: str
    specified_bfloat16: float
    specified_int8: float
    memory_bytes: float
    specified_bytes_per_second: float
    link_bytes_per_second: float
    host_shape: Shape
    wraps: Callable[[Shape], tuple[bool, ...]]

    @property
    def device(self) -> Device:
        rate = self.specified_bfloat16 * TPU_MATMUL_SHARE
        return Device(
            self.device_kind,
            # At XLA's default precision float32 is multiplied in one bfloat16 pass.
            {"bfloat16": rate, "float32": rate, "int8": self.specified_int8 * TPU_MATMUL_SHARE},
            self.memory_bytes,
            self.specified_bytes_per_second * TPU_STREAM_SHARE,
            TPU_LAUNCH_SECONDS,
        )

    def links(self, shape: Shape) -> tuple[Link, ...]:
        rate = self.link_bytes_per_second
        return tuple(Link("torus", ICI_HOP_SECONDS, rate, ICI_START_SECONDS, w) for w in self.wraps(shape))


def _pod_rings(shape: Shape) -> tuple[bool, ...]:
    """Only a dimension of 16, the pod's whole width, closes [B, "TPUs"]."""
    return tuple(size == 16 for size in shape)


def _cube_rings(shape: Shape) -> tuple[bool, ...]:
    """Slices made of whole 4×4×4 cubes close in all dimensions, smaller ones in none [B, "TPUs"]."""
    return (all(size % 4 == 0 for size in shape),) * len(shape)


# All figures [S], but link rates and host shapes [B].
TPUS: Mapping[str, Tpu] = {
    "v4": Tpu("TPU v4", 275e12, 275e12, 32 * 2**30, 1.2e12, 45e9, (2, 2, 1), _cube_rings),
    "v5e": Tpu("TPU v5 lite", 197e12, 393e12, 16e9, 819e9, 45e9, (2, 4), _pod_rings),
    "v5p": Tpu("TPU v5", 459e12, 918e12, 95 * 2**30, 2.765e12, 90e9, (2, 2, 1), _cube_rings),
    "v6e": Tpu("TPU v6 lite", 918e12, 1836e12, 32e9, 1.638e12, 90e9, (2, 4), _pod_rings),
}
