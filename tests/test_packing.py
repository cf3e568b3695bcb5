"""Where the compiler puts temporary arrays, and what is lost between them."""

from __future__ import annotations

import pytest
from forced import device_mesh
from hypothesis import given
from hypothesis import strategies as st

from costmodel.model import measured_model
from executor import audit
from experiments.random_plans import random_plans
from experiments.workloads import workload
from planner import plan
from planner.packing import Allocation, alive_bytes, packed

temporaries = st.lists(
    st.builds(
        lambda nbytes, start, length, alike: Allocation(nbytes * alike, start, start + length, "array", alike=alike),
        st.integers(1, 4),
        st.integers(0, 6),
        st.integers(0, 4),
        st.integers(1, 2),
    ),
    max_size=8,
)


def array(nbytes: float, start: int, end: int, place: str | None = None) -> Allocation:
    return Allocation(nbytes, start, end, "array", place=place)


@given(temporaries)
def test_no_less_than_what_is_alive_and_no_more_than_all(arrays: list[Allocation]) -> None:
    assert alive_bytes(arrays).max() <= packed(arrays).nbytes <= sum(each.nbytes for each in arrays)


def test_what_lives_apart_lies_at_the_same_place() -> None:
    assert packed([array(4.0, 0, 1), array(4.0, 2, 3), array(4.0, 4, 9)]).nbytes == 4.0


def test_a_hole_that_is_too_small_is_lost() -> None:
    """Three are alive at most; that of two which comes last finds one free below and one above that of one."""
    arrays = [array(2.0, 1, 2), array(1.0, 1, 4), array(1.0, 3, 6), array(2.0, 5, 6)]
    assert alive_bytes(arrays).max() == 3.0
    assert packed(arrays).nbytes == 4.0


def test_what_is_written_over_keeps_its_place() -> None:
    """Apart, the second would find the place that the first leaves beside it."""
    arrays = [array(2.0, 0, 1), array(2.0, 0, 4), array(4.0, 5, 6)]
    assert packed(arrays).nbytes == 4.0
    first, second = array(2.0, 0, 4, "one"), array(2.0, 5, 6, "one")
    assert packed([array(1.0, 0, 2), first, second, array(2.0, 5, 6)]).nbytes == 4.0


@pytest.mark.parametrize(
    ("name", "sizes"), [("sum-axis-grad", {"x": 2, "y": 4}), ("sigmoid-layer-grad", dict.fromkeys("xyz", 2))]
)
def test_holes_are_in_the_prediction(name: str, sizes: dict[str, int]) -> None:
    """Of these random plans some leave a tenth of what is alive empty."""
    work = workload(name)
    by, mesh = measured_model("cpu-2core-intel.json"), device_mesh(**sizes)  # the same plans on every host
    planned = plan(work.fn, work.example_args, mesh, donate_argnums=work.donate_argnums, cost_model=by)
    found = random_plans(planned, 3).values()
    assert max(each.prediction.peak.holes / each.prediction.peak_bytes for each in found) > 0.05
    for each in found:
        assert 0.9 <= audit(each).memory_ratio <= 1.1
