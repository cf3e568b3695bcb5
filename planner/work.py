"""What an op does, on the whole array: floating-point operations, and which arrays it moves through memory.

Compilers fuse chains of elementwise ops into one loop that reads its inputs and writes its outputs once. An array is
*stored* if it cannot be the inside of such a loop: an argument or result, what a contraction reads or makes, what more
than one op reads, what is resharded or crosses into a loop. Only stored arrays cost memory traffic and memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from planner.decisions import REPLICATED, Decisions
from planner.graph import TRANSPARENT, Atom, Graph, Op, Value, aval_of
from planner.rules import kernel_flops

UNFUSED = frozenset(
    {
        "dot_general", "ragged_dot_general", "conv_general_dilated", "scatter", "scatter-add",
        "scatter_mul", "scatter_min", "scatter_max", "sort", "top_k", "fft", "cholesky", "lu",
        "householder_product", "eigh", "svd", "triangular_solve", "cumsum", "cumprod", "cummax", "cummin",
        "cumlogsumexp", "reduce_window_sum", "reduce_window_max", "reduce_window_min",
        "select_and_scatter_add", "random_bits", "threefry2x32", "argmax", "argmin", 
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


@dataclass(frozen=True, eq=False)
class Work:
    """What the unsharded op does.

    Attributes:
        flops: floating-point operations (a multiply-add is two).
        transcendentals: elements that go through an exponential, a root, a sine.
        dtype: the numpy name of the type that they are done in.
        reads, writes: positions of the operands and results that go through memory.
        matmul: rows, contracted size and columns of a contraction, batch dimensions apart; or None.
        run: for a reduction, the size of the operand's minor dimension; or None.
        fused_into: the op of another node in whose loop this one runs, on no more than is needed there; or None.
    """

    flops: float
    transcendentals: float
    dtype: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    matmul: tuple[float, float, float] | None
    run: float | None
    fused_into: Op | None


def flops(op: Op) -> float:
    """Floating-point operations of the whole op."""
    elements = math.prod(op.results[0].shape) if op.results else 0
    if (own := kernel_flops(op.primitive)) is not None:
        return float(own([aval_of(atom) for atom in op.operands], [aval_of(atom) for atom in op.results], **op.params))
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
    readers = _readers(graph)
    stored = stored_values(graph, decisions, readers)
    result = {}
    for op, _ in graph.walk():
        if op.bodies or all(value in decisions.constant for value in op.results):
            continue
        reads = tuple(
            position
            for position, atom in enumerate(op.operands)
            if isinstance(atom, Value) and atom.rank and atom in stored
        )
        transcendentals = math.prod(op.results[0].shape) if op.name in TRANSCENDENTAL else 0
        shape = aval_of(op.operands[0]).shape if op.name in REDUCTIONS else ()
        result[op] = Work(
            flops(op),
            float(transcendentals),
            _dtype(op),
            reads,
            tuple(position for position, value in enumerate(op.results) if value.rank and value in stored),
            matmul_sizes(op),
            float(shape[-1]) if shape else None,
            _fused_into(op, decisions, readers, stored),
        )
    return result


def matmul_sizes(op: Op) -> tuple[float, float, float] | None:
    """Rows, contracted size and columns of a contraction; None for other ops."""
    if op.name not in ("dot_general", "conv_general_dilated"):
        return None
    elements = float(math.prod(op.results[0].shape))
    right = aval_of(op.operands[1]).shape
    if op.name == "dot_general":
        (_, contracted), (_, batch) = op.params["dimension_numbers"]
        columns = math.prod(size for dim, size in enumerate(right) if dim not in (*contracted, *batch))
        elements /= math.prod(right[dim] for dim in batch)
    else:
        columns = right[op.params["dimension_numbers"].rhs_spec[0]]
    inner = flops(op) / (2.0 * max(1, math.prod(op.results[0].shape)))
    return elements / max(1, columns), inner, float(columns)


def _readers(graph: Graph) -> Mapping[Value, list[Op]]:
    """Who reads each value, by the name that it had when it was made; a call that is seen through reads nothing."""
    readers: dict[Value, list[Op]] = {}
    roots: dict[Value, Atom] = {}
    for op, _ in graph.walk():
        if op.primitive in TRANSPARENT:
            roots.update(zip(op.bodies[0].inputs, op.operands, strict=True))
            continue
        for atom in op.operands:
            while isinstance(atom, Value) and atom in roots:
                atom = roots[atom]
            if isinstance(atom, Value):
                readers.setdefault(atom, []).append(op)
    return readers


def stored_values(graph: Graph, decisions: Decisions, readers: Mapping[Value, list[Op]]) -> frozenset[Value]:
    """The values that exist in memory."""
    stored = {value for value, ops in readers.items() if len(ops) > 1 or _ends_loop(ops[0])}
    stored.update(graph.body.inputs)
    stored.update(atom for atom in graph.body.outputs if isinstance(atom, Value))
    for op, _ in graph.walk():
        if _ends_loop(op) or op.name in REDUCTIONS or op.primitive in TRANSPARENT:
            stored.update(op.results)
        for body in op.bodies:
            stored.update(atom for atom in body.outputs if isinstance(atom, Value))
            if op.primitive not in TRANSPARENT:
                stored.update(body.inputs)
                continue
            outer = zip(body.inputs, op.operands, strict=True)
            stored.update(inner for inner, atom in outer if atom in stored)
    return frozenset(stored - decisions.constant)


def unfused(op: Op) -> bool:
    """Whether an op starts and ends a fused loop: on every backend, or as a kernel of the user's."""
    return op.name in UNFUSED or kernel_flops(op.primitive) is not None


def _ends_loop(op: Op) -> bool:
    return (bool(op.bodies) and op.primitive not in TRANSPARENT) or unfused(op)


def _fused_into(op: Op, decisions: Decisions, readers: Mapping[Value, list[Op]], stored: frozenset[Value]) -> Op | None:
    """The first op of another node down the chain of ops that are fused with this one."""

    def node_of(op: Op) -> int:
        return decisions.members[op][0] if op in decisions.members else REPLICATED

    node = node_of(op)
    while len(op.results) == 1 and op.results[0] not in stored and op.results[0] in readers:
        (op,) = readers[op.results[0]]
        if node_of(op) != node:
            return op if op in decisions.members else None
    return None


def _dtype(op: Op) -> str:
    """The type of the operands: what a matrix unit multiplies in, whatever it accumulates in."""
    for atom in op.operands:
        if isinstance(atom, Value) or aval_of(atom).shape:
            return str(aval_of(atom).dtype)
    return "float32"
