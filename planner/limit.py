"""Keeping within the memory of a device.

The problem's memory is what is alive at each program point: every stored value and every resharded copy, for as long as
they lived in the assignment at hand. Those lifetimes differ a little from one assignment to another; so each answer's
peak is measured by the prediction's walk, and where that is above the limit the problem's is lowered by the difference
and solved again. Whatever was tried on the way counts, and the cheapest that fits is the answer. What the problem takes
for equal the walk may tell apart: in small programs each answer is bettered op by op.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.assignment import Assignment
from planner.decisions import REPLICATED
from planner.errors import Infeasible
from planner.lifetimes import Lifetime, Stored, lifetimes
from planner.memory import Peak
from planner.predict import Prediction, predict
from planner.price import Priced
from planner.problem import Edge, IntArray, Problem
from planner.quantities import bytes_text
from planner.solve import Solution, Status, smallest_limit, solve
from planner.solve.incumbent import OPTIMAL_GAP

ATTEMPTS = 5
"""How often the limit is lowered; each time by what the last answer was above it."""

FEW = 1000
"""Where the ops have no more strategies in all, an answer is compared with all that differ from it in one op."""

PASSING, MANY = 0.01, 500
"""Where there are many arrays, short-lived ones of less than this part of the peak without a limit get no node."""


@dataclass(frozen=True, eq=False)
class Fit:
    """An assignment that was tried.

    Attributes:
        cost: what the problem says of it.
    """

    assignment: Assignment
    cost: float
    prediction: Prediction


def fit_memory(
    assignment: Assignment,
    unlimited: Solution,
    problem: Problem,
    starts: Mapping[str, tuple[int, ...]],
    donors: Sequence[int | None],
    limit: float,
    time_limit: float,
) -> tuple[Assignment, Solution, Prediction]:
    """The best assignment found whose peak is within `limit` bytes per device.

    Args:
        assignment, unlimited: the best without a limit; its bound holds with one too, and nothing else is proven.
        starts: the hand-written layouts.
        time_limit: seconds for all attempts together.

    Raises:
        Infeasible: none was found; names the smallest peak that was, and what is alive there.
    """
    search = _Search(problem, donors, limit, time.perf_counter() + max(1.0, time_limit))
    for picks in (assignment.picks, *starts.values()):
        search.fit(assignment.priced, picks)
    if unlimited.status != "start" or not search.fitting:
        search.run()
    if not search.fitting:
        raise _infeasible(min((each.prediction.peak for each in search.tried), key=lambda peak: peak.nbytes), limit)
    best = min(search.fitting, key=lambda each: each.cost)
    return best.assignment, _solution(best, unlimited, starts), best.prediction


class _Search:
    """What was tried, and how to go on from there."""

    def __init__(self, problem: Problem, donors: Sequence[int | None], limit: float, deadline: float):
        self.tried: list[Fit] = []
        self._problem, self._donors = problem, donors
        self._limit, self._deadline = limit, deadline

    @property
    def fitting(self) -> list[Fit]:
        return [each for each in self.tried if each.prediction.peak_bytes <= self._limit]

    @property
    def _left_seconds(self) -> float:
        return self._deadline - time.perf_counter()

    def fit(self, priced: Priced, picks: Sequence[int] | IntArray) -> Fit:
        self.tried.append(self._fit(priced, picks))
        return self.tried[-1]

    def _fit(self, priced: Priced, picks: Sequence[int] | IntArray) -> Fit:
        found = Assignment(priced, tuple(map(int, picks[: len(self._problem.costs)])))
        return Fit(found, self._problem.evaluate(found.picks).cost, predict(found, self._donors))

    def run(self) -> None:
        """Looks around the best without a limit; if nothing fits there, around what needs least."""
        self._cheapest_around(self.tried[0], self._left_seconds / 2)
        if not self.fitting:
            # From the same place whatever the limit, so that what is found for one is found for another.
            leanest = self._leanest_around(self.tried[0])
            if not self.fitting:
                leanest = self._leanest_around(min(self.tried, key=lambda each: each.prediction.peak_bytes))
            if self.fitting:
                self._cheapest_around(leanest, self._left_seconds)
        if self.fitting:
            cheapest = min(self.fitting, key=lambda each: each.cost)
            self._bettered(cheapest, lambda each: (each.prediction.peak_bytes > self._limit, each.cost))

    def _cheapest_around(self, place: Fit, seconds: float) -> None:
        """Adds the cheapest that fits, if there is one and the seconds suffice to find it."""
        until = time.perf_counter() + seconds
        stored, budget = self._with_memory(place), self._limit
        for _ in range(ATTEMPTS):
            solution = solve(
                replace(stored, usage_limit=max(0.0, budget)),
                starts=[extend(stored, each.assignment.picks) for each in self.tried],
                time_limit=max(0.1, (until - time.perf_counter()) / 2),
            )
            if solution.picks is None:
                return
            over = self.fit(place.assignment.priced, solution.picks).prediction.peak_bytes - self._limit
            if over <= 0:
                return
            budget -= over

    def _leanest_around(self, place: Fit) -> Fit:
        for _ in range(ATTEMPTS):
            stored = self._with_memory(place)
            start = extend(stored, place.assignment.picks)
            _, picks = smallest_limit(stored, time_limit=max(1.0, self._left_seconds / 2), start=start)
            found = self.fit(place.assignment.priced, picks)
            if found.prediction.peak_bytes >= place.prediction.peak_bytes:
                break
            place = found
        return self._bettered(place, lambda each: (each.prediction.peak_bytes, each.cost))

    def _bettered(self, place: Fit, badness: Callable[[Fit], tuple[float, float]]) -> Fit:
        """Changes one op after the other, each time the one that helps most, until none does."""
        priced, strategies = place.assignment.priced, [range(costs.size) for costs in self._problem.costs]
        while sum(map(len, strategies)) <= FEW and self._left_seconds > 0:
            picks = place.assignment.picks
            around = [
                (*picks[:node], other, *picks[node + 1 :])
                for node, others in enumerate(strategies)
                for other in others
                if other != picks[node]
            ]
            in_time = itertools.takewhile(lambda _: self._left_seconds > 0, around)
            allowed = (each for each in in_time if self._problem.evaluate(each).cost < math.inf)
            best = min((self._fit(priced, each) for each in allowed), key=badness, default=place)
            if badness(best) >= badness(place):
                break
            place = best
            self.tried.append(best)
        return place

    @property
    def _unlimited_peak(self) -> float:
        return self.tried[0].prediction.peak_bytes

    def _with_memory(self, place: Fit) -> Problem:
        live = lifetimes(place.assignment, self._donors)
        passing = PASSING * self._unlimited_peak if len(live) > MANY else 0.0
        return with_memory(self._problem, place.assignment.priced, live, passing)


def _solution(best: Fit, unlimited: Solution, starts: Mapping[str, tuple[int, ...]]) -> Solution:
    """What is known of the best that fits: that no assignment costs less than the bound without a limit."""
    status: Status = "feasible"
    if best.cost <= (1 + OPTIMAL_GAP) * unlimited.lower_bound:
        status = "optimal"
    elif unlimited.status == "start" and best.assignment.picks in starts.values():
        status = "start"
    return replace(unlimited, picks=np.array(best.assignment.picks), cost=best.cost, status=status)


def with_memory(problem: Problem, priced: Priced, live: Sequence[Lifetime], passing: float) -> Problem:
    """The problem with a node of no cost for each array in memory, which follows the nodes that lay it out.

    Args:
        passing: copies and scratch of no more bytes than this are left out.
    """
    costs, usages, intervals = list(problem.costs), list(problem.usages), list(problem.intervals)
    edges, names = list(problem.edges), list(problem.names)
    for array in live:
        follower = array.follower(priced)
        if follower.usage.max() <= (0.0 if isinstance(array, Stored) else passing):
            continue
        for node, allowed in follower.links:
            tail = len(problem.costs) - 1 if node == REPLICATED else node
            edges.append(Edge(tail, len(costs), np.where(allowed, 0.0, np.inf)))
        costs.append(np.zeros(follower.usage.size))
        usages.append(follower.usage)
        intervals.append((array.start, array.end + 1))
        names.append(array.name)
    return Problem(tuple(costs), tuple(usages), tuple(intervals), tuple(edges), None, tuple(names), problem.name)


def extend(stored: Problem, picks: Sequence[int]) -> tuple[int, ...]:
    """Picks of the problem without memory, with the states of the arrays in memory that follow."""
    needed = [usage.copy() for usage in stored.usages[len(picks) :]]
    for edge in stored.edges:
        if edge.head >= len(picks):
            needed[edge.head - len(picks)] += edge.cost[picks[edge.tail]]
    return (*picks, *(int(usage.argmin()) for usage in needed))


def _infeasible(peak: Peak, limit: float) -> Infeasible:
    at = f" at {peak.source}" if peak.source else ""
    largest = ", ".join(
        f"{array.name} {bytes_text(array.nbytes)}" + (f" ({array.source})" if array.source else "")
        for array in peak.largest[:5]
    )
    return Infeasible(
        f"no plan fits {bytes_text(limit)} per device; the smallest needs {bytes_text(peak.nbytes)}{at}. "
        f"Largest there: {largest}",
        peak.nbytes,
    )
