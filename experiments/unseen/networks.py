"""Networks: train steps with several optimisers, and a step of decoding."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from experiments.unseen.program import Program, array, indices, training
from experiments.workloads.training import cross_entropy

WIDTH, HEADS = 128, 4
Params = Any


def layer_shapes() -> dict[str, jax.ShapeDtypeStruct]:
    square = {name: array(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}
    return square | {"up": array(WIDTH, 4 * WIDTH), "down": array(4 * WIDTH, WIDTH), "scales": array(2, WIDTH)}


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale


def layer(x: jax.Array, p: Params) -> jax.Array:
    """Attention and a perceptron, both behind a normalisation; x is (batch, positions, width)."""
    batch, positions, width = x.shape
    y = normalised(x, p["scales"][0])
    query, key, value = (
        (y @ p[name]).reshape(batch, positions, HEADS, -1).transpose(0, 2, 1, 3) for name in ("query", "key", "value")
    )
    weights = jax.nn.softmax(jnp.einsum("bhtd,bhsd->bhts", query, key) * (width // HEADS) ** -0.5, -1)
    read = jnp.einsum("bhts,bhsd->bhtd", weights, value).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + read @ p["out"]
    return x + jax.nn.gelu(normalised(x, p["scales"][1]) @ p["up"]) @ p["down"]


def vision_transformer() -> Program:
    def loss(p: Params, batch: Params) -> jax.Array:
        images = batch["images"]
        patches = images.reshape(len(images), 8, 4, 8, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(len(images), 64, 48)
        x = patches @ p["patch"] + p["positions"]
        for each in p["layers"]:
            x = layer(x, each)
        return cross_entropy(x.mean(1) @ p["head"], batch["labels"])

    params = {
        "patch": array(48, WIDTH),
        "positions": array(64, WIDTH),
        "layers": [layer_shapes(), layer_shapes()],
        "head": array(WIDTH, 64),
    }
    return training(loss, params, {"images": array(16, 32, 32, 3), "labels": indices(16)}, optax.adam(1e-3))


def rematerialised_layers() -> Program:
    def loss(p: Params, batch: Params) -> jax.Array:
        @jax.checkpoint
        def step(x: jax.Array, p: Params) -> tuple[jax.Array, None]:
            return layer(x, p), None

        x, _ = lax.scan(step, batch["x"], p)
        return ((x - batch["y"]) ** 2).mean()

    params = jax.tree.map(lambda one: array(3, *one.shape), layer_shapes())
    return training(loss, params, {"x": array(8, 32, WIDTH), "y": array(8, 32, WIDTH)}, optax.adam(1e-3))


def u_net() -> Program:
    def convolved(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=numbers)

    def by_groups(x: jax.Array) -> jax.Array:
        groups = x.reshape(*x.shape[:3], 4, -1)
        mean = groups.mean((1, 2, 4), keepdims=True)
        return ((groups - mean) / jnp.sqrt(groups.var((1, 2, 4), keepdims=True) + 1e-5)).reshape(x.shape)

    def loss(p: Params, batch: Params) -> jax.Array:
        fine = jax.nn.silu(by_groups(convolved(batch["x"], p["in"])))
        coarse = jax.nn.silu(by_groups(convolved(fine, p["down"], 2)))
        coarse = jax.nn.silu(by_groups(convolved(coarse, p["middle"])))
        back = jax.image.resize(coarse, (*fine.shape[:3], coarse.shape[-1]), "nearest")
        return ((convolved(jnp.concatenate([fine, back], -1), p["out"]) - batch["y"]) ** 2).mean()

    params = {
        "in": array(3, 3, 8, 16),
        "down": array(3, 3, 16, 32),
        "middle": array(3, 3, 32, 32),
        "out": array(3, 3, 48, 8),
    }
    return training(loss, params, {"x": array(8, 32, 32, 8), "y": array(8, 32, 32, 8)}, optax.adamw(1e-3))


def gru() -> Program:
    def loss(p: Params, batch: Params) -> jax.Array:
        def cell(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            update, reset = (jax.nn.sigmoid(x @ p["x"][gate] + state @ p["h"][gate]) for gate in (0, 1))
            new = jnp.tanh(x @ p["x"][2] + (reset * state) @ p["h"][2])
            state = (1 - update) * new + update * state
            return state, state

        x = batch["x"].swapaxes(0, 1)
        _, states = lax.scan(cell, jnp.zeros_like(x[0]), x)
        return ((states.swapaxes(0, 1) @ p["out"] - batch["y"]) ** 2).mean()

    params = {"x": array(3, WIDTH, WIDTH), "h": array(3, WIDTH, WIDTH), "out": array(WIDTH, 32)}
    return training(loss, params, {"x": array(32, 24, WIDTH), "y": array(32, 24, 32)}, optax.sgd(1e-2, momentum=0.9))


def graph_network() -> Program:
    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["nodes"]
        for each in p:
            messages = jax.nn.relu(x[batch["senders"]] @ each["message"])
            arrived = jax.ops.segment_sum(messages, batch["receivers"], num_segments=len(x))
            x = jax.nn.relu(x @ each["own"] + arrived)
        return ((x.sum(0) - batch["y"]) ** 2).sum()

    params = [{"message": array(64, 64), "own": array(64, 64)}] * 2
    batch = {"nodes": array(512, 64), "senders": indices(2048), "receivers": indices(2048), "y": array(64)}
    return training(loss, params, batch, optax.adam(1e-3))


def decode() -> Program:
    """One token of attention over what was kept, and the most likely next ones."""

    def step(p: Params, keys: jax.Array, values: jax.Array, x: jax.Array, place: jax.Array) -> Any:
        query, key, value = ((x @ p[name]).reshape(len(x), 1, HEADS, -1) for name in ("query", "key", "value"))
        keys, values = (
            lax.dynamic_update_slice(kept, new, (0, place, 0, 0)) for kept, new in ((keys, key), (values, value))
        )
        scores = jnp.einsum("bqhd,bshd->bhqs", query, keys) * 0.125
        weights = jax.nn.softmax(jnp.where(jnp.arange(keys.shape[1]) <= place, scores, -1e30), -1)
        read = jnp.einsum("bhqs,bshd->bqhd", weights, values).reshape(x.shape)
        logits = (x + read @ p["out"]) @ p["embedding"].T
        return keys, values, lax.top_k(logits[:, 0], 8)

    params = {name: array(WIDTH, WIDTH) for name in ("query", "key", "value", "out")} | {"embedding": array(512, WIDTH)}
    kept = array(16, 256, HEADS, WIDTH // HEADS)
    return Program(step, (params, kept, kept, array(16, 1, WIDTH), indices()), (1, 2))


def state_space() -> Program:
    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["x"]

        def joined(left: Params, right: Params) -> Params:
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, states = lax.associative_scan(joined, (jax.nn.sigmoid(x @ p["decay"]), x @ p["in"]), axis=1)
        return (((states * jax.nn.silu(x @ p["gate"])) @ p["out"] - batch["y"]) ** 2).mean()

    params = {name: array(64, WIDTH) for name in ("decay", "in", "gate")} | {"out": array(WIDTH, 64)}
    return training(loss, params, {"x": array(8, 64, 64), "y": array(8, 64, 64)}, optax.adam(1e-3))


def contrastive() -> Program:
    def loss(p: Params, batch: Params) -> jax.Array:
        first, second = (
            jax.nn.relu(batch[name] @ p[name]["in"]) @ p[name]["out"] / jnp.sqrt(WIDTH) for name in ("image", "text")
        )
        first, second = (each / jnp.linalg.norm(each, axis=-1, keepdims=True) for each in (first, second))
        logits = first @ second.T * p["scale"]
        return -sum(jnp.diagonal(jax.nn.log_softmax(logits, axis)).mean() for axis in (0, 1))

    params = {
        "image": {"in": array(256, 512), "out": array(512, WIDTH)},
        "text": {"in": array(128, 512), "out": array(512, WIDTH)},
        "scale": array(),
    }
    return training(loss, params, {"image": array(128, 256), "text": array(128, 128)}, optax.adafactor(1e-3))


def autoencoder() -> Program:
    def loss(p: Params, batch: Params) -> jax.Array:
        hidden = batch["x"] @ p["in"]
        hidden = (hidden - hidden.mean(0)) / jnp.sqrt(hidden.var(0) + 1e-5)
        mean, log_variance = jnp.split(jax.nn.relu(hidden * p["scale"] + p["shift"]) @ p["code"], 2, -1)
        code = mean + jnp.exp(0.5 * log_variance) * batch["noise"]
        logits = jax.nn.relu(code @ p["back"]) @ p["out"]
        divergence = -0.5 * jnp.mean(1 + log_variance - mean**2 - jnp.exp(log_variance))
        return jnp.mean(jnp.logaddexp(0.0, logits) - batch["x"] * logits) + divergence

    params = {
        "in": array(256, 512),
        "scale": array(512),
        "shift": array(512),
        "code": array(512, 64),
        "back": array(32, 512),
        "out": array(512, 256),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.lamb(1e-3))
    return training(loss, params, {"x": array(128, 256), "noise": array(128, 32)}, optimizer)
