"""Training steps of libraries of neural networks."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import optax
from package import cross_entropy, floats, labels, package


@package
def flax_nnx() -> tuple[Any, tuple[Any, ...]]:
    """A small convolutional network with batch statistics and dropout."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.conv = nnx.Conv(3, 8, (3, 3), use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.drop = nnx.Dropout(0.2, rngs=rngs)
            self.head = nnx.Linear(8 * 4 * 4, 16, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = nnx.avg_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
            return self.head(self.drop(x.reshape(x.shape[0], -1)))

    definition, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)
    optimizer = optax.adamw(1e-3)

    def step(params: Any, rest: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            net = nnx.merge(definition, params, rest, copy=True)
            value = cross_entropy(net(x), y)
            return value, nnx.state(net, nnx.Not(nnx.Param))

        (value, new_rest), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), new_rest, state, value

    return step, (params, rest, optimizer.init(params), floats(16, 8, 8, 3), labels(16, 16))


@package
def flax_linen() -> tuple[Any, tuple[Any, ...]]:
    """A transformer block over embedded tokens, with dropout."""
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, tokens: jax.Array) -> jax.Array:
            x = nn.Embed(64, 32)(tokens)
            mask = nn.make_causal_mask(tokens)
            attention = nn.MultiHeadDotProductAttention(4, dropout_rate=0.1, deterministic=False, use_bias=False)
            x = x + attention(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(32)(nn.gelu(nn.Dense(128)(nn.RMSNorm()(x))))
            return nn.Dense(64)(x)

    block, tokens = Block(), labels(8 * 16, 64).reshape(8, 16)
    params = block.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, tokens)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adafactor(1e-2))

    def step(params: Any, state: Any, tokens: jax.Array, key: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return cross_entropy(block.apply(params, tokens, rngs={"dropout": key}), jnp.roll(tokens, -1, axis=1))

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), tokens, jax.random.key(2))


@package
def equinox() -> tuple[Any, tuple[Any, ...]]:
    """A recurrent cell scanned over time, rematerialised, each sequence by vmap."""
    import equinox as eqx

    class Net(eqx.Module):
        cell: eqx.nn.GRUCell
        head: eqx.nn.MLP

        def __call__(self, xs: jax.Array) -> jax.Array:
            @jax.checkpoint
            def advance(hidden: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
                return self.cell(x, hidden), None

            return self.head(jax.lax.scan(advance, jnp.zeros(32), xs)[0])

    keys = jax.random.split(jax.random.key(0))
    net = Net(eqx.nn.GRUCell(16, 32, key=keys[0]), eqx.nn.MLP(32, 8, 32, 2, key=keys[1]))
    params, static = eqx.partition(net, eqx.is_inexact_array)
    optimizer = optax.rmsprop(1e-3, momentum=0.9)

    def step(params: Any, state: Any, xs: jax.Array, y: jax.Array) -> Any:
        @eqx.filter_value_and_grad
        def loss(params: Any) -> jax.Array:
            return cross_entropy(jax.vmap(eqx.combine(params, static))(xs), y)

        value, gradient = loss(params)
        updates, state = optimizer.update(gradient, state, params)
        return eqx.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), floats(16, 12, 16), labels(16, 8))


@package
def haiku() -> tuple[Any, tuple[Any, ...]]:
    """A residual block with batch statistics and max pooling."""
    import haiku as hk

    def forward(x: jax.Array) -> jax.Array:
        for stride in (1, 2):
            skip = hk.Conv2D(16, 1, stride=stride)(x)
            x = jax.nn.relu(
                hk.BatchNorm(True, True, 0.9)(hk.Conv2D(16, 3, stride=stride, with_bias=False)(x), is_training=True)
            )
            x = skip + hk.Conv2D(16, 3)(x)
        return hk.Linear(8)(hk.MaxPool(2, 2, "SAME")(x).mean((1, 2)))

    net = hk.without_apply_rng(hk.transform_with_state(forward))
    x, y = floats(8, 8, 8, 3), labels(8, 8)
    params, stats = net.init(jax.random.key(0), x)
    optimizer = optax.lamb(1e-3)

    def step(params: Any, stats: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits, new = net.apply(params, stats, x)
            return cross_entropy(logits, y), new

        (value, stats_), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), stats_, state, value

    return step, (params, stats, optimizer.init(params), x, y)


@package
def keras() -> tuple[Any, tuple[Any, ...]]:
    """A model of Keras with its own optimizer, by the stateless interface."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((16, 8)),
            keras.layers.LSTM(16, return_sequences=True),
            keras.layers.LayerNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(8),
        ]
    )
    optimizer = keras.optimizers.Nadam(1e-3)
    optimizer.build(model.trainable_variables)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainable = [variable.value for variable in model.trainable_variables]
    fixed = [variable.value for variable in model.non_trainable_variables]
    state = [variable.value for variable in optimizer.variables]

    def step(trainable: Any, fixed: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(trainable: Any) -> Any:
            logits, new = model.stateless_call(trainable, fixed, x, training=True)
            return loss_fn(y, logits), new

        (value, new), gradient = jax.value_and_grad(loss, has_aux=True)(trainable)
        trainable, state = optimizer.stateless_apply(state, gradient, trainable)
        return trainable, new, state, value

    return step, (trainable, fixed, state, floats(16, 16, 8), labels(16, 8))


@package
def penzai() -> tuple[Any, tuple[Any, ...]]:
    """A model whose axes have names, and its gradient."""
    from penzai import pz

    net = pz.nn.Sequential(
        [
            pz.nn.Linear.from_config("in", jax.random.key(0), {"features": 16}, {"hidden": 32}),
            pz.nn.Elementwise(jax.nn.gelu),
            pz.nn.RMSLayerNorm.from_config("norm", jax.random.key(1), across_axes={"hidden": 32}),
            pz.nn.Linear.from_config("out", jax.random.key(2), {"hidden": 32}, {"classes": 8}),
        ]
    )
    unbound, variables = pz.unbind_params(net, freeze=True)

    def step(variables: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(variables: Any) -> jax.Array:
            logits = pz.bind_variables(unbound, variables)(pz.nx.wrap(x).tag("batch", "features"))
            return cross_entropy(logits.unwrap("batch", "classes"), y)

        value, gradient = jax.value_and_grad(loss)(variables)
        return jax.tree.map(lambda v, g: v - 0.1 * g, variables, gradient), value

    return step, (variables, floats(16, 16), labels(16, 8))
