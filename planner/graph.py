"""The dataflow graph: what a program computes, flat where it can be, nested where it must be."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import jax
import networkx as nx
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.extend.core import primitives as jex_primitives

from planner._jax_compat import scan_counts

TRANSPARENT: Mapping[jex_core.Primitive, str] = {
    jex_primitives.remat_p: "jaxpr",
    jex_primitives.custom_jvp_call_p: "call_jaxpr",
    jex_primitives.custom_vjp_call_p: "call_jaxpr",
    lax.linear_solve_p: "jaxprs",
}
"""Calls that are kept, with the parameter that holds the body; a value that enters or leaves keeps its layout."""


def solve_operands(params: Mapping[str, Any]) -> tuple[int, ...]:
    """The positions of the operands of a `custom_linear_solve` that its solving reads, in its order."""
    lengths, solve = params["const_lengths"], params["jaxprs"].solve
    first, constants = lengths.matvec + lengths.vecmat, lengths.solve
    right_hand_side = first + constants + lengths.transpose_solve
    others = len(solve.in_avals) - constants
    return (*range(first, first + constants), *range(right_hand_side, right_hand_side + others))


@dataclass(frozen=True, eq=False)
class Value:
    """An array in the program; compared by identity.

    Attributes:
        shape, dtype, weak_type: as in its jaxpr.
        name: the argument's path for an argument, else empty.
        repeats: the dimensions along which a broadcast, which makes it, repeats its operand.
    """

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False
    name: str = ""
    repeats: tuple[int, ...] = ()

    # Asked for a hundred times each: worked out once.
    @cached_property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def itemsize(self) -> int:
        """Bytes per element; the key data's for PRNG keys."""
        return int(self.dtype.itemsize) if isinstance(self.dtype, np.dtype) else 8

    @cached_property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.itemsize

    @cached_property
    def aval(self) -> jax.core.ShapedArray:
        """As rules take it, and as literals have it."""
        return jax.core.ShapedArray(self.shape, self.dtype)

    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, weak_type=self.weak_type)

    def __repr__(self) -> str:
        return f"{self.name or 'value'}:{self.dtype}{list(self.shape)}"


Atom = Value | jex_core.Literal
Named = TypeVar("Named", bound=Atom)


def aval_of(atom: Atom) -> jax.core.ShapedArray:
    """Shape and dtype of a value or a literal, as rules take them."""
    assert isinstance(atom.aval, jax.core.ShapedArray), f"a literal that is no array: {atom}"
    return atom.aval


def root_of(atom: Named, names: Mapping[Value, Named]) -> Named:
    """The value itself behind the names that it takes inside calls that are seen through."""
    while isinstance(atom, Value) and atom in names:
        atom = names[atom]
    return atom


@dataclass(frozen=True, eq=False)
class Body:
    """The inside of an op: a straight line of ops from inputs to outputs."""

    inputs: tuple[Value, ...]
    outputs: tuple[Atom, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, eq=False)
class Op:
    """One equation.

    Attributes:
        source: the user's line, `train.py:41`, or empty.
        source_info: the same as JAX keeps it, named scopes included.
        bodies: `scan`: the body; `while`: condition, body; `cond`: the branches; transparent calls: the body.
        trips: how often the bodies run each time that the op does (for `while` an estimate).
    """

    primitive: jex_core.Primitive
    params: Mapping[str, Any]
    operands: tuple[Atom, ...]
    results: tuple[Value, ...]
    source: str
    bodies: tuple[Body, ...] = ()
    trips: int = 1
    effects: bool = False
    source_info: Any = None

    @cached_property
    def name(self) -> str:
        return str(self.primitive)

    @property
    def is_loop(self) -> bool:
        return self.primitive in (jex_primitives.scan_p, jex_primitives.while_p)


Part = Op | Value | Body
"""What graphs are made of."""
APart = TypeVar("APart", Op, Value, Body)


