"""What the train steps share: the state, the optimiser step, the loss, the way weights start."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

State = dict[str, Any]
"""`params`, `opt_state`, and whatever else the model carries from step to step."""


def init_state(params: Any, optimizer: optax.GradientTransformation) -> State:
    return {"params": params, "opt_state": optimizer.init(params)}


def apply_gradients(optimizer: optax.GradientTransformation, state: State, gradients: Any) -> State:
    """The state after one step of the optimiser."""
    # Adam divides by 1 - decay ** count, a float to the power of an integer.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(gradients, state["opt_state"], state["params"])
    return state | {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}


def train_step(
    loss: Callable[[Any, Any], jax.Array], optimizer: optax.GradientTransformation
) -> Callable[[State, Any], tuple[State, jax.Array]]:
    """`step(state, batch) -> (state, loss)` for a loss of `(params, batch)`."""

    def step(state: State, batch: Any) -> tuple[State, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(state["params"], batch)
        return apply_gradients(optimizer, state, gradients), value

    return step


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean of -log softmax(logits)[label]; logits are (..., classes), labels are (...) of integers."""
    logits = logits.astype(jnp.float32)
    of_label = jnp.take_along_axis(logits, labels[..., None], axis=-1).squeeze(-1)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - of_label)


def make_tokens(batch: int, sequence: int, vocabulary: int, key: jax.Array) -> dict[str, jax.Array]:
    """Random `inputs`, and as `targets` what follows each; both (batch, sequence)."""
    tokens = jax.random.randint(key, (batch, sequence + 1), 0, vocabulary)
    return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def normal(key: jax.Array, *shape: int, fan_in: int) -> jax.Array:
    """Weights whose products with `fan_in` numbers of variance one have variance one."""
    return jax.random.normal(key, shape) * fan_in**-0.5


def cast(tree: Any, dtype: jnp.dtype) -> Any:
    """Every array in `tree` as `dtype`, to compute in less precision than the weights are kept in."""
    return jax.tree.map(lambda array: array.astype(dtype), tree)
