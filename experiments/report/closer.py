"""Figures of one case: its layouts side by side, and the plan from inside."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from experiments.report.data import Results
from experiments.report.style import CATEGORIES, INK, KIND_COLOURS, PARTS, QUIET, ROLES, RULE, domain

MOST_ARRAYS = 24
"""Groups of arrays in the picture of the layout, the largest ones."""
BAR = 15
MEBIBYTE = 2**20


def step_time(results: Results, case: str) -> alt.LayerChart | None:
    """Measured and predicted step time of each layout, fastest first."""
    frame = _of(results, case).dropna(subset=["measured"]).sort_values("measured")
    if frame.empty:
        return None
    for name in ("measured", "low", "high", "predicted"):
        frame[f"{name}_ms"] = frame[name] * 1e3
    names, colours = domain(KIND_COLOURS, list(frame.kind))
    place = alt.Y("strategy:N", title=None, sort=list(frame.strategy))
    base = alt.Chart(frame.drop(columns="row"))
    tooltip = [
        alt.Tooltip("strategy:N", title="layout"),
        alt.Tooltip("measured_ms:Q", title="measured, ms", format=".3~g"),
        alt.Tooltip("low_ms:Q", title="from, ms", format=".3~g"),
        alt.Tooltip("high_ms:Q", title="to, ms", format=".3~g"),
        alt.Tooltip("predicted_ms:Q", title="predicted, ms", format=".3~g"),
    ]
    bars = base.mark_bar(size=BAR).encode(
        x=alt.X("measured_ms:Q", title="ms per step; line: spread; dark mark: predicted", axis=alt.Axis(tickCount=5)),
        y=place,
        color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours)),
        tooltip=tooltip,
    )
    spread = base.mark_rule(color=INK, size=1.5, opacity=0.7).encode(x="low_ms:Q", x2="high_ms:Q", y=place)
    predicted = base.mark_tick(color=INK, thickness=2.5, size=BAR + 5).encode(
        x="predicted_ms:Q", y=place, tooltip=tooltip
    )
    return alt.layer(bars, spread, predicted).properties(height=alt.Step(25))


def memory(results: Results, case: str) -> alt.LayerChart | None:
    """Peak memory of each layout, by the compiler and by the plan."""
    frame = _of(results, case)
    frame = frame.assign(compiled=frame.compiled_peak / MEBIBYTE, planned=frame.predicted_peak / MEBIBYTE)
    frame = frame.dropna(subset=["compiled", "planned"], how="all").sort_values("compiled")
    if frame.empty:
        return None
    names, colours = domain(KIND_COLOURS, list(frame.kind))
    place = alt.Y("strategy:N", title=None, sort=list(frame.strategy))
    base = alt.Chart(frame[["strategy", "kind", "compiled", "planned"]])
    tooltip = [
        alt.Tooltip("strategy:N", title="layout"),
        alt.Tooltip("compiled:Q", title="compiled, MiB", format=".4~g"),
        alt.Tooltip("planned:Q", title="predicted, MiB", format=".4~g"),
    ]
    bars = base.mark_bar(size=BAR).encode(
        x=alt.X("compiled:Q", title="peak MiB per device, compiled; dark mark: predicted", axis=alt.Axis(tickCount=5)),
        y=place,
        color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours)),
        tooltip=tooltip,
    )
    predicted = base.mark_tick(color=INK, thickness=2.5, size=BAR + 5).encode(x="planned:Q", y=place, tooltip=tooltip)
    return alt.layer(bars, predicted).properties(height=alt.Step(25))


def where_time_goes(results: Results, case: str) -> alt.LayerChart | None:
    """The predicted step of each layout in parts: compute, each kind of collective, overhead."""
    rows = []
    for step in _of(results, case).dropna(subset=["predicted"]).sort_values("predicted").itertuples():
        row = results.frame.loc[step.row]
        parts = {"compute": row.predicted_compute_seconds, "overhead": row.predicted_overhead_seconds}
        for one in results.details(case, str(step.strategy)).get("predicted", ()):
            parts[one["kind"]] = parts.get(one["kind"], 0.0) + one["seconds"]
        rows += [
            {"strategy": step.strategy, "part": part, "ms": seconds * 1e3, "order": list(PARTS).index(part)}
            for part, seconds in parts.items()
            if part in PARTS and seconds > 0
        ]
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    names, colours = domain(PARTS, list(frame.part))
    bars = (
        alt.Chart(frame)
        .mark_bar(size=BAR)
        .encode(
            x=alt.X("ms:Q", title="predicted ms per step", axis=alt.Axis(tickCount=5)),
            y=alt.Y("strategy:N", title=None, sort=list(dict.fromkeys(frame.strategy))),
            color=alt.Color("part:N", scale=alt.Scale(domain=names, range=colours), legend=alt.Legend(columns=4)),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("strategy:N", title="layout"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("ms:Q", title="ms", format=".3~g"),
            ],
        )
    )
    return alt.layer(bars).properties(height=alt.Step(25))


def communication(results: Results, case: str) -> alt.LayerChart | None:
    """Bytes through the plan's collectives by mesh axis, as planned and as compiled."""
    details = results.details(case, "planned")
    rows = [
        {
            "over": " and ".join(one["axes"]),
            "by": side,
            "kind": one["kind"],
            "MiB": one["bytes"] / MEBIBYTE,
            "count": one["count"],
            "order": list(PARTS).index(one["kind"]) if one["kind"] in PARTS else len(PARTS),
        }
        for side, key in (("planned", "predicted"), ("compiled", "compiled"))
        for one in details.get(key, ())
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows).assign(line=lambda each: each.over + ", " + each.by)
    names, colours = domain(PARTS, list(frame.kind))
    lines = frame.sort_values(["over", "by"], ascending=[True, False]).line.unique()
    bars = (
        alt.Chart(frame)
        .mark_bar(size=BAR)
        .encode(
            x=alt.X("MiB:Q", title="MiB per device and step, by mesh axis", axis=alt.Axis(tickCount=5)),
            y=alt.Y("line:N", title=None, sort=list(lines)),
            color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours), legend=alt.Legend(columns=3)),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("kind:N", title="collective"),
                alt.Tooltip("line:N", title="over"),
                alt.Tooltip("count:Q", title="times per step", format=".4~g"),
                alt.Tooltip("MiB:Q", title="MiB", format=".4~g"),
            ],
        )
    )
    return alt.layer(bars).properties(height=alt.Step(25))


