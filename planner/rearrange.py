"""Operands that XLA's CPU compiler copies into the order in which its libraries take them.

Contractions become products of matrices (xla/hlo/transforms/expanders/dot_decomposer.cc), convolutions have the batch
first and the features last (xla/service/cpu/conv_canonicalization.cc), and rolls are concatenations of two slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.graph import Op, aval_of
from planner.traits import joined_apart


def rearranged(op: Op, row: int | None = None) -> Mapping[int, int]:
    """The positions of those operands, each with the dimension that the copy has innermost.

    Args:
        row: see `planner.traits.joined_apart`.
    """
    if op.name == "dot_general":
        (contracted, batch) = op.params["dimension_numbers"]
        orders = {
            position: _dot_order(len(aval_of(op.operands[position]).shape), summed, batched, position)
            for position, (summed, batched) in enumerate(zip(contracted, batch, strict=True))
        }
    elif op.name == "conv_general_dilated":
        numbers = op.params["dimension_numbers"]
        orders = {
            0: (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]),
            1: (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]),
        }
    elif op.name == "roll" and joined_apart(op, row):
        return {0: len(aval_of(op.operands[0]).shape) - 1}
    else:
        return {}
    larges = {position: _large(order, aval_of(op.operands[position]).shape) for position, order in orders.items()}
    return {position: large[-1] for position, large in larges.items() if large != sorted(large)}


def innermost(op: Op) -> int | None:
    """The dimension of a transposition's operand that its result has innermost; None where nothing is turned."""
    if op.name != "transpose":
        return None
    large = _large(op.params["permutation"], aval_of(op.operands[0]).shape)
    return large[-1] if large != sorted(large) else None


def _dot_order(rank: int, summed: Sequence[int], batched: Sequence[int], position: int) -> Sequence[int]:
    """The dimensions of an operand as DotDecomposer has them: batch, rows, contracted; or batch, contracted, columns.

    Of one contracted and one other dimension, those behind the batch may lie either way round.
    """
    free = [dim for dim in range(rank) if dim not in (*summed, *batched)]
    if len(summed) == 1 and len(free) <= 1 and tuple(batched) == tuple(range(len(batched))):
        return range(rank)
    return (*batched, *free, *summed) if position == 0 else (*batched, *summed, *free)


def _large(order: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The dimensions in this order that have elements to move: more than one."""
    return [int(dim) for dim in order if shape[dim] > 1]
