"""`make bench-audit`: does the compiler do what the plans say, and do the programs take the memory that they say?

A case is one workload on one mesh: the plan, the hand-written layouts and random valid plans are compiled, not run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
import typer

from executor import audit
from executor.race import contenders
from experiments.cases import Cases, offer_devices, one_by_one, planned_case
from experiments.random_plans import random_plans
from experiments.results import OUT
from planner import Plan

MESHES = ("8", "2x4", "2x2x2")
RANDOM_PLANS = 3
CASES = Cases(OUT / "bench-audit")
NOTABLE = 0.01
"""An unplanned collective with this share of the compiled bytes is told."""
ABOUT = f"""## Plans against compiled programs

`make bench-audit`: each workload on each mesh of eight CPU devices, as planned, as in the hand-written layouts, and
as in {RANDOM_PLANS} plans drawn at random, compiled and not run. Fidelity is the share of the communicated bytes that
agree per kind of collective and mesh axes; wanted are 0.98 at the median and 0.90 at the worst. Memory is the predicted
peak over what `memory_analysis()` says; wanted are 0.9 to 1.1 at the median and 0.9 at the least. Unplanned counts the
programs with a collective that nobody planned and that has more than {NOTABLE:.0%} of the bytes."""
"""What stands above the table in docs/results.md."""


def audit_case(workload_name: str, mesh: str) -> dict[str, Any]:
    """What the audit of each plan finds. Runs in a process of its own, on CPU devices."""
    offer_devices(mesh)
    _, planned = planned_case(workload_name, mesh)
    return {"audits": audits(planned)}


def audits(planned: Plan) -> list[dict[str, Any]]:
    """A line for the plan, for each hand-written layout of the same problem, and for each of the random ones."""
    found = []
    for name, each in {**contenders(planned), **random_plans(planned, RANDOM_PLANS)}.items():
        seen = audit(each)
        notable = [extra for extra in seen.unplanned if extra.bytes * extra.count > NOTABLE * seen.compiled_bytes]
        found.append(
            {
                "layout": name,
                "fidelity": seen.fidelity,
                "memory": seen.memory_ratio,
                "peak_bytes": seen.compiled_peak_bytes,
                "unplanned": [f"{extra.kind} at {extra.source}" for extra in notable],
                "rematerializations": seen.rematerializations,
            }
        )
    return found


def report(cases: Cases, about: str) -> None:
    """Prints the table of all stored cases, and keeps it as CSV and, below `about`, in docs/results.md."""
    cases.summarise(lines, by_case, "plans against compiled programs", about, "Compiled")


def lines(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each plan of a case."""
    name, mesh = record["case"]
    start = {"conditions": record["conditions"], "workload": name, "mesh": mesh}
    return [start | {**found, "unplanned": "; ".join(found["unplanned"])} for found in record["audits"]]


def by_case(frame: pd.DataFrame) -> pd.DataFrame:
    """A line for each workload and mesh, and one for all together."""
    rows = [
        {"workload": name, "mesh": mesh, **spread(part)}
        for (name, mesh), part in frame.groupby(["workload", "mesh"], sort=False)
    ]
    return pd.DataFrame([*rows, {"workload": "all", "mesh": "", **spread(frame)}])


def spread(part: pd.DataFrame) -> dict[str, Any]:
    return {
        "programs": len(part),
        "fidelity": part.fidelity.median(),
        "least_fidelity": part.fidelity.min(),
        "unplanned": int((part.unplanned != "").sum()),
        "memory": part.memory.median(),
        "least_memory": part.memory.min(),
        "below_0.9": int((part.memory < 0.9).sum()),
        "most_memory": part.memory.max(),
    }


if __name__ == "__main__":
    about = "Audits plans of all workloads, and keeps the table in docs/results.md."
    typer.run(CASES.command(MESHES, one_by_one(audit_case), partial(report, CASES, ABOUT), 600.0, about))
