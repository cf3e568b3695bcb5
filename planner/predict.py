"""What a chosen assignment will do: its collectives one by one, its seconds, and its memory over time."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from costmodel.compute import cold_seconds
from costmodel.device import Device
from costmodel.model import MeshCost
from costmodel.strides import spread_bytes
from planner.assignment import Assignment
from planner.buffers import Timeline, timeline
from planner.memory import Peak
from planner.pieces import unassembled
from planner.price import Priced
from planner.program import Collective, Instruction, Program
from planner.reuse import hands_on, refetch_seconds
from planner.traits import in_tiles
from planner.write import write

KERNELS_OF_PROBE = 2
"""That a round has by which `Device.round_seconds` is known: one counts, one computes."""
LEAST_GRAPH = 5
"""XLA makes a CUDA graph of so many kernels in a row (xla_gpu_graph_min_graph_size in openxla/xla: xla/xla.proto)."""


@dataclass(frozen=True)
class Prediction:
    """What the model says of one call of the planned function.

    Attributes:
        step_seconds: compute, communication and overhead together.
        compute_seconds: the ops' share, on each device.
        communication_seconds: the collectives' share, as far as it does not hide behind computation.
        overhead_seconds: what calling the program takes, whatever it computes, what devices wait for each other, where
            they share cores, and for their host in loops, what comes from memory again, or not as it was priced, what
            several kernels compute, or none, and what is copied lest it be written over; see `costmodel.calls`,
            `costmodel.waits`, `costmodel.Device` and `planner.reuse`.
        peak_bytes: per device: arguments, results and temporaries at the worst point, and the holes between those.
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
    compute = sum(one.count * over_time.seconds(one) for one in instructions)
    communication = sum(each.seconds for each in collectives)
    highest = over_time.peak
    cost = assignment.priced.cost
    standing = sum(each.nbytes for each in over_time.allocations if each.role != "temporary")
    temporary = highest.nbytes - standing  # some temporaries lie in what is idle of donated arguments
    overhead = _call_seconds(assignment.priced, program, donors, temporary)
    overhead += waited_seconds(cost, program, over_time)
    overhead += refetch_seconds(cost, program, over_time, highest.nbytes)
    overhead += sum(one.count * over_time.again_seconds(one) for one in instructions)
    overhead += sum(one.count * min(1.0, over_time.parts.get(one, 1.0)) * one.colder_seconds for one in instructions)
    overhead -= _unassembled_seconds(over_time)
    overhead += _turning_seconds(cost.device, over_time)
    overhead += _copied_seconds(cost, program, over_time, standing)
    overhead += _idle_seconds(cost, program, over_time)
    step = compute + communication + overhead
    return Prediction(step, compute, communication, overhead, highest.nbytes, collectives, highest)


def _turning_seconds(device: Device, over_time: Timeline) -> float:
    """What copies in another order take beside their prices, where their kernels are not computed tile by tile."""
    kernels = (kernel for kernels in over_time.kernels.values() for kernel in kernels)
    turning = ((kernel, [one for one in kernel if one.turn is not None]) for kernel in kernels)
    return sum(
        kernel[-1].count * _longer_from_afar(device, kernel, copies)
        for kernel, copies in turning
        if copies and not all(map(_in_tiles, kernel))
    )


def _longer_from_afar(device: Device, kernel: Sequence[Instruction], copies: Sequence[Instruction]) -> float:
    """Of a kernel: the lines of all arrays that its copies read elements of from afar want a place in the cache.

    Where there is one for all, reading several arrays for an element takes little more than reading one.
    """
    reads = [(copy, stride, span) for copy in copies for stride, span in _from_afar(copy, kernel)]
    spread = sum(float(spread_bytes(stride, span)) for copy, stride, span in reads if _turns(copy, stride))
    near, far = dict.fromkeys(copies, 0.0), dict.fromkeys(copies, 0.0)
    for copy, stride, span in reads:
        itemsize = copy.operands[0].itemsize
        beside = spread - float(spread_bytes(stride, span))
        at_hand = float(device.rearranging_seconds(stride, itemsize, 0.0))
        near[copy] = max(near[copy], at_hand)
        far[copy] += float(device.rearranging_seconds(stride, itemsize, span, beside_bytes=beside)) - at_hand
    return sum(
        copy.operands[0].nbytes / copy.operands[0].itemsize * (near[copy] + far[copy]) - copy.turn.seconds
        for copy in copies
        if copy.turn is not None
    )


