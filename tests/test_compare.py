"""Two directories of results against each other: known changes are found, noise is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.compare import compare, comparison_text
from experiments.runner.columns import COLUMNS, KEY
from experiments.runner.directory import ResultsError, line_of

STRATEGIES = [f"layout {number}" for number in range(20)]


def results(path: Path, seed: int, noise: float, repeats: int, change: dict[str, float]) -> Path:
    """A directory whose runs take 10 ms times what is said here, give or take."""
    drawn = np.random.default_rng(seed)
    lines = [",".join(COLUMNS) + "\n"]
    for repeat in range(1, 1 + repeats):
        for strategy in STRATEGIES:
            time = 0.01 * change.get(strategy, 1.0) * np.exp(drawn.normal(0.0, noise))
            row = {
                **dict(zip(KEY, ("mlp", "test", "2x4", strategy, repeat), strict=True)),
                "status": "ok", "measured_step_seconds": time, "measured_p25_seconds": 0.99 * time,
                "measured_p75_seconds": 1.01 * time, "calls": 25, "reference_seconds": 0.002 * repeat,
            }  # fmt: skip
            lines.append(line_of(row))
    path.mkdir()
    (path / "results.csv").write_text("".join(lines))
    return path


def test_what_changed_is_found_and_the_rest_is_noise(tmp_path: Path) -> None:
    before = results(tmp_path / "a", 1, 0.02, 4, {})
    after = results(tmp_path / "b", 2, 0.02, 4, {"layout 3": 1.25, "layout 7": 0.8})
    found = compare(before, after)
    verdicts = found.table.set_index("strategy").verdict
    assert verdicts["layout 3"] == "slower"
    assert verdicts["layout 7"] == "faster"
    assert (verdicts.drop(["layout 3", "layout 7"]) == "within noise").all()
    assert found.noise == pytest.approx(0.02 * 2**0.5, rel=0.3), "both runs of a pair are noisy"
    slower = found.table.set_index("strategy").loc["layout 3"]
    assert slower.low < 1.25 < slower.high


def test_intervals_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    inside = []
    for seed in range(20):
        pair = [results(tmp_path / f"{seed}-{side}", 2 * seed + side, 0.05, 3, {}) for side in (0, 1)]
        table = compare(*pair).table
        inside += list((table.low < 1) & (table.high > 1))
    assert 0.92 < np.mean(inside) < 0.98


def test_without_repeats_the_noise_is_that_of_the_calls(tmp_path: Path) -> None:
    found = compare(results(tmp_path / "a", 1, 0.0, 1, {}), results(tmp_path / "b", 1, 0.0, 1, {"layout 3": 1.25}))
    assert not found.repeated
    assert list(found.table.query("verdict != 'within noise'").strategy) == ["layout 3"]
    assert 0.003 < found.noise < 0.01


def test_without_repeats_drift_from_run_to_run_is_no_change(tmp_path: Path) -> None:
    """Each run's calls agree to a per cent, and the runs do not: 30 % between processes, as on a shared machine."""
    before, after = (results(tmp_path / str(seed), seed, 0.3, 1, {}) for seed in (1, 2))
    found = compare(before, after)
    assert not found.repeated
    assert found.noise > 0.2
    assert (found.table.verdict == "within noise").all()


def test_a_directory_against_itself_changes_nothing(tmp_path: Path) -> None:
    same = results(tmp_path / "a", 1, 0.02, 2, {})
    text = comparison_text(same, same)
    assert "Slower: none" in text
    assert "Faster: none" in text
    assert "All 20 layouts together: 1.000" in text


def test_the_text_says_what_is_missing(tmp_path: Path) -> None:
    text = comparison_text(
        results(tmp_path / "a", 1, 0.02, 2, {}), results(tmp_path / "b", 2, 0.02, 1, {"layout 3": 2.0})
    )
    assert "mlp on 2x4, layout 3" in text
    assert f"Runs that were timed in {tmp_path / 'a'} alone: 20." in text
    assert "for want of repeats" in text
    assert "by a fixed product timed beside each run: 1.000" in text


def test_nothing_in_common_is_told(tmp_path: Path) -> None:
    before = results(tmp_path / "a", 1, 0.0, 1, {})
    empty = tmp_path / "b"
    empty.mkdir()
    (empty / "results.csv").write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(ResultsError, match="no timed run in common"):
        compare(before, empty)
