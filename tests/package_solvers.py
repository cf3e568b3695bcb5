"""Steps of optimizers, solvers of differential equations, graph networks, simulations and samplers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from package import cross_entropy, floats, labels, package


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
    params = {"w": floats(32, 16) / 6, "v": floats(16, 8, seed=1) / 4, "b": np.zeros(8, np.float32)}

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return cross_entropy(jnp.tanh(x @ params["w"]) @ params["v"] + params["b"], y)

    def step(params: Any, states: Any, x: jax.Array, y: jax.Array) -> Any:
        gradient = jax.grad(loss)(params, x, y)
        made = {name: each.update(gradient, states[name], params) for name, each in optimizers.items()}
        return {name: (optax.apply_updates(params, updates), state) for name, (updates, state) in made.items()}

    states = {name: optimizer.init(params) for name, optimizer in optimizers.items()}
    return step, (params, states, floats(16, 32), labels(16, 8))


@package
def optax_lbfgs() -> tuple[Any, tuple[Any, ...]]:
    """A quasi-Newton step, whose line search is a loop of gradients."""
    optimizer = optax.lbfgs(memory_size=4, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=5))
    w = floats(32) / 6

    def step(w: jax.Array, state: Any, x: jax.Array, y: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.mean(jnp.logaddexp(0.0, -y * (x @ w))) + 0.01 * jnp.sum(w**2)

        value, gradient = jax.value_and_grad(loss)(w)
        updates, state = optimizer.update(gradient, state, w, value=value, grad=gradient, value_fn=loss)
        return optax.apply_updates(w, updates), state

    return step, (w, optimizer.init(jnp.asarray(w)), floats(64, 32), np.sign(floats(64, seed=1)))


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

    return gradient, (floats(16, 16) / 4, floats(32, 16), floats(32, 16, seed=1))


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

    return solve, (floats(16, 16) / 4, floats(16))


@package
def jraph() -> tuple[Any, tuple[Any, ...]]:
    """A graph network: messages along edges, summed at nodes."""
    import jraph

    nodes, edges = 32, 64
    ends = np.random.default_rng(0).integers(0, nodes, (2, edges)).astype(np.int32)
    params = {"edge": floats(3 * 16, 16) / 7, "node": floats(2 * 16, 16, seed=1) / 6, "out": floats(16, 8) / 4}

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
            return cross_entropy(network(network(graph)).nodes @ params["out"], y)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    return step, (params, floats(nodes, 16), floats(edges, 16, seed=1), ends, labels(nodes, 8))


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

    x, y = floats(64, 8), np.sign(floats(64, seed=1))

    def sampled(keys: jax.Array, starts: jax.Array, x: jax.Array, y: jax.Array) -> Any:
        def chain(key: jax.Array, start: jax.Array) -> Any:
            kernel = bj.nuts(_logistic(x, y), 0.05, jnp.ones(8), max_num_doublings=3)
            state, info = kernel.step(key, kernel.init({"w": start}))
            return state.position, info.num_integration_steps

        return jax.vmap(chain)(keys, starts)

    return sampled, (jax.random.split(jax.random.key(0), 8), floats(8, 8) / 4, x, y)


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
    x, y = floats(64, 16), labels(64, 2)
    state = inference.init(jax.random.key(0), x, y)
    return inference.update, (state, x, y)
