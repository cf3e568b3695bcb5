"""A convolutional network with batch norm and pooling, trained with momentum."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.workloads.training import State, apply_gradients, cast, cross_entropy, init_state, normal
from experiments.workloads.workload import Size, Workload

Params = dict[str, Any]


@dataclass(frozen=True)
class Config:
    batch: int
    image: int  # pixels a side
    channels: tuple[int, ...]  # of the image, then of each block's result
    classes: int
    dtype: jnp.dtype


CONFIGS: dict[Size, Config] = {
    "test": Config(batch=32, image=32, channels=(3, 32, 64), classes=16, dtype=jnp.dtype("float32")),
    "full": Config(batch=256, image=224, channels=(3, 64, 128, 256, 512), classes=1000, dtype=jnp.dtype("bfloat16")),
}

STATISTICS_DECAY = 0.9  # of batch norm's running mean and variance, as in most frameworks


def cnn(size: Size) -> Workload:
    config = CONFIGS[size]
    optimizer = optax.sgd(1e-1, momentum=0.9)

    def loss(params: Params, statistics: list[Params], batch: Params) -> tuple[jax.Array, list[Params]]:
        logits, statistics = network(cast(params, config.dtype), statistics, batch["images"].astype(config.dtype))
        return cross_entropy(logits, batch["labels"]), statistics

    def step(state: State, batch: Params) -> tuple[State, jax.Array]:
        with_statistics = jax.value_and_grad(loss, has_aux=True)
        (value, statistics), gradients = with_statistics(state["params"], state["statistics"], batch)
        return apply_gradients(optimizer, state, gradients) | {"statistics": statistics}, value

    def make_args(key: jax.Array) -> tuple[State, Params]:
        of_params, of_batch = jax.random.split(key)
        state = init_state(init_params(config, of_params), optimizer)
        return state | {"statistics": init_statistics(config)}, make_batch(config, of_batch)

    return Workload(
        name="cnn",
        family="cnn",
        description="convolutional network train step, batch norm, max and average pooling, momentum",
        fn=step,
        make_args=make_args,
        donate_argnums=(0,),
    )


def make_batch(config: Config, key: jax.Array) -> Params:
    of_images, of_labels = jax.random.split(key)
    shape = config.batch, config.image, config.image, config.channels[0]
    return {
        "images": jax.random.normal(of_images, shape),
        "labels": jax.random.randint(of_labels, (config.batch,), 0, config.classes),
    }


def init_params(config: Config, key: jax.Array) -> Params:
    of_head, *of_blocks = jax.random.split(key, len(config.channels))
    widths = zip(config.channels[:-1], config.channels[1:], strict=True)
    last = config.channels[-1]
    return {
        "blocks": [init_block(key, *width) for key, width in zip(of_blocks, widths, strict=True)],
        "head": {
            "weight": normal(of_head, last, config.classes, fan_in=last),
            "bias": jnp.zeros(config.classes),
        },
    }


def init_block(key: jax.Array, inputs: int, outputs: int) -> Params:
    return {
        "kernel": normal(key, 3, 3, inputs, outputs, fan_in=9 * inputs),
        "scale": jnp.ones(outputs),
        "bias": jnp.zeros(outputs),
    }


def init_statistics(config: Config) -> list[Params]:
    return [{"mean": jnp.zeros(width), "variance": jnp.ones(width)} for width in config.channels[1:]]


def network(params: Params, statistics: list[Params], x: jax.Array) -> tuple[jax.Array, list[Params]]:
    """Logits of images (batch, height, width, channel), and the running statistics that they leave."""
    updated = []
    for place, (block, running) in enumerate(zip(params["blocks"], statistics, strict=True)):
        x = jax.lax.conv_general_dilated(
            x, block["kernel"], (1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x, running = batch_norm(block, running, x)
        x = max_pool(jax.nn.relu(x)) if place == 0 else average_pool(jax.nn.relu(x))
        updated.append(running)
    return jnp.mean(x, axis=(1, 2)) @ params["head"]["weight"] + params["head"]["bias"], updated


def batch_norm(params: Params, running: Params, x: jax.Array) -> tuple[jax.Array, Params]:
    exact = x.astype(jnp.float32)
    batch = {"mean": jnp.mean(exact, axis=(0, 1, 2)), "variance": jnp.var(exact, axis=(0, 1, 2))}
    normed = (exact - batch["mean"]) * jax.lax.rsqrt(batch["variance"] + 1e-5)
    running = jax.tree.map(lambda old, new: STATISTICS_DECAY * old + (1 - STATISTICS_DECAY) * new, running, batch)
    return normed.astype(x.dtype) * params["scale"] + params["bias"], running


def max_pool(x: jax.Array) -> jax.Array:
    """Over windows of 3 × 3 that overlap, as in ResNet's stem."""
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def average_pool(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
