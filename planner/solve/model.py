"""What the solver works on: a problem in normal form, and the way back from a smaller model to a larger one.

A `Model` has at most one matrix per pair of nodes, none from a node to itself, and memory as *rows*: the few times at
which the limit can bind. A `Reduction` is a smaller model with the steps that turn its picks into picks of the larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.problem import FloatArray, IntArray, Problem

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Load:
    """The memory of one node: bytes per strategy, constant over each of a few spans of rows that do not overlap.

    Attributes:
        spans: (spans, 2), the first row of each span and the one after its last.
        usage: (spans, strategies), bytes.
    """

    spans: IntArray
    usage: FloatArray

    def keep(self, strategies: IntArray) -> Load:
        return Load(self.spans, self.usage[:, strategies])

    @staticmethod
    def nothing(strategies: int) -> Load:
        return Load(np.zeros((0, 2), dtype=np.int64), np.zeros((0, strategies)))


@dataclass(frozen=True, eq=False)
class Model:
    """A problem in normal form.

    Attributes:
        costs: per node, the cost of each strategy.
        pairs: per pair of nodes i < j, a matrix of costs; `inf` forbids.
        loads: per node, see `Load`.
        base: per row, bytes that are live there whatever is picked.
        prices: per row, the cost per byte that a bound put on it; a place to start from, no part of any cost.
        limit: bytes that may be live in any row; with `inf`, the peak over the rows is what is to be kept low.
        offset: the cost of whatever is picked.
        grain: the costs of any two assignments differ by a multiple of this; 0 if nothing of the kind is known.
    """

    costs: tuple[FloatArray, ...]
    pairs: Mapping[Pair, FloatArray]
    loads: tuple[Load, ...]
    base: FloatArray
    prices: FloatArray
    limit: float
    offset: float = 0.0
    grain: float = 0.0

    @property
    def rows(self) -> int:
        return self.base.size

    @property
    def strategies(self) -> int:
        """How many there are over all nodes: the size that presolve and bounds bring down."""
        return sum(costs.size for costs in self.costs)

    def cost(self, picks: IntArray) -> float:
        nodes = sum(float(costs[pick]) for costs, pick in zip(self.costs, picks, strict=True))
        return self.offset + nodes + sum(float(cost[picks[i], picks[j]]) for (i, j), cost in self.pairs.items())

    def usage(self, picks: IntArray) -> FloatArray:
        """Bytes live in each row."""
        change = np.zeros(self.rows + 1)
        for load, pick in zip(self.loads, picks, strict=True):
            np.add.at(change, load.spans[:, 0], load.usage[:, pick])
            np.add.at(change, load.spans[:, 1], -load.usage[:, pick])
        return self.base + np.cumsum(change)[:-1]

    def excess(self, picks: IntArray) -> float:
        """Bytes above the limit in the worst row; not positive if the picks fit."""
        return float(self.usage(picks).max() - self.limit) if self.rows else -math.inf

    def trivial_bound(self) -> float:
        """Each part's own least."""
        nodes = sum(float(costs.min()) for costs in self.costs)
        return self.offset + nodes + sum(float(cost.min()) for cost in self.pairs.values())

    def dearest(self) -> float:
        """More than any possible assignment costs."""
        total = self.offset
        for part in (*self.costs, *self.pairs.values()):
            total += float(part[np.isfinite(part)].max(initial=0.0))
        return total

    def without_limit(self) -> Model:
        loads = tuple(Load.nothing(costs.size) for costs in self.costs)
        return replace(self, loads=loads, base=np.zeros(0), prices=np.zeros(0), limit=math.inf)

    @staticmethod
    def from_problem(problem: Problem, group: IntArray | None = None) -> Model:
        """The whole problem: parallel edges added up, loops put on their nodes, times merged into rows.

        Without a limit there are no rows.

        Args:
            group: for each node, the node of the model that it is merged into, where those of a group pick the same
                strategy; by default each is its own.
        """
        group = np.arange(len(problem.costs)) if group is None else group
        count = int(group.max(initial=-1)) + 1
        costs: list[FloatArray] = [np.zeros(0)] * count
        for node, cost in zip(group.tolist(), problem.costs, strict=True):
            costs[node] = costs[node] + cost if costs[node].size else np.array(cost, dtype=np.float64)
        pairs: dict[Pair, FloatArray] = {}
        for (tail, head, _), (times, matrix) in _alike(problem, group.tolist()).items():
            cost = matrix if times == 1 else times * matrix
            if tail == head:
                costs[tail] += np.diagonal(cost)
                continue
            pair, cost = ((tail, head), cost) if tail < head else ((head, tail), cost.T)
            pairs[pair] = pairs[pair] + cost if pair in pairs else cost
        loads = [Load.nothing(cost.size) for cost in costs]
        limit, rows = math.inf, 0
        if problem.usage_limit is not None:
            limit = problem.usage_limit
            spans, rows = _row_spans(problem)
            for node, span, usage in zip(group.tolist(), spans, problem.usages, strict=True):
                if span[0] < span[1]:
                    loads[node] = joined(loads[node], Load(span.reshape(1, 2), usage.reshape(1, -1)))
        nothing = np.zeros(rows)
        return Model(tuple(costs), pairs, tuple(loads), nothing, nothing, limit, grain=_grain(problem))


