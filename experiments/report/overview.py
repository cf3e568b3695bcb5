"""Figures over all cases: how the plan stands, and how good predictions are."""

from __future__ import annotations

import math

import altair as alt
import numpy as np
import pandas as pd

from experiments.report.data import Results
from experiments.report.style import CATEGORIES, INK, KIND_COLOURS, QUIET, Figure, domain

WITHIN = 0.35
"""Relative error that the scatter shades."""
ROW = 34
"""Pixels."""


def against_plan(results: Results) -> Figure | None:
    """Measured step time of every layout over that of the plan, a line for each case."""
    steps = results.steps.dropna(subset=["times_plan"])
    frame = steps[steps.strategy != "planned"].assign(measured_ms=steps.measured * 1e3)
    if frame.empty:
        return None
    names, colours = domain(KIND_COLOURS, list(frame.kind))
    span = [min(0.8, frame.times_plan_low.min() * 0.95), frame.times_plan_high.max() * 1.05]
    place = alt.Y("case:N", title=None, sort=None)
    colour = alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours))
    noise = (
        alt.Chart(frame)
        .mark_rule(opacity=0.6)
        .encode(x=alt.X("times_plan_low:Q"), x2="times_plan_high:Q", y=place, color=colour)
    )
    dots = (
        alt.Chart(frame)
        .mark_circle(size=90, opacity=0.85)
        .encode(
            x=alt.X(
                "times_plan:Q",
                title="step time over the plan's",
                scale=alt.Scale(type="log", domain=span, nice=False),
                axis=alt.Axis(format="~g", values=round_numbers(*span)),
            ),
            y=place,
            color=colour,
            tooltip=[
                alt.Tooltip("strategy:N", title="layout"),
                alt.Tooltip("times_plan:Q", title="times the plan's", format=".3~g"),
                alt.Tooltip("times_plan_low:Q", title="at least", format=".3~g"),
                alt.Tooltip("times_plan_high:Q", title="at most", format=".3~g"),
                alt.Tooltip("measured_ms:Q", title="measured, ms", format=".3~g"),
            ],
        )
    )
    plan = alt.Chart(pd.DataFrame({"times_plan": [1.0]}))
    one = plan.mark_rule(color=KIND_COLOURS["planned"], size=2).encode(x="times_plan:Q")
    return alt.layer(one, noise, dots).properties(height=ROW * frame.case.nunique())


def predicted_against_measured(results: Results) -> Figure | None:
    """A point for each case and layout; perfect predictions lie on the diagonal."""
    steps = results.steps.dropna(subset=["measured", "predicted"])
    if steps.empty:
        return None
    frame = steps.assign(predicted_ms=steps.predicted * 1e3, measured_ms=steps.measured * 1e3)
    least = 0.7 * float(frame[["predicted_ms", "measured_ms"]].min().min())
    most = 1.4 * float(frame[["predicted_ms", "measured_ms"]].max().max())
    ends = np.geomspace(least, most, 2)
    lines = pd.DataFrame({"x": ends, "exact": ends, "low": ends * (1 - WITHIN), "high": ends * (1 + WITHIN)})
    scale = alt.Scale(type="log", domain=[least, most], nice=False)
    axis = alt.Axis(format="~g", values=round_numbers(least, most))
    band = alt.Chart(lines).mark_area(color=INK, opacity=0.07, clip=True)
    cases = results.cases
    points = (
        alt.Chart(frame)
        .mark_point(filled=True, size=70, opacity=0.85)
        .encode(
            x=alt.X("measured_ms:Q", title="measured, ms per step", scale=scale, axis=axis),
            y=alt.Y("predicted_ms:Q", title="predicted, ms per step", scale=scale, axis=axis),
            color=alt.Color(
                "case:N",
                scale=alt.Scale(domain=cases, range=[CATEGORIES[at % len(CATEGORIES)] for at in range(len(cases))]),
                legend=alt.Legend() if len(cases) <= len(CATEGORIES) else None,
            ),
            shape=alt.Shape(
                "kind:N",
                scale=alt.Scale(domain=[*KIND_COLOURS], range=["diamond", "circle", "square", "triangle-up"]),
                legend=alt.Legend(symbolFillColor=QUIET, symbolStrokeColor=QUIET, orient="bottom"),
            ),
            tooltip=[
                alt.Tooltip("case:N", title="case"),
                alt.Tooltip("strategy:N", title="layout"),
                alt.Tooltip("measured_ms:Q", title="measured, ms", format=".3~g"),
                alt.Tooltip("predicted_ms:Q", title="predicted, ms", format=".3~g"),
            ],
        )
    )
    exact = alt.Chart(lines).mark_line(color=QUIET, size=1, clip=True).encode(x="x:Q", y="exact:Q")
    return alt.layer(band.encode(x="x:Q", y="low:Q", y2="high:Q"), exact, points).properties(height=380)


def round_numbers(least: float, most: float) -> list[float]:
    """1, 2 and 5 times the powers of ten between two numbers."""
    powers = range(math.floor(math.log10(least)), 1 + math.ceil(math.log10(most)))
    return [number for power in powers for digit in (1, 2, 5) if least <= (number := digit * 10.0**power) <= most]
