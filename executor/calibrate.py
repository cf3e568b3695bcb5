"""Measures the devices at hand: products by shape, memory, classes of ops, launches, calls and every collective.

All devices work at the same time throughout, as they do when a plan runs: CPU devices share their host's cores and
memory. Probes take turns over several rounds; of each counts the mean without the extremes.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import groupby
from statistics import fmean

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from costmodel import KINDS, CostModel, Device, Dim, Link, Topology
from costmodel.cpus import host_memory_bytes, processor
from costmodel.curves import LEAST_SIZES, CollectiveCurve, Sample, collective_curves
from costmodel.gemm import MatmulFit, MatmulSample, fit_matmul
from costmodel.memory import MemorySample, moving_seconds
from costmodel.waits import Waits, measured_waits
from executor import probes
from executor.probe_sizes import probe_sizes
from executor.probes import LoopProbe
from executor.timed_calls import TimedCalls, memory_curve
from executor.timers import Probe, Timed, compiled, typical_seconds

COLLECTIVE_BYTES = tuple(2**power for power in (*range(10, 19, 2), 19, *range(20, 27, 2)))
"""Closer at half a MiB, where CPU devices' caches end: from 256 KiB to 1 MiB a gather takes seven times as long."""
ROUNDS = 5
ROUND_SECONDS, MOST_GOES = 0.4, 20
"""A short probe is timed for so long in a round, in some goes with others between: threads that have settled well, or
badly, stay so for the rest of a go."""

Products = Mapping[tuple[str, tuple[int, int, int], str], float]
"""Seconds by product, layer and type; see `probes.product_probe`."""
Timings = Mapping[tuple[str, int, int], float]
"""Seconds by kind of collective, group size and bytes; see `probes.collective_probe`."""
Progress = Callable[[int, int], None]


def calibrate(
    devices: Sequence[jax.Device] | Mesh,
    *,
    rounds: int = ROUNDS,
    collective_bytes: Sequence[int] = COLLECTIVE_BYTES,
    matrix_types: Sequence[str] = probes.MATRIX_TYPES,
    progress: Progress = lambda done, total: None,
) -> CostModel:
    """Measures the devices, in about twelve minutes for eight CPU devices on two cores, and fits a cost model to them.

    Args:
        devices: those of one host, joined alike: CPU devices, or GPUs on one switch.
        rounds: of timing each probe; see `executor.timers.typical_seconds` for what counts.
        collective_bytes: sizes to time collectives at, per device, of the larger side; three at least.
        matrix_types: the types in which products of matrices are timed; others count at the rate of the nearest.
        progress: called with the probes timed so far and their total.

    Returns:
        The model; `to_json()` makes it a profile.

    Raises:
        ValueError: devices that are joined otherwise (TPUs), no type of matrices, or too few sizes.
    """
    calibration = Calibration(devices, collective_bytes, matrix_types)
    total = (2 + rounds) * len(calibration)
    calibration.compile(lambda done: progress(done, total))
    for turn in range(rounds):
        calibration.time_round()
        progress((3 + turn) * len(calibration), total)
    return calibration.model()


