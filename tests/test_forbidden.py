"""What XLA does wrongly is out of reach of every plan: windows over borders, Fourier transforms, updates of one row.

XLA's partitioner gives wrong numbers for the gradient of max pooling on a sharded dimension whose windows overlap, and
aborts the process on a complex transform of a sharded last dimension with fewer elements per shard than shards. Its
simplifier adds up the starts of two slices and forgets that the second is clamped: a scatter with one index over a
dimension that has just been sliced into shards writes wrong rows into the shards that the index is not in. Its
partitioner forgets that an update which begins outside the array is moved inside, where the dimension is split, and
the simplifier that a slice is, where it is split afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, Case, floats
from forced import described, device_mesh, differences, priced_on, random_assignments, run_as_assigned
from jax import lax
from jax.sharding import PartitionSpec

from planner import plan
from planner.layout import axes_of

P = PartitionSpec
MESH = device_mesh(x=2, y=4)
IMAGE = np.random.default_rng(0).permutation(8 * 32 * 16 * 8).reshape(8, 32, 16, 8).astype(np.float32)
"""No two pixels are equal, so that each window has one maximum."""

WINDOWED = {
    "reduce_window",
    "reduce_window_max",
    "reduce_window_min",
    "reduce_window_sum",
    "select_and_gather_add",
    "select_and_scatter",
    "select_and_scatter_add",
}


def pool(window: int, stride: int, padding: str = "SAME") -> Callable[[jax.Array], jax.Array]:
    def fn(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -np.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), padding)

    return fn


def pool_gradient(window: int, stride: int, padding: str = "SAME") -> Callable[[jax.Array], jax.Array]:
    return jax.grad(lambda x: jnp.sum(pool(window, stride, padding)(x) * 3))


@pytest.mark.parametrize(("window", "stride"), [(2, 1), (3, 1), (4, 2), (3, 2), (2, 2)])
@pytest.mark.parametrize("build", [pool, pool_gradient])
def test_windows_are_never_split(
    build: Callable[[int, int], Callable[[jax.Array], jax.Array]], window: int, stride: int
) -> None:
    """In no strategy; and whatever lies around, the numbers are right."""
    case = Case("pool", build(window, stride), (IMAGE,))
    priced = priced_on(case, MESH)
    assignments = random_assignments(priced, 12, "pool")
    windowed = [op for op, _ in priced.graph.walk() if op.name in WINDOWED]
    assert windowed
    for op in windowed:
        index, member = priced.decisions.members[op]
        patterns = [pattern for pattern in member.patterns if len(pattern) == 4]
        for strategy in priced.strategies[index]:
            for pattern in patterns:
                assert axes_of(strategy.layout(member.dims(pattern), result=True)[1:3]) == ()
    wanted = [case.fn(IMAGE)]
    for found in run_as_assigned(assignments, MESH, case.args).results:
        assert not differences(found, wanted)


@pytest.mark.parametrize("spec", [P(None, ("x", "y")), P(None, "x", "y"), P("x", "y")])
def test_a_user_who_asks_for_it_gets_right_numbers(spec: PartitionSpec) -> None:
    """Images split where the windows are, before and after: in between they are gathered."""
    gradient = pool_gradient(4, 2)
    planned = plan(gradient, (IMAGE,), MESH, in_specs=(spec,), out_specs=spec)
    assert not differences([planned.jit()(IMAGE)], [gradient(IMAGE)])


def test_the_bug_is_there() -> None:
    """If this fails, XLA was mended, and windows may be split again (`planner/rules/reduction.py`)."""
    gradient = pool_gradient(4, 2)
    split = jax.NamedSharding(MESH, P(None, ("x", "y")))
    found = jax.jit(gradient, in_shardings=split, out_shardings=split)(IMAGE)
    assert differences([found], [gradient(IMAGE)])


@pytest.mark.parametrize("case", [case for case in CASES if "fft" in case.name], ids=lambda case: case.name)
def test_transforms_are_never_split(case: Case) -> None:
    """But for the rows, each of which is a transform of its own."""
    priced = priced_on(case, MESH)
    (transform,) = (op for op, _ in priced.graph.walk() if op.name == "fft")
    index, member = priced.decisions.members[transform]
    for strategy in priced.strategies[index]:
        for pattern in member.patterns:
            assert strategy.layout(member.dims(pattern), result=True)[1] == ()


def test_transforms_read_and_write_rows() -> None:
    """XLA's CPU backend refuses one in any other order, into which collectives around it bring its arrays.

    What that takes is a whole program; random ones (`tests/random_programs.py`) came upon it, even unsharded.
    """
    case = next(case for case in CASES if case.name == "rfft")
    lowered = plan(case.fn, case.args, MESH).jit().lower(*case.args).as_text()
    assert lowered.count("@LayoutConstraint") == 2


FFT_PROGRAM = """
import sys
sys.path[:0] = {paths!r}
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
from jax.sharding import AxisType, PartitionSpec as P
from planner import plan
mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
x = np.random.default_rng(0).normal(size=(16, 16)).astype(np.complex64)
for fn in (jax.numpy.fft.fft, jax.numpy.fft.fft2, lambda x: jax.numpy.fft.ifft(jax.numpy.fft.fft(x, axis=0) * 2)):
    for spec in (P(None, ("x", "y")), P("x", "y"), P(("y", "x"))):
        planned = plan(fn, (x,), mesh, in_specs=(spec,), out_specs=spec)
        np.testing.assert_allclose(planned.jit()(x), fn(x), rtol=1e-4, atol=1e-4)
