"""`make bench-plan-time`: how long does `plan()` take, stage by stage?

For a GPT-2 train step of twelve layers on eight CPU devices, and for Llama 3 8B and GPT-3 175B, their layers written
out, on H100s. Each time is taken in a process of its own: nothing that was worked out before helps.
"""

from __future__ import annotations

import cProfile
import functools
import math
import pstats
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import jax
import numpy as np
import pandas as pd
import typer
from jax.sharding import AbstractMesh, Mesh

from costmodel import CostModel, preset
from experiments import arguments
from experiments.child import call_in_child
from experiments.results import OUT, conditions, keep, markdown, write_csv
from experiments.terminal import bars, console, table
from experiments.workloads import gpt, llama, workload
from experiments.workloads.workload import Workload
from planner import Plan, plan
from planner.candidates import candidates
from planner.choose import choose
from planner.jaxpr import build_graph
from planner.predict import predict
from planner.price import price
from planner.shorten import shorten
from planner.solve import solve
from planner.uses import decide

MESHES = ("2x4", "2x2x2", "8")
LARGE: Mapping[str, Callable[[], Workload]] = {
    "llama-8b": lambda: llama.llama("full"),
    "gpt3-175b": lambda: gpt.written_out(gpt.GPT3),
    "gpt3-12-layers": lambda: gpt.written_out(replace(gpt.GPT3, layers=12)),
}
"""By shape, on H100s: the sizes that people wait for."""
LARGE_MESHES = ("8x8", "4x4x4")
CASES = (
    *((name, mesh) for name in ("gpt", "gpt-scan") for mesh in MESHES),
    *((name, mesh) for name in LARGE for mesh in LARGE_MESHES),
)
TARGET_SECONDS: Mapping[tuple[str, str], float] = {
    ("gpt", "2x4"): 15.0,
    ("gpt-scan", "2x4"): 3.0,
    ("llama-8b", "8x8"): 10.0,
    ("gpt3-175b", "8x8"): 20.0,
    ("llama-8b", "4x4x4"): 60.0,
    ("gpt3-175b", "4x4x4"): 60.0,
}
"""What everything beyond tracing should stay below; the other cases have no target."""
LIMIT_SECONDS = 120.0
"""For the search, longer than any target: what is asked is how long it takes, not what is found in time."""
NO_LIMIT_BYTES = 1e15
"""Without rematerialisation the large steps fit no device; what is asked is how long a plan takes."""
PROFILED = ("llama-8b", "8x8")

ABOUT = """## How long planning takes

`make bench-plan-time`: seconds of `plan()`, by stage. The train step of GPT-2 small, its twelve layers written out
(`gpt`) or scanned (`gpt-scan`), on CPU devices; Llama 3 8B and GPT-3 175B, with all 96 layers or twelve of them,
written out, on H100s without a limit to their memory. Beyond tracing is everything but making the jaxpr. The gap is
what the solver left unproven."""
PROFILE = """Where the time goes beyond tracing, for {case}: the shares are those under a profiler, which slows
small Python functions more than large ones; the seconds are these shares of those measured without."""
"""What stands above the tables in docs/results.md."""

GROWTH = "From 12 layers to 96, beyond tracing:"
MOST_GROWTH = 3.0
"""How many times as long eight times as many layers should take at most."""

STAGES: Mapping[str, Callable[..., Any]] = {
    "graph of the jaxpr": build_graph,
    "leaving layers out": shorten,
    "decisions": decide,
    "prices": price,
    "hand-written layouts": candidates,
    "search": solve,
    "prediction": predict,
}
"""Functions of the planner by what they are in the profile; of the search, what `choose` asks for itself."""


