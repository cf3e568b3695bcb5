"""Two directories of results: what became faster or slower from one to the other, beyond noise.

Runs of one workload, size, mesh, strategy and repeat are a pair; d = log(time in B / time in A). What the pairs of one
layout have in common is its change, the mean of their d. How far they scatter around it is noise, taken to be one
standard deviation s for all layouts of the two directories and estimated from all of them together:

    s² = Σ (d − mean of its layout)² / Σ (pairs − 1)

The interval is the mean ± t s / √pairs, with Student's t of as many degrees of freedom as that denominator. Where
no run was repeated, s is how far the layouts scatter around their median change, by the median of the absolute
deviations: that most of them changed alike is all that there is to go by. In either case s is not taken to be less
than what the calls within the runs say of their medians. Over many layouts some differ by chance: a change counts
if its p-value stays below 5 % after Benjamini and Hochberg's correction for their number.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from experiments.runner.columns import KEY, frame_of
from experiments.runner.directory import ResultsError, read_results

LAYOUT = ["workload", "size", "mesh", "strategy"]
LEVEL = 0.05
MEDIAN_SPREAD = 1.2533
"""The standard error of a median of n normal numbers is this times their deviation over √n; √(π/2)."""
QUARTILE_SPAN = 1.349
"""Standard deviations between the quartiles of a normal distribution."""


@dataclass(frozen=True)
class Comparison:
    """What changed.

    Attributes:
        table: a row for each layout in both directories: `ratio` of times, B over A, `low` and `high` of its 95 %
            interval, `pairs`, `p`, and `verdict`: faster, slower or within noise.
        ratio: of all layouts, the geometric mean.
        noise: relative standard deviation of a pair.
        repeated: whether the noise was seen between repeats; if not, it is taken from the layouts' scatter.
        machine: the time of the fixed product that runs time beside their steps, B over A; NaN where they did not.
        only_before, only_after: runs that the other directory lacks, or that failed there.
    """

    table: pd.DataFrame
    ratio: float
    noise: float
    repeated: bool
    machine: float
    only_before: int
    only_after: int


def compare(before: Path, after: Path) -> Comparison:
    """Holds one directory of results against another.

    Raises:
        ResultsError: one of them holds no results, or they have no timed run in common.
    """
    times = [_timed(directory) for directory in (before, after)]
    pairs = times[0].merge(times[1], on=list(KEY), suffixes=("_before", "_after"))
    if pairs.empty:
        raise ResultsError(f"{before} and {after} have no timed run in common; compare two runs of one suite")
    pairs = pairs.assign(
        change=np.log(pairs.time_after / pairs.time_before), error=np.hypot(pairs.error_before, pairs.error_after)
    )
    within = float(np.sqrt((pairs.error**2).mean()))
    groups = pairs.groupby(LAYOUT, sort=False)
    repeats = len(pairs) - len(groups)
    if repeats:
        scatter = float(((pairs.change - groups.change.transform("mean")) ** 2).sum())
        between, freedom = math.sqrt(scatter / repeats), repeats
    else:
        between, freedom = float(stats.median_abs_deviation(pairs.change, scale="normal")), len(groups) - 1
    noise = max(within, between)
    table = _judged(groups.agg(change=("change", "mean"), pairs=("change", "size")).reset_index(), noise, freedom)
    return Comparison(
        table,
        math.exp(float(table.change.mean())),
        math.expm1(noise),
        repeats > 0,
        float((pairs.reference_after / pairs.reference_before).median()),
        len(times[0]) - len(pairs),
        len(times[1]) - len(pairs),
    )


def _timed(directory: Path) -> pd.DataFrame:
    """Each run's median time, the relative standard error that its calls say it has, and the fixed product's time."""
    rows, _ = read_results(directory)
    frame = frame_of(row for row in rows if row["measured_step_seconds"])
    span = (frame.measured_p75_seconds - frame.measured_p25_seconds) / frame.measured_step_seconds
    error: pd.Series[float] = MEDIAN_SPREAD * span / QUARTILE_SPAN / np.sqrt(frame.calls.astype(float))
    frame = frame.assign(time=frame.measured_step_seconds, error=error.fillna(0.0), reference=frame.reference_seconds)
    return frame[[*KEY, "time", "error", "reference"]]


def _judged(table: pd.DataFrame, noise: float, freedom: int) -> pd.DataFrame:
    """With ratio, interval, p-value and verdict for each layout's mean change."""
    error = noise / np.sqrt(table.pairs)
    spread = stats.t(freedom) if freedom else stats.norm()
    reach = spread.ppf(1 - LEVEL / 2) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.where(error > 0, 2 * spread.sf(np.abs(table.change / error)), np.where(table.change == 0, 1.0, 0.0))
    sure = stats.false_discovery_control(p) < LEVEL
    verdict = np.where(~sure, "within noise", np.where(table.change < 0, "faster", "slower"))
    return table.assign(
        ratio=np.exp(table.change),
        low=np.exp(table.change - reach),
        high=np.exp(table.change + reach),
        p=p,
        verdict=verdict,
    )


def comparison_text(before: Path, after: Path) -> str:
    """The comparison for people: what changed first, then the rest, then how sure that is."""
    found = compare(before, after)
    lines = [f"Step times of {after} (B) over those of {before} (A); below 1 is faster.", ""]
    for verdict in ("slower", "faster", "within noise"):
        part = found.table[found.table.verdict == verdict]
        part = part.sort_values("ratio", ascending=verdict != "slower")
        lines += [f"{verdict.capitalize()}: {len(part) or 'none'}", *map(_line, part.to_dict("records")), ""]
    seen = "seen between repeats" if found.repeated else "by how far the layouts scatter, for want of repeats"
    lines += [
        f"All {len(found.table)} layouts together: {found.ratio:.3f}. The directories were measured one after the",
        "other: a machine that changed its speed meanwhile moves them all alike.",
        f"Noise of a pair of runs: {found.noise:.1%}, {seen}.",
    ]
    if math.isfinite(found.machine):
        lines.append(f"The machine itself, by a fixed product timed beside each run: {found.machine:.3f}.")
    for count, where in ((found.only_before, before), (found.only_after, after)):
        if count:
            lines.append(f"Runs that were timed in {where} alone: {count}.")
    return "\n".join(lines)


def _line(row: Mapping[Hashable, Any]) -> str:
    name = f"{row['workload']} on {row['mesh']}, {row['strategy']}"
    pairs = "1 pair" if row["pairs"] == 1 else f"{row['pairs']} pairs"
    return f"  {name:<44} {row['ratio']:.3f}  ({row['low']:.3f} to {row['high']:.3f}, {pairs})"
