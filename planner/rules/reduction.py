"""Reductions, and ops that look along an axis: scans, sorts, windows, transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import primitives as p

from planner.rules.pattern import Shape, dim_names
from planner.rules.registry import register
from planner.rules.rule import Aval, DimSpec, ShardingRule


@register(p.reduce_sum_p, p.reduce_prod_p)
def _reduce(operands: Sequence[Aval], results: Sequence[Aval], *, axes: Sequence[int], **params: Any) -> ShardingRule:
    names = dim_names(len(operands[0].shape))
    return ShardingRule.of(operands, results, [names], [_without(names, axes)], reduce=[names[axis] for axis in axes])


# Of two values with their indices there is no all-reduce, and of exclusive ors none either.
@register(p.argmax_p, p.argmin_p, p.reduce_xor_p)
def _reduce_whole(
    operands: Sequence[Aval], results: Sequence[Aval], *, axes: Sequence[int], **params: Any
) -> ShardingRule:
    names = dim_names(len(operands[0].shape))
    return ShardingRule.of(
        operands, results, [names], [_without(names, axes)], replicate=[names[axis] for axis in axes]
    )


@register(p.reduce_max_p, p.reduce_min_p)
def _reduce_ordered(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Complex numbers have no order that an all-reduce knows: XLA's CPU compiler refuses."""
    is_complex = operands[0].dtype in (np.dtype(np.complex64), np.dtype(np.complex128))
    reduce = _reduce_whole if is_complex else _reduce
    return reduce(operands, results, **params)


@register(p.reduce_and_p, p.reduce_or_p)
def _reduce_logical(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Truth values can be all-reduced; XLA's CPU compiler refuses to for the bits of integers."""
    reduce = _reduce if operands[0].dtype == np.bool_ else _reduce_whole
    return reduce(operands, results, **params)


@register(p.reduce_p)
def _reduce_any(
    operands: Sequence[Aval], results: Sequence[Aval], *, dimensions: Sequence[int], **params: Any
) -> ShardingRule:
    """Several arrays at once with any computation, each followed by its initial scalar."""
    count = len(results)
    names = dim_names(len(operands[0].shape))
    return ShardingRule.of(
        operands,
        results,
        [*[names] * count, *[[]] * count],
        [_without(names, dimensions)] * count,
        replicate=[names[axis] for axis in dimensions],
    )


@register(p.cumsum_p, p.cumprod_p, p.cummax_p, p.cummin_p, p.cumlogsumexp_p)
def _cumulative(operands: Sequence[Aval], results: Sequence[Aval], *, axis: int, **params: Any) -> ShardingRule:
    names = dim_names(len(operands[0].shape))
    return ShardingRule.of(operands, results, [names], [names], replicate=[names[axis]])


@register(p.sort_p)
def _sort(operands: Sequence[Aval], results: Sequence[Aval], *, dimension: int, **params: Any) -> ShardingRule:
    """Several arrays are ordered together by the first of them."""
    names = dim_names(len(operands[0].shape))
    count = len(operands)
    return ShardingRule.of(operands, results, [names] * count, [names] * count, replicate=[names[dimension]])


@register(p.approx_top_k_p)
def _approx_top_k(
    operands: Sequence[Aval], results: Sequence[Aval], *, reduction_dimension: int, **params: Any
) -> ShardingRule:
    names: list[DimSpec] = [*dim_names(len(operands[0].shape))]
    names[reduction_dimension] = None
    return ShardingRule.of(operands, results, [names], [names] * 2)


@register(p.top_k_p)
def _top_k(operands: Sequence[Aval], results: Sequence[Aval], *, axis: int, **params: Any) -> ShardingRule:
    names: list[DimSpec] = [*dim_names(len(operands[0].shape))]
    names[axis] = None
    return ShardingRule.of(operands, results, [names], [names] * 2)


@register(p.fft_p)
def _transform(
    operands: Sequence[Aval], results: Sequence[Aval], *, fft_lengths: Sequence[int], **params: Any
) -> ShardingRule:
    """The last dimensions are transformed and stay whole; all before them are a batch.

    XLA's CPU compiler aborts the process on a complex transform whose last dimension has fewer elements per shard than
    there are shards.
    """
    batch = len(operands[0].shape) - len(fft_lengths)
    dims: list[DimSpec] = [*dim_names(batch), *[None] * len(fft_lengths)]
    return ShardingRule.of(operands, results, [dims], [dims])


@register(
    p.reduce_window_p, p.reduce_window_sum_p, p.reduce_window_max_p, p.reduce_window_min_p,
    p.select_and_gather_add_p, p.select_and_scatter_p, p.select_and_scatter_add_p,
)  # fmt: skip
def _window(
    operands: Sequence[Aval], results: Sequence[Aval], *, window_dimensions: Shape, **params: Any
) -> ShardingRule:
    """Dimensions without a window pass through; the others stay whole.

    XLA's partitioner gives wrong numbers for the gradient of max pooling (select_and_scatter) on a sharded
    dimension whose window reaches over a border, so no window is ever split.
    """
    rank = len(window_dimensions)
    arrays = [a.shape for a in (*operands, *results) if len(a.shape) == rank]
    dims: list[DimSpec] = [
        f"d{axis}" if window == 1 and len({shape[axis] for shape in arrays}) == 1 else None
        for axis, window in enumerate(window_dimensions)
    ]
    return ShardingRule.of(
        operands,
        results,
        [dims if a.shape else [] for a in operands],
        [dims if a.shape else [] for a in results],
    )


def _without(names: Sequence[str], axes: Sequence[int]) -> list[str]:
    return [name for axis, name in enumerate(names) if axis not in axes]
