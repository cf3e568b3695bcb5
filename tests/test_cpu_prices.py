"""What ops cost on a CPU: cold memory, products by how they lie, windows, and copies in another order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forced import device_mesh
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from costmodel import CostModel, Device, Dim, Link, Topology
from costmodel.gemm import MatmulShape
from costmodel.memory import MemorySample
from costmodel.model import measured_model
from costmodel.topology import Backend
from planner import plan
from planner.reshard import Resharder
from planner.write import write

P = PartitionSpec
S = jax.ShapeDtypeStruct


def computed_on_a_cpu(device: Device, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> float:
    model = CostModel(Topology("one", device, (), "cpu"))
    args = [S(shape, "float32") for shape in shapes]
    return plan(fn, args, AbstractMesh((1,), ("x",)), cost_model=model).prediction.compute_seconds


def test_what_a_call_touches_first_is_cold() -> None:
    """Arguments, and results that take over no argument's memory; what is made and read in between is warm."""
    warm, cold = (MemorySample(1.0, 1e-9),), (MemorySample(1.0, 1e-6),)
    device = Device("d", {"float32": 1e15}, 1e9, 1e9, 0.0, memory_curve=warm, cold_memory_curve=cold)
    model, mesh, nbytes = CostModel(Topology("one", device, (), "cpu")), AbstractMesh((1,), ("x",)), 4 * 64 * 64

    def touched(fn: Callable[..., Any], **given: Any) -> float:
        taken = plan(fn, [S((64, 64), "float32")], mesh, cost_model=model, **given).prediction.compute_seconds
        return round(taken / (nbytes * cold[0].seconds), 1)

    assert touched(lambda x: x + 1) == 2
    assert touched(lambda x: x + 1, donate_argnums=0) == 1
    assert touched(lambda x: x.sum()) == 1
    assert touched(lambda x: jnp.cumsum(jnp.cumsum(x, 0), 1)) == 2


