"""Programs with what no table of primitives has: callbacks, effects, kernels, nested control flow, odd types."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cases import Case, bools, floats, ints
from jax import lax
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.sharding import AxisType, PartitionSpec

Array = jax.Array
P = PartitionSpec
X, W = floats(16, 32), floats(32, 32) / 32
HALF, ONE, TWO = np.float32(0.5), np.float32(1), np.float32(2)


def pure_callback(x: Array) -> Array:
    return jax.pure_callback(np.cumsum, jax.ShapeDtypeStruct((512,), np.float32), x * TWO) + ONE


def pure_callback_vmapped(x: Array) -> Array:
    def row(x: Array) -> Array:
        return jax.pure_callback(np.sort, jax.ShapeDtypeStruct((32,), np.float32), x, vmap_method="sequential")

    return jax.vmap(row)(x * TWO) @ W


def io_callbacks(x: Array) -> Array:
    made = io_callback(lambda x: np.asarray(x) * 2, jax.ShapeDtypeStruct((16, 32), np.float32), x, ordered=True)
    io_callback(lambda x: None, None, made + x, ordered=True)
    return made @ W


def debug_callback(x: Array) -> Array:
    def body(x: Array, w: Array) -> tuple[Array, None]:
        jax.debug.callback(lambda total: None, x.sum())
        return jnp.tanh(x @ w), None

    return lax.scan(body, x, jnp.stack([W, W]))[0]


def pallas_kernel(x: Array) -> Array:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    return pl.pallas_call(kernel, jax.ShapeDtypeStruct((16, 32), np.float32), interpret=True)(x + ONE) @ W


def shard_map_inside(x: Array, w: Array) -> Array:
    """On a mesh of its own, which may be another than the plan's."""
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

    def local(x: Array, w: Array) -> Array:
        return lax.psum(x @ w, "y")

    mapped = jax.shard_map(local, mesh=mesh, in_specs=(P("x", "y"), P("y")), out_specs=P("x"))
    return jnp.sin(mapped(jnp.cos(x), w)) @ w


def shard_map_in_scan(x: Array, w: Array) -> Array:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    rolled = jax.shard_map(
        lambda x: lax.ppermute(x, "y", [(i, (i + 1) % 4) for i in range(4)]),
        mesh=mesh, in_specs=P("y"), out_specs=P("y"),
    )  # fmt: skip
    return lax.scan(lambda x, _: (jnp.tanh(rolled(x) @ w), None), x, None, length=3)[0]


def nested_control(x: Array, w: Array, n: Array) -> Array:
    """A scan around a while around a cond around a scan."""

    def inner(x: Array) -> Array:
        return lax.scan(lambda x, row: (x + row * HALF, x.sum()), x, x)[0]

    def turn(state: tuple[Array, Array]) -> tuple[Array, Array]:
        step, x = state
        even, odd = (lambda x: jnp.tanh(x @ w)), (lambda x: jax.vmap(inner)(x[:, None])[:, 0])
        return step + 1, lax.cond(step % 2 == 0, even, odd, x)

    def body(x: Array, limit: Array) -> tuple[Array, Array]:
        _, x = lax.while_loop(lambda state: state[0] < limit, turn, (jnp.int32(0), x))
        return x, x.mean(axis=0)

    return lax.scan(body, x, n)


def switch(x: Array, i: Array) -> Array:
    return lax.switch(i, [jnp.sin, lambda x: x[::-1], lambda x: x @ W, lambda x: x * TWO], x)


def while_of_two_carries(x: Array) -> tuple[Array, Array]:
    def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = state
        return b.T @ a / np.float32(256), a.T @ b / np.float32(256)

    return lax.while_loop(lambda state: jnp.abs(state[0]).max() > ONE, body, (x.T @ x, x.T @ jnp.sin(x)))


def remat_policy_loss(w: Array, x: Array) -> Array:
    from jax.ad_checkpoint import checkpoint_name

    policy = jax.checkpoint_policies.save_only_these_names("kept")

    @jax.checkpoint
    def outer(x: Array) -> Array:
        return jnp.sin(x)

    def layer(x: Array, w: Array) -> Array:
        return checkpoint_name(jnp.tanh(x @ w), "kept") @ w

    return outer(jax.checkpoint(layer, policy=policy)(x, w)).sum()


def offloadable_loss(w: Array, x: Array) -> Array:
    return jax.checkpoint(lambda w: jnp.tanh(x @ w) @ w, policy=jax.checkpoint_policies.dots_saveable)(w).sum()


@jax.custom_jvp
def clipped(x: Array) -> Array:
    return jnp.clip(x, HALF, ONE)


clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0] * TWO))


