"""What a program is here: a function, the shapes of its arguments, and numbers of those shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.arguments import filled
from experiments.workloads.training import init_state, train_step
from experiments.workloads.workload import Workload

LEAST, MOST = 0.01, 0.1
"""Of the numbers that a program is run on: like depths of water and masses none is zero or below, and as weights they
are small enough for what goes through several layers."""


@dataclass(frozen=True)
class Program:
    """Attributes:
    fn: the function.
    example_args: pytrees of `jax.ShapeDtypeStruct`.
    donate_argnums: as for `jax.jit`.
    """

    fn: Callable[..., Any]
    example_args: tuple[Any, ...]
    donate_argnums: tuple[int, ...] = ()

    def as_workload(self, name: str) -> Workload:
        """To be run too, on numbers that are drawn."""
        make_args = partial(filled, self.example_args, drawn=_drawn)
        return Workload(name, "unseen", "", self.fn, make_args, self.donate_argnums)


def _drawn(leaf: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
    """Numbers of such an array. Indices are the first or the second, which all are that anything has; counts are 0."""
    if jnp.issubdtype(leaf.dtype, jnp.inexact):
        return jax.random.uniform(key, leaf.shape, jnp.float32, LEAST, MOST).astype(leaf.dtype)
    if leaf.ndim == 0:
        return jnp.zeros((), leaf.dtype)
    return jax.random.randint(key, leaf.shape, 0, 2).astype(leaf.dtype)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    """Of float32."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def indices(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def training(
    loss: Callable[[Any, Any], jax.Array], params: Any, batch: Any, optimizer: optax.GradientTransformation
) -> Program:
    """A train step for a loss of `(params, batch)`, which donates its state."""
    return Program(train_step(loss, optimizer), (state_shapes(params, optimizer), batch), (0,))


def state_shapes(params: Any, optimizer: optax.GradientTransformation) -> Any:
    """Of what a train step goes on from."""
    return jax.eval_shape(lambda: init_state(jax.tree.map(lambda one: jnp.zeros(one.shape), params), optimizer))
