"""Rolls: an array whose two parts along a dimension change places, as `jnp.roll` writes it, as one op.

Written out they are two slices and a concatenation, along whose dimension nothing could be split. As one op with a
constraint on either side, XLA hands what crosses a border from each device to its neighbour, and nothing else
(xla/service/spmd/spmd_partitioner.cc, `FindRotateRightPattern`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import Primitive

from planner.rules.pattern import dim_names
from planner.rules.registry import register
from planner.rules.rule import Aval, ShardingRule

roll_p = Primitive("roll")
"""Stands for what `roll` does in the graph; emitted programs have the slices and the concatenation."""


def roll(array: Any, *, dimension: int, shift: int) -> jax.Array:
    """What is at place i goes to i + shift, and around; shift is more than 0 and less than the dimension's size."""
    size = array.shape[dimension]
    last = lax.slice_in_dim(array, size - shift, size, axis=dimension)
    first = lax.slice_in_dim(array, 0, size - shift, axis=dimension)
    return lax.concatenate([last, first], dimension)


@register(roll_p)
def _roll(operands: Sequence[Aval], results: Sequence[Aval], *, dimension: int, shift: int) -> ShardingRule:
    """Each shard needs elements of one neighbour, of the nearer one."""
    names = dim_names(len(operands[0].shape))
    size = operands[0].shape[dimension]
    halo = (shift, 0) if 2 * shift <= size else (0, size - shift)
    return ShardingRule.of(operands, results, [names], [names], permute={names[dimension]: halo})
