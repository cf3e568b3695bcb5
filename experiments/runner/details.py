"""What a run found that has no place in a row: each call, each collective, each array, memory and search over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from executor import CompiledCollective
from planner import Collective, Plan
from planner.layout import shard_elements

MOST_POINTS = 600
"""Of a curve, as it is kept; more would not be seen."""


def of_plan(plan: Plan) -> dict[str, Any]:
    """Its axes, collectives, layouts, memory over time and search, in words too."""
    curve = plan.memory_over_time
    kept = thinned(curve.total_bytes)
    return {
        "axes": dict(plan.choice.priced.cost.axis_sizes),
        "function": plan.traced.name,
        "explained": plan.explain() if plan.strategy == "planned" else "",
        "predicted": collectives(plan.prediction.collectives),
        "layouts": layouts(plan),
        "memory": {
            "time": [curve.times[at] for at in kept],
            "arguments": [curve.argument_bytes[at] for at in kept],
            "results": [curve.result_bytes[at] for at in kept],
            "temporaries": [curve.temporary_bytes[at] for at in kept],
            "source": [curve.sources[at] for at in kept],
        },
        "search": [[step.seconds, finite(step.cost), finite(step.lower_bound)] for step in plan.progress],
    }


def collectives(each: Iterable[Collective | CompiledCollective]) -> list[dict[str, Any]]:
    """Those of one kind over the same axes together: how many, bytes per device and seconds of all."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
    for one in each:
        key = one.kind, tuple(sorted(one.axes))
        total = found.setdefault(
            key, {"kind": one.kind, "axes": list(key[1]), "count": 0.0, "bytes": 0.0, "seconds": 0.0}
        )
        total["count"] += one.count
        total["bytes"] += one.count * one.bytes
        total["seconds"] += one.seconds if isinstance(one, Collective) else 0.0
    return list(found.values())


def layouts(plan: Plan) -> list[dict[str, Any]]:
    """Each argument's shape, the mesh axes on each of its dimensions, and its bytes per device."""
    sizes = plan.choice.priced.cost.axis_sizes
    found = []
    for value in plan.choice.priced.graph.whole.body.inputs:
        layout = plan.choice.assignment.home(value)
        found.append(
            {
                "name": value.name,
                "dtype": str(value.dtype),
                "shape": list(value.shape),
                "axes": [list(axes) for axes in layout],
                "bytes": shard_elements(value.shape, layout, sizes) * value.itemsize,
            }
        )
    return found


def thinned(values: Sequence[float]) -> list[int]:
    """Places of at most `MOST_POINTS` values, in order: the highest and the lowest of each stretch, and both ends."""
    if len(values) <= MOST_POINTS:
        return list(range(len(values)))
    stretch = -(-2 * len(values) // (MOST_POINTS - 2))
    kept = {0, len(values) - 1}
    for start in range(0, len(values), stretch):
        places = range(start, min(start + stretch, len(values)))
        kept |= {max(places, key=values.__getitem__), min(places, key=values.__getitem__)}
    return sorted(kept)


def finite(number: float) -> float | None:
    """None in place of what JSON cannot say."""
    return number if abs(number) < float("inf") else None
