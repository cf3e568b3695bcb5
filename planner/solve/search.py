"""Local search: change one node's pick, or those of two neighbours, as long as that pays.

Memory is a hard limit, or a penalty per byte above it while an assignment that fits is still looked for.
"""

from __future__ import annotations

import math

import numpy as np

from planner.problem import FloatArray, IntArray
from planner.solve.clock import Clock
from planner.solve.model import Model

PENALTY_STEPS = 24
"""Repair doubles its penalty this often before it gives up: from one byte that hardly counts to one that decides."""

JOINT_TRIES = 6
"""How many of the best joint changes of two neighbours are tried against the limit."""

IMPROVES = 1e-12
"""Relative to the cost: smaller gains are rounding."""


class Search:
    """Local search on one model."""

    def __init__(self, model: Model):
        self.model = model
        # rows[i] holds (j, matrix) with the neighbour's strategies as rows: one row is what its pick costs i.
        self.rows: list[list[tuple[int, FloatArray]]] = [[] for _ in model.costs]
        for (i, j), cost in model.pairs.items():
            self.rows[i].append((j, np.ascontiguousarray(cost.T)))
            self.rows[j].append((i, np.ascontiguousarray(cost)))

    def improve(self, picks: IntArray, clock: Clock) -> IntArray | None:
        """Picks no worse than these, brought within the limit if they are not; None if that was not managed."""
        walk = _Walk(self, picks)
        if walk.excess() > 0:
            self._repair(walk, clock)
        if walk.excess() > 0:
            return None
        walk.descend(clock, penalty=math.inf)
        return walk.picks if math.isfinite(self.model.cost(walk.picks)) else None

    def _repair(self, walk: _Walk, clock: Clock) -> None:
        scale = sum(float(np.ptp(costs)) for costs in self.model.costs) or 1.0
        penalty = scale / self.model.limit * 2.0 ** (-PENALTY_STEPS / 2) if self.model.limit else 1.0
        for _ in range(PENALTY_STEPS):
            walk.sweep(clock, penalty)
            if walk.excess() <= 0:
                return
            penalty *= 2.0


class _Walk:
    """An assignment on its way, with the bytes it has live in each row."""

    def __init__(self, search: Search, picks: IntArray):
        self.search = search
        self.model = search.model
        self.picks = np.array(picks, dtype=np.int64)
        self.usage = self.model.usage(self.picks)
        self.smallest_gain = IMPROVES * abs(self.model.cost(self.picks))
        if not math.isfinite(self.smallest_gain):
            self.smallest_gain = 0.0

    def excess(self) -> float:
        return float(self.usage.max() - self.model.limit) if self.usage.size else -math.inf

    def descend(self, clock: Clock, penalty: float) -> None:
        """Until neither one node nor two neighbours can do better."""
        while not clock.expired:
            self.sweep(clock, penalty)
            moved = [self.move_pair(i, j) for i, j in self.model.pairs if not clock.expired]
            if not any(moved):
                return

    def sweep(self, clock: Clock, penalty: float) -> None:
        """Each node in turn takes its best pick, until none changes."""
        changed = True
        while changed and not clock.expired:
            changed = False
            for node in range(self.picks.size):
                changed |= self.move(node, penalty)

    def move(self, node: int, penalty: float) -> bool:
        score = self.scores(node, penalty)
        best = int(score.argmin())
        if not score[best] < score[self.picks[node]] - self.smallest_gain:
            return False
        self.set(node, best)
        return True

    def scores(self, node: int, penalty: float = 0.0, without: int = -1) -> FloatArray:
        """What each strategy of a node costs, given the other nodes' picks, or those of all but one."""
        score = self.model.costs[node]
        for other, rows in self.search.rows[node]:
            if other != without:
                score = score + rows[self.picks[other]]
        load = self.model.loads[node]
        if load.spans.size and penalty:
            over = np.maximum(0.0, load.usage + self.left_by_others(node)[:, None]).sum(axis=0)
            score = score + (np.where(over > 0, math.inf, 0.0) if math.isinf(penalty) else penalty * over)
        return score

    def left_by_others(self, node: int) -> FloatArray:
        """For each span of a node's load, how far the others' usage is above the limit; negative if below."""
        load = self.model.loads[node]
        edges = load.spans.ravel()
        # The maxima between edges are of spans and gaps in turn; without the last edge where that is the end.
        peaks = np.maximum.reduceat(self.usage, edges[: -1 if edges[-1] == self.usage.size else None])[::2]
        return peaks - load.usage[:, self.picks[node]] - self.model.limit

    def set(self, node: int, pick: int) -> None:
        load = self.model.loads[node]
        more = load.usage[:, pick] - load.usage[:, self.picks[node]]
        for (first, last), change in zip(load.spans, more, strict=True):
            self.usage[first:last] += change
        self.picks[node] = pick

    def move_pair(self, i: int, j: int) -> bool:
        """Changes two neighbours at once if that pays and fits."""
        old_i, old_j = int(self.picks[i]), int(self.picks[j])
        cost = self.model.pairs[i, j]
        joint = (self.scores(i, without=j)[:, None] + self.scores(j, without=i) + cost).ravel()
        now = joint[old_i * cost.shape[1] + old_j]
        tries = np.argpartition(joint, JOINT_TRIES)[:JOINT_TRIES] if joint.size > JOINT_TRIES else np.arange(joint.size)
        for choice in tries[np.argsort(joint[tries])]:
            if not joint[choice] < now - self.smallest_gain:
                return False
            self.set(i, int(choice) // cost.shape[1])
            self.set(j, int(choice) % cost.shape[1])
            if self.excess() <= 0:
                return True
            self.set(i, old_i)
            self.set(j, old_j)
        return False