def _turns(copy: Instruction, stride: float) -> bool:
    """Whether what a copy has in a row does not lie in one."""
    return stride > copy.operands[0].itemsize


def _from_afar(copy: Instruction, kernel: Sequence[Instruction]) -> Iterator[tuple[float, float]]:
    """The stride and span of each array in memory that a kernel reads for a copy of its elements in another order.

    What it slices lies as far apart as in the whole.
    """
    assert copy.turn is not None
    makers = {array: one for one in kernel for array in one.results}
    row, stride, span, _ = copy.turn
    waiting = [(copy.operands[0], 1.0)]
    seen = set(copy.operands)
    while waiting:
        array, wider = waiting.pop()
        made_of = makers[array].operands if array in makers else ()
        whole = [one for one in made_of if len(one.shape) == len(array.shape) and one.nbytes >= array.nbytes]
        if not whole:  # in memory, or put together of what is
            yield wider * stride, wider * span
        for one in dict.fromkeys(one for one in whole if one not in seen):
            behind = slice(row[-1] + 1, None) if row else slice(0, 0)
            sliced = math.prod(one.shape[behind]) / max(1, math.prod(array.shape[behind]))
            waiting.append((one, wider * sliced))
        seen.update(whole)


def _unassembled_seconds(over_time: Timeline) -> float:
    """What putting together takes, as all-to-alls and kernels are priced, that nobody does."""
    not_done = (one for kernels in over_time.kernels.values() for one in unassembled(kernels))
    return sum(one.count * max(1.0, over_time.parts.get(one, 1.0)) * one.again_seconds for one in not_done)


def _in_tiles(one: Instruction) -> bool:
    """As `planner.traits.in_tiles`; of what changes layouts slices are not, nor is what puts pieces together."""
    if one.op is not None:
        return in_tiles(one.op)
    return one.name in ("copy", "convert") and all(array.pieces == 1 for array in (*one.operands, *one.results))


def _copied_seconds(cost: MeshCost, program: Program, over_time: Timeline, standing: float) -> float:
    """What copying takes that nobody asked for.

    Args:
        standing: bytes of all arguments and results.
    """
    copies = [(array.nbytes, times) for array, times in (*over_time.copied.items(), *over_time.begun.items())]
    moving = sum(
        times * (cost.device.launch_seconds + float(cost.device.memory_seconds(2.0 * nbytes)))
        for nbytes, times in copies
    )
    written = sum(result.nbytes for result in program.outputs if result in over_time.begun)
    return moving + float(cold_seconds(cost.device, written, standing / max(1.0, written), written))


def _idle_seconds(cost: MeshCost, program: Program, over_time: Timeline) -> float:
    """What rounds of loops fall short of the least that one takes."""
    idle = 0.0
    for one in program.walk():
        if one.is_loop:
            body = one.bodies[-1]
            inside = sum(each.count * over_time.seconds(each) for each in body.walk())
            inside += sum(each.seconds for step in body.walk() for each in step.collectives)
            least = cost.device.round_seconds
            if cost.backend == "gpu":
                least *= _started_apart(body, over_time) / KERNELS_OF_PROBE
            idle += max(0.0, body.instructions[-1].count * least - inside)
    return idle


def _started_apart(body: Program, over_time: Timeline) -> int:
    """The kernels of a loop's round that a GPU's host starts one by one: one that counts, those of arrays, and copies.

    `LEAST_GRAPH` or more are a CUDA graph, which is started as fast as the probe's.
    """
    counts = {result for result, _ in body.carried if result is not None and not result.shape}
    working = (kernel[-1] for kernel in over_time.kernels[body] if not hands_on(kernel))
    kernels = sum(counts.isdisjoint(root.results) for root in working)
    started = 1 + kernels + sum(result in over_time.copied for result, _ in body.carried)
    return started if started < LEAST_GRAPH else KERNELS_OF_PROBE


