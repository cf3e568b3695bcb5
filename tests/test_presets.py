"""Machines by name and by what JAX says of its devices."""

import pytest

from costmodel import CostModel, UnknownPreset, device_preset, preset, preset_names
from costmodel.cpus import CPU_PROFILES, cpu_profile
from costmodel.model import measured_model
from tests.costmodel_cases import flat


@pytest.mark.parametrize(
    ("name", "dim_sizes", "backend"),
    [
        ("cpu:8", (8,), "cpu"),
        ("cpu", (8,), "cpu"),
        ("cpu:1", (), "cpu"),
        ("a100-dgx:2", (2, 8), "gpu"),
        ("h100-dgx:4", (4, 8), "gpu"),
        ("h200-dgx:1", (8,), "gpu"),
        ("h200-dgx", (8,), "gpu"),
        ("v4:4x4x4", (4, 4, 4), "tpu"),
        ("v5p", (2, 2), "tpu"),
        ("v5e:16x16", (16, 16), "tpu"),
        ("v5e:16x16*2", (2, 16, 16), "tpu"),
        ("v7x:2x2x1", (2, 2, 2), "tpu"),
        ("7x:4x4x4*2", (2, 4, 4, 4, 2), "tpu"),
        ("v100-p3:2", (2, 2, 4), "gpu"),
        ("v100-p3:1x2", (2,), "gpu"),
        ("v100-dgx2", (16,), "gpu"),
        ("a100-dgx:2x4", (2, 4), "gpu"),
        ("a100-40gb-dgx:16", (16, 8), "gpu"),
        ("b200-dgx:1x1", (), "gpu"),
        ("gb200-nvl72", (72,), "gpu"),
        ("gb200-nvl72:2x64", (2, 64), "gpu"),
        ("gb300-nvl72:2", (2, 72), "gpu"),
        ("b300-dgx:4", (4, 8), "gpu"),
    ],
)
def test_presets_parse(name: str, dim_sizes: tuple[int, ...], backend: str) -> None:
    topology = preset(name)
    assert (topology.dim_sizes, topology.backend) == (dim_sizes, backend)
    assert CostModel(topology).on(("x",), (topology.device_count,)).reduce_scatters == (backend != "cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100dgx", "unknown preset 'h100dgx'; known are cpu, v100-p3, .* did you mean 'h100-dgx'?"),
        ("abacus", "unknown preset 'abacus'; known are cpu"),
        ("cpu:", "preset 'cpu:': '' is no size; write 'cpu:2'"),
        ("cpu:0", "'0' is no size"),
        ("v5e:16", "its slices have 2 dimensions, as in '2x4'"),
        ("h100-dgx:2x16", "write the number of hosts, or hosts x GPUs on each .at most 8., as in 'h100-dgx:2'"),
        ("h100-dgx:2x2x2", "write the number of hosts"),
        ("v100-p3:1x6", "write the number of hosts"),
        ("h100-dgx:2*2", "only TPUs come in slices; write 'h100-dgx:2'"),
        ("v5e:4x4*", "'' is no size; write 'v5e:2x4'"),
        ("cpu:2x2", "cpu takes one number; write 'cpu:2'"),
    ],
)
def test_unknown_presets_are_named(name: str, message: str) -> None:
    with pytest.raises(UnknownPreset, match=message):
        preset(name)


@pytest.mark.parametrize(
    ("kind", "count", "hosts", "dim_sizes"),
    [
        ("cpu", 8, 1, (8,)),
        ("cpu", 8, 2, (2, 4)),
        ("NVIDIA H100 80GB HBM3", 16, 2, (2, 8)),
        ("NVIDIA A100-SXM4-80GB", 4, 1, (4,)),
        ("NVIDIA H200", 8, 1, (8,)),
        ("TPU v5 lite", 32, 4, (4, 8)),
        ("TPU v5p", 64, 16, (4, 4, 4)),
        ("TPU v5", 8, 2, (2, 2, 2)),
        ("TPU v4", 1, 1, ()),
        ("TPU v6 lite", 256, 32, (16, 16)),
        ("TPU7x", 128, 16, (4, 4, 4, 2)),
        ("Tesla V100-SXM2-16GB", 16, 2, (2, 2, 4)),
        ("NVIDIA B200", 8, 1, (8,)),
        ("NVIDIA GB200", 144, 36, (2, 72)),
        ("NVIDIA GB200", 8, 2, (8,)),
    ],
)
def test_devices_are_recognised(kind: str, count: int, hosts: int, dim_sizes: tuple[int, ...]) -> None:
    topology = device_preset(kind, count, hosts)
    assert topology is not None
    assert (topology.dim_sizes, topology.device_count, topology.device.kind) == (dim_sizes, count, kind)


