"""Answers to the chapters "Applied training", "Inference", "Applied inference" and "GPUs"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from costmodel import CostModel, Decoder, bounds, preset
from costmodel.gpus import GPUS
from costmodel.tpus import HOP_SECONDS, TPUS
from experiments.published.problems_early import (
    H100,
    LLAMA3_70B,
    LLAMA3_FLOPS,
    MS,
    POD_V5P,
    US,
    V5E,
    V5P,
    on,
    one_way,
)

B200 = preset("b200-dgx", specified=True).device
HOST = on("h100-dgx:1", "g", (8,))
SUPERPOD = on("h100-dgx:32", "hg", (32, 8))
V5E_SLICES = (1, 4, 8, 16, 32, 64, 128, 256)
GIB_AS_GB = 1e9
"""Tables of the chapter "Inference" divide GiB by GB/s; so do the answers to them."""
LLAMA70B_STATE = {"bfloat16": 140e9 + 32 * 1.3e9, "int8": 70e9 + 32 * 1.3e9, "int4": 35e9 + 10e9}


def decode_ms(batch: float, cache: float) -> float:
    """LLaMA 2 13B in bfloat16 on eight v5e, 26 GiB of weights and so many GiB of cache a sequence."""
    return bounds.decode_seconds(V5E, 26 * GIB_AS_GB, cache * GIB_AS_GB, batch, 8) * MS


def network_alpha(axes: str = "h") -> float:
    """FLOPs a byte over the network, a host's cards together: 2,475 in the book."""
    return bounds.link_intensity(SUPERPOD, axes) * 1 / 8


def qps(batch: float, chips: float, seconds: float = 0.019, tokens: float = 512) -> float:
    """Requests a second and chip, each of so many steps."""
    return batch / (seconds * tokens * chips)


def cache_of_a_sequence() -> float:
    """Bytes of a sequence's int8 cache such that 52 fit beside the weights on eight chips, as the table has it."""
    return (8 * V5E.memory_bytes - 70e9) / 52


def filled_qps(chips: int, weights: float, cache: float) -> float:
    """Requests a second and chip with as many sequences as fit."""
    batch = (chips * V5E.memory_bytes - weights) / cache
    return qps(batch, chips, bounds.decode_seconds(V5E, weights, cache, batch, chips))


