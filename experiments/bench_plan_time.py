"""`make bench-plan-time`: how long does `plan()` take, stage by stage, for a GPT-2 train step of twelve layers?

Each time is taken in a process of its own: nothing that was worked out before helps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import jax
import numpy as np
import pandas as pd
import typer

from experiments import arguments
from experiments.child import call_in_child
from experiments.results import OUT, conditions, keep, markdown, write_csv
from experiments.terminal import bars, console, table
from experiments.workloads import workload
from planner import plan

WORKLOADS = ("gpt", "gpt-scan")
MESHES = ("2x4", "2x2x2", "8")
TARGET_SECONDS: Mapping[tuple[str, str], float] = {("gpt", "2x4"): 15.0, ("gpt-scan", "2x4"): 3.0}
"""What everything beyond tracing should stay below; the other cases have no target."""
LIMIT_SECONDS = 120.0
"""For the search, longer than any target: what is asked is how long it takes, not what is found in time."""

ABOUT = """## How long planning takes

`make bench-plan-time`: seconds of `plan()` on the train step of GPT-2 small, its twelve layers written out (`gpt`)
or scanned (`gpt-scan`), by stage. The gap is what the solver left unproven."""
"""What stands above the table in docs/results.md."""


def main(
    workload_names: Annotated[list[str] | None, typer.Option("--workload", help="Only this; may be repeated.")] = None,
    meshes: Annotated[list[str] | None, typer.Option("--mesh", help="Only this, such as 2x4; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="The median of so many is kept.")] = 3,
) -> None:
    """Times plan() on full-size workloads, and keeps the table in docs/results.md."""
    cases = [(name, mesh) for name in workload_names or WORKLOADS for mesh in meshes or MESHES]
    rows = []
    with bars() as shown:
        task = shown.add_task("", total=len(cases) * repeats)
        for name, mesh in cases:
            shown.update(task, description=f"{name} on {mesh}")
            samples = []
            for _ in range(repeats):
                samples.append(call_in_child(time_plan, name, mesh, timeout_seconds=5 * LIMIT_SECONDS))
                shown.advance(task)
            rows.append(row(name, mesh, samples))
    frame = pd.DataFrame(rows)
    write_csv(frame, OUT / "bench-plan-time.csv")
    console().print(table(frame, f"seconds of plan(), median of {repeats}"))
    keep("bench-plan-time", f"{ABOUT}\n\nMeasured {conditions()}; medians of {repeats}.\n\n{markdown(frame)}")


def time_plan(workload_name: str, mesh: str) -> dict[str, float]:
    """Seconds of each stage, and the gap that is left. Runs in a process of its own, on CPU devices."""
    jax.config.update("jax_platforms", "cpu")
    arguments.offer_cpu_devices(mesh)
    work = workload(workload_name, "full")
    planned = plan(
        work.fn,
        work.example_args,
        arguments.device_mesh(arguments.shape(mesh)),
        donate_argnums=work.donate_argnums,
        time_limit=LIMIT_SECONDS,
    )
    return {**planned.timings, "gap": planned.gap}


def row(workload_name: str, mesh: str, samples: list[dict[str, float]]) -> dict[str, str | float]:
    """One case's line in the table."""
    median = {stage: float(np.median([sample[stage] for sample in samples])) for stage in samples[0]}
    return {
        "workload": workload_name,
        "mesh": mesh,
        "trace_s": median["trace"],
        "build_s": median["build"],
        "solve_s": median["solve"],
        "beyond_tracing_s": median["build"] + median["solve"],
        "target_s": TARGET_SECONDS.get((workload_name, mesh), math.nan),
        "gap_percent": 100 * median["gap"],
    }


if __name__ == "__main__":
    typer.run(main)
