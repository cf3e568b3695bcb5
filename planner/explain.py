"""A plan in a person's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from planner.layout import to_spec
from planner.quantities import bytes_text, seconds_text

if TYPE_CHECKING:
    from planner.planned import Plan


def explain(plan: Plan) -> str:
    """What was chosen, what it costs, where the time goes, and what the runner-up costs."""
    prediction = plan.prediction
    lines = [
        f"{plan.traced.name} on a mesh of {mesh_text(plan.choice.priced.cost.axis_sizes)}: "
        f"{seconds_text(prediction.step_seconds)} a step, of which {seconds_text(prediction.communication_seconds)} "
        f"communication; {bytes_text(prediction.peak_bytes)} per device at the peak ({found_text(plan)})",
        "",
        "Arguments",
        *argument_lines(plan),
        "",
        "Communication",
        *communication_lines(plan),
        "",
        "Instead",
        *(
            f"  {name:<16} {seconds_text(other.prediction.step_seconds):>10} a step, "
            f"{bytes_text(other.prediction.peak_bytes)}"
            for name, other in sorted(plan.alternatives.items(), key=lambda item: item[1].prediction.step_seconds)
        ),
    ]
    return "\n".join(lines)


def found_text(plan: Plan) -> str:
    """How good the plan is known to be."""
    if plan.status == "optimal":
        return "proven best within the model"
    by_hand = [name for name, picks in plan.choice.candidates.items() if picks == plan.choice.assignment.picks]
    return ", ".join([plan.status, *by_hand[:1], f"at most {plan.gap:.1%} from the best"])


def argument_lines(plan: Plan) -> Iterable[str]:
    """Each argument's layout; layers that are laid out alike on one line."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for value in plan.choice.priced.graph.whole.body.inputs:
        spec = to_spec(plan.choice.assignment.home(value))
        shape = f"{value.dtype}[{','.join(map(str, value.shape))}]"
        key = (re.sub(r"\d+(?=/)", "*", value.name), shape, layout_text(spec))
        groups.setdefault(key, []).append(value.name)
    for (pattern, shape, text), names in groups.items():
        name = names[0] if len(names) == 1 else f"{pattern} ({len(names)})"
        yield f"  {name:<44} {shape:<22} {text}"


def layout_text(spec: Iterable[str | tuple[str, ...] | None]) -> str:
    """A PartitionSpec in words."""
    parts = [
        f"dimension {dim} over {' and '.join((entry,) if isinstance(entry, str) else entry)}"
        for dim, entry in enumerate(spec)
        if entry
    ]
    return "split: " + ", ".join(parts) if parts else "whole on every device"


def communication_lines(plan: Plan, most: int = 8) -> Iterable[str]:
    """The collectives that take most of the time, those of one source line together."""
    groups: dict[tuple[str, tuple[str, ...], str], list[float]] = {}
    for collective in plan.prediction.collectives:
        total = groups.setdefault((collective.kind, collective.axes, collective.source), [0.0, 0.0, 0.0])
        total[0] += collective.count
        total[1] += collective.count * collective.bytes
        total[2] += collective.seconds
    if not groups:
        yield "  none"
    ranked = sorted(groups.items(), key=lambda item: -item[1][2])
    for (kind, axes, source), (count, nbytes, seconds) in ranked[:most]:
        where = f" at {source}" if source else ""
        what = f"{count:g} x {kind} over {' and '.join(axes)}, {bytes_text(nbytes)}{where}"
        yield f"  {seconds_text(seconds):>10}  {what}"
    if len(ranked) > most:
        rest = sum(total[2] for _, total in ranked[most:])
        yield f"  {seconds_text(rest):>10}  {len(ranked) - most} more"


def mesh_text(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{axis}={size}" for axis, size in sizes.items())
