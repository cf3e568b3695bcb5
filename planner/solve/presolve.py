"""Makes a model smaller without changing its optimum.

- A strategy that is impossible by itself, or with every choice of some neighbour, goes.
- A node whose pick follows from a neighbour's (one finite entry in each row of the matrix between them: a tie, or what
  impossible pairs leave) is merged into that neighbour.
- A node of one strategy is folded into its neighbours' costs and the base load.
- A strategy goes when another is no worse whatever the neighbours pick, and needs no more memory anywhere.
- A matrix that is a sum of a row's and a column's part moves to the nodes, and the pair is gone.
- A strategy goes, and a pair is forbidden, that does not fit even if all other nodes take as little memory as they can;
  rows of memory go that cannot bind (`rows.py`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.problem import FloatArray, IntArray
from planner.solve.clock import Clock
from planner.solve.model import Given, Kept, Model, Pair, Reduction, Step, joined, unreduced
from planner.solve.rows import Impossible, Room, disjoint, with_binding_rows

DOMINANCE_ENTRIES = 300_000
"""Dominance compares all pairs of strategies over all of a neighbour's: skipped where that is more work than this."""

VISIT_WORK = 1e5
"""What looking at a node once counts for where work is limited: a tenth of a millisecond."""

NOISE = 1e-12
"""Relative to the costs at hand: differences below are rounding, left by reparametrisation."""


def shrink(model: Model, clock: Clock, possible: Sequence[NDArray[np.bool_]] | None = None) -> Reduction:
    """The model made smaller until nothing more applies; as it is if the time is up before.

    Args:
        possible: per node, which strategies to keep, where some are known not to matter.

    Raises:
        Impossible: some node has no strategy left, or some row is above the limit with the least that each node needs.
    """
    draft = _Draft(model)
    for node, keep in enumerate(possible or ()):
        draft.keep_only(node, keep)
    draft.settle(clock)
    while draft.drop_too_large():
        draft.settle(clock)
    return unreduced(model) if clock.expired else draft.freeze()


