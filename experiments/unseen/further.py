"""Kinds of programs that none of the others is, written when the others had been looked into."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from experiments.unseen.networks import HEADS, WIDTH, Params, layer, layer_shapes
from experiments.unseen.program import Program, array, indices, state_shapes, training
from experiments.workloads.training import apply_gradients, cross_entropy


def option_pricing() -> Program:
    """An Asian option by paths drawn at random, and how its price changes with the market."""

    def fn(market: jax.Array, seed: jax.Array) -> Any:
        def price(market: jax.Array) -> jax.Array:
            spot, rate, volatility = market
            noise = jax.random.normal(jax.random.key(seed), (4096, 64))
            steps = (rate - 0.5 * volatility**2) / 64 + volatility * noise / 8
            paths = spot * jnp.exp(jnp.cumsum(steps, axis=1))
            return jnp.exp(-rate) * jax.nn.relu(paths.mean(1) - 1.0).mean()

        return jax.value_and_grad(price)(market)

    return Program(fn, (array(3), indices()))


def page_rank() -> Program:
    """Ranks that flow along the edges of a graph."""

    def fn(ranks: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        out = jax.ops.segment_sum(jnp.ones(len(senders)), senders, len(ranks))

        def step(_: int, ranks: jax.Array) -> jax.Array:
            sent = (ranks / jnp.maximum(out, 1))[senders]
            return 0.15 / len(ranks) + 0.85 * jax.ops.segment_sum(sent, receivers, len(ranks))

        return lax.fori_loop(0, 10, step, ranks)

    return Program(fn, (array(4096), indices(32768), indices(32768)), (0,))


def physics_informed() -> Program:
    """A network that solves the heat equation: its loss has second derivatives of it."""

    def network(p: Params, point: jax.Array) -> jax.Array:
        x = point
        for weights, bias in p["layers"]:
            x = jnp.tanh(x @ weights + bias)
        return (x @ p["last"])[0]

    def loss(p: Params, points: jax.Array) -> jax.Array:
        def residual(point: jax.Array) -> jax.Array:
            by_time = jax.grad(network, 1)(p, point)[0]
            by_space = jax.hessian(network, 1)(p, point)[1, 1]
            return by_time - 0.1 * by_space

        return (jax.vmap(residual)(points) ** 2).mean()

    params = {"layers": [(array(2, 64), array(64)), (array(64, 64), array(64)), (array(64, 64), array(64))]}
    return training(loss, params | {"last": array(64, 1)}, array(1024, 2), optax.adam(1e-3))


def poisson() -> Program:
    """Poisson's equation by Fourier transforms."""

    def fn(right: jax.Array) -> jax.Array:
        waves = [jnp.fft.fftfreq(size) * 2 * jnp.pi * size for size in right.shape[1:]]
        squares = waves[0][:, None] ** 2 + waves[1] ** 2
        divided = jnp.fft.fft2(right) / jnp.where(squares == 0, 1, -squares).astype(jnp.complex64)
        return jnp.fft.ifft2(divided).real

    return Program(fn, (array(16, 128, 128),))


