"""Twin layers: nodes that look alike from nearby take one decision.

A network of 96 equal layers is written out as 96 times the same subgraph. Nodes are labelled by what they are and, for
a few rounds, by what their neighbours are (the colour refinement of Weisfeiler and Leman); equal labels share a
strategy. The first and last layers, which have other neighbours, are decided on their own.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.decisions import REPLICATED, Decisions, Node
from planner.problem import Edge, FloatArray, IntArray, Problem

ROUNDS = 3


def twins(decisions: Decisions) -> tuple[int, ...]:
    """A class for each node; nodes of one class have the same strategies in the same order."""
    labels = _numbered([_signature(node) for node in decisions.nodes])
    links = [
        (
            (use.view or decisions.homes[use.value]),
            use,
            (use.value.shape, str(use.value.dtype), use.dims, use.view is None),
        )
        for use in decisions.edges
        if use.value in decisions.homes
    ]
    for _ in range(ROUNDS):
        around: list[list[Hashable]] = [[] for _ in decisions.nodes]
        for home, use, kind in links:
            if home.node != REPLICATED and use.node != REPLICATED:
                around[use.node].append(("in", kind, home.dims, labels[home.node]))
                around[home.node].append(("out", kind, home.dims, labels[use.node]))
        labels = _numbered(
            [(label, tuple(sorted(map(hash, neighbours)))) for label, neighbours in zip(labels, around, strict=True)]
        )
    return labels


def _signature(node: Node) -> Hashable:
    """What a node is; layer numbers in an argument's name do not count."""
    name = re.sub(r"\d+", "*", node.name) if node.kind == "argument" else ""
    members = tuple((member.op.name, tuple(member.factor.values())) for member in node.members)
    return node.kind, name, tuple(node.sizes), node.pinned, node.weight, members, frozenset(node.values)


def _numbered(labels: Sequence[Hashable]) -> tuple[int, ...]:
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(label, len(numbers)) for label in labels)


@dataclass(frozen=True, eq=False)
class Merged:
    """A problem with one node for each class of twins.

    Attributes:
        of: for each node of the whole problem, its node here.
        first: for each node here, the first of the whole that it stands for.
    """

    problem: Problem
    of: IntArray
    first: IntArray

    def lift(self, picks: Sequence[int] | IntArray) -> IntArray:
        """Picks of the whole problem."""
        return np.asarray(picks, dtype=np.int64)[self.of]

    def project(self, picks: Sequence[int] | IntArray) -> IntArray:
        """Of picks that are the same within each class."""
        return np.asarray(picks, dtype=np.int64)[self.first]


def merge(problem: Problem, classes: Sequence[int]) -> Merged:
    """A problem without a limit to memory, as small as if each layer were there once.

    Args:
        classes: for each node; those of one class have equally many strategies.
    """
    of = np.array(_numbered(classes), dtype=np.int64)
    first = np.unique(of, return_index=True)[1]
    costs: list[FloatArray] = [np.zeros(problem.costs[node].size) for node in first]
    for node, seconds in zip(of.tolist(), problem.costs, strict=True):
        costs[node] += seconds
    alike: dict[tuple[int, int, int], int] = {}
    for edge in problem.edges:
        key = (int(of[edge.tail]), int(of[edge.head]), id(edge.cost))
        alike[key] = alike.get(key, 0) + 1
    matrices = {id(edge.cost): edge.cost for edge in problem.edges}
    merged = Problem(
        costs=tuple(costs),
        usages=tuple(np.zeros_like(cost) for cost in costs),
        intervals=((0, 0),) * len(costs),
        edges=tuple(Edge(tail, head, count * matrices[key]) for (tail, head, key), count in alike.items()),
        names=tuple(problem.names[node] for node in first) if problem.names else (),
        name=problem.name,
    )
    return Merged(merged, of, first)
