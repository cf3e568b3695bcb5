"""Bytes per device: the peak and its causes; against the compiled program where that is possible."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forced import device_mesh
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from peaks import ONE, compiled_peak_of, peak_of

from planner import plan
from planner.memory import peak
from planner.packing import Allocation

P = PartitionSpec
S = jax.ShapeDtypeStruct
EIGHT = AbstractMesh((8,), ("x",))
MIB = 1 << 20

allocations = st.lists(
    st.builds(
        lambda nbytes, start, length: Allocation(nbytes, start, start + length, "array"),
        st.integers(0, 100),
        st.integers(0, 12),
        st.integers(0, 12),
    ),
    max_size=12,
)


@given(allocations)
def test_the_peak_is_where_most_is_alive(arrays: list[Allocation]) -> None:
    found = peak(arrays)
    alive = [[array for array in arrays if array.start <= time <= array.end] for time in range(26)]
    assert found.nbytes - found.holes == max((sum(array.nbytes for array in those) for those in alive), default=0)
    assert sum(array.nbytes for array in found.largest) == found.nbytes - found.holes
    sizes = [array.nbytes for array in found.largest]
    assert sizes == sorted(sizes, reverse=True)


def test_temporaries_lie_in_memory_that_is_idle_for_as_long_as_they_live() -> None:
    """The largest first, of several as large the first of the list: "apart" would lie in y, were it not for "in y"."""
    arrays = [
        Allocation(8.0, 0, 9, "x", role="argument", idle=range(3, 6)),
        Allocation(6.0, 9, 9, "y", role="result", idle=range(9)),
        Allocation(6.0, 2, 4, "in y"),
        Allocation(6.0, 4, 7, "apart"),
        Allocation(5.0, 3, 5, "in x"),
        Allocation(5.0, 5, 8, "in y later"),
        Allocation(7.0, 3, 6, "longer than x is idle"),
    ]
    found = peak(arrays)
    assert [(array.name, array.nbytes) for array in found.largest] == [
        ("x", 8.0), ("longer than x is idle", 7.0), ("y", 6.0), ("apart", 6.0),
    ]  # fmt: skip
    assert (found.nbytes, found.time) == (27.0, 4)


def test_of_several_alike_as_many_lie_in_idle_memory_as_there_is_room_for() -> None:
    arrays = [
        Allocation(12.0, 8, 9, "y", role="result", alike=3, idle=range(8)),
        Allocation(15.0, 2, 4, "a", alike=5),
    ]
    assert peak(arrays).nbytes == 12.0 + 2 * 3.0


ARRAY = (256, 1024)
"""One MiB."""


@pytest.mark.parametrize(
    ("fn", "arrays", "mib"),
    [
        (lambda x: x, 1, 1),
        (lambda x: x * 2, 1, 2),
        (lambda x: jnp.sin(x * 2 + 1), 1, 2),
        (lambda x, y: x + y, 2, 3),
        (lambda x: (x * 2).sum(), 1, 1),
        (lambda x: (x * 2, x * 3), 1, 3),
        (lambda x: jnp.sort(jnp.sort(x, axis=0), axis=1), 1, 3),
        (lambda x: jnp.sort(jnp.sort(jnp.sort(x, axis=0), axis=1), axis=0), 1, 3),
        (lambda x: jnp.sort(x, axis=0) + jnp.sort(x, axis=1), 1, 3),
    ],
)
def test_closed_forms(fn: Callable[..., Any], arrays: int, mib: float) -> None:
    """Arguments stay, fused chains hold nothing between, what is stored goes after its last use."""
    assert peak_of(fn, *[ARRAY] * arrays) == pytest.approx(mib * MIB, rel=0.02)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sin(x * 2 + 1),
        lambda x: jnp.sort(jnp.sort(jnp.sort(x, axis=0), axis=1), axis=0),
        lambda x: jnp.sort(x, axis=0) + jnp.sort(x, axis=1),
        lambda x: x @ x.T @ x,
        lambda x: lax.fori_loop(0, 9, lambda i, x: x * 2, x),
        lambda x: lax.scan(lambda x, _: (x * 2, x), x, None, length=4),
        lambda x: lax.scan(lambda x, _: (x @ (x.T @ x), None), x, None, length=4)[0],
        lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ x.T @ x, lambda x: x, x),
        jax.grad(lambda x: jnp.sum(jnp.tanh(jnp.tanh(x @ x.T) @ x))),
    ],
    ids=["fused", "sorts", "two sorts", "products", "loop", "stacked", "heavy loop", "branches", "gradient"],
)
def test_predicted_is_near_compiled(fn: Callable[..., Any]) -> None:
    """On one device, where layout plays no part: hardly less than the compiler needs, and not much more."""
    assert 0.95 <= peak_of(fn, ARRAY) / compiled_peak_of(fn, ARRAY) <= 1.55


BATCHED, THIN, FLAT = (16, 256, 256), (16, 1, 256, 256), (1, 4096, 256)
ROWS, COLUMN = (256, 256), (256, 1)


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, w, v: jnp.tanh(x @ w) @ v, (BATCHED, ROWS, COLUMN)),
        (lambda x, y, v: jnp.tanh(jnp.einsum("bij,bjk->bik", x, y)) @ v, (BATCHED, BATCHED, COLUMN)),
        (lambda x, v: jnp.tanh(jnp.sort(x)) @ v, (BATCHED, COLUMN)),
        (lambda x, v, w: (jnp.tanh(jnp.sort(x)) @ v, jnp.tanh(jnp.sort(x)) @ w), (BATCHED, COLUMN, COLUMN)),
        (lambda x, w: jnp.sort(jnp.tanh(x @ w), axis=0)[0], (BATCHED, ROWS)),
        (lambda x, w, v: ((x @ w) * jnp.sort(x)) @ v, (BATCHED, ROWS, COLUMN)),
        (lambda x, w: jnp.tanh(x @ w), (BATCHED, ROWS)),
        (lambda x: jnp.sort(jnp.tanh(jnp.sort(x)).reshape(BATCHED), axis=0)[0], ((4096, 256),)),
        (lambda x, w, v: jnp.tanh(x @ w) @ v, (THIN, ROWS, COLUMN)),
        (lambda x, w: jax.nn.softmax(x @ w), (THIN, ROWS)),
        (lambda x, w: jax.nn.softmax(x @ w), (FLAT, ROWS)),
    ],
    ids=[
        "both alike", "batches", "to a product", "to two", "from a product", "mixed", "to the result", "reshaped",
        "thin and alike", "thin", "flat",
    ],
)  # fmt: skip
def test_a_loop_takes_no_memory_that_a_contraction_has_in_another_shape(fn: Callable[..., Any], shapes: Any) -> None:
    assert peak_of(fn, *shapes) == pytest.approx(compiled_peak_of(fn, *shapes), rel=0.01)


@pytest.mark.parametrize(
    "split", [P(None, ("x", "y")), P(("x", "y")), P("x", "y"), P()], ids=["heads", "batch", "both", "neither"]
)
def test_attention_by_heads(split: PartitionSpec) -> None:
    """Of one head and several sequences on each device, the contractions leave out the heads and the rest does not."""
    args = (S((8, 8, 128, 64), jnp.float32),) * 2
    mesh = device_mesh(x=2, y=4)
    planned = plan(
        lambda q, k: jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2)), args, mesh, in_specs=split, out_specs=split
    )
    found = planned.jit().lower(*args).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert planned.prediction.peak_bytes == pytest.approx(compiled, rel=0.01)


def _layer(weight: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A layer's weight after a step, and the gradient of what came in, which the step does not need."""
    gradient = jnp.tanh(x @ weight)
    return weight - jnp.einsum("bi,bo->io", x, gradient), jnp.einsum("bo,io->bi", gradient, weight)


