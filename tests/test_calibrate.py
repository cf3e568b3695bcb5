"""Calibration of the devices at hand, at its smallest."""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from costmodel import KINDS, CostModel, Device
from costmodel.device import ELEMENT_CLASSES
from costmodel.memory import MemorySample
from costmodel.waits import Waits
from executor import probes
from executor.calibrate import calibrate, group_sizes, met_memory, permuted_alike
from executor.compiled import collectives
from executor.probe_sizes import CPU_SIZES, GPU_SIZES, ProbeSizes, probe_sizes
from executor.timers import compiled


@pytest.fixture(scope="module")
def seen() -> list[tuple[int, int]]:
    """The progress that was told of."""
    return []


SMALL = replace(
    CPU_SIZES,
    layers=CPU_SIZES.layers[:9],
    kept_bytes=2**18,
    array_bytes=CPU_SIZES.array_bytes[:4],
    elements=(64, 256),
    cold_bytes=CPU_SIZES.cold_bytes[:3],
    fresh_bytes=40 * 2**20,
)
"""Enough for each step of the way, though not for figures that hold."""


@pytest.fixture(scope="module")
def model(seen: list[tuple[int, int]]) -> Iterator[CostModel]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[calibrate.__module__], "probe_sizes", lambda platform: SMALL)
        yield calibrate(
            jax.devices()[:2],
            rounds=1,
            collective_bytes=(2**12, 2**14, 2**16),
            matrix_types=("float32",),
            progress=lambda done, total: seen.append((done, total)),
        )


def test_every_collective_is_measured(model: CostModel) -> None:
    assert {(fit.kind, fit.group_size) for fit in model.topology.measured} == {(kind, 2) for kind in KINDS}
    cost = model.on(("x",), (2,))
    for kind in KINDS:
        assert np.all(cost.collective_seconds(kind, ["x"], np.array([2.0**10, 2.0**24])) > 0)


def test_permutations_over_groups_of_any_size_take_what_they_take_at_the_mean() -> None:
    taken = {("collective-permute", size, nbytes): size * nbytes for size in (2, 4) for nbytes in (10, 20)}
    gathers = {("all-gather", size, 10): float(size) for size in (2, 4)}
    expected = {("collective-permute", size, nbytes): 3 * nbytes for size in (2, 4) for nbytes in (10, 20)}
    assert permuted_alike(taken | gathers) == expected | gathers


def test_the_device_is_measured(model: CostModel) -> None:
    device = model.topology.device
    assert device.kind == "cpu"
    assert device.rate("float32") > 1e8
    assert device.memory_bytes_per_second > 1e7
    assert 0 < device.launch_seconds < 1e-2
    assert set(device.element_seconds) == set(ELEMENT_CLASSES)


def test_memory_is_timed_after_meetings_where_devices_share_cores(model: CostModel) -> None:
    met = model.topology.device.met_memory_curve
    assert [sample.nbytes for sample in met] == list(SMALL.cold_bytes)
    assert all(sample.seconds > 0 for sample in met)


def test_memory_met_again_is_what_a_round_takes_beside_its_meeting_and_what_it_writes() -> None:
    """Of 256 KiB read and written, 10 µs each in a loop, in rounds of 200 µs around next to nothing."""
    curve = tuple(MemorySample(2.0**power, 2.0 ** (power - 18) * 10e-6) for power in (10, 26))
    device = Device("d", {"float32": 1e9}, 1e9, 1e9, 0.0, memory_curve=curve)
    waits = Waits((1e-5,), (0.0,), {8: 5e-6})
    (met,) = met_memory({2**12: 200e-6, 2**18: 200e-6 + 5e-6 + 10e-6 + 40e-6}, device, waits, 8)
    assert (met.nbytes, met.seconds) == (2**18, pytest.approx(40e-6))
    (near,) = met_memory({2**12: 200e-6, 2**18: 190e-6}, device, waits, 8)
    assert near.seconds == pytest.approx(10e-6)
    assert met_memory({}, device, None, 1) == ()


