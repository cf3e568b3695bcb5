"""Figures of one case: its layouts side by side, and the plan from inside."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd

from experiments.report.data import Results
from experiments.report.overview import round_numbers
from experiments.report.style import CATEGORIES, INK, KIND_COLOURS, PARTS, QUIET, ROLES, Figure, domain

MOST_ARRAYS = 24
"""Groups of arrays in the picture of the layout, the largest ones."""
END_PARTS = 3
"""Of an array's path, in that picture."""
BAR, ROW = 15, 25
"""Pixels."""
HEADROOM = 1.15
MEBIBYTE = 2**20


def step_time(results: Results, case: str) -> Figure | None:
    """Measured and predicted step time of each layout, fastest first."""
    frame = _of(results, case).dropna(subset=["measured"]).sort_values("measured")
    if frame.empty:
        return None
    for name in ("measured", "low", "high", "predicted"):
        frame[f"{name}_ms"] = frame[name] * 1e3
    names, colours = domain(KIND_COLOURS, list(frame.kind))
    place = alt.Y("strategy:N", title=None, sort=list(frame.strategy))
    base = alt.Chart(frame)
    tooltip = [
        alt.Tooltip("strategy:N", title="layout"),
        alt.Tooltip("measured_ms:Q", title="measured, ms", format=".3~g"),
        alt.Tooltip("low_ms:Q", title="from, ms", format=".3~g"),
        alt.Tooltip("high_ms:Q", title="to, ms", format=".3~g"),
        alt.Tooltip("predicted_ms:Q", title="predicted, ms", format=".3~g"),
    ]
    bars = base.mark_bar(size=BAR).encode(
        x=alt.X("measured_ms:Q", title="ms per step", axis=alt.Axis(tickCount=5)),
        y=place,
        color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours)),
        tooltip=tooltip,
    )
    spread = base.mark_rule(color=INK, size=1.5, opacity=0.7).encode(x="low_ms:Q", x2="high_ms:Q", y=place)
    predicted = base.mark_tick(color=INK, thickness=2.5, size=BAR + 5).encode(
        x="predicted_ms:Q", y=place, tooltip=tooltip
    )
    return alt.layer(bars, spread, predicted).properties(height=ROW * len(frame))


def memory(results: Results, case: str) -> Figure | None:
    """Peak memory of each layout, by the compiler and by the plan."""
    frame = _of(results, case)
    frame = frame.assign(compiled=frame.compiled_peak / MEBIBYTE, planned=frame.predicted_peak / MEBIBYTE)
    frame = frame.assign(length=frame.compiled.fillna(frame.planned)).dropna(subset=["length"]).sort_values("length")
    if frame.empty:
        return None
    names, colours = domain(KIND_COLOURS, list(frame.kind))
    place = alt.Y("strategy:N", title=None, sort=list(frame.strategy))
    base = alt.Chart(frame[["strategy", "kind", "compiled", "planned", "length"]])
    tooltip = [
        alt.Tooltip("strategy:N", title="layout"),
        alt.Tooltip("compiled:Q", title="compiled, MiB", format=".4~g"),
        alt.Tooltip("planned:Q", title="predicted, MiB", format=".4~g"),
    ]
    bars = base.mark_bar(size=BAR).encode(
        x=alt.X("length:Q", title="peak MiB per device", axis=alt.Axis(tickCount=5)),
        y=place,
        color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours)),
        tooltip=tooltip,
    )
    predicted = base.mark_tick(color=INK, thickness=2.5, size=BAR + 5).encode(x="planned:Q", y=place, tooltip=tooltip)
    return alt.layer(bars, predicted).properties(height=ROW * len(frame))


def where_time_goes(results: Results, case: str) -> Figure | None:
    """The predicted step of each layout in parts: compute, each kind of collective, overhead."""
    rows = []
    for step in _of(results, case).dropna(subset=["predicted"]).sort_values("predicted").to_dict("records"):
        parts = {"compute": step["compute"], "overhead": step["overhead"]}
        for one in results.details(case, step["strategy"]).get("predicted", ()):
            parts[one["kind"]] = parts.get(one["kind"], 0.0) + one["seconds"]
        rows += [
            {"strategy": step["strategy"], "part": part, "ms": seconds * 1e3, "order": list(PARTS).index(part)}
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
            color=alt.Color("part:N", scale=alt.Scale(domain=names, range=colours)),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("strategy:N", title="layout"),
                alt.Tooltip("part:N", title="part"),
                alt.Tooltip("ms:Q", title="ms", format=".3~g"),
            ],
        )
    )
    return alt.layer(bars).properties(height=ROW * frame.strategy.nunique())