class _Since(NamedTuple):
    """How far apart the devices along a mesh axis may be, for they have not waited for each other since.

    Attributes:
        computed: seconds that each device has computed, after what it had when any first waited in the call.
        parted: seconds², the variance of when collectives over other axes have let go of them.
        begun: seconds that each had computed before.
        called: whether none has waited for any other since the call, along any axis.
    """

    computed: float = 0.0
    parted: float = 0.0
    begun: float = 0.0
    called: bool = False

    def add(self, computed: float) -> _Since:
        if self.called:
            return self._replace(begun=self.begun + computed)
        return self._replace(computed=self.computed + computed)

    def apart(self, parted: float) -> _Since:
        """After others have waited for each other."""
        return self._replace(parted=self.parted + parted, called=False)

    def midway(self) -> _Since:
        """As in the midst of a call, where all that was computed makes late."""
        return _Since(self.computed + self.begun, self.parted)

    def go_on(self, then: _Since, times: float) -> _Since:
        """As what comes `then`, had it come so many times."""
        return _Since(
            self.computed + times * (then.computed - self.computed),
            self.parted + times * (then.parted - self.parted),
            self.begun + times * (then.begun - self.begun),
            then.called,
        )


def waited_seconds(cost: MeshCost, program: Program, over_time: Timeline) -> float:
    """What the devices wait for each other before collectives, and for the last at the end; see `costmodel.waits`."""
    axes = tuple(axis for axis, size in cost.axis_sizes.items() if size > 1)  # along others nobody is met
    waited, since, _ = _waits(cost, program, over_time, 1.0, dict.fromkeys(axes, _Since(called=True)))
    return waited + (_wait(cost, axes, since) if axes else 0.0)


def _wait(cost: MeshCost, group: Collection[str], since: Mapping[str, _Since]) -> float:
    """Of what is independent, variances add."""
    last_met = max(since[axis] for axis in group)
    computed = {axis: each.computed for axis, each in since.items()}
    return math.hypot(cost.waiting_seconds(group, computed, last_met.begun), math.sqrt(last_met.parted))


def _waits(
    cost: MeshCost, program: Program, over_time: Timeline, times: float, since: Mapping[str, _Since]
) -> tuple[float, Mapping[str, _Since], frozenset[str]]:
    """Of a program that runs so many times: the seconds waited in one, what was computed since at its end, and the axes
    along which devices waited for each other."""
    waited, met = 0.0, frozenset[str]()
    order = over_time.orders[program]
    # Where an op stands for those of several layers that communicate, they wait in each layer for what that computed.
    communicating = {collective.count for one in order for collective in one.collectives}
    for one in order:
        for _, joined in groupby(one.collectives, key=lambda each: (each.kind, each.axes)):
            collective = next(joined)  # those joined with it are one with it, or follow at once
            group = _meeting(collective, since)
            often = collective.count / times  # of the layers that it stands for, one is the first in the call
            waited += min(often, 1.0) * _wait(cost, group, since)
            if often > 1.0:
                waited += (often - 1.0) * _wait(cost, group, {axis: each.midway() for axis, each in since.items()})
            parted = cost.parting_seconds(collective.kind, collective.axes) ** 2
            since = {axis: _Since() if axis in group else each.apart(parted) for axis, each in since.items()}
            met |= set(group)
        computed = over_time.seconds(one) * (1.0 if one.count in communicating else one.count / times)
        since = {axis: each.add(computed) for axis, each in since.items()}
        for body in one.bodies:
            runs = body.instructions[-1].count  # the return's; 0 in a loop of no rounds
            if not runs:
                continue
            first, after, met_first = _waits(cost, body, over_time, runs, since)
            again, at_end, met_again = _waits(cost, body, over_time, runs, after)
            rounds = runs / times
            waited += min(rounds, 1.0) * first + max(rounds - 1.0, 0.0) * again
            # Whom the first round alone has waited for goes on alone from then, as whom none has from before.
            more = {axis: max(rounds, float(axis in met_first)) - 1.0 for axis in since}
            since = {
                axis: each if axis in met_again else after[axis].go_on(each, more[axis])
                for axis, each in at_end.items()
            }
            met |= met_first | met_again
    return waited, since, met


def _meeting(collective: Collective, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes over which devices meet: all for a permutation, which takes as long over two devices as over eight."""
    return tuple(axis for axis in axes if collective.kind == "collective-permute" or axis in collective.axes)


def _call_seconds(priced: Priced, program: Program, donors: Sequence[int | None], temporary_bytes: float) -> float:
    times = priced.graph.times
    results = [(array, donor) for array, donor in zip(program.outputs, donors, strict=True) if array is not None]
    fresh = [nbytes for array, donor in results if donor is None for nbytes in [array.nbytes] * times(array.value)]
    allocated = [temporary_bytes, *fresh]
    given = sum(times(array.value) for array in program.inputs)
    return priced.cost.device.call.seconds(given, sum(times(array.value) for array, _ in results), allocated)