def grouped_decode() -> Program:
    """A token more, by rotated queries that share keys and values, from a cache that is written to."""
    batch, kept, heads, shared, depth = 16, 256, 8, 2, 32

    def rotated(x: jax.Array, position: jax.Array) -> jax.Array:
        angles = position.astype(jnp.float32) / 1e4 ** (jnp.arange(depth // 2) / (depth // 2))
        low, high = jnp.split(x, 2, axis=-1)
        return jnp.concatenate(
            [low * jnp.cos(angles) - high * jnp.sin(angles), high * jnp.cos(angles) + low * jnp.sin(angles)], axis=-1
        )

    def fn(p: Params, cache: Params, x: jax.Array, position: jax.Array) -> Any:
        written = []
        for weights, (keys, values) in zip(p, cache, strict=True):
            query = rotated((x @ weights["query"]).reshape(batch, shared, heads // shared, depth), position)
            key = rotated((x @ weights["key"]).reshape(batch, shared, depth), position)
            value = (x @ weights["value"]).reshape(batch, shared, depth)
            keys = lax.dynamic_update_slice_in_dim(keys, key[:, None], position, 1)
            values = lax.dynamic_update_slice_in_dim(values, value[:, None], position, 1)
            scores = jnp.einsum("bsgd,btsd->bsgt", query, keys) / depth**0.5
            scores = jnp.where(jnp.arange(kept) <= position, scores, -jnp.inf)
            read = jnp.einsum("bsgt,btsd->bsgd", jax.nn.softmax(scores), values)
            x = x + read.reshape(batch, -1) @ weights["out"]
            x = x + (jax.nn.silu(x @ weights["gate"]) * (x @ weights["up"])) @ weights["down"]
            written.append((keys, values))
        return x, written

    width = heads * depth
    weights = {
        "query": array(width, width), "key": array(width, shared * depth), "value": array(width, shared * depth),
        "out": array(width, width), "gate": array(width, 2 * width), "up": array(width, 2 * width),
        "down": array(2 * width, width),
    }  # fmt: skip
    cache = [(array(batch, kept, shared, depth),) * 2] * 2
    return Program(fn, ([weights] * 2, cache, array(batch, width), indices()), (1,))


def accumulated() -> Program:
    """A step of a transformer in bfloat16, its gradient summed over four parts of the batch and clipped by its norm."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def loss(p: Params, tokens: jax.Array) -> jax.Array:
        p = jax.tree.map(lambda one: one.astype(jnp.bfloat16), p)
        x = p["embedding"][tokens]
        for weights in p["layers"]:
            x = layer(x, weights)
        return cross_entropy(x[:, :-1] @ p["embedding"].T, tokens[:, 1:])

    def fn(state: Any, tokens: jax.Array) -> Any:
        params = state["params"]

        def add(total: Params, part: jax.Array) -> tuple[Params, jax.Array]:
            value, gradient = jax.value_and_grad(loss)(params, part)
            return jax.tree.map(jnp.add, total, gradient), value

        zeros = jax.tree.map(jnp.zeros_like, params)
        gradient, losses = lax.scan(add, zeros, tokens.reshape(4, -1, tokens.shape[-1]))
        return apply_gradients(optimizer, state, jax.tree.map(lambda one: one / 4, gradient)), losses.mean()

    params = {"embedding": array(512, WIDTH), "layers": [layer_shapes()] * 2}
    return Program(fn, (state_shapes(params, optimizer), indices(32, 32)), (0,))


def low_rank() -> Program:
    """Adapters of low rank trained beside weights that stay as they are."""

    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["x"]
        for frozen, (down, up) in zip(batch["frozen"], p, strict=True):
            x = x + jax.nn.gelu(x @ frozen + (x @ down) @ up)
        return ((x - batch["y"]) ** 2).mean()

    frozen = [array(256, 256)] * 4
    adapters = [(array(256, 8), array(8, 256))] * 4
    return training(loss, adapters, {"x": array(512, 256), "y": array(512, 256), "frozen": frozen}, optax.adam(1e-3))


def recommendation() -> Program:
    """Clicks by tables of embeddings, their products pair by pair, and perceptrons (DLRM)."""

    def loss(p: Params, batch: Params) -> jax.Array:
        dense = batch["dense"]
        for weights in p["bottom"]:
            dense = jax.nn.relu(dense @ weights)
        found = [table[batch["sparse"][:, place]] for place, table in enumerate(p["tables"])]
        features = jnp.stack([dense, *found], axis=1)
        pairs = jnp.einsum("bid,bjd->bij", features, features)
        rows, columns = jnp.tril_indices(len(found) + 1, -1)
        x = jnp.concatenate([dense, pairs[:, rows, columns]], axis=1)
        for weights in p["top"]:
            x = jax.nn.relu(x @ weights)
        return optax.sigmoid_binary_cross_entropy(x.sum(1), batch["clicks"]).mean()

    params = {
        "bottom": [array(16, 128), array(128, 64)],
        "tables": [array(4096, 64)] * 4,
        "top": [array(74, 128), array(128, 64)],
    }
    batch = {"dense": array(1024, 16), "sparse": indices(1024, 4), "clicks": array(1024)}
    return training(loss, params, batch, optax.adagrad(1e-2))


def life() -> Program:
    """Conway's game, on cells of a byte."""

    def fn(cells: jax.Array) -> Any:
        def step(cells: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            shifts = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dy or dx]
            near = sum(jnp.roll(cells, shift, (0, 1)) for shift in shifts)
            cells = ((near == 3) | ((near == 2) & (cells == 1))).astype(jnp.int8)
            return cells, cells.sum(dtype=jnp.int32)

        return lax.scan(step, cells, None, length=8)

    return Program(fn, (jax.ShapeDtypeStruct((512, 512), jnp.int8),), (0,))


def chunked_attention() -> Program:
    """Attention that goes through keys and values by blocks, with what was the largest score so far."""

    def fn(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        def step(state: Any, block: Any) -> tuple[Any, None]:
            largest, total, read = state
            scores = jnp.einsum("bhtd,bhsd->bhts", query, block[0])
            now = jnp.maximum(largest, scores.max(-1))
            weights, before = jnp.exp(scores - now[..., None]), jnp.exp(largest - now)
            read = read * before[..., None] + jnp.einsum("bhts,bhsd->bhtd", weights, block[1])
            return (now, total * before + weights.sum(-1), read), None

        def blocks(x: jax.Array) -> jax.Array:
            return jnp.moveaxis(x.reshape(*x.shape[:2], 8, -1, x.shape[-1]), 2, 0)

        start = jnp.full(query.shape[:3], -jnp.inf), jnp.zeros(query.shape[:3]), jnp.zeros_like(query)
        (_, total, read), _ = lax.scan(step, start, (blocks(key), blocks(value)))
        return read / total[..., None]

    return Program(fn, (array(4, HEADS, 256, 32),) * 3)


def monte_carlo_chains() -> Program:
    """Hamiltonian Monte Carlo for a logistic regression, many chains at once."""

    def fn(places: jax.Array, seed: jax.Array, data: jax.Array, labels: jax.Array) -> Any:
        def energy(place: jax.Array) -> jax.Array:
            logits = data @ place
            return (jax.nn.softplus(logits) - labels * logits).sum() + 0.5 * place @ place

        def chain(place: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            first, second = jax.random.split(key)
            speed = jax.random.normal(first, place.shape)

            def leap(_: int, state: Any) -> Any:
                q, v = state
                v = v - 0.005 * jax.grad(energy)(q)
                q = q + 0.01 * v
                return q, v - 0.005 * jax.grad(energy)(q)

            q, v = lax.fori_loop(0, 5, leap, (place, speed))
            change = energy(place) + 0.5 * speed @ speed - energy(q) - 0.5 * v @ v
            taken = jnp.log(jax.random.uniform(second)) < change
            return jnp.where(taken, q, place), taken

        return jax.vmap(chain)(places, jax.random.split(jax.random.key(seed), len(places)))

    return Program(fn, (array(64, 32), indices(), array(1024, 32), array(1024)), (0,))


def video() -> Program:
    """Clips classified by convolutions in three dimensions."""

    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["clips"]
        for kernel in p["kernels"]:
            x = lax.conv_general_dilated(x, kernel, (1, 2, 2), "SAME", dimension_numbers=("NDHWC", "DHWIO", "NDHWC"))
            x = jax.nn.relu(x)
        return cross_entropy(x.mean((1, 2, 3)) @ p["head"], batch["labels"])

    params = {"kernels": [array(3, 3, 3, 3, 16), array(3, 3, 3, 16, 32)], "head": array(32, 16)}
    return training(loss, params, {"clips": array(16, 8, 32, 32, 3), "labels": indices(16)}, optax.sgd(1e-2))


def kalman() -> Program:
    """A linear recurrence over a whole sequence at once, as filters and state-space layers have it."""

    def fn(decay: jax.Array, x: jax.Array) -> jax.Array:
        def combine(first: Any, second: Any) -> Any:
            return second[0] * first[0], second[0] * first[1] + second[1]

        return lax.associative_scan(combine, (jax.nn.sigmoid(decay), x), axis=1)[1]

    return Program(fn, (array(16, 256, 64), array(16, 256, 64)))
