"""`make bench-copied`: what it takes to copy a donated argument lest it be written over too early.

A step of some layers, each on its own: rows are multiplied by weights, and the weights are updated. If the update takes
part in nothing that the product made, XLA's CPU compiler copies the weights before, for nothing but order would have
the product read them first. If it does, nothing is copied; all else is alike.
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
COLUMNS = 1024
KIB = (1024, 4096)
LAYERS = (1, 3, 6)
ROWS = (2, 32)
TURNS = 40
ABOUT = f"""## Copying arguments

`make bench-copied`: a step of so many layers on each of eight CPU devices, rows of activations by donated weights of
{COLUMNS:,} columns, which are updated. Milliseconds of a copy of one layer's weights: what the step in which weights
are copied takes more than the one that copies none, by the median of {TURNS} turns, divided by the layers; predicted
is what the default profile says."""
"""What stands above the table in docs/results.md."""


def stepping(copied: bool) -> Callable[..., Any]:
    """A step of rows and weights; the update waits for the product where nothing is to be copied."""

    def fn(rows: jax.Array, *weights: jax.Array) -> Any:
        made = [jnp.einsum("dij,djk->dik", rows, each) for each in weights]
        waits = [0.1 if copied else 0.1 * one[:, :1, :1] for one in made]
        return tuple(0.9 * each + more for each, more in zip(weights, waits, strict=True)), made

    return fn


class Case:
    """One program, planned with a layer's weights on each device, and compiled."""

    def __init__(self, kib: int, layers: int, rows: int, copied: bool):
        devices = int(DEVICES)
        inner = kib * 256 // COLUMNS
        args = [jnp.full((devices, rows, inner), 1e-3), *(jnp.full((devices, inner, COLUMNS), 0.1),) * layers]
        mesh, over = arguments.device_mesh(arguments.shape(DEVICES)), PartitionSpec("x")
        donated = tuple(range(1, layers + 1))
        planned = plan(stepping(copied), args, mesh, in_specs=over, out_specs=over, donate_argnums=donated)
        self.predicted, self.fn = planned.prediction.step_seconds, planned.jit()
        self.rows, *self.weights = planned.place(*args)
        self.taken: list[float] = []
        self.call()

    def call(self) -> float:
        begun = time.perf_counter()
        self.weights, _ = jax.block_until_ready(self.fn(self.rows, *self.weights))
        return time.perf_counter() - begun


def main() -> None:
    """Times steps with copies and without, and keeps the table in docs/results.md."""
    offer_devices(DEVICES)
    kinds = [(kib, layers, rows) for kib in KIB for layers in LAYERS for rows in ROWS]
    makers = [partial(Case, *kind, copied) for kind in kinds for copied in (True, False)]
    cases = called_in_turns(makers, TURNS, before=1)
    records = []
    for (kib, layers, rows), copying, other in zip(kinds, cases[::2], cases[1::2], strict=True):
        measured = 1e3 * (np.median(copying.taken) - np.median(other.taken)) / layers
        predicted = 1e3 * (copying.predicted - other.predicted) / layers
        told = {"KiB": kib, "layers": layers, "rows": rows}
        records.append(told | {"measured_ms": measured, "predicted_ms": predicted, "ratio": predicted / measured})
    frame = pd.DataFrame(records)
    show_and_keep("bench-copied", "copying arguments", ABOUT, frame)


if __name__ == "__main__":
    typer.run(main)
