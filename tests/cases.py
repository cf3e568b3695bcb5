"""One table of small cases that together contain every primitive with a rule; many tests feed on it.

Dimensions that are worth sharding have sizes that eight devices divide.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import random as jex_random
from jax.extend.core import primitives as p
from jax.lax import linalg
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from planner import sharding_rule


@dataclass(frozen=True)
class Case:
    """A function of few equations, and NumPy arrays to call it with."""

    name: str
    fn: Callable[..., Any]
    args: tuple[np.ndarray, ...]


def floats(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """Numbers in (0.1, 0.9), the same in every run."""
    return np.random.default_rng(0).uniform(0.1, 0.9, shape).astype(dtype)


def ints(*shape: int, below: int = 8) -> np.ndarray:
    return np.random.default_rng(1).integers(0, below, shape, dtype=np.int32)


def bools(*shape: int) -> np.ndarray:
    return floats(*shape) > 0.5


def matrices(*batch: int, size: int = 8) -> np.ndarray:
    """Symmetric and positive definite."""
    return floats(*batch, 1, size) * floats(*batch, size, 1) + size * np.eye(size, dtype=np.float32)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


X = floats(16, 32)
KEY = np.array([3, 7], np.uint32)

UNARY = words(
    "abs acos asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil cos cosh digamma erf erf_inv erfc exp "
    "exp2 expm1 floor is_finite lgamma log log1p logistic neg round rsqrt sign sin sinh sqrt square "
    "stop_gradient tan tanh"
)
BINARY = words("add atan2 complex div eq ge gt igamma igammac le lt max min mul ne nextafter pow rem sub zeta")
BITWISE = words("and or xor")
SHIFTS = words("shift_left shift_right_arithmetic shift_right_logical")


def _elementwise() -> list[Case]:
    return [
        *(Case(name, getattr(lax, name), (X,)) for name in UNARY),
        *(Case(name, getattr(lax, name), (X, X[::-1].copy())) for name in BINARY),
        *(Case(name, getattr(lax, f"bitwise_{name}"), (ints(16, 32), ints(16, 32))) for name in BITWISE),
        *(Case(name, getattr(lax, name), (ints(16, 32), ints(16, 32))) for name in SHIFTS),
        Case("acosh", lax.acosh, (X + 1,)),
        Case("add_any", p.add_jaxvals_p.bind, (X, X)),
        Case("not", lax.bitwise_not, (ints(16, 32),)),
        Case("bitcast same width", lambda x: lax.bitcast_convert_type(x, jnp.int32), (X,)),
        Case("bitcast to narrow", lambda x: lax.bitcast_convert_type(x, jnp.int16), (X,)),
        Case(
            "bitcast to wide",
            lambda x: lax.bitcast_convert_type(x, jnp.int32),
            (ints(16, 2).astype(np.int16),),
        ),
        Case("checkpoint_name", lambda x: checkpoint_name(x, "x"), (X,)),
        Case("clamp by scalars", lambda x: lax.clamp(np.float32(0.2), x, np.float32(0.4)), (X,)),
        Case("clamp by arrays", lax.clamp, (X - 1, X, X + 1)),
        Case("clz", lax.clz, (ints(16, 32),)),
        Case("conj", lax.conj, (floats(16, 32, dtype=np.complex64),)),
        Case("convert_element_type", lambda x: x.astype(jnp.bfloat16), (X,)),
        Case("copy", lambda x: jnp.array(x, copy=True), (X,)),
        Case("device_put", lambda x, y: jax.device_put((x, y)), (X, floats(8))),
        Case("eq_to", p.eq_to_p.bind, (X, X)),
        Case("igamma_grad_a", lax.igamma_grad_a, (X, X)),
        Case("imag", lax.imag, (floats(16, 32, dtype=np.complex64),)),
        Case("integer_pow", lambda x: lax.integer_pow(x, 3), (X,)),
        Case("iota", lambda: lax.broadcasted_iota(np.int32, (16, 8), 1), ()),
        Case("le_to", p.le_to_p.bind, (X, X)),
        Case("lt_to", p.lt_to_p.bind, (X, X)),
        Case("mul by size one", p.mul_p.bind, (X, floats(16, 1))),
        Case("mul by scalar", p.mul_p.bind, (X, np.float32(2))),
        Case("optimization_barrier", lambda x, y: lax.optimization_barrier((x, y)), (X, floats(8))),
        Case("polygamma", lax.polygamma, (np.ones_like(X), X)),
        Case("population_count", lax.population_count, (ints(16, 32),)),
        Case("real", lax.real, (floats(16, 32, dtype=np.complex64),)),
        Case("reduce_precision", lambda x: lax.reduce_precision(x, 8, 7), (X,)),
        Case("regularized_incomplete_beta", lax.betainc, (X, X, X)),
        Case("select_n by array", lax.select_n, (bools(16, 32), X, X + 1)),
        Case("select_n by scalar", lax.select_n, (np.bool_(True), X, X + 1)),
        Case("sharding_constraint", _constrained, (X,)),
    ]


def _constrained(x: jax.Array) -> jax.Array:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    return lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("x")))


def _random() -> list[Case]:
    wrap = jax.random.wrap_key_data
    return [
        Case("random_bits", lambda key: jax.random.bits(wrap(key), (16, 32)), (KEY,)),
        Case(
            "random_fold_in",
            lambda key, x: jax.random.key_data(jax.random.fold_in(wrap(key), x)),
            (KEY, ints()),
        ),
        Case("random_gamma", lambda key, a: jax.random.gamma(wrap(key), a), (KEY, floats(8))),
        Case("random_seed", lambda x: jax.random.key_data(jax.random.key(x)), (ints(),)),
        Case("random_split", lambda key: jax.random.key_data(jax.random.split(wrap(key), 8)), (KEY,)),
        Case("rng_bit_generator", lambda key: lax.rng_bit_generator(key, (16, 8)), (KEY.repeat(2),)),
        Case("rng_uniform", lambda a, b: lax.rng_uniform(a, b, (16, 8)), (np.float32(0), np.float32(1))),
        Case(
            "threefry2x32",
            jex_random.threefry2x32_p.bind,
            (*KEY.repeat(8).reshape(2, 8), *KEY.repeat(8).reshape(2, 8)),
        ),
    ]


def _shape() -> list[Case]:
    return [
        Case("broadcast_in_dim", lambda x: lax.broadcast_in_dim(x, (8, 16, 32), (1, 2)), (X,)),
        Case("broadcast_in_dim from one", lambda x: lax.broadcast_in_dim(x, (16, 8), (0, 1)), (floats(16, 1),)),
        Case("broadcast_in_dim scalar", lambda x: lax.broadcast_in_dim(x, (16, 8), ()), (np.float32(1),)),
        Case("concatenate", lambda x, y: lax.concatenate([x, y], 1), (X, floats(16, 8))),
        Case("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, i), (4, 32)), (X, ints())),
        Case(
            "dynamic_update_slice",
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
            (X, floats(4, 32), ints()),
        ),
        Case(
            "dynamic_update_slice of one",
            lambda x, u, i: lax.dynamic_update_slice(x, u, (i, i)),
            (X, floats(1, 32), ints()),
        ),
        Case("pad", lambda x: lax.pad(x, np.float32(0), ((0, 0, 0), (1, 2, 1))), (X,)),
        Case("reshape split", lambda x: lax.reshape(x, (2, 8, 32)), (X,)),
        Case("reshape merge", lambda x: lax.reshape(x, (64, 8)), (floats(8, 8, 8),)),
        Case("reshape regroup", lambda x: lax.reshape(x, (8, 64)), (X,)),
        Case("reshape flatten", lambda x: lax.reshape(x, (512,)), (X,)),
        Case("reshape unmatched", lambda x: lax.reshape(x, (4, 6, 8)), (floats(6, 4, 8),)),
        Case("reshape ones", lambda x: lax.reshape(x, (1, 16, 1, 32)), (X,)),
        Case("rev", lambda x: lax.rev(x, (1,)), (X,)),
        Case("slice", lambda x: lax.slice(x, (0, 4), (16, 20)), (X,)),
        Case("split", lambda x: lax.split(x, (8, 24), 1), (X,)),
        Case("squeeze", lambda x: lax.squeeze(x, (1,)), (floats(16, 1, 8),)),
        Case("transpose", lambda x: lax.transpose(x, (2, 0, 1)), (floats(8, 16, 32),)),
        Case("stack", lambda x, y: jnp.stack([x, y], 1), (X, X)),
        Case("tile", lambda x: jnp.tile(x, (1, 2)), (X,)),
        Case("unstack", lambda x: jnp.unstack(x, axis=1), (floats(16, 2, 8),)),
    ]


def _reduction() -> list[Case]:
    window = functools.partial(
        lax.reduce_window, window_dimensions=(1, 2, 1), window_strides=(1, 2, 1), padding="VALID"
    )
    image = floats(8, 16, 8)
    pool = {"window_dimensions": (1, 2, 1), "window_strides": (1, 2, 1), "padding": ((0, 0), (0, 0), (0, 0))}
    return [
        Case("approx_max_k", lambda x: lax.approx_max_k(x, 4), (X,)),
        Case("argmax", lambda x: lax.argmax(x, 1, np.int32), (X,)),
        Case("argmin", lambda x: lax.argmin(x, 0, np.int32), (X,)),
        Case("cumlogsumexp", lambda x: lax.cumlogsumexp(x, axis=1), (X,)),
        Case("cummax", lambda x: lax.cummax(x, axis=0), (X,)),
        Case("cummin", lambda x: lax.cummin(x, axis=1), (X,)),
        Case("cumprod", lambda x: lax.cumprod(x, axis=1), (X,)),
        Case("cumsum", lambda x: lax.cumsum(x, axis=1, reverse=True), (X,)),
        Case("ruled_call", sharding_rule("m k, k n -> m n", reduce="k")(lambda x, y: x @ y), (X, floats(32, 16))),
        Case("fft", lambda x: lax.fft(x, "fft", (32,)), (floats(16, 32, dtype=np.complex64),)),
        Case("rfft", lambda x: lax.fft(x, "rfft", (32,)), (X,)),
        Case("reduce two arrays", _reduce_pair, (X, ints(16, 32))),
        Case("reduce_and", lambda x: lax.reduce_and(x, (1,)), (bools(16, 32),)),
        Case("reduce_and of bits", lambda x: lax.reduce_and(x, (1,)), (ints(16, 32),)),
        Case("reduce_max", lambda x: lax.reduce_max(x, (1,)), (X,)),
        Case("reduce_max complex", lambda x: lax.reduce_max(x, (1,)), (floats(16, 32, dtype=np.complex64),)),
        Case("reduce_min", lambda x: lax.reduce_min(x, (0,)), (X,)),
        Case("reduce_or", lambda x: lax.reduce_or(x, (0,)), (bools(16, 32),)),
        Case("reduce_prod", lambda x: lax.reduce_prod(x, (0,)), (X,)),
        Case("reduce_sum", lambda x: lax.reduce_sum(x, (0, 2)), (floats(8, 16, 32),)),
        Case("reduce_window", lambda x: window(x, np.float32(0), _hypotenuse), (image,)),
        Case("reduce_window_max", lambda x: window(x, -np.inf, lax.max), (image,)),
        Case("reduce_window_min", lambda x: window(x, np.inf, lax.min), (image,)),
        Case("reduce_window_sum", lambda x: window(x, np.float32(0), lax.add), (image,)),
        Case("reduce_xor", lambda x: lax.reduce_xor(x, (1,)), (ints(16, 32),)),
        Case(
            "select_and_gather_add",
            lambda tangents, x: p.select_and_gather_add_p.bind(
                tangents, x, select_prim=lax.ge_p, base_dilation=(1, 1, 1), window_dilation=(1, 1, 1), **pool
            ),
            (image, image),
        ),
        Case("select_and_scatter", _select_and_scatter, (image, floats(8, 8, 8))),
        Case(
            "select_and_scatter_add",
            lambda source, x: p.select_and_scatter_add_p.bind(source, x, select_prim=lax.ge_p, **pool),
            (floats(8, 8, 8), image),
        ),
        Case("sort", lambda x: lax.sort(x, dimension=1), (X,)),
        Case("sort with values", lambda x, y: lax.sort((x, y), dimension=0), (X, ints(16, 32))),
        Case("top_k", lambda x: lax.top_k(x, 4), (X,)),
    ]


def _hypotenuse(x: jax.Array, y: jax.Array) -> jax.Array:
    return lax.sqrt(x * x + y * y)


def _reduce_pair(x: jax.Array, y: jax.Array) -> list[jax.Array]:
    def larger(left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return lax.max(left[0], right[0]), lax.max(left[1], right[1])

    return lax.reduce((x, y), (np.float32(0), np.int32(0)), larger, (1,))


def _select_and_scatter(x: jax.Array, source: jax.Array) -> jax.Array:
    closed = [jax.make_jaxpr(fn)(np.float32(0), np.float32(0)) for fn in (lax.ge, lax.add)]
    return p.select_and_scatter_p.bind(
        x,
        source,
        np.float32(0),
        select_jaxpr=closed[0].jaxpr,
        select_consts=(),
        scatter_jaxpr=closed[1].jaxpr,
        scatter_consts=(),
        window_dimensions=(1, 2, 1),
        window_strides=(1, 2, 1),
        padding=((0, 0), (0, 0), (0, 0)),
    )


def _contraction() -> list[Case]:
    image, kernel = floats(8, 16, 16, 8), floats(3, 3, 8, 16)

    def convolve(strides: int = 1, groups: int = 1, padding: Any = "SAME") -> Callable[..., jax.Array]:
        return functools.partial(
            lax.conv_general_dilated,
            window_strides=(strides, strides),
            padding=padding,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    def gradients(fn: Callable[..., jax.Array]) -> Callable[..., Any]:
        return lambda *args: jax.vjp(fn, *args)[1](fn(*args))

    dot = lax.dot_general
    return [
        Case("dot_general", lambda x, y: dot(x, y, (((1,), (0,)), ((), ()))), (X, floats(32, 8))),
        Case(
            "dot_general batched",
            lambda x, y: dot(x, y, (((1,), (3,)), ((0, 3), (2, 0)))),
            (floats(8, 16, 4, 2), floats(2, 8, 8, 16)),
        ),
        Case(
            "dot_general twice",
            lambda x, y: dot(x, y, (((0, 2), (1, 0)), ((), ()))),
            (floats(8, 4, 16), floats(16, 8, 2)),
        ),
        Case("dot_general outer", lambda x, y: dot(x, y, (((), ()), ((), ()))), (floats(8), floats(16))),
        Case(
            "dot_general to f32",
            lambda x: dot(x, x, (((1,), (1,)), ((), ())), preferred_element_type=np.float32),
            (X.astype(jnp.bfloat16),),
        ),
        Case("ragged_dot", lax.ragged_dot, (floats(32, 8), floats(4, 8, 16), np.full(4, 8, np.int32))),
        Case("convolution", convolve(), (image, kernel)),
        Case("convolution to one feature", convolve(), (image, kernel[..., :1].copy())),
        Case("convolution 1x1", convolve(), (image, floats(1, 1, 8, 16))),
        Case("convolution valid", convolve(padding="VALID"), (image, kernel)),
        Case("convolution strided", convolve(strides=2), (image, kernel)),
        Case("convolution depthwise", convolve(groups=8), (image, floats(3, 3, 1, 16))),
        Case("convolution grouped", convolve(groups=4), (image, floats(3, 3, 2, 16))),
        Case("convolution gradients", gradients(convolve()), (image, kernel)),
        Case("convolution strided gradients", gradients(convolve(strides=2)), (image, kernel)),
        Case("convolution depthwise gradients", gradients(convolve(groups=8)), (image, floats(3, 3, 1, 8))),
        Case("convolution grouped gradients", gradients(convolve(groups=4)), (image, floats(3, 3, 2, 16))),
    ]


def _indexing() -> list[Case]:
    rows, table = ints(8, below=16), floats(16, 32)
    cell_numbers = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0, 1), start_index_map=(0, 1))
    scatter_numbers = lax.ScatterDimensionNumbers((1,), (0,), (0,))

    def scatter(name: str) -> Callable[..., jax.Array]:
        return lambda x, i, u: getattr(lax, name)(x, i, u, scatter_numbers)

    return [
        Case("gather rows", lambda x, i: x[i], (table, rows)),
        Case("gather rows by matrix", lambda x, i: x[i], (table, ints(8, 16, below=16))),
        Case("gather columns", lambda x, i: x[:, i], (table, rows)),
        Case("gather cells", lambda x, i: lax.gather(x, i, cell_numbers, (1, 1)), (table, ints(8, 2, below=16))),
        Case(
            "gather ranges",
            lambda x, i: jax.vmap(lambda j: lax.dynamic_slice(x, (j, 0), (4, 32)))(i),
            (table, rows),
        ),
        Case("take_along_axis", lambda x, i: jnp.take_along_axis(x, i, axis=1), (table, ints(16, 1, below=32))),
        Case(
            "take_along_axis gradient",
            jax.grad(lambda x, i: jnp.take_along_axis(x, i, axis=1).sum()),
            (table, ints(16, 1, below=32)),
        ),
        Case("gather rows gradient", jax.grad(lambda x, i: x[i].sum()), (table, rows)),
        *(
            Case(name, scatter(name), (table, rows[:, None], floats(8, 32)))
            for name in ("scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "scatter_sub")
            if hasattr(lax, name)
        ),
        Case("scatter range", lambda x, u: x.at[1:-1].set(u), (table, floats(14, 32))),
        Case(
            "scatter_add cells",
            lambda x, i, u: x.at[i[:, 0], i[:, 1]].add(u),
            (table, ints(8, 2, below=16), floats(8)),
        ),
    ]


def _linalg() -> list[Case]:
    spd, vectors = matrices(8), floats(8, 8)
    return [
        Case("cholesky", functools.partial(linalg.cholesky, symmetrize_input=False), (spd,)),
        Case("cholesky_update", linalg.cholesky_update, (matrices(), floats(8))),
        Case("eig", linalg.eig, (spd,)),
        Case("eigh", functools.partial(linalg.eigh, symmetrize_input=False), (spd,)),
        Case("hessenberg", linalg.hessenberg, (spd,)),
        Case("householder_product", linalg.householder_product, (spd, vectors)),
        Case("lu", linalg.lu, (spd,)),
        Case(
            "lu_pivots_to_permutation",
            lambda x: linalg.lu_pivots_to_permutation(x, 8),
            (ints(8, 4, below=4),),
        ),
        Case("ormqr", lambda a, taus, c: linalg.ormqr(a, taus, c), (spd, vectors, spd)),
        Case("qr", linalg.qr, (spd,)),
        Case("schur", linalg.schur, (spd,)),
        Case("svd", linalg.svd, (spd,)),
        Case(
            "symmetric_product",
            functools.partial(linalg.symmetric_product, symmetrize_output=False),
            (spd, spd),
        ),
        Case(
            "triangular_solve",
            functools.partial(linalg.triangular_solve, left_side=True),
            (spd, floats(8, 8, 16)),
        ),
        Case("tridiagonal", linalg.tridiagonal, (spd,)),
        Case("tridiagonal_solve", linalg.tridiagonal_solve, (vectors, vectors + 3, vectors, floats(8, 8, 4))),
    ]


CASES: tuple[Case, ...] = (
    *_elementwise(),
    *_random(),
    *_shape(),
    *_reduction(),
    *_contraction(),
    *_indexing(),
    *_linalg(),
)
