"""Times the probes of `executor.probes`: each compiled once for all devices, then timed as often as is wanted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike
from scipy.stats import trim_mean

from executor.probe_sizes import probe_sizes
from executor.probes import Arrays, CallProbe, LoopProbe

# A probe's long loop takes so long at least, and so many times what its short loop takes: errors of the clock,
# of waking threads and of the short loop's time are lost in it.
LOOP_SECONDS = 0.01
LOOP_RATIO = 3
LOOP_GUESSES = 3  # What a short loop tells of a small operation is mostly noise.
LONGEST_LOOP = 2000
CALLS, CALL_SECONDS, MOST_CALLS = 5, 0.02, 40
"""Calls of a `CallProbe` in a row, of which the median counts: so many at least, and until so much time has passed."""

Probe = LoopProbe | CallProbe
Timed = Callable[[], float]
"""Runs something once and returns the seconds that it took; of a loop, those of one repetition."""


def typical_seconds(samples: ArrayLike) -> float:
    """The mean without the fastest and the slowest tenth.

    A shared host runs at two speeds, each for some tenth of a second (24 and 34 ms for the same call): the median of
    short calls falls on one side or the other, long ones take the mean of both.

    >>> typical_seconds([24.0, 34.0] * 4 + [20.0, 500.0])
    29.0
    """
    return float(trim_mean(samples, 0.1))


def compiled(probe: Probe, devices: Sequence[jax.Device]) -> Callable[[], Timed]:
    """The probe compiled for all devices, which does not run it yet; called, it sees how often to run it each time."""
    match probe:
        case LoopProbe():
            return _loop(probe, devices)
        case CallProbe():
            return _call(probe, devices)


def _loop(probe: LoopProbe, devices: Sequence[jax.Device]) -> Callable[[], Timed]:
    """By loops of one round and of many; the arrays are made anew each time."""
    steps = max(1, probe_sizes(devices[0].platform).repeated // probe.repetitions)
    mesh = Mesh(np.array(devices).reshape(-1, probe.group_size), ("groups", "group"))
    split = PartitionSpec(("groups", "group"))

    def full() -> Arrays:
        return tuple(_mixed(shape, probe.dtype) for shape in probe.shapes)

    def repeat(count: jax.Array, arrays: Arrays) -> Arrays:
        return lax.fori_loop(0, count, lambda _, arrays: one_round(arrays), arrays)

    def one_round(arrays: Arrays) -> Arrays:
        for _ in range(steps - 1):
            arrays = lax.optimization_barrier(probe.step(*arrays))  # else steps would be fused
        return probe.step(*arrays)

    make = jax.jit(jax.shard_map(full, mesh=mesh, in_specs=(), out_specs=split, check_vma=False)).lower().compile()
    on_each = jax.shard_map(repeat, mesh=mesh, in_specs=(PartitionSpec(), split), out_specs=split, check_vma=False)
    looped = repeat if probe.partitioned else on_each
    loop = jax.jit(looped, out_shardings=NamedSharding(mesh, split), donate_argnums=1)
    run = loop.lower(np.int32(1), make.out_info).compile()

    def per_round(length: int) -> tuple[float, float]:
        """Seconds of one round alone, and of one among so many."""
        arrays, taken = jax.block_until_ready(make()), []
        for count in (1, length):
            start = time.perf_counter()
            arrays = jax.block_until_ready(run(np.int32(count), arrays))
            taken.append(time.perf_counter() - start)
        difference = (taken[1] - taken[0]) / (length - 1)
        # Where noise leaves no difference between the loops, the long one's mean stands in.
        return taken[0], difference if difference > 0 else taken[1] / length

    def settled() -> Timed:
        per_round(2)
        length = probe.rounds
        for _ in range(LOOP_GUESSES):
            short, repeated = per_round(length)
            guess = int(np.clip(max(LOOP_SECONDS, LOOP_RATIO * short) / repeated, probe.rounds, LONGEST_LOOP))
            if guess == length:
                break
            length = guess
        return lambda: per_round(length)[1] / (steps * probe.repetitions)

    return settled


def _mixed(shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Numbers around one, of all sorts of bits: a GPU slows down when it would draw too much power, not over ones."""
    places = lax.iota("uint32", math.prod(shape)).reshape(shape)
    return (0.5 + (places * np.uint32(2654435761) >> 8) / 2**24).astype(dtype)  # Knuth's multiplicative hash


def _call(probe: CallProbe, devices: Sequence[jax.Device]) -> Callable[[], Timed]:
    """By calls in a row; results go in again unless the arrays are kept."""
    split = NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec("device"))
    shape = (len(devices) * probe.shape[0], *probe.shape[1:])
    fn = jax.shard_map(probe.fn, mesh=split.mesh, in_specs=split.spec, out_specs=split.spec, check_vma=False)
    struct = jax.ShapeDtypeStruct(shape, "float32", sharding=split)
    run = jax.jit(fn, donate_argnums=() if probe.kept else 0).lower([struct] * probe.arrays).compile()
    arrays: list[jax.Array] = []

    def seconds() -> float:
        nonlocal arrays
        start = time.perf_counter()
        results = jax.block_until_ready(run(arrays))
        taken = time.perf_counter() - start
        arrays = arrays if probe.kept else results
        return taken

    def settled() -> Timed:
        fresh = jnp.full(shape, 0.5, "float32")
        arrays.extend(jax.device_put(fresh + index, split) for index in range(probe.arrays))
        seconds()
        count = int(np.clip(CALL_SECONDS / seconds(), CALLS, MOST_CALLS))
        return lambda: float(np.median([seconds() for _ in range(count)]))

    return settled
