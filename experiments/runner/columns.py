"""What a row of `results.csv` holds: every column with its unit. One row is one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
"""Collectives that have columns of their own."""

FINE = ("ok", "predicted", "not applicable", "infeasible")
"""Statuses of runs that came to an end: timed; predicted alone, for want of devices; there is no such layout of the
function; no plan fits the memory that was asked for."""

FAILED = ("error", "crash", "time-out", "out of memory")
"""Statuses of runs that did not."""

QUANTILES = (5, 25, 75, 95)
"""Per cent; the median and the least have columns of their own."""


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        unit: "s", "B" (bytes, per device unless said otherwise), "1" for counts and ratios, empty for text.
    """

    name: str
    kind: Literal["text", "whole", "real"]
    unit: str
    meaning: str

    @property
    def dtype(self) -> str:
        """As pandas has it; a whole number may be missing."""
        return {"text": "str", "whole": "Int64", "real": "float64"}[self.kind]

    def read(self, text: str) -> str | int | float | None:
        """A cell as it stands in the file.

        Raises:
            ValueError: a number belongs there.
        """
        if self.kind == "text":
            return text
        if not text:
            return None
        number = float(text)
        if self.kind == "real":
            return number
        if not number.is_integer():
            raise ValueError(f"{text} is no whole number")
        return int(number)  # pandas writes 2.0 where others in the column are missing

    def write(self, value: Any) -> str:
        """A cell as it goes to the file: numbers to nine digits, text on one line."""
        if value is None or value != value:
            return ""
        if self.kind == "text":
            return " ".join(str(value).split())
        return str(int(value)) if self.kind == "whole" else f"{float(value):.9g}"


def column_of(kind: str, side: str) -> str:
    """The column for the bytes of a kind of collective; `side` is "predicted" or "compiled"."""
    return f"{side}_{kind.replace('-', '_')}_bytes"


def _columns() -> Iterator[Column]:
    text = (
        ("workload", "name of a workload, or module:function"),
        ("size", "of the workload: test or full"),
        ("mesh", "shape of the mesh of devices, such as 2x4; or a preset's name, for which the shape is chosen"),
        ("strategy", "how it is laid out; see the strategies above"),
    )
    yield from (Column(name, "text", "", meaning) for name, meaning in text)
    yield Column("repeat", "whole", "1", "which of the suite's repeats this is, from 1")
    yield Column("seed", "whole", "1", "of the arguments' random numbers and of random plans")
    yield Column(
        "status",
        "text",
        "",
        f"{', '.join(FINE)}; or one of {', '.join(FAILED)}",
    )
    yield Column("error", "text", "", "what went wrong, on one line")
    yield Column("mesh_axes", "text", "", "sizes of the mesh axes, such as x=2 y=4")
    seconds = (
        ("predicted_step_seconds", "time of one step by the cost model"),
        ("predicted_compute_seconds", "the part of it that ops take"),
        ("predicted_communication_seconds", "the part of it that collectives add"),
        ("predicted_overhead_seconds", "the part of it that calling, waiting for each other and far memory take"),
        ("measured_step_seconds", "median time of one step, until its results are ready"),
        ("measured_min_seconds", "the shortest step"),
        *((f"measured_p{percent:02}_seconds", f"{percent} % of the steps took less") for percent in QUANTILES),
    )
    yield from (Column(name, "real", "s", meaning) for name, meaning in seconds)
    yield Column("calls", "whole", "1", "steps that were timed")
    beside = "median step time over the plan's, the two taking turns; 1 where they are one program"
    ratios = (
        ("times_plan", f"{beside}; empty where memory does not take both"),
        ("times_plan_low", "2.5 % of the ratios that resampling those steps gives are less"),
        ("times_plan_high", "2.5 % of them are more"),
    )
    yield from (Column(name, "real", "1", meaning) for name, meaning in ratios)
    yield Column(
        "reference_seconds",
        "real",
        "s",
        "time of a fixed product on all devices, beside the steps: the machine's speed",
    )
    stages = (
        ("trace_seconds", "planning: from function to jaxpr"),
        ("build_seconds", "planning: from jaxpr to the optimisation problem"),
        ("solve_seconds", "planning: hand-written layouts and search"),
        ("compile_seconds", "what XLA took, tracing and lowering not counted"),
    )
    yield from (Column(name, "real", "s", meaning) for name, meaning in stages)
    yield Column("solver_status", "text", "", "optimal, feasible, baseline, or given where the layout was")
    yield Column("solver_gap", "real", "1", "part of the plan's cost that is not proven necessary")
    yield Column("solver_lower_bound_seconds", "real", "s", "no plan costs less, by the model")
    for side, by in (("predicted", "the plan"), ("compiled", "the compiled program")):
        yield Column(f"{side}_peak_bytes", "real", "B", f"memory per device at the worst point, by {by}")
        yield Column(f"{side}_communicated_bytes", "real", "B", f"per device through all collectives, by {by}")
        for kind in KINDS:
            yield Column(column_of(kind, side), "real", "B", f"per device through {kind}s, by {by}")
    yield Column("fidelity", "real", "1", "part of the communicated bytes that is as planned, 0 to 1")
    yield Column("rematerializations", "whole", "1", "arrays that the compiler gathered whole for want of a way")
    yield Column("largest_error", "real", "1", "difference to one device, relative to the array's largest element")
    yield Column(
        "numerics",
        "text",
        "",
        "ok, or beyond tolerance: more than another order of summation explains, and in which result",
    )
    yield Column("wall_seconds", "real", "s", "of the run's process, start-up included")
    yield Column("host_peak_bytes", "real", "B", "of the host's memory, that the run's process took at most")
    conditions = (
        ("device_kind", "as JAX names it"),
        ("processor", "of the host"),
        ("cost_model", "preset, or calibrated: measured on these devices when the suite began"),
        ("started_at", "UTC, ISO 8601"),
        *((f"{name}_version", f"of {name}") for name in ("python", "jax", "jaxlib", "ortools", "meshwright")),
        ("git_revision", "of the checkout; -dirty where files of the packages differ from it"),
    )
    yield Column("devices", "whole", "1", "of the mesh")
    yield Column("cores", "whole", "1", "of the host")
    yield from (Column(name, "text", "", meaning) for name, meaning in conditions)


COLUMNS: Mapping[str, Column] = {column.name: column for column in _columns()}
"""By name, in the order of the file."""

KEY = ("workload", "size", "mesh", "strategy", "repeat")
"""What tells one run of a suite from another."""


def frame_of(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a frame with all columns, typed."""
    frame = pd.DataFrame(list(rows), columns=list(COLUMNS))
    return frame.astype({name: column.dtype for name, column in COLUMNS.items()})
