"""Fits of timed collectives, and profiles on their way through JSON."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from costmodel import CostModel, ProfileError, preset, preset_names
from costmodel.fit import CollectiveFit, Sample, fit_collectives, fitted_seconds


def test_a_fit_recovers_the_formula_of_its_samples() -> None:
    truth = CollectiveFit("all-reduce", 4, 1e-4, 1e-10, 2.0**20, 3e-10, 0.0)
    sizes = 2.0 ** np.arange(12, 28, 2)
    (fit,) = fit_collectives(Sample("all-reduce", 4, size, float(truth.seconds(size))) for size in sizes)
    np.testing.assert_allclose(fit.seconds(sizes), truth.seconds(sizes), rtol=1e-6)
    assert fit.relative_error < 1e-6


def test_group_sizes_between_the_measured_are_interpolated() -> None:
    fits = [CollectiveFit("all-reduce", size, seconds, 0.0, 0.0, 0.0, 0.0) for size, seconds in ((2, 1.0), (8, 3.0))]
    assert [float(fitted_seconds(fits, size, 1.0)) for size in (2, 4, 8, 16)] == [1.0, 2.0, 3.0, 3.0]


def test_of_what_comes_once_a_call_as_much_is_cold_as_of_all_that_a_call_moves() -> None:
    fit = CollectiveFit("all-gather", 8, 1e-4, 1e-10, 2.0**20, 3e-10, 0.0)
    within = fit.start_seconds + fit.seconds_per_byte * 2**18
    for call_bytes, cold in ((0.0, 0.0), (2.0**20, 0.0), (2.0**21, 0.5), (2.0**22, 0.75)):
        assert fit.seconds(2.0**18, call_bytes) == pytest.approx(within + cold * 2**18 * fit.overflow_seconds_per_byte)
    assert fit.seconds(2.0**22, 2.0**21) == fit.seconds(2.0**22), "it overflows the caches alone"


def test_a_fit_wants_three_sizes() -> None:
    with pytest.raises(ValueError, match="all-gather over groups of 2: three different byte counts"):
        fit_collectives([Sample("all-gather", 2, 8.0, 1.0), Sample("all-gather", 2, 16.0, 1.0)])


@pytest.mark.parametrize("name", preset_names())
def test_a_profile_reads_back_equal(name: str) -> None:
    model = CostModel(preset(name), overlap={"all-gather": 0.25}, measured_on={"cores": 2})
    assert CostModel.from_json(model.to_json()) == model
    assert hash(CostModel.from_json(model.to_json())) == hash(model)


def broken(path: Sequence[str | int], value: object) -> str:
    """A profile with the field at `path` set, or with None removed."""
    record = json.loads(CostModel(preset("cpu:8")).to_json())
    parent = record
    for key in path[:-1]:
        parent = parent[key]
    if value is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["overlap"], {"all-gather": 1.5}, "overlap.all-gather is 1.5; a number from 0 to 1 belongs there"),
        (["overlap"], 0.5, "overlap is 0.5; an object belongs there"),
        (["topology"], None, "mine.json: topology is missing"),
        (["format"], 99, "mine.json: format 99, but this version reads 12"),
        (
            ["topology", "device", "memory_bytes"],
            "much",
            r"topology.device.memory_bytes is 'much'; a number from 1 belongs",
        ),
        (["topology", "device", "memory_bytes"], True, "topology.device.memory_bytes is True"),
        (["topology", "device", "flops_per_second"], {}, "flops_per_second is empty"),
        (["topology", "device", "element_seconds"], {"tan": 1e-9}, "element_seconds has 'tan'; known classes are"),
        (["topology", "device", "element_seconds"], {"sort": -1e-9}, "element_seconds.sort is -1e-09"),
        (["topology", "device", "call"], {}, "device.call.call_seconds is missing"),
        (["topology", "device", "flops_per_second", "float32"], -1, r"flops_per_second.float32 is -1"),
        (
            ["topology", "dims", 0, "link", "kind"],
            "rope",
            r"dims\[0\].link.kind is 'rope'; one of bus, switch",
        ),
        (["topology", "dims", 0, "link", "wrap"], 1, r"link.wrap is 1; true or false belongs there"),
        (["topology", "measured"], {}, "topology.measured is {}; a list belongs there"),
        (["topology", "measured", 2, "group_size"], 1, r"topology.measured\[2\].group_size is 1"),
        (["topology", "backend"], 3, "topology.backend is 3; a text belongs there"),
    ],
)
def test_profile_errors_name_file_and_field(path: Sequence[str | int], value: object, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        CostModel.from_json(broken(path, value), "mine.json")


def test_profiles_that_are_not_there_or_not_json() -> None:
    with pytest.raises(ProfileError, match=r"nowhere.json: No such file or directory; write a profile with"):
        CostModel.read("nowhere.json")
    with pytest.raises(ProfileError, match=r"mine.json: not JSON \(.*\); write a new profile"):
        CostModel.from_json("{", "mine.json")
    with pytest.raises(ProfileError, match=r"mine.json: the profile is \[\]; an object belongs there"):
        CostModel.from_json("[]", "mine.json")
