"""A run of a suite whose trials measure nothing: `python fake_runs.py DIRECTORY REPEATS` is what tests kill."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.runner.loop import Ended
    from experiments.runner.suite import Suite
    from experiments.runner.trial import Trial

MEGABYTE = 1 << 20


def measure(trial: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same row for the same trial every time; some of fsdp fail, as their mesh says."""
    match trial.mesh if trial.strategy == "fsdp" else "":
        case "1x1":
            raise RuntimeError('no\nsuch, "luck"')
        case "1x2":
            os._exit(3)
        case "1x3":
            time.sleep(60.0)
        case "1x4":
            hoard = bytearray(os.urandom(MEGABYTE)) * 400
            time.sleep(60.0)
            del hoard
    time.sleep(0.01)
    step = 1e-3 * len(trial.strategy) * trial.repeat
    return {"status": "ok", "measured_step_seconds": step, "calls": 1}, {"samples": [step]}


def suite(*meshes: str, repeats: int = 3, workloads: tuple[str, ...] = ("mlp", "moe"), **limits: Any) -> Suite:
    from experiments.runner.suite import Suite

    return Suite("fake", workloads, meshes or ("2x4",), ("planned", "fsdp"), repeats=repeats, calibrate=False, **limits)


def run(directory: Path, *meshes: str, resume: bool = False, **settings: Any) -> Ended:
    from experiments.runner.loop import run_suite

    return run_suite(suite(*meshes, **settings), directory, resume=resume, measure=measure)


if __name__ == "__main__":
    import fake_runs  # by its own name, so that a child finds `measure` without running this

    fake_runs.run(Path(sys.argv[1]), resume=True, repeats=int(sys.argv[2]))
