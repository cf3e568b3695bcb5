"""The command line: what it prints, what it writes, and how it says no."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
import typer

from costmodel import CostModel
from experiments import arguments, cli
from experiments.workloads import workload
from planner import InvalidSpec, NoDevices, Plan
from tests.problems import small_problem


def run(*argv: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    return int(stopped.value.code or 0)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was written to stderr, out of the box that usage errors come in."""
    return " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in ("demo", "plan", "audit", "calibrate", "solve"))


def test_plan_explains_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "plan.json"
    assert run("plan", "sigmoid-layer", "--mesh", "2x4", "--json", str(file)) == 0
    printed = capsys.readouterr().out
    assert "on a mesh of x=2 x y=4" in printed
    work = workload("sigmoid-layer")
    read = Plan.from_json(file.read_text(), work.fn, work.example_args, arguments.device_mesh((2, 4)))
    assert read.explain() in printed


def test_plan_takes_a_function_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.py").write_text(
        "import jax\ndef double(x): return 2 * x\ndef ask(): return double, (jax.ShapeDtypeStruct((64,), 'float32'),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run("plan", "theirs:ask", "--mesh", "8") == 0
    assert capsys.readouterr().out.startswith("double on a mesh of")
    assert run("plan", "theirs:double", "--mesh", "8") == 2
    assert "theirs:double cannot be called without arguments" in said(capsys)


def test_audit_holds_the_compiled_program_against_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("audit", "sum-axis", "--mesh", "2x4") == 0
    assert capsys.readouterr().out.startswith("fidelity ")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("plan", "gtp", "--mesh", "8"), 2, "did you mean"),
        (("plan", "no_such_module:f", "--mesh", "8"), 2, "No module named 'no_such_module'"),
        (("plan", "mlp"), 2, "Missing option"),
        (("plan", "mlp", "--mesh", "8", "--memory-limit", "much"), 2, "write for example 16GiB"),
        (("plan", "mlp", "--mesh", "h10-dgx"), 1, "UnknownPreset: unknown preset 'h10-dgx'"),
        (("plan", "mlp", "--mesh", "4x4"), 1, "NoDevices: a mesh of shape (4, 4) takes 16 devices"),
        (("plan", "sum-axis", "--mesh", "8", "--memory-limit", "1KiB"), 1, "Infeasible: no plan fits 1.0 KiB"),
        (("demo", "--workload", "gtp"), 2, "did you mean"),
        (("demo", "--mesh", "eight"), 1, "InvalidSpec: a mesh of devices has one to 3 axes, not 0"),
        (("solve", "nowhere.json"), 2, "does not exist"),
    ],
)
def test_what_cannot_be_is_one_message(
    argv: tuple[str, ...], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*argv) == code
    told = said(capsys)
    assert message in told
    assert "Traceback" not in told


def test_solve_writes_the_solution(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "problem.json.gz", tmp_path / "solution.json"
    small_problem().write(file)
    assert run("solve", str(file), "--time-limit", "5", "--out", str(out), "--progress") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("optimal: cost 3, bound 3, gap 0.000%")
    assert "cost 3" in printed.err
    found = json.loads(out.read_text())
    assert found.keys() == {"solution", "cost", "lower_bound", "gap", "seconds", "status"}
    assert (found["solution"], found["cost"], found["status"]) == ([0, 1], 3.0, "optimal")


def test_solve_says_what_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "problem.json", tmp_path / "solution.json"
    small_problem(usage_limit=1.0).write(file)
    assert run("solve", str(file), "--out", str(out)) == 1
    assert capsys.readouterr().out.startswith("infeasible: no assignment found")
    assert json.loads(out.read_text())["solution"] is None


def test_solve_names_the_place_of_a_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cut.json"
    file.write_text('{"problem": {"nodes"')
    assert run("solve", str(file)) == 1
    assert f"ProblemError: {file}: not a whole JSON document" in capsys.readouterr().err


def test_calibrate_writes_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = CostModel.from_json(Path("costmodel/profiles/cpu-2core-intel.json").read_text())
    told: list[int] = []
    monkeypatch.setattr(
        cli, "calibrate_devices", lambda devices, rounds, progress: progress(1, 1) or told.append(rounds) or known
    )
    assert run("calibrate", "--rounds", "7", "--out", str(tmp_path / "new" / "profile.json")) == 0
    assert told == [7]
    assert CostModel.read(tmp_path / "new" / "profile.json") == known


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16GiB", 16 * 2**30), ("1.5 MB", 1.5e6), ("800", 800.0), ("2 KiB", 2048.0)],
)
def test_bytes_are_read(text: str, expected: float) -> None:
    assert arguments.nbytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "16 gigs", "-1GiB", "1e9GiB"])
def test_what_is_no_bytes_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no number of bytes"):
        arguments.nbytes(text)


def test_a_mesh_is_read() -> None:
    made = arguments.mesh("2x4")
    assert isinstance(made, jax.sharding.Mesh)
    assert dict(made.shape) == {"x": 2, "y": 4}
    assert arguments.mesh("8") == 8
    assert arguments.mesh("v5e:4x4") == "v5e:4x4"


def test_a_mesh_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="not 4; write for example 2x4"):
        arguments.mesh("2x1x2x2")
    with pytest.raises(NoDevices, match="takes 0 devices"):
        arguments.mesh("2x0")


@pytest.mark.parametrize(
    ("environment", "mesh", "count"),
    [
        ({}, "2x4", 8),
        ({}, "4x4", 16),
        ({}, "h100-dgx:4", 8),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}, "2x4", 4),
        ({"JAX_NUM_CPU_DEVICES": "2"}, "2x4", 2),
    ],
)
def test_the_number_of_devices_is_the_users_where_named(environment: dict[str, str], mesh: str, count: int) -> None:
    program = (
        "import jax; from experiments import arguments; "
        f"arguments.offer_cpu_devices({mesh!r}); print(len(jax.devices()))"
    )
    inherited = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    outcome = subprocess.run(
        [sys.executable, "-c", program],
        env={**inherited, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(outcome.stdout) == count
