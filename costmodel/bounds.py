"""What bounds what: closed formulas for how far a layout goes before communication or memory holds up arithmetic.

All take a machine (`preset(name, specified=True)` for its data sheet) and answer in tokens, devices or seconds. The
formulas are the scaling book's (jax-ml/scaling-book), chapter by chapter: "Roofline", "Training", "Inference", "GPUs".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodel.device import Device
from costmodel.model import MeshCost

DAY_SECONDS = 86400.0


def matmul_flops(rows: float, inner: float, columns: float, batch: float = 1.0) -> float:
    """Multiplications and additions of `batch` products of [rows, inner] and [inner, columns]."""
    return 2.0 * batch * rows * inner * columns


def matmul_bytes(
    rows: float, inner: float, columns: float, item_bytes: float = 2.0, weight_bytes: float | None = None
) -> float:
    """Bytes of both operands and the result; `weight_bytes` an element of [inner, columns] where that differs."""
    weights = inner * columns * (item_bytes if weight_bytes is None else weight_bytes)
    return (rows * inner + rows * columns) * item_bytes + weights


def critical_intensity(device: Device, dtype: str = "bfloat16") -> float:
    """FLOPs a byte from which on arithmetic, not memory, bounds: rate / bandwidth ("Roofline").

    >>> from costmodel import preset
    >>> round(critical_intensity(preset("v5e", specified=True).device))
    241
    """
    return device.rate(dtype) / device.memory_bytes_per_second


def critical_batch(
    device: Device, dtype: str = "bfloat16", weight_bytes: float = 2.0, experts: int = 1, chosen: int = 1
) -> float:
    """Tokens from which on loading weights does not bound a product with them ("Roofline", Q2; "Transformers", Q8).

    Each weight is loaded once and met by `batch * chosen / experts` tokens, two FLOPs each.
    """
    return critical_intensity(device, dtype) * weight_bytes / 2.0 * experts / chosen


def network_bytes_per_second(cost: MeshCost, axes: Sequence[str]) -> float:
    """What a device takes in at once in a large all-gather over the axes, from all neighbours and links ("Sharded
    matrices"); of a group across hosts, what a device's share of the hosts' network allows.

    >>> from costmodel import CostModel, preset
    >>> cost = CostModel(preset("v5p:16x16x16", specified=True)).on("xyz", (16, 16, 16))
    >>> network_bytes_per_second(cost, "xy") / 1e9
    360.0
    """
    large = 1e15
    size = math.prod(cost.axis_sizes[axis] for axis in axes)
    return large * (size - 1) / size / float(cost.bandwidth_seconds("all-gather", axes, large))


def link_intensity(cost: MeshCost, axes: Sequence[str], dtype: str = "bfloat16") -> float:
    """FLOPs a byte of communication over the axes: α = rate / bandwidth ("Training": 2,550 for one axis of v5p)."""
    return cost.device.rate(dtype) / network_bytes_per_second(cost, axes)


def min_tokens_per_device(
    cost: MeshCost, axes: Sequence[str], dtype: str = "bfloat16", experts: int = 1, chosen: int = 1
) -> float:
    """Tokens a device below which data parallelism or FSDP over the axes is bound by communication.

    Gathering 2 D F bytes of weights, or reducing their gradients, takes as long as 2 · tokens · D F FLOPs for
    tokens = α; a mixture gathers all experts for the FLOPs of the chosen ("Training", "GPUs").
    """
    return link_intensity(cost, axes, dtype) * experts / chosen


def max_tensor_ways(ffn: float, cost: MeshCost, axes: Sequence[str], dtype: str = "bfloat16") -> float:
    """How far tensor parallelism goes over the axes before it is bound by communication: F / α ("Training")."""
    return ffn / link_intensity(cost, axes, dtype)


def max_tensor_ways_across(ffn: float, per_host: int, intensity: float) -> float:
    """The same where the axis goes on across hosts: F > α (Y - per_host) ("GPUs"), α that of the network."""
    return ffn / intensity + per_host


def max_tensor_ways_decoding(ffn: float, batch: float, memory_to_link: float) -> float:
    """How far tensor parallelism goes when weights are loaded for few tokens: F / (B β), β the ratio of the memory's to
    the links' bandwidth ("Applied inference")."""
    return ffn / (batch * memory_to_link)


def optimal_fsdp_ways(devices: float, tokens: float, ffn: float, fsdp_axes: int = 2, tensor_axes: int = 1) -> float:
    """The FSDP group that communicates least, the rest of the devices being tensor parallel ("Training").

    X = √(tokens / F · M_X / M_Y · N), M the number of torus axes given to each.
    """
    return math.sqrt(tokens / ffn * fsdp_axes / tensor_axes * devices)


def min_tokens_per_device_mixed(intensity: float, ffn: float, fsdp_axes: int = 2, tensor_axes: int = 1) -> float:
    """Tokens a device below which FSDP with tensor parallelism is bound: 4 α² / (M_X M_Y F) ("Training")."""
    return 4.0 * intensity**2 / (fsdp_axes * tensor_axes * ffn)


def layer_bytes(
    tokens: float, width: float, ffn: float, fsdp: int = 1, tensor: int = 1, gathers_weights: bool = True
) -> tuple[float, float]:
    """Bytes that one MLP layer of two bfloat16 matrices moves a device, forward and backward ("Training", the table).

    Data parallelism (`gathers_weights=False`) reduces 8 D F of gradients backward; FSDP gathers 4 D F forward and
    again backward, where it also scatters gradients; tensor parallelism does the same with activations, 4 B D.

    Args:
        tokens: of the whole batch; an FSDP group of X leaves B / X to each tensor-parallel group.
        fsdp, tensor: the ways of each; 1 for none.
    """
    weights = 4.0 * width * ffn / tensor
    activations = 4.0 * tokens * width / fsdp if tensor > 1 else 0.0
    if not gathers_weights:
        return activations, 2 * weights + 2 * activations
    shared = weights if fsdp > 1 or tensor == 1 else 0.0
    return shared + activations, 2 * shared + 2 * activations


def load_seconds(device: Device, nbytes: float, devices: int = 1) -> float:
    """Seconds to read so many bytes, spread over the devices, from their memories."""
    return nbytes / devices / device.memory_bytes_per_second


def compute_seconds(
    device: Device, flops: float, devices: int = 1, dtype: str = "bfloat16", share: float = 1.0
) -> float:
    """Seconds of so many FLOPs spread over devices that reach a share of their rate (the model FLOPs' utilisation)."""
    return flops / devices / (device.rate(dtype) * share)


def training_days(device: Device, flops: float, devices: int, share: float, dtype: str = "bfloat16") -> float:
    """Days of so many FLOPs; arguments as in `compute_seconds`."""
    return compute_seconds(device, flops, devices, dtype, share) / DAY_SECONDS


def decode_seconds(
    device: Device,
    parameter_bytes: float,
    cache_bytes: float,
    batch: float,
    devices: int = 1,
    parameters: float = 0.0,
    dtype: str = "bfloat16",
) -> float:
    """Seconds of one token for each of `batch` sequences: their caches and the weights are loaded ("Inference").

    Args:
        cache_bytes: of one sequence's keys and values.
        parameters: where given, what is computed with them bounds too.
    """
    loaded = load_seconds(device, parameter_bytes, devices)
    computed = compute_seconds(device, 2.0 * parameters * batch, devices, dtype)
    return max(loaded, computed) + load_seconds(device, cache_bytes * batch, devices)


def min_devices(device: Device, nbytes: float) -> float:
    """How many devices' memories hold so many bytes; a fraction where they do not fill the last."""
    return nbytes / device.memory_bytes


def smallest_slice(device: Device, nbytes: float, sizes: Sequence[int]) -> int:
    """The smallest of the sizes that a machine comes in whose memories hold so many bytes.

    Raises:
        ValueError: none does.
    """
    wanted = min_devices(device, nbytes)
    for size in sorted(sizes):
        if size >= wanted:
            return size
    raise ValueError(f"{nbytes:g} bytes need {wanted:.1f} devices; the largest size is {max(sizes)}")


def bus_bytes_per_second(cost: MeshCost, kind: str, axes: Sequence[str], nbytes: float) -> float:
    """A collective's speed as nccl-tests give it: bytes over seconds, times what an ideal ring moves of each byte."""
    size = math.prod(cost.axis_sizes[axis] for axis in axes)
    passes = 2.0 if kind == "all-reduce" else 1.0
    moved = 1.0 if kind in ("broadcast", "collective-permute") else passes * (size - 1) / size
    return nbytes * moved / float(cost.collective_seconds(kind, axes, nbytes))
