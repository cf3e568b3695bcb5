"""Ops that move elements without computing: reshapes, transpositions, broadcasts, slices, padding, joining.

Where an op cuts, shifts or joins along a dimension, every element would change its device; XLA's partitioner
then does worse than gathering (three all-to-alls to concatenate two arrays), so such a dimension stays whole
and the plan prices the gather. Rolls are the exception (`roll.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax import lax
from jax.extend.core import primitives as p

from planner._jax_compat import optional_primitives
from planner.rules.pattern import Shape, dim_names
from planner.rules.registry import register
from planner.rules.rule import Aval, DimSpec, ShardingRule, replicated


@register(p.broadcast_in_dim_p)
def _broadcast_in_dim(
    operands: Sequence[Aval], results: Sequence[Aval], *, broadcast_dimensions: Sequence[int], **params: Any
) -> ShardingRule:
    names = dim_names(len(results[0].shape))
    return ShardingRule.of(operands, results, [[names[axis] for axis in broadcast_dimensions]], [names])


@register(p.transpose_p)
def _transpose(
    operands: Sequence[Aval], results: Sequence[Aval], *, permutation: Sequence[int], **params: Any
) -> ShardingRule:
    names = dim_names(len(permutation))
    return ShardingRule.of(operands, results, [names], [[names[axis] for axis in permutation]])


@register(p.squeeze_p)
def _squeeze(
    operands: Sequence[Aval], results: Sequence[Aval], *, dimensions: Sequence[int], **params: Any
) -> ShardingRule:
    names = dim_names(len(operands[0].shape))
    kept = [name for axis, name in enumerate(names) if axis not in dimensions]
    return ShardingRule.of(operands, results, [names], [kept])


@register(p.reshape_p)
def _reshape(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    *,
    dimensions: Sequence[int] | None = None,
    **params: Any,
) -> ShardingRule:
    """Both shapes cut into the factors that they have in common: ``16 8 -> 8 16`` is ``(a b) c -> a (b c)``.

    A minor factor passes through like a major one, for strategies only split it where the major ones are
    split whole.
    """
    (operand,), (result,) = operands, results
    if 0 in operand.shape:
        return replicated([operand.shape], [result.shape])
    order = tuple(range(len(operand.shape))) if dimensions is None else tuple(dimensions)
    in_order = tuple(operand.shape[axis] for axis in order)
    operand_dims: list[list[str]] = [[] for _ in operand.shape]
    result_dims: list[list[str]] = [[] for _ in result.shape]
    sizes: dict[str, int] = {}
    unmatched: list[str] = []
    for size, position, result_axis in _common_factors(in_order, result.shape):
        factor = f"f{len(sizes)}"
        sizes[factor] = size
        if position is not None:
            operand_dims[order[position]].append(factor)
        if result_axis is not None:
            result_dims[result_axis].append(factor)
        if position is None or result_axis is None:
            unmatched.append(factor)
    return ShardingRule.of(operands, results, [operand_dims], [result_dims], replicate=unmatched, sizes=sizes)


def _common_factors(left: Shape, right: Shape) -> Iterator[tuple[int, int | None, int | None]]:
    """Major first, the factors of two shapes of equal product: size, axis on the left, axis on the right.

    The greatest common divisor of what is left of the current two dimensions is common to both. Where that is
    one (3 and 2, after a common 2, in ``6 4 -> 4 6``), both sides have factors of their own until their
    borders meet again.
    """
    lefts, rights = _Remainders(left), _Remainders(right)
    while lefts.axes:
        common = math.gcd(lefts.size, rights.size)
        if common > 1:
            yield common, lefts.take(common), rights.take(common)
            continue
        left_product = right_product = 1
        while left_product == 1 or left_product != right_product:
            if left_product <= right_product:
                left_product *= lefts.size
                yield lefts.size, lefts.take(lefts.size), None
            else:
                right_product *= rights.size
                yield rights.size, None, rights.take(rights.size)


class _Remainders:
    """What is left of a shape's dimensions, from the major end; dimensions of size one are passed over."""

    def __init__(self, shape: Shape):
        self.axes = [(axis, size) for axis, size in reversed([*enumerate(shape)]) if size != 1]

    @property
    def size(self) -> int:
        """Of the current dimension."""
        return self.axes[-1][1]

    def take(self, size: int) -> int:
        """Use up a factor of the current dimension; its axis."""
        axis, remainder = self.axes.pop()
        if remainder != size:
            self.axes.append((axis, remainder // size))
        return axis


@register(p.slice_p)
def _slice(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Dimensions that are kept whole pass through."""
    (operand,), (result,) = operands, results
    dims = _where(a == b for a, b in zip(operand.shape, result.shape, strict=True))
    return ShardingRule.of(operands, results, [dims], [dims])


@register(p.pad_p)
def _pad(
    operands: Sequence[Aval],
    results: Sequence[Aval],
    *,
    padding_config: Sequence[tuple[int, int, int]],
    **params: Any,
) -> ShardingRule:
    dims = _where(padding == (0, 0, 0) for padding in padding_config)
    return ShardingRule.of(operands, results, [dims, []], [dims])


@register(p.rev_p)
def _rev(
    operands: Sequence[Aval], results: Sequence[Aval], *, dimensions: Sequence[int], **params: Any
) -> ShardingRule:
    names = dim_names(len(operands[0].shape))
    return ShardingRule.of(operands, results, [names], [names], replicate=[names[axis] for axis in dimensions])


@register(p.concatenate_p)
def _concatenate(operands: Sequence[Aval], results: Sequence[Aval], *, dimension: int, **params: Any) -> ShardingRule:
    return _all_but(dimension, operands, results)


@register(lax.split_p)
def _split(operands: Sequence[Aval], results: Sequence[Aval], *, axis: int, **params: Any) -> ShardingRule:
    return _all_but(axis, operands, results)


@register(*optional_primitives("tile_p"))
def _tile(operands: Sequence[Aval], results: Sequence[Aval], *, reps: Sequence[int], **params: Any) -> ShardingRule:
    dims = _where(repeats == 1 for repeats in reps)
    return ShardingRule.of(operands, results, [dims[len(dims) - len(operands[0].shape) :]], [dims])


@register(*optional_primitives("stack_p"))
def _stack(operands: Sequence[Aval], results: Sequence[Aval], *, axis: int, **params: Any) -> ShardingRule:
    names = dim_names(len(operands[0].shape))
    return ShardingRule.of(operands, results, [names] * len(operands), [[*names[:axis], None, *names[axis:]]])


@register(*optional_primitives("unstack_p"))
def _unstack(operands: Sequence[Aval], results: Sequence[Aval], *, axis: int, **params: Any) -> ShardingRule:
    names = dim_names(len(operands[0].shape) - 1)
    return ShardingRule.of(operands, results, [[*names[:axis], None, *names[axis:]]], [names] * len(results))


@register(p.dynamic_slice_p)
def _dynamic_slice(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Dimensions that are kept whole pass through."""
    operand, *starts = operands
    dims = _where(a == b for a, b in zip(operand.shape, results[0].shape, strict=True))
    return ShardingRule.of(operands, results, [dims, *([] for _ in starts)], [dims])


@register(p.dynamic_update_slice_p)
def _dynamic_update_slice(operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> ShardingRule:
    """Dimensions that are replaced whole pass through, and so do those of which one element is replaced.

    The latter is how a cache is filled in decoding: the device that owns the element writes it.
    """
    operand, update, *starts = operands
    dims = _where(part in (1, whole) for whole, part in zip(operand.shape, update.shape, strict=True))
    return ShardingRule.of(operands, results, [dims, dims, *([] for _ in starts)], [dims])


def _all_but(axis: int, operands: Sequence[Aval], results: Sequence[Aval]) -> ShardingRule:
    """All arrays share all dimensions but one, which stays whole."""
    dims = _where(other != axis for other in range(len(operands[0].shape)))
    return ShardingRule.of(operands, results, [dims] * len(operands), [dims] * len(results))


def _where(passes: Iterable[bool]) -> list[DimSpec]:
    """A factor for each dimension that passes through, None for the others."""
    return [f"d{axis}" if ok else None for axis, ok in enumerate(passes)]