def joined(first: Load, second: Load) -> Load:
    """One load that needs what both need; its spans may overlap, until `rows.disjoint` is called."""
    if not (first.spans.size and second.spans.size):
        return first if first.spans.size else second
    return Load(np.concatenate([first.spans, second.spans]), np.concatenate([first.usage, second.usage]))


def _alike(problem: Problem, group: list[int]) -> dict[tuple[int, int, int], tuple[int, FloatArray]]:
    """How many edges there are with the same ends and the very same matrix, and that."""
    found: dict[tuple[int, int, int], tuple[int, FloatArray]] = {}
    for edge in problem.edges:
        key = (group[edge.tail], group[edge.head], id(edge.cost))
        found[key] = (found[key][0] + 1 if key in found else 1, edge.cost)
    return found


def _grain(problem: Problem) -> float:
    """One if all costs are whole numbers, as in the contest's instances."""
    parts = (*problem.costs, *{id(edge.cost): edge.cost for edge in problem.edges}.values())
    return float(all((np.floor(part) == part).all() for part in parts))


def _row_spans(problem: Problem) -> tuple[IntArray, int]:
    """Each node's interval in rows, and how many rows there are.

    A row is a maximal live set: between two changes, something has just started and something is about to end. What is
    live at any other time is also live in one of these.
    """
    intervals = np.array(problem.intervals, dtype=np.int64).reshape(-1, 2)
    used = np.array([usage.any() for usage in problem.usages], dtype=bool)
    lasting = used & (intervals[:, 0] < intervals[:, 1])
    starts, ends = np.unique(intervals[lasting, 0]), np.unique(intervals[lasting, 1])
    # The start that opens each row is the last one before some end; searching it finds every such pair once.
    opening = np.unique(starts[np.searchsorted(starts, ends) - 1]) if ends.size else starts
    spans = np.searchsorted(opening, intervals)
    spans[~lasting] = 0
    return spans, opening.size


@dataclass(frozen=True)
class Kept:
    """Strategies of a node were removed: `kept[new]` is the old index, `instead[old]` the new one nearest to it."""

    node: int
    kept: IntArray
    instead: IntArray


@dataclass(frozen=True)
class Given:
    """A node was folded away: its pick is `best[picks of the scope]`."""

    node: int
    scope: tuple[int, ...]
    best: IntArray

    def pick(self, picks: IntArray) -> int:
        return int(self.best[tuple(picks[list(self.scope)])])


@dataclass(frozen=True)
class GivenFew:
    """As `Given`, for the choices of the scope that are worth looking for.

    Attributes:
        sizes: of the scope's nodes, how many strategies they have.
        listed: the choices' `codes`, ascending; `best` has an entry for each.
    """

    node: int
    scope: tuple[int, ...]
    sizes: tuple[int, ...]
    listed: IntArray
    best: IntArray

    def pick(self, picks: IntArray) -> int:
        code = codes(picks[list(self.scope)], self.sizes)
        at = int(np.searchsorted(self.listed, code))
        assert self.listed[at] == code, "only choices that were looked for are lifted"
        return int(self.best[at])


Step = Kept | Given | GivenFew


def codes(picks: IntArray, sizes: Sequence[int]) -> IntArray:
    """One number for each choice, ascending in the order of the alphabet; picks are (nodes, ...).

    Raises:
        ValueError: there are more choices than numbers.
    """
    return np.asarray(np.ravel_multi_index(tuple(picks), tuple(sizes))) if sizes else np.zeros(picks.shape[1:], int)


@dataclass(frozen=True, eq=False)
class Reduction:
    """A model made from a larger one.

    Attributes:
        model: the smaller.
        nodes: for each of its nodes, the larger one's number.
        steps: what was done, in order, in the larger one's numbers.
        count: nodes of the larger.
    """

    model: Model
    nodes: tuple[int, ...]
    steps: tuple[Step, ...]
    count: int

    def lift(self, picks: IntArray) -> IntArray:
        """Picks of the larger model at the same cost."""
        lifted = np.zeros(self.count, dtype=np.int64)
        lifted[list(self.nodes)] = picks
        for step in reversed(self.steps):
            if isinstance(step, Kept):
                lifted[step.node] = step.kept[lifted[step.node]]
            else:
                lifted[step.node] = step.pick(lifted)
        return lifted

    def project(self, picks: IntArray) -> IntArray:
        """Picks of the smaller model that are near those of the larger: a hint, its cost may differ."""
        projected = np.array(picks, dtype=np.int64)
        for step in self.steps:
            if isinstance(step, Kept):
                projected[step.node] = step.instead[projected[step.node]]
        return projected[list(self.nodes)]


def unreduced(model: Model) -> Reduction:
    """The model as it is."""
    count = len(model.costs)
    return Reduction(model, tuple(range(count)), (), count)


Offer = Callable[[IntArray], None]
"""Takes the picks of a model as a candidate answer."""

Report = Callable[[float], None]
"""Takes a lower bound on what any assignment of a model costs."""
