"""A multi-layer perceptron, trained with Adam to fit a table of numbers."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.training import cast, init_state, normal, train_step
from experiments.workloads.workload import Size, Workload

Params = dict[str, Any]


@dataclass(frozen=True)
class Config:
    batch: int
    widths: tuple[int, ...]  # of the input, then of each layer's result
    dtype: jnp.dtype


CONFIGS: dict[Size, Config] = {
    "test": Config(batch=256, widths=(256, 1024, 1024, 256), dtype=jnp.dtype("float32")),
    "full": Config(batch=4096, widths=(4096, 16384, 16384, 4096), dtype=jnp.dtype("bfloat16")),
}


def mlp(size: Size) -> Workload:
    config = CONFIGS[size]
    optimizer = optax.adam(1e-3)

    def loss(params: Params, batch: Params) -> jax.Array:
        result = forward(cast(params, config.dtype), batch["inputs"].astype(config.dtype))
        return jnp.mean((result.astype(jnp.float32) - batch["targets"]) ** 2)

    def make_args(key: jax.Array) -> tuple[Params, Params]:
        of_params, of_inputs, of_targets = jax.random.split(key, 3)
        batch = {
            "inputs": jax.random.normal(of_inputs, (config.batch, config.widths[0])),
            "targets": jax.random.normal(of_targets, (config.batch, config.widths[-1])),
        }
        return init_state(init_params(config, of_params), optimizer), batch

    return Workload(
        name="mlp",
        family="mlp",
        description="multi-layer perceptron train step, Adam",
        fn=train_step(loss, optimizer),
        make_args=make_args,
        donate_argnums=(0,),
    )


def init_params(config: Config, key: jax.Array) -> Params:
    keys = jax.random.split(key, len(config.widths) - 1)
    return {
        "layers": [
            {"weight": normal(key, inputs, outputs, fan_in=inputs), "bias": jnp.zeros(outputs)}
            for key, (inputs, outputs) in zip(keys, pairwise(config.widths), strict=True)
        ]
    }


def forward(params: Params, x: jax.Array) -> jax.Array:
    *hidden, last = params["layers"]
    for layer in hidden:
        x = jax.nn.gelu(x @ layer["weight"] + layer["bias"])
    return x @ last["weight"] + last["bias"]
