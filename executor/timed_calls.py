"""What calls of programs tell of a device: what calling takes, cold memory, and classes of elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodel import Device
from costmodel.calls import CallCost
from costmodel.compute import cold_seconds, matmul_seconds
from costmodel.device import ELEMENT_CLASSES
from costmodel.memory import MemorySample
from costmodel.waits import Waits
from executor import probes
from executor.freed_memory import fetched_from_bytes
from executor.probe_sizes import ProbeSizes
from executor.probes import CallProbe


@dataclass(frozen=True)
class TimedCalls:
    """The probes that are calls, the seconds of each, and the device and its like as far as known without them."""

    sizes: ProbeSizes
    probes: Mapping[str, CallProbe]
    seconds: Mapping[str, float]
    bare: Device
    waits: Waits | None
    device_count: int

    def device(self) -> Device:
        """With the cost of calls, of cold memory and of classes of elements."""
        known = replace(self.bare, cold_memory_curve=self.cold_memory(), cold_write_factor=self.cold_write_factor())
        rows, inner, columns, window = probes.convolution_sizes(self.sizes)
        product = float(matmul_seconds(known, "float32", rows, inner, columns, window=window))
        products = {"patch": probes.STREAMED * product}
        each = {n: self.each(n, known, products.get(n, 0.0)) for n in ELEMENT_CLASSES if n in self.probes}
        return replace(
            known,
            element_seconds=dict(known.element_seconds) | each,
            call=self.cost,
            round_seconds=self.net("rounds") / probes.ROUNDS,
        )

    @property
    def cost(self) -> CallCost:
        seconds, more = self.seconds, probes.MANY_ARRAYS - 1
        argument = max(0.0, seconds["arguments"] - seconds["call"]) / more
        result = max(0.0, seconds["results"] - seconds["arguments"]) / more
        return CallCost(
            call_seconds=max(0.0, seconds["call"] - argument - result),
            argument_seconds=argument,
            result_seconds=result,
            fetch_seconds_per_byte=max(0.0, seconds["fresh"] - seconds["reused"]) / self.sizes.fresh_bytes,
            fetch_from_bytes=fetched_from_bytes(),
        )

    def net(self, name: str) -> float:
        """Seconds that a device computes in a call; of what is lost in the noise of calling it, a hundredth."""
        arrays, seconds = self.probes[name].arrays, self.seconds[name]
        taken = max(0.01 * seconds, seconds - self.cost.seconds(arrays, arrays, ()))
        return taken if self.waits is None else self.waits.computed(self.device_count, taken)

    def cold_memory(self) -> tuple[MemorySample, ...]:
        """Where nothing else was timed, at the rate of the memory behind the caches."""
        if not self.sizes.cold_bytes:
            return self.bare.memory_curve[-1:]
        return memory_curve({nbytes: self.net(probes.cold(nbytes)) for nbytes in self.sizes.cold_bytes})

    def cold_write_factor(self) -> float:
        """By an array written elsewhere, against one twice as large that is written in its place: as much is cold."""
        if not self.sizes.cold_bytes:
            return 1.0
        in_place, elsewhere = self.net(probes.cold(2 * self.sizes.written_bytes)), self.net(probes.ELSEWHERE)
        return max(0.0, 2.0 * elsewhere / in_place - 1.0)

    def each(self, name: str, device: Device, product: float) -> float:
        """Seconds of one element beside its way through memory, or beside a product and what that fetches."""
        probe = self.probes[name]
        if product:
            beside = product + float(cold_seconds(device, probe.cold_bytes, cold_written=probe.cold_written))
        else:
            beside = float(device.memory_seconds(probe.moved_bytes, probe.cold_bytes, cold_written=probe.cold_written))
        return max(0.0, self.net(name) - beside) / probe.elements


def memory_curve(samples: Mapping[int, float]) -> tuple[MemorySample, ...]:
    """By the seconds that so many bytes took; more take no less, whatever the noise says."""
    seconds = np.maximum.accumulate(list(samples.values()))
    return tuple(MemorySample(float(nbytes), float(taken)) for nbytes, taken in zip(samples, seconds, strict=True))
