"""The problem as an integer program for CP-SAT.

    x[i, s]  in {0, 1}   node i picks strategy s
    z[e, k]  in {0, 1}   pair e costs at least its k-th level v[e, k], where 0 = v[e, 0] < v[e, 1] < ... are the
                         distinct costs in its matrix

    minimise  sum c[i, s] x[i, s]  +  sum (v[e, k] - v[e, k-1]) z[e, k]

    pick:     exactly one of x[i, :] for each node i
    ladder:   z[e, k] implies z[e, k-1]
    reach:    x[i, s] implies z[e, k] or one of those x[j, t] with cost[s, t] below v[e, k], for each pair e = (i, j),
              strategy s and level k that occurs in its row; likewise for the columns
    forbid:   x[i, s] implies one of those x[j, t] with finite cost[s, t]; likewise for the columns
    limit:    sum usage[i, s, r] x[i, s] <= limit - base[r]   for each row r
    cutoff:   the objective is at most that of the best assignment known

As exactly one of x[j, :] holds, `reach` is the linear row x[i, s] <= z[e, k] + sum of the cheaper x[j, t]: as tight as
the local polytope on each row and column. A pair with few distinct costs needs few of them.

CP-SAT counts in whole numbers. Costs are divided by a unit, a fraction `RESOLUTION` of the gap that is left to close,
and rounded down, so its bound is a bound on the true cost, short of it by at most one unit per term. Bytes are whole
already, or are scaled up and rounded down: what CP-SAT calls feasible is checked again by the caller.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from planner.problem import FloatArray, IntArray
from planner.solve.clock import Clock
from planner.solve.model import Model, Offer

RESOLUTION = 1e-12
"""Of the gap: with some thousand terms, rounding leaves the bound short by a billionth of the gap."""

OBJECTIVE_CAP = 2**56
"""CP-SAT wants sums well inside 64 bits; a cost that reaches this is forbidden or rounded coarser."""

MEMORY_CAP = 2**50
"""Likewise for bytes; those beyond are counted in larger units."""

LITERALS = 4_000_000
"""The largest formulation that is tried."""

LITERALS_PER_SECOND = 500_000
"""How fast one is built: none is tried that would take the time that is left."""

WORKERS = 2


def is_small(model: Model) -> bool:
    """Whether there is hope that CP-SAT closes the gap."""
    return _literals(model) <= LITERALS


@dataclass(frozen=True)
class IlpOutcome:
    """What CP-SAT said.

    Attributes:
        picks: the best assignment, or None.
        lower_bound: on the cost of any assignment that fits; `inf` if none is at or below the cutoff.
    """

    picks: IntArray | None
    lower_bound: float


def cheapest(
    model: Model, hint: IntArray | None, cutoff: float, lower_bound: float, offer: Offer, clock: Clock, seed: int
) -> IlpOutcome:
    """The cheapest assignment within the limit and at most at the cutoff, as far as CP-SAT comes in the time.

    Args:
        hint: an assignment to start from; it need not fit.
        cutoff: the cost of the best assignment known, or `inf`.
        lower_bound: on the cost, as known so far.
        offer: is handed each better assignment when it is found.
    """
    if _literals(model) > LITERALS_PER_SECOND * clock.left_seconds:
        return IlpOutcome(None, lower_bound)
    unit = _unit(model, cutoff - lower_bound)
    program = _Program(model)
    constant, terms = program.add_costs(unit)
    program.add_limit()
    objective = cp_model.LinearExpr.weighted_sum([var for var, _ in terms], [weight for _, weight in terms])
    if math.isfinite(cutoff):
        program.sat.add(objective <= math.ceil((cutoff - constant) / unit)).with_name("cutoff")
    program.sat.minimize(objective)
    if hint is not None:
        program.add_hint(hint)
    status, solver = program.solve(offer, clock, seed)
    if status == cp_model.INFEASIBLE:
        return IlpOutcome(None, math.inf)
    bound = max(lower_bound, constant + unit * solver.best_objective_bound)
    if status == cp_model.OPTIMAL or status == cp_model.FEASIBLE:
        return IlpOutcome(program.picks(solver.value), bound)
    return IlpOutcome(None, bound)


def leanest(model: Model, hint: IntArray, clock: Clock) -> IntArray:
    """The assignment of least peak, as far as CP-SAT comes in the time; of the costs only the impossible counts.

    Args:
        hint: an assignment that is possible; its peak is the first to beat.
    """
    least, most = float(model.base.max(initial=0.0)), float(model.usage(hint).max(initial=0.0))
    if most <= least or _literals(model) > min(LITERALS, LITERALS_PER_SECOND * clock.left_seconds):
        return hint
    program = _Program(model)
    program.add_costs(unit=1.0)
    program.sat.minimize(program.add_peak(least, most))
    program.add_hint(hint)
    status, solver = program.solve(lambda picks: None, clock, seed=0)
    return program.picks(solver.value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else hint


class _Program:
    """Data, variables, constraints, in that order."""

    def __init__(self, model: Model):
        self.model = model
        self.sat = cp_model.CpModel()
        self.x = [
            [self.sat.new_bool_var(f"x[{node},{strategy}]") for strategy in range(costs.size)]
            for node, costs in enumerate(model.costs)
        ]
        self.levels: list[tuple[IntArray, IntArray, list[cp_model.IntVar]]] = []
        for node, picks in enumerate(self.x):
            self.sat.add_exactly_one(picks).with_name(f"pick[{node}]")
        self.bytes_unit = _bytes_unit(model)

    def add_costs(self, unit: float) -> tuple[float, list[tuple[cp_model.IntVar, int]]]:
        """Pairs' levels and constraints; returns the constant part of the cost and the objective's terms, in units."""
        constant = self.model.offset
        terms: list[tuple[cp_model.IntVar, int]] = []
        for node, costs in enumerate(self.model.costs):
            constant += float(costs.min())
            weights = np.floor((costs - costs.min()) / unit).astype(np.int64)
            terms += [(var, int(weight)) for var, weight in zip(self.x[node], weights, strict=True) if weight]
        for (i, j), cost in self.model.pairs.items():
            constant += float(cost.min())
            terms += self._add_pair(i, j, _whole(cost - cost.min(), unit))
        return constant, terms

    def _add_pair(self, i: int, j: int, cost: IntArray) -> list[tuple[cp_model.IntVar, int]]:
        """`cost` in units, -1 where forbidden."""
        values = np.unique(cost[cost > 0])
        name = f"z[{i},{j}]"
        ladder = [self.sat.new_bool_var(f"{name}[{value}]") for value in values]
        for lower, higher in itertools.pairwise(ladder):
            self.sat.add_implication(higher, lower)
        self.levels.append((np.array([i, j]), cost, ladder))
        self._add_reach(self.x[i], self.x[j], cost, values, ladder)
        self._add_reach(self.x[j], self.x[i], cost.T, values, ladder)
        return list(zip(ladder, np.diff(values, prepend=0).tolist(), strict=True))

    def _add_reach(
        self,
        ours: list[cp_model.IntVar],
        theirs: list[cp_model.IntVar],
        cost: IntArray,
        values: IntArray,
        ladder: list[cp_model.IntVar],
    ) -> None:
        for pick, row in zip(ours, cost, strict=True):
            order = np.argsort(row, kind="stable")
            order = order[np.searchsorted(row[order], 0) :]
            sorted_row = row[order]
            for value in np.unique(sorted_row[sorted_row > 0]):
                cheaper = [theirs[t] for t in order[: np.searchsorted(sorted_row, value)]]
                level = ladder[int(np.searchsorted(values, value))]
                self.sat.add_bool_or([pick.negated(), level, *cheaper])
            if sorted_row.size < row.size:
                self.sat.add_bool_or([pick.negated(), *(theirs[t] for t in order)])

    def _rows(self) -> Iterator[tuple[int, list[cp_model.IntVar], list[int]]]:
        """Per row: its number, the picks that use memory there, and how much in byte units."""
        users: list[list[tuple[int, FloatArray]]] = [[] for _ in range(self.model.rows)]
        for node, load in enumerate(self.model.loads):
            for (first, last), usage in zip(load.spans, np.floor(load.usage / self.bytes_unit), strict=True):
                for row in range(first, last):
                    users[row].append((node, usage))
        for row, using in enumerate(users):
            picks = [var for node, _ in using for var in self.x[node]]
            yield row, picks, [int(amount) for _, usage in using for amount in usage]

    def add_limit(self) -> None:
        for row, picks, amounts in self._rows():
            room = math.floor((self.model.limit - self.model.base[row]) / self.bytes_unit)
            self.sat.add(cp_model.LinearExpr.weighted_sum(picks, amounts) <= room).with_name(f"limit[{row}]")

    def add_peak(self, least: float, most: float) -> cp_model.IntVar:
        unit = self.bytes_unit
        peak = self.sat.new_int_var(math.floor(least / unit), math.ceil(most / unit), "peak")
        for row, picks, amounts in self._rows():
            base = math.floor(self.model.base[row] / unit)
            self.sat.add(cp_model.LinearExpr.weighted_sum(picks, amounts) + base <= peak).with_name(f"peak[{row}]")
        return peak

    def add_hint(self, picks: IntArray) -> None:
        for variables, pick in zip(self.x, picks, strict=True):
            for strategy, var in enumerate(variables):
                self.sat.add_hint(var, strategy == pick)
        for (i, j), cost, ladder in self.levels:
            values = np.unique(cost[cost > 0])
            for value, var in zip(values, ladder, strict=True):
                self.sat.add_hint(var, bool(cost[picks[i], picks[j]] >= value))

    def solve(self, offer: Offer, clock: Clock, seed: int) -> tuple[cp_model.CpSolverStatus, cp_model.CpSolver]:
        solver = cp_model.CpSolver()
        if clock.counts_work:
            solver.parameters.max_deterministic_time = clock.left_seconds
            solver.parameters.interleave_search = True
        else:
            solver.parameters.max_time_in_seconds = clock.left_seconds
        solver.parameters.num_workers = WORKERS
        solver.parameters.random_seed = seed
        # CP-SAT's own way with Ctrl-C leaves the process deaf to later ones. In a thread it need not have one.
        solver.parameters.catch_sigint_signal = False
        with ThreadPoolExecutor(max_workers=1) as thread:
            solving = thread.submit(solver.solve, self.sat, _Found(self, offer))
            try:
                status = solving.result()
            except KeyboardInterrupt:
                solver.stop_search()
                raise
        assert status != cp_model.MODEL_INVALID, self.sat.validate()
        return status, solver

    def picks(self, value: Callable[[cp_model.IntVar], int]) -> IntArray:
        return np.array([int(np.argmax([value(var) for var in variables])) for variables in self.x], dtype=np.int64)


class _Found(cp_model.CpSolverSolutionCallback):
    """Hands over each assignment as it is found."""

    def __init__(self, program: _Program, offer: Offer):
        super().__init__()
        self.program = program
        self.offer = offer

    def on_solution_callback(self) -> None:
        self.offer(self.program.picks(self.value))


def _whole(cost: FloatArray, unit: float) -> IntArray:
    """In units, rounded down; -1 for what is forbidden."""
    return np.where(np.isfinite(cost), np.floor(np.where(np.isfinite(cost), cost, 0.0) / unit), -1).astype(np.int64)


def _unit(model: Model, gap: float) -> float:
    """The cost that CP-SAT counts as one."""
    reach = sum(float(np.ptp(costs)) for costs in model.costs)
    for cost in model.pairs.values():
        finite = cost[np.isfinite(cost)]
        reach += float(np.ptp(finite))
    finest = reach / OBJECTIVE_CAP
    to_close = gap if math.isfinite(gap) and gap > 0 else reach
    return max(finest, RESOLUTION * to_close) or 1.0


def _bytes_unit(model: Model) -> float:
    """Bytes that CP-SAT counts as one: their greatest common divisor where all are whole."""
    amounts = np.concatenate([model.base, *(load.usage.ravel() for load in model.loads)])
    top = float(amounts.sum())
    if top < MEMORY_CAP and (amounts == np.floor(amounts)).all():
        return float(np.gcd.reduce(amounts.astype(np.int64), initial=0)) or 1.0
    return top / MEMORY_CAP


def _literals(model: Model) -> int:
    """About how many literals the formulation has, at most."""
    total = 0
    for cost in model.pairs.values():
        levels = np.unique(cost).size
        total += cost.size * (min(levels, cost.shape[0]) + min(levels, cost.shape[1])) // 2
    for load in model.loads:
        total += int((load.spans[:, 1] - load.spans[:, 0]).sum()) * load.usage.shape[1]
    return total