class _Draft:
    """A model while it shrinks. `links[i][j]` has i's strategies as rows; `links[j][i]` is its transpose."""

    def __init__(self, model: Model):
        self.costs = list(model.costs)
        self.loads = list(model.loads)
        self.base = model.base.copy()
        self.prices = model.prices
        self.limit = model.limit
        self.offset = model.offset
        self.grain = model.grain
        self.links: list[dict[int, FloatArray]] = [{} for _ in model.costs]
        self.forbids: set[Pair] = set()
        for (i, j), cost in model.pairs.items():
            self.link(i, j, cost)
        self.alive = [True] * len(model.costs)
        self.steps: list[Step] = []
        self.queue = deque(range(len(model.costs)))
        self.queued = [True] * len(model.costs)

    def settle(self, clock: Clock) -> None:
        while self.queue and not clock.expired:
            node = self.queue.popleft()
            self.queued[node] = False
            if self.alive[node]:
                self.visit(node)
                clock.work(VISIT_WORK)

    def visit(self, node: int) -> None:
        """Applies the first rule that changes something; whatever that touches is queued again, the node too."""
        rules = (
            self.drop_impossible,
            self.fold_single,
            self.merge_followers,
            self.drop_sums,
            self.drop_dominated,
        )
        any(rule(node) for rule in rules)

    def wake(self, node: int) -> None:
        if not self.queued[node]:
            self.queued[node] = True
            self.queue.append(node)

    def link(self, i: int, j: int, cost: FloatArray) -> None:
        self.links[i][j], self.links[j][i] = cost, cost.T
        pair = (min(i, j), max(i, j))
        if np.isinf(cost).any():
            self.forbids.add(pair)
        else:
            self.forbids.discard(pair)

    def unlink(self, i: int, j: int) -> None:
        del self.links[i][j], self.links[j][i]
        self.forbids.discard((min(i, j), max(i, j)))

    def forbidding(self, node: int) -> list[int]:
        """Neighbours that some strategy of the node cannot go with."""
        return [other for other in self.links[node] if (min(node, other), max(node, other)) in self.forbids]

    def keep(self, node: int, kept: IntArray, instead: IntArray) -> None:
        self.steps.append(Kept(node, kept, instead))
        self.costs[node] = self.costs[node][kept]
        self.loads[node] = self.loads[node].keep(kept)
        for other, cost in list(self.links[node].items()):
            self.link(node, other, cost[kept])
            self.wake(other)
        self.wake(node)

    def retire(self, node: int, step: Given) -> None:
        self.steps.append(step)
        self.alive[node] = False
        for other in list(self.links[node]):
            self.unlink(node, other)
            self.wake(other)

    def drop_impossible(self, node: int) -> bool:
        possible = np.isfinite(self.costs[node])
        for other in self.forbidding(node):
            possible &= np.isfinite(self.links[node][other]).any(axis=1)
        return self.keep_only(node, possible)

    def keep_only(self, node: int, possible: NDArray[np.bool_]) -> bool:
        """Removes the other strategies; the cheapest that is left stands for them."""
        if possible.all():
            return False
        if not possible.any():
            raise Impossible
        kept = np.flatnonzero(possible)
        instead = np.full(possible.size, int(np.argmin(self.costs[node][kept])))
        instead[kept] = np.arange(kept.size)
        self.keep(node, kept, instead)
        return True

    def fold_single(self, node: int) -> bool:
        if self.costs[node].size > 1:
            return False
        self.offset += float(self.costs[node][0])
        for (first, last), usage in zip(self.loads[node].spans, self.loads[node].usage[:, 0], strict=True):
            self.base[first:last] += usage
        for other, cost in self.links[node].items():
            self.costs[other] = self.costs[other] + cost[0]
        self.retire(node, Given(node, (), np.zeros((), dtype=np.int64)))
        return True

    def merge_followers(self, node: int) -> bool:
        for other in self.forbidding(node):
            finite = np.isfinite(self.links[node][other])
            if not (finite.sum(axis=1) == 1).all():
                continue
            follows = finite.argmax(axis=1)
            # Of two that follow each other, the one with fewer links is cheaper to move.
            if (finite.sum(axis=0) == 1).all() and len(self.links[other]) > len(self.links[node]):
                self.merge(other, node, np.argsort(follows))
            else:
                self.merge(node, other, follows)
            return True
        return False

    def merge(self, leader: int, follower: int, follows: IntArray) -> None:
        """The follower picks `follows[pick of the leader]`; the leader takes over all it costs and needs."""
        tie = self.links[leader][follower]
        self.costs[leader] = self.costs[leader] + self.costs[follower][follows] + tie[np.arange(follows.size), follows]
        for other, cost in list(self.links[follower].items()):
            if other != leader:
                moved = cost[follows]
                known = self.links[leader].get(other)
                self.link(leader, other, moved if known is None else known + moved)
        self.loads[leader] = joined(self.loads[leader], self.loads[follower].keep(follows))
        self.retire(follower, Given(follower, (leader,), follows))
        self.wake(leader)

    def drop_sums(self, node: int) -> bool:
        """A matrix `rows[s] + columns[t]` moves to the two nodes."""
        dropped = False
        for other, cost in list(self.links[node].items()):
            if (min(node, other), max(node, other)) in self.forbids:
                continue
            rows, columns = cost[:, 0], cost[0] - cost[0, 0]
            if np.abs(cost - rows[:, None] - columns).max() <= NOISE * np.abs(cost).max():
                self.costs[node] = self.costs[node] + rows
                self.costs[other] = self.costs[other] + columns
                self.unlink(node, other)
                self.wake(other)
                self.wake(node)
                dropped = True
        return dropped

    def drop_dominated(self, node: int) -> bool:
        size = self.costs[node].size
        if any(size * cost.size > DOMINANCE_ENTRIES for cost in self.links[node].values()):
            return False
        self.loads[node] = disjoint(self.loads[node])
        instead = _undominated(self.costs[node], list(self.links[node].values()), self.loads[node].usage)
        kept = np.flatnonzero(instead == np.arange(size))
        if kept.size == size:
            return False
        new_index = np.full(size, -1)
        new_index[kept] = np.arange(kept.size)
        self.keep(node, kept, new_index[instead])
        return True

    def drop_too_large(self) -> bool:
        """Removes strategies and forbids pairs of them that never fit; whether there were any."""
        if not self.base.size or math.isinf(self.limit):
            return False
        self.loads = list(map(disjoint, self.loads))  # which leaves nothing of a load that is zero
        living = [node for node, alive in enumerate(self.alive) if alive and self.loads[node].spans.size]
        room = Room(self.base, [self.loads[node] for node in living], self.limit)
        dropped = [self.keep_only(node, room.fits(self.loads[node])) for node in living]
        around = {node: room.around(self.loads[node]) for node in living}
        most = {node: float(np.ptp(self.loads[node].usage, axis=1).max()) for node in living}
        near = [(i, j) for i in living for j in self.links[i] if i < j and j in around]
        tight = [(i, j) for i, j in near if most[i] + most[j] > max(around[i], around[j])]
        forbidden = [self.forbid(i, j, ~room.fit_together(self.loads[i], self.loads[j])) for i, j in tight]
        return any(dropped) or any(forbidden)

    def forbid(self, i: int, j: int, impossible: NDArray[np.bool_]) -> bool:
        cost = self.links[i][j]
        if not (impossible & np.isfinite(cost)).any():
            return False
        self.link(i, j, np.where(impossible, math.inf, cost))
        self.wake(i)
        self.wake(j)
        return True

    def freeze(self) -> Reduction:
        nodes = [node for node, alive in enumerate(self.alive) if alive]
        index = {node: new for new, node in enumerate(nodes)}
        pairs = {
            (index[i], index[j]): np.ascontiguousarray(cost)
            for i in nodes
            for j, cost in self.links[i].items()
            if i < j
        }
        costs = tuple(self.costs[node] for node in nodes)
        loads = tuple(self.loads[node] for node in nodes)
        model = Model(costs, pairs, loads, self.base, self.prices, self.limit, self.offset, self.grain)
        model = with_binding_rows(model)
        return Reduction(model, tuple(nodes), tuple(self.steps), len(self.alive))


def _undominated(costs: FloatArray, links: list[FloatArray], usage: FloatArray) -> IntArray:
    """For each strategy one that may stand for it and is kept: itself, unless another is never worse."""
    scale = max([1e-300, *(float(np.abs(part[np.isfinite(part)]).max(initial=0.0)) for part in (costs, *links))])
    worst = costs[:, None] - costs[None, :]  # worst[s, t]: what picking s instead of t costs more, at most
    for cost in links:
        with np.errstate(invalid="ignore"):
            more = cost[:, None, :] - cost[None, :, :]
        # inf - inf: where both are impossible, neither is worse.
        worst = worst + np.where(np.isnan(more), -math.inf, more).max(axis=2)
    beats = worst <= NOISE * scale
    if usage.size:
        beats &= (usage[:, :, None] <= usage[:, None, :]).all(axis=0)
    np.fill_diagonal(beats, False)
    instead = np.arange(costs.size)
    for weaker in np.flatnonzero(beats.any(axis=0)):
        betters = np.flatnonzero(beats[:, weaker] & (instead == np.arange(costs.size)))
        if betters.size:
            instead[instead == weaker] = betters[0]
    return instead