def custom_solve(a: Array, b: Array) -> Array:
    a = a @ a.T + 4 * jnp.eye(16, dtype=np.float32)

    def solve(matvec: Any, b: Array) -> Array:
        return lax.fori_loop(0, 20, lambda _, x: x + (b - matvec(x)) / np.float32(16), jnp.zeros_like(b))

    return lax.custom_linear_solve(lambda x: a @ x, b, solve, symmetric=True)


def keys(keys: Array, x: Array) -> tuple[Array, Array]:
    """Arrays of keys as argument, carry and result."""

    def body(key: Array, row: Array) -> tuple[Array, Array]:
        key, used = jax.random.split(key)
        return key, row + jax.random.normal(used, row.shape)

    last, noisy = lax.scan(body, keys[0], x)
    return jax.vmap(jax.random.uniform, (0,))(keys), noisy, last, jax.random.permutation(keys[1], x)


def distributions(key: Array) -> Any:
    ks = jax.random.split(key, 6)
    return (
        jax.random.gamma(ks[0], HALF, (16,), np.float32),
        jax.random.poisson(ks[1], TWO, (16,)),
        jax.random.categorical(ks[2], X, axis=1),
        jax.random.choice(ks[3], 64, (16,), replace=False),
        jax.random.truncated_normal(ks[4], -ONE, ONE, (16, 8), np.float32),
        jax.random.bernoulli(ks[5], HALF, (16, 8)),
    )


def empty_and_scalar(x: Array, e: Array, s: Array) -> tuple[Array, ...]:
    return x[:0] @ W, e.sum(axis=0), jnp.concatenate([e, x]), s * s, jnp.zeros((0, 8)), x.sum() * s


def weak_types(x: Array, s: Array) -> tuple[Array, ...]:
    return lax.fori_loop(0, 3, lambda i, c: c * 2.0 + 1.0, 1.0) * x, jnp.where(s > 2, x, 0.0)


def narrow_types(x: Array) -> tuple[Array, ...]:
    small = x.astype(jnp.float8_e4m3fn)
    four = (x * np.float32(10)).astype(jnp.int4)
    eight = four.astype(np.int8)
    product = lax.dot_general(eight, eight, (((1,), (1,)), ((), ())), preferred_element_type=np.int32)
    return small.astype(np.float32), eight + np.int8(1), product, x.astype(jnp.bfloat16).T, four.T


def quantised(x: Array, w: Array) -> Array:
    scale = jnp.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    q, v = jnp.round(x / scale).astype(np.int8), jnp.round(w * np.float32(1000)).astype(np.int8)
    return lax.dot_general(q, v, (((1,), (0,)), ((), ())), preferred_element_type=np.int32).astype(np.float32) * scale


def complex_numbers(x: Array, w: Array) -> Array:
    z = lax.complex(x, x[::-1])
    return jnp.abs(jnp.einsum("ij,jk->ik", z, lax.complex(w, w.T)).conj()) + jnp.angle(z)


def ragged(x: Array, w: Array, sizes: Array) -> Array:
    return lax.ragged_dot(jnp.sin(x), w, sizes)


def mixture(x: Array, w: Array) -> Array:
    """Tokens are sorted by expert, multiplied and put back."""
    expert = jnp.argmax(x[:, :4], axis=1)
    order = jnp.argsort(expert)
    sizes = jnp.bincount(expert, length=4).astype(np.int32)
    return jnp.zeros_like(x).at[order].set(lax.ragged_dot(x[order], w, sizes))


def named_scopes(x: Array, w: Array) -> Array:
    with jax.named_scope("outer"), jax.named_scope("inner"):
        return jax.named_call(lambda x: jnp.tanh(x @ w), name="called")(x)


def constrained(x: Array, w: Array) -> Array:
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    return lax.with_sharding_constraint(x @ w, jax.NamedSharding(mesh, P("x"))) @ w


def associative(x: Array, a: Array) -> tuple[Array, Array]:
    return lax.associative_scan(lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]), (a, x))


def sequential_map(x: Array, w: Array) -> Array:
    return lax.map(lambda row: jnp.sort(row) @ w, x, batch_size=4)


def linear_algebra(x: Array) -> Any:
    square = jnp.einsum("bij,bkj->bik", x, x) + jnp.eye(4, dtype=np.float32) * 4
    sign, logdet = jnp.linalg.slogdet(square)
    return (
        jnp.linalg.inv(square), logdet * sign, jnp.linalg.svd(square, compute_uv=False), jnp.linalg.eigvalsh(square),
        jnp.linalg.solve(square, x), jnp.linalg.qr(square, mode="r"), jax.scipy.linalg.expm(square / np.float32(8)),
        jnp.linalg.matrix_power(square / np.float32(8), 3), jnp.linalg.lstsq(square[0], x[0])[0],
        jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(square), True), x),
    )  # fmt: skip


