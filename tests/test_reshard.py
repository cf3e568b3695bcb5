"""Changes of layout: legal step by step, exact on devices, and just the collectives that the steps say."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import jax
import numpy as np
import pytest
from forced import device_mesh
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding

from costmodel import CostModel, MeshCost, preset
from executor.compiled import collectives
from planner.layout import Layout, axes_of, divides, shard_count, to_spec
from planner.reshard import Resharder, Step, chains

MESHES = ({"x": 2, "y": 4}, {"a": 2, "b": 2, "c": 2})
LARGER_MESHES = (*MESHES, {"x": 8}, {"x": 3, "y": 2}, {"w": 2, "x": 2, "y": 2, "z": 2})
Shape = tuple[int, ...]


def mesh_id(mesh: dict[str, int]) -> str:
    return "x".join(map(str, mesh.values()))


def layouts_of(shape: Shape, mesh: dict[str, int]) -> Iterator[Layout]:
    """Every layout that divides the shape, axes in every order."""
    for count in range(len(mesh) + 1):
        for axes in itertools.permutations(mesh, count):
            for dims in itertools.product(range(len(shape)), repeat=count):
                layout = tuple(
                    tuple(axis for axis, where in zip(axes, dims, strict=True) if where == dim)
                    for dim in range(len(shape))
                )
                if divides(shape, layout, mesh):
                    yield layout


@st.composite
def changes(draw: st.DrawFn) -> tuple[Shape, Layout, Layout, dict[str, int]]:
    mesh = draw(st.sampled_from(LARGER_MESHES))
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 6, 8, 16, 24)), min_size=1, max_size=3)))
    options = st.sampled_from(sorted(set(layouts_of(shape, mesh))))
    return shape, draw(options), draw(options), mesh


def check_step(before: Layout, step: Step, shape: Shape, mesh: dict[str, int]) -> None:
    """That the step is one thing that its collective can do."""
    after, held, kept = step.layout, set(axes_of(before)), set(axes_of(step.layout))
    assert divides(shape, after, mesh)
    changed = [dim for dim, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    assert changed
    match step.kind:
        case "slice":
            assert all(after[dim][: len(before[dim])] == before[dim] for dim in changed), "only adds minor axes"
            assert kept - held
            assert step.axes == ()
        case "all-gather":
            (dim,) = changed
            assert before[dim] == after[dim] + step.axes, "only drops minor axes"
        case "all-to-all":
            giving, receiving = sorted(changed, key=lambda dim: -len(before[dim]) + len(after[dim]))
            assert before[giving] == after[giving] + step.axes
            assert after[receiving] == before[receiving] + step.axes
        case "collective-permute":
            counts = [[shard_count(axes, mesh) for axes in layout] for layout in (before, after)]
            assert counts[0] == counts[1], "as many shards of each dimension, on other devices"
            assert {axis for dim in changed for axis in set(before[dim]) ^ set(after[dim])} <= set(step.axes)
    assert step.shards == shard_count(axes_of(after), mesh), "of a gather and a slice the result, of others either side"


@settings(max_examples=500, deadline=None)
@given(changes())
def test_every_chain_is_legal_and_arrives(change: tuple[Shape, Layout, Layout, dict[str, int]]) -> None:
    shape, source, target, mesh = change
    for steps in chains(shape, source, target, tuple(mesh.items()), turning=True):
        layout = source
        for step in steps:
            check_step(layout, step, shape, mesh)
            layout = step.layout
        assert layout == target


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [
        ((("x",), ()), (("x",), ()), []),
        (((), ()), (("x",), ("y",)), ["slice"]),
        ((("x", "y"), ()), (("x",), ()), ["all-gather"]),
        ((("x",), ("y",)), ((), ("y",)), ["all-gather"]),
        ((("y",), ()), ((), ("y",)), ["all-to-all"]),
        ((("x", "y"), ()), (("x",), ("y",)), ["all-to-all"]),
        ((("x", "y"), ()), (("y", "x"), ()), ["collective-permute"]),
    ],
)
def test_known_ways(source: Layout, target: Layout, kinds: list[str]) -> None:
    """One collective where one will do."""
    shortest = min(chains((16, 16), source, target, (("x", 2), ("y", 4)), turning=True), key=len)
    assert [step.kind for step in shortest] == kinds


def cost_on(mesh: dict[str, int]) -> MeshCost:
    return CostModel(preset("cpu:8")).on(tuple(mesh), tuple(mesh.values()))


def chain_seconds(steps: tuple[Step, ...], shape: Shape, resharder: Resharder) -> float:
    return sum(resharder.seconds(step, shape, 4) for step in steps)


def test_gathering_along_another_dimension_than_the_outermost_copies_there_and_back() -> None:
    """What is sent and what arrives, in the strides that either has: whole rows, or elements."""
    cost = cost_on({"x": 8})
    resharder = Resharder(cost)

    def seconds(shape: Shape, split: int) -> float:
        source = tuple(("x",) if dim == split else () for dim in range(len(shape)))
        (gather,) = chains(shape, source, ((),) * len(shape), resharder.mesh, turning=True)[0]
        return resharder.seconds(gather, shape, 4) - float(cost.exposed_seconds("all-gather", ("x",), 2**20))

    def copied(there: int, back: int) -> float:
        return float(cost.rearrange_seconds(2**17, 4, there, there) + cost.rearrange_seconds(2**20, 4, back, back))

    assert seconds((256, 1024), 0) == 0.0
    assert seconds((256, 1024), 1) == pytest.approx(copied(1024 // 8 * 4, 256 * 4))
    assert seconds((2048, 128), 1) == pytest.approx(copied(128 // 8 * 4, 2048 * 4))
    assert seconds((16, 16, 1024), 1) == pytest.approx(copied(4, 4))
    assert seconds((16, 16, 1024), 2) == pytest.approx(copied(1024 // 8 * 4, 256 * 4))


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((64, 256), 4), ((64, 64), 8), ((64, 64, 2), 4), ((64, 8, 2), 8)],
    ids=["pieces of 32", "of 8", "of 8 x 2", "of 1 x 2"],
)
def test_short_pieces_are_put_together_element_by_element(shape: Shape, stride: int) -> None:
    cost = cost_on({"x": 8})
    source, target = ((), ("x",), *[()] * (len(shape) - 2)), (("x",), *[()] * (len(shape) - 1))
    resharder = Resharder(cost)
    options = chains(shape, source, target, resharder.mesh, turning=True)
    (move,) = next(steps for steps in options if steps[0].kind == "all-to-all")  # which is cheapest, the profile says
    nbytes = 4 * math.prod(shape) / 8
    again = resharder.again_seconds(move, shape, 4)
    assert again == pytest.approx(float(cost.rearrange_seconds(nbytes, 4, stride, stride)))


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ((64, 64), ["all-gather"]),
        ((512, 1024), ["all-to-all", "all-gather"]),
        ((4, 2**19), ["all-gather"]),  # eight devices do not divide four rows
    ],
)
def test_large_arrays_turn_before_they_are_gathered(shape: Shape, kinds: list[str]) -> None:
    """Moving transposes a shard, gathering the whole array; but it is a collective more."""
    path = Resharder(cost_on({"x": 8})).path(shape, 4, ((), ("x",)), ((), ()))
    assert [step.kind for step in path] == kinds


def test_what_lies_major_is_permuted_moved_and_gathered_as_rows() -> None:
    """Gathered where it is, four megabytes would be transposed on every device."""
    path = Resharder(cost_on({"x": 2, "y": 4})).path((1024, 1024), 4, ((), ("x", "y")), ((), ("y",)))
    assert [(step.kind, step.layout) for step in path] == [
        ("collective-permute", ((), ("y", "x"))),
        ("all-to-all", (("x",), ("y",))),
        ("all-gather", ((), ("y",))),
    ]


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_matrix_holds_the_price_of_the_path_taken(mesh: dict[str, int]) -> None:
    """One resharder serves arrays of several shapes, of which the smaller allow fewer layouts on the way."""
    resharder = Resharder(cost_on(mesh))
    for shape in ((8, 8), (8, 24), (2, 4), (512, 1024), (8,), (16, 1, 8), (8, 8)):
        layouts = random.Random(0).sample(options := sorted(set(layouts_of(shape, mesh))), min(12, len(options)))
        matrix = resharder.matrix(shape, 4, layouts[::2], layouts)
        for row, source in enumerate(layouts[::2]):
            for column, target in enumerate(layouts):
                path = resharder.path(shape, 4, source, target)
                assert path in chains(shape, source, target, resharder.mesh, turning=True)
                assert matrix[row, column] == pytest.approx(chain_seconds(path, shape, resharder))
                for option in chains(shape, source, target, resharder.mesh, turning=True):
                    assert matrix[row, column] <= chain_seconds(option, shape, resharder) * (1 + 1e-9)


def random_changes(mesh: dict[str, int], count: int) -> list[tuple[Shape, Layout, Layout]]:
    generator = random.Random(repr(mesh))
    found = []
    for turn in range(count):
        shape = tuple(generator.choice((8, 16, 24)) for _ in range(1 + turn % 3))
        source, target = generator.sample(sorted(set(layouts_of(shape, mesh))), 2)
        found.append((shape, source, target))
    return found


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (((), ("y", "x")), ((), ("x", "y"))),
        (((), ("x",)), ((), ("y",))),  # sliced, permuted, gathered
        ((("x",), ()), (("y",), ())),
        ((("x",), ("y",)), (("y",), ("x",))),
        (((), ("x", "y")), (("x",), ("y",))),
    ],
)
def test_what_a_broadcast_repeats_is_not_permuted(source: Layout, target: Layout) -> None:
    """XLA sees that all shards are the same; of the operand's own dimension they are not."""
    mesh, devices = {"x": 2, "y": 4}, device_mesh(x=2, y=4)
    options = chains((64, 128), source, target, tuple(mesh.items()), turning=True, repeats=(1,))
    for steps in options:

        def spread(row: jax.Array, steps: tuple[Step, ...] = steps) -> jax.Array:
            x = jax.lax.broadcast_in_dim(row, (64, 128), (0,))
            for layout in (source, *(step.layout for step in steps)):
                x = jax.lax.with_sharding_constraint(x, NamedSharding(devices, to_spec(layout)))
            return x

        start, end = (NamedSharding(devices, to_spec(layout)) for layout in (source[:1], target))
        compiled = jax.jit(spread, in_shardings=start, out_shardings=end).lower(np.zeros(64, np.float32)).compile()
        found = [(one.kind, set(one.axes)) for one in collectives(compiled.as_text(), mesh)]
        assert found == [(step.kind, set(step.axes)) for step in steps if step.kind != "slice"], steps


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_compiled_chains_are_exact(mesh: dict[str, int], capfd: pytest.CaptureFixture[str]) -> None:
    """The values come through, and the program has the collectives of the steps and no others."""
    devices = device_mesh(**mesh)
    for shape, source, target in random_changes(mesh, 60):
        array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for steps in chains(shape, source, target, tuple(mesh.items()), turning=True):

            def change(x: jax.Array, steps: tuple[Step, ...] = steps) -> jax.Array:
                for step in steps:
                    x = jax.lax.with_sharding_constraint(x, NamedSharding(devices, to_spec(step.layout)))
                return x

            start, end = (NamedSharding(devices, to_spec(layout)) for layout in (source, target))
            lowered = jax.jit(change, in_shardings=start, out_shardings=end).lower(array)
            compiled = lowered.compile()
            result = compiled(jax.device_put(array, start))
            message = f"{shape}: {source} to {target} by {steps}"
            np.testing.assert_array_equal(result, array, err_msg=message)
            assert result.sharding.is_equivalent_to(end, len(shape)), message
            found = [(one.kind, set(one.axes), one.bytes) for one in collectives(compiled.as_text(), mesh)]
            planned = [
                (step.kind, set(step.axes), array.nbytes / step.shards) for step in steps if step.kind != "slice"
            ]
            assert found == planned, message
    assert "Involuntary full rematerialization" not in capfd.readouterr().err
