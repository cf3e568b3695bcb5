"""Which arrays exist: what sums and loops take in, on one device, against the compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from peaks import ONE, compiled_peak_of, peak_of

from planner import plan
from planner.buffers import timeline
from planner.write import write

LONG, POINTS = (1024, 256), (64, 256)


def _deviation(x: jax.Array) -> jax.Array:
    return (x - x.max(-1, keepdims=True)) ** 2


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, y: ((x[:, None] - y[None]) ** 2).sum(-1), (LONG, POINTS)),
        (lambda x, y: jnp.exp(-jnp.abs(x[:, None] - y[None])).max(-1), (LONG, POINTS)),
        (lambda x: _deviation(x).sum(-1), (LONG,)),
        (lambda x: jax.nn.relu(x.reshape(32, 32, 256)).sum(-1), (LONG,)),
        (lambda x: jnp.where(x > 0, x, 0.0).sum(-1), (LONG,)),
        (lambda x: (lambda y: (y.sum(-1), y + 1))(x * 2), (LONG,)),
        (lambda x: (_deviation(x).sum(-1), _deviation(x).sum(0)), (LONG,)),
        (lambda x, y: (x * jnp.exp(y)).sum(-1), (LONG, (256,))),
        (lambda x: jnp.tanh(x).prod(-1), (LONG,)),
        (lambda x: jnp.tanh(x).prod(-1), ((8192, 32),)),
    ],
    ids=["distances", "largest", "two", "reshaped", "select", "another reader", "both", "few", "no sum", "short"],
)
def test_a_sum_takes_in_what_nobody_else_reads(fn: Callable[..., Any], shapes: Any) -> None:
    """As far as the library computes it; the select is an array, and so is what has another reader."""
    compiled = compiled_peak_of(fn, *shapes)
    assert 0.97 <= peak_of(fn, *shapes) / compiled <= 1.03


@pytest.mark.parametrize(
    "readers",
    [
        lambda y: (y[64:] * 2, y[:64] * 2),
        lambda y: (y[::-1] * 2, y[:, ::-1] * 3),
        lambda y: (y - 3, y * 3),
        lambda y: y[64:] * 2,
    ],
    ids=["parts", "turned", "as it is", "once"],
)
@pytest.mark.parametrize(
    "join", [lambda x: jnp.pad(x, ((0, 16), (0, 0))), lambda x: jnp.roll(x, 1, 0)], ids=["pad", "roll"]
)
def test_what_is_joined_is_not_joined_again_for_each_part_of_it(
    join: Callable[[jax.Array], jax.Array], readers: Callable[[jax.Array], Any]
) -> None:
    def fn(x: jax.Array) -> Any:
        return readers(-join(x))

    assert peak_of(fn, (2032, 256)) == pytest.approx(compiled_peak_of(fn, (2032, 256)), rel=0.02)


@pytest.mark.parametrize("shape", [(64, 127), (64, 128), (32, 32, 64), (8, 8, 256)])
def test_long_rows_are_joined_by_a_kernel_of_its_own(shape: tuple[int, ...]) -> None:
    def fn(x: jax.Array) -> jax.Array:
        return x + jnp.roll(x, 1, -1)

    assert peak_of(fn, shape) == pytest.approx(compiled_peak_of(fn, shape), rel=0.02)


@pytest.mark.parametrize("shape", [(1024, 256), (8192, 33), (16384, 16)])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: lax.cumsum(x, 1),
        lambda x: lax.cummax(x, 0, reverse=True),
        lambda x: jnp.tanh(lax.cumsum(jnp.tanh(x), 1)),
        lambda x: lax.cumlogsumexp(jnp.sort(x, 1), 1),
        lambda x: lax.fori_loop(0, 9, lambda _, x: lax.cumsum(x, 1) * 2, x),
    ],
    ids=["sum", "largest so far", "between loops", "behind a sort", "round and round"],
)
def test_cumulative_ops_go_by_way_of_windows(fn: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> None:
    assert 0.98 <= peak_of(fn, shape) / compiled_peak_of(fn, shape) <= 1.05


def _noise(seed: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.uniform(jax.random.key(seed.astype(int)[0, 0]), shape)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: _noise(x, x.shape),
        lambda x: jax.random.bits(jax.random.key(x[0, 0].astype(int)), x.shape, jnp.uint8),
        lambda x: jnp.where(_noise(x, x.shape) < 0.5, x, 0),
        lambda x: lax.fori_loop(0, 3, lambda _, x: x + _noise(x, x.shape), x),
        lambda x: lax.fori_loop(0, 3, lambda _, u: u + _noise(u, x.shape) * _noise(u + 1, x.shape), x),
        lambda x: lax.fori_loop(0, 3, lambda i, u: u + _noise(x[:2] + i, x.shape) * _noise(x[:2] - i, x.shape), x),
    ],
    ids=["uniform", "bytes", "dropout", "in a loop", "twice in a loop", "counted before the loop"],
)
def test_random_bits_are_made_in_two_halves(fn: Callable[[jax.Array], jax.Array]) -> None:
    assert peak_of(fn, (512, 512)) == pytest.approx(compiled_peak_of(fn, (512, 512)), rel=0.02)


def _recurrence(decay: jax.Array, x: jax.Array) -> jax.Array:
    def then(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return second[0] * first[0], second[0] * first[1] + second[1]

    return lax.associative_scan(then, (jax.nn.sigmoid(decay), x), axis=0)[1]


def _neighbours(x: jax.Array) -> jax.Array:
    return sum((jnp.roll(x, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)), jnp.zeros(()))


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (_recurrence, ((512, 64),) * 2),
        (_recurrence, ((300, 64),) * 2),
        (lambda x: _neighbours(x), ((256, 64),)),
        (lambda x: _neighbours(jnp.tanh(_neighbours(x))), ((256, 64),)),
        (lambda x: jnp.tanh(_neighbours(_neighbours(x))), ((256, 512),)),
        (lambda x, y: (lambda z: z + jnp.roll(z, 1, 0) * jnp.roll(z, 2, 0))(x * y + jnp.roll(y, 1, 0)), (LONG, LONG)),
    ],
    ids=["recurrence", "odd recurrence", "neighbours", "of neighbours", "long rows", "rolls of a sum"],
)
def test_no_kernel_holds_the_code_of_an_op_too_often(fn: Callable[..., Any], shapes: Any) -> None:
    assert peak_of(fn, *shapes) == pytest.approx(compiled_peak_of(fn, *shapes), rel=0.02)


@pytest.mark.parametrize("tables", [1, 2, 4])
def test_what_several_update_is_copied_for_each(tables: int) -> None:
    """The gradients of several tables, all of which begin as the same zeros; what goes into one of them the compiler
    has made by the time that it has done with another, which the prediction has not."""

    def fn(x: jax.Array, places: jax.Array) -> Any:
        where = places.astype(int)[0]
        return [jnp.zeros((4096, 64)).at[where + place].add(x * place) for place in range(tables)]

    def summed(x: jax.Array, places: jax.Array) -> Any:
        return [jnp.tanh(table).sum(0) for table in fn(x, places)]

    shapes = (1024, 64), (1, 1024)
    assert 0.98 <= peak_of(summed, *shapes) / compiled_peak_of(summed, *shapes) <= 1.08


def test_what_an_op_waits_for_reads_before_it_updates() -> None:
    def fn(x: jax.Array, places: jax.Array) -> jax.Array:
        table = jnp.tanh(x)
        return jnp.sin(table.at[places.astype(int)[0]].add(table.sum(0)))

    shapes = (4096, 64), (1, 1024)
    assert peak_of(fn, *shapes) == pytest.approx(compiled_peak_of(fn, *shapes), rel=0.02)


@pytest.mark.parametrize("rows", [(8, 64), (512,)], ids=["reshaped", "as it is"])
def test_a_sum_that_contractions_read_in_other_shapes_is_computed_for_each(rows: tuple[int, ...]) -> None:
    """As rows and columns, and the other way round; what they read as it is is computed once."""

    def fn(x: jax.Array, y: jax.Array, weights: jax.Array, dy: jax.Array) -> Any:
        made = x * 2 + y
        return made @ weights, jnp.einsum("...d,...e->de", made, dy)

    args = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*rows, 256),) * 2 + ((256, 128), (*rows, 128))]
    planned = plan(fn, args, ONE)
    program = write(planned.choice.assignment).program
    kernels = timeline(planned.choice.assignment, program, planned.choice.request.donors).kernels[program]
    computed = sum(one.name == "add" for kernel in kernels for one in kernel)
    compiled = jax.jit(fn).lower(*args).compile().as_text()
    assert computed == compiled.count(" add(") == len(rows)
