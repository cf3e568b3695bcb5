"""Runs a suite: each trial in a process of its own, each outcome a row."""

from __future__ import annotations

import datetime
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from experiments import arguments
from experiments.child import ChildFailed, call_in_child, undisturbed
from experiments.results import revision
from experiments.runner import measure as trials
from experiments.runner.columns import FAILED, KEY
from experiments.runner.directory import ResultsDirectory, Row
from experiments.runner.live import Board
from experiments.runner.suite import Suite
from experiments.runner.trial import Trial

Measure = Callable[[Trial], tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Runs a trial; returns columns of its row, and details."""

CALIBRATION_SECONDS = 300.0
"""After which measuring the devices is ended, and the preset's prices are used."""


@dataclass(frozen=True)
class Ended:
    """How a run of a suite ended.

    Attributes:
        rows: how many there are now, those of earlier runs included.
        wanted: how many the suite has.
        failed: rows whose status says so.
        interrupted: whether it was told to stop.
    """

    rows: int
    wanted: int
    failed: int
    interrupted: bool


def run_suite(
    suite: Suite,
    out: Path,
    *,
    resume: bool = False,
    measure: Measure = trials.measure,
    calibrate: Callable[[Path], None] = trials.calibrate_into,
) -> Ended:
    """Runs what of a suite has no row yet; each trial in a process of its own, with the suite's limits.

    Args:
        out: the directory of results.
        resume: whether to go on with what is there.
        measure, calibrate: functions of some module, called in those processes.

    Raises:
        ResultsError: the directory cannot be written, is in use, or holds something else; see `ResultsDirectory`.
    """
    with _told_to_stop(), ResultsDirectory(out, suite, resume) as directory, Board(suite) as board:
        for damage in directory.damaged:
            board.say(f"{damage}; the line went to {out / 'damaged.csv'}, the run is done again")
        if earlier := {row["git_revision"] for row in directory.rows if row["git_revision"]} - {revision()}:
            board.say(f"the rows that are there are of another revision: {', '.join(sorted(earlier))}")
        try:
            _run(suite, directory, board, measure, calibrate)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        failed = sum(row["status"] in FAILED for row in directory.rows)
        return Ended(len(directory.rows), len(suite.trials()), failed, interrupted)


def _run(
    suite: Suite, directory: ResultsDirectory, board: Board, measure: Measure, calibrate: Callable[[Path], None]
) -> None:
    done = {tuple(row[name] for name in KEY) for row in directory.rows}
    waiting = [trial for trial in suite.trials() if trial.key not in done]
    board.begin(len(directory.rows), [trial.key for trial in waiting])
    profile = _profile(suite, directory, board, calibrate) if waiting else None
    for trial in waiting:
        board.start(trial.key)
        row, details = _row(replace(trial, profile=profile), suite, directory.log(trial.key), measure)
        with undisturbed():
            directory.append(row, details)
        board.finish(row)


def _profile(suite: Suite, directory: ResultsDirectory, board: Board, calibrate: Callable[[Path], None]) -> Path | None:
    """The cost model that the suite's directory holds, measured first if it holds none."""
    if not suite.calibrate:
        return None
    path, log = directory.path / "profile.json", directory.path / "logs" / "calibration.txt"
    board.start("measuring the devices")
    try:
        call_in_child(calibrate, path, timeout_seconds=CALIBRATION_SECONDS, log=log)
    except ChildFailed as error:
        board.say(f"measuring the devices failed, predictions are by the preset: {error}")
        return None
    return path


def _row(trial: Trial, suite: Suite, log: Path, measure: Measure) -> tuple[Row, Mapping[str, Any]]:
    """The trial's row, whatever became of it, and its details."""
    started, begun = datetime.datetime.now(datetime.UTC), time.monotonic()
    try:
        found, details = call_in_child(
            measure,
            trial,
            timeout_seconds=suite.run_seconds,
            memory_bytes=arguments.nbytes(suite.run_memory),
            log=log,
        )
    except ChildFailed as error:
        found, details = {"status": error.reason, "error": str(error), "git_revision": revision()}, {}
    about_trial = {
        **dict(zip(KEY, trial.key, strict=True)),
        "seed": trial.seed,
        "started_at": started.isoformat(timespec="seconds"),
        "wall_seconds": time.monotonic() - begun,
    }
    return {**found, **about_trial}, details


@contextmanager
def _told_to_stop() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: with its rows in order and its children gone."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
