"""`make bench-solver`: public problems of the ASPLOS 2025 contest on intra-operator parallelism against the best known.

The folder (`--data`) holds an instance per file, `A.json.gz` and so on, and `reference.csv` with published costs:
`instance,timeout_s,solver,cost,feasible,seconds,source`, where `feasible` is `yes`, `no`, `bound` or `as published`.
Each instance is read and solved in a process of its own, as `meshwright solve` would.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from experiments.cases import Cases, one_by_one
from experiments.results import OUT, ROOT
from planner.problem import Problem
from planner.solve import Progress, solve

DATA = ROOT.parent / "shared" / "data" / "iopddl"
"""Where the instances lie beside a checkout."""

CASES = Cases(OUT / "bench-solver")
"""An instance at a part of the contest's time limit."""

PARTS = (1.0, 0.25)

TIMEOUT = 900.0
"""Seconds that a case may take: three times the longest limit."""

NEAR = 0.01
"""Within this of the best known, relatively: the time until then is told."""

ABOUT = """## The contest's problems

`make bench-solver`: sharding problems of the ASPLOS 2025 contest (IOPDDL), at the contest's time limit and at a quarter
of it. Best known: the cheapest published cost that fits, whatever time and machine it took; the contest's had 8 cores,
the solver uses 2. Off: ours over best known, less one. The gap is between ours and our own lower bound. Seconds count
from before the file is read: until anything that fits was found (first), until ours was within 1 % of the best known
(near), and in all."""
"""What stands above the table in docs/results.md."""


def main(
    data: Annotated[Path, typer.Option(help="Folder of the instances.")] = DATA,
    instances: Annotated[list[str] | None, typer.Option("--instance", help="Only this; may be repeated.")] = None,
    parts: Annotated[list[float] | None, typer.Option("--part", help="Of the time limit; may be repeated.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what this revision has measured already.")] = False,
) -> None:
    """Solves the instances, and keeps the table of all cases measured so far in docs/results.md."""
    if not (data / "reference.csv").is_file():
        raise typer.BadParameter(f"{data} has no reference.csv; name the folder of the instances", param_hint="--data")
    found = sorted(path.name.removesuffix(".json.gz") for path in data.glob("*.json.gz"))
    selected = [(name, f"{part:g}") for name in instances or found for part in parts or PARTS]
    CASES.measure(selected, one_by_one(functools.partial(solved, data)), TIMEOUT, again)
    report()


def solved(data: Path, instance: str, part: str) -> dict[str, Any]:
    """Reads and solves an instance, as `meshwright solve` does; runs in a process of its own."""
    known = pd.read_csv(data / "reference.csv")
    known = known[known["instance"] == instance]
    limit = float(part) * float(known["timeout_s"].max())
    begun = time.perf_counter()
    problem = Problem.read(data / f"{instance}.json.gz")
    steps: list[tuple[float, float]] = []

    def hear(step: Progress) -> None:
        steps.append((time.perf_counter() - begun, step.cost))

    found = solve(problem, time_limit=limit - (time.perf_counter() - begun), progress=hear)
    seconds = time.perf_counter() - begun
    assert found.picks is None or problem.evaluate(found.picks).feasible, "what is kept fits"
    best = best_known(known)
    return {
        "limit_s": limit,
        "best_known": best,
        "cost": found.cost if found.picks is not None else None,
        "lower_bound": found.lower_bound,
        "status": found.status,
        "first_s": next((at for at, cost in steps if cost < math.inf), None),
        "near_s": next((at for at, cost in steps if cost <= (1 + NEAR) * best), None),
        "seconds": seconds,
    }


def best_known(known: pd.DataFrame) -> float:
    """The cheapest cost in an instance's lines that is no bound."""
    return float(known.loc[known["feasible"].isin(["yes", "as published"]), "cost"].min())


def report() -> None:
    """Prints the table of all stored cases, and keeps it as CSV and in docs/results.md."""
    CASES.tabulate(row, "the contest's problems", ABOUT)


def row(record: Mapping[str, Any]) -> dict[str, Any]:
    """One case's line in the table."""
    instance, part = record["case"]
    start = {"conditions": record["conditions"], "instance": instance, "of_limit": part}
    if "failure" in record:
        return start | {"status": f"failed: {record['failure']}"}
    cost = math.nan if record["cost"] is None else record["cost"]
    return start | {
        "limit_s": record["limit_s"],
        "cost": f"{cost:.0f}",
        "best_known": f"{record['best_known']:.0f}",
        "off_percent": 100 * (cost / record["best_known"] - 1),
        "bound": f"{record['lower_bound']:.0f}",
        "gap_percent": 100 * (1 - record["lower_bound"] / cost),
        "status": record["status"],
        "first_s": record["first_s"],
        "near_s": record["near_s"],
        "seconds": record["seconds"],
    }


if __name__ == "__main__":
    typer.run(main)
