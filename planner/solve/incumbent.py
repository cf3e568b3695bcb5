"""The best answer so far, as the outside sees it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from planner.problem import IntArray, Problem
from planner.solve.clock import Clock

OPTIMAL_GAP = 1e-6
"""Relative: CP-SAT counts costs in whole units, and proves no more than that."""

Status = Literal["optimal", "feasible", "infeasible", "start", "unknown"]


@dataclass(frozen=True, eq=False)
class Solution:
    """What `solve` found.

    Attributes:
        picks: a strategy's index per node, or None if no assignment that fits is known.
        cost: what the picks cost, in seconds; `inf` without picks.
        lower_bound: seconds; no assignment that fits costs less.
        status: "optimal": proven, to a gap of `OPTIMAL_GAP`.
            "feasible": the search found it, or could not beat the start, before time was up.
            "start": the best start as given; there was no time to try anything else.
            "infeasible": proven that nothing fits.
            "unknown": neither an assignment that fits was found, nor a proof that there is none.
        seconds: how long it took.
        method: what closed the gap or came last: "presolve", "elimination", "dual", "cp-sat", "search";
            or "start", "interrupted".
    """

    picks: IntArray | None
    cost: float
    lower_bound: float
    status: Status
    seconds: float
    method: str

    @property
    def gap(self) -> float:
        """How much of the cost is not proven necessary: 0 when optimal, `inf` without picks."""
        if self.picks is None:
            return math.inf
        missing = max(0.0, self.cost - self.lower_bound)
        return missing / abs(self.cost) if missing else 0.0


@dataclass(frozen=True)
class Progress:
    """How far a solve has come, at the moment it found something better."""

    seconds: float
    cost: float
    lower_bound: float


class Incumbent:
    """Keeps the best assignment that fits, as the problem itself scores it, and the best bound."""

    def __init__(self, problem: Problem, clock: Clock, report: Callable[[Progress], None] | None):
        self.problem = problem
        self.clock = clock
        self.report = report
        self.picks: IntArray | None = None
        self.cost = math.inf
        self.lower_bound = -math.inf
        self.method = "start"

    def offer(self, picks: IntArray) -> None:
        found = self.problem.evaluate(picks)
        if found.feasible and found.cost < self.cost:
            self.picks, self.cost = picks.copy(), found.cost
            self.tell()

    def raise_bound(self, lower_bound: float) -> None:
        if lower_bound > self.lower_bound:
            self.lower_bound = lower_bound
            self.tell()

    def tell(self) -> None:
        if self.report is not None:
            self.report(Progress(self.clock.elapsed, self.cost, self.lower_bound))
