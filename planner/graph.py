"""The dataflow graph: what a jaxpr computes, flat where it can be, nested where it must be.

Building it inlines `jit` and its like, drops dead code and merges common subexpressions (XLA would merge them too, and
then pay once for what the plan had priced twice). Loops, branches, `remat` and custom derivatives stay as ops with
bodies, because the emitted program must keep them; the planner looks inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import networkx as nx
import numpy as np
from jax.extend import core as jex_core
from jax.extend.core import primitives as jex_primitives

from planner._jax_compat import source_line
from planner.trace import Traced

INLINED = frozenset({jex_primitives.jit_p, jex_primitives.closed_call_p, jex_primitives.call_p})
"""Calls that leave no trace in the emitted program."""

TRANSPARENT: Mapping[jex_core.Primitive, str] = {
    jex_primitives.remat_p: "jaxpr",
    jex_primitives.custom_jvp_call_p: "call_jaxpr",
    jex_primitives.custom_vjp_call_p: "call_jaxpr",
}
"""Calls that are kept, with the parameter that holds the body; a value that enters or leaves keeps its layout."""


@dataclass(frozen=True, eq=False)
class Value:
    """An array in the program; compared by identity.

    Attributes:
        shape, dtype, weak_type: as in its jaxpr.
        name: the argument's path for an argument, else empty.
    """

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False
    name: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes per element; the key data's for PRNG keys."""
        return int(self.dtype.itemsize) if isinstance(self.dtype, np.dtype) else 8

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.itemsize

    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype, weak_type=self.weak_type)

    def __repr__(self) -> str:
        return f"{self.name or 'value'}:{self.dtype}{list(self.shape)}"


Atom = Value | jex_core.Literal


def aval_of(atom: Atom) -> jax.core.ShapedArray:
    """Shape and dtype of a value or a literal, as rules take them."""
    if isinstance(atom, Value):
        return jax.core.ShapedArray(atom.shape, atom.dtype)
    assert isinstance(atom.aval, jax.core.ShapedArray), f"a literal that is no array: {atom}"
    return atom.aval


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

    @property
    def name(self) -> str:
        return str(self.primitive)


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole program.

    Attributes:
        body: its inputs are the flattened arguments, its outputs the flattened results.
        constants: arrays that the function closes over, everywhere in the program.
    """

    body: Body
    constants: Mapping[Value, Any] = field(default_factory=dict)

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


def _add_edge(result: nx.MultiDiGraph, producer: Mapping[Value, str], atom: Atom, node: str) -> None:
    if isinstance(atom, Value):
        result.add_edge(producer[atom], node, shape=atom.shape, dtype=str(atom.dtype), nbytes=atom.nbytes)


def _walk(body: Body, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    for op in body.ops:
        yield op, around
        for inner in op.bodies:
            yield from _walk(inner, (*around, op))


def build_graph(traced: Traced) -> Graph:
    """The dataflow graph of a traced function, checked."""
    builder = _Builder()
    inputs = tuple(
        Value(tuple(aval.shape), aval.dtype, bool(aval.weak_type), name)
        for aval, name in zip(traced.in_avals, traced.in_paths, strict=True)
    )
    body = builder.body(traced.jaxpr.jaxpr, traced.jaxpr.consts, inputs)
    graph = Graph(body, builder.constants)
    check(graph)
    return graph


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


class _Builder:
    """Turns jaxprs into bodies; holds the constants met on the way."""

    def __init__(self) -> None:
        self.constants: dict[Value, Any] = {}
        self._constant_of: dict[int, Value] = {}
        self._call: Any = None

    def body(self, jaxpr: jex_core.Jaxpr, consts: Any, inputs: tuple[Value, ...]) -> Body:
        ops: list[Op] = []
        outputs = self.inline(jaxpr, consts, inputs, ops, {})
        return Body(inputs, outputs, _live(ops, outputs))

    def fresh_body(self, jaxpr: jex_core.Jaxpr, consts: Any) -> Body:
        return self.body(jaxpr, consts, tuple(_value(var.aval) for var in jaxpr.invars))

    def inline(
        self, jaxpr: jex_core.Jaxpr, consts: Any, inputs: tuple[Atom, ...], ops: list[Op], seen: dict[Any, Op]
    ) -> tuple[Atom, ...]:
        """Appends the ops of `jaxpr` to `ops`; `seen` finds common subexpressions. Returns its outputs."""
        env: dict[jex_core.Var, Atom] = dict(zip(jaxpr.invars, inputs, strict=True))
        env.update((var, self.constant(const)) for var, const in zip(jaxpr.constvars, consts, strict=True))

        def read(atom: Any) -> Atom:
            return atom if isinstance(atom, jex_core.Literal) else env[atom]

        for eqn in jaxpr.eqns:
            operands = tuple(read(atom) for atom in eqn.invars)
            if eqn.primitive in INLINED:
                inner = eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
                inner, inner_consts = _open(inner)
                with self.called_from(eqn):
                    results = self.inline(inner, inner_consts, operands, ops, seen)
            else:
                results = self.append(eqn, operands, ops, seen)
            env.update(zip(eqn.outvars, results, strict=True))
        return tuple(read(atom) for atom in jaxpr.outvars)

    def append(
        self, eqn: jex_core.JaxprEqn, operands: tuple[Atom, ...], ops: list[Op], seen: dict[Any, Op]
    ) -> tuple[Value, ...]:
        key = _expression_key(eqn, operands)
        if key is not None and key in seen:
            return seen[key].results
        with self.called_from(eqn):
            bodies = tuple(self.fresh_body(*_open(inner)) for inner in _bodies(eqn))
        source_info = self.written_at(eqn)
        op = Op(
            eqn.primitive,
            eqn.params,
            operands,
            tuple(_value(var.aval) for var in eqn.outvars),
            source_line(source_info),
            bodies,
            trip_count(eqn),
            bool(eqn.effects),
            source_info,
        )
        ops.append(op)
        if key is not None:
            seen[key] = op
        return op.results

    @contextmanager
    def called_from(self, call: jex_core.JaxprEqn) -> Iterator[None]:
        """Within it, equations of a library's that know no line of the user's count as written at the call."""
        outer = self._call
        self._call = self.written_at(call)
        yield
        self._call = outer

    def written_at(self, eqn: jex_core.JaxprEqn) -> Any:
        info = eqn.source_info
        return info if self._call is None or source_line(info) else info.replace(traceback=self._call.traceback)

    def constant(self, array: Any) -> Value:
        """One value per array object, wherever it is closed over."""
        if id(array) not in self._constant_of:
            value = _value(jax.typeof(array))
            self._constant_of[id(array)] = value
            self.constants[value] = array
        return self._constant_of[id(array)]


def _open(jaxpr: Any) -> tuple[jex_core.Jaxpr, Any]:
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, jex_core.ClosedJaxpr) else (jaxpr, ())


def _value(aval: Any) -> Value:
    """The value for an abstract array; tokens and their like count as scalars."""
    shape = tuple(getattr(aval, "shape", ()))
    return Value(shape, getattr(aval, "dtype", np.dtype(bool)), bool(getattr(aval, "weak_type", False)))


def _bodies(eqn: jex_core.JaxprEqn) -> tuple[Any, ...]:
    if eqn.primitive is jex_primitives.scan_p:
        return (eqn.params["jaxpr"],)
    if eqn.primitive is jex_primitives.while_p:
        return (eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"])
    if eqn.primitive is jex_primitives.cond_p:
        return tuple(eqn.params["branches"])
    if eqn.primitive in TRANSPARENT:
        return (eqn.params[TRANSPARENT[eqn.primitive]],)
    return ()


UNKNOWN_TRIPS = 16
"""Assumed rounds of a `while` whose bound is not written in it: what matters is that its inside counts for more."""


def trip_count(eqn: jex_core.JaxprEqn) -> int:
    """How often a loop's body runs: exact for `scan`, read off a counter where a `while` has one, else assumed."""
    if eqn.primitive is jex_primitives.scan_p:
        return int(eqn.params["length"])
    if eqn.primitive is jex_primitives.while_p:
        return _counted(eqn) or UNKNOWN_TRIPS
    return 1


