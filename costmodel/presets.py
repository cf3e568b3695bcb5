"""Machines by name, and by what JAX says of its devices."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import replace
from importlib import resources

from costmodel.errors import UnknownPreset
from costmodel.hardware import GPUS, TPUS, Gpu, Shape, Tpu
from costmodel.model import CostModel
from costmodel.topology import Device, Dim, Link, Topology

GPUS_PER_HOST = 8
CPU_DEVICES = 8
CPU_PROFILE = "cpu-2core.json"
# Not measured: ten-gigabit Ethernet, shared by the CPU devices of a host.
ETHERNET = Link("network", latency_seconds=100e-6, bytes_per_second=1.25e9)

# What `jax.Device.device_kind` says, or on GPUs contains, and our name for it. JAX has called some TPUs by
# two names.
_TPU_KINDS = {tpu.device_kind: name for name, tpu in TPUS.items()} | {
    "TPU v5e": "v5e",
    "TPU v5p": "v5p",
    "TPU v6e": "v6e",
}
_GPU_MARKS = {"A100": "a100-dgx", "H100": "h100-dgx", "H200": "h200-dgx"}


def preset_names() -> tuple[str, ...]:
    return ("cpu", *GPUS, *TPUS)


def preset(name: str) -> Topology:
    """The machine of that name.

    "cpu:8" eight CPU devices on this host · "h100-dgx:4" four hosts of eight (also a100-dgx, h200-dgx) ·
    "v5e:16x16" a TPU slice by its shape (also v4, v5p, v6e). A bare name is eight CPU devices, or one host.

    >>> preset("h100-dgx:4").dim_sizes
    (4, 8)

    Raises:
        UnknownPreset: no such machine, or a size that it does not come in.
    """
    machine, colon, size = name.partition(":")
    if machine not in preset_names():
        near = difflib.get_close_matches(machine, preset_names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownPreset(f"unknown preset {name!r}; known are {', '.join(preset_names())}{hint}")
    if colon and not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size):
        raise UnknownPreset(f"preset {name!r}: {size!r} is no size; write {_example(machine)!r}")
    shape = tuple(int(part) for part in size.split("x")) if colon else ()
    if machine in TPUS:
        return _tpu_slice(name, TPUS[machine], shape or TPUS[machine].host_shape)
    if len(shape) > 1:
        raise UnknownPreset(f"preset {name!r}: {machine} takes one number; write {_example(machine)!r}")
    if machine == "cpu":
        return cpu_topology(shape[0] if shape else CPU_DEVICES)
    return _gpu_hosts(name, GPUS[machine], shape[0] if shape else 1, GPUS_PER_HOST)


def device_preset(device_kind: str, device_count: int, hosts: int = 1) -> Topology | None:
    """The machine behind `jax.devices()`: `device_kind` as JAX spells it; None if we have no figures for it.

    A TPU slice is taken to be as near to a cube (v5e, v6e: a square) as its count allows.
    """
    if device_kind.lower() == "cpu":
        return cpu_topology(device_count, hosts)
    if name := _TPU_KINDS.get(device_kind):
        shape = _near_cube(device_count, len(TPUS[name].host_shape))
        topology = _tpu_slice(f"{name}:{'x'.join(map(str, shape))}", TPUS[name], shape)
    elif name := next((name for mark, name in _GPU_MARKS.items() if mark in device_kind), None):
        topology = _gpu_hosts(f"{name}:{hosts}", GPUS[name], hosts, device_count // hosts)
    else:
        return None
    return replace(topology, device=replace(topology.device, kind=device_kind))


def cpu_topology(device_count: int, hosts: int = 1) -> Topology:
    """CPU devices that share each host's cores, from the profile measured on a machine of two cores.

    Rates scale with this host's cores and are shared out; start-up times scale with the devices that wait for
    a core.
    """
    text = resources.files("costmodel").joinpath("profiles", CPU_PROFILE).read_text()
    model = CostModel.from_json(text, CPU_PROFILE)
    measured, measured_cores = model.topology, float(model.measured_on["cores"])
    cores, per_host = os.cpu_count() or 1, device_count // hosts
    speed = cores / measured_cores
    crowd = per_host / measured.device_count / speed
    wait = max(1.0, per_host / cores) / max(1.0, measured.device_count / measured_cores)
    memory = host_memory_bytes(measured.device.memory_bytes * measured.device_count)
    bus = measured.dims[0].link
    bus = replace(
        bus, bytes_per_second=bus.bytes_per_second * speed, latency_seconds=bus.latency_seconds * wait
    )
    network = replace(ETHERNET, bytes_per_second=ETHERNET.bytes_per_second / per_host)
    return Topology(
        name=f"cpu:{device_count}",
        device=_shared(measured.device, crowd, wait, memory / per_host),
        dims=_dims(("host", hosts, network), ("device", per_host, bus)),
        backend="cpu",
        measured=tuple(fit.scaled(wait, speed) for fit in measured.measured),
    )


def host_memory_bytes(fallback: float) -> float:
    """This host's physical memory, or the fallback where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return fallback


def _shared(device: Device, crowd: float, wait: float, memory_bytes: float) -> Device:
    """The device where `crowd` times as many share the rates, and `wait` times as many wait for a core."""
    special = device.transcendentals_per_second
    return replace(
        device,
        flops_per_second={dtype: rate / crowd for dtype, rate in device.flops_per_second.items()},
        memory_bytes=memory_bytes,
        memory_bytes_per_second=device.memory_bytes_per_second / crowd,
        launch_seconds=device.launch_seconds * wait,
        transcendentals_per_second=None if special is None else special / crowd,
        matmul={
            dtype: replace(
                shape,
                launch_seconds=shape.launch_seconds * wait,
                bytes_per_second=shape.bytes_per_second / crowd,
            )
            for dtype, shape in device.matmul.items()
        },
    )


def _gpu_hosts(name: str, gpu: Gpu, hosts: int, per_host: int) -> Topology:
    return Topology(
        name, gpu.device, _dims(("host", hosts, gpu.network), ("gpu", per_host, gpu.nvlink)), "gpu"
    )


def _tpu_slice(name: str, tpu: Tpu, shape: Shape) -> Topology:
    if len(shape) != len(tpu.host_shape):
        example = "x".join(map(str, tpu.host_shape))
        raise UnknownPreset(
            f"preset {name!r}: its slices have {len(tpu.host_shape)} dimensions, as in {example!r}"
        )
    return Topology(name, tpu.device, _dims(*zip("xyz", shape, tpu.links(shape), strict=False)), "tpu")


def _dims(*dims: tuple[str, int, Link]) -> tuple[Dim, ...]:
    return tuple(Dim(name, size, link) for name, size, link in dims if size > 1)


def _near_cube(count: int, dims: int) -> Shape:
    """The factorisation into `dims` sizes, each as near the root of what is left as it divides."""
    if dims == 1:
        return (count,)
    first = max(size for size in range(1, round(count ** (1 / dims)) + 1) if count % size == 0)
    return (first, *_near_cube(count // first, dims - 1))


def _example(machine: str) -> str:
    return f"{machine}:{'x'.join(map(str, TPUS[machine].host_shape))}" if machine in TPUS else f"{machine}:2"
