"""The report: one page that needs no network, opened in a browser; and the way there from real runs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from experiments import cli
from experiments.report import write_report
from experiments.report.data import read
from experiments.report.page import CLOSER, OVERVIEW
from experiments.runner.columns import COLUMNS, KEY
from experiments.runner.directory import line_of
from experiments.runner.loop import run_suite
from experiments.runner.suite import Suite

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESKTOP = {"width": 375, "height": 740}, {"width": 1280, "height": 900}
SUITE = Suite(
    "mine",
    ("sigmoid-layer-grad",),
    ("2x4",),
    ("planned", "sequence-parallel", "xla-propagation"),
    description="A <small> suite & its report.",
    calls=5,
    seconds=0.0,
    calibrate=False,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real runs, two that failed, and a line that is damaged."""
    directory = tmp_path_factory.mktemp("report") / "results"
    ended = run_suite(SUITE, directory)
    assert (ended.rows, ended.failed) == (3, 0), (directory / "results.csv").read_text()
    with (directory / "results.csv").open("a") as file:
        for strategy, status in (("replicated", "time-out"), ("random", "crash")):
            key = dict(zip(KEY, ("sigmoid-layer-grad", "test", "2x4", strategy, 1), strict=True))
            file.write(line_of({**key, "status": status, "error": "</script><script>alert(1)</script>"}))
        file.write("mlp,te")
    return directory


@pytest.fixture(scope="module")
def page_file(results: Path) -> Path:
    made = write_report(results, figures=False)
    assert made.rows == 5
    assert [damage.line for damage in made.damaged] == [7]
    return made.page


def test_rows_of_real_runs_say_what_happened(results: Path) -> None:
    frame = read(results).frame.set_index("strategy")
    assert dict(frame.status[:3]) == {
        "planned": "ok", "sequence-parallel": "not applicable", "xla-propagation": "ok",
    }  # fmt: skip
    planned = frame.loc["planned"]
    assert planned.measured_min_seconds <= planned.measured_p05_seconds <= planned.measured_step_seconds
    assert planned.measured_step_seconds <= planned.measured_p95_seconds
    parts = planned.predicted_compute_seconds + planned.predicted_communication_seconds
    assert planned.predicted_step_seconds == pytest.approx(parts + planned.predicted_overhead_seconds, rel=1e-6)
    assert (planned.solver_status, planned.numerics, planned.fidelity) == ("optimal", "ok", 1.0)
    assert planned.compiled_communicated_bytes == planned.predicted_communicated_bytes
    assert (planned.mesh_axes, planned.devices, planned.calls) == ("x=2 y=4", 8, 5)
    assert frame.loc["xla-propagation"].isna().predicted_step_seconds
    assert frame.loc["xla-propagation"].numerics == "ok"
    assert (planned.times_plan, planned.times_plan_low, planned.times_plan_high) == (1.0, 1.0, 1.0)
    propagated = frame.loc["xla-propagation"]
    assert 0 < propagated.times_plan_low <= propagated.times_plan <= propagated.times_plan_high


def test_the_plan_stands_by_what_took_turns_with_it(tmp_path: Path) -> None:
    """Whatever the clock said of runs one after the other."""
    wanted = {"ahead": (1.2, 1.1, 1.3), "level": (0.9, 0.8, 1.1), "behind": (0.5, 0.4, 0.6)}
    lines = [",".join(COLUMNS) + "\n"]
    for workload, ratios in wanted.items():
        for strategy, seconds, times in (
            ("planned", 1.0, (1, 1, 1)),
            ("fsdp", 0.1, (3, 3, 3)),
            ("replicated", 9, ratios),
        ):
            row = dict(zip(KEY, (workload, "test", "2x4", strategy, 1), strict=True))
            row |= dict(zip(("times_plan", "times_plan_low", "times_plan_high"), times, strict=True))
            lines.append(line_of({**row, "status": "ok", "measured_step_seconds": seconds}))
    (tmp_path / "results.csv").write_text("".join(lines))
    races = read(tmp_path).races
    assert list(races.verdict) == [*wanted]
    assert set(races.best) == {"replicated"}
    assert read(tmp_path).speed_up() == pytest.approx((1.2 * 0.9 * 0.5) ** (1 / 3))
    assert "ahead in 1, level in 1, behind in 1 of 3 cases" in write_report(tmp_path, figures=False).page.read_text()