def gather_across(inner: int) -> tuple[float, float]:
    """All-gather over the hosts of a unit of 32, the matrix split `inner` ways beside it; and the book's formula."""
    width, ffn = 65536.0, 65536.0
    mesh = on("h100-dgx:32", "xy", (32, 8)) if inner == 8 else on("h100-dgx:64", "xy", (512 // inner, inner))
    ours = float(mesh.bandwidth_seconds("all-gather", "x", 2 * width * ffn / inner))
    published = 2 * width * ffn * 31 / (32 * 400e9) if inner == 8 else 2 * width * ffn / (inner * 50e9)
    return ours, published


def reduce_at_the_spine() -> tuple[float, float]:
    """All-reduce over four units of 256, whose switches add, of a matrix split over each unit; and the formula."""
    width = 65536.0
    ours = 2 * width**2 / 256 / GPUS["h100-dgx"].network_bytes_per_second
    return ours, 2 * width**2 / 6.4e12


def fp32_lanes(clock: float) -> float:
    return GPUS["h100-dgx"].lanes * clock / 1e12


def sharp_gain() -> float:
    """By how many per cent an all-reduce is faster where the switch adds."""
    gpu = GPUS["h100-dgx"]
    return 100 * ((gpu.reduce_bytes_per_second or 0.0) * 2 * 7 / 8 / gpu.ring_bytes_per_second - 1)


def measured(kind: str, nbytes: float) -> float:
    """Bus bandwidth of a host of eight H100, GB/s."""
    cost = CostModel(preset("h100-dgx:1")).on("g", (8,))
    return bounds.bus_bytes_per_second(cost, kind, "g", nbytes) / 1e9


def exchange_ratio() -> float:
    """How much longer an all-to-all takes over two hosts than in one."""
    pair = on("h100-dgx:2", "hg", (2, 8))
    across, within = (float(c.bandwidth_seconds("all-to-all", a, 1e12)) for c, a in ((pair, "hg"), (HOST, "g")))
    return across / within


def chosen_sharding() -> str:
    """The power of two above the best FSDP group, and what it leaves of 8,192 of the chips."""
    best = bounds.optimal_fsdp_ways(8960, 4.19e6, 28672)
    fsdp = 2 ** math.ceil(math.log2(best))
    return f"{fsdp}-way FSDP x {2 ** int(math.log2(8960)) // fsdp}-way TP"


CASES: Mapping[str, Callable[[], float | str | tuple[float, float]]] = {
    "sb113": lambda: float(LLAMA3_70B.mlp_parameters),
    "sb115": lambda: float(LLAMA3_70B.attention_parameters),
    "sb116": lambda: float(LLAMA3_70B.parameters),
    "sb118": lambda: bounds.compute_seconds(V5P, LLAMA3_70B.training_flops(1)) * MS,
    "sb119": lambda: LLAMA3_FLOPS,
    "sb121": lambda: bounds.training_days(V5P, LLAMA3_FLOPS, 8960, 0.4),
    "sb122": lambda: LLAMA3_70B.state_bytes(2, 0) / 1e9,
    "sb123": lambda: LLAMA3_70B.state_bytes(0, 8) / 1e9,
    "sb124": lambda: LLAMA3_70B.saved_bytes(4e6, 4) / 1e12,
    "sb126": lambda: bounds.training_days(V5P, LLAMA3_FLOPS, 225, 0.4),
    "sb127": lambda: (LLAMA3_70B.state_bytes() + LLAMA3_70B.saved_bytes(4e6, 4)) / TPUS["v5p"].pod_chips / 1e9,
    "sb128": lambda: 4 * 1024 * 1024 / TPUS["v5p"].pod_chips,
    "sb131": lambda: bounds.optimal_fsdp_ways(8960, 4.19e6, 28672),
    "sb132": chosen_sharding,
    "sb133": lambda: bounds.decode_seconds(V5E, 30e9, 8192 * 100e3, 4, 16) * MS,
    "sb135": lambda: decode_ms(1, 6.7),
    "sb136": lambda: decode_ms(8, 6.7),
    "sb137": lambda: decode_ms(16, 6.7),
    "sb139": lambda: decode_ms(64, 6.7),
    "sb140": lambda: decode_ms(240, 6.7),
    "sb141": lambda: decode_ms(1, 1.34),
    "sb142": lambda: decode_ms(8, 1.34),
    "sb143": lambda: decode_ms(16, 1.34),
    "sb144": lambda: decode_ms(32, 1.34),
    "sb145": lambda: decode_ms(64, 1.34),
    "sb148": lambda: float(Decoder(64, 4096, 16384, 32, 8, 256, 32128, gated=True, tied=True).parameters),
    "sb149": lambda: 128 * (3 / 4) ** 2,
    "sb150": lambda: bounds.load_seconds(V5E, 2 * 6e8, 4) * US,
    "sb151": lambda: 8 * one_way(on("v5e:8x1", "x", (8,)), "x") * HOP_SECONDS / 1e3,
    "sb153": lambda: LLAMA3_70B.cache_bytes(1, 1) / 1024,
    "sb158": lambda: bounds.min_devices(V5E, 112e9),
    "sb160": lambda: 32 / 0.017 / 8,
    "sb162": lambda: bounds.max_tensor_ways(28672, POD_V5P, "xy"),
    "sb164": lambda: float(bounds.smallest_slice(V5E, LLAMA70B_STATE["bfloat16"], V5E_SLICES)),
    "sb166": lambda: float(bounds.smallest_slice(V5E, LLAMA70B_STATE["int8"], V5E_SLICES)),
    "sb167": lambda: bounds.min_devices(V5E, LLAMA70B_STATE["int4"]),
    "sb168": lambda: float(bounds.smallest_slice(V5E, LLAMA70B_STATE["int4"], V5E_SLICES)),
    "sb172": lambda: qps(52, 8),
    "sb173": lambda: qps(67, 4),
    "sb174": lambda: filled_qps(32, 2 * 70e9, 2 * cache_of_a_sequence()),
    "sb175": lambda: filled_qps(16, 70e9, cache_of_a_sequence()),
    "sb179": lambda: bounds.compute_seconds(V5E, bounds.matmul_flops(64, 8192, 28672), 32) * US,
    "sb180": lambda: bounds.max_tensor_ways_decoding(28672, 64, 8),
    "sb181": lambda: bounds.compute_seconds(V5E, LLAMA3_70B.forward_flops(8192), 16, share=0.4),
    "sb182": lambda: 32 * (8192 + 4096) / 4096,
    "sb183": lambda: bounds.compute_seconds(V5E, LLAMA3_70B.forward_flops(8192), 16, share=0.4) * 32 / (0.019 * 512),
    "sb184": lambda: float(GPUS["h100-dgx"].lanes),
    "sb185": lambda: float(GPUS["b200-dgx"].lanes),
    "sb186": lambda: float(TPUS["v5p"].lanes),
    "sb187": lambda: fp32_lanes(1.59e9),
    "sb188": lambda: fp32_lanes(1.98e9),
    "sb190": lambda: bounds.critical_intensity(B200),
    "sb191": lambda: bounds.load_seconds(B200, bounds.matmul_bytes(64, 4096, 8192)) * US,
    "sb192": lambda: bounds.compute_seconds(B200, bounds.matmul_flops(512, 4096, 8192)) * US,
    "sb194": lambda: GPUS["b200-dgx"].clock / 1e9,
    "sb195": lambda: bounds.load_seconds(H100, 12 * 65536) * US,
    "sb196": lambda: preset("h100-dgx").device.launch_seconds * US,
    "sb198": lambda: bounds.load_seconds(preset("h100-dgx").device, 12 * 2**30) * MS,
    "sb201": lambda: 8 * one_way(HOST, "g") / 1e12,
    "sb203": lambda: (
        MS
        * float(CostModel(preset("h100-dgx:1")).on("g", (8,)).collective_seconds("all-gather", "g", 2 * 4096 * 65536))
    ),
    "sb204": lambda: 8 * GPUS["h100-dgx"].network_bytes_per_second / 1e9,
    "sb205": lambda: 256 * GPUS["h100-dgx"].network_bytes_per_second / 1e12,
    "sb206": lambda: 1024 * GPUS["h100-dgx"].network_bytes_per_second / 1e12,
    "sb207": lambda: 2 * 1024 * 16384 / bounds.network_bytes_per_second(HOST, "g") * US,
    "sb208": lambda: float(HOST.bandwidth_seconds("all-gather", "g", 2 * 1024 * 16384)) * US,
    "sb210": lambda: (
        float(HOST.bandwidth_seconds("all-to-all", "g", 1e12)) * 4 / 8 / (7 / 8),
        1e12 * 4 / 8 / one_way(HOST, "g"),
    ),
    "sb211": lambda: GPUS["h100-dgx"].ring_bytes_per_second / 1e9,
    "sb212": lambda: measured("all-reduce", 2 * 8192 * 3584),
    "sb213": sharp_gain,
    "sb214": lambda: 1e12 / float(HOST.bandwidth_seconds("all-gather", "g", 1e12)) / 1e9,
    "sb217": lambda: gather_across(8),
    "sb218": lambda: gather_across(16),
    "sb222": reduce_at_the_spine,
    "sb224": lambda: 8e12 / float(on("h100-dgx:2", "hg", (2, 8)).bandwidth_seconds("all-gather", "h", 1e12)) / 1e9,
    "sb225": lambda: bounds.min_tokens_per_device(HOST, "g"),
    "sb228": lambda: 16000 * network_alpha(),
    "sb229": lambda: H100.rate("bfloat16") / 300e9,
    "sb231": lambda: network_alpha() * 128 / 4,
    "sb233": lambda: bounds.max_tensor_ways_across(28000, 8, network_alpha()),
    "sb235": lambda: bounds.link_intensity(on("b200-dgx:1", "g", (8,)), "g"),
    "sb238": lambda: bounds.training_days(H100, LLAMA3_FLOPS, 4096, 0.45),
    "sb241": lambda: 4e6 / 4096,
    "sb244": lambda: 384 * 4096 / 768,
    "sb246": lambda: network_alpha() / 2,
    "sb247": lambda: network_alpha() / 8,
    "sb248": lambda: 4096.0 * 15360,
    "sb249": exchange_ratio,
}
