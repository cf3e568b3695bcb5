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
        name = f"random {number}"
        found[name] = replace(_drawn(planned, drawn), strategy=name)
    return found


def random_plan(planned: Plan, seed: int) -> Plan:
    """One plan of the same problem, the same for the same seed."""
    return replace(_drawn(planned, random.Random(seed)), strategy="random")


def _drawn(planned: Plan, drawn: random.Random) -> Plan:
    picks = tuple(drawn.randrange(len(costs)) for costs in planned.problem.costs)
    return replace(planned, choice=planned.choice.instead(picks))
