"""Contractions: matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax.extend.core import primitives as p

from planner.rules.registry import register
from planner.rules.rule import Aval, DimSpec, Halo, ShardingRule, replicated

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
    """``batch in spatial, out in window -> batch out spatial``, in the order that the dimension numbers say.

    Of grouped convolutions only the depthwise ones, and the gradients of their kernels, have something to
    shard. XLA gathers the others whatever is sharded, and gives wrong numbers where a contraction within
    batch groups is.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    image_batch, image_features = (operands[0].shape[axis] for axis in lhs_spec[:2])
    kernel_features = operands[1].shape[rhs_spec[0]]
    lhs: tuple[DimSpec, DimSpec]
    rhs: tuple[DimSpec, DimSpec]
    out: tuple[DimSpec, DimSpec]
    if feature_group_count == batch_group_count == 1:
        lhs, rhs, out = ("batch", "in"), ("out", "in"), ("batch", "out")
    elif feature_group_count == image_features:
        channels = ("channel", "multiplier")
        lhs, rhs, out = ("batch", "channel"), (channels, None), ("batch", channels)
        windows = zip(
            (operands[0].shape[axis] for axis in lhs_spec[2:]),
            (operands[1].shape[axis] for axis in rhs_spec[2:]),
            (results[0].shape[axis] for axis in out_spec[2:]),
            strict=True,
        )
        if all(after == 1 or (window == 1 and after == before) for before, window, after in windows):
            # Of a window as large as the image, or of one element, XLA makes a product, and crashes splitting it.
            lhs, rhs, out = ("batch", None), (None, None), ("batch", None)
    elif batch_group_count == image_batch == kernel_features:
        lhs, rhs, out = ("channel", None), ("channel", None), (None, "channel")
    else:
        return replicated([a.shape for a in operands], [a.shape for a in results])
    halos = _halos(operands, results, dimension_numbers, **params)
    if feature_group_count == 1 and kernel_features > 1:
        # Together with sharded output features, XLA gives wrong numbers for windows across borders.
        halos = {axis: halo for axis, halo in halos.items() if halo == (0, 0)}
    spatial = [f"s{axis}" if axis in halos else None for axis in range(len(lhs_spec) - 2)]
    return ShardingRule.of(
        operands,
        results,
        [_placed(lhs_spec, *lhs, *spatial), _placed(rhs_spec, *rhs)],
        [_placed(out_spec, *out, *spatial)],
        reduce=["in"] if "in" in lhs else [],
        permute={f"s{axis}": halo for axis, halo in halos.items() if halo != (0, 0)},
    )


def _placed(spec: Sequence[int], *dims: DimSpec) -> list[DimSpec]:
    """The first dimensions of a convolution's operand, in the usual order, where its spec has them."""
    result: list[DimSpec] = [None] * len(spec)
    for axis, dim in zip(spec, dims, strict=False):
        result[axis] = dim
    return result


def _halos(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    dimension_numbers: lax.ConvDimensionNumbers,
    *,
    padding: Sequence[tuple[int, int]],
    window_strides: Sequence[int],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    **params: Any,
) -> dict[int, Halo]:
    """The spatial dimensions that may be sharded, and how many elements cross each border.

    That is where each shard of the result needs the same shard of the operand and a few neighbours: stride
    one, no dilation, size kept, and a window of at most a quarter of the dimension. A larger window is the
    gradient of a kernel, where the "window" is the whole image; XLA gives wrong numbers for that on sharded
    spatial dimensions.
    """
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    steps = zip(window_strides, lhs_dilation, rhs_dilation, strict=True)
    halos = {}
    for axis, (step, pads) in enumerate(zip(steps, padding, strict=True)):
        size = operands[0].shape[lhs_spec[axis + 2]]
        halo = operands[1].shape[rhs_spec[axis + 2]] - 1
        kept = results[0].shape[out_spec[axis + 2]] == size and min(pads) >= 0
        if step == (1, 1, 1) and kept and 4 * halo <= size:
            halos[axis] = (pads[0], pads[1])
    return halos