print("right")
"""


def test_a_user_who_asks_for_split_transforms_gets_right_numbers() -> None:
    """In a child process, for the bug takes the process with it."""
    paths = [str(Path(__file__).parents[1])]
    program = FFT_PROGRAM.format(paths=paths)
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert outcome.stdout == "right\n", outcome.stderr[-2000:]


def test_a_convolutions_borders_are_exchanged_rightly() -> None:
    """Convolutions may be split where their windows reach over borders: XLA exchanges halos, and does it well."""
    kernel = floats(3, 5, 8, 4)

    def fn(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    image = floats(8, 32, 16, 8)
    for spec in (P(None, ("x", "y")), P(None, "x", "y"), P("x", "y")):
        planned = plan(fn, (image, kernel), MESH, in_specs=(spec, P()), out_specs=spec)
        assert not differences([planned.jit()(image, kernel)], [fn(image, kernel)])


@pytest.mark.parametrize(
    ("image_size", "window", "split"),
    [
        ((1,), (1,), [8]),
        ((2,), (2,), [8]),
        ((2, 3), (2, 3), [8]),
        ((6,), (1,), [8, 6]),
        ((6, 5), (1, 1), [8, 6, 5]),
        ((6, 5), (1, 5), [8, 6]),
    ],
)
def test_channels_are_not_split_under_a_window_as_large_as_the_image_or_of_one_element(
    image_size: tuple[int, ...], window: tuple[int, ...], split: list[int]
) -> None:
    """The compiler crashes where they are."""
    image, kernel = floats(8, 4, *image_size), floats(8, 1, *window)

    def fn(image: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(image, kernel, (1,) * len(window), "VALID", feature_group_count=4)

    priced = priced_on(Case("depthwise", fn, (image, kernel)), MESH)
    (convolution,) = (node for node in priced.decisions.nodes if node.members)
    assert convolution.sizes == split
    for found in run_as_assigned(random_assignments(priced, 12, "depthwise"), MESH, (image, kernel)).results:
        assert not differences(found, [fn(image, kernel)])


# Updates of one row

UPDATES = {
    "row": lambda x, i, u: x.at[i].set(u),
    "row added": lambda x, i, u: x.at[i].add(u),
    "row multiplied": lambda x, i, u: x.at[i].multiply(u),
    "rows of one": lambda x, i, u: x.at[i[None]].set(u[None]),
    "column": lambda x, i, u: x.at[:, i].set(u[:16]),
    "element": lambda x, i, u: x.at[i, i].set(u[0]),
    "of every row": lambda x, i, u: jax.vmap(lambda row: row.at[i].set(u[0]))(x),
}


@pytest.mark.parametrize("name", UPDATES)
def test_one_row_is_updated_rightly(name: str) -> None:
    for row in (3, 15):
        case = Case(name, UPDATES[name], (floats(16, 32), np.int32(row), floats(32) + 1))
        assignments = random_assignments(priced_on(case, MESH), 12, name)
        wanted = [jax.jit(case.fn)(*case.args)]
        for assignment, found in zip(assignments, run_as_assigned(assignments, MESH, case.args).results, strict=True):
            assert not differences(found, wanted), described(assignment)


def test_the_bug_of_one_row_is_there() -> None:
    """If this fails, XLA was mended, and one row may be updated in shards again (`planner/rules/indexing.py`)."""

    def fn(x: jax.Array, i: jax.Array, u: jax.Array) -> jax.Array:
        whole, split = (jax.NamedSharding(MESH, spec) for spec in (P(), P("y")))
        x, i, u = jax.lax.with_sharding_constraint((x, i, u), whole)
        x = jax.lax.with_sharding_constraint(x, split)
        return jax.lax.with_sharding_constraint(x.at[i].set(u), split)

    args = floats(16, 32), np.int32(3), floats(32) + 1
    assert differences([jax.jit(fn)(*args)], [jax.jit(UPDATES["row"])(*args)])


@pytest.mark.parametrize("start", [-7, -1, 0, 1, 3, 5, 100])
@pytest.mark.parametrize("width", [1, 2])
def test_updates_that_begin_outside_are_moved_inside(start: int, width: int) -> None:
    def fn(x: jax.Array, update: jax.Array, start: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_p.bind(x, update, np.int32(0), start)

    args = (floats(8, 4), floats(8, width), np.int32(start))
    planned = plan(fn, args, MESH, in_specs=(P("x", "y"), P("x"), P()), out_specs=P("x", "y"))
    assert not differences([planned.jit()(*args)], [jax.jit(fn)(*args)])


SLICES = {
    "slice": lambda x, start: lax.dynamic_slice(x, (start,), (2,)),
    "slices": lambda x, start: jax.vmap(lambda start: lax.dynamic_slice(x, (start,), (2,)))(start[None])[0],
}


@pytest.mark.parametrize("start", [-5, -1, 0, 1, 3, 5])
@pytest.mark.parametrize("name", SLICES)
def test_slices_that_begin_outside_are_moved_inside_before_they_are_split(name: str, start: int) -> None:
    def fn(x: jax.Array, start: jax.Array) -> jax.Array:
        return jnp.sin(SLICES[name](x, start)) * 2

    args = (floats(4), np.int32(start))
    planned = plan(fn, args, device_mesh(x=4, y=2), in_specs=P(), out_specs=P("y"))
    assert not differences([planned.jit()(*args)], [jax.jit(fn)(*args)])
    assignments = random_assignments(priced_on(Case(name, fn, args), MESH), 6, name)
    for assignment, found in zip(assignments, run_as_assigned(assignments, MESH, args).results, strict=True):
        assert not differences(found, [jax.jit(fn)(*args)]), described(assignment)
