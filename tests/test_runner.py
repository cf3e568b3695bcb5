"""The experiment runner: no row is lost or repeated, whatever happens; what goes wrong is said or is a row."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_runs
import pandas as pd
import psutil
import pytest

from experiments.child import ChildFailed, call_in_child
from experiments.runner.columns import COLUMNS, KEY, frame_of
from experiments.runner.directory import ResultsDirectory, ResultsError, read_results
from experiments.runner.loop import Ended

KILLS = int(os.environ.get("KILLS", "2"))
"""`make test-kills` asks for twenty."""
UNSTEADY = ["started_at", "wall_seconds"]
"""Columns that differ from one run to the next."""


def rows(directory: Path) -> pd.DataFrame:
    found, damaged = read_results(directory)
    assert not damaged
    return frame_of(found)


def steady(directory: Path) -> pd.DataFrame:
    return rows(directory).drop(columns=UNSTEADY)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unbroken") / "results"
    assert fake_runs.run(directory) == Ended(12, 12, 0, interrupted=False)
    return directory


def test_a_row_for_each_run_that_pandas_reads_without_options(unbroken: Path) -> None:
    frame = pd.read_csv(unbroken / "results.csv")
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 12
    assert not frame.duplicated(list(KEY)).any()
    assert (frame.status == "ok").all()
    assert frame.measured_step_seconds.dtype == "float64"
    assert list(frame.strategy[:4]) == ["planned", "fsdp", "planned", "fsdp"]
    assert list(frame["repeat"]) == sorted(frame["repeat"]), "repeats one after the other"
    assert not (unbroken / ".reserve").exists()


def test_killed_at_random_moments_and_resumed_nothing_is_lost_or_repeated(tmp_path: Path) -> None:
    """Each attempt dies somewhere between its start and its end; the last one is left alone."""
    drawn, repeats = random.Random(KILLS), 2 + 3 * KILLS
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    wanted = fake_runs.run(unbroken, repeats=repeats).rows
    command = [sys.executable, "-W", "error", fake_runs.__file__, str(killed), str(repeats)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    reached = [0]
    for _ in range(KILLS):
        victim = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        while victim.poll() is None and not (killed / "results.csv").exists():  # importing takes most of its time
            time.sleep(0.01)
        time.sleep(drawn.uniform(0.0, 1.5) + 1.5 * (reached[-1] > 0))
        victim.send_signal(drawn.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)))
        victim.communicate(timeout=60)
        reached.append(len(read_results(killed)[0]))
    assert reached == sorted(reached), "no row is lost"
    assert any(0 < count < wanted for count in reached), "somebody died on the way"
    last = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert last.returncode == 0, last.stderr
    pd.testing.assert_frame_equal(steady(killed), steady(unbroken))


def test_what_fails_is_a_row_and_the_run_goes_on(tmp_path: Path) -> None:
    ended = fake_runs.run(
        tmp_path, "1x1", "1x2", "1x3", "1x4", "2x4",
        repeats=1, workloads=("mlp",), run_seconds=3.0, run_memory="300MiB",
    )  # fmt: skip
    assert ended == Ended(10, 10, 4, interrupted=False)
    frame = rows(tmp_path).query("strategy == 'fsdp'").set_index("mesh")
    assert dict(frame.status) == {
        "1x1": "error", "1x2": "crash", "1x3": "time-out", "1x4": "out of memory", "2x4": "ok",
    }  # fmt: skip
    assert frame.error["1x1"] == 'RuntimeError: no such, "luck"'
    assert frame.error["1x2"] == "ended with exit code 3"
    assert frame.error["1x3"] == "not done after 3 s"
    assert frame.error["1x4"].endswith("more than 300 MiB")
    assert "no\nsuch" in (tmp_path / "logs" / "mlp-test-1x1-fsdp-1.txt").read_text()


def test_a_directory_with_rows_is_not_run_into_again(unbroken: Path) -> None:
    with pytest.raises(ResultsError, match="holds 12 rows of an earlier run; go on with it by --resume"):
        fake_runs.run(unbroken)
    with pytest.raises(ResultsError, match="another suite: repeats differ; runs are not mixed"):
        fake_runs.run(unbroken, resume=True, repeats=4)
    assert len(rows(unbroken)) == 12


def test_two_runs_into_one_directory_are_refused(tmp_path: Path) -> None:
    with (
        ResultsDirectory(tmp_path, fake_runs.suite(), resume=False),
        pytest.raises(ResultsError, match="another run writes to"),
    ):
        ResultsDirectory(tmp_path, fake_runs.suite(), resume=True)
    with ResultsDirectory(tmp_path, fake_runs.suite(), resume=True) as directory:
        assert directory.rows == []


def test_damaged_lines_are_told_set_aside_and_run_again(unbroken: Path, tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    (tmp_path / "suite.json").write_text((unbroken / "suite.json").read_text())
    lines = (unbroken / "results.csv").read_text().splitlines()
    lines[3] = lines[3].replace("mlp", "m\0p", 1) + ",more"
    lines[5] = lines[5].replace(",1,ok", ",one,ok").replace(",0,ok", ",none,ok")
    table.write_text("\n".join(lines)[:-5])
    found, damaged = read_results(tmp_path)
    assert len(found) == 9
    assert [damage.line for damage in damaged] == [4, 6, 13]
    assert f"{table}, line 4: " in str(damaged[0])
    assert "a number belongs there" in str(damaged[1])
    assert "cut off" in str(damaged[2])
    assert fake_runs.run(tmp_path, resume=True).rows == 12
    assert (tmp_path / "damaged.csv").read_text().splitlines() == [lines[3], lines[5], lines[12][:-5]]
    by_key = [frame.sort_values(list(KEY), ignore_index=True) for frame in (steady(tmp_path), steady(unbroken))]
    pd.testing.assert_frame_equal(*by_key)


def test_what_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    with pytest.raises(ResultsError, match=r"cannot write to .*file/results: Not a directory; name another"):
        fake_runs.run(file / "results")
    with pytest.raises(ResultsError, match=r"holds no results: results\.csv: No such file"):
        read_results(tmp_path)


def test_a_directory_that_is_no_results_is_told(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ResultsError, match="does not begin with the names of the columns but with 'a,b'"):
        fake_runs.run(tmp_path, resume=True)


def test_a_full_disk_keeps_the_row_in_the_space_set_aside(unbroken: Path, tmp_path: Path) -> None:
    """On a file system of 256 KiB; where none may be mounted, the next test alone stands in."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system takes privileges that are not there")
    try:
        with ResultsDirectory(tmp_path, fake_runs.suite(), resume=False) as directory:
            first, last = read_results(unbroken)[0][:2]
            directory.append(first, {})
            filled = tmp_path / "fill"
            with filled.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                file.writelines(iter(lambda: b"\0" * 512, b""))
            with pytest.raises(ResultsError, match="2 rows are safe there, the last one among"):
                directory.append(last, {"samples": [0.0] * 4096})
        assert len(rows(tmp_path)) == 2
        filled.unlink()
        assert fake_runs.run(tmp_path, resume=True).rows == 12
        assert not rows(tmp_path).duplicated(list(KEY)).any()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_row_that_does_not_fit_is_in_the_message(unbroken: Path, tmp_path: Path) -> None:
    found, _ = read_results(unbroken)
    with ResultsDirectory(tmp_path, fake_runs.suite(), resume=False) as directory:
        directory.append(found[0], {})
        size = (tmp_path / "results.csv").stat().st_size
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
        try:
            with pytest.raises(ResultsError, match=r"1 rows are safe there, .* could not be written, it is\nmlp,test,"):
                directory.append(found[1], {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(rows(tmp_path)) == 1, "no part of the second row is there"


def test_numbers_come_back_as_they_went(tmp_path: Path) -> None:
    row = {
        **dict(zip(KEY, ("a:b", "test", "8", "planned", 1), strict=True)),
        "status": "ok", "error": 'a "b",\n\tc', "predicted_step_seconds": 1.23456789e-5, "seed": 2**40,
    }  # fmt: skip
    with ResultsDirectory(tmp_path, fake_runs.suite(), resume=False) as directory:
        directory.append(row, {})
    (back,), _ = read_results(tmp_path)
    assert back["error"] == 'a "b", c'
    assert (back["predicted_step_seconds"], back["seed"], back["fidelity"]) == (1.23456789e-5, 2**40, None)


def test_a_child_ends_with_its_parent() -> None:
    program = (
        "import time; from experiments.child import call_in_child; call_in_child(time.sleep, 60, timeout_seconds=90)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = psutil.Popen([sys.executable, "-c", program], env=environment)
    time.sleep(1.5)
    children = parent.children()
    assert children
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs(children, timeout=10)
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []


def test_an_error_in_a_child_is_told() -> None:
    with pytest.raises(ChildFailed, match="ZeroDivisionError") as failed:
        call_in_child(divmod, 1, 0, timeout_seconds=60)
    assert failed.value.reason == "error"
