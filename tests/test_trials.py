"""One run: what its row says of every strategy, of machines that are not here, and of what fails."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from costmodel import CostModel
from experiments.runner import details, turns
from experiments.runner import measure as trials
from experiments.runner.columns import COLUMNS
from experiments.runner.measure import measure
from experiments.runner.trial import Dimensions, Trial


def measured(
    workload: str, strategy: str, mesh: str = "2x4", **more: Any
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    settings = {"calls": 3, "seconds": 0.0, "plan_seconds": 5.0, "check": True, "dimensions": Dimensions(), **more}
    row, found = measure(Trial(workload, "test", mesh, strategy, 1, 0, **settings))
    assert row.keys() <= COLUMNS.keys()
    return row, found


def test_less_memory_is_kept() -> None:
    row, _ = measured("sigmoid-layer-grad", "planned")
    less, _ = measured("sigmoid-layer-grad", "planned@90%")
    assert less["status"] == "ok"
    assert less["predicted_peak_bytes"] <= 0.9 * row["predicted_peak_bytes"]
    none, _ = measured("sigmoid-layer-grad", "planned@10%")
    assert none["status"] == "infeasible"
    assert "no plan fits" in none["error"]
    assert "predicted_step_seconds" not in none


def test_layouts_take_turns_with_the_plan() -> None:
    planned, _ = measured("sigmoid-layer-grad", "planned", mesh="8")
    assert planned["times_plan_low"] == planned["times_plan"] == 1
    replicated, _ = measured("sigmoid-layer-grad", "replicated", mesh="8", calls=7)
    assert replicated["times_plan_low"] > 1, "eight devices do the same work on two cores"
    same, _ = measured("sum-axis", "data-parallel", mesh="8")
    assert same["times_plan"] == 1, "one program"
    alone, _ = measured("sigmoid-layer-grad", "replicated", mesh="8", profile=None, calls=1)
    assert alone["times_plan_low"] == alone["times_plan"] == alone["times_plan_high"], "one call"


def test_less_memory_takes_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    less, _ = measured("sigmoid-layer-grad", "planned@90%")
    assert less["times_plan"] > 0
    monkeypatch.setattr(turns, "MEMORY_PART", 1e-6)
    alone, _ = measured("sigmoid-layer-grad", "planned@90%")
    assert alone["status"] == "ok"
    assert "times_plan" not in alone, "there is no room for both"


def test_a_machine_that_is_not_here_is_predicted_for() -> None:
    row, found = measured("sigmoid-layer", "fsdp", mesh="h100-dgx:1")
    assert (row["status"], row["devices"], row["cost_model"]) == ("predicted", 8, "preset")
    assert row["predicted_step_seconds"] > 0
    assert "measured_step_seconds" not in row
    assert [array["name"] for array in found["layouts"]] == ["x", "w", "b"]
    propagated, _ = measured("sigmoid-layer", "xla-propagation", mesh="h100-dgx:1")
    assert propagated["status"] == "not applicable"


def test_details_hold_what_rows_cannot() -> None:
    row, found = measured("sigmoid-layer-grad", "planned")
    assert len(found["samples"]) == row["calls"] == 3
    assert 0 < row["reference_seconds"] < 1
    assert found["axes"] == {"x": 2, "y": 4}
    memory = found["memory"]
    total = [sum(each) for each in zip(memory["arguments"], memory["results"], memory["temporaries"], strict=True)]
    assert max(total) == row["predicted_peak_bytes"]
    assert sum(one["bytes"] for one in found["predicted"]) == row["predicted_communicated_bytes"]
    assert sum(one["bytes"] for one in found["compiled"]) == row["compiled_communicated_bytes"]
    seconds = sum(one["seconds"] for one in found["predicted"])
    assert seconds == pytest.approx(row["predicted_communication_seconds"])
    *_, (_, cost, bound) = found["search"]
    assert bound == pytest.approx(cost), "proven optimal"


def test_a_function_of_the_users_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_step.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "def double(x, n): return 2 * x, n + 1\n"
        "def problem(): return double, (jax.ShapeDtypeStruct((64, 8), 'f4'), jax.ShapeDtypeStruct((8,), 'i4'))\n"
        "def broken(): return double, (jnp.zeros((8, 8)),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    row, _ = measured("my_step:problem", "planned", mesh="8")
    assert (row["status"], row["numerics"]) == ("ok", "ok")
    row, _ = measured("my_step:broken", "planned", mesh="8")
    assert row["status"] == "error"
    assert "missing 1 required positional argument: 'n'" in row["error"]


def test_a_curve_is_thinned_without_losing_its_peaks() -> None:
    values = [float(number % 97) for number in range(10_000)]
    values[5_003] = 1e6
    kept = details.thinned(values)
    assert len(kept) <= details.MOST_POINTS
    assert kept == sorted(set(kept))
    assert {0, 5_003, 9_999} <= set(kept)
    assert details.thinned(values[:10]) == list(range(10))


def test_devices_are_measured_once_and_anew_for_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, measured_times = CostModel.read("costmodel/profiles/cpu-2core-intel.json"), []
    monkeypatch.setattr(trials, "calibrate", lambda devices, **_: measured_times.append(len(devices)) or known)
    profile = tmp_path / "profile.json"
    profile.write_text('{"format": 1}')
    for _ in range(2):
        trials.calibrate_into(profile)
        assert CostModel.read(profile) == known
    assert measured_times == [8]
    row, _ = measured("sigmoid-layer", "replicated", profile=profile)
    assert (row["status"], row["cost_model"]) == ("ok", "calibrated")
