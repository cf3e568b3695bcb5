"""Written when the model was finished, and run once on it."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from experiments.unseen.networks import WIDTH, Params, layer, layer_shapes, normalised
from experiments.unseen.program import Program, array, indices, training
from experiments.workloads.training import cross_entropy


def maxwell() -> Program:
    """Light in a box with conducting walls, electric and magnetic fields half a step and half a cell apart (Yee)."""

    def difference(field: jax.Array, axis: int) -> jax.Array:
        return lax.slice_in_dim(field, 1, None, axis=axis) - lax.slice_in_dim(field, 0, -1, axis=axis)

    def curl(field: jax.Array, before: int) -> jax.Array:
        along = [
            [
                jnp.pad(
                    difference(field[part], axis), [(before, 1 - before) if one == axis else (0, 0) for one in range(3)]
                )
                for axis in range(3)
            ]
            for part in range(3)
        ]
        return jnp.stack([along[2][1] - along[1][2], along[0][2] - along[2][0], along[1][0] - along[0][1]])

    def fn(electric: jax.Array, magnetic: jax.Array, inverse_permittivity: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(_: jax.Array, fields: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            electric, magnetic = fields
            magnetic = magnetic - 0.5 * curl(electric, 0)
            return electric + 0.5 * inverse_permittivity * curl(magnetic, 1), magnetic

        return lax.fori_loop(0, 4, step, (electric, magnetic))

    return Program(fn, (array(3, 32, 32, 32), array(3, 32, 32, 32), array(32, 32, 32)), (0, 1))


def shallow_water() -> Program:
    """Waves in a basin between walls, by the scheme of Lax and Friedrichs."""

    def fn(state: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
        def neighbours(x: jax.Array, axis: int) -> tuple[jax.Array, jax.Array]:
            padded = jnp.pad(x, [(1, 1) if one == axis else (0, 0) for one in (0, 1)], mode="edge")
            return lax.slice_in_dim(padded, 0, -2, axis=axis), lax.slice_in_dim(padded, 2, None, axis=axis)

        def moved(x: jax.Array, along: jax.Array, down: jax.Array) -> jax.Array:
            (west, east), (north, south) = neighbours(x, 1), neighbours(x, 0)
            (before, after), (above, below) = neighbours(along, 1), neighbours(down, 0)
            return (west + east + north + south) / 4 - 0.02 * (after - before + below - above)

        def step(state: dict[str, jax.Array], _: None) -> tuple[dict[str, jax.Array], jax.Array]:
            height, across, down = state["height"], state["across"], state["down"]
            pressure, sheared = 4.9 * height**2, across * down / height
            new = {
                "height": moved(height, across, down),
                "across": moved(across, across**2 / height + pressure, sheared),
                "down": moved(down, sheared, down**2 / height + pressure),
            }
            return new, new["height"].mean()

        return lax.scan(step, state, None, length=10)

    return Program(fn, ({name: array(256, 256) for name in ("height", "across", "down")},), (0,))


def masked_language_model() -> Program:
    """A sixth of the words, with dropout, from those to both sides."""

    def dropped(key: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x / 0.9, 0.0)

    def loss(p: Params, batch: Params) -> jax.Array:
        keys = jax.random.split(jax.random.key(batch["seed"]), len(p["layers"]))
        x = p["words"][batch["tokens"]] + p["positions"] + p["kinds"][batch["kinds"]]
        for key, each in zip(keys, p["layers"], strict=True):
            x = dropped(key, layer(x, each))
        hidden = jnp.take_along_axis(x, batch["places"][..., None], 1)
        logits = jax.nn.gelu(normalised(hidden @ p["transform"], p["scale"])) @ p["words"].T + p["bias"]
        return cross_entropy(logits, batch["labels"])

    params = {
        "words": array(1024, WIDTH),
        "positions": array(48, WIDTH),
        "kinds": array(2, WIDTH),
        "layers": [layer_shapes(), layer_shapes()],
        "transform": array(WIDTH, WIDTH),
        "scale": array(WIDTH),
        "bias": array(1024),
    }
    tokens, hidden = indices(16, 48), indices(16, 8)
    batch = {"tokens": tokens, "kinds": tokens, "places": hidden, "labels": hidden, "seed": indices()}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    return training(loss, params, batch, optimizer)


def residual_network() -> Program:
    """Bottlenecks with batch normalisation, whose means move along as part of the state."""

    def convolved(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def forward(p: Params, moving: Params, images: jax.Array) -> tuple[jax.Array, Params]:
        after = {}

        def by_batch(name: str, x: jax.Array) -> jax.Array:
            mean, square = x.mean((0, 1, 2)), (x**2).mean((0, 1, 2))
            after[name] = 0.9 * moving[name] + 0.1 * jnp.stack([mean, square - mean**2])
            scale, shift = p["norms"][name]
            return (x - mean) * lax.rsqrt(square - mean**2 + 1e-5) * scale + shift

        x = jax.nn.relu(by_batch("in", convolved(images, p["in"], 2)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for number, block in enumerate(p["blocks"]):
            y = jax.nn.relu(by_batch(f"{number} narrow", convolved(x, block["narrow"])))
            y = jax.nn.relu(by_batch(f"{number} middle", convolved(y, block["middle"])))
            x = jax.nn.relu(x + by_batch(f"{number} wide", convolved(y, block["wide"])))
        return x.mean((1, 2)) @ p["head"], after

    def fn(p: Params, moving: Params, velocity: Params, images: jax.Array, labels: jax.Array) -> Any:
        def loss(p: Params) -> tuple[jax.Array, Params]:
            logits, after = forward(p, moving, images)
            return cross_entropy(logits, labels), after

        (value, after), gradients = jax.value_and_grad(loss, has_aux=True)(p)
        velocity = jax.tree.map(lambda one, gradient: 0.9 * one + gradient, velocity, gradients)
        return jax.tree.map(lambda one, step: one - 0.1 * step, p, velocity), after, velocity, value

    block = {"narrow": array(1, 1, 64, 16), "middle": array(3, 3, 16, 16), "wide": array(1, 1, 16, 64)}
    widths = {"in": 64} | {f"{number} {name}": width for number in (0, 1) for name, width in
                           (("narrow", 16), ("middle", 16), ("wide", 64))}  # fmt: skip
    norms = {name: array(2, width) for name, width in widths.items()}
    params = {"in": array(7, 7, 3, 64), "blocks": [block, block], "norms": norms, "head": array(64, 32)}
    return Program(fn, (params, norms, params, array(16, 64, 64, 3), indices(16)), (0, 1, 2))


def diffusion() -> Program:
    """A network that takes drawn noise out of images, told the time by a feature-wise scale and shift."""

    def loss(p: Params, batch: Params) -> jax.Array:
        key = jax.random.key(batch["seed"])
        time = jax.random.uniform(key, (len(batch["x"]),))
        noise = jax.random.normal(jax.random.fold_in(key, 1), batch["x"].shape)
        keep = jnp.cos(time * jnp.pi / 2)[:, None, None]
        x = (keep * batch["x"] + jnp.sqrt(1 - keep**2) * noise) @ p["in"]
        angles = time[:, None] * jnp.exp(jnp.linspace(0.0, 6.0, WIDTH // 2))
        told = jax.nn.silu(jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1) @ p["time"])
        for each, told_weights in zip(p["layers"], p["told"], strict=True):
            scale, shift = jnp.split(told @ told_weights, 2, -1)
            x = layer(x * (1 + scale[:, None]) + shift[:, None], each)
        return ((x @ p["out"] - noise) ** 2).mean()

    params = {
        "in": array(32, WIDTH),
        "time": array(WIDTH, WIDTH),
        "layers": [layer_shapes(), layer_shapes()],
        "told": [array(WIDTH, 2 * WIDTH)] * 2,
        "out": array(WIDTH, 32),
    }
    return training(loss, params, {"x": array(16, 64, 32), "seed": indices()}, optax.adam(1e-3))


def generate() -> Program:
    """Words one after the other, the likeliest each time, until all sequences have ended."""

    def fn(p: Params, kept: dict[str, jax.Array], first: jax.Array) -> Any:
        length = kept["keys"].shape[1]

        def go_on(state: Any) -> jax.Array:
            place, _, _, ended, _ = state
            return (place < length) & ~ended.all()

        def step(state: Any) -> Any:
            place, word, kept, ended, written = state
            x = p["words"][word]
            kept = {
                name: lax.dynamic_update_index_in_dim(kept[name], x @ p[name], place, 1) for name in ("keys", "values")
            }
            scores = jnp.einsum("bd,bsd->bs", x @ p["query"], kept["keys"]) * WIDTH**-0.5
            weights = jax.nn.softmax(jnp.where(jnp.arange(length) <= place, scores, -jnp.inf), -1)
            x = x + jnp.einsum("bs,bsd->bd", weights, kept["values"]) @ p["out"]
            word = jnp.argmax((x + jax.nn.relu(x @ p["up"]) @ p["down"]) @ p["words"].T, -1)
            word = jnp.where(ended, 0, word).astype(first.dtype)
            return place + 1, word, kept, ended | (word == 0), written.at[:, place].set(word)

        start = (jnp.int32(0), first, kept, first < 0, jnp.zeros((len(first), length), first.dtype))
        place, _, kept, _, written = lax.while_loop(go_on, step, start)
        return written, place, kept

    square = {name: array(WIDTH, WIDTH) for name in ("query", "keys", "values", "out")}
    wide = {"up": array(WIDTH, 4 * WIDTH), "down": array(4 * WIDTH, WIDTH), "words": array(1024, WIDTH)}
    kept = {name: array(32, 24, WIDTH) for name in ("keys", "values")}
    return Program(fn, (square | wide, kept, indices(32)), (1,))


def retrieval() -> Program:
    """The eight of many vectors that are nearest to each of some by angle, and what they hold, weighted."""

    def fn(queries: jax.Array, keys: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
        def by_length(x: jax.Array) -> jax.Array:
            return x * lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6)

        scores, places = lax.top_k(by_length(queries) @ by_length(keys).T, 8)
        return places, jnp.einsum("qk,qkd->qd", jax.nn.softmax(10 * scores, -1), values[places])

    return Program(fn, (array(64, WIDTH), array(4096, WIDTH), array(4096, 64)))


def windowed_attention() -> Program:
    """Images whose windows of eight by eight attend within themselves, moved by half of one in between."""

    def windows(x: jax.Array) -> jax.Array:
        batch, rows, columns, width = x.shape
        return x.reshape(batch, rows // 8, 8, columns // 8, 8, width).swapaxes(2, 3).reshape(-1, 64, width)

    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["x"] @ p["in"]
        count, rows, columns, width = x.shape
        for moved, each in zip((0, 4), p["layers"], strict=True):
            inside = layer(windows(jnp.roll(x, (-moved, -moved), (1, 2))), each)
            inside = inside.reshape(count, rows // 8, columns // 8, 8, 8, width).swapaxes(2, 3).reshape(x.shape)
            x = jnp.roll(inside, (moved, moved), (1, 2))
        return ((x @ p["out"] - batch["y"]) ** 2).mean()

    params = {"in": array(12, WIDTH), "layers": [layer_shapes(), layer_shapes()], "out": array(WIDTH, 12)}
    return training(loss, params, {"x": array(8, 16, 16, 12), "y": array(8, 16, 16, 12)}, optax.adamw(1e-3))


def wavenet() -> Program:
    """Sound by convolutions over ever longer pasts, each with a gate, and what all of them say added up."""

    def loss(p: Params, batch: Params) -> jax.Array:
        x, said = batch["x"] @ p["in"], jnp.zeros((*batch["x"].shape[:2], 64))
        for number, each in enumerate(p["layers"]):
            past = 2**number
            both = lax.conv_general_dilated(
                x, each["both"], (1,), [(past, 0)], rhs_dilation=(past,), dimension_numbers=("NTC", "TIO", "NTC")
            )
            value, gate = jnp.split(both, 2, -1)
            y = jnp.tanh(value) * jax.nn.sigmoid(gate)
            x, said = x + y @ each["on"], said + y @ each["out"]
        return cross_entropy(jax.nn.relu(said) @ p["out"], batch["labels"])

    one = {"both": array(2, 64, 128), "on": array(64, 64), "out": array(64, 64)}
    params = {"in": array(16, 64), "layers": [one] * 4, "out": array(64, 256)}
    return training(loss, params, {"x": array(8, 256, 16), "labels": indices(8, 256)}, optax.adam(1e-3))


def orthogonal_updates() -> Program:
    """A perceptron whose gradients' momenta are made orthogonal before they are added, by Newton and Schulz (Muon)."""

    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["x"]
        for weights in p:
            x = jax.nn.relu(x @ weights) ** 2
        return ((x - batch["y"]) ** 2).mean()

    def orthogonal(x: jax.Array) -> jax.Array:
        x = x / (jnp.linalg.norm(x) + 1e-7)
        for _ in range(5):
            squared = x @ x.T
            x = 3.4445 * x + (-4.775 * squared + 2.0315 * squared @ squared) @ x
        return x

    def fn(p: Params, momenta: Params, batch: Params) -> Any:
        value, gradients = jax.value_and_grad(loss)(p, batch)
        momenta = jax.tree.map(lambda one, gradient: 0.95 * one + gradient, momenta, gradients)
        new = jax.tree.map(lambda one, step: 0.99 * one - 0.02 * orthogonal(step), p, momenta)
        return new, momenta, value

    params = [array(256, 512), array(512, 512), array(512, 256)]
    return Program(fn, (params, params, {"x": array(128, 256), "y": array(128, 256)}), (0, 1))


