"""The command line: `meshwright demo | plan | audit | calibrate | solve`, and the experiment runner's."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import jax
import pandas as pd
import typer

from costmodel import CostModel
from executor import audit as audit_plan
from executor import calibrate as calibrate_devices
from executor.calibrate import ROUNDS
from experiments import arguments
from experiments.cli_runner import runner_app
from experiments.demo import demo as run_demo
from experiments.terminal import bars, console, table
from experiments.workloads import names
from planner import MeshwrightError, Plan
from planner import plan as make_plan
from planner.problem import Problem
from planner.solve import Progress, Solution
from planner.solve import solve as solve_problem

app = typer.Typer(
    help="Plans how a JAX function is laid out over many devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(runner_app)


class SizeName(StrEnum):
    """How large a workload is: to run here, or to plan by shape."""

    test = "test"
    full = "full"


WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD|MODULE:FUNCTION",
        help=f"One of {', '.join(names())}; or a function of yours that returns (fn, example_args).",
    ),
]
MeshOption = Annotated[
    str,
    typer.Option(
        metavar="SHAPE|COUNT|PRESET",
        help="2x4: a mesh of devices at hand. 8 or h100-dgx:4: the shape is chosen too.",
    ),
]
SizeOption = Annotated[SizeName, typer.Option(help="Of a workload: as run here, or as large as in earnest.")]
MemoryOption = Annotated[
    float | None,
    typer.Option(
        parser=arguments.nbytes, metavar="BYTES", help="Per device, such as 16GiB.  [default: the device's own]"
    ),
]
TimeOption = Annotated[float, typer.Option(min=0.0, help="Seconds for the search.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the table goes, as CSV.")] = Path("out/demo.csv"),
    workload_name: Annotated[str, typer.Option("--workload", help="What to plan.")] = "gpt",
    mesh: Annotated[str, typer.Option(help="Shape of the mesh of CPU devices.")] = "2x4",
    rounds: Annotated[int, typer.Option(min=1, help="How often each layout is timed, at least.")] = 15,
) -> None:
    """Plans a GPT train step for eight CPU devices and races it against the usual layouts."""
    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "cpu")
    arguments.offer_cpu_devices(mesh)
    run_demo(arguments.workload(workload_name), arguments.device_mesh(arguments.shape(mesh)), out, rounds)


@app.command()
def plan(
    function: WorkloadArgument,
    mesh: MeshOption,
    size: SizeOption = SizeName.test,
    memory_limit: MemoryOption = None,
    time_limit: TimeOption = 30.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the plan to this file.")] = None,
) -> None:
    """Chooses a layout and says what it costs."""
    made = planned(function, mesh, size, memory_limit, time_limit)
    typer.echo(made.explain())
    if json_file is not None:
        write(json_file, made.to_json())
        typer.echo(f"\nThe plan is in {json_file}")


def planned(function: str, mesh: str, size: SizeName, memory_limit: float | None, time_limit: float) -> Plan:
    """The plan for what was typed."""
    arguments.offer_cpu_devices(mesh)
    target = arguments.target(function, size.value)
    return make_plan(
        target.fn,
        target.example_args,
        arguments.mesh(mesh),
        donate_argnums=target.donate_argnums,
        memory_limit=memory_limit,
        time_limit=time_limit,
        progress=True,
    )


@app.command()
def audit(
    function: WorkloadArgument,
    mesh: MeshOption,
    size: SizeOption = SizeName.test,
    memory_limit: MemoryOption = None,
    time_limit: TimeOption = 30.0,
) -> None:
    """Plans, compiles, and holds the compiled collectives and memory against the plan."""
    made = planned(function, mesh, size, memory_limit, time_limit)
    with bars() as shown:
        shown.add_task("compiling", total=None)
        found = audit_plan(made)
    typer.echo(found.report())


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option(help="Where the profile goes, as JSON.")] = Path("profile.json"),
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each probe is timed; the median counts. More on a noisy machine.")
    ] = ROUNDS,
) -> None:
    """Measures the devices at hand, for predictions that fit them."""
    arguments.offer_cpu_devices()
    with bars() as shown:
        task = shown.add_task("calibrating", total=None)
        model = calibrate_devices(
            jax.devices(),
            rounds=rounds,
            progress=lambda done, total: shown.update(task, completed=done, total=total),
        )
    write(out, model.to_json())
    console().print(table(fitted(model), "curves, and their errors"))
    typer.echo(f"The profile of {model.topology.name} is in {out}; use it with CostModel.read({str(out)!r})")


def fitted(model: CostModel) -> pd.DataFrame:
    """A line for each curve of a profile: what of, for a few sizes, and how far off it is.

    Of products that is the fit's error where it was fitted, of collectives what a size's neighbours say of it.
    """
    collectives = [
        {
            "what": f"{curve.kind} over {curve.group_size}",
            "small_us": 1e6 * float(curve.seconds(0.0)),
            "GB_per_s": 1e-9 * 2**27 / float(curve.seconds(2.0**27)),
            "error_percent": 100 * curve.relative_error,
        }
        for curve in model.topology.measured
    ]
    device = model.topology.device
    products = [
        {
            "what": f"matmul in {dtype}",
            "small_us": 1e6 * device.matmul_shape(dtype).launch_seconds,
            "GFLOP_per_s": 1e-9 * rate,
            "error_percent": 100 * float(model.measured_on.get(f"matmul {dtype} median error", "nan")),
        }
        for dtype, rate in device.flops_per_second.items()
    ]
    return pd.DataFrame([*products, *collectives])


@app.command()
def solve(
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="A problem, as .json or .json.gz (IOPDDL).")
    ],
    time_limit: TimeOption = 30.0,
    out: Annotated[Path, typer.Option(help="Where the solution goes, as JSON.")] = Path("solution.json"),
    progress: Annotated[bool, typer.Option("--progress", help="Tell each improvement.")] = False,
    seed: Annotated[int, typer.Option(help="Of the random choices.")] = 0,
    work_limit: Annotated[
        float | None,
        typer.Option(min=0.0, help="Work, in seconds of a core, after which the answer is the same in every run."),
    ] = None,
) -> None:
    """Solves a sharding problem in the form of the ASPLOS 2025 contest; starting up and reading count as time."""
    begun: float = context.obj
    problem = Problem.read(file)
    left = max(0.0, time_limit - (time.perf_counter() - begun))
    found = solve_problem(
        problem, time_limit=left, work_limit=work_limit, seed=seed, progress=tell_progress if progress else None
    )
    write(out, json.dumps(solution_record(found, time.perf_counter() - begun)) + "\n")
    typer.echo(f"{found.status}: {score(found.cost, found.lower_bound)}, in {out}")
    if found.picks is None:
        raise typer.Exit(1)


def tell_progress(step: Progress) -> None:
    """A line on stderr for an improvement."""
    typer.echo(f"{step.seconds:8.1f} s   {score(step.cost, step.lower_bound)}", err=True)


def score(cost: float, lower_bound: float) -> str:
    """How good a solution is, for people."""
    if cost == math.inf:
        return f"no assignment found, bound {lower_bound:.9g}"
    gap = f", gap {(cost - lower_bound) / abs(cost):.3%}" if cost and lower_bound > -math.inf else ""
    return f"cost {cost:.9g}, bound {lower_bound:.9g}{gap}"


def solution_record(found: Solution, seconds: float) -> dict[str, Any]:
    """As JSON has it: null where there is no number."""
    return {
        "solution": None if found.picks is None else found.picks.tolist(),
        "cost": finite(found.cost),
        "lower_bound": finite(found.lower_bound),
        "gap": finite(found.gap),
        "seconds": seconds,
        "status": found.status,
    }


def write(path: Path, text: str) -> None:
    """Writes a file, in a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line; an error of ours is one message and exit code 1, a misused command exit code 2."""
    # Starting up is work of one core, so its seconds are those of the process so far, unless others ran in it.
    begun = time.perf_counter() - (time.process_time() if argv is None else 0.0)
    try:
        app(args=argv, obj=begun)
    except MeshwrightError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)
