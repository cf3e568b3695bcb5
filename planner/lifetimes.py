"""What is in memory when, before it is known how everything is laid out.

Each array's bytes follow from the strategies of a node or two: those of a stored array from the node that lays it out,
those of a resharded copy from the node that made the value and the node that wants it otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.decisions import REPLICATED, Home
from planner.graph import Value
from planner.layout import Layout, replicated, shard_elements
from planner.price import Priced


@dataclass(frozen=True)
class Follower:
    """An array in memory as a node of the problem, whose states are how much it takes.

    Attributes:
        usage: `[K]` bytes per device in each state.
        links: each node that it follows, with `[S, K]` which states its strategies allow.
    """

    usage: np.ndarray
    links: tuple[tuple[int, np.ndarray], ...]


@dataclass(frozen=True)
class Stored:
    """A value as it was made, alive between two program points, both included."""

    value: Value
    home: Home
    start: int
    end: int

    def follower(self, priced: Priced) -> Follower:
        nbytes = [_local_bytes(priced, self.value, layout) for layout in _layouts(priced, self.home, result=True)]
        usage, state = np.unique(nbytes, return_inverse=True)
        return Follower(usage, ((self.home.node, state[:, None] == np.arange(usage.size)),))


@dataclass(frozen=True)
class Copy:
    """A value resharded from one home to another, between its first and its last use so."""

    value: Value
    made: Home
    wanted: Home
    start: int
    end: int

    def follower(self, priced: Priced) -> Follower:
        """Its states are the layouts wanted, each with as many bytes as the way there takes from some source."""
        sources, source_of = _distinct(_layouts(priced, self.made, result=True))
        targets, target_of = _distinct(_layouts(priced, self.wanted, result=False))
        taken = np.array([[self._bytes_on_the_way(priced, source, target) for target in targets] for source in sources])
        if self.made.node == self.wanted.node:
            usage, state = np.unique(taken[source_of, target_of], return_inverse=True)
            return Follower(usage, ((self.made.node, state[:, None] == np.arange(usage.size)),))
        states = [(column, nbytes) for column in range(len(targets)) for nbytes in np.unique(taken[:, column])]
        target, usage = np.array([column for column, _ in states]), np.array([nbytes for _, nbytes in states])
        return Follower(
            usage,
            (
                (self.made.node, (taken[:, target] <= usage)[source_of]),
                (self.wanted.node, np.array(target_of)[:, None] == target),
            ),
        )

    def _bytes_on_the_way(self, priced: Priced, source: Layout, target: Layout) -> float:
        steps = priced.resharder.path(self.value.shape, self.value.itemsize, source, target)
        return sum(_local_bytes(priced, self.value, step.layout) for step in steps)


def _layouts(priced: Priced, home: Home, result: bool) -> list[Layout]:
    if home.node == REPLICATED:
        return [replicated(len(home.dims))]
    return [strategy.layout(home.dims, result) for strategy in priced.strategies[home.node]]


def _distinct(layouts: list[Layout]) -> tuple[list[Layout], list[int]]:
    """The layouts once each, and which of those each is."""
    numbers = {layout: number for number, layout in enumerate(dict.fromkeys(layouts))}
    return list(numbers), [numbers[layout] for layout in layouts]


def _local_bytes(priced: Priced, value: Value, layout: Layout) -> float:
    return float(shard_elements(value.shape, layout, priced.cost.axis_sizes) * value.itemsize)
