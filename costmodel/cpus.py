"""CPU devices, which share their host: from the profile measured on a machine of two cores."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import resources

from costmodel.model import CostModel
from costmodel.topology import Dim, Link, Topology

CPU_DEVICES = 8
CPU_PROFILE = "cpu-2core.json"
# Not measured: ten-gigabit Ethernet, shared by the CPU devices of a host.
ETHERNET = Link("network", latency_seconds=100e-6, bytes_per_second=1.25e9)


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
    bus = replace(bus, bytes_per_second=bus.bytes_per_second * speed, latency_seconds=bus.latency_seconds * wait)
    network = replace(ETHERNET, bytes_per_second=ETHERNET.bytes_per_second / per_host)
    return Topology(
        name=f"cpu:{device_count}",
        device=replace(measured.device.scaled(1 / crowd, wait), memory_bytes=memory / per_host),
        dims=tuple(
            Dim(name, size, link)
            for name, size, link in (("host", hosts, network), ("device", per_host, bus))
            if size > 1
        ),
        backend="cpu",
        measured=tuple(fit.scaled(wait, speed) for fit in measured.measured),
        skew_seconds=measured.skew_seconds if per_host > cores else 0.0,
    )


def host_memory_bytes(fallback: float) -> float:
    """This host's physical memory, or the fallback where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return fallback
