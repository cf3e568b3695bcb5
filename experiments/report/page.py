"""The page: figures, table and conditions in one HTML file that needs no network, and the figures alone as files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import altair as alt
import jinja2
import pandas as pd
import vl_convert

from experiments.baselines import STRATEGIES
from experiments.report import closer, overview
from experiments.report.data import Results, read
from experiments.report.style import CONFIG, Figure
from experiments.runner.columns import COLUMNS, FAILED
from experiments.runner.directory import Damage, ResultsError
from experiments.runner.suite import TABLE_COLUMNS

WIDTH = 520
"""Pixels, of a figure as a file; on the page it is as wide as there is room."""
LEAST_DRIFT_RUNS = 5
"""With fewer, quantiles of their times say little."""
MOST_ERROR = 240
"""Letters of an error; the whole of it is in the table's row."""
FIT = alt.AutoSizeParams(type="fit-x", contains="padding")
"""Axes and their labels stay within the width."""
SCALE = 2.0
"""Of a PNG: pixels per pixel."""


@dataclass(frozen=True)
class Report:
    """What was made.

    Attributes:
        rows: how many runs are in it.
        damaged: lines of the results that are not.
    """

    page: Path
    rows: int
    damaged: tuple[Damage, ...]


@dataclass(frozen=True)
class Section:
    """A figure with what it shows, in words."""

    name: str
    title: str
    text: str
    draw: Callable[..., Figure | None]


OVERVIEW = (
    Section(
        "against-plan",
        "Is the plan faster?",
        "Each dot is a layout: its measured step time over the plan's, which is the line at 1; the two were timed in "
        "turns. Dots to the right of it are slower than the plan. The thin line is what noise may make of it. "
        "Layouts that memory did not take beside the plan are left out.",
        overview.against_plan,
    ),
    Section(
        "predicted-against-measured",
        "Are the predictions right?",
        f"Each mark is one layout of one case. On the line the prediction is exact; the shaded band is "
        f"±{overview.WITHIN:.0%}.",
        overview.predicted_against_measured,
    ),
)
CLOSER = (
    Section(
        "step-time",
        "Step time",
        "Measured, by layout; the dark mark is the prediction. The thin line spans the repeats, or with one repeat the "
        "middle half of its calls.",
        closer.step_time,
    ),
    Section(
        "where-time-goes",
        "Where the time goes",
        "The predicted step in parts; a layout that XLA propagated has no prediction.",
        closer.where_time_goes,
    ),
    Section(
        "memory",
        "Memory",
        "Per device, at the worst point of a step: as compiled, or as predicted where nothing was. The dark mark is "
        "the prediction.",
        closer.memory,
    ),
    Section(
        "communication",
        "Communication of the plan",
        "By the mesh axes that each collective runs over, as planned and as compiled; it counts at its larger side.",
        closer.communication,
    ),
    Section(
        "layout",
        "The plan",
        f"Its arguments, the largest first and at most {closer.MOST_ARRAYS} lines; parameters share one with the "
        f"optimiser's moments of them. A coloured dimension is split over mesh axes, a grey one is whole.",
        closer.layout_picture,
    ),
    Section(
        "memory-over-time",
        "Memory over a step",
        "What the plan keeps on one device, as predicted, from program point to program point.",
        closer.memory_over_time,
    ),
    Section(
        "search",
        "The search",
        "The best plan found and what is proven that no plan can beat; where they meet, the plan is optimal.",
        closer.search,
    ),
)


def write_report(directory: Path, figures: bool = True) -> Report:
    """Writes `report.html` into a directory of results, and its figures as SVG and PNG into `figures`.

    Raises:
        ResultsError: there are no results, or the directory cannot be written.
    """
    results = read(directory)
    drawn = dict(_draw(results))
    page = directory / "report.html"
    try:
        page.write_text(_html(results, drawn))
        if figures:
            _write_figures(directory / "figures", drawn)
    except OSError as error:
        raise ResultsError(f"cannot write {page}: {error.strerror}") from error
    return Report(page, len(results.frame), results.damaged)


