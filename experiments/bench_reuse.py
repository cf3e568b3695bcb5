"""`make bench-reuse`: what touching an array again takes, by how much lies between and by whether devices have met.

A program that goes through some arrays again and again, one at a time: each is read and written in its place, and a
number that comes of it goes into the next, so that no two of them are one kernel. After every visit, after every fourth
or never that number is a mean over all devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import typer
from jax.sharding import PartitionSpec

from experiments import arguments
from experiments.cases import offer_devices
from experiments.results import show_and_keep
from experiments.turns import called_in_turns
from planner import plan

DEVICES = "8"
KIB = (64, 256, 1024, 4096)
ARRAYS = (1, 4, 16)
MOST_KIB = 2**14
"""Of all arrays on a device."""
EVERY = (0, 4, 1)
"""After how many visits the devices meet; 0 is never."""
ONCE, AGAIN = 1, 6
"""How often a program goes through all arrays. The first time they come from the call before."""
TURNS = 40
ABOUT = f"""## Touching an array again

`make bench-reuse`: eight CPU devices go through so many arrays of so many KiB each, {AGAIN} times in a call and once,
and meet after every so many visits. Microseconds of a visit after the first round, by what {AGAIN - ONCE} rounds take
more at the median of {TURNS} turns of all calls; predicted is what the default profile says."""
"""What stands above the table in docs/results.md."""


def visiting(rounds: int, every: int) -> Callable[..., Any]:
    def fn(number: jax.Array, *arrays: jax.Array) -> Any:
        found = list(arrays)
        for visit in range(rounds * len(found)):
            place = visit % len(found)
            found[place] = number * found[place] + 0.5 * found[place] * found[place]
            few = found[place][:, :64], found[place][:, 64:128]
            number = jnp.einsum("dj,dj->d", *few)[:, None] * 1e-3 + 0.1
            if every and visit % every == every - 1:
                number = jnp.broadcast_to(number.mean(0, keepdims=True), number.shape)
        return (number, *found)

    return fn


class Case:
    """One program, planned with its arrays' rows one on each device, and compiled."""

    def __init__(self, count: int, kib: int, every: int, rounds: int):
        devices = int(DEVICES)
        args = [jnp.full((devices, 1), 0.5), *(jnp.full((devices, kib * 256), 0.1) for _ in range(count))]
        mesh, rows = arguments.device_mesh(arguments.shape(DEVICES)), PartitionSpec("x")
        argnums = tuple(range(count + 1))
        planned = plan(visiting(rounds, every), args, mesh, in_specs=rows, out_specs=rows, donate_argnums=argnums)
        self.predicted, self.fn = planned.prediction.step_seconds, planned.jit()
        self.arrays = planned.place(*args)
        self.taken: list[float] = []
        self.call()

    def call(self) -> float:
        begun = time.perf_counter()
        self.arrays = jax.block_until_ready(self.fn(*self.arrays))
        return time.perf_counter() - begun


def main() -> None:
    """Times visits to arrays, and keeps the table in docs/results.md."""
    offer_devices(DEVICES)
    kinds = [(n, kib, every) for kib in KIB for n in ARRAYS for every in EVERY if n * kib <= MOST_KIB]
    makers = [partial(Case, *kind, rounds) for kind in kinds for rounds in (ONCE, AGAIN)]
    cases = called_in_turns(makers, TURNS)
    records = []
    for (count, kib, every), once, again in zip(kinds, cases[::2], cases[1::2], strict=True):
        visits = 1e-6 * (AGAIN - ONCE) * count
        measured = (np.median(again.taken) - np.median(once.taken)) / visits
        predicted = (again.predicted - once.predicted) / visits
        told = {"KiB": kib, "arrays": count, "meeting after": every or "never"}
        records.append(told | {"measured_us": measured, "predicted_us": predicted, "ratio": predicted / measured})
    frame = pd.DataFrame(records)
    show_and_keep("bench-reuse", "touching an array again", ABOUT, frame)


if __name__ == "__main__":
    typer.run(main)
