"""`make bench-loops`: what loops over several arrays take, and what the model says.

A program of nothing but memory: in each round every array is read and written once, in its place. What a round comes
back to has been touched as long ago as the others are large, and before the first round what the call brings is read,
and copied to where the loop may write, unless its memory is given away.
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
from jax import lax
from jax.sharding import PartitionSpec

from experiments import arguments
from experiments.cases import offer_devices
from experiments.results import show_and_keep
from experiments.turns import called_in_turns
from planner import plan

DEVICES = "8"
KIB = (64, 256, 1024)
ARRAYS = (1, 2, 4, 8)
TIMES = (5, 100, 400)
"""Rounds of the loop."""
TURNS = 7
ABOUT = """## Loops over several arrays

`make bench-loops`: on each of eight CPU devices so many arrays of so many KiB go round a loop so many times, each
halved and moved by a half, their memory given to the call or kept. Milliseconds of a call, medians of rounds in which
all calls take turns; predicted is what the default profile says."""
"""What stands above the table in docs/results.md."""


def looped(rounds: int) -> Callable[..., Any]:
    def fn(*arrays: jax.Array) -> Any:
        return lax.fori_loop(0, rounds, lambda _, arrays: tuple(0.5 * array + 0.5 for array in arrays), arrays)

    return fn


class Case:
    """One loop, planned with every array whole on every device, and compiled."""

    def __init__(self, count: int, kib: int, rounds: int, donated: bool):
        args = [jnp.full(kib * 256, float(place)) for place in range(count)]
        argnums = tuple(range(count)) if donated else ()
        mesh, whole = arguments.device_mesh(arguments.shape(DEVICES)), PartitionSpec()
        planned = plan(looped(rounds), args, mesh, in_specs=whole, out_specs=whole, donate_argnums=argnums)
        planned = planned.alternatives["replicated"]
        self.told = {"arrays": count, "KiB": kib, "rounds": rounds, "memory": "given" if donated else "kept"}
        self.predicted, self.fn, self.donated = planned.prediction.step_seconds, planned.jit(), donated
        self.arrays = [planned.place(*args)] if count == 1 else planned.place(*args)
        self.taken: list[float] = []
        self.call()

    def call(self) -> float:
        begun = time.perf_counter()
        results = jax.block_until_ready(self.fn(*self.arrays))
        taken = time.perf_counter() - begun
        if self.donated:
            self.arrays = results
        return taken


def main() -> None:
    """Times loops over arrays, and keeps the table in docs/results.md."""
    offer_devices(DEVICES)
    kinds = [(k, n, r, d) for r in TIMES for n in KIB for k in ARRAYS for d in (False, True)]
    cases = called_in_turns([partial(Case, *kind) for kind in kinds], TURNS, before=1, calls=3)
    records = [
        case.told | {"measured_ms": np.median(case.taken) * 1e3, "predicted_ms": case.predicted * 1e3} for case in cases
    ]
    frame = pd.DataFrame(records)
    frame["ratio"] = frame.predicted_ms / frame.measured_ms
    show_and_keep("bench-loops", "loops over several arrays", ABOUT, frame)


if __name__ == "__main__":
    typer.run(main)
