"""Operands that XLA's CPU compiler copies into the order in which its libraries take them.

Contractions become products of matrices (xla/hlo/transforms/expanders/dot_decomposer.cc), convolutions have the batch
first and the features last (xla/service/cpu/conv_canonicalization.cc), and rolls are concatenations of two slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from planner.graph import Op, aval_of
from planner.traits import joined_apart


class Turn(NamedTuple):
    """How a copy that has elements in another order reads them.

    Attributes:
        row: of the operand, the dimensions over which elements come to lie in a row, the innermost last; none where it
            does not lie in memory in the order of its shape.
        stride_bytes: from one of them to the next, where they lie.
        span_bytes: over how many they lie.
        seconds: that the copy's price has beside moving it.
    """

    row: tuple[int, ...]
    stride_bytes: float
    span_bytes: float
    seconds: float


def rearranged(op: Op, row: int | None = None) -> Mapping[int, tuple[int, ...]]:
    """The positions of those operands, each with the dimensions over which elements come to lie in a row.

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
        return {0: (len(aval_of(op.operands[0]).shape) - 1,)}
    else:
        return {}
    rows = {position: _row(order, aval_of(op.operands[position]).shape) for position, order in orders.items()}
    return {position: row for position, row in rows.items() if row}


def turned(op: Op) -> tuple[int, ...]:
    """The dimensions of a transposition's operand over which elements come to lie in a row; none if nothing turns."""
    return _row(op.params["permutation"], aval_of(op.operands[0]).shape) if op.name == "transpose" else ()


def stride_and_span(shape: Sequence[int], row: Sequence[int], itemsize: int) -> tuple[float, float]:
    """Bytes of an array from one element to the next along the last of these dimensions, and over all of them."""
    stride = math.prod(shape[row[-1] + 1 :]) * itemsize
    return float(stride), float(stride * math.prod(shape[dim] for dim in row))


def gathered_strides(
    shape: Sequence[int], itemsize: int, group: float, shards: ArrayLike, columns: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes from one element to the next, for the copies of what an all-gather sends of the last dimension, and brings.

    Args:
        group: how many devices gather.
        shards, columns: into how many parts all, and the last dimension, are split then.
    """
    wide = np.asarray(columns, dtype=float)
    return shape[-1] * itemsize / (wide * group), math.prod(shape[:-1]) * itemsize / (np.asarray(shards) / wide)


def _dot_order(rank: int, summed: Sequence[int], batched: Sequence[int], position: int) -> Sequence[int]:
    """The dimensions of an operand as DotDecomposer has them: batch, rows, contracted; or batch, contracted, columns.

    Of one contracted and one other dimension, those behind the batch may lie either way round.
    """
    free = [dim for dim in range(rank) if dim not in (*summed, *batched)]
    if len(summed) == 1 and len(free) <= 1 and tuple(batched) == tuple(range(len(batched))):
        return range(rank)
    return (*batched, *free, *summed) if position == 0 else (*batched, *summed, *free)


def _row(order: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Of the dimensions in this order, those behind the one that lies innermost so far, or that one if it stays so.

    What has one element only moves nothing. None if nothing moves.
    """
    large = [int(dim) for dim in order if shape[dim] > 1]
    if large == sorted(large):
        return ()
    return tuple(large[large.index(max(large)) + 1 :]) or (large[-1],)
