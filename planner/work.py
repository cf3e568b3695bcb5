"""What an op does, on the whole array: floating-point operations, and which arrays it moves through memory.

Compilers fuse chains of elementwise ops into one loop that reads its inputs and writes its outputs once. An array is
*stored* if it cannot be the inside of such a loop: an argument or result, what a contraction reads or makes, what more
than one op reads, what is resharded or crosses into a loop. Only stored arrays cost memory traffic and memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner.decisions import Decisions
from planner.graph import TRANSPARENT, Atom, Graph, Op, Value, aval_of

UNFUSED = frozenset(
    {
        "dot_general", "ragged_dot_general", "conv_general_dilated", "scatter", "scatter-add",
        "scatter_mul", "scatter_min", "scatter_max", "sort", "top_k", "fft", "cholesky", "lu",
        "householder_product", "eigh", "svd", "triangular_solve", "cumsum", "cumprod", "cummax", "cummin",
        "cumlogsumexp", "reduce_window_sum", "reduce_window_max", "reduce_window_min",
        "select_and_scatter_add", "random_bits", "threefry2x32", "argmax", "argmin", "concatenate",
        "custom_call", "dynamic_update_slice",
    }
)  # fmt: skip
"""Ops that start and end a fused loop on every backend."""

REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce"})
"""Ops that end a fused loop but can end one that computes their operand."""

TRANSCENDENTAL = frozenset(
    {
        "exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sin", "cos", "tan", "pow", "erf",
        "erfc", "erf_inv", "rsqrt", "sqrt", "cbrt", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh",
        "asin", "acos", "atan", "lgamma", "digamma",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What the unsharded op does.

    Attributes:
        flops: floating-point operations (a multiply-add is two).
        transcendentals: elements that go through an exponential, a root, a sine.
        dtype: the numpy name of the type that they are done in.
        reads, writes: positions of the operands and results that go through memory.
    """

    flops: float
    transcendentals: float
    dtype: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def flops(op: Op) -> float:
    """Floating-point operations of the whole op."""
    elements = math.prod(op.results[0].shape) if op.results else 0
    match op.name:
        case "dot_general":
            (contracted, _), _ = op.params["dimension_numbers"]
            return 2.0 * elements * math.prod(aval_of(op.operands[0]).shape[dim] for dim in contracted)
        case "conv_general_dilated":
            kernel = aval_of(op.operands[1]).shape
            out_features = kernel[op.params["dimension_numbers"].rhs_spec[0]]
            return 2.0 * elements * math.prod(kernel) / out_features
        case "reduce_window_sum" | "reduce_window_max" | "reduce_window_min":
            return float(elements * math.prod(op.params["window_dimensions"]))
        case "sort":
            return float(elements * max(1.0, math.log2(max(2, aval_of(op.operands[0]).shape[op.params["dimension"]]))))
    largest = max([elements, *(math.prod(aval_of(atom).shape) for atom in op.operands)], default=0)
    return float(largest)


def works(graph: Graph, decisions: Decisions) -> Mapping[Op, Work]:
    """The work of every op that does any; constant values and their makers do none."""
    stored = stored_values(graph, decisions)
    result = {}
    for op, _ in graph.walk():
        if op.bodies or all(value in decisions.constant for value in op.results):
            continue
        reads = tuple(
            position
            for position, atom in enumerate(op.operands)
            if isinstance(atom, Value) and atom.rank and atom in stored
        )
        writes = tuple(position for position, value in enumerate(op.results) if value.rank and value in stored)
        transcendentals = math.prod(op.results[0].shape) if op.name in TRANSCENDENTAL else 0
        result[op] = Work(flops(op), float(transcendentals), _dtype(op), reads, writes)
    return result


def stored_values(graph: Graph, decisions: Decisions) -> frozenset[Value]:
    """The values that exist in memory."""
    readers: dict[Value, int] = {}
    stored: set[Value] = set(graph.body.inputs)
    roots: dict[Value, Value] = {}

    def root(atom: Atom) -> Value | None:
        while isinstance(atom, Value) and atom in roots:
            atom = roots[atom]
        return atom if isinstance(atom, Value) else None

    for op, _ in graph.walk():
        if op.primitive in TRANSPARENT:
            (body,) = op.bodies
            for inner, outer in zip(body.inputs, op.operands, strict=True):
                if isinstance(outer, Value):
                    roots[inner] = outer
    for op, _ in graph.walk():
        for body in op.bodies:
            if op.primitive not in TRANSPARENT:
                stored.update(body.inputs)
            stored.update(value for atom in body.outputs if (value := root(atom)))
        if op.primitive in TRANSPARENT:
            stored.update(op.results)
            continue
        ends_loop = bool(op.bodies) or op.name in UNFUSED
        for atom in op.operands:
            value = root(atom)
            if value is None:
                continue
            readers[value] = readers.get(value, 0) + 1
            if ends_loop or readers[value] > 1:
                stored.add(value)
        if ends_loop or op.name in REDUCTIONS:
            stored.update(op.results)
    stored.update(value for atom in graph.body.outputs if (value := root(atom)))
    stored.update(inner for inner in roots if root(inner) in stored)
    return frozenset(stored - decisions.constant)


def _dtype(op: Op) -> str:
    """The type of the operands: what a matrix unit multiplies in, whatever it accumulates in."""
    for atom in op.operands:
        if isinstance(atom, Value) or aval_of(atom).shape:
            return str(aval_of(atom).dtype)
    return "float32"
