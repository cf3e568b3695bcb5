"""What a program is here: a function and the shapes of its arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.training import init_state, train_step


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