@pytest.mark.parametrize(
    ("fn", "shapes", "mebibytes"),
    [
        (lambda x: x * 2, [ARRAY], 1),
        (lambda x, y: (x + y, jnp.sin(y)), [ARRAY, ARRAY], 3),  # y is copied: nothing says that its sine comes last
        (lambda x, y: (jnp.tanh(x + y), x), [ARRAY, ARRAY], 3),
        (lambda x, y: (x @ y, y), [(512, 512), (512, 512)], 3),
    ],
)
def test_donated_arguments_make_room_for_results(fn: Callable[..., Any], shapes: Any, mebibytes: int) -> None:
    donated = tuple(range(len(shapes)))
    predicted = peak_of(fn, *shapes, donate_argnums=donated)
    assert predicted == pytest.approx(mebibytes * MIB, rel=0.01)
    assert predicted == pytest.approx(compiled_peak_of(fn, *shapes, donate_argnums=donated), rel=0.01)


def test_donated_weights_are_copied_for_what_reads_them_beside_their_step() -> None:
    """And in their own memory the compiler puts some of what comes between."""
    shapes = [(512, 512)] * 2
    compiled = compiled_peak_of(_layer, *shapes, donate_argnums=(0, 1))
    assert compiled == pytest.approx(5 * MIB, rel=0.01)
    assert peak_of(_layer, *shapes, donate_argnums=(0, 1)) == pytest.approx(compiled, rel=0.01)


def test_a_donated_argument_that_fits_no_result_is_an_argument_still() -> None:
    assert peak_of(lambda x: x.sum(), ARRAY, donate_argnums=0) == pytest.approx(MIB, rel=0.01)


def test_shards_count_as_what_they_are() -> None:
    rows = P("x")
    options: dict[str, Any] = {"in_specs": rows, "out_specs": rows, "mesh": EIGHT}
    assert peak_of(lambda x: x * 2, ARRAY, **options) == pytest.approx(2 * MIB / 8)
    options["out_specs"] = P()
    assert peak_of(lambda x: x * 2, ARRAY, **options) >= MIB * 9 / 8


