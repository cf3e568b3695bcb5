"""A lower bound by message passing on the dual of the local-polytope relaxation, with prices for memory.

A *reparametrisation* moves cost between a node and its pairs without changing the cost of any assignment: message
a_e(s) is taken from pair e's row s and given to the node. The sum of each part's own least is a bound on the whole, and
the moves below only raise it (sequential tree-reweighted message passing: Kolmogorov, PAMI 2006; in the form of SRMP:
Kolmogorov, PAMI 2015). On a tree it reaches the optimum in one pass each way.

Memory enters as a Lagrangian: a byte in row r costs `prices[r] >= 0`, and the bound pays back prices . (limit - base).
`prices.py` moves them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.problem import FloatArray, IntArray
from planner.solve.clock import Clock
from planner.solve.model import Load, Model
from planner.solve.prices import STALL, PriceSteps

PASS_MARGIN = 1.5
"""A pass starts only if this many times the last one's duration is left."""

STALL_PASSES = 16
"""Without prices the bound has stalled when so many passes close less than the part `STALL` of the gap."""


@dataclass(frozen=True, eq=False)
class _Arc:
    """A pair as one of its nodes sees it: `cost[s of the node, t of the other]` less `own[s]` less `others[t]`."""

    other: int
    cost: FloatArray
    own: FloatArray
    others: FloatArray

    def pull(self) -> FloatArray:
        """Takes each row's least out of the pair."""
        least: FloatArray = (self.cost - self.others).min(axis=1) - self.own
        self.own[:] += least
        return least


@dataclass(frozen=True, eq=False)
class _Snapshot:
    """A reparametrisation and prices, to return to."""

    prices: FloatArray
    unary: list[FloatArray]
    messages: list[tuple[FloatArray, FloatArray]]


