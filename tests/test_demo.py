"""The demonstration, small; and what it is made of: the race, and tables that are kept."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from executor.race import Program, compile_programs, contenders, race
from experiments import arguments
from experiments.demo import COLUMNS, demo
from experiments.results import conditions, keep, markdown
from experiments.terminal import cell, table
from experiments.workloads import Workload, workload
from planner import Plan, plan


@pytest.fixture(scope="module")
def work() -> Workload:
    return workload("mlp")


@pytest.fixture(scope="module")
def planned(work: Workload) -> Plan:
    return plan(work.fn, work.example_args, arguments.device_mesh((2, 4)), donate_argnums=work.donate_argnums)


@pytest.fixture(scope="module")
def programs(planned: Plan) -> list[Program]:
    """The plan under two names, and the replicated layout."""
    return compile_programs(
        {"planned": planned, "the same": replace(planned), "replicated": planned.alternatives["replicated"]}
    )


def test_demo_prints_explains_and_writes_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "demo.csv"
    mesh = arguments.device_mesh((2, 4))
    demo(workload("sigmoid-layer"), mesh, out, least_rounds=3)
    printed = capsys.readouterr().out
    assert "on a mesh of x=2 x y=4" in printed
    assert f"The table is in {out}" in printed
    frame = pd.read_csv(out)
    assert list(frame.columns) == list(COLUMNS)
    assert {"planned", "replicated", "data-parallel", "fsdp", "tensor-parallel", "data x tensor"} <= {*frame.layout}
    assert (frame.measured_step_ms > 0).all()
    assert frame.measured_step_ms.is_monotonic_increasing
    assert (frame.compiled_peak_MiB > 0).all()
    np.testing.assert_allclose(frame.planned_communicated_MiB, frame.compiled_communicated_MiB)


def test_contenders_are_the_plan_and_the_layouts_by_hand(planned: Plan) -> None:
    assert {"planned", "replicated", "fsdp"} < {*contenders(planned)}


def test_one_program_is_compiled_once(programs: list[Program]) -> None:
    assert [program.names for program in programs] == [("planned", "the same"), ("replicated",)]


def test_a_race_leaves_the_arguments_alone(programs: list[Program], work: Workload) -> None:
    args = work.make_args(jax.random.key(0))
    told: list[float] = []
    samples = race(programs, args, least_rounds=7, least_seconds=1e-3, progress=told.append)
    assert [len(taken) for taken in samples] == [7, 7]
    assert told[-1] == 1.0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(args)), "donation took nothing"


def test_conditions_name_machine_versions_and_revision() -> None:
    text = conditions()
    assert f"jax {jax.__version__}" in text
    assert "cores of" in text
    assert "revision" in text


def test_numbers_are_shown_to_three_digits() -> None:
    shown = [cell(value) for value in (0.012345, 12.345, 5335.4, float("nan"), 7, "gpt")]
    assert shown == ["0.0123", "12.3", "5335", "-", "7", "gpt"]


def test_a_kept_table_takes_the_place_of_the_last(tmp_path: Path) -> None:
    file = tmp_path / "docs" / "results.md"
    keep("speed", markdown(pd.DataFrame({"workload": ["gpt"], "step_ms": [1.0]})), file)
    keep("memory", "none yet", file)
    keep("speed", markdown(pd.DataFrame({"workload": ["gpt"], "step_ms": [2.0]})), file)
    assert file.read_text() == (
        "# Results\n\n"
        "<!-- begin speed -->\n\n| workload | step ms |\n| --- | --: |\n| gpt | 2 |\n\n<!-- end speed -->\n\n"
        "<!-- begin memory -->\n\nnone yet\n\n<!-- end memory -->\n"
    )


def test_a_long_text_leaves_room_for_the_other_columns() -> None:
    shown = Console(width=60)
    with shown.capture() as printed:
        shown.print(table(pd.DataFrame({"id": ["sb029"], "question": ["how long " * 30], "unit": ["ms"]}), "asked"))
    assert "sb029" in printed.get()
    assert "ms" in printed.get()
    assert printed.get().count("long") == 30
