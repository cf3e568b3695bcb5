"""Simulations and statistics."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from experiments.unseen.program import Program, array


def wave() -> Program:
    """A wave in a box whose opposite sides meet, leapfrog; the energy at each step."""

    def fn(u: jax.Array, v: jax.Array) -> Any:
        def step(state: Any, _: None) -> Any:
            u, v = state
            neighbours = sum(jnp.roll(u, shift, axis) for axis in range(3) for shift in (-1, 1))
            v = v + 0.1 * (neighbours - 6 * u)
            return (u + 0.1 * v, v), (u**2).sum()

        return lax.scan(step, (u, v), None, length=10)

    return Program(fn, (array(32, 32, 32), array(32, 32, 32)), (0, 1))


def particles() -> Program:
    """Gravity between all pairs."""

    def fn(x: jax.Array, v: jax.Array, mass: jax.Array) -> Any:
        def step(_: jax.Array, state: Any) -> Any:
            x, v = state
            between = x[None] - x[:, None]
            squared = (between**2).sum(-1) + 1e-2
            v = v + 0.01 * (between * (mass[None, :, None] * squared[..., None] ** -1.5)).sum(1)
            return x + 0.01 * v, v

        return lax.fori_loop(0, 5, step, (x, v))

    return Program(fn, (array(512, 3), array(512, 3), array(512)))


def gaussian_process() -> Program:
    """Mean at new points, and the likelihood."""

    def fn(x: jax.Array, y: jax.Array, new: jax.Array) -> Any:
        def covariance(a: jax.Array, b: jax.Array) -> jax.Array:
            return jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))

        root = jnp.linalg.cholesky(covariance(x, x) + 1e-2 * jnp.eye(len(x)))
        solved = jax.scipy.linalg.cho_solve((root, True), y)
        return covariance(new, x) @ solved, -0.5 * (y * solved).sum() - jnp.log(jnp.diagonal(root)).sum()

    return Program(fn, (array(256, 8), array(256, 4), array(128, 8)))


def navier_stokes() -> Program:
    """Vorticity in two dimensions by real Fourier transforms."""

    def fn(vorticity: jax.Array) -> jax.Array:
        side = len(vorticity)
        wave_numbers = (jnp.fft.fftfreq(side) * side).astype(jnp.complex64)
        across, along = wave_numbers[:, None], wave_numbers[None, : side // 2 + 1]
        squared = across**2 + along**2

        def step(spectrum: jax.Array, _: None) -> tuple[jax.Array, None]:
            stream = spectrum / jnp.where(squared == 0, jnp.ones_like(squared), squared)
            u, v = jnp.fft.irfft2(1j * along * stream), jnp.fft.irfft2(-1j * across * stream)
            by_x, by_y = jnp.fft.irfft2(1j * across * spectrum), jnp.fft.irfft2(1j * along * spectrum)
            change = -jnp.fft.rfft2(u * by_x + v * by_y) - 0.01 * squared * spectrum
            return spectrum + 0.01 * change, None

        spectrum, _ = lax.scan(step, jnp.fft.rfft2(vorticity), None, length=3)
        return jnp.fft.irfft2(spectrum)

    return Program(fn, (array(64, 64),))


def k_means() -> Program:
    def fn(x: jax.Array, centres: jax.Array) -> Any:
        def goes_on(state: Any) -> jax.Array:
            return (state[1] < 10) & (state[2] > 1e-4)

        def step(state: Any) -> Any:
            centres, turn, _ = state
            distances = ((x[:, None] - centres[None]) ** 2).sum(-1)
            members = jax.nn.one_hot(jnp.argmin(distances, 1), len(centres))
            new = members.T @ x / (members.sum(0)[:, None] + 1e-6)
            return new, turn + 1, jnp.abs(new - centres).max()

        return lax.while_loop(goes_on, step, (centres, 0, jnp.float32(1)))

    return Program(fn, (array(1024, 16), array(32, 16)))
