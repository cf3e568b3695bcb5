"""Machines by name, and by what JAX says of its devices."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from costmodel.cpus import CPU_DEVICES, cpu_topology
from costmodel.errors import UnknownPreset
from costmodel.gpus import GPUS, Gpu
from costmodel.model import measured_model
from costmodel.topology import Topology
from costmodel.tpus import TPUS, Shape, Tpu

# What `jax.Device.device_kind` says, or on GPUs contains, and our name for it. JAX has called some TPUs by
# two names.
_TPU_KINDS = {tpu.device_kind: name for name, tpu in TPUS.items()} | {
    "TPU v5e": "v5e",
    "TPU v5p": "v5p",
    "TPU v6e": "v6e",
    "TPU v7x": "v7x",
}
_GPU_MARKS = {
    "V100-SXM3": "v100-dgx2",
    "V100": "v100-p3",
    "A100-SXM4-40GB": "a100-40gb-dgx",
    "A100": "a100-dgx",
    "H100": "h100-dgx",
    "H200": "h200-dgx",
    "GB200": "gb200-nvl72",
    "GB300": "gb300-nvl72",
    "B200": "b200-dgx",
    "B300": "b300-dgx",
}
_ALIASES = {"7x": "v7x", "tpu7x": "v7x", "v5lite": "v5e", "v6lite": "v6e"}
_SIZES = r"[1-9]\d*(x[1-9]\d*)*"


def preset_names() -> tuple[str, ...]:
    return ("cpu", *GPUS, *TPUS)


def preset(name: str, *, specified: bool = False) -> Topology:
    """The machine of that name.

    "cpu:8" eight CPU devices on this host · "h100-dgx:4" four hosts of eight, "h100-dgx:4x2" two GPUs on each
    (also v100-p3, v100-dgx2, a100-dgx, a100-40gb-dgx, h200-dgx, b200-dgx, b300-dgx) · "gb200-nvl72:2x64" two racks
    with 64 GPUs of each (also gb300-nvl72) · "v5e:16x16" a TPU slice by its shape in chips, "v5e:16x16*2" two of them
    joined by the data-centre network (also v4, v5p, v6e, v7x). A bare name is eight CPU devices, one host or one rack.

    Args:
        specified: with the makers' figures instead of measured ones, to compute bounds by: no launches and no
            start-up, full rates, on networks only what must cross.

    >>> preset("h100-dgx:4").dim_sizes
    (4, 8)
    >>> preset("v5e:16x16*2").dim_sizes
    (2, 16, 16)

    Raises:
        UnknownPreset: no such machine, or a size that it does not come in.
    """
    machine, colon, size = name.partition(":")
    machine = _ALIASES.get(machine, machine)
    if machine not in preset_names():
        near = difflib.get_close_matches(machine, preset_names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownPreset(f"unknown preset {name!r}; known are {', '.join(preset_names())}{hint}")
    size, star, slices = size.partition("*")
    if (colon and not re.fullmatch(_SIZES, size)) or (star and not re.fullmatch(r"[1-9]\d*", slices)):
        wrong = size if not re.fullmatch(_SIZES, size) else slices
        raise UnknownPreset(f"preset {name!r}: {wrong!r} is no size; write {_example(machine)!r}")
    shape = tuple(int(part) for part in size.split("x")) if colon else ()
    if machine in TPUS:
        tpu = TPUS[machine]
        return _tpu_slices(name, tpu, shape or tpu.host_shape, int(slices) if star else 1, specified)
    if star:
        raise UnknownPreset(f"preset {name!r}: only TPUs come in slices; write {_example(machine)!r}")
    if machine == "cpu":
        if len(shape) > 1:
            raise UnknownPreset(f"preset {name!r}: cpu takes one number; write {_example(machine)!r}")
        return cpu_topology(shape[0] if shape else CPU_DEVICES)
    return _gpu_hosts(name, GPUS[machine], shape, specified)


def device_preset(device_kind: str, device_count: int, hosts: int = 1) -> Topology | None:
    """The machine behind `jax.devices()`: `device_kind` as JAX spells it; None if we have no figures for it.

    A TPU slice is taken to be as near to a cube (v5e, v6e: a square) as its count allows; GPUs that come in racks to
    fill as few of them as they can, evenly.
    """
    if device_kind.lower() == "cpu":
        return cpu_topology(device_count, hosts)
    if name := _TPU_KINDS.get(device_kind):
        tpu = TPUS[name]
        shape = _near_cube(device_count // tpu.cores or 1, len(tpu.host_shape))
        topology = _tpu_slices(f"{name}:{'x'.join(map(str, shape))}", tpu, shape, 1, False)
    elif name := next((name for mark, name in _GPU_MARKS.items() if mark in device_kind), None):
        gpu = GPUS[name]
        if gpu.per_host > 16:  # a rack holds several of what JAX calls hosts
            hosts = next(n for n in range(1, device_count + 1) if device_count % n == 0 and device_count // n <= 72)
        topology = _gpu_hosts(f"{name}:{hosts}", gpu, (hosts, device_count // hosts), False)
    else:
        return None
    return replace(topology, device=replace(topology.device, kind=device_kind))


def _gpu_hosts(name: str, gpu: Gpu, shape: Shape, specified: bool) -> Topology:
    hosts, per_host = (*shape, *(1, gpu.per_host)[len(shape) :])[:2] if len(shape) < 3 else (0, 0)
    halves = gpu.wired and per_host > 4 and per_host % 4
    if not hosts or per_host > gpu.per_host or halves:
        example = name.partition(":")[0]
        raise UnknownPreset(
            f"preset {name!r}: write the number of hosts, or hosts x GPUs on each (at most {gpu.per_host}), as in "
            f"'{example}:2' and '{example}:2x4'"
        )
    topology = Topology(name, gpu.device(specified), gpu.dims(hosts, per_host, specified), "gpu")
    if specified:
        return topology
    if gpu.profile is not None:
        topology = _with_curves(topology, gpu.profile)
    return topology if gpu.calibrated is None else _as_calibrated(topology, gpu.calibrated)


def _as_calibrated(topology: Topology, profile: str) -> Topology:
    """With one such device's figures, but for its memory, of which not all was free, and types that nobody timed."""
    known, measured = topology.device, measured_model(profile).topology.device
    device = replace(
        measured,
        kind=known.kind,
        memory_bytes=known.memory_bytes,
        flops_per_second={**known.flops_per_second, **measured.flops_per_second},
        matmul={**known.matmul, **measured.matmul},
    )
    return replace(topology, device=device)


