"""What a chosen assignment will do: its collectives one by one, its seconds, and its memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from costmodel.model import MeshCost
from planner.assignment import Assignment
from planner.buffers import Timeline, timeline
from planner.memory import Peak, peak
from planner.price import Priced
from planner.program import Collective, Program, write


@dataclass(frozen=True)
class Prediction:
    """What the model says of one call of the planned function.

    Attributes:
        step_seconds: compute, communication and overhead together.
        compute_seconds: the ops' share, on each device.
        communication_seconds: the collectives' share, as far as it does not hide behind computation.
        overhead_seconds: what calling the program takes, whatever it computes, and what devices that share cores wait
            for each other; see `costmodel.calls.CallCost` and `costmodel.waits`.
        peak_bytes: per device: arguments, results and temporaries at the worst point.
        collectives: in program order.
        peak: where the peak is and what is alive there.
    """

    step_seconds: float
    compute_seconds: float
    communication_seconds: float
    overhead_seconds: float
    peak_bytes: float
    collectives: tuple[Collective, ...]
    peak: Peak = field(repr=False)

    @property
    def communicated_bytes(self) -> float:
        """Bytes per device through all collectives of one call, each at its larger side."""
        return sum(collective.bytes * collective.count for collective in self.collectives)


def predict(assignment: Assignment, donors: Sequence[int | None]) -> Prediction:
    """Runs the program of an assignment on paper.

    Args:
        donors: for each result, the argument whose memory it takes over, or None.
    """
    program = write(assignment).program
    over_time = timeline(assignment, program, donors)
    instructions = tuple(program.walk())
    collectives = tuple(each for one in instructions for each in one.collectives)
    compute = sum(one.count * one.seconds for one in instructions)
    communication = sum(each.seconds for each in collectives)
    overhead = _call_seconds(assignment.priced, program, donors, over_time)
    overhead += _waiting_seconds(assignment.priced.cost, program)
    step = compute + communication + overhead
    highest = peak(over_time.allocations, over_time.lines)
    return Prediction(step, compute, communication, overhead, highest.nbytes, collectives, highest)


def _waiting_seconds(cost: MeshCost, program: Program) -> float:
    """What the devices wait for each other before collectives, and for the last at the end."""
    waited, computed = _waits(cost, program, 1.0, 0.0)
    return waited + cost.waiting_seconds(tuple(cost.axis_sizes), computed)


def _waits(cost: MeshCost, program: Program, times: float, computed: float) -> tuple[float, float]:
    """Seconds waited in a program that runs so many times, one of them, and those computed since at its end.

    Args:
        computed: seconds since the devices last waited, at its start.
    """
    waited = 0.0
    # Where an op stands for those of several layers that communicate, they wait in each layer for what that computed.
    communicating = {collective.count for one in program.instructions for collective in one.collectives}
    for one in program.instructions:
        for collective in one.collectives:
            waited += collective.count / times * cost.waiting_seconds(collective.axes, computed)
            computed = 0.0
        computed += one.seconds * (1.0 if one.count in communicating else one.count / times)
        for body in one.bodies:
            runs = body.instructions[-1].count  # the return's; 0 in a loop of no rounds
            if not runs:
                continue
            first, after = _waits(cost, body, runs, computed)
            again, at_end = _waits(cost, body, runs, after)
            rounds = runs / times
            waited += min(rounds, 1.0) * first + max(rounds - 1.0, 0.0) * again
            communicates = any(inside.collectives for inside in body.walk())
            computed = at_end if communicates else computed + rounds * (after - computed)
    return waited, computed


def _call_seconds(priced: Priced, program: Program, donors: Sequence[int | None], over_time: Timeline) -> float:
    times = priced.graph.times
    temporaries = [each for each in over_time.allocations if each.role == "temporary"]
    results = [(array, donor) for array, donor in zip(program.outputs, donors, strict=True) if array is not None]
    fresh = [nbytes for array, donor in results if donor is None for nbytes in [array.nbytes] * times(array.value)]
    allocated = [peak(temporaries, over_time.lines).nbytes, *fresh]
    given = sum(times(array.value) for array in program.inputs)
    return priced.cost.device.call.seconds(given, sum(times(array.value) for array, _ in results), allocated)