class Calibration:
    """Compiled probes, timed in rounds at any time: between what else is timed, if the machine's speed drifts."""

    def __init__(
        self,
        devices: Sequence[jax.Device] | Mesh,
        collective_bytes: Sequence[int] = COLLECTIVE_BYTES,
        matrix_types: Sequence[str] = probes.MATRIX_TYPES,
    ):
        """Takes and raises what `calibrate` does."""
        self._devices = list(devices.devices.flat) if isinstance(devices, Mesh) else list(devices)
        first = self._devices[0]
        if first.platform not in ("cpu", "gpu"):
            raise ValueError(f"calibrate measures the CPUs or GPUs of one host, got {first.device_kind}: use a preset")
        if not matrix_types:
            raise ValueError("matrix_types names none; give one at least, such as 'float32'")
        if len(set(collective_bytes)) < LEAST_SIZES:
            raise ValueError(f"collective_bytes has fewer than {LEAST_SIZES} sizes: {tuple(collective_bytes)}")
        self._sizes = sizes = probe_sizes(first.platform)
        self._launch = probes.launch_probe(sizes)
        self._arrays = {nbytes: probes.memory_probe(nbytes) for nbytes in sizes.array_bytes}
        self._elements = probes.element_probes(sizes)
        self._products = {
            (product, layer, dtype): probes.product_probe(product, layer, dtype, sizes)
            for layer in sizes.layers
            for product in probes.PRODUCTS
            for dtype in matrix_types
        }
        self._collectives = {
            (kind, group_size, nbytes): probes.collective_probe(kind, group_size, nbytes, len(self._devices), sizes)
            for kind in KINDS
            for group_size in group_sizes(len(self._devices))
            for nbytes in collective_bytes
        }
        self._waits = {
            (products, group_size): probes.wait_probe(products, group_size)
            for index, products in enumerate(probes.WAITED_AFTER)
            for group_size in (1, *group_sizes(len(self._devices))[-1 if index else 0 :])
            if first.platform == "cpu" and len(self._devices) > 1
        }
        self._partings = {
            (group_size, alternate): probes.collective_probe(
                "all-gather", group_size, probes.PARTED_BYTES, len(self._devices), sizes, alternate
            )
            for group_size in group_sizes(len(self._devices))[:-1]
            for alternate in (True, False)
            if first.platform == "cpu"
        }
        self._met = {
            nbytes: probes.met_probe(nbytes, len(self._devices))
            for nbytes in (sizes.launched_bytes, *sizes.cold_bytes)
            if self._waits
        }
        self._calls = probes.call_probes(sizes)
        self._timed: list[Timed] = []
        self._goes: list[int] = []
        self._samples: list[list[float]] = [[] for _ in self._probes]

    def __len__(self) -> int:
        """How many probes there are."""
        return len(self._probes)

    @property
    def _probes(self) -> list[Probe]:
        apart = (self._arrays, self._elements, self._products, self._collectives)
        kinds = (*apart, self._waits, self._partings, self._met, self._calls)
        return [self._launch, *(probe for kind in kinds for probe in kind.values())]

    def compile(self, progress: Callable[[int], None] = lambda done: None) -> None:
        """Compiles the probes, then runs each; `progress` is called with how many steps, of two for each, are done."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiling = [pool.submit(compiled, probe, self._devices) for probe in self._probes]
            for done, _ in enumerate(as_completed(compiling)):
                progress(done)
        for done, probe in enumerate(compiling, len(self)):
            progress(done)
            once = probe.result()()
            start = time.perf_counter()
            once()  # which tells how long a go takes; what is compared go by go is too far apart here to count
            self._goes.append(int(np.clip(ROUND_SECONDS / (time.perf_counter() - start), 1, MOST_GOES)))
            self._timed.append(once)

    def time_round(self) -> None:
        """Times each compiled probe, short ones in goes; what is compared go by go, one right after the other."""
        waits = [f"after {products} products" for products, _ in self._waits]
        partings = [f"groups of {group_size}" for group_size, _ in self._partings]
        met = [f"met before {nbytes} bytes" for nbytes in self._met]
        before = range(len(self) - len(waits) - len(partings) - len(met) - len(self._calls))
        names = [*before, *waits, *partings, *met, *self._calls]
        groups = [list(numbers) for _, numbers in groupby(range(len(self)), key=names.__getitem__)]
        goes = [min(self._goes[number] for number in numbers) for numbers in groups]
        for go in range(MOST_GOES):
            for numbers, most in zip(groups, goes, strict=True):
                for number in numbers if go < most else ():
                    self._samples[number].append(self._timed[number]())

    @property
    def samples(self) -> tuple[tuple[float, ...], ...]:
        """Seconds of each probe in each round so far."""
        return tuple(map(tuple, self._samples))

    def add(self, samples: Sequence[Sequence[float]]) -> None:
        """Takes in rounds of the same probes in another process, as its `samples`."""
        for all_rounds, rounds in zip(self._samples, samples, strict=True):
            all_rounds += rounds

    def model(self) -> CostModel:
        """Fitted to what is typical of all rounds; see `executor.timers.typical_seconds`."""
        rounds = iter(self._samples)
        seconds = map(typical_seconds, rounds)
        launch = next(seconds)
        arrays = [next(seconds) for _ in self._arrays]
        elements = {name: next(seconds) - launch for name in self._elements}
        beside = launch if self._sizes.kernel_apart else 0.0
        products = {name: next(seconds) - beside for name in self._products}
        collectives = permuted_alike({name: next(seconds) for name in self._collectives})
        waited = {name: np.array(next(rounds)) for name in self._waits}
        partings = {name: np.array(next(rounds)) for name in self._partings}
        memory = memory_curve(
            {2 * nbytes: max(taken - launch, 0.1 * taken) for nbytes, taken in zip(self._arrays, arrays, strict=True)}
        )
        memory_rate = memory[-1].nbytes / memory[-1].seconds
        curves, transposed = _matmul_curves(products, memory_rate, self._devices[0].platform == "cpu")
        bare = Device(
            kind=self._devices[0].device_kind,
            flops_per_second={dtype: curve.flops_per_second for dtype, curve in curves.items()},
            memory_bytes=_memory_bytes(self._devices),
            memory_bytes_per_second=memory_rate,
            memory_curve=memory,
            launch_seconds=launch,
            matmul={dtype: curve.shape for dtype, curve in curves.items()},
            transposed_matmul={dtype: curve.shape for dtype, curve in transposed.items()},
        )
        measured = collective_curves(
            Sample(
                kind,
                group_size,
                nbytes * len(self._devices),
                _beside_kernel(bare, self._collectives[kind, group_size, nbytes], taken),
                _parting(kind, group_size, partings),
            )
            for (kind, group_size, nbytes), taken in collectives.items()
        )
        each = {name: _beside_memory(bare, probe, elements[name]) for name, probe in self._elements.items()}
        bare = replace(bare, element_seconds=each)
        waits = _waits(waited, measured, len(self._devices))
        met = {nbytes: next(seconds) for nbytes in self._met}
        bare = replace(bare, met_memory_curve=met_memory(met, bare, waits, len(self._devices)))
        calls = {name: next(seconds) for name in self._calls}
        device = TimedCalls(self._sizes, self._calls, calls, bare, waits, len(self._devices)).device()
        errors = {f"matmul {dtype} median error": curve.relative_error for dtype, curve in curves.items()}
        topology = replace(_topology(self._devices, device, measured), waits=waits)
        return CostModel(topology, measured_on=_conditions() | errors)


def group_sizes(device_count: int) -> list[int]:
    """What the axes of a mesh of so many devices can have."""
    return [size for size in range(2, device_count + 1) if device_count % size == 0]


def permuted_alike(timings: Timings) -> Timings:
    """The timings, of permutations the means over all group sizes: for one all devices meet, whoever sends to whom."""
    by_bytes: dict[int, list[float]] = {}
    for (kind, _, nbytes), seconds in timings.items():
        if kind == "collective-permute":
            by_bytes.setdefault(nbytes, []).append(seconds)
    return {
        (kind, size, nbytes): fmean(by_bytes[nbytes]) if kind == "collective-permute" else seconds
        for (kind, size, nbytes), seconds in timings.items()
    }


def met_memory(
    met: Mapping[int, float], device: Device, waits: Waits | None, device_count: int
) -> tuple[MemorySample, ...]:
    """By what a round takes more over an array than over next to nothing, less what devices wait more before they meet.

    Such an array is read and written. What is written was read just before, and is as in a loop where nobody meets.
    """
    if waits is None:
        return ()
    (_, meeting), *timed = met.items()
    samples = {}
    for nbytes, taken in timed:
        computed = float(device.memory_seconds(2.0 * nbytes))
        waited = waits.seconds(device_count, [(computed, device_count)], device_count)
        again = float(moving_seconds(device.memory_curve, nbytes, nbytes))
        samples[nbytes] = max(again, taken - meeting - waited - again)
    return memory_curve(samples)


def _beside_memory(device: Device, probe: LoopProbe, taken: float) -> float:
    """Seconds of an element, beside its way through memory; nothing takes less than that, whatever the noise says."""
    return max(0.0, taken - float(device.memory_seconds(probe.moved_bytes))) / probe.elements


def _beside_kernel(device: Device, probe: LoopProbe, taken: float) -> float:
    """Seconds of a collective beside the kernel that makes its operand, as others do in programs; half at least."""
    if not probe.moved_bytes:
        return taken
    return max(0.5 * taken, taken - device.launch_seconds - float(device.memory_seconds(probe.moved_bytes)))


def _matmul_curves(
    products: Products, memory_rate: float, on_cpu: bool
) -> tuple[dict[str, MatmulFit], dict[str, MatmulFit]]:
    """By type, those with a transposed left operand apart.

    On CPUs another library multiplies them. A GPU's matrix units want float32 with what is summed over innermost.
    """
    straight, transposed = {}, {}
    for dtype in dict.fromkeys(type_ for _, _, type_ in products):
        width = jnp.dtype(dtype).itemsize
        samples: dict[bool, list[MatmulSample]] = {False: [], True: []}
        for (product, layer, type_), taken in products.items():
            if type_ == dtype:
                m, k, n = probes.product_sizes(product, layer)
                lies_across = product == probes.TRANSPOSED
                samples[lies_across].append(
                    MatmulSample(m, k, n, 1.0, width * (m * k + k * n + m * n), taken, width * m if lies_across else 0)
                )
        curve = straight[dtype] = fit_matmul(samples[False], memory_rate, packed=on_cpu)
        rate = curve.flops_per_second
        apart = fit_matmul(samples[True], memory_rate, packed=on_cpu, flops_per_second=rate if on_cpu else None)
        transposed[dtype] = replace(apart, shape=replace(apart.shape, slowdown=rate / apart.flops_per_second))
    return straight, transposed


def _waits(
    rounds: Mapping[tuple[int, int], np.ndarray], curves: Sequence[CollectiveCurve], device_count: int
) -> Waits | None:
    """By the seconds of each round, in which the machine is as fast with waiting as without."""
    starts = {each.group_size: each.start_seconds for each in curves if each.kind == "all-reduce"}
    if not rounds or not starts:
        return None
    alone = {products: typical_seconds(taken) for (products, size), taken in rounds.items() if size == 1}
    waited = {
        (products, size): typical_seconds(taken - rounds[products, 1]) - starts[size]
        for (products, size), taken in rounds.items()
        if size > 1
    }
    return measured_waits(
        [alone[products] for products in probes.WAITED_AFTER],
        [waited[products, device_count] for products in probes.WAITED_AFTER],
        {size: waited[probes.WAITED_AFTER[0], size] for size in starts},
    )


def _parting(kind: str, group_size: int, rounds: Mapping[tuple[int, bool], np.ndarray]) -> float:
    """What groups that have come apart wait for each other, by the seconds of each round.

    By the means, as all else: groups that are the same each time have a core to themselves in up to half of the goes,
    and then take a third; a median falls on one side or the other.
    """
    if (group_size, True) not in rounds or kind in ("all-to-all", "collective-permute"):
        return 0.0
    changing, same = (typical_seconds(rounds[group_size, alternate]) for alternate in (True, False))
    return max(0.0, changing - same)


def _memory_bytes(devices: Sequence[jax.Device]) -> float:
    statistics = devices[0].memory_stats() or {}
    return float(statistics.get("bytes_limit", host_memory_bytes(fallback=2.0**34) / len(devices)))


def _topology(devices: Sequence[jax.Device], device: Device, measured: tuple[CollectiveCurve, ...]) -> Topology:
    """One dimension; its link, for groups reaching beyond it, has the bandwidth of the widest all-gather."""
    on_cpu = devices[0].platform == "cpu"
    dims: tuple[Dim, ...] = ()
    if gathers := [each for each in measured if (each.kind, each.group_size) == ("all-gather", len(devices))]:
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
        measured=measured,
    )


def _conditions() -> dict[str, str | int | float]:
    today = datetime.date.today().isoformat()
    return {"processor": processor(), "cores": os.cpu_count() or 1, "jax": jax.__version__, "date": today}
