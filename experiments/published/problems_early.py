"""Answers to the chapters "Roofline", "TPUs", "Sharded matrices", "Transformers" and "Training"."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from costmodel import CostModel, Decoder, MeshCost, bounds, preset
from costmodel.tpus import PCIE_BYTES_PER_SECOND, TPUS

V5E, V5P, V4, V6E, H100 = (preset(name, specified=True).device for name in ("v5e", "v5p", "v4", "v6e", "h100-dgx"))
MS, US = 1e3, 1e6


def on(name: str, axes: str, sizes: tuple[int, ...]) -> MeshCost:
    """A machine as specified, under a mesh whose axes are single letters."""
    return CostModel(preset(name, specified=True)).on(tuple(axes), sizes)


POD_V5P = on("v5p:16x16x16", "xyz", (16, 16, 16))
CUBE_V4 = on("v4:4x4x4", "xyz", (4, 4, 4))
SQUARE_V5E = on("v5e:4x4", "xy", (4, 4))
RING_V5E = on("v5e:16x16", "xy", (16, 16))
ALPHA = bounds.link_intensity(POD_V5P, "x")
"""FLOPs a byte over one axis of v5p, 2,550 in the book."""
LLAMA3_70B = Decoder(80, 8192, 28672, 64, 8, 128, 128256, gated=True)
LLAMA3_FLOPS = LLAMA3_70B.training_flops(15e12)
LLAMA2_13B = Decoder(40, 5120, 13824, 40, 40, 128, 32000, gated=True)
PODS = {name: preset(name, specified=True).device for name in TPUS}


def all_gather_v4(axes: str) -> float:
    """Seconds of bandwidth of gathering bf16[1024, 4096] over axes of a 4×4×4 of v4, a byte for a byte."""
    return 2 * 1024 * 4096 / bounds.network_bytes_per_second(CUBE_V4, axes)


def one_way(cost: MeshCost, axis: str) -> float:
    """Bytes per second of one link in one direction."""
    return 1e15 / float(cost.bandwidth_seconds("collective-permute", axis, 1e15))


def hop_seconds(cost: MeshCost, axis: str) -> float:
    """Of one message to the next chip."""
    return cost.latency_seconds("collective-permute", axis)


def multi_axis_all_gather() -> tuple[float, float]:
    """Latency of half of each ring, and the bandwidth of all of them; the book takes the larger, we the sum."""
    volume = 1e13
    ours = float(RING_V5E.collective_seconds("all-gather", "xy", volume))
    ring = bounds.network_bytes_per_second(RING_V5E, "x")
    return ours, max(hop_seconds(RING_V5E, "x") * (16 + 16) / 2, volume / (2 * ring))


def all_reduce_formula() -> tuple[float, float]:
    ours = float(RING_V5E.bandwidth_seconds("all-reduce", "xy", 1e12))
    return ours, 2 * 1e12 / bounds.network_bytes_per_second(RING_V5E, "xy")


def fsdp_bytes(gathers: bool, fsdp: int, tensor: int) -> tuple[float, float]:
    return bounds.layer_bytes(1e6, 8192, 32768, fsdp, tensor, gathers)


def layer_formula(kind: str) -> tuple[float, float]:
    """Bytes per layer, ours and the table's, at B = 10⁶, D = 8192, F = 32768."""
    b, d, f, x, y = 1e6, 8192.0, 32768.0, 16, 4
    match kind:
        case "data":
            return fsdp_bytes(False, 1, 1)[1], 8 * d * f
        case "fsdp":
            return sum(fsdp_bytes(True, x, 1)), 4 * d * f + 8 * d * f
        case _:
            published = (4 * b * d / x + 4 * d * f / y) + (8 * b * d / x + 8 * d * f / y)
            return sum(fsdp_bytes(True, x, y)), published


def reduced_matmul_ways() -> tuple[float, float]:
    """A product split over its inner dimension of D must be reduced: 2 B F bytes twice for 2 B D F / X FLOPs."""
    inner = 32768.0
    ours = bounds.max_tensor_ways(inner, POD_V5P, "x") / 2
    return ours, inner / 5100


def two_chips_over_one_link() -> float:
    """Each sends half-sized sums, 2 B F bytes, one way, for B D F FLOPs."""
    return 2 * V5E.rate("bfloat16") / one_way(on("v5e:2x1", "x", (2,)), "x")


