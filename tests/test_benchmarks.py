"""What the benchmarks conclude from their measurements, and how they survive a crash."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from jax.sharding import AbstractMesh

from costmodel.model import measured_model
from experiments import bench_plan_time, bench_plans, bench_predict, bench_solver
from experiments.apart import Packed
from experiments.bench_plans import Timed, verdict
from experiments.cases import Case, Cases
from experiments.child import ChildFailed, call_in_child
from experiments.workloads import workload
from planner import plan
from tests.problems import small_problem

CODE = Packed((b"code",), ())


def timed(names: str, *samples: float) -> Timed:
    return Timed(names.split(), 0.0, list(samples))


def test_a_child_returns_what_the_function_does() -> None:
    assert call_in_child(divmod, 7, 2, timeout_seconds=60) == (3, 1)


def test_a_crash_is_told_with_its_exit_code() -> None:
    with pytest.raises(ChildFailed, match="exit code 3"):
        call_in_child(os._exit, 3, timeout_seconds=60)


def test_a_child_that_hangs_is_ended() -> None:
    with pytest.raises(ChildFailed, match=r"not done after 0\.1 s"):
        call_in_child(time.sleep, 60, timeout_seconds=0.1)


def test_one_program_under_two_names_is_no_contest() -> None:
    found = verdict([timed("planned fsdp", 2.0), timed("replicated", 3.0)])
    assert (found.text, found.ratio) == ("same program", 1.0)


def test_a_plan_that_is_a_slower_layout_by_hand_loses_to_the_faster() -> None:
    found = verdict([timed("planned fsdp", 2.0, 2.0), timed("replicated", 1.0, 1.0)])
    assert (found.text, found.ratio, found.low) == ("no", 2.0, 2.0)


@pytest.mark.parametrize(
    ("samples", "text"),
    [((0.9, 1.0, 1.1), "yes"), ((1.2, 1.2, 1.2), "no"), ((0.8, 1.07, 1.4), "within noise")],
)
def test_the_verdict_minds_the_noise(samples: tuple[float, ...], text: str) -> None:
    found = verdict([timed("planned", *samples), timed("fsdp", 1.0, 1.0, 1.0), timed("replicated", 5.0)])
    assert found.text == text
    assert found.best.names == ["fsdp"]
    assert found.low <= found.ratio <= found.high


def test_a_case_is_measured_once_per_revision(tmp_path: Path) -> None:
    cases, case = Cases(tmp_path), ("mlp", "2x4")
    assert not cases.is_measured(case, "abc")
    cases.store(case, "today, revision abc", {"programs": []})
    assert cases.is_measured(case, "abc")
    assert not cases.is_measured(case, "abd")
    assert not cases.is_measured(case, "abc-dirty"), "files may have changed since"
    cases.store(case, "today, revision abc", {"failure": "exit code 3"})
    assert not cases.is_measured(case, "abc")


def test_rows_of_the_tables() -> None:
    programs = [timed("planned", 0.002, 0.002).__dict__, timed("fsdp", 0.001, 0.001).__dict__]
    row = bench_plans.row(json.loads(json.dumps({"case": ["mlp", "8"], "conditions": "today", "programs": programs})))
    assert row["best_by_hand"] == "fsdp"
    assert row["planned_ms"] == 2.0
    failed = bench_plans.row({"case": ["mlp", "8"], "conditions": "today", "failure": "exit code 3"})
    assert failed["at_most_1.05"] == "failed: exit code 3"
    stages = [{"trace": 9.0, "build": 1.0, "solve": 2.0, "total": 13.0, "gap": 0.01}]
    assert bench_plan_time.row("gpt", "2x4", stages)["beyond_tracing_s"] == 4.0
    shares = bench_plan_time.where_time_goes({"prices": 0.5, "search": 0.25}, 8.0)
    assert shares["seconds"].tolist() == [4.0, 2.0, 2.0]


def test_the_best_known_is_no_bound_and_fits() -> None:
    known = pd.DataFrame({"cost": [5.0, 9.0, 7.0, 8.0, 6.0], "feasible": ["bound", "yes", "as published", "yes", "no"]})
    assert bench_solver.best_known(known) == 7.0


def test_an_instance_is_solved_and_told_in_a_line(tmp_path: Path) -> None:
    small_problem().write(tmp_path / "X.json.gz")
    lines = "instance,timeout_s,solver,cost,feasible,seconds,source\nX,60,ours,4,yes,,\nX,,bound,2,bound,,\n"
    (tmp_path / "reference.csv").write_text(lines)
    record = bench_solver.solved(tmp_path, "X", "0.25")
    assert (record["cost"], record["lower_bound"], record["status"]) == (3.0, 3.0, "optimal")
    assert record["limit_s"] == 15.0
    assert record["near_s"] == record["first_s"]
    line = bench_solver.row({"case": ["X", "0.25"], "conditions": "today", **record})
    assert (line["cost"], line["off_percent"], line["gap_percent"]) == ("3", -25.0, 0.0)
    failed = bench_solver.row({"case": ["X", "1"], "conditions": "today", "failure": "exit code 3"})
    assert failed["status"] == "failed: exit code 3"


def test_what_is_predicted_is_the_profile_s_price_of_layouts_that_the_preset_has_chosen() -> None:
    work, mesh = workload("heat-1d"), AbstractMesh((2, 4), ("x", "y"))
    first, last = (measured_model(f"cpu-2core-{maker}.json") for maker in ("amd", "intel"))
    chosen = plan(work.fn, work.example_args, mesh, cost_model=first)
    program = {"names": ["planned"], "samples": [1.0], "plan": chosen.to_json()}
    found = bench_predict.predicted(("heat-1d", "2x4"), [program], first.to_json(), last.to_json())
    (timed,) = found["programs"]
    assert timed == {**program, "predicted_seconds": chosen.repriced(last).prediction.step_seconds}


@pytest.fixture
def compiled() -> dict[str, Any]:
    """What `compile_case` finds of heat-1d, for its plan alone."""
    work, mesh, model = workload("heat-1d"), AbstractMesh((2, 4), ("x", "y")), measured_model("cpu-2core-amd.json")
    planned = plan(work.fn, work.example_args, mesh, cost_model=model)
    names = (["planned"], ["replicated"])
    programs = [{"names": name, "plan": planned.to_json(), "samples": []} for name in names]
    return {"programs": programs, "planned_with": model.to_json(), "executables": [CODE] * len(programs)}


def test_rounds_go_on_where_the_clock_ranks_programs_otherwise(
    compiled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a calibration; what fails takes nothing else along."""
    log: list[str] = []
    timed = bench_predict.time_apart

    def outcome(case: Case, function: object, _: float, *given: Any) -> Mapping[str, Any]:
        if case[0] == "mlp":
            return {"failure": "exit code 3"}
        if function is bench_predict.compile_case:
            return compiled
        assert function is timed
        assert given[0] == [CODE, CODE]
        log.append(case[0])
        faster = case[0] == "gpt" and given[1] < 2
        return {"samples": [[1.9], [0.1 if faster else 2.0]]} if case[0] != "moe" else {"failure": "exit code 9"}

    def in_child(function: object, mesh: str, *given: Any, timeout_seconds: float) -> object:
        if function is bench_predict.probe_apart:
            log.append(mesh)
            return [[3.0]]
        assert function is bench_predict.fitted
        assert given == ([[[3.0]]] * bench_predict.MOST_ROUNDS,)
        return compiled["planned_with"]

    monkeypatch.setattr(bench_predict, "outcome", outcome)
    monkeypatch.setattr(bench_predict, "call_in_child", in_child)
    monkeypatch.setattr(bench_predict, "predicted", lambda case, programs, by, profile: {"programs": programs})
    cases = [(name, "2x4") for name in ("mlp", "moe", "heat-1d", "gpt")]
    no_code, crashed, same, another = bench_predict.measured(cases, 60.0)
    least, most = bench_predict.LEAST_ROUNDS, bench_predict.MOST_ROUNDS
    several, one = ["2x4", "heat-1d", "gpt"], ["2x4", "gpt"]
    assert log == ["2x4", "moe", "heat-1d", "gpt"] + several * (least - 1) + one * (most - least)
    assert (no_code["failure"], crashed["failure"]) == ("exit code 3", "exit code 9")
    assert same["programs"][1]["samples"] == [2.0] * least
    assert len(another["programs"][0]["samples"]) == most
    assert same["probed"] == [[[3.0]]] * most
