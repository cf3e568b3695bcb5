"""Timing planned functions on the devices they are planned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from executor.race import Program, compile_programs, race
from planner import Plan

TRACED_CALLS = 3


@dataclass(frozen=True)
class Measurement:
    """How long calls took, each until its results were ready.

    Attributes:
        samples: seconds, in the order they were taken.
        compile_seconds: what compiling took.
    """

    samples: tuple[float, ...]
    compile_seconds: float

    @property
    def median_seconds(self) -> float:
        return float(np.median(self.samples))

    @property
    def min_seconds(self) -> float:
        return min(self.samples)

    def quantile_seconds(self, fraction: float) -> float:
        """The time that this fraction of the calls stayed below."""
        return float(np.quantile(self.samples, fraction))


def measure(plan: Plan, args: Sequence[Any], *, repeats: int = 20, trace_dir: str | Path | None = None) -> Measurement:
    """Times calls of one planned function, after a few that warm up.

    Args:
        args: real arrays of the plan's shapes, laid out in any way; they are copied, so that donation takes nothing.
        repeats: timed calls.
        trace_dir: a folder for what `jax.profiler` records of a few more calls, which are not timed; it holds a
            `perfetto_trace.json.gz`, to be seen beside what `Plan.to_trace` predicts.
    """
    (program,), (taken,) = _timed({"": plan}, args, repeats)
    if trace_dir is not None:
        record(program, args, trace_dir)
    return Measurement(taken, program.compile_seconds)


def record(program: Program, args: Sequence[Any], trace_dir: str | Path) -> None:
    """Records a few calls with `jax.profiler`, after one that warms up."""
    runner = program.runner(args)
    runner.seconds()
    with jax.profiler.trace(str(trace_dir), create_perfetto_trace=True):
        for _ in range(TRACED_CALLS):
            runner.seconds()


def measure_interleaved(
    plans: Mapping[str, Plan], args: Sequence[Any], *, repeats: int = 20
) -> Mapping[str, Measurement]:
    """Times several plans of one function in turns, so that a machine whose speed drifts favours none of them.

    Plans that come out as the same program share a measurement.
    """
    return {
        name: Measurement(taken, program.compile_seconds)
        for program, taken in zip(*_timed(plans, args, repeats), strict=True)
        for name in program.names
    }


def _timed(
    plans: Mapping[str, Plan], args: Sequence[Any], repeats: int
) -> tuple[list[Program], list[tuple[float, ...]]]:
    """Each different program, and the seconds of its calls."""
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; time at least one call")
    programs = compile_programs(plans)
    return programs, race(programs, args, least_rounds=repeats, least_seconds=0.0)
