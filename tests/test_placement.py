"""Where mesh axes lie on a machine, against brute force."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from costmodel import CostModel, Placement, Topology, preset
from tests.costmodel_cases import MACHINES, VOLUME, along, machine


def ordered_factors(number: int) -> Iterator[tuple[int, ...]]:
    yield from [()] if number == 1 else []
    for first in range(2, number + 1):
        if number % first == 0:
            yield from ((first, *rest) for rest in ordered_factors(number // first))


def signature(axes: Sequence[Sequence[tuple[int, int, int]]], topology: Topology) -> object:
    """What makes up a placement: axes without names, equal dimensions exchangeable, no order on a switch."""
    kinds = [dim.link for dim in topology.dims]
    sizes = topology.dim_sizes

    def renamed(order: tuple[int, ...]) -> object:
        return sorted(
            sorted((order[dim], size, stride * (kinds[dim].kind == "torus")) for dim, size, stride in axis)
            for axis in axes
        )

    orders = itertools.permutations(range(len(sizes)))
    alike = (o for o in orders if all((sizes[a], kinds[a]) == (sizes[b], kinds[b]) for a, b in enumerate(o)))
    return str(min(renamed(order) for order in alike))


def brute_force(topology: Topology, max_axes: int) -> set[object]:
    splits = [
        [
            (dim, factors, axes)
            for factors in ordered_factors(size)
            for axes in itertools.permutations(range(max_axes), len(factors))
        ]
        for dim, size in enumerate(topology.dim_sizes)
    ]
    found = set()
    for combination in itertools.product(*splits):
        axes: dict[int, list[tuple[int, int, int]]] = {}
        for dim, factors, owners in combination:
            for place, (size, axis) in enumerate(zip(factors, owners, strict=True)):
                axes.setdefault(axis, []).append((dim, size, math.prod(factors[:place])))
        found.add(signature(list(axes.values()), topology))
    return found


@pytest.mark.parametrize("name", ["cpu:8", "cpu:12", "h100-dgx:4", "v5e:4x4", "v5e:2x4", "v4:2x2x4"])
@pytest.mark.parametrize("max_axes", [1, 2, 3])
def test_placements_are_complete_and_distinct(name: str, max_axes: int) -> None:
    topology = preset(name)
    found = list(topology.placements(max_axes))
    signatures = {
        signature([[(part.dim, part.size, part.stride) for part in axis] for axis in placement.segments], topology)
        for placement in found
    }
    assert len(signatures) == len(found)
    assert signatures == brute_force(topology, max_axes)


@pytest.mark.parametrize("name", MACHINES)
def test_every_placement_numbers_every_device_once(name: str) -> None:
    topology = preset(name)
    for placement in topology.placements():
        grid = topology.device_grid(placement)
        assert grid.shape == placement.axis_sizes
        assert all(size > 1 for size in placement.axis_sizes)
        assert sorted(grid.flat) == list(range(topology.device_count))


def test_a_single_device_has_one_placement() -> None:
    assert list(preset("cpu:1").placements()) == [Placement((1,), ((),))]


@pytest.mark.parametrize("axis_sizes", [(2, 8), (4, 4), (16,), (8, 2), (2, 2, 4), (1, 16)])
def test_the_default_placement_is_row_major(axis_sizes: tuple[int, ...]) -> None:
    topology = preset("h100-dgx:2")
    placement = topology.place(axis_sizes)
    assert placement.exact
    np.testing.assert_array_equal(topology.device_grid(placement), np.arange(16).reshape(axis_sizes))


def test_axes_that_do_not_nest_are_priced_on_the_slowest_link_they_touch() -> None:
    topology = machine(along("host", 4, "network", rate=1e6), along("gpu", 3))
    placement = topology.place((3, 4))
    assert not placement.exact
    np.testing.assert_array_equal(topology.device_grid(placement), np.arange(12).reshape(3, 4))
    cost = CostModel(topology).on("ab", (3, 4))
    assert cost.collective_seconds("all-gather", "b", VOLUME) == pytest.approx(0.75 * VOLUME / 1e6)


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mesh \(2, 3\) needs 6 devices; topology 'cpu:8' has 8"):
        CostModel(preset("cpu:8")).on("ab", (2, 3))


def test_dimensions_of_one_are_refused() -> None:
    with pytest.raises(ValueError, match="dimension 'x' has size 1"):
        machine(along("x", 1))