def main(
    workload_names: Annotated[list[str] | None, typer.Option("--workload", help="Only this; may be repeated.")] = None,
    meshes: Annotated[list[str] | None, typer.Option("--mesh", help="Only this, such as 2x4; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="The median of so many is kept.")] = 3,
) -> None:
    """Times plan() on full-size workloads, and keeps the tables in docs/results.md."""
    cases = [(name, mesh) for name, mesh in CASES if name in (workload_names or [name]) and mesh in (meshes or [mesh])]
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
    body = f"{ABOUT}\n\nMeasured {conditions()}; medians of {repeats}.\n\n{markdown(frame)}"
    if not (grown := growth(frame)).empty:
        console().print(table(grown, GROWTH))
        body += f"\n\n{GROWTH}\n\n{markdown(grown)}"
    if PROFILED in cases:
        shares = call_in_child(profile_plan, *PROFILED, timeout_seconds=5 * LIMIT_SECONDS)
        stages = where_time_goes(shares, float(rows[cases.index(PROFILED)]["beyond_tracing_s"]))
        console().print(table(stages, "where the time goes"))
        body += f"\n\n{PROFILE.format(case=' on '.join(PROFILED))}\n\n{markdown(stages)}"
    keep("bench-plan-time", body)


def time_plan(workload_name: str, mesh: str) -> dict[str, float]:
    """Seconds of each stage and in all, and the gap that is left. Runs in a process of its own, on CPU devices."""
    planner = _planner(workload_name, mesh)
    begun = time.perf_counter()
    planned = planner()
    total = time.perf_counter() - begun
    return {**planned.timings, "total": total, "gap": planned.gap}


def _planner(workload_name: str, mesh: str) -> Callable[[], Plan]:
    """What is timed, with all that it needs at hand."""
    jax.config.update("jax_platforms", "cpu")
    shape = arguments.shape(mesh)
    if workload_name in LARGE:
        work = LARGE[workload_name]()
        machine = CostModel(preset(f"h100-dgx:{math.prod(shape) // 8}"))
        more: dict[str, Any] = {"cost_model": machine, "memory_limit": NO_LIMIT_BYTES}
        on: Mesh | AbstractMesh = AbstractMesh(shape, tuple("xyz"[: len(shape)]))
    else:
        arguments.offer_cpu_devices(mesh)
        work, on, more = workload(workload_name, "full"), arguments.device_mesh(shape), {}
    return functools.partial(
        plan, work.fn, work.example_args, on, donate_argnums=work.donate_argnums, time_limit=LIMIT_SECONDS, **more
    )


def profile_plan(workload_name: str, mesh: str) -> dict[str, float]:
    """The share of each stage in all that is beyond tracing. Runs in a process of its own, on CPU devices."""
    planner = _planner(workload_name, mesh)
    profiler = cProfile.Profile()
    begun = time.perf_counter()
    planned = profiler.runcall(planner)
    total = time.perf_counter() - begun - planned.timings["trace"]
    found = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    seconds = {stage: found[_key(function)][3] for stage, function in STAGES.items() if function is not solve}
    seconds["search"] = found[_key(solve)][4][_key(choose)][3]
    return {stage: seconds[stage] / total for stage in STAGES}


def _key(function: Callable[..., Any]) -> tuple[str, int, str]:
    """As a profile names a function."""
    code = function.__code__
    return code.co_filename, code.co_firstlineno, code.co_name


def growth(frame: pd.DataFrame) -> pd.DataFrame:
    """A line for each mesh that GPT-3 was planned on with twelve layers and with all."""
    seconds = frame.pivot(index="mesh", columns="workload", values="beyond_tracing_s")
    seconds = seconds.reindex(columns=["gpt3-12-layers", "gpt3-175b"]).dropna()
    times = seconds["gpt3-175b"] / seconds["gpt3-12-layers"]
    return pd.DataFrame({"mesh": times.index, "times": times.to_numpy(), "target": MOST_GROWTH})


def where_time_goes(shares: Mapping[str, float], beyond_tracing_seconds: float) -> pd.DataFrame:
    """A line for each stage, and one for the rest."""
    shares = {**shares, "other": 1 - sum(shares.values())}
    return pd.DataFrame(
        [
            {"stage": stage, "share_percent": 100 * share, "seconds": share * beyond_tracing_seconds}
            for stage, share in shares.items()
        ]
    )


def row(workload_name: str, mesh: str, samples: list[dict[str, float]]) -> dict[str, str | float]:
    """One case's line in the table."""
    median = {stage: float(np.median([sample[stage] for sample in samples])) for stage in samples[0]}
    return {
        "workload": workload_name,
        "mesh": mesh,
        "trace_s": median["trace"],
        "build_s": median["build"],
        "solve_s": median["solve"],
        "beyond_tracing_s": median["total"] - median["trace"],
        "target_s": TARGET_SECONDS.get((workload_name, mesh), math.nan),
        "gap_percent": 100 * median["gap"],
    }


if __name__ == "__main__":
    typer.run(main)