CASES: Mapping[str, Callable[[], float | str | tuple[float, float]]] = {
    "sb001": lambda: bounds.critical_intensity(V5E),
    "sb003": lambda: bounds.compute_seconds(V6E, 1e12) * MS,
    "sb004": two_chips_over_one_link,
    "sb006": lambda: bounds.matmul_flops(1, 1e9, 1) / bounds.matmul_bytes(1, 1e9, 1),
    "sb007": lambda: bounds.critical_intensity(V5E, "int8"),
    "sb010": lambda: bounds.critical_batch(V5E, weight_bytes=1),
    "sb013": lambda: bounds.critical_batch(H100),
    "sb014": lambda: bounds.load_seconds(V4, 200e9 * 2, 32) * MS,
    "sb016": lambda: float(TPUS["v5e"].pod_chips * TPUS["v5e"].tensor_cores),
    "sb017": lambda: TPUS["v5e"].pod_chips * V5E.rate("bfloat16"),
    "sb018": lambda: TPUS["v5e"].pod_chips * V5E.memory_bytes / 1e12,
    "sb019": lambda: float(TPUS["v5p"].pod_hosts),
    "sb020": lambda: float(TPUS["v5p"].pod_chips * TPUS["v5p"].tensor_cores),
    "sb021": lambda: TPUS["v5p"].pod_chips * V5P.rate("bfloat16"),
    "sb026": lambda: SQUARE_V5E.latency_seconds("broadcast", "xy") * US,
    "sb028": lambda: (
        US * (2 * 8 * 128 * 8192 / (2 * one_way(SQUARE_V5E, "x")) + SQUARE_V5E.latency_seconds("broadcast", "xy"))
    ),
    "sb029": lambda: 8e9 / 8 / PCIE_BYTES_PER_SECOND * MS,
    "sb030": lambda: 15e9 / bounds.network_bytes_per_second(on("v5e:2x2", "xy", (2, 2)), "xy") * MS,
    "sb031": lambda: bounds.load_seconds(V5E, 16e9) * MS,
    "sb032": lambda: bounds.compute_seconds(V5E, bounds.matmul_flops(8, 131072, 131072)) * MS,
    "sb035": lambda: bounds.matmul_bytes(128, 1, 2048, 2) - 2 * (128 + 2048),
    "sb040": lambda: CostModel(preset("v5e:4x4")).on("xy", (4, 4)).latency_seconds("all-gather", "x") * US,
    "sb041": lambda: one_way(SQUARE_V5E, "x") * hop_seconds(SQUARE_V5E, "x"),
    "sb043": all_reduce_formula,
    "sb045": multi_axis_all_gather,
    "sb046": lambda: float(math.prod((4, 8, 2)) / 4),
    "sb048": lambda: all_gather_v4("xy") * US,
    "sb051": lambda: all_gather_v4("xz") / 4 * US,
    "sb054": reduced_matmul_ways,
    "sb055": lambda: 2 * ALPHA,
    "sb056": lambda: bounds.matmul_bytes(0, 8192, 32768) / 1e6,
    "sb058": lambda: (bounds.matmul_bytes(0, 512, 2048) / bounds.matmul_bytes(0, 512, 128), 2048 / 128),
    "sb059": lambda: (
        one_way(RING_V5E, "x") * float(on("v5e:8x1", "x", (8,)).bandwidth_seconds("all-gather", "x", 1e6)),
        1e6 * (1 - 1 / 8),
    ),
    "sb062": lambda: Decoder(64, 8192, 32768, 64, 64, 128, 32000).saved_bytes(4e6, 20) / 1e12,
    "sb064": lambda: Decoder(64, 8192, 32768, 64, 64, 128, 32000).cache_bytes(8192, 1) / 2**30,
    "sb065": lambda: float(Decoder(64, 4096, 16384, 32, 32, 128, 32000, gated=True).parameters),
    "sb066": lambda: _attention_share(),
    "sb067": lambda: Decoder(64, 4096, 16384, 32, 32, 128, 32000).cache_bytes(1, 1) / 1024,
    "sb068": lambda: (bounds.matmul_flops(1024 / 4, 4096 / 8, 16384), 2 * 1024 * 4096 * 16384 / (4 * 8)),
    "sb069": lambda: (bounds.matmul_flops(4 * 5, 1, 6 * 7 * 8, 2 * 3), 2.0 * 2 * 3 * 4 * 5 * 6 * 7 * 8),
    "sb071": lambda: bounds.critical_intensity(V5E),
    "sb073": lambda: (
        Decoder(1, 4096, 16384, 32, 32, 128, 0).forward_flops(8 * 2048, 2048)
        - Decoder(1, 4096, 16384, 32, 32, 128, 0).forward_flops(8 * 2048),
        4.0 * 8 * 2048**2 * 32 * 128,
    ),
    "sb075": lambda: bounds.critical_batch(V5E, weight_bytes=1, experts=256, chosen=8),
    "sb078": lambda: bounds.min_tokens_per_device(POD_V5P, "xyz"),
    "sb079": lambda: bounds.min_tokens_per_device(POD_V5P, "xyz") * TPUS["v5p"].pod_chips,
    "sb080": lambda: V5P.memory_bytes / 10,
    "sb082": lambda: 16e6 / bounds.min_tokens_per_device(POD_V5P, "xyz"),
    "sb083": lambda: bounds.training_days(V5P, LLAMA3_FLOPS, 18823, 0.5),
    "sb085": lambda: bounds.max_tensor_ways(28672, POD_V5P, "x"),
    "sb088": lambda: bounds.optimal_fsdp_ways(64, 48000, 32768),
    "sb091": lambda: V5P.rate("bfloat16") / TPUS["v5p"].dcn_bytes_per_second,
    "sb092": lambda: bounds.min_tokens_per_device(on("v5p:2x2x1*64", "sx", (64, 4)), "s"),
    "sb093": lambda: 2e6 / bounds.min_tokens_per_device(POD_V5P, "xyz"),
    "sb096": lambda: layer_formula("data"),
    "sb097": lambda: layer_formula("fsdp"),
    "sb099": lambda: layer_formula("both"),
    "sb101": lambda: float(LLAMA2_13B.attention_parameters),
    "sb102": lambda: float(LLAMA2_13B.vocabulary_parameters),
    "sb108": lambda: 4096 * bounds.min_tokens_per_device(POD_V5P, "xyz"),
    "sb110": lambda: bounds.min_tokens_per_device_mixed(ALPHA, 13824),
    "sb112": lambda: bounds.compute_seconds(V5P, 6 * 3e6 * 13e9, 4096, share=0.4) * MS,
}


def _attention_share() -> float:
    decoder = Decoder(64, 4096, 16384, 32, 32, 128, 32000, gated=True)
    return decoder.attention_parameters / (decoder.attention_parameters + decoder.mlp_parameters)
