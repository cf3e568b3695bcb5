"""`make bench-single`: on one device, does a step take as long, and as much memory, as the model says?

The device is JAX's first, a GPU where there is one. It is calibrated, then each workload is compiled for it alone and
timed, in both of its sizes. Predictions are made when the tables are, by the profile that is kept beside the cases of
each kind of device.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import jax
import numpy as np
import pandas as pd
import typer
from jax.sharding import AbstractMesh, Mesh

from costmodel import CostModel
from executor import calibrate, keep_freed_memory
from executor.audit import held_against
from executor.race import WARMUP_CALLS, Runner, compile_programs
from experiments.cases import Case, Cases, by_conditions, keep_compiled
from experiments.results import OUT, conditions, keep, markdown, revision, write_csv
from experiments.terminal import bars, console, table
from experiments.workloads import Size, Workload, names, workload
from planner import Infeasible, Plan, plan
from planner.mesh import AnyMesh

SIZES: Mapping[str, tuple[Size, ...]] = {"cpu": ("test",), "gpu": ("test", "full")}
"""Of workloads, by platform: CPUs of the size that tests are run on would take minutes for a step in earnest."""
FOLDER = OUT / "bench-single"
"""With a folder for each kind of device, of its cases and its profile."""
WITHOUT_DEVICE = AbstractMesh((1,), ("x",))
LEAST_CALLS, CALL_SECONDS, MOST_CALLS = 5, 0.3, 300
ABOUT = """## One device

`make bench-single`: each workload on one device, in the size of the tests and in earnest (`full`); what the profile
says that was calibrated just before, against medians of calls, each until its results are there, and against
`memory_analysis()`. Off is predicted / measured − 1, in per cent."""
"""What stands above the table in docs/results.md."""


def main(
    workload_names: Annotated[list[str] | None, typer.Option("--workload", help="Only this; may be repeated.")] = None,
    only: Annotated[Size | None, typer.Option("--size", help="Only this.")] = None,
    only_report: Annotated[bool, typer.Option("--report", help="Measure nothing; predict and report anew.")] = False,
) -> None:
    """Holds predictions for one device against the clock and the compiler, and keeps the table in docs/results.md."""
    if not only_report:
        keep_freed_memory()
        keep_compiled(FOLDER / "compiled")
        device = jax.devices()[0]
        cases = Cases(FOLDER / "-".join(device.device_kind.split()))
        here = f"{conditions()}, on one {device.device_kind}"
        sizes = SIZES[device.platform] if only is None else (only,)
        wanted: list[Case] = [(name, size) for size in sizes for name in workload_names or names()]
        for case in wanted:
            chosen_workload(case)  # which says so before all else if there is none of that name
        with bars() as shown:
            task = shown.add_task("calibrate")

            def progress(done: int, total: int) -> None:
                shown.update(task, completed=done, total=total)

            model = calibrate([device], progress=progress)
            cases.folder.mkdir(parents=True, exist_ok=True)
            profile_of(cases).write_text(model.to_json())
            shown.update(task, completed=0, total=len(wanted))
            for case in wanted:
                shown.update(task, description=" ".join(case))
                cases.store(case, here, measured(case, model, device))
                shown.advance(task)
    report()


def planned(case: Case, model: CostModel, mesh: AnyMesh = WITHOUT_DEVICE) -> Plan:
    work = chosen_workload(case)
    return plan(work.fn, work.example_args, mesh, donate_argnums=work.donate_argnums, cost_model=model)


def chosen_workload(case: Case) -> Workload:
    name, size = case
    return workload(name, cast(Size, size))


def measured(case: Case, model: CostModel, device: jax.Device) -> Mapping[str, Any]:
    """Seconds of calls and what the compiler says of memory; or that the device's does not suffice."""
    try:
        chosen = planned(case, model, Mesh([device], "x"))
    except Infeasible as error:
        return {"failure": f"more than {error.smallest_limit_bytes / 2**30:.0f} GiB"}
    try:
        (program,) = compile_programs({"": chosen})
        args = jax.jit(chosen_workload(case).make_args)(jax.random.key(0))
        samples = row_of_calls(program.runner(args))
    except jax.errors.JaxRuntimeError as error:
        return {"failure": str(error).partition("\n")[0]}
    compiled_peak = held_against(chosen, program.compiled, 0).compiled_peak_bytes
    return {"samples": samples, "compiled_peak_bytes": compiled_peak}


def row_of_calls(runner: Runner) -> list[float]:
    """Seconds of calls that follow each other, as those of calibration do."""
    seconds = min(runner.seconds() for _ in range(WARMUP_CALLS))
    return [runner.seconds() for _ in range(int(np.clip(CALL_SECONDS / seconds, LEAST_CALLS, MOST_CALLS)))]


def profile_of(cases: Cases) -> Path:
    """What the latest calibration of the device found, in JSON; no case's file."""
    return cases.folder / "profile"


def report() -> None:
    """Prints the tables of all that was measured, and keeps them as CSV and in docs."""
    devices = [Cases(path.parent) for path in sorted(FOLDER.glob("*/profile"))]
    frame = pd.DataFrame([line for cases in devices for line in lines(cases)])
    write_csv(frame, FOLDER.with_suffix(".csv"))
    parts = [ABOUT]
    for here, part in by_conditions(frame):
        console().print(table(part, f"one device: {here}"))
        parts += [f"Measured {here}; predicted at revision {revision()}. {in_short(part)}", markdown(part)]
    failed = [
        f"{' '.join(record['case'])} on {cases.folder.name}: {record['failure']}"
        for cases in devices
        for record in cases.records()
        if "failure" in record
    ]
    keep("bench-single", "\n\n".join([*parts, *(f"Not run: {line}." for line in failed)]))


def lines(cases: Cases) -> list[dict[str, Any]]:
    """Of a device's cases, by its profile."""
    model = CostModel.read(profile_of(cases))
    return [row(record, model) for record in cases.records() if "failure" not in record]


def row(record: Mapping[str, Any], model: CostModel) -> dict[str, Any]:
    name, size = record["case"]
    said = planned((name, size), model).prediction
    taken, peak = float(np.median(record["samples"])), record["compiled_peak_bytes"]
    return {
        "conditions": record["conditions"],
        "workload": name,
        "size": size,
        "predicted_ms": said.step_seconds * 1e3,
        "measured_ms": taken * 1e3,
        "off": 100 * (said.step_seconds / taken - 1),
        "predicted_MiB": said.peak_bytes / 2**20,
        "compiled_MiB": peak / 2**20,
        "memory_off": 100 * (said.peak_bytes / peak - 1),
    }


def in_short(frame: pd.DataFrame) -> str:
    """Medians of all sizes and of each."""
    said = [
        f"{size} {part.off.abs().median():.1f} % off at the median, memory {part.memory_off.abs().median():.1f} %"
        for size, part in [("all", frame), *frame.groupby("size")]
    ]
    return "; ".join(said) + "."


if __name__ == "__main__":
    typer.run(main)
