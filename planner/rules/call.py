"""A function of the user's own as one op with a sharding rule of its own: `sharding_rule`.

The planner keeps the call whole, and the plan runs the function on each device's shards. So a Pallas kernel, which the
compiler would run on whole arrays, is sharded as its rule says; and a chain of ops that the planner would take apart
stays together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from planner._jax_compat import not_the_users
from planner.rules.registry import FlopsFn, register, register_flops
from planner.rules.rule import Aval, ShardingRule

not_the_users(__file__)  # a ruled call was written where the decorated function was called


@dataclass(frozen=True)
class Ruled:
    """What is known of a user's function.

    Attributes:
        fn: from flat arrays to a flat list of arrays, of whole arrays or of shards of them.
        flops: floating-point operations of the whole op, as `register_rule` takes it; None where they are not given.
    """

    fn: Callable[..., list[Any]]
    pattern: str
    reduce: str
    replicate: str
    flops: FlopsFn | None

    def rule(self, operands: Sequence[Aval], results: Sequence[Aval]) -> ShardingRule:
        shapes = [tuple(a.shape) for a in operands], [tuple(a.shape) for a in results]
        return ShardingRule.parse(self.pattern, *shapes, reduce=self.reduce, replicate=self.replicate)


ruled_call_p = Primitive("ruled_call")
ruled_call_p.multiple_results = True


def sharding_rule(
    pattern: str, *, reduce: str = "", replicate: str = "", flops: FlopsFn | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of arrays one op, with a sharding rule.

    The rule is a promise: given shards of the operands, split along factors as the pattern names them, the function
    gives the shards of the results; where a reduction factor is split, it gives parts that are to be summed.

    Args:
        pattern: as in `ShardingRule.parse`; the arrays are the leaves of the arguments and of the result, in order.
        reduce, replicate: factors that are summed over, and factors that stay whole, with spaces between.
        flops: how much it computes, as in `register_rule`; without it, as much as an elementwise op.

    Returns:
        a decorator. The decorated function takes pytrees of arrays by position and static options by keyword; it can be
        traced, vmapped and differentiated like any other. Differentiated, its derivative is planned op by op; to keep
        forward and backward whole, give each a rule, inside a `jax.custom_vjp`.

    Raises:
        ValueError: where the function is called, if the pattern does not fit its arrays.

    Example:
        >>> import jax.numpy as jnp
        >>> @sharding_rule("m k, k n -> m n", reduce="k")
        ... def matmul(x, w):
        ...     return x @ w
        >>> matmul(jnp.ones((2, 3)), jnp.ones((3, 4))).shape
        (2, 4)
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def call(*args: Any, **options: Any) -> Any:
            leaves, tree = jax.tree.flatten(args)
            results, result_tree = jax.tree.flatten(jax.eval_shape(functools.partial(fn, **options), *args))

            def flat(*arrays: Any) -> list[Any]:
                return jax.tree.leaves(fn(*jax.tree.unflatten(tree, arrays), **options))

            ruled = Ruled(flat, pattern, reduce, replicate, flops)
            ruled.rule([jax.typeof(leaf) for leaf in leaves], results)  # what does not fit is an error here
            return jax.tree.unflatten(result_tree, ruled_call_p.bind(*leaves, ruled=ruled))

        return call

    return decorate


@register(ruled_call_p)
def _given(operands: Sequence[Aval], results: Sequence[Aval], *, ruled: Ruled) -> ShardingRule:
    return ruled.rule(operands, results)


def ruled_flops(operands: Sequence[Aval], results: Sequence[Aval], *, ruled: Ruled) -> float:
    """What the user says, else one for each element of the largest array."""
    if ruled.flops is not None:
        return float(ruled.flops(operands, results))
    return float(max(math.prod(a.shape) for a in (*operands, *results)))


register_flops(ruled_call_p, ruled_flops)


def _run(*args: Any, ruled: Ruled) -> list[Any]:
    return jax.jit(ruled.fn)(*args)


def _abstract(*avals: Any, ruled: Ruled) -> list[Any]:
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals]
    return [jax.core.ShapedArray(each.shape, each.dtype) for each in jax.eval_shape(ruled.fn, *structs)]


def _differentiated(primals: Sequence[Any], tangents: Sequence[Any], *, ruled: Ruled) -> tuple[list[Any], list[Any]]:
    moving = [index for index, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

    def along(*some: Any) -> list[Any]:
        every = list(primals)
        for index, one in zip(moving, some, strict=True):
            every[index] = one
        return ruled.fn(*every)

    return jax.jvp(along, [primals[index] for index in moving], [tangents[index] for index in moving])


def _batched(args: Sequence[Any], dims: Sequence[Any], *, ruled: Ruled) -> tuple[list[Any], list[int]]:
    """The batch is one more dimension, which passes through."""
    batched = [dim is not None for dim in dims]
    size = next(arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None)
    moved = [
        jnp.moveaxis(arg, dim, 0) if is_batched else arg
        for arg, dim, is_batched in zip(args, dims, batched, strict=True)
    ]
    operands, results = (side.split(",") for side in ruled.pattern.split("->"))
    name = f"vmapped{ruled.pattern.count('vmapped')}"
    operands = [f"{name} {text}" if is_batched else text for text, is_batched in zip(operands, batched, strict=True)]
    pattern = f"{','.join(operands)}->{','.join(f' {name} {text}' for text in results)}"
    flops = ruled.flops and (lambda operands, results: size * ruled_flops(*unbatched(operands, results), ruled=ruled))

    def unbatched(operands: Sequence[Aval], results: Sequence[Aval]) -> tuple[list[Any], list[Any]]:
        return [_first(a) if b else a for a, b in zip(operands, batched, strict=True)], [_first(a) for a in results]

    fn = jax.vmap(ruled.fn, [0 if is_batched else None for is_batched in batched])
    made = ruled_call_p.bind(*moved, ruled=Ruled(fn, pattern, ruled.reduce, ruled.replicate, flops))
    return made, [0] * len(made)


def _first(batch: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(batch.shape)[1:], batch.dtype)


ruled_call_p.def_impl(_run)
ruled_call_p.def_abstract_eval(_abstract)
ad.primitive_jvps[ruled_call_p] = _differentiated
batching.primitive_batchers[ruled_call_p] = _batched
mlir.register_lowering(
    ruled_call_p,
    mlir.lower_fun(lambda *args, ruled: ruled.fn(*args), multiple_results=True),
)
