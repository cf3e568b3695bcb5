"""`make bench-plans`: is the plan as fast as the best layout that people write by hand, for every workload and mesh?

A case is one workload on one mesh: the plan and all hand-written layouts timed in turns, in a process of its own.
Layouts that come out as one program are timed as one. A case that this revision has measured already is not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import typer

from executor.race import compile_programs, contenders, race
from experiments.cases import Cases, offer_devices, one_by_one, planned_case
from experiments.results import OUT

MESHES = ("8", "2x4", "2x2x2")
TARGET_RATIO = 1.05
"""A plan may take this many times as long as the best hand-written layout."""
FAR_BEHIND = 1.4
"""A layout that takes this many times the second fastest's time is timed no further."""
LEAST_ROUNDS = 61
LEAST_SECONDS = 1.5
"""Of each program's calls together. Medians of less scatter by more than `TARGET_RATIO` allows."""
RESAMPLES = 1000
CASES = Cases(OUT / "bench-plans")
ABOUT = f"""## Plans against layouts written by hand

`make bench-plans`: each workload on each mesh of eight CPU devices. Milliseconds are medians of one step, all
layouts taking turns. The ratio is the plan's over the best hand-written layout's; in 95 % of resampled measurements
it lies between low and high. At most {TARGET_RATIO:g} is wanted; "same program" means that the best layout by hand is
what the plan is."""
"""What stands above the table in docs/results.md."""


@dataclass(frozen=True)
class Timed:
    """A program's calls.

    Attributes:
        names: the layouts that are this program.
        predicted_seconds: by the model, of the first of them.
        samples: seconds of each call.
    """

    names: list[str]
    predicted_seconds: float
    samples: list[float]

    @property
    def median_seconds(self) -> float:
        return float(np.median(self.samples))


@dataclass(frozen=True)
class Verdict:
    """How the plan stands against the best hand-written layout.

    Attributes:
        best: the fastest program that is a hand-written layout; the plan's own where that is the one.
        ratio: the plan's median over the best one's.
        low, high: that ratio in 95 % of the resampled measurements.
    """

    planned: Timed
    best: Timed
    ratio: float
    low: float
    high: float

    @property
    def text(self) -> str:
        if self.best is self.planned:
            return "same program"
        if self.ratio <= TARGET_RATIO:
            return "yes"
        return "no" if self.low > TARGET_RATIO else "within noise"


def measure_case(workload_name: str, mesh: str) -> dict[str, Any]:
    """A `Timed` as a record for each program, under "programs". Runs in a process of its own, on CPU devices."""
    offer_devices(mesh)
    work, planned = planned_case(workload_name, mesh)
    programs = compile_programs(contenders(planned))
    args = work.make_args(jax.random.key(0))
    samples = race(programs, args, least_rounds=LEAST_ROUNDS, least_seconds=LEAST_SECONDS, far_behind=FAR_BEHIND)
    timed = [
        asdict(Timed(list(program.names), program.plan.prediction.step_seconds, list(taken)))
        for program, taken in zip(programs, samples, strict=True)
    ]
    return {"programs": timed}


def report() -> None:
    """Prints the table of all stored cases, and keeps it as CSV and in docs/results.md."""
    CASES.tabulate(row, "plans against the best hand-written layout", ABOUT)


def row(record: Mapping[str, Any]) -> dict[str, Any]:
    """One case's line in the table."""
    name, mesh = record["case"]
    start = {"conditions": record["conditions"], "workload": name, "mesh": mesh}
    if "failure" in record:
        return start | {f"at_most_{TARGET_RATIO:g}": f"failed: {record['failure']}"}
    found = verdict([Timed(**timed) for timed in record["programs"]])
    return start | {
        "planned_ms": found.planned.median_seconds * 1e3,
        "best_by_hand_ms": found.best.median_seconds * 1e3,
        "best_by_hand": next(name for name in found.best.names if name != "planned"),
        "ratio": found.ratio,
        "ratio_low": found.low,
        "ratio_high": found.high,
        f"at_most_{TARGET_RATIO:g}": found.text,
        "calls": len(found.planned.samples),
    }


def verdict(programs: Sequence[Timed]) -> Verdict:
    """The plan against the best hand-written layout, with what resampling the calls makes of their ratio."""
    planned = next(timed for timed in programs if "planned" in timed.names)
    by_hand = [timed for timed in programs if set(timed.names) - {"planned"}]
    best = min(by_hand, key=lambda timed: timed.median_seconds)
    if best is planned:
        return Verdict(planned, best, 1.0, 1.0, 1.0)
    random = np.random.default_rng(0)
    fastest = np.min([resampled_medians(timed, random) for timed in by_hand if timed is not planned], axis=0)
    low, high = np.quantile(resampled_medians(planned, random) / fastest, (0.025, 0.975))
    return Verdict(planned, best, planned.median_seconds / best.median_seconds, float(low), float(high))


def resampled_medians(timed: Timed, random: np.random.Generator) -> np.ndarray:
    """`[RESAMPLES]` medians of as many calls as there were, drawn from them with replacement."""
    return np.median(random.choice(timed.samples, (RESAMPLES, len(timed.samples))), axis=1)


if __name__ == "__main__":
    about = "Times plans against hand-written layouts, and keeps the table in docs/results.md."
    typer.run(CASES.command(MESHES, one_by_one(measure_case), report, 600.0, about))
