"""Kernels that frameworks write by hand and compilers fuse, as single equations, for tracing only.

Each reads its operands and writes its results once, whatever happens in between: the scores of a fused attention stay
on the chip. The planner learns a kernel's sharding and its floating-point operations through `planner.register_rule`,
as it would a user's own. The gradient is a kernel too, which starts again from the operands, and for attention two.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import batching

from planner import register_rule
from planner.rules.rule import Aval

CAUSAL_SHARE = 0.5
"""Of the scores a causal attention kernel skips the half above the diagonal."""

Avals = Sequence[Any]


def kernel(
    name: str,
    pattern: str,
    like: Sequence[int],
    *,
    drop: int = 0,
    reduce: str = "",
    replicate: str = "",
    flops: Callable[..., float] | None = None,
) -> Primitive:
    """A primitive with a rule, an abstract evaluation, and one more leading dimension under vmap.

    Args:
        pattern: of the planner's rule; leading dimensions are `...`.
        like: for each result the operand whose shape and type it has.
        drop: how many of that operand's last dimensions the first result lacks; all results but the first keep theirs.
        flops: as in `planner.register_rule`; by default those of one pass over the largest operand.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def results(*operands: Any, **params: Any) -> list[ShapedArray]:
        shapes = [operands[place].shape for place in like]
        shapes[0] = shapes[0][: len(shapes[0]) - drop]
        return [ShapedArray(s, operands[place].dtype) for s, place in zip(shapes, like, strict=True)]

    primitive.def_abstract_eval(results)
    register_rule(primitive, pattern, reduce=reduce, replicate=replicate, flops=flops or _one_pass)
    batching.primitive_batchers[primitive] = functools.partial(_batched, primitive)
    return primitive


def _one_pass(operands: Avals, results: Avals, **params: Any) -> float:
    return float(max(math.prod(aval.shape) for aval in (*operands, *results)))


def _batched(primitive: Primitive, arrays: Sequence[jax.Array], dims: Sequence[int | None]) -> tuple[Any, list[int]]:
    size = next(a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None)
    results = primitive.bind(*(batching.bdim_at_front(a, d, size) for a, d in zip(arrays, dims, strict=True)))
    return results, [0] * len(results)


def rowwise(name: str, replicate: str = "d") -> Callable[[jax.Array], jax.Array]:
    """A kernel of one array, the same shape out as in, over whole rows or elementwise."""
    there = kernel(name, "... d -> ... d", [0], replicate=replicate)
    back = kernel(f"{name}_gradient", "... d, ... d -> ... d", [0], replicate=replicate)

    @jax.custom_vjp
    def apply(x: jax.Array) -> jax.Array:
        return there.bind(x)[0]

    apply.defvjp(lambda x: (apply(x), x), lambda x, gradient: tuple(back.bind(x, gradient)))
    return apply


normalised = rowwise("norm")
softmax = rowwise("masked_softmax")
gelu = rowwise("gelu", replicate="")

_swiglu_p = kernel("swiglu", "... f, ... f -> ... f", [0])
_swiglu_gradient_p = kernel("swiglu_gradient", "... f, ... f, ... f -> ... f, ... f", [0, 1])


@jax.custom_vjp
def swiglu(gate: jax.Array, x: jax.Array) -> jax.Array:
    return _swiglu_p.bind(gate, x)[0]


swiglu.defvjp(
    lambda gate, x: (swiglu(gate, x), (gate, x)),
    lambda saved, gradient: tuple(_swiglu_gradient_p.bind(*saved, gradient)),
)

_loss_p = kernel("cross_entropy", "... v, ... -> ...", [0], drop=1, reduce="v")
_loss_gradient_p = kernel("cross_entropy_gradient", "... v, ..., ... -> ... v", [0])


@jax.custom_vjp
def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """`[..., vocabulary]` and `[...]` to `[...]`; split over the vocabulary, devices sum what each has."""
    return _loss_p.bind(logits, targets)[0]


cross_entropy.defvjp(
    lambda logits, targets: (cross_entropy(logits, targets), (logits, targets)),
    lambda saved, gradient: (_loss_gradient_p.bind(*saved, gradient)[0], None),
)


def _products(count: int, operands: Sequence[Aval], results: Sequence[Aval], **params: Any) -> float:
    """So many products of the size of queries times keys."""
    return 2 * count * CAUSAL_SHARE * math.prod(operands[0].shape) * operands[1].shape[-3]


_QUERIES, _KEYS = "... s g r d", "... t g d"
_INPUTS = f"{_QUERIES}, {_KEYS}, {_KEYS}"
_forward_p = kernel(
    "attention", f"{_INPUTS} -> {_QUERIES}", [0], replicate="t d", flops=functools.partial(_products, 2)
)
_query_gradient_p = kernel(
    "attention_query_gradient",
    f"{_INPUTS}, {_QUERIES}, {_QUERIES} -> {_QUERIES}",
    [0],
    replicate="t d",
    flops=functools.partial(_products, 2),
)
_key_gradient_p = kernel(
    "attention_key_gradient",
    f"{_INPUTS}, {_QUERIES}, {_QUERIES} -> {_KEYS}, {_KEYS}",
    [1, 2],
    reduce="s r",
    replicate="t d",
    flops=functools.partial(_products, 3),
)


@jax.custom_vjp
def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal, of `[..., queries, groups, heads, width]` to `[..., keys, groups, width]`; scores stay on the chip."""
    return _forward_p.bind(query, key, value)[0]


def _attention_forward(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    mixed = attention(query, key, value)
    return mixed, (query, key, value, mixed)


def _attention_backward(saved: tuple[jax.Array, ...], gradient: jax.Array) -> tuple[jax.Array, ...]:
    return (*_query_gradient_p.bind(*saved, gradient), *_key_gradient_p.bind(*saved, gradient))


attention.defvjp(_attention_forward, _attention_backward)