def neural_ode() -> Program:
    """States that move as a network says, followed in fourth order (Runge and Kutta), and fitted to where they end."""

    def loss(p: Params, batch: Params) -> jax.Array:
        def moves(x: jax.Array, time: jax.Array) -> jax.Array:
            return jnp.tanh(x @ p["in"] + time * p["time"]) @ p["out"]

        def step(x: jax.Array, time: jax.Array) -> tuple[jax.Array, None]:
            first = moves(x, time)
            second = moves(x + 0.05 * first, time + 0.05)
            third = moves(x + 0.05 * second, time + 0.05)
            fourth = moves(x + 0.1 * third, time + 0.1)
            return x + (first + 2 * second + 2 * third + fourth) / 60, None

        x, _ = lax.scan(jax.checkpoint(step), batch["x"], jnp.arange(0.0, 1.0, 0.1))
        return ((x - batch["y"]) ** 2).mean()

    params = {"in": array(64, 256), "time": array(256), "out": array(256, 64)}
    return training(loss, params, {"x": array(256, 64), "y": array(256, 64)}, optax.adam(1e-3))


def low_rank_adapters() -> Program:
    """A frozen network in bfloat16 with a trained product of two thin matrices beside each of its own (LoRA)."""

    def loss(p: Params, batch: Params) -> jax.Array:
        x = batch["x"].astype(jnp.bfloat16)
        for whole, thin in zip(batch["frozen"], p, strict=True):
            down, up = (thin[name].astype(jnp.bfloat16) for name in ("down", "up"))
            x = x + jax.nn.gelu(x @ whole["up"] + (x @ down) @ up) @ whole["down"]
        return ((x.astype(jnp.float32) - batch["y"]) ** 2).mean()

    shapes = {"up": (256, 1024), "down": (1024, 256)}
    whole = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in shapes.items()}
    params = [{"down": array(256, 8), "up": array(8, 1024)}] * 3
    batch = {"frozen": [whole] * 3, "x": array(256, 256), "y": array(256, 256)}
    return training(loss, params, batch, optax.adam(1e-3))