def test_a_loop_around_a_meeting_is_long_for_its_first_rounds_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the rounds that a device tells of; other loops are as long as the clock wants them."""
    monkeypatch.setattr("executor.timers.LOOP_SECONDS", 0.0)
    monkeypatch.setattr("executor.timers.LOOP_RATIO", 0)
    told: list[int] = []

    def rounds(probe: probes.LoopProbe) -> int:
        def step(x: jax.Array) -> probes.Arrays:
            jax.debug.callback(lambda: told.append(1))
            return probe.step(x)

        run = compiled(replace(probe, step=step), jax.devices()[:1])()
        told.clear()
        run()
        jax.effects_barrier()
        return len(told) - 1  # the short loop has one

    assert rounds(probes.met_probe(2**12, 1)) == probes.MET_ROUNDS
    assert rounds(probes.memory_probe(2**12)) == probes.SHORT_LOOP


def test_the_profile_reads_back(model: CostModel) -> None:
    assert CostModel.from_json(model.to_json()) == model


def test_progress_reaches_its_total(model: CostModel, seen: list[tuple[int, int]]) -> None:
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group_size", [2, 3, 6])
def test_groups_of_six_devices_are_timed(kind: str, group_size: int) -> None:
    """Of every size that an axis can have, with bytes that the group does not divide."""
    devices = jax.devices()[:6]
    probe = probes.collective_probe(kind, group_size, 2**12, len(devices), CPU_SIZES)
    assert 0 < compiled(probe, devices)()() < 1
    brought = 2**12 / group_size if kind == "reduce-scatter" else 2**12
    assert 4 * math.prod(probe.shapes[0]) == pytest.approx(brought, rel=0.1)


@pytest.mark.parametrize(("group_size", "placed"), [(2, ["z", "y", "x"]), (4, ["yz", "xy"]), (8, ["xyz"])])
def test_all_to_alls_are_timed_as_the_partitioner_makes_them(group_size: int, placed: Sequence[str]) -> None:
    """There and back, among neighbours and among devices further apart, and nothing beside."""
    mesh = {"x": 2, "y": 2, "z": 2}
    probe = probes.collective_probe("all-to-all", group_size, 2**12, len(jax.devices()), CPU_SIZES)
    split = NamedSharding(jax.make_mesh((8,), ("all",)), PartitionSpec("all"))
    x = jnp.ones(8 * math.prod(probe.shapes[0]))
    text = jax.jit(probe.step, in_shardings=split, out_shardings=split).lower(x).compile().as_text()
    found = [(one.kind, "".join(one.axes), one.bytes) for one in collectives(text, mesh)]
    assert found == [("all-to-all", axes, 2**12) for axes in placed for _ in range(2)]


@pytest.mark.parametrize("kind", ["all-gather", "all-reduce", "reduce-scatter", "collective-permute"])
@pytest.mark.parametrize(
    ("group_size", "nbytes", "placed", "arrays"),
    [
        (2, 2**12, ["z", "y", "x"], 15), (2, 2**12, ["z"], 16), (2, 2**22, ["z", "y", "x"], 3),
        (4, 2**22, ["yz", "xy"], 4), (8, 2**24, ["xyz"], 2),
    ],
)  # fmt: skip
def test_collectives_bring_more_arrays_than_caches_hold(
    kind: str, group_size: int, nbytes: int, placed: Sequence[str], arrays: int
) -> None:
    """Each once a round, the same groups or all kinds in turn; nothing is copied, what is sent is written at once."""
    mesh = {"x": 2, "y": 2, "z": 2}
    sent = group_size * nbytes if kind == "reduce-scatter" else nbytes
    alternate = placed != ["z"]
    probe = probes.collective_probe(kind, group_size, sent, len(jax.devices()), CPU_SIZES, alternate)
    split = NamedSharding(jax.make_mesh((1, 8), ("groups", "group")), PartitionSpec("group"))
    on_each = jax.shard_map(probe.step, mesh=split.mesh, in_specs=split.spec, out_specs=split.spec, check_vma=False)
    looped = jax.jit(lambda *arrays: jax.lax.fori_loop(0, 9, lambda _, arrays: on_each(*arrays), arrays))
    structs = [jax.ShapeDtypeStruct((8 * math.prod(shape),), "float32", sharding=split) for shape in probe.shapes]
    text = looped.lower(*structs).compile().as_text()
    found = [(one.kind, "".join(one.axes), one.bytes) for one in collectives(text, mesh)]
    assert found == [(kind, axes, sent) for axes in placed] * (arrays // len(placed))
    assert len(probe.shapes) == probe.repetitions == arrays
    assert not re.search(r"= \w+\[\d{3,}\]\S* (copy|iota)\(", text.split("ENTRY")[0])


def test_too_few_sizes_are_told_before_anything_is_timed() -> None:
    with pytest.raises(ValueError, match="collective_bytes has fewer than 3 sizes: "):
        calibrate(jax.devices()[:2], collective_bytes=(2**10, 2**20))


def test_an_axis_may_have_any_size_that_divides_the_devices() -> None:
    assert group_sizes(12) == [2, 3, 4, 6, 12]
    assert group_sizes(1) == []


def test_without_a_type_of_matrices_there_is_no_rate() -> None:
    with pytest.raises(ValueError, match="matrix_types names none"):
        calibrate(jax.devices()[:2], matrix_types=())


@pytest.mark.parametrize("product", probes.PRODUCTS)
@pytest.mark.parametrize("dtype", probes.MATRIX_TYPES)
def test_where_no_cold_memory_is_timed_products_go_through_cold_operands(product: str, dtype: str) -> None:
    """Together more than a GPU's caches hold, unless one alone is more; where it is timed, there is one."""
    for layer in GPU_SIZES.layers:
        _, _, *kept = probes.product_probe(product, layer, dtype, GPU_SIZES).shapes
        kept_bytes = sum(map(math.prod, kept)) * jnp.dtype(dtype).itemsize
        assert len(kept) == GPU_SIZES.most_kept or kept_bytes > GPU_SIZES.kept_bytes / 2
    assert all(probes.product_probe(product, layer, dtype, CPU_SIZES).repetitions == 1 for layer in CPU_SIZES.layers)


