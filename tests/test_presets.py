"""Machines by name and by what JAX says of its devices."""

import pytest

from costmodel import CostModel, UnknownPreset, device_preset, preset
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
    ],
)
def test_presets_parse(name: str, dim_sizes: tuple[int, ...], backend: str) -> None:
    topology = preset(name)
    assert (topology.dim_sizes, topology.backend) == (dim_sizes, backend)
    assert CostModel(topology).on(("x",), (topology.device_count,)).reduce_scatters == (backend != "cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h100dgx", "unknown preset 'h100dgx'; known are cpu, a100-dgx, .* did you mean 'h100-dgx'?"),
        ("abacus", "unknown preset 'abacus'; known are cpu"),
        ("cpu:", "preset 'cpu:': '' is no size; write 'cpu:2'"),
        ("cpu:0", "'0' is no size"),
        ("v5e:16", "its slices have 2 dimensions, as in '2x4'"),
        ("h100-dgx:2x8", "h100-dgx takes one number; write 'h100-dgx:2'"),
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


def test_cpu_devices_share_their_host() -> None:
    two, eight = preset("cpu:2").device, preset("cpu:8").device
    assert two.rate("float32") == pytest.approx(4 * eight.rate("float32"))
    assert two.memory_bytes == pytest.approx(4 * eight.memory_bytes)
    assert two.launch_seconds <= eight.launch_seconds


def test_groups_across_cpu_hosts_use_the_network() -> None:
    topology = device_preset("cpu", 8, hosts=2)
    assert topology is not None
    cost = CostModel(topology).on(("host", "device"), (2, 4))
    within, across = (cost.collective_seconds("all-reduce", [axis], 2**20) for axis in ("device", "host"))
    assert within == pytest.approx(flat(preset("cpu:4")).collective_seconds("all-reduce", ["all"], 2**20))
    assert across > within
