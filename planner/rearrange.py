"""Operands that XLA's CPU compiler copies into the order in which its libraries take them.

Contractions become products of matrices (xla/hlo/transforms/expanders/dot_decomposer.cc), convolutions have the batch
first and the features last (xla/service/cpu/conv_canonicalization.cc), and rolls are concatenations of two slices.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.fusion import joined_apart
from planner.graph import Op, aval_of


def rearranged(op: Op) -> tuple[int, ...]:
    """The positions of those operands."""
    if op.name == "dot_general":
        (contracted, batch) = op.params["dimension_numbers"]
        return tuple(
            position
            for position, (summed, batched) in enumerate(zip(contracted, batch, strict=True))
            if _dot_rearranges(aval_of(op.operands[position]).shape, summed, batched, position)
        )
    if op.name == "conv_general_dilated":
        numbers = op.params["dimension_numbers"]
        wanted = (
            (numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1]),
            (*numbers.rhs_spec[2:], numbers.rhs_spec[1], numbers.rhs_spec[0]),
        )
        return tuple(
            position for position, order in enumerate(wanted) if _moves(order, aval_of(op.operands[position]).shape)
        )
    if op.name == "roll" and joined_apart(op):
        return (0,)
    return ()


def _dot_rearranges(shape: Sequence[int], summed: Sequence[int], batched: Sequence[int], position: int) -> bool:
    """Whether an operand is not as DotDecomposer has it: batch, rows, contracted; or batch, contracted, columns."""
    free = [dim for dim in range(len(shape)) if dim not in (*summed, *batched)]
    if len(summed) == 1 and len(free) <= 1 and tuple(batched) == tuple(range(len(batched))):
        return False
    order = (*batched, *free, *summed) if position == 0 else (*batched, *summed, *free)
    return _moves(order, shape)


def _moves(order: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether bringing the dimensions into this order moves elements."""
    large = [dim for dim in order if shape[dim] > 1]
    return large != sorted(large)
