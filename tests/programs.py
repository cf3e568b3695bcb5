"""Small programs in which ops meet: loops, branches, remat, custom derivatives, odd arguments and results.

What stands alone in `cases.py` stands here together. Sizes worth sharding are divided by eight devices.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import KEY, Case, floats, ints
from jax import lax

Array = jax.Array
X, W, B = floats(16, 32), floats(32, 32) / 32, floats(32)
STACK = floats(4, 32, 32) / 32
OFFSETS = np.linspace(0, 1, 32, dtype=np.float32)
HALF, ONE = np.float32(0.5), np.float32(1)


def mlp_loss(w: Array, x: Array, b: Array) -> Array:
    return jnp.sum(jax.nn.relu(x @ w + b) @ w)


def attention(x: Array, w: Array) -> Array:
    """Four heads of eight; its softmax is two reductions."""
    heads = (x @ w).reshape(2, 8, 4, 8)
    scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", heads, heads), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", scores, heads).reshape(16, 32)


def layer_norm(x: Array, b: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, axis=1, keepdims=True) + np.float32(1e-3)) * b


def one_value_many_ways(x: Array, w: Array) -> tuple[Array, ...]:
    """Several contractions read one array along different dimensions."""
    y = jnp.tanh(x @ w)
    return y @ w, y.T @ x, y @ y.T, y.sum(axis=0), y


def scan_layers(x: Array, stack: Array) -> tuple[Array, Array]:
    """Carry, stacked inputs and stacked results."""

    def layer(x: Array, w: Array) -> tuple[Array, Array]:
        x = jnp.tanh(x @ w)
        return x, x.sum(axis=0)

    return lax.scan(layer, x, stack)


def scan_reversed(x: Array, stack: Array) -> tuple[Array, Array]:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), x[:8]), x, stack, reverse=True)


def scan_unrolled(x: Array, stack: Array) -> Array:
    return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, stack, unroll=2)[0]


def scan_remat_loss(stack: Array, x: Array) -> Array:
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))
    return jnp.sum(lax.scan(lambda x, w: (layer(x, w), None), x, stack)[0])


def scan_without_inputs(x: Array) -> tuple[Array, Array]:
    return lax.scan(lambda x, _: (x * HALF, x[0]), x, None, length=3)


def scan_closed_over(x: Array, w: Array) -> tuple[Array, Array]:
    """An array made outside, and a constant, are read inside."""
    outer = w + w.T
    return lax.scan(lambda x, row: (x @ outer * HALF + OFFSETS, row @ outer), x, x)


def scan_swapping(x: Array, y: Array) -> tuple[Array, Array]:
    """Two carries trade places each round: one layout must serve both."""
    return lax.scan(lambda pair, _: ((pair[1], pair[0] + ONE), None), (x, y), None, length=3)[0]


def scan_transposing(x: Array) -> Array:
    return lax.scan(lambda w, _: (jnp.tanh(w.T @ w), None), x, None, length=2)[0]


def scan_of_nothing(x: Array, stack: Array) -> tuple[Array, Array]:
    return lax.scan(lambda x, w: (x @ w, x.sum()), x, stack[:0])


def scan_untouched_carry(x: Array, stack: Array) -> tuple[tuple[Array, Array], Array]:
    return lax.scan(lambda pair, w: ((pair[0] @ w, pair[1]), pair[1][0]), (x, x + ONE), stack)


def loop_counted(x: Array, w: Array) -> Array:
    return lax.fori_loop(0, 3, lambda i, x: jnp.tanh(x @ w) + i.astype(jnp.float32), x)


def loop_on_data(x: Array, w: Array) -> tuple[Array, Array]:
    """A reduction over the whole array decides whether to go on; a closed-over array is read in the test."""
    floor = x.min() * np.float32(1e-2) + w.min()

    def unfinished(state: tuple[Array, Array]) -> Array:
        return (jnp.max(state[0]) > floor) & (state[1] < 5)

    def halve(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return state[0] @ w * HALF, state[1] + 1

    return lax.while_loop(unfinished, halve, (x, jnp.int32(0)))


def loop_vmapped(x: Array) -> Array:
    """Each row goes round until it has enough; the test has a result per row."""
    return jax.vmap(lambda row: lax.while_loop(lambda row: row.sum() < 40, lambda row: row * 2, row))(x)


def branch_of_two(flag: Array, x: Array, w: Array) -> Array:
    return lax.cond(flag, lambda x: x @ w, lambda x: x[::-1] + OFFSETS, x)


def branch_of_three(which: Array, x: Array) -> tuple[Array, Array]:
    """Branches that return an operand, a constant, and something computed."""
    return lax.switch(
        which,
        [
            lambda x: (x, jnp.zeros(32)),
            lambda x: (jnp.ones_like(x), x.sum(axis=0)),
            lambda x: (x * x, OFFSETS + x[3]),
        ],
        x,
    )


def nested(x: Array, stack: Array) -> Array:
    """A scan whose body is a branch whose arms are loops."""

    def body(x: Array, w: Array) -> tuple[Array, Array]:
        def slow(x: Array) -> Array:
            return lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x @ w), x)

        def fast(x: Array) -> Array:
            return lax.scan(lambda x, _: (x * HALF, None), x, None, length=2)[0]

        return lax.cond(x[0, 0] > HALF, slow, fast, x), x.max()

    return lax.scan(body, x, stack)[1]


def keys_in_loop(key: Array, x: Array) -> tuple[Array, Array, Array]:
    def noisy(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        key, x = carry
        key, here = jax.random.split(key)
        return (key, x + jax.random.uniform(here, x.shape)), jax.random.bits(here)

    (key, x), bits = lax.scan(noisy, (jax.random.wrap_key_data(key), x), None, length=3)
    return jax.random.key_data(key), x, bits


@jax.custom_vjp
def _clipped(x: Array) -> Array:
    return x * x


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, ct: (jnp.clip(ct * x, np.float32(-0.5), np.float32(0.5)),))


@jax.custom_jvp
def _stretched(x: Array) -> Array:
    return jnp.sin(x)


_stretched.defjvp(lambda primals, tangents: (_stretched(*primals), tangents[0] * np.float32(3)))


def custom_gradients(x: Array, w: Array) -> Array:
    return jnp.sum(_clipped(x @ w) + _stretched(x @ w))


def custom_calls_kept(x: Array, w: Array) -> tuple[Array, Array]:
    return _clipped(x @ w) @ w.T, _stretched(x @ w)


def inner_jits(x: Array, w: Array) -> Array:
    @jax.jit
    def double(x: Array) -> Array:
        return jax.jit(lambda x: x @ w)(x) * np.float32(2)

    return double(x) + double(x + ONE)


def odd_results(x: Array, w: Array, n: Array) -> dict[str, Any]:
    """An argument unchanged, constants, the same value twice, None, integers and booleans."""
    y = x @ w
    return {
        "argument": x,
        "count": n + 1,
        "constant": jnp.arange(32),
        "literal": 3.0,
        "none": None,
        "pair": (y, y),
        "positive": y > HALF,
        "rank": jnp.argsort(y, axis=1),
    }


def empty_arrays(x: Array, w: Array) -> tuple[Array, Array, Array]:
    return x[:0] @ w, (x[:, :0] @ w[:0]) + ONE, jnp.concatenate([x[:0], x])


def weak_scalars(x: Array, scale: Array) -> tuple[Array, Array]:
    return x * scale, scale * 2 + 1


def update_rows(x: Array, rows: Array, table: Array) -> tuple[Array, Array]:
    """An embedding and its gradient: a gather, and a scatter into zeros."""
    found, back = jax.vjp(lambda table: table[rows] @ x.T, table)
    return found, back(found)[0]


def sorted_and_summed(x: Array) -> tuple[Array, Array]:
    order = jnp.argsort(x[:, 0])
    return jnp.cumsum(x[order], axis=0), jnp.take_along_axis(x, order[:, None], axis=1)


def fft_round_trip(x: Array) -> Array:
    return jnp.fft.irfft2(jnp.fft.rfft2(x) * OFFSETS[:17].astype(np.complex64)).T @ x


def conjugate_gradient(b: Array, w: Array) -> Array:
    """A linear solve whose own loops are hidden in a primitive's parameters."""
    matrix = w @ w.T + np.eye(32, dtype=np.float32)
    return jax.scipy.sparse.linalg.cg(lambda x: matrix @ x, b, maxiter=4)[0]


