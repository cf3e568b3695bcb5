"""Where values are needed, and the views between a value and those who need it resharded alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.decisions import REPLICATED, Decisions, Home, Member, Use
from planner.graph import TRANSPARENT, Atom, Body, Graph, Op, Value, aval_of
from planner.grouping import Grouping
from planner.layout import Layout, PartialLayout
from planner.specs import Border


def decide(
    graph: Graph,
    ties: Sequence[int | None],
    in_pins: Sequence[Layout | None],
    out_pins: Sequence[Layout | None],
    constraints: Mapping[Op, PartialLayout],
    mapped: Mapping[Op, Border],
) -> Decisions:
    """All decisions of a program.

    Args:
        ties: for each result, the argument whose layout it takes, or None.
        in_pins, out_pins: the layouts that the user asked for, per argument and result.
        constraints: the layouts of `with_sharding_constraint` in the program.
        mapped: those of the borders of `shard_map`.
    """
    grouping = Grouping(graph, in_pins, constraints, mapped)
    collector = _Uses(graph, grouping)
    collector.walk(graph.body, 1.0)
    wanted: list[Home | None] = []
    for position, (atom, tie, pin) in enumerate(zip(graph.body.outputs, ties, out_pins, strict=True)):
        if pin is None and tie is None and 0 in aval_of(atom).shape:  # JAX cannot read an empty array that is split
            pin = ((),) * aval_of(atom).ndim
        if pin is not None:
            wanted.append(grouping.new_value("result", aval_of(atom).shape, f"result {position}", 1.0, pin))
        else:
            wanted.append(None if tie is None else grouping.homes[graph.body.inputs[tie]])
    collector.outputs(graph.body, wanted, 1.0)
    uses = collector.insert_views()
    return Decisions(
        tuple(grouping.nodes),
        {**grouping.homes, **{value: home for value in grouping.aliases if (home := collector.home(value))}},
        grouping.members,
        {op: tuple(use and uses[use] for use in operands) for op, operands in collector.operand_uses.items()},
        {body: tuple(use and uses[use] for use in outputs) for body, outputs in collector.output_uses.items()},
        tuple(uses.values()),
        tuple(ties),
        frozenset(grouping.constant),
        grouping.rounds,
        frozenset(grouping.barred),
        tuple(grouping.unruled),
    )


class _Uses:
    """Collects the uses in program order."""

    def __init__(self, graph: Graph, grouping: Grouping):
        self.graph, self.grouping = graph, grouping
        self.operand_uses: dict[Op, tuple[Use | None, ...]] = {}
        self.output_uses: dict[Body, tuple[Use | None, ...]] = {}
        self._shareable: dict[tuple[Value, Body, tuple[bool, ...]], list[Use]] = {}
        self._all: list[Use] = []

    def home(self, atom: Atom) -> Home | None:
        """Where an atom is laid out; None for literals."""
        root = self.grouping.root(atom)
        if not isinstance(root, Value):
            return None
        return self.grouping.homes.get(root) or Home(REPLICATED, ((),) * root.rank)

    def walk(self, body: Body, weight: float) -> None:
        grouping = self.grouping
        for op in body.ops:
            if op.primitive in TRANSPARENT:
                self.walk(op.bodies[0], weight)
            elif op in grouping.boundaries:
                entering, leaving = grouping.boundaries[op]
                self.operand_uses[op] = tuple(
                    self._use(atom, home, weight, body) for atom, home in zip(op.operands, entering, strict=True)
                )
                inside = weight * op.trips / (len(op.bodies) if op.name == "cond" else 1)
                for inner, homes in zip(op.bodies, leaving, strict=True):
                    self.walk(inner, inside)
                    self.outputs(inner, homes, inside)
            elif op in grouping.members:
                index, member = grouping.members[op]
                self.operand_uses[op] = tuple(
                    self._use(atom, Home(index, member.dims(pattern)), weight, body, member)
                    for atom, pattern in zip(op.operands, member.rule.operands, strict=True)
                )
            elif not all(value in grouping.constant for value in op.results) or op.effects:
                self.operand_uses[op] = tuple(self._use(atom, None, weight, body) for atom in op.operands)

    def outputs(self, body: Body, homes: Sequence[Home | None], weight: float) -> None:
        """The uses of a body's outputs; where `homes` says None, the output stays as it is."""
        self.output_uses[body] = tuple(
            self._use(atom, home or self.home(atom), weight, body)
            for atom, home in zip(body.outputs, homes, strict=True)
        )

    def _use(
        self, atom: Atom, wanted: Home | None, weight: float, scope: Body, reader: Member | None = None
    ) -> Use | None:
        root = self.grouping.root(atom)
        if not isinstance(root, Value) or not root.rank:
            return None
        wanted = wanted or Home(REPLICATED, ((),) * root.rank)
        use = Use(root, wanted.node, wanted.dims, weight * self._times(root, scope), scope)
        self._all.append(use)
        whole = any(size > 1 and not dim for size, dim in zip(root.shape, use.dims, strict=True))
        # A value is often wanted otherwise than it was made by a contraction, or by who needs a dimension whole.
        if reader is not None and (whole or not reader.covered) and root not in self.grouping.constant:
            self._shareable.setdefault((root, scope, tuple(map(bool, use.dims))), []).append(use)
        return use

    def _times(self, value: Value, scope: Body) -> int:
        """For how many uses one stands; in a program cut short those of one value there are for each of its layers."""
        return self.graph.times(value if scope is self.graph.body else scope)

    def insert_views(self) -> dict[Use, Use]:
        """Uses with their views: several that split the same dimensions of a value may share one resharded copy."""
        result = {use: use for use in self._all}
        for (value, scope, _), uses in self._shareable.items():
            home = self.home(value)
            if home is None or len({(use.node, use.dims) for use in uses} - {(home.node, home.dims)}) < 2:
                continue
            weight = uses[0].weight
            once = weight / self._times(value, scope)
            view = self.grouping.new_value("view", value.shape, f"view of {value.name or 'value'}", once)
            if view.node == REPLICATED:
                continue
            result.update((use, Use(value, use.node, use.dims, weight, scope, view)) for use in uses)
            to_view = Use(value, view.node, view.dims, weight, scope)
            result[to_view] = to_view
        return result