def _counted(eqn: jex_core.JaxprEqn) -> int | None:
    """The rounds of `while i < bound: i += step`, where start, bound and step are literal whole numbers."""
    test, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    bounded = _with_literal(test, test.outvars[0], "lt")
    tested = test.invars[eqn.params["cond_nconsts"] :]
    if bounded is None or bounded[0] not in tested:
        return None
    position, bound = tested.index(bounded[0]), bounded[1]
    carried = body.invars[eqn.params["body_nconsts"] :]
    stepped = _with_literal(body, body.outvars[position], "add")
    start = _whole_number(eqn.invars[eqn.params["cond_nconsts"] + eqn.params["body_nconsts"] + position])
    if start is None or stepped is None or stepped[0] is not carried[position] or stepped[1] < 1:
        return None
    return max(1, math.ceil((bound - start) / stepped[1]))


def _with_literal(jaxpr: jex_core.Jaxpr, result: Any, primitive: str) -> tuple[Any, int] | None:
    """The variable and the number in `result = primitive variable number`, if that is how it is made."""
    for eqn in jaxpr.eqns:
        if str(eqn.primitive) == primitive and eqn.outvars[0] is result:
            number = _whole_number(eqn.invars[1])
            return None if number is None else (eqn.invars[0], number)
    return None


def _whole_number(atom: Any) -> int | None:
    if not isinstance(atom, jex_core.Literal):
        return None
    number = np.asarray(atom.val)
    return int(number) if number.ndim == 0 and number.dtype.kind in "iu" else None


def _expression_key(eqn: jex_core.JaxprEqn, operands: tuple[Atom, ...]) -> Any:
    """Equal for equations that compute the same; None where that cannot be told."""
    if eqn.effects or _bodies(eqn):
        return None
    atoms = tuple(
        ("literal", str(atom.val), str(atom.aval)) if isinstance(atom, jex_core.Literal) else id(atom)
        for atom in operands
    )
    try:
        key = (eqn.primitive, atoms, tuple(sorted(eqn.params.items(), key=lambda item: item[0])))
        hash(key)
    except TypeError:
        return None
    return key


def _live(ops: list[Op], outputs: tuple[Atom, ...]) -> tuple[Op, ...]:
    """The ops that the outputs or an effect need."""
    needed = {atom for atom in outputs if isinstance(atom, Value)}
    kept: list[Op] = []
    for op in reversed(ops):
        if op.effects or not needed.isdisjoint(op.results):
            kept.append(op)
            needed.update(atom for atom in op.operands if isinstance(atom, Value))
    return tuple(reversed(kept))
