"""Rewrites that leave a program's meaning alone and spare the compiled one work.

A gradient of `x @ w` reads, in JAX, as a contraction and a transposition of its result. XLA folds the two into one, but
not where the plan puts a collective between them: then every device goes through the whole array against its grain,
which on CPU takes longer than the contraction. The same contraction with its operands exchanged gives the result the
other way round at once. And `x.T @ y` contracts the other dimension of `x` at once, which XLA does too.

Equations that hand on their operand as it is, such as a roll by nothing, which JAX writes as a slice of everything and
one of nothing, are no ops: along what they cut nothing could be split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax import lax
from jax.extend.core import JaxprEqn
from jax.extend.core import primitives as jex_primitives

from planner.graph import Atom, Op, Value, aval_of, read_counts

KEPT_AT_THE_SAME_SHAPE = (
    jex_primitives.slice_p,
    jex_primitives.dynamic_slice_p,
    jex_primitives.squeeze_p,
    jex_primitives.reshape_p,
    jex_primitives.broadcast_in_dim_p,
)
"""What leaves its first operand as it is if the result has its shape."""


def handed_on(eqn: JaxprEqn, operands: Sequence[Atom]) -> Atom | None:
    """The operand that an equation's result is, as it is; None where there is anything to do."""
    shape = getattr(eqn.outvars[0].aval, "shape", None) if eqn.outvars else None
    if eqn.primitive in KEPT_AT_THE_SAME_SHAPE and eqn.params.get("sharding") is None:
        return operands[0] if aval_of(operands[0]).shape == shape else None
    if eqn.primitive is jex_primitives.concatenate_p:
        return next((atom for atom in operands if aval_of(atom).shape == shape), None)
    return None


def fold_transpositions(ops: Sequence[Op], outputs: Sequence[Atom]) -> tuple[Op, ...]:
    """The ops of a body, where a contraction that is only read by a transposition makes the transposed array.

    Only where exchanging the two operands is all that it takes: the transposition puts the dimensions of the right
    operand before those of the left.
    """
    reads = read_counts(ops, outputs)
    maker = {value: op for op in ops for value in op.results}
    instead: dict[Op, Op | None] = {}
    for op in ops:
        if op.primitive is not jex_primitives.transpose_p or not isinstance(op.operands[0], Value):
            continue
        made = maker.get(op.operands[0])
        if made is not None and reads[op.operands[0]] == 1 and _exchanges(op, made):
            instead[made], instead[op] = _exchanged(made, op.results), None
    kept = (instead.get(op, op) for op in ops)
    return tuple(op for op in kept if op is not None)


def fold_transposed_operands(ops: Sequence[Op], outputs: Sequence[Atom]) -> list[Op]:
    """The ops of a body, where contractions read what was transposed for them alone as it was.

    Where the compiler does so too (transpose_folding.cc): of one contracted and one other dimension, behind those of
    the batch, which stay where they are. The transpositions are there still, for nobody.
    """
    reads = read_counts(ops, outputs)
    maker = {value: op for op in ops for value in op.results if reads[value] == 1}
    return [_untransposed(op, maker) if op.primitive is jex_primitives.dot_general_p else op for op in ops]


def _untransposed(contraction: Op, maker: Mapping[Value, Op]) -> Op:
    for side, atom in enumerate(contraction.operands):
        made = maker.get(atom) if isinstance(atom, Value) else None
        contracted, batch = contraction.params["dimension_numbers"]
        if made is None or made.primitive is not jex_primitives.transpose_p or len(contracted[side]) != 1:
            continue
        rank = len(made.params["permutation"])
        order = (*range(rank - 2), rank - 1, rank - 2)
        if tuple(made.params["permutation"]) == order and tuple(batch[side]) == order[:-2]:
            operands, dims = list(contraction.operands), list(contracted)
            operands[side], dims[side] = made.operands[0], (order[contracted[side][0]],)
            params = {**contraction.params, "dimension_numbers": (tuple(dims), batch)}
            contraction = replace(contraction, operands=tuple(operands), params=params)
    return contraction


def _exchanges(transposition: Op, contraction: Op) -> bool:
    """Whether the transposition only puts the right operand's dimensions first."""
    if contraction.primitive is not jex_primitives.dot_general_p or contraction.params["out_sharding"] is not None:
        return False
    if isinstance(contraction.params["precision"], lax.DotAlgorithm):  # may treat its operands differently
        return False
    (contracted, _), (batch, _) = contraction.params["dimension_numbers"]
    rank, batches = contraction.results[0].rank, len(batch)
    right = len(aval_of(contraction.operands[0]).shape) - len(contracted)  # where its dimensions begin
    order = (*range(batches), *range(right, rank), *range(batches, right))
    return tuple(transposition.params["permutation"]) == order


def _exchanged(contraction: Op, results: tuple[Value, ...]) -> Op:
    """The contraction with its operands exchanged, making these results."""
    params = contraction.params
    contracted, batch = params["dimension_numbers"]
    precision = params["precision"]
    return replace(
        contraction,
        operands=contraction.operands[::-1],
        results=results,
        params={
            **params,
            "dimension_numbers": (contracted[::-1], batch[::-1]),
            "precision": precision[::-1] if isinstance(precision, tuple) else precision,
        },
    )
