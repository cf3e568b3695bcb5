"""From decisions to a `Problem`: what every strategy and every change of layout costs, in seconds.

A node's cost is what its ops take on one device, the collectives inside them included; an edge's is the resharding
between two nodes. Both count as often as they happen in one call of the program.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.model import MeshCost
from planner.decisions import REPLICATED, Decisions, Member, Node, Use
from planner.graph import Body, Graph, Op, Value, aval_of
from planner.halves import sent_itemsize
from planner.layout import Layout, replicated, shard_count
from planner.opcost import (
    Exchange,
    calls,
    compute_seconds,
    halo_factors,
    inner_collectives,
    member_work,
    shard_counts,
    whole_seconds,
)
from planner.problem import Edge, Problem
from planner.reshard import Resharder
from planner.rules.rule import Halo
from planner.strategies import Dims, Strategy, enumerate_strategies
from planner.work import Work, in_and_out_bytes, works


@dataclass(frozen=True, eq=False)
class Reading:
    """A use that is paid for: `[S, T]` seconds of resharding from a strategy of node `tail` to one of `head`."""

    use: Use
    tail: int
    head: int
    seconds: np.ndarray


@dataclass(frozen=True)
class Resharders:
    """What changes the layouts of a program's arguments, which come once a call, and of what it has just made."""

    arguments: frozenset[Value]
    cold: Resharder
    warm: Resharder

    @staticmethod
    def for_program(graph: Graph, cost: MeshCost) -> Resharders:
        warm = Resharder(cost)
        if not cost.shares_caches:
            return Resharders(frozenset(), warm, warm)
        cold = Resharder(cost, in_and_out_bytes(graph))
        return Resharders(frozenset(graph.body.inputs), cold, warm)

    def of(self, value: Value) -> Resharder:
        return self.cold if value in self.arguments else self.warm

    def guided(self, guide: Resharders) -> Resharders:
        """These prices, by the ways of another."""
        pairs = (self.cold, guide.cold), (self.warm, guide.warm)
        cold, warm = (Resharder(own.cost, own.call_bytes, its) for own, its in pairs)
        return replace(self, cold=cold, warm=warm)


@dataclass(frozen=True, eq=False)
class Priced:
    """The decisions of a program with a price on everything.

    Attributes:
        strategies: per node, in the order of the problem's, whose last node stands for all ops that run whole on every
            device.
        problem: without a memory limit.
        seconds: for each sharded op that runs by itself, what it takes on one device under each strategy of its node.
        readings: the uses that are paid for, with their prices, by value and body.
    """

    graph: Graph
    decisions: Decisions
    strategies: tuple[tuple[Strategy, ...], ...]
    problem: Problem
    work: Mapping[Op, Work]
    seconds: Mapping[Op, np.ndarray]
    readings: tuple[tuple[Reading, ...], ...]
    resharders: Resharders

    @property
    def cost(self) -> MeshCost:
        return self.resharders.warm.cost

    @property
    def output_uses(self) -> list[Use | None]:
        """The use behind each of the whole graph's results."""
        uses, cut = self.decisions.outputs[self.graph.body], self.graph.cut
        return [*uses] if cut is None else [uses[position] for position in cut.outputs]


def reshards(use: Use, decisions: Decisions, cost: MeshCost) -> float:
    """How often a value is resharded for a use in one call of the program."""
    moves = cost.hoists and (use.scope, use.value) not in decisions.barred
    return use.weight / decisions.rounds.get(use.value, 1) if moves else use.weight


