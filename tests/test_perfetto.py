"""The predicted timeline as a trace, the recorded one beside it, and memory over time."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import jax
import pytest

from executor import measure
from experiments import arguments
from experiments.workloads import workload
from planner import Plan, plan
from planner.memory import over_time, peak
from planner.packing import Allocation


def planned(name: str) -> Plan:
    work = workload(name)
    mesh = arguments.device_mesh((2, 4))
    return plan(work.fn, work.example_args, mesh, donate_argnums=work.donate_argnums, time_limit=5.0)


@pytest.fixture(scope="module", params=["mlp", "lstm"])
def a_plan(request: pytest.FixtureRequest) -> Plan:
    """Straight, and with a loop."""
    return planned(request.param)


def spans(path: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X"]


def test_the_trace_takes_as_long_as_the_step(a_plan: Plan, tmp_path: Path) -> None:
    a_plan.to_trace(tmp_path / "trace.json")
    found = spans(tmp_path / "trace.json")
    step = a_plan.prediction.step_seconds * 1e6
    assert max(event["ts"] + event["dur"] for event in found) == pytest.approx(step)
    by_thread: defaultdict[int, float] = defaultdict(float)
    for event in found:
        by_thread[event["tid"]] += event["dur"]
    assert by_thread[2] == pytest.approx(a_plan.prediction.compute_seconds * 1e6)
    assert by_thread[3] == pytest.approx(a_plan.prediction.communication_seconds * 1e6, abs=1e-6)


def test_events_of_a_thread_nest_or_follow(a_plan: Plan, tmp_path: Path) -> None:
    """As viewers want it: none begins inside another of its thread and ends after it."""
    a_plan.to_trace(tmp_path / "trace.json")
    for thread in (1, 2, 3):
        open_until: list[float] = []
        each = [event for event in spans(tmp_path / "trace.json") if event["tid"] == thread]
        for event in sorted(each, key=lambda event: (event["ts"], -event["dur"])):
            end = event["ts"] + event["dur"]
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


def test_memory_over_time_peaks_where_the_prediction_does(a_plan: Plan) -> None:
    curve = a_plan.memory_over_time
    highest = a_plan.prediction.peak
    assert max(curve.total_bytes) == pytest.approx(highest.nbytes - highest.holes)
    assert list(curve.times) == sorted(set(curve.times))
    assert curve.argument_bytes[0] == pytest.approx(sum(
        leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(_placed(a_plan))
    ))  # fmt: skip


def _placed(a_plan: Plan) -> Any:
    zeros = [jax.numpy.zeros(aval.shape, aval.dtype) for aval in a_plan.traced.in_avals]
    return a_plan.place(*jax.tree.unflatten(a_plan.traced.in_tree, zeros))


def test_memory_over_time_of_allocations_by_hand() -> None:
    allocations = [
        Allocation(8.0, 0, 10, "x", role="argument"),
        Allocation(4.0, 2, 4, "a"),
        Allocation(6.0, 8, 10, "y", role="result", idle=range(8)),
        Allocation(5.0, 5, 6, "b"),
    ]
    curve = over_time(allocations, {2: "a.py:1", 6: "a.py:2"})
    assert curve.times == (0, 2, 5, 7, 8)
    assert curve.argument_bytes == (8.0,) * 5
    assert curve.result_bytes == (6.0,) * 5, "set aside from the start"
    assert curve.temporary_bytes == (0.0,) * 5, "they lie in the result's memory until it comes"
    assert curve.sources == ("", "a.py:1", "a.py:1", "a.py:2", "a.py:2")
    assert max(curve.total_bytes) == peak(allocations).nbytes


def test_measure_records_what_really_happened(tmp_path: Path) -> None:
    work = workload("sigmoid-layer")
    found = measure(
        planned("sigmoid-layer"), work.make_args(jax.random.key(0)), repeats=3, trace_dir=tmp_path / "trace"
    )
    assert len(found.samples) == 3
    (recorded,) = (tmp_path / "trace").rglob("perfetto_trace.json.gz")
    assert json.loads(gzip.decompress(recorded.read_bytes()))["traceEvents"]
