"""The ops that random programs are made of: each is made of arrays that there are, if any of them will do.

Floats stay within a few units, for what grows would hide errors; integers are exact. Nothing decides on floats that are
equal but for rounding: what selects, orders or indexes is made of integers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Maker = Callable[[random.Random, list[Array]], Array | None]
"""Makes an array of those there are, as the generator has it; None where it finds none that will do."""

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 8, 12, 16, 16, 24, 32)
"""Of dimensions; half of them divide by no mesh axis."""
LARGEST = 1 << 12
"""Elements of an array."""


def bounded(x: Array) -> Array:
    """Floats back to within one; integers are exact however large they are."""
    return jnp.sin(x) if x.dtype == np.float32 else x


def draw_shape(generator: random.Random) -> tuple[int, ...]:
    rank = generator.choice((0, 1, 2, 2, 2, 3, 3, 4))
    shape = tuple(generator.choice(SIZES) for _ in range(rank))
    return shape if np.prod(shape) <= LARGEST else shape[:2]


def _pick(
    generator: random.Random, pool: Sequence[Array], wanted: Callable[[Array], Any], dtype: Any = None
) -> Array | None:
    fitting = [x for x in pool if wanted(x) and (dtype is None or x.dtype == dtype)]
    return generator.choice(fitting[-8:]) if fitting else None


def _unary(generator: random.Random, pool: list[Array]) -> Array | None:
    fn = generator.choice((jnp.sin, jnp.tanh, jnp.negative, jnp.cos, lambda x: x * x, jax.nn.sigmoid, jnp.exp2))
    x = _pick(generator, pool, lambda x: True, np.float32)
    return None if x is None else bounded(fn(x))


def _binary(generator: random.Random, pool: list[Array]) -> Array | None:
    x = generator.choice(pool)
    y = _pick(generator, pool, lambda y: y.dtype == x.dtype and _broadcast(x.shape, y.shape))
    if y is None:
        return None
    fn = generator.choice((jnp.add, jnp.subtract, jnp.multiply))
    return bounded(fn(x, y))


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(left, right))) <= LARGEST
    except ValueError:
        return False


def _contraction(generator: random.Random, pool: list[Array]) -> Array | None:
    """Any dimension with any of the same size, others of one size as batch."""
    x = _pick(generator, pool, lambda x: 1 <= x.ndim <= 3, np.float32)
    if x is None:
        return None
    axis = generator.randrange(x.ndim)
    y = _pick(generator, pool, lambda y: y.ndim <= 3 and x.shape[axis] in y.shape, np.float32)
    if y is None:
        return None
    other = generator.choice([dim for dim, size in enumerate(y.shape) if size == x.shape[axis]])
    batch = [
        (a, b) for a in range(x.ndim) for b in range(y.ndim) if a != axis and b != other and x.shape[a] == y.shape[b]
    ]
    batch = batch[:1] if generator.random() < 0.4 else []
    dims = (((axis,), (other,)), (tuple(a for a, _ in batch), tuple(b for _, b in batch)))
    size = x.size * y.size // x.shape[axis] ** 2 // int(np.prod([x.shape[a] for a, _ in batch], dtype=int))
    return bounded(lax.dot_general(x, y, dims)) if size <= LARGEST else None


def _reduction(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    axes = tuple(sorted(generator.sample(range(x.ndim), generator.randint(1, x.ndim))))
    return bounded(jnp.sum(x, axis=axes, keepdims=generator.random() < 0.3, dtype=x.dtype))


def _norm(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim, np.float32)
    return None if x is None else jax.nn.softmax(x, axis=generator.randrange(x.ndim))


def _transposed(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim > 1)
    return None if x is None else jnp.transpose(x, generator.sample(range(x.ndim), x.ndim))


def _reshaped(generator: random.Random, pool: list[Array]) -> Array | None:
    """Flattened, cut in two, or two dimensions made one."""
    x = _pick(generator, pool, lambda x: x.size > 1)
    if x is None:
        return None
    shape = list(x.shape) if generator.random() < 0.6 else [x.size]
    if len(shape) > 1 and generator.random() < 0.5:
        at = generator.randrange(len(shape) - 1)
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    at = generator.randrange(len(shape)) if shape else 0
    divisors = [d for d in (2, 3, 4, 8) if shape and shape[at] % d == 0]
    if divisors:
        divisor = generator.choice(divisors)
        shape[at : at + 1] = generator.choice(([divisor, shape[at] // divisor], [shape[at] // divisor, divisor]))
    return x.reshape(shape) if len(shape) <= 5 else None


def _broadcasted(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim <= 3)
    if x is None:
        return None
    at, size = generator.randint(0, x.ndim), generator.choice(SIZES)
    if x.size * size > LARGEST:
        return None
    shape = (*x.shape[:at], size, *x.shape[at:])
    return lax.broadcast_in_dim(x, shape, tuple(dim for dim in range(x.ndim + 1) if dim != at))


def _sliced(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    cuts = []
    for size in x.shape:
        start = generator.randint(0, size - 1) if generator.random() < 0.5 else 0
        cuts.append(slice(start, None if generator.random() < 0.5 else generator.randint(start + 1, size)))
        if generator.random() < 0.2:
            cuts[-1] = slice(cuts[-1].start, cuts[-1].stop, 2)
    return x[tuple(cuts)]


def _padded(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    widths = [
        (generator.randint(-1 if size > 1 else 0, 3), generator.randint(0, 2), generator.choice((0, 0, 1)))
        for size in x.shape
    ]
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


def _joined(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    axis = generator.randrange(x.ndim)

    def rest(y: Array) -> tuple[int, ...]:
        return (*y.shape[:axis], *y.shape[axis + 1 :])

    y = _pick(generator, pool, lambda y: y.dtype == x.dtype and y.ndim == x.ndim and rest(y) == rest(x))
    return jnp.concatenate([x, y if y is not None else x], axis=axis)


def _reversed(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    axis = generator.randrange(x.ndim)
    return jnp.flip(x, axis) if generator.random() < 0.5 else jnp.roll(x, generator.randint(-3, 3), axis)


def _indices(generator: random.Random, pool: Sequence[Array], most: int) -> Array:
    """Whole numbers, now and then outside of what is indexed."""
    found = _pick(generator, pool, lambda i: i.ndim <= 2 and 0 < i.size <= 64, np.int32)
    if found is None:
        found = jnp.arange(generator.choice((1, 2, 3, 8, 16)), dtype=np.int32) * 5
    return found % (most + (generator.random() < 0.2))


def _taken(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    axis = generator.randrange(x.ndim)
    indices = _indices(generator, pool, x.shape[axis])
    if x.size // x.shape[axis] * indices.size > LARGEST:
        return None
    return jnp.take(x, indices, axis=axis, mode=generator.choice(("clip", "fill", "wrap")), fill_value=0)


def _scattered(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    indices = _indices(generator, pool, x.shape[0])
    at = x.at[indices]
    updates = generator.choice((x[indices] * 2, jnp.ones((), x.dtype)))
    return bounded(at.add(updates))


def _looked(generator: random.Random, pool: list[Array]) -> Array | None:
    """A slice that begins where an index says, or one written there."""
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    start = jnp.sum(_indices(generator, pool, 7), dtype=np.int32) % 5
    axis = generator.randrange(x.ndim)
    width = generator.randint(1, x.shape[axis])
    part = lax.dynamic_slice_in_dim(x, start, width, axis)
    return (
        part if generator.random() < 0.5 else lax.dynamic_update_slice_in_dim(x, bounded(part + part), start + 1, axis)
    )


def _convolved(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim == 3, np.float32)
    if x is None:
        return None
    features, width, groups = generator.choice((1, 4, 8)), generator.choice((1, 2, 3)), 1
    if generator.random() < 0.3:
        groups, features = x.shape[1], x.shape[1]
    kernel = jnp.cos(jnp.arange(features * x.shape[1] // groups * width, dtype=np.float32))
    kernel = kernel.reshape(features, x.shape[1] // groups, width)
    other = _pick(generator, pool, lambda y: y.ndim == 3 and y.shape == kernel.shape, np.float32)
    stride = generator.choice((1, 1, 2))
    if width > x.shape[2]:
        return None
    padding = generator.choice(("SAME", "VALID"))
    kernel = kernel if other is None else other
    return bounded(lax.conv_general_dilated(x, kernel, (stride,), padding, feature_group_count=groups))


def _windowed(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim, np.float32)
    if x is None:
        return None
    window = tuple(generator.choice((1, 1, 2, 3)) for _ in x.shape)
    strides = tuple(generator.choice((1, 1, 2)) for _ in x.shape)
    return bounded(lax.reduce_window(x, np.float32(0), lax.add, window, strides, "SAME"))


def _summed(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim)
    return None if x is None else bounded(lax.cumsum(x, generator.randrange(x.ndim), generator.random() < 0.3))


def _factored(generator: random.Random, pool: list[Array]) -> Array | None:
    """A stack of systems of equations."""
    x = _pick(generator, pool, lambda x: x.ndim in (2, 3) and x.shape[-1] <= 8 and x.shape[-2] <= 16, np.float32)
    if x is None:
        return None
    square = jnp.swapaxes(x, -1, -2) @ x + 4 * jnp.eye(x.shape[-1], dtype=x.dtype)
    lower = jnp.linalg.cholesky(square)
    right = jnp.swapaxes(x, -1, -2)
    return bounded(lax.linalg.triangular_solve(lower, right, left_side=True, lower=True))


def _transformed(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim, np.float32)
    return None if x is None else bounded(jnp.real(jnp.fft.fft(x, axis=-1)) / 8)


def _integer(generator: random.Random, pool: list[Array]) -> Array | None:
    x = _pick(generator, pool, lambda x: x.ndim, np.int32)
    if x is None:
        return lax.broadcasted_iota(np.int32, (generator.choice(SIZES), generator.choice(SIZES)), 0) * 7 % 11
    axis = generator.randrange(x.ndim)
    fn = generator.choice(
        (
            lambda: lax.sort(x, dimension=axis),
            lambda: lax.argmax(x, axis, np.int32),
            lambda: jnp.argsort(x, axis=axis).astype(np.int32),
            lambda: jnp.max(x, axis=axis),
            lambda: jnp.bitwise_xor.reduce(x, axis=axis),
            lambda: lax.cummax(x, axis),
            lambda: jnp.abs(x) // 3,
            lambda: lax.population_count(x),
            lambda: lax.top_k(x, min(3, x.shape[-1]))[1],
            lambda: jnp.prod(x, axis=axis, dtype=np.int32),
        )
    )
    return fn()


def _selected(generator: random.Random, pool: list[Array]) -> Array | None:
    i = _pick(generator, pool, lambda i: True, np.int32)
    if i is None:
        return None
    x = _pick(generator, pool, lambda x: x.shape == i.shape)
    return None if x is None else jnp.where(i % 3 == 1, x, -x)


def _written(generator: random.Random, pool: list[Array]) -> Array | None:
    """Updates that take the place of what was there, each index once, or keep the largest."""
    x = _pick(generator, pool, lambda x: x.ndim)
    if x is None:
        return None
    if generator.random() < 0.5:
        return x.at[_indices(generator, pool, x.shape[0])].max(jnp.ones((), x.dtype))
    places = jnp.argsort(jnp.arange(x.shape[0]) * 5 % 7).astype(np.int32)[: generator.randint(1, x.shape[0])]
    return x.at[places].set(x[: places.shape[0]])


def _drawn(generator: random.Random, pool: list[Array]) -> Array | None:
    i = _pick(generator, pool, lambda i: i.ndim == 0, np.int32)
    key = jax.random.fold_in(jax.random.key(generator.randrange(100)), 3 if i is None else i)
    shape = draw_shape(generator)
    return generator.choice(
        (lambda: jax.random.uniform(key, shape), lambda: jax.random.randint(key, shape, 0, 50, np.int32))
    )()


def _closed_over(generator: random.Random, pool: list[Array]) -> Array:
    """An array that the program has beside its arguments."""
    shape, values = draw_shape(generator), np.random.default_rng(generator.randrange(1000))
    return jnp.asarray(values.uniform(-1, 1, shape).astype(np.float32))


SMOOTH: dict[str, Maker] = {
    "unary": _unary, "binary": _binary, "contraction": _contraction, "reduction": _reduction, "norm": _norm,
    "transposed": _transposed, "reshaped": _reshaped, "broadcasted": _broadcasted, "sliced": _sliced,
    "padded": _padded, "joined": _joined, "reversed": _reversed, "taken": _taken, "scattered": _scattered,
    "looked": _looked, "convolved": _convolved, "windowed": _windowed, "summed": _summed, "factored": _factored,
    "transformed": _transformed, "closed over": _closed_over,
}  # fmt: skip
"""What has derivatives that rounding does not make jump."""
STEPPED: dict[str, Maker] = {"integer": _integer, "selected": _selected, "written": _written, "drawn": _drawn}
