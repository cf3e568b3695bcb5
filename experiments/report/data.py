"""What the figures are drawn from: the rows of a directory, and the details of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.report.style import kind_of
from experiments.runner.columns import KEY, frame_of
from experiments.runner.directory import Damage, details_path, read_results, read_suite_record

STEPS = [
    "case", "strategy", "kind", "measured", "low", "high", "times_plan", "times_plan_low", "times_plan_high",
    "predicted", "predicted_peak", "compiled_peak", "compute", "overhead",
]  # fmt: skip


@dataclass(frozen=True)
class Results:
    """A directory of results, read.

    Attributes:
        frame: a row for each run, with `case`, its workload, mesh and size in words, and `kind` of strategy.
        suite: as `Suite.record` wrote it.
    """

    directory: Path
    frame: pd.DataFrame
    damaged: tuple[Damage, ...]
    suite: Mapping[str, Any]

    @cached_property
    def cases(self) -> list[str]:
        """In the order in which they were run."""
        return list(dict.fromkeys(self.frame.case))

    @cached_property
    def strategies(self) -> list[str]:
        """In the order in which they were run."""
        return list(dict.fromkeys(self.frame.strategy))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row for each case and strategy that was timed or predicted, over all repeats.

        `measured`, `predicted`: seconds, medians over the repeats. `low`, `high`: the least and the greatest of the
        repeats' medians, or where there is one repeat the middle half of its calls. `times_plan`, with `_low` and
        `_high`: step time over the plan's where they took turns; of several repeats the median, least and greatest.
        """
        ran = self.frame[self.frame.status.isin(["ok", "predicted"])]
        rows = []
        for (case, strategy), part in ran.groupby(["case", "strategy"], sort=False):
            measured = part.measured_step_seconds
            one = part.iloc[0]
            repeated = len(part) > 1
            low, high = (
                (measured.min(), measured.max()) if repeated else (one.measured_p25_seconds, one.measured_p75_seconds)
            )
            rows.append(
                {
                    "case": case,
                    "strategy": strategy,
                    "kind": kind_of(str(strategy)),
                    "measured": measured.median(),
                    "low": low,
                    "high": high,
                    "times_plan": part.times_plan.median(),
                    "times_plan_low": part.times_plan.min() if repeated else one.times_plan_low,
                    "times_plan_high": part.times_plan.max() if repeated else one.times_plan_high,
                    "predicted": part.predicted_step_seconds.median(),
                    "predicted_peak": part.predicted_peak_bytes.median(),
                    "compiled_peak": part.compiled_peak_bytes.median(),
                    "compute": one.predicted_compute_seconds,
                    "overhead": one.predicted_overhead_seconds,
                }
            )
        return pd.DataFrame(rows, columns=STEPS)

    @cached_property
    def races(self) -> pd.DataFrame:
        """For each case how the plan stands against the best layout by hand, `best`, where they took turns.

        `planned`: the plan's seconds. `speed_up`: the best one's time over the plan's. `verdict`: ahead or behind where
        that is beyond noise, else level.
        """
        rows = []
        for case, part in self.steps.dropna(subset=["times_plan"]).groupby("case", sort=False):
            by_hand = part[part.kind == "by hand"]
            planned = part[part.strategy == "planned"]
            if len(by_hand) and len(planned):
                best = by_hand.sort_values("times_plan").iloc[0]
                beyond = "ahead" if best.times_plan_low > 1 else "behind" if best.times_plan_high < 1 else "level"
                row = {"case": case, "planned": planned.measured.iloc[0], "best": best.strategy}
                rows.append({**row, "speed_up": best.times_plan, "verdict": beyond})
        return pd.DataFrame(rows, columns=["case", "planned", "best", "speed_up", "verdict"])

    def details(self, case: str, strategy: str) -> Mapping[str, Any]:
        """Of the first run that has some; empty if none has."""
        part = self.frame[(self.frame.case == case) & (self.frame.strategy == strategy)]
        for key in part[list(KEY)].itertuples(index=False, name=None):
            try:
                found: dict[str, Any] = json.loads(details_path(self.directory, key).read_text())
            except (OSError, ValueError):
                continue
            return found
        return {}

    def speed_up(self) -> float:
        """Time of the best layout by hand over the plan's: the geometric mean over all cases; NaN without any."""
        return float(np.exp(np.log(self.races.speed_up).mean()))


def read(directory: Path) -> Results:
    """Reads a directory of results; lines that are damaged are left out and told.

    Raises:
        ResultsError: there are none.
    """
    rows, damaged = read_results(directory)
    frame = frame_of(rows)
    sizes = frame["size"].nunique() > 1
    words = frame.workload + " · " + frame.mesh + ((" · " + frame["size"]) if sizes else "")
    frame = frame.assign(case=words, kind=frame.strategy.map(kind_of))
    return Results(directory, frame, tuple(damaged), read_suite_record(directory))
