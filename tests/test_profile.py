"""Curves of timed collectives, and profiles on their way through JSON."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from costmodel import CostModel, ProfileError, preset, preset_names
from costmodel.curves import CollectiveCurve, Sample, between_group_sizes, collective_curves
from costmodel.model import measured_model


def curve(kind: str, group_size: int, *points: tuple[float, float]) -> CollectiveCurve:
    """Through byte counts and the microseconds that they took."""
    (made,) = collective_curves(Sample(kind, group_size, nbytes, 1e-6 * taken) for nbytes, taken in points)
    return made


STEEPER = curve("all-gather", 8, (2**10, 100.0), (2**20, 200.0), (2**22, 1000.0))


def test_a_curve_goes_through_what_was_timed_and_on_as_at_its_end() -> None:
    sizes = [1.0, 2**10, (2**10 + 2**20) / 2, 2**20, 2**22, 2**22 + 2**20]
    micros = [100, 100, 150, 200, 1000, 1000 + 800 / 3]
    np.testing.assert_allclose(STEEPER.seconds(sizes), 1e-6 * np.array(micros))
    assert STEEPER.start_seconds == pytest.approx(1e-4)


def test_the_error_of_a_curve_is_what_its_neighbours_say_of_each_size() -> None:
    assert curve("all-gather", 8, (1, 10.0), (2, 20.0), (4, 40.0), (8, 80.0)).relative_error == pytest.approx(0.0)
    assert curve("all-gather", 8, (1, 10.0), (2, 25.0), (3, 30.0)).relative_error == pytest.approx(0.2)


def test_more_bytes_take_no_less_whatever_the_noise_says() -> None:
    assert curve("all-gather", 2, (1, 30.0), (2, 20.0), (4, 40.0)).seconds(2) == pytest.approx(3e-5)


def test_what_groups_wait_when_they_part_is_not_in_their_curve() -> None:
    samples = [Sample("all-gather", 2, nbytes, 1e-5 * nbytes, parting_seconds=4e-6) for nbytes in (1, 2, 4)]
    (made,) = collective_curves(samples)
    assert made.timed_seconds == pytest.approx((6e-6, 16e-6, 36e-6))
    assert made.scaled(start=3.0, speed=1.0).parting_seconds == pytest.approx(12e-6)


def test_waiting_for_more_than_a_collective_takes_leaves_it_something() -> None:
    """A difference of two measurements on a busy host; a profile with less than nothing could not be read again."""
    samples = [Sample("all-gather", 2, nbytes, 1e-5 * nbytes, parting_seconds=5e-5) for nbytes in (1, 2, 4)]
    (made,) = collective_curves(samples)
    assert made.parting_seconds == pytest.approx(9e-6)
    assert made.timed_seconds == pytest.approx((1e-6, 11e-6, 31e-6))


def test_group_sizes_between_the_measured_are_interpolated() -> None:
    curves = [curve("all-reduce", size, *((b, micros) for b in (1, 2, 4))) for size, micros in ((2, 1.0), (8, 3.0))]
    micros = [1e6 * float(between_group_sizes(curves, size, lambda each: each.seconds(1.0))) for size in (2, 4, 8, 16)]
    assert micros == pytest.approx([1.0, 2.0, 3.0, 3.0])


def test_other_hosts_start_later_and_have_more_cores_and_caches() -> None:
    other = STEEPER.scaled(start=3.0, speed=2.0)
    assert other.start_seconds == pytest.approx(3e-4)
    for nbytes in (2.0**18, 2.0**21, 2.0**24):
        assert float(other.seconds(2 * nbytes)) == pytest.approx(float(STEEPER.seconds(nbytes)) + 2e-4)


@pytest.mark.parametrize("sizes", [(8.0, 16.0), (8.0, 16.0, 16.0)])
def test_a_curve_wants_three_sizes(sizes: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="all-gather over groups of 2: three different byte counts"):
        collective_curves([Sample("all-gather", 2, size, 1.0) for size in sizes])


@pytest.mark.parametrize("name", preset_names())
def test_a_profile_reads_back_equal(name: str) -> None:
    model = CostModel(preset(name), overlap={"all-gather": 0.25}, measured_on={"cores": 2})
    assert CostModel.from_json(model.to_json()) == model
    assert hash(CostModel.from_json(model.to_json())) == hash(model)


def broken(path: Sequence[str | int], value: object) -> str:
    """The profile of AMD's processors, whichever this host has, with the field at `path` set, or with None removed."""
    record = json.loads(measured_model("cpu-2core-amd.json").to_json())
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
        (["format"], 99, "mine.json: format 99, but this version reads 16"),
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
        (["topology", "measured", 2, "total_bytes", 1], -1, r"topology.measured\[2\].total_bytes\[1\] is -1; a number"),
        (["topology", "measured", 2, "total_bytes", 1], 1, r"topology.measured\[2\].total_bytes is .*; ascending"),
        (["topology", "measured", 2, "timed_seconds"], [1], r"measured\[2\].timed_seconds is \[1\]; ascending"),
        (
            ["topology", "measured", 2, "timed_seconds"],
            [1, 2],
            r"measured\[2\] has 10 total_bytes and 2 timed_seconds",
        ),
        (
            ["topology", "waits", "computed_seconds"],
            [0.0, 1e-3],
            r"waits.computed_seconds\[0\] is 0.0; a number from 1e-09",
        ),
        (["topology", "waits", "late_seconds"], [2e-4, 1e-4], r"waits.late_seconds is .*; ascending"),
        (["topology", "waits", "late_seconds"], [1e-4, 2e-4], r"waits has 4 computed_seconds and 2 late_seconds"),
        (
            ["topology", "waits", "least_seconds"],
            {"some": 1e-4},
            r"waits.least_seconds has 'some'; sizes of groups",
        ),
        (["topology", "waits", "least_seconds"], {"2": -1e-4}, r"waits.least_seconds.2 is -0.0001"),
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