def layout_picture(results: Results, case: str) -> alt.LayerChart | None:
    """Each argument of the plan, dimension by dimension: its size, and the mesh axes that split it."""
    details = results.details(case, "planned")
    groups = _grouped(details)
    if not groups:
        return None
    shown = sorted(groups.values(), key=lambda group: -group["bytes"])[:MOST_ARRAYS]
    rows = [
        {
            "array": group["label"],
            "dimension": f"{dim}",
            "size": f"{size} / {group['ways'][dim]}" if axes else f"{size}",
            "split": " and ".join(axes) or "whole",
            "dtype": group["dtype"],
            "MiB": group["bytes"] / MEBIBYTE,
        }
        for group in shown
        for dim, (size, axes) in enumerate(zip(group["shape"], group["axes"], strict=True))
    ]
    if not rows:
        return None
    frame = pd.DataFrame(rows)
    ways = sorted(set(frame.split) - {"whole"}, key=lambda axes: (len(axes), axes))
    names, colours = domain({"whole": "#eef1f5", **dict(zip(ways, CATEGORIES, strict=False))}, list(frame.split))
    base = alt.Chart(frame).encode(
        x=alt.X(
            "dimension:O", title="dimension: size / shards", axis=alt.Axis(orient="top", labelAngle=0, grid=False)
        ),
        y=alt.Y("array:N", title=None, sort=[group["label"] for group in shown], axis=alt.Axis(labelLimit=170)),
        tooltip=[
            alt.Tooltip("array:N", title="array"),
            alt.Tooltip("dtype:N", title="dtype"),
            alt.Tooltip("dimension:O", title="dimension"),
            alt.Tooltip("size:N", title="size / shards"),
            alt.Tooltip("split:N", title="split over"),
            alt.Tooltip("MiB:Q", title="MiB per device, all of them", format=".3~g"),
        ],
    )
    cells = base.mark_rect(stroke="white", strokeWidth=2, cornerRadius=3).encode(
        color=alt.Color("split:N", scale=alt.Scale(domain=names, range=colours))
    )
    text = base.mark_text(fontSize=11).encode(
        text="size:N", color=alt.condition("datum.split == 'whole'", alt.value(QUIET), alt.value("white"))
    )
    return alt.layer(cells, text).properties(height=alt.Step(24))


