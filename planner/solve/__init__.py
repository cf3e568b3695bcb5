"""Solves a `Problem`: exactly where the time allows, else the best found with a bound on what is possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.problem import IntArray, Problem, ProblemError
from planner.solve import ilp
from planner.solve.clock import Clock
from planner.solve.eliminate import fold_chains
from planner.solve.incumbent import OPTIMAL_GAP, Incumbent, Progress, Solution, Status
from planner.solve.known import is_closed
from planner.solve.model import Model, Reduction, unreduced
from planner.solve.presolve import shrink
from planner.solve.rows import Impossible
from planner.solve.squeeze import cheapest_without_limit, close_gap, close_gap_apart
from planner.solve.ties import without_ties

__all__ = ["Progress", "Solution", "Status", "smallest_limit", "solve"]

THRIFTY_TIME = 0.3
"""The part of the time for the smallest limit that goes into finding an assignment of little memory to start from."""


def solve(
    problem: Problem,
    *,
    starts: Sequence[Sequence[int] | IntArray] = (),
    time_limit: float = 30.0,
    work_limit: float | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """Picks a strategy for every node so that the cost is least and memory stays within the limit.

    The memory limit is left out first: if the optimum without it fits, that is the answer. Ctrl-C ends the search with
    the best so far.

    Args:
        starts: assignments that are known; the result is never worse than the best of them that fits.
        time_limit: seconds; with 0 the best start is returned, and a bound.
        work_limit: work to do, if the time suffices for it; a unit is about what a core does in a second. The answer is
            then the same in every run.
        seed: of the random choices.
        progress: called whenever the cost or the bound improves.

    Raises:
        ProblemError: a start is not an assignment of the problem.
    """
    clock = Clock.of(time_limit, work_limit)
    best = Incumbent(problem, clock, progress)
    for start in starts:
        best.offer(np.asarray(start, dtype=np.int64))
    whole = without_ties(problem)
    best.raise_bound(whole.model.trivial_bound())
    if not clock.expired:
        try:
            with clock.stopped_by_interrupt():
                _search(whole, starts, best, clock, seed)
        except Impossible:
            best.raise_bound(best.cost)
            best.method = "presolve"
        except KeyboardInterrupt:
            best.method = "interrupted"
    return _solution(best)


def _search(
    whole: Reduction, starts: Sequence[Sequence[int] | IntArray], best: Incumbent, clock: Clock, seed: int
) -> None:
    fitting = shrink(whole.model, clock) if whole.model.rows else unreduced(whole.model)
    if clock.expired:
        return

    def near(picks: Sequence[int] | IntArray) -> IntArray:
        return fitting.project(whole.project(np.asarray(picks, dtype=np.int64)))

    def offer(picks: IntArray) -> None:
        best.offer(whole.lift(fitting.lift(picks)))

    if fitting.model.rows:
        free = cheapest_without_limit(fitting.model, clock)
        if free is not None and free.picks is not None:
            best.method = free.method
            best.raise_bound(free.lower_bound)
            offer(free.picks)
        if is_closed(best.cost, best.lower_bound, whole.model.grain):
            best.raise_bound(best.cost)
            return
        start = None if best.picks is None else near(best.picks)
        outcome = close_gap(fitting.model, start, best.cost, offer, best.raise_bound, clock, seed)
    else:
        nearest = min(map(near, starts), key=fitting.model.cost, default=None)
        outcome = close_gap_apart(fitting.model, nearest, offer, clock, seed)
    best.method = outcome.method
    best.raise_bound(outcome.lower_bound)


def _solution(best: Incumbent) -> Solution:
    status: Status = "feasible"
    lower_bound = min(best.cost, best.lower_bound)
    if best.picks is None:
        status = "infeasible" if lower_bound == math.inf else "unknown"
    elif best.method == "start":
        status = "start"
    elif best.cost - lower_bound <= OPTIMAL_GAP * abs(best.cost):
        status = "optimal"
    return Solution(best.picks, best.cost, lower_bound, status, best.clock.elapsed, best.method)


def smallest_limit(
    problem: Problem, time_limit: float = 10.0, start: Sequence[int] | IntArray | None = None
) -> tuple[float, IntArray]:
    """The smallest usage limit that some assignment keeps, in bytes, and one of those that does and takes little else.

    If the time does not suffice for the smallest, it is the smallest found: there is an assignment that keeps it.

    Args:
        start: an assignment of finite cost; with one, one is found in any time.

    Raises:
        ProblemError: no assignment has finite cost, whatever the limit, or none was found in the time.
    """
    clock = Clock.of(time_limit)
    try:
        whole = without_ties(replace(problem, usage_limit=math.inf))
        reduction = shrink(_peak_only(whole.model), clock)
        folded = fold_chains(reduction.model)
        even = _priced_evenly(folded.model)
        known = None if start is None else whole.project(np.asarray(start, dtype=np.int64))
        known = None if known is None else folded.project(reduction.project(known))
        thrifty = close_gap_apart(even, known, lambda found: None, clock.part(THRIFTY_TIME), seed=0)
    except Impossible as error:
        raise ProblemError("no assignment has finite cost, whatever the limit; its edges forbid too much") from error
    if thrifty.picks is None or not math.isfinite(thrifty.cost):
        raise ProblemError(f"no assignment of finite cost was found in {time_limit} s; give smallest_limit more time")
    picks = whole.lift(reduction.lift(folded.lift(ilp.leanest(folded.model, thrifty.picks, clock))))
    peak = problem.evaluate(picks).peak_usage
    left = min(THRIFTY_TIME * time_limit, clock.left_seconds)
    found = solve(_charged(problem, peak), starts=[picks], time_limit=left)
    assert found.picks is not None, "the start keeps the limit"
    return peak, found.picks


def _charged(problem: Problem, limit: float) -> Problem:
    """Each byte costs one for as long as it is alive, and nothing else costs anything, but what is impossible."""
    spans = (end - start for start, end in problem.intervals)
    known = {id(edge.cost): edge.cost for edge in problem.edges}
    possible = {key: np.where(np.isfinite(cost), 0.0, math.inf) for key, cost in known.items()}
    return replace(
        problem,
        costs=tuple(
            np.where(np.isfinite(cost), span * usage, math.inf)
            for cost, span, usage in zip(problem.costs, spans, problem.usages, strict=True)
        ),
        edges=tuple(replace(edge, cost=possible[id(edge.cost)]) for edge in problem.edges),
        usage_limit=limit,
    )


def _peak_only(model: Model) -> Model:
    """The model with nothing but what is impossible left of its costs."""
    return replace(
        model,
        costs=tuple(np.where(np.isfinite(costs), 0.0, math.inf) for costs in model.costs),
        pairs={pair: np.where(np.isfinite(cost), 0.0, math.inf) for pair, cost in model.pairs.items()},
    )


def _priced_evenly(model: Model) -> Model:
    """Without its limit, but each byte costs one in each row: cheap assignments have low peaks."""
    costs = (
        cost + (load.spans[:, 1] - load.spans[:, 0]) @ load.usage
        for cost, load in zip(model.costs, model.loads, strict=True)
    )
    return replace(model.without_limit(), costs=tuple(costs))