class Dual:
    """A model's reparametrisation and memory prices; `ascend` improves them in place.

    Attributes:
        lower_bound: the best bound so far on the cost of any assignment that fits.
        possible: per node, which strategies may be part of an assignment that costs at most the cutoff.
    """

    def __init__(self, model: Model):
        self.model = model
        self.prices = model.prices
        self.unary = [costs + _priced(load, self.prices) for costs, load in zip(model.costs, model.loads, strict=True)]
        self.lower: list[list[_Arc]] = [[] for _ in model.costs]
        self.upper: list[list[_Arc]] = [[] for _ in model.costs]
        for (i, j), cost in model.pairs.items():
            at_tail, at_head = np.zeros(cost.shape[0]), np.zeros(cost.shape[1])
            self.upper[i].append(_Arc(j, cost, at_tail, at_head))
            self.lower[j].append(_Arc(i, cost.T, at_head, at_tail))
        self.possible: list[NDArray[np.bool_]] = [np.ones(costs.size, dtype=bool) for costs in model.costs]
        self.lower_bound = -np.inf
        self.settled = False  # before the first pass, pairs may hold less than nothing
        self.pass_seconds = 0.0
        self.steps = PriceSteps(self.prices)
        self.best = self._snapshot()
        self.bounds: list[float] = []

    def ascend(self, passes: int, cutoff: float, clock: Clock) -> IntArray | None:
        """Some passes forward and back; the decoded assignment of the last, or None if there was no time for any.

        Args:
            passes: how many; each goes over all pairs twice.
            cutoff: the cost of an assignment that is known; strategies only in worse ones are marked impossible.
        """
        picks = None
        for _ in range(passes):
            if clock.expired or clock.left_seconds < PASS_MARGIN * self.pass_seconds:
                break
            begun = clock.seconds
            if self.bounds and self.model.rows:
                self._reprice(self.decode(), self.bounds[-1])
            with np.errstate(invalid="ignore"):  # where nothing is possible, infinities are subtracted
                self._pass(cutoff, forward=True)
                bound = self._pass(cutoff, forward=False)
            self.bounds.append(bound)
            self.lower_bound = max(self.lower_bound, bound)
            if self.steps.heard(bound, cutoff - bound):
                self.best = self._snapshot()
            picks = self.decode()
            self.pass_seconds = clock.seconds - begun
        return picks

    def stalled(self, cutoff: float) -> bool:
        """Whether little of the gap to the cutoff can still be closed."""
        if self.model.rows:
            return self.steps.stalled(cutoff - self.lower_bound)
        worth = STALL * (cutoff - self.lower_bound)
        return len(self.bounds) > STALL_PASSES and self.bounds[-1] - self.bounds[-STALL_PASSES] < worth

    def _pass(self, cutoff: float, *, forward: bool) -> float:
        """Each node in order takes what pairs with those before hold for it, and shares with pairs to those ahead."""
        nodes = len(self.unary)
        order = range(nodes) if forward else range(nodes)[::-1]
        behind, ahead = (self.lower, self.upper) if forward else (self.upper, self.lower)
        to_come = np.array([float(self.unary[node].min()) for node in order])
        done = np.zeros(nodes)
        crossing = np.zeros(nodes + 1)
        totals = []
        for place, node in enumerate(order):
            total = self.unary[node]
            for arc in behind[node]:
                pulled = arc.pull()
                total = total + pulled
                held = pulled.min()
                crossing[(arc.other if forward else nodes - 1 - arc.other) + 1] += held
                crossing[place] -= held
            share = total / max(len(behind[node]), len(ahead[node]), 1)
            for arc in ahead[node]:
                arc.own[:] -= share
            self.unary[node] = total - len(ahead[node]) * share
            done[place] = self.unary[node].min()
            totals.append(total)
        # What all but one node held when that one held its total: nodes done, nodes to come, pairs between the two.
        done_before = np.cumsum(done) - done
        come_after = to_come.sum() - np.cumsum(to_come)
        elsewhere = self._constant() + done_before + come_after + np.cumsum(crossing)[:-1]
        if self.settled:
            for node, total, rest in zip(order, totals, elsewhere, strict=True):
                self.possible[node] &= rest + total <= cutoff
        self.settled = True
        return self._constant() + float(done.sum())

    def _constant(self) -> float:
        if not self.model.rows:
            return self.model.offset
        return self.model.offset - float(self.prices @ (self.model.limit - self.model.base))

    def decode(self) -> IntArray:
        """An assignment: each node in order takes its best, given those already fixed. After a backward pass."""
        picks = np.zeros(len(self.unary), dtype=np.int64)
        for node, unary in enumerate(self.unary):
            score = unary
            for arc in self.lower[node]:
                score = score + (arc.cost[:, picks[arc.other]] - arc.own)
            picks[node] = score.argmin()
        return picks

    def _reprice(self, picks: IntArray, bound: float) -> None:
        if self.steps.give_up():
            self._return_to_best()
            return
        before = self.prices
        self.prices = self.steps.propose(self.model.usage(picks) - self.model.limit, bound)
        for node, load in enumerate(self.model.loads):
            if load.spans.size:
                self.unary[node] = self.unary[node] + _priced(load, self.prices - before)

    def _snapshot(self) -> _Snapshot:
        messages = [(arc.own.copy(), arc.others.copy()) for arcs in self.upper for arc in arcs]
        return _Snapshot(self.prices, list(self.unary), messages)

    def _return_to_best(self) -> None:
        self.prices, self.unary = self.best.prices, list(self.best.unary)
        arcs = (arc for arcs in self.upper for arc in arcs)
        for arc, (own, others) in zip(arcs, self.best.messages, strict=True):
            arc.own[:], arc.others[:] = own, others

    def reparametrised(self, cutoff: float) -> Model:
        """The same model with costs moved so that its parts show what is known of the whole.

        Pairs of strategies that are only in assignments worse than the cutoff are forbidden.
        """
        self._return_to_best()
        least = [float(unary.min()) for unary in self.unary]
        slack = cutoff - self._constant() - sum(least)
        pairs = {}
        for i, arcs in enumerate(self.upper):
            for arc in arcs:
                cost = arc.cost - arc.own[:, None] - arc.others
                j = arc.other
                at_least = (self.unary[i] - least[i])[:, None] + (self.unary[j] - least[j]) + cost
                pairs[i, j] = np.where(at_least <= slack, cost, np.inf)
        costs = tuple(
            unary - _priced(load, self.prices) for unary, load in zip(self.unary, self.model.loads, strict=True)
        )
        return replace(self.model, costs=costs, pairs=pairs, prices=self.prices)


def _priced(load: Load, prices: FloatArray) -> FloatArray:
    """What each strategy's memory costs."""
    before = np.concatenate([[0.0], np.cumsum(prices)])
    return (before[load.spans[:, 1]] - before[load.spans[:, 0]]) @ load.usage
