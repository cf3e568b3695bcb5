"""An LSTM language model, trained with Adam: one scan over time."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.training import cast, cross_entropy, init_state, normal, train_step
from experiments.workloads.workload import Size, Workload

Params = dict[str, Any]
Carry = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Config:
    batch: int
    steps: int
    width: int  # of the embedding and of the hidden state
    vocabulary: int
    dtype: jnp.dtype


CONFIGS: dict[Size, Config] = {
    "test": Config(batch=32, steps=32, width=128, vocabulary=512, dtype=jnp.dtype("float32")),
    "full": Config(batch=512, steps=256, width=2048, vocabulary=32768, dtype=jnp.dtype("bfloat16")),
}


def lstm(size: Size) -> Workload:
    config = CONFIGS[size]
    optimizer = optax.adam(1e-2)

    def loss(params: Params, batch: Params) -> jax.Array:
        params = cast(params, config.dtype)
        x = params["embedding"][batch["inputs"]]
        return cross_entropy(run(params, x) @ params["head"], batch["targets"])

    def make_args(key: jax.Array) -> tuple[Params, Params]:
        of_params, of_batch = jax.random.split(key)
        tokens = jax.random.randint(of_batch, (config.batch, config.steps + 1), 0, config.vocabulary)
        batch = {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
        return init_state(init_params(config, of_params), optimizer), batch

    return Workload(
        name="lstm",
        family="lstm",
        description="LSTM language model train step, scanned over time, Adam",
        fn=train_step(loss, optimizer),
        make_args=make_args,
        donate_argnums=(0,),
    )


def init_params(config: Config, key: jax.Array) -> Params:
    d, v = config.width, config.vocabulary
    embedding, of_input, of_hidden, head = jax.random.split(key, 4)
    return {
        "embedding": normal(embedding, v, d, fan_in=1),
        "w_input": normal(of_input, d, 4 * d, fan_in=2 * d),
        "w_hidden": normal(of_hidden, d, 4 * d, fan_in=2 * d),
        "bias": jnp.zeros(4 * d),
        "head": normal(head, d, v, fan_in=d),
    }


def run(params: Params, x: jax.Array) -> jax.Array:
    """Hidden states (batch, time, width) of inputs of the same shape."""

    def cell(carry: Carry, x: jax.Array) -> tuple[Carry, jax.Array]:
        hidden, memory = carry
        gates = x @ params["w_input"] + hidden @ params["w_hidden"] + params["bias"]
        write, keep, show, content = jnp.split(gates, 4, axis=-1)
        memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(write) * jnp.tanh(content)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(memory)
        return (hidden, memory), hidden

    start = jnp.zeros_like(x[:, 0])
    _, hidden = jax.lax.scan(cell, (start, start), x.swapaxes(0, 1))
    return hidden.swapaxes(0, 1)