def _grouped(details: Mapping[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Arrays of one shape and layout whose names differ in numbers alone, together."""
    sizes = details.get("axes", {})
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for array in details.get("layouts", ()):
        if not array["shape"]:
            continue
        pattern = re.sub(r"(?<=/)\d+(?=/|$)", "*", array["name"])
        key = (pattern, array["dtype"], *array["shape"], *map(tuple, array["axes"]))
        group = groups.setdefault(key, {**array, "label": array["name"], "count": 0, "bytes": 0.0})
        group["count"] += 1
        group["bytes"] += array["bytes"]
        group["ways"] = [_product(sizes[axis] for axis in axes) for axes in array["axes"]]
        if group["count"] > 1:
            group["label"] = f"{pattern} (×{group['count']})"
    return groups


def _product(numbers: Any) -> int:
    product = 1
    for number in numbers:
        product *= number
    return product


def memory_over_time(results: Results, case: str) -> alt.LayerChart | None:
    """What the plan keeps in a device's memory from program point to program point, and the compiled peak."""
    curve = results.details(case, "planned").get("memory")
    if not curve or len(curve["time"]) < 2:
        return None
    frame = pd.DataFrame(
        {
            "point": curve["time"],
            "source": curve["source"],
            **{role: [each / MEBIBYTE for each in curve[role]] for role in ROLES},
        }
    ).melt(["point", "source"], var_name="role", value_name="MiB")
    frame["order"] = frame.role.map(list(ROLES).index)
    names, colours = domain(ROLES, list(frame.role))
    areas = (
        alt.Chart(frame)
        .mark_area(interpolate="step-after", opacity=0.9)
        .encode(
            x=alt.X("point:Q", title="program point", axis=alt.Axis(grid=False, tickCount=6, format="~s")),
            y=alt.Y("MiB:Q", title="MiB per device", stack="zero", axis=alt.Axis(tickCount=5)),
            color=alt.Color("role:N", scale=alt.Scale(domain=names, range=colours)),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("role:N", title="of"),
                alt.Tooltip("MiB:Q", format=".4~g"),
                alt.Tooltip("source:N", title="at"),
            ],
        )
    )
    layers: list[alt.Chart] = [areas]
    step = results.steps.query("case == @case and strategy == 'planned'")
    if len(step) and step.compiled_peak.notna().all():
        peak = pd.DataFrame({"MiB": [step.compiled_peak.iloc[0] / MEBIBYTE], "text": ["compiled peak"]})
        layers += [
            alt.Chart(peak).mark_rule(color=INK, strokeDash=[5, 4]).encode(y="MiB:Q"),
            alt.Chart(peak).mark_text(align="left", dx=4, dy=-6, color=INK, fontSize=11).encode(
                y="MiB:Q", x=alt.value(0), text="text:N"
            ),
        ]  # fmt: skip
    return alt.layer(*layers).properties(height=230)


def search(results: Results, case: str) -> alt.LayerChart | None:
    """How the solver closed in on the plan: the best found and the bound below it, over time."""
    steps = results.details(case, "planned").get("search")
    if not steps:
        return None
    frame = pd.DataFrame(steps, columns=["seconds", "best found", "lower bound"]).melt(
        "seconds", var_name="what", value_name="cost"
    )
    frame = frame.dropna(subset=["cost"]).assign(ms=lambda each: each.cost * 1e3)
    frame = frame[frame.ms > 0]
    if frame.empty:
        return None
    lines = (
        alt.Chart(frame)
        .mark_line(interpolate="step-after", size=2, point=alt.OverlayMarkDef(size=30))
        .encode(
            x=alt.X("seconds:Q", title="seconds of search", axis=alt.Axis(tickCount=6, format="~g")),
            y=alt.Y("ms:Q", title="plan's cost, ms per step", scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5)),
            color=alt.Color(
                "what:N", scale=alt.Scale(domain=["best found", "lower bound"], range=[CATEGORIES[0], QUIET])
            ),
            tooltip=[
                alt.Tooltip("what:N", title="what"),
                alt.Tooltip("ms:Q", title="ms per step", format=".4~g"),
                alt.Tooltip("seconds:Q", title="after, s", format=".3~g"),
            ],
        )
    )
    return alt.layer(lines).properties(height=230)


def _of(results: Results, case: str) -> pd.DataFrame:
    return results.steps[results.steps.case == case].copy()