def _with_curves(topology: Topology, profile: str) -> Topology:
    """With the curves of matrix multiplication and of collectives inside a host that were measured on one like it."""
    measured = measured_model(profile).topology
    device = replace(topology.device, matmul={**topology.device.matmul, **measured.device.matmul})
    dims = tuple(
        replace(dim, measured=measured.dims[-1].measured) if dim.name == measured.dims[-1].name else dim
        for dim in topology.dims
    )
    return replace(topology, device=device, dims=dims)


def _tpu_slices(name: str, tpu: Tpu, shape: Shape, slices: int, specified: bool) -> Topology:
    if len(shape) != len(tpu.host_shape):
        example = "x".join(map(str, tpu.host_shape))
        raise UnknownPreset(f"preset {name!r}: its slices have {len(tpu.host_shape)} dimensions, as in {example!r}")
    return Topology(name, tpu.device(specified), tpu.dims(shape, slices, specified), "tpu")


def _near_cube(count: int, dims: int) -> Shape:
    """The factorisation into `dims` sizes, each as near the root of what is left as it divides."""
    if dims == 1:
        return (count,)
    first = max(size for size in range(1, round(count ** (1 / dims)) + 1) if count % size == 0)
    return (first, *_near_cube(count // first, dims - 1))


def _example(machine: str) -> str:
    return f"{machine}:{'x'.join(map(str, TPUS[machine].host_shape))}" if machine in TPUS else f"{machine}:2"
