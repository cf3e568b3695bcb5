"""A model as flat arrays, for kernels: nodes, strategies, arcs and spans are numbers into them.

An *arc* is a pair as one of its nodes sees it, so each pair has two. Equal matrices are kept once: networks repeat
their layers, and what is small stays in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.problem import FloatArray, IntArray
from planner.solve.model import Model


class Graph(NamedTuple):
    """Who has which strategies and neighbours.

    Attributes:
        start: (nodes + 1), where the strategies of each node begin.
        arcs: (nodes + 1), where its arcs begin.
        other: per arc, the neighbour.
        twin: per arc, the neighbour's arc of the same pair.
        held: (arcs + 1), where something that an arc has for each strategy of its own node begins.
        rows: per arc, where the matrix with its own node's strategies as rows begins in `entries`.
        columns: per arc, where the transpose does.
        entries: the matrices' costs.
    """

    start: IntArray
    arcs: IntArray
    other: IntArray
    twin: IntArray
    held: IntArray
    rows: IntArray
    columns: IntArray
    entries: FloatArray


class Memory(NamedTuple):
    """What is alive in which rows.

    Attributes:
        spans: (nodes + 1), where the spans of each node begin.
        first, last: per span, its first row and the one after its last.
        at: per span, where its bytes per strategy begin in `usage`.
        usage: bytes.
        base: per row, bytes that are alive whatever is picked.
    """

    spans: IntArray
    first: IntArray
    last: IntArray
    at: IntArray
    usage: FloatArray
    base: FloatArray


@dataclass(frozen=True, eq=False)
class Flat:
    """A model as flat arrays.

    Attributes:
        costs: of each strategy of each node.
        work: how many entries all matrices have; what going over all pairs once costs.
    """

    graph: Graph
    memory: Memory
    costs: FloatArray
    work: int

    @staticmethod
    def from_model(model: Model) -> Flat:
        graph = _graph(model)
        costs = np.concatenate([np.zeros(0), *model.costs])
        return Flat(graph, _memory(model), costs, sum(cost.size for cost in model.pairs.values()))

    def split(self, values: FloatArray) -> list[FloatArray]:
        """What is given per strategy, for each node by itself."""
        return np.split(values, self.graph.start[1:-1]) if self.graph.start.size > 1 else []


class _Bank:
    """Matrices one after the other, equal ones once."""

    def __init__(self) -> None:
        self.chunks: list[FloatArray] = [np.zeros(0)]
        self.places: dict[tuple[tuple[int, ...], bytes], int] = {}
        self.size = 0

    def place(self, cost: FloatArray) -> int:
        """Where the matrix begins."""
        key = cost.shape, cost.tobytes()
        if key not in self.places:
            self.places[key] = self.size
            self.chunks.append(np.ascontiguousarray(cost).ravel())
            self.size += cost.size
        return self.places[key]


def _graph(model: Model) -> Graph:
    sizes = np.array([costs.size for costs in model.costs], dtype=np.int64)
    pairs = sorted(model.pairs)
    bank = _Bank()
    there = [bank.place(model.pairs[pair]) for pair in pairs]
    back = [bank.place(model.pairs[pair].T) for pair in pairs]
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    owner, other = np.concatenate([ends[:, 0], ends[:, 1]]), np.concatenate([ends[:, 1], ends[:, 0]])
    order = np.lexsort((other, owner))
    place = np.argsort(order)
    return Graph(
        start=_starts(sizes),
        arcs=_starts(np.bincount(owner, minlength=sizes.size)),
        other=other[order],
        twin=np.roll(place, len(pairs))[order],
        held=_starts(sizes[owner[order]]),
        rows=np.array(there + back, dtype=np.int64)[order],
        columns=np.array(back + there, dtype=np.int64)[order],
        entries=np.concatenate(bank.chunks),
    )


def _memory(model: Model) -> Memory:
    loads = model.loads
    spans = np.concatenate([np.zeros((0, 2), dtype=np.int64), *(load.spans for load in loads)])
    sizes = [load.usage.shape[1] for load in loads for _ in load.spans]
    return Memory(
        spans=_starts(np.array([len(load.spans) for load in loads], dtype=np.int64)),
        first=np.ascontiguousarray(spans[:, 0]),
        last=np.ascontiguousarray(spans[:, 1]),
        at=_starts(np.array(sizes, dtype=np.int64))[:-1],
        usage=np.concatenate([np.zeros(0), *(load.usage.ravel() for load in loads)]),
        base=model.base,
    )


def _starts(sizes: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
