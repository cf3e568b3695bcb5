"""CPU devices, which share their host: from profiles measured on machines of two cores."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace
from pathlib import Path

from costmodel.model import measured_model
from costmodel.topology import Dim, Link, Topology

CPU_DEVICES = 8
CPU_PROFILES = {"Intel": "cpu-2core-intel.json", "AMD": "cpu-2core-amd.json"}
"""By maker; a processor of another maker is taken for the first one's."""
# Not measured: ten-gigabit Ethernet, shared by the CPU devices of a host.
ETHERNET = Link("network", latency_seconds=100e-6, bytes_per_second=1.25e9)


def cpu_topology(device_count: int, hosts: int = 1) -> Topology:
    """CPU devices that share each host's cores, from the profile measured on two cores of this host's maker.

    Rates scale with this host's cores and are shared out; start-up times scale with the devices that wait for
    a core.
    """
    model = measured_model(cpu_profile(processor()))
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
        waits=measured.waits if per_host > cores else None,
    )


def cpu_profile(processor: str) -> str:
    """The file of the profile for a processor of that name."""
    return next((file for maker, file in CPU_PROFILES.items() if maker in processor), CPU_PROFILES["Intel"])


def processor() -> str:
    """The name of this host's processor. Linux has it in a file; elsewhere the platform says what it can."""
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def host_memory_bytes(fallback: float) -> float:
    """This host's physical memory, or the fallback where the system does not tell."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return fallback