@pytest.mark.parametrize("product", probes.PRODUCTS)
@pytest.mark.parametrize("sizes", [CPU_SIZES, replace(CPU_SIZES, cold_bytes=())], ids=["warm", "cold"])
def test_a_step_of_products_is_so_many_repetitions(product: str, sizes: ProbeSizes) -> None:
    layer = (16, 512, 512)
    probe = probes.product_probe(product, layer, "float32", sizes)
    arrays = [jax.ShapeDtypeStruct(shape, "float32") for shape in probe.shapes]
    products = str(jax.make_jaxpr(probe.step)(*arrays)).count("dot_general")
    assert products == probe.repetitions == len(arrays) - 2
    result, *operands = (jnp.ones(array.shape) for array in arrays)
    _, inner, _ = probes.product_sizes(product, layer)
    results = jax.jit(probe.step)(inner * result, *operands)  # that of ones
    assert [result.shape for result in results] == [array.shape for array in arrays]
    assert math.isclose(float(results[1][0, 0]), 1.0)


def test_products_multiply_what_a_layer_does() -> None:
    """By the sizes of the contraction: rows, contracted and columns are those the cost is fitted to."""
    for product in probes.PRODUCTS:
        probe = probes.product_probe(product, (64, 1024, 256), "float32", CPU_SIZES)
        jaxpr = jax.make_jaxpr(probe.step)(*(jax.ShapeDtypeStruct(shape, "float32") for shape in probe.shapes))
        made = next(eqn.outvars[0].aval for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general")
        rows, _, columns = probes.product_sizes(product, (64, 1024, 256))
        assert made.shape == (rows, columns)


def test_every_platform_but_cpu_is_probed_as_gpus_are() -> None:
    assert probe_sizes("cpu") is CPU_SIZES
    assert probe_sizes("gpu") is GPU_SIZES


@pytest.mark.parametrize("sizes", [CPU_SIZES, GPU_SIZES], ids=["cpu", "gpu"])
def test_steps_go_round(sizes: ProbeSizes) -> None:
    """Arrays come out as they went in; traced alone, since a gigabyte is for a GPU."""
    loops = [probes.launch_probe(sizes), *map(probes.memory_probe, sizes.array_bytes)]
    loops += probes.element_probes(sizes).values()
    loops += [probes.product_probe(p, layer, "float32", sizes) for p in probes.PRODUCTS for layer in sizes.layers]
    for probe in loops:
        arrays = tuple(jax.ShapeDtypeStruct(shape, probe.dtype) for shape in probe.shapes)
        assert [(out.shape, out.dtype) for out in jax.eval_shape(probe.step, *arrays)] == [
            (array.shape, array.dtype) for array in arrays
        ]
    for call in probes.call_probes(sizes).values():
        jax.eval_shape(call.fn, [jax.ShapeDtypeStruct(call.shape, "float32")] * call.arrays)
    assert ("patch" in probes.call_probes(sizes)) == sizes.gathers_patches
