"""Where temporary arrays lie, and how long ago that memory was touched."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.buffers import Timeline
from planner.graph import Value
from planner.packing import Allocation, Role
from planner.places import Places
from planner.program import Array


def array(nbytes: int) -> Array:
    return Array((nbytes // 4,), "", "", Value((nbytes // 4,), np.dtype("float32")))


def alive(
    one: Array, start: int, end: int, place: int, role: Role = "temporary", idle: range = range(0), alike: int = 1
) -> Allocation:
    return Allocation(one.nbytes, start, end, "", role=role, place=place, idle=idle, alike=alike)


def test_of_a_larger_array_half_lies_where_a_smaller_was() -> None:
    earlier, later = array(64), array(128)
    places = Places(Timeline(arrays={earlier: alive(earlier, 0, 1, 0), later: alive(later, 2, 3, 1)}))
    places.touch(earlier, 400.0)
    assert [*places.since(later, 1000.0)] == [(0.5, 600.0), (0.5, math.inf)]
    places.touch(later, 1000.0)
    assert [*places.since(later, 1500.0)] == [(0.5, 500.0), (0.5, 500.0)]
    assert [*places.untouched().since(later, 1500.0)] == [(0.5, math.inf), (0.5, math.inf)]


def test_what_lies_in_idle_memory_of_a_result_was_touched_with_what_lay_there_before() -> None:
    result, first, second = array(64), array(64), array(32)
    arrays = {
        result: alive(result, 8, 9, 0, "result", range(8)),
        first: alive(first, 1, 2, 1),
        second: alive(second, 4, 5, 2),
    }
    places = Places(Timeline(arrays=arrays))
    assert [*places.since(second, 300.0)] == [(1.0, math.inf)]
    places.touch(first, 100.0)
    assert [*places.since(second, 300.0)] == [(1.0, 200.0)]
    assert [*places.since(result, 300.0)] == [(1.0, math.inf)], "it is touched for the first time in this call"


def test_pieces_lie_apart_and_of_the_smallest_nothing_is_known() -> None:
    pieces, small, large = array(128), array(4), array(2**12)
    arrays = {pieces: alive(pieces, 0, 1, 0, alike=2), small: alive(small, 0, 1, 1), large: alive(large, 0, 1, 2)}
    places = Places(Timeline(arrays=arrays))
    assert [*places.since(small, 1.0)] == []
    assert sum(share for share, _ in places.since(pieces, 1.0)) == pytest.approx(1.0)