def test_unknown_devices_have_no_preset() -> None:
    assert device_preset("Abacus 3000", 8) is None


def test_tori_close_where_the_maker_says() -> None:
    assert [dim.link.wrap for dim in preset("v5e:8x16").dims] == [False, True]
    assert [dim.link.wrap for dim in preset("v4:4x4x8").dims] == [True, True, True]
    assert [dim.link.wrap for dim in preset("v4:2x4x4").dims] == [False, False, False]


@pytest.mark.parametrize("name", [*preset_names()[1:], "v5e:16x16*4", "gb200-nvl72:2x64", "v100-p3:4"])
def test_what_is_specified_bounds_what_is_reached(name: str) -> None:
    reached, specified = preset(name), preset(name, specified=True)
    assert reached.dim_sizes == specified.dim_sizes
    assert specified.device.launch_seconds == 0
    for dtype, rate in reached.device.flops_per_second.items():
        assert rate <= specified.device.rate(dtype), dtype
    assert reached.device.memory_bytes_per_second <= specified.device.memory_bytes_per_second
    costs = [flat(topology) for topology in (reached, specified)]
    for kind in ("all-gather", "all-reduce", "all-to-all"):
        slow, fast = (float(cost.collective_seconds(kind, ["all"], 2.0**32)) for cost in costs)
        assert fast <= slow * 1.001, kind


def test_slices_finish_inside_before_they_cross() -> None:
    """Two slices of two chips: an all-gather moves a quarter over a chip's part of the data-centre network."""
    cost = CostModel(preset("v5e:2x1*2", specified=True)).on(("slice", "chip"), (2, 2))
    seconds = [cost.collective_seconds("all-gather", ("slice", "chip"), nbytes) for nbytes in (0.0, 1e9)]
    assert seconds[1] - seconds[0] == pytest.approx(1e9 / 2 / 2 / 3.125e9)


def test_a_pair_of_a_wired_host_has_less_than_a_switched_one() -> None:
    """On a p3.16xlarge a GPU has one wire to the next one, four within its half, two to the other half."""
    cost = CostModel(preset("v100-p3", specified=True)).on(("across", "far", "near"), (2, 2, 2))
    seconds = {
        axes: float(cost.collective_seconds("all-gather", axes, 1e9))
        for axes in (("near",), ("across",), ("far", "near"), ("across", "far", "near"))
    }
    wire = 25e9
    assert seconds["near",] == pytest.approx(0.5e9 / wire)
    assert seconds["across",] == pytest.approx(0.5e9 / (2 * wire))
    assert seconds["far", "near"] == pytest.approx(0.75e9 / (4 * wire))
    assert seconds["across", "far", "near"] == pytest.approx(0.875e9 / (6 * wire))


def test_cpu_devices_share_their_host() -> None:
    two, eight = preset("cpu:2").device, preset("cpu:8").device
    assert two.rate("float32") == pytest.approx(4 * eight.rate("float32"))
    assert two.memory_bytes == pytest.approx(4 * eight.memory_bytes)
    assert two.launch_seconds <= eight.launch_seconds


def test_a_cpu_is_priced_as_those_of_its_maker() -> None:
    for profile in CPU_PROFILES.values():
        assert cpu_profile(str(measured_model(profile).measured_on["processor"])) == profile
    assert cpu_profile("AMD Ryzen 9 7950X 16-Core Processor") == "cpu-2core-amd.json"
    assert cpu_profile("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz") == "cpu-2core-intel.json"
    assert cpu_profile("arm") == "cpu-2core-intel.json"


def test_groups_across_cpu_hosts_use_the_network() -> None:
    topology = device_preset("cpu", 8, hosts=2)
    assert topology is not None
    cost = CostModel(topology).on(("host", "device"), (2, 4))
    within, across = (cost.collective_seconds("all-reduce", [axis], 2**20) for axis in ("device", "host"))
    assert within == pytest.approx(flat(preset("cpu:4")).collective_seconds("all-reduce", ["all"], 2**20))
    assert across > within


def test_a_calibrated_gpu_is_as_measured() -> None:
    """But for its memory, and with types that nobody timed."""
    measured, device = measured_model("h200.json").topology.device, preset("h200-dgx:2").device
    assert device.launch_seconds == measured.launch_seconds > 0
    assert device.round_seconds == measured.round_seconds > 0
    assert device.memory_curve == measured.memory_curve
    assert device.transposed_matmul == measured.transposed_matmul
    assert device.memory_bytes == 141e9
    assert device.rate("float8_e4m3fn") > device.rate("bfloat16") == measured.rate("bfloat16")