def test_a_gathered_copy_counts() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    specs: dict[str, Any] = {"in_specs": (P("x"), P("x")), "out_specs": P("x")}
    found = peak_of(fn, (8192, 256), ARRAY, mesh=EIGHT, **specs)
    arguments_and_result = (8192 * 256 * 4 + MIB + 8192 * 1024 * 4) / 8
    assert found == pytest.approx(arguments_and_result + MIB)


def pooled(x: jax.Array) -> jax.Array:
    return jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2)


def by_columns(x: jax.Array) -> jax.Array:
    return 2.0 * lax.with_sharding_constraint(x, NamedSharding(device_mesh(x=8), P(None, "x")))


@pytest.mark.parametrize(
    ("fn", "shapes", "in_specs", "out_specs"),
    [
        (jnp.matmul, ((4096, 256), ARRAY), (P("x"), P(None, "x")), P("x")),
        (jnp.matmul, (ARRAY, (1024, 512)), (P(None, "x"), P("x")), P()),
        (jax.grad(pooled), ((16, 64, 64, 8),), P("x"), P("x")),
        (by_columns, ((40, 40),), P("x"), P("x")),
    ],
    ids=["strided gather", "partial sum", "pooling", "aligned pieces"],
)
def test_what_the_cpu_compiler_needs_beside(
    fn: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], in_specs: Any, out_specs: Any
) -> None:
    """Gathers that arrive transposed, sums not yet reduced, indices of windows, what is exchanged in small pieces."""
    args = tuple(S(shape, jnp.float32) for shape in shapes)
    planned = plan(fn, args, device_mesh(x=8), in_specs=in_specs, out_specs=out_specs)
    found = planned.jit().lower(*args).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert 0.9 * compiled <= planned.prediction.peak_bytes <= 1.1 * compiled


def test_idle_memory_holds_one_piece_of_what_is_exchanged() -> None:
    """Of the two that each device sends, and that it gets, here: the result's memory, eight times as large, is idle."""
    mesh = device_mesh(x=2, y=4)

    def fn(x: jax.Array) -> jax.Array:
        rows = jnp.broadcast_to(x[:, None], (1024, 512))
        for spec in (P(("x", "y")), P("y", "x")):
            rows = lax.with_sharding_constraint(rows, NamedSharding(mesh, spec))
        return rows

    args = (S((1024,), jnp.float32),)
    planned = plan(fn, args, mesh, in_specs=P(), out_specs=P(None, "x"))
    assert "all-to-all" in {one.kind for one in planned.prediction.collectives}
    found = planned.jit().lower(*args).compile().memory_analysis()
    compiled = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    assert 0.9 * compiled <= planned.prediction.peak_bytes <= 1.1 * compiled


def test_residuals_live_until_they_are_used() -> None:
    def loss(x: jax.Array, w: jax.Array, *, layers: int) -> jax.Array:
        for _ in range(layers):
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    peaks = [peak_of(jax.grad(functools.partial(loss, layers=n)), (1024, 256), (256, 256)) for n in (2, 4, 8)]
    assert peaks[1] - peaks[0] == pytest.approx(2 * MIB)
    assert peaks[2] - peaks[1] == pytest.approx(4 * MIB)


def test_the_peak_says_what_is_alive_there() -> None:
    def fn(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sort(x @ w, axis=0) ** 2)

    found = plan(fn, (S((256, 256), jnp.float32), S((256, 4096), jnp.float32)), ONE).prediction.peak
    named = {array.name: array.source for array in found.largest}
    assert {"x", "w", "sort"} <= named.keys()
    assert named["sort"].startswith("test_memory.py:")
    assert found.source.startswith("test_memory.py:")


CONSTANT = np.ones((64, 64, 32), np.float32)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.einsum("abk,ack->bck", CONSTANT, x),
        lambda x: jnp.einsum("ack,abk->bck", x, CONSTANT),
        lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.einsum("kb,kc->bc", CONSTANT[0] @ CONSTANT[0].T, y), x[0]),
        lambda x: lax.dynamic_update_slice(CONSTANT, x[:1], (jnp.int32(x[0, 0, 0]), 0, 0)),
    ],
    ids=["left", "right", "in a loop", "updated"],
)
def test_constants_are_operands_too(fn: Callable[..., Any]) -> None:
    """They are no arrays of the program: nothing of them is copied, and nothing takes their memory."""
    x = np.full((64, 64, 32), 0.01, np.float32)
    planned = plan(fn, (x,), device_mesh(x=8))
    own = (x.nbytes + jax.eval_shape(fn, x).size * x.itemsize) / 8
    assert planned.prediction.peak_bytes >= own, "the argument and the result, at their smallest"
    np.testing.assert_allclose(planned.jit()(x), jax.jit(fn)(x), rtol=1e-4)
