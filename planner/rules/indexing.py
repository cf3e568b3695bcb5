"""Gathers and scatters: looking rows up in a table by indices, and writing or adding them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core import primitives as p

from planner._jax_compat import optional_primitives
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
    """``v d, b _ -> b d`` for rows of a table, the rows a reduction: who has the row gives it, the others give zeros.

    Dimensions that are taken whole pass through, as do those of the indices; a dimension that indices look into passes
    only if it is the only one and single elements are taken. Batching dimensions are shared by all three arrays.
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
    reduced = _looked_up(numbers.start_index_map, numbers.collapsed_slice_dims)
    if reduced is not None:
        table_dims[reduced] = f"t{reduced}"
    return ShardingRule.of(
        operands,
        results,
        [table_dims, index_dims],
        [_interleave(len(results[0].shape), numbers.offset_dims, [table_dims[a] for a in offsets], index_dims[:-1])],
        reduce=[] if reduced is None else [f"t{reduced}"],
    )


# A sum over updates that are spread over devices is a sum over the devices; of the others XLA gathers the updates.
@register(p.scatter_add_p, *optional_primitives("scatter_sub_p"))
def _scatter_sum(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    return _scatter(operands, results, sums=True, **params)


@register(p.scatter_p, p.scatter_mul_p, p.scatter_min_p, p.scatter_max_p)
def _scatter_whole(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    return _scatter(operands, results, sums=False, **params)


def _scatter(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    *,
    sums: bool,
    dimension_numbers: lax.ScatterDimensionNumbers,
    **params: Any,
) -> ShardingRule:
    """``v d, b _, b d -> v d``, the transpose of a gather.

    Rows pass through: each device writes those that it has. The indices' dimensions are a reduction or stay whole.
    """
    table, indices, updates = operands
    numbers = dimension_numbers
    table_dims: list[DimSpec] = [None] * len(table.shape)
    index_dims: list[DimSpec] = [*(f"i{axis}" for axis in range(len(indices.shape) - 1)), None]
    spread = {f"i{axis}" for axis in range(len(indices.shape) - 1)}
    for axis, index_axis in zip(
        numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True
    ):
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
    return ShardingRule.of(
        operands,
        results,
        [table_dims, index_dims, update_dims],
        [table_dims],
        reduce=spread if sums else (),
        replicate=() if sums else spread,
    )


def _slice_axes(rank: int, collapsed: Sequence[int], batching: Sequence[int]) -> list[int]:
    """The table's dimensions that a slice of it keeps."""
    return [axis for axis in range(rank) if axis not in collapsed and axis not in batching]


def _looked_up(start_index_map: Sequence[int], collapsed: Sequence[int]) -> int | None:
    """The one dimension that indices look into, where single elements of it are taken."""
    return start_index_map[0] if len(start_index_map) == 1 and tuple(collapsed) == tuple(start_index_map) else None


def _interleave(
    rank: int, at: Sequence[int], slice_dims: Sequence[DimSpec], batch_dims: Sequence[DimSpec]
) -> list[DimSpec]:
    """The dimensions of looked-up rows: a slice's at the positions `at`, the indices' at all others, in order."""
    slices, batches = iter(slice_dims), iter(batch_dims)
    return [next(slices) if axis in at else next(batches) for axis in range(rank)]
