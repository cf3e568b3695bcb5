"""`make bench-waits`: what collectives add to computing where several groups meet in turn, and what the model says.

Devices that share cores wait for each other, and how long depends on whom they have waited for before. A sequence is
what one device does in a round of a loop: for each word some products, then an all-reduce of a row over the mesh axes
that its letters name; a word with an exclamation mark follows the one before at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import typer
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from costmodel import CostModel, preset
from costmodel.model import MeshCost
from experiments.cases import offer_devices
from experiments.results import show_and_keep
from experiments.terminal import bars
from planner.buffers import Timeline
from planner.predict import waited_seconds
from planner.program import Collective, Instruction, Program
from planner.traits import LIBRARY

AXES = {"x": 2, "y": 2, "z": 2}
ALL = "xyz"
SEQUENCES = (
    ALL, "x", "yz", "x z", "x yz", "yz xy", "xyz x", "xyz yz", "xy yz xyz z",
    "z xy!", "xy z!", "x y! z!", "yz x!", "x yz!", "xyz x!", "yz xy!",
)  # fmt: skip
PRODUCTS = (1, 3, 8)
ROWS, WIDTH = 64, 256
"""Of a product: on each device so many rows times a square."""
ROUNDS, ROUND_SECONDS = 21, 0.1
ABOUT = """## Waiting for other groups

`make bench-waits`: eight CPU devices as 2 x 2 x 2 compute, and reduce a row of 1 KiB over some mesh axes, in turn as
the sequence says; an exclamation mark says that nothing is computed before. Microseconds are what that adds to
computing alone, for each time that something is computed, medians of rounds in which all sequences take turns; parts
are of what reducing over all axes adds. Predicted is what the default profile says: starting the collectives, and
waiting."""
"""What stands above the table in docs/results.md."""

Loop = Callable[[jax.Array, jax.Array, int], jax.Array]


def loop(sequence: str, products: int) -> Loop:
    """The compiled loop of a sequence, by its arrays and how often; an empty word computes only."""
    split = PartitionSpec(tuple(AXES))
    mesh = jax.make_mesh(tuple(AXES.values()), tuple(AXES), axis_types=(AxisType.Auto,) * len(AXES))

    def turn(_: int, rows: jax.Array, weights: jax.Array) -> jax.Array:
        for word in sequence.split(" "):
            axes = tuple(word.rstrip("!"))
            for _ in range(0 if word.endswith("!") else products):
                rows = rows @ weights / WIDTH
            if axes:
                rows = rows.at[0].set(lax.psum(rows[0], axes) / 2 ** len(axes))
        return rows

    def repeat(rows: jax.Array, weights: jax.Array, times: int) -> jax.Array:
        return lax.fori_loop(0, times, lambda count, rows: turn(count, rows, weights), rows)

    specs = (split, PartitionSpec(), PartitionSpec())
    return jax.jit(jax.shard_map(repeat, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False))


def blocks(sequence: str) -> int:
    """How often a sequence computes."""
    return sum(not word.endswith("!") for word in sequence.split(" "))


def measured(products: int, progress: Callable[[], None]) -> tuple[float, Mapping[str, float]]:
    """Seconds of computing, and what each sequence adds to that."""
    loops = {sequence: loop(sequence, products) for sequence in ("", *SEQUENCES)}
    rows, weights = jnp.ones((8 * ROWS, WIDTH)), jnp.ones((WIDTH, WIDTH))

    def seconds(sequence: str, times: int) -> float:
        begun = time.perf_counter()
        loops[sequence](rows, weights, times).block_until_ready()
        return (time.perf_counter() - begun) / times / blocks(sequence)

    for sequence in loops:
        seconds(sequence, 1)
    computing = seconds("", 10)
    random = np.random.default_rng(0)
    samples: dict[str, list[float]] = {sequence: [] for sequence in loops}
    for _ in range(ROUNDS):
        for sequence in random.permutation(list(loops)):
            samples[sequence].append(seconds(sequence, max(2, round(ROUND_SECONDS / computing / blocks(sequence)))))
        progress()
    alone = np.array(samples.pop(""))
    return float(np.median(alone)), {name: float(np.median(np.array(taken) - alone)) for name, taken in samples.items()}


def predicted(sequence: str, computed: float, cost: MeshCost) -> float:
    """What the model adds to computing so long, for each time, in the midst of a long program."""
    few, many = (_seconds(sequence.split() * times, computed, cost) for times in (100, 500))
    return (many - few) / 400 / blocks(sequence)


def _seconds(words: Sequence[str], computed: float, cost: MeshCost) -> float:
    lines, started = [], 0.0
    for word in words:
        axes = tuple(word.rstrip("!"))
        starting = float(cost.collective_seconds("all-reduce", axes, 4.0 * WIDTH))
        collective = Collective("all-reduce", 4.0 * WIDTH, axes, 1.0, starting, "")
        seconds = 0.0 if word.endswith("!") else computed
        lines.append(Instruction("products", LIBRARY, (), (), "", 1.0, seconds=seconds))
        lines.append(Instruction("all-reduce", LIBRARY, (), (), "", 1.0, collectives=(collective,)))
        started += starting
    program = Program((), tuple(lines), ())
    return started + waited_seconds(cost, program, Timeline(orders={program: program.instructions}))


def main() -> None:
    """Times collectives over groups in turn, and keeps the table in docs/results.md."""
    offer_devices("2x2x2")
    cost = CostModel(preset("cpu:8")).on(tuple(AXES), tuple(AXES.values()))
    records = []
    with bars() as shown:
        task = shown.add_task("collectives in turn", total=len(PRODUCTS) * ROUNDS)
        for products in PRODUCTS:
            computed, added = measured(products, lambda: shown.advance(task))
            for sequence, seconds in added.items():
                told = predicted(sequence, computed, cost)
                records.append(
                    {
                        "sequence": sequence,
                        "computed_ms": computed * 1e3,
                        "added_us": seconds * 1e6,
                        "part": seconds / added[ALL],
                        "predicted_us": told * 1e6,
                        "predicted_part": told / predicted(ALL, computed, cost),
                    }
                )
    frame = pd.DataFrame(records).sort_values("sequence", key=lambda names: names.map(SEQUENCES.index), kind="stable")
    show_and_keep("bench-waits", "what collectives add to computing", ABOUT, frame)


if __name__ == "__main__":
    typer.run(main)
