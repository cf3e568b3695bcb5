"""A mixture-of-experts layer, trained with AdamW: top-2 routing with a fixed capacity, as GShard does it.

Lepikhin et al. (2020), "GShard", algorithm 1. Tokens are routed within groups; an expert takes at most
`capacity` tokens of a group, and those beyond pass by it. All shapes are static: routing is a product with
one-hot arrays.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.training import cast, init_state, normal, train_step
from experiments.workloads.workload import Size, Workload

Params = dict[str, Any]


@dataclass(frozen=True)
class Config:
    groups: int
    tokens: int  # per group
    width: int
    hidden: int
    experts: int
    dtype: jnp.dtype

    @property
    def capacity(self) -> int:
        """Tokens of one group that an expert takes: its even share of their first and second choices."""
        return 2 * self.tokens // self.experts


CONFIGS: dict[Size, Config] = {
    "test": Config(groups=16, tokens=64, width=128, hidden=512, experts=8, dtype=jnp.dtype("float32")),
    "full": Config(groups=64, tokens=1024, width=2048, hidden=8192, experts=32, dtype=jnp.dtype("bfloat16")),
}

# Of the loss that spreads tokens over experts; Fedus et al. (2021), "Switch Transformers", section 2.2.
BALANCE_WEIGHT = 1e-2


def moe(size: Size) -> Workload:
    config = CONFIGS[size]
    optimizer = optax.adamw(1e-3)

    def loss(params: Params, batch: Params) -> jax.Array:
        result, balance = moe_layer(config, params, batch["inputs"].astype(config.dtype))
        error = result.astype(jnp.float32) - batch["targets"]
        return jnp.mean(error**2) + BALANCE_WEIGHT * balance

    def make_args(key: jax.Array) -> tuple[Params, Params]:
        of_params, of_batch = jax.random.split(key)
        return init_state(init_params(config, of_params), optimizer), make_batch(config, of_batch)

    return Workload(
        name="moe",
        family="moe",
        description="mixture-of-experts layer train step, top-2 routing with a capacity, AdamW",
        fn=train_step(loss, optimizer),
        make_args=make_args,
        donate_argnums=(0,),
    )


def make_batch(config: Config, key: jax.Array) -> Params:
    of_inputs, of_targets = jax.random.split(key)
    shape = config.groups, config.tokens, config.width
    return {"inputs": jax.random.normal(of_inputs, shape), "targets": jax.random.normal(of_targets, shape)}


def init_params(config: Config, key: jax.Array) -> Params:
    e, d, f = config.experts, config.width, config.hidden
    router, up, down = jax.random.split(key, 3)
    return {
        "router": normal(router, d, e, fan_in=d),
        "w_up": normal(up, e, d, f, fan_in=d),
        "w_down": normal(down, e, f, d, fan_in=f),
    }


def moe_layer(config: Config, params: Params, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The layer's result, as (group, token, width), and how unevenly the experts were used."""
    scores = jnp.einsum("gsd,de->gse", x.astype(jnp.float32), params["router"])
    combine, balance = route(jax.nn.softmax(scores, axis=-1), config.capacity)
    experts = cast({name: params[name] for name in ("w_up", "w_down")}, config.dtype)

    dispatch = (combine > 0).astype(x.dtype)
    arrived = jnp.einsum("gsec,gsd->egcd", dispatch, x)
    hidden = jax.nn.gelu(jnp.einsum("egcd,edf->egcf", arrived, experts["w_up"]))
    answers = jnp.einsum("egcf,efd->egcd", hidden, experts["w_down"])
    return x + jnp.einsum("gsec,egcd->gsd", combine.astype(x.dtype), answers), balance


def route(gates: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """From gates (group, token, expert), weights (group, token, expert, place at it) and the balance loss."""
    experts = gates.shape[-1]
    first = jax.nn.one_hot(jnp.argmax(gates, axis=-1), experts)
    second = jax.nn.one_hot(jnp.argmax(gates * (1 - first), axis=-1), experts)
    balance = experts**2 * jnp.mean(jnp.mean(first, axis=1) * jnp.mean(gates, axis=1))

    # Second choices queue behind all first ones. A place beyond the capacity has no one-hot: its weight is 0.
    place_of_first = jnp.cumsum(first, axis=1) - first
    place_of_second = jnp.cumsum(second, axis=1) - second + jnp.sum(first, axis=1, keepdims=True)
    chosen = gates * (first + second)
    weights = chosen / jnp.sum(chosen, axis=-1, keepdims=True)
    at_first = _at_place(weights * first, place_of_first, capacity)
    return at_first + _at_place(weights * second, place_of_second, capacity), balance


def _at_place(weights: jax.Array, places: jax.Array, capacity: int) -> jax.Array:
    return weights[..., None] * jax.nn.one_hot(places.astype(jnp.int32), capacity)
