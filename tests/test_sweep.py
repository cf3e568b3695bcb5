"""The long sweeps start as `make` starts them: in a process where nothing has touched a device yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SWEEP = Path(__file__).with_name("sweep.py")


def test_a_sweep_runs_its_cases(tmp_path: Path) -> None:
    only = ["--only", "asin_shape_float32", "--results", tmp_path / "found.jsonl"]
    command = [sys.executable, SWEEP, "harness", *only]
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 cases: 1 passed" in ran.stdout
