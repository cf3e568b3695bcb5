"""Which ops share a decision, and which values are laid out on their own.

Two ops share one where a value between them shows all factors of both (an elementwise chain, a transposition, a
broadcast and the sum of its result), so that resharding between them could only ever move a cost, not save one; and
where a small op has nothing but one such group around it (the mean inside a normalisation).
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence

from jax.extend import core as jex_core
from jax.extend.core import primitives as jex_primitives

from planner._jax_compat import scan_counts
from planner.decisions import REPLICATED, Home, Member, Node, NodeKind
from planner.graph import TRANSPARENT, Atom, Body, Graph, Op, Value, aval_of, behind_barrier, invariants, root_of
from planner.layout import Layout, PartialLayout
from planner.rules import Origin, ShardingRule, rule_for
from planner.specs import Border
from planner.strategies import Dims
from planner.traits import renames

Matching = dict[int, int]
"""Factors of one cluster to the factors of another that they are the same as."""


class _Cluster:
    """Ops that share a decision, while they are still being gathered."""

    def __init__(self, op: Op, sizes: list[int], weight: float):
        self.ops = [op]
        self.sizes = sizes
        self.weight = weight


class Grouping:
    """The nodes of a program, its values' homes, and its ops' places in the nodes.

    Attributes:
        homes: for every value that is not constant.
        members: every op that is sharded, with its node.
        boundaries: for each loop, branch or `shard_map`, the homes inside that its operands go to, and those that its
            bodies' outputs go to, each with how many leading dimensions the value outside has on top.
        constant: values made of literals and iota alone.
        rounds, barred: as in `Decisions`.
    """

    def __init__(
        self,
        graph: Graph,
        in_pins: Sequence[Layout | None],
        constraints: Mapping[Op, PartialLayout],
        mapped: Mapping[Op, Border],
    ):
        self.nodes: list[Node] = []
        self.homes: dict[Value, Home] = {}
        self.members: dict[Op, tuple[int, Member]] = {}
        self.boundaries: dict[Op, tuple[tuple[Home, ...], tuple[tuple[Home, ...], ...]]] = {}
        self.constant: set[Value] = set()
        self.rounds: dict[Value, int] = {}
        self.barred: set[tuple[Body, Value]] = set()
        self.unruled: list[Op] = []
        self.aliases: dict[Value, Atom] = {}
        self._constraints, self._mapped = constraints, mapped
        self._rules: dict[Op, ShardingRule] = {}
        self._known: dict[Hashable, tuple[ShardingRule, Origin, tuple[str, ...]]] = {}
        self._factors: dict[Op, dict[str, int]] = {}
        self._cluster_of: dict[Op, _Cluster] = {}
        self._made_by: dict[Value, tuple[Op, int]] = {}
        self.constant.update(graph.constants)
        for value, pin in zip(graph.body.inputs, in_pins, strict=True):
            self.homes[value] = self.new_value("argument", value.shape, value.name, 1.0, pin)
        self._walk(graph.body, 1.0)
        self._fold_sandwiched(graph)
        self._settle()

    def root(self, atom: Atom) -> Atom:
        return root_of(atom, self.aliases)

    def is_constant(self, atom: Atom) -> bool:
        atom = self.root(atom)
        return isinstance(atom, jex_core.Literal) or atom in self.constant

    def new_value(
        self,
        kind: NodeKind,
        shape: Sequence[int],
        name: str,
        weight: float,
        pin: Layout | None = None,
        source: str = "",
    ) -> Home:
        """A node for a value that is laid out on its own; none where nothing could be split."""
        sizes = [size for size in shape if size > 1]
        if not sizes:
            return Home(REPLICATED, ((),) * len(shape))
        factors = iter(range(len(sizes)))
        dims: Dims = tuple((next(factors),) if size > 1 else () for size in shape)
        pinned = None if pin is None else tuple(axes for axes, size in zip(pin, shape, strict=True) if size > 1)
        self.nodes.append(Node(kind, name, sizes, [], {dims}, weight, pinned, source))
        return Home(len(self.nodes) - 1, dims)

    def _walk(self, body: Body, weight: float) -> None:
        for op in body.ops:
            if op.primitive in TRANSPARENT:
                self._see_through(op, body, weight)
            elif op.bodies:
                self._enter(op, weight)
            elif op in self._mapped:
                self._pin_border(op, weight)
            elif not op.effects and all(self.is_constant(atom) for atom in op.operands):
                self.constant.update(op.results)
            else:
                self._add(op, weight)
                root = root_of(op.operands[0], self.aliases) if renames(op) else None
                if isinstance(root, Value) and root in self.rounds and (body, root) not in self.barred:
                    self.rounds[op.results[0]] = self.rounds[root]

    def _see_through(self, op: Op, around: Body, weight: float) -> None:
        (body,) = op.bodies
        self.aliases.update(zip(body.inputs, op.operands, strict=True))
        guarded = behind_barrier(op)
        for atom in op.operands:
            root = self.root(atom)
            if isinstance(root, Value) and (atom in guarded or (around, root) in self.barred):
                self.barred.add((body, root))
        self._walk(body, weight)
        self.aliases.update(zip(op.results, body.outputs, strict=True))

    def _pin_border(self, op: Op, weight: float) -> None:
        """A call that says itself how it is laid out."""

        def pinned(atoms: Sequence[Atom], layouts: Sequence[Layout]) -> tuple[Home, ...]:
            return tuple(
                self.new_value("mapped", aval_of(atom).shape, op.name, weight, layout, op.source)
                for atom, layout in zip(atoms, layouts, strict=True)
            )

        operands, results = (
            pinned(atoms, layouts) for atoms, layouts in zip((op.operands, op.results), self._mapped[op], strict=True)
        )
        self.homes.update(zip(op.results, results, strict=True))
        self.boundaries[op] = operands, ()

    def _enter(self, op: Op, weight: float) -> None:
        """Values that cross into a loop or a branch are laid out at its border, one layout for all rounds."""

        def border(kind: NodeKind, values: Sequence[Value], weight: float = weight) -> list[Home]:
            return [self.new_value(kind, value.shape, f"{op.name} {kind}", weight, None, op.source) for value in values]

        def settle(values: Sequence[Value], homes: Sequence[Home]) -> None:
            self.homes.update(zip(values, homes, strict=True))

        unchanging = {body: [value for _, value in invariants(op, body)] for body in op.bodies}
        self.rounds.update(dict.fromkeys(itertools.chain(*unchanging.values()), max(op.trips, 1)))
        inside = weight * op.trips
        if op.primitive is jex_primitives.scan_p:
            (body,) = op.bodies
            first, count = scan_counts(op.params)
            invariant, slices = border("invariant", unchanging[body]), border("slices", body.inputs[first + count :])
            carry = border("carry", body.inputs[first : first + count], inside)
            settle(body.inputs, (*invariant, *carry, *slices))
            stacked = [
                self.new_value("stacked", value.shape[1:], "scan stacked", inside, None, op.source)
                for value in op.results[len(carry) :]
            ]
            settle(op.results, (*carry, *map(stack, stacked)))
            self._walk(body, inside)
            self.boundaries[op] = ((*invariant, *carry, *map(stack, slices)), ((*carry, *stacked),))
        elif op.primitive is jex_primitives.while_p:
            test, body = op.bodies
            tested, invariant = (border("invariant", unchanging[each]) for each in op.bodies)
            carry = border("carry", body.inputs[len(invariant) :], inside)
            settle(test.inputs, (*tested, *carry))
            settle(body.inputs, (*invariant, *carry))
            settle(op.results, carry)
            self._walk(test, inside)
            self._walk(body, inside)
            verdict = Home(REPLICATED, ((),) * aval_of(test.outputs[0]).ndim)  # one each where the loop was vmapped
            self.boundaries[op] = ((*tested, *invariant, *carry), ((verdict,), tuple(carry)))
        else:
            each = weight / len(op.bodies)
            operands = border("invariant", op.bodies[0].inputs)
            results = border("branch result", op.results)
            settle(op.results, results)
            for body in op.bodies:
                settle(body.inputs, operands)
                self._walk(body, each)
            index = Home(REPLICATED, ())
            self.boundaries[op] = ((index, *operands), (tuple(results),) * len(op.bodies))

    def _add(self, op: Op, weight: float) -> None:
        rule, origin, factors = self._rule(op)
        if origin == "replicated" and any(value.rank for value in op.results):
            self.unruled.append(op)
        for position, value in enumerate(op.results):
            if factors and value.rank:
                self._made_by[value] = (op, position)
            else:
                self.homes[value] = Home(REPLICATED, ((),) * value.rank)
        if not factors:
            return
        sizes = dict(rule.sizes)
        self._rules[op] = rule
        self._factors[op] = {name: index for index, name in enumerate(factors)}
        self._cluster_of[op] = _Cluster(op, [sizes[name] for name in factors], weight)
        for position in range(len(op.operands)):
            self._join(op, position)

    def _rule(self, op: Op) -> tuple[ShardingRule, Origin, tuple[str, ...]]:
        """An op's rule, where it came from, and the factors that may be split; once for all ops alike."""
        avals = tuple(map(aval_of, op.operands)), tuple(map(aval_of, op.results))
        key = (op.primitive, *(tuple((aval.shape, aval.dtype) for aval in each) for each in avals))
        try:
            known = self._known.get((*key, params := tuple(op.params.items())))
        except TypeError:  # a param is not hashable
            params, known = None, None
        if known is None:
            rule, origin = rule_for(op.primitive, *avals, op.params)
            known = rule, origin, splittable(rule)
            if params is not None:
                self._known[*key, params] = known
        return known

    def _join(self, op: Op, position: int) -> None:
        """Puts op and the maker of an operand into one cluster if the operand shows all factors of both clusters."""
        made = self._maker(op.operands[position])
        if made is None or op in self._constraints or made[0] in self._constraints:
            return
        ours, theirs = self._cluster_of[op], self._cluster_of[made[0]]
        if ours is theirs:
            return
        matching = self._match(op, position, *made)
        if not len(matching) == len(ours.sizes) == len(theirs.sizes):
            return
        if len(ours.ops) > len(theirs.ops):
            self._merge(ours, theirs, {theirs_: ours_ for ours_, theirs_ in matching.items()})
        else:
            self._merge(theirs, ours, matching)

    def _merge(self, into: _Cluster, other: _Cluster, matching: Matching) -> None:
        for op in other.ops:
            self._factors[op] = {name: matching[index] for name, index in self._factors[op].items()}
            self._cluster_of[op] = into
        into.ops += other.ops
        other.ops = []

    def _match(self, op: Op, operand: int, maker: Op, result: int) -> Matching:
        """Which factors of op's cluster are which of its operand's maker's, as far as the operand tells."""
        mine = _dims(self._factors[op], self._rules[op].operands[operand])
        made = _dims(self._factors[maker], self._rules[maker].results[result])
        pairs = {(a[0], b[0]) for a, b in zip(mine, made, strict=True) if len(a) == len(b) == 1}
        return dict(pairs) if len(dict(pairs)) == len({b for _, b in pairs}) == len(pairs) else {}

    def _maker(self, atom: Atom) -> tuple[Op, int] | None:
        root = self.root(atom)
        return self._made_by.get(root) if isinstance(root, Value) else None

    def _fold_sandwiched(self, graph: Graph) -> None:
        """Puts a cluster whose values all come from and go to one other, larger cluster into that one."""
        readers, kept = self._readers(graph)
        waiting = list(dict.fromkeys(self._cluster_of.values()))
        while waiting:
            cluster = waiting.pop()
            if not cluster.ops or any(value in kept for op in cluster.ops for value in op.results):
                continue
            around = self._around(cluster, readers)
            if around is not None:
                self._merge(*around)

    def _readers(self, graph: Graph) -> tuple[dict[Value, list[tuple[Op, int]]], set[Value]]:
        """The sharded ops that read each value, and the values that something else reads too."""
        readers: dict[Value, list[tuple[Op, int]]] = {}
        kept = {root for atom in graph.body.outputs if isinstance(root := self.root(atom), Value)}
        for op, _ in graph.walk():
            if op.primitive in TRANSPARENT:
                continue
            for position, atom in enumerate(op.operands):
                root = self.root(atom)
                if not isinstance(root, Value):
                    continue
                if op in self._cluster_of:
                    readers.setdefault(root, []).append((op, position))
                else:
                    kept.add(root)
            for body in op.bodies:
                kept.update(root for atom in body.outputs if isinstance(root := self.root(atom), Value))
        return readers, kept

    def _around(
        self, cluster: _Cluster, readers: Mapping[Value, list[tuple[Op, int]]]
    ) -> tuple[_Cluster, _Cluster, Matching] | None:
        """The one cluster around this one, and the factors that they share, if all of this one's are among them."""
        pairs: set[tuple[int, int]] = set()
        neighbours: set[_Cluster] = set()
        for op in cluster.ops:
            for position, atom in enumerate(op.operands):
                root = self.root(atom)
                if self.is_constant(atom) or (isinstance(root, Value) and not root.rank):
                    continue
                made = self._maker(atom)
                if made is None:
                    return None
                if self._cluster_of[made[0]] is not cluster:
                    neighbours.add(self._cluster_of[made[0]])
                    pairs.update(self._match(op, position, *made).items())
            for result, value in enumerate(op.results):
                for reader, position in readers.get(value, ()):
                    if self._cluster_of[reader] is not cluster:
                        neighbours.add(self._cluster_of[reader])
                        matching = self._match(reader, position, op, result)
                        pairs.update((ours, theirs) for theirs, ours in matching.items())
        matching = dict(pairs)
        total = len(pairs) == len(matching) == len(set(matching.values())) == len(cluster.sizes)
        if (
            len(neighbours) != 1
            or not total
            or not neighbours.isdisjoint({*map(self._cluster_of.get, self._constraints)})
        ):
            return None
        return next(iter(neighbours)), cluster, matching

    def _settle(self) -> None:
        """Turns clusters into nodes."""
        node_of: dict[_Cluster, int] = {}
        for op, cluster in self._cluster_of.items():
            if cluster not in node_of:
                node_of[cluster] = len(self.nodes)
                self.nodes.append(Node("ops", op.name, cluster.sizes, weight=cluster.weight, source=op.source))
            node = self.nodes[node_of[cluster]]
            member = Member(op, self._rules[op], self._factors[op])
            node.members.append(member)
            node.values.update(member.dims(pattern) for pattern in member.patterns)
            self.members[op] = (node_of[cluster], member)
            if op in self._constraints:
                pinned: dict[int, tuple[str, ...] | None] = {}
                for dim, axes in zip(member.dims(member.rule.results[0]), self._constraints[op], strict=True):
                    pinned.update(dict.fromkeys(dim, axes))
                node.pinned = tuple(pinned.get(index) for index in range(len(cluster.sizes)))
        for value, (op, position) in self._made_by.items():
            index, member = self.members[op]
            self.homes[value] = Home(index, member.dims(member.rule.results[position]))


def splittable(rule: ShardingRule) -> tuple[str, ...]:
    """The factors that a mesh axis may split.

    Not those that need replication or have one element; and none that is minor, in some dimension, to one of those, for
    its shards would not be contiguous.
    """
    sizes = dict(rule.sizes)
    whole = set(rule.replication)
    patterns = [dim for pattern in (*rule.operands, *rule.results) for dim in pattern if len(dim) > 1]
    changed = True
    while changed:
        before = len(whole)
        for dim in patterns:
            for major, minor in itertools.pairwise(dim):
                if major in whole and sizes[major] > 1:
                    whole.add(minor)
        changed = len(whole) > before
    return tuple(name for name in rule.factors if name not in whole and sizes[name] > 1)


def stack(home: Home) -> Home:
    """The home of an array of such values, stacked along a new leading dimension that stays whole."""
    return Home(home.node, ((), *home.dims))


def _dims(factors: Mapping[str, int], pattern: Sequence[tuple[str, ...]]) -> Dims:
    return tuple(tuple(factors[name] for name in dim if name in factors) for dim in pattern)
