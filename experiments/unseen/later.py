"""Written after the others had been looked into, and run once on what was finished by then."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from experiments.unseen.networks import HEADS, WIDTH, Params, layer, layer_shapes, normalised
from experiments.unseen.program import Program, array, indices, training
from experiments.workloads.training import cross_entropy

DIRECTIONS = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]


def lattice_boltzmann() -> Program:
    """Flow in two dimensions by nine populations a cell (D2Q9) that collide and move on."""

    def fn(populations: jax.Array) -> jax.Array:
        directions = jnp.array(DIRECTIONS, jnp.float32)
        weights = jnp.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)[:, None, None]

        def step(f: jax.Array, _: None) -> tuple[jax.Array, None]:
            density = f.sum(0)
            momentum = jnp.einsum("qd,qxy->dxy", directions, f)
            velocity = momentum / density
            along = jnp.einsum("qd,dxy->qxy", directions, velocity)
            at_rest = weights * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * (velocity**2).sum(0))
            f = f - (f - at_rest) / 0.6
            return jnp.stack([jnp.roll(one, way, (0, 1)) for one, way in zip(f, DIRECTIONS, strict=True)]), None

        return lax.scan(step, populations, None, length=5)[0]

    return Program(fn, (array(9, 128, 128),), (0,))


def conjugate_gradients() -> Program:
    """Poisson's equation on a square whose opposite sides meet."""

    def fn(right: jax.Array, x: jax.Array) -> jax.Array:
        def apply(u: jax.Array) -> jax.Array:
            return 4.1 * u - sum(jnp.roll(u, shift, axis) for axis in (0, 1) for shift in (-1, 1))

        def step(_: jax.Array, state: Any) -> Any:
            x, residual, along, squared = state
            image = apply(along)
            length = squared / jnp.vdot(along, image)
            x, residual = x + length * along, residual - length * image
            after = jnp.vdot(residual, residual)
            return x, residual, residual + after / squared * along, after

        residual = right - apply(x)
        return lax.fori_loop(0, 20, step, (x, residual, residual, jnp.vdot(residual, residual)))[0]

    return Program(fn, (array(256, 256), array(256, 256)), (1,))


def translation() -> Program:
    """A sequence read by an encoder and written by a decoder that attends to it."""

    def attend(p: Params, x: jax.Array, memory: jax.Array) -> jax.Array:
        def heads(y: jax.Array) -> jax.Array:
            return y.reshape(*y.shape[:2], HEADS, -1)

        query, key, value = (heads(y @ p[name]) for name, y in (("query", x), ("key", memory), ("value", memory)))
        weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", query, key) / jnp.sqrt(query.shape[-1]), -1)
        return jnp.einsum("bhts,bshd->bthd", weights, value).reshape(x.shape) @ p["out"]

    def loss(p: Params, batch: Params) -> jax.Array:
        memory, x = (p["embedding"][batch[name]] for name in ("source", "target"))
        for weights in p["encoder"]:
            memory = layer(memory, weights)
        for weights, across in zip(p["decoder"], p["across"], strict=True):
            x = layer(x, weights)
            x = x + attend(across, normalised(x, across["scale"]), memory)
        return cross_entropy(x @ p["embedding"].T, batch["target"])

    across = {name: array(WIDTH, WIDTH) for name in ("query", "key", "value", "out")} | {"scale": array(WIDTH)}
    params = {
        "embedding": array(512, WIDTH),
        "encoder": [layer_shapes()] * 2,
        "decoder": [layer_shapes()] * 2,
        "across": [across] * 2,
    }
    return training(loss, params, {"source": indices(16, 64), "target": indices(16, 32)}, optax.lion(1e-4))


def ising() -> Program:
    """Spins on chequered lattices, each colour flipped in turn by the odds of its neighbours."""

    def fn(spins: jax.Array, seed: jax.Array) -> Any:
        place = jnp.arange(spins.shape[-1])
        black = (place[:, None] + place) % 2 == 0

        def sweep(spins: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            for colour, own in zip((black, ~black), jax.random.split(key), strict=True):
                field = sum(jnp.roll(spins, shift, axis) for axis in (1, 2) for shift in (-1, 1))
                flips = jax.random.uniform(own, spins.shape) < jnp.exp(-0.8 * spins * field)
                spins = jnp.where(colour & flips, -spins, spins)
            return spins, spins.mean((1, 2))

        return lax.scan(sweep, spins, jax.random.split(jax.random.key(seed), 4))

    return Program(fn, (array(16, 64, 64), indices()), (0,))


def coupling_flow() -> Program:
    """The likelihood of data by layers that scale and shift one half of them by what the other says."""

    def loss(p: Params, x: jax.Array) -> jax.Array:
        volume = jnp.zeros(len(x))
        for weights in p:
            kept, changed = jnp.split(x, 2, axis=-1)
            scale, shift = jnp.split(jnp.tanh(kept @ weights["in"]) @ weights["out"], 2, axis=-1)
            scale = jnp.tanh(scale)
            x = jnp.concatenate([changed * jnp.exp(scale) + shift, kept], axis=-1)
            volume = volume + scale.sum(-1)
        return (0.5 * (x**2).sum(-1) - volume).mean()

    weights = {"in": array(64, 256), "out": array(256, 128)}
    return training(loss, [weights] * 4, array(512, 128), optax.adam(1e-3))


def linear_attention() -> Program:
    """Attention without a softmax, by sums over all positions before."""

    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["x"]
        for weights in p:
            query, key, value = (
                (x @ weights[name]).reshape(*x.shape[:2], HEADS, -1) for name in ("query", "key", "value")
            )
            query, key = jax.nn.elu(query) + 1, jax.nn.elu(key) + 1
            states = jnp.cumsum(jnp.einsum("bthk,bthv->bthkv", key, value), axis=1)
            norms = jnp.einsum("bthk,bthk->bth", query, jnp.cumsum(key, axis=1))
            read = jnp.einsum("bthk,bthkv->bthv", query, states) / norms[..., None]
            x = x + read.reshape(x.shape) @ weights["out"]
        return ((x - batch["y"]) ** 2).mean()

    params = [{name: array(WIDTH, WIDTH) for name in ("query", "key", "value", "out")}] * 2
    return training(loss, params, {"x": array(8, 64, WIDTH), "y": array(8, 64, WIDTH)}, optax.adamw(1e-3))


def sinkhorn() -> Program:
    """The gradient of an optimal transport between two clouds of points."""

    def fn(x: jax.Array, y: jax.Array) -> Any:
        def transport(x: jax.Array) -> jax.Array:
            costs = ((x[:, None] - y[None]) ** 2).sum(-1)

            def step(state: Any, _: None) -> Any:
                f, g = state
                f = -0.1 * jax.nn.logsumexp((g[None] - costs) / 0.1, axis=1)
                g = -0.1 * jax.nn.logsumexp((f[:, None] - costs) / 0.1, axis=0)
                return (f, g), None

            (f, g), _ = lax.scan(step, (jnp.zeros(len(x)), jnp.zeros(len(y))), None, length=10)
            return f.mean() + g.mean()

        return jax.value_and_grad(transport)(x)

    return Program(fn, (array(512, 16), array(384, 16)))