def _draw(results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each figure as Vega-Lite, by name; those of a case begin with its key."""
    named = [(section.name, section.draw(results)) for section in OVERVIEW]
    for case in results.cases:
        named += [(f"{_key(case)}-{section.name}", section.draw(results, case)) for section in CLOSER]
    for name, chart in named:
        if chart is not None:
            with alt.data_transformers.enable("default", max_rows=None):
                yield name, chart.properties(width="container", autosize=FIT).configure(**CONFIG).to_dict()


def _key(case: str) -> str:
    """A case's name as a file has it."""
    return re.sub(r"[^\w.]+", "-", case)


def _html(results: Results, drawn: Mapping[str, dict[str, Any]]) -> str:
    loader = jinja2.PackageLoader("experiments.report", "templates")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template("report.html.jinja").render(
        title=results.suite.get("name") or results.directory.name,
        description=results.suite.get("description", ""),
        tiles=list(_tiles(results)),
        drift=_drift(results.frame),
        races=results.races.to_dict("records"),
        overview=[section for section in OVERVIEW if section.name in drawn],
        closer=CLOSER,
        cases=[
            {"key": _key(case), "name": case, "explained": results.details(case, "planned").get("explained", "")}
            for case in results.cases
        ],
        specs=_script_json(drawn),
        vega=vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script"),
        table=_table(results),
        failures=_failures(results),
        inapplicable=_inapplicable(results),
        damaged=[str(damage) for damage in results.damaged],
        conditions=_conditions(results.frame),
        legend=[COLUMNS[name] for name in _shown_columns(results)],
        strategies={name: text for name, text in STRATEGIES.items() if name in results.strategies},
    )


def _script_json(value: Any) -> str:
    """JSON that no text in it can break out of a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _tiles(results: Results) -> Iterator[tuple[str, str, str]]:
    """The headline figures: what, how much, and of what."""
    frame = results.frame
    good = frame.status.isin(["ok", "predicted"])
    failed = int(frame.status.isin(FAILED).sum())
    yield "Runs", f"{int(good.sum())}", f"{failed} failed" if failed else "none failed"
    races = results.races
    if len(races):
        counts = races.verdict.value_counts()
        stands = ", ".join(f"{word} in {counts[word]}" for word in ("ahead", "level", "behind") if word in counts)
        yield (
            "Speed against the best layout by hand",
            f"{results.speed_up():.2f}×",
            f"geometric mean; {stands} of {_count(len(races), 'case')}",
        )
    steps = results.steps.dropna(subset=["measured", "predicted"])
    if len(steps):
        error = (steps.predicted / steps.measured - 1).abs()
        most = f"median; 90 % are within {error.quantile(0.9):.0%}"
        yield "Error of predicted step times", f"{error.median():.0%}", most
    planned = frame[(frame.strategy == "planned") & frame.fidelity.notna()]
    if len(planned):
        least = f"median; the least is {planned.fidelity.min():.3f}"
        yield "Fidelity of the plan", f"{planned.fidelity.median():.3f}", least
    if frame.largest_error.notna().any():
        beyond = int((~frame.numerics.fillna("").isin(["", "ok"])).sum())
        yield (
            "Largest numeric error",
            f"{frame.largest_error.max():.1e}",
            f"beyond tolerance in {_count(beyond, 'run')}" if beyond else "relative; all within tolerance",
        )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _shown_columns(results: Results) -> list[str]:
    wanted = results.suite.get("columns") or TABLE_COLUMNS
    return [name for name in wanted if name in COLUMNS]


def _table(results: Results) -> dict[str, Any]:
    """Headings with what to sort by, and rows of cells as shown and as sorted."""
    names = _shown_columns(results)
    if results.frame["repeat"].nunique() > 1 and "repeat" not in names:
        names.insert(names.index("strategy") + 1 if "strategy" in names else len(names), "repeat")
    columns = [_shown(COLUMNS[name].unit, results.frame[name]) for name in names]
    heads = [
        {
            "text": re.sub(r"_(seconds|bytes)$", "", name).replace("_", " "),
            "unit": unit,
            "number": COLUMNS[name].kind != "text",
        }
        for name, (unit, _) in zip(names, columns, strict=True)
    ]
    shown = (texts for _, texts in columns)
    values = (_sortable(results.frame[name]) for name in names)
    cells = zip(*(zip(*each, strict=True) for each in zip(shown, values, strict=True)), strict=True)
    rows = [
        {"status": status, "error": "" if pd.isna(error) else error, "cells": list(row)}
        for status, error, row in zip(results.frame.status, results.frame.error, cells, strict=True)
    ]
    return {"heads": heads, "rows": rows}


def _shown(unit: str, values: pd.Series[Any]) -> tuple[str, list[str]]:
    """A column's unit for people, and its cells."""
    scale, unit = {"s": (1e3, "ms"), "B": (2**-20, "MiB")}.get(unit, (1.0, ""))
    if values.dtype == "float64":
        return unit, ["" if pd.isna(value) else _number(value * scale) for value in values]
    return unit, ["" if pd.isna(value) else str(value) for value in values]


def _number(value: float) -> str:
    """To three digits, without exponents as long as that is short."""
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _sortable(values: pd.Series[Any]) -> list[str]:
    return ["" if pd.isna(value) else f"{value}" for value in values]


def _failures(results: Results) -> list[dict[str, str]]:
    frame = results.frame
    failed = frame[frame.status.isin(FAILED)].fillna({"error": ""})
    return [
        {
            **{name: str(row[name]) for name in ("case", "strategy", "status")},
            "error": shorten(row["error"], MOST_ERROR),
        }
        for row in failed.to_dict("records")
    ]


def _inapplicable(results: Results) -> list[str]:
    """Which layouts there are none of, a line for each case."""
    frame = results.frame[results.frame.status.isin(["not applicable", "infeasible"])]
    return [f"{case}: {', '.join(dict.fromkeys(part.strategy))}" for case, part in frame.groupby("case", sort=False)]


def _drift(frame: pd.DataFrame) -> str:
    """How much the machine's own speed varied between the runs; empty where that was not seen."""
    times = frame.reference_seconds.dropna()
    if len(times) < LEAST_DRIFT_RUNS:
        return ""
    low, high = times.quantile([0.1, 0.9])
    return (
        f"A fixed product, timed beside every run, took {low * 1e3:.3g} to {high * 1e3:.3g} ms (80 % of the runs): the "
        f"machine's own speed varied by a factor of {high / low:.2f}. Ratios to the plan do not suffer from that, the "
        f"two took turns; times of different runs, and predictions held against them, do."
    )


def _conditions(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """What the runs ran on; where that differs, every value."""
    names = (
        ("device_kind", "devices"), ("processor", "processor"), ("cores", "cores"), ("cost_model", "predictions by"),
        ("python_version", "Python"), ("jax_version", "jax"), ("jaxlib_version", "jaxlib"),
        ("ortools_version", "OR-Tools"), ("meshwright_version", "Meshwright"), ("git_revision", "revision"),
    )  # fmt: skip
    found = [(label, ", ".join(filter(None, map(str, frame[name].dropna().unique())))) for name, label in names]
    begun = frame.started_at.dropna()
    if len(begun):
        found.insert(0, ("measured", f"{begun.min()} to {begun.max()}".replace("T", " ").replace("+00:00", " UTC")))
    return [(label, text) for label, text in found if text]


def _write_figures(folder: Path, drawn: Mapping[str, dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    for name, spec in drawn.items():
        fixed = {**spec, "width": WIDTH}
        (folder / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(fixed))
        (folder / f"{name}.png").write_bytes(vl_convert.vegalite_to_png(fixed, scale=SCALE))
