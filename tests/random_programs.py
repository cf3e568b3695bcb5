"""Random programs: up to thirty ops over random shapes, nested in loops and branches, some of them differentiated.

A program is drawn from a number alone, so that a failure is a number to draw again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import Case
from jax import lax
from random_ops import LARGEST, SMOOTH, STEPPED, Maker, bounded, draw_shape

Array = jax.Array
MESHES = ({"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2})


@dataclass(frozen=True)
class Program:
    """One drawn program.

    Attributes:
        mesh: axis sizes to plan it for.
    """

    case: Case
    mesh: dict[str, int]


def draw(number: int, most_ops: int = 30) -> Program:
    """The program of that number."""
    generator = random.Random(number)
    values = np.random.default_rng(number)
    args = [_argument(generator, values) for _ in range(generator.randint(1, 4))]
    ops = 1 + int(most_ops * generator.random() ** 3)  # most are short
    smooth = generator.random() < 0.3
    seed = generator.random()

    def fn(*args: Array) -> list[Array]:
        made = _body(random.Random(seed), list(args), ops, SMOOTH if smooth else {**SMOOTH, **STEPPED}, nested=2)
        # Away from zero: of a sum that is nearly nothing, rounding is all there is.
        return [one + 2 if one.dtype == np.float32 else one for one in made]

    def gradient(*args: Array) -> Any:
        floats = [index for index, arg in enumerate(args) if arg.dtype == np.float32]

        def loss(*some: Array) -> Array:
            every = list(args)
            for index, one in zip(floats, some, strict=True):
                every[index] = one
            made = [jnp.sum(jnp.sin(one)) for one in fn(*every) if one.dtype == np.float32]
            return sum(made, start=jnp.float32(0))

        return jax.grad(loss, argnums=tuple(range(len(floats))))(*(args[index] for index in floats))

    mesh = generator.choice(MESHES)
    differentiated = smooth and any(arg.dtype == np.float32 for arg in args)
    return Program(Case(f"random {number}", gradient if differentiated else fn, tuple(args)), mesh)


def _argument(generator: random.Random, values: np.random.Generator) -> np.ndarray:
    shape = draw_shape(generator)
    if generator.random() < 0.75:
        return values.uniform(-1, 1, shape).astype(np.float32)
    return values.integers(-100, 100, shape).astype(np.int32)


def _body(generator: random.Random, pool: list[Array], ops: int, makers: dict[str, Maker], nested: int) -> list[Array]:
    """Adds so many ops to the pool; returns the last few arrays made and one of the others."""
    given = len(pool)
    made = 0
    for _ in range(20 * ops):
        if made == ops:
            break
        if nested and generator.random() < 0.06:
            found = _nest(generator, pool, makers, nested - 1)
        else:
            found = makers[generator.choice(list(makers))](generator, pool)
        if found is not None and found.size <= LARGEST:
            pool.append(found)
            made += 1
    fresh = pool[given:] or pool
    return [*fresh[-2:], generator.choice(fresh)]


def _nest(generator: random.Random, pool: Sequence[Array], makers: dict[str, Maker], nested: int) -> Array | None:
    """A loop, a branch or a call with a few ops in it."""
    outer = generator.choice(pool)
    seed, ops = generator.random(), generator.randint(1, 5)

    def inside(*arrays: Array) -> Array:
        return _body(random.Random(seed), [*arrays, *pool], ops, makers, nested)[-1]

    def like(x: Array) -> Array:
        """Some of what was made inside, in the shape of what came in."""
        made = inside(x)
        change = jnp.sum(made).astype(x.dtype) if made.dtype == x.dtype else jnp.ones((), x.dtype)
        return bounded(x + bounded(change))

    match generator.choice(("scan", "carry", "cond", "remat", "jit", "while", "custom", "vmap")):
        case "scan" if outer.ndim and outer.shape[0] > 1:
            return lax.scan(lambda carry, x: (carry, _small(inside(x))), None, outer)[1]
        case "carry":
            return lax.scan(lambda x, _: (like(x), None), outer, None, length=3)[0]
        case "cond":
            even = jnp.sum(jnp.arange(generator.randint(2, 5))) % 2 == generator.randint(0, 1)
            even = even & jnp.isfinite(jnp.sum(pool[0]).astype(jnp.float32))  # so that it is known at run time only
            return lax.cond(even, like, lambda x: -x, outer)
        case "remat":
            return jax.checkpoint(like)(outer)
        case "jit":
            return jax.jit(like)(outer)
        case "while" if makers is not SMOOTH:
            start = jnp.int32(0)
            return lax.while_loop(
                lambda state: state[0] < 3, lambda state: (state[0] + 1, like(state[1])), (start, outer)
            )[1]
        case "custom":
            return _doubled(outer)
        case "vmap" if outer.ndim and outer.shape[0] > 1:
            return jax.vmap(lambda x: _small(inside(x)))(outer)
    return None


@jax.custom_vjp
def _doubled(x: Array) -> Array:
    return x + x


_doubled.defvjp(lambda x: (_doubled(x), None), lambda _, g: (g + g,))


def _small(x: Array) -> Array:
    """No more than what a loop may stack."""
    return x if x.size <= 64 else jnp.sum(x, axis=0) if x.ndim > 1 and x.size // x.shape[0] <= 64 else jnp.sum(x)
