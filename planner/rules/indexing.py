"""Gathers and scatters: looking rows up in a table by indices, and writing or adding them back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core import primitives as p

from planner.rules.registry import register
from planner.rules.rule import Aval, DimSpec, ShardingRule


@register(p.gather_p)
def _gather(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    *,
    dimension_numbers: lax.GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    **params: Any,
) -> ShardingRule:
    """``v d, b _ -> b d`` for rows of a table, the rows a reduction: who has the row gives it, the others
    give zeros.

    Dimensions that are taken whole pass through, as do those of the indices. Dimensions that the indices look
    into are reductions where a single element is taken along each; where a range is taken along any, they
    stay whole. Batching dimensions are shared by all three arrays.
    """
    table, indices = operands
    numbers = dimension_numbers
    table_dims: list[DimSpec] = [None] * len(table.shape)
    index_dims: list[DimSpec] = [*(f"i{axis}" for axis in range(len(indices.shape) - 1)), None]
    for axis, index_axis in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        table_dims[axis] = index_dims[index_axis]
    offsets = _slice_axes(len(table.shape), numbers.collapsed_slice_dims, numbers.operand_batching_dims)
    for axis in offsets:
        if slice_sizes[axis] == table.shape[axis]:
            table_dims[axis] = f"t{axis}"
    single = set(numbers.start_index_map) == set(numbers.collapsed_slice_dims)
    looked_up = numbers.collapsed_slice_dims if single else ()
    for axis in looked_up:
        table_dims[axis] = f"t{axis}"
    return ShardingRule.of(
        operands,
        results,
        [table_dims, index_dims],
        [_interleave(len(results[0].shape), numbers.offset_dims, [table_dims[a] for a in offsets], index_dims[:-1])],
        reduce=[f"t{axis}" for axis in looked_up],
    )


@register(p.scatter_add_p, p.scatter_mul_p, p.scatter_min_p, p.scatter_max_p)
def _scatter_reduce(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Updates that are spread over devices are combined by an all-reduce of the whole result."""
    return _scatter(operands, results, reduces=True, **params)


@register(p.scatter_p, lax.scatter_sub_p)
def _scatter_in_order(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Where the order of updates matters (and for differences, which have no all-reduce) XLA gathers them."""
    return _scatter(operands, results, reduces=False, **params)


def _scatter(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    *,
    reduces: bool,
    dimension_numbers: lax.ScatterDimensionNumbers,
    **params: Any,
) -> ShardingRule:
    """``v d, b _, b d -> v d``, the transpose of a gather.

    Rows pass through: each device writes those that it has, but for a single update, which XLA writes to a wrong
    row too. The indices' dimensions are a reduction or stay whole.
    """
    table, indices, updates = operands
    numbers = dimension_numbers
    table_dims: list[DimSpec] = [None] * len(table.shape)
    index_dims: list[DimSpec] = [*(f"i{axis}" for axis in range(len(indices.shape) - 1)), None]
    spread = {f"i{axis}" for axis in range(len(indices.shape) - 1)}
    for axis, index_axis in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True):
        table_dims[axis] = index_dims[index_axis]
        spread.discard(f"i{index_axis}")
    window = _slice_axes(len(table.shape), numbers.inserted_window_dims, numbers.operand_batching_dims)
    for axis, update_axis in zip(window, numbers.update_window_dims, strict=True):
        if updates.shape[update_axis] == table.shape[axis]:
            table_dims[axis] = f"t{axis}"
    update_dims = _interleave(
        len(updates.shape), numbers.update_window_dims, [table_dims[axis] for axis in window], index_dims[:-1]
    )
    for axis in numbers.inserted_window_dims:
        table_dims[axis] = f"t{axis}"
    updates_each = math.prod(indices.shape[int(factor[1:])] for factor in spread)
    kept_whole = {f"t{axis}" for axis in numbers.inserted_window_dims} if updates_each == 1 else set()
    return ShardingRule.of(
        operands,
        results,
        [table_dims, index_dims, update_dims],
        [table_dims],
        reduce=spread if reduces else (),
        replicate=kept_whole if reduces else spread | kept_whole,
    )


def _slice_axes(rank: int, collapsed: Sequence[int], batching: Sequence[int]) -> list[int]:
    """The table's dimensions that a slice of it keeps."""
    return [axis for axis in range(rank) if axis not in collapsed and axis not in batching]


def _interleave(
    rank: int, at: Sequence[int], slice_dims: Sequence[DimSpec], batch_dims: Sequence[DimSpec]
) -> list[DimSpec]:
    """The dimensions of looked-up rows: a slice's at the positions `at`, the indices' at the others."""
    slices, batches = iter(slice_dims), iter(batch_dims)
    return [next(slices) if axis in at else next(batches) for axis in range(rank)]
