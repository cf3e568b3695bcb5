"""The predicted timeline of a call, in the Trace Event Format that Perfetto and chrome://tracing read.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from planner.assignment import Assignment
from planner.buffers import Timeline, timeline
from planner.memory import MemoryCurve, over_time
from planner.predict import Prediction
from planner.program import Instruction, Program
from planner.write import write

DEVICE, CALL, COMPUTE, COMMUNICATION = 1, 1, 2, 3
"""All devices do the same, so that there is one process; its threads."""
THREADS = {CALL: "call", COMPUTE: "compute", COMMUNICATION: "communication"}

Event = dict[str, Any]


def memory_curve(assignment: Assignment, donors: Sequence[int | None]) -> MemoryCurve:
    """What is in a device's memory over time.

    Args:
        donors: for each result, the argument whose memory it takes over, or None.
    """
    on_paper = timeline(assignment, write(assignment).program, donors)
    return over_time(on_paper.allocations, on_paper.lines)


def trace_json(assignment: Assignment, donors: Sequence[int | None], prediction: Prediction) -> str:
    """What a device does from when to when, and what is in its memory meanwhile.

    One instruction follows the other; together they take `prediction.step_seconds`. What runs several times in a loop
    is one event as long as all its rounds, inside the loop's own.
    """
    program = write(assignment).program
    on_paper = timeline(assignment, program, donors)
    clock = _Clock(prediction.overhead_seconds, on_paper)
    reached: dict[int, float] = {}
    for one in program.instructions:
        if one in on_paper.starts:
            reached.setdefault(on_paper.starts[one], clock.seconds)
        clock.run(one)
    return json.dumps(
        {
            "displayTimeUnit": "ms",
            "traceEvents": [
                *_names(assignment),
                _span("calling, waiting, and far memory", CALL, 0.0, prediction.overhead_seconds, {}),
                *clock.events,
                *_memory(over_time(on_paper.allocations, on_paper.lines), reached, clock.seconds),
            ],
        }
    )


class _Clock:
    def __init__(self, seconds: float, on_paper: Timeline):
        self.seconds, self.on_paper = seconds, on_paper
        self.events: list[Event] = []

    def run(self, one: Instruction) -> None:
        begun, place = self.seconds, len(self.events)
        seconds = one.count * self.on_paper.seconds(one)
        self._spend(one.name, COMPUTE, seconds, {"count": one.count, "source": one.source})
        for each in one.collectives:
            about = {"count": each.count, "source": each.source, "bytes": each.bytes, "axes": ", ".join(each.axes)}
            self._spend(each.kind, COMMUNICATION, each.seconds, about)
        for body in one.bodies:
            self.inside(body)
        if one.bodies:
            whole = _span(one.name, CALL, begun, self.seconds - begun, {"source": one.source})
            self.events.insert(place, whole)

    def inside(self, body: Program) -> None:
        for one in body.instructions:
            self.run(one)

    def _spend(self, name: str, thread: int, seconds: float, about: Event) -> None:
        if seconds > 0.0:
            self.events.append(_span(name, thread, self.seconds, seconds, about))
            self.seconds += seconds


def _names(assignment: Assignment) -> Iterator[Event]:
    cost = assignment.priced.cost
    mesh = " x ".join(f"{axis}={size}" for axis, size in cost.axis_sizes.items())
    yield {"ph": "M", "pid": DEVICE, "name": "process_name", "args": {"name": f"every device of {mesh}, predicted"}}
    for thread, name in THREADS.items():
        yield {"ph": "M", "pid": DEVICE, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _span(name: str, thread: int, start: float, seconds: float, about: Event) -> Event:
    return {
        "ph": "X", "pid": DEVICE, "tid": thread, "name": name, "ts": start * 1e6, "dur": seconds * 1e6,
        "args": {key: value for key, value in about.items() if value != ""},
    }  # fmt: skip


def _memory(curve: MemoryCurve, reached: dict[int, float], end: float) -> Iterator[Event]:
    """A counter; what happens inside a loop counts where the loop is reached."""
    points = sorted(reached)
    for time, *nbytes in zip(curve.times, curve.argument_bytes, curve.result_bytes, curve.temporary_bytes, strict=True):
        later = next((point for point in points if point >= time), None)
        seconds = end if later is None else reached[later]
        named = dict(zip(("arguments", "results", "temporaries"), nbytes, strict=True))
        yield {"ph": "C", "pid": DEVICE, "name": "bytes in memory", "ts": seconds * 1e6, "args": named}
