"""`make bench-predict`: does a program take as long as the model says, and do programs rank as it ranks them?

A case is one workload on one mesh: the plan, the hand-written layouts and random valid plans are compiled, then called
in rounds. In each round the devices are calibrated, then each case's programs called, in processes one after the other:
a shared machine is twice as fast at one time as at another, and programs that run among probes, or among other cases',
are slower than in a process of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import matplotlib as mpl
import numpy as np
import pandas as pd
import typer
from jax.sharding import AbstractMesh
from matplotlib.figure import Figure

from costmodel import CostModel
from executor.calibrate import COLLECTIVE_BYTES as ALL_BYTES
from executor.calibrate import Calibration
from executor.race import compile_programs, contenders
from executor.timers import typical_seconds
from experiments.apart import LEAST_ROW, ROW_SECONDS, packed, time_apart
from experiments.arguments import device_mesh, shape
from experiments.cases import (
    Case,
    Cases,
    case_workload,
    keep_compiled,
    offer_devices,
    outcome,
    planned_case,
)
from experiments.child import call_in_child
from experiments.random_plans import random_plans
from experiments.results import OUT, RESULTS
from planner import Plan
from planner.mesh import AXIS_NAMES, default_cost_model

MESHES = ("2x4",)
RANDOM_PLANS = 10
LEAST_ROUNDS, MOST_ROUNDS = 4, 10
"""Of a calibration, and of calls of each program in processes of their own, in an order that is drawn anew in each."""
ENOUGH_REPEATS = 0.98
"""No more rounds where the first half of the calls ranks programs so like the second, whatever was predicted."""
COLLECTIVE_BYTES = (*ALL_BYTES[:-2], 2**23)
"""Per device; no array here has more than 4 MiB, only what joined all-reduces send may be more."""
MATRIX_TYPES = ("float32",)
"""What programs of the small size multiply."""
CASES = Cases(OUT / "bench-predict")
PLOT = RESULTS.with_name("predicted-against-measured.png")
ABOUT = f"""## Predicted against measured step times

`make bench-predict`: each workload on eight CPU devices, as planned, as in the hand-written layouts, and as in
{RANDOM_PLANS} plans whose every decision is drawn at random; what comes out as one program counts once. Each case plans
by the preset and compiles. Then come {LEAST_ROUNDS} rounds, each of a calibration in a process of its own and of one
process for each workload, in which its programs are called in turns, {ROW_SECONDS * 1e3:.0f} ms or {LEAST_ROW} times in
a row, after a call that does not count; and where the clock does not rank a workload's programs alike twice, up to
{MOST_ROUNDS} rounds. Predicted is by the profile of all calibrations. What is measured counts as the mean
without the fastest and the slowest tenth. The error is |predicted − measured| / measured, off the median of predicted /
measured − 1; the rank correlation is Spearman's. Wanted over all programs: at most 15 % at the median and 35 % at the
90th percentile; within each workload a rank correlation of 0.95. *Clock repeats* is the rank correlation of the first
half of the calls with the second: no prediction ranks programs more surely than the clock.