def price(graph: Graph, decisions: Decisions, cost: MeshCost, donors: Sequence[int | None]) -> Priced:
    """Prices all decisions of a program on one mesh.

    Args:
        donors: for each result, the argument whose memory it takes over, or None.
    """
    pricing = _Pricing(graph, decisions, cost, donors)
    costs = [pricing.node_seconds(index) for index in range(len(decisions.nodes))]
    parts: dict[tuple[int, int], list[np.ndarray]] = {}
    readings: dict[tuple[Value, Body], list[Reading]] = {}
    for use in pricing.distinct_uses():
        readings.setdefault((use.value, use.scope), []).append(pricing.reading(use))
    for one in itertools.chain(*readings.values()):
        tail, head, seconds = one.tail, one.head, one.seconds
        if tail == head == REPLICATED:
            continue
        if tail == head:
            costs[tail] = costs[tail] + np.diagonal(seconds)
        elif head == REPLICATED:
            costs[tail] = costs[tail] + seconds[:, 0]
        elif tail == REPLICATED:
            costs[head] = costs[head] + seconds[0]
        else:
            parts.setdefault((tail, head), []).append(seconds)
    costs.append(np.array([pricing.undecided_seconds()]))
    problem = Problem(
        costs=tuple(costs),
        usages=tuple(np.zeros_like(node) for node in costs),
        intervals=((0, 0),) * len(costs),
        edges=tuple(Edge(tail, head, pricing.sum(seconds)) for (tail, head), seconds in parts.items()),
        names=(*(node.name for node in decisions.nodes), "replicated ops"),
    )
    return Priced(
        graph,
        decisions,
        pricing.strategies,
        problem,
        pricing.work,
        pricing.seconds,
        tuple(map(tuple, readings.values())),
        pricing.resharders,
    )