@dataclass(frozen=True, eq=False)
class Cut:
    """Layers that a graph leaves out because each is like one that it keeps.

    Attributes:
        stand_ins: for ops, values and bodies of the whole graph, what stands for them; without those that are the same.
        kept: for each part of the layer that stands for others, the same of some layers that are kept, itself included.
        times: how many layers that one stands for, itself included.
        inputs, outputs: for each of the whole graph's, the position here of what stands for it.
    """

    whole: Graph
    stand_ins: Mapping[Part, Part]
    kept: Mapping[Part, tuple[Part, ...]]
    times: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole program.

    Attributes:
        body: its inputs are the flattened arguments, its outputs the flattened results.
        constants: arrays that the function closes over, everywhere in the program.
        cut: what was left out of it.
    """

    body: Body
    constants: Mapping[Value, Any] = field(default_factory=dict)
    cut: Cut | None = None

    @property
    def whole(self) -> Graph:
        """With the layers that were left out."""
        return self if self.cut is None else self.cut.whole

    def here(self, part: APart) -> APart:
        """What stands here for an op, a value or a body of the whole graph."""
        return part if self.cut is None else self.cut.stand_ins.get(part, part)  # type: ignore[return-value]

    def times(self, part: Part) -> int:
        """How many of the whole graph an op, a value or a body inside an op stands for, itself included."""
        return 1 if self.cut is None or part not in self.cut.kept else self.cut.times

    def walk(self) -> Iterator[tuple[Op, tuple[Op, ...]]]:
        """Every op with the ops around it, in program order, an op before the ops inside it."""
        yield from _walk(self.body, ())

    def to_networkx(self) -> nx.MultiDiGraph:
        """The graph for networkx: ops, arguments and results as nodes, values as edges.

        Nodes carry `kind`, `label`, `source`; edges carry `shape`, `dtype`, `nbytes`.
        """
        result = nx.MultiDiGraph()
        producer: dict[Value, str] = {}
        for value in (*self.body.inputs, *self.constants):
            node = f"argument {value.name}" if value.name else f"constant {len(result)}"
            result.add_node(node, kind="argument" if value.name else "constant", label=value.name, source="")
            producer[value] = node
        self._add_body(result, self.body, producer, "")
        for position, atom in enumerate(self.body.outputs):
            node = f"result {position}"
            result.add_node(node, kind="result", label=node, source="")
            _add_edge(result, producer, atom, node)
        return result

    def _add_body(self, result: nx.MultiDiGraph, body: Body, producer: dict[Value, str], prefix: str) -> None:
        for position, op in enumerate(body.ops):
            node = f"{prefix}{position} {op.name}"
            result.add_node(node, kind="op", label=op.name, source=op.source)
            for atom in op.operands:
                _add_edge(result, producer, atom, node)
            for number, inner in enumerate(op.bodies):
                producer.update(dict.fromkeys(inner.inputs, node))
                self._add_body(result, inner, producer, f"{node}/{number}/")
            producer.update(dict.fromkeys(op.results, node))


def invariants(op: Op, body: Body) -> list[tuple[int, Value]]:
    """What is the same in all rounds of a loop: positions of its operands, and what these are in one of its bodies."""
    if op.primitive is jex_primitives.scan_p:
        count, _ = scan_counts(op.params)
        return list(enumerate(body.inputs[:count]))
    if op.primitive is jex_primitives.while_p:
        tested, count = op.params["cond_nconsts"], op.params["body_nconsts"]
        test = body is op.bodies[0]
        return list(enumerate(body.inputs[: tested if test else count], 0 if test else tested))
    return []


def behind_barrier(op: Op) -> tuple[Atom, ...]:
    """The operands of a call that nothing is made of before it: what `jax.checkpoint` computes again with them.

    They pass an optimization barrier (jax/_src/ad_checkpoint.py), lest the compiler take what was computed before, and
    lest it move out of a loop what is the same in all its rounds.
    """
    if op.primitive is not jex_primitives.remat_p or not op.params["differentiated"]:
        return ()
    prevented = op.params["prevent_cse"]
    if isinstance(prevented, bool):
        return op.operands if prevented else ()
    return tuple(itertools.compress(op.operands, prevented))


def read_counts(ops: Iterable[Op], outputs: Iterable[Atom]) -> Counter[Value]:
    """How often each value is read in a body, the body's outputs included."""
    atoms = itertools.chain(outputs, *(op.operands for op in ops))
    return Counter(atom for atom in atoms if isinstance(atom, Value))


def _add_edge(result: nx.MultiDiGraph, producer: Mapping[Value, str], atom: Atom, node: str) -> None:
    if isinstance(atom, Value):
        result.add_edge(producer[atom], node, shape=atom.shape, dtype=str(atom.dtype), nbytes=atom.nbytes)


def _walk(body: Body, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    for op in body.ops:
        yield op, around
        for inner in op.bodies:
            yield from _walk(inner, (*around, op))


def check(graph: Graph) -> None:
    """Each value is defined once and before its use; shapes of body inputs fit. Failing is our own bug."""
    defined: set[Value] = set(graph.constants)

    def define(values: tuple[Value, ...]) -> None:
        for value in values:
            assert value not in defined, f"{value} is defined twice"
            defined.add(value)

    def check_body(body: Body) -> None:
        define(body.inputs)
        for op in body.ops:
            for atom in op.operands:
                assert isinstance(atom, jex_core.Literal) or atom in defined, f"{op.name} uses {atom} undefined"
            for inner in op.bodies:
                check_body(inner)
            define(op.results)
        for atom in body.outputs:
            assert isinstance(atom, jex_core.Literal) or atom in defined, f"output {atom} is undefined"

    check_body(graph.body)
