"""What a run shows while it goes on: a table on a terminal, failures alone elsewhere."""

from __future__ import annotations

import io

import fake_runs
from rich.console import Console

from experiments.runner.live import Board

KEY = ("mlp", "test", "2x4", "planned", 1)
ROW = dict(zip(("workload", "size", "mesh", "strategy", "repeat"), KEY, strict=True))
GOOD = {**ROW, "status": "ok", "error": "", "measured_step_seconds": 0.0123, "wall_seconds": 2.0}
BAD = {**ROW, "strategy": "fsdp", "status": "time-out", "error": "not done after 4 s", "wall_seconds": 4.0}


def shown(*rows: dict[str, object], terminal: bool) -> str:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120, color_system=None)
    with Board(fake_runs.suite(), console) as board:
        board.begin(0, [KEY] * 3)
        for row in rows:
            board.start(KEY)
            board.finish(row)
        board.start(("moe", "test", "2x4", "planned", 2))
    return text.getvalue()


def test_a_terminal_shows_what_runs_what_came_out_and_what_is_left() -> None:
    text = shown(GOOD, BAD, terminal=True)
    assert "fake: 2 of 3 runs" in text
    assert "12.3 ms" in text
    assert "not done after 4 s" in text
    assert "moe on 2x4, planned, repeat 2" in text
    assert "elapsed, about 0:03 left" in text


def test_a_log_shows_failures_alone() -> None:
    assert shown(GOOD, BAD, terminal=False).splitlines() == [
        "fake: 3 runs",
        "mlp on 2x4, fsdp: time-out: not done after 4 s",
    ]
