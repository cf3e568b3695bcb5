"""Measures the devices at hand: matrix multiplication, memory, special functions, launches and every
collective.

All devices work at the same time throughout, as they do when a plan runs: CPU devices share their host's
cores and memory. Each probe repeats its operation in a loop on the device and is timed at two loop lengths;
the difference leaves out dispatch and the first touch of fresh memory. Probes take turns over several rounds
and the fastest of each counts, so that other programs on the machine disturb little.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from costmodel import KINDS, CostModel, Device, Dim, Link, Topology
from costmodel.cpus import host_memory_bytes
from costmodel.fit import CollectiveFit, Sample, fit_collectives
from costmodel.gemm import MatmulShape

COLLECTIVE_BYTES = tuple(2**power for power in (12, 14, 16, 18, 20, 22, 24))
MATRIX_SIZE = 512
# Not measured here, since nothing but a skinny product would have to be in its loop. CPU: one core multiplied
# 1024 x 1024 x n at 63, 82, 92 and 110 GFLOP/s for n = 8, 16, 32 and 128. GPU: an order of magnitude.
HALF_RATE_SIZE = {"cpu": 6.0, "gpu": 85.0}
ALL_TO_ALL_ROWS = 64
SHORT_RUN, LONG_RUN = 4, 1024
STREAM_BYTES = 2**24
ROUNDS = 5
# A probe's long loop takes so long at least, and so many times what its short loop takes: errors of the clock,
# of waking threads and of the short loop's time are lost in it, and all probes take under a minute.
LOOP_SECONDS = 0.01
LOOP_RATIO = 3
LONGEST_LOOP = 2000

Step = Callable[[jax.Array], jax.Array]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Probe:
    """An operation to time: `step` maps a device's array of this shape, type and first value to one like it.

    Collectives join groups of `group_size` devices along the mesh axis "group".
    """

    step: Step
    shape: tuple[int, ...]
    dtype: str = "float32"
    value: float = 1.0
    group_size: int = 1


def calibrate(
    devices: Sequence[jax.Device] | Mesh,
    *,
    rounds: int = ROUNDS,
    collective_bytes: Sequence[int] = COLLECTIVE_BYTES,
    progress: Progress = lambda done, total: None,
) -> CostModel:
    """Measures the devices, in under a minute for eight CPU devices, and fits a cost model to them.

    Args:
        devices: those of one host, joined alike: CPU devices, or GPUs on one switch.
        rounds: how often each probe is timed; the fastest counts.
        collective_bytes: sizes to time collectives at, per device, of the larger side; three at least.
        progress: called with the probes timed so far and their total.

    Returns:
        The model; `to_json()` makes it a profile.

    Raises:
        ValueError: devices that are joined otherwise (TPUs).
    """
    devices = list(devices.devices.flat) if isinstance(devices, Mesh) else list(devices)
    if devices[0].platform not in ("cpu", "gpu"):
        raise ValueError(f"calibrate measures the CPUs or GPUs of one host, got {devices[0].device_kind}: use a preset")
    computing = _compute_probes()
    collectives = {
        (kind, group_size, nbytes): _collective_probe(kind, group_size, nbytes)
        for kind in KINDS
        for group_size in _group_sizes(len(devices))
        for nbytes in collective_bytes
    }
    seconds = _time_all([*computing.values(), *collectives.values()], devices, rounds, progress)
    device = _device(devices, dict(zip(computing, seconds, strict=False)))
    fits = fit_collectives(
        Sample(kind, group_size, nbytes * len(devices), taken)
        for (kind, group_size, nbytes), taken in zip(collectives, seconds[len(computing) :], strict=True)
    )
    return CostModel(_topology(devices, device, fits), measured_on=_conditions())


def _compute_probes() -> dict[str, Probe]:
    """Operations within one device; each keeps its values finite and normal however often it is repeated."""
    matrix, stream = (MATRIX_SIZE, MATRIX_SIZE), (STREAM_BYTES // 4,)
    return {
        "float32": Probe(lambda x: x @ x, matrix, value=1 / MATRIX_SIZE),
        "bfloat16": Probe(lambda x: x @ x, matrix, "bfloat16", 1 / MATRIX_SIZE),
        "memory": Probe(lambda x: 0.5 * x + 0.5, stream),
        "exp": Probe(lambda x: jnp.exp(-x), stream),
        "launch": Probe(lambda x: x @ x, (8, 8), value=1 / 8),
        **{f"sum over {run}": _sum_probe(run) for run in (SHORT_RUN, LONG_RUN)},
    }


def _sum_probe(run: int) -> Probe:
    """A sum over all but the minor dimension, of size `run`; one row changes, so that it is done each time."""
    return Probe(lambda x: x.at[0].set(0.5 * jnp.sum(x, axis=0)), (STREAM_BYTES // 4 // run, run), value=0.0)


def _collective_probe(kind: str, group_size: int, nbytes: int) -> Probe:
    """The collective, followed by what little brings its result back to the shape of its operand."""

    def all_gather(x: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(lax.all_gather(x, "group", tiled=True), _opaque_zero(x), len(x))

    def reduce_scatter(x: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(x, lax.psum_scatter(x, "group", tiled=True), _opaque_zero(x), 0)

    def all_to_all(x: jax.Array) -> jax.Array:
        """From one dimension to another, as resharding does it: with the rearranging of what is sent."""
        rows = x.reshape(ALL_TO_ALL_ROWS, -1)
        return lax.all_to_all(rows, "group", 1, 0, tiled=True).reshape(x.shape)

    ring = [(place, (place + 1) % group_size) for place in range(group_size)]
    steps: Mapping[str, Step] = {
        "all-reduce": lambda x: lax.psum(x, "group"),
        "all-gather": all_gather,
        "reduce-scatter": reduce_scatter,
        "all-to-all": all_to_all,
        "collective-permute": lambda x: lax.ppermute(x, "group", ring),
    }
    operand_bytes = nbytes // group_size if kind == "all-gather" else nbytes
    return Probe(steps[kind], (operand_bytes // 4,), group_size=group_size)


def _opaque_zero(x: jax.Array) -> jax.Array:
    """Zero, which the compiler cannot know, so that it keeps the whole of a collective."""
    return (x[0] < 0).astype(jnp.int32)


def _group_sizes(device_count: int) -> list[int]:
    """2, 4, 8, … as far as they divide the devices, and all devices."""
    powers = [2**power for power in range(1, device_count.bit_length())]
    return sorted({size for size in (*powers, device_count) if size > 1 and device_count % size == 0})


def _time_all(probes: Sequence[Probe], devices: Sequence[jax.Device], rounds: int, progress: Progress) -> list[float]:
    """Seconds of one repetition of each probe."""
    loops = []
    for done, probe in enumerate(probes):
        progress(done, 2 * len(probes))
        loops.append(_compiled_loop(probe, devices))
    lengths = [_loop_length(loop) for loop in loops]
    shortest = np.full((len(probes), 2), np.inf)
    for turn in range(rounds):
        for index, (loop, length) in enumerate(zip(loops, lengths, strict=True)):
            shortest[index] = np.minimum(shortest[index], (loop(1), loop(length)))
        progress(len(probes) + len(probes) * (turn + 1) // rounds, 2 * len(probes))
    return [_per_step(short, long, length) for (short, long), length in zip(shortest, lengths, strict=True)]


def _compiled_loop(probe: Probe, devices: Sequence[jax.Device]) -> Callable[[int], float]:
    """A function that runs so many repetitions on all devices and returns the seconds taken."""
    mesh = Mesh(np.array(devices).reshape(-1, probe.group_size), ("groups", "group"))
    split, whole = PartitionSpec(("groups", "group")), PartitionSpec()

    def repeat(count: jax.Array, value: jax.Array) -> jax.Array:
        x = jnp.full(probe.shape, value, probe.dtype)
        return lax.fori_loop(0, count, lambda _, x: probe.step(x), x).reshape(-1)[:1]

    run = jax.jit(jax.shard_map(repeat, mesh=mesh, in_specs=(whole, whole), out_specs=split, check_vma=False))
    run(1, probe.value).block_until_ready()

    def seconds(count: int) -> float:
        start = time.perf_counter()
        run(count, probe.value).block_until_ready()
        return time.perf_counter() - start

    return seconds


def _loop_length(loop: Callable[[int], float]) -> int:
    """How many repetitions the long loop takes, four at least."""
    short_seconds, trial = loop(1), 4
    wanted_seconds = max(LOOP_SECONDS, LOOP_RATIO * short_seconds)
    return int(np.clip(wanted_seconds / _per_step(short_seconds, loop(trial), trial), trial, LONGEST_LOOP))


def _per_step(short_seconds: float, long_seconds: float, length: int) -> float:
    """Where noise leaves no difference between the loops, the long one's mean stands in."""
    difference = (long_seconds - short_seconds) / (length - 1)
    return float(difference if difference > 0 else long_seconds / length)


