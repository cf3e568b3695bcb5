"""Valid plans whose every decision is drawn at random: a model is easily right about the layouts that people write."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from planner import Plan


def random_plans(planned: Plan, count: int) -> Mapping[str, Plan]:
    """So many plans of the same problem, the same ones every time, by name."""
    drawn = random.Random(0)
    found = {}
    for number in range(1, 1 + count):
        picks = tuple(drawn.randrange(len(costs)) for costs in planned.problem.costs)
        choice = planned.choice.instead(picks, planned.request.donors)
        found[f"random {number}"] = replace(planned, choice=choice, strategy=f"random {number}")
    return found