class _Pricing:
    """Prices nodes and uses; arrays over a node's strategies are written `[S]`.

    Layers repeat, so whatever looks alike is worked out once, and is one object: strategies, layouts, matrices. That
    keeps what a hundred layers cost near what one does, in memory too.
    """

    def __init__(self, graph: Graph, decisions: Decisions, cost: MeshCost, donors: Sequence[int | None]):
        self.graph, self.decisions, self.cost = graph, decisions, cost
        self.sizes = dict(cost.axis_sizes)
        self.resharders = Resharders.for_program(graph, cost)
        self.work = works(graph, decisions, cost.backend, donors)
        self._enumerated: dict[object, tuple[Strategy, ...]] = {}
        self.strategies = tuple(self._strategies(node) for node in decisions.nodes)
        self._layouts: dict[tuple[int, Dims, bool], tuple[list[Layout], np.ndarray]] = {}
        self._matrices: dict[object, np.ndarray] = {}
        self._alone: dict[object, np.ndarray] = {}
        self._inside: dict[object, np.ndarray] = {}
        self._exposed: dict[Exchange, float] = {}
        self.seconds: dict[Op, np.ndarray] = {}

    def _strategies(self, node: Node) -> tuple[Strategy, ...]:
        if node.pinned is not None and None not in node.pinned:
            return (Strategy(tuple(axes or () for axes in node.pinned)),)
        scatter_onto: tuple[int, ...] = ()
        reduced: tuple[int, ...] = ()
        if self.cost.reduce_scatters and len(node.members) == 1:
            (member,) = node.members
            reduced = member.reduced
            dims = member.dims(member.rule.results[0]) if len(member.rule.results) == 1 else ()
            scatter_onto = tuple(dim[0] for dim in dims if len(dim) == 1)
        sizes, values = tuple(node.sizes), tuple(sorted(node.values))
        pinned = tuple(node.pinned or (None,) * len(sizes))
        halos = tuple(halo for member in node.members for halo in halo_factors(member))
        key = (sizes, values, scatter_onto, reduced, pinned, halos)
        if key not in self._enumerated:  # layers repeat
            found = enumerate_strategies(sizes, self.cost.axis_sizes, values, scatter_onto, reduced)
            self._enumerated[key] = self._allowed(found, sizes, pinned, halos)
        return self._enumerated[key]

    def _allowed(
        self,
        found: Iterable[Strategy],
        sizes: Sequence[int],
        pinned: Sequence[tuple[str, ...] | None],
        halos: Sequence[tuple[int, Halo]],
    ) -> tuple[Strategy, ...]:
        return tuple(
            strategy
            for strategy in found
            if all(pin is None or pin == axes for pin, axes in zip(pinned, strategy.axes, strict=True))
            and all(
                # A halo reaches no further than the next shard.
                sum(halo) <= sizes[factor] // shard_count(strategy.axes[factor], self.sizes)
                for factor, halo in halos
            )
        )

    def node_seconds(self, index: int) -> np.ndarray:
        """`[S]` seconds in the ops of a node, each as often as it runs."""
        node, strategies = self.decisions.nodes[index], self.strategies[index]
        seconds = np.zeros(len(strategies))
        for member in node.members:
            work, times = self.work.get(member.op), self.graph.times(member.op)
            if work is not None:
                self.seconds[member.op] = self._seconds_alone(member, work, strategies)
                seconds += times * self.seconds[member.op]
            seconds += times * self._collective_seconds(member, strategies)
        return seconds * node.weight

    def _seconds_alone(self, member: Member, work: Work, strategies: tuple[Strategy, ...]) -> np.ndarray:
        """`[S]` seconds of an op without its collectives."""
        key = (id(strategies), member_work(member, work))
        if key not in self._alone:
            self._alone[key] = compute_seconds(self.cost, member, work, shard_counts(strategies, self.sizes))
        return self._alone[key]

    def undecided_seconds(self) -> float:
        """Seconds in the ops that every device runs whole."""
        total = 0.0
        for op, around in self.graph.walk():
            work = self.work.get(op)
            if work is not None and op not in self.decisions.members:
                total += self._calls(op, around) * whole_seconds(self.cost, op, work)
        return total

    def _calls(self, op: Op, around: Sequence[Op]) -> float:
        """How often an op inside these ops, and all that it stands for, run in one call of the program."""
        return self.graph.times(op) * calls(around)

    def _collective_seconds(self, member: Member, strategies: Sequence[Strategy]) -> np.ndarray:
        """`[S]` seconds of the reductions and halo exchanges inside an op."""
        reduced, halos = member.reduced, halo_factors(member)
        if not reduced and not halos:
            return np.zeros(len(strategies))
        arrays = zip((*member.op.operands, *member.op.results), member.patterns, strict=True)
        shapes = tuple((aval_of(value).shape, aval_of(value).dtype, member.dims(dims)) for value, dims in arrays)
        key = (id(strategies), reduced, halos, len(member.op.results), shapes)
        if key not in self._inside:
            seconds = np.zeros(len(strategies))
            for row, strategy in enumerate(strategies):
                for collective in inner_collectives(member, strategy, self.cost):
                    if collective not in self._exposed:
                        kind, axes, _, sent_bytes = collective
                        self._exposed[collective] = float(self.cost.exposed_seconds(kind, axes, sent_bytes))
                    seconds[row] += self._exposed[collective]
            self._inside[key] = seconds
        return self._inside[key]

    def distinct_uses(self) -> list[Use]:
        """The uses that are paid for: of those that reshard one value alike in one body only the first, as emitted."""
        found: dict[object, Use] = {}
        for use in self.decisions.edges:
            if use.value not in self.decisions.constant:
                found.setdefault((use.value, use.scope, use.node, use.dims, use.view), use)
        return list(found.values())

    def reading(self, use: Use) -> Reading:
        home = use.view or self.decisions.homes[use.value]
        sources, source_of = self._layouts_of(home.node, home.dims, use.view is None)
        targets, target_of = self._layouts_of(use.node, use.dims, False)
        times = reshards(use, self.decisions, self.cost)
        repeats = use.value.repeats if use.view is None else ()
        resharder, itemsize = self.resharders.of(use.value), sent_itemsize(use.value, self.cost.backend)
        key = (id(resharder), use.value.shape, itemsize, id(source_of), id(target_of), times, repeats)
        if key not in self._matrices:
            matrix = resharder.matrix(use.value.shape, itemsize, sources, targets, repeats)
            self._matrices[key] = matrix[np.ix_(source_of, target_of)] * times
        return Reading(use, home.node, use.node, self._matrices[key])

    def sum(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The sum of matrices that were worked out here."""
        if len(parts) == 1:
            return parts[0]
        key = tuple(map(id, parts))
        if key not in self._matrices:
            self._matrices[key] = np.sum(parts, axis=0)
        return self._matrices[key]

    def _layouts_of(self, node: int, dims: Dims, result: bool) -> tuple[list[Layout], np.ndarray]:
        """The different layouts that a node's strategies give these dimensions, and `[S]` the one that each gives."""
        strategies = () if node == REPLICATED else self.strategies[node]
        key = (id(strategies), dims, result)
        if key not in self._layouts:
            index: dict[Layout, int] = {} if strategies else {replicated(len(dims)): 0}
            of = [index.setdefault(strategy.layout(dims, result), len(index)) for strategy in strategies] or [0]
            self._layouts[key] = (list(index), np.array(of))
        return self._layouts[key]
