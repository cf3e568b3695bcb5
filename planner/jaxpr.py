"""From a jaxpr to a graph.

On the way `jit` and its like are inlined, dead code is dropped, common subexpressions are merged (XLA would merge them
too, and then pay once for what the plan had priced twice), transpositions are folded into the contractions before
and behind them, and the slices that roll an array into one op. Loops, branches, `remat` and custom derivatives stay
as ops with bodies, because the emitted program must keep them; the planner looks inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.extend.core import primitives as jex_primitives

from planner._jax_compat import source_line
from planner.fold_rolls import fold_rolls
from planner.fold_slices import fold_slices
from planner.graph import TRANSPARENT, Atom, Body, Graph, Op, Value, aval_of, check, solve_operands
from planner.simplify import fold_transposed_operands, fold_transpositions, handed_on
from planner.trace import Traced

INLINED = frozenset({jex_primitives.jit_p, jex_primitives.closed_call_p, jex_primitives.call_p})
"""Calls that leave no trace in the emitted program."""


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


class _Builder:
    """Turns jaxprs into bodies; holds the constants met on the way."""

    def __init__(self) -> None:
        self.constants: dict[Value, Any] = {}
        self._constant_of: dict[int, Value] = {}
        self._call: Any = None

    def body(self, jaxpr: jex_core.Jaxpr, consts: Any, inputs: tuple[Value, ...]) -> Body:
        ops: list[Op] = []
        outputs = self.inline(jaxpr, consts, inputs, ops, {})
        return _simplified(inputs, ops, outputs)

    def fresh_body(self, jaxpr: jex_core.Jaxpr, consts: Any) -> Body:
        return self.body(jaxpr, consts, tuple(_value(var.aval) for var in jaxpr.invars))

    def solve_body(self, eqn: jex_core.JaxprEqn) -> Body:
        """How a `custom_linear_solve` solves; what only its derivatives read are inputs that no op has."""
        inputs = tuple(_value(var.aval) for var in eqn.invars)
        solve = eqn.params["jaxprs"].solve
        ops: list[Op] = []
        read = [inputs[position] for position in solve_operands(eqn.params)]
        outputs = self.inline(solve.jaxpr, solve.consts, tuple(read), ops, {})
        return _simplified(inputs, ops, outputs)

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
            called = _called(eqn)
            if called is not None:
                inner, inner_consts = _open(called)
                with self.called_from(eqn):
                    results = self.inline(inner, inner_consts, operands[len(operands) - len(inner.invars) :], ops, seen)
            elif (same := handed_on(eqn, operands)) is not None:
                results = (same,)
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
            if eqn.primitive is lax.linear_solve_p:
                bodies: tuple[Body, ...] = (self.solve_body(eqn),)
            else:
                bodies = tuple(self.fresh_body(*_open(inner)) for inner in _bodies(eqn))
        source_info = self.written_at(eqn)
        op = Op(
            eqn.primitive,
            eqn.params,
            operands,
            tuple(_value(var.aval, _repeats(eqn, operands)) for var in eqn.outvars),
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


def _called(eqn: jex_core.JaxprEqn) -> Any:
    """The jaxpr that an equation stands for; None if it is an op.

    Where it depends on the platform, as in `jnp.diagonal`, that is the branch for all, if the only other one is for
    kernels that Pallas compiles, which no whole program is.
    """
    if eqn.primitive in INLINED:
        return eqn.params.get("jaxpr") or eqn.params["call_jaxpr"]
    platforms = eqn.params.get("branches_platforms") if eqn.primitive is jex_primitives.cond_p else None
    return eqn.params["branches"][1] if platforms == (("mosaic",), None) else None


def _open(jaxpr: Any) -> tuple[jex_core.Jaxpr, Any]:
    return (jaxpr.jaxpr, jaxpr.consts) if isinstance(jaxpr, jex_core.ClosedJaxpr) else (jaxpr, ())


def _value(aval: Any, repeats: tuple[int, ...] = ()) -> Value:
    """The value for an abstract array; tokens and their like count as scalars."""
    shape = tuple(getattr(aval, "shape", ()))
    weak_type = bool(getattr(aval, "weak_type", False))
    return Value(shape, getattr(aval, "dtype", np.dtype(bool)), weak_type, repeats=repeats)


def _repeats(eqn: jex_core.JaxprEqn, operands: tuple[Atom, ...]) -> tuple[int, ...]:
    """The dimensions of a broadcast's result along which it repeats its operand."""
    if eqn.primitive is not jex_primitives.broadcast_in_dim_p:
        return ()
    kept = dict(zip(eqn.params["broadcast_dimensions"], aval_of(operands[0]).shape, strict=True))
    return tuple(dim for dim, size in enumerate(eqn.params["shape"]) if kept.get(dim) != size)


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


def _simplified(inputs: tuple[Value, ...], ops: list[Op], outputs: tuple[Atom, ...]) -> Body:
    folded = fold_transposed_operands(fold_transpositions(_live(ops, outputs), outputs), outputs)
    rolled = fold_rolls(_live(folded, outputs), outputs)
    sliced, outputs = fold_slices(rolled, outputs)
    return Body(inputs, outputs, _live(sliced, outputs))


def _live(ops: list[Op], outputs: tuple[Atom, ...]) -> tuple[Op, ...]:
    """The ops that the outputs or an effect need."""
    needed = {atom for atom in outputs if isinstance(atom, Value)}
    kept: list[Op] = []
    for op in reversed(ops):
        if op.effects or not needed.isdisjoint(op.results):
            kept.append(op)
            needed.update(atom for atom in op.operands if isinstance(atom, Value))
    return tuple(reversed(kept))
