"""Contractions: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core import primitives as p

from planner.rules.registry import register
from planner.rules.rule import Aval, DimSpec, ShardingRule

_DotDims = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]


@register(p.dot_general_p)
def _dot_general(
    operands: Sequence[Aval], results: Sequence[Aval], *, dimension_numbers: _DotDims, **params: Any
) -> ShardingRule:
    """``b m k, b k n -> b m n``, with any number of each and in any order."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = dimension_numbers
    lhs = [f"m{axis}" for axis in range(len(operands[0].shape))]
    rhs = [f"n{axis}" for axis in range(len(operands[1].shape))]
    for i, (left, right) in enumerate(zip(lhs_batch, rhs_batch, strict=True)):
        lhs[left] = rhs[right] = f"b{i}"
    for i, (left, right) in enumerate(zip(lhs_contract, rhs_contract, strict=True)):
        lhs[left] = rhs[right] = f"k{i}"
    batch = [lhs[axis] for axis in lhs_batch]
    free = [name for name in (*lhs, *rhs) if name[0] in "mn"]
    return ShardingRule.of(
        operands, results, [lhs, rhs], [[*batch, *free]], reduce=[lhs[axis] for axis in lhs_contract]
    )


@register(p.conv_general_dilated_p)
def _convolution(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    *,
    dimension_numbers: lax.ConvDimensionNumbers,
    feature_group_count: int,
    batch_group_count: int,
    **params: Any,
) -> ShardingRule:
    """``batch in spatial, out in window -> batch out spatial``, the dimensions in the order that the params say.

    Groups tie batch or features of one array to both features of another in blocks; those dimensions stay whole.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    lhs: list[DimSpec] = [None] * len(lhs_spec)
    rhs: list[DimSpec] = [None] * len(rhs_spec)
    out: list[DimSpec] = [None] * len(out_spec)
    if batch_group_count == 1:
        lhs[lhs_spec[0]] = out[out_spec[0]] = "batch"
    if feature_group_count == 1:
        lhs[lhs_spec[1]] = rhs[rhs_spec[1]] = "in"
        if batch_group_count == 1:
            rhs[rhs_spec[0]] = out[out_spec[1]] = "out"
    halos = _halos(operands, results, dimension_numbers, **params)
    for spatial in halos:
        axis = int(spatial.removeprefix("s")) + 2
        lhs[lhs_spec[axis]] = out[out_spec[axis]] = spatial
    return ShardingRule.of(
        operands,
        results,
        [lhs, rhs],
        [out],
        reduce=["in"] if feature_group_count == 1 else [],
        permute={spatial: halo for spatial, halo in halos.items() if halo > 0},
    )


def _halos(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    dimension_numbers: lax.ConvDimensionNumbers,
    *,
    window_strides: Sequence[int],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    **params: Any,
) -> dict[str, int]:
    """The spatial dimensions that may be sharded, and how many elements cross each border.

    That is where each shard of the result needs the same shard of the operand and a few neighbours: stride one, no
    dilation, size kept, and a window of at most a quarter of the dimension. A larger window is the gradient of the kernel,
    where the "window" is the whole image; a halo would reach past the neighbour.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    halos = {}
    for i, steps in enumerate(zip(window_strides, lhs_dilation, rhs_dilation, strict=True)):
        size = operands[0].shape[lhs_spec[i + 2]]
        window = operands[1].shape[rhs_spec[i + 2]]
        if steps == (1, 1, 1) and results[0].shape[out_spec[i + 2]] == size and 4 * (window - 1) <= size:
            halos[f"s{i}"] = window - 1
    return halos
