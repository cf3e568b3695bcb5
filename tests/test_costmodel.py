"""Prices against closed forms, published measurements and their own promises."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from costmodel import KINDS, CostModel, Device, Dim, Link, MeshCost, preset
from costmodel.compute import cold_seconds, matmul_seconds
from costmodel.device import FAR, REARRANGING
from costmodel.gemm import MatmulShape
from costmodel.memory import MemorySample
from costmodel.strides import spread_bytes
from costmodel.topology import Eager
from tests.costmodel_cases import MACHINES, VOLUME, along, flat, machine


@pytest.mark.parametrize(
    ("dtype", "rate"),
    [
        ("float32", 1e12),
        ("bfloat16", 2e12),
        ("float16", 2e12),
        ("float64", 5e11),
        ("complex128", 5e11),
        ("int32", 1e12),
        ("bool", 1e12),
        ("int8", 1e12),
        ("float8_e4m3fn", 2e12),
        ("no such type", 1e12),
    ],
)
def test_rates_fall_back_to_the_nearest_type(dtype: str, rate: float) -> None:
    assert machine().device.rate(dtype) == rate


def test_rate_of_a_device_that_knows_one_type_only() -> None:
    assert Device("d", {"int8": 3.0}, 1, 1, 0).rate("float32") == 3.0


def test_roofline_is_the_larger_of_arithmetic_and_memory() -> None:
    cost = flat(machine(along("x", 2)))
    assert cost.compute_seconds(1e12, 0.0, "float32") == 1.0
    assert cost.compute_seconds(1e12, 2e11, "float32") == 2.0
    np.testing.assert_array_equal(cost.compute_seconds([1e12, 4e12], [2e11, 0.0], "bfloat16"), [2.0, 2.0])


def test_what_comes_once_a_call_moves_as_slowly_as_all_that_a_call_moves() -> None:
    """At the rates of what was last moved a call before, where those were measured."""
    warm = (MemorySample(2.0**20, 1e-5), MemorySample(2.0**24, 1e-3))
    cold = (MemorySample(2.0**20, 2e-5), MemorySample(2.0**24, 4e-3))
    one_curve = Device("d", {"float32": 1e9}, 1e9, 1e9, 0.0, memory_curve=warm)
    two_curves = replace(one_curve, cold_memory_curve=cold)
    for device, (small, large) in ((one_curve, warm), (two_curves, cold)):
        assert device.memory_seconds(2.0**20) == pytest.approx(1e-5)
        assert device.memory_seconds(2.0**20, 2.0**20) == pytest.approx(small.seconds)
        assert device.memory_seconds(2.0**21, 2.0**20) == pytest.approx(1e-5 + small.seconds)
        assert device.memory_seconds(2.0**20, 2.0**20, 16.0) == pytest.approx(large.seconds / 16)
        assert cold_seconds(device, 2.0**20, 16.0) == pytest.approx(large.seconds / 16 - 1e-5)
        assert device.scaled(2.0, 1.0).memory_seconds(2.0**20, 2.0**20, 16.0) == pytest.approx(large.seconds / 32)
    here = preset("cpu:8").device
    assert here.memory_seconds(2.0**18, 2.0**18, 64.0) > here.memory_seconds(2.0**18)


def test_a_transposed_left_operand_has_a_curve_of_its_own_where_it_was_measured() -> None:
    device = replace(machine().device, matmul={"float32": MatmulShape(1.0, 1e30)})
    assert matmul_seconds(device, "float32", 1, 1, 1, transposed_itemsize=4).round() == 1
    device = replace(device, transposed_matmul={"float32": MatmulShape(2.0, 1e30)})
    assert matmul_seconds(device, "float32", 1, 1, 1, transposed_itemsize=4).round() == 2
    assert matmul_seconds(device, "float32", 1, 1, 1).round() == 1
    assert matmul_seconds(device.scaled(1.0, 3.0), "float32", 1, 1, 1, transposed_itemsize=4).round() == 6
    across = MatmulShape(2.0, 1e30, aliased_packing_seconds=1.0)
    device = replace(device, transposed_matmul={"float32": across, "bfloat16": across})
    for dtype, itemsize, rows in (("float32", 4, 512), ("bfloat16", 2, 1024)):  # rows of 2 KiB
        of = [matmul_seconds(device, dtype, m, 1, 1, transposed_itemsize=itemsize) for m in (rows, rows // 2)]
        assert of == pytest.approx([2 + rows, 2 + rows / 4], rel=1e-6)


def test_a_convolution_gathers_patches_and_packs_its_kernel_alone() -> None:
    """One patch for each output position and pixel of the kernel, whatever its channels."""
    shape = MatmulShape(1.0, 1e30, overflow_seconds=1.0, left_packing_seconds=1.0, right_packing_seconds=0.5)
    device = replace(machine().device, matmul={"float32": shape}, element_seconds={"patch": 2.0})
    seconds = matmul_seconds(device, "float32", rows=10, window=9, inner=27, columns=4)
    assert seconds == pytest.approx(1.0 + 0.5 * 27 * 4 + 2.0 * 10 * 9, rel=1e-6)
    more_channels = matmul_seconds(device, "float32", rows=10, window=9, inner=54, columns=4)
    assert more_channels - seconds == pytest.approx(0.5 * 27 * 4, rel=1e-6)


def test_classes_of_elements_cost_more_than_their_memory_only_where_that_was_measured() -> None:
    assert flat(machine(along("x", 2))).compute_seconds(0.0, 0.0, "float32", {"exponential": 1e15}) == 0.0
    cpu = flat(preset("cpu:8"))
    memory = cpu.compute_seconds(0.0, 8e6, "float32")
    each = cpu.device.element_seconds["exponential"]
    assert cpu.compute_seconds(0.0, 8e6, "float32", {"exponential": 1e6}) == pytest.approx(memory + 1e6 * each)


def test_elements_a_large_power_of_two_apart_are_slow_to_rearrange() -> None:
    """Of the stride only the largest power of two that divides it counts; 4 KiB apart is as bad as it gets."""
    seconds = dict(zip(REARRANGING, (1.0, 2.0, 3.0, 4.0, 5.0), strict=True))
    device = replace(preset("cpu:8").device, element_seconds=seconds)
    strides = np.array([8, 24, 512, 1000, 1024, 3072, 2048, 6144, 4096, 12288, 65536])
    assert device.rearranging_seconds(strides, 8, strides).tolist() == [1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 5]
    assert replace(device, element_seconds={}).rearranging_seconds(strides, 8, strides).tolist() == [0] * 11
    shares = device.rearranging_seconds(strides, 8, strides, near_share=0.25)
    assert (shares / device.rearranging_seconds(strides, 8, strides)).tolist() == [1.0] + [0.25] * 10


def test_elements_that_a_cache_has_no_places_for_together_are_read_from_behind_it() -> None:
    """Of 4 KiB apart 512 fill as many places as 8,192 of 256 bytes apart; but pages may lie anywhere in memory."""
    seconds = dict(zip((*REARRANGING, *FAR), (0.0, 1.0, 1.0, 1.0, 3.0, 8.0, 28.0), strict=True))
    device = replace(preset("cpu:8").device, element_seconds=seconds)

    def far(rows: int, stride: int, in_tiles: bool = False) -> float:
        near = device.rearranging_seconds(stride, 4, stride, in_tiles)
        return float(device.rearranging_seconds(stride, 4, rows * stride, in_tiles) - near)

    assert [far(rows, 4096) for rows in (1, 256, 512, 1024, 4096)] == [0, 0, 5, 25, 25]
    assert far(512, 4096) == far(2048, 1024) == far(8192, 256) == far(2048, 3072) == far(512, 65536) == 5
    assert 5 < far(768, 4096) < 25
    assert [far(rows, 4096, in_tiles=True) for rows in (256, 512, 1024, 4096)] == [0, 5, 5, 5]
    beside = float(spread_bytes(4096, 256 * 4096))
    assert float(device.rearranging_seconds(4096, 4, 256 * 4096, beside_bytes=beside) - 3) == far(512, 4096)
    assert float(device.rearranging_seconds(4, 4, 2**24, beside_bytes=2.0**24)) == 0
    assert float(device.rearranging_seconds(4, 4, 2**24)) == 0  # rows stay whole
    unmeasured = replace(device, element_seconds={name: seconds[name] for name in REARRANGING})
    assert float(unmeasured.rearranging_seconds(4096, 4, 2**24)) == 3


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize(
    ("kind", "passes"),
    [("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2), ("all-to-all", 1)],
)
def test_on_a_switch_a_device_moves_all_but_its_own_part(kind: str, passes: int, size: int) -> None:
    seconds = flat(machine(along("x", size))).collective_seconds(kind, ["all"], VOLUME)
    assert seconds == pytest.approx(passes * (size - 1) / size * VOLUME / 1e9)


@pytest.mark.parametrize(
    ("kind", "per_byte"),
    # A ring of n takes in from both sides; of an all-to-all n/8 of the buffer passes each link (n even).
    [("all-gather", 15 / 16 / 2), ("all-reduce", 15 / 16), ("all-to-all", 16 / 8), ("collective-permute", 1)],
)
def test_rings_of_a_torus(kind: str, per_byte: float) -> None:
    ring = flat(machine(along("x", 16, "torus", wrap=True)))
    assert ring.collective_seconds(kind, ["all"], VOLUME) == pytest.approx(per_byte * VOLUME / 1e9)


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "reduce-scatter", "all-to-all"])
def test_a_torus_without_wrap_around_takes_twice_as_long(kind: str) -> None:
    ring, line = (flat(machine(along("x", 16, "torus", wrap=wrap))) for wrap in (True, False))
    assert line.collective_seconds(kind, ["all"], 1.0) == 2 * ring.collective_seconds(kind, ["all"], 1.0)


def test_two_dimensions_of_a_torus_gather_with_both_bandwidths() -> None:
    cost = CostModel(preset("v4:4x4x4")).on("xyz", (4, 4, 4))
    seconds = cost.collective_seconds("all-gather", "xy", 2 * 1024 * 4096)
    # The scaling book, "Sharded matrices", question 2: 46 µs without latencies (4 hops and the start, 9 µs).
    assert seconds - 9e-6 == pytest.approx(46e-6, rel=0.06)


def test_interleaved_groups_share_the_links_of_a_torus() -> None:
    cost = CostModel(machine(along("x", 16, "torus", wrap=True))).on("ab", (4, 4))
    line = cost.collective_seconds("all-gather", "b", VOLUME)
    ring = cost.collective_seconds("all-gather", "a", VOLUME)
    assert line == pytest.approx(0.75 * VOLUME / 1e9)  # four neighbours in a row, one way in
    assert ring == pytest.approx(0.75 * VOLUME / 1e9 * 4 / 2)  # closed, but four rings on each link


@pytest.mark.parametrize(
    ("staged", "moved"),
    [(True, 1 / 2), (False, 7 / 8)],  # the other host's half; a ring through all eight passes all but one's own on
)
def test_across_hosts_only_the_share_of_one_device_moves(staged: bool, moved: float) -> None:
    hosts = machine(along("host", 2, "network", rate=1e6, staged=staged), along("gpu", 4, rate=1e9))
    cost = CostModel(hosts).on(("host", "gpu"), (2, 4))
    both = cost.collective_seconds("all-gather", ("host", "gpu"), VOLUME)
    assert both == pytest.approx(VOLUME / 4 * moved / 1e6)
    # Two trees between two hosts move half in each direction, once up and once down.
    assert cost.collective_seconds("all-reduce", ("host", "gpu"), VOLUME) == pytest.approx(VOLUME / 4 / 1e6)
    assert cost.collective_seconds("broadcast", ("host", "gpu"), VOLUME) == pytest.approx(VOLUME / 4 / 1e6)
    assert cost.collective_seconds("all-gather", ["gpu"], VOLUME) == pytest.approx(0.75 * VOLUME / 1e9)
    assert cost.collective_seconds("all-to-all", ("gpu", "host"), VOLUME) == pytest.approx(VOLUME / 2 / 1e6)


def test_a_switch_that_adds_reduces_in_one_pass() -> None:
    plain = along("x", 8)
    adding = replace(plain, link=replace(plain.link, reduce_bytes_per_second=8e8))
    ring, switch = (flat(machine(dim)).collective_seconds("all-reduce", ["all"], VOLUME) for dim in (plain, adding))
    assert ring == pytest.approx(2 * 7 / 8 * VOLUME / 1e9)
    assert switch == pytest.approx(VOLUME / 8e8)
    pair = CostModel(machine(adding)).on("ab", (4, 2)).collective_seconds("all-reduce", "b", VOLUME)
    assert pair == pytest.approx(VOLUME / 1e9)  # of two the ring is faster


def test_each_size_goes_by_the_protocol_that_is_faster_for_it() -> None:
    link = Link("switch", 0.0, 1e9, start_seconds=1e-3, eager=Eager(1e-5, 0.0, 1e8))
    cost = flat(machine(Dim("x", 2, link)))
    assert cost.collective_seconds("all-gather", ["all"], 2e3) == pytest.approx(1e-5 + 1e3 / 1e8)
    assert cost.collective_seconds("all-gather", ["all"], 2e6) == pytest.approx(1e-3 + 1e6 / 1e9)


def test_wires_among_all_serve_a_part_of_them_in_part() -> None:
    """Four devices with three wires each, as within half of a p3.16xlarge: a pair has one of them."""
    cost = CostModel(machine(along("x", 4, "mesh", rate=3e9))).on("ab", (2, 2))
    assert cost.collective_seconds("all-gather", "ab", VOLUME) == pytest.approx(0.75 * VOLUME / 3e9)
    assert cost.collective_seconds("all-gather", "b", VOLUME) == pytest.approx(0.5 * VOLUME / 1e9)
    assert cost.collective_seconds("all-to-all", "ab", VOLUME) == pytest.approx(0.25 * VOLUME / 1e9)


def test_a_broadcast_is_a_pipeline() -> None:
    link = Link("switch", latency_seconds=1e-6, bytes_per_second=1e9, start_seconds=5e-6)
    cost = flat(machine(Dim("x", 8, link)))
    assert cost.collective_seconds("broadcast", ["all"], 1e9) == pytest.approx(5e-6 + 3e-6 + 1.0)


def test_a_tree_serves_small_all_reduces() -> None:
    link = Link("switch", latency_seconds=1e-6, bytes_per_second=1e9, start_seconds=5e-6)
    cost = flat(machine(Dim("x", 64, link)))
    assert cost.collective_seconds("all-reduce", ["all"], 0.0) == pytest.approx(5e-6 + 2 * 6e-6)
    assert cost.collective_seconds("all-gather", ["all"], 0.0) == pytest.approx(5e-6 + 63e-6)


@pytest.mark.parametrize(
    ("name", "kind", "nbytes", "measured_seconds"),
    [  # nccl-tests on 8×H200; 4×8 H200 (stas00/ml-engineering, network); XLA's table of H100
        ("h200-dgx:1", "all-gather", 17179869184, 41594.72e-6),
        ("h200-dgx:4", "all-reduce", 4294967296, 22804.33e-6),
        ("h100-dgx:1", "all-gather", 134217728, 390.2e-6),
        ("h100-dgx:1", "reduce-scatter", 16777216, 86.6e-6),
        ("h100-dgx:1", "all-to-all", 536870912, 1460.5e-6),
    ],
)
def test_published_measurements(name: str, kind: str, nbytes: int, measured_seconds: float) -> None:
    assert flat(preset(name)).collective_seconds(kind, ["all"], nbytes) == pytest.approx(measured_seconds, rel=0.25)


def meshes_of(name: str) -> Iterator[MeshCost]:
    topology = preset(name)
    for placement in itertools.islice(topology.placements(), 40):
        yield CostModel(topology).on("abc"[: len(placement.axis_sizes)], placement.axis_sizes, placement)


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_more_bytes_never_cost_less_and_nothing_is_free(name: str, kind: str) -> None:
    sizes = np.array([0.0, 1.0, *2.0 ** np.arange(8, 32, 2)])
    for cost in meshes_of(name):
        for count in range(1, len(cost.axis_sizes) + 1):
            for axes in itertools.combinations(cost.axis_sizes, count):
                seconds = cost.collective_seconds(kind, axes, sizes)
                assert np.all(seconds > 0)
                assert np.all(np.diff(seconds) >= 0)
                assert seconds[-1] > seconds[0]
                assert seconds[5] == cost.collective_seconds(kind, axes, sizes[5])


def test_a_group_of_one_has_nothing_to_do() -> None:
    cost = CostModel(preset("cpu:8")).on("ab", (8, 1))
    assert cost.collective_seconds("all-reduce", "b", 1e6) == 0.0
    assert cost.collective_seconds("all-reduce", (), 1e6) == 0.0


def test_unknown_collective_and_axis() -> None:
    cost = flat(preset("cpu:8"))
    with pytest.raises(ValueError, match="unknown collective 'gossip'; known are all-reduce, all-gather"):
        cost.collective_seconds("gossip", ["all"], 1.0)
    with pytest.raises(ValueError, match="unknown mesh axis 'x'; the mesh has all"):
        cost.collective_seconds("all-reduce", ["x"], 1.0)
