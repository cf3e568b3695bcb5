"""The heat equation by finite differences, as people write it: slices in one dimension, rolls in two."""

import jax
import jax.numpy as jnp

from experiments.workloads.workload import Size, Workload

DIFFUSIVITY = 0.1  # times the time step over the grid step squared; stable up to 1/2 in 1-D, 1/4 in 2-D


def heat_1d(size: Size) -> Workload:
    """A rod with its ends held at their temperature."""
    points, steps = {"test": (4096, 100), "full": (2**24, 1000)}[size]

    def step(_: jax.Array, u: jax.Array) -> jax.Array:
        return u.at[1:-1].add(DIFFUSIVITY * (u[2:] - 2 * u[1:-1] + u[:-2]))

    def fn(u: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, step, u)

    def make_args(key: jax.Array) -> tuple[jax.Array]:
        return (jax.random.uniform(key, (points,)),)

    return Workload("heat-1d", "heat", f"{steps} steps of the 1-D heat equation, fori_loop", fn, make_args)


def heat_2d(size: Size) -> Workload:
    """A plate whose opposite edges meet."""
    side, steps = {"test": (256, 50), "full": (16384, 1000)}[size]

    def step(u: jax.Array, _: None) -> tuple[jax.Array, None]:
        neighbours = sum(jnp.roll(u, shift, axis) for axis in (0, 1) for shift in (-1, 1))
        return u + DIFFUSIVITY * (neighbours - 4 * u), None

    def fn(u: jax.Array) -> jax.Array:
        u, _ = jax.lax.scan(step, u, None, length=steps)
        return u

    def make_args(key: jax.Array) -> tuple[jax.Array]:
        return (jax.random.uniform(key, (side, side)),)

    return Workload("heat-2d", "heat", f"{steps} steps of the 2-D heat equation, scan", fn, make_args)