def test_the_largest_of_a_row_are_selected_not_sorted() -> None:
    """Each element is compared with the least of those kept; what goes among them, and their sort, grows with these."""
    device = Device("d", {"float32": 1e15}, 1e9, 1e30, 0.0, element_seconds={"selection": 1.0, "sort": 1e3})

    def comparisons(k: int) -> float:
        return computed_on_a_cpu(device, lambda x: lax.top_k(x, k), (4, 1024)) / (4 * 1024)

    assert comparisons(1) == pytest.approx(1)
    assert comparisons(8) == pytest.approx(1 + 2 * 8 * 3 * (1 + math.log(128)) / 1024)
    assert 10 < comparisons(1024) < 30
    assert computed_on_a_cpu(device, lambda x: lax.top_k(x, 0), (4, 0)) == 0
    assert computed_on_a_cpu(device, lambda x: jnp.sort(x, axis=1), (4, 1024)) == pytest.approx(1e4 * 4 * 1024)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_only_what_is_touched_of_an_array_is_moved(backend: Backend) -> None:
    """In rows of the whole, read and written: of what slices take, and of what is updated where it lies."""
    device = Device("d", {"float32": 1e15}, 1e9, 1e9, 0.0)
    model, mesh = CostModel(Topology("one", device, (), backend)), AbstractMesh((1,), ("x",))
    rows, whole = S((4, 256), "float32"), S((64, 256), "float32")

    def moved(fn: Callable[..., Any], *more: Any, **given: Any) -> float:
        taken = plan(fn, [whole, *more], mesh, cost_model=model, **given).prediction.compute_seconds
        return round(taken * device.memory_bytes_per_second / (4 * 256), 1)

    def updated(x: jax.Array, rows: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(x, rows, (8, 0))

    def scattered(x: jax.Array, rows: jax.Array) -> jax.Array:
        return x.at[jnp.array([3, 9, 1, 40])].set(rows)

    assert moved(lambda x: x[8:12] + 1) == 2 * 4
    assert moved(lambda x, start: lax.dynamic_slice_in_dim(x, start, 4), S((), "int32")) == 2 * 4
    assert moved(lambda x: x[jnp.array([3, 9, 1, 40])]) == 2 * 4
    assert moved(lambda x: x[:1] * x) == 2 * 64, "the whole is read beside"
    for fn in (updated, scattered):
        assert moved(fn, rows, donate_argnums=0) == 2 * 4
        assert moved(fn, rows) == 4 + 2 * 64, "what is the caller's is copied"
    assert moved(lambda x, rows: updated(jnp.cumsum(x, 0), rows), rows) == 2 * 64 + 2 * 4
    both = moved(lambda x, rows: [made := jnp.cumsum(x, 0), updated(made, rows)], rows)
    assert both == 2 * 64 + 4 + 2 * 64, "what is needed as it was is copied"


@pytest.mark.parametrize(("backend", "cold_arrays"), [("cpu", 3), ("gpu", 0)])
def test_a_core_waits_for_what_a_product_touches_first(backend: Backend, cold_arrays: int) -> None:
    """A GPU fetches it while it multiplies. What is made and read in between is warm."""
    warm, cold = (MemorySample(1.0, 1e-9),), (MemorySample(1.0, 1e-6),)
    device = Device("d", {"float32": 1e15}, 1e9, 1e15, 0.0, memory_curve=warm, cold_memory_curve=cold)
    model, args = CostModel(Topology("one", device, (), backend)), [S((64, 64), "float32")] * 2

    def touched(fn: Callable[..., Any]) -> float:
        predicted = plan(fn, args, AbstractMesh((1,), ("x",)), cost_model=model).prediction
        return round(predicted.compute_seconds / (4 * 64 * 64 * cold[0].seconds), 1)

    assert touched(lambda x, y: x @ y) == cold_arrays
    assert touched(lambda x, y: jnp.linalg.matrix_power(x @ y, 2)) == cold_arrays


def test_slices_of_arguments_are_cold_and_of_what_was_just_made_are_not() -> None:
    """Read and written bytes alike; of fewer than all arguments and results have, at the rate of those."""
    warm, cold = (MemorySample(1.0, 1e-9),), (MemorySample(2.0**18, 1.0), MemorySample(2.0**20, 8.0))
    device = Device("d", {"float32": 1e15}, 1e9, 1e9, 0.0, memory_curve=warm, cold_memory_curve=cold)
    cost = CostModel(Topology("two", device, (Dim("x", 2, Link("bus", 0.0, 1e9)),), "cpu")).on(("x",), (2,))

    def sliced(call_bytes: float) -> float:
        resharder = Resharder(cost, call_bytes)
        (step,) = resharder.path((2**17,), 4, ((),), (("x",),))
        return resharder.seconds(step, (2**17,), 4)

    moved = 2 * 2**17 * 4 / 2
    assert sliced(0.0) == pytest.approx(moved * 1e-9)
    assert sliced(2 * moved) == pytest.approx(moved * math.sqrt(8.0 / 2**38))
    assert sliced(2 * 2**20) == pytest.approx(moved * 8.0 / 2**20)


def test_a_product_goes_by_how_its_left_operand_lies() -> None:
    """The gradient of weights sums over the rows of both operands; forwards the left one's columns are summed over."""
    shape = MatmulShape(1.0, 1e30)
    device = Device("d", {"float32": 1e12}, 1e9, 1e11, 0.0)
    device = replace(
        device, matmul={"float32": shape}, transposed_matmul={"float32": replace(shape, launch_seconds=3.0)}
    )
    both, loss = ((64, 32), (32, 16)), lambda x, w: (x @ w).sum()
    assert computed_on_a_cpu(device, lambda x, w: x @ w, *both) == pytest.approx(1.0, rel=0.01)
    assert computed_on_a_cpu(device, jax.grad(loss, 0), *both) == pytest.approx(1.0, rel=0.01)
    assert computed_on_a_cpu(device, jax.grad(loss, 1), *both) == pytest.approx(3.0, rel=0.01)


def test_one_window_is_gathered_as_a_slice_and_scattered_as_an_update_of_one() -> None:
    device = Device("d", {"float32": 1e12}, 1e9, 1e11, 0.0, element_seconds={"gather": 1e-3, "scatter": 1e-3})
    shapes = (64, 256), (64, 256)
    middle = computed_on_a_cpu(device, lambda x, y: x.at[1:-1].add(y[1:-1]), *shapes)
    assert middle == pytest.approx(computed_on_a_cpu(device, lambda x, y: x + y, *shapes), rel=0.05)
    rows = np.array([3, 5])
    assert computed_on_a_cpu(device, lambda x, y: x.at[rows].add(y[rows]), *shapes) >= 2 * 256 * 1e-3

    def back(x: jax.Array, y: jax.Array) -> jax.Array:
        return jax.grad(lambda x, y: jnp.sum(jnp.square(x.at[1:-1].add(y))), (0, 1))(x, y)

    assert computed_on_a_cpu(device, back, (64, 256), (62, 256)) < 1e-3


@pytest.mark.parametrize(("parts", "seconds"), [(1, 9.0), (2, 5.0), (4, 3.0)])
def test_transpositions_cost_by_the_stride_on_a_device(parts: int, seconds: float) -> None:
    """A matrix of rows of 2 KiB is read column by column, and in parts of its columns at smaller strides."""
    rates = {"rearrange": 3.0, "rearrange by 1 KiB": 5.0, "rearrange by 2 KiB": 9.0}
    device = Device("d", {"float32": 1e12}, 1e9, 1e15, 0.0, element_seconds=rates)
    dims = (Dim("x", parts, Link("bus", 0.0, 1e15)),) if parts > 1 else ()
    cost = CostModel(Topology("m", device, dims, "cpu"))
    columns = P("x" if parts > 1 else None)
    planned = plan(
        lambda x: lax.transpose(x, (1, 0)),
        [S((64, 512), "float32")],
        AbstractMesh((parts,), ("x",)),
        in_specs=(P(None, *columns),),
        out_specs=columns,
        cost_model=cost,
    )
    assert planned.prediction.compute_seconds == pytest.approx(seconds * 64 * 512 / parts, rel=1e-3)


def test_dimensions_of_one_element_are_no_neighbours() -> None:
    """A matrix turned round costs the same whatever dimensions of one element it has; moving those alone costs none."""
    device = Device("d", {"float32": 1e12}, 1e9, 1e15, 0.0, element_seconds={"rearrange": 3.0})
    turned = computed_on_a_cpu(device, lambda x: lax.transpose(x, (1, 0)), (64, 80))
    assert turned == pytest.approx(3.0 * 64 * 80, rel=1e-3)
    assert computed_on_a_cpu(device, lambda x: lax.transpose(x, (2, 0, 1)), (64, 1, 80)) == pytest.approx(turned)
    assert computed_on_a_cpu(device, lambda x: lax.transpose(x, (1, 0, 2)), (64, 80, 1)) == pytest.approx(turned)
    assert computed_on_a_cpu(device, lambda x: lax.transpose(x, (1, 0, 2)), (64, 1, 80)) < 1.0


def test_what_is_brought_from_an_argument_is_not_cold() -> None:
    """An op is priced as reading an argument where it lies. Where it is gathered before, what lies there is sent."""
    warm, cold = (MemorySample(1.0, 1e-9),), (MemorySample(1.0, 1e-6),)
    device = Device("d", {"float32": 1e15}, 1e9, 1e9, 0.0, memory_curve=warm, cold_memory_curve=cold)
    model = CostModel(Topology("two", device, (Dim("x", 2, Link("bus", 0.0, 1e15)),), "cpu"))

    def colder(fn: Callable[..., Any]) -> dict[str, float]:
        planned = plan(
            fn, [S((256,), "float32")], AbstractMesh((2,), ("x",)),
            in_specs=P("x"), out_specs=P(), donate_argnums=0, cost_model=model,
        )  # fmt: skip
        program = write(planned.choice.assignment).program
        return {
            one.name: round(one.colder_seconds / (1e-6 * 256 * 4), 2) for one in program.walk() if one.colder_seconds
        }

    assert colder(jnp.cumsum) == {"all-gather": 0.5, "cumsum": -1.0}
    assert colder(lambda x: (jnp.cumsum(x), x + 1)) == {"all-gather": 0.5, "cumsum": -1.0}
    assert colder(lambda x: (x + 1, jnp.cumsum(x))) == {}, "the addition has read what is sent"
    assert colder(lambda x: x.sum()) == {}


def test_what_comes_once_a_call_is_not_in_the_caches_of_a_large_program() -> None:
    device = measured_model("cpu-2core-amd.json").topology.device  # whose caches are smaller than that
    small, large = (256, 256), (2048, 2048)
    alone = computed_on_a_cpu(device, lambda x: x + 1, small)
    beside = computed_on_a_cpu(device, lambda x, y: (x + 1, y + 1), small, large)
    only_large = computed_on_a_cpu(device, lambda y: y + 1, large)
    assert beside - only_large > 1.1 * alone


def test_what_an_all_to_all_interleaves_is_put_together_by_each_kernel_that_reads_it() -> None:
    """What arrives for the first is in its price; where whole blocks of rows arrive, nothing is interleaved.

    Long pieces are put together as rows are, which cost nothing here, also where what reads them begins within them.
    """
    device = Device("d", {"float32": 1e15}, 1e9, 1e15, 0.0, element_seconds={"rearrange": 1e-9})
    topology = Topology("four", device, (Dim("x", 4, Link("bus", 0.0, 1e9)),), "cpu")
    mesh, model = AbstractMesh((4,), ("x",)), CostModel(topology)

    def put_together(
        came: PartitionSpec,
        needed: PartitionSpec,
        *fns: Callable[[jax.Array], jax.Array],
        width: int = 32,
        out: PartitionSpec | None = None,
    ) -> float:
        """How often the elements that a device has, beside the first time."""

        def fn(x: jax.Array) -> list[jax.Array]:
            x = lax.with_sharding_constraint(x, NamedSharding(mesh, needed))
            return [each(x) for each in fns]

        x = S((64, width), "float32")
        prediction = plan(fn, (x,), mesh, cost_model=model, in_specs=(came,), out_specs=out or needed).prediction
        assert [one.kind for one in prediction.collectives] == ["all-to-all"]
        return prediction.overhead_seconds / (16 * width * 1e-9)

    rows, columns = P("x", None), P(None, "x")
    assert put_together(columns, rows, jnp.sin) == pytest.approx(0, abs=1e-3)
    assert put_together(columns, rows, jnp.sin, jnp.cos) == pytest.approx(1, abs=1e-3)
    assert put_together(rows, columns, jnp.sin, jnp.cos) == pytest.approx(0, abs=1e-3)
    assert put_together(columns, rows, rolled, jnp.sin, rolled_back) == pytest.approx(2, abs=1e-3)
    assert put_together(columns, rows, jnp.sin, jnp.cos, width=64) == pytest.approx(0, abs=1e-3)
    assert put_together(columns, rows, rolled, width=64) == pytest.approx(0, abs=1e-3)
    assert put_together(columns, rows, rolled, jnp.sin, rolled_back, width=64) == pytest.approx(0, abs=1e-3)
    assert put_together(columns, rows, rolled, width=256) == pytest.approx(0, abs=1e-3), "two parts, copied first"
    assert put_together(columns, rows, lambda x: x[:, 8:40], width=64) == pytest.approx(0, abs=1e-3)
    assert put_together(columns, rows, row_sums, out=P("x")) == pytest.approx(-1, abs=1e-3), "summed piece by piece"
    assert put_together(columns, rows, row_sums, lambda x: x.max(1), out=P("x")) == pytest.approx(-1, abs=1e-3)
    assert put_together(columns, rows, row_sums, lambda x: x[:, 0], out=P("x")) == pytest.approx(1 / 32, abs=1e-3)


def rolled(x: jax.Array) -> jax.Array:
    return jnp.roll(x, 1, 1)


def rolled_back(x: jax.Array) -> jax.Array:
    return jnp.roll(x, -1, 1)


def row_sums(x: jax.Array) -> jax.Array:
    return x.sum(1)


@pytest.mark.parametrize(("reader", "assembled"), [(jnp.sin, True), (row_sums, False)])
def test_xla_sums_what_an_all_to_all_brings_piece_by_piece(
    reader: Callable[[jax.Array], jax.Array], assembled: bool
) -> None:
    mesh = device_mesh(x=4)
    columns, rows = (NamedSharding(mesh, spec) for spec in (P(None, "x"), P("x")))
    fn = jax.jit(lambda x: reader(lax.with_sharding_constraint(x, rows)), in_shardings=columns, out_shardings=rows)
    text = fn.lower(S((64, 32), "float32")).compile().as_text()
    assert "all-to-all" in text
    assert ("concatenate" in text) == assembled