def _device(devices: Sequence[jax.Device], seconds: Mapping[str, float]) -> Device:
    memory_rate, half = 2 * STREAM_BYTES / seconds["memory"], HALF_RATE_SIZE[devices[0].platform]
    shape = MatmulShape(seconds["launch"], memory_rate, half_rate_size=half, half_rate_inner=half)
    return Device(
        kind=devices[0].device_kind,
        flops_per_second={dtype: 2 * MATRIX_SIZE**3 / seconds[dtype] for dtype in ("float32", "bfloat16")},
        memory_bytes=_memory_bytes(devices),
        memory_bytes_per_second=memory_rate,
        launch_seconds=seconds["launch"],
        transcendentals_per_second=STREAM_BYTES // 4 / seconds["exp"],
        vector_elements=max(1.0, SHORT_RUN * seconds[f"sum over {SHORT_RUN}"] / seconds[f"sum over {LONG_RUN}"]),
        matmul=dict.fromkeys(("float32", "bfloat16"), shape),
    )


def _memory_bytes(devices: Sequence[jax.Device]) -> float:
    statistics = devices[0].memory_stats() or {}
    return float(statistics.get("bytes_limit", host_memory_bytes(fallback=2.0**34) / len(devices)))


def _topology(devices: Sequence[jax.Device], device: Device, fits: tuple[CollectiveFit, ...]) -> Topology:
    """One dimension; its link, for groups reaching beyond it, has the bandwidth of the widest all-gather."""
    on_cpu = devices[0].platform == "cpu"
    dims: tuple[Dim, ...] = ()
    if gathers := [fit for fit in fits if fit.kind == "all-gather" and fit.group_size == len(devices)]:
        moved = COLLECTIVE_BYTES[-1] * len(devices)
        bus_rate = moved * (1 - 1 / len(devices)) / float(gathers[0].seconds(moved))
        rate = bus_rate if on_cpu else bus_rate / len(devices)
        link = Link("bus" if on_cpu else "switch", gathers[0].start_seconds / len(devices), rate)
        dims = (Dim("device", len(devices), link),)
    return Topology(
        f"{device.kind}:{len(devices)}".lower(),
        device,
        dims,
        backend="cpu" if on_cpu else "gpu",
        measured=fits,
    )


def _conditions() -> dict[str, str | int | float]:
    today = datetime.date.today().isoformat()
    return {"cores": os.cpu_count() or 1, "jax": jax.__version__, "date": today}
