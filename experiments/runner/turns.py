"""A layout timed in turns with the plan: a machine that changes its speed meanwhile does so for both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from executor.race import Program, lower, race
from experiments.runner.trial import Trial
from planner import Plan

MEMORY_PART = 0.5
"""Of a device's memory, that two programs may take together; their arguments are there in two copies for a moment."""
RESAMPLES = 1000


def timed(
    trial: Trial, program: Program, lowered: jax.stages.Lowered, peak_bytes: float, plan: Plan, args: Sequence[Any]
) -> tuple[tuple[float, ...], dict[str, float]]:
    """Times a layout's program, in turns with the plan's where memory takes both.

    Args:
        lowered: what the program was compiled from.
        peak_bytes: what it takes on a device.

    Returns:
        seconds of each call, and the columns on how many times the plan's that is, if both were timed.
    """
    rivals: list[Program] = []
    if together := plan.prediction.peak_bytes + peak_bytes <= MEMORY_PART * plan.choice.priced.cost.device.memory_bytes:
        own = lower(plan)
        if own.as_text() != lowered.as_text():
            begun = time.perf_counter()
            rivals.append(Program(("planned",), plan, own.compile(), time.perf_counter() - begun))
    samples, *others = race([program, *rivals], args, least_rounds=trial.calls, least_seconds=trial.seconds)
    ratios = times_plan(samples, others[0] if others else samples)
    return samples, ratios if together else {}


def times_plan(samples: Sequence[float], of_plan: Sequence[float]) -> dict[str, float]:
    """The ratio of medians over rounds in which both were timed, and 95 % of what resampling the rounds gives."""
    rounds = np.array([samples, of_plan])
    drawn = np.random.default_rng(0).integers(len(samples), size=(RESAMPLES, len(samples)))
    layout, plan = np.median(rounds, axis=1)
    layouts, plans = np.median(rounds[:, drawn], axis=2)
    low, high = np.quantile(layouts / plans, (0.025, 0.975))
    return {"times_plan": float(layout / plan), "times_plan_low": float(low), "times_plan_high": float(high)}
