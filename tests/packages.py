"""Steps that people write with other libraries: training, solving, simulating, sampling.

Each function here imports its library, builds a small problem of it and returns a case; sizes are such that something
can be split over eight devices. No bias stands before a normalisation: its gradient is nothing but rounding, and many
optimizers would make a step of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cases import Case

PACKAGES: dict[str, Callable[[], Case]] = {}
"""By the package's name, what makes its case."""


def package(make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]) -> Callable[[], Case]:
    name = make.__name__

    def case() -> Case:
        return Case(name, *make())

    PACKAGES[name] = case
    return case


def _floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _labels(count: int, classes: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, classes, count).astype(np.int32)


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


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
            value = _cross_entropy(net(x), y)
            return value, nnx.state(net, nnx.Not(nnx.Param))

        (value, new_rest), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), new_rest, state, value

    return step, (params, rest, optimizer.init(params), _floats(16, 8, 8, 3), _labels(16, 16))


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

    block, tokens = Block(), _labels(8 * 16, 64).reshape(8, 16)
    params = block.init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, tokens)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adafactor(1e-2))

    def step(params: Any, state: Any, tokens: jax.Array, key: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            return _cross_entropy(block.apply(params, tokens, rngs={"dropout": key}), jnp.roll(tokens, -1, axis=1))

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
            return _cross_entropy(jax.vmap(eqx.combine(params, static))(xs), y)

        value, gradient = loss(params)
        updates, state = optimizer.update(gradient, state, params)
        return eqx.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), _floats(16, 12, 16), _labels(16, 8))


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
    x, y = _floats(8, 8, 8, 3), _labels(8, 8)
    params, stats = net.init(jax.random.key(0), x)
    optimizer = optax.lamb(1e-3)

    def step(params: Any, stats: Any, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> Any:
            logits, new = net.apply(params, stats, x)
            return _cross_entropy(logits, y), new

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

    return step, (trainable, fixed, state, _floats(16, 16, 8), _labels(16, 8))


@package
def optax_optimizers() -> tuple[Any, tuple[Any, ...]]:
    """One step of each of a dozen optimizers, on the gradient of one loss."""
    optimizers = {
        "adabelief": optax.adabelief(1e-2),
        "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=16),
        "adagrad": optax.adagrad(1e-2),
        "adamax": optax.adamax(1e-2),
        "amsgrad": optax.amsgrad(1e-2),
        "lamb": optax.lamb(1e-2),
        "lars": optax.lars(1e-2),
        "muon": optax.contrib.muon(1e-2),
        "novograd": optax.novograd(1e-2),
        "radam": optax.radam(1e-2),
        "schedule_free": optax.contrib.schedule_free_adamw(1e-2),
        "sm3": optax.sm3(1e-2),
        "yogi": optax.yogi(1e-2),
        "multi_steps": optax.MultiSteps(optax.sgd(1e-2, momentum=0.9), 2),
    }
    params = {"w": _floats(32, 16) / 6, "v": _floats(16, 8, seed=1) / 4, "b": np.zeros(8, np.float32)}

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return _cross_entropy(jnp.tanh(x @ params["w"]) @ params["v"] + params["b"], y)

    def step(params: Any, states: Any, x: jax.Array, y: jax.Array) -> Any:
        gradient = jax.grad(loss)(params, x, y)
        made = {name: each.update(gradient, states[name], params) for name, each in optimizers.items()}
        return {name: (optax.apply_updates(params, updates), state) for name, (updates, state) in made.items()}

    states = {name: optimizer.init(params) for name, optimizer in optimizers.items()}
    return step, (params, states, _floats(16, 32), _labels(16, 8))


@package
def optax_lbfgs() -> tuple[Any, tuple[Any, ...]]:
    """A quasi-Newton step, whose line search is a loop of gradients."""
    optimizer = optax.lbfgs(memory_size=4, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=5))
    w = _floats(32) / 6

    def step(w: jax.Array, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.mean(jnp.logaddexp(0.0, -y * (x @ w))) + 0.01 * jnp.sum(w**2)

        value, gradient = jax.value_and_grad(loss)(w)
        updates, state = optimizer.update(gradient, state, w, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(w, updates), state

    return step, (w, optimizer.init(jnp.asarray(w)), _floats(64, 32), np.sign(_floats(64, seed=1)))


@package
def diffrax() -> tuple[Any, tuple[Any, ...]]:
    """The gradient through an adaptive solver of a neural differential equation."""
    import diffrax as dfx

    def field(t: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(y @ w)

    def gradient(w: jax.Array, start: jax.Array, goal: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            solution = dfx.diffeqsolve(
                dfx.ODETerm(field),
                dfx.Tsit5(),
                t0=0.0,
                t1=1.0,
                dt0=0.1,
                y0=start,
                args=w,
                stepsize_controller=dfx.PIDController(rtol=1e-3, atol=1e-3),
                max_steps=32,
            )
            return jnp.mean((solution.ys[-1] - goal) ** 2)

        return jax.value_and_grad(loss)(w)

    return gradient, (_floats(16, 16) / 4, _floats(32, 16), _floats(32, 16, seed=1))


@package
def diffrax_implicit() -> tuple[Any, tuple[Any, ...]]:
    """A stiff equation by an implicit solver: a Newton iteration with a linear solve in each step."""
    import diffrax as dfx

    def field(t: jax.Array, y: jax.Array, w: jax.Array) -> jax.Array:
        return -20.0 * y + jnp.sin(w @ y)

    def solve(w: jax.Array, start: jax.Array) -> jax.Array:
        return dfx.diffeqsolve(
            dfx.ODETerm(field), dfx.Kvaerno3(), 0.0, 0.3, 0.05, start, w,
            stepsize_controller=dfx.PIDController(rtol=1e-3, atol=1e-4), max_steps=64,
        ).ys  # fmt: skip

    return solve, (_floats(16, 16) / 4, _floats(16))


@package
def jraph() -> tuple[Any, tuple[Any, ...]]:
    """A graph network: messages along edges, summed at nodes."""
    import jraph

    nodes, edges = 32, 64
    ends = np.random.default_rng(0).integers(0, nodes, (2, edges)).astype(np.int32)
    params = {"edge": _floats(3 * 16, 16) / 7, "node": _floats(2 * 16, 16, seed=1) / 6, "out": _floats(16, 8) / 4}

    def step(params: Any, features: jax.Array, edge_features: jax.Array, ends: jax.Array, y: jax.Array) -> Any:
        def loss(params: Any) -> jax.Array:
            graph = jraph.GraphsTuple(
                nodes=features, edges=edge_features, senders=ends[0], receivers=ends[1], globals=None,
                n_node=jnp.array([nodes]), n_edge=jnp.array([edges]),
            )  # fmt: skip

            def along(edge: Any, sent: Any, received: Any, _: Any) -> Any:
                return jnp.tanh(jnp.concatenate([edge, sent, received], 1) @ params["edge"])

            def at(node: Any, sent: Any, received: Any, _: Any) -> Any:
                return jnp.tanh(jnp.concatenate([node, received], 1) @ params["node"])

            network = jraph.GraphNetwork(along, at)
            return _cross_entropy(network(network(graph)).nodes @ params["out"], y)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    return step, (params, _floats(nodes, 16), _floats(edges, 16, seed=1), ends, _labels(nodes, 8))


@package
def jax_md() -> tuple[Any, tuple[Any, ...]]:
    """Particles in a periodic box, a few steps of molecular dynamics."""
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(6.0)
    initial, advance = simulate.nvt_nose_hoover(energy.soft_sphere_pair(displacement), shift, 1e-3, kT=0.1)
    positions = np.random.default_rng(0).uniform(0, 6, (32, 3)).astype(np.float32)
    state = initial(jax.random.key(0), positions)

    def simulated(state: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda _, state: advance(state), state)

    return simulated, (state,)


def _logistic(x: np.ndarray, y: np.ndarray) -> Callable[[Any], jax.Array]:
    def log_density(w: Any) -> jax.Array:
        return -jnp.sum(jnp.logaddexp(0.0, -y * (x @ w["w"]))) - 0.5 * jnp.sum(w["w"] ** 2)

    return log_density


@package
def blackjax() -> tuple[Any, tuple[Any, ...]]:
    """A step of the No-U-Turn sampler for each of eight chains."""
    import blackjax as bj

    x, y = _floats(64, 8), np.sign(_floats(64, seed=1))

    def sampled(keys: jax.Array, starts: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def chain(key: jax.Array, start: jax.Array) -> Any:
            kernel = bj.nuts(_logistic(x, y), 0.05, jnp.ones(8), max_num_doublings=3)
            state, info = kernel.step(key, kernel.init({"w": start}))
            return state.position, info.num_integration_steps

        return jax.vmap(chain)(keys, starts)

    return sampled, (jax.random.split(jax.random.key(0), 8), _floats(8, 8) / 4, x, y)


@package
def numpyro() -> tuple[Any, tuple[Any, ...]]:
    """A step of stochastic variational inference for a logistic regression."""
    import numpyro as npr
    from numpyro import distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoLowRankMultivariateNormal

    def model(x: jax.Array, y: jax.Array) -> None:
        w = npr.sample("w", dist.Normal(jnp.zeros(16), 1.0).to_event(1))
        scale = npr.sample("scale", dist.Gamma(2.0, 1.0))
        npr.sample("y", dist.Bernoulli(logits=scale * (x @ w)), obs=y)

    inference = SVI(model, AutoLowRankMultivariateNormal(model), npr.optim.Adam(1e-2), Trace_ELBO(4))
    x, y = _floats(64, 16), _labels(64, 2)
    state = inference.init(jax.random.key(0), x, y)
    return inference.update, (state, x, y)


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
            return _cross_entropy(logits.unwrap("batch", "classes"), y)

        value, gradient = jax.value_and_grad(loss)(variables)
        return jax.tree.map(lambda v, g: v - 0.1 * g, variables, gradient), value

    return step, (variables, _floats(16, 16), _labels(16, 8))