def rows_updated(x: Array) -> Array:
    return lax.fori_loop(0, 16, lambda i, x: x.at[i].set(x[i] * 2 - x[(i + 1) % 16]), x)


def shifted(x: Array) -> Array:
    """Rolls, strided updates, padding and joining."""
    x = jnp.roll(x, 3, axis=1) - jnp.roll(x, -1, axis=0)
    x = x.at[::2].set(HALF).at[:, 1:5].multiply(np.float32(2))
    return jnp.block([[x, x], [jnp.pad(x, ((0, 0), (2, 2)), mode="reflect")[:, :32], x]])


def vmapped(x: Array, stack: Array) -> Array:
    return jax.vmap(lambda w: jnp.tanh(x @ w))(stack)


PROGRAMS: tuple[Case, ...] = (
    Case("mlp loss", mlp_loss, (W, X, B)),
    Case("mlp gradient", jax.grad(mlp_loss, argnums=(0, 2)), (W, X, B)),
    Case("attention", attention, (X, W)),
    Case("attention gradient", jax.grad(lambda *args: attention(*args).sum(), argnums=(0, 1)), (X, W)),
    Case("layer norm", layer_norm, (X, B)),
    Case("layer norm gradient", jax.grad(lambda *args: (layer_norm(*args) ** 2).sum()), (X, B)),
    Case("one value many ways", one_value_many_ways, (X, W)),
    Case("scan layers", scan_layers, (X, STACK)),
    Case("scan reversed", scan_reversed, (X, STACK)),
    Case("scan unrolled", scan_unrolled, (X, STACK)),
    Case("scan remat gradient", jax.grad(scan_remat_loss, argnums=(0, 1)), (STACK, X)),
    Case("scan without inputs", scan_without_inputs, (X,)),
    Case("scan closed over", scan_closed_over, (X, W)),
    Case("scan swapping", scan_swapping, (X, X[::-1].copy())),
    Case("scan transposing", scan_transposing, (W,)),
    Case("scan of nothing", scan_of_nothing, (X, STACK)),
    Case("scan untouched carry", scan_untouched_carry, (X, STACK)),
    Case("loop counted", loop_counted, (X, W)),
    Case("loop counted gradient", jax.grad(lambda *args: loop_counted(*args).sum(), argnums=(0, 1)), (X, W)),
    Case("loop on data", loop_on_data, (X, W)),
    Case("loop vmapped", loop_vmapped, (X,)),
    Case("branch of two", branch_of_two, (np.bool_(False), X, W)),
    Case(
        "branch of two gradient",
        jax.grad(lambda *args: branch_of_two(*args).sum(), argnums=(1, 2)),
        (np.bool_(True), X, W),
    ),
    Case("branch of three", branch_of_three, (np.int32(2), X)),
    Case("nested", nested, (X, STACK)),
    Case("keys in loop", keys_in_loop, (KEY, X)),
    Case("custom gradients", jax.grad(custom_gradients, argnums=(0, 1)), (X, W)),
    Case("custom calls kept", custom_calls_kept, (X, W)),
    Case("inner jits", inner_jits, (X, W)),
    Case("odd results", odd_results, (X, W, np.int32(3))),
    Case("empty arrays", empty_arrays, (X, W)),
    Case("weak scalars", weak_scalars, (X, np.float32(2))),
    Case("update rows", update_rows, (X, ints(8, below=16), floats(16, 32))),
    Case("sorted and summed", sorted_and_summed, (ints(16, 32, below=16),)),
    Case("fft round trip", fft_round_trip, (X,)),
    Case("conjugate gradient", conjugate_gradient, (B, W)),
    Case(
        "conjugate gradient gradient",
        jax.grad(lambda *args: conjugate_gradient(*args).sum(), argnums=(0, 1)),
        (B, W),
    ),
    Case("rows updated", rows_updated, (X,)),
    Case("shifted", shifted, (X,)),
    Case("vmapped", vmapped, (X, STACK)),
)
