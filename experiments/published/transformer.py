"""A transformer's train step with the shapes, precision and layout of a published run, to be traced and priced.

Axes of the mesh, outermost first: "data" (replicas that sum their gradients), "expert" (replicas too, among which the
experts of a mixture are split), "fsdp" (replicas among which parameters and optimiser state are split), "context" (the
sequence) and "tensor" (heads, the inner width of the MLP, the vocabulary).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from experiments.published.network import Network, constrain
from experiments.published.shapes import APART, Layout, Model, Params, Weight

ADAM = (0.9, 0.95, 1e-8)
STATE = ("weights", "mean", "square")


@dataclass(frozen=True)
class Step:
    """A train step, its arguments and what it asks for."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    in_specs: tuple[Any, ...]


def train_step(model: Model, layout: Layout) -> Step:
    """One step of Adam, gradients accumulated over passes and summed over replicas once."""
    weights = parameters(model, layout)
    used = {path: layout.spec(*weight.axes) for path, weight in weights.items()}
    kept = {path: layout.spec(*_kept(weight, layout)) for path, weight in weights.items()}
    gradients = _gradients(model, layout, weights)
    apart = layout.separate

    def accumulated(params: Params, tokens: jax.Array) -> Params:
        if layout.passes == 1:
            return gradients(params, tokens[0])
        zero = jax.tree.map(lambda g: jnp.zeros(g.shape, jnp.float32), jax.eval_shape(gradients, params, tokens[0]))

        def add(total: Params, part: jax.Array) -> tuple[Params, None]:
            return {path: total[path] + g.astype(jnp.float32) for path, g in gradients(params, part).items()}, None

        return jax.lax.scan(add, zero, tokens)[0]

    def summed(path: str, gradient: jax.Array) -> jax.Array:
        """Over the replicas; each has its own of the experts."""
        over = tuple(place for place, axis in enumerate(apart) if axis not in weights[path].axes)
        return constrain(jnp.sum(gradient, axis=over) if over else gradient, layout, kept[path])

    def step(state: dict[str, Params], tokens: jax.Array) -> dict[str, Params]:
        held = state["weights"]
        params = {path: constrain(w.astype(layout.dtype), layout, used[path]) for path, w in held.items()}
        total = {path: summed(path, g) for path, g in accumulated(params, tokens).items()}
        rows = {path: _adam(w, state["mean"][path], state["square"][path], total[path]) for path, w in held.items()}
        return {name: {path: row[place] for path, row in rows.items()} for place, name in enumerate(STATE)}

    state = {path: jax.ShapeDtypeStruct(weight.shape, jnp.float32) for path, weight in weights.items()}
    split = math.prod(layout.sizes[axis] for axis in apart if axis != "context")
    parts = layout.sizes["context"] if "context" in apart else 1
    shape = (layout.passes, *(layout.sizes[axis] for axis in apart), layout.batch // split, model.sequence // parts + 1)
    spec = layout.spec(None, *apart)
    return Step(
        step, (dict.fromkeys(STATE, state), jax.ShapeDtypeStruct(shape, jnp.int32)), (dict.fromkeys(STATE, kept), spec)
    )


def _gradients(model: Model, layout: Layout, weights: Mapping[str, Weight]) -> Callable[[Params, jax.Array], Params]:
    """Gradients of one pass, with a leading dimension for each axis along which devices keep apart."""
    compute = jax.grad(Network(model, layout, weights).loss)
    for axis in reversed(layout.separate):
        own = {path: 0 if axis in weight.axes else None for path, weight in weights.items()}
        compute = jax.vmap(compute, in_axes=(own, 0), axis_name=axis, spmd_axis_name=axis)
    return compute


def _adam(
    weight: jax.Array, mean: jax.Array, square: jax.Array, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    slow, slower, small = ADAM
    exact = gradient.astype(jnp.float32)
    mean = slow * mean + (1 - slow) * exact
    square = slower * square + (1 - slower) * jnp.square(exact)
    return weight - 1e-4 * mean / (jnp.sqrt(square) + small), mean, square


def parameters(model: Model, layout: Layout) -> Mapping[str, Weight]:
    """The weights by path."""
    d, f, v, g = model.width, model.ffn, model.vocabulary, model.kv_heads
    h, k, inner = model.heads // g, model.head_width, ("gate", "up") if model.gated else ("up",)
    common = {
        "query": Weight((d, g, h, k), ("fsdp", "tensor", None, None)),
        "key": Weight((d, g, k), ("fsdp", "tensor", None)),
        "value": Weight((d, g, k), ("fsdp", "tensor", None)),
        "out": Weight((g, h, k, d), ("tensor", None, None, "fsdp")),
    }
    mlp = {name: Weight((d, f), ("fsdp", "tensor")) for name in inner} | {"down": Weight((f, d), ("tensor", "fsdp"))}
    found = {"embedding": Weight((v, d), ("tensor", "fsdp"))}
    if not model.tied:
        found["head"] = Weight((d, v), ("fsdp", "tensor"))
    dense, sparse = split_layers(model)
    layers: dict[str, Weight] = {}
    if dense:
        layers |= {f"dense/{name}": weight.stacked(dense) for name, weight in {**common, **mlp}.items()}
    if sparse:
        rest = {**common, "router": Weight((d, model.experts), (None, None))}
        layers |= {f"sparse/{name}": weight.stacked(sparse) for name, weight in rest.items()}
        ranks = layout.sizes["expert"]
        own = {name: weight.stacked(model.experts // ranks).stacked(sparse) for name, weight in mlp.items()}
        layers |= {f"sparse/{name}": weight for name, weight in own.items()}
    split = {path: weight.apart(layout.sizes["fsdp"]) for path, weight in {**found, **layers}.items()}
    if sparse and layout.sizes["expert"] > 1:
        split |= {f"sparse/{name}": split[f"sparse/{name}"].stacked(layout.sizes["expert"], "expert") for name in mlp}
    return split


def _kept(weight: Weight, layout: Layout) -> tuple[str | tuple[str, ...] | None, ...]:
    """How state is kept between steps: as weights are used; with a sharded optimiser split over replicas too."""
    if not layout.sharded_optimizer:
        return weight.axes
    over = tuple(axis for axis in APART if axis not in weight.axes)
    ways = math.prod(layout.sizes[axis] for axis in over)
    for place, (axis, size) in enumerate(zip(weight.axes, weight.shape, strict=True)):
        taken = layout.sizes[axis] if axis else 1
        if size % (ways * taken) == 0:
            return (*weight.axes[:place], (*((axis,) if axis else ()), *over), *weight.axes[place + 1 :])
    return weight.axes


def split_layers(model: Model) -> tuple[int, int]:
    """How many layers have a plain MLP, and how many a mixture."""
    sparse = model.layers // model.moe_every if model.experts else 0
    return model.layers - sparse, sparse
