"""Timing planned functions on the devices they are planned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.race import compile_programs, race
from planner import Plan


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


def measure(plan: Plan, args: Sequence[Any], *, repeats: int = 20) -> Measurement:
    """Times calls of one planned function, after a few that warm up.

    Args:
        args: real arrays of the plan's shapes, laid out in any way; they are copied, so that donation takes nothing.
        repeats: timed calls.
    """
    return measure_interleaved({"": plan}, args, repeats=repeats)[""]


def measure_interleaved(
    plans: Mapping[str, Plan], args: Sequence[Any], *, repeats: int = 20
) -> Mapping[str, Measurement]:
    """Times several plans of one function in turns, so that a machine whose speed drifts favours none of them.

    Plans that come out as the same program share a measurement.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; time at least one call")
    programs = compile_programs(plans)
    samples = race(programs, args, least_rounds=repeats, least_seconds=0.0)
    return {
        name: Measurement(taken, program.compile_seconds)
        for program, taken in zip(programs, samples, strict=True)
        for name in program.names
    }
