"""GPUs and the machines they stand in, each figure with its source, by the letter behind it.

- [C] `meshwright calibrate` on one of them, in profiles/.
- [S] the maker's specification: NVIDIA data sheets of V100, A100, H100, H200, HGX B200, GB200 NVL72; DGX-2 and DGX
  SuperPOD reference architectures.
- [M] the best matrix-multiply rate found by search: stas00/ml-engineering, compute/accelerator, "MAMF".
- [X] XLA's own measurements: openxla/xla, service/gpu/model/default_{matmul,collective}_perf_table.txtpb. The curves
  fitted to them are in profiles/, written by `experiments.published.profiles`.
- [N] NCCL: latencies from src/graph/tuning.cc; bandwidths from nccl-tests at 1 GB and above (A100, H200, B200:
  stas00/ml-engineering, network; H100 and the network: meta-pytorch/autoparallel, nccl_cost_model.py).
- [V] NVIDIA's bar charts of NCCL bandwidth by machine: GTC24 s62129, GTC25 s72583.
- [W] AWS on p3.16xlarge: 25 Gbit/s a host, no NVSwitch; the wiring of its board is that of DGX-1.
- [B] Google's scaling book, jax-ml/scaling-book, chapter "GPUs".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from costmodel.device import Device
from costmodel.gemm import MatmulShape
from costmodel.topology import Dim, Link, LinkKind

NCCL_START_SECONDS, NVLINK_HOP_SECONDS, NETWORK_HOP_SECONDS = 14e-6, 1.9e-6, 4e-6  # [N], of a ring under LL128
LAUNCH_SECONDS = 1.5e-6  # [B, quiz 1.7]: an addition of 64 Ki floats in JAX on H100
STREAM_SHARE = 0.94  # of the specified memory bandwidth [B, quiz 1.7]: a large addition on H100
NETWORK_SHARE = 0.96  # of the specified bandwidth of a network card [N]: 48 of 50 GB/s
TCP_SHARE = 0.8  # the same over Ethernet and TCP [V]: 10 of 12.5 GB/s
LANES = 128  # float32 units of a multiprocessor [B, quiz 1.1]
SPECIAL_A_CLOCK = 16  # exponentials and their like a clock and multiprocessor: CUDA C++ Programming Guide


@dataclass(frozen=True)
class Gpu:
    """A GPU, and the links within and between the hosts (or racks) that it comes in.

    Attributes:
        device_kind: the name that JAX gives it.
        specified: FLOP/s by dtype, dense.
        achieved: the same as measured in large products.
        memory_bytes, memory_bytes_per_second: as specified.
        multiprocessors, clock: for special functions and what is done a lane at a time.
        per_host: how many GPUs one host (or rack) joins by NVLink.
        nvlink_bytes_per_second: per GPU and direction, as specified; and what NCCL's rings reach of it.
        reduce_bytes_per_second: of an all-reduce that the switch adds up, as measured; None where it cannot.
        network_bytes_per_second: per GPU and direction, between hosts, as specified; and the share reached.
        wired: whether there is no switch inside, but wires from GPU to GPU, in two halves; see `_inside`.
        profile: the file of curves measured on it, of products and collectives; None where there is none.
        calibrated: the file of what `calibrate` measured on one, all of it but links; None where there was none.
    """

    device_kind: str
    specified: Mapping[str, float]
    achieved: Mapping[str, float]
    memory_bytes: float
    memory_bytes_per_second: float
    multiprocessors: int
    clock: float
    per_host: int
    nvlink_bytes_per_second: float
    ring_bytes_per_second: float
    reduce_bytes_per_second: float | None
    network_bytes_per_second: float
    network_share: float = NETWORK_SHARE
    wired: bool = False
    profile: str | None = None
    calibrated: str | None = None

    @property
    def lanes(self) -> int:
        """Units that do one float32 operation a clock."""
        return self.multiprocessors * LANES

    def device(self, specified: bool = False) -> Device:
        """One GPU; as specified, it has no launches and reaches what its data sheet says."""
        if specified:
            return Device(self.device_kind, self.specified, self.memory_bytes, self.memory_bytes_per_second, 0.0)
        stream = self.memory_bytes_per_second * STREAM_SHARE
        return Device(
            self.device_kind,
            self.achieved,
            self.memory_bytes,
            stream,
            LAUNCH_SECONDS,
            dict.fromkeys(("exponential", "sine", "power"), 1 / (self.multiprocessors * SPECIAL_A_CLOCK * self.clock)),
            matmul=dict.fromkeys(("bfloat16", "float32"), self._shape(stream)),
        )

    def _shape(self, stream: float) -> MatmulShape:
        """The H100's curve for bfloat16 [X], with as many cores as this GPU has to fill, and its own memory."""
        outputs = 3.8e5 * self.multiprocessors / 132
        return MatmulShape(5.1e-6, stream, half_rate_size=14, half_rate_inner=186, half_rate_outputs=outputs)

    def dims(self, hosts: int, per_host: int, specified: bool = False) -> tuple[Dim, ...]:
        """Hosts and the GPUs in them."""
        kind: LinkKind = "mesh" if self.wired else "switch"
        if specified:
            network = Link("network", 0.0, self.network_bytes_per_second, staged=True)
            inside = Link(kind, 0.0, self.nvlink_bytes_per_second)
        else:
            rate = self.network_bytes_per_second * self.network_share
            network = Link("network", NETWORK_HOP_SECONDS, rate, NCCL_START_SECONDS)
            inside = Link(
                kind,
                NVLINK_HOP_SECONDS,
                self.ring_bytes_per_second,
                NCCL_START_SECONDS,
                reduce_bytes_per_second=self.reduce_bytes_per_second,
            )
        hosts_of = (Dim("host", hosts, network),) if hosts > 1 else ()
        return (*hosts_of, *(self._inside(per_host, inside) if per_host > 1 else ()))

    def _inside(self, per_host: int, link: Link) -> tuple[Dim, ...]:
        """One dimension behind a switch.

        Without one, halves of four: of a GPU's six wires four go to the three others in its half, two to one in the
        other half. Those side by side or two apart have one wire, those across the square two (nvidia-smi topo -m).
        """
        if not self.wired:
            return (Dim("gpu", per_host, link),)
        wire = link.bytes_per_second / 6
        within = min(4, per_host)
        rates = {"half": 2 * wire, "gpu": wire * (within - 1) if within < 4 else 4 * wire}
        wires = {"half": 2 * wire, "gpu": wire}
        sizes = {"half": per_host // within, "gpu": within}
        return tuple(
            Dim(name, size, replace(link, bytes_per_second=rates[name], wire_bytes_per_second=wires[name]))
            for name, size in sizes.items()
            if size > 1
        )


A100 = Gpu(
    device_kind="NVIDIA A100-SXM4-80GB",
    specified={"bfloat16": 312e12, "float16": 312e12, "float32": 156e12, "float64": 19.5e12, "int8": 624e12},  # [S]
    # [M] for bfloat16; TF32, XLA's default for float32, at the same share of what is specified.
    achieved={"bfloat16": 271.2e12, "float16": 271.2e12, "float32": 135.6e12, "float64": 19.5e12},
    memory_bytes=80e9,  # [S]
    memory_bytes_per_second=2.0e12,  # [S]
    multiprocessors=108,  # [S]
    clock=1.41e9,  # [S]
    per_host=8,
    nvlink_bytes_per_second=300e9,  # [S]
    ring_bytes_per_second=235e9,  # [N]
    reduce_bytes_per_second=None,
    network_bytes_per_second=25e9,  # [S]: a 200 Gbit/s card each
    profile="a100-dgx.json",
)
H100 = Gpu(
    device_kind="NVIDIA H100 80GB HBM3",
    specified={
        "bfloat16": 989e12, "float16": 989e12, "float32": 494.7e12, "float64": 67e12, "int8": 1979e12,
        "float8_e4m3fn": 1979e12, "float8_e5m2": 1979e12,
    },  # [S]
    achieved={
        "bfloat16": 794.5e12, "float16": 794.5e12,  # [M]
        "float32": 403e12,  # TF32 [X]
        "float64": 67e12,  # [S]
        "float8_e4m3fn": 1402.6e12, "float8_e5m2": 1402.6e12,  # [M]
    },
    memory_bytes=80e9,  # [S]
    memory_bytes_per_second=3.35e12,  # [S]
    multiprocessors=132,  # [S]
    clock=1.755e9,  # [S]
    per_host=8,
    nvlink_bytes_per_second=450e9,  # [S]
    ring_bytes_per_second=367e9,  # [X]
    reduce_bytes_per_second=270e9,  # [N]
    network_bytes_per_second=50e9,  # [S]: a 400 Gbit/s card each
    profile="h100-dgx.json",
)  # fmt: skip
B200 = Gpu(
    device_kind="NVIDIA B200",
    specified={
        "bfloat16": 2250e12, "float16": 2250e12, "float32": 1125e12, "float64": 37e12, "int8": 4500e12,
        "float8_e4m3fn": 4500e12, "float8_e5m2": 4500e12,
    },  # [S]
    achieved={
        "bfloat16": 1745e12, "float16": 1745e12,  # [M]
        "float32": 878e12,  # TF32 [X]
        "float64": 37e12,  # [S]
        "float8_e4m3fn": 3432.5e12, "float8_e5m2": 3432.5e12,  # [M]
    },
    memory_bytes=180e9,  # [S]
    memory_bytes_per_second=8e12,  # [S]
    multiprocessors=148,  # [S]
    clock=2.1e9,  # [B, quiz 1.6]
    per_host=8,
    nvlink_bytes_per_second=900e9,  # [S]
    ring_bytes_per_second=682e9,  # [N]
    reduce_bytes_per_second=482e9,  # [N]
    network_bytes_per_second=50e9,  # [S]: a 400 Gbit/s card each
    profile="b200-dgx.json",
)  # fmt: skip
V100 = Gpu(
    device_kind="Tesla V100-SXM2-16GB",
    specified={"float16": 125e12, "float32": 15.7e12, "float64": 7.8e12},  # [S]
    achieved={"float16": 108.6e12, "float32": 13.6e12, "float64": 6.8e12},  # at the A100's share [M]
    memory_bytes=16e9,  # [S]
    memory_bytes_per_second=900e9,  # [S]
    multiprocessors=80,  # [S]
    clock=1.53e9,  # [S]
    per_host=8,
    nvlink_bytes_per_second=150e9,  # [S]
    ring_bytes_per_second=122e9,  # [V]
    reduce_bytes_per_second=None,
    network_bytes_per_second=25e9 / 8 / 8,  # [W]
    network_share=TCP_SHARE,
    wired=True,
)
GB200 = replace(
    B200,
    device_kind="NVIDIA GB200",
    specified={dtype: rate * 2500 / 2250 for dtype, rate in B200.specified.items()},  # [S]: 2,500 TFLOP/s in bfloat16
    achieved={dtype: rate * 1822 / 1745 for dtype, rate in B200.achieved.items()},  # [M] for bfloat16, all in its wake
    memory_bytes=186e9,  # [S]
    multiprocessors=152,  # [S]
    per_host=72,
    ring_bytes_per_second=690e9,  # [X]
    reduce_bytes_per_second=465e9,  # [X]
    profile="gb200-nvl72.json",
)

GPUS: Mapping[str, Gpu] = {
    "v100-p3": V100,
    "v100-dgx2": replace(
        V100,
        device_kind="Tesla V100-SXM3-32GB",
        memory_bytes=32e9,  # [S]
        per_host=16,
        network_bytes_per_second=6.25e9,  # [S]: eight 100 Gbit/s cards for sixteen
        network_share=NETWORK_SHARE,
        wired=False,
    ),
    "a100-dgx": A100,
    "a100-40gb-dgx": replace(
        A100,
        device_kind="NVIDIA A100-SXM4-40GB",
        memory_bytes=40e9,  # [S]
        memory_bytes_per_second=1.555e12,  # [S]
    ),
    "h100-dgx": H100,
    "h200-dgx": replace(
        H100,
        device_kind="NVIDIA H200",
        achieved={**H100.achieved, "float8_e4m3fn": 1453.4e12, "float8_e5m2": 1453.4e12},  # [M]; else the same chip
        memory_bytes=141e9,  # [S]
        memory_bytes_per_second=4.8e12,  # [S]
        ring_bytes_per_second=361e9,  # [N]
        reduce_bytes_per_second=272e9,  # [N]
        calibrated="h200.json",  # [C]
    ),
    "b200-dgx": B200,
    "b300-dgx": replace(
        B200,
        device_kind="NVIDIA B300",
        memory_bytes=270e9,  # [S]
        network_bytes_per_second=100e9,  # [S]: an 800 Gbit/s card each
    ),
    "gb200-nvl72": GB200,
    "gb300-nvl72": replace(
        GB200,
        device_kind="NVIDIA GB300",
        memory_bytes=279e9,  # [S]
        network_bytes_per_second=100e9,  # [S]: an 800 Gbit/s card each
    ),
}
