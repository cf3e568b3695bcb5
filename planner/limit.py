"""Keeping within the memory of a device.

The problem's memory is what is alive at each program point: every stored value for as long as it lives, in the layout
of the node that decides it, and every resharded copy that several contractions share. Short-lived copies of one
consumer depend on two nodes at once, which the problem cannot say; so the answer's peak is measured by the prediction's
walk, and where it is above the limit the problem's is lowered by the difference and solved again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from planner.assignment import Assignment
from planner.errors import Infeasible
from planner.memory import Peak
from planner.predict import Prediction, Span, predict, spans
from planner.price import Priced
from planner.problem import Edge, Problem
from planner.quantities import bytes_text
from planner.solve import Solution, Status, smallest_limit, solve

ATTEMPTS = 5
"""How often the limit is lowered; each time by what the last answer was above it."""


def fit_memory(
    assignment: Assignment,
    unlimited: Solution,
    problem: Problem,
    starts: Mapping[str, tuple[int, ...]],
    donated: Sequence[bool],
    limit: float,
    time_limit: float,
) -> tuple[Assignment, Solution, Prediction]:
    """The best assignment whose peak is within `limit` bytes per device.

    Args:
        assignment, unlimited: the best without a limit; its bound holds with one too.
        time_limit: seconds for all attempts together.

    Raises:
        Infeasible: none was found; names the smallest peak that was, and what is alive there.
    """
    priced, deadline = assignment.priced, time.perf_counter() + max(1.0, time_limit)
    count = len(problem.costs)
    stored = with_memory(problem, priced, spans(assignment, donated))
    tried: list[tuple[Assignment, Solution, Prediction]] = []

    def attempt(solution: Solution) -> bool:
        if solution.picks is None:
            return False
        found = Assignment(priced, tuple(map(int, solution.picks[:count])))
        tried.append((found, solution, predict(found, donated)))
        return True

    def known(picks: Sequence[int]) -> Solution:
        status: Status = "start" if unlimited.status == "start" else "feasible"
        cost = problem.evaluate(picks[:count]).cost
        return Solution(np.array(picks), cost, unlimited.lower_bound, status, 0.0, "candidate")

    for picks in starts.values():
        attempt(known(picks))
    budget = limit
    for left in range(ATTEMPTS, 0, -1):
        seconds = max(0.1, (deadline - time.perf_counter()) / left)
        found = [extend(stored, entry[0].picks) for entry in tried]
        solution = solve(
            replace(stored, usage_limit=max(0.0, budget)),
            starts=found,
            time_limit=seconds,
        )
        if not attempt(solution):
            break
        over = tried[-1][2].peak_bytes - limit
        if over <= 0:
            break
        budget -= over
    if all(entry[2].peak_bytes > limit for entry in tried):
        _, lean = smallest_limit(stored, time_limit=max(1.0, deadline - time.perf_counter()))
        attempt(known(tuple(map(int, lean))))
    fitting = [entry for entry in tried if entry[2].peak_bytes <= limit]
    if not fitting:
        raise _infeasible(min((entry[2].peak for entry in tried), key=lambda peak: peak.nbytes), limit)
    return min(fitting, key=lambda entry: entry[1].cost)


def with_memory(problem: Problem, priced: Priced, live: Sequence[Span]) -> Problem:
    """The problem with a node for each stored array, which follows the node that lays it out."""
    costs, usages, intervals = list(problem.costs), list(problem.usages), list(problem.intervals)
    edges, names = list(problem.edges), list(problem.names)
    for span in live:
        index = len(costs)
        if span.node is None:
            costs.append(np.zeros(1))
            usages.append(np.array([span.nbytes]))
        else:
            usage = span.usage(priced)
            costs.append(np.zeros(usage.size))
            usages.append(usage)
            edges.append(Edge(span.node, index, np.where(np.eye(usage.size, dtype=bool), 0.0, np.inf)))
        intervals.append((span.start, span.end + 1))
        names.append(span.name)
    return Problem(tuple(costs), tuple(usages), tuple(intervals), tuple(edges), None, tuple(names), problem.name)


def extend(stored: Problem, picks: Sequence[int]) -> tuple[int, ...]:
    """Picks of the problem without memory, with those of the stored arrays that follow."""
    follows = {edge.head: edge.tail for edge in stored.edges if edge.head >= len(picks)}
    extra = (picks[follows[node]] if node in follows else 0 for node in range(len(picks), len(stored.costs)))
    return (*picks, *extra)


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