![Predicted against measured milliseconds]({PLOT.name})"""
"""What stands above the tables in docs/results.md."""


def measured(cases: Sequence[Case], timeout: float) -> Iterator[Mapping[str, Any]]:
    """For each case its programs' names, predicted seconds and the seconds of their calls; all are there at the end.

    Kept too, for those who hold another model against the same measurements: the plans, both profiles (the preset's
    has chosen how the programs change layouts) and the probes' seconds. Another revision may change layouts otherwise
    by the same plan and profile, so what it predicts is not put beside these measurements.
    """
    found = [outcome(case, compile_case, timeout) for case in cases]
    probes: dict[str, list[Sequence[Sequence[float]]]] = {mesh: [] for _, mesh in cases}
    for turn in range(MOST_ROUNDS):
        going = [place for place, each in enumerate(found) if "failure" not in each and not settled(each, turn)]
        for mesh in {cases[place][1] for place in going}:
            probes[mesh].append(call_in_child(probe_apart, mesh, timeout_seconds=timeout))
        for place in going:
            found[place] = called(cases[place], found[place], turn, timeout)
    profiles = {
        mesh: call_in_child(fitted, mesh, rounds, timeout_seconds=timeout) for mesh, rounds in probes.items() if rounds
    }
    for case, each in zip(cases, found, strict=True):
        if "failure" in each:
            yield each
        else:
            of_case = predicted(case, each["programs"], each["planned_with"], profiles[case[1]])
            yield of_case | {"probed": probes[case[1]]}


def compile_case(workload_name: str, mesh: str) -> dict[str, Any]:
    """The programs of a case, compiled. Runs in a process of its own.

    It keeps nothing that it compiles for the next: an executable that comes from there cannot be sent on, for XLA's CPU
    client loses some of its functions the second time.
    """
    offer_devices(mesh)
    chosen_by = default_cost_model(device_mesh(shape(mesh)))
    _, planned = planned_case(workload_name, mesh, chosen_by)
    programs = compile_programs({**contenders(planned), **random_plans(planned, RANDOM_PLANS)})
    return {
        "programs": [
            {"names": list(program.names), "plan": program.plan.to_json(), "samples": []} for program in programs
        ],
        "planned_with": chosen_by.to_json(),
        "executables": [packed(program) for program in programs],
    }


def settled(compiled: Mapping[str, Any], turn: int) -> bool:
    """Whether the clock ranks a case's programs alike twice, after so many rounds."""
    if turn < LEAST_ROUNDS:
        return False
    timed = pd.DataFrame([measured_ms(program["samples"]) for program in compiled["programs"]])
    return clock_repeats(timed) >= ENOUGH_REPEATS


def called(case: Case, compiled: Mapping[str, Any], turn: int, timeout: float) -> Mapping[str, Any]:
    """What was compiled of a case, its programs with the seconds of another round of calls; or its "failure"."""
    taken = outcome(case, time_apart, timeout, compiled["executables"], turn)
    if "failure" in taken:
        return taken
    programs = [
        {**program, "samples": program["samples"] + seconds}
        for program, seconds in zip(compiled["programs"], taken["samples"], strict=True)
    ]
    return {**compiled, "programs": programs}


def probe_apart(mesh: str) -> Sequence[Sequence[float]]:
    """Seconds of a round of a calibration's probes. Runs in a process of its own; the next finds them compiled."""
    offer_devices(mesh)
    keep_compiled(CASES.folder / "compiled")
    calibration = new_calibration()
    calibration.compile()
    calibration.time_round()
    return calibration.samples


def fitted(mesh: str, rounds: Sequence[Sequence[Sequence[float]]]) -> str:
    """The profile that all rounds of probes make. Runs in a process of its own."""
    offer_devices(mesh)
    calibration = new_calibration()
    for samples in rounds:
        calibration.add(samples)
    return calibration.model().to_json()


def new_calibration() -> Calibration:
    """Of this process's devices."""
    return Calibration(jax.devices(), COLLECTIVE_BYTES, MATRIX_TYPES)


def report(cases: Cases, about: str, plot: Path) -> None:
    """Prints the tables of all stored cases, and keeps them as CSV, and with a plot and below `about` in docs."""
    frame = cases.summarise(lines, by_workload, "predicted against measured", about)
    if not frame.empty:
        draw(frame, plot)