def numerics(x: Array) -> Any:
    return (
        jnp.histogram(x, bins=8, range=(0.0, 1.0))[0], jnp.interp(x, x[0].sort(), x[1]), jnp.percentile(x, 30.0, 0),
        jnp.searchsorted(jnp.sort(x[0]), x[1]), jnp.unique(jnp.round(x * 8), size=8)[0], jnp.convolve(x[0], x[1]),
        jax.image.resize(x, (8, 64), "bilinear"), jnp.trapezoid(x, axis=1), jnp.median(x, axis=1),
        jax.scipy.special.logsumexp(x, axis=0), jax.scipy.signal.convolve2d(x, x[:3, :3], mode="same"),
        jnp.nonzero(x > HALF, size=40, fill_value=0), jax.nn.one_hot(jnp.argmax(x, 1), 32), jnp.gradient(x, axis=1),
        jax.ops.segment_max(x, jnp.arange(16) % 4, 4), jnp.roll(x, (1, -2), (0, 1)), jnp.kron(x[:4], x[:2]),
    )  # fmt: skip


def spectra(x: Array) -> Any:
    return jnp.fft.irfft2(jnp.fft.rfft2(x) * HALF), jnp.abs(jnp.fft.fftshift(jnp.fft.fft(x, axis=0), axes=0))


def transform_split_again(x: Array) -> Array:
    """Gathered along the transformed dimension, and split along it after."""
    return jnp.cos(jnp.fft.fft(jnp.sin(x.T).T, axis=1).real) * x


def stencil(x: Array) -> Array:
    def step(x: Array, _: None) -> tuple[Array, None]:
        inner = x[1:-1, 1:-1] + (x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2] - 4 * x[1:-1, 1:-1]) / 8
        return x.at[1:-1, 1:-1].set(inner), None

    return lax.scan(step, x, None, length=3)[0]


def forward_over_reverse(w: Array, x: Array) -> Array:
    def loss(w: Array) -> Array:
        return jnp.tanh(x @ w).sum()

    return jax.jvp(jax.grad(loss), (w,), (w,))[1]


def hessian(x: Array) -> Array:
    return jax.hessian(lambda x: jnp.prod(jnp.sin(x)))(x[0, :8])


def nothing(x: Array) -> dict[str, Any]:
    return {"same": x, "none": None, "constant": jnp.arange(8), "twice": (x, x)}


@functools.cache
def odd_cases() -> list[Case]:
    """Called, not imported: keys are arrays, and what imports this has yet to say how many devices there are."""
    prng_keys = jax.random.split(jax.random.key(0), 8)
    return [
        Case("pure_callback", pure_callback, (floats(512),)),
        Case("pure_callback vmapped", pure_callback_vmapped, (X,)),
        Case("io_callback", io_callbacks, (X,)),
        Case("debug_callback", debug_callback, (X,)),
        Case("pallas kernel", pallas_kernel, (X,)),
        Case("shard_map", shard_map_inside, (X, W)),
        Case("shard_map in scan", shard_map_in_scan, (X, W)),
        Case("nested control", nested_control, (X, W, ints(4))),
        Case("switch", switch, (floats(32, 32), np.int32(2))),
        Case("while of two carries", while_of_two_carries, (X,)),
        Case("remat policy", jax.grad(remat_policy_loss), (W, X)),
        Case("remat dots", jax.grad(offloadable_loss), (W, X)),
        Case("custom_jvp", lambda x: jax.grad(lambda x: clipped(x).sum())(x) + clipped(x), (X,)),
        Case("custom_linear_solve", jax.grad(lambda b, a: custom_solve(a, b).sum(), argnums=1), (floats(16, 8), X)),
        Case("keys", keys, (prng_keys, X)),
        Case("distributions", distributions, (prng_keys[0],)),
        Case("empty and scalar", empty_and_scalar, (X, floats(0, 32), HALF)),
        Case("weak types", weak_types, (X, 3.0)),
        Case("narrow types", narrow_types, (X,)),
        Case("quantised", quantised, (X, W)),
        Case("complex", complex_numbers, (X, W)),
        Case("ragged", ragged, (X, floats(4, 32, 8), np.array([4, 0, 7, 5], np.int32))),
        Case("mixture", mixture, (X, floats(4, 32, 32))),
        Case("named scopes", named_scopes, (X, W)),
        Case("constrained", constrained, (X, W)),
        Case("associative scan", associative, (X, X)),
        Case("map in batches", sequential_map, (X, W)),
        Case("linear algebra", linear_algebra, (floats(8, 4, 4),)),
        Case("numerics", numerics, (X,)),
        Case("spectra", spectra, (X,)),
        Case("transform split again", transform_split_again, (X,)),
        Case("stencil", stencil, (X,)),
        Case("forward over reverse", forward_over_reverse, (W, X)),
        Case("hessian", hessian, (X,)),
        Case("nothing", nothing, (X,)),
        Case("booleans", lambda b: (b.all(0), b.any(1), b & b[::-1], jnp.where(b, 1, 2)), (bools(16, 8),)),
    ]
