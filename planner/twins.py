"""Twin layers: nodes that look alike from nearby take one decision.

A network of 96 equal layers is written out as 96 times the same subgraph. Nodes are labelled by what they are and, for
a few rounds, by what their neighbours are (the colour refinement of Weisfeiler and Leman); equal labels share a
strategy. The first and last layers, which have other neighbours, are decided on their own.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence

from planner.decisions import REPLICATED, Decisions, Node

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