def predicted(case: Case, programs: Sequence[Mapping[str, Any]], planned_with: str, profile: str) -> dict[str, Any]:
    """What is kept of a case: its programs, each with the seconds that the profile predicts, and both models."""
    work, sizes = case_workload(case[0]), shape(case[1])
    mesh = AbstractMesh(sizes, AXIS_NAMES[: len(sizes)])
    chosen_by, model = (CostModel.from_json(text, "a record") for text in (planned_with, profile))

    def seconds(program: Mapping[str, Any]) -> float:
        chosen = Plan.from_json(program["plan"], work.fn, work.example_args, mesh, cost_model=chosen_by)
        return chosen.repriced(model).prediction.step_seconds

    timed = [{**program, "predicted_seconds": seconds(program)} for program in programs]
    return {"programs": timed, "planned_with": planned_with, "profile": profile}


def lines(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each program of a case."""
    name, mesh = record["case"]
    return [
        {
            "conditions": record["conditions"],
            "workload": name,
            "mesh": mesh,
            "layouts": ", ".join(program["names"]),
            "predicted_ms": program["predicted_seconds"] * 1e3,
            **measured_ms(program["samples"]),
        }
        for program in record["programs"]
    ]


def measured_ms(samples: Sequence[float]) -> dict[str, float]:
    """What is typical of all calls, and of those of the first processes and of the last alone."""
    all_calls = np.array(samples)
    first, second = np.array_split(all_calls, 2)
    parts = {"measured_ms": all_calls, "first_half_ms": first, "second_half_ms": second}
    return {name: typical_seconds(part) * 1e3 for name, part in parts.items()}


def clock_repeats(programs: pd.DataFrame) -> float:
    """Spearman's rank correlation of programs by the first half of their calls and by the second."""
    return float(programs.first_half_ms.corr(programs.second_half_ms, method="spearman"))


def by_workload(frame: pd.DataFrame) -> pd.DataFrame:
    """Errors in per cent and rank correlation of each case, and errors of all together."""
    error = 100 * (frame.predicted_ms / frame.measured_ms - 1)
    frame = frame.assign(error=error.abs(), off=error)
    rows = [
        {"workload": name, "mesh": mesh, **errors(part), **rank_correlations(part)}
        for (name, mesh), part in frame.groupby(["workload", "mesh"], sort=False)
    ]
    return pd.DataFrame([*rows, {"workload": "all", "mesh": "", **errors(frame)}])


def errors(part: pd.DataFrame) -> dict[str, Any]:
    return {
        "programs": len(part),
        "median_error": part.error.median(),
        "p90_error": part.error.quantile(0.9),
        "median_off": part.off.median(),
        "fastest_ms": part.measured_ms.min(),
        "slowest_ms": part.measured_ms.max(),
    }


def rank_correlations(part: pd.DataFrame) -> dict[str, float]:
    """Spearman's, of predicted and measured times, and of the two halves of what was measured."""
    return {
        "rank_correlation": float(part.predicted_ms.corr(part.measured_ms, method="spearman")),
        "clock_repeats": clock_repeats(part),
    }


def draw(frame: pd.DataFrame, path: Path) -> None:
    """Measured against predicted milliseconds, a colour for each workload; 15 and 35 % around the diagonal shaded."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots()
    least, most = 0.8 * frame[["predicted_ms", "measured_ms"]].min().min(), 1.25 * frame.measured_ms.max()
    ends = np.array([least, most])
    for share, shade in ((0.35, 0.08), (0.15, 0.16)):
        axes.fill_between(ends, (1 - share) * ends, (1 + share) * ends, color="black", alpha=shade, linewidth=0)
    axes.plot(ends, ends, color="black", linewidth=0.8)
    colours = mpl.colormaps["tab20"]
    for number, (name, part) in enumerate(frame.groupby("workload", sort=False)):
        axes.scatter(part.measured_ms, part.predicted_ms, s=18, color=colours(number % 20), label=str(name))
    axes.set(xscale="log", yscale="log", xlabel="measured ms", ylabel="predicted ms", xlim=ends, ylim=ends)
    axes.legend(fontsize="small", loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    about = "Holds predictions against the clock, and keeps table and plot in docs."
    typer.run(CASES.command(MESHES, measured, partial(report, CASES, ABOUT, PLOT), 3600.0, about))
