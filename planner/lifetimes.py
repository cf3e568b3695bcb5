"""What is in memory when, before it is known how everything is laid out.

Each array's bytes follow from the strategies of a node or two: those of a stored array from the node that lays it out,
those of a resharded copy from the node that made the value and the node that wants it otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.assignment import Assignment
from planner.buffers import timeline
from planner.decisions import REPLICATED, Home
from planner.graph import Body, Op, Value
from planner.halves import sent_itemsize
from planner.layout import Layout, replicated, shard_elements
from planner.packing import Allocation
from planner.price import Priced
from planner.reshard import Resharder
from planner.scratch import op_beside_bytes, step_scratch_bytes
from planner.write import write


def lifetimes(assignment: Assignment, donors: Sequence[int | None]) -> list[Lifetime]:
    """What is in memory when; that depends little on the assignment.

    Args:
        donors: for each result, the argument whose memory it takes over, or None.
    """
    written = write(assignment)
    backend = assignment.priced.cost.backend
    over_time = timeline(assignment, written.program, donors)
    stored = [
        Stored(array.value, array.home, alive.start, alive.end, over_time.alike(array.value, alive))
        for array, alive in over_time.arrays.items()
        if array.own_bytes and array.home is not None and array.value not in assignment.priced.decisions.constant
    ]
    made = {one.value: one.start for one in stored}
    wanted: dict[tuple[Value, Body, Home, Home], list[int]] = {}
    for fetch in written.fetches:
        if fetch.made != fetch.wanted and fetch.reader in over_time.starts:
            key = (fetch.value, fetch.scope, fetch.made, fetch.wanted)
            wanted.setdefault(key, []).append(over_time.starts[fetch.reader])
    copies = []
    for (value, _, source, target), times in wanted.items():
        first = min(times)
        if backend == "cpu":  # copied as soon as it is there
            first = min(first, made.get(value, 0))
        alike = over_time.alike(value, Allocation(0.0, first, max(times), ""))
        copies += [
            Copy(value, source, target, first, max(times), alike),
            Copy(value, source, target, first - 1, first - 1, arriving=True),
        ]
    beside = []
    for one, time in over_time.starts.items():
        if one.op is not None and one.op in assignment.priced.decisions.members:
            partial = [over_time.arrays[a].end for a in one.results if a in over_time.arrays and a.home is None]
            beside.append(Beside(one.op, time, max(partial, default=time)))
    return [*stored, *copies, *beside]


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
    """A value as it was made, alive between two program points, both included.

    Attributes:
        alike: how many it stands for, itself included.
    """

    value: Value
    home: Home
    start: int
    end: int
    alike: int = 1

    @property
    def name(self) -> str:
        return f"memory of {self.value.name or 'a value'}"

    def follower(self, priced: Priced) -> Follower:
        nbytes = [_local_bytes(priced, self.value, layout) for layout in _layouts(priced, self.home, result=True)]
        return _following(self.home.node, [self.alike * each for each in nbytes])


@dataclass(frozen=True)
class Copy:
    """A value resharded from one home to another, between its first and its last use so.

    Attributes:
        alike: how many it stands for, itself included.
        arriving: this is the moment before, when what gathers of it need beside is alive too.
    """

    value: Value
    made: Home
    wanted: Home
    start: int
    end: int
    alike: int = 1
    arriving: bool = False

    @property
    def name(self) -> str:
        return f"memory of {self.value.name or 'a value'}, resharded"

    def follower(self, priced: Priced) -> Follower:
        """Its states are the layouts wanted, each with as many bytes as the way there takes from some source."""
        sources, source_of = _distinct(_layouts(priced, self.made, result=True))
        targets, target_of = _distinct(_layouts(priced, self.wanted, result=False))
        resharder, value = priced.resharders.of(self.value), self.value
        taken = self.alike * _bytes_on_the_way(
            resharder,
            value.shape,
            sent_itemsize(value, priced.cost.backend),
            tuple(sources),
            tuple(targets),
            self.arriving,
        )
        if self.made.node == self.wanted.node:
            return _following(self.made.node, taken[source_of, target_of].tolist())
        states = [(column, nbytes) for column in range(len(targets)) for nbytes in np.unique(taken[:, column])]
        target, usage = np.array([column for column, _ in states]), np.array([nbytes for _, nbytes in states])
        return Follower(
            usage,
            (
                (self.made.node, (taken[:, target] <= usage)[source_of]),
                (self.wanted.node, np.array(target_of)[:, None] == target),
            ),
        )


@dataclass(frozen=True)
class Beside:
    """What is there for an op's sake beside its operands and results."""

    op: Op
    start: int
    end: int

    @property
    def name(self) -> str:
        return f"memory beside {self.op.name}"

    def follower(self, priced: Priced) -> Follower:
        node, member = priced.decisions.members[self.op]
        needed = [op_beside_bytes(member, strategy, priced.cost) for strategy in priced.strategies[node]]
        return _following(node, needed)


def _following(node: int, needed: Sequence[float]) -> Follower:
    """What takes as much as `needed` says for each strategy of one node."""
    usage, state = np.unique(needed, return_inverse=True)
    return Follower(usage, ((node, state[:, None] == np.arange(usage.size)),))


def _layouts(priced: Priced, home: Home, result: bool) -> list[Layout]:
    if home.node == REPLICATED:
        return [replicated(len(home.dims))]
    return [strategy.layout(home.dims, result) for strategy in priced.strategies[home.node]]


def _distinct(layouts: list[Layout]) -> tuple[list[Layout], list[int]]:
    """The layouts once each, and which of those each is."""
    numbers = {layout: number for number, layout in enumerate(dict.fromkeys(layouts))}
    return list(numbers), [numbers[layout] for layout in layouts]


Lifetime = Stored | Copy | Beside


def _local_bytes(priced: Priced, value: Value, layout: Layout) -> float:
    return float(shard_elements(value.shape, layout, priced.cost.axis_sizes) * value.itemsize)


@lru_cache(maxsize=256)  # layers are alike
def _bytes_on_the_way(
    resharder: Resharder,
    shape: tuple[int, ...],
    itemsize: int,
    sources: tuple[Layout, ...],
    targets: tuple[Layout, ...],
    arriving: bool,
) -> np.ndarray:
    """`[len(sources), len(targets)]` bytes per device of all that resharding makes; arriving, as in `Copy`."""

    def taken(source: Layout, target: Layout) -> float:
        total = 0.0
        for step in resharder.path(shape, itemsize, source, target):
            nbytes = shard_elements(shape, step.layout, resharder.cost.axis_sizes) * itemsize
            scratch = step_scratch_bytes(step, nbytes, resharder.cost)
            total += nbytes if not arriving else nbytes + scratch if scratch else 0.0
        return total

    return np.array([[taken(source, target) for target in targets] for source in sources])
