"""The demonstration: a train step planned, explained, and raced against the layouts that people write by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import typer
from jax.sharding import Mesh

from executor.compiled import collectives
from executor.race import Program, compile_programs, contenders, race
from experiments.results import write_csv
from experiments.terminal import bars, console, legend, table
from experiments.workloads import Workload
from planner import Plan, plan

COLUMNS = {
    "layout": "planned, or one that people write by hand, at its best completion",
    "predicted_step_ms": "time of one step, by the cost model",
    "measured_step_ms": "median time of one step; the layouts take turns",
    "predicted_peak_MiB": "memory per device at the worst point of the step, by the plan",
    "compiled_peak_MiB": "the same by the compiler: arguments, results and temporaries, less what is donated",
    "planned_communicated_MiB": "through all collectives of one step, per device, each at its larger side, by the plan",
    "compiled_communicated_MiB": "the same by the compiled program",
}
"""What the table holds; the CSV has the same columns."""


def demo(work: Workload, mesh: Mesh, out: Path, least_rounds: int = 15) -> pd.DataFrame:
    """Plans, explains, compiles, races, and writes the table as CSV.

    Args:
        out: the CSV's path; its folder is made.

    Returns:
        a row per layout, fastest first.
    """
    typer.echo(f"{work.description}, on {mesh.devices.size} {mesh.devices.flat[0].device_kind} devices\n")
    with bars() as shown:
        shown.add_task("planning", total=None)
        planned = plan(work.fn, work.example_args, mesh, donate_argnums=work.donate_argnums)
    typer.echo(planned.explain() + "\n")
    frame = compare(planned, work, least_rounds)
    write_csv(frame, out)
    console().print(table(frame, f"{work.name}: planned against layouts written by hand"))
    typer.echo(f"{legend(COLUMNS)}\n\nThe table is in {out}")
    return frame


def compare(planned: Plan, work: Workload, least_rounds: int) -> pd.DataFrame:
    """A row of `COLUMNS` for the plan and each of its alternatives, fastest first."""
    with bars() as shown:
        compiling = shown.add_task("compiling", total=1.0)
        programs = compile_programs(
            contenders(planned),
            lambda name, done: shown.update(compiling, description=f"compiling {name}", completed=done),
        )
        shown.update(compiling, description=f"compiled {len(programs)} programs", completed=1.0)
        measuring = shown.add_task("measuring", total=1.0)
        samples = race(
            programs,
            work.make_args(jax.random.key(0)),
            least_rounds=least_rounds,
            progress=lambda done: shown.update(measuring, completed=done),
        )
    rows = [
        row(name, program, taken) for program, taken in zip(programs, samples, strict=True) for name in program.names
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values("measured_step_ms", ignore_index=True)


def row(name: str, program: Program, samples: Sequence[float]) -> tuple[str | float, ...]:
    """One layout's figures, in the order of `COLUMNS`."""
    prediction = program.plan.prediction
    return (
        name,
        prediction.step_seconds * 1e3,
        float(np.median(samples)) * 1e3,
        prediction.peak_bytes / 2**20,
        compiled_peak_bytes(program.compiled) / 2**20,
        prediction.communicated_bytes / 2**20,
        compiled_communicated_bytes(program) / 2**20,
    )


def compiled_communicated_bytes(program: Program) -> float:
    """Through all collectives of one call of the compiled program, per device, each at its larger side."""
    text = program.compiled.as_text()
    assert text is not None, "CPU, GPU and TPU compilers all show what they made"
    return sum(one.bytes * one.count for one in collectives(text, dict(program.plan.mesh.shape)))


def compiled_peak_bytes(compiled: jax.stages.Compiled) -> float:
    """Bytes per device: arguments, results that do not take a donated argument's place, and temporaries."""
    memory = compiled.memory_analysis()
    assert memory is not None, "CPU, GPU and TPU compilers all say"
    return float(
        memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
    )
