"""What there is to decide: from a graph to nodes, each one decision, and the uses of values between them.

A node is either a set of ops that share one decision or a value that is laid out on its own (an argument, a loop's
carry). Ops share a decision where nothing is lost by it: an elementwise op, a transposition, a broadcast or a reduction
follows the array that it covers, so that a chain of them is one node and the arrays between them need no resharding.
Contractions, gathers, convolutions and the like stay alone, and layouts change on the way into and out of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal as OneOf

from planner.graph import Body, Op, Value
from planner.layout import PartialLayout
from planner.rules import ShardingRule
from planner.strategies import Dims

NodeKind = OneOf[
    "argument", "ops", "carry", "invariant", "slices", "stacked", "branch result", "result", "view", "mapped"
]

REPLICATED = -1
"""Stands for a node where a value is whole on every device and there is nothing to decide."""


@dataclass(frozen=True, eq=False)
class Member:
    """An op in a node, with the node's factor for each of the rule's; a factor that stays whole has none."""

    op: Op
    rule: ShardingRule
    factor: Mapping[str, int]

    def dims(self, pattern: Sequence[tuple[str, ...]]) -> Dims:
        """An operand's or result's dimensions as factors of the node."""
        return tuple(tuple(self.factor[name] for name in dim if name in self.factor) for dim in pattern)

    @property
    def patterns(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        return (*self.rule.operands, *self.rule.results)

    @property
    def factors(self) -> tuple[int, ...]:
        return tuple(self.factor.values())

    @property
    def reduced(self) -> tuple[int, ...]:
        """The factors that the op sums over."""
        return tuple(factor for name, factor in self.factor.items() if name in self.rule.reduction)

    @property
    def covered(self) -> bool:
        """Whether one of its arrays has all of its factors, so that this array's layout says everything."""
        return any(set(self.factor) <= {name for dim in pattern for name in dim} for pattern in self.patterns)


@dataclass(eq=False)
class Node:
    """One decision.

    Attributes:
        name: what it decides, for people.
        sizes: the size of each factor.
        members: the ops that follow it, empty for a value.
        values: the dimensions, as factors, of every value that it lays out.
        weight: how often it happens in one call of the program.
        pinned: the mesh axes that the user asked for on each factor, None on a factor left open; or None.
        source: the user's line.
    """

    kind: NodeKind
    name: str
    sizes: list[int]
    members: list[Member] = field(default_factory=list)
    values: set[Dims] = field(default_factory=set)
    weight: float = 1.0
    pinned: PartialLayout | None = None
    source: str = ""


@dataclass(frozen=True)
class Home:
    """Where a value's layout is decided: a node's index or `REPLICATED`, and its dimensions as factors."""

    node: int
    dims: Dims


@dataclass(frozen=True, eq=False)
class Use:
    """A value that is needed as `node` says, or whole where node is `REPLICATED`.

    Attributes:
        weight: how often it happens in one call of the program.
        scope: the body in which the change of layout happens; the same change in one body is made once.
        view: the node that stands between the value's home and this use, or None.
    """

    value: Value
    node: int
    dims: Dims
    weight: float
    scope: Body
    view: Home | None = None


@dataclass(frozen=True, eq=False)
class Decisions:
    """All decisions of a program.

    Attributes:
        homes: where each value that is not constant is laid out.
        members: each op that is sharded, with its node.
        operands: for each op, the use behind each operand; None for literals and scalars.
        outputs: for each body, the use behind each of its outputs likewise.
        edges: every use, views included, in program order.
        ties: for each result, the argument whose layout it takes, or None.
        constant: values made of literals and iota alone.
        rounds: for each value that enters a loop and is the same in all rounds, under any name, how many there are.
        barred: in which bodies such values are for each round to reshard, for a barrier is before them.
        unruled: ops that run whole on every device because no rule is known.
    """

    nodes: tuple[Node, ...]
    homes: Mapping[Value, Home]
    members: Mapping[Op, tuple[int, Member]]
    operands: Mapping[Op, tuple[Use | None, ...]]
    outputs: Mapping[Body, tuple[Use | None, ...]]
    edges: tuple[Use, ...]
    ties: tuple[int | None, ...]
    constant: frozenset[Value]
    rounds: Mapping[Value, int]
    barred: Set[tuple[Body, Value]]
    unruled: tuple[Op, ...]
