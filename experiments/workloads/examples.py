"""The worked examples that users know from JAX's and Reactant's documentation."""

import jax
import jax.numpy as jnp

from experiments.workloads.training import normal
from experiments.workloads.workload import Size, Workload


def sigmoid_layer(size: Size) -> Workload:
    rows, inputs, outputs = {"test": (512, 256, 512), "full": (8192, 8192, 8192)}[size]

    def fn(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(x @ w + b)

    def make_args(key: jax.Array) -> tuple[jax.Array, ...]:
        of_x, of_w, of_b = jax.random.split(key, 3)
        return (
            jax.random.normal(of_x, (rows, inputs)),
            normal(of_w, inputs, outputs, fan_in=inputs),
            jax.random.normal(of_b, (outputs,)),
        )

    return Workload("sigmoid-layer", "examples", "sigmoid(x @ w + b)", fn, make_args)


def sum_axis(size: Size) -> Workload:
    shape = {"test": (1024, 512), "full": (65536, 8192)}[size]

    def fn(x: jax.Array) -> jax.Array:
        return jnp.sum(x, axis=1)

    def make_args(key: jax.Array) -> tuple[jax.Array]:
        return (jax.random.normal(key, shape),)

    return Workload("sum-axis", "examples", "sum over the second axis of a matrix", fn, make_args)


def elementwise(size: Size) -> Workload:
    """The same at either size: 40 × 40 is what the example is about."""

    def fn(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * jnp.cos(x) + x

    def make_args(key: jax.Array) -> tuple[jax.Array]:
        return (jax.random.normal(key, (40, 40)),)

    return Workload("elementwise-40x40", "examples", "sin(x) cos(x) + x over a 40 × 40 array", fn, make_args)