def communication(results: Results, case: str) -> Figure | None:
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
            x=alt.X("MiB:Q", title="MiB per device and step", axis=alt.Axis(tickCount=5)),
            y=alt.Y("line:N", title=None, sort=list(lines)),
            color=alt.Color("kind:N", scale=alt.Scale(domain=names, range=colours)),
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("kind:N", title="collective"),
                alt.Tooltip("line:N", title="over"),
                alt.Tooltip("count:Q", title="times per step", format=".4~g"),
                alt.Tooltip("MiB:Q", title="MiB", format=".4~g"),
            ],
        )
    )
    return alt.layer(bars).properties(height=ROW * len(lines))


def layout_picture(results: Results, case: str) -> Figure | None:
    """Each argument of the plan, dimension by dimension: its size, and the mesh axes that split it."""
    details = results.details(case, "planned")
    shown = _grouped(details)
    rows = [
        {
            "array": group["label"],
            "dimension": f"{dim}",
            "size": f"{size} / {group['ways'][dim]}" if axes else f"{size}",
            "split": " and ".join(axes) or "whole",
            "names": ", ".join(group["names"][:4]) + (", …" if len(group["names"]) > 4 else ""),
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
        x=alt.X("dimension:O", title="dimension: size / shards", axis=alt.Axis(orient="top", labelAngle=0, grid=False)),
        y=alt.Y("array:N", title=None, sort=[group["label"] for group in shown], axis=alt.Axis(labelLimit=170)),
        tooltip=[
            alt.Tooltip("names:N", title="arrays"),
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
    return alt.layer(cells, text).properties(height=ROW * len(shown))


def _grouped(details: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Arrays of one shape and layout together where their names end alike, such as a parameter with its moments."""
    sizes = details.get("axes", {})
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for array in details.get("layouts", ()):
        key = (array["name"].rpartition("/")[2], array["dtype"], *array["shape"], *map(tuple, array["axes"]))
        group = groups.setdefault(key, {**array, "names": [], "bytes": 0.0})
        group["names"].append(array["name"])
        group["bytes"] += array["bytes"]
        group["ways"] = [math.prod(sizes[axis] for axis in axes) for axes in array["axes"]]
    shown = sorted((each for each in groups.values() if each["shape"]), key=lambda each: -each["bytes"])[:MOST_ARRAYS]
    seen: Counter[str] = Counter()
    for each in shown:
        shortest = "/".join(min(each["names"], key=len).split("/")[-END_PARTS:])
        count = f" ×{len(each['names'])}" if len(each["names"]) > 1 else ""
        seen[shortest] += 1
        number = f" ({seen[shortest]})" if seen[shortest] > 1 else ""
        each["label"] = shortest + number + count
    return shown


def memory_over_time(results: Results, case: str) -> Figure | None:
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
    highest = float(frame.groupby("point").MiB.sum().max())
    step = results.steps.query("case == @case and strategy == 'planned'")
    compiled = float(step.compiled_peak.fillna(0.0).max()) / MEBIBYTE if len(step) else 0.0
    areas = (
        alt.Chart(frame)
        .mark_area(interpolate="step-after", opacity=0.9)
        .encode(
            x=alt.X("point:Q", title="program point", axis=alt.Axis(grid=False, tickCount=6, format="~s")),
            y=alt.Y(
                "MiB:Q",
                title="MiB per device",
                stack="zero",
                axis=alt.Axis(tickCount=5),
                scale=alt.Scale(domain=[0, HEADROOM * max(highest, compiled)], nice=False),
            ),
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
    if compiled:
        peak = pd.DataFrame({"MiB": [compiled], "text": [f"compiled peak {compiled:.3g}"]})
        layers += [
            alt.Chart(peak).mark_rule(color=INK, strokeDash=[5, 4]).encode(y="MiB:Q"),
            alt.Chart(peak).mark_text(align="left", dx=4, dy=-7, color=INK, fontSize=11).encode(
                y="MiB:Q", x=alt.value(0), text="text:N"
            ),
        ]  # fmt: skip
    return alt.layer(*layers).properties(height=230)


def search(results: Results, case: str) -> Figure | None:
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
            x=alt.X("seconds:Q", title="seconds of search", axis=alt.Axis(tickCount=4, format="~g")),
            y=alt.Y(
                "ms:Q",
                title="plan's cost, ms per step",
                scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(values=round_numbers(frame.ms.min(), frame.ms.max()), format="~g"),
            ),
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