def test_a_page_without_runs_or_with_predictions_alone_is_made(results: Path, tmp_path: Path) -> None:
    head, first, *_ = (results / "results.csv").read_text().splitlines()
    row = dict(zip(head.split(","), first.split(","), strict=True))
    row |= {name: "" for name in row if name.startswith(("measured", "compiled", "times"))} | {"status": "predicted"}
    for lines, count in (([], 0), ([",".join(row.values())], 1)):
        (tmp_path / "results.csv").write_text("\n".join([head, *lines, ""]))
        made = write_report(tmp_path, figures=False)
        assert (made.rows, made.damaged) == (count, ())
        assert ("One case closer" in made.page.read_text()) == bool(count)


def test_the_page_asks_for_nothing_from_elsewhere(page_file: Path) -> None:
    text = page_file.read_text()
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "alert(1)</script>" not in text
    assert "A &lt;small&gt; suite &amp; its report." in text


def test_figures_are_written_for_a_paper(results: Path) -> None:
    write_report(results)
    for section in OVERVIEW:
        svg, png = ((results / "figures" / f"{section.name}{end}").read_bytes() for end in (".svg", ".png"))
        assert b"<svg" in svg[:200]
        assert png.startswith(b"\x89PNG")
    names = {path.name for path in (results / "figures").iterdir()}
    assert {f"sigmoid-layer-grad-2x4-{section.name}.svg" for section in CLOSER} <= names


def test_the_commands_say_where_things_are(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, said in (
        (("report", str(results), "--no-figures"), f"The report of 5 runs is in {results / 'report.html'}"),
        (("compare", str(results), str(results)), "All 2 layouts together: 1.000"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(argv)
        printed = capsys.readouterr()
        assert stopped.value.code == 0
        assert said in printed.out
        assert ("line 7: the line is cut off" in printed.err) == (argv[0] == "report")


def test_commands_refuse_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, said in (
        (("report", str(tmp_path)), "holds no results"),
        (("run", "quik"), "did you mean 'quick'"),
        (("run", "quick", "--strategy", "best"), "no strategy is named 'best'"),
        (("run", "quick", "--out", "/dev/null/results"), "cannot write to /dev/null/results"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main(argv)
        assert stopped.value.code == 1
        assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here to open the page with; .ci/run installs it where it may")
    with sync_playwright() as playwright:
        # Chromium refuses to sandbox itself as root, which it is in many a container.
        own = ["--no-sandbox"] if os.getuid() == 0 else []
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=own)


def opened(browser: Browser, file: Path, size: Any) -> tuple[Page, list[str]]:
    """The page once all its figures are drawn, and what went wrong meanwhile."""
    page, wrong = browser.new_page(viewport=size, offline=True), []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("requestfailed", lambda request: wrong.append(request.url))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or wrong.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_function("document.querySelectorAll('.figure[data-drawn] svg').length === 9", timeout=30_000)
    return page, wrong


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_opens_without_an_error_and_fits(browser: Browser, page_file: Path, size: Any) -> None:
    page, wrong = opened(browser, page_file, size)
    assert wrong == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    for figure in page.locator(".figure:visible svg").all():
        box = figure.bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["x"] + box["width"] <= size["width"]
    assert page.get_by_text("sigmoid-layer-grad · 2x4, replicated").is_visible()
    page.close()


def test_the_table_sorts_by_a_click(browser: Browser, page_file: Path) -> None:
    page, wrong = opened(browser, page_file, DESKTOP)

    def column(position: int) -> list[str]:
        return page.eval_on_selector_all(
            f"#runs tbody td:nth-child({position})", "cells => cells.map(cell => cell.dataset.value)"
        )

    heads = page.locator("#runs th")
    names = [name.split("\n")[0] for name in heads.all_inner_texts()]
    time = 1 + next(place for place, name in enumerate(names) if name.startswith("measured step"))
    for direction, reverse in (("ascending", False), ("descending", True)):
        heads.nth(time - 1).get_by_role("button").click()
        assert heads.nth(time - 1).get_attribute("aria-sort") == direction
        numbers = [float(value) for value in column(time) if value]
        assert numbers == sorted(numbers, reverse=reverse)
        assert column(time)[len(numbers) :] == [""] * 3, "what was not measured stands last"
    heads.nth(2).get_by_role("button").click()
    assert column(3) == sorted(column(3))
    assert wrong == []
    page.close()
